//! Doors for other people's clients: thin translations of foreign HTTP APIs to one port.
//!
//! A door reads its protocol's requests, refuses what cannot be enforced in its protocol's own
//! words, and asks the [`Workshop`] for the rest; it decides nothing and runs nothing. Whoever
//! holds the workshop judges every call by policy and leaves a receipt for each. Start at
//! [`in_front_of`], which puts all doors on one port.
//!
//! Who calls is told by the token of the door ([`Keeper`]); a token of the plane itself opens no
//! door, and a door's token opens nothing else.

#![expect(clippy::result_large_err, reason = "the answer to a call is made once, where it ends")]

/// Makes an extractor of what a function finds by the head of a request. Whoever may not come in
/// gets that function's refusal, before anything else is looked at.
macro_rules! extractor {
    ($(#[$doc:meta])* $name:ident($found:ty) by $find:ident $(of $id:ident)?) => {
        $(#[$doc])*
        pub(crate) struct $name(pub(crate) $found);

        impl<S: Send + Sync> axum::extract::FromRequestParts<S> for $name
        where
            Hall: axum::extract::FromRef<S>,
        {
            type Rejection = Response;

            async fn from_request_parts(
                parts: &mut axum::http::request::Parts,
                state: &S,
            ) -> Result<Self, Response> {
                let hall = <Hall as axum::extract::FromRef<S>>::from_ref(state);
                $(let $id = crate::doors::reply::sandbox_of(parts).await;)?
                $find(&hall, &parts.headers $(, &$id)?).map(Self)
            }
        }
    };
}

pub mod daytona;
pub mod e2b;
pub mod helm;
pub mod lookout;
pub mod opensandbox;
mod page;
mod paths;
pub mod process;
mod reply;
pub mod workshop;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, HttpBody as _};
use axum::extract::{DefaultBodyLimit, Request};
use axum::http::uri::PathAndQuery;
use axum::http::{HeaderMap, Uri};
use axum::middleware::{self, from_fn, map_request};
use axum::response::{IntoResponse, Response};
use futures_util::{StreamExt as _, stream};

pub use lookout::{Change, Eye, Lookout, Over, Sighting};
pub use paths::inside;
pub use process::{Attended, Chunk, ChunkStream, End, Grip, Next, Process, ProcessFacts};
pub use workshop::{
    AtEnd, Changed, Decided, DoorName, EndsCommands, Entry, EntryKind, FailureCause, FileAnswer,
    FileCall, FileFault, Life, Measure, Question, Reach, RefusedExecution, Sandbox, ShellSession,
    Start, Terminal, Verdict, Wakes, Wanted, Workshop, WorkshopError,
};

use crate::request_context::{carried, note_principal, with_route};
use tokio::sync::Semaphore;
use warrant_protocol::Timestamp;
use warrant_protocol::request::ActorRef;

use crate::http::body::broken;
use crate::http::budget::{Holder, Reservation};
use crate::http::{Admission, COMPAT_THREADS, HttpError};

/// The largest body a door reads; files travel whole.
pub const MAX_BODY_BYTES: usize = 65 * 1024 * 1024;

/// How much of a body that nobody wanted is read, and for how long.
const MOST_READ_OUT: usize = 4 * MAX_BODY_BYTES;
const READ_OUT_TIME: Duration = Duration::from_secs(10);

/// How many calls wait for their sandboxes at once.
static COMPAT_CALLS: Semaphore = Semaphore::const_new(COMPAT_THREADS);

/// Tells who holds a token of the doors.
pub trait Keeper: Send + Sync {
    /// Returns the holder, if the token is good now.
    fn admit(&self, token: &str) -> Option<ActorRef>;

    /// Returns whether a holder has the token still that was good at a moment; another one of the
    /// same name is not that token.
    fn knows(&self, holder: &ActorRef, at: Timestamp) -> bool;
}

/// Examines the boundary that sandboxes of the doors have.
pub trait Examiner: Send + Sync {
    /// Runs the checks of a level; may take long.
    ///
    /// # Errors
    /// A sentence when nothing can be examined.
    fn examine(&self, level: ExamLevel) -> Result<Vec<Examined>, String>;
}

/// How much is examined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExamLevel {
    /// Life, execution, files, evidence.
    L1,
    /// And that every single degradation is refused.
    L2,
}

/// One check and what it found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Examined {
    /// Its name.
    pub id: String,
    /// Why it failed; nothing when it passed.
    pub failure: Option<String>,
}

