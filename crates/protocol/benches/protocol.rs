//! Prints how long the verifier and a signature take: `cargo bench -p warrant-protocol`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    dead_code,
    reason = "a benchmark over the tests' own bundles"
)]

#[path = "../tests/it/forge.rs"]
mod forge;
#[path = "../tests/it/vectors.rs"]
mod vectors;

use std::hint::black_box;
use std::time::{Duration, Instant};

use warrant_protocol::canonical::canonicalize_without;
use warrant_protocol::verify::verify_slice;
use warrant_protocol::{Bundle, Decision, Digest, Event, Receipt, canonicalize, verify};

use crate::forge::{Keys, our_contract, our_events, seal, trusted};
use crate::vectors::runner_key;

/// A governed run of eleven events, every part of it honest.
fn eleven_events() -> serde_json::Value {
    let mut contract = our_contract();
    contract.approved_by = None;
    let wanted = [
        "RunCreated",
        "DecisionMade",
        "RunClaimed",
        "WorkspaceMaterialized",
        "PreflightChecked",
        "RunStarted",
        "PreimageBound",
        "CommandExecuted",
        "OutputRecorded",
        "OutcomeRecorded",
        "RunCompleted",
    ];
    let mut events = our_events();
    events.retain(|event| wanted.iter().any(|name| format!("{event:?}").starts_with(name)));
    for event in &mut events {
        if let Event::DecisionMade { decision, .. } = event {
            *decision = Decision::Allow;
        }
    }
    assert_eq!(events.len(), 11);
    seal(&contract, &events, &Keys::real())
}

fn measure(name: &str, target: Duration, mut run: impl FnMut()) {
    let mut times: Vec<Duration> = Vec::new();
    for _ in 0..200 {
        run();
    }
    for _ in 0..2000 {
        let start = Instant::now();
        run();
        times.push(start.elapsed());
    }
    times.sort_unstable();
    let (p50, p99, best) = (times[1000], times[1980], times[0]);
    println!("{name}: p50 {p50:?}, p99 {p99:?}, best {best:?} (target {target:?})");
}

fn main() {
    let value = eleven_events();
    let text = canonicalize(&value);
    let trusted = trusted();
    println!("bundle of 11 events: {} bytes", text.len());
    measure("read and verify a bundle of 11 events", Duration::from_micros(250), || {
        assert!(verify_slice(black_box(text.as_bytes()), trusted).is_ok());
    });
    let (key, message) = (runner_key(), [b'a'; 64]);
    let signature = key.sign(&message);
    measure("check one signature (three in a bundle)", Duration::from_micros(60), || {
        assert!(key.public().verify(black_box(&message), &signature).is_ok());
    });
    measure("read the JSON of a bundle", Duration::from_micros(60), || {
        black_box(warrant_protocol::json::parse(black_box(text.as_bytes())).unwrap());
    });
    measure("read a contract from JSON", Duration::from_micros(60), || {
        let value = black_box(value["contract"].clone());
        black_box(warrant_protocol::Contract::from_value(value).unwrap());
    });
    measure("read the receipt from JSON", Duration::from_micros(60), || {
        black_box(Receipt::from_value(black_box(value["receipt"].clone())).unwrap());
    });
    measure("read the events from JSON", Duration::from_micros(60), || {
        for event in value["events"].as_array().unwrap() {
            black_box(warrant_protocol::ChainedEvent::from_value(event.clone()).unwrap());
        }
    });
    let bundle = Bundle::from_value(value.clone()).unwrap();
    let mut bundles = vec![bundle; 2200];
    measure("verify a bundle of 11 events that was read", Duration::from_micros(250), || {
        let bundle = bundles.pop().unwrap();
        assert!(verify(black_box(bundle), trusted).is_ok());
    });

    let receipt = Receipt::from_value(value["receipt"].clone()).unwrap();
    let raw = receipt.raw();
    println!("receipt: {} bytes", canonicalize_without(raw, "signatures").len());
    let key = runner_key();
    measure("canonicalize, hash and sign a receipt", Duration::from_micros(60), || {
        let text = canonicalize_without(black_box(raw), "signatures");
        let hash = Digest::of(text.as_bytes());
        black_box(key.sign(hash.to_hex().as_bytes()));
    });
    measure("derive a receipt's body and seal it", Duration::from_micros(200), || {
        let sealed =
            Receipt::seal(black_box(receipt.body()), warrant_protocol::Signer::Runner, &key);
        assert!(sealed.is_ok());
    });
}
