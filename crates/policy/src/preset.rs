//! The policies that ship with the product, each with the examples it must pass.

use crate::snapshot::{InvalidSnapshot, PolicySnapshot, PolicyText};

/// A shipped policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Preset {
    /// What a fresh installation starts with.
    Default,
    /// No shells, no network, two people for secrets.
    Strict,
    /// For a developer's own machine: registries, caches, more time.
    Dev,
    /// For build machines: nobody is there to ask.
    Ci,
    /// For clients and runners of the reference implementation: its own document, its tiers.
    Reference,
}

impl Preset {
    /// Every shipped policy.
    pub const ALL: [Self; 5] = [Self::Default, Self::Strict, Self::Dev, Self::Ci, Self::Reference];

    /// The names of all of them, for people.
    pub const NAMES: &'static str = "default, strict, dev, ci or reference";

    /// Returns the name used on the command line.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Strict => "strict",
            Self::Dev => "dev",
            Self::Ci => "ci",
            Self::Reference => "reference",
        }
    }

    /// Returns the policy called `name`.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|preset| preset.as_str() == name)
    }

    /// Returns the policy as text.
    #[must_use]
    pub const fn text(self) -> PolicyText<'static> {
        match self {
            Self::Default => PolicyText {
                document: include_str!("../presets/default/document.json"),
                rules: concat!(
                    include_str!("../presets/base.cedar"),
                    include_str!("../presets/default/rules.cedar")
                ),
                examples: include_str!("../presets/default/tests.jsonl"),
            },
            Self::Strict => PolicyText {
                document: include_str!("../presets/strict/document.json"),
                rules: concat!(
                    include_str!("../presets/base.cedar"),
                    include_str!("../presets/strict/rules.cedar")
                ),
                examples: include_str!("../presets/strict/tests.jsonl"),
            },
            Self::Dev => PolicyText {
                document: include_str!("../presets/dev/document.json"),
                rules: concat!(
                    include_str!("../presets/base.cedar"),
                    include_str!("../presets/dev/rules.cedar")
                ),
                examples: include_str!("../presets/dev/tests.jsonl"),
            },
            Self::Ci => PolicyText {
                document: include_str!("../presets/ci/document.json"),
                rules: concat!(
                    include_str!("../presets/base.cedar"),
                    include_str!("../presets/ci/rules.cedar")
                ),
                examples: include_str!("../presets/ci/tests.jsonl"),
            },
            Self::Reference => PolicyText {
                document: include_str!("../presets/reference/document.json"),
                rules: include_str!("../presets/reference/rules.cedar"),
                examples: include_str!("../presets/reference/tests.jsonl"),
            },
        }
    }

    /// Loads the policy like any other: validated and tried on its examples.
    ///
    /// # Errors
    /// [`InvalidSnapshot`] naming what is wrong.
    pub fn load(self) -> Result<PolicySnapshot, InvalidSnapshot> {
        PolicySnapshot::load(self.text())
    }
}
