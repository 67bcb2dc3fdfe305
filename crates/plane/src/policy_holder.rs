//! The one holder of a home's policy, for every entry of a process: HTTP, the compat APIs, MCP and
//! the command line.
//!
//! ```text
//! files in the home ──read when they changed──► loads ───► in force, and recorded in the store
//!                                          └──► broken ──► the last good one stays in force, else
//!                                                          the one that the store recorded last
//! ```
//!
//! Without a policy folder no policy is in force and everything is denied. What is wrong with
//! broken files names paths of this machine, so it is for admins alone ([`PolicyFault::detail`]).

use std::collections::HashMap;
use std::error::Error;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use serde_json::{Value, json};
use thiserror::Error;
use warrant_policy::snapshot::{InvalidSnapshot, PolicySnapshot, PolicyText};
use warrant_protocol::{Timestamp, error_chain};

use crate::policy_files::{PolicyFiles, PolicyFilesError, policy_folder, write_policy};
use crate::store::{PolicyRow, Store};
use crate::{policy_passed, random};

/// Holds the policy of one home. Every user of that home in this process shares it.
#[derive(Debug)]
pub struct PolicyHolder {
    home: PathBuf,
    state: Mutex<HeldState>,
}

#[derive(Debug, Default)]
struct HeldState {
    /// What the files looked like when they were read.
    seen: Option<FilesSeen>,
    in_force: PolicyInForce,
    /// Whether the store has what is in force.
    is_recorded: bool,
}

/// Device, inode, change time and size of the folder and its files, where they exist.
type FilesSeen = Vec<Option<(u64, u64, i64, i64, u64)>>;

/// What is in force now. Absent policy means that everything is denied.
#[derive(Debug, Clone, Default)]
pub struct PolicyInForce {
    /// The policy that decides.
    pub policy: Option<Arc<PolicySnapshot>>,
    /// What is wrong with the files, when an older policy decides because of it.
    pub fault: Option<Arc<PolicyFault>>,
}

/// Why the files of a policy are not in force.
#[derive(Debug)]
pub struct PolicyFault {
    detail: String,
    since: Timestamp,
}

impl PolicyFault {
    /// Returns what is wrong, with file and line. It names paths of this machine: for admins alone.
    #[must_use]
    pub fn detail(&self) -> &str {
        &self.detail
    }

    /// Returns since when.
    #[must_use]
    pub const fn since(&self) -> Timestamp {
        self.since
    }
}

