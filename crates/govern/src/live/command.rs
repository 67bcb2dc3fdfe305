//! A command of a living sandbox: judged in both forms, started, watched, ended.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use rustix::fs::{Mode, OFlags, fcntl_getfl, fcntl_setfl};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{OptionalActions, Winsize, tcgetattr, tcgetwinsize, tcsetattr, tcsetwinsize};
use warrant_plane::doors::{
    ChunkStream, DoorName, End, Grip, Process, ProcessFacts, Start, Terminal, WorkshopError, inside,
};
use warrant_protocol::{Digest, Outcome};
use warrant_runner::run::Observer;
use warrant_sandbox::{Cancel, Stdin, Stream, TtySize};

use super::asks::{self, Wish};
use super::backend::{Lost, Standing};
use super::calls::{judge_unwrapped, permitted};
use super::files::Ground;
use super::sandbox::{Living, limits_of};
use super::{Shared, decide, env_file, now, shell};
use crate::ask::Ask;
use crate::desk::Hands;

/// More commands than this do not run at once in one sandbox.
const MOST_RUNNING: usize = 32;

/// Has a command judged and starts it.
pub(super) fn start(
    shared: &Arc<Shared>,
    living: &Arc<Living>,
    start: Start,
) -> Result<Arc<Process>, WorkshopError> {
    asks::check_client(&start.env)?;
    let seat = living.reserve(MOST_RUNNING)?;
    let shell = start.session.as_ref().map(|session| living.shell(session));
    let shell_cwd = shell.as_ref().and_then(|shell| shell.cwd.as_deref());
    let cwd = directory(living, start.cwd.as_deref().or(shell_cwd))?;
    let timeout_ms = start.timeout_ms.unwrap_or(living.longest_ms).min(living.longest_ms);
    let hosts = living.hosts();
    let mut private = env_file::variables(shared, living)?;
    let mut settled = BTreeSet::new();
    if let Some(shell) = shell {
        private.extend(shell.env);
        private.insert("BASH_ENV".to_owned(), shell::SCRIPT.to_owned());
        // Ours; all else that a session brings is judged like a client's own.
        settled.insert("BASH_ENV".to_owned());
    }
    private.extend(start.env.clone());
    let wish = Wish {
        argv: &start.argv,
        cwd: Some(&cwd),
        env: environment(living, &private),
        timeout_ms: Some(timeout_ms),
        hosts: &hosts,
        limits: limits_of(&living.wanted, timeout_ms),
        note: None,
    };
    let place = living.place(shared);
    asks::check_values(&private)?;
    let ask = Ask { settled_env: settled.clone(), ..asks::ask(&place, &wish)? };
    if let Some(inner) = asks::unwrapped(&place, &wish)? {
        let inner = Ask { settled_env: settled, ..inner };
        judge_unwrapped(shared, (&ask, &inner), start.approved.as_ref())?;
    }
    let run = match &start.approved {
        None => permitted(shared.desk.permit(&ask))?,
        Some(approval) => decide::approved(shared, &ask, approval)?,
    };
    let (grip, stdin) = Reins::new(&start).map_err(WorkshopError::of_error)?;
    let cancel = grip.cancel.clone();
    let facts = ProcessFacts {
        pid: living.next_pid(),
        run,
        argv: start.argv.clone(),
        cwd: Some(cwd),
        tag: start.tag.clone(),
        has_terminal: start.terminal.is_some(),
        started_at: now(),
    };
    let process = Arc::new(Process::new(facts, Box::new(grip)));
    living.enter(&process);
    let session = start.session.map(|session| session.name);
    let job = Job { ask, private, stdin, cancel, terminal: start.terminal, session };
    let (shared, lives, watched) = (Arc::clone(shared), Arc::clone(living), Arc::clone(&process));
    let work = move || {
        let end = run_to_end(&shared, &lives, &watched, &job);
        watched.finish(end);
        drop((watched, seat));
    };
    let name = format!("command {}", living.id);
    if let Err(error) = std::thread::Builder::new().name(name).spawn(work) {
        process.finish(failed(""));
        return Err(WorkshopError::of_error(error));
    }
    Ok(process)
}

/// What a command's thread needs.
struct Job {
    ask: Ask,
    /// Variables whose values are nowhere but here and inside.
    private: BTreeMap<String, String>,
    stdin: Stdin,
    cancel: Cancel,
    terminal: Option<Terminal>,
    /// The session it belongs to.
    session: Option<String>,
}

/// Runs a command, and has its session follow it.
fn run_to_end(shared: &Shared, living: &Living, process: &Process, job: &Job) -> End {
    let Some(session) = &job.session else { return perform(shared, (living, process), job, None) };
    let Ok(desk) = shell::Desk::new(&living.directory, process.facts().run.as_str()) else {
        return failed("the session's state has no place");
    };
    let end = perform(shared, (living, process), job, Some(&desk));
    if let Some(left) = desk.left() {
        living.follow_shell(session, &left);
    }
    end
}

fn perform(
    shared: &Shared,
    (living, process): (&Living, &Process),
    job: &Job,
    desk: Option<&shell::Desk>,
) -> End {
    let backend = Standing {
        inner: &*shared.backend,
        directory: &living.directory,
        home: &living.wanted.home,
        private: &job.private,
        neighbors: &living.neighbors,
        desk: desk.map(shell::Desk::path),
        meter: &living.meter,
        lost: match living.door() {
            // Its adapter knows no refusal of a directory, only commands that fail.
            DoorName::Helm => Lost::Fails(OnceLock::new()),
            DoorName::E2b | DoorName::Daytona | DoorName::Opensandbox => Lost::Refused,
        },
    };
    let observer = Watcher { process };
    let hands = Hands {
        backend: &backend,
        stdin: &job.stdin,
        tty: job.terminal.map(|size| TtySize { columns: size.columns, rows: size.rows }),
        cancel: &job.cancel,
        observer: &observer,
        environment: &BTreeMap::new(),
    };
    match shared.desk.perform(&process.facts().run, &job.ask, &hands) {
        Ok(ended) => End { outcome: ended.outcome, message: ended.message, at: now() },
        Err(_) => failed("the command left no receipt of its own"),
    }
}

