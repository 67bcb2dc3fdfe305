//! What runners say: enroll, claim, start, events, renew, complete, hand back.
//!
//! A claim of a runner that does not know leases is also the start: its secrets are in the
//! answer, and its lease lasts as long as its contract lets the run take.

mod claiming;
mod enrolling;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::extract::{Path, Request, State};
use axum::response::Response;
use serde::Serialize;
use serde_json::json;
use tokio::time::Instant;
use warrant_protocol::port::{PlaneError, SecretValue};
use warrant_protocol::request::ActorRef;
use warrant_protocol::wire::{
    AppendEvents, CompleteRun, Directive, DisconnectRule, HandBack, LEASE_MS, RenewLease,
    RenewResult, StartRun,
};
use warrant_protocol::{ChainedEvent, Receipt, RunId};

pub(super) use self::claiming::claim;
pub(super) use self::enrolling::enroll;
use super::budget::{Holder as SpaceHolder, Reservation};
use super::error::HttpError;
use super::lanes::{Lane, in_lane};
use super::service::{Opened, PlaneService, Shared, bearer};
use super::waiting;
use super::{answer, body, peer_of};
use crate::lease_table::LeaseTerms;
use crate::leases::{Holder, StartCall};
use crate::store::RunnerRow;

/// The longest that a renewal waits for a stop.
const MAX_RENEW_WAIT: Duration = Duration::from_secs(5);

/// The largest byte offset that a piece of output may begin at.
const MOST_OFFSET: u64 = 1 << 53;

/// How many times the size of its text a chain takes in memory.
const CHAIN_COST: u64 = 6;

/// The most of a live log that is told at once.
const LOG_BYTES: usize = 1024 * 1024;

type Answer = Result<Response, HttpError>;

impl PlaneService {
    /// Returns what a runner is told whose message was not taken. When its false claims have
    /// ended its enrollment, what else it holds is treated as a dead runner's from now on.
    fn refused_runner(&self, opened: &Opened, error: PlaneError) -> HttpError {
        let refuted = self.plane.false_claims.swap(0, Ordering::Relaxed);
        if refuted > 0 {
            self.metrics.add("runners.false_claims", refuted);
        }
        let is_revoked = |row: RunnerRow| row.revoked_at.is_some();
        let runner = self.plane.store().runner(opened.runner.id.as_str());
        if matches!(runner.map(|row| row.is_some_and(is_revoked)), Ok(true)) {
            self.metrics.count("runners.revoked");
            if let Err(failure) = self.reload_registry().and_then(|()| self.sweep()) {
                // The next sweep tries again.
                tracing::error!(error = %failure, "the runs of a revoked runner wait for a sweep");
            }
        }
        error.into()
    }

    pub(super) fn tell_queued(&self, run: &RunId) {
        if let Ok(row) = self.plane.store().run(run) {
            self.queued(&row);
        }
    }
}

impl PlaneService {
    /// Takes the memory for a chain that has to be read from the store first.
    fn unread_chain_space(&self, opened: &Opened) -> Result<Option<Reservation>, HttpError> {
        let (run, epoch) = (&opened.lease.run, opened.lease.epoch);
        if self.plane.is_held(run, epoch) {
            return Ok(None);
        }
        self.chain_space(run, &holder_name(opened), CHAIN_COST).map(Some)
    }
}

/// The answer to a start.
#[derive(Serialize)]
struct Begun<'a> {
    events: &'a [ChainedEvent],
    secrets: Vec<serde_json::Value>,
}

/// The answer to a completion.
#[derive(Serialize)]
struct Ended<'a> {
    receipt: &'a Receipt,
}

fn values(secrets: &[SecretValue]) -> Vec<serde_json::Value> {
    let value = |secret: &SecretValue| json!({"name": secret.name, "value": secret.value});
    secrets.iter().map(value).collect()
}

