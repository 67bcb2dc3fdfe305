//! One living sandbox: who owns it, where it lies, when it ends, what runs in it.

mod commands;
mod times;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use warrant_plane::doors::{
    DoorName, Life, Lookout, Process, Reach, Sandbox, Wanted, WorkshopError,
};
use warrant_plane::random;
use warrant_protocol::request::ActorRef;
use warrant_protocol::{Limits, RunId, TimeSource, Timestamp};
use warrant_runner::run::Observer;
use warrant_sandbox::{Cancel, Neighborhood, Stdin, Stream};

use super::asks::{self, Place, Seen, Wish};
use super::dated::DatedMoment;
use super::life::{Bell, LifeWork, Reason};
use super::measure::Meter;
use super::shell::Shells;
use super::{Shared, calls};
use crate::ask::Ask;
use crate::desk::{Desk, Hands};

/// How long a sandbox lives at most where policy does not say: a day.
const LONGEST_MS: u64 = 24 * 3_600_000;
/// How long the end of a sandbox waits for its commands to be gone.
const CLEAR_WAIT: Duration = Duration::from_secs(30);

/// One living sandbox.
pub(super) struct Living {
    pub(super) id: String,
    pub(super) owner: ActorRef,
    pub(super) access_token: String,
    /// The run of its life.
    pub(super) run: RunId,
    /// The directory with `home` and `tmp`.
    pub(super) directory: PathBuf,
    pub(super) wanted: Wanted,
    /// The commands that run in it, which reach each other's servers.
    pub(super) neighbors: Neighborhood,
    /// What it used.
    pub(super) meter: Meter,
    /// How long a command may take at most.
    pub(super) longest_ms: u64,
    created_at: Timestamp,
    ends_at_most: DatedMoment,
    time: Arc<dyn TimeSource>,
    granted: Granted,
    bell: Bell,
    state: Mutex<State>,
    changed: Condvar,
}

/// What policy gives every command of it.
#[derive(Debug, Clone, Copy)]
struct Granted {
    memory_bytes: Option<u64>,
    disk_bytes: Option<u64>,
}

struct State {
    ends_at: DatedMoment,
    life: Life,
    touched: DatedMoment,
    hosts: Vec<String>,
    idle_ms: Option<u64>,
    paused_at: Option<DatedMoment>,
    paused_end_ms: Option<u64>,
    labels: BTreeMap<String, String>,
    processes: Vec<Arc<Process>>,
    shells: Shells,
    /// The directories that are watched.
    lookouts: Vec<Arc<Lookout>>,
    next_lookout: u64,
    next_pid: u32,
    running: usize,
    commands: u64,
    file_calls: u64,
    is_sealed: bool,
}

impl State {
    /// Is paused or goes on from now.
    fn enter(&mut self, life: Life, now: DatedMoment) {
        self.paused_at = match life {
            Life::Running => None,
            Life::Paused => self.paused_at.or(Some(now)),
        };
        self.life = life;
        self.touched = now;
    }
}

impl Living {
    /// Has the life judged, makes the directory and starts the run of the life.
    pub(super) fn create(
        shared: &Arc<Shared>,
        guest: &ActorRef,
        wanted: Wanted,
    ) -> Result<Arc<Self>, WorkshopError> {
        let longest_ms = longest(&shared.desk);
        let timeout_ms = wanted.timeout_ms.unwrap_or(longest_ms);
        check_end(timeout_ms, longest_ms)?;
        asks::check_client(&wanted.env)?;
        asks::check_labels(wanted.name.as_deref(), &wanted.labels)?;
        let id = format!("sbx{}", hex(&random::bytes::<10>().map_err(WorkshopError::of_error)?));
        let access_token = hex(&random::bytes::<24>().map_err(WorkshopError::of_error)?);
        let directory = shared.root.join(&id);
        let hosts = hosts(&shared.desk, &wanted.reach);
        let ask = life_ask(shared, (guest, &wanted), (&id, &directory), (longest_ms, &hosts))?;
        let run = calls::permitted(shared.desk.permit(&ask))?;
        let time = shared.desk.plane().time_source();
        let created = DatedMoment::now(&*time);
        let state = State {
            ends_at: created.plus_ms(timeout_ms),
            life: Life::Running,
            touched: created,
            hosts,
            idle_ms: wanted.idle_ms,
            paused_at: None,
            paused_end_ms: None,
            labels: wanted.labels.clone(),
            processes: Vec::new(),
            shells: Shells::default(),
            lookouts: Vec::new(),
            next_lookout: 1,
            next_pid: 1,
            running: 0,
            commands: 0,
            file_calls: 0,
            is_sealed: false,
        };
        let living = Arc::new(Self {
            id,
            owner: guest.clone(),
            access_token,
            run,
            directory,
            longest_ms,
            created_at: created.date(),
            ends_at_most: created.plus_ms(longest_ms),
            time,
            granted: granted(&shared.desk, &wanted),
            wanted,
            neighbors: Neighborhood::default(),
            meter: Meter::default(),
            bell: Bell::default(),
            state: Mutex::new(state),
            changed: Condvar::new(),
        });
        living.make_directory().map_err(WorkshopError::of_error)?;
        living.begin(shared, ask)?;
        Ok(living)
    }

