//! `warrant provider`: what remote providers cannot prove, what people accepted of them, and which
//! versions count.

mod change;
pub(crate) mod first_use;

use std::path::Path;

use anyhow::{Context as _, anyhow};
use serde_json::{Value, json};
use warrant_govern::{Desk, providers};
use warrant_policy::controls::ProviderControls;
use warrant_protocol::{Evidence, Isolation, Posture, VersionRange};
use warrant_runner::{UnprovenComponent, unproven_for_tier};
use warrant_sandbox::Backend as _;
use warrant_sandbox::remote::shipped_versions;

use self::change::{Changed, ProviderChange};
use crate::args::Provider;
use crate::exit::{Exit, Misuse};
use crate::ui;

/// Runs one command.
pub(crate) fn run(home: Option<&Path>, command: Provider) -> anyhow::Result<Exit> {
    match command {
        Provider::List { json } => list(&Desk::open(home)?, json),
        Provider::Show { provider, json } => {
            let isolation = named(&provider)?;
            show(&Desk::open(home)?, isolation, json)
        }
        Provider::Accept { provider, component, evidence, json } => {
            let isolation = named(&provider)?;
            let change = ProviderChange::Accept { component, evidence: level(&evidence)? };
            tell_change(&Desk::open(home)?, (isolation, &change), json)
        }
        Provider::Pin { provider, version, json } => {
            let isolation = named(&provider)?;
            let version = version.map(|text| text.parse::<VersionRange>());
            let version = version.transpose().map_err(|error| Misuse::of(error.into()))?;
            let desk = Desk::open(home)?;
            let version = match version {
                Some(version) => version,
                None => reported_version(&desk, isolation)?,
            };
            tell_change(&desk, (isolation, &ProviderChange::Pin(version)), json)
        }
        Provider::Test { provider, json } => test(&Desk::open(home)?, named(&provider)?, json),
    }
}

/// Returns the provider that a person named.
fn named(name: &str) -> anyhow::Result<Isolation> {
    let found = providers::REMOTE.into_iter().find(|isolation| isolation.as_str() == name);
    found.ok_or_else(|| {
        Misuse::of(anyhow!("`{name}` is no remote provider: opensandbox, e2b or daytona"))
    })
}

fn level(text: &str) -> anyhow::Result<Evidence> {
    let level = serde_json::from_value(json!(text));
    level.with_context(|| format!("--evidence {text}")).map_err(Misuse::of)
}

fn level_name(evidence: Evidence) -> String {
    json!(evidence).as_str().unwrap_or_default().to_owned()
}

/// Returns what people accepted of a provider.
fn accepted(desk: &Desk, isolation: Isolation) -> ProviderControls {
    let controls = desk.policy().map(warrant_policy::snapshot::PolicySnapshot::controls);
    controls.and_then(|controls| controls.provider(isolation)).cloned().unwrap_or_default()
}

/// Returns the version that a provider reports; a sandbox is made and deleted for it.
fn reported_version(desk: &Desk, isolation: Isolation) -> anyhow::Result<VersionRange> {
    let posture = super::providers::open(isolation, desk)?.probe();
    let version = posture.provider_version;
    if version == "unknown" {
        let why = posture.components.get("provider_version").and_then(|one| one.detail.clone());
        let why = why.unwrap_or_else(|| "it does not tell one".to_owned());
        return Err(anyhow!("{isolation} reports no version ({why}); name one"));
    }
    version.parse().with_context(|| format!("{isolation} reports version `{version}`"))
}

fn described(desk: &Desk, isolation: Isolation) -> Value {
    let controls = accepted(desk, isolation);
    let (endpoint, missing) = match super::providers::open(isolation, desk) {
        Ok(remote) => (Some(remote.endpoint().to_owned()), None),
        Err(error) => (None, Some(format!("{error:#}"))),
    };
    let accepted: serde_json::Map<String, Value> = controls
        .accepted
        .iter()
        .map(|(component, one)| {
            let listed = json!({"evidence": one.evidence, "by": one.by, "at": one.at.to_string()});
            (component.clone(), listed)
        })
        .collect();
    let pinned: Vec<Value> = controls
        .versions
        .iter()
        .map(|one| json!({"version": one.version, "by": one.by, "at": one.at.to_string()}))
        .collect();
    let evidence = desk.policy().map(|policy| policy.controls().evidence_of(isolation));
    let evidence = evidence.unwrap_or_default();
    let unproven: Vec<Value> = providers::unprovable(isolation)
        .into_iter()
        .map(|one| {
            let counts = evidence.get(one.component).copied().unwrap_or(Evidence::Reported);
            json!({
                "component": one.component,
                "sentence": one.sentence,
                "isAccepted": counts <= one.evidence,
                "command": format!("warrant provider accept {isolation} {}", one.component),
            })
        })
        .collect();
    json!({
        "provider": isolation,
        "endpoint": endpoint,
        "missing": missing,
        "accepted": accepted,
        "pinned": pinned,
        "shippedVersions": shipped_versions(isolation),
        "unproven": unproven,
    })
}

