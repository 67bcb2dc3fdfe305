//! What each provider earns behind our own doors, and why not more.

use serde_json::Value;
use warrant_protocol::Isolation;

use super::door::Door;
use super::site::{Ran, Site};

/// Examines a provider and returns the checks it failed.
fn failed(site: &Site, provider: Isolation) -> (Value, Vec<String>) {
    let report = site.work().join("report.json");
    let arguments = [
        "sandbox",
        "conform",
        "--provider",
        provider.as_str(),
        "--tier",
        "sovereign",
        "--json",
        "--report",
        report.to_str().unwrap(),
    ];
    let ran = Ran::from(site.warrant(&arguments).output().unwrap());
    let told: Value = serde_json::from_str(&ran.stdout).unwrap();
    let checks = told["checks"].as_array().unwrap();
    let failed = checks.iter().filter(|check| check["pass"] == false).map(|check| {
        assert!(check["detail"].is_string(), "a failure without a reason: {check}");
        check["id"].as_str().unwrap().to_owned()
    });
    let failed: Vec<String> = failed.collect();
    let code = if failed.is_empty() { 0 } else { 1 };
    assert_eq!(ran.code, Some(code), "{provider}: {}", ran.stderr);
    assert!(report.exists());
    (told, failed)
}

/// Puts a provider through every check of every tier.
fn earns(provider: Isolation, (earned, failing): (Option<&str>, &[&str])) {
    let door = Door::open();
    let site = Site::new(provider, &door.address, &door.token);
    let (told, failed) = failed(&site, provider);
    assert_eq!(failed, failing, "{provider}: {told:#}");
    assert_eq!(told["provider"], provider.as_str());
    assert_eq!(door.sandboxes(), Vec::<String>::new(), "{provider}");
    let listed = Ran::from(site.warrant(&["sandbox", "providers", "--json"]).output().unwrap());
    let rows: Value = serde_json::from_str(&listed.stdout).unwrap();
    let row = rows.as_array().unwrap().iter().find(|row| row["provider"] == provider.as_str());
    assert_eq!(row.unwrap()["earned"].as_str(), earned, "{provider}");
}

#[test]
fn e2b_behind_our_door_earns_sovereign() {
    earns(Isolation::E2b, (Some("sovereign"), &[]));
}

#[test]
fn daytona_behind_our_door_earns_sovereign() {
    earns(Isolation::Daytona, (Some("sovereign"), &[]));
}

/// Its protocol carries lines of text: how the last one ended and what is no text are lost. It
/// declares that, and is held to it.
#[test]
fn opensandbox_behind_our_door_earns_sovereign_with_lines_as_declared_output() {
    earns(Isolation::Opensandbox, (Some("sovereign"), &[]));
}
