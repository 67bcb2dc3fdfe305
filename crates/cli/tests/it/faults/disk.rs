//! A disk that forgets: what was not synced may be there, in part or not at all, after a cut.
//!
//! Bytes are durable once a sync that began after they were written has ended; names once the
//! directory was synced. Of everything else a cut keeps any part: of the bytes of a file any of its
//! writes, torn at sectors; of the names of a directory the changes up to some point.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use super::Chance;
use super::trace::FileChange;

/// The smallest piece that is written whole.
const SECTOR: usize = 512;

/// The files below one directory.
#[derive(Debug, Clone, Default)]
pub(super) struct ForgetfulDisk {
    files: Vec<FileOnDisk>,
    /// The names as processes see them.
    names: BTreeMap<PathBuf, usize>,
    /// The names that are durable.
    durable_names: BTreeMap<PathBuf, usize>,
    /// Changes of names that are not, by directory.
    pending_names: BTreeMap<PathBuf, Vec<NameChange>>,
    /// What each sync under way will have made durable.
    syncing: HashMap<u32, Synced>,
}

#[derive(Debug, Clone, Default)]
struct FileOnDisk {
    durable: Vec<u8>,
    pending: Vec<DataChange>,
    /// How many changes became durable, so that a sync knows which are new.
    settled: usize,
    length: u64,
}

#[derive(Debug, Clone)]
enum DataChange {
    Write { offset: u64, bytes: Vec<u8> },
    Resize(u64),
}

#[derive(Debug, Clone)]
enum NameChange {
    Put(PathBuf, usize),
    Remove(PathBuf),
}

#[derive(Debug, Clone)]
enum Synced {
    File { file: usize, changes: usize },
    Directory { path: PathBuf, changes: usize },
}

/// How much of what is not durable a cut keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kept {
    Nothing,
    Everything,
    AnyPart,
}

impl ForgetfulDisk {
    /// Reads what is below `root` now; all of it is durable.
    pub(super) fn of(root: &Path) -> Self {
        let mut disk = Self::default();
        let mut left = vec![root.to_owned()];
        while let Some(dir) = left.pop() {
            for entry in fs::read_dir(dir).unwrap() {
                let entry = entry.unwrap();
                let kind = entry.file_type().unwrap();
                if kind.is_dir() {
                    left.push(entry.path());
                } else if kind.is_file() {
                    let durable = fs::read(entry.path()).unwrap();
                    let length = durable.len() as u64;
                    disk.files.push(FileOnDisk { durable, length, ..FileOnDisk::default() });
                    let file = disk.files.len() - 1;
                    disk.names.insert(entry.path(), file);
                    disk.durable_names.insert(entry.path(), file);
                }
            }
        }
        disk
    }

    /// Does what a process did.
    pub(super) fn apply(&mut self, change: &FileChange) {
        match change {
            FileChange::Opened { path, is_truncated } => {
                let file = self.file_or_new(path);
                if *is_truncated {
                    self.resize(file, 0);
                }
            }
            FileChange::Written { path, offset, bytes } => {
                let file = self.file_or_new(path);
                let entry = &mut self.files[file];
                let offset = offset.unwrap_or(entry.length);
                entry.length = entry.length.max(offset + bytes.len() as u64);
                entry.pending.push(DataChange::Write { offset, bytes: bytes.clone() });
            }
            FileChange::Resized { path, length } => {
                let file = self.file_or_new(path);
                self.resize(file, *length);
            }
            FileChange::Renamed { from, to } => self.rename(from, to),
            FileChange::Linked { from, to } => {
                if let Some(file) = self.names.get(from).copied() {
                    self.put(to.clone(), file);
                }
            }
            FileChange::Removed { path } => self.remove(path),
            // Directories are made where files need them.
            FileChange::DirectoryMade { .. } => {}
            FileChange::SyncBegan { thread, path } => {
                let synced = match self.names.get(path) {
                    Some(file) => {
                        let of = &self.files[*file];
                        Synced::File { file: *file, changes: of.settled + of.pending.len() }
                    }
                    None => {
                        let changes = self.pending_names.get(path).map_or(0, Vec::len);
                        Synced::Directory { path: path.clone(), changes }
                    }
                };
                self.syncing.insert(*thread, synced);
            }
            FileChange::SyncEnded { thread, .. } => match self.syncing.remove(thread) {
                Some(Synced::File { file, changes }) => self.files[file].settle(changes),
                Some(Synced::Directory { path, changes }) => self.settle_names(&path, changes),
                None => {}
            },
        }
    }

    /// Writes what is left after a cut to `target`, which stands for `root`.
    pub(super) fn cut(&self, (root, target): (&Path, &Path), kept: Kept, chance: &mut Chance) {
        let mut names = self.durable_names.clone();
        for changes in self.pending_names.values() {
            let count = match kept {
                Kept::Nothing => 0,
                Kept::Everything => changes.len(),
                Kept::AnyPart => usize::try_from(chance.below(changes.len() as u64 + 1)).unwrap(),
            };
            for change in &changes[..count] {
                change.apply(&mut names);
            }
        }
        for (path, file) in names {
            let place = target.join(path.strip_prefix(root).unwrap());
            fs::create_dir_all(place.parent().unwrap()).unwrap();
            fs::write(&place, self.files[file].after_cut(kept, chance)).unwrap();
            // Of modes nothing is recorded; homes are private.
            fs::set_permissions(&place, fs::Permissions::from_mode(0o600)).unwrap();
            let directories =
                place.ancestors().skip(1).take_while(|above| above.starts_with(target));
            for directory in directories {
                fs::set_permissions(directory, fs::Permissions::from_mode(0o700)).unwrap();
            }
        }
    }

