//! Names of references and the values they hold, parsed before anything is done with them.

use std::collections::BTreeMap;

use crate::object::Oid;
use crate::path::is_git_name;

/// A reference name that git accepts and that stays below `refs/`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RefName(String);

impl RefName {
    /// Returns the name if it is one: the rules of `git check-ref-format`, below `refs/`.
    ///
    /// SECURITY: a name is a path in the git directory of the host.
    #[must_use]
    pub fn new(name: &str) -> Option<Self> {
        const LONGEST: usize = 1024;
        let below = name.strip_prefix("refs/")?;
        let is_plain = |c: char| {
            !c.is_control() && !matches!(c, ' ' | '~' | '^' | ':' | '?' | '*' | '[' | '\\')
        };
        let is_segment = |segment: &str| {
            !segment.is_empty()
                && !segment.starts_with('.')
                && !segment.ends_with(".lock")
                && !is_git_name(segment.as_bytes())
        };
        let is_valid = name.len() <= LONGEST
            && name.chars().all(is_plain)
            && below.contains('/') | (below == "stash")
            && below.split('/').all(is_segment)
            && !name.contains("..")
            && !name.contains("@{")
            && !name.ends_with('.');
        is_valid.then(|| Self(name.to_owned()))
    }

    /// Returns the text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns whether it is a branch.
    #[must_use]
    pub fn is_branch(&self) -> bool {
        self.0.starts_with("refs/heads/")
    }

    /// Returns the names of which this one would have to be a directory or a part.
    pub(crate) fn ancestors(&self) -> impl Iterator<Item = &str> {
        let slashes = self.0.match_indices('/').skip(1);
        slashes.filter_map(|(at, _)| self.0.get(..at))
    }
}

impl std::fmt::Display for RefName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a reference or HEAD holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RefValue {
    /// An object.
    Object(Oid),
    /// Another reference.
    Symbolic(RefName),
}

impl RefValue {
    /// Parses the content of a file that holds a reference.
    pub(crate) fn parse(content: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(content).ok()?;
        let line = text.strip_suffix('\n').unwrap_or(text);
        match line.strip_prefix("ref: ") {
            Some(name) => RefName::new(name.trim()).map(Self::Symbolic),
            None => Oid::from_hex(line.trim_end()).map(Self::Object),
        }
    }

    /// Returns the content of the file that holds it.
    pub(crate) fn to_file(&self) -> Vec<u8> {
        match self {
            Self::Object(oid) => format!("{}\n", oid.to_hex()).into_bytes(),
            Self::Symbolic(name) => format!("ref: {name}\n").into_bytes(),
        }
    }

    /// Returns the object, if it holds one.
    pub(crate) const fn object(&self) -> Option<Oid> {
        match self {
            Self::Object(oid) => Some(*oid),
            Self::Symbolic(_) => None,
        }
    }
}

impl std::fmt::Display for RefValue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Object(oid) => f.write_str(&oid.to_hex()),
            Self::Symbolic(name) => write!(f, "{name}"),
        }
    }
}

/// The lines of `packed-refs`: valid names with their objects, and the names that are not valid.
#[derive(Debug, Default)]
pub(crate) struct PackedRefs {
    pub(crate) values: BTreeMap<RefName, Oid>,
    pub(crate) invalid: Vec<String>,
}

impl PackedRefs {
    /// Parses the file; `None` when a line is none of such a file.
    pub(crate) fn parse(content: &[u8]) -> Option<Self> {
        let text = String::from_utf8_lossy(content);
        let mut refs = Self::default();
        for line in text.lines().filter(|line| !line.starts_with(['#', '^'])) {
            let (oid, name) = line.split_once(' ')?;
            let oid = Oid::from_hex(oid)?;
            match RefName::new(name) {
                Some(name) => {
                    refs.values.insert(name, oid);
                }
                None => refs.invalid.push(name.to_owned()),
            }
        }
        Some(refs)
    }
}

/// Returns `packed-refs` without the lines of some references, peeled values included.
pub(crate) fn without_refs(content: &[u8], removed: &[&RefName]) -> Vec<u8> {
    let mut kept = Vec::with_capacity(content.len());
    let mut is_removed = false;
    for line in content.split_inclusive(|byte| *byte == b'\n') {
        if !line.starts_with(b"^") {
            let name = line.get(41..).unwrap_or_default();
            let name = name.strip_suffix(b"\n").unwrap_or(name);
            is_removed = !line.starts_with(b"#")
                && removed.iter().any(|removed| removed.as_str().as_bytes() == name);
        }
        if !is_removed {
            kept.extend_from_slice(line);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ref_that_leaves_refs_is_no_ref() {
        for bad in [
            "refs/../../x",
            "refs/heads/../../config",
            "../x",
            "HEAD",
            "config",
            "refs/heads",
            "refs/heads/",
            "refs//x",
            "refs/heads/.x",
            "refs/heads/x.lock",
            "refs/heads/a..b",
            "refs/heads/a b",
            "refs/heads/a\nb",
            "refs/heads/a~1",
            "refs/heads/x.lock/y",
            "refs/heads/@{x",
            "refs/heads/.git/config",
            "refs/heads/a.",
            "refs/heads/a\\b",
            "/refs/heads/x",
        ] {
            assert_eq!(RefName::new(bad), None, "{bad:?}");
        }
        for good in ["refs/heads/main", "refs/stash", "refs/tags/v1.0", "refs/heads/a/b-c_d"] {
            assert!(RefName::new(good).is_some(), "{good:?}");
        }
    }

    #[test]
    fn a_value_is_an_object_or_a_reference_and_nothing_else() {
        let hex = "4b825dc642cb6eb9a060e54bf8d69288fbee4904";
        assert!(RefValue::parse(format!("{hex}\n").as_bytes()).is_some());
        assert!(RefValue::parse(b"ref: refs/heads/main\n").is_some());
        for bad in ["ref: /etc/passwd", "ref: ../config", "ref: config", "", "x", &hex[1..]] {
            assert_eq!(RefValue::parse(bad.as_bytes()), None, "{bad:?}");
        }
    }

    #[test]
    fn a_removed_ref_takes_its_peeled_line_with_it() {
        let hex = "4b825dc642cb6eb9a060e54bf8d69288fbee4904";
        let text = format!(
            "# pack-refs\n{hex} refs/heads/a\n{hex} refs/tags/t\n^{hex}\n{hex} refs/tags/u\n"
        );
        let removed = RefName::new("refs/tags/t").unwrap();
        let kept = without_refs(text.as_bytes(), &[&removed]);
        let expected = format!("# pack-refs\n{hex} refs/heads/a\n{hex} refs/tags/u\n");
        assert_eq!(String::from_utf8(kept).unwrap(), expected);
    }
}
