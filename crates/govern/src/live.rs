//! Sandboxes that live between calls: the workshop behind the doors, over one desk.
//!
//! A living sandbox is a directory of ours (its home and its `/tmp`, 0700, below the plane's data)
//! that every command's jail shows at the paths the client expects. Each command, each call on
//! files and the life itself is one governed run with contract and receipt. Start at [`Live`].
//!
//! ```text
//! create: judged as the program `sandbox`   ─► a run that lasts as long as the sandbox
//! exec:   judged as what it starts, unwrapped and as it came
//! files:  judged as `cat`, `tee`, `ls`, `stat`, `mkdir`, `mv`, `rm`, `chmod` of that path;
//!         watching is judged as `ls`
//! ```
//!
//! Nothing of a sandbox outlives it: its end kills every command, removes its directory and seals
//! its life; what a killed process left is removed when the next one opens the workshop, and its
//! runs are sealed as lost by the plane.

mod asks;
mod backend;
mod calls;
mod changes;
mod command;
mod dated;
mod decide;
mod disk;
mod env_file;
mod files;
mod keeper;
mod life;
mod lookout;
mod measure;
mod sandbox;
mod shell;

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use serde_json::json;
use thiserror::Error;
use warrant_plane::doors::{
    Changed, Decided, DoorName, EndsCommands, FileAnswer, FileCall, Lookout, Measure, Process,
    Question, Reach, RefusedExecution, Sandbox, Start, Wanted, Workshop, WorkshopError,
};
use warrant_plane::{EmbeddedPlane, random};
use warrant_protocol::request::ActorRef;
use warrant_protocol::{Digest, RunId, Timestamp, canonicalize};
use warrant_sandbox::Backend;

use crate::desk::Desk;

use changes::Told;

pub use keeper::{McpHolder, Scope, TokenFile, TokenFileError, TokenRow};
use life::Reason;
use sandbox::Living;

/// More sandboxes than this do not live at once for one caller.
const MOST_SANDBOXES: usize = 256;
/// How often the reaper looks for sandboxes whose time is over.
const REAP_EVERY: Duration = Duration::from_millis(200);

/// Keeps living sandboxes over one desk.
pub struct Live {
    /// Where evidence is read; every desk of the home sees the same.
    first: Arc<Desk>,
    /// What calls work with now.
    current: Mutex<Arc<Shared>>,
    sandboxes: Arc<Sandboxes>,
    _lock: File,
}

/// What one call works with: the policy does not change under it.
pub(crate) struct Shared {
    pub(crate) desk: Arc<Desk>,
    pub(crate) backend: Arc<dyn Backend>,
    root: PathBuf,
    /// How many directories are watched.
    lookouts: lookout::Places,
}

/// Everything that lives, by id.
#[derive(Default)]
struct Sandboxes {
    all: Mutex<HashMap<String, Arc<Living>>>,
    /// Those that are being made.
    making: Mutex<Vec<Making>>,
}

/// A sandbox that is being made: whose, through which door, under which name.
type Making = (ActorRef, DoorName, Option<String>);

/// The place of a sandbox while it is made, so that others made meanwhile count it.
struct Claim<'a> {
    sandboxes: &'a Sandboxes,
    making: Making,
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let mut making = self.sandboxes.making();
        if let Some(place) = making.iter().position(|each| *each == self.making) {
            making.swap_remove(place);
        }
    }
}

/// Why no workshop could be opened.
#[derive(Debug, Error)]
pub enum LiveError {
    /// Another process has it.
    #[error("another process keeps living sandboxes in this home")]
    Taken,
    /// The file system refused.
    #[error("cannot use {path}")]
    File {
        /// Which file or directory.
        path: PathBuf,
        /// What the system said.
        #[source]
        cause: io::Error,
    },
}

