//! The tiers a provider can earn, and the levels of checks they are made of.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// How much a provider was shown to hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Tier {
    /// It runs programs and tells exactly what they did.
    Compatible,
    /// Its boundary holds against a program that does what it was asked to.
    Verified,
    /// Its boundary holds against a program, and surroundings, that work against it.
    Sovereign,
}

/// How hard a check tries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Level {
    /// What every provider does.
    L1,
    /// What a boundary is for.
    L2,
    /// Attacks and faults.
    L3,
}

/// A tier nobody knows.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("unknown tier `{0}`: expected compatible, verified or sovereign")]
pub struct UnknownTier(pub String);

impl Tier {
    /// Every tier, weakest first.
    pub const ALL: [Self; 3] = [Self::Compatible, Self::Verified, Self::Sovereign];

    /// Returns the name used on the command line and in reports.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Compatible => "compatible",
            Self::Verified => "verified",
            Self::Sovereign => "sovereign",
        }
    }

    /// Returns the hardest level this tier requires; it requires all below, too.
    #[must_use]
    pub const fn level(self) -> Level {
        match self {
            Self::Compatible => Level::L1,
            Self::Verified => Level::L2,
            Self::Sovereign => Level::L3,
        }
    }
}

impl Level {
    /// Returns the name used in reports.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::L1 => "L1",
            Self::L2 => "L2",
            Self::L3 => "L3",
        }
    }
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Tier {
    type Err = UnknownTier;

    fn from_str(text: &str) -> Result<Self, UnknownTier> {
        let found = Self::ALL.into_iter().find(|tier| tier.as_str() == text);
        found.ok_or_else(|| UnknownTier(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tier_parses_from_its_own_name_and_nothing_else() {
        for tier in Tier::ALL {
            assert_eq!(tier.as_str().parse(), Ok(tier));
        }
        for bad in ["", "Sovereign", "gold", "compatible "] {
            assert_eq!(bad.parse::<Tier>(), Err(UnknownTier(bad.to_owned())));
        }
    }
}