/// What every door needs.
#[derive(Clone)]
pub struct Hall {
    /// Where sandboxes live.
    pub workshop: Arc<dyn Workshop>,
    /// Who may enter.
    pub keeper: Arc<dyn Keeper>,
    /// Who examines the boundary, if anybody can.
    pub examiner: Option<Arc<dyn Examiner>>,
}

/// Returns all doors on one port, in front of whatever else is served there.
///
/// A request belongs to a door by its headers and path; the rest goes on to `rest` untouched.
pub fn in_front_of(rest: Router, hall: &Hall) -> Router {
    let doors = [
        ("/~e2b", e2b::router(hall.clone())),
        ("/~e2b-data", e2b::data_router(hall.clone())),
        ("/~daytona", daytona::router(hall.clone())),
        ("/~helm", helm::router(hall.clone())),
        ("/~opensandbox", opensandbox::router(hall.clone())),
    ];
    let served = doors.into_iter().fold(rest, |rest, (prefix, door)| {
        let door = door
            .layer(from_fn(with_route))
            .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
            .layer(from_fn(read_out));
        rest.nest(prefix, door)
    });
    Router::new().fallback_service(served).layer(map_request(to_its_door))
}

/// Lends a request its body: each piece has its space in the plane's memory budget first, and a
/// piece that gets none, or comes too slowly, ends the request with that reason.
///
/// Answers at once, and reads what is left of the body beside that: a client that still sends when
/// the connection closes would see a broken connection, not why it was refused.
async fn read_out(request: Request, next: middleware::Next) -> Response {
    let (parts, body) = request.into_parts();
    if body.is_end_stream() {
        return next.run(Request::from_parts(parts, body)).await;
    }
    let body = Arc::new(tokio::sync::Mutex::new(body.into_data_stream()));
    let lent = Arc::new(LentBody::new(&parts));
    let pieces = stream::unfold(Arc::clone(&body), {
        let lent = Arc::clone(&lent);
        move |body| {
            let lent = Arc::clone(&lent);
            async move {
                let piece = body.lock().await.next().await?;
                Some((lent.take(piece).await, body))
            }
        }
    });
    let response = next.run(Request::from_parts(parts, Body::from_stream(pieces))).await;
    let response = lent.refusal().map_or(response, IntoResponse::into_response);
    let rest = async move {
        let (mut body, mut left) = (body.lock().await, MOST_READ_OUT);
        while let Some(Ok(piece)) = body.next().await {
            left = left.saturating_sub(piece.len());
            if left == 0 {
                return;
            }
        }
    };
    tokio::spawn(tokio::time::timeout(READ_OUT_TIME, rest));
    response
}

/// What a lent body has in memory, and why it ended early.
struct LentBody {
    space: tokio::sync::Mutex<Reservation>,
    refusal: Mutex<Option<HttpError>>,
}

impl LentBody {
    fn new(parts: &axum::http::request::Parts) -> Self {
        let admission = Admission::of(&parts.extensions);
        // Nobody's body is read here before their token was checked; who brings none checks packs
        // of evidence, one after the other.
        let holder = admission.connections.credential_name(&parts.headers);
        let space = admission.budget.reservation(Holder::Known(holder));
        Self { space: tokio::sync::Mutex::new(space), refusal: Mutex::default() }
    }

    async fn take(&self, piece: Result<Bytes, axum::Error>) -> Result<Bytes, axum::Error> {
        let refusal = match piece {
            // It is copied once when it is put together.
            Ok(piece) => match self.space.lock().await.grow(2 * piece.len()).await {
                Ok(()) => return Ok(piece),
                Err(no_space) => no_space.into(),
            },
            Err(error) => broken(error),
        };
        *self.refusal.lock().unwrap_or_else(PoisonError::into_inner) = Some(refusal);
        Err(axum::Error::new(std::io::Error::from(std::io::ErrorKind::Interrupted)))
    }