impl Live {
    /// Opens the workshop of a desk: only one process may have it. What an earlier one left is
    /// removed.
    ///
    /// # Errors
    /// [`LiveError`] when it is taken or cannot be used.
    pub fn open(desk: Arc<Desk>, backend: Arc<dyn Backend>) -> Result<Self, LiveError> {
        let root = desk.plane().home().data().join("live");
        let at = |path: &Path| {
            let path = path.to_owned();
            move |cause| LiveError::File { path, cause }
        };
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&root).map_err(at(&root))?;
        let lock_path = root.join("lock");
        let lock = File::options().create(true).append(true).open(&lock_path);
        let lock = lock.map_err(at(&lock_path))?;
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Err(LiveError::Taken);
        }
        for entry in fs::read_dir(&root).map_err(at(&root))? {
            let path = entry.map_err(at(&root))?.path();
            if path.is_dir() {
                disk::remove(&path).map_err(at(&path))?;
            }
        }
        // Only slower where they cannot be had. No other store of the home keeps records: this
        // desk's does for as long as we hold the lock.
        let _ = desk.plane().store().expect_many_writes();
        let _ = desk.plane().store().expect_many_records();
        let sandboxes = Arc::new(Sandboxes::default());
        reap(Arc::downgrade(&sandboxes));
        let lookouts = lookout::Places::default();
        let shared = Arc::new(Shared { desk: Arc::clone(&desk), backend, root, lookouts });
        Ok(Self { first: desk, current: Mutex::new(shared), sandboxes, _lock: lock })
    }

    /// Returns what a call works with, under the policy that is in force now.
    fn shared(&self) -> Result<Arc<Shared>, WorkshopError> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        // SECURITY: a policy put in force while we are alive counts from the next call on; one that
        // does not load changes nothing.
        if current.desk.is_outdated() {
            let home = self.first.plane().home().root();
            let desk = Desk::open(Some(home)).map_err(WorkshopError::of_error)?;
            let _ = desk.plane().store().expect_many_writes();
            let before = &*current;
            let shared = Arc::new(Shared {
                desk: Arc::new(desk),
                backend: Arc::clone(&before.backend),
                root: before.root.clone(),
                lookouts: before.lookouts.clone(),
            });
            *current = shared;
        }
        Ok(Arc::clone(&current))
    }

    /// Has a change judged, leaves its receipt and makes it.
    fn noted(
        &self,
        living: &Living,
        (word, value): (&str, Option<String>),
        make: impl FnOnce(&Living) -> Result<(), WorkshopError>,
    ) -> Result<Changed, WorkshopError> {
        let told = Told { word, value, note: None };
        let run = changes::note(&*self.shared()?, living, told)?;
        make(living)?;
        Ok(Changed { sandbox: living.describe(), run })
    }

    /// Ends every sandbox and waits until its life is sealed.
    pub fn close(&self) {
        for living in self.sandboxes.all() {
            living.finish(Reason::Destroyed);
        }
        self.sandboxes.lock().clear();
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.close();
    }
}

impl Sandboxes {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<Living>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn all(&self) -> Vec<Arc<Living>> {
        self.lock().values().cloned().collect()
    }

    fn of(&self, guest: &ActorRef, id: &str) -> Result<Arc<Living>, WorkshopError> {
        // SECURITY: another caller's sandbox does not exist for this one.
        let found = self.lock().get(id).filter(|living| living.owner == *guest).cloned();
        found.filter(|living| !living.is_over()).ok_or(WorkshopError::NoSandbox)
    }

    fn forget(&self, id: &str) {
        self.lock().remove(id);
    }

    fn making(&self) -> MutexGuard<'_, Vec<Making>> {
        self.making.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Claims a place for a sandbox before it is made: there are never too many of one caller, and
    /// never two of one name.
    fn claim(&self, guest: &ActorRef, wanted: &Wanted) -> Result<Claim<'_>, WorkshopError> {
        let mut making = self.making();
        let all = self.all();
        let living = all.iter().filter(|living| living.owner == *guest && !living.is_over());
        let living = living.map(|living| (living.door(), living.wanted.name.as_ref()));
        let made = making.iter().filter(|(owner, ..)| owner == guest);
        let own: Vec<(DoorName, Option<&String>)> =
            living.chain(made.map(|(_, door, name)| (*door, name.as_ref()))).collect();
        if own.len() >= MOST_SANDBOXES {
            let message = format!("{MOST_SANDBOXES} sandboxes live already; end one first");
            return Err(WorkshopError::Busy(message));
        }
        if wanted.name.is_some() && own.contains(&(wanted.door, wanted.name.as_ref())) {
            return Err(WorkshopError::Busy("a sandbox has that name already".to_owned()));
        }
        let claimed = (guest.clone(), wanted.door, wanted.name.clone());
        making.push(claimed.clone());
        Ok(Claim { sandboxes: self, making: claimed })
    }
}

