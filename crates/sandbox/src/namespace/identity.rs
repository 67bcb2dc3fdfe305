//! Who the program is: an ordinary user stays itself, root becomes nobody this machine knows.
//!
//! Each run of a privileged supervisor has a kernel id of its own, from a range that nothing on disk
//! has: what the kernel counts by user (processes, descriptors on their way, pipes, queues) is
//! counted for each run alone. Ids are taken by locking a byte of one file, which every supervisor of
//! the machine shares, and come back when the whole tree of the run is gone; a supervisor keeps some
//! for its next runs.
//!
//! Root of a container, or of any other user namespace, is an ordinary user of the machine: the ids
//! that nobody has are not there, so its programs keep its own, under another number.

use std::collections::HashMap;
use std::fs::{DirBuilder, File, OpenOptions};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use warrant_jail::idmap::{IdMap, Mapping, lock_byte};
use warrant_jail::{HostPath, Identity};

/// The first kernel id given to programs of a privileged supervisor. Nothing on disk has it.
const KERNEL_ID_BASE: u32 = 0x6000_0000;
/// How many there are.
const KERNEL_IDS: u32 = 0x1000_0000;
/// What a program of root sees itself as.
const INSIDE_ID: u32 = 1000;
/// How many ids a supervisor keeps for its next runs.
const MOST_IDLE: usize = 32;
/// After so many that others have, something else is wrong.
const MOST_TRIES: u32 = 4096;
/// Where ids are locked: only root can write there.
const LOCKS: &str = "/run/warrant";

/// The identities of this supervisor's programs.
#[derive(Debug)]
pub(crate) struct Identities {
    inside: Identity,
    is_privileged: bool,
    locks: PathBuf,
    idle: Arc<Mutex<Vec<Owned>>>,
}

/// An identity that one run has, until this is dropped.
#[derive(Debug)]
pub(crate) struct RunIdentity {
    identity: Identity,
    owned: Option<Owned>,
    idle: Arc<Mutex<Vec<Owned>>>,
}

/// A kernel id, and the maps that were made for it.
#[derive(Debug)]
struct Owned {
    kernel_id: u32,
    /// Locked at the id's byte for as long as it is open.
    _lock: File,
    maps: Mutex<HashMap<(u32, u32), Arc<IdMap>>>,
}

impl Identities {
    /// Decides by who we are.
    pub(crate) fn new() -> Self {
        Self::locking(PathBuf::from(LOCKS))
    }

    fn locking(locks: PathBuf) -> Self {
        let uid = rustix::process::geteuid().as_raw();
        let gid = rustix::process::getegid().as_raw();
        let is_privileged = uid == 0 && has_kernel_ids("uid_map") && has_kernel_ids("gid_map");
        let number = |id: u32| if uid == 0 { INSIDE_ID } else { id };
        let inside =
            Identity { uid: number(uid), gid: number(gid), kernel_uid: uid, kernel_gid: gid };
        Self { inside, is_privileged, locks, idle: Arc::default() }
    }

    /// Returns who programs are as they see themselves.
    pub(crate) const fn inside(&self) -> Identity {
        self.inside
    }

    /// Returns the kernel's name for programs, if it is the same for every run.
    pub(crate) fn shared_kernel_uid(&self) -> Option<u32> {
        (!self.is_privileged).then_some(self.inside.kernel_uid)
    }

    /// Takes an identity that no other run has, where there are any to give away.
    pub(crate) fn take(&self) -> io::Result<RunIdentity> {
        let idle = Arc::clone(&self.idle);
        if !self.is_privileged {
            return Ok(RunIdentity { identity: self.inside, owned: None, idle });
        }
        let kept = held(&self.idle).pop();
        let owned = match kept {
            Some(owned) => owned,
            None => self.lock_one()?,
        };
        let kernel = owned.kernel_id;
        let identity = Identity { kernel_uid: kernel, kernel_gid: kernel, ..self.inside };
        Ok(RunIdentity { identity, owned: Some(owned), idle })
    }

    /// Takes an id that nobody on this machine has.
    ///
    /// It begins anywhere, so that an id is not used again at once, and so that supervisors that do
    /// not see each other's locks (in containers) do not meet.
    fn lock_one(&self) -> io::Result<Owned> {
        let file = self.open_locks()?;
        let anywhere = RandomState::new().hash_one(std::process::id()) as u32;
        for attempt in 0..MOST_TRIES {
            let number = anywhere.wrapping_add(attempt) % KERNEL_IDS;
            if lock_byte(&file, number)? {
                let kernel_id = KERNEL_ID_BASE + number;
                return Ok(Owned { kernel_id, _lock: file, maps: Mutex::default() });
            }
        }
        Err(io::Error::other("every kernel id that was tried belongs to another run"))
    }