/// `POST /v1/runs/:id/start`.
pub(super) async fn start(
    State(service): State<Shared>,
    Path(id): Path<String>,
    request: Request,
) -> Answer {
    let content = runner_body(&service, request, &id).await?;
    let text = in_lane(Lane::Leases, &service, move |service| {
        let wish = StartRun::from_value(&content.parse()?)?;
        let opened = service.open_run(&wish.claim_token, &id)?;
        let _space = service.unread_chain_space(&opened)?;
        let started = service.plane.start_lease(&StartCall {
            holder: &opened.runner.id,
            lease: &opened.lease,
            events: &wish.events,
            start_id: wish.start_id.as_deref(),
        });
        let started = started.map_err(|error| service.refused_runner(&opened, error))?;
        service.metrics.count("runs.started");
        service.metrics.add("secrets.released", started.secrets.len() as u64);
        service.changes.tell(&opened.lease.run);
        let begun = Begun { events: &started.events, secrets: values(&started.secrets) };
        serde_json::to_string(&begun).map_err(|error| HttpError::internal(&error))
    });
    Ok(answer::json_text(text.await?))
}

/// `POST /v1/runs/:id/events`.
pub(super) async fn append(
    State(service): State<Shared>,
    Path(id): Path<String>,
    request: Request,
) -> Answer {
    let content = runner_body(&service, request, &id).await?;
    in_lane(Lane::Leases, &service, move |service| {
        let wish = AppendEvents::from_value(&content.parse()?)?;
        let opened = service.open_run(&wish.claim_token, &id)?;
        let _space = service.unread_chain_space(&opened)?;
        let added = service.plane.append_events(&opened.runner.id, &opened.lease, &wish.events);
        added.map_err(|error| service.refused_runner(&opened, error))?;
        service.changes.tell(&opened.lease.run);
        Ok(())
    })
    .await?;
    Ok(answer::json(&json!({"ok": true})))
}

/// `POST /v1/runs/:id/renew`.
pub(super) async fn renew(
    State(service): State<Shared>,
    Path(id): Path<String>,
    request: Request,
) -> Answer {
    let value = small_body(&service, request).await?;
    let wish = RenewLease::from_value(&value)?;
    let opened = Arc::new(service.open_run(&wish.claim_token, &id)?);
    let wait = Duration::from_millis(wish.wait_ms.unwrap_or(0)).min(MAX_RENEW_WAIT);
    let deadline = Instant::now() + wait;
    // Listening before looking, so that no stop falls in between.
    let mut changes = service.changes.listen();
    let mut draining = service.draining.subscribe();
    loop {
        let stop = sign_of_life(&service, &opened).await?;
        let is_over = Instant::now() >= deadline || *draining.borrow_and_update();
        if stop.is_some() || is_over {
            return renewed(&service, &opened, stop);
        }
        tokio::select! {
            () = waiting::changed(&mut changes, &opened.lease.run) => {}
            _ = draining.changed() => {}
            () = tokio::time::sleep_until(deadline) => {}
        }
    }
}

async fn sign_of_life(
    service: &Shared,
    opened: &Arc<Opened>,
) -> Result<Option<ActorRef>, HttpError> {
    let opened = Arc::clone(opened);
    in_lane(Lane::Leases, service, move |service| Ok(service.plane.renew_lease(&opened.lease)?))
        .await
}

fn renewed(service: &Shared, opened: &Opened, stop: Option<ActorRef>) -> Answer {
    let directive = if stop.is_some() { Directive::Stop } else { Directive::Continue };
    let claim_token = service.claim_token(&opened.lease, &opened.runner, LEASE_MS)?;
    let left = service.plane.lease_left(&opened.lease, Duration::from_millis(LEASE_MS));
    let lease_ms = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
    Ok(answer::json(&RenewResult { directive, actor: stop, lease_ms, claim_token }))
}

/// `POST /v1/runs/:id/complete`.
pub(super) async fn complete(
    State(service): State<Shared>,
    Path(id): Path<String>,
    request: Request,
) -> Answer {
    let content = runner_body(&service, request, &id).await?;
    let text = in_lane(Lane::Leases, &service, move |service| {
        let wish = CompleteRun::from_value(&content.parse()?)?;
        let opened = service.open_run(&wish.claim_token, &id)?;
        let _space = service.unread_chain_space(&opened)?;
        let runner = &opened.runner;
        let terms =
            LeaseTerms { lease: Duration::from_millis(LEASE_MS), disconnect: DisconnectRule::Stop };
        let (id, key) = (&runner.id, &runner.key);
        let holder = Holder { id, key, liveness: None, terms, generation: None, process: None };
        let run = &opened.lease.run;
        let told = (wish.events.as_slice(), wish.receipt);
        let receipt = service.plane.complete_run(&holder, &opened.lease, told);
        let receipt = receipt.map_err(|error| service.refused_runner(&opened, error))?;
        let status = receipt.body().status.as_str();
        service.metrics.count(&format!("runs.completed.{status}"));
        service.logs.end(run);
        service.changes.tell(run);
        let ended = Ended { receipt: &receipt };
        serde_json::to_string(&ended).map_err(|error| HttpError::internal(&error))
    });
    Ok(answer::json_text(text.await?))
}

