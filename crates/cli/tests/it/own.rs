//! Warrant's own directory, with its keys and its policy, is out of every program's reach.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{Output, Stdio};

use crate::{stderr, stdout, warrant};

/// A person who works in their home directory, where ours is, too.
struct Person {
    directory: tempfile::TempDir,
}

impl Person {
    fn new() -> Self {
        let person = Self { directory: tempfile::tempdir().unwrap() };
        fs::create_dir(person.path("project")).unwrap();
        let first = person.exec("", &["--", "true"]);
        assert_eq!(first.status.code(), Some(0), "{}", stderr(&first));
        person
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn own(&self) -> PathBuf {
        self.path(".local/share/warrant")
    }

    fn exec(&self, cwd: &str, arguments: &[&str]) -> Output {
        warrant()
            .args([&["sandbox", "exec"], arguments].concat())
            .env("HOME", self.directory.path())
            .current_dir(self.path(cwd))
            .stdin(Stdio::null())
            .output()
            .unwrap()
    }

    fn rules(&self) -> String {
        fs::read_to_string(self.own().join("policy/rules.cedar")).unwrap()
    }
}

const OPEN_POLICY: &str = "@id(\"all\") permit (principal, action, resource);";

#[test]
fn a_program_cannot_write_the_policy_that_lies_in_its_workspace() {
    let person = Person::new();
    let before = person.rules();
    for attack in [
        "echo 'RULES' > .local/share/warrant/policy/rules.cedar",
        "rm -rf .local; mkdir -p .local/share/warrant/policy && echo 'RULES' > \
         .local/share/warrant/policy/rules.cedar",
        "mv .local/share/warrant .local/share/w2; mkdir -p .local/share/warrant/policy && \
         echo 'RULES' > .local/share/warrant/policy/rules.cedar",
        "mv .local .l2; mkdir -p .local/share/warrant/policy && \
         echo 'RULES' > .local/share/warrant/policy/rules.cedar",
        "ln -s .local/share/warrant w; echo 'RULES' > w/policy/rules.cedar",
    ] {
        let script = format!("{}; exit 0", attack.replace("RULES", OPEN_POLICY));
        let output = person.exec("", &["--mode", "workspace-rollback", "--", "sh", "-c", &script]);
        assert_eq!(output.status.code(), Some(0), "{attack}: {}", stderr(&output));
        assert_eq!(person.rules(), before, "{attack}: {}", stderr(&output));
    }
    let after = person.exec("", &["--provider", "process", "--", "true"]);
    assert_eq!(after.status.code(), Some(3), "{}", stderr(&after));
}

#[test]
fn a_program_cannot_read_the_keys_that_lie_in_its_workspace() {
    let person = Person::new();
    fs::write(person.own().join("master.txt"), "what only we know").unwrap();
    let script = "cat .local/share/warrant/home.json .local/share/warrant/master.txt \
                  .local/share/warrant/data/plane.db; find .local -type f; echo end";
    for provider in ["namespace", "hermetic"] {
        let output = person.exec("", &["--provider", provider, "--", "sh", "-c", script]);
        assert!(output.stdout == b"end\n", "{provider}: {}", stderr(&output));
    }
}

#[test]
fn no_grant_reaches_warrants_own_directory() {
    let person = Person::new();
    symlink(person.own().join("keys"), person.path("alias")).unwrap();
    let own = person.own();
    for root in [own.clone(), own.join("keys"), own.join("home.json"), person.path("alias")] {
        let root = root.to_str().unwrap();
        let key = own.join("keys/plane.key.pem");
        let read = person.exec("project", &["--read", root, "--", "cat", key.to_str().unwrap()]);
        assert!(!stdout(&read).contains("PRIVATE"), "--read {root} gave the key");
        assert_eq!(read.status.code(), Some(8), "--read {root}: {}", stderr(&read));
        assert!(stderr(&read).contains("own directory"), "--read {root}: {}", stderr(&read));
    }
    let parent = person.path(".local");
    let read = person.exec("project", &["--read", parent.to_str().unwrap(), "--", "true"]);
    assert_eq!(read.status.code(), Some(8), "{}", stderr(&read));
    let inside = person.exec(".local/share/warrant", &["--", "cat", "keys/plane.key.pem"]);
    assert_eq!(inside.status.code(), Some(8), "{}", stderr(&inside));
    let dry =
        person.exec("project", &["--dry-run", "--read", parent.to_str().unwrap(), "--", "ls"]);
    assert_eq!(dry.status.code(), Some(8), "{}", stdout(&dry));
}
