//! `--dry-run`: what would move, what policy says and why, and the lowered plan. Nothing runs and
//! nothing is stored.

use anyhow::Context as _;
use serde_json::{Value, json};
use warrant_protocol::Decision;
use warrant_runner::preview::{Terms, preview};
use warrant_sandbox::Backend;

use super::request::Wish;
use crate::exit::Exit;
use crate::ui;
use warrant_govern::{Ask, Desk};

/// Prints the plan; the exit code is the one the decision, or a gap, would give.
pub(crate) fn print(
    desk: &Desk,
    wish: &Wish,
    backend: &dyn Backend,
    as_json: bool,
) -> anyhow::Result<Exit> {
    let judgment = desk.judge(&wish.ask)?;
    let Ask { request, workspace, .. } = &wish.ask;
    let summary = &judgment.summary;
    let terms = Terms { limits: judgment.limits.as_ref(), masks: &judgment.masks };
    let home = desk.plane().home().root();
    let preview = preview(request, terms, (workspace, home), backend);
    let is_refused = preview.get("refused").is_some();
    let object = json!({
        "dryRun": true,
        "isolation": backend.isolation(),
        "decision": summary,
        "requirements": judgment.requirements,
        "posture": {"required": judgment.required_posture},
        "workspace": {"root": workspace, "baseRef": request.workspace.base_ref},
        "secrets": judgment.secrets,
        "network": request.network,
        "plan": preview,
    });
    if as_json {
        ui::json(&object);
    } else {
        ui::data(&text(&object)?);
    }
    Ok(match summary.decision {
        Decision::Allow if is_refused => Exit::GapDenied,
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
