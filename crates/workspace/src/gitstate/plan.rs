//! Decides what of a repository's new state is taken over. Reads, and changes nothing.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::io;

use super::names::{RefName, RefValue};
use super::object_links::ExpectedKind;
use super::objects::{AddedObjects, AddedPack, NeededObjects};
use super::parts::{GitPart, StateGroup, part_of};
use super::repositories::{CreatedFiles, FoundRepository};
use super::view::Views;
use super::{
    Detour, GitContent, GitPlan, GitRow, RefUpdate, head_files, host::loose_name, index_import,
};
use crate::limits::TreeLimits;
use crate::object::Oid;
use crate::overlay::Scanned;
use crate::root::Node;
use crate::{GateClass, TreePath};

const MOST_CONFIG_BYTES: u64 = 4 << 20;

/// Where a repository keeps what.
#[derive(Debug, Clone)]
pub(super) struct GitLayout {
    /// HEAD, index and what git is in the middle of.
    pub(super) git: TreePath,
    /// Objects, references and config.
    pub(super) common: TreePath,
}

impl GitLayout {
    /// Returns whether it is a linked worktree's.
    pub(super) fn is_worktree(&self) -> bool {
        self.git != self.common
    }
}

/// A repository on its way: what is known and what is decided so far.
pub(super) struct Planner<'a> {
    pub(super) views: &'a Views<'a>,
    pub(super) layout: GitLayout,
    pub(super) objects: AddedObjects<'a>,
    pub(super) plan: GitPlan,
    /// References that the host keeps packed.
    pub(super) packed_before: BTreeMap<RefName, Oid>,
    /// The branch that takes work which met somebody else's.
    branch: String,
    rows: Vec<&'a Scanned>,
    /// What the run touched of the directory that a linked worktree shares.
    shared: Vec<&'a Scanned>,
    /// What is written anew where the run made the git directory.
    created: Option<CreatedFiles>,
    /// The paths that have a row.
    planned: HashSet<TreePath>,
}

/// Why nothing of a repository is taken over.
pub(super) struct GitRefusal(pub(super) String);

impl From<io::Error> for GitRefusal {
    fn from(error: io::Error) -> Self {
        Self(format!("the repository could not be read: {error}"))
    }
}

