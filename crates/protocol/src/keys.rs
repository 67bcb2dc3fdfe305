//! Ed25519 keys as the wire carries them: PEM text kept verbatim, and ids over that text.
//!
//! The wire has 64-bit key ids; they only find a key, they never prove one.
//! Trust is a set of keys the caller brings, see [`TrustedKeys`].

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ed25519_dalek::{Signer as _, Verifier as _, VerifyingKey};
use thiserror::Error;

use crate::text::wire_text;
use crate::{Digest, Timestamp};

const SPKI_PREFIX: [u8; 12] =
    [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];
const PKCS8_PREFIX: [u8; 16] = [
    0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20,
];

/// The points whose order divides eight, as they are written canonically.
const SMALL_ORDER: [[u8; 32]; 8] = [
    torsion(0x01, [0; 30], 0x00),
    torsion(0xec, [0xff; 30], 0x7f),
    torsion(0x00, [0; 30], 0x00),
    torsion(0x00, [0; 30], 0x80),
    torsion(0xc7, EIGHTH_LOW, 0x7a),
    torsion(0xc7, EIGHTH_LOW, 0xfa),
    torsion(0x26, EIGHTH_HIGH, 0x05),
    torsion(0x26, EIGHTH_HIGH, 0x85),
];
const EIGHTH_LOW: [u8; 30] = [
    0x17, 0x6a, 0x70, 0x3d, 0x4d, 0xd8, 0x4f, 0xba, 0x3c, 0x0b, 0x76, 0x0d, 0x10, 0x67, 0x0f, 0x2a,
    0x20, 0x53, 0xfa, 0x2c, 0x39, 0xcc, 0xc6, 0x4e, 0xc7, 0xfd, 0x77, 0x92, 0xac, 0x03,
];
const EIGHTH_HIGH: [u8; 30] = [
    0xe8, 0x95, 0x8f, 0xc2, 0xb2, 0x27, 0xb0, 0x45, 0xc3, 0xf4, 0x89, 0xf2, 0xef, 0x98, 0xf0, 0xd5,
    0xdf, 0xac, 0x05, 0xd3, 0xc6, 0x33, 0x39, 0xb1, 0x38, 0x02, 0x88, 0x6d, 0x53, 0xfc,
];

const fn torsion(first: u8, middle: [u8; 30], last: u8) -> [u8; 32] {
    let mut point = [0; 32];
    let (head, rest) = point.split_at_mut(1);
    let (body, tail) = rest.split_at_mut(30);
    head.copy_from_slice(&[first]);
    body.copy_from_slice(&middle);
    tail.copy_from_slice(&[last]);
    point
}

/// Names a public key: `ed25519:` and the first 16 hex digits of the digest of its PEM text.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KeyId(String);

wire_text!(KeyId);

/// Why a text is not a key or a key id.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum InvalidKey {
    /// Not a key id.
    #[error("a key id is `ed25519:` and 16 lower-case hex digits")]
    Id,
    /// Not one PEM block of the wanted kind.
    #[error("not a PEM block labeled {label}")]
    Pem {
        /// The label of the block that was wanted.
        label: &'static str,
    },
    /// PEM, but no Ed25519 key in it.
    #[error("not an Ed25519 key")]
    NotEd25519,
    /// A point of small order or off the curve; signatures under it prove nothing.
    #[error("a weak Ed25519 key")]
    Weak,
}

/// Why a signature is not accepted.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("the signature does not match")]
pub struct BadSignature;

/// A public key with the PEM text it came in.
#[derive(Clone, PartialEq, Eq)]
pub struct PublicKey {
    pem: String,
    id: KeyId,
    key: VerifyingKey,
}

/// A private key. It has no `Debug` output and is wiped from memory when dropped.
#[derive(Clone)]
pub struct SigningKey {
    key: ed25519_dalek::SigningKey,
    public: PublicKey,
}

/// What a trusted key is trusted for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum KeyRole {
    /// Signs contracts and countersigns receipts.
    Plane,
    /// Signs receipts.
    Runner,
    /// Signs approvals.
    Approver,
    /// Signs for an organization.
    Org,
}

/// The keys the caller trusts, each for one role. Empty means nothing is trusted.
#[derive(Debug, Clone)]
pub struct TrustedKeys {
    keys: Vec<(KeyRole, PublicKey)>,
    retired: Vec<RetiredUse>,
}

/// Until when a key counts in a role.
#[derive(Debug, Clone)]
struct RetiredUse {
    role: KeyRole,
    key: [u8; 32],
    until: Timestamp,
}

impl TrustedKeys {
    /// Returns a set that trusts nobody.
    #[must_use]
    pub const fn none() -> Self {
        Self { keys: Vec::new(), retired: Vec::new() }
    }

