//! One living sandbox: who owns it, where it lies, when it ends, what runs in it.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use warrant_plane::doors::{
    AtEnd, DoorName, EndsCommands, Life, Lookout, Process, Reach, Sandbox, ShellSession, Wakes,
    Wanted, WorkshopError,
};
use warrant_plane::random;
use warrant_protocol::request::ActorRef;
use warrant_protocol::{Limits, RunId, Timestamp};
use warrant_runner::run::Observer;
use warrant_sandbox::{Cancel, Neighborhood, Stdin, Stream};

use super::asks::{self, Place, Seen, Wish};
use super::files::Ground;
use super::life::{Bell, LifeWork, Reason};
use super::lookout::MOST_OF_A_SANDBOX;
use super::measure::Meter;
use super::shell::{Left, Shell, Shells};
use super::{Shared, calls, now};
use crate::ask::Ask;
use crate::desk::{Desk, Hands};

/// How long a sandbox lives at most where policy does not say: a day.
const LONGEST_MS: u64 = 24 * 3_600_000;
/// So many commands that ended are remembered, with their output.
const REMEMBERED: usize = 64;
/// Bytes of output that are kept of the commands of one sandbox that ended.
const MOST_KEPT_BYTES: usize = 32 * 1024 * 1024;
/// Bytes that are kept of them while somebody reads, who may never do.
const MOST_ATTENDED_BYTES: usize = 128 * 1024 * 1024;
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
    ends_at_most: Timestamp,
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
    ends_at: Timestamp,
    life: Life,
    touched: Timestamp,
    hosts: Vec<String>,
    idle_ms: Option<u64>,
    paused_at: Option<Timestamp>,
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

/// The place of one command; given back when it is over.
pub(super) struct Seat {
    living: Arc<Living>,
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.living.leave();
    }
}

impl State {
    /// Is paused or goes on from now.
    fn enter(&mut self, life: Life, now: Timestamp) {
        self.paused_at = match life {
            Life::Running => None,
            Life::Paused => self.paused_at.or(Some(now)),
        };
        self.life = life;
        self.touched = now;
    }

    /// Forgets the output of commands that ended, the oldest first, as far as it is too much; where
    /// somebody attends to it, only when it is far too much.
    ///
    /// SECURITY: whoever attends and never reads could have everything kept.
    fn forget_outputs(&self) {
        let mut kept = 0;
        for process in self.processes.iter().rev().filter(|process| process.end().is_some()) {
            kept += process.kept_bytes();
            if kept > MOST_ATTENDED_BYTES {
                process.abandon_output();
            } else if kept > MOST_KEPT_BYTES {
                process.forget_output();
            }
        }
    }
}

impl Living {
    /// Has the life judged, makes the directory and starts the run of the life.
    pub(super) fn create(
        shared: &Arc<Shared>,
        guest: &ActorRef,
        wanted: Wanted,
    ) -> Result<Arc<Self>, WorkshopError> {
        let failed = |_| WorkshopError::Failed;
        let longest_ms = longest(&shared.desk);
        let timeout_ms = wanted.timeout_ms.unwrap_or(longest_ms);
        check_end(timeout_ms, longest_ms)?;
        asks::check_client(&wanted.env)?;
        asks::check_labels(wanted.name.as_deref(), &wanted.labels)?;
        let id = format!("sbx{}", hex(&random::bytes::<10>().map_err(failed)?));
        let access_token = hex(&random::bytes::<24>().map_err(failed)?);
        let directory = shared.root.join(&id);
        let hosts = hosts(&shared.desk, &wanted.reach);
        let ask = life_ask(shared, (guest, &wanted), (&id, &directory), (longest_ms, &hosts))?;
        let run = calls::permitted(shared.desk.permit(&ask))?;
        let created_at = random::now().map_err(failed)?;
        let state = State {
            ends_at: created_at.plus_ms(timeout_ms),
            life: Life::Running,
            touched: created_at,
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
            created_at,
            ends_at_most: created_at.plus_ms(longest_ms),
            granted: granted(&shared.desk, &wanted),
            wanted,
            neighbors: Neighborhood::default(),
            meter: Meter::default(),
            bell: Bell::default(),
            state: Mutex::new(state),
            changed: Condvar::new(),
        });
        living.make_directory().map_err(failed)?;
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
        spawned.map_err(|_| WorkshopError::Failed)?;
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

