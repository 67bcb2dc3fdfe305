//! Looking at a policy: check it, try it, explain a decision, compare two.

use warrant_protocol::Digest;

use crate::decision::{self, Decision, decide};
use crate::document;
use crate::examples;
use crate::facts::Facts;
use crate::reason::Reason;
use crate::rules::Rule;
use crate::snapshot::{InvalidSnapshot, PolicySnapshot, PolicyText};

/// What a policy is, once it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checked {
    /// The digest over document, rules and schema.
    pub hash: Digest,
    /// The digest of the document alone, as the wire carries it.
    pub document_hash: Digest,
    /// How many rules there are.
    pub rules: usize,
    /// How many examples were tried.
    pub examples: usize,
}

/// Reads, validates and tries a policy, as loading it would.
///
/// # Errors
/// [`InvalidSnapshot`] naming what is wrong.
pub fn check(text: PolicyText<'_>) -> Result<Checked, InvalidSnapshot> {
    let snapshot = PolicySnapshot::load(text)?;
    Ok(Checked {
        hash: snapshot.hash(),
        document_hash: snapshot.document().hash(),
        rules: snapshot.rule_count(),
        examples: examples::read(text.examples)?.len(),
    })
}

/// How a decision came about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    /// The answer.
    pub decision: Decision,
    /// What the document holds against the request.
    pub document: Vec<Reason>,
    /// What the document wants agreed to, held approvals aside.
    pub consents: Vec<String>,
    /// What the rules were asked, and what each answer rests on.
    pub questions: Vec<Explained>,
}

/// One question to the rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explained {
    /// The action.
    pub action: &'static str,
    /// What it is about.
    pub resource: String,
    /// How many rules apply by their scope.
    pub considered: usize,
    /// Whether it is allowed as things stand.
    pub allowed: bool,
    /// The rules that decide as things stand.
    pub rules: Vec<Rule>,
    /// The level of approval that would allow it.
    pub would_satisfy: Option<u8>,
}

/// Explains a decision: which rules decide, and what would change it.
#[must_use]
pub fn explain(policy: &PolicySnapshot, facts: &Facts) -> Explanation {
    let body = policy.document().body();
    let consents = document::consents(body, facts).into_iter().map(|consent| consent.requirement);
    Explanation {
        decision: decide(policy, facts),
        document: document::denials(body, policy.controls(), facts),
        consents: consents.collect(),
        questions: decision::explained(policy, facts),
    }
}

/// A recorded request that another policy would decide differently.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Changed {
    /// The name it was recorded under.
    pub id: String,
    /// What the old policy says.
    pub old: Decision,
    /// What the new policy says.
    pub new: Decision,
}

/// Returns the recorded requests that `new` decides differently than `old`; which rules decided
/// does not matter, what the requester meets does.
#[must_use]
pub fn diff<'a>(
    old: &PolicySnapshot,
    new: &PolicySnapshot,
    recorded: impl IntoIterator<Item = (&'a str, &'a Facts)>,
) -> Vec<Changed> {
    let mut changed = Vec::new();
    for (id, facts) in recorded {
        let (old, new) = (decide(old, facts), decide(new, facts));
        if !is_same(&old, &new) {
            changed.push(Changed { id: id.to_owned(), old, new });
        }
    }
    changed
}

fn is_same(old: &Decision, new: &Decision) -> bool {
    match (old, new) {
        (Decision::Allow { terms: old, .. }, Decision::Allow { terms: new, .. }) => old == new,
        (Decision::Ask(old), Decision::Ask(new)) => {
            old.requirements == new.requirements && old.terms == new.terms
        }
        (Decision::Deny { reasons: old, .. }, Decision::Deny { reasons: new, .. }) => old == new,
        (Decision::Allow { .. } | Decision::Ask(_) | Decision::Deny { .. }, _) => false,
    }
}