    /// Returns the set with one more key.
    #[must_use]
    pub fn and(mut self, role: KeyRole, key: PublicKey) -> Self {
        self.keys.push((role, key));
        self
    }

    /// Returns whether this very key (not its id, not its PEM text) is trusted for `role`.
    #[must_use]
    pub fn trusts(&self, role: KeyRole, key: &PublicKey) -> bool {
        self.of(role).any(|trusted| trusted.key.as_bytes() == key.key.as_bytes())
    }

    /// Trusts a key for `role`, and nothing that is dated after `until`.
    pub fn retire(&mut self, role: KeyRole, key: &PublicKey, until: Timestamp) {
        if !self.trusts(role, key) {
            self.keys.push((role, key.clone()));
        }
        self.retired.push(RetiredUse { role, key: *key.as_bytes(), until });
    }

    /// Returns the moment after which nothing that `key` signs in `role` counts, if there is one.
    #[must_use]
    pub fn retired_at(&self, role: KeyRole, key: &PublicKey) -> Option<Timestamp> {
        let uses = self
            .retired
            .iter()
            .filter(|retired| retired.role == role && retired.key == *key.as_bytes());
        uses.map(|retired| retired.until).min()
    }

    /// Returns the keys trusted for `role`.
    pub fn of(&self, role: KeyRole) -> impl Iterator<Item = &PublicKey> {
        self.keys.iter().filter(move |(kind, _)| *kind == role).map(|(_, key)| key)
    }

    /// Returns the key of a PEM text, without parsing it again where it is a trusted one's.
    ///
    /// Says nothing about trust: see [`TrustedKeys::trusts`].
    ///
    /// # Errors
    /// [`InvalidKey`] when the text is not exactly one Ed25519 public key.
    pub(crate) fn parse_pem(&self, pem: &str) -> Result<PublicKey, InvalidKey> {
        match self.keys.iter().find(|(_, key)| key.pem == pem) {
            Some((_, key)) => Ok(key.clone()),
            None => PublicKey::from_pem(pem),
        }
    }

    /// Returns whether nobody is trusted.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }
}

impl KeyId {
    /// Returns the id of a PEM text; only its outer whitespace does not count.
    #[must_use]
    pub fn of_pem(pem: &str) -> Self {
        let mut id = Digest::of(pem.trim().as_bytes()).to_hex();
        id.truncate(16);
        Self(format!("ed25519:{id}"))
    }

    /// Returns the id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl PublicKey {
    /// Returns the key of a PEM text (SPKI).
    ///
    /// # Errors
    /// [`InvalidKey`] when the text is not exactly one Ed25519 public key.
    pub fn from_pem(pem: &str) -> Result<Self, InvalidKey> {
        let bytes = pem_bytes(pem, "PUBLIC KEY", &SPKI_PREFIX)?;
        let key = VerifyingKey::from_bytes(&bytes).map_err(|_| InvalidKey::Weak)?;
        // SECURITY: under a key of small order a signature exists that fits every message.
        if key.is_weak() {
            return Err(InvalidKey::Weak);
        }
        Ok(Self { pem: pem.to_owned(), id: KeyId::of_pem(pem), key })
    }

    /// Returns the PEM text as it was received.
    #[must_use]
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// Returns the key's id.
    #[must_use]
    pub const fn id(&self) -> &KeyId {
        &self.id
    }

    /// Returns the 32 bytes of the key.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 32] {
        self.key.as_bytes()
    }

    /// Checks a signature over `message`, strictly: one message, one key, one signature.
    ///
    /// # Errors
    /// [`BadSignature`] when it does not match.
    pub fn verify(&self, message: &[u8], signature: &[u8; 64]) -> Result<(), BadSignature> {
        let signature = ed25519_dalek::Signature::from_bytes(signature);
        // SECURITY: what `verify_strict` refuses beyond this, a key of small order, never became a
        // `PublicKey`; and R is compared byte for byte with a canonical encoding, so that these
        // eight are all it could be. Taking R apart again would cost an eighth of the check.
        if SMALL_ORDER.contains(signature.r_bytes()) {
            return Err(BadSignature);
        }
        self.key.verify(message, &signature).map_err(|_| BadSignature)
    }
}

impl SigningKey {
    /// Returns the key of a 32-byte seed; the caller brings the randomness.
    #[must_use]
    pub fn from_seed(seed: &[u8; 32]) -> Self {
        let key = ed25519_dalek::SigningKey::from_bytes(seed);
        let pem = pem_text("PUBLIC KEY", &SPKI_PREFIX, key.verifying_key().as_bytes());
        let public = PublicKey { id: KeyId::of_pem(&pem), pem, key: key.verifying_key() };
        Self { key, public }
    }

