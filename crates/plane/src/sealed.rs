//! Sealing at rest: AES-256-GCM under a key that scrypt makes from the master key.
//!
//! The form is the wire's `warrant.sealed.v1`. Salt and nonce are fresh for every sealing.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use aes_gcm::aead::{AeadInOut as _, KeyInit as _};
use aes_gcm::{Aes256Gcm, Nonce, Tag};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use thiserror::Error;
use zeroize::Zeroizing;

/// The text of the member `version`.
const VERSION: &str = "warrant.sealed.v1";

/// What keys are made from: 32 bytes, or a passphrase. Wiped when dropped, never shown.
#[derive(Clone)]
pub struct MasterKey(Zeroizing<Vec<u8>>);

impl fmt::Debug for MasterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MasterKey")
    }
}

/// A sealed text, as it is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SealedBlob {
    version: String,
    salt: String,
    iv: String,
    tag: String,
    data: String,
}

/// Why something could not be sealed or opened.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum SealError {
    /// No master key: nothing to seal with.
    #[error("the master key is empty")]
    EmptyKey,
    /// The sealed form is damaged or of another version.
    #[error("the sealed member `{field}` is malformed")]
    Malformed {
        /// Which member.
        field: &'static str,
    },
    /// Another master key sealed it, or it was changed since.
    #[error("the master key does not open this, or it was changed")]
    WrongKey,
    /// The key could not be derived.
    #[error("the key could not be derived")]
    Derive,
}

impl MasterKey {
    /// Returns the key of a text: 64 hex digits are 32 bytes, anything else is a passphrase.
    ///
    /// # Errors
    /// [`SealError::EmptyKey`] when nothing is left after trimming.
    pub fn from_text(text: &str) -> Result<Self, SealError> {
        let trimmed = text.trim();
        if trimmed.is_empty() {
            return Err(SealError::EmptyKey);
        }
        let bytes = hex_bytes(trimmed).unwrap_or_else(|| trimmed.as_bytes().to_vec());
        Ok(Self(Zeroizing::new(bytes)))
    }

    fn derive(&self, salt: &[u8]) -> Result<DerivedKey, SealError> {
        let params = scrypt::Params::new(14, 8, 1).map_err(|_| SealError::Derive)?;
        let mut key = Zeroizing::new([0_u8; 32]);
        scrypt::scrypt(&self.0, salt, &params, key.as_mut()).map_err(|_| SealError::Derive)?;
        Ok(key)
    }
}

type DerivedKey = Zeroizing<[u8; 32]>;

/// The key that was derived last: opening the same sealed text again does not take the time of a
/// second derivation. It holds no more than the master key does, and is wiped with it.
#[derive(Clone, Default)]
pub struct LastKey(Arc<Mutex<Option<Derived>>>);

struct Derived {
    master: MasterKey,
    salt: Vec<u8>,
    key: DerivedKey,
}

impl fmt::Debug for LastKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LastKey")
    }
}

impl LastKey {
    fn of(&self, master: &MasterKey, salt: &[u8]) -> Result<DerivedKey, SealError> {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(derived) = last.as_ref()
            && derived.master.0 == master.0
            && derived.salt == salt
        {
            return Ok(derived.key.clone());
        }
        let key = master.derive(salt)?;
        *last = Some(Derived { master: master.clone(), salt: salt.to_vec(), key: key.clone() });
        Ok(key)
    }
}

fn cipher(key: &DerivedKey) -> Result<Aes256Gcm, SealError> {
    Aes256Gcm::new_from_slice(key.as_ref()).map_err(|_| SealError::Derive)
}

fn hex_bytes(text: &str) -> Option<Vec<u8>> {
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    if pairs.len() != 32 || !rest.is_empty() {
        return None;
    }
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    pairs.iter().map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?)).collect()
}

impl SealedBlob {
    /// Seals `plaintext` with fresh randomness brought by the caller: 16 bytes of salt, 12 of nonce.
    ///
    /// # Errors
    /// [`SealError::Derive`] when no key can be made.
    pub fn seal(
        master: &MasterKey,
        plaintext: &[u8],
        randomness: [u8; 28],
    ) -> Result<Self, SealError> {
        let (salt, iv) = randomness.split_at(16);
        let nonce = Nonce::try_from(iv).map_err(|_| SealError::Derive)?;
        let mut data = plaintext.to_vec();
        let tag = cipher(&master.derive(salt)?)?
            .encrypt_inout_detached(&nonce, b"", data.as_mut_slice().into())
            .map_err(|_| SealError::Derive)?;
        Ok(Self {
            version: VERSION.to_owned(),
            salt: STANDARD.encode(salt),
            iv: STANDARD.encode(iv),
            tag: STANDARD.encode(tag),
            data: STANDARD.encode(data),
        })
    }

    /// Returns what was sealed.
    ///
    /// # Errors
    /// [`SealError`] when the form is damaged or the key is another.
    pub fn open(&self, master: &MasterKey) -> Result<Zeroizing<Vec<u8>>, SealError> {
        self.open_again(master, &LastKey::default())
    }

    /// Returns what was sealed, with the key derived last if that is the one.
    ///
    /// # Errors
    /// [`SealError`] when the form is damaged or the key is another.
    pub fn open_again(
        &self,
        master: &MasterKey,
        last: &LastKey,
    ) -> Result<Zeroizing<Vec<u8>>, SealError> {
        if self.version != VERSION {
            return Err(SealError::Malformed { field: "version" });
        }
        let salt = decode(&self.salt, "salt")?;
        let iv = decode(&self.iv, "iv")?;
        let nonce =
            Nonce::try_from(iv.as_slice()).map_err(|_| SealError::Malformed { field: "iv" })?;
        let tag = decode(&self.tag, "tag")?;
        let tag =
            Tag::try_from(tag.as_slice()).map_err(|_| SealError::Malformed { field: "tag" })?;
        let mut data = Zeroizing::new(decode(&self.data, "data")?);
        cipher(&last.of(master, &salt)?)?
            .decrypt_inout_detached(&nonce, b"", data.as_mut_slice().into(), &tag)
            .map_err(|_| SealError::WrongKey)?;
        Ok(data)
    }
}

fn decode(text: &str, field: &'static str) -> Result<Vec<u8>, SealError> {
    STANDARD.decode(text).map_err(|_| SealError::Malformed { field })
}
