//! Builds a checkout from a manifest and blobs, every blob hashed on arrival.
//!
//! The order: fetch and prove the bundle, read its tree, apply the dirty diff to a tree of ours,
//! judge every path, and only then write. Git's own code sees at most the dirty diff, inside a
//! scratch repository of ours; nothing in the checkout is executed or even configured by it.

mod dirty;
mod gitdir;
mod plan;
mod write;

pub(crate) use dirty::install_pack;
use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io::{self, BufReader, Read, Seek as _, Write};
use std::path::{Path, PathBuf};

use thiserror::Error;
use warrant_protocol::{Digest, WorkspaceManifest};

use crate::blob::{SMALL_BYTES, Spool, copy_hashed};
use crate::bundle::BundleHeader;
use crate::object::{FileMode, InvalidTree, ObjectKind, Oid, TreeEntry, parse_commit, parse_tree};
use crate::pack::Pack;
use crate::progress::{Phase, Progress, Step};
use crate::raw::BaseFile;
use crate::root::{Facts, Root};
use crate::threads::FEW_FILES;
use crate::walk::check_depth;
use crate::{BlobSource, GitError, LimitExceeded, PackError, TreeLimits, TreePath};

/// How to materialize.
#[derive(Clone, Copy)]
pub struct MaterializeOptions<'a> {
    /// A directory of ours for scratch files, which the session never sees.
    pub scratch: &'a Path,
    /// Bounds on what the manifest brings.
    pub limits: TreeLimits,
    /// Whether the checkout gets a `.git` directory, so that the session can use git.
    pub git_directory: GitDirectory,
    /// Told how far it is.
    pub progress: Progress<'a>,
}

/// Whether a checkout is also a repository.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GitDirectory {
    /// With a `.git` of our making: the bundle's objects, a detached HEAD, a plain config.
    Write,
    /// Only the files.
    Omit,
}

