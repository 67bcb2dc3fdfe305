//! Counts what a script adds to its files and stops the run when a limit strikes.

use std::sync::atomic::{AtomicU64, Ordering};

use warrant_protocol::LimitKind;

/// The limits on files of one run, and how much of them is used.
pub(super) struct Meter {
    file_bytes: u64,
    disk_bytes: u64,
    inodes: u64,
    bytes_added: AtomicU64,
    inodes_added: AtomicU64,
    struck: Box<dyn Fn(LimitKind) + Send + Sync>,
}

impl Meter {
    /// Returns a meter that calls `struck` when a limit is passed. Absent limits never strike.
    pub(super) fn new(
        [file_bytes, disk_bytes, inodes]: [Option<u64>; 3],
        struck: Box<dyn Fn(LimitKind) + Send + Sync>,
    ) -> Self {
        Self {
            file_bytes: file_bytes.unwrap_or(u64::MAX),
            disk_bytes: disk_bytes.unwrap_or(u64::MAX),
            inodes: inodes.unwrap_or(u64::MAX),
            bytes_added: AtomicU64::new(0),
            inodes_added: AtomicU64::new(0),
            struck,
        }
    }

    /// Counts a file that is about to change its size.
    pub(super) fn resize(&self, before: u64, after: u64) {
        if after > self.file_bytes {
            (self.struck)(LimitKind::FileSize);
        }
        let grown = after.saturating_sub(before);
        let added = self.bytes_added.fetch_add(grown, Ordering::Relaxed).saturating_add(grown);
        if added > self.disk_bytes {
            (self.struck)(LimitKind::Disk);
        }
        let shrunk = before.saturating_sub(after);
        let _ = self.bytes_added.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |added| {
            Some(added.saturating_sub(shrunk))
        });
    }

    /// Counts a file, directory or link that is about to be made.
    pub(super) fn create(&self) {
        if self.inodes_added.fetch_add(1, Ordering::Relaxed) >= self.inodes {
            (self.struck)(LimitKind::Inodes);
        }
    }

    /// Counts one that is gone.
    pub(super) fn remove(&self, bytes: u64) {
        self.resize(bytes, 0);
        let _ = self.inodes_added.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |added| {
            Some(added.saturating_sub(1))
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn each_limit_strikes_by_its_own_name() {
        let struck = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&struck);
        let note = Box::new(move |kind| seen.lock().unwrap().push(kind));
        let meter = Meter::new([Some(10), Some(15), Some(1)], note);
        meter.resize(0, 10);
        meter.create();
        assert!(struck.lock().unwrap().is_empty());
        meter.resize(0, 6);
        meter.create();
        meter.resize(10, 11);
        let seen = struck.lock().unwrap().clone();
        assert_eq!(
            seen,
            [LimitKind::Disk, LimitKind::Inodes, LimitKind::FileSize, LimitKind::Disk]
        );
    }

    #[test]
    fn room_given_back_can_be_used_again() {
        let struck = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&struck);
        let meter =
            Meter::new([None, Some(10), Some(1)], Box::new(move |k| seen.lock().unwrap().push(k)));
        for _ in 0..5 {
            meter.create();
            meter.resize(0, 10);
            meter.remove(10);
        }
        assert!(struck.lock().unwrap().is_empty());
    }
}
