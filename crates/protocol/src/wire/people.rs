//! Bodies about people and settings: principals, enroll tokens, secrets, policy.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::request::ActorKind;
use crate::validate::{At, Checker};
use crate::{PoolName, PrincipalId, Timestamp};

/// `POST /v1/principals`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IssuePrincipal {
    /// What they are called.
    pub name: String,
    /// What they may do.
    pub role: PrincipalRole,
    /// Whether it is a person or a program; a person where absent. Ours.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<ActorKind>,
    /// The groups they approve for. Ours.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
}

/// What a principal may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PrincipalRole {
    /// Everything.
    Admin,
    /// Ask for runs.
    Requester,
    /// Approve runs.
    Approver,
    /// Let runners in.
    Enroller,
    /// Read everything and change nothing. Ours.
    Auditor,
}

impl PrincipalRole {
    /// Every role.
    pub const ALL: [Self; 5] =
        [Self::Admin, Self::Requester, Self::Approver, Self::Enroller, Self::Auditor];

    /// Returns the word on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Admin => "admin",
            Self::Requester => "requester",
            Self::Approver => "approver",
            Self::Enroller => "enroller",
            Self::Auditor => "auditor",
        }
    }
}

/// A principal with the token that is shown this once.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PrincipalToken {
    /// Their id.
    pub principal_id: PrincipalId,
    /// What they are called.
    pub name: String,
    /// What they may do.
    pub role: PrincipalRole,
    /// Says who they are.
    pub token: String,
}

impl fmt::Debug for PrincipalToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<token of {}>", self.name)
    }
}

/// A principal in a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PrincipalSummary {
    /// What they are called.
    pub name: String,
    /// What they may do.
    pub role: PrincipalRole,
    /// Since when.
    pub created_at: Timestamp,
    /// Whether their token was withdrawn.
    pub revoked: bool,
    /// The groups they approve for. Ours.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
}

/// `POST /v1/enroll-tokens`; every member is ours.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IssueEnrollToken {
    /// The only pool it lets a runner into.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pool: Option<PoolName>,
}

/// The answer to an enroll token: it lets one runner in, once.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EnrollTokenResult {
    /// The token.
    pub token: String,
    /// Until when it can be used.
    pub expires_at: Timestamp,
    /// The only pool it is good for. Ours.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pool: Option<PoolName>,
}

impl fmt::Debug for EnrollTokenResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<enroll token until {}>", self.expires_at)
    }
}

/// `POST /v1/runs/:id/deny` (ours).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefuseRun {
    /// Why, for the receipt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// `PUT /v1/secrets/:name` (ours). The value does not show in debug output.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetSecret {
    /// The value.
    pub value: String,
}

impl fmt::Debug for SetSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<secret>")
    }
}

/// `PUT /v1/policy` (ours): the parts of a policy.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PolicyUpload {
    /// The document.
    pub document: Value,
    /// The rules, Cedar; the document alone decides where absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rules: Option<String>,
    /// The examples, one JSON object in a line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub examples: Option<String>,
}

pub(super) fn check_principal(checker: &mut Checker, body: &Map<String, Value>) {
    checker.text(&At::ROOT.name("name"), body.get("name"), 1..=128);
    let roles = PrincipalRole::ALL.map(PrincipalRole::as_str);
    checker.one_of(&At::ROOT.name("role"), body.get("role"), &roles);
    if let Some(kind) = body.get("kind") {
        checker.one_of(&At::ROOT.name("kind"), Some(kind), &["human", "service"]);
    }
    if let Some(groups) = body.get("groups") {
        let at = At::ROOT.name("groups");
        for (index, group) in checker.list(&at, Some(groups), 64).iter().enumerate() {
            checker.text(&at.index(index), Some(group), 1..=128);
        }
    }
}

pub(super) fn check_enroll_token(checker: &mut Checker, body: &Map<String, Value>) {
    if let Some(pool) = body.get("pool") {
        checker.name::<PoolName>(&At::ROOT.name("pool"), Some(pool), 1..=128);
    }
}
