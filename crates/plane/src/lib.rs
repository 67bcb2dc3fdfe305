//! The embedded plane: requests, decisions, contracts, secrets, countersignatures, storage.
//!
//! The plane never executes anything. In one process it is used like this:
//!
//! 1. [`Home::open`] finds and, on first use, sets up the home directory with its keys.
//! 2. [`EmbeddedPlane::open`] opens the store and seals what killed processes left behind.
//! 3. [`EmbeddedPlane::submit`] takes a request and a judge (`judge::judge`, which asks the policy) and
//!    returns a [`Reception`]: queued, awaiting approval, or denied with its receipt.
//! 4. [`EmbeddedPlane::lease`] hands a queued run to the runner of this process, which does the
//!    rest through the port [`warrant_protocol::port::Plane`] that the plane implements.
//! 5. [`EmbeddedPlane::bundle`], [`EmbeddedPlane::export`] and the readers of [`store::Store`]
//!    ([`EmbeddedPlane::store`]) are the archive.
//!
//! A run that awaits approval is listed by [`EmbeddedPlane::waiting`]; [`EmbeddedPlane::approve`],
//! [`EmbeddedPlane::approve_authenticated`] and [`EmbeddedPlane::refuse`] answer it, after which
//! it is queued or sealed. [`EmbeddedPlane::cancel`] ends what nobody has started.
//!
//! Secrets are set, listed and removed through [`EmbeddedPlane::secrets`]; their values leave
//! only at the start of a run whose contract names them.

pub mod approvals;
pub mod archive;
mod authorship;
pub mod backup;
mod chain_limits;
pub mod clock;
pub mod doors;
pub mod embedded;
mod evidence_check;
pub(crate) mod files;
pub mod fsck;
pub mod home;
#[cfg(feature = "policy")]
pub mod http;
#[cfg(feature = "policy")]
pub mod judge;
pub mod lease_table;
pub mod leases;
pub mod liveness;
pub mod notary;
#[cfg(feature = "policy")]
mod page;
#[cfg(feature = "policy")]
pub mod policy_files;
#[cfg(feature = "policy")]
pub mod policy_holder;
#[cfg(feature = "policy")]
mod policy_passed;
pub mod process_identity;
pub mod random;
pub mod read_only;
pub mod reap;
pub mod reception;
pub mod request_context;
mod retired;
pub mod rotation;
pub mod sealed;
pub mod secrets;
pub mod serving;
pub mod store;

pub use approvals::{ApproveError, Approved, StopError, Stopped, Waiting};
pub use archive::{ArchiveError, Records};
pub use embedded::{EmbeddedError, EmbeddedPlane};
pub use home::{Home, HomeEnvironment, HomeError};
pub use notary::{ApprovalRequirement, Judgment};
pub use reception::{Note, Reception, Submission, SubmitError};
pub use secrets::{SecretEntry, Secrets, SecretsError};
pub use store::Store;
