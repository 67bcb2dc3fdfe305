//! A jailed worker: this very binary, executed again with nothing but the workspace around it.
//!
//! Meant for interpreters. The worker starts in the same jail as any program of this tier, with
//! an even emptier root: no system directories, no `/proc`, no devices, no listeners; only the
//! libraries the binary itself is linked with. First thing in its `main` it must call
//! [`seal_worker`], after which it can start no program, make no process and open no socket.
//!
//! ```no_run
//! # use std::os::fd::OwnedFd;
//! # use warrant_sandbox::{Cancel, Files, Sink, Stdin};
//! # use warrant_sandbox::namespace::{Namespace, Worker};
//! # fn example(files: Files, limits: warrant_protocol::Limits, control: OwnedFd, sink: &dyn Sink,
//! #            cancel: &Cancel) -> Result<(), Box<dyn std::error::Error>> {
//! let executable = std::fs::File::open("/proc/self/exe")?.into();
//! let worker = Worker {
//!     executable,
//!     args: vec!["--hermetic-worker".into()],
//!     env: Vec::new(),
//!     files,
//!     limits,
//!     stdin: Stdin::Empty,
//!     control: Some(control),
//! };
//! let report = Namespace::new().run_worker(worker, sink, cancel)?;
//! # drop(report); Ok(()) }
//! ```

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use warrant_jail::Exec;
use warrant_protocol::Limits;

use crate::namespace::layout::{MountKind, Piece, PlannedMount, System};
use crate::namespace::lower::{Lowered, lower};
use crate::namespace::{Growth, Job, Namespace, Writes};
use crate::pipes::at;
use crate::{
    BoundaryError, Cancel, Command, EnvValue, EnvVar, Files, Invocation, Network, RunReport, Sink,
    Stdin,
};

pub use warrant_jail::seccomp::{seal_worker, worker_control};

/// What a worker is started with.
#[derive(Debug)]
pub struct Worker {
    /// The program: usually `/proc/self/exe`, opened.
    pub executable: OwnedFd,
    /// Its arguments, without its own name.
    pub args: Vec<String>,
    /// Its whole environment.
    pub env: Vec<EnvVar>,
    /// The workspace, and how it may be used. It starts in it.
    pub files: Files,
    /// Limits; they hold for the worker and its threads.
    pub limits: Limits,
    /// What it reads.
    pub stdin: Stdin,
    /// A descriptor it finds as number 3, usually one end of a socket pair. A run of this worker
    /// blocks the calling thread, so the other end is served by another.
    pub control: Option<OwnedFd>,
}

impl Namespace {
    /// Runs a worker to its end; as [`crate::Backend::run`] in everything else.
    ///
    /// # Errors
    /// A [`BoundaryError`] when the boundary could not be built or held.
    pub fn run_worker(
        &self,
        worker: Worker,
        sink: &dyn Sink,
        cancel: &Cancel,
    ) -> Result<RunReport, BoundaryError> {
        let libraries = linked_libraries().map_err(at("finding the worker's libraries"))?;
        let Worker { executable, args, env, files, limits, stdin, control } = worker;
        let invocation = Invocation { stdin, ..invocation((args, env), files, limits, &libraries) };
        let mut lowered = self.lower_worker(&invocation)?;
        show_libraries(&mut lowered, libraries);
        let job = Job {
            exec: Exec::Descriptor(executable),
            descriptors: control.into_iter().collect(),
            invocation: &invocation,
            lowered,
            writes: Writes::BoundByJail,
            growth: Growth::CountedByWorker,
            run: self.take_identity()?,
        };
        self.run_job(job, &mut || true, (sink, cancel))
    }

    /// Lowers what a worker is started with: nothing of the system, no listeners.
    pub(super) fn lower_worker(&self, invocation: &Invocation) -> Result<Lowered, BoundaryError> {
        let lowered = lower(invocation, self.identities.inside(), System::Nothing);
        let lowered = lowered.map_err(|refusal| BoundaryError {
            step: "lowering the worker",
            cause: io::Error::other(refusal),
        })?;
        Ok(Lowered { listeners: Vec::new(), ..lowered })
    }
}

/// Returns the invocation that stands for a worker without input.
pub(super) fn invocation(
    (args, mut env): (Vec<String>, Vec<EnvVar>),
    files: Files,
    limits: Limits,
    libraries: &[Library],
) -> Invocation {
    if let Some(path) = library_path(libraries) {
        env.push(EnvVar { name: "LD_LIBRARY_PATH".into(), value: EnvValue::Plain(path) });
    }
    Invocation {
        command: Command::Argv { program: "/worker".into(), args },
        cwd: files.workspace.clone(),
        env,
        stdin: Stdin::Empty,
        tty: None,
        files,
        network: Network::Allow(Vec::new()),
        limits,
        image: None,
        neighbors: None,
    }
}

/// Mounts each library at its path, before the workspace can cover it.
pub(super) fn show_libraries(lowered: &mut Lowered, libraries: Vec<Library>) {
    let layout = &mut lowered.layout;
    for library in libraries {
        let mut parents: Vec<&Path> = library.shown_at.ancestors().skip(1).collect();
        parents.reverse();
        for parent in parents.into_iter().filter(|parent| *parent != Path::new("/")) {
            layout.entries.push(Piece::Directory { path: parent.to_owned(), mode: 0o755 });
        }
        layout.entries.push(Piece::File { path: library.shown_at.clone(), content: Vec::new() });
        let kind = MountKind::Library(library.file);
        layout.mounts.insert(0, PlannedMount { target: library.shown_at, kind });
    }
}

/// A shared object and where a worker finds it.
pub(super) struct Library {
    file: PathBuf,
    shown_at: PathBuf,
}

/// Names under which programs ask the kernel for their loader.
const LOADERS: [&str; 2] = ["/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1"];

/// Returns the shared objects this process is made of.
pub(super) fn linked_libraries() -> io::Result<Vec<Library>> {
    let maps = fs::read_to_string("/proc/self/maps")?;
    let executable = fs::read_link("/proc/self/exe")?;
    let mut files: Vec<PathBuf> = maps
        .lines()
        .filter_map(|line| line.find('/').and_then(|at| line.get(at..)).map(PathBuf::from))
        .filter(|path| *path != executable && is_library(path))
        .collect();
    files.sort();
    files.dedup();
    let mut libraries: Vec<Library> =
        files.into_iter().map(|file| Library { shown_at: file.clone(), file }).collect();
    for loader in LOADERS.map(PathBuf::from) {
        if let Ok(file) = fs::canonicalize(&loader)
            && libraries.iter().all(|library| library.shown_at != loader)
        {
            libraries.push(Library { file, shown_at: loader });
        }
    }
    Ok(libraries)
}

fn is_library(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    name.contains(".so") && path.is_file()
}

fn library_path(libraries: &[Library]) -> Option<String> {
    let mut directories: Vec<&str> =
        libraries.iter().filter_map(|library| library.shown_at.parent()?.to_str()).collect();
    directories.sort_unstable();
    directories.dedup();
    (!directories.is_empty()).then(|| directories.join(":"))
}
