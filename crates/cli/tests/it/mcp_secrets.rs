//! Values of secrets over MCP: a client that was given one is told it nowhere.

use serde_json::{Value, json};

use crate::exec::{release, set_secret};
use crate::machine::Machine;
use crate::mcp::drive;

const VALUE: &str = "s3cr3t-Value-9477";

/// A machine whose policy gives TOKEN away.
fn machine() -> Machine {
    let machine = Machine::new();
    assert!(machine.run(&["init"]).status.success());
    set_secret(&machine, "TOKEN", VALUE);
    release(&machine, "TOKEN");
    machine
}

fn exec(command: &str, secrets: &[&str]) -> Value {
    json!({"tool": "exec", "arguments": {"command": command, "secrets": secrets}})
}

#[test]
fn a_secret_in_a_file_name_is_told_nowhere_over_mcp() {
    let machine = machine();
    let plant = "echo x > \"$TOKEN.txt\"; mkdir d; echo y > \"d/a-$TOKEN\"";
    let report = drive(
        &machine,
        &json!([
            exec(plant, &["TOKEN"]),
            {"tool": "diff"},
            {"tool": "list_files", "arguments": {"depth": 2}},
            exec("ls d; sleep 3; ls *.txt >&2; touch later", &[]),
            {"tool": "read_file", "arguments": {"path": format!("{VALUE}.missing")}},
            {"tool": "read_file", "arguments": {"path": format!("/{VALUE}")}},
            {"tool": "exec", "arguments": {"command": "true", "secrets": [VALUE]}},
            {"tool": "receipt"},
            {"tool": "undo"},
            {"tool": "undo"},
        ]),
    );
    let told = report.to_string();
    assert!(!told.contains(VALUE), "{told}");
    let facts = |at: usize| &report["results"][at]["result"]["structuredContent"];
    for at in [0, 2, 9] {
        let told = facts(at).to_string();
        assert!(told.contains("[REDACTED:TOKEN].txt"), "{at}: {told}");
        assert!(told.contains("d/a-[REDACTED:TOKEN]"), "{at}: {told}");
    }
    assert!(facts(1)["diff"].as_str().unwrap().contains("[REDACTED:TOKEN].txt"), "{}", facts(1));
    let progress = report["results"][3]["progress"].to_string();
    assert!(progress.contains("a-[REDACTED:TOKEN]"), "{progress}");
    for at in [4, 5, 6] {
        assert_eq!(report["results"][at]["result"]["isError"], true, "{}", facts(at));
        assert!(
            facts(at)["problem"].as_str().unwrap().contains("[REDACTED:TOKEN]"),
            "{}",
            facts(at)
        );
    }
    assert_eq!(facts(9)["status"], "undone", "{}", facts(9));
}

#[test]
fn a_client_cannot_guess_a_secret_by_what_is_taken_out_of_its_words() {
    let machine = machine();
    let report = drive(&machine, &json!([exec(&format!("echo {VALUE}"), &[])]));
    assert!(report.to_string().contains(VALUE), "nothing was given to it: {report}");
}
