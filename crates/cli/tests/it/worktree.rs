//! Git inside linked worktrees and submodules, whose `.git` leads out of the workspace; and a `.git`
//! that lies about where it belongs.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::machine::Machine;
use crate::{stderr, stdout};

/// Runs git on this machine, without anybody's settings.
fn git(at: &Path, arguments: &[&str]) {
    let settings = ["user.name=n", "user.email=n@example.com", "protocol.file.allow=always"];
    let output = Command::new("git")
        .args(settings.iter().flat_map(|setting| ["-c", setting]))
        .args(arguments)
        .current_dir(at)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .output()
        .unwrap();
    assert!(output.status.success(), "git {arguments:?}: {}", stderr(&output));
}

/// A machine with a repository beside the workspace, and a linked worktree of it.
struct Linked {
    machine: Machine,
    repository: PathBuf,
    worktree: PathBuf,
}

impl Linked {
    fn new() -> Self {
        let machine = Machine::new();
        let top = fs::canonicalize(machine.directory.path()).unwrap();
        let (repository, worktree) = (top.join("repository"), top.join("worktree"));
        fs::create_dir(&repository).unwrap();
        git(&repository, &["init", "-q"]);
        fs::write(repository.join("file"), "first\n").unwrap();
        git(&repository, &["add", "."]);
        git(&repository, &["commit", "-qm", "the first commit"]);
        git(&repository, &["worktree", "add", "-q", worktree.to_str().unwrap()]);
        Self { machine, repository, worktree }
    }

    fn exec(&self, workspace: &Path, arguments: &[&str]) -> Output {
        let workspace = workspace.to_str().unwrap();
        self.machine.exec(&[&["--workspace", workspace], arguments].concat())
    }

    #[track_caller]
    fn says(&self, workspace: &Path, script: &str, expected: &str) {
        let output = self.exec(workspace, &["--", "sh", "-c", script]);
        assert_eq!(output.status.code(), Some(0), "{script}: {}", stderr(&output));
        assert!(stdout(&output).contains(expected), "{script}: {}", stdout(&output));
    }
}

#[test]
fn git_works_inside_a_linked_worktree() {
    let linked = Linked::new();
    let worktree = linked.worktree.as_path();
    linked.says(worktree, "git status", "nothing to commit");
    linked.says(worktree, "git log --oneline", "the first commit");
    linked.says(worktree, "echo second >> file; git diff", "+second");
    // As it may be written since git 2.48.
    fs::write(worktree.join(".git"), "gitdir: ../repository/.git/worktrees/worktree\n").unwrap();
    let back = linked.repository.join(".git/worktrees/worktree/gitdir");
    fs::write(back, "../../../../worktree/.git\n").unwrap();
    linked.says(worktree, "git status", "nothing to commit");
}

#[test]
fn what_git_needs_is_read_only_and_shown_before() {
    let linked = Linked::new();
    let common = linked.repository.join(".git");
    let write = format!("echo x > {}/written", common.display());
    let refused = linked.exec(&linked.worktree, &["--", "sh", "-c", &write]);
    assert_ne!(refused.status.code(), Some(0));
    assert!(!common.join("written").exists());
    let shown = linked.exec(&linked.worktree, &["--dry-run", "--", "git", "status"]);
    assert_eq!(shown.status.code(), Some(0), "{}", stderr(&shown));
    let named = format!("\"{}\"", common.display());
    assert!(stdout(&shown).contains(&named), "{}", stdout(&shown));
    let file = format!("cat {}/file", linked.repository.display());
    let beside = linked.exec(&linked.worktree, &["--", "sh", "-c", &file]);
    assert_ne!(beside.status.code(), Some(0), "its other files are not shown");
}

#[test]
fn git_works_inside_a_submodule() {
    let linked = Linked::new();
    let outer = linked.machine.directory.path().join("outer");
    fs::create_dir(&outer).unwrap();
    git(&outer, &["init", "-q"]);
    git(&outer, &["submodule", "--quiet", "add", linked.repository.to_str().unwrap(), "inner"]);
    linked.says(&outer.join("inner"), "git log --oneline", "the first commit");
}

