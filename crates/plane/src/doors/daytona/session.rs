//! Daytona's toolbox, sessions: their commands, input and logs.

use std::sync::{Arc, PoisonError};

use axum::body::Bytes;
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade};
use axum::extract::{FromRequestParts as _, Path, Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use serde_json::{Map, Value, json};

use super::process::{refused, start, wish};
use super::{Desk, Visit, error, fault, invalid, is_sdk_since};
use crate::doors::process::MISSED;
use crate::doors::reply::{self, boolean, text, unknown_member};
use crate::doors::{
    Attended, Chunk, ChunkStream, Next, Process, Sandbox, ShellSession, Start, WorkshopError,
};

/// SDKs from this minor version on read logs as JSON.
const LOGS_AS_JSON_SINCE: u32 = 140;

/// More sessions than this do not exist at once in one sandbox.
const MOST_SESSIONS: usize = 64;
/// So many commands of a session are remembered.
const MOST_COMMANDS: usize = 256;

/// One command of a session.
#[derive(Clone)]
pub(crate) struct SessionCommand {
    id: String,
    command: String,
    process: Arc<Process>,
}

/// One session.
#[derive(Clone)]
pub(crate) struct Session {
    /// What tells its shell from that of an earlier session of the same name.
    shell: String,
    commands: Vec<SessionCommand>,
}

impl Session {
    /// Remembers one more command, and forgets the oldest that ended where there are too many.
    fn remember(&mut self, command: SessionCommand) {
        let has_ended = |command: &SessionCommand| command.process.end().is_some();
        if self.commands.len() >= MOST_COMMANDS
            && let Some(oldest) = self.commands.iter().position(has_ended)
        {
            self.commands.remove(oldest);
        }
        self.commands.push(command);
    }
}

type SessionKey = (String, String);

impl Desk {
    fn key(sandbox: &Sandbox, session: &str) -> SessionKey {
        (sandbox.id.clone(), session.to_owned())
    }

    fn session(&self, key: &SessionKey) -> Option<Session> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner).get(key).cloned()
    }

    /// Remembers a command of a session; false when the session is gone.
    fn remember(&self, key: &SessionKey, command: SessionCommand) -> bool {
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        let session = sessions.get_mut(key);
        session.map(|session| session.remember(command)).is_some()
    }

    fn command(&self, key: &SessionKey, id: &str) -> Option<SessionCommand> {
        self.session(key)?.commands.into_iter().find(|command| command.id == id)
    }
}

fn no_session() -> Response {
    fault(StatusCode::NOT_FOUND, "NOT_FOUND", "session not found")
}

fn no_command() -> Response {
    fault(StatusCode::NOT_FOUND, "NOT_FOUND", "command not found")
}

pub(crate) async fn create_session(
    State(desk): State<Desk>,
    Visit((_, sandbox)): Visit,
    body: Bytes,
) -> Response {
    let name = reply::object(&body).and_then(|body| text(&body, "sessionId"));
    let name = match name {
        Ok(Some(name)) if (1..=256).contains(&name.len()) => name,
        Ok(_) => return invalid("sessionId must have 1 to 256 characters"),
        Err(message) => return invalid(&message),
    };
    let key = Desk::key(&sandbox, &name);
    let shell = match crate::random::hex() {
        Ok(shell) => shell,
        Err(cause) => return error(&WorkshopError::of_error(cause)),
    };
    let mut sessions = desk.sessions.lock().unwrap_or_else(PoisonError::into_inner);
    // Sessions of sandboxes that are gone go with them.
    sessions.retain(|(of, _), _| desk.hall.workshop.is_alive(of));
    let own = sessions.keys().filter(|(of, _)| *of == sandbox.id).count();
    if own >= MOST_SESSIONS {
        return fault(StatusCode::TOO_MANY_REQUESTS, "TOO_MANY_SESSIONS", "delete a session first");
    }
    if sessions.contains_key(&key) {
        return fault(StatusCode::CONFLICT, "CONFLICT", "session already exists");
    }
    sessions.insert(key, Session { shell, commands: Vec::new() });
    reply::empty(StatusCode::CREATED)
}

