//! The program that benchmarks start.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the binary that `WARRANT_BIN` names, else one that is built with the same profile.
pub(crate) fn binary() -> PathBuf {
    if let Some(path) = std::env::var_os("WARRANT_BIN") {
        return path.into();
    }
    let status = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--release", "--workspace", "--bin", "warrant"])
        .status()
        .unwrap();
    assert!(status.success(), "the binary cannot be built");
    let own = std::env::current_exe().unwrap();
    own.parent().and_then(Path::parent).unwrap().join("warrant")
}
