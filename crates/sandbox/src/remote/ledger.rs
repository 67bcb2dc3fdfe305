//! What sandboxes could not be deleted, told once to whoever ran something in them.
//!
//! A key that was revoked deletes nothing any more. Then the sandbox lives on until its lease is
//! over, and the run it was made for has to say so.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use warrant_protocol::{Isolation, Timestamp};

/// Sentences about sandboxes that are left, by session. Clones are the same ledger.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ledger(Arc<Mutex<BTreeMap<String, String>>>);

/// One sandbox that is left.
pub(crate) struct Left<'a> {
    /// Where it is.
    pub(crate) provider: Isolation,
    /// Its name there, if it was told.
    pub(crate) id: Option<&'a str>,
    /// The session it carries as a label.
    pub(crate) session: &'a str,
    /// When it ends by itself.
    pub(crate) until: SystemTime,
    /// What the provider said to its deletion.
    pub(crate) why: String,
}

impl Ledger {
    /// Writes down a sandbox that is left.
    pub(crate) fn note(&self, left: &Left<'_>) {
        let Left { provider, id, session, until, why } = left;
        let until = told(*until);
        let which = match id {
            Some(id) => format!("sandbox {id} at {provider}"),
            None => format!("a sandbox at {provider} labeled {session}, if it was made,"),
        };
        let sentence = format!(
            "{which} could not be deleted ({why}) and lives until {until}, when its lease is \
             over; to delete it earlier: warrant sandbox reap --provider {provider}"
        );
        self.lock().insert((*session).to_owned(), sentence);
    }

    /// Writes down a sandbox that is gone, but whose lease was over before its program was.
    pub(crate) fn note_lost(&self, left: &Left<'_>) {
        let Left { provider, id, session, until, why } = left;
        let id = id.unwrap_or(session);
        let until = told(*until);
        let sentence = format!(
            "the lease of sandbox {id} at {provider} was over at {until} and not renewed ({why}); \
             nothing is left of it"
        );
        self.lock().insert((*session).to_owned(), sentence);
    }

    /// Returns what is left of a session, once.
    pub(crate) fn take(&self, session: &str) -> Option<String> {
        self.lock().remove(session)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn told(time: SystemTime) -> String {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    match u64::try_from(since.as_millis()).map(Timestamp::from_unix_ms) {
        Ok(Ok(time)) => time.to_string(),
        _ => "its own expiry".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_is_left_is_told_once_with_its_name_its_end_and_the_remedy() {
        let ledger = Ledger::default();
        ledger.note(&Left {
            provider: Isolation::E2b,
            id: Some("sbx1"),
            session: "s",
            until: SystemTime::UNIX_EPOCH + Duration::from_secs(60),
            why: "401".to_owned(),
        });
        let told = ledger.clone().take("s").unwrap();
        assert_eq!(
            told,
            "sandbox sbx1 at e2b could not be deleted (401) and lives until \
             1970-01-01T00:01:00.000Z, when its lease is over; to delete it earlier: \
             warrant sandbox reap --provider e2b"
        );
        assert_eq!(ledger.take("s"), None);
    }
}
