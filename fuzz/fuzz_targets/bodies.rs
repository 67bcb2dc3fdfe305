//! JSON into every reader of objects and wire bodies; what is read keeps its canonical text.
#![no_main]

use libfuzzer_sys::fuzz_target;
use warrant_protocol::approval::{Approval, Denial};
use warrant_protocol::wire::{AppendEvents, ClaimResult, CompleteRun, SubmitRun};
use warrant_protocol::{ChainedEvent, Contract, PolicyDocument, Receipt, canonicalize, json};

fuzz_target!(|bytes: &[u8]| {
    let Ok(value) = json::parse(bytes) else { return };
    let canonical = canonicalize(&value);
    assert_eq!(json::parse(canonical.as_bytes()).map(|again| canonicalize(&again)).ok(), Some(canonical));
    let _ = SubmitRun::from_value(&value);
    let _ = AppendEvents::from_value(&value);
    let _ = CompleteRun::from_value(&value);
    let _ = ClaimResult::from_value(&value);
    let _ = PolicyDocument::from_value(value.clone());
    let _ = ChainedEvent::from_value(value.clone());
    let _ = Contract::from_value(value.clone());
    let _ = Receipt::from_value(value.clone());
    let _ = Approval::from_value(value.clone());
    let _ = Denial::from_value(value);
});
