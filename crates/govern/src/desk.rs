//! The desk: this machine's own plane with its policy, and the walk of one run over it.

use std::collections::BTreeMap;
use std::env::VarError;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::panic::resume_unwind;
use std::path::Path;
use std::sync::Arc;
use std::thread;

use serde_json::Value;
use thiserror::Error;
use warrant_plane::judge::no_policy_hash;
use warrant_plane::policy_files::{PolicyFilesError, policy_folder, write_policy};
use warrant_plane::policy_holder::{PolicyFault, PolicyHolder, PolicyInForce};
use warrant_plane::reception::APPROVAL_WAIT_MS;
use warrant_plane::store::StoreError;
use warrant_plane::{
    ApproveError, EmbeddedError, EmbeddedPlane, Home, HomeEnvironment, HomeError, Judgment,
    Reception, Submission, SubmitError, random,
};
use warrant_policy::facts::Surroundings as Surrounded;
use warrant_policy::preset::Preset;
use warrant_policy::snapshot::PolicySnapshot;
use warrant_protocol::port::PlaneError;
use warrant_protocol::request::{ActorKind, ActorRef};
use warrant_protocol::{Decision, Receipt, RunId, RunRequest, SecretName, Timestamp};
use warrant_runner::run::{Ended, Observer, RunError, RunnerIdentity, Surroundings, governed_run};
use warrant_sandbox::{Backend, Cancel, Stdin, TtySize};

use crate::archive::run_named;
use crate::ask::Ask;
use crate::keep;
use crate::keyring::{self, KeyringError};
use crate::underway::Listed;
use crate::veil::Veil;

/// The plane of this machine with the policy in force. Threads may share it.
pub struct Desk {
    plane: EmbeddedPlane,
    holder: Arc<PolicyHolder>,
    /// What was in force when the desk was opened. It does not change under one call.
    in_force: PolicyInForce,
}

/// What a run has of this process while it runs.
#[derive(Clone, Copy)]
pub struct Hands<'a> {
    /// Where it runs.
    pub backend: &'a dyn Backend,
    /// What the program reads.
    pub stdin: &'a Stdin,
    /// The size of its terminal, if it gets one.
    pub tty: Option<TtySize>,
    /// Stops it.
    pub cancel: &'a Cancel,
    /// Sees its output, redacted.
    pub observer: &'a dyn Observer,
    /// What `env.inherit` of the contract may take from.
    pub environment: &'a BTreeMap<String, String>,
}

/// What became of an ask before anything ran.
#[derive(Debug)]
pub enum Permit {
    /// A contract exists and waits to be performed.
    Granted(RunId),
    /// People are asked first.
    Waiting {
        /// The run.
        run: RunId,
        /// What was decided, and who may approve.
        judgment: Judgment,
        /// Until when.
        deadline: Timestamp,
    },
    /// It may not run; the receipt says why.
    Denied {
        /// The run.
        run: RunId,
        /// Every reason.
        judgment: Judgment,
        /// The receipt.
        receipt: Box<Receipt>,
    },
}

/// What became of an ask in the end.
#[derive(Debug)]
pub enum Attempt {
    /// It ran, or was refused at a later step; the receipt says how it ended.
    Ended(Box<Ended>),
    /// It did not run.
    NotRun(Box<Permit>),
}

