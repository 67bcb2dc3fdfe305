//! `warrant keys`: makes and inspects signing keys. A private key never reaches stdout.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use serde_json::json;
use warrant_protocol::keys::{PublicKey, SigningKey};

use crate::args::Keys;
use crate::exit::{Exit, Misuse};
use crate::ui;
use warrant_govern::Desk;

pub(crate) fn run(home: Option<&Path>, command: Keys) -> anyhow::Result<Exit> {
    match command {
        Keys::Approver { name, file, json: as_json } => {
            let key = named(&file)?;
            Desk::open(home)?.plane().home().add_approver(&name, &key)?;
            if as_json {
                ui::json(&json!({"name": name, "keyId": key.id()}));
            } else {
                ui::note(&format!("{} may approve as {name}", key.id()));
            }
        }
        Keys::New { name, json: as_json } => new(&name, as_json)?,
        Keys::Rotate { which, json: as_json } => super::keeping::rotate_key(home, &which, as_json)?,
        Keys::Show { file, json: true } | Keys::Id { file, json: true } => {
            let key = named(&file)?;
            ui::json(&json!({"keyId": key.id(), "publicKey": key.pem().trim()}));
        }
        Keys::Show { file, .. } => ui::data(&format!("{}\n", named(&file)?.pem().trim())),
        Keys::Id { file, .. } => ui::data(&format!("{}\n", named(&file)?.id().as_str())),
    }
    Ok(Exit::Success)
}

/// Reads a key file that the person named.
fn named(file: &Path) -> anyhow::Result<PublicKey> {
    read_public(file).context("KEYFILE").map_err(Misuse::of)
}

/// Returns the public key in a PEM file, which may hold the private one.
pub(crate) fn read_public(file: &Path) -> anyhow::Result<PublicKey> {
    let text = fs::read_to_string(file)
        .with_context(|| format!("cannot read key file {}", file.display()))?;
    if text.contains("PRIVATE KEY") {
        let key =
            SigningKey::from_pem(&text).with_context(|| format!("{} is no key", file.display()))?;
        return Ok(key.public().clone());
    }
    PublicKey::from_pem(&text).with_context(|| format!("{} is no key", file.display()))
}

fn new(name: &Path, as_json: bool) -> anyhow::Result<()> {
    let mut seed = [0; 32];
    getrandom::fill(&mut seed).context("the system gave no randomness")?;
    let key = SigningKey::from_seed(&seed);
    let secret = with_ending(name, ".key.pem");
    let public = with_ending(name, ".pub.pem");
    if public.exists() {
        bail!("{} exists already; choose another name", public.display());
    }
    create(&secret, 0o600, &key.to_secret_pem())?;
    create(&public, 0o644, key.public().pem())?;
    if as_json {
        let id = key.public().id();
        ui::json(&json!({
            "keyId": id,
            "privateKeyFile": secret.to_string_lossy(),
            "publicKeyFile": public.to_string_lossy(),
        }));
        return Ok(());
    }
    ui::data(&format!("{}\n", key.public().id().as_str()));
    ui::note(&format!("wrote {} (keep it to yourself) and {}", secret.display(), public.display()));
    Ok(())
}

fn with_ending(name: &Path, ending: &str) -> PathBuf {
    let mut path = name.as_os_str().to_owned();
    path.push(ending);
    path.into()
}

fn create(path: &Path, mode: u32, text: &str) -> anyhow::Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(path)
        .with_context(|| format!("cannot create {}", path.display()))?;
    file.write_all(text.as_bytes()).with_context(|| format!("cannot write {}", path.display()))
}
