//! The one place where randomness and the clock are read; everything below takes them as arguments.

use std::io;
use std::time::{SystemTime, UNIX_EPOCH};

use warrant_protocol::Timestamp;

/// Returns fresh random bytes from the system.
///
/// # Errors
/// The system's error when it has none to give.
pub fn bytes<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(io::Error::other)?;
    Ok(bytes)
}

/// Returns 16 random bytes as hex, for a name nobody guesses.
///
/// # Errors
/// The system's error when it has none to give.
pub fn hex() -> io::Result<String> {
    Ok(format!("{:032x}", u128::from_be_bytes(bytes()?)))
}

/// Returns the present moment.
///
/// # Errors
/// An error when the clock stands before 1970 or after 9999.
pub fn now() -> io::Result<Timestamp> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).map_err(io::Error::other)?;
    let unix_ms = u64::try_from(since.as_millis()).map_err(io::Error::other)?;
    Timestamp::from_unix_ms(unix_ms).map_err(io::Error::other)
}
