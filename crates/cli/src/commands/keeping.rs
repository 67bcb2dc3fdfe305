//! `warrant backup`, `warrant restore`, `warrant fsck`, `warrant keys rotate`.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};
use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};
use serde_json::json;
use warrant_govern::environment;
use warrant_plane::backup::{BackupError, RestoreError, RestoreOptions, back_up, restore};
use warrant_plane::fsck::{FsckProgress, FsckReport, fsck};
use warrant_plane::rotation::rotate;
use warrant_plane::sealed::MasterKey;
use warrant_protocol::succession::SuccessionRole;

use crate::args::{Backup, Fsck, PassphraseSource, Restore};
use crate::exit::{Exit, Misuse};
use crate::ui;

const PASSPHRASE: &str = "WARRANT_BACKUP_PASSPHRASE";

/// The shortest passphrase that is accepted for a new backup.
const SHORTEST: usize = 12;

/// How often long work tells how far it is.
const TELL_EVERY: Duration = Duration::from_secs(2);

/// `warrant backup`.
pub(crate) fn backup(home: Option<&Path>, arguments: &Backup) -> anyhow::Result<Exit> {
    let root = root_of(home)?;
    let passphrase = match arguments.with_keys {
        false => None,
        true => {
            let text = passphrase(&arguments.passphrase)?;
            if text.chars().count() < SHORTEST {
                let text = format!("the passphrase has fewer than {SHORTEST} characters");
                return Err(Misuse::of(anyhow!(text)));
            }
            Some(MasterKey::from_text(&text)?)
        }
    };
    let file = std::path::absolute(&arguments.file).context("FILE")?;
    let mut teller = Teller::new();
    let done = back_up(&root, (&file, passphrase.as_ref()), &mut |done, total| {
        teller.tell("blobs", done, total);
    });
    let done = match done {
        Err(error @ (BackupError::Exists(_) | BackupError::NoHome(_))) => {
            return Err(Misuse::of(error.into()));
        }
        other => other?,
    };
    if arguments.json {
        ui::json(&json!({
            "file": file,
            "bytes": done.bytes,
            "databaseBytes": done.database_bytes,
            "blobs": done.blobs,
            "hasKeys": passphrase.is_some(),
        }));
    } else {
        let keys = if passphrase.is_some() { "with sealed keys" } else { "without private keys" };
        ui::note(&format!("wrote {} ({} bytes, {keys})", file.display(), done.bytes));
    }
    Ok(Exit::Success)
}

/// `warrant restore`.
pub(crate) fn put_back(home: Option<&Path>, arguments: &Restore) -> anyhow::Result<Exit> {
    let root = root_of(home)?;
    let restored = restore_with(&root, arguments, given_passphrase(&arguments.passphrase)?);
    let restored = match restored {
        // Nobody gave one: ask, if there is somebody to ask.
        Err(RestoreError::Sealed) => {
            let text =
                from_terminal().map_err(|error| Misuse::of(error.context(RestoreError::Sealed)))?;
            restore_with(&root, arguments, Some(text))?
        }
        Err(error @ RestoreError::NotEmpty(_)) => return Err(Misuse::of(error.into())),
        other => other?,
    };
    if arguments.json {
        ui::json(&json!({
            "home": root,
            "createdAt": restored.manifest.created_at,
            "freshKeys": restored.has_fresh_keys,
            "checked": restored.report.checked,
        }));
        return Ok(Exit::Success);
    }
    ui::note(&format!(
        "restored {} as of {}: {} runs and {} blobs, all sound",
        root.display(),
        restored.manifest.created_at,
        restored.report.checked.runs,
        restored.report.checked.blobs,
    ));
    if restored.has_fresh_keys {
        ui::note("the home has fresh keys and tokens; runners enroll again");
    }
    Ok(Exit::Success)
}

fn restore_with(
    root: &Path,
    arguments: &Restore,
    passphrase: Option<String>,
) -> Result<warrant_plane::backup::RestoredHome, RestoreError> {
    let passphrase = passphrase.map(|text| MasterKey::from_text(&text)).transpose()?;
    let options = match (arguments.without_keys, &passphrase) {
        (true, _) => Some(RestoreOptions::LeaveOut),
        (false, Some(passphrase)) => Some(RestoreOptions::Unseal(passphrase)),
        (false, None) => None,
    };
    let mut teller = Teller::new();
    restore(&arguments.file, (root, options), &mut |at: FsckProgress| {
        teller.tell(at.phase, at.done, at.total);
    })
}

