//! `POST /v1/runners/enroll`: who may take work.

use std::net::IpAddr;

use axum::extract::{Request, State};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use warrant_protocol::wire::{Enroll, EnrollResult};
use warrant_protocol::{Digest, PublicKey, RunnerId};

use super::{Answer, small_body};
use crate::http::error::HttpError;
use crate::http::lanes::{Lane, in_lane};
use crate::http::service::{PlaneService, Shared};
use crate::http::{answer, peer_of};
use crate::random;
use crate::store::{EnrollAgain, EnrollToken, Enrolling, RunnerRow};

/// `POST /v1/runners/enroll`.
pub(in crate::http) async fn enroll(State(service): State<Shared>, request: Request) -> Answer {
    let peer = peer_of(&request);
    let value = small_body(&service, request).await?;
    let wish = Enroll::from_value(&value)?;
    if PublicKey::from_pem(&wish.public_key_pem).is_err() {
        return Err(HttpError::bad_request("publicKeyPem is not an ed25519 public key in PEM"));
    }
    let result = in_lane(Lane::Leases, &service, move |service| service.enroll(&wish, peer));
    Ok(answer::json(&result.await?))
}

impl PlaneService {
    /// Enrolls a runner. The same runner again, by its key and with the same token, is the same
    /// runner with the same answer.
    fn enroll(&self, wish: &Enroll, peer: IpAddr) -> Result<EnrollResult, HttpError> {
        let runner_id = RunnerId::from_random(random::bytes()?);
        let row = RunnerRow {
            id: runner_id.to_string(),
            pool: wish.pool.to_string(),
            public_key_pem: wish.public_key_pem.clone(),
            token_hash: Digest::of(self.runner_token(&runner_id).as_bytes()),
            enrolled_at: self.plane.now(),
            revoked_at: None,
            abilities: None,
        };
        let is_reusable = self
            .registry
            .principal(&wish.enroll_token)
            .is_some_and(|principal| principal.may_enroll());
        let token = match is_reusable {
            true => EnrollToken::Reusable,
            false => EnrollToken::Once(Digest::of(wish.enroll_token.as_bytes())),
        };
        // SECURITY: only who has the runner's private key is that runner again.
        let again = if wish.is_proved() { EnrollAgain::SameRunner } else { EnrollAgain::NewRunner };
        let enrolled = self.plane.store().enroll(token, row, again)?;
        let Enrolling::Enrolled(id) = enrolled else {
            return Err(self.refuse_enrollment(enrolled, peer));
        };
        let runner_id: RunnerId = id.parse().map_err(|error| HttpError::internal(&error))?;
        let runner_token = self.runner_token(&runner_id);
        let hash = Digest::of(runner_token.as_bytes());
        self.plane.store().set_runner_token(&id, hash)?;
        self.metrics.count("enroll.accepted");
        self.reload_registry()?;
        let pem = self.plane.home().plane_key().public().pem().to_owned();
        Ok(EnrollResult { runner_id, runner_token, plane_public_key_pem: Some(pem) })
    }

    fn refuse_enrollment(&self, refused: Enrolling, peer: IpAddr) -> HttpError {
        self.metrics.count("enroll.rejected");
        if refused == Enrolling::Revoked {
            return HttpError::bad_request(
                "this runner was revoked; start it with another --data-dir, or remove the old one",
            );
        }
        self.metrics.count("auth.failed");
        match self.failures.count(peer, self.moment()) {
            true => HttpError::locked_out(),
            false => HttpError::bad_request("invalid enroll token"),
        }
    }

    /// Returns the token of a runner. It follows from the plane's key and the runner's id, so that
    /// an enrollment whose answer was lost gets the same one again and nothing is stored readable.
    fn runner_token(&self, runner: &RunnerId) -> String {
        let text = format!("warrant.runner-token.v1\n{runner}");
        let signature = self.plane.home().plane_key().sign(text.as_bytes());
        // SECURITY: a hash of the signature, so that the token is of no use as a signature.
        URL_SAFE_NO_PAD.encode(Digest::of(&signature).as_bytes())
    }
}
