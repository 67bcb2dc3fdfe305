//! One process serves a home, and local commands reach it over the socket in the home.

use std::fs::{self, Permissions};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{Gid, Uid};
use serde_json::Value;

use crate::{stderr, stdout, warrant};

/// How long a process may take to do what it was asked for.
const PATIENCE: Duration = Duration::from_secs(60);

/// An ordinary user that owns nothing here.
const SOMEBODY: u32 = 65_534;

struct Served {
    directory: tempfile::TempDir,
    child: Child,
    hello: Value,
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Served {
    fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let (child, hello) = start_in(&directory.path().join("home"));
        Self { directory, child, hello }
    }

    fn home(&self) -> PathBuf {
        self.directory.path().join("home")
    }

    fn url(&self) -> &str {
        self.hello["url"].as_str().unwrap()
    }

    fn address(&self) -> &str {
        self.url().trim_start_matches("http://")
    }

    fn here(&self, arguments: &[&str]) -> Output {
        run_in(&self.home(), arguments)
    }
}

fn start_in(home: &Path) -> (Child, Value) {
    let mut child = warrant()
        .arg("--home")
        .arg(home)
        .args(["plane", "start", "--listen", "127.0.0.1:0", "--json"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    (child, serde_json::from_str(&line).unwrap())
}

fn run_in(home: &Path, arguments: &[&str]) -> Output {
    let work = home.parent().unwrap().join("work");
    fs::create_dir_all(&work).unwrap();
    warrant()
        .arg("--home")
        .arg(home)
        .args(arguments)
        .current_dir(work)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

#[test]
fn a_second_process_cannot_serve_the_same_home() {
    let mut served = Served::start();
    let holder = served.child.id().to_string();
    for command in [["plane", "start"].as_slice(), &["dev"]] {
        let second = served.here(&[command, &["--listen", "127.0.0.1:0"]].concat());
        let told = stderr(&second);
        assert_eq!(second.status.code(), Some(1), "{command:?}: {told}");
        assert!(told.contains(&format!("process {holder}")), "{command:?}: {told}");
        assert!(told.contains(&format!("kill {holder}")), "{command:?}: {told}");
    }
    let beside = served.here(&["sandbox", "exec", "--", "echo", "beside"]);
    assert_eq!(stdout(&beside), "beside\n", "{}", stderr(&beside));
    served.child.kill().unwrap();
    served.child.wait().unwrap();
    let (mut next, _) = start_in(&served.home());
    next.kill().unwrap();
    next.wait().unwrap();
}

#[test]
fn whoever_takes_the_port_of_a_draining_plane_cannot_get_its_token() {
    let mut served = Served::start();
    // A request that is under way keeps the plane from ending.
    let mut held = TcpStream::connect(served.address()).unwrap();
    let token = fs::read_to_string(served.home().join("config.json")).unwrap();
    let token: Value = serde_json::from_str(&token).unwrap();
    let token = token["adminToken"].as_str().unwrap().to_owned();
    let head = format!("POST /v1/blobs HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}");
    write!(held, "{head}\r\ncontent-length: 100000\r\n\r\npart").unwrap();
    let seen = served.here(&["--plane", served.url(), "runs"]);
    assert_eq!(seen.status.code(), Some(0), "{}", stderr(&seen));
    kill_process(Pid::from_child(&served.child), Signal::TERM).unwrap();
    let begun = Instant::now();
    let thief = loop {
        match TcpListener::bind(served.address()) {
            Ok(thief) => break thief,
            Err(_) => assert!(begun.elapsed() < PATIENCE, "the port is never free"),
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    assert!(served.child.try_wait().unwrap().is_none(), "the plane drains");
    let asked = served.here(&["--plane", served.url(), "runs"]);
    assert_eq!(asked.status.code(), Some(2), "{}", stderr(&asked));
    assert!(stderr(&asked).contains("no token is sent"), "{}", stderr(&asked));
    let with_token = warrant()
        .arg("--home")
        .arg(served.home())
        .args(["--plane", served.url(), "runs"])
        .env("WARRANT_TOKEN", &token)
        .output()
        .unwrap();
    assert_eq!(with_token.status.code(), Some(2), "{}", stderr(&with_token));
    thief.set_nonblocking(true).unwrap();
    assert!(thief.accept().is_err(), "somebody came to the port that is not ours any more");
}

#[test]
fn the_port_of_a_killed_plane_gets_no_token() {
    let mut served = Served::start();
    served.child.kill().unwrap();
    served.child.wait().unwrap();
    let thief = TcpListener::bind(served.address()).unwrap();
    let asked = served.here(&["--plane", served.url(), "runs"]);
    assert_eq!(asked.status.code(), Some(2), "{}", stderr(&asked));
    thief.set_nonblocking(true).unwrap();
    assert!(thief.accept().is_err(), "somebody came to the port that is not ours any more");
}

#[test]
fn local_commands_need_no_port() {
    let served = Served::start();
    let socket = served.home().join("plane.sock");
    let metadata = fs::symlink_metadata(&socket).unwrap();
    assert!(metadata.file_type().is_socket());
    assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
    let mut stream = UnixStream::connect(&socket).unwrap();
    write!(stream, "GET /v1/health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("\"service\":\"warrant-plane\""), "{answer}");
    let localhost = served.url().replace("127.0.0.1", "localhost");
    let listed = served.here(&["--plane", &localhost, "runs", "--json"]);
    assert_eq!(listed.status.code(), Some(0), "{}", stderr(&listed));
}

#[test]
fn a_home_with_a_long_path_has_a_socket_too() {
    let directory = tempfile::tempdir().unwrap();
    let home = directory.path().join("d".repeat(120)).join("home");
    let (mut child, hello) = start_in(&home);
    let listed = run_in(&home, &["--plane", hello["url"].as_str().unwrap(), "runs"]);
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(listed.status.code(), Some(0), "{}", stderr(&listed));
}

/// Does something as another user, on a thread of its own.
fn as_somebody<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let done = scope.spawn(|| {
            let (user, group) = (Uid::from_raw(SOMEBODY), Gid::from_raw(SOMEBODY));
            rustix::thread::set_thread_res_gid(group, group, group).unwrap();
            rustix::thread::set_thread_res_uid(user, user, user).unwrap();
            work()
        });
        done.join().unwrap()
    })
}

#[test]
fn another_user_cannot_use_the_socket_even_where_its_mode_lets_them() {
    if !rustix::process::geteuid().is_root() {
        // Only root can be two users.
        return;
    }
    let served = Served::start();
    let socket = served.home().join("plane.sock");
    for path in [served.directory.path(), &served.home()] {
        fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
    }
    fs::set_permissions(&socket, Permissions::from_mode(0o666)).unwrap();
    let answer = as_somebody(|| {
        let mut stream = UnixStream::connect(&socket).unwrap();
        // The other side may have closed it already.
        let _ = write!(stream, "GET /v1/health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        answer
    });
    assert_eq!(String::from_utf8_lossy(&answer), "");
}

#[test]
fn a_socket_of_another_user_gets_no_token() {
    if !rustix::process::geteuid().is_root() {
        // Only root can be two users.
        return;
    }
    let mut served = Served::start();
    served.child.kill().unwrap();
    served.child.wait().unwrap();
    let socket = served.home().join("plane.sock");
    fs::remove_file(&socket).unwrap();
    fs::set_permissions(served.directory.path(), Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(served.home(), Permissions::from_mode(0o777)).unwrap();
    let listener = as_somebody(|| UnixListener::bind(&socket).unwrap());
    fs::set_permissions(served.home(), Permissions::from_mode(0o700)).unwrap();
    let asked = served.here(&["--plane", served.url(), "runs"]);
    assert_eq!(asked.status.code(), Some(1), "{}", stderr(&asked));
    assert!(stderr(&asked).contains("user 65534 answers"), "{}", stderr(&asked));
    listener.set_nonblocking(true).unwrap();
    let (mut probe, _) = listener.accept().unwrap();
    let mut sent = Vec::new();
    probe.read_to_end(&mut sent).unwrap();
    assert_eq!(String::from_utf8_lossy(&sent), "", "only who listens is asked");
    assert!(listener.accept().is_err(), "nothing else came");
}

#[test]
fn a_home_is_saved_and_put_back_while_it_is_served() {
    let served = Served::start();
    let ran = served.here(&["sandbox", "exec", "--", "echo", "kept"]);
    assert_eq!(stdout(&ran), "kept\n", "{}", stderr(&ran));
    let there = |name: &str| served.directory.path().join(name);
    fs::write(there("passphrase"), "a passphrase for a test\n").unwrap();
    let (file, passphrase) = (there("home.backup"), there("passphrase"));
    let (file, passphrase) = (file.to_str().unwrap(), passphrase.to_str().unwrap());
    let keys = ["--with-keys", "--passphrase-file", passphrase];
    let saved = served.here(&[&["backup", file, "--json"], &keys[..]].concat());
    assert_eq!(saved.status.code(), Some(0), "{}", stderr(&saved));
    assert_eq!(fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o600);
    let again = served.here(&["backup", file]);
    assert_eq!(again.status.code(), Some(2), "{}", stderr(&again));
    let sound = served.here(&["fsck", "--json"]);
    assert_eq!(sound.status.code(), Some(0), "{}{}", stdout(&sound), stderr(&sound));
    let into =
        |name: &str, more: &[&str]| run_in(&there(name), &[&["restore", file], more].concat());
    let over = into("home", &["--without-keys"]);
    assert_eq!(over.status.code(), Some(2), "{}", stderr(&over));
    assert!(stderr(&over).contains("not empty"), "{}", stderr(&over));
    let put_back = into("copy", &["--passphrase-file", passphrase]);
    assert_eq!(put_back.status.code(), Some(0), "{}", stderr(&put_back));
    let listed = run_in(&there("copy"), &["runs", "--json"]);
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    let run = listed["runs"][0]["runId"].as_str().unwrap().to_owned();
    for home in ["home", "copy"] {
        let verified = run_in(&there(home), &["verify", &run]);
        assert_eq!(verified.status.code(), Some(0), "{home}: {}", stdout(&verified));
    }
    let database = there("copy").join("data/plane.db");
    let mut bytes = fs::read(&database).unwrap();
    let middle = bytes.len() / 2 / 4096 * 4096;
    bytes[middle..middle + 100].fill(0xA5);
    fs::write(&database, bytes).unwrap();
    let damaged = run_in(&there("copy"), &["fsck", "--json"]);
    assert_eq!(damaged.status.code(), Some(1), "{}{}", stdout(&damaged), stderr(&damaged));
    let report: Value = serde_json::from_slice(&damaged.stdout).unwrap();
    assert_eq!(report["sound"], false, "{report}");
}
