//! Switching the provider is one flag: the same script runs everywhere, and the receipts differ
//! exactly in what is bound to the provider.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use warrant_protocol::Isolation;

use super::door::Door;
use super::site::{ACCEPT, PROVIDERS, Ran, Site};

/// Says something on both streams and fails: every tier can.
const SCRIPT: &str = "echo out; echo err >&2; exit 3";

/// What a receipt binds to the provider: who ran it, what held with which evidence, which limits
/// held, and the six values of the preimage with their inputs.
const BOUND: [&str; 14] = [
    // The mock starts nothing, so nothing of it is captured.
    "/capture",
    "/evidenceAccepted",
    "/limits",
    "/posture/components",
    "/posture/isolation",
    "/posture/providerVersion",
    "/preimage/egressPolicyHash",
    "/preimage/imageDigest",
    "/preimage/inputs",
    "/preimage/mountsHash",
    "/preimage/providerVersion",
    "/preimage/resourceLimitsHash",
    "/preimage/sandboxSpecHash",
    "/runner/isolation",
];

/// What no two runs share, wherever they run.
const OF_THE_RUN: [&str; 8] = [
    "/contractHash",
    "/endedAt",
    "/eventsHead",
    "/lamport",
    "/runId",
    "/signatures",
    "/startedAt",
    "/usage",
];

/// Returns every leaf of a receipt by its path; lists are one leaf.
fn leaves(receipt: &Value) -> BTreeMap<String, Value> {
    fn walk(at: &str, value: &Value, found: &mut BTreeMap<String, Value>) {
        match value {
            Value::Object(members) => {
                members
                    .iter()
                    .for_each(|(name, value)| walk(&format!("{at}/{name}"), value, found));
            }
            other => drop(found.insert(at.to_owned(), other.clone())),
        }
    }
    let mut found = BTreeMap::new();
    walk("", receipt, &mut found);
    found
}

/// Returns the paths at which two receipts differ, cut to the members that are bound as a whole.
fn differences(a: &Value, b: &Value) -> BTreeSet<String> {
    let (a, b) = (leaves(a), leaves(b));
    let paths: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
    let differing = paths.into_iter().filter(|path| a.get(*path) != b.get(*path));
    let whole = [
        "/capture",
        "/preimage/inputs",
        "/posture/components",
        "/evidenceAccepted",
        "/limits",
        "/usage",
        "/outcome",
    ];
    let cut = |path: &String| {
        let found = whole.iter().find(|whole| path.starts_with(**whole));
        found.map_or_else(|| path.clone(), |whole| (*whole).to_owned())
    };
    differing.map(cut).collect()
}

/// Runs the script with one flag set and returns its receipt.
fn run(site: &Site, provider: Isolation) -> Value {
    let start = ["sandbox", "exec", "--provider", provider.as_str()];
    let accepted: &[&str] = if PROVIDERS.contains(&provider) { &ACCEPT } else { &[] };
    let arguments = [&start[..], accepted, &["--", "sh", "-c", SCRIPT]].concat();
    let ran = Ran::from(site.warrant(&arguments).output().unwrap());
    assert_eq!(ran.code, Some(3), "{provider}: {}", ran.stderr);
    assert_eq!(ran.stdout, "out\n", "{provider}");
    assert!(ran.stderr.starts_with("err\n"), "{provider}: {}", ran.stderr);
    site.receipt()
}

#[test]
fn receipts_of_one_script_differ_exactly_in_what_is_bound_to_the_provider() {
    let door = Door::open();
    let site = PROVIDERS.iter().fold(
        Site::new(Isolation::E2b, &door.address, &door.token),
        |site, provider| {
            let variables = super::site::variables(*provider, &door.address, &door.token);
            variables.iter().fold(site, |site, (name, value)| site.with(name, value))
        },
    );
    let first = run(&site, Isolation::Namespace);
    let of_the_run: BTreeSet<String> = OF_THE_RUN.map(str::to_owned).into();
    let mut bound = BTreeSet::new();
    for provider in [
        Isolation::Hermetic,
        Isolation::Mock,
        Isolation::E2b,
        Isolation::Daytona,
        Isolation::Opensandbox,
    ] {
        let all = differences(&first, &run(&site, provider));
        let found: BTreeSet<String> = all.difference(&of_the_run).cloned().collect();
        let strange: Vec<_> = found.iter().filter(|path| !BOUND.contains(&path.as_str())).collect();
        assert!(strange.is_empty(), "{provider}: {strange:?} differ and are not bound to it");
        for path in ["/posture/isolation", "/preimage/sandboxSpecHash", "/runner/isolation"] {
            assert!(found.contains(path), "{provider}: {path} is the same");
        }
        bound.extend(found);
    }
    // Nothing is named as bound that never differs.
    assert_eq!(bound, BOUND.map(str::to_owned).into());
}
