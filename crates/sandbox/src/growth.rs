//! How much a run adds to directories of the host that it writes directly, counted from outside.
//!
//! No filesystem of the run's own bounds what goes there, so a thread counts again and again and the
//! supervisor ends the run when the limit is passed: this observes a limit, it does not enforce one.
//! Nothing is opened but directories, each from its parent's descriptor, and no link is followed.
//! What cannot be counted is remembered, so that nobody claims to have counted it.

use std::collections::HashSet;
use std::ffi::CStr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Statx, StatxFlags, openat, statx};
use rustix::time::{ClockId, clock_gettime};
use warrant_protocol::{LimitKind, Limits};

/// How long after one count the next begins, at least.
const PAUSE: Duration = Duration::from_millis(500);
/// A count that takes long is followed by a pause this many times as long.
const PAUSE_FACTOR: u32 = 8;
/// Directories nested deeper are not counted, and that is remembered.
const DEEPEST: usize = 200;

/// What is asked about each file.
const LOOKED_AT: StatxFlags = StatxFlags::TYPE
    .union(StatxFlags::BLOCKS)
    .union(StatxFlags::NLINK)
    .union(StatxFlags::INO)
    .union(StatxFlags::BTIME);

/// What was added to the directories of one run.
#[derive(Debug)]
pub(crate) struct GrowthWatch {
    counted: Arc<GrowthSeen>,
    /// Dropping it ends the thread.
    going: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct GrowthSeen {
    bytes: AtomicU64,
    files: AtomicU64,
    /// Why not everything was counted, once that is so.
    missed: OnceLock<&'static str>,
    stop: AtomicBool,
}

/// What lies in the directories.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct HeldFiles {
    bytes: u64,
    files: u64,
}

impl HeldFiles {
    fn add(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
        self.files += 1;
    }
}

impl GrowthWatch {
    /// Begins to count below `roots`. What was made before this call counts as there before.
    ///
    /// # Errors
    /// The system's error when no thread can be started.
    pub(crate) fn start(roots: Vec<PathBuf>) -> std::io::Result<Self> {
        let counted = Arc::<GrowthSeen>::default();
        let (going, is_over) = channel::<()>();
        let count = GrowthCount {
            roots: outermost(roots),
            since: now(),
            counted: Arc::clone(&counted),
            linked: HashSet::new(),
        };
        let body = move || {
            let mut count = count;
            let mut before = None;
            loop {
                let began = Instant::now();
                count.again(&mut before);
                let pause = PAUSE.max(began.elapsed() * PAUSE_FACTOR);
                if is_over.recv_timeout(pause) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("disk growth".to_owned()).spawn(body)?;
        Ok(Self { counted, going: Some(going), thread: Some(thread) })
    }

    /// Returns the limit that was seen to be passed.
    pub(crate) fn struck(&self, limits: &Limits) -> Option<LimitKind> {
        let passed = |limit: Option<u64>, seen: &AtomicU64| {
            limit.is_some_and(|most| seen.load(Ordering::Acquire) > most)
        };
        if passed(limits.disk_bytes, &self.counted.bytes) {
            return Some(LimitKind::Disk);
        }
        passed(limits.inodes, &self.counted.files).then_some(LimitKind::Inodes)
    }

    /// Returns why not everything was counted, if that is so.
    pub(crate) fn missed(&self) -> Option<&'static str> {
        self.counted.missed.get().copied()
    }
}

impl Drop for GrowthWatch {
    fn drop(&mut self) {
        self.counted.stop.store(true, Ordering::Release);
        drop(self.going.take());
        if let Some(thread) = self.thread.take() {
            // It panics nowhere, and what it counted is not needed any more.
            let _ = thread.join();
        }
    }
}

/// The moment before which everything counts as there before, on the clock of files.
fn now() -> (i64, u32) {
    let now = clock_gettime(ClockId::RealtimeCoarse);
    (now.tv_sec, u32::try_from(now.tv_nsec).unwrap_or(0))
}

fn kind(stat: &Statx) -> FileType {
    FileType::from_raw_mode(u32::from(stat.stx_mode))
}

/// Leaves out directories that lie in others of the list.
fn outermost(roots: Vec<PathBuf>) -> Vec<PathBuf> {
    let lies_in = |one: &PathBuf, other: &PathBuf| one != other && one.starts_with(other);
    let is_outermost = |one: &&PathBuf| !roots.iter().any(|other| lies_in(one, other));
    let mut outermost: Vec<PathBuf> = roots.iter().filter(is_outermost).cloned().collect();
    outermost.sort();
    outermost.dedup();
    outermost
}

struct GrowthCount {
    roots: Vec<PathBuf>,
    since: (i64, u32),
    counted: Arc<GrowthSeen>,
    /// Files with several names that were met in this count: device and inode.
    linked: HashSet<(u32, u32, u64)>,
}

/// What one count found: what was made since the start, and the rest.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct FoundFiles {
    new: HeldFiles,
    old: HeldFiles,
}

