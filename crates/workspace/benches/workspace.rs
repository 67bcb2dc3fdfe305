//! Measures capture, materialize and collect on a repository of 10 000 files, beside plain git
//! doing what the reference does, on the same files in the same run; and one file of 1 GB.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    clippy::indexing_slicing,
    reason = "a benchmark"
)]

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use warrant_protocol::WorkspaceManifest;
use warrant_workspace::{
    BlobDirectory, CaptureOptions, CollectOptions, DEFAULT_DENY, GitDirectory, History,
    MaterializeOptions, TreeLimits, capture, collect, materialize, never_stop, quiet,
};

const ROUNDS: usize = 7;

struct Bench {
    top: PathBuf,
    blobs: BlobDirectory,
}

fn main() {
    // `cargo test` runs benches with this argument; there is nothing to test here.
    if std::env::args().any(|arg| arg == "--test") {
        return;
    }
    let temp = tempfile::tempdir_in("/dev/shm").unwrap();
    if std::env::args().any(|arg| arg == "large") {
        return large(temp.path());
    }
    let bench = Bench::new(temp.path());
    bench.many_files();
    if std::env::args().any(|arg| arg == "many") {
        return;
    }
    let child = Command::new(std::env::current_exe().unwrap()).args(["large"]).status().unwrap();
    assert!(child.success());
}

impl Bench {
    fn new(top: &Path) -> Self {
        for name in ["repo", "scratch"] {
            fs::create_dir(top.join(name)).unwrap();
        }
        let blobs = BlobDirectory::open(top.join("blobs")).unwrap();
        Self { top: top.to_path_buf(), blobs }
    }

    fn repo(&self) -> PathBuf {
        self.top.join("repo")
    }

    fn many_files(&self) {
        let repo = self.repo();
        git(&repo, &["init", "-q", "-b", "main"]);
        let mut state = 1_u32;
        for directory in 0..100 {
            let path = repo.join(format!("d{}/s{}", directory / 10, directory % 10));
            fs::create_dir_all(&path).unwrap();
            for file in 0..100 {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let lines = 5 + (state >> 16) % 55;
                let content = format!("file {directory} {file} {state}\n").repeat(lines as usize);
                fs::write(path.join(format!("f{file}.txt")), content).unwrap();
            }
        }
        git(&repo, &["add", "-A"]);
        git(&repo, &["commit", "-q", "-m", "init"]);
        git(&repo, &["repack", "-adq"]);
        git(&repo, &["status"]);
        println!(
            "{:<12} {:>8} {:>8} {:>10} {:>8} {:>22}",
            "", "ours", "cpu", "plain git", "cpu", "reference, elsewhere"
        );
        let row = |name: &str, ours: Taken, git: Taken, reference: u32| {
            let ms = |time: Duration| time.as_secs_f64() * 1000.0;
            println!(
                "{name:<12} {:>8.1} {:>8.1} {:>10.1} {:>8.1} {reference:>22}",
                ms(ours.wall),
                ms(ours.cpu),
                ms(git.wall),
                ms(git.cpu)
            );
        };
        let manifest = self.capture();
        if let Some(phase) =
            std::env::args().find_map(|arg| Some(arg.strip_prefix("only=")?.to_owned()))
        {
            return self.only(&phase, &manifest);
        }
        row("capture", best(|_| drop(self.capture())), best(|_| self.git_capture()), 73);
        let ours = best(|round| drop(self.materialize(&manifest, &format!("ours{round}"))));
        row("materialize", ours, best(|round| self.git_materialize(&format!("git{round}"))), 334);
        let checkout = self.materialize(&manifest, "changed");
        for path in [checkout.path().to_path_buf(), self.top.join("git0")] {
            for file in 0..10 {
                fs::write(path.join(format!("d0/s0/f{file}.txt")), "changed\n").unwrap();
            }
            fs::write(path.join("new.bin"), [0, 1, 2]).unwrap();
        }
        let options = CollectOptions {
            scratch: &self.top.join("scratch"),
            limits: TreeLimits::generous(),
            progress: &quiet,
            stop: &never_stop,
            watch: &|_| {},
        };
        let ours = best(|_| assert_eq!(collect(&checkout, &options).unwrap().changes.len(), 11));
        row("collect", ours, best(|_| self.git_collect()), 123);
    }

    /// Runs one phase over and over, for a profiler.
    fn only(&self, phase: &str, manifest: &WorkspaceManifest) {
        let checkout = self.materialize(manifest, "only");
        let options = CollectOptions {
            scratch: &self.top.join("scratch"),
            limits: TreeLimits::generous(),
            progress: &quiet,
            stop: &never_stop,
            watch: &|_| {},
        };
        let taken = best(|round| match phase {
            "capture" => drop(self.capture()),
            "materialize" => drop(self.materialize(manifest, &format!("only{round}"))),
            _ => drop(collect(&checkout, &options).unwrap()),
        });
        println!("{phase}: {:?} wall, {:?} cpu", taken.wall, taken.cpu);
    }

