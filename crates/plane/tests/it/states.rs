//! The states of runs: the store changes them exactly as the one table says, and nothing else does.

use std::fs;
use std::path::{Path, PathBuf};

use warrant_plane::store::{
    ApprovalStep, ApprovedContract, Completion, Durability, Entry, Sealing, Store, StoreError,
};
use warrant_protocol::{Digest, RunId, RunState, Transition};

use crate::support::{at, event, lease, new_run, owner, run_id, store};

/// What the store offers, with the changes it stands for.
fn operations() -> Vec<(&'static str, Vec<Transition>, Operation)> {
    use Transition as T;
    let mut all: Vec<(&'static str, Vec<Transition>, Operation)> = vec![
        ("approve", vec![T::Approve], |store, run| {
            let issued = ApprovedContract { contract: "{}".into(), events: vec![event(run, 0)] };
            let issued = Some(issued);
            let step = ApprovalStep { given: None, counted: Vec::new(), issued, at: at(1) };
            store.approve(run, step)
        }),
        ("claim", vec![T::Claim], |store, run| store.claim(run, EPOCH, (owner(), Vec::new()))),
        ("claim_started", vec![T::Claim, T::Start], |store, run| {
            store.claim_started(&lease(run, EPOCH + 1), owner(), |_| Ok(Vec::new()))
        }),
        ("start", vec![T::Start], |store, run| {
            store.start(&lease(run, EPOCH), at(1), |_| Ok(Vec::new()))
        }),
        ("requeue", vec![T::Requeue], |store, run| {
            store.requeue(&lease(run, EPOCH), at(1), Vec::new())
        }),
        ("hand_back", vec![T::Requeue], |store, run| store.hand_back(run, EPOCH, at(1))),
        ("request_stop", vec![T::Stop], |store, run| store.request_stop(run, "human:a", at(1))),
        ("seal denied", vec![T::Deny], |store, run| seal(store, run, RunState::Denied)),
        ("seal failed", vec![T::Fail], |store, run| seal(store, run, RunState::Failed)),
        ("seal cancelled", vec![T::Cancel], |store, run| seal(store, run, RunState::Cancelled)),
        ("seal lost", vec![T::Lose], |store, run| seal(store, run, RunState::Lost)),
        ("seal expired", vec![T::Expire], |store, run| seal(store, run, RunState::Expired)),
        ("complete", vec![T::Complete], |store, run| complete(store, run, RunState::Completed)),
    ];
    all.push(("seal completed", vec![T::Complete], |store, run| {
        seal(store, run, RunState::Completed)
    }));
    all
}

type Operation = fn(&Store, &RunId) -> Result<(), StoreError>;

/// The number of the lease that every run here has.
const EPOCH: u64 = 3;

fn seal(store: &Store, run: &RunId, state: RunState) -> Result<(), StoreError> {
    let sealing = Sealing {
        state,
        contract: None,
        events: Vec::new(),
        receipt_hash: Digest::of(b"sealed"),
        receipt: "sealed".into(),
        at: at(1),
    };
    store.seal(run, EPOCH, sealing)
}

fn complete(store: &Store, run: &RunId, state: RunState) -> Result<(), StoreError> {
    let completion = Completion {
        state,
        events: Vec::new(),
        receipt_hash: Digest::of(b"receipt"),
        receipt: "receipt".into(),
        blobs: Vec::new(),
        at: at(1),
    };
    store.complete(run, EPOCH, completion)
}

