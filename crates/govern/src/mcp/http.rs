//! MCP over streamable HTTP: one endpoint, one room for each token.
//!
//! A token names who asks and the one workspace they work in. Its room has the tools over a
//! workbench there, conversations of its own, and a bound on both, so that holders of two tokens
//! share nothing: for one the other's conversations do not exist.
//!
//! ```text
//! request ─► token? 401 ─► room of the token ─► host, origin? 403 ─► conversation or one call
//! ```

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use axum::response::Response;
use axum::routing::any;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::{
    SessionId, SessionManager as _, StreamableHttpServerConfig, StreamableHttpService,
};
use tokio::runtime::{Handle, Runtime};
use warrant_plane::http::{BodyBounds, BodySpace, buffer_json};
use warrant_plane::request_context::{note_cause, note_principal, note_route};
use warrant_protocol::{Digest, error_chain};

use super::uses::{HeldBy as _, InUse, Uses};
use super::{LAST_RECEIPTS, Server};
use crate::live::{McpHolder, TokenFile};
use crate::workbench::{Away, Workbench, WorkbenchOptions};

/// Conversations that one token has at once.
const MOST_SESSIONS: usize = 16;

/// How long a conversation may be silent before it ends, and with it what it still runs.
const IDLE: Duration = Duration::from_secs(30 * 60);

/// The largest message that is read.
const MOST_MESSAGE_BYTES: usize = 4 * 1024 * 1024;

/// The most values a message has.
const MOST_MESSAGE_VALUES: usize = 100_000;

/// Threads on which calls of all tokens wait for their programs.
const WORKERS: usize = 512;

const SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");

/// The door. Whoever holds it ends what still runs when it is dropped.
pub struct Door {
    house: Arc<House>,
}

struct House {
    home: Option<PathBuf>,
    tokens: TokenFile,
    config: StreamableHttpServerConfig,
    rooms: tokio::sync::Mutex<HashMap<Digest, Arc<Room>>>,
    workers: Handle,
    runtime: Mutex<Option<Runtime>>,
}

/// What the holder of one token has.
struct Room {
    service: StreamableHttpService<Server, LocalSessionManager>,
    sessions: Arc<LocalSessionManager>,
    uses: Arc<Uses>,
    /// Under which name its share of the plane's memory is counted.
    holder: String,
}

/// Where a door finds its home, and under which names clients reach it.
#[derive(Debug, Clone)]
pub struct DoorOptions {
    /// The home directory; by the environment when absent.
    pub home: Option<PathBuf>,
    /// The tokens.
    pub tokens: TokenFile,
    /// Names and addresses of this machine, besides those of loopback.
    pub hosts: Vec<String>,
    /// Who reaches the listener.
    pub listener: ListenerScope,
}

/// From where a listener can be reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListenerScope {
    /// From this machine alone.
    Loopback,
    /// From other machines, too.
    Network,
}

impl ListenerScope {
    /// Returns the scope of a listener on this address.
    pub const fn of(address: IpAddr) -> Self {
        match address.is_loopback() {
            true => Self::Loopback,
            false => Self::Network,
        }
    }

    /// Returns the origins whose requests are taken; a request without an origin always is.
    ///
    /// SECURITY: a page of a local origin still needs a token, and no answer here lets a browser
    /// show a page of another port what it says.
    const fn allowed_origins(self) -> &'static [&'static str] {
        match self {
            Self::Loopback => &["http://localhost:*", "http://127.0.0.1:*", "http://[::1]:*"],
            Self::Network => &[],
        }
    }
}

impl Door {
    /// Opens the door; workspaces are opened with the first call of their token.
    ///
    /// # Errors
    /// The system's error when there are no threads.
    pub fn open(options: DoorOptions) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .thread_name("mcp")
            .max_blocking_threads(WORKERS)
            .build()?;
        let loopback = ["localhost", "127.0.0.1", "::1"].map(str::to_owned);
        // SECURITY: a page in somebody's browser must reach the tools neither under a name that
        // it made point here nor from its own origin.
        let config = StreamableHttpServerConfig::default()
            .with_allowed_hosts(loopback.into_iter().chain(options.hosts))
            .with_allowed_origins(options.listener.allowed_origins().iter().copied())
            .enforce_origin_validation()
            .with_max_request_body_bytes(MOST_MESSAGE_BYTES);
        let house = House {
            home: options.home,
            tokens: options.tokens,
            config,
            rooms: tokio::sync::Mutex::default(),
            workers: runtime.handle().clone(),
            runtime: Mutex::new(Some(runtime)),
        };
        Ok(Self { house: Arc::new(house) })
    }

    /// Returns the endpoint `/mcp` in front of whatever else is served on the port.
    pub fn in_front_of(&self, rest: Router) -> Router {
        let own = Router::new().route("/mcp", any(serve)).with_state(Arc::clone(&self.house));
        own.fallback_service(rest)
    }

    /// Ends every stream, so that nobody waits for them when the port closes.
    pub fn hang_up(&self) {
        self.house.config.cancellation_token.cancel();
    }
}

impl Drop for Door {
    /// Programs that were told to stop leave their receipts.
    fn drop(&mut self) {
        let mut runtime = self.house.runtime.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(runtime) = runtime.take() {
            runtime.shutdown_timeout(LAST_RECEIPTS);
        }
    }
}