    fn capture(&self) -> WorkspaceManifest {
        let deny: Vec<String> = DEFAULT_DENY.iter().map(ToString::to_string).collect();
        let options = CaptureOptions {
            scratch: &self.top.join("scratch"),
            allow_untracked: &[],
            deny_patterns: &deny,
            history: History::Full,
            progress: &quiet,
        };
        capture(&self.repo(), &self.blobs, &options).unwrap().manifest
    }

    fn materialize(&self, manifest: &WorkspaceManifest, name: &str) -> warrant_workspace::Checkout {
        let target = self.top.join(name);
        fs::create_dir(&target).unwrap();
        let options = MaterializeOptions {
            scratch: &self.top.join("scratch"),
            limits: TreeLimits::generous(),
            git_directory: GitDirectory::Write,
            progress: &quiet,
        };
        materialize(manifest, &self.blobs, &target, &options).unwrap()
    }

    /// What the reference runs to capture.
    fn git_capture(&self) {
        let bundle = self.top.join("git.bundle");
        git(&self.repo(), &["rev-parse", "HEAD"]);
        git(&self.repo(), &["bundle", "create", "-q", bundle.to_str().unwrap(), "HEAD"]);
        git(&self.repo(), &["diff", "--binary", "HEAD"]);
        git(&self.repo(), &["ls-files", "--others", "--exclude-standard"]);
    }

    /// What the reference runs to materialize.
    fn git_materialize(&self, name: &str) {
        let bundle = self.top.join("git.bundle");
        let target = self.top.join(name);
        git(&self.top, &["clone", "--quiet", bundle.to_str().unwrap(), target.to_str().unwrap()]);
        git(&target, &["checkout", "--quiet", "HEAD"]);
    }

    /// What the reference runs to collect.
    fn git_collect(&self) {
        let path = self.top.join("git0");
        git(&path, &["add", "-A"]);
        git(&path, &["diff", "--binary", "--cached", "HEAD"]);
        git(&path, &["diff", "--name-only", "--cached", "HEAD"]);
    }
}

/// Moves one untracked file of 1 GB in and out, and says how much memory that took at most.
fn large(top: &Path) {
    let bench = Bench::new(top);
    let repo = bench.repo();
    git(&repo, &["init", "-q", "-b", "main"]);
    git(&repo, &["commit", "-q", "--allow-empty", "-m", "init"]);
    let mut file = File::create(repo.join("large.bin")).unwrap();
    let mut state = 7_u64;
    let mut block = vec![0_u8; 1 << 20];
    for _ in 0..1024 {
        for chunk in block.chunks_exact_mut(8) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            chunk.copy_from_slice(&state.to_le_bytes());
        }
        file.write_all(&block).unwrap();
    }
    drop((file, block));
    let options = CaptureOptions {
        scratch: &top.join("scratch"),
        allow_untracked: &["*.bin".into()],
        deny_patterns: &[],
        history: History::Full,
        progress: &quiet,
    };
    let started = Instant::now();
    let manifest = capture(&repo, &bench.blobs, &options).unwrap().manifest;
    println!("1 GB file: captured in {:.1} s", started.elapsed().as_secs_f64());
    fs::remove_file(repo.join("large.bin")).unwrap();
    let started = Instant::now();
    let checkout = bench.materialize(&manifest, "checkout");
    println!("1 GB file: materialized in {:.1} s", started.elapsed().as_secs_f64());
    let options = CollectOptions {
        scratch: &top.join("scratch"),
        limits: TreeLimits::generous(),
        progress: &quiet,
        stop: &never_stop,
        watch: &|_| {},
    };
    let started = Instant::now();
    let collected = collect(&checkout, &options).unwrap();
    let diff = collected.diff.unwrap();
    println!(
        "1 GB file: collected in {:.1} s, diff {} bytes",
        started.elapsed().as_secs_f64(),
        diff.bytes
    );
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find(|line| line.starts_with("VmHWM")).unwrap();
    println!("1 GB file: peak memory of this process {}", peak.trim_start_matches("VmHWM:").trim());
}

/// The best wall-clock time, and the mean processor time of us and our children.
struct Taken {
    wall: Duration,
    cpu: Duration,
}

fn best(mut work: impl FnMut(usize)) -> Taken {
    let cpu = cpu_time();
    let wall = (0..ROUNDS).map(|round| {
        let started = Instant::now();
        work(round);
        started.elapsed()
    });
    let wall = wall.min().unwrap();
    Taken { wall, cpu: (cpu_time() - cpu) / u32::try_from(ROUNDS).unwrap() }
}

fn cpu_time() -> Duration {
    let stat = fs::read_to_string("/proc/self/stat").unwrap();
    let fields = stat.rsplit(')').next().unwrap().split_whitespace();
    let ticks: u64 = fields.skip(11).take(4).map(|field| field.parse::<u64>().unwrap()).sum();
    Duration::from_millis(ticks * 10)
}

fn git(directory: &Path, args: &[&str]) {
    let output = Command::new("git")
        .current_dir(directory)
        .args(["-c", "user.name=v", "-c", "user.email=v@v", "-c", "gc.auto=0"])
        .args(args)
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
