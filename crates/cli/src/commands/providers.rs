//! The backends of this machine, by name; `warrant sandbox probe|providers` and `warrant doctor`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::anyhow;
use serde_json::{Value, json};
use warrant_conformance::SignedReport;
use warrant_govern::backends::{self, NoBackend};
use warrant_govern::{Desk, providers};
use warrant_protocol::{Enforcement, Isolation, Posture, Signer};
use warrant_sandbox::doctor::State;
use warrant_sandbox::{Backend, Remote};

use crate::exit::{Exit, Misuse};
use crate::ui::{self, Tone, paint};

/// Returns the backend a person named, or the strongest that a probe confirms.
pub(crate) fn choose<'a>(
    backends: &'a [Arc<dyn Backend>],
    name: Option<&str>,
) -> anyhow::Result<&'a dyn Backend> {
    match backends::choose(backends, name) {
        Ok(backend) => Ok(backend.as_ref()),
        Err(unknown @ NoBackend::Unknown(_)) => Err(Misuse::of(unknown.into())),
        Err(other) => Err(other.into()),
    }
}

/// Returns the remote provider a person named, when it can be used; nothing was asked of it yet.
pub(crate) fn remote_named(
    name: Option<&str>,
    home: Option<&Path>,
) -> anyhow::Result<Option<Isolation>> {
    let Some(isolation) = name.and_then(|name| name.parse::<Isolation>().ok()) else {
        return Ok(None);
    };
    if !providers::REMOTE.contains(&isolation) {
        return Ok(None);
    }
    providers::check(isolation, home).map_err(|error| Misuse::of(error.into()))?;
    Ok(Some(isolation))
}

/// Opens the client of a provider for a home.
pub(crate) fn open(isolation: Isolation, desk: &Desk) -> anyhow::Result<Arc<Remote>> {
    providers::open(isolation, desk.plane().home()).map_err(|error| Misuse::of(error.into()))
}

/// `warrant sandbox probe`.
pub(crate) fn probe(
    home: Option<&Path>,
    provider: Option<&str>,
    as_json: bool,
) -> anyhow::Result<Exit> {
    let postures: Vec<Posture> = match remote_named(provider, home)? {
        Some(isolation) => vec![open(isolation, &Desk::open(home)?)?.probe()],
        None => {
            let backends = backends::local();
            match provider {
                Some(name) => vec![choose(&backends, Some(name))?.probe()],
                None => backends.iter().map(|backend| backend.probe()).collect(),
            }
        }
    };
    if as_json {
        match (provider, postures.as_slice()) {
            (Some(_), [posture]) => ui::json(&json!(posture)),
            _ => ui::json(&json!(postures)),
        }
    } else {
        postures.iter().for_each(|posture| ui::data(&posture_text(posture)));
    }
    Ok(Exit::Success)
}

/// `warrant sandbox providers`: posture, version, and the tier that the last report shows.
pub(crate) fn list(home: Option<&Path>, as_json: bool) -> anyhow::Result<Exit> {
    let desk = Desk::open(home)?;
    let mut rows: Vec<Value> =
        backends::local().iter().map(|backend| row(&desk, &backend.probe())).collect();
    for isolation in providers::REMOTE {
        rows.push(match providers::open(isolation, desk.plane().home()) {
            Ok(remote) => row(&desk, &remote.probe()),
            Err(error) => json!({
                "provider": isolation,
                "version": null,
                "enforced": 0,
                "components": 0,
                "earned": earned(&desk, isolation),
                "unavailable": error.to_string(),
            }),
        });
    }
    if as_json {
        ui::json(&json!(rows));
        return Ok(Exit::Success);
    }
    for row in &rows {
        let text = |name: &str| match row.get(name) {
            None | Some(Value::Null) => "-".to_owned(),
            Some(Value::String(text)) => ui::printable(text),
            Some(other) => other.to_string(),
        };
        let held = match row.get("unavailable") {
            Some(_) => text("unavailable"),
            None => format!(
                "{} of {} components enforced   {}",
                text("enforced"),
                text("components"),
                text("version")
            ),
        };
        ui::data(&format!("{:<12} earned {:<11} {held}\n", text("provider"), text("earned")));
    }
    Ok(Exit::Success)
}

fn row(desk: &Desk, posture: &Posture) -> Value {
    let components = posture.components.values();
    let held = components.filter(|c| c.enforcement == Enforcement::Enforced).count();
    let unknown = posture.components.values().filter(|c| c.enforcement == Enforcement::Unknown);
    json!({
        "provider": posture.isolation,
        "version": posture.provider_version,
        "enforced": held,
        "unknown": unknown.count(),
        "components": posture.components.len(),
        "earned": earned(desk, posture.isolation),
    })
}

