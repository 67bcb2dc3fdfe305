//! The API against a fuzzer nobody here wrote, by its own description: nothing is ever a 500.

use std::path::Path;
use std::process::Command;

use super::support::Plane;

#[test]
fn a_fuzzer_that_reads_the_description_finds_no_server_error() {
    let clients = Path::new(env!("CARGO_MANIFEST_DIR")).join("../e2e/clients/schemathesis");
    let fuzzer = clients.join(".venv/bin/schemathesis");
    assert!(fuzzer.is_file(), "{} is missing: `cargo xtask test` installs it", fuzzer.display());
    let plane = Plane::start();
    let folder = tempfile::tempdir().unwrap();
    let done = Command::new("timeout")
        .arg("240")
        .arg(&fuzzer)
        .args(["run", &format!("{}/v1/openapi.json", plane.url), "--url", &plane.url])
        .args(["--header", &format!("Authorization: Bearer {}", plane.admin)])
        .args(["--checks", "not_a_server_error", "--max-examples", "8", "--seed", "7"])
        .args(["--phases", "examples,coverage,fuzzing", "--exclude-path", "/v1/events"])
        .args(["--generation-database", "none", "--no-color"])
        .current_dir(folder.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success(), "{said}{}", String::from_utf8_lossy(&done.stderr));
    assert!(said.contains("not_a_server_error") || said.contains("passed"), "{said}");
    let health = plane.client().call("GET", "/v1/ready", None, None);
    assert_eq!(health.0, 200, "it still works");
}
