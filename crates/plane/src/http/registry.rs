//! Who may talk to the plane: principals and runners, kept in memory, found by the digest of
//! their token. The store is the truth; whoever changes it calls [`Registry::reload`].

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use warrant_protocol::request::{ActorKind, ActorRef};
use warrant_protocol::wire::{PrincipalRole, RunnerAbilities};
use warrant_protocol::{Digest, PublicKey, RunnerId, Timestamp};

use crate::lease_table::UNREACHABLE_AFTER;
use crate::store::{PrincipalRow, RunnerRow, Store, StoreError};

/// What somebody may be allowed to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Capability {
    RunsRead,
    RunsCreate,
    RunsApprove,
    RunsCancel,
    RunnersRead,
    PolicyRead,
    BlobsWrite,
    ExportRead,
    PrincipalsManage,
}

/// Somebody with a token.
#[derive(Debug, Clone)]
pub(crate) struct Principal {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) role: PrincipalRole,
    pub(crate) actor: ActorRef,
}

impl Principal {
    /// The one table of who may do what.
    pub(crate) const fn may(&self, wanted: Capability) -> bool {
        use Capability as C;
        match self.role {
            PrincipalRole::Admin => true,
            PrincipalRole::Requester => matches!(
                wanted,
                C::RunsRead | C::RunsCreate | C::RunsCancel | C::BlobsWrite | C::PolicyRead
            ),
            PrincipalRole::Approver => {
                matches!(wanted, C::RunsRead | C::RunsApprove | C::PolicyRead)
            }
            PrincipalRole::Enroller => matches!(wanted, C::RunnersRead),
            PrincipalRole::Auditor => {
                matches!(wanted, C::RunsRead | C::RunnersRead | C::PolicyRead | C::ExportRead)
            }
        }
    }

    /// Whether their token lets any number of runners in.
    pub(crate) const fn may_enroll(&self) -> bool {
        matches!(self.role, PrincipalRole::Admin | PrincipalRole::Enroller)
    }
}

/// An enrolled runner.
#[derive(Debug)]
pub(crate) struct Runner {
    pub(crate) id: RunnerId,
    pub(crate) pool: String,
    pub(crate) key: PublicKey,
    pub(crate) enrolled_at: Timestamp,
    pub(crate) is_revoked: bool,
    /// The date at which it was last heard, for people; zero when this plane never heard it.
    last_seen_ms: AtomicU64,
    /// How long the plane had been running when it was last heard.
    heard_ms: AtomicU64,
    /// The latest process of it that asked for work; zero when none said which it is.
    generation: AtomicU64,
    /// What it said it can do when it last asked for work; not limited while it has not said.
    abilities: RwLock<RunnerAbilities>,
}

impl Runner {
    /// Returns what it can do.
    pub(crate) fn abilities(&self) -> RunnerAbilities {
        self.abilities.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Takes note of what it can do; returns whether that is new.
    pub(crate) fn offer(&self, abilities: &RunnerAbilities) -> bool {
        if *self.abilities.read().unwrap_or_else(PoisonError::into_inner) == *abilities {
            return false;
        }
        *self.abilities.write().unwrap_or_else(PoisonError::into_inner) = abilities.clone();
        true
    }

    /// Notes that it was heard: on which date, and after which running time of the plane.
    pub(crate) fn seen(&self, now: Timestamp, running: Duration) {
        self.last_seen_ms.store(now.unix_ms(), Ordering::Relaxed);
        self.heard_ms.fetch_max(whole_ms(running), Ordering::Relaxed);
    }

    /// Returns whether it has been silent for longer than a runner that works ever is.
    pub(crate) fn is_unreachable(&self, running: Duration) -> bool {
        let heard = Duration::from_millis(self.heard_ms.load(Ordering::Relaxed));
        running.saturating_sub(heard) >= UNREACHABLE_AFTER
    }

    /// Takes note of the process that asks for work; false when a later one has asked before.
    pub(crate) fn admits(&self, generation: Option<u64>) -> bool {
        let Some(generation) = generation else { return true };
        self.generation.fetch_max(generation, Ordering::AcqRel) <= generation
    }

    /// Returns whether a later process of it has asked for work than the one that is meant.
    pub(crate) fn has_replaced(&self, generation: Option<u64>) -> bool {
        generation.is_some_and(|meant| meant < self.generation.load(Ordering::Acquire))
    }

    fn continue_as(&self, old: &Self) {
        for (new, old) in [
            (&self.last_seen_ms, &old.last_seen_ms),
            (&self.heard_ms, &old.heard_ms),
            (&self.generation, &old.generation),
        ] {
            new.store(old.load(Ordering::Acquire), Ordering::Release);
        }
        // The newest may not be in the store yet.
        self.offer(&old.abilities());
    }

    pub(crate) fn last_seen(&self) -> Option<Timestamp> {
        let unix_ms = self.last_seen_ms.load(Ordering::Relaxed);
        if unix_ms == 0 { None } else { Timestamp::from_unix_ms(unix_ms).ok() }
    }
}

/// Everyone with a token.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    known: RwLock<Known>,
    /// Held from reading the store to publishing what was read, so that an older reading never
    /// replaces a newer one and takes a runner's token away that was just given.
    reading: Mutex<()>,
}

