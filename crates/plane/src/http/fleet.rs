//! What runners say: enroll, claim, start, events, renew, complete, hand back.
//!
//! A claim of a runner that does not know leases is also the start: its secrets are in the
//! answer, and its lease lasts as long as its contract lets the run take.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::extract::{Path, Request, State};
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Serialize;
use serde_json::json;
use tokio::sync::oneshot;
use tokio::time::Instant;
use warrant_protocol::execution::DEFAULT_TIMEOUT_MS;
use warrant_protocol::port::{PlaneError, SecretValue};
use warrant_protocol::request::ActorRef;
use warrant_protocol::wire::{
    AppendEvents, ClaimRun, CompleteRun, Directive, DisconnectRule, Enroll, EnrollResult, HandBack,
    LEASE_MS, RenewLease, RenewResult, RunnerAbilities, StartRun,
};
use warrant_protocol::{ChainedEvent, Contract, Digest, PublicKey, Receipt, RunId, RunnerId};

use super::budget::{Holder as SpaceHolder, Reservation};
use super::error::HttpError;
use super::lanes::{Lane, in_lane};
use super::registry::Runner;
use super::service::{Opened, PlaneService, Shared, bearer};
use super::waiting;
use super::{answer, body, peer_of};
use crate::lease_table::LeaseTerms;
use crate::leases::{Holder, StartCall};
use crate::random;
use crate::request_context::keep_cause;
use crate::store::{Abilities, Candidate, EnrollAgain, EnrollToken, Enrolling, RunnerRow};

/// The longest that a claim waits for work: a runner that works is heard at least this often.
const MAX_CLAIM_WAIT: Duration = Duration::from_secs(15);

/// The longest that a renewal waits for a stop.
const MAX_RENEW_WAIT: Duration = Duration::from_secs(5);

/// The largest byte offset that a piece of output may begin at.
const MOST_OFFSET: u64 = 1 << 53;

/// What a run of an old runner may take beyond its own time: fetching, packing, uploading.
const OLD_RUNNER_MARGIN_MS: u64 = 600_000;

/// How many times the size of its text a chain takes in memory.
const CHAIN_COST: u64 = 6;

/// The most of a live log that is told at once.
const LOG_BYTES: usize = 1024 * 1024;

type Answer = Result<Response, HttpError>;

/// `POST /v1/runners/enroll`.
pub(super) async fn enroll(State(service): State<Shared>, request: Request) -> Answer {
    let peer = peer_of(&request);
    let value = small_body(&service, request).await?;
    let wish = Enroll::from_value(&value)?;
    if PublicKey::from_pem(&wish.public_key_pem).is_err() {
        return Err(HttpError::bad_request("publicKeyPem is not an ed25519 public key in PEM"));
    }
    let result = in_lane(Lane::Leases, &service, move |service| service.enroll(&wish, peer));
    Ok(answer::json(&result.await?))
}

/// `POST /v1/claims`.
pub(super) async fn claim(State(service): State<Shared>, request: Request) -> Answer {
    let peer = peer_of(&request);
    let value = small_body(&service, request).await?;
    let wish = ClaimRun::from_value(&value)?;
    let Some(runner) = service.registry.runner_by_token(&wish.runner_token) else {
        return Err(match service.failures.count(peer, std::time::Instant::now()) {
            true => HttpError::locked_out(),
            false => HttpError::not_accepted("invalid runner token"),
        });
    };
    if runner.pool != wish.pool.as_str() {
        return Err(HttpError::not_accepted("runner is not enrolled in the requested pool"));
    }
    if !runner.admits(wish.generation) {
        return Err(HttpError::not_accepted(
            "a later process of this runner asked for work; end this one, or give it a data \
             directory of its own with --data-dir",
        ));
    }
    runner.seen(service.plane.now(), service.plane.running_time());
    let wait = Duration::from_millis(wish.wait_ms.unwrap_or(0)).min(MAX_CLAIM_WAIT);
    let deadline = Instant::now() + wait;
    let abilities = wish.abilities.unwrap_or_default();
    if runner.offer(&abilities) {
        let (id, text) = (runner.id.clone(), json!(abilities).to_string());
        in_lane(Lane::Leases, &service, move |service| {
            Ok(service.plane.store().set_runner_abilities(id.as_str(), text)?)
        })
        .await?;
    }
    let seeker = Arc::new(Seeker {
        runner,
        wanted: abilities_of(&abilities),
        has_leases: wish.leases.unwrap_or(false),
        generation: wish.generation,
    });
    let mut draining = service.draining.subscribe();
    loop {
        if *draining.borrow_and_update() {
            return Ok(answer::json(&json!({"empty": true})));
        }
        // In line before looking, so that nothing is queued unnoticed in between.
        let woken = service.waiters.line_up(&seeker.runner.pool, &abilities);
        if let Some(text) = take_next(&service, Arc::clone(&seeker)).await? {
            return Ok(answer::json_text(text));
        }
        let is_woken = tokio::select! {
            _ = woken => true,
            _ = draining.changed() => true,
            () = tokio::time::sleep_until(deadline) => false,
        };
        if !is_woken {
            return Ok(answer::json(&json!({"empty": true})));
        }
    }
}

