//! The port through which a program is isolated, and the backends behind it.
//!
//! A backend sees an [`Invocation`], never a contract, and never talks to the plane.
//! Start at [`Backend`].

pub mod cancel;
mod cgroup;
mod closing;
pub mod detect;
pub mod doctor;
mod door;
mod growth;
#[cfg(feature = "hermetic")]
pub mod hermetic;
pub mod invocation;
pub mod lowering;
#[cfg(feature = "hermetic")]
pub mod mock;
pub mod namespace;
pub mod neighbors;
mod pipes;
pub mod port;
pub mod process;
#[cfg(feature = "remote")]
pub mod remote;
mod sight;
mod started;
mod streams;
mod supervise;
mod tree;
mod watch;

pub use cancel::Cancel;
pub use detect::{detect, strongest};
pub use doctor::{Finding, State, doctor};
pub use invocation::{
    Command, EnvValue, EnvVar, Files, Invocation, Network, Place, Shell, Stdin, TtySize,
    WorkspaceAccess, WriteTarget,
};
pub use namespace::{Namespace, veiled};
pub use neighbors::{Neighborhood, Together};
pub use port::{
    Backend, BoundaryError, COMPONENTS, Gate, NetworkDecision, Operation, Plan, REMOTE_COMPONENTS,
    Refusal, RunReport, Sink, Stream, StreamDigest, components,
};
pub use process::Process;
#[cfg(feature = "remote")]
pub use remote::Remote;