    fn make_directory(&self) -> std::io::Result<()> {
        let private = |path: &Path| fs::DirBuilder::new().mode(0o700).create(path);
        private(&self.directory)?;
        private(&self.directory.join("home"))?;
        let tmp = self.directory.join("tmp");
        private(&tmp)?;
        fs::set_permissions(&tmp, fs::Permissions::from_mode(0o1777))
    }

    /// Starts the run of the life and waits until it has begun.
    fn begin(self: &Arc<Self>, shared: &Arc<Shared>, ask: Ask) -> Result<(), WorkshopError> {
        let (begun, has_begun) = sync_channel(1);
        let (ended, has_ended) = sync_channel(1);
        let (living, shared) = (Arc::clone(self), Arc::clone(shared));
        let live = move || {
            let clear = || living.clear();
            let work = LifeWork {
                isolation: shared.backend.isolation(),
                directory: &living.directory,
                bell: &living.bell,
                begun,
                clear: &clear,
            };
            let message = perform(&shared.desk, (&living.run, &ask), &work);
            // Nobody listens any more when the life had begun.
            let _ = ended.send(message);
            // Also when the life never began or its end could not be written.
            living.bell.ring(Reason::Destroyed);
            let _ = super::disk::remove(&living.directory);
            living.state().is_sealed = true;
            living.changed.notify_all();
        };
        let spawned = std::thread::Builder::new().name(format!("life {}", self.id)).spawn(live);
        spawned.map_err(WorkshopError::of_error)?;
        has_begun.recv().map_err(|_| WorkshopError::Refused {
            run: self.run.clone(),
            message: has_ended.recv().unwrap_or_else(|_| "the sandbox did not begin".to_owned()),
        })
    }

    pub(super) const fn door(&self) -> DoorName {
        self.wanted.door
    }

    pub(super) fn is_over(&self) -> bool {
        self.bell.is_rung()
    }

    /// Has further reach judged like a life of its own, and lets later commands have it.
    pub(super) fn set_reach(&self, shared: &Shared, reach: Reach) -> Result<RunId, WorkshopError> {
        let hosts = hosts(&shared.desk, &reach);
        let argv = words(&["sandbox", "network", &self.id]);
        let place = self.place(shared);
        let wish = Wish { hosts: &hosts, ..plain_wish(&argv) };
        let ask = asks::ask(&place, &wish)?;
        let run = calls::note(shared, &ask)?;
        self.state().hosts = hosts;
        Ok(run)
    }

    pub(super) fn describe(&self) -> Sandbox {
        let state = self.state();
        let mut wanted = self.wanted.clone();
        wanted.idle_ms = state.idle_ms;
        wanted.labels.clone_from(&state.labels);
        Sandbox {
            id: self.id.clone(),
            access_token: self.access_token.clone(),
            run: self.run.clone(),
            wanted,
            created_at: self.created_at,
            ends_at: state.ends_at.date(),
            ends_at_most: self.ends_at_most.date(),
            paused_end_ms: state.paused_end_ms,
            used_at: state.touched.date(),
            life: state.life,
            hosts: state.hosts.clone(),
            memory_bytes: self.granted.memory_bytes,
            disk_bytes: self.granted.disk_bytes,
        }
    }

    /// Returns the bytes of memory and of files that policy granted, where it did.
    pub(super) const fn granted_bytes(&self) -> (Option<u64>, Option<u64>) {
        (self.granted.memory_bytes, self.granted.disk_bytes)
    }

    /// Returns how many processors its commands may use: as it was wished for, or all there are.
    pub(super) fn cpus(&self) -> Option<f64> {
        #[expect(clippy::cast_precision_loss, reason = "thousandths of few processors")]
        let wanted = self.wanted.cpu_milli.filter(|milli| *milli > 0).map(|milli| milli as f64);
        match wanted {
            Some(milli) => Some(milli / 1000.0),
            None => {
                u32::try_from(std::thread::available_parallelism().ok()?.get()).ok().map(f64::from)
            }
        }
    }

    pub(super) fn hosts(&self) -> Vec<String> {
        self.state().hosts.clone()
    }

    pub(super) fn count_file_call(&self) {
        self.state().file_calls += 1;
    }

