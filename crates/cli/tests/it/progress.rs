//! The progress bar: on a terminal, for what takes longer than a second, and nowhere else.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use crate::{stderr, warrant};

const RUN: &str = "run_00000000-0000-4000-8000-000000000000";
const WORDS: &str = "fetching the bundle";

/// A plane that answers one request when it is told to.
fn slow_plane(told: Receiver<()>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let lines = BufReader::new(stream.try_clone().unwrap()).lines();
        let _head: Vec<String> =
            lines.map_while(Result::ok).take_while(|line| !line.is_empty()).collect();
        let _ = told.recv_timeout(Duration::from_secs(60));
        answer(stream);
    });
    url
}

fn answer(mut stream: TcpStream) {
    let body = "{\"error\":\"bundle not available\"}";
    let head = "HTTP/1.1 404 Not Found\r\ncontent-type: application/json\r\nconnection: close";
    write!(stream, "{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).unwrap();
}

/// Runs a command on a terminal against a plane that waits, and expects these words meanwhile.
#[track_caller]
fn shows_on_a_terminal(arguments: &str, words: &str) {
    let (tell, told) = channel();
    let url = slow_plane(told);
    let dir = tempfile::tempdir().unwrap();
    let work = dir.path().join("work");
    std::fs::create_dir(&work).unwrap();
    std::fs::write(work.join("a.txt"), "a\n").unwrap();
    let line = format!(
        "{} --home {} --plane {url} {arguments}",
        env!("CARGO_BIN_EXE_warrant"),
        dir.path().join("home").display()
    );
    let mut child = Command::new("script")
        .args(["-qefc", &line, "/dev/null"])
        .current_dir(&work)
        .env("WARRANT_TOKEN", "a-token-of-a-test")
        .env("TERM", "xterm")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut seen = Vec::new();
    let mut stdout = child.stdout.take().unwrap();
    let mut piece = [0; 256];
    let shows = |seen: &[u8]| String::from_utf8_lossy(seen).contains(words);
    // The plane answers only when the bar was seen; without one this ends with the plane's patience.
    while let Ok(count @ 1..) = stdout.read(&mut piece) {
        seen.extend_from_slice(&piece[..count]);
        if shows(&seen) {
            let _ = tell.send(());
        }
    }
    assert!(shows(&seen), "{arguments}: {}", String::from_utf8_lossy(&seen));
    assert_eq!(child.wait().unwrap().code(), Some(1), "{arguments}");
}

#[test]
fn a_terminal_sees_what_takes_longer_than_a_second() {
    shows_on_a_terminal(&format!("bundle {RUN}"), WORDS);
}

#[test]
fn a_terminal_sees_a_pull_that_waits_for_its_plane() {
    shows_on_a_terminal(&format!("pull {RUN}"), WORDS);
}

#[test]
fn a_terminal_sees_the_workspace_of_a_run_being_sent() {
    shows_on_a_terminal("run --allow-untracked a.txt 'echo hi'", "sending");
}

#[test]
fn a_pipe_sees_no_bar() {
    let (tell, told) = channel();
    let url = slow_plane(told);
    let dir = tempfile::tempdir().unwrap();
    let child = warrant()
        .arg("--home")
        .arg(dir.path().join("home"))
        .args(["--plane", &url, "bundle", RUN])
        .env("WARRANT_TOKEN", "a-token-of-a-test")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Longer than the bar's patience.
    thread::sleep(Duration::from_millis(1_500));
    tell.send(()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let told = stderr(&output);
    assert!(!told.contains(WORDS) && !told.contains('\r') && !told.contains('\x1b'), "{told}");
}
