//! Keeps a lease while its run is running, and brings the plane's word back: stop, or fenced.
//!
//! When a lease is over is decided by [`LeaseTimer`](crate::lease_timer::LeaseTimer); this asks
//! the plane and looks at the timer every second.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use warrant_protocol::port::LeaseKey;
use warrant_protocol::request::ActorRef;
use warrant_protocol::wire::{Directive, RenewLease, RenewResult};
use warrant_protocol::{TimeSource, Timestamp, json};
use warrant_sandbox::Cancel;

use super::{CallError, Dialect, Held, Http, RemotePlane, value};
use crate::lease_timer::LeaseStanding;

/// How long a renewal waits for a word.
const RENEW_WAIT: Duration = Duration::from_secs(4);
/// A plane that does not wait is asked this often, so that a stop arrives within a second.
const RENEW_EVERY: Duration = Duration::from_millis(900);
/// How long the answer may take beyond that.
const ANSWER_WAIT: Duration = Duration::from_secs(4);
/// How often the lease is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

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

/// The place where the reason of a stop is left; the first one stays, but for being fenced. And
/// what is known of the times in which the plane did not answer.
#[derive(Debug, Default)]
pub struct StopSlot {
    reason: Mutex<Option<Stop>>,
    outages: Mutex<Outages>,
}

/// A time in which the plane did not answer and the run went on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outage {
    /// From when, by this machine's date.
    pub since: Timestamp,
    /// For how long.
    pub lasted: Duration,
}

/// How many outages of one run are told one by one; what follows is added to the last.
const MOST_OUTAGES: usize = 64;

#[derive(Debug, Default)]
struct Outages {
    over: Vec<Outage>,
    present: Option<Outage>,
}

impl StopSlot {
    /// Leaves a reason.
    pub fn set(&self, stop: Stop) {
        let mut slot = self.reason.lock().unwrap_or_else(PoisonError::into_inner);
        if slot.is_none() || stop == Stop::Fenced {
            *slot = Some(stop);
        }
    }

    /// Returns the reason, if there is one.
    #[must_use]
    pub fn reason(&self) -> Option<Stop> {
        self.reason.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the times in which the plane did not answer, the present one last.
    #[must_use]
    pub fn outages(&self) -> Vec<Outage> {
        let outages = self.outages.lock().unwrap_or_else(PoisonError::into_inner);
        outages.over.iter().copied().chain(outages.present).collect()
    }

    /// Notes for how long the plane has not answered by now, if it has not.
    pub(crate) fn note_outage(&self, now: Timestamp, lasted: Option<Duration>) {
        let mut outages = self.outages.lock().unwrap_or_else(PoisonError::into_inner);
        outages.present = lasted.map(|lasted| {
            let since = outages.present.map_or_else(|| before(now, lasted), |known| known.since);
            Outage { since, lasted }
        });
    }

    /// Notes that the plane answers again after `lasted`.
    pub(crate) fn end_outage(&self, now: Timestamp, lasted: Duration) {
        self.note_outage(now, Some(lasted));
        let mut outages = self.outages.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(ended) = outages.present.take() else { return };
        let is_full = outages.over.len() >= MOST_OUTAGES;
        match outages.over.last_mut().filter(|_| is_full) {
            Some(last) => last.lasted += ended.lasted,
            None => outages.over.push(ended),
        }
    }
}

fn before(now: Timestamp, lasted: Duration) -> Timestamp {
    let ms = u64::try_from(lasted.as_millis()).unwrap_or(u64::MAX);
    Timestamp::from_unix_ms(now.unix_ms().saturating_sub(ms)).unwrap_or(now)
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
        let keeper = Keeper {
            http: Arc::clone(&self.http),
            held: Arc::clone(&self.held),
            time: Arc::clone(&self.time),
            lease: lease.clone(),
            cancel: cancel.clone(),
            stop: Arc::clone(stop),
        };
        Watched(Some(self.http.spawn(keeper.keep())))
    }
}

/// Renews one lease until it is over.
struct Keeper {
    http: Arc<Http>,
    held: Arc<Mutex<HashMap<LeaseKey, Held>>>,
    time: Arc<dyn TimeSource>,
    lease: LeaseKey,
    cancel: Cancel,
    stop: Arc<StopSlot>,
}

impl Keeper {
    async fn keep(self) {
        loop {
            let Some(claim_token) = self.with_held(|held| held.token.clone()) else { return };
            let (sent, began) = (self.time.moment(), Instant::now());
            let answer = tokio::select! {
                answer = self.ask(&claim_token) => answer,
                () = self.until_over() => return self.end(Stop::LeaseOver),
            };
            match answer {
                Heard::Renewed(renewed) => {
                    let arrived = self.time.moment();
                    let outage = self.with_held(|held| held.renewed(&renewed, sent, arrived));
                    if let Some(outage) = outage.flatten() {
                        self.stop.end_outage(self.time.date(), outage);
                        let away_ms = u64::try_from(outage.as_millis()).unwrap_or(u64::MAX);
                        tracing::warn!(run.id = %self.lease.run, away_ms, "the plane answers again");
                    }
                    match renewed.directive {
                        Directive::Continue => {}
                        Directive::Stop => self.end(Stop::Asked(renewed.actor)),
                        Directive::Fenced => return self.end(Stop::Fenced),
                    }
                }
                Heard::Fenced => return self.end(Stop::Fenced),
                Heard::Nothing => {}
            }
            tokio::select! {
                () = tokio::time::sleep_until(began + RENEW_EVERY) => {}
                () = self.until_over() => return self.end(Stop::LeaseOver),
            }
        }
    }

    /// Sends one renewal; an answer that takes too long is none.
    async fn ask(&self, claim_token: &str) -> Heard {
        let wait_ms = u64::try_from(RENEW_WAIT.as_millis()).ok();
        let body = RenewLease { claim_token: claim_token.to_owned(), wait_ms };
        let Ok(body) = value(&body) else { return Heard::Nothing };
        let path = format!("/v1/runs/{}/renew", self.lease.run);
        let call = self.http.sending(&path, Some(claim_token), &body);
        read(tokio::time::timeout(RENEW_WAIT + ANSWER_WAIT, call).await)
    }

    /// Looks at the lease every second until it is over or nobody holds it.
    async fn until_over(&self) {
        loop {
            let now = self.time.moment();
            let looked = self.with_held(|held| (held.timer.standing(now), held.timer.outage()));
            if let Some((_, outage @ Some(_))) = looked {
                self.stop.note_outage(self.time.date(), outage);
            }
            if let Some((LeaseStanding::Over, _)) = looked {
                return;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    fn with_held<T>(&self, look: impl FnOnce(&mut Held) -> T) -> Option<T> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.get_mut(&self.lease).map(look)
    }

    fn end(&self, why: Stop) {
        self.stop.set(why);
        self.cancel.cancel();
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
