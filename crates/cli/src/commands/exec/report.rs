//! How an exec ends: the summary line on stderr, or one JSON object on stdout.

use anyhow::Context as _;
use serde_json::{Value, json};
use warrant_plane::Judgment;
use warrant_protocol::observation::{CaptureExtent, ExportVerdict};
use warrant_protocol::story::outcome_words;
use warrant_protocol::{Isolation, LimitKind, Outcome, RunId, Timestamp};
use warrant_runner::JudgedPath;
use warrant_runner::run::Ended;
use warrant_workspace::{TreePath, Verdict};

use crate::args::Exec;
use crate::exit::Exit;
use crate::ui;
use warrant_govern::Desk;
use warrant_govern::keep::Kept;

/// More blocked hosts than this are counted only.
const MOST_HOSTS: usize = 5;

/// How it ended, in a form that every end has.
pub(crate) struct Report {
    run: RunId,
    exit: Exit,
    /// A few words for the summary line.
    words: String,
    /// What the person reads below it, line by line.
    notes: Vec<String>,
    /// What `--json` says.
    details: Value,
}

/// Tells that an exec failed with `exit`, which is ours.
pub(crate) fn failed(error: &anyhow::Error, exit: Exit, as_json: bool) -> Exit {
    if as_json {
        ui::json(&json!({
            "status": "error",
            "message": format!("{error:#}"),
            "exitCode": exit.code(),
            "exitCodeIs": exit.owner(),
        }));
    } else {
        ui::note(&format!("warrant: failed · exit code {} is warrant's own", exit.code()));
    }
    exit
}

impl Report {
    /// Returns which run ended.
    pub(crate) const fn run(&self) -> &RunId {
        &self.run
    }

    /// Policy said no.
    pub(crate) fn denied(run: &RunId, judgment: &Judgment) -> Self {
        let summary = &judgment.summary;
        Self {
            run: run.clone(),
            exit: Exit::Denied,
            words: "denied by policy; nothing ran".to_owned(),
            notes: (summary.reasons.iter().map(|reason| format!("  - {}", ui::printable(reason))))
                .chain([
                    "  what is allowed: warrant policy show; other presets: warrant policy set dev"
                        .to_owned(),
                ])
                .collect(),
            details: json!({"status": "denied", "reasons": summary.reasons, "rules": summary.rules}),
        }
    }

    /// People are asked first.
    pub(crate) fn waiting(run: &RunId, judgment: &Judgment, deadline: Timestamp) -> Self {
        Self {
            run: run.clone(),
            exit: Exit::WaitingForApproval,
            words: format!("waiting for approval until {deadline}"),
            notes: vec![
                format!("  it needs: {}", super::super::approvals::names(judgment)),
                format!("  approve it with: warrant approve {run}"),
                "  then run the same command again, or wait for it with --wait".to_owned(),
            ],
            details: json!({
                "status": "awaiting-approval",
                "requirements": judgment.requirements,
                "deadline": deadline,
            }),
        }
    }

    /// People said no, or nothing in time.
    pub(crate) fn refused(run: &RunId, words: &str) -> Self {
        Self {
            run: run.clone(),
            exit: Exit::ApprovalRefused,
            words: words.to_owned(),
            notes: Vec::new(),
            details: json!({"status": "approval-refused"}),
        }
    }

    /// It came to an end with a receipt.
    pub(crate) fn ended(
        ended: &Ended,
        isolation: Isolation,
        (kept, arguments): (&Kept, &Exec),
    ) -> Self {
        let wall = ended.usage.wall_us.map(|us| format!(" · {} ms", us.div_ceil(1000)));
        let words =
            format!("{isolation} · {}{}", outcome_words(&ended.outcome), wall.unwrap_or_default());
        let is_ours = !matches!(ended.outcome, Outcome::Exited { .. } | Outcome::Signaled { .. });
        let is_silent = ended.usage.stdout_bytes == Some(0) && ended.usage.stderr_bytes == Some(0);
        let may_be_missing =
            is_silent && matches!(ended.outcome, Outcome::Exited { code: 126 | 127 });
        let mut notes = Vec::new();
        if (is_ours || may_be_missing) && !ended.message.is_empty() {
            notes.push(format!("  {}", ui::printable(&ended.message)));
        }
        if ended.outcome == Outcome::PostureRefused && !isolation.is_remote() {
            notes.push("  what is missing here, and the remedy: warrant doctor".to_owned());
        }
        notes.extend(blocked(ended));
        if let (Some(why), Kept::Nothing) = (&ended.unpacked, kept) {
            let why = ui::printable(why);
            notes.push(format!("  its changes are kept nowhere: {why}"));
        }
        notes.extend(ended.left_behind.iter().map(|left| format!("  {}", ui::printable(left))));
        if !arguments.json {
            notes.extend(kept_notes(kept, ended).iter().map(|note| format!("  {note}")));
        }
        Self {
            run: ended.run.clone(),
            exit: exit_of(&ended.outcome),
            words,
            notes,
            details: match arguments.json {
                true => details_of(ended, isolation, kept),
                false => Value::Null,
            },
        }
    }