/// Returns the tier of the newest report of this home, if one was made and its signature is ours.
fn earned(desk: &Desk, isolation: Isolation) -> Option<String> {
    let file = report_file(desk, isolation);
    let value: Value = serde_json::from_slice(&std::fs::read(file).ok()?).ok()?;
    let report = SignedReport::from_value(value).ok()?;
    let key = desk.plane().home().plane_key();
    report.check_signature(Signer::Runner, key.public()).ok()?;
    report.body().earned.map(|tier| tier.to_string())
}

/// Returns where the newest report about a provider is kept.
pub(crate) fn report_file(desk: &Desk, isolation: Isolation) -> PathBuf {
    desk.plane().home().data().join("conformance").join(format!("{isolation}.json"))
}

/// `warrant sandbox reap`: deletes what crashed runs left at providers.
pub(crate) fn reap(
    home: Option<&Path>,
    provider: Option<&str>,
    as_json: bool,
) -> anyhow::Result<Exit> {
    let named = remote_named(provider, home)?;
    if let (Some(name), None) = (provider, named) {
        return Err(Misuse::of(anyhow!("--provider {name} has nothing to reap")));
    }
    let desk = Desk::open(home)?;
    let mut rows = Vec::new();
    let mut is_complete = true;
    for isolation in providers::REMOTE.into_iter().filter(|one| named.is_none_or(|n| n == *one)) {
        let Ok(remote) = providers::open(isolation, desk.plane().home()) else { continue };
        match remote.reap() {
            Ok(reaped) => rows.push(json!({"provider": isolation, "reaped": reaped})),
            Err(error) => {
                is_complete = false;
                rows.push(json!({"provider": isolation, "error": error.to_string()}));
            }
        }
    }
    if as_json {
        ui::json(&json!(rows));
    } else {
        for row in &rows {
            let text = |name: &str| row.get(name).map(ToString::to_string).unwrap_or_default();
            let what = format!("{} {}{}\n", text("provider"), text("reaped"), text("error"));
            ui::data(&ui::printable(what.trim_end()));
            ui::data("\n");
        }
    }
    Ok(if is_complete { Exit::Success } else { Exit::Failure })
}

/// `warrant doctor`: exit 1 when something is missing.
pub(crate) fn doctor(as_json: bool) -> anyhow::Result<Exit> {
    let findings = warrant_sandbox::doctor();
    let is_healthy = !findings.iter().any(|finding| matches!(finding.state, State::Missing(_)));
    if as_json {
        let rows: Vec<Value> = findings
            .iter()
            .map(|finding| {
                let (word, _, found) = state_words(&finding.state);
                json!({"what": finding.what, "state": word, "found": found, "remedy": finding.remedy})
            })
            .collect();
        ui::json(&json!({"healthy": is_healthy, "findings": rows}));
    } else {
        for finding in &findings {
            let (word, tone, found) = state_words(&finding.state);
            let word = paint(&format!("{word:<8}"), tone, ui::stdout_has_color());
            ui::data(&format!("{word} {}: {found}\n", finding.what));
            if let Some(remedy) = &finding.remedy {
                ui::data(&format!("         remedy: {remedy}\n"));
            }
        }
    }
    Ok(if is_healthy { Exit::Success } else { Exit::Failure })
}

fn state_words(state: &State) -> (&'static str, Tone, &str) {
    match state {
        State::Good(found) => ("good", Tone::Good, found),
        State::Weak(found) => ("weak", Tone::Bad, found),
        State::Missing(found) => ("missing", Tone::Bad, found),
    }
}

fn posture_text(posture: &Posture) -> String {
    let has_color = ui::stdout_has_color();
    let mut text = format!("{} · {}\n", posture.isolation, posture.provider_version);
    for (name, component) in posture.components.iter() {
        let (word, tone) = match component.enforcement {
            Enforcement::Enforced => ("enforced", Tone::Good),
            Enforcement::Observed => ("observed", Tone::Good),
            Enforcement::Absent => ("absent", Tone::Bad),
            Enforcement::Unknown => ("unknown", Tone::Bad),
        };
        let detail = component.detail.as_deref().unwrap_or(&component.source);
        let word = paint(&format!("{word:<8}"), tone, has_color);
        text.push_str(&format!("  {word} {name:<22} {}\n", ui::printable(detail)));
    }
    text
}