#[test]
fn every_operation_changes_every_state_as_the_table_says() {
    let (dir, store) = store();
    let raw = rusqlite::Connection::open(dir.path().join("plane.db")).unwrap();
    let mut number = 0;
    for state in RunState::ALL {
        for (name, transitions, operation) in operations() {
            number += 1;
            let run = run_id(number);
            let entry = Entry::AwaitingApproval { deadline: at(9_000) };
            store.submit(new_run(&run, entry), Durability::WithNext).unwrap();
            let forced = raw.execute(
                "UPDATE runs SET state = ?, epoch = ? WHERE id = ?",
                rusqlite::params![state.as_str(), EPOCH, run.as_str()],
            );
            assert_eq!(forced.unwrap(), 1);
            let expected = transitions.iter().try_fold(state, |state, next| state.after(*next));
            let done = operation(&store, &run);
            let after = store.run(&run).unwrap().state;
            match expected {
                Ok(target) => {
                    assert!(done.is_ok(), "{name} of {state}: {done:?}");
                    assert_eq!(after, target, "{name} of {state}");
                }
                Err(_) => {
                    let is_conflict = matches!(done, Err(StoreError::Conflict { .. }));
                    assert!(is_conflict, "{name} of {state}: {done:?}");
                    assert_eq!(after, state, "{name} of {state}");
                    assert!(store.receipt(&run).unwrap().is_none(), "{name} of {state}");
                }
            }
        }
    }
}

#[test]
fn a_run_enters_the_store_only_in_a_first_state() {
    let (_dir, store) = store();
    for (number, state) in (1..).zip(RunState::ALL) {
        let sealing = Sealing {
            state,
            contract: Some("{}".into()),
            events: Vec::new(),
            receipt_hash: Digest::of(b"sealed"),
            receipt: "sealed".into(),
            at: at(1),
        };
        let new = new_run(&run_id(number), Entry::Sealed(sealing));
        let is_kept = store.submit(new, Durability::WithNext).is_ok();
        let firsts = Transition::ALL.into_iter().filter_map(RunState::first);
        let is_first = firsts.filter(|first| first.is_terminal()).any(|first| first == state);
        assert_eq!(is_kept, is_first, "{state}");
    }
}

#[test]
fn old_words_for_states_are_still_read() {
    assert_eq!(RunState::parse("submitted"), Some(RunState::Queued));
    assert_eq!(RunState::parse("finishing"), Some(RunState::Running));
    for state in RunState::ALL {
        assert_eq!(RunState::parse(state.as_str()), Some(state));
    }
    assert_eq!(RunState::parse("provisioning"), None);
}

/// Returns what is wrong with the SQL of a source file.
fn stray_states(name: &str, text: &str) -> Vec<String> {
    let is_place_for_states = name.ends_with("store/states.rs");
    // What was once written into databases does not follow the table of today.
    let is_history = name.ends_with("store/schema.rs");
    let quoted = RunState::ALL.map(|state| format!("'{}'", state.as_str()));
    let mut stray = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim_start();
        if line.starts_with("//") || is_history {
            continue;
        }
        let flat = line.to_lowercase().split_whitespace().collect::<Vec<_>>().join(" ");
        let names_state = quoted.iter().any(|state| flat.contains(state.as_str()));
        let sets_state = flat.contains("set state") || flat.contains(", state =");
        if names_state || (sets_state && !is_place_for_states) {
            stray.push(format!("{name}:{number}: {line}"));
        }
    }
    stray
}

fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

#[test]
fn no_sql_changes_a_state_outside_of_the_table() {
    let mut found = Vec::new();
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut found);
    assert!(found.len() > 50, "{}", found.len());
    let stray: Vec<String> = found
        .iter()
        .flat_map(|path| stray_states(path.to_str().unwrap(), &fs::read_to_string(path).unwrap()))
        .collect();
    assert!(stray.is_empty(), "{}", stray.join("\n"));
}

#[test]
fn sql_that_changes_a_state_by_hand_is_seen() {
    for (sql, count) in [
        ("\"UPDATE runs SET state = ? WHERE id = ?\"", 1),
        ("\"UPDATE runs SET state = 'lost'\"", 1),
        ("\"SELECT 1 FROM runs WHERE state IN ('queued', 'leased')\"", 1),
        ("\"UPDATE runs SET owner = NULL, state = ?\"", 1),
        ("// UPDATE runs SET state = 'lost'", 0),
        ("\"UPDATE runs SET owner = NULL\"", 0),
    ] {
        assert_eq!(stray_states("store/lifecycle.rs", sql).len(), count, "{sql}");
    }
}