/// Ends sandboxes whose time is over, until the workshop is gone.
fn reap(sandboxes: Weak<Sandboxes>) {
    let work = move || {
        loop {
            std::thread::sleep(REAP_EVERY);
            let Some(sandboxes) = sandboxes.upgrade() else { return };
            for living in sandboxes.all() {
                let now = living.now();
                if living.is_over() {
                    sandboxes.forget(&living.id);
                } else if living.is_due(now) || living.is_left(now) {
                    living.finish(Reason::Expired);
                    sandboxes.forget(&living.id);
                } else if living.is_to_pause(now) {
                    living.pause_due();
                } else if living.is_idle(now) {
                    living.pause_idle();
                }
            }
        }
    };
    // Without the thread nothing expires by itself; every call looks at the time too.
    let _ = std::thread::Builder::new().name("reaper".to_owned()).spawn(work);
}

impl Workshop for Live {
    fn plane(&self) -> &EmbeddedPlane {
        self.first.plane()
    }

    fn create(&self, guest: &ActorRef, wanted: Wanted) -> Result<Sandbox, WorkshopError> {
        let _claim = self.sandboxes.claim(guest, &wanted)?;
        let living = Living::create(&self.shared()?, guest, wanted)?;
        let sandbox = living.describe();
        self.sandboxes.lock().insert(living.id.clone(), living);
        Ok(sandbox)
    }

    fn list(&self, guest: &ActorRef, door: DoorName) -> Vec<Sandbox> {
        let own = |living: &Arc<Living>| {
            living.owner == *guest && living.door() == door && !living.is_over()
        };
        let all = self.sandboxes.all();
        let mut rows: Vec<Sandbox> =
            all.iter().filter(|living| own(living)).map(|living| living.describe()).collect();
        rows.sort_by(|a, b| (a.created_at, &a.id).cmp(&(b.created_at, &b.id)));
        rows
    }

    fn find(&self, guest: &ActorRef, id: &str) -> Result<Sandbox, WorkshopError> {
        Ok(self.sandboxes.of(guest, id)?.describe())
    }

    fn is_alive(&self, id: &str) -> bool {
        self.sandboxes.lock().get(id).is_some_and(|living| !living.is_over())
    }

    fn owner(&self, id: &str, access_token: &str) -> Option<ActorRef> {
        let living = self.sandboxes.lock().get(id).filter(|living| !living.is_over()).cloned()?;
        keeper::is_same(&living.access_token, access_token).then(|| living.owner.clone())
    }

    fn owner_of(&self, id: &str) -> Option<ActorRef> {
        let living = self.sandboxes.lock().get(id).cloned()?;
        (!living.is_over()).then(|| living.owner.clone())
    }

    fn named_by(&self, access_token: &str) -> Option<String> {
        let all = self.sandboxes.all();
        let is_it = |living: &&Arc<Living>| {
            !living.is_over() && keeper::is_same(&living.access_token, access_token)
        };
        all.iter().find(is_it).map(|living| living.id.clone())
    }

    fn extend(&self, guest: &ActorRef, id: &str, ms: u64) -> Result<Changed, WorkshopError> {
        let living = self.sandboxes.of(guest, id)?;
        living.check_extension(ms)?;
        self.noted(&living, ("extend", changes::time(Some(ms))), |living| living.extend(ms))
    }

    fn set_reach(
        &self,
        guest: &ActorRef,
        id: &str,
        reach: Reach,
    ) -> Result<Changed, WorkshopError> {
        let living = self.sandboxes.of(guest, id)?;
        let shared = self.shared()?;
        let run = living.set_reach(&shared, reach)?;
        Ok(Changed { sandbox: living.describe(), run })
    }

    fn set_idle(
        &self,
        guest: &ActorRef,
        id: &str,
        ms: Option<u64>,
    ) -> Result<Changed, WorkshopError> {
        let living = self.sandboxes.of(guest, id)?;
        self.noted(&living, ("idle", changes::time(ms)), |living| {
            living.set_idle(ms);
            Ok(())
        })
    }

    fn set_paused_end(
        &self,
        guest: &ActorRef,
        id: &str,
        ms: Option<u64>,
    ) -> Result<Changed, WorkshopError> {
        let living = self.sandboxes.of(guest, id)?;
        self.noted(&living, ("end-paused", changes::time(ms)), |living| {
            living.set_paused_end(ms);
            Ok(())
        })
    }

