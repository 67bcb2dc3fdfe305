//! `warrant keys`.

use std::os::unix::fs::PermissionsExt as _;

use crate::{run, sample, stderr, stdout};

#[test]
fn a_new_key_is_readable_by_its_owner_alone_and_has_one_id() {
    let directory = tempfile::tempdir().unwrap();
    let name = directory.path().join("alice").to_str().unwrap().to_owned();
    let made = run(&["keys", "new", &name]);
    assert!(made.status.success(), "{}", stderr(&made));
    let secret = format!("{name}.key.pem");
    let mode = std::fs::metadata(&secret).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let id = stdout(&made);
    assert!(id.starts_with("ed25519:"), "{id}");
    assert_eq!(stdout(&run(&["keys", "id", &secret])), id);
    assert_eq!(stdout(&run(&["keys", "id", &format!("{name}.pub.pem")])), id);
    assert!(!stdout(&run(&["keys", "show", &secret])).contains("PRIVATE"));
}

#[test]
fn a_key_that_exists_is_never_overwritten() {
    let directory = tempfile::tempdir().unwrap();
    let name = directory.path().join("k").to_str().unwrap().to_owned();
    assert!(run(&["keys", "new", &name]).status.success());
    let before = std::fs::read(format!("{name}.key.pem")).unwrap();
    let again = run(&["keys", "new", &name]);
    assert_eq!(again.status.code(), Some(1));
    assert!(stderr(&again).contains("exists"), "{}", stderr(&again));
    assert_eq!(std::fs::read(format!("{name}.key.pem")).unwrap(), before);
}

#[test]
fn a_file_that_is_no_key_is_named() {
    let output = run(&["keys", "id", &sample("bundle.json")]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("bundle.json"), "{}", stderr(&output));
}
