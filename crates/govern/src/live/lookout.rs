//! Directories of a sandbox that a client watches: inotify on descriptors below the sandbox's
//! directory, through no link.
//!
//! Of what happens only names come out, and what `stat` says of them; nothing is opened for
//! reading but directories. A watch has one thread, which ends with the watch.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::inotify::{self, CreateFlags, Event, ReadFlags, Reader, WatchFlags};
use rustix::fs::{Dir, Mode, OFlags};
use rustix::io::Errno;
use warrant_plane::doors::{Change, EntryKind, Eye, FileFault, Lookout, Sighting};
use warrant_plane::request_context::keep_cause;
use warrant_protocol::RunId;
use warrant_sandbox::Cancel;

use super::files::{Fault, Ground, Spot, look, open_below};

/// More directories than this are not watched at once in one sandbox.
pub(super) const MOST_OF_A_SANDBOX: usize = 16;
/// Nor more than this in all of them: the system gives one user few inotify instances, by default
/// 128, and other programs need some.
const MOST_IN_ALL: usize = 64;
/// A watch that reaches below its directory reaches this many directories at most.
const MOST_BELOW: usize = 1024;

/// More files than this are not found in directories that come at once.
const MOST_FOUND: usize = 4096;

const WATCHED: WatchFlags = WatchFlags::CREATE
    .union(WatchFlags::MODIFY)
    .union(WatchFlags::DELETE)
    .union(WatchFlags::MOVE)
    .union(WatchFlags::ATTRIB)
    .union(WatchFlags::DELETE_SELF)
    .union(WatchFlags::MOVE_SELF)
    .union(WatchFlags::ONLYDIR);

/// How many directories are watched in all sandboxes.
#[derive(Debug, Clone, Default)]
pub(super) struct Places(Arc<AtomicUsize>);

impl Places {
    fn take(&self) -> Option<Place> {
        let place = Place(Arc::clone(&self.0));
        (self.0.fetch_add(1, Ordering::AcqRel) < MOST_IN_ALL).then_some(place)
    }
}

/// The place of one watch; given back when it is over.
struct Place(Arc<AtomicUsize>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// What is to be watched.
pub(super) struct Wish<'a> {
    pub(super) path: &'a str,
    pub(super) recursive: bool,
    pub(super) entries: bool,
}

/// Begins to watch a directory.
pub(super) fn open(
    ground: &Ground<'_>,
    wish: &Wish<'_>,
    (places, id, run): (&Places, String, &RunId),
) -> Result<Arc<Lookout>, Fault> {
    let spot = ground.spot(wish.path)?;
    let top = spot.told(spot.open_directory())?;
    let full = || {
        let message = format!("path '{}' cannot be watched: too much is watched here", wish.path);
        (FileFault::TooLarge, message)
    };
    let place = places.take().ok_or_else(full)?;
    let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK);
    let inotify = inotify.map_err(|error| keep_cause(&error, full()))?;
    let cancel = Cancel::new().map_err(|error| keep_cause(&error, full()))?;
    let watcher = Arc::new(Watcher {
        top,
        spot,
        recursive: wish.recursive,
        entries: wish.entries,
        inotify,
        cancel,
        watched: Mutex::default(),
        _place: place,
    });
    match watcher.add(&mut watcher.watched(), PathBuf::new(), None) {
        Ok(()) => {}
        Err(Errno::NOSPC) => return Err(full()),
        Err(errno) => return watcher.spot.told(Err(errno)),
    }
    let eye = Box::new(Handle(Arc::clone(&watcher)));
    let lookout = Arc::new(Lookout::new(id, run.clone(), eye));
    let weak = Arc::downgrade(&lookout);
    let work = move || watcher.keep_looking(&weak);
    let spawned = std::thread::Builder::new().name("lookout".to_owned()).spawn(work);
    spawned.map_err(|error| keep_cause(&error, full()))?;
    Ok(lookout)
}

