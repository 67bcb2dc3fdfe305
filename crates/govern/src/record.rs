//! The record of one run, read back from the store of this machine: its artifacts and its
//! verified story.

use std::io::{self, Read};

use serde_json::Value;
use thiserror::Error;
use warrant_plane::store::StoreError;
use warrant_plane::{ArchiveError, HomeError};
use warrant_protocol::bundle::Bundle;
use warrant_protocol::event::ArtifactKind;
use warrant_protocol::verify::verify;
use warrant_protocol::{Digest, Event, Problem, RunId, VerifiedBundle};

use crate::desk::Desk;

/// Why a record cannot be read.
#[derive(Debug, Error)]
pub enum RecordError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The home failed.
    #[error(transparent)]
    Home(#[from] HomeError),
    /// There is no bundle.
    #[error("{run} has no receipt yet")]
    NoBundle {
        /// Whose.
        run: RunId,
        /// Why.
        #[source]
        cause: ArchiveError,
    },
    /// It does not verify against this machine's keys.
    #[error("{run} does not verify: {}", list(problems))]
    NotVerified {
        /// Which run.
        run: RunId,
        /// Everything that is wrong.
        problems: Vec<Problem>,
    },
    /// A stored event does not read back.
    #[error("a stored event of {0} does not read back")]
    Damaged(RunId, #[source] serde_json::Error),
    /// Its bytes were removed, or cannot be read.
    #[error("blob {0} is not here any more")]
    Gone(Digest),
    /// The bytes cannot be read.
    #[error("the record cannot be read")]
    Read(#[from] io::Error),
}

fn list(problems: &[Problem]) -> String {
    let texts: Vec<String> = problems.iter().map(ToString::to_string).collect();
    texts.join("; ")
}

/// Returns the digest of the newest artifact of a kind on the run's chain.
///
/// # Errors
/// [`RecordError`] when the chain cannot be read.
pub fn artifact(
    desk: &Desk,
    run: &RunId,
    wanted: ArtifactKind,
) -> Result<Option<Digest>, RecordError> {
    let mut found = None;
    for row in desk.plane().store().events(run)? {
        let event: Value = serde_json::from_str(&row.body)
            .map_err(|error| RecordError::Damaged(run.clone(), error))?;
        let body = event.get("event").cloned().unwrap_or_default();
        if let Ok(Event::ArtifactCreated { kind, hash }) = serde_json::from_value(body)
            && kind == wanted
        {
            found = Some(hash);
        }
    }
    Ok(found)
}

/// Returns the first `limit` bytes of an artifact and whether there are more; nothing when the
/// run has none of that kind.
///
/// # Errors
/// [`RecordError`] when it cannot be read.
pub fn artifact_bytes(
    desk: &Desk,
    run: &RunId,
    (kind, limit): (ArtifactKind, u64),
) -> Result<Option<(Vec<u8>, bool)>, RecordError> {
    let Some(digest) = artifact(desk, run, kind)? else { return Ok(None) };
    let blob = desk.plane().store().blob(&digest)?.ok_or(RecordError::Gone(digest))?;
    let mut bytes = Vec::new();
    blob.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let has_more = bytes.len() > limit;
    bytes.truncate(limit);
    Ok(Some((bytes, has_more)))
}

/// Returns a run of this machine, verified against this machine's own keys.
///
/// # Errors
/// [`RecordError`] naming every problem.
pub fn verified(desk: &Desk, run: &RunId) -> Result<VerifiedBundle, RecordError> {
    let bundle = desk
        .plane()
        .bundle(run)
        .map_err(|cause| RecordError::NoBundle { run: run.clone(), cause })?;
    let trusted = desk.plane().records().trusted()?;
    let refused = |problems| RecordError::NotVerified { run: run.clone(), problems };
    let bundle = Bundle::from_value(bundle)
        .map_err(|malformed| refused(vec![Problem::Malformed { detail: malformed.0 }]))?;
    verify(bundle, &trusted).map_err(refused)
}
