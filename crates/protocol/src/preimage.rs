//! The six-field preimage: what a receipt binds about the sandbox a program ran in.
//!
//! Each hash is over the canonical JSON of the thing itself, and the things travel along, so a
//! verifier recomputes every hash. Nothing is joined with separators.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Digest;
use crate::canonical::hash_canonical;
use crate::json::{self, InvalidJson};
use crate::shared::Shared;

/// The things the preimage's hashes are over.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PreimageInputs {
    /// What the sandbox was asked to be: the backend's plan, without secret values.
    pub sandbox_spec: Value,
    /// What was mounted, and how.
    pub mounts: Value,
    /// The egress rules that were applied.
    pub egress_policy: Value,
    /// The limits that were applied.
    pub resource_limits: Value,
}

/// Six values that name the sandbox a program ran in, and what they were computed from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Preimage {
    /// The version of what enforces, as the posture says it.
    pub provider_version: String,
    /// Digest of [`PreimageInputs::sandbox_spec`].
    pub sandbox_spec_hash: Digest,
    /// The image or root filesystem: `sha256:…`, or `none` where a tier has no image, or
    /// `unknown` where the provider does not tell.
    pub image_digest: String,
    /// Digest of [`PreimageInputs::mounts`].
    pub mounts_hash: Digest,
    /// Digest of [`PreimageInputs::egress_policy`].
    pub egress_policy_hash: Digest,
    /// Digest of [`PreimageInputs::resource_limits`].
    pub resource_limits_hash: Digest,
    /// The things themselves.
    pub inputs: Shared<PreimageInputs>,
}

impl Preimage {
    /// Returns the preimage of these things.
    #[must_use]
    pub fn of(provider_version: String, image_digest: String, inputs: PreimageInputs) -> Self {
        Self {
            provider_version,
            sandbox_spec_hash: hash_canonical(&inputs.sandbox_spec),
            image_digest,
            mounts_hash: hash_canonical(&inputs.mounts),
            egress_policy_hash: hash_canonical(&inputs.egress_policy),
            resource_limits_hash: hash_canonical(&inputs.resource_limits),
            inputs: inputs.into(),
        }
    }

    /// Returns the names of the fields that do not recompute from the inputs.
    #[must_use]
    pub fn mismatches(&self) -> Vec<&'static str> {
        let inputs = &self.inputs;
        [
            ("sandboxSpecHash", self.sandbox_spec_hash, &inputs.sandbox_spec),
            ("mountsHash", self.mounts_hash, &inputs.mounts),
            ("egressPolicyHash", self.egress_policy_hash, &inputs.egress_policy),
            ("resourceLimitsHash", self.resource_limits_hash, &inputs.resource_limits),
        ]
        .into_iter()
        .filter_map(|(name, hash, input)| (hash != hash_canonical(input)).then_some(name))
        .collect()
    }

    /// Returns the digest over the canonical JSON of the six fields.
    ///
    /// # Errors
    /// [`InvalidJson`] when a field has no JSON form.
    pub fn hash(&self) -> Result<Digest, InvalidJson> {
        let mut value = json::to_value(self)?;
        if let Value::Object(members) = &mut value {
            members.remove("inputs");
        }
        Ok(hash_canonical(&value))
    }
}
