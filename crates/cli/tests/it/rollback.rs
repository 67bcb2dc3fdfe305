//! `--mode workspace-rollback` where nothing can be kept: nothing runs, and nothing comes later.

use std::fs;
use std::process::{Command, Output, Stdio};

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
