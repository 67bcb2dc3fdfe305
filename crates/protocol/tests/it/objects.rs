//! Contract, chain, receipt, policy document and execution against the vectors.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use warrant_protocol::chain::{Break, BrokenChain};
use warrant_protocol::execution::{PrepareContext, PreparedCommand, PreparedExecution};
use warrant_protocol::request::BudgetSpec;
use warrant_protocol::{
    Chain, ChainedEvent, Contract, Digest, Event, ExecutionSpec, PolicyDocument, Receipt, RunState,
    Sealer, SecretName, Signer, Transition, canonicalize, fold, json as strict,
};

use crate::vectors::{contract, load, plane_key, plane_public, runner_key, text};

fn events() -> Vec<ChainedEvent> {
    strict::view(&load("chain.json")["events"]).unwrap()
}

fn chain() -> Chain {
    Chain::from_events(contract().hash(), events()).unwrap()
}

fn without_signatures(object: &Value) -> Value {
    let mut object = object.clone();
    object.as_object_mut().unwrap().remove("signatures");
    object
}

#[test]
fn contract_hash_and_signature_match_the_reference() {
    let vectors = load("contract.json");
    let contract = contract();
    let unsigned = without_signatures(&vectors["contract"]);
    assert_eq!(canonicalize(&unsigned), text(&vectors["unsignedCanonical"]));
    assert_eq!(contract.hash().to_hex(), text(&vectors["contractHash"]));
    assert_eq!(contract.check_signature(Signer::Plane, &plane_public()), Ok(()));
    let again = Contract::seal(contract.body(), Signer::Plane, &plane_key()).unwrap();
    assert_eq!(again, contract, "the view loses nothing the reference writes");
}

#[test]
fn unknown_members_of_a_signed_object_survive_and_stay_covered() {
    let mut unsigned = without_signatures(&load("contract.json")["contract"]);
    unsigned["later"] = json!({"than": ["us"]});
    unsigned["agent"]["later"] = json!(1);
    let signed = Contract::from_value(unsigned).unwrap();
    let signed = signed.countersign(Signer::Plane, &plane_key()).unwrap();
    let again = Contract::from_slice(signed.to_value().to_string().as_bytes()).unwrap();
    assert_eq!(again.raw()["later"]["than"][0], "us");
    assert_eq!(again.check_signature(Signer::Plane, &plane_public()), Ok(()));
    let mut changed = again.to_value();
    changed["agent"]["later"] = json!(2);
    let changed = Contract::from_value(changed).unwrap();
    assert!(changed.check_signature(Signer::Plane, &plane_public()).is_err());
}

