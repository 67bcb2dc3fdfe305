//! The plane as a service: what every handler works with.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hyper::HeaderMap;
use hyper::header::AUTHORIZATION;
use thiserror::Error;
use tokio::sync::watch;
use warrant_policy::PolicySnapshot;
use warrant_policy::facts::{History, Surroundings};
use warrant_protocol::claim::{Claim, InvalidClaim};
use warrant_protocol::policy::DEFAULT_MAX_FALSE_CLAIMS;
use warrant_protocol::port::LeaseKey;
use warrant_protocol::request::WorkspaceMode;
use warrant_protocol::wire::{DisconnectRule, TOKEN_BEYOND_LEASE_MS};
use warrant_protocol::{
    Digest, Isolation, Moment, PrincipalId, RunId, RunRequest, TimeSource, Timestamp,
};

use super::admission::Admission;
use super::error::HttpError;
use super::lanes::{Lane, Lanes, in_lane};
use super::limits::{Buckets, Failures};
use super::logs::LiveLogs;
use super::metrics::Metrics;
use super::registry::{Capability, Principal, Registry, Runner};
use super::settings::{Limits, Settings};
use super::store_watch::StoreWatch;
use super::tokens::TokenCache;
use super::waiting::{Changes, Waiters, Wanted, going_down};
use crate::clock::SystemTimeSource;
use crate::embedded::{EmbeddedError, EmbeddedPlane};
use crate::home::Home;
use crate::judge::no_policy_hash;
use crate::lease_table::HolderStatus;
use crate::notary::Judgment;
use crate::page::Tickets;
use crate::policy_holder::{PolicyHolder, PolicyInForce};
use crate::process_identity::{ProcessLife, life_of};
use crate::random;
use crate::reap::Reaped;
use crate::request_context::note_principal;
use crate::store::{BLOB_GRACE_MS, LiveRun, PrincipalRow, RunRow, StoreError, Swept};

/// How often the plane looks for leases that ran out and for what others queued.
const SWEEP: Duration = Duration::from_secs(1);

/// The plane as a service. Handlers share one.
pub struct PlaneService {
    pub(crate) plane: EmbeddedPlane,
    pub(crate) settings: Settings,
    pub(crate) limits: Limits,
    pub(crate) registry: Registry,
    pub(crate) waiters: Waiters,
    pub(crate) changes: Changes,
    pub(crate) logs: LiveLogs,
    pub(crate) metrics: Metrics,
    pub(crate) failures: Failures,
    pub(crate) buckets: Buckets<String>,
    pub(crate) lanes: Lanes,
    pub(crate) admission: Arc<Admission>,
    pub(crate) tokens: TokenCache,
    pub(crate) draining: watch::Sender<bool>,
    pub(crate) store_watch: StoreWatch,
    /// Log-ins to the page that wait for their person.
    pub(crate) tickets: Arc<Tickets>,
    /// Runs that a claim is taking in this moment, so that two never fight for one.
    pub(crate) claiming: Mutex<HashSet<RunId>>,
    pub(crate) policy_holder: Arc<PolicyHolder>,
}

/// One service, shared.
pub type Shared = Arc<PlaneService>;

impl std::fmt::Debug for PlaneService {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PlaneService({})", self.plane.home().root().display())
    }
}

