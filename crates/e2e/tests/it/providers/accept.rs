//! What a provider cannot prove is accepted once, by a person, by name; versions are pinned.

use std::io::Write as _;
use std::process::Stdio;

use serde_json::{Value, json};
use warrant_protocol::Isolation;

use super::door::Door;
use super::proxy::How::Edits;
use super::proxy::Kind::Reading;
use super::proxy::When::Every;
use super::proxy::{HONEST, Proxy, Trick};
use super::site::{PROVIDERS, Ran, Site};

/// Types a command of the documentation, with nothing but the key and the address set.
fn typed(site: &Site, arguments: &[&str]) -> Ran {
    Ran::from(site.warrant(arguments).output().unwrap())
}

fn json_of(site: &Site, arguments: &[&str]) -> Value {
    let ran = typed(site, &[arguments, &["--json"]].concat());
    serde_json::from_str(&ran.stdout).unwrap_or_else(|_| panic!("{arguments:?}: {}", ran.stderr))
}

/// Returns the commands that a refusal names, as their arguments.
fn commands(refusal: &str) -> Vec<Vec<String>> {
    let named = refusal.split("to accept that: ").skip(1);
    let command = |text: &str| text.split([')', '\n', '\r']).next().unwrap_or_default().to_owned();
    named.map(|text| command(text).split(' ').skip(1).map(str::to_owned).collect()).collect()
}

#[test]
fn the_documented_provider_command_runs_once_a_person_accepted_what_it_cannot_prove() {
    let door = Door::open();
    for provider in PROVIDERS {
        let site = Site::new(provider, &door.address, &door.token);
        let exec = ["sandbox", "exec", "--provider", provider.as_str(), "--", "echo", "hi"];
        let refused = typed(&site, &exec);
        assert_eq!(refused.code, Some(7), "{provider}: {}", refused.stderr);
        assert_eq!(site.receipt()["outcome"]["kind"], "posture-refused", "{provider}");
        let expected = ["provider", "accept", provider.as_str(), "image_digest"];
        assert_eq!(commands(&refused.stderr), [expected], "{provider}: {}", refused.stderr);
        // The exact command that was printed.
        let accepted = typed(&site, &expected);
        assert_eq!(accepted.code, Some(0), "{provider}: {}", accepted.stderr);
        let ran = typed(&site, &exec);
        assert_eq!(
            (ran.code, ran.stdout.as_str()),
            (Some(0), "hi\n"),
            "{provider}: {}",
            ran.stderr
        );
        let receipt = site.receipt();
        assert_eq!(receipt["evidenceAccepted"]["image_digest"], "requested", "{provider}");
        // The receipt binds the policy, and the policy says who accepted it and when.
        let policy = json_of(&site, &["policy", "show"]);
        let told = &policy["document"]["controls"]["providers"][provider.as_str()]["accepted"];
        assert_eq!(told["image_digest"]["evidence"], "requested", "{policy}");
        assert!(told["image_digest"]["by"].as_str().unwrap().starts_with("human:"), "{policy}");
        assert!(told["image_digest"]["at"].as_str().unwrap().ends_with('Z'), "{policy}");
        let run = receipt["runId"].as_str().unwrap();
        let bundle = typed(&site, &["bundle", run]).stdout;
        let bundle: Value = serde_json::from_str(&bundle).unwrap();
        assert_eq!(bundle["contract"]["policyHash"], policy["policyHash"], "{provider}");
        // Once is enough, and says so.
        let again = json_of(&site, &expected);
        assert_eq!(again["changed"], false, "{again}");
        assert_eq!(again["policyHash"], policy["policyHash"], "{again}");
        assert_eq!(door.sandboxes(), Vec::<String>::new(), "{provider}");
    }
}

/// Types a command on a terminal and answers.
fn on_terminal(site: &Site, arguments: &str, answers: &str) -> (Option<i32>, String) {
    let mut child = site
        .on_terminal(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(answers.as_bytes()).unwrap();
    let ended = Ran::from(child.wait_with_output().unwrap());
    (ended.code, ended.stdout)
}

#[test]
fn on_a_terminal_the_first_use_of_a_provider_asks_and_a_no_changes_nothing() {
    let door = Door::open();
    let site = Site::new(Isolation::E2b, &door.address, &door.token);
    let exec = "sandbox exec --provider e2b -- echo first-use-end";
    let (code, said) = on_terminal(&site, exec, "n\n");
    assert_eq!(code, Some(7), "{said}");
    assert!(said.contains("E2B does not tell which image runs"), "{said}");
    assert_eq!(door.started("first-use-end"), 0, "{said}");
    let shown = json_of(&site, &["provider", "show", "e2b"]);
    assert_eq!(shown["accepted"], json!({}), "{shown}");
    // An agent is not asked: it accepts nothing in a person's name.
    let agent = "sandbox exec --provider e2b --agent claude -- echo first-use-end";
    let (code, said) = on_terminal(&site, agent, "y\n");
    assert_eq!(code, Some(7), "{said}");
    assert!(!said.contains("[y/N]"), "{said}");
    let (code, said) = on_terminal(&site, exec, "y\n");
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("first-use-end"), "{said}");
    let shown = json_of(&site, &["provider", "show", "e2b"]);
    assert_eq!(shown["accepted"]["image_digest"]["evidence"], "requested", "{shown}");
    assert_eq!(shown["pinned"][0]["version"], "0.6.13", "the version of the first use: {shown}");
    let ran = typed(&site, &["sandbox", "exec", "--provider", "e2b", "--", "echo", "later"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "later\n"), "{}", ran.stderr);
}