/// Why a policy does not load.
#[derive(Debug, Error)]
enum LoadError {
    #[error(transparent)]
    Files(#[from] PolicyFilesError),
    #[error("the policy in {folder} is broken: {file}")]
    Text {
        folder: PathBuf,
        file: &'static str,
        #[source]
        cause: Box<InvalidSnapshot>,
    },
}

/// Why a policy cannot be put in force; the one before stays.
#[derive(Debug, Error)]
pub enum ReplaceError {
    /// It does not load.
    #[error(transparent)]
    Invalid(#[from] Box<InvalidSnapshot>),
    /// It cannot be written.
    #[error(transparent)]
    Files(#[from] PolicyFilesError),
}

impl PolicyHolder {
    /// Returns the holder of a home in this process.
    ///
    /// INVARIANT: users of one home in one process get the same holder, so they decide alike.
    #[must_use]
    pub fn of(home: &Path) -> Arc<Self> {
        static HOLDERS: OnceLock<Mutex<HashMap<PathBuf, Weak<PolicyHolder>>>> = OnceLock::new();
        let mut holders =
            HOLDERS.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(holder) = holders.get(home).and_then(Weak::upgrade) {
            return holder;
        }
        let holder = Arc::new(Self { home: home.to_owned(), state: Mutex::default() });
        holders.retain(|_, holder| holder.strong_count() > 0);
        holders.insert(home.to_owned(), Arc::downgrade(&holder));
        holder
    }

    /// Looks at the files, reads them when they changed, and returns what is in force. This alone
    /// knows no policy from before the process began: see [`PolicyHolder::look_with`].
    #[must_use]
    pub fn look(&self) -> PolicyInForce {
        let mut state = self.state();
        let seen = files_seen(&self.home);
        // What the files looked like is noted before they are read: a change meanwhile is seen
        // by the next look.
        if state.seen.as_ref() != Some(&seen) {
            let found = load(&self.home);
            state.take(found);
            state.seen = Some(seen);
        }
        state.in_force.clone()
    }

    /// As [`PolicyHolder::look`]; a new policy is recorded in the store, and when the files are
    /// broken and no older policy is known, the one that was recorded last is in force.
    #[must_use]
    pub fn look_with(&self, store: &Store) -> PolicyInForce {
        let in_force = self.look();
        let mut state = self.state();
        match (&in_force.policy, &in_force.fault) {
            (Some(policy), None) if !state.is_recorded => {
                state.is_recorded = true;
                if let Err(error) = record(store, policy, "file") {
                    let error = error_chain(&*error);
                    tracing::warn!(error, "the policy in force cannot be recorded");
                }
            }
            (None, Some(_)) => match recorded(store) {
                Ok(policy) => state.in_force.policy = policy.map(Arc::new),
                Err(error) => {
                    let error = error_chain(&*error);
                    tracing::error!(error, "the recorded policy cannot be used; nothing runs");
                }
            },
            _ => {}
        }
        state.in_force.clone()
    }

    /// Checks a policy, writes it into the home, and puts it in force.
    ///
    /// # Errors
    /// [`ReplaceError`]; then the one before stays.
    pub fn replace(&self, text: PolicyText<'_>) -> Result<Arc<PolicySnapshot>, ReplaceError> {
        let policy = Arc::new(PolicySnapshot::load(text).map_err(Box::new)?);
        let files = PolicyFiles {
            document: text.document.to_owned(),
            rules: text.rules.to_owned(),
            examples: text.examples.to_owned(),
        };
        let mut state = self.state();
        write_policy(&self.home, &files)?;
        state.take(Ok(Some(Loaded { policy: Arc::clone(&policy), is_recorded: true })));
        state.seen = Some(files_seen(&self.home));
        Ok(policy)
    }

    fn state(&self) -> MutexGuard<'_, HeldState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A policy that was read, and whether the store has it already.
struct Loaded {
    policy: Arc<PolicySnapshot>,
    is_recorded: bool,
}

impl HeldState {
    fn take(&mut self, found: Result<Option<Loaded>, LoadError>) {
        match found {
            Ok(Some(Loaded { policy, is_recorded })) => {
                if self.in_force.fault.is_some() {
                    tracing::info!(policy.hash = %policy.hash(), "the policy was repaired; it is in force");
                }
                self.is_recorded = is_recorded;
                self.in_force = PolicyInForce { policy: Some(policy), fault: None };
            }
            Ok(None) => self.in_force = PolicyInForce::default(),
            Err(error) => {
                let detail = error_chain(&error);
                tracing::error!(error = detail, "the policy is refused; the last good one stays");
                let since = random::now().unwrap_or(Timestamp::EPOCH);
                self.in_force.fault = Some(Arc::new(PolicyFault { detail, since }));
            }
        }
    }
}

/// Writes a policy into the history of the store.
///
/// # Errors
/// What the store or the clock said.
pub(crate) fn record(
    store: &Store,
    policy: &PolicySnapshot,
    set_by: &str,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    let body = json!({"document": policy.document().raw(), "rules": policy.rules_text()});
    store.set_policy(PolicyRow {
        hash: policy.hash(),
        body: body.to_string(),
        set_by: set_by.to_owned(),
        created_at: random::now()?,
    })?;
    Ok(())
}

/// Returns the policy that was recorded last. Its examples held when it was recorded.
fn recorded(store: &Store) -> Result<Option<PolicySnapshot>, Box<dyn Error + Send + Sync>> {
    let Some(row) = store.policy()? else { return Ok(None) };
    let body: Value = serde_json::from_str(&row.body)?;
    // The command line records the text of the document, others the document.
    let document = match body.get("document").ok_or("the record has no document")? {
        Value::String(text) => text.clone(),
        document => document.to_string(),
    };
    let rules = body.get("rules").and_then(Value::as_str).ok_or("the record has no rules")?;
    let policy = PolicySnapshot::load(PolicyText { document: &document, rules, examples: "" })?;
    if policy.hash() != row.hash {
        return Err("the recorded policy is not the one of its hash".into());
    }
    Ok(Some(policy))
}

fn load(home: &Path) -> Result<Option<Loaded>, LoadError> {
    let folder = policy_folder(home);
    if !folder.exists() {
        return Ok(None);
    }
    let files = PolicyFiles::read(&folder)?;
    if let Some(policy) = policy_passed::recall(home, &files) {
        return Ok(Some(Loaded { policy: Arc::new(policy), is_recorded: true }));
    }
    let policy = PolicySnapshot::load(files.text()).map_err(|cause| LoadError::Text {
        folder,
        file: file_of(&cause),
        cause: Box::new(cause),
    })?;
    policy_passed::keep(home, &files, &policy);
    Ok(Some(Loaded { policy: Arc::new(policy), is_recorded: false }))
}

const fn file_of(error: &InvalidSnapshot) -> &'static str {
    match error {
        InvalidSnapshot::Document(_) | InvalidSnapshot::Controls(_) => "document.json",
        InvalidSnapshot::Rules(_) => "rules.cedar",
        InvalidSnapshot::Examples(_) | InvalidSnapshot::Failing(_) => "tests.jsonl",
    }
}

/// Returns what tells changed files from unchanged ones without reading them.
fn files_seen(home: &Path) -> FilesSeen {
    let folder = policy_folder(home);
    let look = |name: &&str| -> io::Result<(u64, u64, i64, i64, u64)> {
        let metadata = fs::metadata(folder.join(name))?;
        let changed = (metadata.ctime(), metadata.ctime_nsec());
        Ok((metadata.dev(), metadata.ino(), changed.0, changed.1, metadata.size()))
    };
    ["", "document.json", "rules.cedar", "tests.jsonl"].iter().map(|name| look(name).ok()).collect()
}
