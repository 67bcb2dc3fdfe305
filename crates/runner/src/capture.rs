//! Records what a program changed: what the export gate decided, the changed files, and how much
//! of it all was seen. Nothing is exported here.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::BorrowedFd;

use warrant_protocol::observation::{CaptureExtent, ExportVerdict};
use warrant_protocol::{Digest, Event};
use warrant_workspace::{
    Change, ChangeKind, Collected, ExportOptions, GateClass, GatePolicy, Gated, RefUpdate,
    RefValue, TreeLimits, TreePath, Unread, Verdict, WhyUnread, classify, is_git_name, plan_export,
};

use crate::halt::Halt;
use crate::journal::Journal;
use crate::redact::Redactor;

/// This many unread paths are named in the reason.
const MOST_NAMED: usize = 3;

/// What the export gate decided about a path, without any secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JudgedPath {
    /// Which path; for the state of a repository its git directory.
    pub path: String,
    /// What was decided.
    pub verdict: ExportVerdict,
    /// Why it was looked at.
    pub class: &'static str,
    /// How many paths, when there are several.
    pub count: Option<u64>,
}

/// What the export gate decided about everything that changed.
pub(crate) struct GateReport {
    gated: Vec<Gated>,
    /// References of git that changed.
    refs: Vec<RefUpdate>,
    /// Why the gate could not look.
    failure: Option<String>,
    /// What of a repository nobody looked at.
    repositories: Repositories,
}

/// Whether the gate looks into git directories.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Repositories {
    Judged,
    NotRead,
}

impl GateReport {
    /// Has the gate decide about what an overlay changes.
    pub(crate) fn of_overlay(
        policy: &GatePolicy,
        lower: BorrowedFd<'_>,
        upper: BorrowedFd<'_>,
    ) -> Self {
        let limits = TreeLimits::generous();
        let branch = "warrant/run";
        let options = ExportOptions { policy, released: &[], started_at: None, limits, branch };
        let repositories = Repositories::Judged;
        match plan_export(lower, upper, &options) {
            Ok(plan) => {
                let failure = plan.git.refusal.as_ref().map(|why| format!("git: {why}"));
                Self { gated: plan.gated, refs: plan.git.refs, failure, repositories }
            }
            Err(error) => {
                let failure = Some(format!("the export gate could not look: {error}"));
                Self { gated: Vec::new(), refs: Vec::new(), failure, repositories }
            }
        }
    }

    /// Adds references of git that changed.
    pub(crate) fn add_refs(&mut self, refs: Vec<RefUpdate>) {
        self.refs.extend(refs);
    }

    /// Returns whether the program changed any reference of git.
    pub(crate) const fn has_commits(&self) -> bool {
        !self.refs.is_empty()
    }

    /// Has the gate decide about collected changes alone.
    pub(crate) fn of_changes(policy: &GatePolicy, changes: &[Change]) -> Self {
        let judge = |change: &Change| {
            let class = classify(&change.path);
            let (class, verdict) = policy.judge(&change.path, class)?;
            Some(Gated { path: change.path.clone(), class, verdict })
        };
        let is_there = |change: &&Change| change.kind != ChangeKind::Deleted;
        let gated = changes.iter().filter(is_there).filter_map(judge).collect();
        Self { gated, refs: Vec::new(), failure: None, repositories: Repositories::NotRead }
    }
}

/// Records verdicts, changed files and how much was seen; returns the verdicts for people.
pub(crate) fn record_capture(
    journal: &mut Journal<'_>,
    redactor: &Redactor,
    (gate, collected): (&GateReport, &Collected),
) -> Result<Vec<JudgedPath>, Halt> {
    let text = |path: &TreePath| redactor.redact_text(&String::from_utf8_lossy(path.as_bytes()));
    let kept_out: HashMap<&TreePath, &Gated> = gate
        .gated
        .iter()
        .filter(|gated| gated.verdict != Verdict::Flag)
        .map(|gated| (&gated.path, gated))
        .collect();
    let mut judged = Vec::new();
    let mut files = 0;
    for change in &collected.changes {
        let (path, content_hash) = (text(&change.path), change.digest);
        match kept_out_by(&kept_out, &change.path) {
            None => {
                files += 1;
                journal.record(&Event::FileChanged { path, content_hash })?;
            }
            // Recorded with the other verdicts.
            Some(gated) if gated.path == change.path => {}
            Some(gated) => {
                let verdict = JudgedPath { path, count: None, ..judged_path(gated) };
                record_verdict(journal, &verdict, Some(content_hash))?;
                judged.push(verdict);
            }
        }
    }
    for update in &gate.refs {
        let value = |value: &Option<RefValue>| {
            value.as_ref().map(|value| redactor.redact_text(&value.to_string()))
        };
        let reference = redactor.redact_text(&update.name);
        let (old, new) = (value(&update.old), value(&update.new));
        let repository = update.repository.as_deref().map(|text| redactor.redact_text(text));
        journal.record(&Event::GitRefUpdated { reference, repository, old, new })?;
    }
    let digests: HashMap<&TreePath, Digest> =
        collected.changes.iter().map(|change| (&change.path, change.digest)).collect();
    for verdict in verdicts(&gate.gated) {
        let digest = verdict.1.and_then(|path| digests.get(path).copied());
        let path = redactor.redact_text(&verdict.0.path);
        let verdict = JudgedPath { path, ..verdict.0 };
        record_verdict(journal, &verdict, digest)?;
        judged.push(verdict);
    }
    let (extent, reason) = extent_of(gate, &collected.unread, text);
    journal.record(&Event::CaptureRecorded { extent, files, reason })?;
    Ok(judged)
}