/// A runner that looks for work.
struct Seeker {
    runner: Arc<Runner>,
    wanted: Abilities,
    has_leases: bool,
    generation: Option<u64>,
}

/// Takes the next run that fits and returns the answer. When the runner hung up meanwhile, a
/// run that was not started goes back at once.
async fn take_next(service: &Shared, seeker: Arc<Seeker>) -> Result<Option<String>, HttpError> {
    let (tell, told) = oneshot::channel();
    let permit = service.lanes.enter(Lane::Leases).await;
    let service = Arc::clone(service);
    tokio::task::spawn_blocking(move || {
        let _permit = permit;
        let taken = service.take_next(&seeker);
        let lease = taken.as_ref().ok().and_then(|taken| taken.as_ref()).map(|t| t.run.clone());
        if tell.send(taken).is_err()
            && seeker.has_leases
            && let Some(run) = lease
        {
            service.put_back(&run);
        }
    });
    let taken = told.await.map_err(|error| HttpError::interrupted(&error))??;
    Ok(taken.map(|taken| taken.text))
}

impl PlaneService {
    /// Enrolls a runner. The same runner again, by its key and with the same token, is the same
    /// runner with the same answer.
    fn enroll(&self, wish: &Enroll, peer: IpAddr) -> Result<EnrollResult, HttpError> {
        let runner_id = RunnerId::from_random(random::bytes()?);
        let row = RunnerRow {
            id: runner_id.to_string(),
            pool: wish.pool.to_string(),
            public_key_pem: wish.public_key_pem.clone(),
            token_hash: Digest::of(self.runner_token(&runner_id).as_bytes()),
            enrolled_at: self.plane.now(),
            revoked_at: None,
            abilities: None,
        };
        let is_reusable = self
            .registry
            .principal(&wish.enroll_token)
            .is_some_and(|principal| principal.may_enroll());
        let token = match is_reusable {
            true => EnrollToken::Reusable,
            false => EnrollToken::Once(Digest::of(wish.enroll_token.as_bytes())),
        };
        // SECURITY: only who has the runner's private key is that runner again.
        let again = if wish.is_proved() { EnrollAgain::SameRunner } else { EnrollAgain::NewRunner };
        let enrolled = self.plane.store().enroll(token, row, again)?;
        let Enrolling::Enrolled(id) = enrolled else {
            return Err(self.refuse_enrollment(enrolled, peer));
        };
        let runner_id: RunnerId = id.parse().map_err(|error| HttpError::internal(&error))?;
        let runner_token = self.runner_token(&runner_id);
        let hash = Digest::of(runner_token.as_bytes());
        self.plane.store().set_runner_token(&id, hash)?;
        self.metrics.count("enroll.accepted");
        self.reload_registry()?;
        let pem = self.plane.home().plane_key().public().pem().to_owned();
        Ok(EnrollResult { runner_id, runner_token, plane_public_key_pem: Some(pem) })
    }

    fn refuse_enrollment(&self, refused: Enrolling, peer: IpAddr) -> HttpError {
        self.metrics.count("enroll.rejected");
        if refused == Enrolling::Revoked {
            return HttpError::bad_request(
                "this runner was revoked; start it with another --data-dir, or remove the old one",
            );
        }
        self.metrics.count("auth.failed");
        match self.failures.count(peer, std::time::Instant::now()) {
            true => HttpError::locked_out(),
            false => HttpError::bad_request("invalid enroll token"),
        }
    }

    /// Returns the token of a runner. It follows from the plane's key and the runner's id, so that
    /// an enrollment whose answer was lost gets the same one again and nothing is stored readable.
    fn runner_token(&self, runner: &RunnerId) -> String {
        let text = format!("warrant.runner-token.v1\n{runner}");
        let signature = self.plane.home().plane_key().sign(text.as_bytes());
        // SECURITY: a hash of the signature, so that the token is of no use as a signature.
        URL_SAFE_NO_PAD.encode(Digest::of(&signature).as_bytes())
    }
}

struct TakenRun {
    run: warrant_protocol::port::LeaseKey,
    text: String,
}

