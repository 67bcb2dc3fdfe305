//! `--mode workspace-rollback` where little or nothing can be kept: in a workspace nobody can write,
//! in one that many write at once, and in one that is swapped for another.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::symlink;
use std::process::{Child, Command, Output, Stdio};

use crate::machine::Machine;
use crate::{stderr, stdout};

/// Runs the binary where the workspace is mounted so that nobody can write it.
fn in_a_read_only_workspace(machine: &Machine, arguments: &[&str]) -> Output {
    let script = "mount --bind . . && mount -o remount,ro,bind \"$0\" && cd \"$0\" && exec \"$@\"";
    Command::new("unshare")
        .args(["--map-root-user", "--mount", "sh", "-c", script])
        .arg(machine.work(""))
        .arg(env!("CARGO_BIN_EXE_warrant"))
        .args(["sandbox", "exec"])
        .args(arguments)
        .env("WARRANT_HOME", machine.home())
        .current_dir(machine.work(""))
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

#[test]
fn rollback_in_a_read_only_workspace_is_refused_before_anything_runs() {
    let machine = Machine::new();
    assert!(machine.exec(&["--", "true"]).status.success());
    let mode = ["--mode", "workspace-rollback"];
    let script = ["--", "sh", "-c", "echo ran; echo new > a.txt"];
    let refused = in_a_read_only_workspace(&machine, &[&mode[..], &script[..]].concat());
    assert_eq!(refused.status.code(), Some(2), "{}", stderr(&refused));
    assert_eq!(stdout(&refused), "");
    assert!(stderr(&refused).contains("cannot be written"), "{}", stderr(&refused));
    let later = machine.exec(&["--mode", "workspace-rollback", "--", "true"]);
    assert_eq!(later.status.code(), Some(0), "{}", stderr(&later));
    assert_eq!(fs::read_to_string(machine.work("a.txt")).unwrap(), "a\n");
    // What asks for nothing to be kept is run as ever.
    let isolated = in_a_read_only_workspace(&machine, &script);
    assert_eq!(stdout(&isolated), "ran\n", "{}", stderr(&isolated));
}

/// Starts a run whose writes are kept.
fn start(machine: &Machine, script: &str) -> Child {
    machine.start(&["sandbox", "exec", "--mode", "workspace-rollback", "--", "sh", "-c", script])
}

#[test]
fn runs_that_end_at_once_in_one_workspace_each_keep_what_is_theirs() {
    let machine = Machine::new();
    assert!(machine.exec(&["--", "true"]).status.success());
    let script = |number: u32| format!("echo {number} > own{number}; echo {number} >> a.txt; cat");
    let mut children: Vec<Child> = (0..8).map(|number| start(&machine, &script(number))).collect();
    // Every program goes on until its input ends.
    for child in &mut children {
        drop(child.stdin.take());
    }
    for (number, child) in children.into_iter().enumerate() {
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{number}: {}", stderr(&output));
        assert!(machine.work(&format!("own{number}")).exists(), "{number}: {}", stderr(&output));
    }
}

#[test]
fn a_link_in_the_place_of_the_workspace_leads_nothing_out() {
    let machine = Machine::new();
    let mut child = start(&machine, "echo stolen > key; echo started; cat > /dev/null");
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "started\n");
    let top = machine.directory.path();
    fs::create_dir(top.join("private")).unwrap();
    fs::rename(top.join("work"), top.join("moved")).unwrap();
    symlink(top.join("private"), top.join("work")).unwrap();
    child.stdin.take().unwrap().write_all(b"end\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).contains("could not be kept"), "{}", stderr(&output));
    assert_eq!(fs::read_dir(top.join("private")).unwrap().count(), 0);
    assert!(!top.join("moved/key").exists());
}