    /// Whether its end has come: that of its time, unless it is to be paused then; that of policy
    /// in any case.
    pub(super) fn is_due(&self, now: Timestamp) -> bool {
        let state = self.state();
        let waits = self.wanted.at_end != AtEnd::Ends || state.life == Life::Paused;
        now >= if waits && self.is_kept_paused() { self.ends_at_most } else { state.ends_at }
    }

    /// Whether it is kept beyond its time while it is paused, as the protocol has it.
    fn is_kept_paused(&self) -> bool {
        self.wanted.at_end != AtEnd::Ends || self.wanted.door == DoorName::E2b
    }

    /// Whether its time is over and it is to be paused.
    pub(super) fn is_to_pause(&self, now: Timestamp) -> bool {
        let state = self.state();
        let is_over = state.life == Life::Running && now >= state.ends_at;
        match self.wanted.at_end {
            AtEnd::Ends => false,
            AtEnd::Pauses(EndsCommands::No, _) => is_over && state.running == 0,
            AtEnd::Pauses(EndsCommands::Yes, _) => is_over,
        }
    }

    /// Pauses it because its time is over.
    pub(super) fn pause_due(&self) {
        let mut state = self.state();
        // A command that came meanwhile keeps what it has in memory.
        let AtEnd::Pauses(ends, _) = self.wanted.at_end else { return };
        if ends == EndsCommands::No && state.running > 0 {
            return;
        }
        state.enter(Life::Paused, now());
        drop(state);
        self.end_commands();
    }

    /// Lets it take calls again; when its time is over, for as long as it was wished for.
    pub(super) fn wake(&self) {
        self.wake_up(&mut self.state());
    }

    fn wake_up(&self, state: &mut State) {
        let now = now();
        state.enter(Life::Running, now);
        if self.is_kept_paused() && state.ends_at <= now {
            let ms = self.wanted.timeout_ms.unwrap_or(self.longest_ms);
            state.ends_at = now.plus_ms(ms).min(self.ends_at_most);
        }
    }

    /// Wakes it for a call, if it wakes by itself.
    fn wake_for_call(&self, state: &mut State) {
        let wakes = matches!(self.wanted.at_end, AtEnd::Pauses(_, Wakes::ByCalls));
        if wakes && state.life == Life::Paused && !self.bell.is_rung() {
            self.wake_up(state);
        }
    }

    pub(super) fn is_idle(&self, now: Timestamp) -> bool {
        let state = self.state();
        let Some(idle_ms) = state.idle_ms.filter(|ms| *ms > 0) else { return false };
        state.life == Life::Running && state.running == 0 && now >= state.touched.plus_ms(idle_ms)
    }

    /// Whether it is paused and nobody resumed it in the time that was set for that.
    pub(super) fn is_left(&self, now: Timestamp) -> bool {
        let state = self.state();
        let ends_at = state.paused_at.zip(state.paused_end_ms);
        ends_at.is_some_and(|(paused_at, ms)| now >= paused_at.plus_ms(ms))
    }

    pub(super) fn pause_idle(&self) {
        self.state().enter(Life::Paused, now());
    }

    pub(super) fn set_idle(&self, ms: Option<u64>) {
        let mut state = self.state();
        state.idle_ms = ms;
        state.touched = now();
    }

    pub(super) fn set_paused_end(&self, ms: Option<u64>) {
        self.state().paused_end_ms = ms;
    }

