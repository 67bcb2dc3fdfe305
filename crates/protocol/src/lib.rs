//! What both sides of a governed run must agree on, byte for byte.
//!
//! This crate is pure: no clock, randomness, files, network, async or logging.
//! Same input, same bytes, for ever. Time and randomness enter as arguments.
//!
//! Start at [`contract`], [`chain`] and [`receipt`] for what is signed, at [`mod@fold`] for how
//! one follows from the others, and at [`digest`] and [`names`] for the parsed-once values.
//! Signed objects are [`signed::Signed`]: the received JSON beside a typed view.

pub mod approval;
pub mod authority;
pub mod bundle;
pub mod canonical;
pub mod chain;
pub mod claim;
pub mod clock;
pub mod contract;
pub mod decision;
pub mod digest;
mod error_chain;
pub mod event;
pub mod execution;
pub mod fold;
pub mod glob;
pub mod handoff;
pub mod ids;
pub mod isolation;
pub mod json;
pub mod keys;
pub mod limits;
pub mod manifest;
pub mod names;
pub mod observation;
pub mod outcome;
pub mod policy;
pub mod port;
pub mod posture;
pub mod preimage;
pub mod receipt;
pub mod redact;
pub mod request;
pub mod sealed;
pub mod shared;
pub mod signed;
pub mod state;
pub mod story;
pub mod succession;
mod text;
pub mod time;
pub mod validate;
pub mod verify;
pub mod version_range;
pub mod wire;

pub use bundle::Bundle;
pub use canonical::{canonicalize, hash_canonical};
pub use chain::{Chain, ChainedEvent};
pub use claim::Claim;
pub use clock::{AwakeTime, Moment, SteppedTime, TimeSource};
pub use contract::{Contract, ContractBody};
pub use decision::{Decision, DecisionSummary};
pub use digest::Digest;
pub use error_chain::error_chain;
pub use event::Event;
pub use execution::ExecutionSpec;
pub use fold::{Sealer, fold};
pub use ids::{CheckpointId, EnvelopeId, PrincipalId, RunId, RunnerId, SandboxId};
pub use isolation::Isolation;
pub use keys::{KeyId, KeyRole, PublicKey, SigningKey, TrustedKeys};
pub use limits::{LimitKind, Limits};
pub use manifest::WorkspaceManifest;
pub use names::{EgressHost, Host, InvalidName, PoolName, RelPath, SecretName};
pub use outcome::{Outcome, Usage};
pub use policy::PolicyDocument;
pub use posture::{Component, Enforcement, Evidence, Posture};
pub use preimage::{Preimage, PreimageInputs};
pub use receipt::{Receipt, ReceiptBody};
pub use request::{ActorRef, RunRequest};
pub use signed::{Signed, Signer};
pub use state::{RunState, Transition, WireStatus};
pub use time::Timestamp;
pub use verify::{Problem, VerifiedBundle, verify};
pub use version_range::{InvalidVersionRange, VersionRange};