    /// Prints it, writes the bundle where asked, and returns the exit code.
    pub(crate) fn print(self, desk: &Desk, arguments: &Exec) -> anyhow::Result<Exit> {
        // What waits has no bundle before it ends.
        if let Some(out) = arguments.out.as_ref().filter(|_| self.exit != Exit::WaitingForApproval)
        {
            let written =
                super::super::reading::write_bundle(desk.plane().records(), &self.run, out);
            written.with_context(|| {
                let (run, words) = (&self.run, &self.words);
                let (code, owner) = (self.exit.code(), self.exit.owner());
                format!("{run} ended ({words}; code {code} of {owner}), but its bundle is not kept")
            })?;
        }
        if arguments.json {
            let mut object = self.details;
            if let Value::Object(members) = &mut object {
                members.insert("runId".to_owned(), json!(self.run));
                members.insert("exitCode".to_owned(), json!(self.exit.code()));
                members.insert("exitCodeIs".to_owned(), json!(self.exit.owner()));
            }
            let output = super::super::reading::log_bytes(desk.plane().records(), &self.run)?;
            let names = ("output", "outputBase64");
            super::super::reading::insert_bytes(&mut object, names, output);
            ui::json(&object);
        } else {
            ui::note(&format!("warrant: {} · {}", self.words, self.run));
            self.notes.iter().for_each(|note| ui::note(note));
        }
        Ok(self.exit)
    }
}

fn details_of(ended: &Ended, isolation: Isolation, kept: &Kept) -> Value {
    let body = ended.receipt.body();
    json!({
        "status": body.status.as_str(),
        "isolation": isolation,
        "outcome": ended.outcome,
        "message": ended.message,
        "usage": ended.usage,
        "stdout": body.stdout,
        "stderr": body.stderr,
        "network": body.network_accessed,
        "diffHash": body.workspace_out.diff_hash,
        "receiptHash": ended.receipt.hash(),
        "workspace": kept_details(kept, ended),
        "leftBehind": ended.left_behind,
    })
}

/// Returns a line about the hosts it was kept from.
fn blocked(ended: &Ended) -> Option<String> {
    let hosts: Vec<String> = ended.blocked_hosts().into_iter().map(ui::printable).collect();
    let told = hosts.get(..MOST_HOSTS).unwrap_or(&hosts);
    told.first()?;
    // Those that are only counted together have no name to ask for.
    let named = told.iter().find(|host| !host.starts_with(['[', '*']));
    let hint = named.map(|host| format!("; to ask for one: --allow-host {host}"));
    let more = match hosts.len() - told.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    Some(format!("  blocked: {}{more}{}", told.join(", "), hint.unwrap_or_default()))
}

fn kept_notes(kept: &Kept, ended: &Ended) -> Vec<String> {
    let notes = notes_of_writes(kept, ended);
    let capture = captured_note(ended);
    match kept {
        // What was exported has been named with what became of it.
        Kept::Exported { .. } => notes.into_iter().chain(capture).collect(),
        Kept::Nothing | Kept::AsDiff(_) | Kept::RolledBack => {
            notes.into_iter().chain(judged_notes(ended)).chain(capture).collect()
        }
    }
}

/// Names what the export gate decided, where nothing is exported.
fn judged_notes(ended: &Ended) -> Vec<String> {
    const MOST_NAMED: usize = 10;
    let kept_out = |judged: &&JudgedPath| judged.verdict != ExportVerdict::Flagged;
    let all = ended.judged.iter().filter(kept_out);
    let mut notes: Vec<String> = all
        .clone()
        .take(MOST_NAMED)
        .map(|judged| {
            let JudgedPath { path, verdict, class, count } = judged;
            let path = ui::printable(path);
            let paths = count.map(|count| format!(", {count} paths")).unwrap_or_default();
            let next = match verdict {
                ExportVerdict::Refused => "never written back".to_owned(),
                ExportVerdict::Held | ExportVerdict::Flagged => {
                    format!("written back only with: warrant pull {} --release {path}", ended.run)
                }
            };
            format!("{}: {path} ({class}{paths}); {next}", verdict.as_str())
        })
        .collect();
    let more = all.count().saturating_sub(MOST_NAMED);
    if more > 0 {
        notes.push(format!("and {more} more paths; see warrant receipt {}", ended.run));
    }
    notes
}

