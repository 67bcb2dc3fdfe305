//! The verifier: honest bundles pass, tampered ones tell exactly what is wrong.

use serde_json::{Value, json};
use warrant_protocol::verify::{verify_runner_receipt, verify_slice};
use warrant_protocol::{
    Bundle, Chain, ChainedEvent, Contract, Digest, Event, KeyRole, Outcome, Receipt, Sealer,
    Signer, TrustedKeys, Usage, canonicalize, fold, json as strict, verify,
};

use crate::forge::{
    Keys, at, our_contract, our_events, ours, preimage, reference, reseal, seal, trusted,
};
use crate::vectors::{load, other_key, plane_key, plane_public, runner_key, text};

fn problems(bundle: &Value) -> Vec<String> {
    match verify(Bundle::from_value(bundle.clone()).unwrap(), trusted()) {
        Ok(_) => Vec::new(),
        Err(problems) => problems.iter().map(ToString::to_string).collect(),
    }
}

/// Someone changes a bundle and signs nothing.
#[track_caller]
fn edited(edit: impl Fn(&mut Value), expected: &[&str]) {
    let mut bundle = reference();
    edit(&mut bundle);
    assert_eq!(problems(&bundle), expected);
}

/// The runner and the plane conspire, with their real keys, on the reference's bundle.
#[track_caller]
fn conspired(edit: impl Fn(&mut Value), expected: &[&str]) {
    let mut bundle = reference();
    edit(&mut bundle);
    reseal(&mut bundle, &Keys::real());
    assert_eq!(problems(&bundle), expected);
}

/// The same on a bundle with every member of ours.
#[track_caller]
fn conspired_on_ours(edit: impl Fn(&mut Value), expected: &[&str]) {
    let mut bundle = ours();
    edit(&mut bundle);
    reseal(&mut bundle, &Keys::real());
    assert_eq!(problems(&bundle), expected);
}

fn remove(bundle: &mut Value, pointer: &str) {
    let (parent, name) = pointer.rsplit_once('/').unwrap();
    bundle.pointer_mut(parent).unwrap().as_object_mut().unwrap().remove(name).unwrap();
}

fn index_of(bundle: &Value, event_type: &str) -> usize {
    let is_it = |event: &Value| event["event"]["type"] == event_type;
    bundle["events"].as_array().unwrap().iter().position(is_it).unwrap()
}

fn event_mut<'a>(bundle: &'a mut Value, event_type: &str) -> &'a mut Value {
    let index = index_of(bundle, event_type);
    &mut bundle["events"][index]
}

#[test]
fn honest_bundles_verify_when_their_keys_are_trusted() {
    assert_eq!(problems(&reference()), [""; 0]);
    assert_eq!(problems(&ours()), [""; 0]);
    let verified = verify(Bundle::from_value(ours()).unwrap(), trusted()).unwrap();
    assert!(verified.is_extended());
    assert_eq!(verified.receipt().body().cost_usd, Some(0.25));
    assert_eq!(verified.receipt().body().lamport, Some(7));
    assert_eq!(verified.chain().len(), 24);
}

#[test]
fn bundles_recorded_from_the_reference_verify() {
    let mut seen = 0;
    for exchange in load("http-transcript.json").as_array().unwrap() {
        let bundle = &exchange["response"]["body"]["json"];
        if bundle.get("contract").is_none() || bundle.get("keys").is_none() {
            continue;
        }
        let key = |name: &str| {
            warrant_protocol::PublicKey::from_pem(text(&bundle["keys"][name])).unwrap()
        };
        let trusted = TrustedKeys::none()
            .and(KeyRole::Plane, key("planePublicKeyPem"))
            .and(KeyRole::Runner, key("runnerPublicKeyPem"));
        let verified = verify(Bundle::from_value(bundle.clone()).unwrap(), &trusted).unwrap();
        assert!(!verified.is_extended());
        seen += 1;
    }
    assert_eq!(seen, 3);
}

