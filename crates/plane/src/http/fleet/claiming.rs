//! `POST /v1/claims`: a runner asks for work and waits for it.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::extract::{Request, State};
use serde::Serialize;
use serde_json::json;
use tokio::sync::oneshot;
use tokio::time::Instant;
use warrant_protocol::execution::DEFAULT_TIMEOUT_MS;
use warrant_protocol::port::PlaneError;
use warrant_protocol::wire::{
    ClaimRun, DisconnectRule, LEASE_MS, ProcessIdentity, RunnerAbilities,
};
use warrant_protocol::{ChainedEvent, Contract, Digest, RunId};

use super::{Answer, small_body, values};
use crate::http::error::HttpError;
use crate::http::lanes::{Lane, in_lane};
use crate::http::registry::Runner;
use crate::http::service::{PlaneService, Shared};
use crate::http::{answer, peer_of};
use crate::lease_table::LeaseTerms;
use crate::leases::Holder;
use crate::request_context::keep_cause;
use crate::store::{Abilities, Candidate};

/// The longest that a claim waits for work: a runner that works is heard at least this often.
const MAX_CLAIM_WAIT: Duration = Duration::from_secs(15);

/// What a run of an old runner may take beyond its own time: fetching, packing, uploading.
const OLD_RUNNER_MARGIN_MS: u64 = 600_000;

/// `POST /v1/claims`.
pub(in crate::http) async fn claim(State(service): State<Shared>, request: Request) -> Answer {
    let peer = peer_of(&request);
    let value = small_body(&service, request).await?;
    let wish = ClaimRun::from_value(&value)?;
    let Some(runner) = service.registry.runner_by_token(&wish.runner_token) else {
        return Err(match service.failures.count(peer, service.moment()) {
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
    service.check_can_read(wish.leases.unwrap_or(false))?;
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
        process: wish.process,
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
    process: Option<ProcessIdentity>,
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
        let (generation, process) = (seeker.generation, seeker.process.as_ref());
        let (id, key) = (&runner.id, &runner.key);
        let holder = Holder { id, key, liveness: None, terms, generation, process };
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

fn abilities_of(abilities: &RunnerAbilities) -> Abilities {
    let list = |names: Option<serde_json::Value>| names.map(|names| names.to_string());
    Abilities {
        isolations: list(abilities.isolations.as_ref().map(|all| json!(all))),
        agent_kinds: list(abilities.agent_kinds.as_ref().map(|all| json!(all))),
        posture: list(abilities.posture.as_ref().map(|all| json!(all))),
    }
}
