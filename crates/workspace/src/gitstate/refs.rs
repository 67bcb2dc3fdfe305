//! References: which of them a run changed, which of those are taken over, and as what.

use std::collections::{BTreeSet, HashSet};

use super::names::{PackedRefs, RefName, RefValue, without_refs};
use super::object_links::ExpectedKind;
use super::plan::{GitRefusal, Planner, SortedRows};
use super::view::SmallFile;
use super::{GitContent, RefUpdate};
use crate::limits::TreeLimits;
use crate::root::Node;
use crate::walk::{GitNames, walk};
use crate::{GateClass, TreePath};

/// A larger list of references is not read.
const MOST_REF_BYTES: u64 = 256 << 20;

/// `packed-refs` as it is and as the run left it.
pub(super) struct PackedPair {
    pub(super) before: PackedRefs,
    pub(super) before_bytes: Vec<u8>,
    pub(super) after: Option<PackedRefs>,
}

impl PackedPair {
    const fn after(&self) -> &PackedRefs {
        match &self.after {
            Some(after) => after,
            None => &self.before,
        }
    }
}

impl Planner<'_> {
    pub(super) fn packed_refs(&self) -> Result<PackedPair, GitRefusal> {
        let path = self.layout.common.join(b"packed-refs");
        let parse = |file: SmallFile| match file {
            SmallFile::Absent => Ok(PackedRefs::default()),
            SmallFile::Content(content) => PackedRefs::parse(&content)
                .ok_or_else(|| GitRefusal("packed-refs cannot be parsed".to_owned())),
            SmallFile::NoFile => Err(GitRefusal("packed-refs is not a file".to_owned())),
        };
        let before = self.views.before(&path, MOST_REF_BYTES)?;
        let after = match self.views.is_touched(&path) {
            true => Some(parse(self.views.after(&path, MOST_REF_BYTES)?)?),
            false => None,
        };
        let before_bytes = match &before {
            SmallFile::Content(content) => content.clone(),
            SmallFile::Absent | SmallFile::NoFile => Vec::new(),
        };
        Ok(PackedPair { before: parse(before)?, before_bytes, after })
    }

    /// Returns every reference whose value differs.
    pub(super) fn ref_updates(
        &mut self,
        rows: &SortedRows,
        packed: &PackedPair,
    ) -> Result<Vec<RefUpdate>, GitRefusal> {
        let mut names = rows.refs.clone();
        if let Some(after) = &packed.after {
            let before = &packed.before.values;
            let differs = |name: &&RefName| before.get(*name) != after.values.get(*name);
            names.extend(before.keys().chain(after.values.keys()).filter(differs).cloned());
            if !after.invalid.is_empty() {
                let path = self.layout.common.join(b"packed-refs");
                self.leave_out(&path, GateClass::GitRef);
            }
        }
        let mut updates = Vec::new();
        for name in names {
            let path = self.layout.common.join(name.as_str().as_bytes());
            let old = self.views.before(&path, MOST_REF_BYTES)?;
            let old = match old.content() {
                Some(content) => RefValue::parse(&content),
                None => packed.before.values.get(&name).copied().map(RefValue::Object),
            };
            let new = match self.views.after(&path, MOST_REF_BYTES)? {
                SmallFile::Content(content) => match RefValue::parse(&content) {
                    Some(value) => Some(value),
                    None => {
                        self.leave_out(&path, GateClass::GitRef);
                        continue;
                    }
                },
                SmallFile::NoFile | SmallFile::Absent => {
                    packed.after().values.get(&name).copied().map(RefValue::Object)
                }
            };
            if old == new {
                continue;
            }
            if !is_acceptable(&name, new.as_ref()) {
                self.leave_out(&path, GateClass::GitRef);
                continue;
            }
            let (repository, name) = (self.repository(), name.as_str().to_owned());
            updates.push(RefUpdate { repository, name, old, new });
        }
        self.without_collisions(updates, packed)
    }

    /// Leaves out references that would have to be a file and a directory at once.
    pub(super) fn without_collisions(
        &mut self,
        updates: Vec<RefUpdate>,
        packed: &PackedPair,
    ) -> Result<Vec<RefUpdate>, GitRefusal> {
        let gone: HashSet<String> = updates
            .iter()
            .filter(|update| update.new.is_none())
            .map(|update| update.name.clone())
            .collect();
        let made: BTreeSet<String> = updates
            .iter()
            .filter(|update| update.new.is_some())
            .map(|update| update.name.clone())
            .collect();
        let mut kept = Vec::new();
        for update in updates {
            if update.new.is_none() || !self.collides(&update, packed, (&gone, &made))? {
                kept.push(update);
            } else {
                let path = self.layout.common.join(update.name.as_bytes());
                self.leave_out(&path, GateClass::GitRef);
            }
        }
        Ok(kept)
    }

    fn collides(
        &self,
        update: &RefUpdate,
        packed: &PackedPair,
        (gone, made): (&HashSet<String>, &BTreeSet<String>),
    ) -> Result<bool, GitRefusal> {
        let Some(name) = RefName::new(&update.name) else { return Ok(true) };
        for above in name.ancestors() {
            let path = self.layout.common.join(above.as_bytes());
            let is_file = matches!(self.views.lower.node(&path)?, Node::File(_) | Node::Link(_));
            let is_packed =
                RefName::new(above).is_some_and(|above| packed.before.values.contains_key(&above));
            if made.contains(above) || (is_file || is_packed) && !gone.contains(above) {
                return Ok(true);
            }
        }
        let below = format!("{name}/");
        let is_below = |other: &str| other.starts_with(&below) && !gone.contains(other);
        let packed_below = packed.before.values.keys().any(|other| is_below(other.as_str()));
        let made_below = made.range(below.clone()..).next().is_some_and(|other| is_below(other));
        let path = self.layout.common.join(name.as_str().as_bytes());
        let loose_below = match self.views.lower.node(&path)? {
            Node::Directory(_) => self.loose_refs(&path)?.iter().any(|other| is_below(other)),
            _ => false,
        };
        Ok(packed_below || made_below || loose_below)
    }

    fn loose_refs(&self, directory: &TreePath) -> Result<Vec<String>, GitRefusal> {
        let limits = TreeLimits::generous();
        let walked = walk(self.views.lower, Some(directory), &limits, GitNames::Enter)
            .map_err(|error| GitRefusal(error.to_string()))?;
        let common = self.layout.common.as_bytes().len() + 1;
        let name = |path: &TreePath| {
            String::from_utf8_lossy(path.as_bytes().get(common..).unwrap_or_default()).into_owned()
        };
        Ok(walked.paths().iter().map(name).collect())
    }

    pub(super) fn want_ref(&mut self, update: &RefUpdate) -> Result<(), GitRefusal> {
        let Some(RefValue::Object(oid)) = update.new else { return Ok(()) };
        let is_branch = update.name.starts_with("refs/heads/") || update.name == "refs/stash";
        let expected = if is_branch { ExpectedKind::Commit } else { ExpectedKind::Anything };
        self.objects
            .want(oid, expected)
            .map_err(|problem| GitRefusal(format!("{} is not taken over: {problem}", update.name)))
    }

    pub(super) fn ref_rows(
        &mut self,
        applied: &[&RefUpdate],
        packed: &PackedPair,
    ) -> Result<(), GitRefusal> {
        let mut removed = Vec::new();
        for update in applied {
            let path = self.layout.common.join(update.name.as_bytes());
            match &update.new {
                Some(value) => {
                    self.clear_directories(&path)?;
                    self.push_row(path, GitContent::Bytes(value.to_file()))?;
                }
                None => {
                    if let Node::File(_) = self.views.lower.node(&path)? {
                        self.push_row(path, GitContent::Absent)?;
                    }
                    removed.extend(RefName::new(&update.name));
                }
            }
        }
        let packed_away: Vec<&RefName> =
            removed.iter().filter(|name| packed.before.values.contains_key(*name)).collect();
        if !packed_away.is_empty() {
            let content = without_refs(&packed.before_bytes, &packed_away);
            let path = self.layout.common.join(b"packed-refs");
            self.push_row(path, GitContent::Bytes(content))?;
        }
        Ok(())
    }

    /// Removes the empty directories that stand where a reference is to be.
    fn clear_directories(&mut self, path: &TreePath) -> Result<(), GitRefusal> {
        let Node::Directory(_) = self.views.lower.node(path)? else { return Ok(()) };
        let limits = TreeLimits::generous();
        let walked = walk(self.views.lower, Some(path), &limits, GitNames::Enter)
            .map_err(|error| GitRefusal(error.to_string()))?;
        for folder in walked.folders {
            if let Some(below) = folder.path.filter(|below| below != path) {
                self.push_row(below, GitContent::Absent)?;
            }
        }
        Ok(())
    }
}

/// Returns whether a reference may hold a value: only the HEAD of a remote names another one, and
/// replacements are never taken over.
pub(super) fn is_acceptable(name: &RefName, value: Option<&RefValue>) -> bool {
    if name.as_str().starts_with("refs/replace/") {
        return false;
    }
    match value {
        None | Some(RefValue::Object(_)) => true,
        Some(RefValue::Symbolic(target)) => {
            let is_remote = |name: &RefName| name.as_str().starts_with("refs/remotes/");
            is_remote(name) && name.as_str().ends_with("/HEAD") && is_remote(target)
        }
    }
}
