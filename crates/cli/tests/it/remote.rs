//! `--provider` from outside: the whole path with a receipt, against a server on loopback that
//! answers as the real one was seen to answer.

#[allow(dead_code, reason = "shared with the tests of the clients")]
#[path = "../../../sandbox/tests/it/remote/e2b.rs"]
mod e2b;
#[allow(dead_code, reason = "shared with the tests of the clients")]
#[path = "../../../sandbox/tests/it/remote/http.rs"]
mod http;
#[allow(dead_code, reason = "shared with the tests of the clients")]
#[path = "../../../sandbox/tests/it/remote/machine.rs"]
mod machine;
#[allow(dead_code, reason = "shared with the tests of the clients")]
#[path = "../../../sandbox/tests/it/remote/trick.rs"]
mod trick;

use std::process::Output;

use serde_json::Value;

use crate::{stderr, stdout, warrant};
use e2b::Provider;
use trick::Trick;

/// A home, a workspace and the address of a provider.
struct Site {
    directory: tempfile::TempDir,
    url: String,
}

const ACCEPT: [&str; 2] = ["--accept-evidence", "requested:image_digest"];

impl Site {
    fn new(url: String) -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("work")).unwrap();
        std::fs::write(directory.path().join("work/a.txt"), "a\n").unwrap();
        Self { directory, url }
    }

    fn run(&self, arguments: &[&str]) -> Output {
        warrant()
            .args(arguments)
            .env("WARRANT_HOME", self.directory.path().join("home"))
            .env("E2B_API_KEY", e2b::KEY)
            .env("E2B_API_URL", &self.url)
            .env("E2B_SANDBOX_URL", &self.url)
            // Nobody answers there, from inside or outside.
            .env("WARRANT_EGRESS_CANARY", "127.0.0.1:9")
            .env("WARRANT_PROVIDER_TIMEOUT_S", "3")
            .current_dir(self.directory.path().join("work"))
            .stdin(std::process::Stdio::null())
            .output()
            .unwrap()
    }

    fn exec(&self, arguments: &[&str], argv: &[&str]) -> Output {
        let start = ["sandbox", "exec", "--provider", "e2b"];
        self.run(&[&start, arguments, &["--"], argv].concat())
    }

    fn receipt(&self) -> Value {
        let runs = self.run(&["runs", "--json"]);
        let runs: Value = serde_json::from_slice(&runs.stdout).unwrap();
        let run = runs["runs"][0]["runId"].as_str().unwrap().to_owned();
        let verified = self.run(&["verify", &run]);
        assert_eq!(verified.status.code(), Some(0), "{}", stdout(&verified));
        let file = self.directory.path().join("bundle.json");
        let _ = std::fs::remove_file(&file);
        let output = self.run(&["bundle", &run, "--out", file.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let bundle: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
        bundle["receipt"].clone()
    }
}

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
fn a_run_at_a_provider_has_output_changes_and_a_receipt_that_binds_the_sandbox() {
    let (provider, server) = Provider::start(Trick::None);
    let site = Site::new(server.url());
    let output = site.exec(&ACCEPT, &["sh", "-c", "cat a.txt; echo b > b.txt; exit 3"]);
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    assert_eq!(stdout(&output), "a\n");
    assert!(stderr(&output).starts_with("warrant: e2b"), "{}", stderr(&output));
    assert_eq!((provider.left(), provider.programs().len()), (0, 1));
    let receipt = site.receipt();
    assert_eq!(receipt["evidenceAccepted"]["image_digest"], "requested");
    assert_eq!(receipt["preimage"]["providerVersion"], "0.6.13");
    let spec = &receipt["preimage"]["inputs"]["sandboxSpec"];
    assert_eq!(spec["sandbox"]["id"], "i000000");
    assert_eq!(
        receipt["preimage"]["inputs"]["egressPolicy"]["readBack"]["applied"]["allowInternetAccess"],
        false
    );
    assert!(receipt["workspaceOut"]["diffHash"].is_string());
    assert!(!site.directory.path().join("work/b.txt").exists());
}

#[test]
fn evidence_that_nobody_accepted_denies_and_the_command_never_reaches_the_provider() {
    let (provider, server) = Provider::start(Trick::None);
    let site = Site::new(server.url());
    let output = site.exec(&[], &["echo", "ran"]);
    assert_eq!(output.status.code(), Some(7), "{}", stderr(&output));
    assert!(stderr(&output).contains("image_digest"), "{}", stderr(&output));
    assert_eq!((provider.left(), provider.programs().len()), (0, 0));
    assert_eq!(site.receipt()["outcome"]["kind"], "posture-refused");
}

#[test]
fn each_single_degraded_field_denies_with_a_receipt() {
    for (trick, component) in [
        (Trick::UnknownVersion, "provider_version"),
        (Trick::NoVersion, "provider_version"),
        (Trick::NoEgressTold, "egress_policy"),
        (Trick::OtherEgressTold, "egress_policy"),
        (Trick::TooMuchMemory, "limits.memory"),
        (Trick::ForeignMount, "mounts"),
        (Trick::EgressOpenedLater, "egress_policy"),
        (Trick::VersionChangedLater, "provider_version"),
        (Trick::ImageSwappedLater, "unchanged"),
    ] {
        let (provider, server) = Provider::start(trick);
        let site = Site::new(server.url());
        let output = site.exec(&ACCEPT, &["echo", "ran"]);
        assert_eq!(output.status.code(), Some(7), "{trick:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(component), "{trick:?}: {}", stderr(&output));
        assert_eq!((provider.left(), provider.programs().len()), (0, 0), "{trick:?}");
        assert_eq!(site.receipt()["outcome"]["kind"], "posture-refused");
    }
}

#[test]
fn whatever_the_provider_does_there_is_one_receipt_and_no_orphan() {
    for (trick, code, outcome) in [
        (Trick::CreateError, 7, "posture-refused"),
        (Trick::CreateMadeAndCut, 7, "posture-refused"),
        (Trick::InfoMalformed, 7, "posture-refused"),
        (Trick::DamagedUpload, 1, "failed"),
        (Trick::StartDenied, 1, "failed"),
        (Trick::StartCut, 1, "unobserved"),
        (Trick::NoEnd, 1, "unobserved"),
        (Trick::EndTwice, 0, "exited"),
    ] {
        let (provider, server) = Provider::start(trick);
        let site = Site::new(server.url());
        let output = site.exec(&ACCEPT, &["echo", "ran"]);
        assert_eq!(output.status.code(), Some(code), "{trick:?}: {}", stderr(&output));
        assert_eq!(site.receipt()["outcome"]["kind"], outcome, "{trick:?}");
        assert_eq!(provider.left(), 0, "{trick:?}");
        assert!(provider.programs().len() <= 1, "{trick:?}");
    }
}

#[test]
fn policy_says_how_weak_evidence_may_be() {
    let (provider, server) = Provider::start(Trick::None);
    let site = Site::new(server.url());
    let weaker = ["--accept-evidence", "requested:network"];
    let output = site.exec(&weaker, &["true"]);
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    let nonsense = ["--accept-evidence", "hearsay:network"];
    assert_eq!(site.exec(&nonsense, &["true"]).status.code(), Some(2));
    assert_eq!(provider.creates.lock().unwrap().len(), 0);
}

#[test]
fn reaping_deletes_what_a_crash_left() {
    let (provider, server) = Provider::start(Trick::None);
    let site = Site::new(server.url());
    assert_eq!(site.exec(&ACCEPT, &["true"]).status.code(), Some(0));
    let output = site.run(&["sandbox", "reap", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let rows: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(rows[0]["provider"], "e2b");
    assert_eq!(rows[0]["reaped"], serde_json::json!([]));
    assert_eq!(provider.left(), 0);
    assert_eq!(site.run(&["sandbox", "reap", "--provider", "namespace"]).status.code(), Some(2));
}