#[test]
fn keys_inside_the_bundle_are_never_trusted() {
    let verify = |trusted: TrustedKeys| {
        let bundle = Bundle::from_value(reference()).unwrap();
        let problems = verify(bundle, &trusted).err().unwrap_or_default();
        problems.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let plane = "plane key ed25519:06b353723a3319cd is not trusted";
    let runner = "runner key ed25519:6899f38370a24a04 is not trusted";
    assert_eq!(verify(TrustedKeys::none()), [plane, runner]);
    let only_plane = TrustedKeys::none().and(KeyRole::Plane, plane_public());
    assert_eq!(verify(only_plane), [runner]);
    let wrong_roles = TrustedKeys::none()
        .and(KeyRole::Runner, plane_public())
        .and(KeyRole::Plane, runner_key().public().clone());
    assert_eq!(verify(wrong_roles), [plane, runner]);
}

#[test]
fn a_bundle_wholly_signed_again_with_other_keys_fails() {
    let forgers = Keys { plane: other_key(), runner: other_key() };
    for mut bundle in [reference(), ours()] {
        let key_id = json!(other_key().public().id());
        bundle["contract"]["issuer"]["keyId"] = key_id.clone();
        bundle["receipt"]["runner"]["keyId"] = key_id.clone();
        event_mut(&mut bundle, "run.claimed")["event"]["runnerKeyId"] = key_id;
        reseal(&mut bundle, &forgers);
        let problems = problems(&bundle);
        assert_eq!(
            problems,
            [
                "plane key ed25519:750559143886e8f1 is not trusted",
                "runner key ed25519:750559143886e8f1 is not trusted",
            ]
        );
    }
}

#[test]
fn the_reference_problems_come_in_its_order_and_words() {
    edited(
        |b| b["contract"]["task"]["prompt"] = json!("rm -rf /"),
        &[
            "contract plane signature invalid",
            "receipt.contractHash does not match the contract",
            "event chain broken at seq 0: prev hash mismatch",
        ],
    );
    edited(
        |b| b["receipt"]["runId"] = json!("run_other"),
        &[
            "receipt.runId does not match the contract",
            "receipt runner signature invalid",
            "receipt plane countersignature invalid",
        ],
    );
    edited(
        |b| b["receipt"]["contractHash"] = json!(Digest::DELETED),
        &[
            "receipt.contractHash does not match the contract",
            "receipt runner signature invalid",
            "receipt plane countersignature invalid",
        ],
    );
    edited(
        |b| b["receipt"]["runner"]["pool"] = json!("elsewhere"),
        &[
            "receipt runner pool does not match the contract",
            "receipt runner signature invalid",
            "receipt plane countersignature invalid",
        ],
    );
    edited(
        |b| b["keys"]["runnerPublicKeyPem"] = json!(other_key().public().pem()),
        &[
            "receipt runner key id does not match the enrolled runner key",
            "receipt runner signature invalid",
            "runner key ed25519:750559143886e8f1 is not trusted",
        ],
    );
    edited(
        |b| b["events"][2]["event"]["reason"] = json!("policy allows this run"),
        &["event chain broken at seq 2: event hash mismatch"],
    );
    edited(|b| b["events"][3] = Value::Null, &["event chain broken at seq 3: missing entry"]);
    edited(
        |b| drop(b["events"].as_array_mut().unwrap().remove(4)),
        &[
            "event chain broken at seq 4: sequence gap",
            "receipt.eventCount does not match the event chain",
        ],
    );
    edited(
        |b| drop(b["events"].as_array_mut().unwrap().pop()),
        &[
            "receipt.eventsHead does not match the last event hash",
            "receipt.eventCount does not match the event chain",
            "terminal event does not match receipt status",
        ],
    );
    edited(
        |b| b["events"] = json!([]),
        &[
            "event chain is empty",
            "secretsReleased does not match secret.released events",
            "workspaceOut.diffHash has no matching artifact.created event",
            "receipt names a runner, and no run.claimed event is on the chain",
            "contract says human:security-lead approved, and the chain does not",
        ],
    );
    edited(
        |b| b["receipt"]["signatures"] = json!([]),
        &["receipt runner signature invalid", "receipt plane countersignature invalid"],
    );
    edited(
        |b| drop(b["receipt"]["signatures"].as_array_mut().unwrap().pop()),
        &["receipt plane countersignature invalid"],
    );
    edited(
        |b| b["contract"]["signatures"][0]["signer"] = json!("runner"),
        &["contract plane signature invalid"],
    );
    edited(
        |b| b["keys"]["planePublicKeyPem"] = json!(other_key().public().pem()),
        &[
            "contract plane signature invalid",
            "receipt plane countersignature invalid",
            "plane key ed25519:750559143886e8f1 is not trusted",
            "contract issuer is not the plane key that signed it",
        ],
    );
}

#[test]
fn a_conspiracy_on_the_reference_members_is_told() {
    conspired(|_| {}, &[]);
    conspired(
        |b| b["receipt"]["status"] = json!("failed"),
        &["terminal event does not match receipt status"],
    );
    conspired(
        |b| b["receipt"]["workspaceIn"]["baseRef"] = json!("other"),
        &["receipt.workspaceIn.baseRef does not match the contract"],
    );
    conspired(
        |b| b["receipt"]["workspaceIn"]["manifestHash"] = json!(Digest::DELETED),
        &["receipt.workspaceIn.manifestHash does not match the contract"],
    );
    conspired(
        |b| b["receipt"]["secretsReleased"] = json!([]),
        &["secretsReleased does not match secret.released events"],
    );
    conspired(
        |b| b["receipt"]["workspaceOut"]["diffHash"] = json!(Digest::DELETED),
        &["workspaceOut.diffHash has no matching artifact.created event"],
    );
    conspired(
        |b| b["receipt"]["networkAccessed"] = json!([]),
        &["receipt.networkAccessed does not follow from the event chain"],
    );
    conspired(
        |b| b["receipt"]["boundaryDisclosures"] = json!([]),
        &["receipt.boundaryDisclosures does not follow from the event chain"],
    );
    conspired(
        |b| b["receipt"]["workspaceOut"]["artifactHashes"] = json!([]),
        &["receipt.workspaceOut.artifactHashes does not follow from the event chain"],
    );
    conspired(
        |b| b["receipt"]["workspaceOut"]["diffHash"] = json!(""),
        &["receipt.workspaceOut.diffHash does not follow from the event chain"],
    );
    conspired(
        |b| b["receipt"]["runner"]["isolation"] = json!("namespace"),
        &[
            "receipt.runner.isolation does not follow from the event chain",
            "receipt.runner.isolation is not the tier of the contract",
        ],
    );
    conspired(
        |b| b["receipt"]["runner"]["attestationTier"] = json!("cpu-tee"),
        &["receipt.runner.attestationTier does not follow from the event chain"],
    );
    conspired(
        |b| b["receipt"]["startedAt"] = json!(at(1)),
        &["receipt.startedAt does not follow from the event chain"],
    );
    conspired(
        |b| b["receipt"]["endedAt"] = json!(at(1)),
        &["receipt.endedAt does not follow from the event chain"],
    );
    conspired(
        |b| b["receipt"]["modelsUsed"] = json!([{"provider": "x", "model": "y"}]),
        &["receipt.modelsUsed does not follow from the event chain"],
    );
    conspired(
        |b| b["receipt"]["costUsd"] = json!(1),
        &["receipt.costUsd does not follow from the event chain"],
    );
    conspired(
        |b| b["receipt"]["outcome"] = json!({"kind": "exited", "code": 0}),
        &[
            "receipt.outcome does not follow from the event chain",
            "status and outcome contradict each other",
        ],
    );
    conspired(
        |b| b["receipt"]["runner"]["runnerId"] = json!("rnr_other"),
        &["receipt.runner.runnerId does not match the run.claimed event"],
    );
}

#[test]
fn what_the_chain_does_not_carry_cannot_be_claimed() {
    conspired(
        |b| event_mut(b, "run.claimed")["event"] = json!({"type": "nothing"}),
        &["receipt names a runner, and no run.claimed event is on the chain"],
    );
    conspired(
        |b| event_mut(b, "consent.granted")["event"] = json!({"type": "nothing"}),
        &[
            "the decision asked for approval, and nobody is on record as approving",
            "contract says human:security-lead approved, and the chain does not",
        ],
    );
    conspired(
        |b| event_mut(b, "consent.granted")["event"]["actor"]["id"] = json!("bob"),
        &["contract says human:security-lead approved, and the chain does not"],
    );
    conspired(
        |b| event_mut(b, "policy.evaluated")["event"]["decision"] = json!("deny"),
        &["the decision was deny, and a contract exists"],
    );
    conspired(
        |b| {
            let (granted, model) = (index_of(b, "consent.granted"), index_of(b, "model.called"));
            b["events"][model]["event"] = b["events"][granted]["event"].clone();
            b["events"][granted]["event"] = json!({"type": "nothing"});
        },
        &[
            "event 13 (consent.granted) stands after the run was claimed",
            "the decision asked for approval, and nobody is on record as approving",
        ],
    );
    conspired(
        |b| b["contract"]["expiresAt"] = json!("2026-06-18T19:39:09.250Z"),
        &["contract was expired when it was claimed"],
    );
    conspired(
        |b| event_mut(b, "command.executed")["event"]["argvHash"] = json!(Digest::DELETED),
        &["command.executed is not the command of the contract"],
    );
    conspired(
        |b| {
            event_mut(b, "workspace.materialized")["event"]["manifestHash"] = json!(Digest::DELETED)
        },
        &["workspace.materialized is not the workspace of the contract"],
    );
    conspired(
        |b| b["contract"]["secrets"] = json!([]),
        &["secret API_TOKEN was released, and the contract does not name it"],
    );
    conspired(
        |b| b["contract"]["issuer"]["role"] = json!("org"),
        &["contract issuer is not the plane key that signed it"],
    );
}

#[test]
fn wrong_versions_and_unknown_critical_members_are_told() {
    edited(
        |b| b["version"] = json!("warrant.bundle.v2"),
        &["bundle version is not warrant.bundle.v1"],
    );
    edited(
        |b| b["events"][5]["version"] = json!("warrant.event.v0"),
        &["event 5 version is not warrant.event.v1"],
    );
    edited(|b| remove(b, "/events/7/version"), &["event 7 version is not warrant.event.v1"]);
    conspired(
        |b| b["contract"]["version"] = json!("warrant.contract.v2"),
        &["contract version is not warrant.contract.v1"],
    );
    conspired(|b| remove(b, "/receipt/version"), &["receipt version is not warrant.receipt.v1"]);
    conspired(
        |b| b["contract"]["critical"] = json!(["secrets", "moonPhase"]),
        &["contract demands that its member \"moonPhase\" is understood, and it is not known here"],
    );
    conspired(
        |b| b["receipt"]["critical"] = json!(["tide"]),
        &["receipt demands that its member \"tide\" is understood, and it is not known here"],
    );
    conspired(|b| b["receipt"]["somethingNew"] = json!(1), &[]);
}

#[test]
fn a_conspiracy_on_our_members_is_told() {
    conspired_on_ours(|_| {}, &[]);
    let folds = |member: &str| format!("receipt.{member} does not follow from the event chain");
    for (pointer, value, member) in [
        ("/receipt/decision/rules", json!([]), "decision.rules"),
        ("/receipt/usage/wallUs", json!(1), "usage.wallUs"),
        ("/receipt/stdout/digest", json!(Digest::DELETED), "stdout.digest"),
        ("/receipt/stderr/truncated", json!(true), "stderr.truncated"),
        ("/receipt/posture/providerVersion", json!("better"), "posture.providerVersion"),
        ("/receipt/limits/enforced", json!({"wallMs": 1}), "limits.enforced"),
        ("/receipt/evidenceAccepted/network", json!("reported"), "evidenceAccepted.network"),
        ("/receipt/gaps", json!([]), "gaps"),
        ("/receipt/grants", json!([]), "grants"),
        ("/receipt/lamport", json!(8), "lamport"),
        ("/receipt/costUsd", json!(0), "costUsd"),
        ("/receipt/modelsUsed", json!([]), "modelsUsed"),
        ("/receipt/preimage/imageDigest", json!("sha256:0"), "preimage.imageDigest"),
    ] {
        let edit = |bundle: &mut Value| *bundle.pointer_mut(pointer).unwrap() = value.clone();
        conspired_on_ours(edit, &[folds(member).as_str()]);
    }
    for member in ["outcome", "posture", "usage", "preimage", "decision", "limits", "stdout"] {
        let mut bundle = ours();
        remove(&mut bundle, &format!("/receipt/{member}"));
        reseal(&mut bundle, &Keys::real());
        assert!(problems(&bundle).contains(&folds(member)), "{member}");
    }
}

#[test]
fn a_preimage_that_does_not_recompute_is_told() {
    for (field, pointer) in [
        ("sandboxSpecHash", "sandboxSpec"),
        ("mountsHash", "mounts"),
        ("egressPolicyHash", "egressPolicy"),
        ("resourceLimitsHash", "resourceLimits"),
    ] {
        let expected = format!("preimage.{field} does not recompute from its inputs");
        let edit = |bundle: &mut Value| {
            let lie = json!({"nothing": "to see"});
            bundle["receipt"]["preimage"]["inputs"][pointer] = lie.clone();
            event_mut(bundle, "preimage.bound")["event"]["preimage"]["inputs"][pointer] = lie;
        };
        conspired_on_ours(edit, &[&expected]);
    }
    let hash = preimage().hash().unwrap();
    let mut other = preimage();
    other.image_digest = "sha256:1".into();
    assert_ne!(other.hash().unwrap(), hash, "all six fields are bound");
}

#[test]
fn a_program_that_ran_below_its_posture_is_told() {
    let absent = json!("absent");
    conspired_on_ours(
        |b| {
            b["receipt"]["posture"]["components"]["network"]["enforcement"] = absent.clone();
            event_mut(b, "preflight.checked")["event"]["posture"]["components"]["network"]["enforcement"] =
                absent.clone();
        },
        &["a program ran, and network was not enforced as the contract demands"],
    );
    conspired_on_ours(
        |b| b["contract"]["isolation"] = json!("hermetic"),
        &["receipt.runner.isolation is not the tier of the contract"],
    );
    conspired_on_ours(
        |b| {
            let code = json!({"kind": "exited", "code": 3});
            b["receipt"]["outcome"] = code.clone();
            b["receipt"]["exitCode"] = json!(3);
            let event = &mut event_mut(b, "outcome.recorded")["event"];
            event["outcome"] = code;
            event["exitCode"] = json!(3);
        },
        &["status and outcome contradict each other"],
    );
}

/// Has both keys conspire on an edit; one of the problems must be `expected`.
#[track_caller]
fn conspired_among(edit: impl Fn(&mut Value), expected: &str) {
    let mut bundle = ours();
    edit(&mut bundle);
    reseal(&mut bundle, &Keys::real());
    let found = problems(&bundle);
    assert!(found.iter().any(|problem| problem.contains(expected)), "{expected}: {found:?}");
}

#[test]
fn what_cannot_have_happened_is_told() {
    let again = |b: &mut Value, event_type: &str| {
        let index = index_of(b, event_type);
        let copy = b["events"][index].clone();
        b["events"].as_array_mut().unwrap().insert(index + 1, copy);
    };
    conspired_on_ours(
        |b| {
            let nobody = json!({"kind": "human", "id": "mallory"});
            event_mut(b, "grant.added")["event"]["by"] = nobody.clone();
            b["receipt"]["grants"][0]["by"] = nobody;
        },
        &["grant.added names human:mallory, who is not on the chain as approving"],
    );
    conspired_among(
        |b| {
            b["contract"]["network"]["allowHosts"] = json!([]);
            event_mut(b, "grant.added")["event"]["value"] = json!("other.example");
            b["receipt"]["grants"][0]["value"] = json!("other.example");
        },
        "network.connected allowed example.com, and the contract does not list it",
    );
    conspired_among(|b| again(b, "run.completed"), "(run.completed) stands after the event");
    conspired_among(
        |b| again(b, "command.executed"),
        "(command.executed) is on the chain a second",
    );
    conspired_among(
        |b| {
            let index = index_of(b, "run.started");
            b["events"].as_array_mut().unwrap().remove(index);
        },
        "(command.executed) needs a run.started event before it",
    );
    conspired_among(
        |b| event_mut(b, "command.executed")["event"]["exitCode"] = json!(9),
        "command.executed.exitCode contradicts how the run ended",
    );
    conspired_among(
        |b| {
            b["contract"]["isolation"] = json!("process");
            event_mut(b, "preflight.checked")["event"]["posture"]["isolation"] = json!("process");
        },
        "posture claims network is enforced, which the process tier cannot do",
    );
    conspired_among(
        |b| {
            let index = index_of(b, "command.executed");
            b["events"].as_array_mut().unwrap().remove(index);
        },
        "no command.executed event is on the chain",
    );
    conspired_among(
        |b| {
            let denied = json!({"kind": "denied"});
            event_mut(b, "outcome.recorded")["event"]["outcome"] = denied.clone();
            b["receipt"]["outcome"] = denied;
        },
        "outcome says that nothing ran, and a command.executed event is on the chain",
    );
}

#[test]
fn a_forged_or_replayed_approval_is_told() {
    let by = |detail: &str| format!("approval by human:security-lead: {detail}");
    let edit = |edit: &dyn Fn(&mut Value), expected: &str| {
        let edit = |bundle: &mut Value| edit(&mut event_mut(bundle, "approval.granted")["event"]);
        conspired_on_ours(edit, &[&by(expected)]);
    };
    edit(&|e| e["level"] = json!(3), "the statement is at another level");
    edit(&|e| e["statementHash"] = json!(Digest::DELETED), "statementHash is of another statement");
    let sig =
        "pJB81iXvLWC6aDbZaYX+RPwRWVbx3K568LzP1VU2D6VBOMpp8as1a7a1lyMDCPe/rXH1+Nz/MaioHZ7CkoLXDw==";
    edit(
        &|e| e["statement"]["signatures"][0]["sig"] = json!(sig),
        "signature invalid or key not trusted",
    );
    let mut replayed = our_events();
    replayed.insert(4, replayed[3].clone());
    let bundle = seal(&our_contract(), &replayed, &Keys::real());
    assert_eq!(problems(&bundle), [by("the statement was used twice")]);
    let mut own = our_contract();
    own.requested_by = crate::forge::approver();
    let bundle = seal(&own, &our_events(), &Keys::real());
    assert_eq!(problems(&bundle), [by("nobody approves their own request")]);
    let mut other = our_contract();
    other.request_hash = Some(Digest::of(b"another request"));
    let bundle = seal(&other, &our_events(), &Keys::real());
    assert_eq!(problems(&bundle), [by("the statement is for another request")]);
}

#[test]
fn bundles_that_cannot_be_read_have_one_problem() {
    let check = |bytes: &[u8], expected: &str| {
        let problems = verify_slice(bytes, trusted()).unwrap_err();
        assert_eq!(problems.len(), 1);
        assert!(problems[0].to_string().starts_with(expected), "{}", problems[0]);
    };
    check(b"", "bundle is malformed: ");
    check(b"[]", "bundle is malformed: not an object");
    check(b"{}", "bundle is malformed: missing field `contract`");
    let text = canonicalize(&reference());
    let twice = text.replacen("\"receipt\":", "\"receipt\":{},\"receipt\":", 1);
    check(twice.as_bytes(), "bundle is malformed: duplicate member \"receipt\"");
    let mut bundle = reference();
    remove(&mut bundle, "/receipt/runner");
    check(bundle.to_string().as_bytes(), "bundle is malformed: receipt: missing field `runner`");
    bundle = reference();
    bundle["keys"]["planePublicKeyPem"] = json!("no key");
    check(bundle.to_string().as_bytes(), "bundle is malformed: keys.planePublicKeyPem: not a PEM");
}

#[test]
fn a_receipt_the_plane_sealed_verifies_with_the_plane_key_alone() {
    let plane = plane_key();
    let contract = Contract::seal(&our_contract(), Signer::Plane, &plane).unwrap();
    let mut chain = Chain::new(contract.hash());
    let mut events: Vec<Event> = our_events().into_iter().take(8).collect();
    events.push(Event::RunLost { epoch: 1, last_heard_at: at(8) });
    events.push(Event::OutcomeRecorded {
        outcome: Outcome::Lost,
        exit_code: None,
        usage: Usage::default(),
    });
    events.push(Event::RunFailed {
        failure: warrant_protocol::event::FailureClass::SessionFailed,
        message: "the runner is gone".into(),
    });
    for (second, event) in (0..).zip(&events) {
        chain.append(at(second), event).unwrap();
    }
    let sealer = Sealer::Plane { key_id: plane.public().id().clone() };
    let receipt = fold(&contract, &chain, &sealer).unwrap();
    let receipt = Receipt::seal(&receipt, Signer::Runner, &plane).unwrap();
    let receipt = receipt.countersign(Signer::Plane, &plane).unwrap();
    let bundle = Bundle::assemble(&contract, &receipt, &chain, (plane.public(), plane.public()));
    let trusted = TrustedKeys::none()
        .and(KeyRole::Plane, plane_public())
        .and(KeyRole::Approver, other_key().public().clone());
    let verified = verify(bundle.clone(), &trusted).unwrap();
    assert_eq!(verified.receipt().body().outcome, Some(Outcome::Lost));

    let mut posing = Value::Object(bundle.raw().clone());
    remove(&mut posing, "/receipt/sealedBy");
    reseal(&mut posing, &Keys { plane: plane_key(), runner: plane_key() });
    assert!(verify(Bundle::from_value(posing).unwrap(), &trusted).is_err());
}

#[test]
fn the_plane_checks_a_receipt_before_it_countersigns() {
    let bundle = ours();
    let contract = Contract::from_value(bundle["contract"].clone()).unwrap();
    let receipt = Receipt::from_value(bundle["receipt"].clone()).unwrap();
    let events: Vec<ChainedEvent> = strict::view(&bundle["events"]).unwrap();
    let chain = Chain::from_events(contract.hash(), events).unwrap();
    let runner = runner_key().public().clone();
    assert_eq!(verify_runner_receipt(&contract, &receipt, &chain, &runner), Ok(()));
    let other = other_key().public().clone();
    let problems = verify_runner_receipt(&contract, &receipt, &chain, &other).unwrap_err();
    let told: Vec<_> = problems.iter().map(ToString::to_string).collect();
    assert_eq!(
        told,
        [
            "receipt runner key id does not match the enrolled runner key",
            "receipt runner signature invalid",
        ]
    );
}
