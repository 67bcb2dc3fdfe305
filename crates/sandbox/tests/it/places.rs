//! Roots that are shown inside under another path than their own.

use std::fs;
use std::path::PathBuf;

use warrant_protocol::Outcome;
use warrant_sandbox::{
    Backend, EnvValue, EnvVar, Invocation, Namespace, Place, Process, WorkspaceAccess,
};

use crate::bench::{run, shell, workspace};

fn placed(home: &std::path::Path, tmp: &std::path::Path, script: &str) -> Invocation {
    let mut invocation = shell(home, script);
    invocation.cwd = PathBuf::from("/home/user");
    let value = EnvValue::Plain("/home/user".into());
    invocation.env.push(EnvVar { name: "HOME".into(), value });
    invocation.files.access = WorkspaceAccess::Direct;
    invocation.files.write_roots = vec![tmp.to_owned()];
    invocation.files.places = vec![
        Place { root: home.to_owned(), inside: "/home/user".into() },
        Place { root: tmp.to_owned(), inside: "/tmp".into() },
    ];
    invocation
}

#[test]
fn a_root_is_shown_at_its_place_and_nowhere_else() {
    let (home, tmp) = (workspace(), workspace());
    fs::write(home.path().join("old"), "kept").unwrap();
    let script = format!(
        "pwd; cat old; echo new > ~/made; echo t > /tmp/t; test -e {} && echo LEAK; ls /home; ls /tmp",
        home.path().display()
    );
    let (report, memory) = run(&Namespace::new(), placed(home.path(), tmp.path(), &script));
    assert_eq!(report.unwrap().outcome, Outcome::Exited { code: 0 }, "{}", memory.stderr());
    assert_eq!(memory.stdout(), "/home/user\nkeptuser\nt\n");
    assert_eq!(fs::read_to_string(home.path().join("made")).unwrap(), "new\n");
    assert_eq!(fs::read_to_string(tmp.path().join("t")).unwrap(), "t\n");
}

#[test]
fn secrets_are_masked_at_the_place() {
    let (home, tmp) = (workspace(), workspace());
    fs::write(home.path().join(".env"), "TOKEN=1").unwrap();
    let mut invocation = placed(home.path(), tmp.path(), "cat /home/user/.env");
    invocation.files.masks = vec![".env".into()];
    let (report, memory) = run(&Namespace::new(), invocation);
    assert_ne!(report.unwrap().outcome, Outcome::Exited { code: 0 });
    assert_eq!(memory.stdout(), "");
}

#[test]
fn a_place_cannot_replace_a_part_of_the_boundary() {
    let (home, tmp) = (workspace(), workspace());
    for inside in ["/", "/etc", "/etc/x", "/usr/lib/x", "/proc", "/dev/shm", "/home/../etc", "x"] {
        let mut invocation = placed(home.path(), tmp.path(), "true");
        invocation.files.places[0].inside = inside.into();
        let refusal = Namespace::new().prepare(invocation).unwrap_err();
        assert_eq!(refusal.code, "SANDBOX_DENIED", "{inside}");
    }
    let mut invocation = placed(home.path(), tmp.path(), "true");
    invocation.files.places[0].root = "/root".into();
    assert!(Namespace::new().prepare(invocation).is_err(), "a place must name a root");
    let mut invocation = placed(home.path(), tmp.path(), "true");
    invocation.cwd = "/home/user/absent".into();
    assert!(Namespace::new().prepare(invocation).is_err(), "the directory must exist");
}

#[test]
fn tiers_without_places_refuse_them() {
    let (home, tmp) = (workspace(), workspace());
    assert!(Process::new().prepare(placed(home.path(), tmp.path(), "true")).is_err());
}
