//! Checkpoints and envelopes: work put down here and taken up elsewhere.
//!
//! Everything is a blob named by its digest, and everything is proved against that digest when it
//! arrives. Ids and times are the caller's.

use std::io::{self, Read};

use thiserror::Error;
use warrant_protocol::handoff::{
    Checkpoint, CheckpointVersion, HandoffEnvelope, SemanticState, ToolJournal, to_blob,
};
use warrant_protocol::request::{ContinuationRef, ContinuationTier};
use warrant_protocol::{CheckpointId, Digest, Timestamp, WorkspaceManifest};

use crate::blob::copy_hashed;
use crate::{BlobSink, BlobSource};

/// An envelope or journal is never larger.
const MAX_BYTES: u64 = 64 << 20;

/// What a checkpoint is made of.
pub struct CheckpointParts<'a> {
    /// Its name.
    pub checkpoint_id: CheckpointId,
    /// When it is made.
    pub created_at: Timestamp,
    /// A message for people.
    pub message: Option<String>,
    /// A note for whoever goes on.
    pub note: Option<String>,
    /// The checkpoint before.
    pub parent: Option<CheckpointId>,
    /// The captured files, whose blobs are stored already.
    pub workspace: Option<WorkspaceManifest>,
    /// What was said.
    pub transcript: Option<&'a mut dyn Read>,
    /// What the tools did.
    pub tool_journal: Option<&'a ToolJournal>,
}

/// Why a checkpoint or envelope was not made or not taken.
#[derive(Debug, Error)]
pub enum ContinuationError {
    /// Nothing would go on from it.
    #[error("a checkpoint needs files, a transcript, a tool journal or a note")]
    Empty,
    /// A blob failed.
    #[error("blob {name} failed")]
    Blob {
        /// What it is.
        name: &'static str,
        /// Why.
        source: io::Error,
    },
    /// A blob is not what its digest says.
    #[error("{name} arrived as {found}, wanted {wanted}")]
    Digest {
        /// What it is.
        name: &'static str,
        /// What was wanted.
        wanted: Digest,
        /// What came.
        found: Digest,
    },
    /// It is no envelope or journal.
    #[error("{0} is not understood")]
    Malformed(&'static str),
    /// The envelope is not the one the reference speaks of.
    #[error("the envelope's {0} is another than the reference says")]
    Mismatch(&'static str),
}

/// Stores transcript and tool journal and returns the checkpoint that names them.
///
/// # Errors
/// [`ContinuationError`] when there is nothing to go on from, or a blob cannot be stored.
pub fn make_checkpoint(
    parts: CheckpointParts<'_>,
    sink: &dyn BlobSink,
) -> Result<Checkpoint, ContinuationError> {
    let failed = |name| move |source| ContinuationError::Blob { name, source };
    let transcript_hash = match parts.transcript {
        Some(transcript) => Some(sink.put(transcript).map_err(failed("transcript"))?.digest),
        None => None,
    };
    let tool_journal_hash = match parts.tool_journal {
        Some(journal) => Some(store(journal, "tool journal", sink)?),
        None => None,
    };
    let semantic = SemanticState { transcript_hash, tool_journal_hash, note: parts.note };
    let has_semantic =
        transcript_hash.is_some() || tool_journal_hash.is_some() || semantic.note.is_some();
    let tier = match (&parts.workspace, has_semantic) {
        (Some(_), _) => ContinuationTier::Workspace,
        (None, true) => ContinuationTier::Semantic,
        (None, false) => return Err(ContinuationError::Empty),
    };
    Ok(Checkpoint {
        version: CheckpointVersion::V1,
        checkpoint_id: parts.checkpoint_id,
        created_at: parts.created_at,
        tier,
        message: parts.message,
        semantic: Some(semantic).filter(|_| has_semantic),
        workspace: parts.workspace,
        parent: parts.parent,
    })
}

/// Stores an envelope and returns what a request names it by.
///
/// # Errors
/// [`ContinuationError`] when it has no JSON form or cannot be stored.
pub fn store_envelope(
    envelope: &HandoffEnvelope,
    sink: &dyn BlobSink,
) -> Result<ContinuationRef, ContinuationError> {
    Ok(ContinuationRef {
        envelope_hash: store(envelope, "envelope", sink)?,
        checkpoint_id: envelope.checkpoint.checkpoint_id.clone(),
        tier: envelope.checkpoint.tier,
    })
}

/// Fetches and proves the envelope a request names.
///
/// # Errors
/// [`ContinuationError`] when it is not there, not what its digest says, or not the one meant.
pub fn open_envelope(
    reference: &ContinuationRef,
    source: &dyn BlobSource,
) -> Result<HandoffEnvelope, ContinuationError> {
    let bytes = fetch(&reference.envelope_hash, "envelope", source)?;
    let envelope: HandoffEnvelope =
        serde_json::from_slice(&bytes).map_err(|_| ContinuationError::Malformed("the envelope"))?;
    if envelope.checkpoint.checkpoint_id != reference.checkpoint_id {
        return Err(ContinuationError::Mismatch("checkpoint"));
    }
    if envelope.checkpoint.tier != reference.tier {
        return Err(ContinuationError::Mismatch("tier"));
    }
    Ok(envelope)
}

/// Fetches and proves the tool journal of a checkpoint, if it has one.
///
/// # Errors
/// [`ContinuationError`] when it is not there, not what its digest says, or no journal.
pub fn open_tool_journal(
    checkpoint: &Checkpoint,
    source: &dyn BlobSource,
) -> Result<Option<ToolJournal>, ContinuationError> {
    let digest = checkpoint.semantic.as_ref().and_then(|semantic| semantic.tool_journal_hash);
    let Some(digest) = digest else { return Ok(None) };
    let bytes = fetch(&digest, "tool journal", source)?;
    let journal = serde_json::from_slice(&bytes);
    journal.map(Some).map_err(|_| ContinuationError::Malformed("the tool journal"))
}

fn store<T: serde::Serialize>(
    value: &T,
    name: &'static str,
    sink: &dyn BlobSink,
) -> Result<Digest, ContinuationError> {
    let (bytes, wanted) = to_blob(value).map_err(|_| ContinuationError::Malformed(name))?;
    let stored = sink.put(&mut bytes.as_slice());
    let found = stored.map_err(|source| ContinuationError::Blob { name, source })?.digest;
    if found == wanted {
        Ok(wanted)
    } else {
        Err(ContinuationError::Digest { name, wanted, found })
    }
}

fn fetch(
    digest: &Digest,
    name: &'static str,
    source: &dyn BlobSource,
) -> Result<Vec<u8>, ContinuationError> {
    let failed = |source| ContinuationError::Blob { name, source };
    let mut bytes = Vec::new();
    let mut reader = source.open(digest).map_err(failed)?.take(MAX_BYTES);
    let found = copy_hashed(&mut reader, &mut bytes).map_err(failed)?.digest;
    if found != *digest {
        return Err(ContinuationError::Digest { name, wanted: *digest, found });
    }
    Ok(bytes)
}
