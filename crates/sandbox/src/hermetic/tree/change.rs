//! Changes to the workspace: writing, making, moving and removing, each checked by the guard.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::PoisonError;
use std::time::SystemTime;

use rustix::fs::{
    AtFlags, Mode, OFlags, Timespec, Timestamps, chmodat, mkdirat, openat, renameat, statat,
    symlinkat, unlinkat, utimensat,
};
use rustix::io::Errno;

use super::{Entry, Sort, Spot, Tree, Writes, entries, links};
use crate::hermetic::guard::Access;
use crate::hermetic::names;

/// How bytes get into a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::hermetic) enum Put {
    /// They replace what was there.
    Replace,
    /// They come after what was there.
    Append,
}

/// Bits of a mode a script may set: no set-uid, set-gid or sticky file is ever left behind.
const MODE_BITS: u32 = 0o777;

impl Tree {
    /// Writes a regular file, making it if it is not there.
    pub(in crate::hermetic) fn write(&self, path: &Path, bytes: &[u8], put: Put) -> io::Result<()> {
        let spot = Spot::new(path)?;
        self.check_changeable(&spot)?;
        let entry = match self.look(&spot) {
            Ok(entry) => entry,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return self.create(&spot, bytes, Mode::from_raw_mode(0o666));
            }
            Err(error) => return Err(error),
        };
        self.check_readable(&spot, &entry)?;
        if entry.sort == Sort::File && entry.is_shared {
            let before = match put {
                Put::Replace => Vec::new(),
                Put::Append => self.read(path)?,
            };
            return self.detach(&spot, &entry, &[&before, bytes].concat());
        }
        let mut file = self.open_regular(&spot, &entry, OFlags::WRONLY)?;
        let added = bytes.len() as u64;
        match put {
            Put::Replace => {
                self.meter.resize(entry.size, added);
                file.set_len(0)?;
            }
            Put::Append => {
                self.meter.resize(entry.size, entry.size.saturating_add(added));
                file.seek(SeekFrom::End(0))?;
            }
        }
        file.write_all(bytes)
    }

    /// Makes a directory.
    pub(in crate::hermetic) fn make_directory(&self, path: &Path) -> io::Result<()> {
        let spot = Spot::new(path)?;
        self.check_changeable(&spot)?;
        let (parent, name) = self.open_parent(&spot).map_err(|_| Errno::EXIST)?;
        self.check_no_bare_repository(&parent, &name)?;
        mkdirat(&parent, &name, Mode::from_raw_mode(0o777))?;
        self.meter.create();
        Ok(())
    }

    /// Makes a directory and those it lies in, as far as they are missing.
    pub(in crate::hermetic) fn make_directories(&self, path: &Path) -> io::Result<()> {
        let spot = Spot::new(path)?;
        let ends = spot.text.match_indices('/').map(|(at, _)| at).chain([spot.text.len()]);
        for end in ends {
            let prefix = spot.text.get(..end).unwrap_or_default();
            if prefix.is_empty() {
                continue;
            }
            match self.stat(Path::new(prefix)) {
                Ok(entry) if entry.sort == Sort::Directory => {}
                // The interpreter resolves the link and asks again.
                Ok(entry) if entry.sort == Sort::Link => return Err(Errno::LOOP.into()),
                Ok(_) if end == spot.text.len() => return Err(Errno::EXIST.into()),
                Ok(_) => return Err(Errno::NOTDIR.into()),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    self.make_directory(Path::new(prefix))?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Removes an entry; a directory only if it is empty.
    pub(in crate::hermetic) fn remove(&self, path: &Path) -> io::Result<()> {
        let spot = Spot::new(path)?;
        self.check_changeable(&spot)?;
        let entry = self.look(&spot)?;
        let (parent, name) = self.open_parent(&spot)?;
        self.unlink(&parent, &name, &entry)
    }

    /// Removes an entry with all below it; stops at the first that may not go.
    pub(in crate::hermetic) fn remove_all(&self, path: &Path) -> io::Result<()> {
        let spot = Spot::new(path)?;
        self.check_changeable(&spot)?;
        let entry = self.look(&spot)?;
        if entry.sort == Sort::Directory {
            self.empty(&spot)?;
        }
        let (parent, name) = self.open_parent(&spot)?;
        self.unlink(&parent, &name, &entry)
    }

    /// Moves an entry to another name.
    pub(in crate::hermetic) fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let (from, to) = (Spot::new(from)?, Spot::new(to)?);
        self.check_changeable(&from)?;
        self.check_changeable(&to)?;
        let entry = self.look(&from)?;
        // SECURITY: a mask on a path would be dodged by renaming a directory above the file.
        if entry.sort == Sort::Directory && self.guard.masks_paths() && self.holds_masked(&from) {
            return Err(Errno::PERM.into());
        }
        let (from_parent, from_name) = self.open_parent(&from)?;
        let (to_parent, to_name) = self.open_parent(&to)?;
        self.check_no_bare_repository(&to_parent, &to_name)?;
        Ok(renameat(&from_parent, &from_name, &to_parent, &to_name)?)
    }

    /// Copies a regular file with its permissions.
    pub(in crate::hermetic) fn copy(&self, from: &Path, to: &Path) -> io::Result<()> {
        let bytes = self.read(from)?;
        let mode = self.stat(from)?.mode;
        let is_new = self.stat(to).is_err();
        self.write(to, &bytes, Put::Replace)?;
        if is_new { self.set_mode(to, mode) } else { Ok(()) }
    }

    /// Makes a symbolic link that stays inside for host programs too.
    pub(in crate::hermetic) fn link(&self, target: &Path, link: &Path) -> io::Result<()> {
        let spot = Spot::new(link)?;
        self.check_changeable(&spot)?;
        let (parent, name) = self.open_parent(&spot).map_err(|error| {
            if error.raw_os_error() == Some(Errno::BUSY.raw_os_error()) {
                Errno::EXIST.into()
            } else {
                error
            }
        })?;
        self.check_no_bare_repository(&parent, &name)?;
        let text = target.to_str().ok_or(Errno::ILSEQ)?;
        let above = spot.text.rsplit_once('/').map_or("", |(above, _)| above);
        let raw = names::to_name(text);
        let raw_above = names::to_name(above);
        let stored = links::stored(Path::new(&raw), Path::new(&raw_above), spot.depth());
        symlinkat(&stored, &parent, &name)?;
        self.meter.create();
        if stored.as_os_str() != raw {
            let id = Entry::new(&statat(&parent, &name, AtFlags::SYMLINK_NOFOLLOW)?).id;
            let mut spelled = self.spelled.lock().unwrap_or_else(PoisonError::into_inner);
            spelled.insert(id, target.to_owned());
        }
        Ok(())
    }

    /// Sets the permissions of an entry that is not a link.
    pub(in crate::hermetic) fn set_mode(&self, path: &Path, mode: u32) -> io::Result<()> {
        let spot = Spot::new(path)?;
        self.check_changeable(&spot)?;
        let entry = self.look(&spot)?;
        if matches!(entry.sort, Sort::Link | Sort::Special) {
            return Err(Errno::PERM.into());
        }
        self.check_readable(&spot, &entry)?;
        let (parent, name) = self.open_parent(&spot)?;
        Ok(chmodat(&parent, &name, Mode::from_raw_mode(mode & MODE_BITS), AtFlags::empty())?)
    }

    /// Sets when an entry last changed.
    pub(in crate::hermetic) fn set_modified(&self, path: &Path, at: SystemTime) -> io::Result<()> {
        let spot = Spot::new(path)?;
        self.check_changeable(&spot)?;
        let (parent, name) = self.open_parent(&spot)?;
        let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let time = Timespec {
            tv_sec: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: since.subsec_nanos().into(),
        };
        let times = Timestamps { last_access: time, last_modification: time };
        Ok(utimensat(&parent, &name, &times, AtFlags::SYMLINK_NOFOLLOW)?)
    }

    fn check_changeable(&self, spot: &Spot) -> io::Result<()> {
        if self.writes == Writes::Refused {
            return Err(Errno::ROFS.into());
        }
        match self.guard.access(&spot.text) {
            Access::Open => Ok(()),
            Access::Repository => Err(Errno::PERM.into()),
            Access::Masked => Err(Errno::ACCESS.into()),
        }
    }

    /// Refuses the last of the three entries that make a directory a bare repository.
    fn check_no_bare_repository(&self, parent: &OwnedFd, name: &OsStr) -> io::Result<()> {
        let Some(partners) = self.guard.bare_repository_partners(&names::to_text(name)) else {
            return Ok(());
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = openat(parent, ".", flags, Mode::empty())?;
        let present = entries(&directory)?;
        let has = |wanted: &str| present.iter().any(|(name, _)| name.eq_ignore_ascii_case(wanted));
        if partners.into_iter().all(has) { Err(Errno::PERM.into()) } else { Ok(()) }
    }

    fn create(&self, spot: &Spot, bytes: &[u8], mode: Mode) -> io::Result<()> {
        let (parent, name) = self.open_parent(spot)?;
        self.check_no_bare_repository(&parent, &name)?;
        self.meter.create();
        self.meter.resize(0, bytes.len() as u64);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut file = File::from(openat(&parent, &name, flags, mode)?);
        file.write_all(bytes)
    }

    /// Writes a file that has other hard links, which may lie outside: they keep what they had.
    fn detach(&self, spot: &Spot, entry: &Entry, bytes: &[u8]) -> io::Result<()> {
        let (parent, name) = self.open_parent(spot)?;
        unlinkat(&parent, &name, AtFlags::empty())?;
        self.create(spot, bytes, Mode::from_raw_mode(entry.mode & MODE_BITS))
    }

    fn empty(&self, spot: &Spot) -> io::Result<()> {
        let directory = self.open_directory(spot)?;
        for (name, entry) in entries(&directory)? {
            let below = spot.below(&name);
            self.check_changeable(&below)?;
            if entry.sort == Sort::Directory {
                self.empty(&below)?;
            }
            self.unlink(&directory, &name, &entry)?;
        }
        Ok(())
    }

    fn unlink(&self, parent: &OwnedFd, name: &OsStr, entry: &Entry) -> io::Result<()> {
        let is_directory = entry.sort == Sort::Directory;
        let flags = if is_directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
        unlinkat(parent, name, flags)?;
        let is_last = entry.sort == Sort::File && !entry.is_shared;
        self.meter.remove(if is_last { entry.size } else { 0 });
        Ok(())
    }

    fn holds_masked(&self, directory: &Spot) -> bool {
        let Ok(entries) = self.open_directory(directory).and_then(|fd| entries(&fd)) else {
            return true;
        };
        entries.into_iter().any(|(name, entry)| {
            let below = directory.below(&name);
            self.guard.access(&below.text) == Access::Masked
                || (entry.sort == Sort::Directory && self.holds_masked(&below))
        })
    }
}
