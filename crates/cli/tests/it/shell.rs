//! `warrant shell`: every line is one governed run.

use std::io::Write as _;
use std::process::{Output, Stdio};

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