/// `POST /v1/runs/:id/hand-back`.
pub(super) async fn hand_back(
    State(service): State<Shared>,
    Path(id): Path<String>,
    request: Request,
) -> Answer {
    let value = small_body(&service, request).await?;
    let wish = HandBack::from_value(&value)?;
    let opened = service.open_run(&wish.claim_token, &id)?;
    in_lane(Lane::Leases, &service, move |service| {
        service.plane.hand_back_lease(&opened.lease)?;
        service.metrics.count("runs.requeued");
        service.tell_queued(&opened.lease.run);
        Ok(())
    })
    .await?;
    Ok(answer::json(&json!({"ok": true})))
}

/// `POST /v1/runs/:id/logs`: what the program said just now, for whoever watches.
pub(super) async fn push_log(
    State(service): State<Shared>,
    Path(id): Path<String>,
    request: Request,
) -> Answer {
    let peer = peer_of(&request);
    let token = bearer(request.headers()).ok_or_else(|| service.stranger(peer))?;
    let opened = service.open_run(token, &id)?;
    let at = piece_offset(request.uri().query())?;
    let (bytes, _space) = body::read(request, LOG_BYTES, &holder_name(&opened)).await?;
    let lease = opened.lease.clone();
    let is_held = in_lane(Lane::Leases, &service, move |service| {
        Ok(service.plane.store().holds(&lease.run, lease.epoch)?)
    });
    if !is_held.await? {
        return Err(HttpError::fenced(&opened.lease.run));
    }
    service.logs.push(&opened.lease.run, at, &bytes);
    Ok(answer::json(&json!({"ok": true})))
}

/// Returns the byte at which a piece of output begins, where its runner says so.
fn piece_offset(query: Option<&str>) -> Result<Option<u64>, HttpError> {
    let mut pairs = query.unwrap_or_default().split('&');
    let Some(text) = pairs.find_map(|pair| pair.strip_prefix("at=")) else { return Ok(None) };
    let offset = text.parse::<u64>().ok().filter(|offset| *offset <= MOST_OFFSET);
    match offset {
        Some(offset) => Ok(Some(offset)),
        None => Err(HttpError::bad_request(format!("at is a byte offset up to {MOST_OFFSET}"))),
    }
}

/// Reads a runner's body. One that brings its claim token in the head is known before it is read;
/// of the others only little is, until the token in it has been checked.
async fn runner_body(
    service: &Shared,
    request: Request,
    run: &str,
) -> Result<body::JsonBody, HttpError> {
    let known = bearer(request.headers()).and_then(|token| service.open_claim(token).ok());
    if let Some(opened) = known {
        let holder = SpaceHolder::Known(holder_name(&opened));
        return body::json_body(request, body::LARGE, holder).await;
    }
    let identify = |token: &str| Ok(holder_name(&service.open_run(token, run)?));
    body::json_by_member(request, "claimToken", identify).await
}

/// Reads a small body of a runner, which may be known by its head.
async fn small_body(service: &Shared, request: Request) -> Result<serde_json::Value, HttpError> {
    let known = bearer(request.headers()).and_then(|token| {
        let by_token = service.registry.runner_by_token(token).map(|runner| runner.id.to_string());
        by_token.or_else(|| service.open_claim(token).ok().map(|opened| holder_name(&opened)))
    });
    let holder = known.map_or(SpaceHolder::Stranger(peer_of(&request)), SpaceHolder::Known);
    body::json_body(request, body::SMALL, holder).await?.parse()
}

/// The name under which a runner's share of the memory is counted, whichever run it speaks of.
fn holder_name(opened: &Opened) -> String {
    opened.runner.id.to_string()
}
