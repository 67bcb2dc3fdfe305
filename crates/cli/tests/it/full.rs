//! A home on a full disk: what is kept there is read, and nothing runs that could not be recorded.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::machine::Machine;
use crate::read_only::{everything_is_read, run_once};
use crate::{stderr, stdout, warrant};

/// How much may pass until a program has started.
const PATIENCE: Duration = Duration::from_secs(60);

/// Ways in which nothing more goes onto a disk, as a script that fills `$full`.
const NO_BYTES: &str = "dd if=/dev/zero of=\"$full/fill\" bs=4096 2> /dev/null";
const NO_FILES: &str = "i=0; while : 2> /dev/null > \"$full/fill$i\"; do i=$((i + 1)); done";
const EMPTY: &str = ":";

/// Runs the binary with a copy of the home on a small disk of its own, which `fill` fills.
fn on_a_small_disk(home: &Path, fill: &str, arguments: &[&str]) -> Output {
    on_a_small_disk_then(home, (fill, "exec \"$@\""), arguments)
}

/// Runs a script that may start the binary as `"$@"`, likewise.
fn on_a_small_disk_then(home: &Path, (fill, then): (&str, &str), arguments: &[&str]) -> Output {
    let script = format!(
        "full=\"$0/../full\"; mkdir -p \"$full\" && \
         mount -t tmpfs -o size=4m,nr_inodes=200,mode=0700 tmpfs \"$full\" && \
         cp -a \"$0\" \"$full/home\" || exit 99\n\
         ({fill})\nexport WARRANT_HOME=\"$full/home\"; {then}"
    );
    Command::new("unshare")
        .args(["--map-root-user", "--mount", "sh", "-c", &script])
        .arg(home)
        .arg(env!("CARGO_BIN_EXE_warrant"))
        .args(arguments)
        .current_dir(home.join("../work"))
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

/// Leaves a run behind whose process was killed while its program ran, and returns it.
fn killed_run(machine: &Machine) -> String {
    let mut child = warrant()
        .args(["sandbox", "exec", "--", "sleep", "1000"])
        .env("WARRANT_HOME", machine.home())
        .current_dir(machine.work(""))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let begun = Instant::now();
    let run = loop {
        let runs = stdout(&machine.run(&["runs"]));
        if let Some(line) = runs.lines().find(|line| line.contains("running")) {
            break line.split_whitespace().next().unwrap().to_owned();
        }
        assert!(begun.elapsed() < PATIENCE, "it does not start");
    };
    child.kill().unwrap();
    child.wait().unwrap();
    run
}

#[test]
fn a_home_on_a_full_disk_is_read() {
    let machine = Machine::new();
    let run = run_once(&machine);
    everything_is_read(&run, |words| on_a_small_disk(&machine.home(), NO_FILES, words));
    // To end what was killed is to write.
    killed_run(&machine);
    everything_is_read(&run, |words| on_a_small_disk(&machine.home(), NO_BYTES, words));
    let listed = on_a_small_disk(&machine.home(), NO_BYTES, &["runs"]);
    assert!(stdout(&listed).contains("running"), "as it was last written: {}", stdout(&listed));
    assert!(stderr(&listed).contains("is read as it is"), "{}", stderr(&listed));
    let listed = on_a_small_disk(&machine.home(), EMPTY, &["runs"]);
    assert!(!stdout(&listed).contains("running"), "{}", stdout(&listed));
    assert_eq!(stderr(&listed), "");
}

#[test]
fn files_of_a_killed_run_are_removed_even_where_its_seal_cannot_be_kept() {
    let machine = Machine::new();
    run_once(&machine);
    let run = killed_run(&machine);
    let session = format!("\"$full/home/data/sessions/{run}\"");
    let fill = format!("mkdir -p {session}; : > {session}/secret; {NO_BYTES}");
    let look = "\"$@\"; ls \"$WARRANT_HOME/data/sessions\"";
    let output = on_a_small_disk_then(&machine.home(), (&fill, look), &["runs"]);
    let told = stdout(&output);
    assert!(told.contains("running"), "its seal is not kept: {told}{}", stderr(&output));
    assert!(!told.lines().any(|line| line == run), "{told}");
}

#[test]
fn nothing_runs_that_a_full_disk_could_not_record() {
    let machine = Machine::new();
    run_once(&machine);
    let program = ["sandbox", "exec", "--", "echo", "ran"];
    let ran = on_a_small_disk(&machine.home(), EMPTY, &program);
    assert_eq!((ran.status.code(), stdout(&ran).as_str()), (Some(0), "ran\n"), "{}", stderr(&ran));
    for fill in [NO_BYTES, NO_FILES] {
        let refused = on_a_small_disk(&machine.home(), fill, &program);
        assert_eq!(refused.status.code(), Some(1), "{}", stderr(&refused));
        assert_eq!(stdout(&refused), "");
        let told = stderr(&refused);
        assert!(told.contains("full") || told.contains("No space left"), "{told}");
        assert!(!told.contains("run_"), "nothing was begun: {told}");
    }
}

#[test]
fn a_small_limit_on_files_is_told_and_nothing_runs() {
    let machine = Machine::new();
    let run = run_once(&machine);
    let limited = |blocks: &str, words: &[&str]| {
        let script = format!("ulimit -f {blocks} && exec \"$0\" \"$@\"");
        Command::new("sh")
            .args(["-c", &script])
            .arg(env!("CARGO_BIN_EXE_warrant"))
            .args(words)
            .env("WARRANT_HOME", machine.home())
            .current_dir(machine.work(""))
            .stdin(Stdio::null())
            .output()
            .unwrap()
    };
    for blocks in ["0", "8", "256", "1024"] {
        let refused = limited(blocks, &["sandbox", "exec", "--", "echo", "ran"]);
        assert_eq!(refused.status.code(), Some(1), "{blocks}: {:?}", refused.status);
        assert_eq!(stdout(&refused), "");
        assert!(stderr(&refused).contains("ulimit -f"), "{blocks}: {}", stderr(&refused));
    }
    everything_is_read(&run, |words| limited("256", words));
    // What the program may write is policy's business and the kernel's, not ours.
    let writer = "head -c 40000000 /dev/zero > big";
    let struck = limited("40000", &["sandbox", "exec", "--json", "--", "sh", "-c", writer]);
    assert!(stdout(&struck).contains("153"), "{}{}", stdout(&struck), stderr(&struck));
}

#[test]
fn a_disk_that_counts_nothing_is_not_taken_for_full() {
    if !rustix::process::geteuid().is_root() {
        // Only root can mount a file system that counts nothing.
        return;
    }
    let machine = Machine::new();
    let script = "mkdir \"$0\" && mount -t ramfs -o mode=0700 ramfs \"$0\" && exec \"$@\"";
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-c", script])
        .arg(machine.home())
        .arg(env!("CARGO_BIN_EXE_warrant"))
        .args(["sandbox", "exec", "--", "echo", "ran"])
        .env("WARRANT_HOME", machine.home())
        .current_dir(machine.work(""))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert_eq!(stdout(&output), "ran\n", "{}", stderr(&output));
}

/// A plane whose home is on a small disk that only it sees.
struct SmallPlane {
    child: Child,
    address: String,
    token: String,
    disk: PathBuf,
}

impl Drop for SmallPlane {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl SmallPlane {
    fn start(machine: &Machine) -> Self {
        let full = machine.directory.path().join("full");
        std::fs::create_dir(&full).unwrap();
        let script = "mount -t tmpfs -o size=16m,mode=0700 tmpfs \"$0\" && exec \"$@\"";
        let mut child = Command::new("unshare")
            .args(["--map-root-user", "--mount", "sh", "-c", script])
            .arg(&full)
            .arg(env!("CARGO_BIN_EXE_warrant"))
            .arg("--home")
            .arg(full.join("home"))
            .args(["plane", "start", "--listen", "127.0.0.1:0", "--json", "--log", "info"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(std::fs::File::create(machine.directory.path().join("log")).unwrap())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let hello: Value = serde_json::from_str(&line).unwrap();
        let address = hello["url"].as_str().unwrap().trim_start_matches("http://").to_owned();
        // The disk as the plane sees it.
        let root = PathBuf::from(format!("/proc/{}/root", child.id()));
        let disk = root.join(full.strip_prefix("/").unwrap());
        let token = std::fs::read_to_string(disk.join("home/admin.token")).unwrap();
        Self { child, address, token, disk }
    }

    fn call(&self, head: &str, body: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let length = body.len();
        write!(
            stream,
            "{head} HTTP/1.1\r\nhost: x\r\nconnection: close\r\nauthorization: Bearer {}\r\n\
             content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}",
            self.token
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
        (status, answer.split_once("\r\n\r\n").unwrap().1.to_owned())
    }

    /// Asks until the plane is as ready as it should be.
    fn wait_ready(&self, status: u16) -> String {
        let begun = Instant::now();
        loop {
            let (found, body) = self.call("GET /v1/ready", "");
            if found == status {
                return body;
            }
            assert!(begun.elapsed() < PATIENCE, "{found} {body}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

#[test]
fn a_plane_on_a_full_disk_is_not_ready_and_recovers() {
    let machine = Machine::new();
    let plane = SmallPlane::start(&machine);
    let answer: Value = serde_json::from_str(&plane.wait_ready(200)).unwrap();
    assert_eq!((&answer["ready"], answer.get("store")), (&Value::Bool(true), None), "{answer}");
    let fill = plane.disk.join("fill");
    let mut file = std::fs::File::create(&fill).unwrap();
    while file.write_all(&[0; 4096]).is_ok() {}
    let answer: Value = serde_json::from_str(&plane.wait_ready(503)).unwrap();
    assert_eq!(answer["ready"], false, "{answer}");
    assert_eq!(answer["store"]["reason"], "store_full", "{answer}");
    let (status, metrics) = plane.call("GET /metrics", "");
    assert_eq!(status, 200, "reading goes on");
    assert!(metrics.contains("warrant_store_writable 0"), "{metrics}");
    assert_eq!(plane.call("GET /v1/runs", "").0, 200, "reading goes on");
    let large = "x".repeat(100_000);
    let (status, refusal) = plane.call("POST /v1/blobs", &large);
    assert_eq!(status, 503, "{refusal}");
    assert!(refusal.contains("store_unwritable"), "{refusal}");
    drop(file);
    std::fs::remove_file(&fill).unwrap();
    let answer: Value = serde_json::from_str(&plane.wait_ready(200)).unwrap();
    assert_eq!((&answer["ready"], answer.get("store")), (&Value::Bool(true), None), "{answer}");
    let (_, metrics) = plane.call("GET /metrics", "");
    assert!(metrics.contains("warrant_store_writable 1"), "{metrics}");
    let log = std::fs::read_to_string(machine.directory.path().join("log")).unwrap();
    assert!(log.contains("store_full") && log.contains("can be written again"), "{log}");
}
