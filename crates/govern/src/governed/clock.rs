//! A Lamport clock that survives restarts: one number in a file of the home, under a lock.

use std::fs::OpenOptions;
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use rustix::fs::{FlockOperation, flock};

/// The last time that was told.
#[derive(Debug, Default)]
pub(super) struct Lamport {
    last: u64,
}

impl Lamport {
    /// Returns the next time, later than every one before; in a file, later than anyone's.
    pub(super) fn tick(&mut self, file: Option<&Path>) -> io::Result<u64> {
        let Some(path) = file else {
            self.last = self.last.saturating_add(1);
            return Ok(self.last);
        };
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path)?;
        flock(&file, FlockOperation::LockExclusive)?;
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        let stored = match text.trim() {
            "" => 0,
            text => {
                text.parse().map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?
            }
        };
        let next = self.last.max(stored).saturating_add(1);
        file.rewind()?;
        // The new number is never shorter than the old one.
        file.write_all(next.to_string().as_bytes())?;
        self.last = next;
        Ok(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_only_goes_forward_across_handles_and_restarts() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("lamport");
        let (mut one, mut other) = (Lamport::default(), Lamport::default());
        let mut told = Vec::new();
        for _ in 0..6 {
            told.push(one.tick(Some(&file)).unwrap());
            told.push(other.tick(Some(&file)).unwrap());
        }
        told.push(Lamport::default().tick(Some(&file)).unwrap());
        assert!(told.is_sorted_by(|one, other| one < other), "{told:?}");
        let without = one.tick(None).unwrap();
        assert!(one.tick(Some(&file)).unwrap() > without);
        std::fs::write(&file, "soon").unwrap();
        assert!(one.tick(Some(&file)).is_err(), "a damaged clock tells no time");
    }
}
