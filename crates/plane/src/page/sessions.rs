//! Sessions of the page: a random name in the person's cookie, the token here and nowhere else.
//!
//! They are in memory only; a plane that starts again asks everybody for their token again.

use std::collections::HashMap;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use warrant_protocol::{Digest, Moment};

use crate::random;

/// How long a session lasts without a new log-in.
pub(super) const LIFE: Duration = Duration::from_secs(8 * 60 * 60);
/// More than this many are never kept: the oldest goes.
const MAX_SESSIONS: usize = 10_000;
/// More than this many of one token are never kept, so that nobody closes another's.
const MAX_OF_ONE: usize = 32;

struct Session {
    token: String,
    until: Moment,
}

/// The sessions that are open. Names are kept as digests, so that looking one up tells nothing.
pub(super) struct Sessions(Mutex<HashMap<Digest, Session>>);

impl std::fmt::Debug for Sessions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Sessions")
    }
}

impl Sessions {
    pub(super) fn new() -> Self {
        Self(Mutex::new(HashMap::new()))
    }

    /// Opens a session for a token, now, and returns its name.
    pub(super) fn open(&self, token: &str, now: Moment) -> io::Result<String> {
        let name = Digest::from_bytes(random::bytes()?).to_hex();
        let mut all = self.all();
        all.retain(|_, session| session.until > now);
        let own = |session: &Session| session.token == token;
        if all.values().filter(|session| own(session)).count() >= MAX_OF_ONE {
            close_oldest(&mut all, own);
        } else if all.len() >= MAX_SESSIONS {
            close_oldest(&mut all, |_| true);
        }
        let session = Session { token: token.to_owned(), until: now.plus(LIFE) };
        all.insert(Digest::of(name.as_bytes()), session);
        Ok(name)
    }

    /// Returns the token of an open session.
    pub(super) fn token(&self, name: &str, now: Moment) -> Option<String> {
        let all = self.all();
        let session = all.get(&Digest::of(name.as_bytes()))?;
        (session.until > now).then(|| session.token.clone())
    }

    /// Ends a session.
    pub(super) fn close(&self, name: &str) {
        self.all().remove(&Digest::of(name.as_bytes()));
    }

    fn all(&self) -> MutexGuard<'_, HashMap<Digest, Session>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn close_oldest(all: &mut HashMap<Digest, Session>, which: impl Fn(&Session) -> bool) {
    let among = all.iter().filter(|(_, session)| which(session));
    let oldest = among.min_by_key(|(_, session)| session.until).map(|(key, _)| *key);
    oldest.and_then(|oldest| all.remove(&oldest));
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Moment = Moment::ORIGIN;

    #[test]
    fn session_is_known_until_it_is_closed() {
        let sessions = Sessions::new();
        let name = sessions.open("token-1", NOW).unwrap();
        let other = sessions.open("token-1", NOW).unwrap();
        assert_ne!(name, other);
        assert_eq!(sessions.token(&name, NOW).as_deref(), Some("token-1"));
        assert_eq!(sessions.token("guess", NOW), None);
        sessions.close(&name);
        assert_eq!(sessions.token(&name, NOW), None);
        assert_eq!(sessions.token(&other, NOW).as_deref(), Some("token-1"));
        assert_eq!(sessions.token(&other, NOW.plus(LIFE)), None, "its time is over");
    }

    #[test]
    fn many_sessions_of_one_token_close_nobody_elses() {
        let sessions = Sessions::new();
        let other = sessions.open("token-1", NOW).unwrap();
        let own: Vec<_> = (0..=MAX_OF_ONE as u64)
            .map(|second| NOW.plus(Duration::from_secs(second)))
            .map(|now| sessions.open("token-2", now).unwrap())
            .collect();
        assert_eq!(sessions.token(&other, NOW).as_deref(), Some("token-1"));
        assert_eq!(sessions.token(&own[0], NOW), None, "the oldest of its own went");
        assert!(own.iter().skip(1).all(|name| sessions.token(name, NOW).is_some()));
    }
}
