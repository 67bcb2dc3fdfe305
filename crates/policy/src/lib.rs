//! The decision: a policy and facts become allow, ask or deny, with every reason.
//!
//! Two layers, and both must allow: the policy document ([`warrant_protocol::PolicyDocument`]
//! with its [`Controls`]) and Cedar rules over a strict schema. Pure: no files, clock or network.
//! Start at [`decide`]; a [`PolicySnapshot`] is what it asks, [`Facts`] are what it is asked about.

pub mod controls;
pub mod decision;
pub mod examples;
pub mod facts;
pub mod inspect;
pub mod preset;
pub mod reason;
pub mod rules;
pub mod snapshot;
pub mod terms;

mod context;
mod document;
mod guards;
mod passed;
mod paths;
mod questions;
mod unsupplied;

pub use controls::Controls;
pub use decision::{Ask, Decision, Requirement, decide, decide_without_policy, is_satisfied};
pub use facts::{Approval, CommandFacts, Facts, History, ProgramFile, Surroundings};
pub use inspect::{check, diff, explain};
pub use preset::Preset;
pub use reason::{Reason, ReasonCode};
pub use rules::Rule;
pub use snapshot::{InvalidSnapshot, PolicySnapshot, PolicyText};
pub use terms::Terms;
