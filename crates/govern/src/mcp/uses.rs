//! Which conversations are in use: one is, while a response of it is still being sent.
//!
//! A client that went away closes its connection, and with it every response; so whatever nobody
//! holds open can be ended without anybody missing it.

use std::collections::{HashMap, HashSet};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Instant;

use axum::body::{Body, Bytes, HttpBody};
use axum::response::Response;
use rmcp::transport::streamable_http_server::SessionId;

/// The conversations of one token that were ever used.
#[derive(Default)]
pub(super) struct Uses {
    all: Mutex<HashMap<SessionId, Use>>,
}

struct Use {
    last: Instant,
    open: usize,
}

/// A response that is not sent yet.
pub(super) struct InUse {
    uses: Arc<Uses>,
    session: SessionId,
}

impl Uses {
    /// Notes a response of a conversation, until what is returned is dropped.
    pub(super) fn begin(uses: &Arc<Self>, session: &SessionId) -> InUse {
        let mut all = uses.all();
        let of =
            all.entry(session.clone()).or_insert_with(|| Use { last: Instant::now(), open: 0 });
        of.open += 1;
        of.last = Instant::now();
        InUse { uses: Arc::clone(uses), session: session.clone() }
    }

    /// Returns the one of these conversations that nobody uses for the longest time, and forgets
    /// it with all that are not among them.
    pub(super) fn longest_idle(&self, live: &HashSet<SessionId>) -> Option<SessionId> {
        let mut all = self.all();
        all.retain(|session, of| of.open > 0 || live.contains(session));
        let idle = all.iter().filter(|(_, of)| of.open == 0).min_by_key(|(_, of)| of.last);
        let idle = idle.map(|(session, _)| session.clone())?;
        all.remove(&idle);
        Some(idle)
    }

    fn all(&self) -> MutexGuard<'_, HashMap<SessionId, Use>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        if let Some(of) = self.uses.all().get_mut(&self.session) {
            of.open = of.open.saturating_sub(1);
            of.last = Instant::now();
        }
    }
}

/// Something that a response keeps until it is sent.
pub(super) trait HeldBy {
    /// Returns the response, which holds this until it is sent or given up.
    fn held_by(self, response: Response) -> Response;
}

impl HeldBy for Option<InUse> {
    fn held_by(self, response: Response) -> Response {
        let Some(used) = self else { return response };
        response.map(|body| Body::new(Holding { body, _used: used }))
    }
}

struct Holding {
    body: Body,
    _used: InUse,
}

impl HttpBody for Holding {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_uses_for_the_longest_time_goes_first() {
        let uses = Arc::new(Uses::default());
        let id = |name: &str| SessionId::from(name);
        let live: HashSet<SessionId> = ["a", "b", "c"].map(id).into();
        let held = Uses::begin(&uses, &id("a"));
        for name in ["b", "c", "gone"] {
            drop(Uses::begin(&uses, &id(name)));
        }
        assert_eq!(uses.longest_idle(&live), Some(id("b")));
        assert_eq!(uses.longest_idle(&live), Some(id("c")));
        assert_eq!(uses.longest_idle(&live), None, "what is in use stays");
        drop(held);
        assert_eq!(uses.longest_idle(&live), Some(id("a")));
    }
}