impl GrowthCount {
    /// Counts everything; `before` is what lay there at the start, once it is known.
    fn again(&mut self, before: &mut Option<HeldFiles>) {
        let mut found = FoundFiles::default();
        self.linked.clear();
        for root in self.roots.clone() {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            match openat(CWD, &root, flags, Mode::empty()) {
                Ok(root) => self.below(root, &mut found),
                // A single file may be written as well.
                Err(rustix::io::Errno::NOTDIR) => self.single(&root, &mut found),
                Err(_) => self.miss("a directory could not be opened"),
            }
        }
        if self.is_over() {
            return;
        }
        let before = *before.get_or_insert(found.old);
        let grown =
            |new: u64, old: u64, before: u64| new.saturating_add(old).saturating_sub(before);
        let bytes = grown(found.new.bytes, found.old.bytes, before.bytes);
        let files = grown(found.new.files, found.old.files, before.files);
        self.counted.bytes.store(bytes, Ordering::Release);
        self.counted.files.store(files, Ordering::Release);
    }

    fn single(&mut self, root: &Path, found: &mut FoundFiles) {
        match statx(CWD, root, AtFlags::SYMLINK_NOFOLLOW, LOOKED_AT) {
            Ok(stat) if kind(&stat) == FileType::RegularFile => self.count(&stat, found),
            Ok(_) | Err(_) => self.miss("a file could not be looked at"),
        }
    }

    fn below(&mut self, root: OwnedFd, found: &mut FoundFiles) {
        let Ok(root) = Dir::new(root) else { return self.miss("a directory could not be read") };
        let mut open = vec![root];
        while let Some(directory) = open.last_mut() {
            if self.is_over() {
                return;
            }
            let Some(entry) = directory.read() else {
                open.pop();
                continue;
            };
            let Ok(entry) = entry else {
                self.miss("a directory could not be read");
                open.pop();
                continue;
            };
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let Ok(parent) = directory.fd() else { continue };
            let Some(is_directory) = self.look_at(parent, name, found) else { continue };
            if !is_directory {
                continue;
            }
            if open.len() >= DEEPEST {
                self.miss("directories are nested too deep to be counted");
                continue;
            }
            let Some(parent) = open.last().and_then(|parent| parent.fd().ok()) else { continue };
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            match openat(parent, name, flags, Mode::empty()).and_then(Dir::new) {
                Ok(below) => open.push(below),
                // One that is gone by now holds nothing.
                Err(rustix::io::Errno::NOENT) => {}
                Err(_) => self.miss("a directory could not be opened"),
            }
        }
    }

    /// Counts one entry; returns whether it is a directory, or nothing if it is gone.
    fn look_at(
        &mut self,
        parent: impl std::os::fd::AsFd,
        name: &CStr,
        found: &mut FoundFiles,
    ) -> Option<bool> {
        let stat = statx(parent, name, AtFlags::SYMLINK_NOFOLLOW, LOOKED_AT).ok()?;
        self.count(&stat, found);
        Some(kind(&stat) == FileType::Directory)
    }

