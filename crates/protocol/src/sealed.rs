//! Sealed blobs: secrets and private keys at rest.
//!
//! AES-256-GCM under a key that scrypt derives from the master material (N 16384, r 8, p 1).
//! Salt and IV are the caller's randomness; one IV used twice under one salt breaks the seal.

use std::fmt;

use aes_gcm::aead::{Aead as _, KeyInit as _};
use aes_gcm::{Aes256Gcm, Key, Nonce};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The version text of sealed blobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum SealedVersion {
    /// The one there is.
    #[serde(rename = "warrant.sealed.v1")]
    V1,
}

/// Bytes that only the master material opens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SealedBlob {
    /// The version.
    pub version: SealedVersion,
    /// The salt of the key, in base64.
    pub salt: String,
    /// The IV, in base64.
    pub iv: String,
    /// The tag, in base64.
    pub tag: String,
    /// The sealed bytes, in base64.
    pub data: String,
}

/// What the key of a seal is derived from. It does not show in debug output.
pub struct MasterMaterial(Vec<u8>);

/// A derived key with its salt. It does not show in debug output.
pub struct SealKey {
    salt: [u8; 16],
    key: [u8; 32],
}

/// Why a blob could not be sealed or opened.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum SealError {
    /// The master material is empty.
    #[error("the master key is empty")]
    EmptyMaterial,
    /// A part of the blob is not base64 of the right length.
    #[error("sealed blob: `{0}` is not base64 of the right length")]
    Part(&'static str),
    /// The material is another one, or the blob was changed.
    #[error("the master key does not open this blob")]
    WrongKey,
    /// The key could not be derived, or the bytes are too many.
    #[error("the blob could not be sealed")]
    Refused,
}

impl MasterMaterial {
    /// Returns the material of a master key: 64 hex digits are 32 bytes, anything else is a
    /// passphrase without its outer whitespace.
    ///
    /// # Errors
    /// [`SealError::EmptyMaterial`] when nothing is left.
    pub fn parse(text: &str) -> Result<Self, SealError> {
        let text = text.trim();
        match text.to_ascii_lowercase().parse::<crate::Digest>() {
            Ok(bytes) => Ok(Self(bytes.as_bytes().to_vec())),
            Err(_) if text.is_empty() => Err(SealError::EmptyMaterial),
            Err(_) => Ok(Self(text.as_bytes().to_vec())),
        }
    }

    /// Returns the key under this salt. Slow on purpose: keep the result while it is needed.
    ///
    /// # Errors
    /// [`SealError::Refused`] when the key cannot be derived.
    pub fn derive(&self, salt: &[u8; 16]) -> Result<SealKey, SealError> {
        let params = scrypt::Params::new(14, 8, 1).map_err(|_| SealError::Refused)?;
        let mut key = [0; 32];
        scrypt::scrypt(&self.0, salt, &params, &mut key).map_err(|_| SealError::Refused)?;
        Ok(SealKey { salt: *salt, key })
    }
}

impl SealKey {
    /// Returns the 32 bytes of the key.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.key
    }

    /// Seals bytes under a fresh IV of the caller.
    ///
    /// # Errors
    /// [`SealError::Refused`] when the bytes are too many.
    pub fn seal(&self, iv: &[u8; 12], plain: &[u8]) -> Result<SealedBlob, SealError> {
        let cipher = Aes256Gcm::new(&Key::<Aes256Gcm>::from(self.key));
        let sealed = cipher.encrypt(&Nonce::from(*iv), plain).map_err(|_| SealError::Refused)?;
        let (data, tag) = sealed.split_last_chunk::<16>().ok_or(SealError::Refused)?;
        Ok(SealedBlob {
            version: SealedVersion::V1,
            salt: STANDARD.encode(self.salt),
            iv: STANDARD.encode(iv),
            tag: STANDARD.encode(tag),
            data: STANDARD.encode(data),
        })
    }

    /// Opens a blob that was sealed under this key.
    ///
    /// # Errors
    /// [`SealError`] when the blob is malformed, was changed, or is under another key.
    pub fn open(&self, blob: &SealedBlob) -> Result<Vec<u8>, SealError> {
        if blob.salt()? != self.salt {
            return Err(SealError::WrongKey);
        }
        let iv: [u8; 12] = part(&blob.iv, "iv")?;
        let tag: [u8; 16] = part(&blob.tag, "tag")?;
        let mut sealed = STANDARD.decode(&blob.data).map_err(|_| SealError::Part("data"))?;
        sealed.extend_from_slice(&tag);
        let cipher = Aes256Gcm::new(&Key::<Aes256Gcm>::from(self.key));
        cipher.decrypt(&Nonce::from(iv), sealed.as_slice()).map_err(|_| SealError::WrongKey)
    }
}

impl SealedBlob {
    /// Returns the salt of the key that opens this blob.
    ///
    /// # Errors
    /// [`SealError::Part`] when it is malformed.
    pub fn salt(&self) -> Result<[u8; 16], SealError> {
        part(&self.salt, "salt")
    }
}

fn part<const N: usize>(text: &str, name: &'static str) -> Result<[u8; N], SealError> {
    let bytes = STANDARD.decode(text).map_err(|_| SealError::Part(name))?;
    bytes.try_into().map_err(|_| SealError::Part(name))
}

impl fmt::Debug for MasterMaterial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MasterMaterial")
    }
}

impl fmt::Debug for SealKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SealKey")
    }
}

impl Drop for MasterMaterial {
    fn drop(&mut self) {
        self.0.fill(0);
    }
}

impl Drop for SealKey {
    fn drop(&mut self) {
        self.key.fill(0);
    }
}