impl PlaneService {
    fn take_next(&self, seeker: &Seeker) -> Result<Option<TakenRun>, HttpError> {
        loop {
            let Some(candidate) = self.pick(seeker)? else { return Ok(None) };
            let taking = Taking { claiming: &self.claiming, run: &candidate.id };
            let leased = self.lease(seeker, &candidate);
            drop(taking);
            match leased {
                Ok(taken) => {
                    self.metrics.count("runs.claimed");
                    self.changes.tell(&candidate.id);
                    return Ok(Some(taken));
                }
                // Somebody else has it, or it ended: the next one.
                Err(PlaneError::Fenced(_)) => {}
                Err(PlaneError::Refused { failure, message }) => {
                    self.plane.refuse_queued(&candidate.id, failure, &message)?;
                    self.changes.tell(&candidate.id);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Picks a run that nobody else is taking in this moment.
    fn pick(&self, seeker: &Seeker) -> Result<Option<Candidate>, HttpError> {
        let mut claiming = self.claiming.lock().unwrap_or_else(PoisonError::into_inner);
        let limit = claiming.len() + 1;
        let next = self.plane.store().candidates(&seeker.runner.pool, &seeker.wanted, limit)?;
        let free = next.into_iter().find(|candidate| !claiming.contains(&candidate.id));
        if let Some(candidate) = &free {
            claiming.insert(candidate.id.clone());
        }
        Ok(free)
    }

    fn lease(&self, seeker: &Seeker, candidate: &Candidate) -> Result<TakenRun, PlaneError> {
        let runner = &*seeker.runner;
        let (run, epoch) = (&candidate.id, candidate.epoch);
        let lease_ms = match seeker.has_leases {
            true => LEASE_MS,
            false => self.old_lease_ms(run).unwrap_or(OLD_RUNNER_MARGIN_MS),
        };
        let terms = LeaseTerms {
            lease: Duration::from_millis(lease_ms),
            // A runner that never renews says nothing until its end, so its lease is that long.
            disconnect: match seeker.has_leases {
                true => self.disconnect_rule(),
                false => DisconnectRule::Stop,
            },
        };
        let generation = seeker.generation;
        let holder = Holder { id: &runner.id, key: &runner.key, liveness: None, terms, generation };
        let (lease, secrets) = if seeker.has_leases {
            (self.plane.lease_to(&holder, run, epoch)?, Vec::new())
        } else {
            let (lease, secrets) = self.plane.lease_started(&holder, run, epoch)?;
            self.metrics.add("secrets.released", secrets.len() as u64);
            (lease, secrets)
        };
        let token = self.claim_token(&lease.key, runner, lease_ms);
        let claim_token = token.map_err(|error| {
            keep_cause(&error, PlaneError::failed("the claim token cannot be signed"))
        })?;
        let left = self.plane.lease_left(&lease.key, terms.lease);
        let leased = Leased {
            run_id: &lease.key.run,
            contract: &lease.contract,
            claim_token,
            events: lease.chain.events(),
            secrets: values(&secrets),
            epoch: lease.key.epoch,
            lease_ms: u64::try_from(left.as_millis()).unwrap_or(u64::MAX),
            disconnect_ms: terms.disconnect.to_wire_ms(),
            policy_hash: lease.policy_hash,
        };
        let text = serde_json::to_string(&leased).map_err(PlaneError::failed)?;
        let run = lease.key.clone();
        self.plane.remember(lease);
        Ok(TakenRun { run, text })
    }

    /// How long a runner that never renews may hold a run.
    fn old_lease_ms(&self, run: &RunId) -> Option<u64> {
        let row = self.plane.store().run(run).ok()?;
        let contract = Contract::from_slice(row.contract?.as_bytes()).ok()?;
        let budget = contract.body().budget.max_duration_min.map(|minutes| minutes * 60_000.0);
        // A number of minutes beyond u64 saturates, and the contract's own ceiling is lower.
        let budget = budget.map(|ms| ms as u64);
        let own = contract.body().execution.as_ref().and_then(|spec| spec.timeout_ms());
        let takes = own.or(budget).unwrap_or(DEFAULT_TIMEOUT_MS);
        Some(takes.min(24 * 3_600_000) + OLD_RUNNER_MARGIN_MS)
    }

    fn put_back(&self, lease: &warrant_protocol::port::LeaseKey) {
        if self.plane.hand_back_lease(lease).is_ok() {
            self.tell_queued(&lease.run);
        }
    }

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

/// A run that is being taken; whatever becomes of the attempt, the run is free for others after.
struct Taking<'a> {
    claiming: &'a Mutex<HashSet<RunId>>,
    run: &'a RunId,
}

impl Drop for Taking<'_> {
    fn drop(&mut self) {
        self.claiming.lock().unwrap_or_else(PoisonError::into_inner).remove(self.run);
    }
}

/// The answer to a claim, written without copying what is signed.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Leased<'a> {
    run_id: &'a RunId,
    contract: &'a Contract,
    claim_token: String,
    events: &'a [ChainedEvent],
    secrets: Vec<serde_json::Value>,
    epoch: u64,
    lease_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    disconnect_ms: Option<u64>,
    policy_hash: Digest,
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

fn abilities_of(abilities: &RunnerAbilities) -> Abilities {
    let list = |names: Option<serde_json::Value>| names.map(|names| names.to_string());
    Abilities {
        isolations: list(abilities.isolations.as_ref().map(|all| json!(all))),
        agent_kinds: list(abilities.agent_kinds.as_ref().map(|all| json!(all))),
        posture: list(abilities.posture.as_ref().map(|all| json!(all))),
    }
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
        let holder =
            Holder { id: &runner.id, key: &runner.key, liveness: None, terms, generation: None };
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
