//! How a request was decided, in the words that contracts, events and receipts share.

use serde::{Deserialize, Serialize};

use crate::Digest;

/// The three answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Decision {
    /// It may run.
    Allow,
    /// People must say yes first.
    Ask,
    /// It may not run.
    Deny,
}

/// A decision with its reasons and the rules that made it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DecisionSummary {
    /// The answer.
    pub decision: Decision,
    /// Why, for people; every reason at once.
    pub reasons: Vec<String>,
    /// The names of the rules that decided.
    pub rules: Vec<String>,
    /// The digest of the policy snapshot that was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy_hash: Option<Digest>,
    /// The level of approval that was wanted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub level: Option<u8>,
}
