//! Looks up objects in a repository of the host: loose ones, packs by their index, alternates.
//!
//! A look-up costs a few small reads however large the history is; nothing is loaded whole but the
//! object that is read. Only the host's own directories are opened, never the layer of a run.

use std::cell::{OnceCell, RefCell};
use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;

use crate::TreePath;
use crate::object::{ObjectKind, Oid};
use crate::pack::{Pack, PackedEntry, apply_delta, read_entry};
use crate::root::{Node, Root, list};

use super::loose::{LooseObject, open_loose};

/// How many alternates of alternates are followed, as git does.
const ALTERNATE_DEPTH: usize = 5;
/// A delta chain of a host's pack is not longer; git writes at most 4095.
const CHAIN_LENGTH: usize = 5000;
/// Packs of one repository that are looked into.
const MOST_PACKS: u64 = 100_000;
/// The bytes of an index before its names: magic, version and 256 counts.
const IDX_HEADER: u64 = 8 + 4 * 256;

/// The objects that a repository of the host has.
pub(crate) struct HostObjects<'a> {
    stores: Vec<ObjectStore>,
    /// A pack of ours, where there is no repository of the host.
    pack: Option<&'a Pack>,
    /// Names that were found before.
    found: RefCell<HashSet<Oid>>,
}

/// One `objects` directory.
struct ObjectStore {
    root: Root,
    /// Where in `root` it is; `None` when `root` is the directory itself.
    at: Option<TreePath>,
    packs: OnceCell<Vec<PackIndex>>,
}

/// The index of one pack.
struct PackIndex {
    idx: File,
    counts: Vec<u32>,
    name: Vec<u8>,
}

/// Where a packed object is.
struct PackedAt<'a> {
    store: &'a ObjectStore,
    name: &'a [u8],
    offset: u64,
}

impl<'a> HostObjects<'a> {
    /// Opens the objects below the git directory `common` of `root`; there are none where it is
    /// not a directory.
    pub(crate) fn open(root: &Root, common: &TreePath) -> io::Result<Self> {
        let objects = common.join(b"objects");
        let mut stores = Vec::new();
        if let Node::Directory(_) = root.node(&objects)? {
            let root = Root::duplicate(std::os::fd::AsFd::as_fd(root))?;
            let alternates = alternates_of(&root, Some(&objects), None)?;
            stores.push(ObjectStore { root, at: Some(objects), packs: OnceCell::new() });
            add_alternates(alternates, ALTERNATE_DEPTH, &mut stores);
        }
        Ok(Self { stores, pack: None, found: RefCell::default() })
    }

    /// Takes the objects of one pack.
    pub(crate) fn of_pack(pack: &'a Pack) -> Self {
        Self { stores: Vec::new(), pack: Some(pack), found: RefCell::default() }
    }

    /// Returns whether there is such an object.
    pub(crate) fn has(&self, oid: Oid) -> io::Result<bool> {
        if self.found.borrow().contains(&oid) {
            return Ok(true);
        }
        let is_ours = self.pack.is_some_and(|pack| pack.stat(oid).is_some());
        let has = is_ours || self.packed(oid)?.is_some() || self.has_loose(oid)?;
        if has {
            self.found.borrow_mut().insert(oid);
        }
        Ok(has)
    }

    /// Returns an object with its kind, held in memory.
    pub(crate) fn read(&self, oid: Oid) -> io::Result<Option<(ObjectKind, Arc<[u8]>)>> {
        if let Some(pack) = self.pack
            && let Some((kind, _)) = pack.stat(oid)
        {
            return Ok(Some((kind, pack.read(oid, kind).map_err(io::Error::other)?)));
        }
        if let Some(at) = self.packed(oid)? {
            return self.read_packed(&at).map(Some);
        }
        match self.loose(oid)? {
            Some(mut object) => {
                let kind = object.kind;
                Ok(Some((kind, object.read_whole()?.into())))
            }
            None => Ok(None),
        }
    }

