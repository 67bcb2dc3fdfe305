//! Turns a fresh single-threaded Linux process into a jailed one, then executes the program.
//!
//! The caller describes the jail as plain data, a [`Spec`]; [`launch`] makes it.
//! Everything that needs memory is prepared before the clone. Between `clone3` and `execve` only
//! raw system calls are made: no allocation, no lock, no panic.
//!
//! ```text
//! supervisor (any host process)          pid 1 of the jail                 the program
//!   launch ──── clone3 ────────────────►  groups, identity, network, mounts
//!      │                                  pivot_root
//!   built  ◄──────────── Built + fds ──
//!      │                                  clone(VM) ─────────────────────►  drops privileges,
//!      │                                  execve of the init program        Landlock, waits
//!      │                                  opens the gate ────────────────►  seccomp, execve
//!      │                                  reaps, watches the lifeline
//!   Event::Ended ◄──── status ──────────  exits, and everyone with it
//! ```
//!
//! Pid 1 begins as a copy of the supervisor and executes the init program before the program is
//! executed, so that nobody inside ever runs beside memory, arguments or descriptors of the
//! supervisor.
//!
//! This crate is the only one with `unsafe`. It has no threads, no async and no logging, and
//! knows nothing of runs, contracts or policies. Start at [`spec`].

mod child;
mod command;
mod disk;
pub mod idmap;
mod init;
mod keeper;
mod landlock;
mod launch;
mod message;
mod mounts;
mod network;
mod observe;
pub mod seccomp;
pub mod spec;
mod sys;
mod syscall;
mod usher;
mod view;
mod witness;

pub use disk::mount_image;
pub use landlock::{abi as landlock_abi, restrict_writes};
pub use launch::{
    Ended, Event, Going, Handed, Jail, LaunchError, Shown, Starting, bare_clone, launch, show,
    tether,
};
pub use message::Step;
pub use observe::{Confinement, Fact};
pub use spec::{
    Attributes, Capabilities, Entry, Exec, Groups, Hidden, HostPath, Identity, LandlockRules,
    Listener, ListenerKind, Mount, Program, Resource, Rlimit, Scratch, Source, Spec, Stdio, Tether,
    View, Walls,
};
pub use sys::Errno;
pub use usher::{Family, Usher, Wish};
pub use witness::next_destination;
