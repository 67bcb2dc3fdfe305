//! The worker: the process in which the interpreter runs, once, for one script.
//!
//! It is the same binary started again. Its standard input is the socket to the supervisor, or,
//! inside a jail, descriptor 3 is. The first thing it does is to give up every system call that
//! starts a program, makes a process or opens a socket. It ends when the supervisor is gone.
//! Whatever happens to it, happens to one run. Start at [`main`].

mod braces;
mod curl;
mod fixed;
mod loops;
mod network;
mod readers;
mod sharing;
mod shell;
pub(super) mod tools;
mod walls;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use rustix::fs::{Mode, OFlags, open};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use warrant_jail::{landlock_abi, restrict_writes};
use warrant_protocol::LimitKind;

use super::frame::{self, Frame, Kind};
use super::request::{Request, WorkerFault, WorkerLimits};
use crate::namespace::{NEWEST_LANDLOCK, cpu_seconds, seal_worker, worker_control};

/// What the supervisor says about a workspace that can be written.
pub(super) const WRITABLE: &[u8] = b"writable";

/// The first argument that makes the binary a worker.
pub(super) const WORD: &str = "__hermetic-worker";

/// The second argument of a worker that was started inside a jail.
pub(super) const JAILED: &str = "jailed";

/// The second argument of a worker that waits in a jail for its workspace.
pub(super) const KEPT: &str = "kept";

/// The interpreter recurses on the stack; this much is reserved, and used only if touched.
const STACK_BYTES: usize = 512 << 20;

/// Address space beyond the memory limit for what is mapped but hardly used: arenas, stacks.
const ADDRESS_SLACK: u64 = 256 << 20;

/// The worker's end of the socket.
#[derive(Debug, Clone)]
struct Line {
    stream: Arc<UnixStream>,
}

impl Line {
    fn send(&self, kind: Kind, payload: &[u8]) {
        if frame::send(&self.stream, kind, payload).is_err() {
            // Nobody listens any more, so nothing is left to do.
            std::process::exit(1);
        }
    }

    fn send_stream(&self, kind: Kind, bytes: &[u8]) {
        bytes.chunks(frame::CHUNK).for_each(|chunk| self.send(kind, chunk));
    }

    /// Reports that a limit struck, and ends.
    fn struck(&self, limit: LimitKind) -> ! {
        self.send(Kind::Struck, limit.as_str().as_bytes());
        std::process::exit(1)
    }
}

/// Serves one run over standard input.
pub(super) fn main() -> ExitCode {
    match serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn serve() -> io::Result<()> {
    let place = std::env::args_os().nth(2).unwrap_or_default();
    let (is_jailed, is_kept) = (place == JAILED, place == KEPT);
    let socket = if is_jailed || is_kept {
        worker_control().ok_or_else(|| frame::broken("descriptor 3 is no socket"))?
    } else {
        rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?
    };
    // SECURITY: from here on no program, process or socket, whatever the interpreter does.
    seal_worker()?;
    rustix::process::umask(Mode::from_raw_mode(0o022));
    setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })?;
    let line = Line { stream: Arc::new(UnixStream::from(socket)) };
    // A jailed worker starts in its workspace; any other is handed the workspace.
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let own_root = if is_kept {
        line.send(Kind::Ready, &[]);
        Some(await_root(&line)?)
    } else {
        is_jailed.then(|| open(".", flags, Mode::empty())).transpose()?
    };
    // The thread is there before the request, so that a warm worker only has to read it.
    let (requests, incoming) = channel();
    let ignores_input = Arc::new(AtomicBool::new(false));
    let worker = {
        let (line, ignores_input) = (line.clone(), Arc::clone(&ignores_input));
        let body = move || run(&line, incoming, own_root, &ignores_input);
        thread::Builder::new().stack_size(STACK_BYTES).spawn(body)?
    };
    if !is_kept {
        line.send(Kind::Ready, &[]);
    }
    thread::Builder::new().spawn(move || relay(&line, &requests, &ignores_input))?;
    worker.join().map_err(|_| io::Error::other("the interpreter panicked"))?
}

