//! `warrant plane start` as a process: its first words, its files, its end.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Child, Stdio};

use serde_json::Value;

use crate::{stderr, warrant};

struct Started {
    child: Child,
    hello: Value,
}

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn start(home: &str) -> Started {
    let mut child = warrant()
        .args(["--home", home, "plane", "start", "--listen", "127.0.0.1:0", "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    Started { child, hello: serde_json::from_str(&line).unwrap() }
}

fn get(started: &Started, path: &str) -> String {
    let url = started.hello["url"].as_str().unwrap();
    let mut stream = TcpStream::connect(url.trim_start_matches("http://")).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn terminate(started: &mut Started) -> Option<i32> {
    let pid = rustix::process::Pid::from_child(&started.child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    started.child.wait().unwrap().code()
}

#[test]
fn the_plane_names_its_token_files_serves_and_ends_when_told() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("home");
    let home = home.to_str().unwrap();
    let mut first = start(home);
    let token_file = |member: &str| {
        let path = first.hello[member].as_str().unwrap().to_owned();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{path}");
        std::fs::read_to_string(path).unwrap()
    };
    let tokens = [token_file("adminTokenFile"), token_file("enrollTokenFile")];
    let hello = first.hello.to_string();
    assert!(tokens.iter().all(|token| token.len() == 43 && !hello.contains(token)), "{hello}");
    assert!(get(&first, "/v1/health").contains("\"service\":\"warrant-plane\""));
    assert!(get(&first, "/v1/runs").starts_with("HTTP/1.1 401"));
    let config = std::fs::metadata(dir.path().join("home/config.json")).unwrap();
    assert_eq!(config.permissions().mode() & 0o777, 0o600);
    assert_eq!(terminate(&mut first), Some(0));
    let mut second = start(home);
    assert_eq!(second.hello["adminTokenFile"], first.hello["adminTokenFile"]);
    assert_eq!(second.hello["planeKeyId"], first.hello["planeKeyId"]);
    assert_eq!(terminate(&mut second), Some(0));
}

#[test]
fn tokens_never_travel_readable_on_an_address_that_others_reach() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("home");
    let refused = warrant()
        .args(["--home", home.to_str().unwrap(), "plane", "start", "--listen", "0.0.0.0:0"])
        .output()
        .unwrap();
    assert_eq!(refused.status.code(), Some(2), "{}", stderr(&refused));
    assert!(stderr(&refused).contains("--tls-cert"), "{}", stderr(&refused));
}

#[test]
fn tokens_at_first_start_are_in_no_output() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("home");
    let mut child = warrant()
        .args(["--home", home.to_str().unwrap(), "plane", "start", "--listen", "127.0.0.1:0"])
        .args(["--log", "debug"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut said = String::new();
    while !said.contains("enroll token") {
        assert_ne!(stderr.read_line(&mut said).unwrap(), 0, "{said}");
    }
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    stderr.read_to_string(&mut said).unwrap();
    child.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    child.wait().unwrap();
    for name in ["admin.token", "enroll.token"] {
        let token = std::fs::read_to_string(home.join(name)).unwrap();
        assert!(said.contains(name) && !said.contains(&token), "{said}");
    }
}