    /// Returns the key of a PEM text (PKCS8).
    ///
    /// # Errors
    /// [`InvalidKey`] when the text is not exactly one Ed25519 private key.
    pub fn from_pem(pem: &str) -> Result<Self, InvalidKey> {
        Ok(Self::from_seed(&pem_bytes(pem, "PRIVATE KEY", &PKCS8_PREFIX)?))
    }

    /// Returns the private key as PEM text, to be stored where only its owner reads.
    #[must_use]
    pub fn to_secret_pem(&self) -> String {
        pem_text("PRIVATE KEY", &PKCS8_PREFIX, self.key.as_bytes())
    }

    /// Returns the public half.
    #[must_use]
    pub const fn public(&self) -> &PublicKey {
        &self.public
    }

    /// Returns the signature over `message`.
    #[must_use]
    pub fn sign(&self, message: &[u8]) -> [u8; 64] {
        self.key.sign(message).to_bytes()
    }
}

fn pem_text<const N: usize>(label: &str, prefix: &[u8; N], key: &[u8; 32]) -> String {
    let der: Vec<u8> = prefix.iter().chain(key).copied().collect();
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", STANDARD.encode(der))
}

fn pem_bytes<const N: usize>(
    pem: &str,
    label: &'static str,
    prefix: &[u8; N],
) -> Result<[u8; 32], InvalidKey> {
    let inner = pem
        .trim()
        .strip_prefix("-----BEGIN ")
        .and_then(|rest| rest.strip_prefix(label))
        .and_then(|rest| rest.strip_prefix("-----"))
        .and_then(|rest| rest.strip_suffix("-----"))
        .and_then(|rest| rest.strip_suffix(label))
        .and_then(|rest| rest.strip_suffix("-----END "))
        .ok_or(InvalidKey::Pem { label })?;
    let base64: String = inner.chars().filter(|c| !c.is_ascii_whitespace()).collect();
    let der = STANDARD.decode(base64).map_err(|_| InvalidKey::Pem { label })?;
    let key = der.strip_prefix(prefix).ok_or(InvalidKey::NotEd25519)?;
    key.try_into().map_err(|_| InvalidKey::NotEd25519)
}

impl FromStr for KeyId {
    type Err = InvalidKey;

    fn from_str(text: &str) -> Result<Self, InvalidKey> {
        let is_hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
        match text.strip_prefix("ed25519:") {
            Some(hex) if hex.len() == 16 && hex.bytes().all(is_hex) => Ok(Self(text.to_owned())),
            _ => Err(InvalidKey::Id),
        }
    }
}

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({})", self.id)
    }
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SigningKey({})", self.public.id)
    }
}

impl From<KeyId> for String {
    fn from(id: KeyId) -> Self {
        id.0
    }
}

#[cfg(test)]
mod tests {
    use curve25519_dalek::constants::EIGHT_TORSION;
    use curve25519_dalek::scalar::{Scalar, clamp_integer};
    use sha2::{Digest as _, Sha512};

    use super::*;

    #[test]
    fn the_points_of_small_order_are_all_listed() {
        let mut found = EIGHT_TORSION.map(|point| point.compress().to_bytes());
        let mut listed = SMALL_ORDER;
        found.sort_unstable();
        listed.sort_unstable();
        assert_eq!(listed, found);
    }

    /// With the nonce zero, R is the neutral point: an equation that holds, and a signature that
    /// gives the private key away.
    #[test]
    fn a_signature_with_a_point_of_small_order_is_refused() {
        let (key, message) = (SigningKey::from_seed(&[7; 32]), b"one message");
        let secret: [u8; 32] = Sha512::digest([7; 32])[..32].try_into().unwrap();
        let secret = Scalar::from_bytes_mod_order(clamp_integer(secret));
        let neutral = SMALL_ORDER[0];
        let mut hash = Sha512::new();
        hash.update(neutral);
        hash.update(key.public().as_bytes());
        hash.update(message);
        let challenge = Scalar::from_bytes_mod_order_wide(&hash.finalize().into());
        let proof = challenge * secret;
        let signature: [u8; 64] = [neutral, proof.to_bytes()].concat().try_into().unwrap();
        let dalek = ed25519_dalek::Signature::from_bytes(&signature);
        assert!(key.public().key.verify(message, &dalek).is_ok(), "the equation holds");
        assert!(key.public().key.verify_strict(message, &dalek).is_err());
        assert_eq!(key.public().verify(message, &signature), Err(BadSignature));
    }
}
