//! Claim tokens: what a runner shows to write to one run.
//!
//! `base64url(JSON) . base64url(signature)`, signed by the plane over the first segment's ASCII.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use thiserror::Error;

use crate::{PublicKey, RunId, RunnerId, SigningKey, Timestamp, json};

/// How long a token of the reference lasts.
pub const CLAIM_LIFETIME_MS: u64 = 600_000;

/// What a claim token says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Claim {
    /// The run it opens.
    pub run_id: RunId,
    /// The runner it was given to.
    pub runner_id: RunnerId,
    /// Makes the token unique.
    pub nonce: String,
    /// When it ends.
    pub exp: Timestamp,
    /// The lease it belongs to. Ours; the reference ignores it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epoch: Option<u64>,
}

/// Why a claim token is refused, in the order it is looked at.
#[derive(Debug, Clone, Copy, Error, PartialEq, Eq)]
pub enum InvalidClaim {
    /// Not two segments.
    #[error("malformed claim token")]
    Malformed,
    /// Not signed by this plane.
    #[error("claim token signature invalid")]
    Signature,
    /// Signed, but not JSON.
    #[error("claim token payload is not valid JSON")]
    NotJson,
    /// JSON, but something is missing.
    #[error("claim token payload is missing required fields")]
    MissingFields,
    /// Its end is not a time.
    #[error("claim token expiry is invalid")]
    InvalidExpiry,
    /// It is over.
    #[error("claim token expired")]
    Expired,
    /// It opens another run.
    #[error("claim token run mismatch")]
    RunMismatch,
    /// The run belongs to another runner.
    #[error("claim token runner mismatch")]
    RunnerMismatch,
}

impl InvalidClaim {
    /// Returns whether the answer is 401 (who are you) rather than 400 (what is this).
    #[must_use]
    pub const fn is_unauthorized(self) -> bool {
        match self {
            Self::Signature | Self::Expired | Self::RunMismatch | Self::RunnerMismatch => true,
            Self::Malformed | Self::NotJson | Self::MissingFields | Self::InvalidExpiry => false,
        }
    }
}

impl Claim {
    /// Returns the token that says this, signed by the plane.
    ///
    /// # Errors
    /// [`json::InvalidJson`] when the claim has no JSON form.
    pub fn to_token(&self, plane: &SigningKey) -> Result<String, json::InvalidJson> {
        let payload = json::to_value(self)?;
        let payload = URL_SAFE_NO_PAD.encode(payload.to_string());
        let signature = URL_SAFE_NO_PAD.encode(plane.sign(payload.as_bytes()));
        Ok(format!("{payload}.{signature}"))
    }

    /// Returns what a token says after checking the plane's signature and the time.
    ///
    /// # Errors
    /// [`InvalidClaim`] with the first thing that is wrong.
    pub fn from_token(
        token: &str,
        plane: &PublicKey,
        now: Timestamp,
    ) -> Result<Self, InvalidClaim> {
        let mut segments = token.split('.');
        let (Some(payload), Some(signature)) = (segments.next(), segments.next()) else {
            return Err(InvalidClaim::Malformed);
        };
        if payload.is_empty() || signature.is_empty() {
            return Err(InvalidClaim::Malformed);
        }
        let signature = URL_SAFE_NO_PAD.decode(signature).map_err(|_| InvalidClaim::Signature)?;
        let signature = signature.as_slice().try_into().map_err(|_| InvalidClaim::Signature)?;
        plane.verify(payload.as_bytes(), signature).map_err(|_| InvalidClaim::Signature)?;
        let bytes = URL_SAFE_NO_PAD.decode(payload).map_err(|_| InvalidClaim::NotJson)?;
        let claim = Self::from_payload(&json::parse(&bytes).map_err(|_| InvalidClaim::NotJson)?)?;
        if claim.exp <= now { Err(InvalidClaim::Expired) } else { Ok(claim) }
    }

    /// Checks that this claim opens `run`, which `claimed_by` holds.
    ///
    /// # Errors
    /// [`InvalidClaim::RunMismatch`] or [`InvalidClaim::RunnerMismatch`].
    pub fn check_opens(
        &self,
        run: &RunId,
        claimed_by: Option<&RunnerId>,
    ) -> Result<(), InvalidClaim> {
        if self.run_id != *run {
            return Err(InvalidClaim::RunMismatch);
        }
        if claimed_by != Some(&self.runner_id) {
            return Err(InvalidClaim::RunnerMismatch);
        }
        Ok(())
    }

    fn from_payload(payload: &Value) -> Result<Self, InvalidClaim> {
        let text = |name: &str| {
            let member = payload.get(name).and_then(Value::as_str);
            member.filter(|text| !text.is_empty()).ok_or(InvalidClaim::MissingFields)
        };
        let (run_id, runner_id) = (text("runId")?, text("runnerId")?);
        let (nonce, exp) = (text("nonce")?, text("exp")?);
        Ok(Self {
            run_id: run_id.parse().map_err(|_| InvalidClaim::MissingFields)?,
            runner_id: runner_id.parse().map_err(|_| InvalidClaim::MissingFields)?,
            nonce: nonce.to_owned(),
            exp: exp.parse().map_err(|_| InvalidClaim::InvalidExpiry)?,
            epoch: payload.get("epoch").and_then(Value::as_u64),
        })
    }
}
