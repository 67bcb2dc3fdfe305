//! Commits that travel: written as a git bundle when nothing is taken over at once, and planned
//! from one when they are pulled later.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufWriter, Seek as _, Write as _};
use std::os::fd::BorrowedFd;
use std::path::Path;

use super::head_files::{self, HeadPair, RunSide};
use super::host::HostObjects;
use super::names::{RefName, RefValue};
use super::object_links::{ExpectedKind, links_of};
use super::objects::AddedObjects;
use super::plan::{GitLayout, GitRefusal, Planner};
use super::refs::is_acceptable;
use super::repositories::{self, FoundRepository};
use super::view::Views;
use super::{GitContent, GitRow, RefUpdate, index_import};
use crate::bundle::BundleHeader;
use crate::collect::Watch;
use crate::limits::TreeLimits;
use crate::materialize::Checkout;
use crate::object::{ObjectKind, Oid};
use crate::overlay::{self, OverlayError, Scanned};
use crate::pack::{Pack, write_pack};
use crate::root::{Node, Root};
use crate::walk::{GitNames, walk};
use crate::{TreePath, WalkError};

/// How to write a bundle.
#[derive(Clone, Copy)]
pub struct GitBundleOptions<'a> {
    /// A directory of ours for scratch files.
    pub scratch: &'a Path,
    /// Bounds on what is read.
    pub limits: TreeLimits,
    /// Shown the content of every object, because the bundle has them compressed.
    pub watch: Watch<'a>,
}

/// Writes the commits that a run made in an overlay as a git bundle; nothing when it made none, or
/// when they cannot be taken over.
///
/// # Errors
/// [`OverlayError`] when the overlay cannot be read or the bundle not be written.
pub fn write_git_bundle(
    workspace: BorrowedFd<'_>,
    upper: BorrowedFd<'_>,
    options: &GitBundleOptions<'_>,
) -> Result<Option<File>, OverlayError> {
    let failed = |error: io::Error| OverlayError::Walk(WalkError::at(None)(error));
    let lower = Root::duplicate(workspace).map_err(failed)?;
    let upper = Root::duplicate(upper).map_err(failed)?;
    let scan = overlay::scan(&lower, &upper, &options.limits, GitNames::Enter)?;
    let views = Views::new(&lower, &upper, &scan.rows, None);
    let Some(found) = repositories::find(&views, &scan.rows).map_err(failed)? else {
        return Ok(None);
    };
    let own = |one: &FoundRepository<'_>| one.layout.git.depth() == 1 && one.created.is_none();
    let Some(repository) = found.repositories.into_iter().find(own) else { return Ok(None) };
    let planner = Planner::new(&views, repository, (options.limits, "")).map_err(failed)?;
    planner.bundle(options).map_err(failed)
}

/// What a program committed in a checkout of its own.
#[derive(Debug)]
pub struct CheckoutCommits {
    /// The commits, as a git bundle.
    pub bundle: File,
    /// Every reference that it changed, HEAD included.
    pub refs: Vec<RefUpdate>,
}

/// As [`write_git_bundle`], for a checkout that the program wrote into directly. It is compared
/// with what was put there, which lies outside of the program's reach.
///
/// # Errors
/// [`OverlayError`] when the checkout cannot be read or the bundle not be written.
pub fn write_checkout_bundle(
    checkout: &Checkout,
    options: &GitBundleOptions<'_>,
) -> Result<Option<CheckoutCommits>, OverlayError> {
    let failed = |error: io::Error| OverlayError::Walk(WalkError::at(None)(error));
    let nothing = tempfile::tempdir_in(options.scratch).map_err(failed)?;
    let lower = Root::open(nothing.path()).map_err(failed)?;
    let git = TreePath::segment(b".git");
    let Node::Directory(_) = checkout.root.node(&git).map_err(failed)? else { return Ok(None) };
    let walked = walk(&checkout.root, Some(&git), &options.limits, GitNames::Enter)?;
    let mut rows = Vec::new();
    for path in walked.paths() {
        let after = checkout.root.node(&path).map_err(failed)?;
        rows.push(Scanned { path, before: Node::Absent, after });
    }
    rows.sort_by(|a, b| a.path.cmp(&b.path));
    let views = Views::new(&lower, &checkout.root, &rows, None);
    let layout = GitLayout { git: git.clone(), common: git.clone() };
    let touched: Vec<&Scanned> = rows.iter().collect();
    let host = HostObjects::of_pack(&checkout.pack);
    let objects =
        AddedObjects::list((host, &checkout.root), &git.join(b"objects"), &touched, options.limits);
    let mut planner = Planner::of_objects(&views, layout, objects);
    planner.take_rows(touched);
    let base = RefValue::Object(checkout.commit);
    planner.checkout_bundle(&base, options).map_err(failed)
}