/// Why a workspace was not materialized.
#[derive(Debug, Error)]
pub enum MaterializeError {
    /// The target is not an empty directory.
    #[error("{0} is not an empty directory")]
    NotEmpty(PathBuf),
    /// A blob is not what its digest says.
    #[error("blob {wanted} arrived as {found}")]
    Digest {
        /// What the manifest says.
        wanted: Digest,
        /// What came.
        found: Digest,
    },
    /// An untracked file has another size than the manifest says.
    #[error("untracked file {0} has another size than the manifest says")]
    Size(TreePath),
    /// A blob could not be fetched.
    #[error("blob {digest} could not be fetched")]
    Fetch {
        /// Which.
        digest: Digest,
        /// Why.
        source: io::Error,
    },
    /// The base is not a full commit name, or not in the bundle.
    #[error("baseRef {0} is not a commit of the bundle")]
    Base(String),
    /// A path of the manifest may not be written.
    #[error("manifest path {path} is refused: {why}")]
    Path {
        /// Which.
        path: String,
        /// Why, in a few words.
        why: &'static str,
    },
    /// A tree of the bundle may not be written.
    #[error(transparent)]
    Tree(#[from] InvalidTree),
    /// The bundle is bad.
    #[error(transparent)]
    Pack(#[from] PackError),
    /// The dirty diff does not apply to the base.
    #[error("the dirty diff does not apply to the base")]
    Dirty(#[source] GitError),
    /// A bound was passed.
    #[error(transparent)]
    Limit(#[from] LimitExceeded),
    /// A file could not be written.
    #[error("{path} could not be written")]
    Write {
        /// Which.
        path: String,
        /// What the system said.
        source: io::Error,
    },
    /// A scratch file could not be written or read.
    #[error("the scratch directory failed")]
    Scratch(#[source] io::Error),
}

/// A file as it was written, with what `stat` said right after.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Written {
    pub(crate) file: BaseFile,
    pub(crate) facts: Facts,
}

/// A checkout, and what is needed to tell later what changed in it.
///
/// Everything it compares with lies outside the checkout, out of the session's reach.
#[derive(Debug)]
pub struct Checkout {
    pub(crate) path: PathBuf,
    pub(crate) root: Root,
    pub(crate) base: HashMap<TreePath, BaseFile>,
    pub(crate) written: HashMap<TreePath, Written>,
    pub(crate) pack: Pack,
    /// The commit that HEAD was at.
    pub(crate) commit: Oid,
}

impl Checkout {
    /// Returns where the checkout lies.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns how many files were written.
    #[must_use]
    pub fn files(&self) -> usize {
        self.written.len()
    }
}

/// Builds the checkout that `manifest` describes in the empty directory `target`.
///
/// # Errors
/// [`MaterializeError`]; the target may then hold a part of the files and must not be used.
pub fn materialize(
    manifest: &WorkspaceManifest,
    source: &dyn BlobSource,
    target: &Path,
    options: &MaterializeOptions<'_>,
) -> Result<Checkout, MaterializeError> {
    let root = empty_root(target)?;
    let (bundle, bundle_bytes) = fetch(source, &manifest.bundle_hash, options)?;
    let (header, pack) = open_bundle(bundle, options)?;
    let base_ref = Oid::from_hex(&manifest.base_ref)
        .filter(|oid| matches!(pack.stat(*oid), Some((ObjectKind::Commit, _))))
        .ok_or_else(|| MaterializeError::Base(manifest.base_ref.clone()))?;
    let base = read_base(&pack, base_ref, manifest, &options.limits)?;
    let dirty = match &manifest.dirty_diff_hash {
        Some(digest) => {
            let (diff, _) = fetch(source, digest, options)?;
            Some(dirty::apply(&pack, base_ref, diff, options.scratch)?)
        }
        None => None,
    };
    let plan = plan::plan(&base, dirty.as_ref(), manifest, &options.limits)?;
    let git = gitdir::Writer { target, pack: &pack, header: &header, base_ref };
    let begin = || match options.git_directory {
        GitDirectory::Write => git.begin(),
        GitDirectory::Omit => Ok(()),
    };
    let write = || write::write(&root, &plan, &pack, options);
    let (written, begun) = match bundle_bytes > SMALL_BYTES || plan.base.len() > FEW_FILES {
        // The session's copy of the pack is written beside the files.
        true => std::thread::scope(|scope| {
            let begun = scope.spawn(begin);
            (write(), begun.join())
        }),
        false => (write(), Ok(begin())),
    };
    let mut written = written?;
    if let Some(dirty) = &dirty {
        write::write_dirty(&root, &plan, dirty, &mut written)?;
    }
    write::write_untracked(&root, &plan, source, &mut written)?;
    let git_failed = |source| MaterializeError::Write { path: ".git".into(), source };
    begun.unwrap_or_else(|_| Err(io::ErrorKind::Other.into())).map_err(git_failed)?;
    if options.git_directory == GitDirectory::Write {
        let index =
            gitdir::Index { base: &base.files, held_back: &base.held_back, written: &written };
        git.finish(&index).map_err(git_failed)?;
    }
    Ok(Checkout {
        path: target.to_path_buf(),
        root,
        base: base.files,
        written,
        pack,
        commit: base_ref,
    })
}

fn empty_root(target: &Path) -> Result<Root, MaterializeError> {
    let refused = |_| MaterializeError::NotEmpty(target.to_path_buf());
    let root = Root::open(target).map_err(refused)?;
    let directory = root.directory(None).map_err(refused)?;
    match crate::root::list(directory, 0).map_err(refused)? {
        Some(_) => Ok(root),
        None => Err(MaterializeError::NotEmpty(target.to_path_buf())),
    }
}

/// Fetches a blob into a file of ours and proves its digest; returns its size, too.
fn fetch(
    source: &dyn BlobSource,
    digest: &Digest,
    options: &MaterializeOptions<'_>,
) -> Result<(File, u64), MaterializeError> {
    let failed = |source| MaterializeError::Fetch { digest: *digest, source };
    let mut spool = Spool::new(options.scratch).map_err(MaterializeError::Scratch)?;
    let mut reader = source.open(digest).map_err(failed)?;
    let mut sink = Counted { spool: &mut spool, done: 0, progress: options.progress };
    let stored = copy_hashed(&mut reader, &mut sink).map_err(failed)?;
    if stored.digest != *digest {
        return Err(MaterializeError::Digest { wanted: *digest, found: stored.digest });
    }
    let file = spool.into_file().map_err(MaterializeError::Scratch)?;
    Ok((file, stored.bytes))
}

struct Counted<'a, 's> {
    spool: &'a mut Spool<'s>,
    done: u64,
    progress: Progress<'a>,
}

impl Write for Counted<'_, '_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.spool.write(bytes)?;
        self.done += count as u64;
        (self.progress)(Step { phase: Phase::Fetching, done: self.done, total: None });
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.spool.flush()
    }
}

fn open_bundle(
    bundle: File,
    options: &MaterializeOptions<'_>,
) -> Result<(BundleHeader, Pack), MaterializeError> {
    let mut reader = BufReader::new(bundle);
    let header = BundleHeader::read(&mut reader).map_err(PackError::Io)?;
    let start = reader.stream_position().map_err(PackError::Io)?;
    let pack = Pack::index(reader.into_inner(), start, &options.limits, options.progress)?;
    Ok((header, pack))
}

/// The base commit's files, apart from those that did not travel.
struct Base {
    files: HashMap<TreePath, BaseFile>,
    /// The same files, directory by directory.
    order: Vec<(TreePath, BaseFile)>,
    held_back: HashMap<TreePath, BaseFile>,
}

/// Reads the base commit's whole tree.
///
/// A file whose blob did not travel must be one the manifest says was held back.
fn read_base(
    pack: &Pack,
    base_ref: Oid,
    manifest: &WorkspaceManifest,
    limits: &TreeLimits,
) -> Result<Base, MaterializeError> {
    let commit = pack.read(base_ref, ObjectKind::Commit)?;
    let (tree, _) =
        parse_commit(&commit).ok_or_else(|| MaterializeError::Base(manifest.base_ref.clone()))?;
    let may_lack: HashSet<&[u8]> =
        manifest.denied_paths.iter().map(|path| path.as_str().as_bytes()).collect();
    let mut base = Base { files: HashMap::new(), order: Vec::new(), held_back: HashMap::new() };
    let mut waiting: Vec<(Option<TreePath>, Oid)> = vec![(None, tree)];
    let mut entries = 0_u64;
    while let Some((path, oid)) = waiting.pop() {
        for entry in parse_tree(&pack.read(oid, ObjectKind::Tree)?)? {
            entries += 1;
            if entries > limits.entries {
                return Err(LimitExceeded::Entries(limits.entries).into());
            }
            match entry {
                TreeEntry::Directory { name, oid } => {
                    let child = crate::walk::child_of(path.as_ref(), &name);
                    check_depth(&child, limits)?;
                    waiting.push((Some(child), oid));
                }
                TreeEntry::File { name, mode, oid } => {
                    let child = crate::walk::child_of(path.as_ref(), &name);
                    let travels = mode == FileMode::Submodule || pack.stat(oid).is_some();
                    if !travels && !may_lack.contains(child.as_bytes()) {
                        return Err(PackError::Missing(oid).into());
                    }
                    let file = BaseFile { mode, oid };
                    if travels {
                        base.order.push((child.clone(), file));
                    }
                    let files = if travels { &mut base.files } else { &mut base.held_back };
                    // SECURITY: two entries of one name let a link and a directory share it.
                    if files.insert(child, file).is_some() {
                        return Err(InvalidTree::Malformed.into());
                    }
                }
            }
        }
    }
    Ok(base)
}

/// Reads all of a reader that is known to be small.
fn read_small(reader: &mut dyn Read, limit: u64) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    reader.take(limit).read_to_end(&mut content)?;
    Ok(content)
}

/// Removes what an earlier, broken materialization left in `target`.
///
/// # Errors
/// When something cannot be removed.
pub fn clear(target: &Path) -> io::Result<()> {
    for entry in fs::read_dir(target)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            fs::remove_dir_all(entry.path())?;
        } else {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}
