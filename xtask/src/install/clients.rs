//! Installs the clients nobody here wrote that the whole-stack tests drive: every folder below
//! `crates/e2e/clients` with a `package-lock.json`, exactly as it is locked.
//!
//! A folder whose lock has not changed since its last installation costs nothing.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// How long one installation may take, in seconds, as `timeout` takes it.
const PATIENCE: &str = "600";

/// A registry that stumbles is asked once more.
const ATTEMPTS: usize = 2;

/// Installs what is missing or changed.
///
/// # Errors
/// A sentence naming the folder that could not be installed.
pub(crate) fn ensure() -> Result<(), String> {
    let clients = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/e2e/clients");
    let mut folders: Vec<PathBuf> = fs::read_dir(&clients)
        .map_err(|error| format!("{} cannot be listed: {error}", clients.display()))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|folder| folder.join("package-lock.json").is_file())
        .collect();
    folders.sort();
    folders.iter().try_for_each(|folder| install(folder))
}

fn install(folder: &Path) -> Result<(), String> {
    let lock = fs::read(folder.join("package-lock.json"))
        .map_err(|error| format!("{} has no readable lock: {error}", folder.display()))?;
    let stamp = folder.join("node_modules/.installed-lock");
    if fs::read(&stamp).is_ok_and(|installed| installed == lock) {
        return Ok(());
    }
    if !(0..ATTEMPTS).any(|_| npm_ci(folder)) {
        let folder = folder.display();
        return Err(format!("the clients in {folder} cannot be installed; try `npm ci` there"));
    }
    fs::write(&stamp, lock)
        .map_err(|error| format!("{} cannot be written: {error}", stamp.display()))
}

fn npm_ci(folder: &Path) -> bool {
    Command::new("timeout")
        .args([PATIENCE, "npm", "ci", "--no-audit", "--no-fund", "--loglevel=error"])
        .current_dir(folder)
        .status()
        .is_ok_and(|status| status.success())
}