fn failed(message: &str) -> End {
    End { outcome: Outcome::Failed, message: message.to_owned(), at: now() }
}

/// Puts output on the board. Nobody has to watch.
struct Watcher<'a> {
    process: &'a Process,
}

impl Observer for Watcher<'_> {
    fn output(&self, stream: Stream, bytes: &[u8]) -> io::Result<()> {
        let stream = match stream {
            _ if self.process.facts().has_terminal => ChunkStream::Terminal,
            Stream::Stdout => ChunkStream::Stdout,
            Stream::Stderr => ChunkStream::Stderr,
        };
        self.process.push(stream, bytes);
        Ok(())
    }
}

/// Returns the working directory as it is inside; one of the sandbox's own must exist.
fn directory(living: &Living, wanted: Option<&str>) -> Result<String, WorkshopError> {
    let home = &living.wanted.home;
    let path = wanted.unwrap_or(home);
    let invalid = || WorkshopError::Invalid(format!("cwd '{path}' does not exist"));
    let inside = inside(home, path).ok_or_else(invalid)?;
    let ground = Ground { directory: &living.directory, home };
    match ground.has_directory(&inside) {
        // HELM's adapter is told by the command's end.
        Some(false) if living.door() != DoorName::Helm => Err(invalid()),
        Some(_) | None => Ok(inside),
    }
}

/// Returns the environment as the contract tells it: every name, and of the client's own values
/// only a mark that binds them. The mark is keyed with the sandbox's token, which is not stored,
/// so that a value cannot be guessed from it.
fn environment(living: &Living, private: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let wanted = &living.wanted;
    let own = [("HOME", &wanted.home), ("USER", &wanted.user), ("LOGNAME", &wanted.user)];
    let own = own.into_iter().map(|(name, value)| (name.to_owned(), value.clone()));
    let mut env: BTreeMap<String, String> = own.collect();
    env.extend(private.iter().map(|(name, value)| {
        let keyed = format!("{}\0{name}\0{value}", living.access_token);
        (name.clone(), format!("hidden {}", Digest::of(keyed.as_bytes())))
    }));
    env
}

/// The ways to reach into one command.
struct Reins {
    cancel: Cancel,
    input: Mutex<Option<OwnedFd>>,
    terminal: bool,
}

impl Reins {
    /// Returns the reins and what the command reads.
    fn new(start: &Start) -> io::Result<(Self, Stdin)> {
        let cancel = Cancel::new()?;
        let (input, stdin) = match start.terminal {
            Some(size) => {
                let (ours, theirs) = terminal(size)?;
                (Some(ours), Stdin::Descriptor(Arc::new(theirs)))
            }
            None if start.stdin => {
                let (theirs, ours) = pipe_with(PipeFlags::CLOEXEC)?;
                (Some(ours), Stdin::Descriptor(Arc::new(theirs)))
            }
            None => (None, Stdin::Empty),
        };
        if let Some(input) = &input {
            fcntl_setfl(input, fcntl_getfl(input)? | OFlags::NONBLOCK)?;
        }
        let reins = Self { cancel, input: Mutex::new(input), terminal: start.terminal.is_some() };
        Ok((reins, stdin))
    }
}

/// Makes a pair of terminal ends that passes bytes on as they are; only its size is of use.
fn terminal(size: Terminal) -> io::Result<(OwnedFd, OwnedFd)> {
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    grantpt(&ours)?;
    unlockpt(&ours)?;
    let name = ptsname(&ours, Vec::new())?;
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let theirs = rustix::fs::open(name, flags, Mode::empty())?;
    let mut attributes = tcgetattr(&theirs)?;
    attributes.make_raw();
    tcsetattr(&theirs, OptionalActions::Now, &attributes)?;
    tcsetwinsize(&ours, winsize(size.columns, size.rows))?;
    Ok((ours, theirs))
}

const fn winsize(columns: u16, rows: u16) -> Winsize {
    Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }
}

impl Grip for Reins {
    fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        let input = self.input.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(fd) = input.as_ref() else { return Err(io::ErrorKind::BrokenPipe.into()) };
        Ok(rustix::io::retry_on_intr(|| rustix::io::write(fd, bytes))?)
    }

    fn close_input(&self) {
        *self.input.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn resize(&self, columns: u16, rows: u16) -> io::Result<()> {
        let input = self.input.lock().unwrap_or_else(PoisonError::into_inner);
        match input.as_ref().filter(|_| self.terminal) {
            Some(fd) => Ok(tcsetwinsize(fd, winsize(columns, rows))?),
            None => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    fn size(&self) -> Option<(u16, u16)> {
        let input = self.input.lock().unwrap_or_else(PoisonError::into_inner);
        let size = input.as_ref().filter(|_| self.terminal).map(tcgetwinsize)?.ok()?;
        Some((size.ws_col, size.ws_row))
    }

    fn kill(&self) {
        self.cancel.cancel();
    }

    fn is_ending(&self) -> bool {
        self.cancel.is_cancelled()
    }
}