pub(crate) async fn list_sessions(
    State(desk): State<Desk>,
    Visit((_, sandbox)): Visit,
) -> Response {
    let sessions = desk.sessions.lock().unwrap_or_else(PoisonError::into_inner);
    let own = sessions.iter().filter(|((of, _), _)| *of == sandbox.id);
    let rows: Vec<Value> =
        own.map(|((_, name), session)| session_row(name, &session.commands)).collect();
    reply::json(StatusCode::OK, &Value::Array(rows))
}

pub(crate) async fn describe_session(
    State(desk): State<Desk>,
    Visit((_, sandbox)): Visit,
    Path((_, session)): Path<(String, String)>,
) -> Response {
    match desk.session(&Desk::key(&sandbox, &session)) {
        Some(known) => reply::json(StatusCode::OK, &session_row(&session, &known.commands)),
        None => no_session(),
    }
}

/// Ends every command of a session.
pub(crate) async fn delete_session(
    State(desk): State<Desk>,
    Visit((guest, sandbox)): Visit,
    Path((_, session)): Path<(String, String)>,
) -> Response {
    let removed = {
        let mut sessions = desk.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        sessions.remove(&Desk::key(&sandbox, &session))
    };
    let Some(removed) = removed else { return no_session() };
    for command in removed.commands.iter().filter(|command| command.process.end().is_none()) {
        command.process.grip().kill();
        command.process.wait().await;
    }
    desk.hall.workshop.end_session(&guest, &sandbox.id, &removed.shell);
    reply::empty(StatusCode::NO_CONTENT)
}

pub(crate) async fn session_execute(
    State(desk): State<Desk>,
    Visit((guest, sandbox)): Visit,
    Path((_, session)): Path<(String, String)>,
    body: Bytes,
) -> Response {
    let key = Desk::key(&sandbox, &session);
    let Some(known) = desk.session(&key) else { return no_session() };
    let shell = Some(ShellSession { name: known.shell, cwd: None });
    let read = reply::object(&body).and_then(|body| {
        // There is no echo of input that could be suppressed.
        let known = ["command", "runAsync", "async", "suppressInputEcho"];
        if let Some(name) = unknown_member(&body, &known) {
            return Err(format!("{name} is not served here"));
        }
        let command = text(&body, "command")?.filter(|text| !text.is_empty());
        let command = command.ok_or_else(|| "command is missing".to_owned())?;
        let is_async = boolean(&body, "runAsync")?.or(boolean(&body, "async")?).unwrap_or(false);
        let argv = vec!["bash".to_owned(), "-c".to_owned(), command.clone()];
        Ok((
            command,
            is_async,
            Start { stdin: is_async, session: shell, ..wish(&Map::new(), argv)? },
        ))
    });
    let (command, is_async, wish) = match read {
        Ok(read) => read,
        Err(message) => return invalid(&message),
    };
    let process = match start(&desk.hall, (guest, sandbox), wish).await {
        Ok(process) => process,
        Err(refusal) => return error(&refusal),
    };
    let run = process.facts().run.clone();
    let name = run.as_str().to_owned();
    let entry = SessionCommand { id: name.clone(), command, process: Arc::clone(&process) };
    if !desk.remember(&key, entry) {
        // The session was deleted meanwhile, which ends its commands.
        process.grip().kill();
        return no_session();
    }
    if is_async {
        let body = json!({ "cmdId": name, "output": null, "stdout": null, "stderr": null,
            "exitCode": null, "receipt": run.as_str() });
        return reply::with_receipt(reply::json(StatusCode::ACCEPTED, &body), Some(&run));
    }
    let process = process.attend();
    let end = process.wait().await;
    let Some(code) = end.exit_code() else { return refused(&process, end) };
    let mut body = logs_body(&process);
    if let Some(body) = body.as_object_mut() {
        body.insert("cmdId".into(), json!(name));
        body.insert("exitCode".into(), json!(code));
        body.insert("receipt".into(), json!(run.as_str()));
    }
    reply::with_receipt(reply::json(StatusCode::OK, &body), Some(&run))
}

pub(crate) async fn describe_command(
    State(desk): State<Desk>,
    Visit((_, sandbox)): Visit,
    Path((_, session, command)): Path<(String, String, String)>,
) -> Response {
    match desk.command(&Desk::key(&sandbox, &session), &command) {
        Some(command) => reply::json(StatusCode::OK, &command_row(&command)),
        None => no_command(),
    }
}

