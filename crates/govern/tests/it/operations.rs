//! Calls that start no program: what their receipts claim, and what they do not.

use serde_json::Value;
use warrant_plane::doors::{EndsCommands, FileCall, Reach, Workshop as _, WorkshopError};
use warrant_protocol::verify::verify_slice;
use warrant_protocol::{Outcome, RunId};

use crate::live::{House, end_of, guest, house, shell};

/// Returns the bundle of a run that verifies.
#[track_caller]
fn bundle(house: &House, run: &RunId) -> Value {
    let text = house.bundle(run);
    let trusted = house.trusted();
    verify_slice(text.as_bytes(), &trusted).unwrap_or_else(|problems| panic!("{problems:?}"));
    serde_json::from_str(&text).unwrap()
}

/// Says what a bundle claims of a program that did not run; nothing is right.
fn claims_of_a_program(bundle: &Value) -> Vec<String> {
    let of_programs =
        ["command.executed", "preflight.checked", "posture.observed", "preimage.bound"];
    let events = bundle["events"].as_array().unwrap().iter();
    let types = events.map(|event| event["event"]["type"].as_str().unwrap().to_owned());
    let mut claims: Vec<String> = types.filter(|kind| of_programs.contains(&&**kind)).collect();
    for member in ["posture", "limits", "evidenceAccepted", "preimage", "exitCode"] {
        claims.extend(bundle["receipt"].get(member).map(|_| member.to_owned()));
    }
    claims.extend(bundle["receipt"]["runner"].get("isolation").map(|_| "isolation".to_owned()));
    claims
}

#[track_caller]
fn is_own_work(house: &House, run: &RunId, (name, succeeded): (&str, bool)) -> Value {
    let bundle = bundle(house, run);
    assert_eq!(claims_of_a_program(&bundle), Vec::<String>::new(), "{name}");
    let receipt = &bundle["receipt"];
    assert_eq!(receipt["operation"]["name"], name, "{receipt}");
    assert_eq!(receipt["operation"]["succeeded"], succeeded, "{name}");
    receipt["operation"].clone()
}

#[test]
fn a_file_call_claims_no_program_and_no_posture() {
    let house = house();
    let sandbox = house.create();
    let path = || "dir/a".to_owned();
    let calls = [
        ("file.write", FileCall::Write { path: path(), content: "x".into(), mode: None }),
        ("file.read", FileCall::Read { path: path() }),
        ("file.stat", FileCall::Stat { path: path() }),
        ("directory.list", FileCall::List { path: "dir".into(), depth: 1 }),
        ("directory.make", FileCall::MakeDirectory { path: "more".into(), mode: None }),
        ("file.set-mode", FileCall::SetMode { path: path(), mode: 0o600 }),
        ("file.move", FileCall::Move { from: path(), to: "b".into() }),
        ("file.remove", FileCall::Remove { path: "b".into(), recursive: false }),
    ];
    for (name, call) in calls {
        let (_, run) = house.live.file(&guest("one"), &sandbox.id, call).unwrap();
        let operation = is_own_work(&house, &run, (name, true));
        let guards = operation["guards"].as_array().unwrap().iter();
        let guards: Vec<&str> = guards.map(|guard| guard["name"].as_str().unwrap()).collect();
        assert!(guards.contains(&"files.beneath"), "{name}: {guards:?}");
        // Masks are looked at by reading alone, so nothing else may claim them.
        assert_eq!(guards.contains(&"files.masks"), name == "file.read", "{name}: {guards:?}");
    }
    let missing = FileCall::Read { path: "nowhere".into() };
    let failed = house.live.file(&guest("one"), &sandbox.id, missing);
    let Err(WorkshopError::File { run, .. }) = failed else { panic!("{failed:?}") };
    is_own_work(&house, &run, ("file.read", false));
}

#[test]
fn a_change_of_a_sandbox_claims_no_program() {
    let house = house();
    let (sandbox, one) = (house.create(), guest("one"));
    let id = sandbox.id.as_str();
    let changes = [
        house.live.extend(&one, id, 90_000).unwrap(),
        house.live.set_reach(&one, id, Reach::Nothing).unwrap(),
        house.live.pause(&one, id, EndsCommands::Yes).unwrap(),
        house.live.resume(&one, id).unwrap(),
    ];
    for change in changes {
        is_own_work(&house, &change.run, ("sandbox.change", true));
    }
    let life = house.live.destroy(&one, id).unwrap();
    is_own_work(&house, &life, ("sandbox.life", true));
}

#[test]
fn a_command_claims_what_its_own_run_saw() {
    let house = house();
    let sandbox = house.create();
    let process = house.live.start(&guest("one"), &sandbox.id, shell("true")).unwrap();
    assert_eq!(end_of(&process).outcome, Outcome::Exited { code: 0 });
    let bundle = bundle(&house, &process.facts().run);
    assert!(bundle["receipt"].get("operation").is_none());
    assert_eq!(bundle["receipt"]["posture"]["isolation"], "namespace");
    let disk = &bundle["receipt"]["posture"]["components"]["limits.disk"];
    assert_eq!(disk["enforcement"], "observed", "its files are counted from time to time: {disk}");
}