#[derive(Debug, Default)]
struct Known {
    principals: HashMap<Digest, Arc<Principal>>,
    runners: HashMap<RunnerId, Arc<Runner>>,
    runner_tokens: HashMap<Digest, Arc<Runner>>,
}

impl Registry {
    /// Reads everyone again, when the plane has been running for `running`. Returns the groups of
    /// people, by `human:name`.
    pub(crate) fn reload(
        &self,
        store: &Store,
        running: Duration,
    ) -> Result<HashMap<String, Vec<String>>, StoreError> {
        let _alone = self.reading.lock().unwrap_or_else(PoisonError::into_inner);
        let people = store.principals()?;
        let runners = store.runners()?;
        let mut groups = HashMap::new();
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::take(&mut *known);
        for row in people.iter().filter(|row| row.revoked_at.is_none()) {
            let Some(principal) = principal_of(row) else { continue };
            groups.insert(principal.actor.label(), groups_of(row));
            known.principals.insert(row.token_hash, Arc::new(principal));
        }
        for row in &runners {
            let Some(runner) = runner_of(row) else { continue };
            match before.runners.get(&runner.id) {
                Some(old) => runner.continue_as(old),
                None => runner.heard_ms.store(whole_ms(running), Ordering::Relaxed),
            }
            let runner = Arc::new(runner);
            known.runners.insert(runner.id.clone(), Arc::clone(&runner));
            known.runner_tokens.insert(row.token_hash, runner);
        }
        Ok(groups)
    }

    /// Returns whose token it is. The lookup is by digest, so its time tells nothing.
    pub(crate) fn principal(&self, token: &str) -> Option<Arc<Principal>> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        known.principals.get(&Digest::of(token.as_bytes())).cloned()
    }

    /// Returns which runner's token it is; one that was sent away has none.
    pub(crate) fn runner_by_token(&self, token: &str) -> Option<Arc<Runner>> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let found = known.runner_tokens.get(&Digest::of(token.as_bytes())).cloned();
        found.filter(|runner| !runner.is_revoked)
    }

    /// Returns a runner.
    pub(crate) fn runner(&self, id: &RunnerId) -> Option<Arc<Runner>> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        known.runners.get(id).cloned()
    }

    /// Returns every runner, oldest first.
    pub(crate) fn runners(&self) -> Vec<Arc<Runner>> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<_> = known.runners.values().cloned().collect();
        all.sort_by_key(|runner| (runner.enrolled_at, runner.id.clone()));
        all
    }
}

pub(crate) fn groups_of(row: &PrincipalRow) -> Vec<String> {
    serde_json::from_str(&row.groups).unwrap_or_default()
}

pub(crate) fn role_of(row: &PrincipalRow) -> Option<PrincipalRole> {
    PrincipalRole::ALL.into_iter().find(|role| role.as_str() == row.role)
}

fn principal_of(row: &PrincipalRow) -> Option<Principal> {
    let kind = if row.kind == "service" { ActorKind::Service } else { ActorKind::Human };
    Some(Principal {
        id: row.id.clone(),
        name: row.name.clone(),
        role: role_of(row)?,
        actor: ActorRef { kind, id: row.name.clone() },
    })
}

fn runner_of(row: &RunnerRow) -> Option<Runner> {
    let abilities = row.abilities.as_deref().and_then(|text| serde_json::from_str(text).ok());
    Some(Runner {
        id: row.id.parse().ok()?,
        pool: row.pool.clone(),
        key: PublicKey::from_pem(&row.public_key_pem).ok()?,
        enrolled_at: row.enrolled_at,
        is_revoked: row.revoked_at.is_some(),
        last_seen_ms: AtomicU64::new(0),
        heard_ms: AtomicU64::new(0),
        generation: AtomicU64::new(0),
        abilities: RwLock::new(abilities.unwrap_or_default()),
    })
}

fn whole_ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
