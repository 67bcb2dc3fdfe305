//! An auditor reads a home that cannot be written: on a read-only mount, or of another user.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::machine::Machine;
use crate::{stderr, stdout};

/// An id nobody has.
const AUDITOR: u32 = 23_459;

/// Returns the run of a program that wrote a file and something on its output.
pub(crate) fn run_once(machine: &Machine) -> String {
    let output = machine.exec(&["--", "sh", "-c", "echo said; echo changed > new.txt"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let told = stderr(&output);
    told.split_whitespace().find(|word| word.starts_with("run_")).unwrap().to_owned()
}

/// Has every reading command read, and checks what it says.
#[track_caller]
pub(crate) fn everything_is_read(run: &str, warrant: impl Fn(&[&str]) -> Output) {
    for (arguments, expected) in [
        (vec!["runs"], run),
        (vec!["receipt", run], "what moved"),
        (vec!["verify", run], "VERIFIED"),
        (vec!["bundle", run], "warrant.bundle.v1"),
        (vec!["export", "--jsonl"], "run.completed"),
        (vec!["log", run], "said"),
        (vec!["diff", run], "new.txt"),
    ] {
        let output = warrant(&arguments);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", stderr(&output));
        assert!(stdout(&output).contains(expected), "{arguments:?}: {}", stdout(&output));
    }
}

/// Runs the binary where the home is mounted so that nobody can write it.
fn on_a_read_only_mount(home: &Path, arguments: &[&str]) -> Output {
    let script = "mount --bind \"$0\" \"$0\" && mount -o remount,ro,bind \"$0\" && exec \"$@\"";
    Command::new("unshare")
        .args(["--map-root-user", "--mount", "sh", "-c", script])
        .arg(home)
        .arg(env!("CARGO_BIN_EXE_warrant"))
        .args(arguments)
        .env("WARRANT_HOME", home)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

#[test]
fn a_home_on_a_read_only_mount_is_read() {
    let machine = Machine::new();
    let run = run_once(&machine);
    let log = machine.home().join("data/plane.db-wal");
    assert!(fs::metadata(&log).unwrap().len() > 0, "there is something in the log");
    everything_is_read(&run, |arguments| on_a_read_only_mount(&machine.home(), arguments));
    let refused = on_a_read_only_mount(&machine.home(), &["sandbox", "exec", "--", "true"]);
    assert_eq!(refused.status.code(), Some(1), "{}", stderr(&refused));
}

#[test]
fn a_copy_whose_log_lacks_its_index_says_what_to_do() {
    let machine = Machine::new();
    run_once(&machine);
    fs::remove_file(machine.home().join("data/plane.db-shm")).unwrap();
    let refused = on_a_read_only_mount(&machine.home(), &["runs"]);
    assert_eq!(refused.status.code(), Some(1), "{}", stderr(&refused));
    assert!(stderr(&refused).contains("copy the whole home"), "{}", stderr(&refused));
    assert_eq!(machine.run(&["runs"]).status.code(), Some(0));
}

#[test]
fn a_home_of_another_user_is_read_and_not_changed() {
    if !rustix::process::geteuid().is_root() {
        // Only root can become another user.
        return;
    }
    let machine = Machine::new();
    let run = run_once(&machine);
    let share = Command::new("chmod").args(["-R", "a+rX"]).arg(machine.directory.path()).status();
    assert!(share.unwrap().success());
    let given = Command::new("chown").args(["-R", "23460:23460"]).arg(machine.home()).status();
    assert!(given.unwrap().success());
    let binary = machine.directory.path().join("warrant");
    let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_warrant")).arg(&binary).status();
    assert!(copied.unwrap().success());
    let listed = || {
        let list =
            Command::new("find").arg(machine.home()).args(["-printf", "%p %T@ %s\n"]).output();
        stdout(&list.unwrap())
    };
    let before = listed();
    let auditor = |arguments: &[&str]| {
        Command::new(&binary)
            .args(arguments)
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("WARRANT_HOME", machine.home())
            .current_dir("/")
            .stdin(Stdio::null())
            .uid(AUDITOR)
            .gid(AUDITOR)
            .output()
            .unwrap()
    };
    everything_is_read(&run, auditor);
    assert_eq!(listed(), before);
    let changed = Command::new("chmod").arg("g+w").arg(machine.home().join("keys")).status();
    assert!(changed.unwrap().success());
    let refused = auditor(&["verify", &run]);
    assert_eq!(refused.status.code(), Some(1), "{}", stderr(&refused));
}