    /// Counts a file, unless it was met by another of its names.
    fn count(&mut self, stat: &Statx, found: &mut FoundFiles) {
        let file = (stat.stx_dev_major, stat.stx_dev_minor, stat.stx_ino);
        let has_names = kind(stat) != FileType::Directory && stat.stx_nlink > 1;
        if has_names && !self.linked.insert(file) {
            return;
        }
        let held = if self.is_new(stat) { &mut found.new } else { &mut found.old };
        held.add(stat.stx_blocks.saturating_mul(512));
    }

    /// Whether a file was made since the start; one whose filesystem does not say counts as old.
    fn is_new(&self, stat: &Statx) -> bool {
        let has_time = stat.stx_mask & StatxFlags::BTIME.bits() != 0;
        has_time && (stat.stx_btime.tv_sec, stat.stx_btime.tv_nsec) >= self.since
    }

    fn miss(&self, why: &'static str) {
        let _ = self.counted.missed.set(why);
    }

    fn is_over(&self) -> bool {
        self.counted.stop.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn count(root: &Path) -> GrowthCount {
        let roots = outermost(vec![root.to_owned(), root.join("below")]);
        GrowthCount { roots, since: now(), counted: Arc::default(), linked: HashSet::new() }
    }

    fn counted(count: &GrowthCount) -> (u64, u64) {
        let GrowthSeen { bytes, files, .. } = &*count.counted;
        (bytes.load(Ordering::Acquire), files.load(Ordering::Acquire))
    }

    #[test]
    fn what_was_there_before_does_not_count_and_growth_does() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("below")).unwrap();
        fs::write(root.path().join("old"), vec![1; 100_000]).unwrap();
        // The clock of files goes in ticks.
        std::thread::sleep(Duration::from_millis(20));
        let mut count = count(root.path());
        let mut before = None;
        fs::write(root.path().join("below/new"), vec![1; 50_000]).unwrap();
        fs::hard_link(root.path().join("below/new"), root.path().join("again")).unwrap();
        count.again(&mut before);
        let (bytes, files) = counted(&count);
        assert!((50_000..60_000).contains(&bytes) && files == 1, "{bytes} bytes, {files} files");
        fs::write(root.path().join("old"), vec![1; 300_000]).unwrap();
        count.again(&mut before);
        let (bytes, _) = counted(&count);
        assert!((250_000..280_000).contains(&bytes), "{bytes} bytes");
        fs::remove_file(root.path().join("old")).unwrap();
        count.again(&mut before);
        assert_eq!(counted(&count).0, 0, "what is gone holds no space");
        assert_eq!(count.counted.missed.get(), None);
    }

    #[test]
    fn a_single_file_is_counted_and_a_link_is_not_followed() {
        let root = tempfile::tempdir().unwrap();
        let (file, link) = (root.path().join("file"), root.path().join("link"));
        fs::write(&file, b"old").unwrap();
        let (mut single, mut before) = (count(&file), None);
        single.again(&mut before);
        fs::write(&file, vec![1; 300_000]).unwrap();
        single.again(&mut before);
        let (bytes, _) = counted(&single);
        assert!((250_000..310_000).contains(&bytes), "{bytes} bytes");
        assert_eq!(single.counted.missed.get(), None);
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let linked = &mut count(&link);
        linked.again(&mut None);
        assert!(linked.counted.missed.get().is_some());
    }

    #[test]
    fn what_cannot_be_counted_is_remembered() {
        let root = tempfile::tempdir().unwrap();
        let mut deep = root.path().to_owned();
        for _ in 0..DEEPEST + 2 {
            deep.push("d");
        }
        fs::create_dir_all(&deep).unwrap();
        let count = &mut count(root.path());
        count.again(&mut None);
        assert!(count.counted.missed.get().is_some());
    }
}
