//! What one path is: the stored form of a state, and how a state is read from the disk.

use serde::{Deserialize, Serialize};
use warrant_protocol::Digest;

use crate::TreePath;
use crate::path::InvalidPath;

/// Seconds and nanoseconds since 1970.
pub(crate) type Time = (i64, u32);

/// Who owns a path: user and group.
pub(crate) type Owner = (u32, u32);

/// What lies at a path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub(crate) enum PathState {
    Absent,
    Directory {
        mode: u32,
        mtime: Time,
        owner: Owner,
    },
    File {
        mode: u32,
        mtime: Time,
        owner: Owner,
        digest: Digest,
        content: Option<u64>,
    },
    Link {
        target: Escaped,
        mtime: Time,
        owner: Owner,
    },
    /// A pipe, socket or device: left alone, and not brought back.
    Special,
}

impl PathState {
    /// Returns whether both are the same to a person: kind, permissions and content.
    ///
    /// Times and owners do not count, nor do a directory's permissions.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Absent, Self::Absent)
            | (Self::Directory { .. }, Self::Directory { .. })
            | (Self::Special, Self::Special) => true,
            (
                Self::File { mode, digest, .. },
                Self::File { mode: other_mode, digest: other, .. },
            ) => mode == other_mode && digest == other,
            (Self::Link { target, .. }, Self::Link { target: other, .. }) => target == other,
            _ => false,
        }
    }
}

/// One path of a change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) path: TreePath,
    pub(crate) before: PathState,
    pub(crate) after: PathState,
}

/// Which state of a row is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Before,
    After,
}

impl Row {
    pub(crate) const fn side(&self, side: Side) -> &PathState {
        match side {
            Side::Before => &self.before,
            Side::After => &self.after,
        }
    }
}

/// Bytes written in JSON as text, with `%` escapes for what is not printable ASCII.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub(crate) struct Escaped(pub(crate) Vec<u8>);

pub(crate) const fn escaped(bytes: Vec<u8>) -> Escaped {
    Escaped(bytes)
}

impl From<Escaped> for String {
    fn from(escaped: Escaped) -> Self {
        let mut text = Self::with_capacity(escaped.0.len());
        for byte in escaped.0 {
            if (0x20..0x7f).contains(&byte) && byte != b'%' {
                text.push(char::from(byte));
            } else {
                text.push_str(&format!("%{byte:02x}"));
            }
        }
        text
    }
}

impl TryFrom<String> for Escaped {
    type Error = InvalidPath;

    fn try_from(text: String) -> Result<Self, InvalidPath> {
        let invalid = || InvalidPath(text.clone());
        let mut bytes = Vec::with_capacity(text.len());
        let mut rest = text.as_bytes();
        while let Some((byte, after)) = rest.split_first() {
            rest = after;
            if *byte != b'%' {
                bytes.push(*byte);
                continue;
            }
            let (digits, after) = rest.split_first_chunk::<2>().ok_or_else(invalid)?;
            rest = after;
            let digits = std::str::from_utf8(digits).map_err(|_| invalid())?;
            bytes.push(u8::from_str_radix(digits, 16).map_err(|_| invalid())?);
        }
        Ok(Self(bytes))
    }
}

impl Serialize for TreePath {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Escaped(self.as_bytes().to_vec()).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for TreePath {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Escaped(bytes) = Escaped::deserialize(deserializer)?;
        Self::new(bytes).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_name_survives_the_record() {
        for bytes in [b"plain".to_vec(), b"100%\n\"\xff".to_vec(), "ä/ö".as_bytes().to_vec()] {
            let path = TreePath::new(bytes).unwrap();
            let text = serde_json::to_string(&path).unwrap();
            assert!(text.is_ascii());
            assert_eq!(serde_json::from_str::<TreePath>(&text).unwrap(), path);
        }
        assert!(serde_json::from_str::<TreePath>("\"../x\"").is_err());
        assert!(serde_json::from_str::<TreePath>("\"%2e%2e/x\"").is_err());
    }
}
