//! The first use of a provider on a terminal: what it cannot prove is asked about, once, by name.
//!
//! The run was refused and has its receipt. Who says yes changes the policy in their own name, and
//! the command is tried again under that policy.

use std::io::{self, BufRead as _, IsTerminal as _};

use anyhow::Context as _;
use serde_json::Value;
use warrant_govern::{Desk, providers};
use warrant_protocol::{Isolation, Posture, RunId, VersionRange};
use warrant_runner::{ProviderRemedy, UnprovenComponent};

use super::change::{self, ProviderChange};
use super::{accepted, refused};
use crate::args::Exec;
use crate::ui;

/// Asks about everything a refused run lacked; true when a person accepted all of it, so that the
/// same command would be taken now.
pub(crate) fn is_accepted(
    desk: &Desk,
    (run, isolation): (&RunId, Isolation),
    arguments: &Exec,
) -> anyhow::Result<bool> {
    // SECURITY: an agent accepts nothing in a person's name, and what is piped is no answer.
    let is_person = arguments.agent.is_none() && !arguments.json;
    if !is_person || !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        return Ok(false);
    }
    let Some(posture) = checked_posture(desk, run)? else { return Ok(false) };
    let lacking = refused(desk, &posture);
    if lacking.is_empty() || lacking.iter().any(|one| one.remedy.is_none()) {
        return Ok(false);
    }
    for one in &lacking {
        ui::prompt(&question(isolation, one));
        let mut answer = String::new();
        io::stdin().lock().read_line(&mut answer).context("no answer")?;
        if !matches!(answer.trim(), "y" | "Y" | "yes") {
            return Ok(false);
        }
    }
    let mut pin = unpinned_version(desk, &posture);
    if let Some(version) = &pin {
        ui::note(&format!("version {version} of {isolation} is pinned with it"));
    }
    for one in lacking {
        let change = match one.remedy {
            Some(ProviderRemedy::Accept(evidence)) => {
                ProviderChange::Accept { component: one.name, evidence }
            }
            Some(ProviderRemedy::Pin(version)) => {
                pin = None;
                ProviderChange::Pin(version.parse()?)
            }
            None => return Ok(false),
        };
        change::make(desk, isolation, &change)?;
    }
    if let Some(version) = pin {
        change::make(desk, isolation, &ProviderChange::Pin(version))?;
    }
    Ok(true)
}

/// Returns the version that a provider reports, when nobody pinned one yet: the first use that a
/// person confirms pins it.
fn unpinned_version(desk: &Desk, posture: &Posture) -> Option<VersionRange> {
    let is_told = posture.enforces("provider_version");
    let is_pinned = !accepted(desk, posture.isolation).versions.is_empty();
    (is_told && !is_pinned).then(|| posture.provider_version.parse().ok())?
}

fn question(isolation: Isolation, one: &UnprovenComponent) -> String {
    let known = ui::printable(&one.known);
    let what = providers::unprovable(isolation).into_iter().find(|un| un.component == one.name);
    match (what, &one.remedy) {
        (Some(what), _) => format!("{} ({known}).\nAccept that from now on? [y/N] ", what.sentence),
        (None, Some(ProviderRemedy::Pin(version))) => {
            format!("{isolation}: {known}.\nPin {} from now on? [y/N] ", ui::printable(version))
        }
        (None, _) => format!("{isolation} {}: {known}.\nAccept that from now on? [y/N] ", one.name),
    }
}

/// Returns the posture that the run was refused for, as its chain has it.
fn checked_posture(desk: &Desk, run: &RunId) -> anyhow::Result<Option<Posture>> {
    for event in desk.plane().store().events(run)? {
        let event: Value = serde_json::from_str(&event.body)?;
        let event = event.get("event").unwrap_or(&Value::Null);
        if event.get("type").and_then(Value::as_str) == Some("preflight.checked") {
            let posture = event.get("posture").cloned().unwrap_or_default();
            return Ok(Some(serde_json::from_value(posture)?));
        }
    }
    Ok(None)
}
