//! Identifiers: a prefix that says what it names, then text the wire allows in a path segment.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use crate::text::wire_text;

/// Why a text is not an identifier of the wanted kind.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("an identifier here starts with `{prefix}` and continues with 1 to 128 of A-Z a-z 0-9 _ -")]
pub struct InvalidId {
    /// The prefix that identifiers of this kind carry.
    pub prefix: &'static str,
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(String);

        wire_text!($name);

        impl $name {
            /// The text every identifier of this kind starts with.
            pub const PREFIX: &'static str = $prefix;

            /// Returns a fresh identifier (a version 4 UUID) from 16 bytes of the caller's randomness.
            #[must_use]
            pub fn from_random(random: [u8; 16]) -> Self {
                Self(format!("{}{}", $prefix, uuid_v4(random)))
            }

            /// Returns the identifier as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = InvalidId;

            fn from_str(text: &str) -> Result<Self, InvalidId> {
                match text.strip_prefix($prefix) {
                    Some(rest) if is_id_tail(rest) => Ok(Self(text.to_owned())),
                    _ => Err(InvalidId { prefix: $prefix }),
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> Self {
                id.0
            }
        }
    };
}

id!(/** Names one run, from request to receipt. */ RunId, "run_");
id!(/** Names an enrolled runner. */ RunnerId, "rnr_");
id!(/** Names someone who may call the plane. */ PrincipalId, "prn_");
id!(/** Names a handoff envelope. */ EnvelopeId, "env_");
id!(/** Names a checkpoint. */ CheckpointId, "chk_");
id!(/** Names a sandbox that lives between calls. */ SandboxId, "sbx_");

impl RunnerId {
    /// Returns the id that stands in receipts which the plane seals because no runner can.
    #[must_use]
    pub fn plane() -> Self {
        Self("rnr_plane".to_owned())
    }
}

fn is_id_tail(rest: &str) -> bool {
    (1..=128).contains(&rest.len())
        && rest.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
}

fn uuid_v4(random: [u8; 16]) -> String {
    let bits = u128::from_be_bytes(random);
    let bits = bits & !(0xf << 76) | 0x4 << 76;
    let bits = bits & !(0x3 << 62) | 0x2 << 62;
    let hex = format!("{bits:032x}");
    let (a, rest) = hex.split_at(8);
    let (b, rest) = rest.split_at(4);
    let (c, rest) = rest.split_at(4);
    let (d, e) = rest.split_at(4);
    format!("{a}-{b}-{c}-{d}-{e}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fresh_ids_are_version_4_uuids() {
        assert_eq!(
            RunId::from_random([0; 16]).as_str(),
            "run_00000000-0000-4000-8000-000000000000"
        );
        assert_eq!(
            RunId::from_random([255; 16]).as_str(),
            "run_ffffffff-ffff-4fff-bfff-ffffffffffff"
        );
    }

    #[test]
    fn an_id_of_another_kind_or_with_path_characters_is_refused() {
        for bad in ["", "run_", "rnr_1", "run_a/b", "run_..", "run_a b", "RUN_a"] {
            assert!(bad.parse::<RunId>().is_err(), "{bad}");
        }
        assert!("run_x".parse::<RunId>().is_ok());
    }
}
