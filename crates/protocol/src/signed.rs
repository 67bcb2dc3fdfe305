//! Signed objects: the JSON that was received, beside a typed view of it.
//!
//! A signature covers the 64 hex digits of the digest of the canonical JSON without its
//! `signatures` member. The JSON is the truth: members this version does not know survive and
//! stay covered; the view is only for reading.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use thiserror::Error;

use crate::canonical::canonicalize_without;
use crate::json::{self, InvalidJson, Unsignable};
use crate::text::wire_text;
use crate::{Digest, KeyId, PublicKey, SigningKey};

/// Who signs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Signer {
    /// An organization.
    Org,
    /// The plane.
    Plane,
    /// A runner.
    Runner,
    /// Someone who may approve.
    Approver,
}

/// The one signature algorithm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Algorithm {
    /// Ed25519 over the 64 hex digits of the payload's digest.
    Ed25519,
}

/// One entry of `signatures`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SignatureEntry {
    /// Which key made it.
    pub key_id: KeyId,
    /// How it was made.
    pub alg: Algorithm,
    /// In which role.
    pub signer: Signer,
    /// The signature in standard base64.
    pub sig: SignatureText,
}

/// The base64 text of 64 bytes of signature.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SignatureText([u8; 64]);

wire_text!(SignatureText);

/// Something that is signed: its view, its version, its name in messages.
pub trait SignedBody: Serialize + DeserializeOwned + Clone {
    /// The text of the member `version`.
    const VERSION: &'static str;
    /// What it is called in messages.
    const NAME: &'static str;
}

/// A signed object: the received JSON, its digest, and a view of its members. Copies share them.
#[derive(Clone)]
pub struct Signed<T> {
    raw: Arc<Map<String, Value>>,
    body: Arc<T>,
    signatures: Vec<SignatureEntry>,
    hash: Digest,
}

/// Why JSON is not a signed object of the wanted kind.
#[derive(Debug, Error)]
pub enum InvalidSigned {
    /// Not an object.
    #[error("{name} is not an object")]
    NotAnObject {
        /// What was wanted.
        name: &'static str,
    },
    /// A member is missing or of the wrong kind.
    #[error("{name}: {detail}")]
    Members {
        /// What was wanted.
        name: &'static str,
        /// Which member, and what is wrong with it.
        detail: String,
    },
    /// Holds something two readers could take for different things.
    #[error("{name}: {cause}")]
    Unsignable {
        /// What was wanted.
        name: &'static str,
        /// What it holds.
        cause: Unsignable,
    },
}

/// Why a signature of a wanted signer does not stand.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum SignatureProblem {
    /// Nobody signed in this role.
    #[error("no signature in this role")]
    Missing,
    /// Another key signed.
    #[error("signed by another key")]
    OtherKey,
    /// The key is right and the signature is not.
    #[error("the signature does not match")]
    Mismatch,
}

impl<T: SignedBody> Signed<T> {
    /// Reads a signed object from JSON. No signature is checked yet.
    ///
    /// # Errors
    /// [`InvalidSigned`] naming what is wrong.
    pub fn from_value(value: Value) -> Result<Self, InvalidSigned> {
        json::check_signable(&value)
            .map_err(|cause| InvalidSigned::Unsignable { name: T::NAME, cause })?;
        let body = Arc::new(json::view(&value).map_err(members::<T>)?);
        let Value::Object(raw) = value else {
            return Err(InvalidSigned::NotAnObject { name: T::NAME });
        };
        let signatures = match raw.get("signatures") {
            Some(entries) => json::view(entries).map_err(members::<T>)?,
            None => Vec::new(),
        };
        let hash = Digest::of(canonicalize_without(&raw, "signatures").as_bytes());
        Ok(Self { raw: Arc::new(raw), body, signatures, hash })
    }

    /// Reads a signed object from JSON text.
    ///
    /// # Errors
    /// [`InvalidSigned`] naming what is wrong.
    pub fn from_slice(bytes: &[u8]) -> Result<Self, InvalidSigned> {
        Self::from_value(json::parse(bytes).map_err(members::<T>)?)
    }

    /// Writes and signs a new object.
    ///
    /// # Errors
    /// [`InvalidSigned`] when the body holds something we do not sign.
    pub fn seal(body: &T, signer: Signer, key: &SigningKey) -> Result<Self, InvalidSigned> {
        Self::seal_in_roles(body, &[signer], key)
    }

    /// Writes and signs a new object in several roles of one key, which has one signature for it.
    ///
    /// # Errors
    /// [`InvalidSigned`] when the body holds something we do not sign.
    pub fn seal_in_roles(
        body: &T,
        signers: &[Signer],
        key: &SigningKey,
    ) -> Result<Self, InvalidSigned> {
        let value = json::to_value(body).map_err(members::<T>)?;
        json::check_signable(&value)
            .map_err(|cause| InvalidSigned::Unsignable { name: T::NAME, cause })?;
        let Value::Object(mut raw) = value else {
            return Err(InvalidSigned::NotAnObject { name: T::NAME });
        };
        raw.insert("version".to_owned(), Value::String(T::VERSION.to_owned()));
        raw.insert("signatures".to_owned(), Value::Array(Vec::new()));
        let hash = Digest::of(canonicalize_without(&raw, "signatures").as_bytes());
        // What was just written down needs no second look.
        let (raw, body) = (Arc::new(raw), Arc::new(body.clone()));
        let mut signed = Self { raw, body, signatures: Vec::new(), hash };
        let sig = signed.signature_of(key);
        for signer in signers {
            signed.add(*signer, key, sig)?;
        }
        Ok(signed)
    }

