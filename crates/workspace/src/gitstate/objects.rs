//! The objects that a run added, read from its layer: each hashed, parsed and followed until the
//! host's own objects are reached.
//!
//! Only what something wanted leads to is read. An object whose bytes do not have its name, that
//! does not parse, or that leads to one which is nowhere, makes whatever wanted it fail.

use std::cell::OnceCell;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::io;
use std::sync::Arc;

use thiserror::Error;
use warrant_protocol::Digest;

use super::host::HostObjects;
use super::loose::open_loose;
use super::object_links::{ExpectedKind, ObjectLink, links_of};
use crate::TreePath;
use crate::blob::copy_hashed;
use crate::limits::TreeLimits;
use crate::object::{ObjectKind, Oid};
use crate::overlay::Scanned;
use crate::pack::Pack;
use crate::progress::quiet;
use crate::root::{Node, Root};

/// Why an object cannot be imported.
#[derive(Debug, Error)]
pub(crate) enum ObjectProblem {
    #[error("object {} is neither in the repository nor in what the run wrote", .0.to_hex())]
    Missing(Oid),
    #[error("object {} does not have the content its name says", .0.to_hex())]
    Lies(Oid),
    #[error("object {} is refused: {why}", oid.to_hex())]
    Malformed { oid: Oid, why: String },
    #[error("object {} is not the kind of object that is named there", .0.to_hex())]
    Kind(Oid),
    #[error("{path} is refused: {why}")]
    Pack { path: TreePath, why: String },
    #[error("the run wrote more objects than are read")]
    TooMuch,
    #[error("the repository could not be read")]
    Io(#[from] io::Error),
}

/// A pack that a run added.
pub(crate) struct AddedPack {
    pub(crate) path: TreePath,
    pub(crate) pack: Pack,
    /// The hash of the whole file, as it was checked.
    pub(crate) digest: Digest,
}

/// What is wanted of the objects that a run added.
#[derive(Debug, Default)]
pub(crate) struct NeededObjects {
    /// Loose ones, by name.
    pub(crate) loose: BTreeSet<Oid>,
    /// Packs, by their number.
    pub(crate) packs: BTreeSet<usize>,
    /// Every object that the host lacks.
    pub(crate) names: BTreeSet<Oid>,
}

/// The objects of one repository: the host's, and what a run added.
pub(crate) struct AddedObjects<'a> {
    pub(crate) host: HostObjects<'a>,
    upper: &'a Root,
    limits: TreeLimits,
    loose: HashMap<Oid, TreePath>,
    /// The size of all loose files together.
    loose_bytes: u64,
    pack_paths: Vec<TreePath>,
    packs: OnceCell<Vec<AddedPack>>,
    /// Objects whose whole closure was checked.
    checked: HashSet<Oid>,
    needed: NeededObjects,
    read_bytes: u64,
}

/// One object on the way of a walk, with the host's tree that lies at the same place.
struct WalkStep {
    link: ObjectLink,
    base: Option<Oid>,
}

impl<'a> AddedObjects<'a> {
    /// Lists what a run added below `objects`, without reading it.
    pub(crate) fn list(
        (host, upper): (HostObjects<'a>, &'a Root),
        objects: &TreePath,
        rows: &[&Scanned],
        limits: TreeLimits,
    ) -> Self {
        let (mut loose, mut loose_bytes, mut pack_paths) = (HashMap::new(), 0_u64, Vec::new());
        let is_added = |row: &&&Scanned| {
            matches!((row.before, row.after), (Node::Absent, Node::File(_)))
                && row.path.is_within(objects)
        };
        for row in rows.iter().filter(is_added) {
            let below = row.path.as_bytes().get(objects.as_bytes().len() + 1..);
            let Some(below) = below.and_then(|below| std::str::from_utf8(below).ok()) else {
                continue;
            };
            if let Some(oid) = Oid::from_hex(&below.replacen('/', "", 1))
                && below.find('/') == Some(2)
            {
                if let Node::File(facts) = row.after {
                    loose_bytes = loose_bytes.saturating_add(facts.bytes);
                }
                loose.insert(oid, row.path.clone());
            } else if below.starts_with("pack/pack-") && below.ends_with(".pack") {
                pack_paths.push(row.path.clone());
            }
        }
        Self {
            host,
            upper,
            limits,
            loose,
            loose_bytes,
            pack_paths,
            packs: OnceCell::new(),
            checked: HashSet::new(),
            needed: NeededObjects::default(),
            read_bytes: 0,
        }
    }

    /// Takes the objects of one pack that did not come in a layer.
    pub(crate) fn of_pack(
        host: HostObjects<'a>,
        root: &'a Root,
        pack: Pack,
        limits: TreeLimits,
    ) -> Self {
        let added = Self::list((host, root), &TreePath::segment(b"objects"), &[], limits);
        let (path, digest) = (TreePath::segment(b"bundle"), Digest::of(b""));
        added.put_packs(vec![AddedPack { path, pack, digest }]);
        added
    }