    pub(super) fn set_labels(&self, labels: BTreeMap<String, String>) {
        self.state().labels = labels;
    }

    pub(super) fn touch(&self) {
        self.state().touched = now();
    }

    /// Ends it and waits until its life is sealed.
    pub(super) fn finish(&self, reason: Reason) {
        self.bell.ring(reason);
        let mut state = self.state();
        while !state.is_sealed {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Fails when its end cannot be so many milliseconds from now.
    pub(super) fn check_extension(&self, ms: u64) -> Result<(), WorkshopError> {
        check_end(ms, self.longest_ms)?;
        if now().plus_ms(ms) > self.ends_at_most {
            let message = format!("policy lets this sandbox live until {}", self.ends_at_most);
            return Err(WorkshopError::Invalid(message));
        }
        Ok(())
    }

    pub(super) fn extend(&self, ms: u64) -> Result<(), WorkshopError> {
        self.check_extension(ms)?;
        let mut state = self.state();
        state.ends_at = now().plus_ms(ms).min(self.ends_at_most);
        state.touched = now();
        Ok(())
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

    pub(super) fn pause(&self, ends: EndsCommands) -> Result<(), WorkshopError> {
        let mut state = self.state();
        if ends == EndsCommands::No {
            state = self.when_nothing_runs(state)?;
        }
        state.enter(Life::Paused, now());
        drop(state);
        self.end_commands();
        Ok(())
    }

    /// Waits for commands that are over or were told to end: whoever killed one, or has just heard
    /// of its end, finds it gone. Fails when another goes on.
    fn when_nothing_runs<'a>(
        &self,
        mut state: MutexGuard<'a, State>,
    ) -> Result<MutexGuard<'a, State>, WorkshopError> {
        let began = std::time::Instant::now();
        while state.running > 0 {
            let goes_on =
                |process: &Arc<Process>| process.end().is_none() && !process.grip().is_ending();
            if state.processes.iter().any(goes_on) || began.elapsed() >= CLEAR_WAIT {
                let message = "a command is running and its memory cannot be kept: end it first";
                return Err(WorkshopError::Busy(message.to_owned()));
            }
            let waited = self.changed.wait_timeout(state, Duration::from_millis(100));
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(state)
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
            ends_at: state.ends_at,
            ends_at_most: self.ends_at_most,
            paused_end_ms: state.paused_end_ms,
            used_at: state.touched,
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

    pub(super) fn processes(&self) -> Vec<Arc<Process>> {
        self.state().processes.clone()
    }

    /// Returns the directories that are watched.
    pub(super) fn lookouts(&self) -> Vec<Arc<Lookout>> {
        let mut state = self.state();
        state.lookouts.retain(|lookout| !lookout.is_ended());
        state.lookouts.clone()
    }

    /// Fails when no more directories are watched here.
    pub(super) fn check_lookouts(&self) -> Result<(), WorkshopError> {
        match self.lookouts().len() < MOST_OF_A_SANDBOX {
            true => Ok(()),
            false => Err(WorkshopError::Busy(format!(
                "{MOST_OF_A_SANDBOX} directories are watched already; end one first"
            ))),
        }
    }

    /// Returns a name that no other watch of this sandbox has.
    pub(super) fn next_lookout(&self) -> String {
        let mut state = self.state();
        let number = state.next_lookout;
        state.next_lookout += 1;
        format!("watch-{number}")
    }

    /// Keeps a watch, which ends with the sandbox at the latest.
    pub(super) fn keep_lookout(&self, lookout: &Arc<Lookout>) -> Result<(), WorkshopError> {
        let mut state = self.state();
        // The bell is rung before what is kept here is ended.
        if self.bell.is_rung() {
            lookout.end();
            return Err(WorkshopError::NoSandbox);
        }
        state.lookouts.push(Arc::clone(lookout));
        Ok(())
    }

    /// Returns where the shell of a session stands now.
    pub(super) fn shell(&self, session: &ShellSession) -> Shell {
        let mut shell = self.state().shells.enter(session);
        let ground = Ground { directory: &self.directory, home: &self.wanted.home };
        // A directory that is gone is none to start in.
        let is_gone = |cwd: &String| ground.has_directory(cwd) == Some(false);
        if shell.cwd.as_ref().is_some_and(is_gone) {
            shell.cwd = None;
        }
        shell
    }

    /// Takes up what a command of a session left.
    pub(super) fn follow_shell(&self, session: &str, left: &Left) {
        self.state().shells.follow(session, left);
    }

    pub(super) fn forget_shell(&self, session: &str) {
        self.state().shells.forget(session);
    }

    pub(super) fn hosts(&self) -> Vec<String> {
        self.state().hosts.clone()
    }

    pub(super) fn count_file_call(&self) {
        self.state().file_calls += 1;
    }

    /// Fails unless it takes calls.
    pub(super) fn check_open(&self) -> Result<(), WorkshopError> {
        let mut state = self.state();
        self.wake_for_call(&mut state);
        match state.life {
            Life::Paused => Err(WorkshopError::Paused),
            Life::Running => Ok(()),
        }
    }

    /// Takes a seat for a command before it is judged; none when `most` are taken, or when the
    /// sandbox is paused or ending.
    ///
    /// INVARIANT: whatever is permitted has a seat, so that it starts and has its receipt, and the
    /// end of the sandbox waits for it.
    pub(super) fn reserve(self: &Arc<Self>, most: usize) -> Result<Seat, WorkshopError> {
        let mut state = self.state();
        self.wake_for_call(&mut state);
        match state.life {
            _ if self.bell.is_rung() => Err(WorkshopError::NoSandbox),
            Life::Paused => Err(WorkshopError::Paused),
            Life::Running if state.running >= most => {
                Err(WorkshopError::Busy(format!("{most} commands run already; end one first")))
            }
            Life::Running => {
                state.running += 1;
                Ok(Seat { living: Arc::clone(self) })
            }
        }
    }

    /// Returns the number of the next command.
    pub(super) fn next_pid(&self) -> u32 {
        let mut state = self.state();
        let pid = state.next_pid;
        state.next_pid = state.next_pid.wrapping_add(1).max(1);
        pid
    }

    /// Takes a command that starts now and has a seat.
    pub(super) fn enter(&self, process: &Arc<Process>) {
        let mut state = self.state();
        let ended = state.processes.iter().filter(|process| process.end().is_some()).count();
        if ended >= REMEMBERED
            && let Some(oldest) = state.processes.iter().position(|process| process.end().is_some())
        {
            state.processes.remove(oldest).abandon_output();
        }
        state.processes.push(Arc::clone(process));
        state.commands += 1;
    }

    fn leave(&self) {
        let mut state = self.state();
        state.running = state.running.saturating_sub(1);
        state.touched = now();
        state.forget_outputs();
        drop(state);
        self.changed.notify_all();
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

    /// Ends every command and waits for it, as long as the sandbox is paused or ending: what comes
    /// once it was woken is not meant.
    fn end_commands(&self) {
        let mut state = self.state();
        let began = std::time::Instant::now();
        let is_meant = |state: &State| state.life == Life::Paused || self.bell.is_rung();
        while state.running > 0 && is_meant(&state) && began.elapsed() < CLEAR_WAIT {
            for process in state.processes.iter().filter(|process| process.end().is_none()) {
                process.grip().kill();
            }
            let waited = self.changed.wait_timeout(state, Duration::from_millis(100));
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn clear(&self) -> (u64, u64) {
        self.end_commands();
        let mut state = self.state();
        for lookout in state.lookouts.drain(..) {
            lookout.end();
        }
        (state.commands, state.file_calls)
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
