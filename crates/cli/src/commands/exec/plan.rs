//! `--dry-run`: what would move, what policy says and why, and the lowered plan. Nothing runs and
//! nothing is stored.

use anyhow::Context as _;
use serde_json::{Value, json};
use warrant_plane::judge::judge;
use warrant_plane::random;
use warrant_protocol::Decision;
use warrant_runner::preview::preview;
use warrant_sandbox::Backend;

use super::request::Wish;
use crate::exit::Exit;
use crate::local::Local;
use crate::ui;

/// Prints the plan; the exit code is the one the decision would give.
pub(crate) fn print(
    local: &Local,
    wish: &Wish,
    backend: &dyn Backend,
    as_json: bool,
) -> anyhow::Result<Exit> {
    let around = wish.around(random::now()?.unix_ms());
    let judgment = judge(local.policy.as_ref(), &wish.request, around);
    let summary = &judgment.summary;
    let preview = preview(&wish.request, &judgment.limits, &wish.workspace, backend);
    let object = json!({
        "dryRun": true,
        "isolation": backend.isolation(),
        "decision": summary,
        "requirements": judgment.requirements,
        "posture": {"required": judgment.required_posture},
        "workspace": {"root": wish.workspace, "baseRef": wish.request.workspace.base_ref},
        "secrets": judgment.secrets,
        "network": wish.request.network,
        "plan": preview,
    });
    if as_json {
        ui::json(&object);
    } else {
        ui::data(&text(&object)?);
    }
    Ok(match summary.decision {
        Decision::Allow => Exit::Success,
        Decision::Ask => Exit::WaitingForApproval,
        Decision::Deny => Exit::Denied,
    })
}

fn text(object: &Value) -> anyhow::Result<String> {
    let mut text = String::from("dry run: nothing runs, nothing is stored\n");
    text.push_str(&serde_json::to_string_pretty(object).context("the plan has no text")?);
    text.push('\n');
    Ok(text)
}
