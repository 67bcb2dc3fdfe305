//! Tickets: words with which one person logs in to the page, once.
//!
//! Whoever starts a plane on their own machine is shown an address that logs them in. The word in
//! it is no token: it opens one session, and a link that was used, or is old, opens nothing.

use std::collections::HashMap;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use warrant_protocol::{Digest, Moment};

use crate::random;

/// How long a ticket waits for its person.
const LIFE: Duration = Duration::from_secs(60 * 60);
/// More than this many are never kept.
const MAX_TICKETS: usize = 64;

/// The tickets that nobody has used yet, by their digest.
#[derive(Default)]
pub(crate) struct Tickets(Mutex<HashMap<Digest, (String, Moment)>>);

impl std::fmt::Debug for Tickets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tickets")
    }
}

impl Tickets {
    /// Makes a ticket for a token, now.
    pub(crate) fn issue(&self, token: &str, now: Moment) -> io::Result<String> {
        let ticket = Digest::from_bytes(random::bytes()?).to_hex();
        let mut all = self.all();
        all.retain(|_, (_, until)| *until > now);
        if all.len() >= MAX_TICKETS {
            all.clear();
        }
        all.insert(Digest::of(ticket.as_bytes()), (token.to_owned(), now.plus(LIFE)));
        Ok(ticket)
    }

    /// Takes a ticket and returns its token; there is no second time.
    pub(super) fn redeem(&self, ticket: &str, now: Moment) -> Option<String> {
        let (token, until) = self.all().remove(&Digest::of(ticket.as_bytes()))?;
        (until > now).then_some(token)
    }

    fn all(&self) -> MutexGuard<'_, HashMap<Digest, (String, Moment)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_opens_once() {
        let tickets = Tickets::default();
        let now = Moment::ORIGIN;
        let ticket = tickets.issue("token-1", now).unwrap();
        assert_eq!(tickets.redeem("guess", now), None);
        assert_eq!(tickets.redeem(&ticket, now).as_deref(), Some("token-1"));
        assert_eq!(tickets.redeem(&ticket, now), None);
        let old = tickets.issue("token-1", now).unwrap();
        assert_eq!(tickets.redeem(&old, now.plus(LIFE)), None, "its time is over");
    }
}