#[test]
fn where_policy_denies_what_git_needs_the_run_goes_on_without_it() {
    let linked = Linked::new();
    let machine = &linked.machine;
    assert!(machine.run(&["init"]).status.success());
    let policy = machine.directory.path().join("policy");
    fs::create_dir(&policy).unwrap();
    for name in ["document.json", "rules.cedar"] {
        fs::copy(machine.home().join("policy").join(name), policy.join(name)).unwrap();
    }
    let rules = fs::read_to_string(policy.join("rules.cedar")).unwrap();
    for (verb, unless) in [("denies", ""), ("asks", "unless { context has approval }")] {
        let rule = format!(
            "@id(\"no-reading\")\n@reason(\"policy {verb}\")\n\
             forbid (principal, action == Action::\"fs_grant\", resource) {unless};\n"
        );
        fs::write(policy.join("rules.cedar"), format!("{rules}\n{rule}")).unwrap();
        let set = machine.run(&["policy", "set", policy.to_str().unwrap()]);
        assert!(set.status.success(), "{}", stderr(&set));
        let output = linked.exec(&linked.worktree, &["--", "cat", "file"]);
        assert_eq!(output.status.code(), Some(0), "{verb}: {}", stderr(&output));
        assert_eq!(stdout(&output), "first\n");
        let common = linked.repository.join(".git").display().to_string();
        assert!(stderr(&output).contains(&common), "it says so: {}", stderr(&output));
    }
}

/// Makes a directory look like the git directory of a worktree at `link`.
fn forge(directory: &Path, link: &Path, common: &str) {
    fs::create_dir_all(directory).unwrap();
    fs::write(directory.join("gitdir"), format!("{}\n", link.display())).unwrap();
    fs::write(directory.join("commondir"), format!("{common}\n")).unwrap();
    fs::write(directory.join("HEAD"), "ref: refs/heads/main\n").unwrap();
}

#[test]
fn a_forged_git_file_reaches_nothing() {
    let linked = Linked::new();
    let top = fs::canonicalize(linked.machine.directory.path()).unwrap();
    let work = top.join("work");
    let link = work.join(".git");
    // A repository of the person's, and a directory that is none.
    fs::write(linked.repository.join(".git/private"), "private\n").unwrap();
    fs::create_dir(top.join("secrets")).unwrap();
    fs::write(top.join("secrets/private"), "private\n").unwrap();
    let repository = linked.repository.join(".git").display().to_string();
    let other = linked.repository.join(".git/worktrees/worktree").display().to_string();
    let secrets = top.join("secrets").display().to_string();
    // Inside the workspace anybody can make everything.
    forge(&work.join("a/.git/worktrees/x"), &link, &secrets);
    forge(&work.join("b/worktrees/x"), &link, &repository);
    forge(&work.join("c/worktrees/x"), &link, "../..");
    symlink(&repository, work.join("d")).unwrap();
    symlink(&other, work.join("e")).unwrap();
    let config = format!("[core]\n\tworktree = {}\n", work.display());
    fs::write(work.join("c/config"), config).unwrap();
    symlink(linked.repository.join(".git/objects"), work.join("c/objects")).unwrap();
    symlink(linked.repository.join(".git/refs"), work.join("c/refs")).unwrap();
    let inside = |name: &str| work.join(name).display().to_string();
    for named in [
        secrets.clone(),
        repository.clone(),
        other.clone(),
        format!("{repository}/worktrees"),
        format!("{secrets}/../secrets"),
        inside("a/.git/worktrees/x"),
        inside("b/worktrees/x"),
        inside("c/worktrees/x"),
        inside("c"),
        inside("d"),
        inside("d/worktrees/worktree"),
        inside("e"),
        "/".to_owned(),
        "..".to_owned(),
    ] {
        fs::write(&link, format!("gitdir: {named}\n")).unwrap();
        let script = format!("cat {repository}/private {secrets}/private {}/private", inside("d"));
        let output = linked.exec(&work, &["--", "sh", "-c", &script]);
        assert_eq!(stdout(&output), "", "{named}: {}", stderr(&output));
        let shown = linked.exec(&work, &["--dry-run", "--json", "--", "true"]);
        let shown = stdout(&shown);
        assert!(!shown.contains(&repository) && !shown.contains(&secrets), "{named}: {shown}");
    }
    fs::remove_file(&link).unwrap();
    symlink(linked.worktree.join(".git"), &link).unwrap();
    let shown = stdout(&linked.exec(&work, &["--dry-run", "--json", "--", "true"]));
    assert!(!shown.contains(&repository), "{shown}");
}

#[test]
fn a_git_file_that_is_a_pipe_does_not_hold_a_run_up() {
    let linked = Linked::new();
    let made = Command::new("mkfifo").arg(linked.machine.work(".git")).status().unwrap();
    assert!(made.success());
    let output = linked.machine.exec(&["--", "echo", "ran"]);
    assert_eq!(stdout(&output), "ran\n", "{}", stderr(&output));
}