/// One inotify instance and what it watches.
struct Watcher {
    /// The watched directory itself, wherever it is moved to.
    top: OwnedFd,
    spot: Spot,
    recursive: bool,
    entries: bool,
    inotify: OwnedFd,
    cancel: Cancel,
    watched: Mutex<Watched>,
    _place: Place,
}

#[derive(Default)]
struct Watched {
    /// Paths below the watched directory by the number of their watch.
    paths: HashMap<i32, PathBuf>,
    /// What was found in a new directory and told, though the system may tell it as well.
    found: HashSet<PathBuf>,
}

/// Something in a new directory, and what is told of it.
type Found = (PathBuf, &'static [Change]);
const CREATED: [Change; 1] = [Change::Created];
const WRITTEN: [Change; 2] = [Change::Created, Change::Written];

/// The watcher as its lookout reaches it.
struct Handle(Arc<Watcher>);

impl Eye for Handle {
    fn look(&self, lookout: &Lookout) {
        self.0.look(lookout);
    }

    fn close(&self) {
        self.0.cancel.cancel();
    }
}

impl Watcher {
    fn watched(&self) -> std::sync::MutexGuard<'_, Watched> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks whenever something happens, until the watch is over or nobody has it.
    fn keep_looking(&self, lookout: &Weak<Lookout>) {
        loop {
            let mut fds = [
                PollFd::new(&self.inotify, PollFlags::IN),
                PollFd::new(&self.cancel, PollFlags::IN),
            ];
            match poll(&mut fds, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => return,
            }
            let Some(lookout) = lookout.upgrade() else { return };
            if self.cancel.is_cancelled() || lookout.is_over() {
                return;
            }
            self.look(&lookout);
        }
    }

    fn look(&self, lookout: &Lookout) {
        let mut watched = self.watched();
        let mut buffer = [MaybeUninit::uninit(); 16 * 1024];
        let mut reader = Reader::new(&self.inotify, &mut buffer);
        // A flood ends the watch, and so this loop.
        while !lookout.is_over() {
            match reader.next() {
                Ok(event) => self.note(&mut watched, lookout, &event),
                Err(Errno::INTR) => {}
                Err(_) => break,
            }
        }
        // Whatever the system had to tell twice has been told.
        watched.found.clear();
    }

    fn note(&self, watched: &mut Watched, lookout: &Lookout, event: &Event<'_>) {
        let flags = event.events();
        if flags.contains(ReadFlags::QUEUE_OVERFLOW) {
            return lookout.miss("more happened than the system keeps");
        }
        if flags.contains(ReadFlags::IGNORED) {
            watched.paths.remove(&event.wd());
            return;
        }
        let Some(directory) = watched.paths.get(&event.wd()) else { return };
        let path = match event.file_name() {
            Some(name) => directory.join(OsStr::from_bytes(name.to_bytes())),
            None if directory.as_os_str().is_empty() => PathBuf::new(),
            // Told by the directory it is in.
            None => return,
        };
        let Some(change) = change(flags) else { return };
        if change == Change::Created && watched.found.remove(&path) {
            return;
        }
        let is_directory = flags.contains(ReadFlags::ISDIR) && !path.as_os_str().is_empty();
        if self.recursive && is_directory && change == Change::Created {
            return self.note_directory(watched, lookout, (path, flags));
        }
        if self.recursive && is_directory && flags.contains(ReadFlags::MOVED_FROM) {
            self.forget(watched, &path);
        }
        lookout.push(self.sighting(&path, change));
    }

    /// Watches a directory that came, and tells it only then: whoever hears of it misses nothing
    /// that happens in it from there on. What is in a new one is told too: it may have come before
    /// we watched.
    fn note_directory(
        &self,
        watched: &mut Watched,
        lookout: &Lookout,
        (path, flags): (PathBuf, ReadFlags),
    ) {
        let mut found = flags.contains(ReadFlags::CREATE).then(Vec::new);
        let added = self.add(watched, path.clone(), found.as_mut());
        if added == Err(Errno::NOSPC) {
            return lookout.miss("there are more directories or files than can be watched");
        }
        lookout.push(self.sighting(&path, Change::Created));
        for (path, changes) in found.into_iter().flatten() {
            for change in changes {
                lookout.push(self.sighting(&path, *change));
            }
            watched.found.insert(path);
        }
    }

    /// Watches a directory and, if so wished, those below it, and says what it found in them.
    fn add(
        &self,
        watched: &mut Watched,
        path: PathBuf,
        mut found: Option<&mut Vec<Found>>,
    ) -> Result<(), Errno> {
        let mut waiting = vec![path];
        let mut is_first = true;
        while let Some(path) = waiting.pop() {
            let directory = match self.add_one(watched, &path) {
                Ok(directory) => directory,
                Err(errno) if is_first || errno == Errno::NOSPC => return Err(errno),
                // What vanishes or cannot be opened meanwhile is left out.
                Err(_) => continue,
            };
            is_first = false;
            if !self.recursive {
                return Ok(());
            }
            let Ok(entries) = Dir::read_from(&directory) else { continue };
            for entry in entries.flatten() {
                let name = OsStr::from_bytes(entry.file_name().to_bytes());
                if name == "." || name == ".." {
                    continue;
                }
                let Ok(entry) = look(&directory, name, "") else { continue };
                let path = path.join(name);
                if let Some(found) = &mut found {
                    let has_content = entry.kind == EntryKind::File && entry.size > 0;
                    found.push((path.clone(), if has_content { &WRITTEN } else { &CREATED }));
                    if found.len() > MOST_FOUND {
                        return Err(Errno::NOSPC);
                    }
                }
                if entry.kind == EntryKind::Directory {
                    waiting.push(path);
                }
            }
        }
        Ok(())
    }

    fn add_one(&self, watched: &mut Watched, path: &Path) -> Result<OwnedFd, Errno> {
        if watched.paths.len() >= MOST_BELOW {
            return Err(Errno::NOSPC);
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let directory = open_below(&self.top, path, flags, Mode::empty())?;
        // SECURITY: what is watched is the directory that was opened through no link, not
        // whatever stands at its name by now.
        let opened = format!("/proc/self/fd/{}", directory.as_raw_fd());
        let number = inotify::add_watch(&self.inotify, opened, WATCHED)?;
        watched.paths.insert(number, path.to_owned());
        Ok(directory)
    }

    /// Watches a directory that was moved away no longer, nor those below it.
    fn forget(&self, watched: &mut Watched, path: &Path) {
        watched.paths.retain(|number, watched| {
            let is_gone = watched.starts_with(path);
            if is_gone {
                // It may have vanished by itself.
                let _ = inotify::remove_watch(&self.inotify, *number);
            }
            !is_gone
        });
    }

    fn sighting(&self, path: &Path, change: Change) -> Sighting {
        let name = match path.as_os_str().is_empty() {
            true => ".".to_owned(),
            false => path.to_string_lossy().into_owned(),
        };
        let is_there = !matches!(change, Change::Removed | Change::Renamed);
        let entry = (self.entries && is_there).then(|| self.entry(path, &name)).flatten();
        Sighting { name, change, entry }
    }

    fn entry(&self, path: &Path, name: &str) -> Option<warrant_plane::doors::Entry> {
        let last = path.file_name()?;
        let parent = path.parent().unwrap_or(Path::new(""));
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        let parent = open_below(&self.top, parent, flags, Mode::empty()).ok()?;
        let inside = format!("{}/{name}", self.spot.inside().trim_end_matches('/'));
        look(&parent, last, &inside).ok()
    }
}

fn change(flags: ReadFlags) -> Option<Change> {
    let table = [
        (ReadFlags::CREATE.union(ReadFlags::MOVED_TO), Change::Created),
        (ReadFlags::MODIFY, Change::Written),
        (ReadFlags::DELETE.union(ReadFlags::DELETE_SELF), Change::Removed),
        (ReadFlags::MOVED_FROM.union(ReadFlags::MOVE_SELF), Change::Renamed),
        (ReadFlags::ATTRIB, Change::Marked),
    ];
    table.into_iter().find(|(kinds, _)| flags.intersects(*kinds)).map(|(_, change)| change)
}
