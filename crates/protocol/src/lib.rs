//! What both sides of a governed run must agree on, byte for byte.
//!
//! This crate is pure: no clock, randomness, files, network, async or logging.
//! Same input, same bytes, for ever. Time and randomness enter as arguments.
//! Start at [`digest`] and [`names`] for the parsed-once values.

pub mod digest;
pub mod ids;
pub mod isolation;
pub mod limits;
pub mod names;
pub mod outcome;
pub mod posture;

pub use digest::Digest;
pub use ids::{CheckpointId, EnvelopeId, PrincipalId, RunId, RunnerId, SandboxId};
pub use isolation::Isolation;
pub use limits::{LimitKind, Limits};
pub use names::{Host, InvalidName, PoolName, RelPath, SecretName};
pub use outcome::{Outcome, Usage};
pub use posture::{Component, Enforcement, Evidence, Posture};