    /// Puts packs back that were taken out.
    pub(crate) fn put_packs(&self, packs: Vec<AddedPack>) {
        // Where there are some already, these are the same.
        let _ = self.packs.set(packs);
    }

    /// Returns an added object with its content, blobs too.
    pub(crate) fn content(&self, oid: Oid) -> Result<(ObjectKind, Arc<[u8]>), ObjectProblem> {
        let malformed = |why: String| ObjectProblem::Malformed { oid, why };
        if let Some(path) = self.loose.get(&oid) {
            let (file, _) = self.upper.file(path)?;
            let mut object = open_loose(file)?;
            let content = object.read_whole()?;
            // SECURITY: read a second time, so checked a second time.
            if crate::object::object_name(object.kind, &content) != oid {
                return Err(ObjectProblem::Lies(oid));
            }
            return Ok((object.kind, content.into()));
        }
        let (_, pack) = self.in_packs(oid)?.ok_or(ObjectProblem::Missing(oid))?;
        let (kind, _) = pack.stat(oid).ok_or(ObjectProblem::Missing(oid))?;
        let content = pack.read(oid, kind).map_err(|error| malformed(error.to_string()))?;
        Ok((kind, content))
    }

    /// Takes out what was wanted, and the packs it may be in.
    pub(crate) fn take_needed(&mut self) -> (NeededObjects, Vec<AddedPack>) {
        (std::mem::take(&mut self.needed), self.packs.take().unwrap_or_default())
    }

    /// Makes sure that an object and everything it leads to is there, and notes what of it the
    /// host lacks.
    pub(crate) fn want(&mut self, oid: Oid, expected: ExpectedKind) -> Result<(), ObjectProblem> {
        if self.host.has(oid)? {
            let needs_kind = expected == ExpectedKind::Commit || expected == ExpectedKind::Tree;
            let kind = match needs_kind {
                true => self.host.read(oid)?.map(|(kind, _)| kind),
                false => None,
            };
            return match kind {
                Some(kind) if !expected.accepts(kind) => Err(ObjectProblem::Kind(oid)),
                _ => Ok(()),
            };
        }
        let mut seen = HashSet::new();
        let mut needed = NeededObjects::default();
        let link = ObjectLink { oid, expected, name: Vec::new() };
        let mut waiting = vec![WalkStep { link, base: None }];
        while let Some(step) = waiting.pop() {
            let oid = step.link.oid;
            if self.checked.contains(&oid) || !seen.insert(oid) || self.host.has(oid)? {
                continue;
            }
            let (kind, content) = self.read_added(oid, &mut needed)?;
            if !step.link.expected.accepts(kind) {
                return Err(ObjectProblem::Kind(oid));
            }
            let links =
                links_of(kind, &content).map_err(|why| ObjectProblem::Malformed { oid, why })?;
            waiting.extend(self.steps((kind, links), step.base)?);
        }
        self.checked.extend(seen);
        self.needed.loose.extend(needed.loose);
        self.needed.packs.extend(needed.packs);
        self.needed.names.extend(needed.names);
        Ok(())
    }

    /// Returns any object, of the host or of the run.
    pub(crate) fn read(&mut self, oid: Oid) -> Result<(ObjectKind, Arc<[u8]>), ObjectProblem> {
        if let Some(found) = self.host.read(oid)? {
            return Ok(found);
        }
        self.read_added(oid, &mut NeededObjects::default())
    }

    /// Returns what an object names, but for what the host's tree at the same place names too.
    fn steps(
        &self,
        (kind, links): (ObjectKind, Vec<ObjectLink>),
        base: Option<Oid>,
    ) -> Result<Vec<WalkStep>, ObjectProblem> {
        let mut waiting = Vec::new();
        match kind {
            ObjectKind::Commit => {
                let parent = links.iter().find(|link| link.expected == ExpectedKind::Commit);
                let base = match parent {
                    Some(parent) => self.tree_of(parent.oid)?,
                    None => None,
                };
                waiting.extend(links.into_iter().map(|link| WalkStep { link, base }));
            }
            ObjectKind::Tree => {
                let known = match base {
                    Some(base) => self.host_tree(base)?,
                    None => HashMap::new(),
                };
                for link in links {
                    let base = known.get(&link.name).copied();
                    if base != Some(link.oid) {
                        waiting.push(WalkStep { link, base });
                    }
                }
            }
            ObjectKind::Tag | ObjectKind::Blob => {
                waiting.extend(links.into_iter().map(|link| WalkStep { link, base: None }));
            }
        }
        Ok(waiting)
    }

    /// Returns the tree of a commit of the host.
    fn tree_of(&self, commit: Oid) -> Result<Option<Oid>, ObjectProblem> {
        let found = self.host.read(commit)?;
        let tree = found.filter(|(kind, _)| *kind == ObjectKind::Commit);
        let links = tree.and_then(|(kind, content)| links_of(kind, &content).ok());
        let mut links = links.into_iter().flatten();
        Ok(links.find(|link| link.expected == ExpectedKind::Tree).map(|link| link.oid))
    }