/// Waits for the workspace and gives up writing anywhere else, before any other thread exists.
fn await_root(line: &Line) -> io::Result<OwnedFd> {
    let (frame, root) =
        frame::receive_with_fd(&line.stream)?.ok_or_else(|| frame::broken("no workspace"))?;
    let (Kind::Root, Some(root)) = (frame.kind, root) else {
        return Err(frame::broken("no workspace"));
    };
    if let Some(abi) = landlock_abi() {
        let writable = frame.payload == WRITABLE;
        let below = if writable { vec![root.as_fd()] } else { Vec::new() };
        // SECURITY: the jail leaves this to the worker, because its rules name the workspace.
        restrict_writes(abi.min(NEWEST_LANDLOCK), &below)?;
    }
    Ok(root)
}

/// What reaches the interpreter from the supervisor.
enum Incoming {
    Request(Box<Request>, Option<OwnedFd>),
    Stdin(Vec<u8>),
    StdinEnd,
    Fetched(Vec<u8>),
}

/// Passes on what the supervisor says; ends the process when the supervisor is gone, also while
/// the interpreter is busy.
fn relay(line: &Line, to: &Sender<Incoming>, ignores_input: &AtomicBool) {
    while let Ok(Some((Frame { kind, payload }, fd))) = frame::receive_with_fd(&line.stream) {
        let incoming = match kind {
            Kind::Request => match Request::decode(&payload) {
                Ok(request) => Incoming::Request(Box::new(request), fd),
                Err(_) => break,
            },
            // What nobody reads is not kept.
            Kind::Stdin | Kind::StdinEnd if ignores_input.load(Ordering::Relaxed) => continue,
            Kind::Stdin => Incoming::Stdin(payload),
            Kind::StdinEnd => Incoming::StdinEnd,
            Kind::Fetched => Incoming::Fetched(payload),
            Kind::Ready
            | Kind::Stdout
            | Kind::Stderr
            | Kind::Fetch
            | Kind::Struck
            | Kind::Exit
            | Kind::Root => break,
        };
        let is_input = matches!(incoming, Incoming::Stdin(_) | Incoming::StdinEnd);
        if to.send(incoming).is_err() && !is_input {
            break;
        }
    }
    std::process::exit(1);
}

fn run(
    line: &Line,
    incoming: Receiver<Incoming>,
    own_root: Option<OwnedFd>,
    ignores_input: &AtomicBool,
) -> io::Result<()> {
    let Ok(Incoming::Request(request, root)) = incoming.recv() else {
        return Err(frame::broken("no request"));
    };
    let root = own_root.or(root);
    let mut stdin = Vec::new();
    if readers::script_may_read(&request.script) {
        while let Ok(Incoming::Stdin(chunk)) = incoming.recv() {
            stdin.extend_from_slice(&chunk);
        }
    } else {
        ignores_input.store(true, Ordering::Relaxed);
    }
    apply(&request.limits)?;
    match request.fault {
        Some(WorkerFault::Hang) => loop {
            thread::sleep(Duration::from_secs(3600));
        },
        Some(WorkerFault::Crash) => std::process::abort(),
        Some(WorkerFault::TryWalls) => {
            let holes = walls::holes(root.as_ref().map(AsFd::as_fd));
            line.send(Kind::Stdout, holes.as_bytes());
        }
        None => {}
    }
    let code = shell::run(line, incoming, shell::Job { request: *request, root, stdin })?;
    line.send(Kind::Exit, &[code]);
    // The supervisor looks once more at what was used, then hangs up, which ends this process.
    loop {
        thread::park();
    }
}

/// Lowers this process's own limits. The supervisor watches the same limits from outside.
fn apply(limits: &WorkerLimits) -> io::Result<()> {
    if let Some(cpu_ms) = limits.cpu_ms {
        // Whole seconds are all the kernel knows; the supervisor watches the finer limit.
        lower(Resource::Cpu, cpu_seconds(cpu_ms).saturating_add(1))?;
    }
    if let Some(bytes) = limits.memory_bytes {
        let mapped = mapped_bytes().unwrap_or(STACK_BYTES as u64 * 2);
        lower(Resource::As, mapped.saturating_add(bytes).saturating_add(ADDRESS_SLACK))?;
    }
    if let Some(count) = limits.open_files {
        lower(Resource::Nofile, count.max(16))?;
    }
    Ok(())
}

fn lower(resource: Resource, value: u64) -> io::Result<()> {
    let ceiling = getrlimit(resource).maximum.unwrap_or(u64::MAX).min(value);
    Ok(setrlimit(resource, Rlimit { current: Some(ceiling), maximum: Some(ceiling) })?)
}

fn mapped_bytes() -> Option<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = statm.split(' ').next()?.parse().ok()?;
    Some(pages.saturating_mul(rustix::param::page_size() as u64))
}
