//! The record that the home's policy passed, beside the policy, so that a short process need not
//! try it again. Whoever can write here could write the policy itself.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use warrant_policy::snapshot::PolicySnapshot;

use crate::policy_files::PolicyFiles;

/// Returns the policy of these files when this very binary tried it before.
pub(crate) fn recall(home: &Path, files: &PolicyFiles) -> Option<PolicySnapshot> {
    let path = place(home);
    let metadata = fs::symlink_metadata(&path).ok()?;
    // SECURITY: a record that somebody else could write would let them put other rules in force.
    let is_ours = metadata.is_file()
        && metadata.uid() == rustix::process::geteuid().as_raw()
        && metadata.mode() & 0o077 == 0;
    if !is_ours {
        return None;
    }
    let record = fs::read_to_string(&path).ok()?;
    PolicySnapshot::recall(files.text(), &maker()?, &record)
}

/// Keeps the record of a policy that passed. If that fails it is tried again the next time.
pub(crate) fn keep(home: &Path, files: &PolicyFiles, policy: &PolicySnapshot) {
    let record = maker().and_then(|maker| policy.record(files.text(), &maker));
    if let Some(record) = record {
        let _ = write(&place(home), &record);
    }
}

fn place(home: &Path) -> PathBuf {
    home.join("policy.passed")
}

/// Names the binary as exactly as can be told without reading it.
fn maker() -> Option<String> {
    let binary = fs::metadata("/proc/self/exe").ok()?;
    Some(format!(
        "warrant {} {} {} {} {}.{}",
        env!("CARGO_PKG_VERSION"),
        binary.dev(),
        binary.ino(),
        binary.size(),
        binary.mtime(),
        binary.mtime_nsec()
    ))
}

fn write(path: &Path, record: &str) -> io::Result<()> {
    let fresh = path.with_extension(format!("passed.{}", std::process::id()));
    let written = (|| {
        let mut options = fs::OpenOptions::new();
        let mut file = options.write(true).create_new(true).mode(0o600).open(&fresh)?;
        file.write_all(record.as_bytes())?;
        fs::rename(&fresh, path)
    })();
    if written.is_err() {
        let _ = fs::remove_file(&fresh);
    }
    written
}
