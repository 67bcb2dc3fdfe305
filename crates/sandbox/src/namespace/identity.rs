//! Who the program is: an ordinary user stays itself, root becomes nobody this machine knows.
//!
//! Root of a container, or of any other user namespace, is an ordinary user of the machine: the ids
//! that nobody has are not there, so its programs keep its own, under another number.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

use warrant_jail::idmap::{IdMap, Mapping};
use warrant_jail::{HostPath, Identity};

/// The first kernel id given to programs of a privileged supervisor. Nothing on disk has it.
const KERNEL_ID_BASE: u32 = 0x6000_0000;
/// How many there are.
const KERNEL_IDS: u32 = 0x1000_0000;
/// What a program of root sees itself as.
const INSIDE_ID: u32 = 1000;

/// The identity of this supervisor's programs.
#[derive(Debug)]
pub(crate) struct Identities {
    identity: Identity,
    is_privileged: bool,
    maps: Mutex<HashMap<(u32, u32), Arc<IdMap>>>,
}

impl Identities {
    /// Decides by who we are.
    pub(crate) fn new() -> Self {
        let uid = rustix::process::geteuid().as_raw();
        let gid = rustix::process::getegid().as_raw();
        let is_privileged = uid == 0 && has_kernel_ids("uid_map") && has_kernel_ids("gid_map");
        let identity = if is_privileged {
            let pid = rustix::process::getpid().as_raw_nonzero().get().unsigned_abs();
            let kernel = KERNEL_ID_BASE + (pid & (KERNEL_IDS - 1));
            Identity { uid: INSIDE_ID, gid: INSIDE_ID, kernel_uid: kernel, kernel_gid: kernel }
        } else {
            let inside = |id: u32| if uid == 0 { INSIDE_ID } else { id };
            Identity { uid: inside(uid), gid: inside(gid), kernel_uid: uid, kernel_gid: gid }
        };
        Self { identity, is_privileged, maps: Mutex::new(HashMap::new()) }
    }

    pub(crate) const fn identity(&self) -> Identity {
        self.identity
    }

    pub(crate) const fn is_privileged(&self) -> bool {
        self.is_privileged
    }

    /// Returns a detached mount of `host` on which files of `owner` belong to the program.
    pub(crate) fn mount_as_own(&self, host: &HostPath, owner: (u32, u32)) -> io::Result<OwnedFd> {
        self.map_of(owner)?.mount(host)
    }

    fn map_of(&self, owner: (u32, u32)) -> io::Result<Arc<IdMap>> {
        let mut maps = self.maps.lock().unwrap_or_else(PoisonError::into_inner);
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
    fn only_the_machines_own_namespace_has_ids_to_give_away() {
        assert!(covers("         0          0 4294967295\n"));
        assert!(!covers("         0       1000          1\n"));
        assert!(!covers("         0       1000          1\n         1     100000      65536\n"));
        assert!(!covers(""));
    }
}
