//! `warrant pull` and `warrant undo`: bring a run's work home, and put it back.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context as _, bail};
use serde_json::{Value, json};
use warrant_protocol::event::ArtifactKind;
use warrant_protocol::{Digest, Event};
use warrant_workspace::{
    BranchWish, Changed, Conflict, Gated, MergePreview, PullCommits, PullOptions, PullWork, Pulled,
    RefUpdate, TreePath, UndoError, Undone, Verdict, WhyBranch, pull_with_commits, workspace_top,
};

use crate::args::{Pull, Undo};
use crate::commands::reading;
use crate::exit::{Exit, Misuse};
use crate::progress::Meter;
use crate::ui;
use warrant_govern::Desk;
use warrant_govern::keep::{KEPT_CHANGES, gate, open_journal};

/// `warrant pull`.
pub(crate) fn pull(desk: &Desk, arguments: &Pull) -> anyhow::Result<Exit> {
    let run = desk.run_named(&arguments.run)?;
    let records = desk.plane().records();
    let digest = reading::artifact(records, &run, ArtifactKind::Diff)?;
    let bundle = reading::artifact(records, &run, ArtifactKind::Bundle)?;
    if digest.is_none() && bundle.is_none() {
        reading::check_unchanged(desk.plane().records(), &run)?;
        if !desk.plane().store().run(&run)?.state.is_terminal() {
            bail!("{run} has not ended yet");
        }
        ui::note(&format!("{run} changed nothing"));
        return Ok(Exit::Success);
    }
    let mut diff: Box<dyn std::io::Read> = match &digest {
        Some(digest) => reading::open_blob(records, digest)?,
        None => Box::new(std::io::empty()),
    };
    let base_ref = reading::base_ref(desk, &run)?;
    let repo = workspace_of(&arguments.repo, &base_ref)?;
    let scratch = reading::scratch(desk)?;
    let (journal, _) = open_journal(desk, &repo)?;
    let options = PullOptions {
        scratch: scratch.path(),
        run_id: run.as_str(),
        base_ref: &base_ref,
        branch: if arguments.branch { BranchWish::Always } else { BranchWish::WhenNeeded },
        branch_prefix: "warrant/",
        at: SystemTime::now(),
        policy: &gate(desk),
        released: &released(&arguments.released)?,
    };
    let meter = Meter::on_terminal();
    meter.doing("applying the changes");
    let updates = reading::ref_updates(records, &run)?;
    let bundle = match &bundle {
        Some(digest) => Some(copied(&mut reading::open_blob(records, digest)?, scratch.path())?),
        None => None,
    };
    let commits = bundle.as_ref().map(|bundle| PullCommits { bundle, updates: &updates });
    let pulled = pull_with_commits(&repo, &mut diff, &journal, &PullWork { options, commits })?;
    drop(meter);
    tell(&pulled, arguments.json);
    if commits.is_some() && matches!(pulled, Pulled::Applied { .. }) && !arguments.json {
        for update in &updates {
            ui::note(&format!("  git: {}", ui::printable(&update.to_string())));
        }
    }
    Ok(Exit::Success)
}

/// Returns the bundle of commits that a run of a plane kept, with the references it changed.
pub(crate) fn commits_of(evidence: &Value) -> anyhow::Result<Option<(Digest, Vec<RefUpdate>)>> {
    let events = evidence.get("events").and_then(Value::as_array).cloned().unwrap_or_default();
    let (mut digest, mut updates) = (None, Vec::new());
    for row in events {
        let body = row.get("event").cloned().unwrap_or_default();
        match serde_json::from_value(body) {
            Ok(Event::ArtifactCreated { kind: ArtifactKind::Bundle, hash }) => digest = Some(hash),
            Ok(Event::GitRefUpdated { reference, repository: None, old, new }) => {
                let update = RefUpdate::parse(&reference, old.as_deref(), new.as_deref());
                updates.push(update.with_context(|| format!("{reference} is not a reference"))?);
            }
            _ => {}
        }
    }
    Ok(digest.map(|digest| (digest, updates)))
}

/// Copies a blob to a file without a name, because it is read more than once.
pub(crate) fn copied(
    blob: &mut dyn std::io::Read,
    scratch: &Path,
) -> anyhow::Result<std::fs::File> {
    let mut file = tempfile::tempfile_in(scratch).context("the scratch directory failed")?;
    std::io::copy(blob, &mut file).context("a blob does not read back")?;
    Ok(file)
}

/// Returns where a run's changes belong: the top of the repository if it started from a commit,
/// the named folder otherwise.
fn workspace_of(given: &Path, base_ref: &str) -> anyhow::Result<PathBuf> {
    let is_commit = base_ref.len() == 40 && base_ref.bytes().all(|byte| byte.is_ascii_hexdigit());
    let found = if is_commit { workspace_top(given) } else { std::fs::canonicalize(given) };
    found.with_context(|| format!("no repository or folder at {}", given.display()))
}

/// Reads the paths that a person looked at.
pub(crate) fn released(paths: &[String]) -> anyhow::Result<Vec<TreePath>> {
    let path = |text: &String| {
        let path = TreePath::new(text.as_bytes()).with_context(|| format!("--release {text}"));
        path.map_err(Misuse::of)
    };
    paths.iter().map(path).collect()
}

