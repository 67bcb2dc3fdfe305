//! What a runner says of a run is checked before it is kept: its events, and its receipt with
//! everything it stands on. What cannot be true is recorded against the runner.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use warrant_protocol::port::{LeaseKey, PlaneError};
use warrant_protocol::request::{ActorKind, ActorRef};
use warrant_protocol::verify::SealedBundle;
use warrant_protocol::{Chain, ChainedEvent, Digest, Receipt, RunnerId};

use super::{Held, Holder, refused, store_error};
use crate::embedded::EmbeddedPlane;
use crate::evidence_check::{
    EventRefusal, FalseClaim, StopKnowledge, check_completion, check_event,
};
use crate::store::FalseClaimRow;

impl EmbeddedPlane {
    /// Adds a runner's events after checking that they follow and that a runner may say them.
    pub(super) fn extend(
        &self,
        holder: &RunnerId,
        lease: &LeaseKey,
        (chain, events): (&mut Chain, &[ChainedEvent]),
    ) -> Result<(), PlaneError> {
        let now = self.now();
        for event in events {
            let known = usize::try_from(event.seq()).ok().and_then(|seq| chain.events().get(seq));
            if known.is_some_and(|known| known.hash() == event.hash()) {
                continue;
            }
            let field = |member: &str| format!("events[{}].{member}", event.seq());
            let refused = if known.is_some() {
                let detail = "another event stands at that place";
                Err(EventRefusal::False(FalseClaim::new(field("seq"), detail)))
            } else {
                check_event(chain.events(), event, now)
            };
            let pushed = refused.and_then(|()| {
                chain.push(event.clone()).map_err(|broken| {
                    let claim = FalseClaim::new(field("hash"), broken.reason.to_string());
                    EventRefusal::False(claim)
                })
            });
            pushed.map_err(|refusal| self.refuse_event(holder, lease, (event.seq(), refusal)))?;
        }
        Ok(())
    }

    fn refuse_event(
        &self,
        holder: &RunnerId,
        lease: &LeaseKey,
        (seq, refusal): (u64, EventRefusal),
    ) -> PlaneError {
        let chain_rejected = format!("event chain rejected at seq {seq}");
        match refusal {
            EventRefusal::False(claim) => {
                self.refute(holder, lease, (&chain_rejected, vec![claim]))
            }
            EventRefusal::Unknown { event_type } => refused(&format!(
                "{chain_rejected}: this plane does not know the event type {event_type}; upgrade it \
                 or use a runner of its version"
            )),
        }
    }

    /// Checks a receipt with everything it stands on, and returns it.
    pub(super) fn check_ending(
        &self,
        holder: &Holder<'_>,
        lease: &LeaseKey,
        (held, receipt): (Held, Receipt),
    ) -> Result<Receipt, PlaneError> {
        let now = self.now();
        let requester = held.contract.body().requested_by.clone();
        let bundle = SealedBundle {
            contract: held.contract,
            receipt,
            chain: held.chain,
            plane: self.home().plane_key().public().clone(),
            runner: holder.key.clone(),
        };
        let stop = || {
            Ok(StopKnowledge {
                stop_by: self.store().run(&lease.run).map_err(store_error(&lease.run))?.stop_by,
                runner: ActorRef { kind: ActorKind::Service, id: holder.id.to_string() },
                // Whoever runs it in their own process stops it there.
                requester: holder.liveness.map(|_| requester),
            })
        };
        let checked = match check_completion(bundle, now, stop)? {
            Ok(bundle) => self.missing_artifact(lease, &bundle.receipt)?.map_or(
                Ok(bundle.receipt),
                |digest| {
                    let detail = format!("the artifact {digest} was never stored");
                    let field = "receipt.workspaceOut.artifactHashes";
                    Err(vec![FalseClaim::new(field, detail)])
                },
            ),
            Err(claims) => Err(claims),
        };
        checked.map_err(|claims| {
            self.refute(holder.id, lease, ("receipt runner verification failed", claims))
        })
    }

    /// Records what a runner said that cannot be true, and returns what it is told. A runner
    /// whose lease is over is told just that: what it says cannot follow any more.
    fn refute(
        &self,
        runner: &RunnerId,
        lease: &LeaseKey,
        (what, claims): (&str, Vec<FalseClaim>),
    ) -> PlaneError {
        match self.store().holds(&lease.run, lease.epoch) {
            Ok(true) => {}
            Ok(false) => return PlaneError::Fenced(lease.run.clone()),
            Err(error) => return PlaneError::failed(error),
        }
        let Some(first) = claims.first() else { return refused(what) };
        let at = self.now();
        let details: Vec<String> = claims.iter().map(|claim| claim.detail.clone()).collect();
        let row = FalseClaimRow {
            runner: runner.to_string(),
            run: lease.run.clone(),
            epoch: lease.epoch,
            field: shortened(&first.field),
            detail: shortened(&details.join("; ")),
            at,
        };
        tracing::warn!(
            runner.id = %runner, run.id = %lease.run, field = %row.field, detail = %row.detail,
            "refused what runner {runner} says about {}", lease.run,
        );
        let (field, detail) = (row.field.clone(), row.detail.clone());
        let counted = match self.store().add_false_claim(row, self.most_false_claims()) {
            Ok(counted) => counted,
            Err(error) => return PlaneError::failed(error),
        };
        self.false_claims.fetch_add(1, Ordering::Relaxed);
        if counted.is_revoked_now {
            let total = counted.total;
            tracing::error!(runner.id = %runner, total, "revoked runner {runner}: {total} false claims");
        }
        refused(&format!("{what}: {field}: {detail}"))
    }

    fn missing_artifact(
        &self,
        lease: &LeaseKey,
        receipt: &Receipt,
    ) -> Result<Option<Digest>, PlaneError> {
        let finished = self.finished.lock().unwrap_or_else(PoisonError::into_inner);
        let waiting = finished.get(lease).map(Vec::as_slice).unwrap_or_default();
        for digest in &receipt.body().workspace_out.artifact_hashes {
            let is_waiting = waiting.iter().any(|blob| blob.digest == *digest);
            if !is_waiting && !self.store().has_blob(digest).map_err(PlaneError::failed)? {
                return Ok(Some(*digest));
            }
        }
        Ok(None)
    }
}

/// Returns a text of at most 500 characters, for the record.
fn shortened(text: &str) -> String {
    text.chars().take(500).collect()
}
