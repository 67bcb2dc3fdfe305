//! A policy snapshot: document, rules and schema as one content-addressed thing.

use std::sync::Arc;

use serde_json::json;
use thiserror::Error;
use warrant_protocol::policy::InvalidPolicy;
use warrant_protocol::{Digest, PolicyDocument, hash_canonical};

use crate::controls::{Controls, InvalidControls};
use crate::examples::{self, ExampleFailure, InvalidExamples};
use crate::passed;
use crate::rules::{InvalidRules, Rules, SCHEMA};

/// The rules of a document that stands alone, as the reference's does.
pub const DOCUMENT_ONLY: &str = r#"@id("document-only")
@reason("the document alone decides")
permit (principal, action, resource);
"#;

/// A policy that was read, validated and tried on its own examples.
#[derive(Debug, Clone)]
pub struct PolicySnapshot {
    document: PolicyDocument,
    controls: Controls,
    text: Arc<str>,
    rules: Arc<Rules>,
    hash: Digest,
    may_read_run_count: bool,
}

/// The parts of a policy as text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PolicyText<'a> {
    /// The document, JSON.
    pub document: &'a str,
    /// The rules, Cedar.
    pub rules: &'a str,
    /// The examples, one JSON object in a line.
    pub examples: &'a str,
}

/// Why a policy is refused; the one in force stays.
#[derive(Debug, Error)]
pub enum InvalidSnapshot {
    /// The document.
    #[error(transparent)]
    Document(#[from] InvalidPolicy),
    /// The document's controls.
    #[error("policy document: {0}")]
    Controls(#[from] InvalidControls),
    /// The rules.
    #[error(transparent)]
    Rules(#[from] InvalidRules),
    /// The examples cannot be read.
    #[error(transparent)]
    Examples(#[from] InvalidExamples),
    /// Examples that are decided differently than they say.
    #[error("{} of the policy's own examples fail: {}", .0.len(), examples::told(.0))]
    Failing(Vec<ExampleFailure>),
}

impl PolicySnapshot {
    /// Reads, validates and tries a policy.
    ///
    /// # Errors
    /// [`InvalidSnapshot`] naming what is wrong.
    pub fn load(text: PolicyText<'_>) -> Result<Self, InvalidSnapshot> {
        let document = PolicyDocument::from_slice(text.document.as_bytes())?;
        let snapshot = Self::new(document, text.rules, Rules::load(text.rules)?)?;
        let failures = examples::run(&snapshot, text.examples)?;
        if !failures.is_empty() {
            return Err(InvalidSnapshot::Failing(failures));
        }
        Ok(snapshot.settled())
    }

    /// Takes a policy that passed before, from a record that [`PolicySnapshot::record`] wrote.
    ///
    /// The document is read again; the rules come from the record. Nothing when the record is not
    /// of exactly this text and maker, or cannot be read: then the policy is to be loaded.
    #[must_use]
    pub fn recall(text: PolicyText<'_>, maker: &str, record: &str) -> Option<Self> {
        let (rules, hash) = passed::read(text, maker, record)?;
        let document = PolicyDocument::from_slice(text.document.as_bytes()).ok()?;
        Self::with_hash(document, text.rules, (rules, hash)).ok()
    }

    /// Returns the record that this text passed, to be kept where only its owner can write.
    ///
    /// `maker` names the program that tried it, as exactly as the caller can: another one tries
    /// again. Nothing when the snapshot is not of this text, or Cedar cannot write a rule down.
    #[must_use]
    pub fn record(&self, text: PolicyText<'_>, maker: &str) -> Option<String> {
        if text.rules != &*self.text {
            return None;
        }
        passed::write(text, maker, (&self.rules, self.hash))
    }

    /// Returns a snapshot of a document that stands alone, as the reference's does.
    ///
    /// # Errors
    /// [`InvalidSnapshot`] naming what is wrong.
    pub fn of_document(document: PolicyDocument) -> Result<Self, InvalidSnapshot> {
        Ok(Self::new(document, DOCUMENT_ONLY, Rules::load(DOCUMENT_ONLY)?)?.settled())
    }

    fn settled(self) -> Self {
        let rules = Arc::new(Rules::clone(&self.rules).settled());
        Self { rules, ..self }
    }

    fn new(document: PolicyDocument, text: &str, rules: Rules) -> Result<Self, InvalidSnapshot> {
        let hash = hash_canonical(&json!({
            "version": "warrant.policy-snapshot.v1",
            "document": document.raw(),
            "rules": text,
            "schema": SCHEMA,
        }));
        Self::with_hash(document, text, (rules, hash))
    }

    fn with_hash(
        document: PolicyDocument,
        text: &str,
        (rules, hash): (Rules, Digest),
    ) -> Result<Self, InvalidSnapshot> {
        let controls = match &document.body().controls {
            Some(value) => Controls::from_value(value)?,
            None => Controls::none(),
        };
        let rules = Arc::new(rules);
        let may_read_run_count = may_read_run_count(text);
        Ok(Self { document, controls, text: text.into(), rules, hash, may_read_run_count })
    }

    /// Returns whether a rule may read how often a requester asked lately, which takes time to
    /// count. Never false when one does.
    #[must_use]
    pub const fn may_read_run_count(&self) -> bool {
        self.may_read_run_count
    }

    /// Returns the document.
    #[must_use]
    pub const fn document(&self) -> &PolicyDocument {
        &self.document
    }

    /// Returns what the document says beyond the reference's.
    #[must_use]
    pub const fn controls(&self) -> &Controls {
        &self.controls
    }

    /// Returns the text of the rules.
    #[must_use]
    pub fn rules_text(&self) -> &str {
        &self.text
    }

    /// Returns how many rules there are.
    #[must_use]
    pub fn rule_count(&self) -> usize {
        self.rules.count()
    }

    /// Returns the digest over document, rules and schema.
    #[must_use]
    pub const fn hash(&self) -> Digest {
        self.hash
    }

    pub(crate) fn rules(&self) -> &Rules {
        &self.rules
    }
}

/// Looks for `context.history.runs_10m` in the text of rules, and for whatever could read it by
/// another spelling: escapes, the whole history, the whole context.
fn may_read_run_count(rules: &str) -> bool {
    let followed_by = |word: &str, endings: &[&str]| {
        let mut rests = rules.split(word).skip(1).map(str::trim_start);
        rests.all(|rest| endings.iter().any(|ending| rest.starts_with(ending)))
    };
    rules.contains("runs_10m")
        || rules.contains('\\')
        || !followed_by("history", &[".denies_10m"])
        || !followed_by("context", &[".", "has "])
}

#[cfg(test)]
mod tests {
    use super::may_read_run_count;

    #[track_caller]
    fn check(condition: &str, expected: bool) {
        let rule = format!("forbid (principal, action, resource) when {{ {condition} }};");
        assert_eq!(may_read_run_count(&rule), expected, "{condition}");
    }

    #[test]
    fn every_spelling_that_reads_the_run_count_is_found() {
        check("context.history.runs_10m > 3", true);
        check(r#"context["history"]["run\u{73}_10m"] > 3"#, true);
        check("context.history == principal.last", true);
        check("[context].contains(resource.seen)", true);
        check("context has history.runs_10m", true);
        check("context.history.denies_10m >= 100", false);
        check("context has grant && context.grant.access == \"write\"", false);
        check("true", false);
    }
}