impl<'a> Planner<'a> {
    pub(super) fn new(
        views: &'a Views<'a>,
        repository: FoundRepository<'a>,
        (limits, branch): (TreeLimits, &'a str),
    ) -> io::Result<Self> {
        let FoundRepository { layout, rows, shared, created } = repository;
        let branch = match layout.is_worktree() {
            true => format!("{branch}-{}", String::from_utf8_lossy(layout.git.name())),
            false => branch.to_owned(),
        };
        let host = super::host::HostObjects::open(views.lower, &layout.common)?;
        let objects = layout.common.join(b"objects");
        let touched: Vec<&Scanned> = rows.iter().chain(&shared).copied().collect();
        let objects = AddedObjects::list((host, views.upper), &objects, &touched, limits);
        let plan = GitPlan::default();
        let packed_before = BTreeMap::new();
        Ok(Self {
            views,
            layout,
            objects,
            plan,
            packed_before,
            branch,
            rows,
            shared,
            created,
            planned: HashSet::new(),
        })
    }

    /// Returns a planner for objects that came another way than in a layer.
    pub(super) fn of_objects(
        views: &'a Views<'a>,
        layout: GitLayout,
        objects: AddedObjects<'a>,
    ) -> Self {
        Self {
            views,
            layout,
            objects,
            plan: GitPlan::default(),
            packed_before: BTreeMap::new(),
            branch: String::new(),
            rows: Vec::new(),
            shared: Vec::new(),
            created: None,
            planned: HashSet::new(),
        }
    }

    /// Gives it what the program touched.
    pub(super) fn take_rows(&mut self, rows: Vec<&'a Scanned>) {
        self.rows = rows;
    }

    /// Decides, and returns the plan with whatever is refused said in it.
    pub(super) fn run(mut self) -> GitPlan {
        match self.decide() {
            Ok(()) => {}
            Err(GitRefusal(why)) => {
                self.plan.rows.clear();
                self.plan.objects.clear();
                self.plan.refusal = Some(why);
            }
        }
        self.plan
    }

    fn decide(&mut self) -> Result<(), GitRefusal> {
        let parts = self.sort_rows();
        let packed = self.packed_refs()?;
        self.packed_before = packed.before.values.clone();
        let updates = self.ref_updates(&parts, &packed)?;
        let head = self.head()?;
        if let Some(why) = self.unsupported()? {
            let is_commit = |row: &&Scanned| {
                !matches!(row.after, Node::Directory(_))
                    && matches!(self.part(row), GitPart::Object | GitPart::Ref(_) | GitPart::Head)
            };
            if self.rows.iter().any(is_commit) {
                return Err(GitRefusal(why));
            }
            let index = self.layout.git.join(b"index");
            if self.views.is_touched(&index) {
                self.leave_out(&index, GateClass::GitState);
            }
            return Ok(());
        }
        // References of a linked worktree are those of the repository, which sees to them.
        let is_worktree = self.layout.is_worktree();
        if !is_worktree {
            self.plan.refs = updates.clone();
        }
        let repository = self.repository();
        self.plan.refs.extend(head.update(repository));
        for update in &updates {
            self.want_ref(update)?;
        }
        head_files::want_head(self, &head, &updates)?;
        let conflicts = self.conflicts(&updates)?;
        let index = index_import::read(self, &head, &updates)?;
        let is_split = self.is_split(&head, &index, (&conflicts, &updates))?;
        let detoured: Vec<RefUpdate> = match is_split {
            true => self.split_off(&head, &updates, &conflicts)?,
            false => conflicts.clone(),
        };
        let is_ours = |update: &&RefUpdate| !is_worktree || update.name == "HEAD";
        self.detour(&detoured.iter().filter(is_ours).cloned().collect::<Vec<_>>())?;
        let applied: Vec<&RefUpdate> =
            updates.iter().filter(|update| !detoured.contains(update)).collect();
        if !is_worktree {
            self.ref_rows(&applied, &packed)?;
        }
        self.plan.leaves_files = is_split;
        if is_split {
            let why = "HEAD, its branch or the index was changed here meanwhile";
            self.plan.notes.push(format!("the files are as they were, because {why}"));
        }
        if !is_split {
            head_files::head_row(self, &head)?;
            head_files::state_rows(self, &parts.states)?;
            index_import::row(self, index)?;
        }
        let scope = head_files::LogScope { applied: &applied, leaves_head: is_split };
        head_files::log_rows(self, parts.logs.iter(), &scope)?;
        self.created_rows()?;
        self.object_rows()
    }

    /// Returns the git directory for people, unless it is the workspace's own.
    pub(super) fn repository(&self) -> Option<String> {
        (self.layout.git.depth() > 1).then(|| self.layout.git.to_string())
    }

    /// Sorts what the run touched, and names what is never taken over.
    pub(super) fn sort_rows(&mut self) -> SortedRows {
        let mut sorted = SortedRows::default();
        for row in self.rows.clone() {
            if let Node::Directory(_) = row.after {
                continue;
            }
            let part = self.part(row);
            // What git puts into every new directory says nothing, and is not missed.
            if self.created.is_some() && is_template(&row.path) {
                continue;
            }
            match part {
                GitPart::Object
                | GitPart::Derived
                | GitPart::PackedRefs
                | GitPart::Head
                | GitPart::Index => {}
                GitPart::Ref(name) => match (row.before, row.after) {
                    (_, Node::Link(_) | Node::Special(_)) => {
                        self.leave_out(&row.path, GateClass::GitRef);
                    }
                    (Node::Directory(_), Node::Absent) => {}
                    _ => {
                        sorted.refs.insert(name);
                    }
                },
                GitPart::Log => {
                    sorted.logs.insert(row.path.clone());
                }
                GitPart::State(group) => {
                    sorted.states.entry(group).or_default().push(row.path.clone());
                }
                GitPart::NoRef(_) => self.leave_out(&row.path, GateClass::GitRef),
                GitPart::Never(class) => self.leave_out(&row.path, class),
                GitPart::Other => self.leave_out(&row.path, GateClass::GitState),
            }
        }
        for row in self.shared.iter().filter(|row| !matches!(row.after, Node::Directory(_))) {
            let below = row.path.as_bytes().get(self.layout.common.as_bytes().len() + 1..);
            let below = below.and_then(|below| std::str::from_utf8(below).ok());
            let is_file = matches!(row.after, Node::File(_) | Node::Absent);
            if let Some(GitPart::Ref(name)) = below.map(part_of).filter(|_| is_file) {
                sorted.refs.insert(name);
            }
        }
        sorted
    }

    fn part(&self, row: &Scanned) -> GitPart {
        let is_worktree = self.layout.is_worktree();
        let below = |top: &TreePath| {
            let rest = row.path.as_bytes().strip_prefix(top.as_bytes())?.strip_prefix(b"/")?;
            Some(std::str::from_utf8(rest).ok().map_or(GitPart::Other, part_of))
        };
        match below(&self.layout.git).unwrap_or(GitPart::Other) {
            // References of one worktree alone: those of a bisection.
            GitPart::Ref(_) if is_worktree => GitPart::Derived,
            part => part,
        }
    }

    pub(super) fn leave_out(&mut self, path: &TreePath, class: GateClass) {
        self.plan.left_out.push((path.clone(), class));
    }

    /// Returns why the repository's format cannot be taken over.
    pub(super) fn unsupported(&self) -> Result<Option<String>, GitRefusal> {
        let path = self.layout.common.join(b"config");
        let config = match self.created.is_some() && self.layout.git == self.layout.common {
            true => self.views.after(&path, MOST_CONFIG_BYTES)?,
            false => self.views.before(&path, MOST_CONFIG_BYTES)?,
        };
        let text = config.content().unwrap_or_default();
        let text = String::from_utf8_lossy(&text).to_lowercase();
        let mut is_extensions = false;
        for line in text.lines().map(str::trim) {
            if line.starts_with('[') {
                is_extensions = line.starts_with("[extensions]");
            }
            let Some((key, value)) = line.split_once('=').filter(|_| is_extensions) else {
                continue;
            };
            let key = key.rsplit(']').next().unwrap_or(key).trim();
            match (key, value.trim()) {
                ("objectformat", "sha1") | ("refstorage", "files") => {}
                ("objectformat", format) => {
                    return Ok(Some(format!("the repository has {format} object names")));
                }
                ("refstorage", format) => {
                    return Ok(Some(format!("the repository keeps its references as {format}")));
                }
                _ => {}
            }
        }
        Ok(None)
    }

    /// Returns the updates of references that somebody else changed meanwhile.
    fn conflicts(&self, updates: &[RefUpdate]) -> Result<Vec<RefUpdate>, GitRefusal> {
        let mut conflicts = Vec::new();
        if self.views.started_at.is_none() {
            return Ok(conflicts);
        }
        for update in updates {
            let path = self.layout.common.join(update.name.as_bytes());
            let is_newer = self.views.is_changed_since(&path)?;
            let seen = head_files::seen_by_run(self, &format!("logs/{}", update.name))?;
            let now = update.old.as_ref().and_then(RefValue::object).unwrap_or(Oid::NULL);
            if is_newer || seen.is_some_and(|seen| seen != now) {
                conflicts.push(update.clone());
            }
        }
        Ok(conflicts)
    }

    /// Returns whether the run's commit and the person's files must stay apart.
    fn is_split(
        &self,
        head: &head_files::HeadPair,
        index: &index_import::ReadIndex,
        (conflicts, updates): (&[RefUpdate], &[RefUpdate]),
    ) -> Result<bool, GitRefusal> {
        let path = self.layout.git.join(b"HEAD");
        let names = head.branches();
        let moves = |update: &RefUpdate| names.contains(&update.name.as_str());
        // Where somebody else moved HEAD, the files and the index are another commit's.
        if self.views.is_changed_since(&path)? {
            return Ok(!updates.is_empty() || head.is_changed() || index.is_changed());
        }
        let moves_head = head.is_changed() || updates.iter().any(moves);
        let is_met = index.is_conflict() || conflicts.iter().any(moves);
        Ok(moves_head && is_met)
    }

    /// Returns the updates that go to branches of their own when the files stay as they are.
    fn split_off(
        &mut self,
        head: &head_files::HeadPair,
        updates: &[RefUpdate],
        conflicts: &[RefUpdate],
    ) -> Result<Vec<RefUpdate>, GitRefusal> {
        let host_head = head.before_branch();
        let mut off: Vec<RefUpdate> = updates
            .iter()
            .filter(|update| conflicts.contains(update) || Some(update.name.as_str()) == host_head)
            .cloned()
            .collect();
        // A commit that only a detached HEAD names gets a branch too.
        if let Some(RefValue::Object(oid)) = head.after()
            && head.is_changed()
        {
            let new = Some(RefValue::Object(*oid));
            let (repository, name) = (self.repository(), "HEAD".to_owned());
            off.push(RefUpdate { repository, name, old: None, new });
        }
        // What the run's HEAD is at comes first and gets the plain name.
        let first = head.after_branch().unwrap_or("HEAD").to_owned();
        off.sort_by_key(|update| update.name != first);
        Ok(off)
    }

    /// Makes a branch for each update that met somebody else's.
    fn detour(&mut self, updates: &[RefUpdate]) -> Result<(), GitRefusal> {
        for (number, update) in updates.iter().enumerate() {
            let Some(RefValue::Object(commit)) = update.new else {
                let path = self.layout.common.join(update.name.as_bytes());
                self.leave_out(&path, GateClass::GitRef);
                continue;
            };
            if self.objects.want(commit, ExpectedKind::Commit).is_err() {
                let path = self.layout.common.join(update.name.as_bytes());
                self.leave_out(&path, GateClass::GitRef);
                continue;
            }
            let branch = match number {
                0 => self.branch.clone(),
                _ => {
                    let last = update.name.rsplit('/').next().unwrap_or_default();
                    format!("{}-{number}-{last}", self.branch)
                }
            };
            let name = RefName::new(&format!("refs/heads/{branch}"))
                .ok_or_else(|| GitRefusal(format!("{branch} is not the name of a branch")))?;
            let path = self.layout.common.join(name.as_str().as_bytes());
            if !matches!(self.views.lower.node(&path)?, Node::Absent) {
                return Err(GitRefusal(format!("there is a branch {branch} already")));
            }
            let content = GitContent::Bytes(RefValue::Object(commit).to_file());
            self.push_row(path, content)?;
            self.plan.detours.push(Detour {
                branch,
                commit: commit.to_hex(),
                instead_of: update.name.clone(),
            });
        }
        Ok(())
    }

    /// Adds what makes a directory that the run made a git directory.
    fn created_rows(&mut self) -> Result<(), GitRefusal> {
        let Some(CreatedFiles(files)) = self.created.take() else { return Ok(()) };
        for (path, content) in files {
            self.push_row(path, GitContent::Bytes(content))?;
        }
        if self.layout.git == self.layout.common {
            for name in [b"objects".as_slice(), b"refs/heads", b"refs/tags"] {
                let path = self.layout.common.join(name);
                self.push_row(path, GitContent::Directory)?;
            }
        }
        Ok(())
    }

    /// Adds a row, and rows for the directories above it that are not there.
    pub(super) fn push_row(&mut self, path: TreePath, after: GitContent) -> Result<(), GitRefusal> {
        for row in self.new_rows(path, after)? {
            if self.planned.insert(row.path.clone()) {
                self.plan.rows.push(row);
            }
        }
        Ok(())
    }

    pub(super) fn new_rows(
        &self,
        path: TreePath,
        after: GitContent,
    ) -> Result<Vec<GitRow>, GitRefusal> {
        let mut rows = Vec::new();
        if after != GitContent::Absent {
            for above in std::iter::successors(path.parent(), TreePath::parent) {
                let before = self.views.lower.node(&above)?;
                match before {
                    Node::Directory(_) => break,
                    Node::Absent => {
                        let after = GitContent::Directory;
                        rows.push(GitRow { path: above, before, after });
                    }
                    _ => return Err(GitRefusal(format!("{above} is not a directory"))),
                }
            }
        }
        let before = self.views.lower.node(&path)?;
        rows.push(GitRow { path, before, after });
        Ok(rows)
    }

    /// Adds the objects that something wanted and the host lacks.
    fn object_rows(&mut self) -> Result<(), GitRefusal> {
        let objects = self.layout.common.join(b"objects");
        let (needed, packs) = self.objects.take_needed();
        let NeededObjects { loose, packs: numbers, .. } = needed;
        let mut rows = Vec::new();
        for oid in loose {
            let path = objects.join(&loose_name(oid));
            rows.extend(self.new_rows(path, GitContent::LooseObject(oid))?);
        }
        for added in numbers.iter().filter_map(|number| packs.get(*number)) {
            rows.extend(self.pack_rows(&objects, added)?);
        }
        let mut seen = HashSet::new();
        rows.retain(|row| row.before == Node::Absent && seen.insert(row.path.clone()));
        self.plan.objects = rows;
        Ok(())
    }

    fn pack_rows(&self, objects: &TreePath, added: &AddedPack) -> Result<Vec<GitRow>, GitRefusal> {
        let name = added.pack.name();
        let file = |end: &str| objects.join(format!("pack/pack-{name}.{end}").as_bytes());
        let mut idx = Vec::new();
        added.pack.write_idx(&mut idx)?;
        let (from, digest) = (added.path.clone(), added.digest);
        let mut rows = self.new_rows(file("pack"), GitContent::Pack { from, digest })?;
        rows.extend(self.new_rows(file("idx"), GitContent::Bytes(idx))?);
        Ok(rows)
    }
}

/// What a run touched, by what it is.
#[derive(Default)]
pub(super) struct SortedRows {
    pub(super) refs: BTreeSet<RefName>,
    logs: BTreeSet<TreePath>,
    states: BTreeMap<StateGroup, Vec<TreePath>>,
}

/// Returns whether git puts such a file into every git directory it makes.
fn is_template(path: &TreePath) -> bool {
    let name = path.name();
    name.ends_with(b".sample")
        || matches!(name, b"description" | b"exclude" | b"gitdir" | b"commondir")
}
