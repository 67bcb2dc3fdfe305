//! A key that takes over from another: the old key names the new one, the new one accepts.
//!
//! Whoever trusts the old key may follow to the new one. Whoever trusts the new key knows from it
//! until when the old one counted. Both signatures are needed, so nobody becomes a successor, or a
//! predecessor, of somebody else's key.
//!
//! The date is the one that the old key's owner wrote down. A thief of a retired key can still
//! write an earlier date; what is dated later is refused.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::keys::{InvalidKey, KeyRole, TrustedKeys};
use crate::signed::{InvalidSigned, Signed, SignedBody};
use crate::{PublicKey, Signer, SigningKey, Timestamp};

/// How many successions one bundle or answer may carry.
pub const MOST_SUCCESSIONS: usize = 64;

/// What both keys sign.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SuccessionBody {
    /// What both keys are for.
    pub role: SuccessionRole,
    /// The key that counted until now.
    pub old_public_key_pem: String,
    /// The key that counts from now on.
    pub new_public_key_pem: String,
    /// The moment after which the old key signs nothing.
    pub retired_at: Timestamp,
}

/// What a key that can be replaced is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SuccessionRole {
    /// Signs contracts and countersigns receipts.
    Plane,
    /// Signs receipts.
    Runner,
}

impl SignedBody for SuccessionBody {
    const VERSION: &'static str = "warrant.key-succession.v1";
    const NAME: &'static str = "key succession";
}

/// A signed succession. Whether its signatures hold is checked by [`CheckedSuccession::of`].
pub type Succession = Signed<SuccessionBody>;

/// A succession whose two signatures hold.
#[derive(Debug, Clone)]
pub struct CheckedSuccession {
    role: KeyRole,
    old: PublicKey,
    new: PublicKey,
    retired_at: Timestamp,
}

/// Why a succession does not count.
#[derive(Debug, Error)]
pub enum InvalidSuccession {
    /// It has another version.
    #[error("key succession version is not {}", SuccessionBody::VERSION)]
    Version,
    /// It names no key.
    #[error("key succession names no key")]
    Key(#[from] InvalidKey),
    /// Both keys are the same.
    #[error("key succession names one key twice")]
    SameKey,
    /// A key did not sign it.
    #[error("key succession is not signed by its {0} key")]
    Signature(&'static str),
}

impl SuccessionRole {
    /// Returns the role of the keys.
    #[must_use]
    pub const fn key_role(self) -> KeyRole {
        match self {
            Self::Plane => KeyRole::Plane,
            Self::Runner => KeyRole::Runner,
        }
    }

    /// Returns the word for it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Plane => "plane",
            Self::Runner => "runner",
        }
    }

    const fn signer(self) -> Signer {
        match self {
            Self::Plane => Signer::Plane,
            Self::Runner => Signer::Runner,
        }
    }
}

/// Writes down that `new` takes over from `old`.
///
/// # Errors
/// [`InvalidSigned`] when it cannot be signed.
pub fn sign_succession(
    role: SuccessionRole,
    (old, new): (&SigningKey, &SigningKey),
    retired_at: Timestamp,
) -> Result<Succession, InvalidSigned> {
    let body = SuccessionBody {
        role,
        old_public_key_pem: old.public().pem().to_owned(),
        new_public_key_pem: new.public().pem().to_owned(),
        retired_at,
    };
    Signed::seal(&body, role.signer(), old)?.countersign(role.signer(), new)
}

impl CheckedSuccession {
    /// Checks both signatures.
    ///
    /// # Errors
    /// [`InvalidSuccession`].
    pub fn of(succession: &Succession) -> Result<Self, InvalidSuccession> {
        if succession.version() != Some(SuccessionBody::VERSION) {
            return Err(InvalidSuccession::Version);
        }
        let body = succession.body();
        let old = PublicKey::from_pem(&body.old_public_key_pem)?;
        let new = PublicKey::from_pem(&body.new_public_key_pem)?;
        if old.as_bytes() == new.as_bytes() {
            return Err(InvalidSuccession::SameKey);
        }
        let message = succession.hash().to_hex();
        let is_signed_by = |key: &PublicKey| {
            succession.signatures().iter().any(|entry| {
                entry.signer == body.role.signer()
                    && entry.key_id == *key.id()
                    && key.verify(message.as_bytes(), entry.sig.as_bytes()).is_ok()
            })
        };
        match (is_signed_by(&old), is_signed_by(&new)) {
            (false, _) => Err(InvalidSuccession::Signature("old")),
            (_, false) => Err(InvalidSuccession::Signature("new")),
            (true, true) => {
                Ok(Self { role: body.role.key_role(), old, new, retired_at: body.retired_at })
            }
        }
    }

    /// Returns the key that took over.
    #[must_use]
    pub const fn new_key(&self) -> &PublicKey {
        &self.new
    }

    /// Returns the key that was retired.
    #[must_use]
    pub const fn old_key(&self) -> &PublicKey {
        &self.old
    }

    /// Returns what both keys are for.
    #[must_use]
    pub const fn role(&self) -> KeyRole {
        self.role
    }

    /// Returns until when the old key counted.
    #[must_use]
    pub const fn retired_at(&self) -> Timestamp {
        self.retired_at
    }
}

/// Returns the trusted keys with everything that follows from them by these successions: a
/// successor of a trusted key is trusted, a predecessor of a trusted key is trusted until it was
/// retired, and a trusted key that was retired is trusted until then.
#[must_use]
pub fn follow(trusted: &TrustedKeys, successions: &[CheckedSuccession]) -> TrustedKeys {
    let mut known = trusted.clone();
    // Each round reaches one key further; a chain is no longer than the list.
    for _ in successions {
        for step in successions {
            let has_old = known.trusts(step.role, &step.old);
            let has_new = known.trusts(step.role, &step.new);
            if has_old || has_new {
                known.retire(step.role, &step.old, step.retired_at);
            }
            if has_old && !has_new {
                known = known.and(step.role, step.new.clone());
            }
        }
    }
    known
}
