//! The bundle: contract, receipt, chain and public keys in one file, for offline verification.
//!
//! A bundle proves nothing by itself; [`crate::verify()`] turns it into a
//! [`crate::verify::VerifiedBundle`], with keys the caller trusts.

use serde::Serialize;
use serde_json::{Map, Value, json};
use thiserror::Error;

use crate::canonical::canonicalize;
use crate::{Chain, Contract, PublicKey, Receipt, json as strict};

/// The version text of bundles.
pub const BUNDLE_VERSION: &str = "warrant.bundle.v1";

/// A bundle as it was received. Nothing in it has been checked.
#[derive(Debug, Clone, PartialEq)]
pub struct Bundle {
    raw: Map<String, Value>,
}

/// Why bytes are not a bundle.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("bundle is malformed: {0}")]
pub struct Malformed(pub String);

impl Bundle {
    /// Reads a bundle.
    ///
    /// # Errors
    /// [`Malformed`] when the bytes are not a JSON object, or name a member twice.
    pub fn from_slice(bytes: &[u8]) -> Result<Self, Malformed> {
        let value = strict::parse(bytes).map_err(|error| Malformed(error.detail()))?;
        Self::from_value(value)
    }

    /// Reads a bundle from JSON.
    ///
    /// # Errors
    /// [`Malformed`] when it is not an object.
    pub fn from_value(value: Value) -> Result<Self, Malformed> {
        match value {
            Value::Object(raw) => Ok(Self { raw }),
            _ => Err(Malformed("not an object".to_owned())),
        }
    }

    /// Puts a bundle together. The runner's key is the plane's where the plane sealed.
    #[must_use]
    pub fn assemble(
        contract: &Contract,
        receipt: &Receipt,
        chain: &Chain,
        (plane, runner): (&PublicKey, &PublicKey),
    ) -> Self {
        let events: Vec<Value> = chain.events().iter().map(crate::ChainedEvent::to_value).collect();
        let keys = json!({"planePublicKeyPem": plane.pem(), "runnerPublicKeyPem": runner.pem()});
        let mut raw = Map::new();
        raw.insert("version".to_owned(), BUNDLE_VERSION.into());
        raw.insert("contract".to_owned(), contract.to_value());
        raw.insert("receipt".to_owned(), receipt.to_value());
        raw.insert("events".to_owned(), Value::Array(events));
        raw.insert("keys".to_owned(), keys);
        Self { raw }
    }

    /// Returns the JSON as it was received.
    #[must_use]
    pub const fn raw(&self) -> &Map<String, Value> {
        &self.raw
    }

    /// Returns the canonical text.
    #[must_use]
    pub fn to_canonical(&self) -> String {
        canonicalize(&Value::Object(self.raw.clone()))
    }

    pub(crate) fn into_raw(self) -> Map<String, Value> {
        self.raw
    }
}

impl Serialize for Bundle {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.raw.serialize(serializer)
    }
}
