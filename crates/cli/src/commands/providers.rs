//! The backends of this machine, by name; `warrant sandbox probe|providers` and `warrant doctor`.

use std::sync::Arc;

use serde_json::{Value, json};
use warrant_govern::backends::{self, NoBackend};
use warrant_protocol::{Enforcement, Posture};
use warrant_sandbox::Backend;
use warrant_sandbox::doctor::State;

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

/// `warrant sandbox probe`.
pub(crate) fn probe(provider: Option<&str>, as_json: bool) -> anyhow::Result<Exit> {
    let backends = backends::local();
    let chosen: Vec<&dyn Backend> = match provider {
        Some(name) => vec![choose(&backends, Some(name))?],
        None => backends.iter().map(AsRef::as_ref).collect(),
    };
    let postures: Vec<Posture> = chosen.iter().map(|backend| backend.probe()).collect();
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

/// `warrant sandbox providers`.
pub(crate) fn list(as_json: bool) -> anyhow::Result<Exit> {
    let rows: Vec<Value> = backends::local()
        .iter()
        .map(|backend| {
            let posture = backend.probe();
            let held = posture
                .components
                .values()
                .filter(|c| c.enforcement == Enforcement::Enforced)
                .count();
            json!({
                "provider": posture.isolation,
                "version": posture.provider_version,
                "enforced": held,
                "components": posture.components.len(),
            })
        })
        .collect();
    if as_json {
        ui::json(&json!(rows));
        return Ok(Exit::Success);
    }
    for row in &rows {
        let text =
            |name: &str| row.get(name).map(|v| v.to_string().replace('"', "")).unwrap_or_default();
        ui::data(&format!(
            "{:<10} {:>2} of {:>2} components enforced   {}\n",
            text("provider"),
            text("enforced"),
            text("components"),
            text("version")
        ));
    }
    Ok(Exit::Success)
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
    for (name, component) in &posture.components {
        let (word, tone) = match component.enforcement {
            Enforcement::Enforced => ("enforced", Tone::Good),
            Enforcement::Absent => ("absent", Tone::Bad),
            Enforcement::Unknown => ("unknown", Tone::Bad),
        };
        let detail = component.detail.as_deref().unwrap_or(&component.source);
        let word = paint(&format!("{word:<8}"), tone, has_color);
        text.push_str(&format!("  {word} {name:<22} {}\n", ui::printable(detail)));
    }
    text
}
