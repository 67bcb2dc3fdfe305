//! Numbers the processes of one runner, so that the plane knows which one is the latest.

use std::fs;
use std::io;
use std::path::Path;

use warrant_protocol::Timestamp;

/// Returns the number of this process: higher than that of every process before it that used the
/// same data directory. Whoever calls holds the directory's lock.
///
/// The date enters so that a directory whose note was lost goes on with a higher number.
///
/// # Errors
/// The system's error when the number cannot be kept; then nobody may use it.
pub fn next_generation(data: &Path, now: Timestamp) -> io::Result<u64> {
    let path = data.join("generation");
    let last = match fs::read_to_string(&path) {
        // What does not read back is as good as lost.
        Ok(text) => text.trim().parse::<u64>().unwrap_or(0),
        Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
        Err(error) => return Err(error),
    };
    let next = last.saturating_add(1).max(now.unix_ms());
    let fresh = data.join("generation.new");
    fs::write(&fresh, format!("{next}\n"))?;
    fs::File::open(&fresh)?.sync_all()?;
    fs::rename(&fresh, &path)?;
    Ok(next)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_process_has_a_higher_number_whatever_the_clock_says() {
        let data = tempfile::tempdir().unwrap();
        let at = |ms| Timestamp::from_unix_ms(ms).unwrap();
        assert_eq!(next_generation(data.path(), at(1_000)).unwrap(), 1_000);
        assert_eq!(next_generation(data.path(), at(500)).unwrap(), 1_001, "set back");
        assert_eq!(next_generation(data.path(), at(9_000)).unwrap(), 9_000);
        fs::remove_file(data.path().join("generation")).unwrap();
        assert_eq!(next_generation(data.path(), at(9_500)).unwrap(), 9_500);
    }
}
