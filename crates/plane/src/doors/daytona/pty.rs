//! Daytona's terminals: one WebSocket that creates and carries a terminal, and calls beside it.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use axum::body::Bytes;
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade};
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use warrant_protocol::request::ActorRef;

use super::{Desk, Visit, error, fault, invalid};
use crate::doors::reply::{self, boolean, text, texts, unknown_member, whole};
use crate::doors::{Hall, Next, Process, Sandbox, Start, Terminal};
use crate::request_context::keep_cause;

/// The size of a terminal when nobody says.
const COLUMNS: u16 = 80;
const ROWS: u16 = 24;
/// The longest text of a frame that closes.
const MOST_REASON: usize = 123;
/// Tells terminals from other commands.
const TAG: &str = "pty:";
/// The subprotocol in which clients send variables.
const ENVS_PROTOCOL: &str = "X-Daytona-Pty-Envs~";
/// The subprotocol by which clients ask to be told of the end.
const EXIT_PROTOCOL: &str = "X-Daytona-Pty-Exit-Control";

/// Creates a terminal and carries it on the same connection.
pub(crate) async fn create_and_connect(
    State(desk): State<Desk>,
    Visit(visit): Visit,
    (headers, Query(query)): (HeaderMap, Query<BTreeMap<String, String>>),
    upgrade: WebSocketUpgrade,
) -> Response {
    let side = |name: &str, default: u16| match query.get(name) {
        None => Some(default),
        Some(text) => text.parse::<u16>().ok().filter(|side| *side > 0),
    };
    let (Some(columns), Some(rows)) = (side("cols", COLUMNS), side("rows", ROWS)) else {
        return invalid("cols and rows must be 1 to 65535");
    };
    let protocols = reply::header(&headers, "sec-websocket-protocol").unwrap_or_default();
    let env = match envs(protocols) {
        Ok(env) => env,
        Err(message) => return invalid(&message),
    };
    let wanted = Wanted {
        name: query.get("id").cloned().unwrap_or_default(),
        env,
        cwd: query.get("cwd").filter(|cwd| !cwd.is_empty()).cloned(),
        size: Terminal { columns, rows },
    };
    match begin(&desk, visit, wanted).await {
        Ok(process) => accept(upgrade, process),
        Err(response) => response,
    }
}

/// Creates a terminal to which a client connects later.
pub(crate) async fn create(State(desk): State<Desk>, Visit(visit): Visit, body: Bytes) -> Response {
    let read = reply::object(&body).and_then(|body| {
        let known = ["id", "cwd", "envs", "cols", "rows", "lazyStart"];
        if let Some(name) = unknown_member(&body, &known) {
            return Err(format!("{name} is not served here"));
        }
        // A terminal starts at once; what it says before someone connects is kept for them.
        boolean(&body, "lazyStart")?;
        let side = |name: &str, default: u16| match whole(&body, name)?.filter(|side| *side > 0) {
            None => Ok(default),
            Some(side) => u16::try_from(side)
                .map_err(|error| keep_cause(&error, format!("{name} must be 1 to 65535"))),
        };
        Ok(Wanted {
            name: text(&body, "id")?.unwrap_or_default(),
            env: texts(&body, "envs")?,
            cwd: text(&body, "cwd")?.filter(|cwd| !cwd.is_empty()),
            size: Terminal { columns: side("cols", COLUMNS)?, rows: side("rows", ROWS)? },
        })
    });
    let wanted = match read {
        Ok(wanted) => wanted,
        Err(message) => return invalid(&message),
    };
    let name = wanted.name.clone();
    match begin(&desk, visit, wanted).await {
        Ok(process) => {
            let response = reply::json(StatusCode::CREATED, &json!({ "sessionId": name }));
            reply::with_receipt(response, Some(&process.facts().run))
        }
        Err(response) => response,
    }
}

/// A terminal that is to be.
struct Wanted {
    name: String,
    env: BTreeMap<String, String>,
    cwd: Option<String>,
    size: Terminal,
}

