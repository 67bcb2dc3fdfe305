//! Who may talk to the plane: principals and runners, kept in memory, found by the digest of
//! their token. The store is the truth; whoever changes it calls [`Registry::reload`].

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use warrant_protocol::request::{ActorKind, ActorRef};
use warrant_protocol::wire::PrincipalRole;
use warrant_protocol::{Digest, PublicKey, RunnerId, Timestamp};

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
    last_seen_ms: AtomicU64,
}

impl Runner {
    pub(crate) fn seen(&self, now: Timestamp) {
        self.last_seen_ms.store(now.unix_ms(), Ordering::Relaxed);
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
    /// Reads everyone again. Returns the groups of people, by `human:name`.
    pub(crate) fn reload(&self, store: &Store) -> Result<HashMap<String, Vec<String>>, StoreError> {
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
            if let Some(old) = before.runners.get(&runner.id) {
                let seen = old.last_seen_ms.load(Ordering::Relaxed);
                runner.last_seen_ms.store(seen, Ordering::Relaxed);
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
    Some(Runner {
        id: row.id.parse().ok()?,
        pool: row.pool.clone(),
        key: PublicKey::from_pem(&row.public_key_pem).ok()?,
        enrolled_at: row.enrolled_at,
        is_revoked: row.revoked_at.is_some(),
        last_seen_ms: AtomicU64::new(0),
    })
}