impl Planner<'_> {
    fn checkout_bundle(
        mut self,
        base: &RefValue,
        options: &GitBundleOptions<'_>,
    ) -> io::Result<Option<CheckoutCommits>> {
        let Ok(mut named) = self.bundle_references() else { return Ok(None) };
        let head = named.refs.iter().position(|update| update.name == "HEAD");
        if let Some(head) = head.and_then(|at| named.refs.get_mut(at)) {
            head.old = Some(base.clone());
        }
        named.refs.retain(|update| update.old != update.new);
        let refs = named.refs.clone();
        let bundle = self.write_bundle(named, options)?;
        Ok(bundle.map(|bundle| CheckoutCommits { bundle, refs }))
    }

    fn bundle(mut self, options: &GitBundleOptions<'_>) -> io::Result<Option<File>> {
        match self.bundle_references() {
            Ok(named) => self.write_bundle(named, options),
            Err(_) => Ok(None),
        }
    }

    fn write_bundle(
        &mut self,
        named: NamedCommits,
        options: &GitBundleOptions<'_>,
    ) -> io::Result<Option<File>> {
        let references = named.references;
        let (needed, packs) = self.objects.take_needed();
        self.objects.put_packs(packs);
        if needed.names.is_empty() {
            return Ok(None);
        }
        let prerequisites = self.missing_parents(&needed.names)?;
        let header = BundleHeader { prerequisites, references };
        let mut sink = BufWriter::new(tempfile::tempfile_in(options.scratch)?);
        sink.write_all(&header.to_bytes())?;
        let objects = needed.names.iter().map(|oid| {
            let (kind, content) = self.objects.content(*oid).map_err(io::Error::other)?;
            (options.watch)(&content);
            Ok((kind, content))
        });
        write_pack(&mut sink, needed.names.len(), objects)?;
        let mut file = sink.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.rewind()?;
        Ok(Some(file))
    }

    /// Returns what the bundle names, after making sure that all of it can be taken over.
    fn bundle_references(&mut self) -> Result<NamedCommits, GitRefusal> {
        if let Some(why) = self.unsupported()? {
            return Err(GitRefusal(why));
        }
        let parts = self.sort_rows();
        let packed = self.packed_refs()?;
        self.packed_before = packed.before.values.clone();
        let updates = self.ref_updates(&parts, &packed)?;
        let head = self.head()?;
        for update in &updates {
            self.want_ref(update)?;
        }
        head_files::want_head(self, &head, &updates)?;
        let objects = updates
            .iter()
            .filter_map(|update| Some((update.name.clone(), update.new.as_ref()?.object()?)));
        let mut references: Vec<(String, Oid)> = objects.collect();
        if let Some(after) = head.after()
            && let Some(oid) = self.object_at(after, &updates, RunSide::After)?
        {
            references.push(("HEAD".to_owned(), oid));
        }
        let mut refs = updates;
        refs.extend(head.update(None));
        Ok(NamedCommits { references, refs })
    }

    /// Returns the commits that the new ones build on.
    fn missing_parents(&mut self, names: &BTreeSet<Oid>) -> io::Result<Vec<Oid>> {
        let mut missing = BTreeSet::new();
        for oid in names {
            let (kind, content) = self.objects.content(*oid).map_err(io::Error::other)?;
            if kind != ObjectKind::Commit {
                continue;
            }
            let links = links_of(kind, &content).map_err(io::Error::other)?;
            let parents = links.into_iter().filter(|link| link.expected == ExpectedKind::Commit);
            missing.extend(parents.map(|link| link.oid).filter(|parent| !names.contains(parent)));
        }
        Ok(missing.into_iter().collect())
    }
}

/// What a bundle names, and how the references changed.
struct NamedCommits {
    references: Vec<(String, Oid)>,
    refs: Vec<RefUpdate>,
}

/// What of a bundle goes into a repository.
pub(crate) struct PlannedCommits {
    pub(crate) rows: Vec<GitRow>,
    pub(crate) objects: Vec<GitRow>,
}

