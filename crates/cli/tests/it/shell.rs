//! `warrant shell`: every line is one governed run.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::process::{Child, ChildStderr, Command, Output, Stdio};

use crate::machine::Machine;
use crate::{stderr, stdout};

fn shell(machine: &Machine, lines: &str) -> Output {
    let mut child = machine.start(&["shell"]);
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

/// A session whose lines are given one after the other.
struct Lines {
    child: Child,
    told: BufReader<ChildStderr>,
}

impl Lines {
    fn begin(machine: &Machine) -> Self {
        let mut child = machine.start(&["shell"]);
        let told = BufReader::new(child.stderr.take().unwrap());
        Self { child, told }
    }

    /// Gives a line, and looks for some words in what is told of it.
    #[track_caller]
    fn line(&mut self, line: &str, words: &str) {
        let stdin = self.child.stdin.as_mut().unwrap();
        // The help is told when the line is done, whatever became of it.
        stdin.write_all(format!("{line}\nhelp\n").as_bytes()).unwrap();
        let mut told = String::new();
        while !told.contains("exit      leave") {
            assert!(self.told.read_line(&mut told).unwrap() > 0, "it ended: {told}");
        }
        assert!(told.contains(words), "{line}: {told}");
    }

    fn end(mut self) -> String {
        drop(self.child.stdin.take());
        let mut out = String::new();
        self.child.stdout.take().unwrap().read_to_string(&mut out).unwrap();
        self.child.wait().unwrap();
        out
    }
}

#[test]
fn diff_receipt_and_undo_mean_this_sessions_last_line() {
    let machine = Machine::new();
    let other = |script: &str| {
        let ran = machine.exec(&["--mode", "workspace-rollback", "--", "sh", "-c", script]);
        assert_eq!(ran.status.code(), Some(0), "{}", stderr(&ran));
    };
    other("echo other > before.txt");
    let mut lines = Lines::begin(&machine);
    for word in ["diff", "receipt"] {
        lines.line(word, "the last line of this session left no run");
    }
    lines.line("undo", "no line of this session left a change to undo");
    lines.line("echo mine > mine.txt", "warrant undo");
    other("echo other > after.txt");
    lines.line("undo", "put back 1 paths");
    assert!(!machine.work("mine.txt").exists(), "this session's change is taken back");
    assert!(machine.work("before.txt").exists() && machine.work("after.txt").exists());
    lines.line("undo", "no line of this session left a change to undo");
    lines.line("echo mine > mine.txt", "warrant undo");
    other("echo other > after.txt");
    // The line that ends the session tells that diff and receipt were answered before.
    let stdin = lines.child.stdin.as_mut().unwrap();
    stdin.write_all(b"diff\nreceipt\n").unwrap();
    let out = lines.end();
    assert!(out.contains("+mine") && !out.contains("other"), "{out}");
}

#[test]
fn undo_in_a_session_takes_back_nothing_that_others_did_to_the_same_files() {
    let machine = Machine::new();
    let mut lines = Lines::begin(&machine);
    lines.line("echo same > a.txt", "warrant undo");
    for script in ["echo other > a.txt", "echo same > a.txt"] {
        let ran = machine.exec(&["--mode", "workspace-rollback", "--", "sh", "-c", script]);
        assert_eq!(ran.status.code(), Some(0), "{}", stderr(&ran));
    }
    lines.line("undo", "changed since by others");
    assert_eq!(std::fs::read_to_string(machine.work("a.txt")).unwrap(), "same\n");
    for _ in 0..2 {
        assert_eq!(machine.run(&["undo"]).status.code(), Some(0));
    }
    lines.line("undo", "put back 1 paths");
    assert_eq!(std::fs::read_to_string(machine.work("a.txt")).unwrap(), "a\n");
    lines.end();
}

#[test]
fn a_long_session_holds_nothing_of_its_earlier_lines() {
    let machine = Machine::new();
    let mut lines = Lines::begin(&machine);
    let held = |lines: &Lines| {
        std::fs::read_dir(format!("/proc/{}/fd", lines.child.id())).unwrap().count()
    };
    let mut line = || {
        lines.line("true", "warrant: namespace");
        held(&lines)
    };
    let first = line();
    let last = (0..5).map(|_| line()).last().unwrap();
    assert!(last <= first, "{first} descriptors after one line, {last} after six");
    lines.end();
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

#[test]
fn commit_in_the_shell_is_there_outside_and_undone() {
    let machine = Machine::new();
    let git = |arguments: &[&str]| {
        let output = Command::new("git")
            .args(["-c", "user.name=n", "-c", "user.email=n@example.com"])
            .args(arguments)
            .current_dir(machine.work(""))
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .output()
            .unwrap();
        assert!(output.status.success(), "git {arguments:?}");
        stdout(&output)
    };
    git(&["init", "-q", "-b", "main"]);
    git(&["add", "."]);
    git(&["commit", "-qm", "first"]);
    let commit =
        "echo b >> a.txt\ngit -c user.name=n -c user.email=n@example.com commit -qam second\n";
    shell(&machine, commit);
    assert_eq!(git(&["log", "--format=%s"]), "second\nfirst\n");
    shell(&machine, &format!("{commit}undo\n"));
    assert_eq!(git(&["log", "--format=%s"]), "second\nfirst\n");
    assert_eq!(git(&["status", "--porcelain"]), " M a.txt\n");
}
