//! The files of the policy in a home: `policy/document.json`, `rules.cedar`, `tests.jsonl`.

use std::error::Error;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use warrant_policy::snapshot::{DOCUMENT_ONLY, PolicySnapshot, PolicyText};

/// Where the policy of a home lies.
#[derive(Debug, Clone)]
pub(super) struct PolicyShelf {
    home: PathBuf,
}

/// The parts of a policy.
#[derive(Debug, Clone, PartialEq, Eq)]
struct PolicyParts {
    document: String,
    rules: String,
    examples: String,
}

impl PolicyParts {
    fn text(&self) -> PolicyText<'_> {
        PolicyText { document: &self.document, rules: &self.rules, examples: &self.examples }
    }
}

impl PolicyShelf {
    pub(super) fn of(home: &Path) -> Self {
        Self { home: home.to_owned() }
    }

    /// Returns when the policy was last replaced, if there is one.
    pub(super) fn changed_at(&self) -> Option<SystemTime> {
        fs::metadata(self.home.join("policy/document.json")).ok()?.modified().ok()
    }

    /// Reads the policy.
    fn read(&self) -> io::Result<PolicyParts> {
        let folder = self.home.join("policy");
        let or = |name: &str, missing: &str| match fs::read_to_string(folder.join(name)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(missing.to_owned()),
            other => other,
        };
        Ok(PolicyParts {
            document: fs::read_to_string(folder.join("document.json"))?,
            rules: or("rules.cedar", DOCUMENT_ONLY)?,
            examples: or("tests.jsonl", "")?,
        })
    }

    /// Reads, validates and tries the policy.
    pub(super) fn load(&self) -> Result<PolicySnapshot, Box<dyn Error + Send + Sync>> {
        Ok(PolicySnapshot::load(self.read()?.text())?)
    }

    /// Replaces the policy in one step; it was checked before.
    pub(super) fn write(&self, text: &PolicyText<'_>) -> io::Result<()> {
        let (fresh, old) = (self.home.join("policy.new"), self.home.join("policy.old"));
        let current = self.home.join("policy");
        let _ = fs::remove_dir_all(&fresh);
        crate::files::create_private_dir(&fresh)?;
        crate::files::write_private(&fresh.join("document.json"), text.document.as_bytes())?;
        crate::files::write_private(&fresh.join("rules.cedar"), text.rules.as_bytes())?;
        crate::files::write_private(&fresh.join("tests.jsonl"), text.examples.as_bytes())?;
        let _ = fs::remove_dir_all(&old);
        if current.exists() {
            fs::rename(&current, &old)?;
        }
        fs::rename(&fresh, &current)
    }
}
