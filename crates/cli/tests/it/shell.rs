//! `warrant shell`: every line is one governed run.

use std::io::{Read as _, Write as _};
use std::process::{Command, Output, Stdio};

use crate::machine::Machine;
use crate::{stderr, stdout, warrant};

fn shell(machine: &Machine, lines: &str) -> Output {
    let mut child = warrant()
        .arg("shell")
        .env("WARRANT_HOME", machine.home())
        .current_dir(machine.work(""))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

#[test]
fn lines_are_governed_and_denials_explained_while_they_happen() {
    let machine = Machine::new();
    let lines = "echo b >> a.txt\ncat a.txt\nmkdir d\ncd d\npwd\ncd ..\ncd /etc\nsudo id\n\
                 undo\nundo\ncat a.txt\nreceipt\nexit 0; true\ncat\nsh -c 'exit 7'\n";
    let output = shell(&machine, lines);
    let (out, err) = (stdout(&output), stderr(&output));
    assert!(out.starts_with("a\nb\n"), "{out}");
    assert!(out.contains(machine.work("d").to_str().unwrap()), "{out}");
    assert!(err.contains("lies outside the workspace"), "{err}");
    assert!(err.contains("waiting for approval") && err.contains("warrant approve"), "{err}");
    assert_eq!(std::fs::read_to_string(machine.work("a.txt")).unwrap(), "a\n", "undone");
    assert!(err.matches("warrant: namespace").count() >= 6, "every line has a receipt: {err}");
    assert_eq!(output.status.code(), Some(7), "the last line's code is the shell's");
}

#[test]
fn the_end_of_the_lines_is_the_end_of_the_session() {
    let machine = Machine::new();
    assert_eq!(shell(&machine, "").status.code(), Some(0));
    assert_eq!(shell(&machine, "sh -c 'exit 3'\nexit\nsh -c 'exit 4'\n").status.code(), Some(3));
}

#[test]
fn ctrl_c_at_the_prompt_throws_the_line_away_and_the_session_goes_on() {
    let machine = Machine::new();
    // `exec`, or the shell in between would hear Ctrl-C too, and some shells end by it.
    let line = format!("exec {} shell", env!("CARGO_BIN_EXE_warrant"));
    let mut child = Command::new("script")
        .args(["-qec", &line, "/dev/null"])
        .env("WARRANT_HOME", machine.home())
        .current_dir(machine.work(""))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut seen = String::new();
    let mut until = |prompts: usize| {
        let mut piece = [0; 4096];
        while seen.matches("work> ").count() < prompts {
            let read = stdout.read(&mut piece).unwrap();
            assert!(read > 0, "it ended: {seen}");
            seen.push_str(&String::from_utf8_lossy(&piece[..read]));
        }
    };
    until(1);
    stdin.write_all(b"touch never\x03").unwrap();
    until(2);
    stdin.write_all(b"\x03").unwrap();
    until(3);
    stdin.write_all(b"touch done\n").unwrap();
    until(4);
    stdin.write_all(b"\x03").unwrap();
    until(5);
    stdin.write_all(b"exit\n").unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(machine.work("done").exists() && !machine.work("never").exists());
}
