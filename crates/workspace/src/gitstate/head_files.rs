//! HEAD, what git is in the middle of, and the logs of references.

use std::collections::BTreeMap;

use super::names::RefValue;
use super::object_links::ExpectedKind;
use super::parts::StateGroup;
use super::plan::{GitRefusal, Planner};
use super::reflog::{self, new_lines, parse_line};
use super::view::SmallFile;
use super::{GitContent, RefUpdate, state};
use crate::object::Oid;
use crate::root::Node;
use crate::{GateClass, TreePath};

const MOST_HEAD_BYTES: u64 = 4096;

/// HEAD as it is on the host and as the run left it.
pub(super) struct HeadPair {
    before: Option<RefValue>,
    after: Option<RefValue>,
}

impl HeadPair {
    pub(super) const fn new(before: Option<RefValue>, after: Option<RefValue>) -> Self {
        Self { before, after }
    }

    pub(super) fn is_changed(&self) -> bool {
        self.before != self.after
    }

    pub(super) const fn before(&self) -> Option<&RefValue> {
        self.before.as_ref()
    }

    pub(super) const fn after(&self) -> Option<&RefValue> {
        self.after.as_ref()
    }

    pub(super) fn before_branch(&self) -> Option<&str> {
        branch_of(self.before.as_ref())
    }

    pub(super) fn after_branch(&self) -> Option<&str> {
        branch_of(self.after.as_ref())
    }

    /// Returns the branches that HEAD was and is at.
    pub(super) fn branches(&self) -> Vec<&str> {
        self.before_branch().into_iter().chain(self.after_branch()).collect()
    }

    pub(super) fn update(&self, repository: Option<String>) -> Option<RefUpdate> {
        let (old, new) = (self.before.clone(), self.after.clone());
        let name = "HEAD".to_owned();
        self.is_changed().then_some(RefUpdate { repository, name, old, new })
    }
}

fn branch_of(value: Option<&RefValue>) -> Option<&str> {
    match value {
        Some(RefValue::Symbolic(name)) => Some(name.as_str()),
        Some(RefValue::Object(_)) | None => None,
    }
}

impl Planner<'_> {
    /// Reads HEAD; whatever is no branch and no commit is refused with everything else.
    pub(super) fn head(&self) -> Result<HeadPair, GitRefusal> {
        let path = self.layout.git.join(b"HEAD");
        let before = self.views.before(&path, MOST_HEAD_BYTES)?.content();
        let before = before.and_then(|content| RefValue::parse(&content));
        if !self.views.is_touched(&path) {
            return Ok(HeadPair { after: before.clone(), before });
        }
        let SmallFile::Content(content) = self.views.after(&path, MOST_HEAD_BYTES)? else {
            return Err(GitRefusal("HEAD is not a file".to_owned()));
        };
        // SECURITY: git reads and writes the file that HEAD names.
        match RefValue::parse(&content) {
            Some(RefValue::Symbolic(name)) if !name.is_branch() => {
                Err(GitRefusal(format!("HEAD names {name}, which is not a branch")))
            }
            Some(after) => Ok(HeadPair { before, after: Some(after) }),
            None => Err(GitRefusal("HEAD names neither a branch nor a commit".to_owned())),
        }
    }

    /// Returns what a reference held before or holds after the run.
    pub(super) fn object_at(
        &self,
        value: &RefValue,
        updates: &[RefUpdate],
        side: RunSide,
    ) -> Result<Option<Oid>, GitRefusal> {
        let name = match value {
            RefValue::Object(oid) => return Ok(Some(*oid)),
            RefValue::Symbolic(name) => name,
        };
        if let Some(update) = updates.iter().find(|update| update.name == name.as_str()) {
            let value = match side {
                RunSide::Before => &update.old,
                RunSide::After => &update.new,
            };
            return Ok(value.as_ref().and_then(RefValue::object));
        }
        let path = self.layout.common.join(name.as_str().as_bytes());
        let loose = self.views.before(&path, MOST_HEAD_BYTES)?.content();
        let loose = loose.and_then(|content| RefValue::parse(&content)?.object());
        Ok(loose.or_else(|| self.packed_before.get(name).copied()))
    }
}

/// Before or after the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RunSide {
    Before,
    After,
}

/// Makes sure that what HEAD is at is taken over, or is there.
pub(super) fn want_head(
    planner: &mut Planner<'_>,
    head: &HeadPair,
    updates: &[RefUpdate],
) -> Result<(), GitRefusal> {
    match head.after().filter(|_| head.is_changed()) {
        None => Ok(()),
        Some(RefValue::Object(oid)) => {
            let wanted = planner.objects.want(*oid, ExpectedKind::Commit);
            wanted.map_err(|problem| GitRefusal(format!("HEAD is not taken over: {problem}")))
        }
        Some(RefValue::Symbolic(name)) => {
            let path = planner.layout.common.join(name.as_str().as_bytes());
            let is_updated = updates.iter().any(|update| update.name == name.as_str());
            let is_there = planner.views.lower.node(&path)? != Node::Absent
                || planner.packed_before.contains_key(name);
            if planner.views.is_touched(&path) && !is_updated && !is_there {
                return Err(GitRefusal(format!("HEAD is at {name}, which is not taken over")));
            }
            Ok(())
        }
    }
}

/// Adds HEAD itself.
pub(super) fn head_row(planner: &mut Planner<'_>, head: &HeadPair) -> Result<(), GitRefusal> {
    match head.after().filter(|_| head.is_changed()) {
        Some(after) => {
            let path = planner.layout.git.join(b"HEAD");
            planner.push_row(path, GitContent::Bytes(after.to_file()))
        }
        None => Ok(()),
    }
}