fn list(desk: &Desk, as_json: bool) -> anyhow::Result<Exit> {
    let rows: Vec<Value> =
        providers::REMOTE.into_iter().map(|isolation| described(desk, isolation)).collect();
    if as_json {
        ui::json(&json!(rows));
        return Ok(Exit::Success);
    }
    for row in &rows {
        let text = |name: &str| row.get(name).and_then(Value::as_str);
        let place = text("endpoint").or_else(|| text("missing")).unwrap_or_default();
        let is_open = |one: &&Value| one.get("isAccepted") == Some(&json!(false));
        let unproven = row.get("unproven").and_then(Value::as_array);
        let open = unproven.into_iter().flatten().filter(is_open).count();
        let state = match open {
            0 => "everything it cannot prove is accepted".to_owned(),
            open => format!("{open} to accept: warrant provider show {}", name_of(row)),
        };
        ui::data(&format!("{:<12} {}\n{:<12} {state}\n", name_of(row), ui::printable(place), ""));
    }
    Ok(Exit::Success)
}

fn name_of(row: &Value) -> &str {
    row.get("provider").and_then(Value::as_str).unwrap_or_default()
}

fn show(desk: &Desk, isolation: Isolation, as_json: bool) -> anyhow::Result<Exit> {
    let row = described(desk, isolation);
    if as_json {
        ui::json(&row);
        return Ok(Exit::Success);
    }
    let text = |name: &str| row.get(name).and_then(Value::as_str);
    if let Some(endpoint) = text("endpoint") {
        ui::data(&format!("address   {}\n", ui::printable(endpoint)));
    }
    if let Some(missing) = text("missing") {
        ui::data(&format!("missing   {}\n", ui::printable(missing)));
    }
    let controls = accepted(desk, isolation);
    for (component, one) in &controls.accepted {
        let (level, by) = (level_name(one.evidence), ui::printable(&one.by));
        ui::data(&format!("accepted  {component}: {level}, by {by} at {}\n", one.at));
    }
    for one in &controls.versions {
        let by = ui::printable(&one.by);
        ui::data(&format!("pinned    {}, by {by} at {}\n", one.version, one.at));
    }
    if controls.versions.is_empty() {
        let shipped = shipped_versions(isolation).join(", ");
        ui::data(&format!("versions  {shipped} (tried with this program); none is pinned\n"));
    }
    for one in row.get("unproven").and_then(Value::as_array).into_iter().flatten() {
        let text = |name: &str| one.get(name).and_then(Value::as_str).unwrap_or_default();
        if one.get("isAccepted") == Some(&json!(false)) {
            let (sentence, command) = (text("sentence"), text("command"));
            ui::data(&format!("unproven  {sentence}\n          to accept that: {command}\n"));
        }
    }
    Ok(Exit::Success)
}

fn tell_change(
    desk: &Desk,
    (isolation, change): (Isolation, &ProviderChange),
    as_json: bool,
) -> anyhow::Result<Exit> {
    let Changed { policy, is_new } = change::make(desk, isolation, change)?;
    if as_json {
        let what = match change {
            ProviderChange::Accept { component, evidence } => {
                json!({"component": component, "evidence": evidence})
            }
            ProviderChange::Pin(version) => json!({"version": version}),
        };
        ui::json(&json!({
            "provider": isolation, "change": what, "policyHash": policy, "changed": is_new,
        }));
        return Ok(Exit::Success);
    }
    let what = match change {
        ProviderChange::Accept { component, evidence } => {
            format!("{component} of {isolation} counts as {}", level_name(*evidence))
        }
        ProviderChange::Pin(version) => format!("version {version} of {isolation} counts"),
    };
    let when = if is_new { "from now on" } else { "already" };
    ui::note(&format!("{what} {when}; policy {policy} is in force"));
    Ok(Exit::Success)
}

/// Returns what policy would refuse of a posture.
fn refused(desk: &Desk, posture: &Posture) -> Vec<UnprovenComponent> {
    let evidence = desk.policy().map(|policy| policy.controls().evidence_of(posture.isolation));
    unproven_for_tier(posture, &evidence.unwrap_or_default())
}

fn test(desk: &Desk, isolation: Isolation, as_json: bool) -> anyhow::Result<Exit> {
    let posture = super::providers::open(isolation, desk)?.probe();
    let refused = refused(desk, &posture);
    let exit = if refused.is_empty() { Exit::Success } else { Exit::PostureTooWeak };
    if as_json {
        let rows: Vec<Value> = refused
            .iter()
            .map(|one| {
                let command = one.command(isolation);
                json!({"component": one.name, "known": one.known, "command": command})
            })
            .collect();
        let version = &posture.provider_version;
        ui::json(&json!({
            "provider": isolation, "version": version, "refused": rows, "posture": posture,
        }));
        return Ok(exit);
    }
    ui::data(&format!("{isolation} {}\n", ui::printable(&posture.provider_version)));
    for one in &refused {
        ui::data(&format!("refused   {}: {}\n", one.name, ui::printable(&one.known)));
        if let Some(command) = one.command(isolation) {
            ui::data(&format!("          to accept that: {command}\n"));
        }
    }
    if refused.is_empty() {
        ui::data("a plain run would be taken\n");
    }
    Ok(exit)
}