/// `warrant fsck`.
pub(crate) fn check(home: Option<&Path>, arguments: &Fsck) -> anyhow::Result<Exit> {
    let root = root_of(home)?;
    if !root.join("home.json").is_file() {
        return Err(Misuse::of(anyhow!("{} is no home of warrant", root.display())));
    }
    let mut teller = Teller::new();
    let report = fsck(&root, &mut |at| teller.tell(at.phase, at.done, at.total))?;
    if arguments.json {
        let mut value = serde_json::to_value(&report)?;
        if let Some(members) = value.as_object_mut() {
            members.insert("sound".to_owned(), report.is_sound().into());
            members.insert("home".to_owned(), json!(root));
        }
        ui::json(&value);
    } else {
        print(&root, &report);
    }
    Ok(if report.is_sound() { Exit::Success } else { Exit::Failure })
}

fn print(root: &Path, report: &FsckReport) {
    for problem in &report.problems {
        let line = format!("{} {}: {}", problem.kind.as_str(), problem.subject, problem.detail);
        ui::data(&format!("{}\n", ui::printable(&line)));
    }
    let checked = &report.checked;
    ui::note(&format!(
        "checked {}: {} runs, {} bundles, {} events, {} blobs ({} bytes)",
        root.display(),
        checked.runs,
        checked.bundles,
        checked.events,
        checked.blobs,
        checked.blob_bytes
    ));
    match report.problem_count {
        0 => ui::note("no problems"),
        count => ui::note(&format!(
            "{count} problems; put a backup into an empty home with `warrant --home DIR restore FILE`"
        )),
    }
}

/// `warrant keys rotate`.
pub(crate) fn rotate_key(home: Option<&Path>, role: &str, as_json: bool) -> anyhow::Result<()> {
    let environment = environment(home)?;
    let root = environment.locate()?;
    let master = environment.master_key.as_deref().map(MasterKey::from_text).transpose()?;
    let role = match role {
        "runner" => SuccessionRole::Runner,
        _ => SuccessionRole::Plane,
    };
    let rotated = rotate(&root, master, role)?;
    if as_json {
        ui::json(&json!({
            "role": role.as_str(),
            "oldKeyId": rotated.old,
            "newKeyId": rotated.new.id(),
            "newPublicKeyPem": rotated.new.pem(),
            "retiredAt": rotated.retired_at,
        }));
        return Ok(());
    }
    ui::note(&format!(
        "{} key {} takes over from {}, which counts for nothing dated after {}",
        role.as_str(),
        rotated.new.id(),
        rotated.old,
        rotated.retired_at
    ));
    ui::note("bundles carry the signed succession; give verifiers the new public key when you can");
    Ok(())
}

fn root_of(home: Option<&Path>) -> anyhow::Result<PathBuf> {
    let root = environment(home)?.locate()?;
    std::path::absolute(&root).with_context(|| format!("cannot use {}", root.display()))
}

fn passphrase(source: &PassphraseSource) -> anyhow::Result<String> {
    match given_passphrase(source)? {
        Some(text) => Ok(text),
        None => from_terminal().map_err(|error| {
            let way = format!("no passphrase: give --passphrase-file FILE or set {PASSPHRASE}");
            Misuse::of(error.context(way))
        }),
    }
}

/// Returns the passphrase that a file or the environment gives.
fn given_passphrase(source: &PassphraseSource) -> anyhow::Result<Option<String>> {
    if let Some(file) = &source.passphrase_file {
        let text = fs::read_to_string(file)
            .with_context(|| format!("--passphrase-file: cannot read {}", file.display()));
        return Ok(Some(text.map_err(Misuse::of)?.trim_end_matches(['\r', '\n']).to_owned()));
    }
    Ok(std::env::var(PASSPHRASE).ok().filter(|text| !text.is_empty()))
}

/// Asks on the terminal, without showing what is typed.
fn from_terminal() -> anyhow::Result<String> {
    let mut terminal = fs::OpenOptions::new().read(true).write(true).open("/dev/tty")?;
    let before = tcgetattr(&terminal)?;
    let mut hidden = before.clone();
    hidden.local_modes.remove(LocalModes::ECHO);
    terminal.write_all(b"passphrase: ")?;
    tcsetattr(&terminal, OptionalActions::Flush, &hidden)?;
    let mut text = String::new();
    let read = BufReader::new(&terminal).read_line(&mut text);
    tcsetattr(&terminal, OptionalActions::Flush, &before)?;
    terminal.write_all(b"\n")?;
    read?;
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}

/// Tells how far long work is, now and then.
struct Teller {
    told: Instant,
}

impl Teller {
    fn new() -> Self {
        Self { told: Instant::now() }
    }

    fn tell(&mut self, what: &str, done: u64, total: u64) {
        if self.told.elapsed() >= TELL_EVERY {
            self.told = Instant::now();
            ui::note(&format!("{what}: {done} of {total}"));
        }
    }
}