/// Why the desk could not do its work; nothing ran that has no record.
#[derive(Debug, Error)]
pub enum DeskError {
    /// The home cannot be used.
    #[error(transparent)]
    Home(#[from] HomeError),
    /// The plane failed.
    #[error(transparent)]
    Plane(#[from] EmbeddedError),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The policy's files cannot be used.
    #[error(transparent)]
    Files(#[from] PolicyFilesError),
    /// The request could not be received.
    #[error(transparent)]
    Submit(#[from] SubmitError),
    /// What waits could not be read.
    #[error(transparent)]
    Approvals(#[from] ApproveError),
    /// The run cannot be leased.
    #[error("the run cannot be leased")]
    Lease(#[source] PlaneError),
    /// The run left no receipt of its own; the plane seals it.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The request has no JSON form.
    #[error("the request cannot be written down")]
    Request(#[from] warrant_protocol::json::InvalidJson),
    /// The request holds what may be kept nowhere.
    #[error("{field} holds the value of {name}, which is kept nowhere: have the program read it")]
    SecretInRequest {
        /// Whose value.
        name: SecretName,
        /// In which member of the request.
        field: String,
    },
    /// Nobody waits for that approval any more.
    #[error("{0} does not wait any more; try again")]
    Moved(RunId),
    /// There is no such run.
    #[error("there is no run {0} here; see warrant runs")]
    NoRun(String),
    /// The keyring did not give the master key.
    #[error(transparent)]
    Keyring(#[from] KeyringError),
    /// The system refused.
    #[error("the system refused")]
    System(#[from] io::Error),
}

impl DeskError {
    /// Returns whether it failed because nothing can be written where the home lies.
    #[must_use]
    pub fn is_of_writing(&self) -> bool {
        match self {
            Self::Home(error) => error.is_of_writing(),
            Self::Plane(error) => error.is_of_writing(),
            Self::Store(error) => error.is_of_writing(),
            _ => false,
        }
    }
}

impl Desk {
    /// Opens the home, and sets it up with the default policy on first use.
    ///
    /// # Errors
    /// [`DeskError`] when home, store or policy cannot be used.
    pub fn open(home: Option<&Path>) -> Result<Self, DeskError> {
        Self::open_with(home, Preset::Default)
    }

    /// Opens the home; on first use it starts with `preset`.
    ///
    /// # Errors
    /// [`DeskError`] when home, store or policy cannot be used.
    pub fn open_with(home: Option<&Path>, preset: Preset) -> Result<Self, DeskError> {
        let (home, holder) = settle_in(home, preset)?;
        Self::with_store(home, holder)
    }

    /// Opens the home as [`Desk::open`] does, and does `beside` with the directory of its data
    /// while the store is being opened.
    ///
    /// # Errors
    /// [`DeskError`] when home, store or policy cannot be used.
    pub fn open_beside<T: Send>(
        home: Option<&Path>,
        beside: impl FnOnce(&Path) -> T + Send,
    ) -> Result<(Self, T), DeskError> {
        let (home, holder) = settle_in(home, Preset::Default)?;
        let data = home.data();
        thread::scope(|scope| {
            let other = thread::Builder::new().spawn_scoped(scope, || beside(&data))?;
            let desk = Self::with_store(home, holder);
            let done = other.join().unwrap_or_else(|panic| resume_unwind(panic));
            Ok((desk?, done))
        })
    }

    fn with_store(home: Home, holder: Arc<PolicyHolder>) -> Result<Self, DeskError> {
        // Before the store is open: short processes do both at once.
        let hash_of = |in_force: &PolicyInForce| {
            in_force.policy.as_ref().map_or_else(no_policy_hash, |policy| policy.hash())
        };
        let plane = EmbeddedPlane::open(home, hash_of(&holder.look()))?;
        let in_force = holder.look_with(plane.store());
        plane.set_policy_hash(hash_of(&in_force));
        Ok(Self { plane, holder, in_force })
    }

    /// Returns whether another policy is in force than when this desk was opened.
    #[must_use]
    pub fn is_outdated(&self) -> bool {
        let now = self.holder.look_with(self.plane.store());
        let hash = |in_force: &PolicyInForce| in_force.policy.as_ref().map(|policy| policy.hash());
        hash(&now) != hash(&self.in_force) || now.fault.is_some() != self.in_force.fault.is_some()
    }

    /// Lets go of it at the end of a process, whose memory the kernel takes apart faster.
    pub fn leave(self) {
        let Self { plane, in_force, holder } = self;
        plane.leave();
        std::mem::forget((in_force, holder));
    }

    /// Returns the plane.
    #[must_use]
    pub const fn plane(&self) -> &EmbeddedPlane {
        &self.plane
    }

    /// Returns the policy in force. Absent means that everything is denied.
    #[must_use]
    pub fn policy(&self) -> Option<&PolicySnapshot> {
        self.in_force.policy.as_deref()
    }

    /// Returns what is wrong with the files of this home's policy, when an older one is in force,
    /// or none, because of it.
    #[must_use]
    pub fn policy_fault(&self) -> Option<&PolicyFault> {
        self.in_force.fault.as_deref()
    }

    /// Returns the run with this id.
    ///
    /// # Errors
    /// [`DeskError::NoRun`] when there is none.
    pub fn run_named(&self, text: &str) -> Result<RunId, DeskError> {
        run_named(self.plane.records(), text)
    }

    /// Has an ask judged; nothing is stored.
    ///
    /// # Errors
    /// [`DeskError::SecretInRequest`] where it would be refused for that; [`DeskError::System`]
    /// without a clock.
    pub fn judge(&self, ask: &Ask) -> Result<Judgment, DeskError> {
        let around = ask.around(random::now()?.unix_ms());
        let judgment = self.judged(&ask.request, around);
        if judgment.summary.decision == Decision::Allow
            && let Some(veil) = Veil::over(self.plane.secrets(), &ask.request)?
        {
            let Veil { name, field, .. } = veil;
            return Err(DeskError::SecretInRequest { name, field });
        }
        Ok(judgment)
    }

    /// Judges by the policy in force. Without one everything is denied, and told why there is none.
    pub(crate) fn judged(&self, request: &RunRequest, around: Surrounded) -> Judgment {
        let PolicyInForce { policy, fault } = &self.in_force;
        let mut judgment = self.plane.judge(policy.as_deref(), request, around);
        if policy.is_none() && fault.is_some() {
            // SECURITY: this reaches clients and evidence; what exactly is wrong names paths.
            judgment.summary.reasons.push("the policy's files are broken".to_owned());
        }
        judgment
    }

    /// Has an ask judged and leaves evidence. The same ask, approved since it was first made, is
    /// granted, once.
    ///
    /// # Errors
    /// [`DeskError`] when nothing could be kept; then nothing may run.
    pub fn permit(&self, ask: &Ask) -> Result<Permit, DeskError> {
        self.plane.check_room()?;
        let around = ask.around(random::now()?.unix_ms());
        let Some(veil) = Veil::over(self.plane.secrets(), &ask.request)? else {
            return self.received(ask, |request| self.judged(request, around));
        };
        // SECURITY: whether the value was right is told only to whoever may have it. A denial
        // reads the same to the others, and what is kept of it holds no value.
        let mut request = ask.request.clone();
        request.requested_by = ask.principal.clone();
        let judgment = self.judged(&request, around);
        let refused =
            || DeskError::SecretInRequest { name: veil.name.clone(), field: veil.field.clone() };
        if judgment.summary.decision == Decision::Allow {
            return Err(refused());
        }
        let kept = veil.hide(&judgment).ok_or_else(refused)?;
        let request = veil.hide(&ask.request).ok_or_else(refused)?;
        let hidden = Ask { request, ..ask.clone() };
        let told = judgment;
        Ok(match self.received(&hidden, |_| kept)? {
            Permit::Denied { run, receipt, .. } => Permit::Denied { run, judgment: told, receipt },
            Permit::Waiting { run, deadline, .. } => {
                Permit::Waiting { run, judgment: told, deadline }
            }
            granted @ Permit::Granted(_) => granted,
        })
    }

    fn received(
        &self,
        ask: &Ask,
        judge: impl FnOnce(&RunRequest) -> Judgment,
    ) -> Result<Permit, DeskError> {
        if let Some(run) = self.approved_twin(ask)? {
            return Ok(Permit::Granted(run));
        }
        let submission = Submission {
            request: ask.request.clone(),
            principal: ask.principal.clone(),
            idempotency_key: None,
            approval_wait_ms: APPROVAL_WAIT_MS,
        };
        let reception = self.plane.submit(submission, judge)?;
        let waiting = match reception {
            Reception::Queued { run } => return Ok(Permit::Granted(run)),
            Reception::Denied { run, judgment, receipt } => {
                return Ok(Permit::Denied { run, judgment, receipt });
            }
            Reception::AwaitingApproval { run, judgment, deadline } => {
                return Ok(Permit::Waiting { run, judgment, deadline });
            }
            Reception::Repeated { run, .. } => run,
        };
        let mut all = self.plane.waiting()?.into_iter();
        let found = all.find(|other| other.run == waiting);
        let found = found.ok_or_else(|| DeskError::Moved(waiting.clone()))?;
        let (judgment, deadline) = (found.judgment, found.deadline);
        Ok(Permit::Waiting { run: waiting, judgment, deadline })
    }

    /// Ends what people approved in the form without values: run as it stands, the program would
    /// get words that nobody meant.
    fn check_veiled(&self, run: &RunId, ask: &Ask) -> Result<(), DeskError> {
        let Some(Veil { name, field, .. }) = Veil::over(self.plane.secrets(), &ask.request)? else {
            return Ok(());
        };
        self.plane.cancel(run, &ask.principal)?;
        Err(DeskError::SecretInRequest { name, field })
    }

    /// Runs what was permitted, to its receipt.
    ///
    /// # Errors
    /// [`DeskError`] when no receipt could be left.
    pub fn perform(&self, run: &RunId, ask: &Ask, hands: &Hands<'_>) -> Result<Ended, DeskError> {
        self.check_veiled(run, ask)?;
        let lease = self.plane.lease(run).map_err(DeskError::Lease)?;
        let home = self.plane.home();
        let identity = RunnerIdentity {
            id: home.runner_id().clone(),
            key: home.runner_key().clone(),
            pool: home.pool().clone(),
        };
        let began = random::now()?;
        let _listed = Listed::new(run, hands.cancel);
        let surroundings = Surroundings {
            plane: &self.plane,
            plane_key: home.plane_key().public(),
            identity: &identity,
            backends: &[hands.backend],
            pins: &[],
            workspace: &ask.workspace,
            scratch: &home.sessions(),
            own: home.root(),
            environment: hands.environment,
            stdin: hands.stdin,
            tty: hands.tty,
            cancel: hands.cancel,
            observer: hands.observer,
            gate: &keep::gate(self),
            clock: &|| random::now().unwrap_or(began),
        };
        Ok(governed_run(&surroundings, lease)?)
    }

    /// Has an ask judged, and runs it if it may run at once.
    ///
    /// # Errors
    /// [`DeskError`] when nothing could be kept or no receipt could be left.
    pub fn attempt(&self, ask: &Ask, hands: &Hands<'_>) -> Result<Attempt, DeskError> {
        match self.permit(ask)? {
            Permit::Granted(run) => Ok(Attempt::Ended(Box::new(self.perform(&run, ask, hands)?))),
            other => Ok(Attempt::NotRun(Box::new(other))),
        }
    }

    /// The same request, approved since it was made: it starts now, and only once.
    pub(crate) fn approved_twin(&self, ask: &Ask) -> Result<Option<RunId>, DeskError> {
        // What is stored has the authenticated principal in it.
        let mut request = ask.request.clone();
        request.requested_by = ask.principal.clone();
        let hash = request.hash()?;
        for row in self.plane.store().queued(&hash)? {
            let contract = row.contract.as_deref().unwrap_or("null");
            let contract: Value = serde_json::from_str(contract).unwrap_or(Value::Null);
            if contract.get("approvedBy").is_some() {
                return Ok(Some(row.id));
            }
        }
        Ok(None)
    }
}

/// Opens the home, with `preset` on first use, and reads its policy.
fn settle_in(home: Option<&Path>, preset: Preset) -> Result<(Home, Arc<PolicyHolder>), DeskError> {
    let environment = environment(home)?;
    let home = Home::open_prepared(&environment, &|root| match policy_folder(root).exists() {
        true => Ok(()),
        false => write_policy(root, &preset.into()).map_err(io::Error::other),
    })?;
    let holder = PolicyHolder::of(home.root());
    Ok((home, holder))
}

/// Returns what of the environment says where home is and what opens it; a named home goes before.
///
/// # Errors
/// [`DeskError`] when the named home has no absolute path or the keyring gives no key.
pub fn environment(home: Option<&Path>) -> Result<HomeEnvironment, DeskError> {
    let mut environment = HomeEnvironment::of_process();
    if let Some(home) = home {
        environment.warrant_home = Some(std::path::absolute(home)?.into_os_string());
    }
    // SECURITY: a key that cannot be read is no reason to leave the others open.
    if matches!(std::env::var("WARRANT_MASTER_KEY"), Err(VarError::NotUnicode(_))) {
        return Err(KeyringError::NoText.into());
    }
    if let Some(source) = std::env::var_os("WARRANT_MASTER_KEY_FROM") {
        environment.master_key = Some(keyring::master_key(&source.to_string_lossy())?);
    }
    Ok(environment)
}

/// Returns the variables of this process that are text. No other can be inherited, because a
/// contract has no word for them, and one that nobody asked for keeps nothing from running.
#[must_use]
pub fn variables() -> BTreeMap<String, String> {
    let text = |(name, value): (OsString, OsString)| {
        Some((name.into_string().ok()?, value.into_string().ok()?))
    };
    std::env::vars_os().filter_map(text).collect()
}

/// Returns who is at the keyboard, as the operating system authenticated them.
#[must_use]
pub fn principal() -> ActorRef {
    principal_of(rustix::process::getuid().as_raw())
}

/// Returns the person whom the operating system knows by a number.
#[must_use]
pub fn principal_of(uid: u32) -> ActorRef {
    let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let name = passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(uid)).then(|| name.to_owned())
    });
    ActorRef { kind: ActorKind::Human, id: name.unwrap_or_else(|| format!("uid-{uid}")) }
}