/// Adds what git is in the middle of, group by group.
pub(super) fn state_rows(
    planner: &mut Planner<'_>,
    states: &BTreeMap<StateGroup, Vec<TreePath>>,
) -> Result<(), GitRefusal> {
    for (group, paths) in states {
        match state_group(planner, *group, paths) {
            Ok(rows) => {
                for (path, content) in rows {
                    planner.push_row(path, content)?;
                }
            }
            Err(StateProblem::Left(path, why)) => {
                planner.plan.notes.push(format!("{path} is not taken over: {why}"));
                planner.leave_out(&path, GateClass::GitState);
            }
            Err(StateProblem::Refused(refusal)) => return Err(refusal),
        }
    }
    Ok(())
}

enum StateProblem {
    /// The group is left out, and why.
    Left(TreePath, String),
    Refused(GitRefusal),
}

fn state_group(
    planner: &mut Planner<'_>,
    group: StateGroup,
    paths: &[TreePath],
) -> Result<Vec<(TreePath, GitContent)>, StateProblem> {
    let refused = |error: std::io::Error| StateProblem::Refused(error.into());
    let mut rows = Vec::new();
    for path in paths {
        let left = |why: String| StateProblem::Left(path.clone(), why);
        match planner.views.after(path, state::MOST_BYTES).map_err(refused)? {
            SmallFile::Absent => {
                if planner.views.lower.node(path).map_err(refused)? != Node::Absent {
                    rows.push((path.clone(), GitContent::Absent));
                }
            }
            SmallFile::NoFile => return Err(left("it is not a small file".to_owned())),
            SmallFile::Content(content) => {
                let name = String::from_utf8_lossy(path.as_bytes()).into_owned();
                let links = state::check_file(group, &name, &content)
                    .map_err(|why| left(why.to_owned()))?;
                for oid in links.required {
                    let wanted = planner.objects.want(oid, ExpectedKind::Anything);
                    wanted.map_err(|problem| left(problem.to_string()))?;
                }
                for oid in links.optional {
                    // What is not there is not needed to go on.
                    let _ = planner.objects.want(oid, ExpectedKind::Anything);
                }
                rows.push((path.clone(), GitContent::Bytes(content)));
            }
        }
    }
    Ok(rows)
}

/// Returns the value that the run saw first at a reference, by its log.
pub(super) fn seen_by_run(planner: &Planner<'_>, log: &str) -> Result<Option<Oid>, GitRefusal> {
    let path = planner.layout.common.join(log.as_bytes());
    if !planner.views.is_touched(&path) {
        return Ok(None);
    }
    let before = planner.views.before(&path, reflog::MOST_BYTES)?.content().unwrap_or_default();
    let after = planner.views.after(&path, reflog::MOST_BYTES)?.content().unwrap_or_default();
    Ok(reflog::first_old(&before, &after))
}

/// Which logs are taken over.
pub(super) struct LogScope<'a> {
    /// The references that are taken over.
    pub(super) applied: &'a [&'a RefUpdate],
    /// Whether HEAD stays as it is.
    pub(super) leaves_head: bool,
}

/// Adds what logs got; a log is cut only with its reference, and that of the stash.
pub(super) fn log_rows<'p>(
    planner: &mut Planner<'_>,
    logs: impl Iterator<Item = &'p TreePath>,
    scope: &LogScope<'_>,
) -> Result<(), GitRefusal> {
    for path in logs {
        let text = String::from_utf8_lossy(path.as_bytes()).into_owned();
        let Some((_, name)) = text.split_once("logs/") else { continue };
        let changed = planner.plan.refs.iter().any(|update| update.name == name);
        let applied = scope.applied.iter().find(|update| update.name == name);
        let is_head = name == "HEAD";
        if is_head && scope.leaves_head || !is_head && changed && applied.is_none() {
            continue;
        }
        let before = planner.views.before(path, reflog::MOST_BYTES)?;
        match planner.views.after(path, reflog::MOST_BYTES)? {
            SmallFile::Content(after) => {
                let before = before.content().unwrap_or_default();
                let may_shrink = name == "refs/stash";
                if let Some(content) = log_content(planner, &before, &after, may_shrink) {
                    planner.push_row(path.clone(), GitContent::Bytes(content))?;
                }
            }
            SmallFile::Absent => {
                let is_gone = applied.is_some_and(|update| update.new.is_none());
                if is_gone && before != SmallFile::Absent {
                    planner.push_row(path.clone(), GitContent::Absent)?;
                }
            }
            SmallFile::NoFile => {}
        }
    }
    Ok(())
}

/// Returns what a log becomes, if that differs from what it is.
fn log_content(
    planner: &mut Planner<'_>,
    before: &[u8],
    after: &[u8],
    may_shrink: bool,
) -> Option<Vec<u8>> {
    let (added, is_longer) = new_lines(before, after);
    if !is_longer && !may_shrink {
        return None;
    }
    let mut content = if is_longer { before.to_vec() } else { Vec::new() };
    for line in added.split_inclusive(|byte| *byte == b'\n') {
        let Some(parsed) = line.strip_suffix(b"\n").and_then(parse_line) else { continue };
        let mut is_there = |oid: Oid| {
            oid == Oid::NULL || planner.objects.want(oid, ExpectedKind::Anything).is_ok()
        };
        if is_there(parsed.old) && is_there(parsed.new) {
            content.extend_from_slice(line);
        }
    }
    (content != before).then_some(content)
}
