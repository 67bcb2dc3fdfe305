//! Installs the clients nobody here wrote that the whole-stack tests drive: every folder below
//! `crates/e2e/clients` with a `package-lock.json` or a `requirements.txt`, exactly as it is locked.
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
        .collect();
    folders.sort();
    folders.iter().try_for_each(|folder| KINDS.iter().try_for_each(|kind| install(folder, kind)))
}

/// One way of locking and installing.
struct Kind {
    lock: &'static str,
    /// Written last, with the lock that is installed.
    stamp: &'static str,
    install: fn(&Path) -> bool,
}

const KINDS: [Kind; 2] = [
    Kind { lock: "package-lock.json", stamp: "node_modules/.installed-lock", install: npm_ci },
    Kind { lock: "requirements.txt", stamp: ".venv/.installed-lock", install: venv },
];

fn install(folder: &Path, kind: &Kind) -> Result<(), String> {
    let Ok(lock) = fs::read(folder.join(kind.lock)) else { return Ok(()) };
    let stamp = folder.join(kind.stamp);
    if fs::read(&stamp).is_ok_and(|installed| installed == lock) {
        return Ok(());
    }
    if !(0..ATTEMPTS).any(|_| (kind.install)(folder)) {
        let (folder, lock) = (folder.display(), kind.lock);
        return Err(format!("the clients in {folder} cannot be installed from {lock}"));
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

/// Makes an environment of its own and installs into it; Debian ships the maker apart.
fn venv(folder: &Path) -> bool {
    let run = |program: &str, arguments: &[&str]| {
        Command::new("timeout")
            .args([PATIENCE, program])
            .args(arguments)
            .current_dir(folder)
            .status()
            .is_ok_and(|status| status.success())
    };
    let make = || run("python3", &["-m", "venv", "--clear", ".venv"]);
    let is_made = make() || super::apt(&["install", "--yes", "python3-venv"]).is_some() && make();
    let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
    is_made && run(".venv/bin/python", &[&pip[..], &["-r", "requirements.txt"]].concat())
}
