//! The store against a model in memory: random operations, the same answers, the same rows.

use std::collections::BTreeMap;

use proptest::prelude::*;
use warrant_plane::store::{Completion, Sealing};
use warrant_protocol::{Digest, RunState, Transition};

use crate::support::{at, event, lease, owner, queued, run_id, store};

#[derive(Debug, Clone, Copy)]
enum Operation {
    Submit(u64),
    Claim(u64, u64),
    HandBack(u64, u64),
    Start(u64, u64),
    Append(u64, u64),
    Complete(u64, u64, u8),
    Seal(u64, u64),
}

#[derive(Debug, Clone, PartialEq)]
struct Modeled {
    state: RunState,
    epoch: u64,
    events: u64,
    receipt: Option<String>,
}

fn operation() -> impl Strategy<Value = Operation> {
    let run = 0_u64..3;
    let epoch = 0_u64..3;
    prop_oneof![
        run.clone().prop_map(Operation::Submit),
        (run.clone(), epoch.clone()).prop_map(|(run, epoch)| Operation::Claim(run, epoch)),
        (run.clone(), epoch.clone()).prop_map(|(run, epoch)| Operation::HandBack(run, epoch)),
        (run.clone(), epoch.clone()).prop_map(|(run, epoch)| Operation::Start(run, epoch)),
        (run.clone(), epoch.clone()).prop_map(|(run, epoch)| Operation::Append(run, epoch)),
        (run.clone(), epoch.clone(), 0_u8..2)
            .prop_map(|(run, epoch, receipt)| Operation::Complete(run, epoch, receipt)),
        (run, epoch).prop_map(|(run, epoch)| Operation::Seal(run, epoch)),
    ]
}

/// Applies an operation to the model; returns whether it is allowed.
fn model(runs: &mut BTreeMap<u64, Modeled>, operation: Operation) -> bool {
    let number = match operation {
        Operation::Submit(run) => {
            let new = Modeled { state: RunState::Queued, epoch: 0, events: 1, receipt: None };
            return runs.insert(run, new).is_none();
        }
        Operation::Claim(run, _)
        | Operation::HandBack(run, _)
        | Operation::Start(run, _)
        | Operation::Append(run, _)
        | Operation::Complete(run, _, _)
        | Operation::Seal(run, _) => run,
    };
    let Some(run) = runs.get_mut(&number) else { return false };
    let is_held = |epoch: u64, run: &Modeled| run.epoch == epoch && run.state.is_held();
    let (transition, epoch) = match operation {
        Operation::Submit(_) => return false,
        Operation::Append(_, epoch) => {
            let is_allowed = is_held(epoch, run);
            run.events += u64::from(is_allowed);
            return is_allowed;
        }
        Operation::Complete(_, _, receipt) if run.receipt == Some(receipt.to_string()) => {
            return true;
        }
        Operation::Complete(_, epoch, _) => (Transition::Complete, epoch),
        Operation::Claim(_, epoch) => (Transition::Claim, epoch),
        Operation::HandBack(_, epoch) => (Transition::Requeue, epoch),
        Operation::Start(_, epoch) => (Transition::Start, epoch),
        Operation::Seal(_, epoch) => (Transition::Lose, epoch),
    };
    let Ok(after) = run.state.after(transition) else { return false };
    if run.epoch != epoch {
        return false;
    }
    run.state = after;
    match operation {
        Operation::Claim(..) => run.epoch += 1,
        Operation::Complete(_, _, receipt) => run.receipt = Some(receipt.to_string()),
        Operation::Seal(..) => run.receipt = Some("lost".into()),
        _ => {}
    }
    true
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn the_store_does_what_the_model_does(operations in prop::collection::vec(operation(), 1..40)) {
        let (_dir, store) = store();
        let mut runs = BTreeMap::new();
        for operation in operations {
            if let Operation::Submit(run) = operation {
                // The plane draws fresh names; the store is not asked to keep one twice.
                if !runs.contains_key(&run) {
                    model(&mut runs, operation);
                    queued(&store, &run_id(run));
                }
                continue;
            }
            let done = match operation {
                Operation::Submit(_) => true,
                Operation::Claim(run, epoch) => {
                    store.claim(&run_id(run), epoch, (owner(), Vec::new())).is_ok()
                }
                Operation::HandBack(run, epoch) => {
                    store.hand_back(&run_id(run), epoch, at(1)).is_ok()
                }
                Operation::Start(run, epoch) => {
                    store.start(&lease(&run_id(run), epoch), at(1), |_| Ok(Vec::new())).is_ok()
                }
                Operation::Append(run, epoch) => {
                    let next = store.run(&run_id(run)).map_or(0, |row| row.event_count);
                    store.append(&run_id(run), epoch, vec![event(&run_id(run), next)]).is_ok()
                }
                Operation::Complete(run, epoch, receipt) => {
                    let receipt = receipt.to_string();
                    let completion = Completion {
                        state: RunState::Completed,
                        events: Vec::new(),
                        receipt_hash: Digest::of(receipt.as_bytes()),
                        receipt,
                        blobs: Vec::new(),
                        at: at(1),
                    };
                    store.complete(&run_id(run), epoch, completion).is_ok()
                }
                Operation::Seal(run, epoch) => {
                    let sealing = Sealing {
                        state: RunState::Lost,
                        contract: None,
                        events: Vec::new(),
                        receipt_hash: Digest::of(b"lost"),
                        receipt: "lost".into(),
                        at: at(1),
                    };
                    store.seal(&run_id(run), epoch, sealing).is_ok()
                }
            };
            prop_assert_eq!(done, model(&mut runs, operation), "{:?}", operation);
        }
        for (run, modeled) in &runs {
            let row = store.run(&run_id(*run)).unwrap();
            prop_assert_eq!(row.state, modeled.state);
            prop_assert_eq!(row.epoch, modeled.epoch);
            prop_assert_eq!(row.event_count, modeled.events);
            prop_assert_eq!(&store.receipt(&run_id(*run)).unwrap(), &modeled.receipt);
        }
    }
}