    /// Returns what a tree of the host names.
    fn host_tree(&self, tree: Oid) -> Result<HashMap<Vec<u8>, Oid>, ObjectProblem> {
        let Some((ObjectKind::Tree, content)) = self.host.read(tree)? else {
            return Ok(HashMap::new());
        };
        let links = links_of(ObjectKind::Tree, &content).unwrap_or_default();
        Ok(links.into_iter().map(|link| (link.name, link.oid)).collect())
    }

    /// Reads and hashes an object that the run added; the content of a blob is not kept.
    fn read_added(
        &mut self,
        oid: Oid,
        needed: &mut NeededObjects,
    ) -> Result<(ObjectKind, Arc<[u8]>), ObjectProblem> {
        if let Some(path) = self.loose.get(&oid) {
            let (file, _) = self.upper.file(path)?;
            let malformed =
                |error: io::Error| ObjectProblem::Malformed { oid, why: error.to_string() };
            let mut object = open_loose(file).map_err(malformed)?;
            self.read_bytes = self.read_bytes.saturating_add(object.bytes);
            let limits = bounded(self.limits, self.loose_bytes);
            if self.read_bytes > limits.bytes || object.bytes > limits.file_bytes {
                return Err(ObjectProblem::TooMuch);
            }
            let kind = object.kind;
            let (name, content) = match kind {
                ObjectKind::Blob => (object.copy_to(&mut io::sink()).map_err(malformed)?, vec![]),
                _ => {
                    let content = object.read_whole().map_err(malformed)?;
                    (crate::object::object_name(kind, &content), content)
                }
            };
            // SECURITY: git reads an object by its name and would take these bytes for the others.
            if name != oid {
                return Err(ObjectProblem::Lies(oid));
            }
            needed.loose.insert(oid);
            needed.names.insert(oid);
            return Ok((kind, content.into()));
        }
        let (number, pack) = self.in_packs(oid)?.ok_or(ObjectProblem::Missing(oid))?;
        let (kind, _) = pack.stat(oid).ok_or(ObjectProblem::Missing(oid))?;
        let malformed =
            |why: crate::PackError| ObjectProblem::Malformed { oid, why: why.to_string() };
        let content = match kind {
            ObjectKind::Blob => Arc::from([]),
            _ => pack.read(oid, kind).map_err(malformed)?,
        };
        needed.packs.insert(number);
        needed.names.insert(oid);
        Ok((kind, content))
    }

    /// Finds an object in the added packs, which are read and hashed the first time.
    fn in_packs(&self, oid: Oid) -> Result<Option<(usize, &Pack)>, ObjectProblem> {
        let packs = match self.packs.get() {
            Some(packs) => packs,
            None => {
                let packs = self.read_packs()?;
                self.packs.get_or_init(|| packs)
            }
        };
        let packs = packs.iter().map(|added| &added.pack).enumerate();
        Ok(packs.into_iter().find(|(_, pack)| pack.stat(oid).is_some()))
    }

    fn read_packs(&self) -> Result<Vec<AddedPack>, ObjectProblem> {
        let mut packs = Vec::new();
        for path in &self.pack_paths {
            let refused = |why: String| ObjectProblem::Pack { path: path.clone(), why };
            let (mut file, _) = self.upper.file(path)?;
            let digest = copy_hashed(&mut file, &mut io::sink())?.digest;
            let limits = bounded(self.limits, file.metadata()?.len());
            let pack = Pack::index(file, 0, &limits, &quiet)
                .map_err(|error| refused(error.to_string()))?;
            if !pack.is_whole_file()? {
                return Err(refused("its checksum is wrong".to_owned()));
            }
            check_all(&pack).map_err(refused)?;
            packs.push(AddedPack { path: path.clone(), pack, digest });
        }
        Ok(packs)
    }
}

/// Bounds what a pack may inflate to by its own size.
///
/// SECURITY: deltas make gigabytes out of a few bytes; reading must not cost more than the run was
/// allowed to write. Packs of real histories inflate to less than a hundred times their size.
fn bounded(limits: TreeLimits, file_bytes: u64) -> TreeLimits {
    const LEAST: u64 = 1 << 30;
    const RATIO: u64 = 256;
    let bytes = limits.bytes.min(LEAST.saturating_add(file_bytes.saturating_mul(RATIO)));
    TreeLimits { bytes, ..limits }
}

/// Makes sure that git accepts every object of a pack, because the pack is taken whole.
fn check_all(pack: &Pack) -> Result<(), String> {
    for oid in pack.names() {
        let kind = pack.stat(oid).map(|(kind, _)| kind);
        let Some(kind) = kind.filter(|kind| *kind != ObjectKind::Blob) else { continue };
        let content = pack.read(oid, kind).map_err(|error| error.to_string())?;
        links_of(kind, &content).map_err(|why| format!("object {}: {why}", oid.to_hex()))?;
    }
    Ok(())
}
