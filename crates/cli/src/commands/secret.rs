//! `warrant secret`: values come from stdin or a file, never from the command line, and are never
//! shown.

use std::fs;
use std::io::{self, IsTerminal as _, Read as _};

use anyhow::{Context as _, bail};
use serde_json::{Value, json};
use warrant_plane::random;
use warrant_protocol::SecretName;

use crate::args::Secret;
use crate::exit::Exit;
use crate::ui;
use warrant_govern::Desk;

pub(crate) fn run(desk: &Desk, command: Secret) -> anyhow::Result<Exit> {
    let secrets = desk.plane().secrets();
    match command {
        Secret::Set { name, from_file } => {
            let name: SecretName = name.parse()?;
            let value = match from_file {
                Some(file) => fs::read_to_string(&file)
                    .with_context(|| format!("cannot read {}", file.display()))?,
                None => from_stdin(&name)?,
            };
            // A newline at the end is the editor's, not the secret's.
            let value = value.strip_suffix('\n').unwrap_or(&value);
            let value = value.strip_suffix('\r').unwrap_or(value);
            if value.is_empty() {
                bail!("the value of {name} is empty");
            }
            secrets.set(&name, value, random::now()?)?;
            ui::note(&format!("kept {name}; policy says which runs may have it"));
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
        Secret::Rm { name } => {
            let name: SecretName = name.parse()?;
            secrets.remove(&name)?;
            ui::note(&format!("forgot {name}"));
        }
    }
    Ok(Exit::Success)
}

fn from_stdin(name: &SecretName) -> anyhow::Result<String> {
    if io::stdin().is_terminal() {
        ui::note(&format!("type the value of {name}, then Ctrl-D:"));
    }
    let mut value = String::new();
    io::stdin().read_to_string(&mut value).context("the value is not UTF-8 text")?;
    Ok(value)
}
