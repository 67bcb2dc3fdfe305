//! What becomes of the run's writes: kept as a diff, brought into the workspace, or dropped.

use std::fs::File;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde_json::{Value, json};
use warrant_protocol::Digest;
use warrant_runner::run::Ended;
use warrant_workspace::{
    ExportOptions, GatePolicy, Journal, TreeLimits, Verdict, apply_export, plan_export,
};

use super::request::{Mode, Wish};
use crate::args::Exec;
use crate::local::Local;

/// What became of the run's writes.
pub(crate) struct Kept {
    /// For the person, line by line.
    pub(crate) notes: Vec<String>,
    /// For programs.
    pub(crate) details: Value,
}

/// Decides and does what the mode says.
pub(crate) fn after(
    local: &Local,
    wish: &Wish,
    ended: &Ended,
    arguments: &Exec,
) -> anyhow::Result<Kept> {
    let nothing = Kept { notes: Vec::new(), details: json!({"writes": "none"}) };
    let Some(upper) = &ended.upper else { return Ok(nothing) };
    let keeps = match wish.mode {
        Mode::Isolated => {
            let Some(diff) = ended.receipt.body().workspace_out.diff_hash else {
                return Ok(nothing);
            };
            let note = format!(
                "changed files are kept as a diff: warrant diff {0}, warrant pull {0}",
                ended.run
            );
            let details = json!({"writes": "diff", "diffHash": diff});
            return Ok(Kept {
                notes: if arguments.json { Vec::new() } else { vec![note] },
                details,
            });
        }
        Mode::Rollback { keeps_failure } => keeps_failure || ended.outcome.is_success(),
    };
    if !keeps {
        let note = "rolled back: the workspace is as it was".to_owned();
        return Ok(Kept { notes: vec![note], details: json!({"writes": "rolled-back"}) });
    }
    let workspace = File::open(&wish.workspace).context("the workspace cannot be opened")?;
    let options = ExportOptions {
        policy: &GatePolicy::advised(),
        released: &[],
        started_at: None,
        limits: TreeLimits::generous(),
    };
    let plan = plan_export(workspace.as_fd(), upper.as_fd(), &options)?;
    let gated = plan.gated.clone();
    let (journal, _) = open_journal(local, &wish.workspace)?;
    let exported = apply_export(plan, &wish.workspace, upper.as_fd(), &journal)?;
    let mut notes = vec![format!(
        "kept {} changed paths; put them back with: warrant undo",
        exported.paths.len()
    )];
    for gate in gated.iter().filter(|gate| gate.verdict != Verdict::Flag) {
        notes.push(format!("not kept, because it runs by itself later: {}", gate.path));
    }
    let paths: Vec<String> = exported.paths.iter().map(ToString::to_string).collect();
    let held: Vec<Value> = gated
        .iter()
        .map(|gate| json!({"path": gate.path.to_string(), "verdict": format!("{:?}", gate.verdict).to_lowercase()}))
        .collect();
    Ok(Kept { notes, details: json!({"writes": "kept", "paths": paths, "gated": held}) })
}

/// Opens the journal of a workspace, below the home and never inside the workspace.
pub(crate) fn open_journal(
    local: &Local,
    workspace: &Path,
) -> anyhow::Result<(Journal, warrant_workspace::Recovered)> {
    let name = Digest::of(workspace.as_os_str().as_encoded_bytes()).to_hex();
    let directory: PathBuf = local.plane.home().data().join("undo").join(name);
    Journal::open(&directory, workspace).context("the record for undo cannot be used")
}
