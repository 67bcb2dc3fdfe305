//! `warrant doors`: tokens for other people's clients, and the hall that `plane start` opens.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use serde_json::{Value, json};
use warrant_govern::Desk;
use warrant_govern::live::{Live, TokenFile, TokenFileError};
use warrant_plane::doors::Hall;
use warrant_sandbox::Namespace;

use crate::args::Doors;
use crate::exit::{Exit, Misuse};
use crate::ui;

/// Runs one command.
pub(crate) fn run(desk: &Desk, command: Doors) -> anyhow::Result<Exit> {
    let tokens = TokenFile::of(desk.plane().home().root());
    match command {
        Doors::Issue { name, json: as_json } => {
            let token = tokens.issue(&name).map_err(usage)?;
            if as_json {
                ui::json(&json!({ "name": name, "token": token }));
            } else {
                ui::note(&format!("token of {name}, shown once:"));
                ui::data(&format!("{token}\n"));
            }
        }
        Doors::List { json: as_json } => {
            let names = tokens.names()?;
            if as_json {
                let row = |(name, at): &(String, String)| json!({ "name": name, "createdAt": at });
                let rows: Vec<Value> = names.iter().map(row).collect();
                ui::json(&json!({ "tokens": rows }));
            } else {
                names.iter().for_each(|(name, at)| ui::data(&format!("{name}  {at}\n")));
            }
        }
        Doors::Revoke { name, json: as_json } => {
            if !tokens.revoke(&name)? {
                return Err(Misuse::of(anyhow::anyhow!("there is no token named {name}")));
            }
            if as_json {
                ui::json(&json!({ "name": name, "revoked": true }));
            } else {
                ui::note(&format!("{name} opens nothing any more"));
            }
        }
    }
    Ok(Exit::Success)
}

fn usage(error: TokenFileError) -> anyhow::Error {
    match error {
        TokenFileError::Name | TokenFileError::Taken(_) => Misuse::of(error.into()),
        other => other.into(),
    }
}

/// Opens the workshop behind the doors; whoever holds it ends every sandbox when it is dropped.
pub(crate) fn open(home: Option<&Path>) -> anyhow::Result<(Arc<Live>, Hall)> {
    let desk = Arc::new(Desk::open(home)?);
    let keeper = Arc::new(TokenFile::of(desk.plane().home().root()));
    let live =
        Live::open(desk, Arc::new(Namespace::new())).context("the doors cannot be opened")?;
    let live = Arc::new(live);
    let hall = Hall { workshop: Arc::clone(&live) as _, keeper };
    Ok((live, hall))
}
