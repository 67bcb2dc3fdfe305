//! Whole `warrant sandbox exec -- true`, as a person starts it (new process, policy, preflight,
//! contract, jail, receipt, durable store), against bubblewrap's own start to exit of `true`,
//! interleaved in one run so that load falls on both alike.
//!
//! `cargo bench --workspace --bench exec -- [rounds]`; `WARRANT_BIN` names a binary that is there
//! already, else one is built.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a benchmark talks to a person"
)]

#[path = "shared/binary.rs"]
mod binary;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use binary::binary;

const WARM_UP: usize = 5;

fn main() {
    let numbers: Vec<usize> = std::env::args().filter_map(|text| text.parse().ok()).collect();
    let rounds = numbers.first().copied().unwrap_or(100);
    let linked = binary();
    // A real disk, not a temporary filesystem: the store is durable.
    let place = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    // Bubblewrap is installed, that is copied; what a linker wrote lies in smaller pieces of memory.
    let installed = place.path().join("warrant");
    std::fs::copy(&linked, &installed).unwrap();
    let (homes, workspace) = (place.path().join("homes"), place.path().join("w"));
    let bench = Bench { installed, linked, homes, workspace };
    std::fs::create_dir(&bench.workspace).unwrap();
    bench.compare(rounds);
}

struct Bench {
    installed: PathBuf,
    linked: PathBuf,
    homes: PathBuf,
    workspace: PathBuf,
}

impl Bench {
    fn governed(&self, warrant: &Path) -> Command {
        let mut command = Command::new(warrant);
        // What was learned of a policy is believed by the same binary only, so each has its home.
        let name = if warrant == self.installed { "installed" } else { "linked" };
        command.args(["sandbox", "exec", "--", "true"]).env("WARRANT_HOME", self.homes.join(name));
        command
    }

    fn version(&self) -> Command {
        let mut command = Command::new(&self.installed);
        command.arg("--version");
        command
    }

    fn bubblewrap(&self) -> Command {
        let mut command = Command::new("bwrap");
        command.args(["--ro-bind", "/usr", "/usr", "--symlink", "usr/bin", "/bin"]);
        command.args(["--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64"]);
        command.args(["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--bind"]);
        command.args([&self.workspace, &self.workspace]);
        command.args(["--unshare-all", "--die-with-parent", "--new-session", "true"]);
        command
    }

    fn compare(&self, rounds: usize) {
        let first = self.timed(self.governed(&self.installed));
        println!("first run of all, which sets up the home: {first:?}");
        let mut times: [Vec<Duration>; 4] = Default::default();
        for round in 0..rounds + WARM_UP {
            let work = [
                self.governed(&self.installed),
                self.bubblewrap(),
                self.governed(&self.linked),
                self.version(),
            ];
            for (row, command) in times.iter_mut().zip(work) {
                let time = self.timed(command);
                if round >= WARM_UP {
                    row.push(time);
                }
            }
        }
        let [installed, theirs, linked, bare] = times.map(Row::of);
        println!("bubblewrap:                  {theirs}");
        println!("warrant --version:           {bare}");
        println!("exec, as the linker left it: {linked}");
        println!("warrant sandbox exec:        {installed}");
        let ratio = |ours: &Row| ours.p50.as_secs_f64() / theirs.p50.as_secs_f64();
        let (installed, linked) = (ratio(&installed), ratio(&linked));
        println!("{linked:.2} x bubblewrap as the linker left it");
        println!("{installed:.2} x bubblewrap at the median of {rounds} interleaved rounds");
    }

    fn timed(&self, mut command: Command) -> Duration {
        command.current_dir(&self.workspace);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let started = Instant::now();
        let status = command.status().unwrap();
        let elapsed = started.elapsed();
        assert!(status.success(), "{command:?}");
        elapsed
    }
}

struct Row {
    p50: Duration,
    p90: Duration,
}

impl Row {
    fn of(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        Self { p50: times[times.len() / 2], p90: times[times.len() * 9 / 10] }
    }
}

impl std::fmt::Display for Row {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "p50 {:?}, p90 {:?}", self.p50, self.p90)
    }
}
