//! The same work taken up again: a command that waited for people and is given once more is the
//! same question, and finds what they approved.

use warrant_protocol::handoff::{Checkpoint, HandoffEnvelope};
use warrant_protocol::request::ContinuationRef;
use warrant_protocol::{RunRequest, RunState};
use warrant_workspace::open_envelope;

use super::{ContinueError, StoreSink};

/// Returns the envelope, and what names it, of a run that waits or has not started and asks for
/// the same with the same work.
///
/// Envelopes differ in their names and times alone; what is in them must be equal, to the digest.
pub(super) fn put_down_before(
    sink: &StoreSink<'_>,
    request: &RunRequest,
    envelope: &HandoffEnvelope,
) -> Result<Option<(HandoffEnvelope, ContinuationRef)>, ContinueError> {
    for live in sink.store.live()? {
        if !matches!(live.state, RunState::AwaitingApproval | RunState::Queued) {
            continue;
        }
        let row = sink.store.run(&live.id)?;
        let Ok(mut asked) = serde_json::from_str::<RunRequest>(&row.request) else { continue };
        let Some(reference) = asked.continuation.take() else { continue };
        if asked != *request {
            continue;
        }
        let Ok(before) = open_envelope(&reference, sink) else { continue };
        if is_same_work(&before, envelope) {
            return Ok(Some((before, reference)));
        }
    }
    Ok(None)
}

fn is_same_work(before: &HandoffEnvelope, now: &HandoffEnvelope) -> bool {
    let renamed = HandoffEnvelope {
        envelope_id: now.envelope_id.clone(),
        created_at: now.created_at,
        checkpoint: Checkpoint {
            checkpoint_id: now.checkpoint.checkpoint_id.clone(),
            created_at: now.checkpoint.created_at,
            ..before.checkpoint.clone()
        },
        ..before.clone()
    };
    renamed == *now
}
