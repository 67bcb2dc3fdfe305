//! Another user of the machine answers what waits in somebody's home.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use crate::{stderr, stdout};

/// An id nobody has.
const ALICE: u32 = 23_458;

/// An ordinary user with a home of her own, and the binary where she can execute it.
struct Alice {
    directory: tempfile::TempDir,
}

impl Alice {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let alice = Self { directory };
        // By another process: a descriptor of ours open for writing would forbid the execution.
        let copy = alice.path("warrant");
        let binary = env!("CARGO_BIN_EXE_warrant");
        assert!(Command::new("cp").arg(binary).arg(copy).status().unwrap().success());
        for name in ["alice", "alice/project", "alice/out"] {
            fs::create_dir(alice.path(name)).unwrap();
            chown(alice.path(name), Some(ALICE), Some(ALICE)).unwrap();
        }
        alice
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn warrant(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.path("warrant"));
        command
            .args(arguments)
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .env("WARRANT_HOME", self.path("alice/home"))
            .current_dir(self.path("alice/project"))
            .stdin(Stdio::null());
        command
    }

    /// Asks for something that people must approve.
    fn ask(&self) -> Output {
        let out = self.path("alice/out");
        let arguments =
            ["sandbox", "exec", "--write", out.to_str().unwrap(), "--", "echo", "approved"];
        self.warrant(&arguments).uid(ALICE).gid(ALICE).output().unwrap()
    }
}

#[test]
fn another_user_approves_with_the_owners_rights_and_the_requester_does_not_by_sudo() {
    if !rustix::process::geteuid().is_root() {
        // Only root reaches the home of another user.
        return;
    }
    let alice = Alice::new();
    let asked = alice.ask();
    assert_eq!(asked.status.code(), Some(4), "{}", stderr(&asked));
    let told = stderr(&asked);
    let run = told.split_whitespace().find(|word| word.starts_with("run_")).unwrap();

    let herself = alice.warrant(&["approve", run]).env("SUDO_UID", ALICE.to_string()).output();
    let herself = herself.unwrap();
    assert_eq!(herself.status.code(), Some(1), "{}", stderr(&herself));
    assert!(stderr(&herself).contains("cannot approve"), "{}", stderr(&herself));

    let root = alice.warrant(&["approve", run]).output().unwrap();
    assert_eq!(root.status.code(), Some(0), "{}", stderr(&root));
    let ran = alice.ask();
    assert_eq!(stdout(&ran), "approved\n", "{}", stderr(&ran));
    let receipt = alice.warrant(&["receipt", run]).uid(ALICE).gid(ALICE).output().unwrap();
    assert!(stdout(&receipt).contains("human:root"), "{}", stdout(&receipt));
    let owner = |name: &str| fs::metadata(alice.path(name)).unwrap().uid();
    assert_eq!(owner("alice/home/data/plane.db-wal"), ALICE, "the home stays hers");

    let named = alice.warrant(&["approve", run, "--as", "bob"]).output().unwrap();
    assert_eq!(named.status.code(), Some(2), "nobody is believed by name: {}", stderr(&named));
}

#[test]
fn a_directory_nobody_may_look_into_is_veiled_and_keeps_nothing_from_running() {
    if !rustix::process::geteuid().is_root() {
        // Only root can leave a directory behind that its finder may not open.
        return;
    }
    let alice = Alice::new();
    let closed = alice.path("alice/project/closed");
    fs::create_dir(&closed).unwrap();
    fs::write(closed.join("file"), "secret").unwrap();
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o700)).unwrap();
    let own = alice.path("alice/project/own");
    fs::create_dir(&own).unwrap();
    fs::write(own.join("file"), "secret").unwrap();
    chown(&own, Some(ALICE), Some(ALICE)).unwrap();
    fs::set_permissions(&own, fs::Permissions::from_mode(0o0)).unwrap();
    let script = "chmod 755 own closed; cat own/file closed/file; echo end";
    let ran = alice.warrant(&["sandbox", "exec", "--", "sh", "-c", script]);
    let ran = { ran }.uid(ALICE).gid(ALICE).output().unwrap();
    assert_eq!(stdout(&ran), "end\n", "{}", stderr(&ran));
}

#[test]
fn a_file_closed_to_everyone_keeps_nothing_else_from_being_kept() {
    if !rustix::process::geteuid().is_root() {
        // Only root can become another user.
        return;
    }
    let alice = Alice::new();
    let script = "echo x > open; echo x > closed; chmod 0 closed";
    let words = ["sandbox", "exec", "--mode", "workspace-rollback", "--", "sh", "-c", script];
    let ran = alice.warrant(&words).uid(ALICE).gid(ALICE).output().unwrap();
    assert_eq!(ran.status.code(), Some(0), "{}", stderr(&ran));
    assert!(stderr(&ran).contains("closed to everyone: closed"), "{}", stderr(&ran));
    assert!(alice.path("alice/project/open").exists());
    assert!(!alice.path("alice/project/closed").exists());
}

#[test]
fn root_of_a_container_runs_as_an_ordinary_user_would() {
    if !rustix::process::geteuid().is_root() {
        // Only root can become another user.
        return;
    }
    let alice = Alice::new();
    let binary = alice.path("warrant");
    let command = alice.warrant(&[]);
    let script = "id -u; echo x > written";
    let words = ["sandbox", "exec", "--mode", "workspace-rollback", "--", "sh", "-c", script];
    let ran = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount"])
        .arg(binary)
        .args(words)
        .env_clear()
        .envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))))
        .current_dir(alice.path("alice/project"))
        .uid(ALICE)
        .gid(ALICE)
        .output()
        .unwrap();
    assert_eq!(stdout(&ran), "1000\n", "{}", stderr(&ran));
    assert_eq!(fs::metadata(alice.path("alice/project/written")).unwrap().uid(), ALICE);
}
