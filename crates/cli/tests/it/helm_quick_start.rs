//! The quick start of HELM's adapter for Mastra against a running plane.

use std::process::Command;

use crate::mcp::clients;
use crate::mcp_http::Plane;
use crate::{stderr, stdout};

#[test]
fn the_helm_quick_start_works_as_it_is_documented_without_an_api_key() {
    let plane = Plane::start();
    let issued = plane.machine.json(&["doors", "issue", "mastra", "--json"]);
    let output = Command::new("node")
        .arg("helm-quick-start.mjs")
        .current_dir(clients("doors"))
        .env("HELM_URL", &plane.url)
        .env("DAYTONA_API_KEY", issued["token"].as_str().unwrap())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(stdout(&output), "governed exec\n\n");
}
