//! Keeps a lease while its run is running, and brings the plane's word back: stop, or fenced.
//!
//! The lease is counted from when the renewal was sent. A runner that cannot renew stops its own
//! run before the lease ends, because after it somebody else may hold the run.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use warrant_protocol::json;
use warrant_protocol::port::LeaseKey;
use warrant_protocol::request::ActorRef;
use warrant_protocol::wire::{Directive, RenewLease, RenewResult};
use warrant_sandbox::Cancel;

use super::{CallError, Dialect, RemotePlane, value};

/// How long a renewal waits for a word.
const RENEW_WAIT: Duration = Duration::from_secs(4);
/// A plane that does not wait is asked this often, so that a stop arrives within a second.
const RENEW_EVERY: Duration = Duration::from_millis(900);
/// How long before the end of a lease its run is stopped.
const BEFORE_THE_END: Duration = Duration::from_secs(3);

/// Why a run is told to stop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stop {
    /// Somebody wanted it, if the plane says who.
    Asked(Option<ActorRef>),
    /// This runner ends.
    Draining,
    /// The lease could not be renewed.
    LeaseOver,
    /// Somebody else holds the run: write nothing more.
    Fenced,
}

/// The place where the reason of a stop is left; the first one stays, but for being fenced.
#[derive(Debug, Default)]
pub struct StopSlot(Mutex<Option<Stop>>);

impl StopSlot {
    /// Leaves a reason.
    pub fn set(&self, stop: Stop) {
        let mut slot = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if slot.is_none() || stop == Stop::Fenced {
            *slot = Some(stop);
        }
    }

    /// Returns the reason, if there is one.
    #[must_use]
    pub fn reason(&self) -> Option<Stop> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// A lease that is being renewed until this is dropped.
#[derive(Debug)]
pub struct Watched(Option<tokio::task::AbortHandle>);

impl Drop for Watched {
    fn drop(&mut self) {
        if let Some(task) = &self.0 {
            task.abort();
        }
    }
}

impl RemotePlane {
    /// Renews a lease from now on, and stops its run when the plane says so or stays silent.
    #[must_use]
    pub fn watch(&self, lease: &LeaseKey, cancel: &Cancel, stop: &Arc<StopSlot>) -> Watched {
        let is_leased = self.held().get(lease).is_some_and(|held| held.dialect == Dialect::Leases);
        if !is_leased {
            return Watched(None);
        }
        let (http, held) = (Arc::clone(&self.http), Arc::clone(&self.held));
        let (lease, cancel, stop) = (lease.clone(), cancel.clone(), Arc::clone(stop));
        let end = move |why: Stop| {
            stop.set(why);
            cancel.cancel();
        };
        let task = async move {
            loop {
                let look = || {
                    let held = held.lock().unwrap_or_else(PoisonError::into_inner);
                    held.get(&lease).map(|held| (held.token.clone(), held.until))
                };
                let Some((claim_token, until)) = look() else { return };
                let asked = Instant::now();
                let wait_ms = u64::try_from(RENEW_WAIT.as_millis()).ok();
                let body = RenewLease { claim_token: claim_token.clone(), wait_ms };
                let Ok(body) = value(&body) else { return };
                let path = format!("/v1/runs/{}/renew", lease.run);
                let call = http.sending(&path, Some(&claim_token), &body);
                let last = Instant::from_std(until) - BEFORE_THE_END;
                let answer = tokio::time::timeout_at(last, call).await;
                match read(answer) {
                    Heard::Renewed(renewed) => {
                        let mut all = held.lock().unwrap_or_else(PoisonError::into_inner);
                        if let Some(held) = all.get_mut(&lease) {
                            held.renewed(&renewed, asked.into_std());
                        }
                        drop(all);
                        match renewed.directive {
                            Directive::Continue => {}
                            Directive::Stop => end(Stop::Asked(renewed.actor)),
                            Directive::Fenced => return end(Stop::Fenced),
                        }
                    }
                    Heard::Fenced => return end(Stop::Fenced),
                    Heard::Nothing if Instant::now() >= last => return end(Stop::LeaseOver),
                    Heard::Nothing => {}
                }
                tokio::time::sleep_until((asked + RENEW_EVERY).min(last)).await;
            }
        };
        Watched(Some(self.http.spawn(task)))
    }
}

enum Heard {
    Renewed(RenewResult),
    Fenced,
    Nothing,
}

fn read(
    answer: Result<Result<serde_json::Value, CallError>, tokio::time::error::Elapsed>,
) -> Heard {
    match answer {
        Ok(Ok(answer)) => match json::view(&answer) {
            Ok(renewed) => Heard::Renewed(renewed),
            Err(_) => Heard::Nothing,
        },
        Ok(Err(CallError::Refused { status, .. })) if status < 500 && status != 429 => {
            Heard::Fenced
        }
        Ok(Err(_)) | Err(_) => Heard::Nothing,
    }
}
