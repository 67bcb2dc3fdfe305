//! `--provider` from outside, as far as nothing is asked of a provider; whole runs are tried
//! against our own doors, in the whole-stack tests.

use crate::{stderr, warrant};

#[test]
fn a_provider_without_a_key_is_a_usage_error_before_anything_else() {
    for (provider, variable) in [
        ("e2b", "E2B_API_KEY"),
        ("daytona", "DAYTONA_API_KEY"),
        ("opensandbox", "OPEN_SANDBOX_API_KEY"),
    ] {
        let home = tempfile::tempdir().unwrap();
        let home = home.path().join("home");
        let output = warrant()
            .args(["sandbox", "exec", "--provider", provider, "--", "true"])
            .env("WARRANT_HOME", &home)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr(&output).contains(variable), "{}", stderr(&output));
        assert!(!home.exists());
    }
}

#[test]
fn policy_says_how_weak_evidence_may_be() {
    let folder = tempfile::tempdir().unwrap();
    let exec = |evidence: &str| {
        let start = ["sandbox", "exec", "--provider", "e2b", "--accept-evidence", evidence];
        warrant()
            .args([&start[..], &["--", "true"]].concat())
            .env("WARRANT_HOME", folder.path().join("home"))
            .env("E2B_API_KEY", "key")
            // Nobody is there, and nobody is asked.
            .env("E2B_API_URL", "http://127.0.0.1:1")
            .current_dir(folder.path())
            .output()
            .unwrap()
    };
    let denied = exec("requested:network");
    assert_eq!(denied.status.code(), Some(3), "{}", stderr(&denied));
    assert_eq!(exec("hearsay:network").status.code(), Some(2));
    // What policy permits goes on, and finds nobody.
    let refused = exec("requested:image_digest");
    assert_eq!(refused.status.code(), Some(7), "{}", stderr(&refused));
    assert!(stderr(&refused).contains("cannot be reached"), "{}", stderr(&refused));
}

#[test]
fn only_a_remote_provider_has_something_to_reap() {
    let folder = tempfile::tempdir().unwrap();
    let output = warrant()
        .args(["sandbox", "reap", "--provider", "namespace"])
        .env("WARRANT_HOME", folder.path().join("home"))
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
}