    fn set_labels(
        &self,
        guest: &ActorRef,
        id: &str,
        labels: BTreeMap<String, String>,
    ) -> Result<Changed, WorkshopError> {
        asks::check_labels(None, &labels)?;
        let living = self.sandboxes.of(guest, id)?;
        // Their values are the client's own; a digest binds them.
        let names: Vec<&str> = labels.keys().map(String::as_str).collect();
        let digest = Digest::of(canonicalize(&json!(labels)).as_bytes());
        let note = Some(format!("labels: {}; {digest}", names.join(", ")));
        let told = Told { word: "label", value: None, note };
        let run = changes::note(&*self.shared()?, &living, told)?;
        living.set_labels(labels);
        Ok(Changed { sandbox: living.describe(), run })
    }

    fn pause(
        &self,
        guest: &ActorRef,
        id: &str,
        ends: EndsCommands,
    ) -> Result<Changed, WorkshopError> {
        let living = self.sandboxes.of(guest, id)?;
        living.pause(ends)?;
        let run = changes::note_pause(&*self.shared()?, &living)?;
        Ok(Changed { sandbox: living.describe(), run })
    }

    fn resume(&self, guest: &ActorRef, id: &str) -> Result<Changed, WorkshopError> {
        let living = self.sandboxes.of(guest, id)?;
        self.noted(&living, ("resume", None), |living| {
            living.wake();
            Ok(())
        })
    }

    fn destroy(&self, guest: &ActorRef, id: &str) -> Result<RunId, WorkshopError> {
        let living = self.sandboxes.of(guest, id)?;
        living.finish(Reason::Destroyed);
        self.sandboxes.forget(id);
        Ok(living.run.clone())
    }

    fn end_session(&self, guest: &ActorRef, id: &str, session: &str) {
        if let Ok(living) = self.sandboxes.of(guest, id) {
            living.forget_shell(session);
        }
    }

    fn start(
        &self,
        guest: &ActorRef,
        id: &str,
        start: Start,
    ) -> Result<Arc<Process>, WorkshopError> {
        let living = self.sandboxes.of(guest, id)?;
        living.touch();
        command::start(&self.shared()?, &living, start)
    }

    fn decide(
        &self,
        guest: &ActorRef,
        id: &str,
        question: &Question<'_>,
    ) -> Result<Decided, WorkshopError> {
        let living = self.sandboxes.of(guest, id)?;
        living.touch();
        let shared = self.shared()?;
        decide::decide(&shared, &living, question)
    }

    fn deny_tool(&self, guest: &ActorRef, tool: &str) -> Result<Decided, WorkshopError> {
        decide::deny_tool(&*self.shared()?, guest, tool)
    }

    fn refuse(
        &self,
        guest: &ActorRef,
        id: &str,
        refusal: &RefusedExecution<'_>,
    ) -> Result<RunId, WorkshopError> {
        let living = self.sandboxes.of(guest, id)?;
        let shared = self.shared()?;
        decide::refuse(&shared, &living, refusal)
    }

    fn processes(&self, guest: &ActorRef, id: &str) -> Result<Vec<Arc<Process>>, WorkshopError> {
        let living = self.sandboxes.of(guest, id)?;
        living.touch();
        Ok(living.processes())
    }

    fn measures(&self, guest: &ActorRef, id: &str) -> Result<Vec<Measure>, WorkshopError> {
        let living = self.sandboxes.of(guest, id)?;
        living.meter.read(&living)
    }

    fn lookouts(&self, guest: &ActorRef, id: &str) -> Result<Vec<Arc<Lookout>>, WorkshopError> {
        let living = self.sandboxes.of(guest, id)?;
        living.touch();
        Ok(living.lookouts())
    }

    fn file(
        &self,
        guest: &ActorRef,
        id: &str,
        call: FileCall,
    ) -> Result<(FileAnswer, RunId), WorkshopError> {
        let living = self.sandboxes.of(guest, id)?;
        living.touch();
        let shared = self.shared()?;
        calls::file(&shared, &living, call)
    }
}

/// Returns the present moment, or the beginning of time when there is no clock: then nothing is
/// due, and every call fails for lack of a clock.
fn now() -> Timestamp {
    random::now().unwrap_or(Timestamp::EPOCH)
}
