//! The commits of a run, from the bundle that was kept of them: checked by us before anything else
//! reads them.

use std::fs::File;
use std::io::{BufReader, Seek as _};
use std::path::Path;

use super::PullError;
use crate::RefUpdate;
use crate::TreePath;
use crate::bundle::BundleHeader;
use crate::discover::Repository;
use crate::gitstate::{PlannedCommits, check_commits, plan_commits};
use crate::limits::TreeLimits;
use crate::object::Oid;
use crate::pack::Pack;
use crate::progress::quiet;
use crate::root::Root;

/// What a run committed.
#[derive(Debug, Clone, Copy)]
pub struct PullCommits<'a> {
    /// The bundle that was kept.
    pub bundle: &'a File,
    /// Which references the run changed, as its receipt says.
    pub updates: &'a [RefUpdate],
}

/// A bundle whose header was read.
pub(super) struct OpenedCommits<'a> {
    commits: PullCommits<'a>,
    pack_at: u64,
    /// The commit that the run's HEAD was at.
    pub(super) head: Oid,
}

impl<'a> OpenedCommits<'a> {
    pub(super) fn open(commits: PullCommits<'a>) -> Result<Self, PullError> {
        let mut file = commits.bundle.try_clone().map_err(PullError::Scratch)?;
        file.rewind().map_err(PullError::Scratch)?;
        let mut reader = BufReader::new(file);
        let header = BundleHeader::read(&mut reader).map_err(PullError::Scratch)?;
        let pack_at = reader.stream_position().map_err(PullError::Scratch)?;
        let head = header.references.iter().find(|(name, _)| name == "HEAD");
        let head = head.map(|(_, oid)| *oid);
        let head = head.ok_or_else(|| PullError::Commits("the bundle names no HEAD".to_owned()))?;
        Ok(Self { commits, pack_at, head })
    }

    /// Reads the pack, each object hashed.
    pub(super) fn pack(&self) -> Result<Pack, PullError> {
        let refused = |why: String| PullError::Commits(why);
        let file = self.commits.bundle.try_clone().map_err(PullError::Scratch)?;
        let pack = Pack::index(file, self.pack_at, &TreeLimits::generous(), &quiet)
            .map_err(|error| refused(error.to_string()))?;
        match pack.is_whole_file().map_err(PullError::Scratch)? {
            true => Ok(pack),
            false => Err(refused("the bundle's checksum is wrong".to_owned())),
        }
    }

    /// Plans the change of a repository whose git directory is its own; `None` where it is not, or
    /// is not as the run found it.
    pub(super) fn plan(&self, root: &Root) -> Result<Option<PlannedCommits>, PullError> {
        let git = TreePath::segment(b".git");
        let node = root.node(&git).map_err(PullError::Scratch)?;
        let crate::root::Node::Directory(_) = node else { return Ok(None) };
        plan_commits(root, self.pack()?, self.commits.updates).map_err(PullError::Commits)
    }

    /// Makes sure that the repository has everything the commits lead to, and puts them where a
    /// scratch repository finds them.
    pub(super) fn install(&self, repository: &Repository, objects: &Path) -> Result<(), PullError> {
        let common = &repository.common_directory;
        let (Some(above), Some(name)) = (common.parent(), common.file_name()) else {
            return Err(PullError::Commits("the repository has no directory".to_owned()));
        };
        let root = Root::open(above).map_err(PullError::Scratch)?;
        let git = TreePath::segment(name.as_encoded_bytes());
        check_commits(&root, &git, self.pack()?, self.head).map_err(PullError::Commits)?;
        crate::materialize::install_pack(&self.pack()?, &objects.join("pack"))
            .map_err(PullError::Scratch)
    }
}