#[test]
fn a_version_that_is_not_pinned_is_refused_with_the_command_that_pins_it() {
    let door = Door::open();
    let proxy = Proxy::before(&door.address);
    let site = Site::new(Isolation::E2b, &proxy.address, &door.token);
    let newer = Edits(|info| info["envdVersion"] = json!("0.7.2"));
    proxy.play(Trick { when: Every(Reading), how: newer });
    let refused = site.script(&[], "echo version-one-end");
    assert_eq!(refused.code, Some(7), "{}", refused.stderr);
    let named = "version 0.7.2 is not one that was tried (0.6.13)";
    assert!(refused.stderr.contains(named), "{}", refused.stderr);
    assert_eq!(commands(&refused.stderr), [["provider", "pin", "e2b", "0.7.2"]]);
    for wrong in ["0.*.1", ">=", ""] {
        let misuse = typed(&site, &["provider", "pin", "e2b", wrong]);
        assert_eq!(misuse.code, Some(2), "{wrong}: {}", misuse.stderr);
    }
    let pinned = json_of(&site, &["provider", "pin", "e2b", "0.7.*"]);
    assert_eq!((&pinned["change"]["version"], &pinned["changed"]), (&json!("0.7.*"), &json!(true)));
    assert_eq!(site.script(&[], "echo version-two-end").code, Some(0));
    proxy.play(HONEST);
    let refused = site.script(&[], "echo version-three-end");
    assert_eq!(refused.code, Some(7), "{}", refused.stderr);
    let named = "version 0.6.13 is not pinned (0.7.*)";
    assert!(refused.stderr.contains(named), "{}", refused.stderr);
    // Without a version: the one that the provider reports now.
    let pinned = json_of(&site, &["provider", "pin", "e2b"]);
    assert_eq!(pinned["change"]["version"], "0.6.13", "{pinned}");
    assert_eq!(site.script(&[], "echo version-four-end").code, Some(0));
    let shown = json_of(&site, &["provider", "show", "e2b"]);
    let versions: Vec<&Value> =
        shown["pinned"].as_array().unwrap().iter().map(|one| &one["version"]).collect();
    assert_eq!(versions, ["0.7.*", "0.6.13"], "{shown}");
    assert_eq!(door.sandboxes(), Vec::<String>::new());
}

#[test]
fn provider_commands_say_what_is_missing_and_which_command_goes_on() {
    let door = Door::open();
    let site = Site::new(Isolation::Daytona, &door.address, &door.token);
    let unknown = typed(&site, &["provider", "show", "namespace"]);
    assert_eq!(unknown.code, Some(2), "{}", unknown.stderr);
    assert!(unknown.stderr.contains("opensandbox, e2b or daytona"), "{}", unknown.stderr);
    let rows = json_of(&site, &["provider", "list"]);
    let row = |name: &str| {
        let all = rows.as_array().unwrap();
        all.iter().find(|row| row["provider"] == name).unwrap_or_else(|| panic!("{rows}"))
    };
    assert!(row("e2b")["missing"].as_str().unwrap().contains("E2B_API_KEY"), "{rows}");
    assert!(row("daytona")["endpoint"].as_str().unwrap().contains(&door.address), "{rows}");
    let tested = typed(&site, &["provider", "test", "daytona", "--json"]);
    assert_eq!(tested.code, Some(7), "{}", tested.stderr);
    let told: Value = serde_json::from_str(&tested.stdout).unwrap();
    assert_eq!(told["refused"][0]["component"], "image_digest", "{told}");
    assert_eq!(told["refused"][0]["command"], "warrant provider accept daytona image_digest");
    assert_eq!(told["refused"].as_array().unwrap().len(), 1, "{told}");
    let text = typed(&site, &["provider", "test", "daytona"]);
    let accept = commands(&text.stdout);
    assert_eq!(accept, [["provider", "accept", "daytona", "image_digest"]], "{}", text.stdout);
    let accept: Vec<&str> = accept[0].iter().map(String::as_str).collect();
    assert_eq!(typed(&site, &accept).code, Some(0));
    let tested = typed(&site, &["provider", "test", "daytona"]);
    assert_eq!(tested.code, Some(0), "{}{}", tested.stdout, tested.stderr);
    assert_eq!(door.sandboxes(), Vec::<String>::new());
}
