//! `warrant secret`: values come from stdin or a file, never from the command line, and are never
//! shown.

use std::fs;
use std::io::{self, IsTerminal as _, Read as _};

use anyhow::{Context as _, anyhow};
use serde_json::{Value, json};
use warrant_plane::random;
use warrant_plane::secrets::SecretsError;
use warrant_protocol::SecretName;

use crate::args::Secret;
use crate::exit::{Exit, Misuse};
use crate::ui;
use warrant_govern::Desk;

pub(crate) fn run(desk: &Desk, command: Secret) -> anyhow::Result<Exit> {
    let secrets = desk.plane().secrets();
    match command {
        Secret::Set { name, from_file, json: as_json } => {
            let name = named(&name)?;
            let value = match from_file {
                Some(file) => fs::read_to_string(&file)
                    .with_context(|| format!("--from-file: cannot read {}", file.display()))
                    .map_err(Misuse::of)?,
                None => from_stdin(&name)?,
            };
            // A newline at the end is the editor's, not the secret's.
            let value = value.strip_suffix('\n').unwrap_or(&value);
            let value = value.strip_suffix('\r').unwrap_or(value);
            if value.is_empty() {
                return Err(Misuse::of(anyhow!("the value of {name} is empty")));
            }
            secrets.set(&name, value, random::now()?).map_err(|error| match error {
                unfit @ SecretsError::Value { .. } => Misuse::of(unfit.into()),
                other => other.into(),
            })?;
            if as_json {
                ui::json(&json!({"name": name, "kept": true}));
            } else {
                ui::note(&format!("kept {name}; policy says which runs may have it"));
            }
        }
        Secret::List { json: as_json } => {
            let entries = secrets.list()?;
            if as_json {
                let rows: Vec<Value> = entries
                    .iter()
                    .map(|e| json!({"name": e.name, "updatedAt": e.updated_at}))
                    .collect();
                ui::json(&json!({"secrets": rows}));
            } else {
                entries.iter().for_each(|e| ui::data(&format!("{}  {}\n", e.name, e.updated_at)));
            }
        }
        Secret::Rm { name, json: as_json } => {
            let name = named(&name)?;
            secrets.remove(&name)?;
            if as_json {
                ui::json(&json!({"name": name, "forgotten": true}));
            } else {
                ui::note(&format!("forgot {name}"));
            }
        }
    }
    Ok(Exit::Success)
}

fn named(name: &str) -> anyhow::Result<SecretName> {
    name.parse().context("NAME").map_err(Misuse::of)
}

fn from_stdin(name: &SecretName) -> anyhow::Result<String> {
    if io::stdin().is_terminal() {
        ui::note(&format!("type the value of {name}, then Ctrl-D:"));
    }
    let mut value = String::new();
    io::stdin()
        .read_to_string(&mut value)
        .with_context(|| format!("the value of {name} is not UTF-8 text"))
        .map_err(Misuse::of)?;
    Ok(value)
}