    fn file_or_new(&mut self, path: &Path) -> usize {
        if let Some(file) = self.names.get(path) {
            return *file;
        }
        self.files.push(FileOnDisk::default());
        let file = self.files.len() - 1;
        self.put(path.to_owned(), file);
        file
    }

    fn resize(&mut self, file: usize, length: u64) {
        let entry = &mut self.files[file];
        if entry.length != length {
            entry.length = length;
            entry.pending.push(DataChange::Resize(length));
        }
    }

    fn put(&mut self, path: PathBuf, file: usize) {
        self.names.insert(path.clone(), file);
        let directory = path.parent().unwrap().to_owned();
        self.pending_names.entry(directory).or_default().push(NameChange::Put(path, file));
    }

    fn remove(&mut self, path: &Path) {
        if self.names.remove(path).is_some() {
            let directory = path.parent().unwrap().to_owned();
            let change = NameChange::Remove(path.to_owned());
            self.pending_names.entry(directory).or_default().push(change);
        }
    }

    fn rename(&mut self, from: &Path, to: &Path) {
        // What comes from elsewhere, as a socket does, is no file of this disk.
        let Some(file) = self.names.get(from).copied() else { return };
        self.put(to.to_owned(), file);
        self.remove(from);
    }

    fn settle_names(&mut self, directory: &Path, changes: usize) {
        let Some(pending) = self.pending_names.get_mut(directory) else { return };
        for change in pending.drain(..changes.min(pending.len())) {
            change.apply(&mut self.durable_names);
        }
    }
}

impl NameChange {
    fn apply(&self, names: &mut BTreeMap<PathBuf, usize>) {
        match self {
            Self::Put(path, file) => drop(names.insert(path.clone(), *file)),
            Self::Remove(path) => drop(names.remove(path)),
        }
    }
}

impl FileOnDisk {
    /// Makes the first so many changes durable, counted from the beginning.
    fn settle(&mut self, changes: usize) {
        let count = changes.saturating_sub(self.settled).min(self.pending.len());
        for change in self.pending.drain(..count) {
            change.apply(&mut self.durable);
        }
        self.settled += count;
    }

    fn after_cut(&self, kept: Kept, chance: &mut Chance) -> Vec<u8> {
        let mut content = self.durable.clone();
        for change in &self.pending {
            match kept {
                Kept::Nothing => {}
                Kept::Everything => change.apply(&mut content),
                Kept::AnyPart => change.apply_torn(&mut content, chance),
            }
        }
        content
    }
}

impl DataChange {
    fn apply(&self, content: &mut Vec<u8>) {
        match self {
            Self::Resize(length) => content.resize(usize::try_from(*length).unwrap(), 0),
            Self::Write { offset, bytes } => write_at(content, *offset, bytes),
        }
    }

    /// Does all of it, none of it or some sectors of it.
    fn apply_torn(&self, content: &mut Vec<u8>, chance: &mut Chance) {
        match (chance.below(3), self) {
            (0, _) => {}
            (1, _) | (_, Self::Resize(_)) => self.apply(content),
            (_, Self::Write { offset, bytes }) => {
                for (number, sector) in bytes.chunks(SECTOR).enumerate() {
                    if chance.below(2) == 0 {
                        write_at(content, offset + (number * SECTOR) as u64, sector);
                    }
                }
            }
        }
    }
}

fn write_at(content: &mut Vec<u8>, offset: u64, bytes: &[u8]) {
    let from = usize::try_from(offset).unwrap();
    let end = from + bytes.len();
    if content.len() < end {
        content.resize(end, 0);
    }
    content[from..end].copy_from_slice(bytes);
}

#[test]
fn a_cut_keeps_what_was_synced_and_any_part_of_the_rest() {
    let dir = tempfile::tempdir().unwrap();
    let (root, target) = (dir.path().join("disk"), dir.path().join("cut"));
    fs::create_dir(&root).unwrap();
    fs::write(root.join("old"), "old").unwrap();
    let mut disk = ForgetfulDisk::of(&root);
    let (new, thread) = (root.join("new"), 1);
    let write = |offset: u64, text: &str| FileChange::Written {
        path: new.clone(),
        offset: Some(offset),
        bytes: text.as_bytes().to_vec(),
    };
    let sync = |path: &Path| {
        let path = path.to_owned();
        [
            FileChange::SyncBegan { thread, path: path.clone() },
            FileChange::SyncEnded { thread, path },
        ]
    };
    disk.apply(&write(0, "one"));
    sync(&new).iter().for_each(|change| disk.apply(change));
    let mut chance = Chance::of(7);
    let read = |name: &str| fs::read_to_string(target.join(name)).ok();
    disk.cut((&root, &target), Kept::Nothing, &mut chance);
    assert_eq!(
        (read("old"), read("new")),
        (Some("old".to_owned()), None),
        "its name is not durable"
    );
    sync(&root).iter().for_each(|change| disk.apply(change));
    disk.apply(&write(3, "two"));
    disk.cut((&root, &target), Kept::Nothing, &mut chance);
    assert_eq!(read("new"), Some("one".to_owned()));
    disk.cut((&root, &target), Kept::Everything, &mut chance);
    assert_eq!(read("new"), Some("onetwo".to_owned()));
    // A sync that began before the write does not cover it.
    let [began, ended] = sync(&new);
    disk.apply(&began);
    disk.apply(&write(6, "three"));
    disk.apply(&ended);
    disk.cut((&root, &target), Kept::Nothing, &mut chance);
    assert_eq!(read("new"), Some("onetwo".to_owned()));
}