/// Plans to set references, HEAD and the index to what a run made of them; `None` where one of
/// them is not what the run started from.
pub(crate) fn plan_commits(
    root: &Root,
    pack: Pack,
    updates: &[RefUpdate],
) -> Result<Option<PlannedCommits>, String> {
    let said = |error: io::Error| format!("the repository could not be read: {error}");
    let git = TreePath::segment(b".git");
    let host = HostObjects::open(root, &git).map_err(said)?;
    let views = Views::new(root, root, &[], None);
    let layout = GitLayout { git: git.clone(), common: git.clone() };
    let limits = TreeLimits::generous();
    let name = pack.name();
    let mut bytes = (Vec::new(), Vec::new());
    pack.write_to(&mut bytes.0).and_then(|()| pack.write_idx(&mut bytes.1)).map_err(said)?;
    let objects = AddedObjects::of_pack(host, root, pack, limits);
    let mut planner = Planner::of_objects(&views, layout, objects);
    let is_planned = planner.plan_updates(updates).map_err(|GitRefusal(why)| why)?;
    if !is_planned {
        return Ok(None);
    }
    let objects = git.join(b"objects");
    let file = |end: &str| objects.join(format!("pack/pack-{name}.{end}").as_bytes());
    let mut rows = Vec::new();
    for (path, bytes) in [(file("pack"), bytes.0), (file("idx"), bytes.1)] {
        let new = planner.new_rows(path, GitContent::Bytes(bytes));
        rows.extend(new.map_err(|GitRefusal(why)| why)?);
    }
    Ok(Some(PlannedCommits { rows: std::mem::take(&mut planner.plan.rows), objects: rows }))
}

/// Makes sure that a commit of a pack and everything it leads to is there.
pub(crate) fn check_commits(
    root: &Root,
    git: &TreePath,
    pack: Pack,
    head: Oid,
) -> Result<(), String> {
    let host = HostObjects::open(root, git).map_err(|error| error.to_string())?;
    let mut objects = AddedObjects::of_pack(host, root, pack, TreeLimits::generous());
    objects.want(head, ExpectedKind::Commit).map_err(|problem| problem.to_string())
}

impl Planner<'_> {
    /// Plans what a run changed; false where something is not what the run started from.
    fn plan_updates(&mut self, updates: &[RefUpdate]) -> Result<bool, GitRefusal> {
        let packed = self.packed_refs()?;
        self.packed_before = packed.before.values.clone();
        let (heads, mut refs): (Vec<_>, Vec<_>) =
            updates.iter().cloned().partition(|update| update.name == "HEAD");
        for update in &refs {
            let name = RefName::new(&update.name)
                .filter(|name| is_acceptable(name, update.new.as_ref()))
                .ok_or_else(|| GitRefusal(format!("{} is not a reference", update.name)))?;
            let now = self.object_at(&RefValue::Symbolic(name), &[], RunSide::Before)?;
            if now != update.old.as_ref().and_then(RefValue::object) {
                return Ok(false);
            }
            self.want_ref(update)?;
        }
        let now = self.head()?.before().cloned();
        // A checkout elsewhere has its commit without a branch; what it adds goes to the branch here.
        let heads = match (heads.first(), &now) {
            (Some(RefUpdate { old: Some(RefValue::Object(old)), new, .. }), Some(here))
                if matches!(here, RefValue::Symbolic(_))
                    && matches!(new, Some(RefValue::Object(_)))
                    && self.object_at(here, &[], RunSide::Before)? == Some(*old) =>
            {
                let (name, old) = (here.to_string(), Some(RefValue::Object(*old)));
                let update = RefUpdate { repository: None, name, old, new: new.clone() };
                self.want_ref(&update)?;
                refs.push(update);
                Vec::new()
            }
            _ => heads,
        };
        let head = match heads.first() {
            Some(head) if head.old != now => return Ok(false),
            Some(head) => HeadPair::new(now, head.new.clone()),
            None => HeadPair::new(now.clone(), now),
        };
        if matches!(head.after(), Some(RefValue::Symbolic(name)) if !name.is_branch()) {
            return Err(GitRefusal("HEAD is not at a branch".to_owned()));
        }
        head_files::want_head(self, &head, &refs)?;
        let kept = self.without_collisions(refs.clone(), &packed)?;
        if kept.len() != refs.len() {
            return Ok(false);
        }
        self.ref_rows(&kept.iter().collect::<Vec<_>>(), &packed)?;
        head_files::head_row(self, &head)?;
        index_import::commit_row(self, &head, &refs)?;
        Ok(true)
    }
}
