//! Who the program is: an ordinary user stays itself, root becomes nobody this machine knows.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

use warrant_jail::idmap::{IdMap, Mapping};
use warrant_jail::{HostPath, Identity};

/// The first kernel id given to programs of a privileged supervisor. Nothing on disk has it.
const KERNEL_ID_BASE: u32 = 0x6000_0000;
/// What such a program sees itself as.
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
        let is_privileged = uid == 0;
        let identity = if is_privileged {
            let pid = rustix::process::getpid().as_raw_nonzero().get().unsigned_abs();
            let kernel = KERNEL_ID_BASE + (pid & 0x0fff_ffff);
            Identity { uid: INSIDE_ID, gid: INSIDE_ID, kernel_uid: kernel, kernel_gid: kernel }
        } else {
            Identity { uid, gid, kernel_uid: uid, kernel_gid: gid }
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