async fn begin(
    desk: &Desk,
    (guest, sandbox): (ActorRef, Sandbox),
    wanted: Wanted,
) -> Result<Arc<Process>, Response> {
    if !(1..=256).contains(&wanted.name.len()) {
        return Err(invalid("id must have 1 to 256 characters"));
    }
    let taken = || fault(StatusCode::CONFLICT, "CONFLICT", "a terminal has that id already");
    // Claimed before it is looked for, so that of two that come at once one is refused.
    let claim = Claim::new(desk, (&sandbox.id, &wanted.name)).ok_or_else(taken)?;
    if running(&desk.hall, &guest, &sandbox.id, &wanted.name).is_some() {
        return Err(taken());
    }
    let wish = Start {
        argv: vec!["bash".to_owned(), "-i".to_owned()],
        env: wanted.env,
        cwd: wanted.cwd,
        timeout_ms: None,
        stdin: true,
        terminal: Some(wanted.size),
        tag: Some(tag(&wanted.name)),
        session: None,
        approved: None,
    };
    let started = desk.hall.ask(move |workshop| {
        let started = workshop.start(&guest, &sandbox.id, wish);
        // Whoever asked may be gone, and this goes on.
        drop(claim);
        started
    });
    started.await.map_err(|refusal| error(&refusal))
}

/// The id of a terminal that is being made.
struct Claim {
    terminals: Arc<Mutex<Terminals>>,
    key: (String, String),
}

/// Ids of terminals that are being made, each with its sandbox.
pub(crate) type Terminals = HashSet<(String, String)>;

impl Claim {
    /// Returns nothing when somebody else makes a terminal of that id.
    fn new(desk: &Desk, (sandbox, name): (&str, &str)) -> Option<Self> {
        let key = (sandbox.to_owned(), name.to_owned());
        let mut terminals = desk.terminals.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = terminals.insert(key.clone());
        is_new.then(|| Self { terminals: Arc::clone(&desk.terminals), key })
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.terminals.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.key);
    }
}

pub(crate) async fn list(State(hall): State<Hall>, Visit((guest, sandbox)): Visit) -> Response {
    match hall.workshop.processes(&guest, &sandbox.id) {
        Ok(processes) => {
            let rows: Vec<Value> = processes.iter().filter_map(|process| row(process)).collect();
            reply::json(StatusCode::OK, &json!({ "sessions": rows }))
        }
        Err(refusal) => error(&refusal),
    }
}

pub(crate) async fn describe(
    State(hall): State<Hall>,
    Visit((guest, sandbox)): Visit,
    Path((_, name)): Path<(String, String)>,
) -> Response {
    let process = running(&hall, &guest, &sandbox.id, &name);
    match process.and_then(|process| row(&process)) {
        Some(row) => reply::json(StatusCode::OK, &row),
        None => none(),
    }
}

/// Returns what is told of a terminal that runs.
fn row(process: &Process) -> Option<Value> {
    let facts = process.facts();
    let name = facts.tag.as_deref()?.strip_prefix(TAG)?;
    let (columns, rows) = process.grip().size()?;
    process.end().is_none().then(|| {
        json!({
            "id": name,
            "cwd": facts.cwd,
            // Values of variables are never told again.
            "envs": {},
            "cols": columns,
            "rows": rows,
            "createdAt": facts.started_at.to_string(),
            "active": true,
            "lazyStart": false,
        })
    })
}

pub(crate) async fn connect(
    State(hall): State<Hall>,
    Visit((guest, sandbox)): Visit,
    Path((_, name)): Path<(String, String)>,
    upgrade: WebSocketUpgrade,
) -> Response {
    match running(&hall, &guest, &sandbox.id, &name) {
        Some(process) => accept(upgrade, process),
        None => none(),
    }
}

pub(crate) async fn resize(
    State(hall): State<Hall>,
    Visit((guest, sandbox)): Visit,
    Path((_, name)): Path<(String, String)>,
    body: Bytes,
) -> Response {
    let size = reply::object(&body).and_then(|body| {
        let side = |name: &str| {
            let side = whole(&body, name)?.and_then(|side| u16::try_from(side).ok());
            side.filter(|side| *side > 0).ok_or_else(|| format!("{name} must be 1 to 65535"))
        };
        Ok((side("cols")?, side("rows")?))
    });
    let (columns, rows) = match size {
        Ok(size) => size,
        Err(message) => return invalid(&message),
    };
    let Some(process) = running(&hall, &guest, &sandbox.id, &name) else { return none() };
    match process.grip().resize(columns, rows) {
        Ok(()) => match row(&process) {
            Some(row) => reply::json(StatusCode::OK, &row),
            None => none(),
        },
        Err(_) => invalid("the size cannot be changed"),
    }
}