/// Records that nothing was seen, and why.
pub(crate) fn record_no_capture(journal: &mut Journal<'_>, reason: &str) -> Result<(), Halt> {
    let reason = Some(reason.to_owned());
    let event = Event::CaptureRecorded { extent: CaptureExtent::None, files: 0, reason };
    Ok(journal.record(&event)?)
}

/// Records that everything was looked at and nothing had changed.
pub(crate) fn record_nothing_changed(journal: &mut Journal<'_>) -> Result<(), Halt> {
    let extent = CaptureExtent::Complete;
    Ok(journal.record(&Event::CaptureRecorded { extent, files: 0, reason: None })?)
}

/// Returns the verdict that keeps a path out: its own, or that of a directory above it.
fn kept_out_by<'a>(kept_out: &HashMap<&TreePath, &'a Gated>, path: &TreePath) -> Option<&'a Gated> {
    let above = std::iter::successors(Some(path.clone()), TreePath::parent);
    above.into_iter().find_map(|path| kept_out.get(&path).copied())
}

fn judged_path(gated: &Gated) -> JudgedPath {
    JudgedPath {
        path: String::from_utf8_lossy(gated.path.as_bytes()).into_owned(),
        verdict: match gated.verdict {
            Verdict::Flag => ExportVerdict::Flagged,
            Verdict::Hold => ExportVerdict::Held,
            Verdict::Refuse => ExportVerdict::Refused,
        },
        class: gated.class.as_str(),
        count: None,
    }
}

/// Returns every verdict; those about the state of one repository (index, objects, logs) are one
/// with a count, because a single commit has hundreds.
fn verdicts(gated: &[Gated]) -> Vec<(JudgedPath, Option<&TreePath>)> {
    let mut states: BTreeMap<(String, ExportVerdict), u64> = BTreeMap::new();
    let mut verdicts = Vec::new();
    for one in gated {
        let judged = judged_path(one);
        if one.class == GateClass::GitState {
            let key = (git_directory(&one.path), judged.verdict);
            *states.entry(key).or_default() += 1;
        } else {
            verdicts.push((judged, Some(&one.path)));
        }
    }
    let states = states.into_iter().map(|((path, verdict), count)| {
        let (class, count) = (GateClass::GitState.as_str(), Some(count));
        (JudgedPath { path, verdict, class, count }, None)
    });
    verdicts.extend(states);
    verdicts
}

/// Returns the path up to its git directory.
fn git_directory(path: &TreePath) -> String {
    let segments: Vec<&[u8]> = path.as_bytes().split(|byte| *byte == b'/').collect();
    let top = segments.iter().position(|segment| is_git_name(segment));
    let kept = segments.get(..=top.unwrap_or(0)).unwrap_or_default();
    String::from_utf8_lossy(&kept.join(&b'/')).into_owned()
}

fn record_verdict(
    journal: &mut Journal<'_>,
    judged: &JudgedPath,
    content_hash: Option<Digest>,
) -> Result<(), Halt> {
    let JudgedPath { path, verdict, class, count } = judged.clone();
    let class = class.to_owned();
    Ok(journal.record(&Event::ExportJudged { path, verdict, class, content_hash, count })?)
}

fn extent_of(
    gate: &GateReport,
    unread: &[Unread],
    text: impl Fn(&TreePath) -> String,
) -> (CaptureExtent, Option<String>) {
    // What lies in git directories is not in the diff, but where the gate looked, it was seen.
    let is_missing = |unread: &&Unread| {
        unread.why != WhyUnread::GitName || gate.repositories == Repositories::NotRead
    };
    let missing: Vec<&Unread> = unread.iter().filter(is_missing).collect();
    let mut reasons: Vec<String> = gate.failure.clone().into_iter().collect();
    if !missing.is_empty() {
        let named = missing.iter().take(MOST_NAMED);
        let named: Vec<String> = named
            .map(|unread| format!("{} ({})", text(&unread.path), why_unread(unread.why)))
            .collect();
        let more = match missing.len() - named.len() {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        reasons.push(format!("not read: {}{more}", named.join(", ")));
    }
    match reasons.is_empty() {
        true => (CaptureExtent::Complete, None),
        false => (CaptureExtent::Partial, Some(reasons.join("; "))),
    }
}

fn why_unread(why: WhyUnread) -> String {
    match why {
        WhyUnread::Special(_) => "no file".to_owned(),
        WhyUnread::TooLarge { bytes } => format!("{bytes} bytes, too large"),
        WhyUnread::Forbidden => "closed to everyone".to_owned(),
        WhyUnread::GitName => "a repository inside the workspace".to_owned(),
        WhyUnread::TooDeep => "nested too deep".to_owned(),
        WhyUnread::Sparse { bytes } => format!("{bytes} bytes, nearly all holes"),
        WhyUnread::OutOfTime { left } => format!("out of time, with {left} more paths"),
    }
}
