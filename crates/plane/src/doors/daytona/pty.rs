//! Daytona's terminals: one WebSocket that creates and carries a terminal, and calls beside it.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade};
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::json;

use super::{Visit, error, fault, invalid};
use crate::doors::reply::{self, whole};
use crate::doors::{Hall, Next, Process, Start, Terminal};

/// The subprotocol in which clients send variables.
const ENVS_PROTOCOL: &str = "X-Daytona-Pty-Envs~";
/// The subprotocol by which clients ask to be told of the end.
const EXIT_PROTOCOL: &str = "X-Daytona-Pty-Exit-Control";

pub(crate) async fn create(
    State(hall): State<Hall>,
    Visit((guest, sandbox)): Visit,
    (headers, Query(query)): (HeaderMap, Query<BTreeMap<String, String>>),
    upgrade: WebSocketUpgrade,
) -> Response {
    let side = |name: &str, default: u16| match query.get(name) {
        None => Some(default),
        Some(text) => text.parse::<u16>().ok().filter(|side| *side > 0),
    };
    let (Some(columns), Some(rows)) = (side("cols", 80), side("rows", 24)) else {
        return invalid("cols and rows must be 1 to 65535");
    };
    let Some(name) = query.get("id").filter(|name| (1..=256).contains(&name.len())) else {
        return invalid("id must have 1 to 256 characters");
    };
    if running(&hall, &guest, &sandbox.id, name).is_some() {
        return fault(StatusCode::CONFLICT, "CONFLICT", "a terminal has that id already");
    }
    let protocols = reply::header(&headers, "sec-websocket-protocol").unwrap_or_default();
    let env = match envs(protocols) {
        Ok(env) => env,
        Err(message) => return invalid(&message),
    };
    let wish = Start {
        argv: vec!["bash".to_owned(), "-i".to_owned()],
        env,
        cwd: query.get("cwd").filter(|cwd| !cwd.is_empty()).cloned(),
        timeout_ms: None,
        stdin: true,
        terminal: Some(Terminal { columns, rows }),
        tag: Some(tag(name)),
        session: None,
        approved: None,
    };
    let started = hall.ask(move |workshop| workshop.start(&guest, &sandbox.id, wish)).await;
    match started {
        Ok(process) => accept(upgrade, process),
        Err(refusal) => error(&refusal),
    }
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
        Ok(()) => {
            let body = json!({ "id": name, "cols": columns, "rows": rows, "active": true });
            reply::json(StatusCode::OK, &body)
        }
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
    format!("pty:{name}")
}

fn running(
    hall: &Hall,
    guest: &warrant_protocol::request::ActorRef,
    sandbox: &str,
    name: &str,
) -> Option<Arc<Process>> {
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
    let bytes = URL_SAFE_NO_PAD.decode(packed).map_err(|_| "the variables are not base64url")?;
    serde_json::from_slice(&bytes).map_err(|_| "the variables are no object of strings".to_owned())
}

fn accept(upgrade: WebSocketUpgrade, process: Arc<Process>) -> Response {
    let run = process.facts().run.clone();
    let response =
        upgrade.protocols([EXIT_PROTOCOL]).on_upgrade(move |socket| carry(socket, process));
    reply::with_receipt(response, Some(&run))
}

/// Carries a terminal both ways until it ends or the client goes; going does not end it.
async fn carry(mut socket: WebSocket, process: Arc<Process>) {
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
                Next::Ended(end) => {
                    let code = end.exit_code();
                    let told = json!({ "type": "control", "status": "exited", "exitCode": code,
                        "exitReason": end.message });
                    let _ = socket.send(Message::Text(told.to_string().into())).await;
                    let reason = json!({ "exitCode": code, "exitReason": end.message }).to_string();
                    let frame = CloseFrame { code: 1000, reason: reason.into() };
                    let _ = socket.send(Message::Close(Some(frame))).await;
                    return;
                }
            },
            message = socket.recv() => match message {
                Some(Ok(Message::Binary(bytes))) => write(&process, bytes).await,
                Some(Ok(Message::Text(text))) => write(&process, Bytes::from(text)).await,
                Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                Some(Ok(Message::Close(_)) | Err(_)) | None => return,
            },
        }
    }
}

async fn write(process: &Arc<Process>, bytes: Bytes) {
    let process = Arc::clone(process);
    // Input that nobody reads is lost with the terminal.
    let _ = tokio::task::spawn_blocking(move || process.grip().write(&bytes)).await;
}