    fn has_loose(&self, oid: Oid) -> io::Result<bool> {
        for store in &self.stores {
            if let Node::File(_) = store.root.node(&store.path(&loose_name(oid)))? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn loose(&self, oid: Oid) -> io::Result<Option<LooseObject>> {
        for store in &self.stores {
            let path = store.path(&loose_name(oid));
            match store.root.file(&path) {
                Ok((file, _)) => return open_loose(file).map(Some),
                Err(error) if is_absent(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    fn packed(&self, oid: Oid) -> io::Result<Option<PackedAt<'_>>> {
        for store in &self.stores {
            for pack in store.packs()? {
                if let Some(offset) = pack.find(oid)? {
                    return Ok(Some(PackedAt { store, name: &pack.name, offset }));
                }
            }
        }
        Ok(None)
    }

    fn read_packed(&self, at: &PackedAt<'_>) -> io::Result<(ObjectKind, Arc<[u8]>)> {
        let file = at.store.pack_file(at.name)?;
        let mut deltas = Vec::new();
        let mut offset = at.offset;
        let (kind, mut content) = loop {
            if deltas.len() > CHAIN_LENGTH {
                return Err(damaged("a delta chain is too long"));
            }
            match read_entry(&file, offset).map_err(io::Error::other)? {
                PackedEntry::Whole { kind, content } => break (kind, content),
                PackedEntry::OffsetDelta { base, delta } => {
                    deltas.push(delta);
                    offset = base;
                }
                PackedEntry::NameDelta { base, delta } => {
                    deltas.push(delta);
                    let (kind, base) = self.read(base)?.ok_or_else(|| damaged("no delta base"))?;
                    break (kind, base.to_vec());
                }
            }
        };
        for delta in deltas.into_iter().rev() {
            content = apply_delta(&content, &delta).map_err(io::Error::other)?;
        }
        Ok((kind, content.into()))
    }
}

impl ObjectStore {
    fn path(&self, below: &[u8]) -> TreePath {
        match &self.at {
            Some(at) => at.join(below),
            None => TreePath::segment(below),
        }
    }

    fn pack_file(&self, name: &[u8]) -> io::Result<File> {
        let path = self.path(&[b"pack/", name, b".pack"].concat());
        Ok(self.root.file(&path)?.0)
    }

    fn packs(&self) -> io::Result<&[PackIndex]> {
        if let Some(packs) = self.packs.get() {
            return Ok(packs);
        }
        let packs = self.list_packs()?;
        Ok(self.packs.get_or_init(|| packs))
    }

    fn list_packs(&self) -> io::Result<Vec<PackIndex>> {
        let directory = match self.root.directory(Some(&self.path(b"pack"))) {
            Ok(directory) => directory,
            Err(error) if is_absent(&error) => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let names = list(directory, MOST_PACKS)?.ok_or_else(|| damaged("too many packs"))?;
        let mut packs = Vec::new();
        for listed in names {
            let Some(name) = listed.name.strip_suffix(b".idx") else { continue };
            let path = self.path(&[b"pack/", listed.name.as_slice()].concat());
            let (idx, _) = match self.root.file(&path) {
                Ok(opened) => opened,
                // Removed meanwhile by a repack of the person.
                Err(error) if is_absent(&error) => continue,
                Err(error) => return Err(error),
            };
            packs.extend(PackIndex::read(idx, name)?);
        }
        Ok(packs)
    }
}

impl PackIndex {
    /// Reads the counts of an index; `None` for a version that git has not written since 2007.
    fn read(idx: File, name: &[u8]) -> io::Result<Option<Self>> {
        let mut header = [0; IDX_HEADER as usize];
        idx.read_exact_at(&mut header, 0)?;
        let Some(counts) = header.strip_prefix(&[0xff, b't', b'O', b'c', 0, 0, 0, 2]) else {
            return Ok(None);
        };
        let counts = counts
            .chunks_exact(4)
            .map(|word| word.iter().fold(0_u32, |value, byte| value << 8 | u32::from(*byte)));
        Ok(Some(Self { idx, counts: counts.collect(), name: name.to_vec() }))
    }

    /// Returns the offset of an object in the pack.
    fn find(&self, oid: Oid) -> io::Result<Option<u64>> {
        let [first, ..] = *oid.as_bytes();
        let count = |at: usize| u64::from(self.counts.get(at).copied().unwrap_or(0));
        let total = count(255);
        let (mut low, mut high) = match usize::from(first).checked_sub(1) {
            Some(before) => (count(before), count(usize::from(first))),
            None => (0, count(0)),
        };
        while low < high {
            let middle = low + (high - low) / 2;
            let mut name = [0; 20];
            self.idx.read_exact_at(&mut name, IDX_HEADER + middle * 20)?;
            match name.as_slice().cmp(oid.as_bytes()) {
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Greater => high = middle,
                std::cmp::Ordering::Equal => return self.offset(middle, total).map(Some),
            }
        }
        Ok(None)
    }

    fn offset(&self, at: u64, total: u64) -> io::Result<u64> {
        const LARGE: u32 = 0x8000_0000;
        let offsets = IDX_HEADER + total * 24;
        let mut word = [0; 4];
        self.idx.read_exact_at(&mut word, offsets + at * 4)?;
        let word = u32::from_be_bytes(word);
        if word & LARGE == 0 {
            return Ok(u64::from(word));
        }
        let mut large = [0; 8];
        let at = offsets + total * 4 + u64::from(word & !LARGE) * 8;
        self.idx.read_exact_at(&mut large, at)?;
        Ok(u64::from_be_bytes(large))
    }
}

/// Opens the alternates that the host's own repository names.
fn alternates_of(
    root: &Root,
    objects: Option<&TreePath>,
    directory: Option<&Path>,
) -> io::Result<Vec<std::path::PathBuf>> {
    const LONGEST: u64 = 1 << 20;
    let info = b"info/alternates";
    let path = objects.map_or_else(|| TreePath::segment(info), |objects| objects.join(info));
    let file = match root.file(&path) {
        Ok((file, _)) => file,
        Err(error) if is_absent(&error) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut text = Vec::new();
    file.take(LONGEST).read_to_end(&mut text)?;
    let base = match (directory, objects) {
        (Some(directory), _) => directory.to_path_buf(),
        (None, Some(objects)) => root.path()?.join(objects.as_path()),
        (None, None) => root.path()?,
    };
    let lines = text.split(|byte| *byte == b'\n');
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with(b"#"));
    Ok(lines.map(|line| base.join(std::ffi::OsStr::from_bytes(line))).collect())
}

fn add_alternates(paths: Vec<std::path::PathBuf>, depth: usize, stores: &mut Vec<ObjectStore>) {
    let Some(depth) = depth.checked_sub(1) else { return };
    for path in paths {
        // An alternate that is gone has no objects; git warns and goes on.
        let Ok(root) = Root::open(&path) else { continue };
        let further = alternates_of(&root, None, Some(&path)).unwrap_or_default();
        stores.push(ObjectStore { root, at: None, packs: OnceCell::new() });
        add_alternates(further, depth, stores);
    }
}

/// Returns the path of a loose object below `objects`.
pub(crate) fn loose_name(oid: Oid) -> Vec<u8> {
    let hex = oid.to_hex();
    let (directory, name) = hex.split_at(2);
    format!("{directory}/{name}").into_bytes()
}

fn is_absent(error: &io::Error) -> bool {
    use rustix::io::Errno;
    matches!(Errno::from_io_error(error), Some(Errno::NOENT | Errno::NOTDIR | Errno::LOOP))
}

fn damaged(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}
