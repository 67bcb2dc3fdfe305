//! Leases under a simulated clock: claims that wait, renewals, and a plane that does not answer.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use warrant_protocol::{Moment, TimeSource, Timestamp};
use warrant_runner::fleet::Tally;

use crate::loopback::{Asked, Loopback, recorded_claims};
use crate::remote::{RemoteSetup, recorded_now, work_with};

/// A clock that stands still until somebody moves it.
#[derive(Debug, Default)]
pub(crate) struct SimulatedTime(Mutex<Duration>);

impl SimulatedTime {
    pub(crate) fn advance(&self, by: Duration) {
        *self.0.lock().unwrap() += by;
    }
}

impl TimeSource for SimulatedTime {
    fn moment(&self) -> Moment {
        Moment::after_origin(*self.0.lock().unwrap())
    }

    fn date(&self) -> Timestamp {
        recorded_now()
    }
}

/// What a claim brings from a plane that has leases.
fn leased(claim: &Value) -> Value {
    let mut leased = claim.clone();
    leased["epoch"] = json!(1);
    leased["leaseMs"] = json!(15_000);
    leased["secrets"] = json!([]);
    leased
}

/// The answers of a plane that has leases, beside those of the reference.
fn lease_answers(asked: &Asked) -> Option<(u16, Value)> {
    let verb = asked.path.rsplit('/').next().unwrap();
    match verb {
        "start" => Some((200, json!({"events": [], "secrets": []}))),
        "renew" => {
            let claim_token = asked.json()["claimToken"].clone();
            let answer =
                json!({"directive": "continue", "leaseMs": 15_000, "claimToken": claim_token});
            Some((200, answer))
        }
        "logs" => Some((200, json!({"ok": true}))),
        _ => None,
    }
}

#[test]
fn a_claim_that_waited_any_time_for_work_brings_a_whole_lease() {
    let claim = leased(&recorded_claims().remove(0));
    for parked_s in 0..=30 {
        let time = Arc::new(SimulatedTime::default());
        let clock = Arc::clone(&time);
        let plane = Loopback::with(vec![claim.clone()], move |asked| {
            if asked.path == "/v1/claims" {
                // The plane answers when there is work.
                clock.advance(Duration::from_secs(parked_s));
            }
            lease_answers(asked)
        });
        let data = tempfile::tempdir().unwrap();
        let tally = work_with(&plane, RemoteSetup { data: data.path(), claims: 2, time });
        assert_eq!(tally, Tally { ended: 1, fenced: 0, waiting: 0 }, "after {parked_s} s");
        let asked = plane.asked();
        let ends: Vec<_> = asked.iter().filter(|asked| asked.path.ends_with("/complete")).collect();
        assert_eq!(ends.len(), 1);
        let receipt = &ends[0].json()["receipt"];
        assert_eq!(receipt["status"], "completed", "after {parked_s} s: {receipt}");
    }
}