pub(crate) async fn send_input(
    State(desk): State<Desk>,
    Visit((_, sandbox)): Visit,
    Path((_, session, command)): Path<(String, String, String)>,
    body: Bytes,
) -> Response {
    let Some(command) = desk.command(&Desk::key(&sandbox, &session), &command) else {
        return no_command();
    };
    let data = reply::object(&body).and_then(|body| text(&body, "data"));
    let mut data = match data {
        Ok(data) => data.unwrap_or_default(),
        Err(message) => return invalid(&message),
    };
    if command.process.end().is_some() {
        return fault(StatusCode::GONE, "GONE", "the command has ended");
    }
    // Input is a line, also of clients that do not say so.
    if !data.ends_with('\n') {
        data.push('\n');
    }
    match command.process.write(data.as_bytes()).await {
        Ok(()) => reply::empty(StatusCode::NO_CONTENT),
        Err(_) => invalid("the command does not read input"),
    }
}

/// Logs whole, or as they come over a WebSocket.
pub(crate) async fn logs(
    State(desk): State<Desk>,
    Visit((_, sandbox)): Visit,
    Path((_, session, command)): Path<(String, String, String)>,
    request: Request,
) -> Response {
    let headers = request.headers().clone();
    let Some(command) = desk.command(&Desk::key(&sandbox, &session), &command) else {
        return no_command();
    };
    let process = command.process;
    let (mut parts, _) = request.into_parts();
    if let Ok(upgrade) = WebSocketUpgrade::from_request_parts(&mut parts, &()).await {
        let process = process.attend();
        return upgrade.on_upgrade(move |socket| follow(socket, process));
    }
    let run = process.facts().run.clone();
    let response = if reads_json(&headers) {
        reply::json(StatusCode::OK, &logs_body(&process))
    } else {
        let (chunks, _) = process.output_from(0);
        let bytes: Vec<u8> = chunks.iter().flat_map(marked).collect();
        reply::bytes(StatusCode::OK, "text/plain; charset=utf-8", bytes)
    };
    reply::with_receipt(response, Some(&run))
}

/// Tells what is said as it comes. What the client sends is only looked at: its pings want their
/// answers while the command is silent, and one that is gone is not waited on.
async fn follow(mut socket: WebSocket, process: Attended) {
    let mut cursor = 0;
    loop {
        let next = tokio::select! {
            next = process.next(&mut cursor) => next,
            message = socket.recv() => match message {
                Some(Ok(Message::Close(_)) | Err(_)) | None => return,
                Some(Ok(_)) => continue,
            },
        };
        let chunk = match next {
            Next::Chunk(chunk) => chunk,
            Next::Missed => {
                let said = format!("{MISSED}\n").into_bytes();
                Chunk { stream: ChunkStream::Stderr, bytes: said.into() }
            }
            Next::Ended(_) => {
                let frame = CloseFrame { code: 1000, reason: "".into() };
                let _ = socket.send(Message::Close(Some(frame))).await;
                return;
            }
        };
        if socket.send(Message::Binary(marked(&chunk).into())).await.is_err() {
            return;
        }
    }
}

/// Returns a chunk behind the mark of its stream.
fn marked(chunk: &Chunk) -> Vec<u8> {
    let mark: [u8; 3] = match chunk.stream {
        ChunkStream::Stdout | ChunkStream::Terminal => [1; 3],
        ChunkStream::Stderr => [2; 3],
    };
    mark.into_iter().chain(chunk.bytes.iter().copied()).collect()
}

fn logs_body(process: &Process) -> Value {
    json!({
        "output": process.text(None),
        "stdout": process.text(Some(ChunkStream::Stdout)),
        "stderr": process.text(Some(ChunkStream::Stderr)),
    })
}

fn reads_json(headers: &HeaderMap) -> bool {
    is_sdk_since(headers, LOGS_AS_JSON_SINCE)
}

fn session_row(name: &str, commands: &[SessionCommand]) -> Value {
    let rows: Vec<Value> = commands.iter().map(command_row).collect();
    json!({ "sessionId": name, "commands": rows })
}

fn command_row(command: &SessionCommand) -> Value {
    let mut row = json!({ "id": command.id, "command": command.command });
    let code = command.process.end().map(|end| end.exit_code().unwrap_or(-1));
    if let (Some(code), Some(row)) = (code, row.as_object_mut()) {
        row.insert("exitCode".into(), json!(code));
    }
    row
}