#[test]
fn what_two_readers_could_take_for_different_things_is_not_signed() {
    let text = load("contract.json")["contract"].to_string();
    for (from, to) in [
        (r#""maxDurationMin":5"#, r#""maxDurationMin":9007199254740993"#),
        (r#""maxDurationMin":5"#, r#""maxDurationMin":5,"maxDurationMin":6"#),
        (r#""isolation":"hermetic""#, r#""isolation":null"#),
        (r#""alg":"ed25519""#, r#""alg":"none""#),
        (r#"LXDw==""#, r#"LXDw=""#),
        (r#"LXDw==""#, r#"LXDx==""#),
    ] {
        assert!(text.contains(from), "{from}");
        let changed = text.replacen(from, to, 1);
        assert!(Contract::from_slice(changed.as_bytes()).is_err(), "{to}");
    }
}

#[test]
fn chain_links_match_the_reference() {
    let vectors = load("chain.json");
    let genesis: Digest = text(&vectors["genesisPrev"]).parse().unwrap();
    assert_eq!(genesis, contract().hash());
    let mut built = Chain::new(genesis);
    for event in events() {
        let made = built.append(event.at(), event.event()).unwrap();
        assert_eq!(*made, event, "a link built here is the reference's");
    }
    for (input, event) in vectors["hashInputs"].as_array().unwrap().iter().zip(events()) {
        assert_eq!(Digest::of(text(input).as_bytes()), event.hash());
    }
}

/// Where the edited chain of a vector breaks, rebuilt from its name.
#[test]
fn broken_chains_are_told_in_the_reference_words() {
    let broken = |name: &str| {
        let mut events: Vec<Value> = load("chain.json")["events"].as_array().unwrap().clone();
        match name {
            "dropped-first" => drop(events.remove(0)),
            "dropped-middle" => drop(events.remove(3)),
            "reordered" => events.swap(1, 2),
            "edited-event" => events[2]["event"]["reason"] = json!("edited"),
            "edited-ts" => events[2]["ts"] = json!("2026-06-18T19:39:08.501Z"),
            "edited-version-is-NOT-detected" => events[2]["version"] = json!("v0"),
            "extra-field-is-NOT-detected" => events[2]["extra"] = json!(1),
            "truncated-tail-is-NOT-detected-by-chain" => drop(events.pop()),
            _ => panic!("{name}"),
        }
        let events = strict::view(&Value::Array(events)).unwrap();
        Chain::from_events(contract().hash(), events).map(|_| ())
    };
    for case in load("chain.json")["broken"].as_array().unwrap() {
        let (name, expected) = (text(&case["name"]), &case["result"]);
        match broken(name) {
            Ok(()) => assert_eq!(expected["ok"], true, "{name}"),
            Err(BrokenChain { seq, reason }) => {
                assert_eq!(json!(seq), expected["brokenAtSeq"], "{name}");
                assert_eq!(reason.to_string(), text(&expected["reason"]), "{name}");
            }
        }
    }
    let other = Chain::from_events(Digest::DELETED, events());
    assert_eq!(other, Err(BrokenChain { seq: 0, reason: Break::PrevMismatch }));
}

#[test]
fn an_event_type_nobody_knows_is_kept_as_it_came() {
    let body = json!({"type": "moon.landed", "crew": ["a", "b"]});
    let at = "2026-06-18T19:39:08.000Z".parse().unwrap();
    let event = ChainedEvent::next_raw(contract().hash(), 0, at, body.clone()).unwrap();
    assert_eq!(event.event(), &Event::Unknown);
    assert_eq!(event.event_type(), "moon.landed");
    let again: ChainedEvent = strict::view(&event.to_value()).unwrap();
    assert_eq!(again.raw()["event"], body);
    assert_eq!(again.check_follows(contract().hash(), 0), Ok(()));
}

#[test]
fn the_reference_receipt_folds_exactly_from_its_chain() {
    let vectors = load("receipt.json");
    let sealer = Sealer::Runner {
        runner_id: "rnr_00000000-0000-4000-8000-000000000003".parse().unwrap(),
        key_id: runner_key().public().id().clone(),
    };
    let body = fold(&contract(), &chain(), &sealer).unwrap();
    let signed = Receipt::seal(&body, Signer::Runner, &runner_key()).unwrap();
    assert_eq!(signed.hash().to_hex(), text(&vectors["payloadHash"]));
    assert_eq!(signed.to_value(), vectors["runnerSigned"]);
    let countersigned = signed.countersign(Signer::Plane, &plane_key()).unwrap();
    assert_eq!(countersigned.to_value(), vectors["countersigned"]);
    assert_eq!(
        canonicalize(&without_signatures(&vectors["countersigned"])),
        text(&vectors["unsignedCanonical"])
    );
}

#[test]
fn policy_hashes_match_and_misspelled_rules_are_refused() {
    let vectors = load("policy.json");
    let reference = PolicyDocument::from_value(PolicyDocument::reference()).unwrap();
    assert_eq!(*reference.raw(), vectors["defaultPolicy"]);
    assert_eq!(reference.hash().to_hex(), text(&vectors["defaultPolicyHash"]));
    for name in ["p2", "p3"] {
        let document = PolicyDocument::from_value(vectors["policies"][name].clone()).unwrap();
        assert_eq!(document.hash().to_hex(), text(&vectors["hashes"][name]));
        assert_eq!(PolicyDocument::new(document.body()).unwrap(), document);
    }
    for (path, value) in [
        ("/network/defaultDenny", json!(true)),
        ("/budget/maxDurationMin", json!(0)),
        ("/budget/maxSpendUsd", json!(-1)),
        ("/version", json!("warrant.policy.v2")),
        ("/consent", json!([{"when": "agent-kind", "approvers": ["a"]}])),
        ("/consent", json!([{"when": "any-run", "approvers": []}])),
        ("/network/allowHosts", json!(["example.com:443"])),
    ] {
        let mut document = PolicyDocument::reference();
        let (parent, name) = path.rsplit_once('/').unwrap();
        document.pointer_mut(parent).unwrap()[name] = value;
        assert!(PolicyDocument::from_value(document).is_err(), "{path}");
    }
}

fn prepared_json(prepared: &PreparedExecution) -> Value {
    let mut value = match &prepared.command {
        PreparedCommand::Argv { cmd, args } => json!({"kind": "argv", "cmd": cmd, "args": args}),
        PreparedCommand::Shell { shell, script } => {
            json!({"kind": "shell", "shell": shell.as_str(), "script": script})
        }
    };
    value["cwd"] = json!(prepared.cwd);
    value["timeoutMs"] = json!(prepared.timeout_ms);
    value["env"] = json!(prepared.env);
    value["egressProxy"] = json!(prepared.egress_proxy);
    if let Some(bytes) = prepared.log_max_bytes {
        value["logMaxBytes"] = json!(bytes);
    }
    value
}

#[test]
fn executions_are_prepared_and_hashed_like_the_reference() {
    let environment = BTreeMap::from([("VEC_INHERIT".into(), "inherited-value".into())]);
    let context = PrepareContext { environment: &environment, mock_agent: None };
    let secret: SecretName = "API_TOKEN".parse().unwrap();
    for case in load("execution.json")["cases"].as_array().unwrap() {
        let (name, parts) = (text(&case["name"]), &case["contractParts"]);
        let spec = match parts.get("execution") {
            Some(spec) => strict::view(spec).unwrap(),
            None => ExecutionSpec::by_agent(
                text(&parts["agent"]["kind"]),
                None,
                text(&parts["task"]["prompt"]),
            ),
        };
        assert_eq!(strict::to_value(&spec).unwrap(), case["spec"], "{name}");
        let budget: BudgetSpec = strict::view(&parts["budget"]).unwrap();
        let prepared = spec.prepare(&budget, &context).unwrap();
        assert_eq!(prepared_json(&prepared), case["prepared"], "{name}");
        assert_eq!(prepared.hash().to_hex(), text(&case["executionHash"]), "{name}");
        let released = [(secret.clone(), "s3cr3t".to_owned())];
        assert_eq!(json!(prepared.resolve_env(&released)), case["resolvedEnv"], "{name}");
        let without = prepared.resolve_env(&[]);
        assert_eq!(json!(without), case["resolvedEnvWithoutSecret"], "{name}");
    }
}

#[test]
fn an_ended_run_never_changes_its_state_again() {
    use Transition as T;
    for state in RunState::ALL {
        let changes = T::ALL.iter().filter(|change| state.after(**change).is_ok()).count();
        assert_eq!(changes == 0, state.is_terminal(), "{state}");
    }
    assert_eq!(RunState::Leased.after(T::Requeue), Ok(RunState::Queued));
    assert!(RunState::Running.after(T::Requeue).is_err(), "execution at most once");
    assert!(RunState::Queued.after(T::Start).is_err(), "nothing starts without a lease");
    let unapproved = RunState::AwaitingApproval.after(T::Claim);
    assert!(unapproved.is_err(), "nothing is leased without a yes");
}