/// Says what became of a pull.
pub(crate) fn tell(pulled: &Pulled, as_json_object: bool) {
    if as_json_object {
        ui::json(&as_json(pulled));
    } else {
        lines(pulled).iter().for_each(|line| ui::note(line));
    }
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
        Pulled::Branch { branch, why, merge, .. } => branch_lines(branch, why, merge),
    };
    for gate in gated(pulled) {
        let path = ui::printable(&gate.path.to_string());
        lines.push(match gate.verdict {
            Verdict::Flag => format!("  {path}: look at it, it runs later"),
            Verdict::Hold => {
                format!("  {path}: held back, it runs by itself later (--release {path} takes it)")
            }
            Verdict::Refuse => format!("  {path}: refused, it runs by itself later"),
        });
    }
    lines
}

fn branch_lines(branch: &str, why: &WhyBranch, merge: &MergePreview) -> Vec<String> {
    let why = match why {
        WhyBranch::Wished => "as you wished".to_owned(),
        WhyBranch::Diverged => "the repository is at another commit by now".to_owned(),
        WhyBranch::Uncommitted => "the repository has uncommitted changes".to_owned(),
        WhyBranch::InTheWay(path) => {
            format!("{} is in the way", ui::printable(&path.to_string()))
        }
    };
    let mut lines =
        vec![format!("your files are untouched; the change is on branch {branch}: {why}")];
    match merge {
        MergePreview::FastForward => {
            lines.push(format!("  git merge {branch} would just follow it"))
        }
        MergePreview::Clean => lines.push(format!("  git merge {branch} would be clean")),
        MergePreview::Conflicts(conflicts) => {
            lines.push(format!("  git merge {branch} would conflict in:"));
            for conflict in conflicts {
                lines.push(format!("    {}", ui::printable(&conflict.path.to_string())));
                let text = String::from_utf8_lossy(&conflict.text);
                lines.extend(
                    conflict_part(&text).map(|line| format!("      {}", ui::printable(line))),
                );
            }
        }
    }
    lines
}

/// Returns the lines between conflict markers, as many as fit a screen.
fn conflict_part(text: &str) -> impl Iterator<Item = &str> {
    const MAX_LINES: usize = 40;
    let mut is_inside = false;
    let inside = text.lines().filter(move |line| {
        let begins = line.starts_with("<<<<<<< ");
        let ends = line.starts_with(">>>>>>> ");
        let is_shown = is_inside || begins;
        is_inside = (is_inside || begins) && !ends;
        is_shown
    });
    inside.take(MAX_LINES)
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
        Pulled::Branch { branch, commit, why, merge, .. } => {
            let (why, path) = match why {
                WhyBranch::Wished => ("wished", None),
                WhyBranch::Diverged => ("diverged", None),
                WhyBranch::Uncommitted => ("uncommitted", None),
                WhyBranch::InTheWay(path) => ("in-the-way", Some(path.to_string())),
            };
            let (merge, conflicts) = match merge {
                MergePreview::FastForward => ("fast-forward", Vec::new()),
                MergePreview::Clean => ("clean", Vec::new()),
                MergePreview::Conflicts(conflicts) => {
                    ("conflicts", conflicts.iter().map(conflict_json).collect())
                }
            };
            json!({"mode": "branch", "branch": branch, "commit": commit, "why": why,
                   "inTheWay": path, "merge": merge, "conflicts": conflicts, "gated": held})
        }
    }
}

fn conflict_json(conflict: &Conflict) -> Value {
    let text = String::from_utf8_lossy(&conflict.text);
    json!({"path": conflict.path.to_string(), "text": text})
}

/// `warrant undo`.
pub(crate) fn undo(desk: &Desk, arguments: &Undo) -> anyhow::Result<Exit> {
    let here = std::fs::canonicalize(&arguments.workspace)
        .with_context(|| format!("--workspace: nothing at {}", arguments.workspace.display()))
        .map_err(Misuse::of)?;
    let changed = if arguments.force { Changed::Overwrite } else { Changed::Refuse };
    let mut undone = put_back(desk, &here, changed);
    // What was pulled below a repository belongs to its top.
    let top = workspace_top(&here).context("the workspace cannot be read")?;
    if matches!(undone, Err(UndoError::Nothing)) && top != here {
        undone = put_back(desk, &top, changed);
    }
    let undone = match undone {
        Ok(undone) => undone,
        Err(UndoError::Changed { paths, .. }) => {
            let names: Vec<String> = paths.iter().map(ToString::to_string).collect();
            bail!(
                "these files changed since, and undo would lose that (--force does it): {}",
                names.join(", ")
            );
        }
        Err(other) => return Err(other.into()),
    };
    Ok(tell_undone(&undone, arguments.json))
}

/// Says what was put back.
pub(crate) fn tell_undone(undone: &Undone, as_json_object: bool) -> Exit {
    let paths: Vec<String> = undone.paths.iter().map(ToString::to_string).collect();
    if as_json_object {
        ui::json(&json!({"undone": undone.label, "paths": paths}));
    } else {
        ui::note(&format!("put back {} paths", paths.len()));
    }
    Exit::Success
}

fn put_back(desk: &Desk, workspace: &Path, changed: Changed) -> Result<Undone, UndoError> {
    let (journal, _) = open_journal(desk, workspace)?;
    let undone = journal.undo(workspace, changed)?;
    // It is undone, whether or not its record gets smaller.
    let _ = journal.tidy(KEPT_CHANGES);
    Ok(undone)
}