    fn open_locks(&self) -> io::Result<File> {
        let made = DirBuilder::new().mode(0o700).create(&self.locks);
        match made {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let directory = self.locks.symlink_metadata()?;
        // SECURITY: somebody else's directory would let them hold every id.
        if !directory.is_dir() || directory.uid() != rustix::process::geteuid().as_raw() {
            let shown = self.locks.display();
            return Err(io::Error::other(format!("{shown} is not a directory of root's own")));
        }
        open_lock_file(&self.locks.join("kernel-ids"))
    }
}

fn open_lock_file(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    options.custom_flags(rustix::fs::OFlags::NOFOLLOW.bits() as i32).open(path)
}

impl RunIdentity {
    pub(crate) const fn identity(&self) -> Identity {
        self.identity
    }

    pub(crate) const fn is_privileged(&self) -> bool {
        self.owned.is_some()
    }

    /// Returns a detached mount of `host` on which files of `owner` belong to the program.
    pub(crate) fn mount_as_own(&self, host: &HostPath, owner: (u32, u32)) -> io::Result<OwnedFd> {
        self.map_of(owner)?.mount(host)
    }

    fn map_of(&self, owner: (u32, u32)) -> io::Result<Arc<IdMap>> {
        let Some(owned) = &self.owned else {
            return Err(io::Error::from(io::ErrorKind::PermissionDenied));
        };
        let mut maps = held(&owned.maps);
        if let Some(map) = maps.get(&owner) {
            return Ok(Arc::clone(map));
        }
        let (disk_uid, disk_gid) = owner;
        let Identity { kernel_uid, kernel_gid, .. } = self.identity;
        let map = IdMap::new(Mapping { disk_uid, disk_gid, kernel_uid, kernel_gid })?;
        let map = Arc::new(map);
        maps.insert(owner, Arc::clone(&map));
        Ok(map)
    }
}

impl Drop for RunIdentity {
    fn drop(&mut self) {
        if let Some(owned) = self.owned.take() {
            let mut idle = held(&self.idle);
            if idle.len() < MOST_IDLE {
                idle.push(owned);
            }
        }
    }
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns whether our user namespace has the ids that programs of root get.
fn has_kernel_ids(map: &str) -> bool {
    // Where it cannot be read, building the boundary shows it.
    std::fs::read_to_string(format!("/proc/self/{map}")).map_or(true, |map| covers(&map))
}

fn covers(map: &str) -> bool {
    let wanted = u64::from(KERNEL_ID_BASE)..u64::from(KERNEL_ID_BASE) + u64::from(KERNEL_IDS);
    map.lines().any(|line| {
        let mut numbers = line.split_whitespace().map(|word| word.parse::<u64>().unwrap_or(0));
        let (Some(first), Some(_), Some(count)) = (numbers.next(), numbers.next(), numbers.next())
        else {
            return false;
        };
        first <= wanted.start && first + count >= wanted.end
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_id_belongs_to_one_run_at_a_time_and_comes_back() {
        let directory = tempfile::tempdir().unwrap();
        let [one, other] = [(), ()].map(|()| Identities::locking(directory.path().join("locks")));
        if !one.is_privileged {
            assert_eq!(one.take().unwrap().identity(), one.inside());
            return;
        }
        let runs: Vec<RunIdentity> =
            (0..50).flat_map(|_| [one.take().unwrap(), other.take().unwrap()]).collect();
        let ids: std::collections::BTreeSet<u32> =
            runs.iter().map(|run| run.identity().kernel_uid).collect();
        assert_eq!(ids.len(), 100);
        drop(runs);
        // Locks end with whoever held them, and an idle id is used again.
        assert!(held(&one.idle).len() == MOST_IDLE);
        let again = one.take().unwrap().identity().kernel_uid;
        assert!(ids.contains(&again));
        // Another supervisor does not get an id that is only kept.
        let theirs = other.take().unwrap();
        let kept: Vec<u32> = held(&one.idle).iter().map(|owned| owned.kernel_id).collect();
        assert!(!kept.contains(&theirs.identity().kernel_uid));
    }

    #[test]
    fn only_the_machines_own_namespace_has_ids_to_give_away() {
        assert!(covers("         0          0 4294967295\n"));
        assert!(!covers("         0       1000          1\n"));
        assert!(!covers("         0       1000          1\n         1     100000      65536\n"));
        assert!(!covers(""));
    }
}
