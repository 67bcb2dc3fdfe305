//! The port through which a program is isolated, and the backends behind it.
//!
//! A backend sees an [`Invocation`], never a contract, and never talks to the plane.
//! Start at [`Backend`].

pub mod cancel;
mod cgroup;
#[cfg(feature = "hermetic")]
pub mod hermetic;
pub mod invocation;
#[cfg(feature = "hermetic")]
pub mod mock;
pub mod namespace;
pub mod port;
mod streams;
mod supervise;
mod tree;
mod watch;

pub use cancel::Cancel;
pub use invocation::{
    Command, EnvValue, EnvVar, Files, Invocation, Network, Shell, Stdin, TtySize, WorkspaceAccess,
};
pub use namespace::Namespace;
pub use port::{
    Backend, BoundaryError, NetworkDecision, Plan, Refusal, RunReport, Sink, Stream, StreamDigest,
};