    fn refusal(&self) -> Option<HttpError> {
        self.refusal.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Rewrites the path of a request that belongs to a door, so that it is routed there.
async fn to_its_door(mut request: Request) -> Request {
    let Some(prefix) = door_of(request.headers(), request.uri().path()) else { return request };
    let rest = request.uri().path_and_query().map_or("/", PathAndQuery::as_str);
    let path = format!("{prefix}{rest}").parse::<PathAndQuery>();
    let mut parts = request.uri().clone().into_parts();
    parts.path_and_query = path.ok();
    if let Ok(uri) = Uri::from_parts(parts) {
        *request.uri_mut() = uri;
    }
    request
}

/// Returns the door a request belongs to.
fn door_of(headers: &HeaderMap, path: &str) -> Option<&'static str> {
    let below = |root: &str| {
        path.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    // Older SDKs name the sandbox in a header here as well, and where it matters forget to.
    if below("/sandboxes") || below("/v2/sandboxes") {
        return Some("/~e2b");
    }
    let has_token_alone = headers.contains_key("x-access-token") && e2b::is_data_path(path);
    if headers.contains_key("e2b-sandbox-id") || has_token_alone {
        return Some("/~e2b-data");
    }
    // Daytona's API has no versions in its paths.
    if below("/api/v1") || below("/sandbox") || path == "/v1/chat/completions" {
        return Some("/~helm");
    }
    if below("/api") || below("/toolbox") {
        return Some("/~daytona");
    }
    let has_key = headers.contains_key("open-sandbox-api-key");
    // Two protocols ask for the version; HELM's client has a token or says that it sends JSON.
    let has_token = headers.contains_key("authorization");
    let is_helms = !has_key && (has_token || headers.contains_key("content-type"));
    if path == "/healthz" || path == "/version" && is_helms {
        return Some("/~helm");
    }
    let is_open = path == "/version" || path == "/v1/metrics/events";
    if below("/v1/sandboxes") || is_open || has_key && (below("/v1") || path == "/health") {
        return Some("/~opensandbox");
    }
    // What else an SDK asks for is refused in its own words.
    let is_ours = below("/v1") || below("/mcp");
    (headers.contains_key("x-api-key") && !is_ours).then_some("/~e2b")
}

impl Hall {
    /// Returns who holds a token, if it is good now.
    pub(crate) fn admit(&self, token: &str) -> Option<ActorRef> {
        self.keeper.admit(token).inspect(|holder| note_principal(&holder.label()))
    }

    /// Finds a sandbox for a door that starts commands by itself.
    ///
    /// SECURITY: in a sandbox of the HELM door nothing runs without a decision that is used up, so
    /// no other door leads into it.
    pub(crate) fn find(&self, guest: &ActorRef, id: &str) -> Result<Sandbox, WorkshopError> {
        let sandbox = self.workshop.find(guest, id)?;
        match sandbox.wanted.door {
            DoorName::Helm => Err(WorkshopError::NoSandbox),
            DoorName::E2b | DoorName::Daytona | DoorName::Opensandbox => Ok(sandbox),
        }
    }

    /// Returns whose sandbox it is, if that is its access token.
    ///
    /// SECURITY: a sandbox's own token opens nothing once the token that made the sandbox is
    /// revoked.
    pub(crate) fn owner(&self, id: &str, access_token: &str) -> Option<ActorRef> {
        self.unrevoked(id, self.workshop.owner(id, access_token)?)
    }

    /// Returns whose sandbox it is, for callers who know nothing but its id.
    ///
    /// SECURITY: an id opens nothing once the token that made the sandbox is revoked.
    pub(crate) fn owner_of(&self, id: &str) -> Option<ActorRef> {
        self.unrevoked(id, self.workshop.owner_of(id)?)
    }

    /// Returns the owner of a sandbox whose token is good still.
    fn unrevoked(&self, id: &str, owner: ActorRef) -> Option<ActorRef> {
        let made_at = self.workshop.find(&owner, id).ok()?.created_at;
        let owner = self.keeper.knows(&owner, made_at).then_some(owner)?;
        note_principal(&owner.label());
        Some(owner)
    }

    /// Asks the workshop on a thread that may wait.
    pub(crate) async fn ask<T, F>(&self, work: F) -> Result<T, WorkshopError>
    where
        T: Send + 'static,
        F: FnOnce(&dyn Workshop) -> Result<T, WorkshopError> + Send + 'static,
    {
        let workshop = Arc::clone(&self.workshop);
        // Calls of these APIs have threads of their own, so that they keep nobody else from any.
        let permit = COMPAT_CALLS.acquire().await;
        let asked = tokio::task::spawn_blocking(carried(move || {
            let _permit = permit;
            work(&*workshop)
        }));
        match asked.await {
            Ok(result) => result,
            Err(error) => Err(WorkshopError::of_error(error)),
        }
    }
}