async fn serve(State(house): State<Arc<House>>, mut request: Request) -> Response {
    let Some(token) = bearer(request.headers()) else { return unauthorized() };
    // The token goes no further than this.
    request.headers_mut().remove(AUTHORIZATION);
    note_route("/mcp");
    let room = match house.room(token).await {
        Ok(Some(room)) => room,
        Ok(None) => return unauthorized(),
        Err(cause) => {
            note_cause(&error_chain(&*cause));
            let text = "the workspace of this token cannot be opened; nothing runs";
            return refusal(StatusCode::SERVICE_UNAVAILABLE, text);
        }
    };
    let named = session_of(request.headers());
    let used = match &named {
        Some(named) => room.begin_use(named).await,
        None => None,
    };
    let is_end = request.method() == Method::DELETE;
    let (request, _space) = match bounded(request, &room).await {
        Ok(bounded) => bounded,
        Err(refused) => return refused,
    };
    let mut response = room.service.handle(request).await.map(Body::new);
    if is_end && response.status() == StatusCode::ACCEPTED {
        // It is over, not only asked for; the official client for Python warns of anything else.
        *response.status_mut() = StatusCode::NO_CONTENT;
    }
    if named.is_some() {
        return used.held_by(response);
    }
    let Some(begun) = session_of(response.headers()) else { return response };
    let used = room.begin_use(&begun).await;
    if room.has_space().await {
        return used.held_by(response);
    }
    // A conversation too many ends before anybody learns its name.
    let _ = room.sessions.close_session(&begun).await;
    let text = "this token has too many conversations that are in use; end one";
    let mut response = refusal(StatusCode::TOO_MANY_REQUESTS, text);
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("30"));
    response
}

/// Reads a message within the plane's memory budget; it is parsed by whoever gets it.
async fn bounded(request: Request, room: &Room) -> Result<(Request, Option<BodySpace>), Response> {
    if request.method() != Method::POST {
        return Ok((request, None));
    }
    let bounds = BodyBounds { bytes: MOST_MESSAGE_BYTES, values: MOST_MESSAGE_VALUES };
    match buffer_json(request, &room.holder, bounds).await {
        Ok((request, space)) => Ok((request, Some(space))),
        Err(error) => {
            let mut response = refusal(error.status(), error.message());
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
            Err(response)
        }
    }
}

fn session_of(headers: &HeaderMap) -> Option<SessionId> {
    headers.get(SESSION_ID)?.to_str().ok().map(SessionId::from)
}

impl Room {
    /// Notes that a request of a conversation is answered now; nothing for one that is not there.
    async fn begin_use(&self, session: &SessionId) -> Option<InUse> {
        let is_there = self.sessions.sessions.read().await.contains_key(session);
        is_there.then(|| Uses::begin(&self.uses, session))
    }

    /// Whether there is space for all conversations, after those were ended that nobody uses.
    ///
    /// Many clients go away without a word; what they leave must not lock the next one out.
    async fn has_space(&self) -> bool {
        loop {
            let live: HashSet<SessionId> =
                self.sessions.sessions.read().await.keys().cloned().collect();
            if live.len() <= MOST_SESSIONS {
                return true;
            }
            let Some(idle) = self.uses.longest_idle(&live) else { return false };
            let _ = self.sessions.close_session(&idle).await;
        }
    }
}

/// Why the workspace of a token cannot be used.
type RoomError = Box<dyn std::error::Error + Send + Sync>;

impl House {
    /// Returns the room of a token, opened if it is the first call; nothing for a token that is
    /// not good now.
    async fn room(self: &Arc<Self>, token: String) -> Result<Option<Arc<Room>>, RoomError> {
        let house = Arc::clone(self);
        let admitted = self.workers.spawn_blocking(move || house.tokens.admit_mcp(&token)).await;
        let Some(holder) = admitted? else { return Ok(None) };
        note_principal(&holder.principal.label());
        let mut rooms = self.rooms.lock().await;
        if let Some(room) = rooms.get(&holder.token) {
            return Ok(Some(Arc::clone(room)));
        }
        let digest = holder.token;
        let house = Arc::clone(self);
        let opened = self.workers.spawn_blocking(move || house.open_room(holder)).await;
        let room = Arc::new(opened??);
        rooms.insert(digest, Arc::clone(&room));
        Ok(Some(room))
    }

    fn open_room(&self, holder: McpHolder) -> Result<Room, RoomError> {
        let name = format!("mcp:{}", holder.token);
        let bench = Workbench::open(WorkbenchOptions {
            home: self.home.clone(),
            workspace: holder.workspace,
            provider: None,
            away: Away::plain(),
            principal: holder.principal,
        });
        let bench = bench?;
        // One server for all conversations of a token: it is one client, whatever it calls them,
        // and newer clients have none.
        let server = Server::new(Arc::new(bench), self.workers.clone());
        let mut sessions = LocalSessionManager::default();
        sessions.session_config.keep_alive = Some(IDLE);
        let sessions = Arc::new(sessions);
        let service = StreamableHttpService::new(
            move || Ok(server.clone()),
            Arc::clone(&sessions),
            self.config.clone(),
        );
        Ok(Room { service, sessions, uses: Arc::default(), holder: name })
    }
}

fn bearer(headers: &HeaderMap) -> Option<String> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim().to_owned())
}

fn unauthorized() -> Response {
    let text = "a token of MCP is needed: warrant doors issue NAME --scope mcp --workspace DIR";
    let mut response = refusal(StatusCode::UNAUTHORIZED, text);
    response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    response
}

/// A refusal in the words of the protocol: an error that answers no call in particular.
fn refusal(status: StatusCode, message: &str) -> Response {
    let body = serde_json::json!({
        "jsonrpc": "2.0", "id": null, "error": { "code": -32_000, "message": message },
    });
    let mut response = Response::new(Body::from(body.to_string()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
