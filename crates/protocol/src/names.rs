//! Names that arrive as text and are checked once: pools, secrets, hosts, relative paths.
//!
//! The rules and the error sentences are the reference's, so that both sides refuse the same text.

use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;

use thiserror::Error;

use crate::text::wire_text;

/// Why a text is not a name of the wanted kind.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum InvalidName {
    /// Not a pool name.
    #[error("pool name \"{0}\" contains unsupported characters")]
    Pool(String),
    /// Not a secret name.
    #[error("secret name \"{0}\" must be a POSIX environment identifier")]
    Secret(String),
    /// Not a host of an allow list.
    #[error("host allowlist entry \"{0}\" is not a bare host name")]
    Host(String),
    /// Not a safe relative path.
    #[error("workspace path \"{0}\" must be a safe relative path")]
    Path(String),
}

macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $parse:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(String);

        wire_text!($name);

        impl $name {
            /// Returns the name as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = InvalidName;

            fn from_str(text: &str) -> Result<Self, InvalidName> {
                $parse(text).map(Self)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> Self {
                name.0
            }
        }
    };
}

name!(/** Names a pool of runners. */ PoolName, parse_pool);
name!(/** Names a secret; also a valid name of an environment variable. */ SecretName, parse_secret);
name!(
    /// A host of an allow list, trimmed and lower-cased, without one trailing dot.
    ///
    /// The wire accepts more text than names a host (`exa mple`, `*.example.com`);
    /// what such an entry matches is decided by the egress rules, never here.
    Host,
    parse_host
);
name!(
    /// A host of a rule with a port: what [`Host`] takes, and IPv6 addresses, which the reference
    /// has no way to name. An address is kept in its canonical form without brackets.
    EgressHost,
    parse_egress_host
);
name!(
    /// A path below the workspace root: no leading slash, no `..`, no empty segment, no backslash.
    ///
    /// It may still name `.git/config` or go through a link: whoever opens it decides by descriptor.
    RelPath,
    parse_path
);

fn parse_pool(text: &str) -> Result<String, InvalidName> {
    let is_allowed = |b: u8| b.is_ascii_alphanumeric() || b"_.:-".contains(&b);
    if (1..=128).contains(&text.len()) && text.bytes().all(is_allowed) {
        Ok(text.to_owned())
    } else {
        Err(InvalidName::Pool(text.to_owned()))
    }
}

fn parse_secret(text: &str) -> Result<String, InvalidName> {
    let starts_well = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    let is_allowed = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    if starts_well && text.len() <= 256 && text.bytes().all(is_allowed) {
        Ok(text.to_owned())
    } else {
        Err(InvalidName::Secret(text.to_owned()))
    }
}

fn parse_host(text: &str) -> Result<String, InvalidName> {
    let lower = text.trim().to_lowercase();
    let host = lower.strip_suffix('.').unwrap_or(&lower);
    if host.is_empty() || host.chars().count() > 253 || host.contains(['/', '@', ':']) {
        return Err(InvalidName::Host(text.to_owned()));
    }
    Ok(host.to_owned())
}

fn parse_egress_host(text: &str) -> Result<String, InvalidName> {
    let text = text.trim();
    let bare = text.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(text);
    match bare.parse::<Ipv6Addr>() {
        Ok(address) => Ok(address.to_string()),
        Err(_) => parse_host(text),
    }
}

fn parse_path(text: &str) -> Result<String, InvalidName> {
    let has_drive = matches!(text.as_bytes(), [letter, b':', ..] if letter.is_ascii_alphabetic());
    let is_safe = !text.is_empty()
        && text.len() <= 4096
        && !text.starts_with('/')
        && !has_drive
        && !text.contains("//")
        && !text.contains(['\\', '\0', '\n'])
        && text.split('/').all(|segment| segment != "..");
    if is_safe { Ok(text.to_owned()) } else { Err(InvalidName::Path(text.to_owned())) }
}