    pub(super) fn place<'a>(&'a self, shared: &'a Shared) -> Place<'a> {
        Place {
            guest: &self.owner,
            pool: shared.desk.plane().home().pool(),
            directory: &self.directory,
            label: format!("in {} sandbox {}", self.wanted.door, self.id),
            seen: Seen::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs a life to its receipt and returns why it did not end well.
fn perform(desk: &Desk, (run, ask): (&RunId, &Ask), work: &LifeWork<'_>) -> String {
    let Ok(cancel) = Cancel::new() else { return "no descriptor is left".to_owned() };
    let hands = Hands {
        backend: work,
        stdin: &Stdin::Empty,
        tty: None,
        cancel: &cancel,
        observer: &Unwatched,
        environment: &BTreeMap::new(),
    };
    match desk.perform(run, ask, &hands) {
        Ok(ended) => ended.message,
        Err(error) => error.to_string(),
    }
}

/// Nobody watches.
pub(super) struct Unwatched;

impl Observer for Unwatched {
    fn output(&self, _: Stream, _: &[u8]) -> std::io::Result<()> {
        Ok(())
    }
}

fn life_ask(
    shared: &Shared,
    (guest, wanted): (&ActorRef, &Wanted),
    (id, directory): (&str, &Path),
    (longest_ms, hosts): (u64, &[String]),
) -> Result<Ask, WorkshopError> {
    let argv = words(&["sandbox", "create", wanted.door.as_str(), &wanted.template]);
    let place = Place {
        guest,
        pool: shared.desk.plane().home().pool(),
        directory,
        label: format!("{} sandbox {id}", wanted.door),
        seen: Seen::default(),
    };
    let names: Vec<&str> = wanted.env.keys().map(String::as_str).collect();
    let note = format!("variables: {}", names.join(", "));
    let limits = limits_of(wanted, longest_ms);
    let plain = plain_wish(&argv);
    let wish = Wish { timeout_ms: Some(longest_ms), hosts, limits, note: Some(note), ..plain };
    asks::ask(&place, &wish)
}

/// Returns a wish for nothing but the words.
pub(super) fn plain_wish(argv: &[String]) -> Wish<'_> {
    Wish {
        argv,
        cwd: None,
        env: BTreeMap::new(),
        timeout_ms: None,
        hosts: &[],
        limits: None,
        note: None,
    }
}

pub(super) fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// Returns the limits a sandbox asks for each command that may take so long.
pub(super) fn limits_of(wanted: &Wanted, timeout_ms: u64) -> Option<Limits> {
    let cpu_ms = wanted.cpu_milli.map(|milli| (timeout_ms.saturating_mul(milli) / 1000).max(1));
    let limits = Limits {
        memory_bytes: wanted.memory_bytes,
        disk_bytes: wanted.disk_bytes,
        cpu_ms,
        ..Limits::danger_unlimited()
    };
    (limits != Limits::danger_unlimited()).then_some(limits)
}

/// Returns how long policy lets anything take, at most.
fn longest(desk: &Desk) -> u64 {
    let Some(policy) = desk.policy() else { return LONGEST_MS };
    let ceiling = policy.controls().limits.as_ref().and_then(|limits| limits.ceiling.wall_ms);
    let minutes = policy.document().body().budget.max_duration_min;
    let budget = Duration::try_from_secs_f64(minutes * 60.0).unwrap_or(Duration::MAX);
    let budget = u64::try_from(budget.as_millis()).unwrap_or(u64::MAX);
    LONGEST_MS.min(ceiling.unwrap_or(LONGEST_MS)).min(budget)
}

fn check_end(timeout_ms: u64, longest_ms: u64) -> Result<(), WorkshopError> {
    if timeout_ms == 0 {
        return Err(WorkshopError::Invalid("a timeout must be longer than nothing".to_owned()));
    }
    if timeout_ms > longest_ms {
        let message = format!("policy lets a sandbox live at most {} seconds", longest_ms / 1000);
        return Err(WorkshopError::Invalid(message));
    }
    Ok(())
}

/// Returns the hosts a reach comes to.
fn hosts(desk: &Desk, reach: &Reach) -> Vec<String> {
    match reach {
        Reach::Nothing => Vec::new(),
        Reach::Hosts(hosts) => hosts.clone(),
        Reach::AsPolicy => match desk.policy() {
            None => Vec::new(),
            Some(policy) => {
                let listed = &policy.document().body().network.allow_hosts;
                listed.iter().map(ToString::to_string).collect()
            }
        },
    }
}

fn granted(desk: &Desk, wanted: &Wanted) -> Granted {
    let limits = desk.policy().and_then(|policy| policy.controls().limits.as_ref());
    let default = |limit: fn(&Limits) -> Option<u64>| limits.and_then(|all| limit(&all.default));
    Granted {
        memory_bytes: wanted.memory_bytes.or_else(|| default(|limits| limits.memory_bytes)),
        disk_bytes: wanted.disk_bytes.or_else(|| default(|limits| limits.disk_bytes)),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
