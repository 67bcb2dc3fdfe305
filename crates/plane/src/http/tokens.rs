//! Claim tokens that were checked before: a signature is verified once.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use warrant_protocol::{Claim, Digest, Timestamp};

/// How many tokens are remembered.
const MAX_TOKENS: usize = 8192;

/// Remembers what checked tokens say, by their digest.
#[derive(Debug, Default)]
pub(crate) struct TokenCache {
    known: Mutex<HashMap<Digest, Claim>>,
}

impl TokenCache {
    /// Returns what a token says if it was checked before and is not over.
    pub(crate) fn known(&self, token: &str, now: Timestamp) -> Option<Claim> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(&Digest::of(token.as_bytes())).filter(|claim| now < claim.exp).cloned()
    }

    /// Remembers a token that was checked, or that we made.
    pub(crate) fn keep(&self, token: &str, claim: &Claim) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MAX_TOKENS {
            known.clear();
        }
        known.insert(Digest::of(token.as_bytes()), claim.clone());
    }
}