/// Why the plane cannot serve.
#[derive(Debug, Error)]
pub enum ServiceError {
    /// The plane cannot be opened.
    #[error(transparent)]
    Plane(#[from] EmbeddedError),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The policy in the home is broken, and no older one is recorded.
    #[error("no policy can be put in force: {0}; see warrant policy check")]
    Policy(String),
    /// The system refused.
    #[error("the system has no randomness or no clock")]
    System(#[from] std::io::Error),
}

impl PlaneService {
    /// Opens the plane of a home to serve others, under the policy that lies in the home.
    /// Without one everything is denied.
    ///
    /// # Errors
    /// [`ServiceError`] when the store or the policy cannot be used.
    pub fn open(home: Home, settings: Settings) -> Result<Self, ServiceError> {
        Self::open_on(home, settings, Arc::new(SystemTimeSource))
    }

    /// As [`PlaneService::open`], on these clocks.
    ///
    /// # Errors
    /// Those of [`PlaneService::open`].
    pub fn open_on(
        home: Home,
        settings: Settings,
        time: Arc<dyn TimeSource>,
    ) -> Result<Self, ServiceError> {
        let policy_holder = PolicyHolder::of(home.root());
        let plane = EmbeddedPlane::open_service_on(home, no_policy_hash(), time)?;
        if let PolicyInForce { policy: None, fault: Some(fault) } =
            policy_holder.look_with(plane.store())
        {
            return Err(ServiceError::Policy(fault.detail().to_owned()));
        }
        let limits = settings.limits.unwrap_or_default();
        let service = Self {
            plane,
            limits,
            registry: Registry::default(),
            waiters: Waiters::default(),
            changes: Changes::new(),
            logs: LiveLogs::default(),
            metrics: Metrics::default(),
            failures: Failures::new(limits.auth_failures_per_minute),
            buckets: Buckets::new(limits.requests_per_second, limits.request_burst),
            lanes: Lanes::default(),
            admission: Arc::new(Admission::new(&limits)),
            tokens: TokenCache::default(),
            draining: watch::Sender::new(false),
            store_watch: StoreWatch::default(),
            tickets: Arc::default(),
            claiming: Mutex::default(),
            policy_holder,
            settings,
        };
        service.bootstrap()?;
        service.policy();
        Ok(service)
    }

    /// Returns the plane.
    #[must_use]
    pub const fn plane(&self) -> &EmbeddedPlane {
        &self.plane
    }

    /// Returns the present moment, for durations.
    pub(crate) fn moment(&self) -> Moment {
        self.plane.time().moment()
    }

    /// Returns what the plane takes on at once, for [`super::serve`].
    #[must_use]
    pub fn admission(&self) -> Arc<Admission> {
        Arc::clone(&self.admission)
    }

    /// Returns the settings.
    #[must_use]
    pub const fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Returns a word with which one person logs in to the page, once, as whoever `token` says.
    ///
    /// # Errors
    /// The system's error when it has no randomness.
    pub fn ticket(&self, token: &str) -> std::io::Result<String> {
        self.tickets.issue(token, self.moment())
    }

    /// Tells everyone who waits that the plane is going down: claims and streams end now.
    pub fn drain(&self) {
        self.draining.send_replace(true);
    }

    /// Makes or updates the two principals whose tokens are in the settings.
    fn bootstrap(&self) -> Result<(), ServiceError> {
        let first = [
            ("admin", "admin", "human", &self.settings.admin_token),
            ("bootstrap-enroller", "enroller", "service", &self.settings.enroll_token),
        ];
        for (name, role, kind, token) in first {
            let token_hash = Digest::of(token.as_bytes());
            let row = PrincipalRow {
                id: PrincipalId::from_random(random::bytes()?).to_string(),
                name: name.to_owned(),
                role: role.to_owned(),
                kind: kind.to_owned(),
                groups: "[]".to_owned(),
                token_hash,
                created_at: self.plane.now(),
                revoked_at: None,
            };
            if !self.plane.store().add_principal(row)? {
                self.plane.store().set_principal_token(name, token_hash)?;
            }
        }
        self.reload_registry()?;
        Ok(())
    }

    /// Reads everyone with a token again.
    pub(crate) fn reload_registry(&self) -> Result<(), EmbeddedError> {
        let groups = self.registry.reload(self.plane.store(), self.plane.running_time())?;
        self.plane.set_groups(groups);
        // Who may approve by group is known only now.
        for run in self.plane.issue_approved()? {
            self.tell_queued(&run);
        }
        Ok(())
    }

    /// Returns the policy in force, after a look at its files.
    pub(crate) fn policy(&self) -> Option<Arc<PolicySnapshot>> {
        self.policy_in_force().policy
    }

    /// Returns what is in force, after a look at the policy's files, and has the plane decide by it.
    pub(crate) fn policy_in_force(&self) -> PolicyInForce {
        let in_force = self.policy_holder.look_with(self.plane.store());
        let policy = in_force.policy.as_ref();
        let hash = policy.map_or_else(no_policy_hash, |policy| policy.hash());
        if self.plane.policy_hash() != hash {
            tracing::info!(policy.hash = %hash, "another policy is in force");
            self.plane.set_policy_hash(hash);
            let most = policy.and_then(|policy| policy.document().body().runners.max_false_claims);
            self.plane.set_most_false_claims(most.unwrap_or(DEFAULT_MAX_FALSE_CLAIMS));
        }
        in_force
    }

    /// Has a request judged by the policy in force. `request` names who was authenticated.
    pub(crate) fn judge(&self, request: &RunRequest, now: Timestamp) -> Judgment {
        let around = Surroundings {
            requester: request.requested_by.label(),
            program: None,
            settled_env: std::collections::BTreeSet::new(),
            // What the contract will say where the request is silent.
            isolation: request.isolation.unwrap_or(Isolation::Process),
            mode: request.mode.unwrap_or(WorkspaceMode::Overlay),
            image: None,
            accepted_evidence: std::collections::BTreeMap::new(),
            data_classes: std::collections::BTreeSet::new(),
            history: History::default(),
            now_ms: now.unix_ms(),
            approvals: Vec::new(),
        };
        self.plane.judge(self.policy().as_deref(), request, around)
    }

    /// Lets a caller in that may do `wanted`.
    ///
    /// Order of checks: token, role, rate. A wrong token is refused more briefly when its
    /// address has brought many; a right one never suffers from its neighbors.
    pub(crate) fn admit(
        &self,
        (headers, peer): (&HeaderMap, IpAddr),
        wanted: Capability,
    ) -> Result<Arc<Principal>, HttpError> {
        let principal = bearer(headers).and_then(|token| self.registry.principal(token));
        let Some(principal) = principal else { return Err(self.stranger(peer)) };
        note_principal(&principal.id);
        if !principal.may(wanted) {
            return Err(HttpError::lacks_role());
        }
        if !self.buckets.take(&principal.id, self.moment()) {
            return Err(HttpError::rate_limited());
        }
        Ok(principal)
    }

    /// Counts a wrong token and returns what its bearer is told.
    pub(crate) fn stranger(&self, peer: IpAddr) -> HttpError {
        self.metrics.count("auth.failed");
        if self.failures.count(peer, self.moment()) {
            HttpError::locked_out()
        } else {
            HttpError::unauthorized()
        }
    }

    /// Returns what a claim token opens, and for whom.
    pub(crate) fn open_claim(&self, token: &str) -> Result<Opened, HttpError> {
        let now = self.plane.now();
        let claim = match self.tokens.known(token, now) {
            Some(claim) => claim,
            None => {
                let key = self.plane.home().plane_key().public();
                let claim = Claim::from_token(token, key, now)?;
                self.tokens.keep(token, &claim);
                claim
            }
        };
        note_principal(claim.runner_id.as_str());
        let runner = self.registry.runner(&claim.runner_id);
        let runner = runner.ok_or(InvalidClaim::RunnerMismatch)?;
        if runner.is_revoked {
            return Err(HttpError::not_accepted("the runner was sent away"));
        }
        let epoch = claim.epoch.ok_or(InvalidClaim::RunnerMismatch)?;
        runner.seen(now, self.plane.running_time());
        Ok(Opened { lease: LeaseKey { run: claim.run_id, epoch }, runner })
    }

    /// Returns what a claim token opens after checking that it opens `run`.
    pub(crate) fn open_run(&self, token: &str, run: &str) -> Result<Opened, HttpError> {
        let opened = self.open_claim(token)?;
        if opened.lease.run.as_str() != run {
            return Err(InvalidClaim::RunMismatch.into());
        }
        Ok(opened)
    }

    /// Returns a claim token for a lease that lasts `lease_ms`.
    pub(crate) fn claim_token(
        &self,
        lease: &LeaseKey,
        runner: &Runner,
        lease_ms: u64,
    ) -> Result<String, HttpError> {
        let claim = Claim {
            run_id: lease.run.clone(),
            runner_id: runner.id.clone(),
            nonce: URL_SAFE_NO_PAD.encode(random::bytes::<16>()?),
            exp: self.plane.now().plus_ms(lease_ms.saturating_add(TOKEN_BEYOND_LEASE_MS)),
            epoch: Some(lease.epoch),
        };
        let token = claim.to_token(self.plane.home().plane_key());
        let token = token.map_err(|error| HttpError::internal(&error))?;
        self.tokens.keep(&token, &claim);
        Ok(token)
    }

    /// Tells whoever waits that a run is in the queue.
    pub(crate) fn queued(&self, row: &RunRow) {
        let posture: Vec<String> = row
            .contract
            .as_deref()
            .filter(|contract| contract.contains("\"requiredPosture\""))
            .and_then(|contract| serde_json::from_str::<serde_json::Value>(contract).ok())
            .and_then(|contract| {
                serde_json::from_value(contract.get("requiredPosture")?.clone()).ok()
            })
            .unwrap_or_default();
        self.waiters.wake_one(&Wanted {
            pool: &row.pool,
            isolation: row.isolation.as_deref().unwrap_or(Isolation::Process.as_str()),
            agent_kind: &row.agent_kind,
            posture: &posture,
        });
        self.changes.tell(&row.id);
    }

    /// Ends leases that ran out and questions nobody answered; wakes whoever can go on.
    pub(crate) fn sweep(&self) -> Result<(), EmbeddedError> {
        self.policy();
        self.reap()?;
        for (pool, _) in self.plane.store().queued_by_pool()? {
            self.waiters.wake_pool(&pool);
        }
        Ok(())
    }

    /// Ends the leases that ran out, and tells whoever waits. Returns which runs that were.
    ///
    /// # Errors
    /// [`EmbeddedError`] when the store failed.
    pub fn reap(&self) -> Result<Reaped, EmbeddedError> {
        let reaped = self.plane.reap_leases(|run| self.holder_of(run))?;
        for run in &reaped.lost {
            tracing::warn!(run.id = %run, "the runner of {run} is gone; sealed as lost");
            self.metrics.count("runs.lost");
            self.logs.end(run);
            self.changes.tell(run);
        }
        for run in &reaped.requeued {
            tracing::warn!(run.id = %run, "the lease of {run} ended before it started; queued again");
            self.metrics.count("runs.requeued");
            self.changes.tell(run);
        }
        Ok(reaped)
    }

    /// Returns whether the process that took a run can still be there.
    fn holder_of(&self, run: &LiveRun) -> HolderStatus {
        let id = run.runner.as_deref().and_then(|id| id.parse().ok());
        let runner = id.and_then(|id| self.registry.runner(&id));
        match runner {
            Some(runner) if !runner.is_revoked && !runner.has_replaced(run.generation) => {
                match run.process.as_ref().map(life_of) {
                    Some(ProcessLife::Ended) => HolderStatus::Ended,
                    Some(ProcessLife::Possible) | None => HolderStatus::Possible,
                }
            }
            Some(_) | None => HolderStatus::Gone,
        }
    }

    /// Returns what a runner does with a started run while this plane does not answer.
    pub(crate) fn disconnect_rule(&self) -> DisconnectRule {
        let policy = self.policy();
        policy.map_or(DisconnectRule::DEFAULT, |policy| policy.controls().disconnect_rule())
    }

    /// Removes what the policy says need not be kept any longer.
    ///
    /// # Errors
    /// [`ServiceError`] when the store failed.
    pub fn sweep_retention(&self, now: Timestamp) -> Result<Swept, ServiceError> {
        let Some(policy) = self.policy() else { return Ok(Swept::default()) };
        let retention = &policy.document().body().retention;
        let ago = |ms: u64| Timestamp::from_unix_ms(now.unix_ms().saturating_sub(ms));
        let receipts_before = ago(days_ms(retention.receipts_days));
        let artifacts_before = ago(days_ms(retention.artifacts_days));
        let (Ok(receipts_before), Ok(artifacts_before), Ok(stored_before)) =
            (receipts_before, artifacts_before, ago(BLOB_GRACE_MS))
        else {
            return Ok(Swept::default());
        };
        let runs = self.plane.store().sweep_runs(receipts_before)?;
        let blobs = self.plane.store().sweep_blobs(stored_before, artifacts_before)?;
        if runs + blobs > 0 {
            tracing::info!(runs, blobs, "retention removed {runs} runs and {blobs} blobs");
        }
        Ok(Swept { runs, blobs })
    }

    /// Seals questions and contracts whose time is over.
    pub(crate) fn sweep_slowly(&self) -> Result<(), EmbeddedError> {
        for run in self.plane.seal_lost()? {
            self.changes.tell(&run);
        }
        Ok(())
    }
}

const fn days_ms(days: u64) -> u64 {
    days.saturating_mul(24 * 3_600_000)
}

/// Looks after leases until the plane goes down.
pub async fn keep_house(service: Shared) {
    let mut ticks = tokio::time::interval(SWEEP);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut draining = service.draining.subscribe();
    let mut count: u32 = 0;
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = going_down(&mut draining) => return,
        }
        count = count.wrapping_add(1);
        let is_slow_turn = count.is_multiple_of(15);
        // Also soon after the start, for planes that seldom live for an hour.
        let is_retention_turn = count == 60 || count.is_multiple_of(3600);
        let swept = in_lane(Lane::Leases, &service, move |service| {
            if service.check_store_quietly().is_some() {
                // It was logged; a sweep would fail for the same reason.
                return Ok(());
            }
            service.sweep()?;
            if is_slow_turn {
                service.sweep_slowly()?;
            }
            if is_retention_turn {
                let swept = service.sweep_retention(service.plane.now());
                swept.map_err(|error| HttpError::internal(&error))?;
            }
            Ok(())
        });
        // It was logged; the next sweep tries again.
        let _ = swept.await;
    }
}

/// What a claim token opens.
pub(crate) struct Opened {
    pub(crate) lease: LeaseKey,
    pub(crate) runner: Arc<Runner>,
}

/// Returns the bearer token of a request; the prefix is exact.
pub(crate) fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(AUTHORIZATION)?.to_str().ok()?;
    value.strip_prefix("Bearer ").filter(|token| !token.is_empty())
}

/// Does what people and their programs ask for, on a thread that may wait for the disk.
pub(crate) async fn blocking<T: Send + 'static>(
    service: &Shared,
    work: impl FnOnce(&PlaneService) -> Result<T, HttpError> + Send + 'static,
) -> Result<T, HttpError> {
    in_lane(Lane::Requests, service, work).await
}
