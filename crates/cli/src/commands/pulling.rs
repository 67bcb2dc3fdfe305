//! `warrant pull` and `warrant undo`: bring a run's work home, and put it back.

use std::time::SystemTime;

use anyhow::{Context as _, bail};
use serde_json::{Value, json};
use warrant_protocol::event::ArtifactKind;
use warrant_workspace::{BranchWish, Changed, Gated, PullOptions, Pulled, Verdict, pull as bring};

use crate::args::{Pull, Undo};
use crate::commands::reading;
use crate::exit::Exit;
use crate::ui;
use warrant_govern::Desk;
use warrant_govern::keep::{gate, open_journal};

/// `warrant pull`.
pub(crate) fn pull(desk: &Desk, arguments: &Pull) -> anyhow::Result<Exit> {
    let run = desk.run_named(&arguments.run)?;
    let Some(digest) = reading::artifact(desk, &run, ArtifactKind::Diff)? else {
        ui::note(&format!("{run} changed nothing"));
        return Ok(Exit::Success);
    };
    let mut diff = reading::open_blob(desk, &digest)?;
    let repo = std::fs::canonicalize(&arguments.repo)
        .with_context(|| format!("no repository at {}", arguments.repo.display()))?;
    let scratch = reading::scratch(desk)?;
    let (journal, _) = open_journal(desk, &repo)?;
    let options = PullOptions {
        scratch: scratch.path(),
        run_id: run.as_str(),
        base_ref: &reading::base_ref(desk, &run)?,
        branch: if arguments.branch { BranchWish::Always } else { BranchWish::WhenNeeded },
        branch_prefix: "warrant/",
        at: SystemTime::now(),
        policy: &gate(desk),
        released: &[],
    };
    let pulled = bring(&repo, &mut diff, &journal, &options)?;
    if arguments.json {
        ui::json(&as_json(&pulled));
    } else {
        lines(&pulled).iter().for_each(|line| ui::note(line));
    }
    Ok(Exit::Success)
}

fn gated(pulled: &Pulled) -> &[Gated] {
    match pulled {
        Pulled::Empty { gated } | Pulled::Applied { gated, .. } | Pulled::Branch { gated, .. } => {
            gated
        }
    }
}

fn lines(pulled: &Pulled) -> Vec<String> {
    let mut lines = match pulled {
        Pulled::Empty { .. } => vec!["nothing to pull".to_owned()],
        Pulled::Applied { paths, .. } => {
            vec![format!("applied {} changed paths; put them back with: warrant undo", paths.len())]
        }
        Pulled::Branch { branch, why, merge, .. } => {
            vec![format!("put on branch {branch} ({why:?}); merging it: {merge:?}")]
        }
    };
    for gate in gated(pulled) {
        let word = match gate.verdict {
            Verdict::Flag => "look at it, it runs later",
            Verdict::Hold => "held back, it runs by itself later",
            Verdict::Refuse => "refused, it runs by itself later",
        };
        lines.push(format!("  {}: {word}", ui::printable(&gate.path.to_string())));
    }
    lines
}

fn as_json(pulled: &Pulled) -> Value {
    let held: Vec<Value> = gated(pulled)
        .iter()
        .map(|gate| json!({"path": gate.path.to_string(), "verdict": format!("{:?}", gate.verdict).to_lowercase()}))
        .collect();
    match pulled {
        Pulled::Empty { .. } => json!({"mode": "empty", "gated": held}),
        Pulled::Applied { paths, .. } => {
            let paths: Vec<String> = paths.iter().map(ToString::to_string).collect();
            json!({"mode": "applied", "paths": paths, "gated": held})
        }
        Pulled::Branch { branch, commit, .. } => {
            json!({"mode": "branch", "branch": branch, "commit": commit, "gated": held})
        }
    }
}

/// `warrant undo`.
pub(crate) fn undo(desk: &Desk, arguments: &Undo) -> anyhow::Result<Exit> {
    let workspace = std::fs::canonicalize(&arguments.workspace)
        .with_context(|| format!("no workspace at {}", arguments.workspace.display()))?;
    let (journal, _) = open_journal(desk, &workspace)?;
    let changed = if arguments.force { Changed::Overwrite } else { Changed::Refuse };
    let undone = match journal.undo(&workspace, changed) {
        Ok(undone) => undone,
        Err(warrant_workspace::UndoError::Changed { paths, .. }) => {
            let names: Vec<String> = paths.iter().map(ToString::to_string).collect();
            bail!(
                "these files changed since, and undo would lose that (--force does it): {}",
                names.join(", ")
            );
        }
        Err(other) => return Err(other.into()),
    };
    let paths: Vec<String> = undone.paths.iter().map(ToString::to_string).collect();
    if arguments.json {
        ui::json(&json!({"undone": undone.label, "paths": paths}));
    } else {
        ui::note(&format!("put back {} paths", paths.len()));
    }
    Ok(Exit::Success)
}
