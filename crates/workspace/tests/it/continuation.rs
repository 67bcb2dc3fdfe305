//! Work put down and taken up: the reference's envelope, and blobs that were swapped.

use std::fs;

use serde_json::Value;
use warrant_protocol::Digest;
use warrant_protocol::handoff::{HandoffEnvelope, ToolJournal};
use warrant_workspace::{
    CheckpointParts, ContinuationError, make_checkpoint, open_envelope, open_tool_journal,
    store_envelope,
};

use crate::fixture::Fixture;

fn vector() -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../vectors/handoff.json");
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// The parts of the vector's checkpoint, as they would be made here.
fn checkpoint(fixture: &Fixture, transcript: &[u8]) -> warrant_protocol::handoff::Checkpoint {
    let vector = vector();
    let wanted: HandoffEnvelope = serde_json::from_value(vector["envelope"].clone()).unwrap();
    let journal: ToolJournal = serde_json::from_value(vector["toolJournal"].clone()).unwrap();
    let wanted = wanted.checkpoint;
    let parts = CheckpointParts {
        checkpoint_id: wanted.checkpoint_id,
        created_at: wanted.created_at,
        message: wanted.message,
        note: Some("why".into()),
        parent: wanted.parent,
        workspace: wanted.workspace,
        transcript: Some(&mut &*transcript),
        tool_journal: Some(&journal),
    };
    make_checkpoint(parts, &fixture.blobs).unwrap()
}

#[test]
fn reference_envelope_has_the_same_digest_here() {
    let fixture = Fixture::new();
    let vector = vector();
    let envelope: HandoffEnvelope = serde_json::from_value(vector["envelope"].clone()).unwrap();
    let reference = store_envelope(&envelope, &fixture.blobs).unwrap();
    assert_eq!(reference.envelope_hash.to_hex(), vector["envelopeHash"].as_str().unwrap());
    assert_eq!(open_envelope(&reference, &fixture.blobs).unwrap(), envelope);
}

#[test]
fn checkpoint_names_transcript_and_tool_journal_by_digest() {
    let fixture = Fixture::new();
    let transcript = b"user: hello\n";
    let checkpoint = checkpoint(&fixture, transcript);
    let semantic = checkpoint.semantic.clone().unwrap();
    assert_eq!(semantic.transcript_hash, Some(Digest::of(transcript)));
    let wanted = vector()["toolJournalHash"].as_str().unwrap().to_owned();
    assert_eq!(semantic.tool_journal_hash.unwrap().to_hex(), wanted);
    let journal = open_tool_journal(&checkpoint, &fixture.blobs).unwrap().unwrap();
    assert_eq!(journal.entries.len(), 1);
}

#[test]
fn swapped_envelope_is_refused() {
    let fixture = Fixture::new();
    let mut envelope: HandoffEnvelope =
        serde_json::from_value(vector()["envelope"].clone()).unwrap();
    let reference = store_envelope(&envelope, &fixture.blobs).unwrap();
    envelope.task.prompt = "something else".into();
    let other = store_envelope(&envelope, &fixture.blobs).unwrap();
    let swapped = fixture.blobs.path_of(&other.envelope_hash);
    fs::copy(swapped, fixture.blobs.path_of(&reference.envelope_hash)).unwrap();
    let error = open_envelope(&reference, &fixture.blobs).unwrap_err();
    assert!(matches!(error, ContinuationError::Digest { .. }), "{error}");
    let mut reference = other;
    reference.tier = warrant_protocol::request::ContinuationTier::Semantic;
    let error = open_envelope(&reference, &fixture.blobs).unwrap_err();
    assert!(matches!(error, ContinuationError::Mismatch("tier")), "{error}");
}
