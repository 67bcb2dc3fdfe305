//! The runner: one governed run, from contract to receipt.
//!
//! [`governed_run`] takes a [`Lease`](warrant_protocol::port::Lease) and the [`Surroundings`] it
//! runs in, and returns an [`Ended`] with a signed, countersigned and stored receipt for every
//! end there is: completed, failed, limited, cancelled, denied, posture refused, gap denied or
//! broken. The runner never decides policy; it talks to the plane only through
//! [`Plane`](warrant_protocol::port::Plane), which the embedded plane implements.
//!
//! [`visiting_run`] is the same for a workspace that comes from the plane. [`fleet`] is the claim
//! loop around it: many runs at a time, from a plane over HTTP ([`remote`]).
//!
//! [`preview()`] says what a request would become here, without running anything.
//! [`redact`] takes secret values out of everything before it is stored or shown.

mod capture;
mod door;
mod fit;
pub mod fleet;
mod gaps;
mod guard;
mod halt;
pub mod harness;
mod journal;
pub mod lease_timer;
mod missing_program;
mod own;
mod pack;
pub mod preview;
mod provider_remedy;
pub mod redact;
pub mod remote;
pub mod run;
mod seal;
mod sink;
mod site;
mod spread;

pub use capture::JudgedPath;
pub use guard::VersionPins;
pub use preview::preview;
pub use provider_remedy::{ProviderRemedy, UnprovenComponent, unproven_for_tier};
pub use redact::{RedactStream, Redactor, RedactorError};
pub use run::{
    Ended, Observer, RunError, RunnerIdentity, Surroundings, governed_run, visiting_run,
};
pub use site::{MockProgram, Visit};