pub(crate) async fn kill(
    State(hall): State<Hall>,
    Visit((guest, sandbox)): Visit,
    Path((_, name)): Path<(String, String)>,
) -> Response {
    let Some(process) = running(&hall, &guest, &sandbox.id, &name) else { return none() };
    process.grip().kill();
    process.wait().await;
    reply::empty(StatusCode::NO_CONTENT)
}

fn none() -> Response {
    fault(StatusCode::NOT_FOUND, "NOT_FOUND", "there is no such terminal")
}

fn tag(name: &str) -> String {
    format!("{TAG}{name}")
}

fn running(hall: &Hall, guest: &ActorRef, sandbox: &str, name: &str) -> Option<Arc<Process>> {
    let wanted = tag(name);
    let processes = hall.workshop.processes(guest, sandbox).ok()?;
    let is_it = |process: &Arc<Process>| {
        process.end().is_none() && process.facts().tag.as_deref() == Some(wanted.as_str())
    };
    processes.into_iter().find(is_it)
}

/// Reads the variables a client packed into a subprotocol.
fn envs(protocols: &str) -> Result<BTreeMap<String, String>, String> {
    let mut offered = protocols.split(',').map(str::trim);
    let Some(packed) = offered.find_map(|offer| offer.strip_prefix(ENVS_PROTOCOL)) else {
        return Ok(BTreeMap::new());
    };
    let bytes = URL_SAFE_NO_PAD
        .decode(packed)
        .map_err(|error| keep_cause(&error, "the variables are not base64url"))?;
    serde_json::from_slice(&bytes)
        .map_err(|error| keep_cause(&error, "the variables are no object of strings".to_owned()))
}

fn accept(upgrade: WebSocketUpgrade, process: Arc<Process>) -> Response {
    let run = process.facts().run.clone();
    let response =
        upgrade.protocols([EXIT_PROTOCOL]).on_upgrade(move |socket| carry(socket, process));
    reply::with_receipt(response, Some(&run))
}

/// Carries a terminal both ways until it ends or the client goes; going does not end it.
async fn carry(mut socket: WebSocket, process: Arc<Process>) {
    let _attended = process.attend();
    let connected = json!({ "type": "control", "status": "connected" }).to_string();
    if socket.send(Message::Text(connected.into())).await.is_err() {
        return;
    }
    let mut cursor = 0;
    loop {
        tokio::select! {
            next = process.next(&mut cursor) => match next {
                Next::Chunk(chunk) => {
                    if socket.send(Message::Binary(chunk.bytes)).await.is_err() {
                        return;
                    }
                }
                Next::Missed => {}
                Next::Ended(end) => {
                    let code = end.exit_code();
                    let told = json!({ "type": "control", "status": "exited", "exitCode": code,
                        "exitReason": end.message });
                    let _ = socket.send(Message::Text(told.to_string().into())).await;
                    let mut reason =
                        json!({ "exitCode": code, "exitReason": end.message }).to_string();
                    // A frame that closes holds no more; what is missing was told before it.
                    if reason.len() > MOST_REASON {
                        reason = json!({ "exitCode": code }).to_string();
                    }
                    let frame = CloseFrame { code: 1000, reason: reason.into() };
                    let _ = socket.send(Message::Close(Some(frame))).await;
                    return;
                }
            },
            message = socket.recv() => match message {
                // Input that nobody reads is lost with the terminal.
                Some(Ok(Message::Binary(bytes))) => drop(process.write(&bytes).await),
                Some(Ok(Message::Text(text))) => drop(process.write(text.as_bytes()).await),
                Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                Some(Ok(Message::Close(_)) | Err(_)) | None => return,
            },
        }
    }
}
