//! Which versions of a provider count: one version, all with the same beginning, or a range.
//!
//! ```text
//! 0.6.13           that version; a leading `v` does not count
//! 0.6.*            every version that begins with 0.6
//! >=0.6.13 <0.7    every version that meets all of these
//! ```
//!
//! Parts are compared as numbers. What follows a version after `-` or `+` must be the same in a
//! single version; in ranges only plain versions count, so that no pre-release slips in.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Which versions count.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct VersionRange {
    text: String,
    rule: VersionRule,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum VersionRule {
    Exactly(String),
    Beginning(Vec<u64>),
    Between(Vec<VersionBound>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct VersionBound {
    operator: BoundOperator,
    parts: Vec<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BoundOperator {
    AtLeast,
    Above,
    AtMost,
    Below,
}

/// A text that is no range of versions.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("`{0}` is no version (0.6.13), beginning (0.6.*) or range (>=0.6.13 <0.7)")]
pub struct InvalidVersionRange(String);

/// No text of a version is longer than this.
const MOST_CHARS: usize = 128;

impl VersionRange {
    /// Returns whether a version counts.
    #[must_use]
    pub fn matches(&self, version: &str) -> bool {
        match &self.rule {
            VersionRule::Exactly(wanted) => plain(version) == wanted,
            VersionRule::Beginning(wanted) => {
                parts(plain(version)).is_some_and(|found| found.starts_with(wanted))
            }
            VersionRule::Between(bounds) => parts(plain(version))
                .is_some_and(|found| bounds.iter().all(|bound| bound.holds(&found))),
        }
    }

    /// Returns the text it was read from.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl VersionBound {
    fn holds(&self, found: &[u64]) -> bool {
        // A part that is not written is zero.
        let longest = found.len().max(self.parts.len());
        let padded = |parts: &[u64]| -> Vec<u64> {
            parts.iter().copied().chain(std::iter::repeat(0)).take(longest).collect()
        };
        let order = padded(found).cmp(&padded(&self.parts));
        match self.operator {
            BoundOperator::AtLeast => order.is_ge(),
            BoundOperator::Above => order.is_gt(),
            BoundOperator::AtMost => order.is_le(),
            BoundOperator::Below => order.is_lt(),
        }
    }
}

impl FromStr for VersionRange {
    type Err = InvalidVersionRange;

    fn from_str(text: &str) -> Result<Self, InvalidVersionRange> {
        let invalid = || InvalidVersionRange(text.chars().take(MOST_CHARS).collect());
        let is_printable = text.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ');
        if text.len() > MOST_CHARS || !is_printable {
            return Err(invalid());
        }
        let rule = rule(text.trim()).ok_or_else(invalid)?;
        Ok(Self { text: text.trim().to_owned(), rule })
    }
}

fn rule(text: &str) -> Option<VersionRule> {
    if let Some(beginning) = text.strip_suffix(".*") {
        return parts(plain(beginning)).map(VersionRule::Beginning);
    }
    if text.starts_with(['<', '>']) {
        let bounds: Option<Vec<VersionBound>> = text.split_whitespace().map(bound).collect();
        return bounds.map(VersionRule::Between);
    }
    let is_one = !plain(text).is_empty() && !text.contains(['*', '<', '>', '=', ' ']);
    is_one.then(|| VersionRule::Exactly(plain(text).to_owned()))
}

fn bound(text: &str) -> Option<VersionBound> {
    const OPERATORS: [(&str, BoundOperator); 4] = [
        (">=", BoundOperator::AtLeast),
        ("<=", BoundOperator::AtMost),
        (">", BoundOperator::Above),
        ("<", BoundOperator::Below),
    ];
    OPERATORS.into_iter().find_map(|(sign, operator)| {
        let parts = parts(plain(text.strip_prefix(sign)?))?;
        Some(VersionBound { operator, parts })
    })
}

fn plain(text: &str) -> &str {
    text.strip_prefix('v').unwrap_or(text)
}

fn parts(text: &str) -> Option<Vec<u64>> {
    let number = |part: &str| {
        let is_number = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        part.parse().ok().filter(|_| is_number)
    };
    text.split('.').map(number).collect()
}

impl fmt::Display for VersionRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl TryFrom<String> for VersionRange {
    type Error = InvalidVersionRange;

    fn try_from(text: String) -> Result<Self, InvalidVersionRange> {
        text.parse()
    }
}

impl From<VersionRange> for String {
    fn from(range: VersionRange) -> Self {
        range.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(range: &str, matching: &[&str], others: &[&str]) {
        let range: VersionRange = range.parse().unwrap();
        for version in matching {
            assert!(range.matches(version), "{range} does not match {version}");
        }
        for version in others {
            assert!(!range.matches(version), "{range} matches {version}");
        }
    }

    #[test]
    fn a_range_of_versions_matches_what_it_says_and_nothing_else() {
        check("0.6.13", &["0.6.13", "v0.6.13"], &["0.6.1", "0.6.130", "0.6.13-rc1", "0.6", ""]);
        check("v1.2-beta", &["1.2-beta"], &["1.2", "1.2-beta2"]);
        check("main-3f2a", &["main-3f2a"], &["main", "3f2a"]);
        check("0.6.*", &["0.6.0", "v0.6.13", "0.6"], &["0.60.1", "0.7.0", "0.6.1-rc1", "0", "x"]);
        check(
            ">=0.6.13 <0.7",
            &["0.6.13", "0.6.99", "v0.6.13.1"],
            &["0.6.12", "0.7", "0.7.0", "0.6.14-rc1", "unknown"],
        );
        check(">1 <=2.0", &["1.1", "2"], &["1", "1.0", "2.0.1"]);
    }

    #[test]
    fn what_is_no_range_of_versions_is_refused() {
        for text in ["", "v", "*", "0.*.1", "=1", ">=", ">= 1", "1 2", ".*", "1..2.*", "a.*"] {
            assert!(text.parse::<VersionRange>().is_err(), "{text}");
        }
        assert!("1\n2".parse::<VersionRange>().is_err());
        assert!("1".repeat(200).parse::<VersionRange>().is_err());
    }
}