    /// Returns the object with one more signature over the same payload.
    ///
    /// # Errors
    /// [`InvalidSigned`] when the signature has no JSON form.
    pub fn countersign(mut self, signer: Signer, key: &SigningKey) -> Result<Self, InvalidSigned> {
        let sig = self.signature_of(key);
        self.add(signer, key, sig)?;
        Ok(self)
    }

    fn signature_of(&self, key: &SigningKey) -> SignatureText {
        SignatureText(key.sign(self.hash.to_hex().as_bytes()))
    }

    fn add(
        &mut self,
        signer: Signer,
        key: &SigningKey,
        sig: SignatureText,
    ) -> Result<(), InvalidSigned> {
        let key_id = key.public().id().clone();
        let entry = SignatureEntry { key_id, alg: Algorithm::Ed25519, signer, sig };
        let json = json::to_value(&entry).map_err(members::<T>)?;
        self.signatures.push(entry);
        let raw = Arc::make_mut(&mut self.raw);
        match raw.get_mut("signatures") {
            Some(Value::Array(entries)) => entries.push(json),
            _ => {
                raw.insert("signatures".to_owned(), Value::Array(vec![json]));
            }
        }
        Ok(())
    }

    /// Checks the first signature made in the role `signer` against `key`.
    ///
    /// # Errors
    /// [`SignatureProblem`] when there is none, another key made it, or it does not match.
    pub fn check_signature(&self, signer: Signer, key: &PublicKey) -> Result<(), SignatureProblem> {
        let entry = self
            .signatures
            .iter()
            .find(|entry| entry.signer == signer)
            .ok_or(SignatureProblem::Missing)?;
        if entry.key_id != *key.id() {
            return Err(SignatureProblem::OtherKey);
        }
        key.verify(self.hash.to_hex().as_bytes(), &entry.sig.0)
            .map_err(|_| SignatureProblem::Mismatch)
    }
}

impl<T> Signed<T> {
    /// Returns the typed view.
    #[must_use]
    pub fn body(&self) -> &T {
        &self.body
    }

    /// Returns the JSON as it was received, signatures included.
    #[must_use]
    pub fn raw(&self) -> &Map<String, Value> {
        &self.raw
    }

    /// Returns the JSON as a value of its own, to be stored or sent.
    #[must_use]
    pub fn to_value(&self) -> Value {
        Value::Object((*self.raw).clone())
    }

    /// Returns the digest of the canonical JSON without `signatures`: what is signed.
    #[must_use]
    pub const fn hash(&self) -> Digest {
        self.hash
    }

    /// Returns the signatures, in order.
    #[must_use]
    pub fn signatures(&self) -> &[SignatureEntry] {
        &self.signatures
    }

    /// Returns the text of the member `version`, if there is one.
    #[must_use]
    pub fn version(&self) -> Option<&str> {
        self.raw.get("version").and_then(Value::as_str)
    }
}

impl<T> Serialize for Signed<T> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.raw.serialize(serializer)
    }
}

impl<'de, T: SignedBody> Deserialize<'de> for Signed<T> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = json::StrictValue::deserialize(deserializer)?;
        Self::from_value(value.0).map_err(serde::de::Error::custom)
    }
}

impl<T: fmt::Debug> fmt::Debug for Signed<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Signed").field("hash", &self.hash).field("body", &self.body).finish()
    }
}

impl<T> PartialEq for Signed<T> {
    fn eq(&self, other: &Self) -> bool {
        self.raw == other.raw
    }
}

fn members<T: SignedBody>(cause: InvalidJson) -> InvalidSigned {
    InvalidSigned::Members { name: T::NAME, detail: cause.detail() }
}

impl SignatureText {
    /// Returns the text of these bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 64]) -> Self {
        Self(bytes)
    }

    /// Returns the 64 bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 64] {
        &self.0
    }
}

impl fmt::Display for SignatureText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&STANDARD.encode(self.0))
    }
}

impl FromStr for SignatureText {
    type Err = InvalidSignatureText;

    fn from_str(text: &str) -> Result<Self, InvalidSignatureText> {
        // 88 digits may stand for 66 bytes, and the decoder wants room for all of them.
        let mut room = [0; 66];
        match (STANDARD.decode_slice(text, &mut room), room.first_chunk()) {
            (Ok(64), Some(bytes)) => Ok(Self(*bytes)),
            _ => Err(InvalidSignatureText),
        }
    }
}

impl fmt::Debug for SignatureText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Why a text is not a signature.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("a signature is 64 bytes in standard base64 with padding")]
pub struct InvalidSignatureText;