/// Says where not everything that changed was seen.
fn captured_note(ended: &Ended) -> Option<String> {
    let capture = ended.receipt.body().capture.as_ref()?;
    // Where nothing was captured, the message of the run or its mode says why.
    if capture.extent != CaptureExtent::Partial {
        return None;
    }
    let reason = capture.reason.as_deref().unwrap_or("no reason given");
    Some(format!("only a part of the changes was captured: {}", ui::printable(reason)))
}

fn notes_of_writes(kept: &Kept, ended: &Ended) -> Vec<String> {
    let run = &ended.run;
    let name = |path: &TreePath| ui::printable(&ended.name_of(path));
    match kept {
        Kept::Nothing => Vec::new(),
        Kept::AsDiff(_) => vec![format!(
            "changed files are kept as a diff: warrant diff {run}, warrant pull {run}"
        )],
        Kept::RolledBack => vec!["rolled back: the workspace is as it was".to_owned()],
        Kept::Exported { paths, gated, conflicts, left_out, git, .. } => {
            let first =
                format!("kept {} changed paths; put them back with: warrant undo", paths.len());
            let held = gated.iter().filter(|gate| gate.verdict != Verdict::Flag).map(|gate| {
                let (path, why) = (name(&gate.path), gate.class.reason());
                // A diff has nothing of git's own directory.
                let next = match gate.path.git_part() {
                    Some(_) => "make that change yourself if you want it".to_owned(),
                    None => format!("see warrant diff {run}"),
                };
                format!("not written back: {path} (it {why}); {next}")
            });
            let changed = conflicts.iter().map(|path| {
                let path = name(path);
                format!("not kept, because it was changed here meanwhile: {path}; see warrant diff {run}")
            });
            let left_out = left_out.iter().map(|left| {
                let (path, why) = left.told();
                format!("not kept, because it is {why}: {}", name(path))
            });
            let first = (!paths.is_empty()).then_some(first);
            let git = git.lines().into_iter().map(|line| ui::printable(&line));
            first.into_iter().chain(git).chain(held).chain(changed).chain(left_out).collect()
        }
    }
}

fn kept_details(kept: &Kept, ended: &Ended) -> Value {
    let judged = || -> Vec<Value> {
        let one = |judged: &JudgedPath| {
            let JudgedPath { path, verdict, class, count } = judged;
            json!({"path": path, "verdict": verdict, "class": class, "count": count})
        };
        ended.judged.iter().map(one).collect()
    };
    match kept {
        Kept::Nothing => json!({"writes": "none", "gated": judged()}),
        Kept::AsDiff(diff) => json!({"writes": "diff", "diffHash": diff, "gated": judged()}),
        Kept::RolledBack => json!({"writes": "rolled-back", "gated": judged()}),
        Kept::Exported { paths, gated, conflicts, left_out, git, .. } => {
            let names = |paths: &[TreePath]| -> Vec<String> {
                paths.iter().map(|path| ended.name_of(path)).collect()
            };
            let gated: Vec<Value> = gated
                .iter()
                .map(|gate| {
                    let verdict = format!("{:?}", gate.verdict).to_lowercase();
                    let class = gate.class.as_str();
                    json!({"path": ended.name_of(&gate.path), "verdict": verdict, "class": class})
                })
                .collect();
            let left_out: Vec<Value> = left_out
                .iter()
                .map(|left| {
                    let (path, why) = left.told();
                    json!({"path": ended.name_of(path), "why": why})
                })
                .collect();
            json!({
                "writes": "kept", "paths": names(paths), "gated": gated,
                "conflicts": names(conflicts), "leftOut": left_out, "git": git.facts(),
            })
        }
    }
}

/// Returns what a command ends with whose run ended so.
pub(crate) const fn exit_of(outcome: &Outcome) -> Exit {
    match outcome {
        Outcome::Exited { code } => Exit::Program(*code),
        Outcome::Performed { succeeded: true } => Exit::Program(0),
        Outcome::Performed { succeeded: false } => Exit::Failure,
        Outcome::Signaled { signal } => Exit::Signal(*signal),
        Outcome::Limited { limit: LimitKind::Wall } => Exit::TimedOut,
        Outcome::Limited { .. } => Exit::LimitStruck,
        Outcome::Cancelled => Exit::Cancelled,
        Outcome::Denied => Exit::Denied,
        Outcome::ApprovalExpired => Exit::ApprovalRefused,
        Outcome::PostureRefused => Exit::PostureTooWeak,
        Outcome::GapDenied => Exit::GapDenied,
        Outcome::Unobserved | Outcome::Lost | Outcome::Failed => Exit::Failure,
    }
}
