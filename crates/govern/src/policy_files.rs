//! The files of a policy in the home: read, checked elsewhere, replaced in one step.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;
use warrant_policy::preset::Preset;
use warrant_policy::snapshot::PolicyText;

const POLICY_FILES: [&str; 3] = ["document.json", "rules.cedar", "tests.jsonl"];

/// The files of a policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyFiles {
    /// The policy document.
    pub document: String,
    /// The Cedar rules.
    pub rules: String,
    /// The examples that must hold.
    pub examples: String,
}

/// Why a policy cannot be read or written.
#[derive(Debug, Error)]
pub enum PolicyFilesError {
    /// Neither a preset nor a folder.
    #[error("`{0}` is no preset (default, strict, dev, ci) and no folder with {files}", files = POLICY_FILES.join(", "))]
    Unknown(String),
    /// A file could not be read.
    #[error("cannot read {path}")]
    Read {
        /// Which one.
        path: PathBuf,
        /// What the system said.
        #[source]
        cause: io::Error,
    },
    /// The policy could not be put in place; the old one stays.
    #[error("cannot write the policy below {path}")]
    Write {
        /// Which home.
        path: PathBuf,
        /// What the system said.
        #[source]
        cause: io::Error,
    },
}

impl From<Preset> for PolicyFiles {
    fn from(preset: Preset) -> Self {
        let PolicyText { document, rules, examples } = preset.text();
        Self {
            document: document.to_owned(),
            rules: rules.to_owned(),
            examples: examples.to_owned(),
        }
    }
}

impl PolicyFiles {
    /// Returns the text that the policy room reads.
    #[must_use]
    pub fn text(&self) -> PolicyText<'_> {
        PolicyText { document: &self.document, rules: &self.rules, examples: &self.examples }
    }

    /// Reads a preset by name, or a folder.
    ///
    /// # Errors
    /// [`PolicyFilesError`] when it is neither.
    pub fn named(source: &str) -> Result<Self, PolicyFilesError> {
        if let Some(preset) = Preset::named(source) {
            return Ok(preset.into());
        }
        let folder = Path::new(source);
        if !folder.is_dir() {
            return Err(PolicyFilesError::Unknown(source.to_owned()));
        }
        Self::read(folder)
    }

    /// Reads a folder; rules and examples may be missing.
    ///
    /// # Errors
    /// [`PolicyFilesError::Read`] when a file cannot be read.
    pub fn read(folder: &Path) -> Result<Self, PolicyFilesError> {
        let read = |name: &str, missing: Option<&str>| {
            let path = folder.join(name);
            match (fs::read_to_string(&path), missing) {
                (Ok(text), _) => Ok(text),
                (Err(error), Some(missing)) if error.kind() == io::ErrorKind::NotFound => {
                    Ok(missing.to_owned())
                }
                (Err(cause), _) => Err(PolicyFilesError::Read { path, cause }),
            }
        };
        Ok(Self {
            document: read("document.json", None)?,
            rules: read("rules.cedar", Some(warrant_policy::snapshot::DOCUMENT_ONLY))?,
            examples: read("tests.jsonl", Some(""))?,
        })
    }
}

/// Puts a policy in force. It was checked before; the old one is replaced in one step.
///
/// # Errors
/// [`PolicyFilesError::Write`] when the file system refused.
pub fn write_policy(home: &Path, files: &PolicyFiles) -> Result<(), PolicyFilesError> {
    let fresh = home.join("policy.new");
    let old = home.join("policy.old");
    let current = policy_folder(home);
    let written = (|| {
        let _ = fs::remove_dir_all(&fresh);
        fs::create_dir(&fresh)?;
        fs::write(fresh.join("document.json"), &files.document)?;
        fs::write(fresh.join("rules.cedar"), &files.rules)?;
        fs::write(fresh.join("tests.jsonl"), &files.examples)?;
        let _ = fs::remove_dir_all(&old);
        if current.exists() {
            fs::rename(&current, &old)?;
        }
        fs::rename(&fresh, &current)
    })();
    written.map_err(|cause| PolicyFilesError::Write { path: home.to_owned(), cause })
}

/// Returns the folder of the policy in force.
#[must_use]
pub fn policy_folder(home: &Path) -> PathBuf {
    home.join("policy")
}
