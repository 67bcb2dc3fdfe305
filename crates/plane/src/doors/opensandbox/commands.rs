//! OpenSandbox's execd, commands: run with a stream of events, background, sessions.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};

use axum::body::{Body, Bytes};
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::http::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use axum::response::Response;
use futures_util::stream;
use serde_json::{Map, Value, json};
use warrant_protocol::request::ActorRef;

use super::{Desk, Enter, error, fault, invalid};
use crate::doors::process::MISSED;
use crate::doors::reply::{self, boolean, text, texts, unknown_member, whole};
use crate::doors::{Attended, ChunkStream, End, Hall, Next, Process, Sandbox, ShellSession, Start};

/// More sessions than this do not exist at once in one sandbox.
const MOST_SESSIONS: usize = 64;
const CURSOR_HEADER: HeaderName = HeaderName::from_static("execd-commands-tail-cursor");

pub(crate) async fn ping(_: Enter) -> Response {
    reply::empty(StatusCode::OK)
}

pub(crate) async fn run(State(hall): State<Hall>, Enter(visit): Enter, body: Bytes) -> Response {
    let known = ["command", "cwd", "envs", "timeout", "background"];
    let read = reply::object(&body).and_then(|body| match unknown_member(&body, &known) {
        Some(name) => Err(format!("{name} cannot be enforced here")),
        None => Ok((wish(&body)?, boolean(&body, "background")?.unwrap_or(false))),
    });
    match read {
        Ok((wish, is_background)) => start(&hall, visit, wish, is_background).await,
        Err(message) => invalid(&message),
    }
}

pub(crate) async fn run_in_session(
    State(desk): State<Desk>,
    Enter(visit): Enter,
    Path((id, session)): Path<(String, String)>,
    body: Bytes,
) -> Response {
    let known = {
        let sessions = desk.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        sessions.get(&(id, session.clone())).cloned()
    };
    let Some(cwd) = known else {
        return fault(StatusCode::NOT_FOUND, "SESSION_NOT_FOUND", "there is no such session");
    };
    let read = reply::object(&body).and_then(|body| {
        match unknown_member(&body, &["command", "cwd", "timeout"]) {
            Some(name) => Err(format!("{name} cannot be enforced here")),
            None => {
                let session = Some(ShellSession { name: session.clone(), cwd: cwd.clone() });
                Ok(Start { session, ..wish(&body)? })
            }
        }
    });
    match read {
        Ok(wish) => start(&desk.hall, visit, wish, false).await,
        Err(message) => invalid(&message),
    }
}

pub(crate) async fn create_session(
    State(desk): State<Desk>,
    Enter((_, sandbox)): Enter,
    body: Bytes,
) -> Response {
    let cwd = match reply::object(&body).and_then(|body| text(&body, "cwd")) {
        Ok(cwd) => cwd.filter(|cwd| !cwd.is_empty()),
        Err(message) => return invalid(&message),
    };
    let Ok(random) = crate::random::bytes::<8>() else {
        return fault(StatusCode::INTERNAL_SERVER_ERROR, "INTERNAL_ERROR", "no randomness");
    };
    let name: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut sessions = desk.sessions.lock().unwrap_or_else(PoisonError::into_inner);
    // Sessions of sandboxes that are gone go with them.
    sessions.retain(|(of, _), _| desk.hall.workshop.is_alive(of));
    if sessions.keys().filter(|(of, _)| *of == sandbox.id).count() >= MOST_SESSIONS {
        return fault(StatusCode::TOO_MANY_REQUESTS, "TOO_MANY_SESSIONS", "delete a session first");
    }
    sessions.insert((sandbox.id, name.clone()), cwd);
    reply::json(StatusCode::OK, &json!({ "session_id": name }))
}

pub(crate) async fn delete_session(
    State(desk): State<Desk>,
    Enter((_, sandbox)): Enter,
    Path((_, session)): Path<(String, String)>,
) -> Response {
    let mut sessions = desk.sessions.lock().unwrap_or_else(PoisonError::into_inner);
    match sessions.remove(&(sandbox.id, session)) {
        Some(_) => reply::empty(StatusCode::OK),
        None => fault(StatusCode::NOT_FOUND, "SESSION_NOT_FOUND", "there is no such session"),
    }
}

/// Reads a command.
fn wish(body: &Map<String, Value>) -> Result<Start, String> {
    let command = text(body, "command")?.filter(|text| !text.trim().is_empty());
    let command = command.ok_or_else(|| "command is missing".to_owned())?;
    Ok(Start {
        argv: vec!["bash".to_owned(), "-c".to_owned(), command],
        env: texts(body, "envs")?,
        cwd: text(body, "cwd")?.filter(|cwd| !cwd.is_empty()),
        timeout_ms: whole(body, "timeout")?.filter(|ms| *ms > 0),
        stdin: false,
        terminal: None,
        tag: None,
        session: None,
        approved: None,
    })
}

async fn start(
    hall: &Hall,
    (guest, sandbox): (ActorRef, Sandbox),
    wish: Start,
    is_background: bool,
) -> Response {
    let started = hall.ask(move |workshop| workshop.start(&guest, &sandbox.id, wish)).await;
    let process = match started {
        Ok(process) => process,
        Err(refusal) => return error(&refusal),
    };
    let run = process.facts().run.clone();
    let first = event(json!({ "type": "init", "text": run.as_str() }));
    let receipt = event(json!({ "type": "receipt", "text": run.as_str() }));
    let body = if is_background {
        let last = event(json!({ "type": "execution_complete", "execution_time": 0 }));
        Body::from([first, receipt, last].concat())
    } else {
        let watch =
            Watch { process: process.attend(), cursor: 0, lines: Lines::default(), is_over: false };
        let rest = stream::unfold(watch, Watch::step);
        let first = stream::once(async move { Ok([first, receipt].concat().into()) });
        Body::from_stream(futures_util::StreamExt::chain(first, rest))
    };
    let mut response = Response::new(body);
    let kind = HeaderValue::from_static("text/event-stream; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    reply::with_receipt(response, Some(&run))
}

struct Watch {
    process: Attended,
    cursor: u64,
    lines: Lines,
    is_over: bool,
}

type Piece = Result<Bytes, std::convert::Infallible>;

impl Watch {
    async fn step(mut self) -> Option<(Piece, Self)> {
        if self.is_over {
            return None;
        }
        let mut bytes = Vec::new();
        match self.process.next(&mut self.cursor).await {
            Next::Chunk(chunk) => {
                for line in self.lines.push(chunk.stream, &chunk.bytes) {
                    bytes.extend_from_slice(&said(chunk.stream, &line));
                }
            }
            Next::Missed => bytes.extend_from_slice(&said(ChunkStream::Stderr, MISSED)),
            Next::Ended(end) => {
                for (stream, line) in self.lines.rest() {
                    bytes.extend_from_slice(&said(stream, &line));
                }
                bytes.extend_from_slice(&last(&end, &self.process));
                self.is_over = true;
            }
        }
        Some((Ok(bytes.into()), self))
    }
}

/// Output cut into lines, as this protocol carries it; what has no end yet is held back.
#[derive(Default)]
struct Lines {
    stdout: Vec<u8>,
    stderr: Vec<u8>,
}

/// A line longer than this is cut.
const LONGEST_LINE: usize = 64 * 1024;

impl Lines {
    fn push(&mut self, stream: ChunkStream, bytes: &[u8]) -> Vec<String> {
        let held = match stream {
            ChunkStream::Stdout | ChunkStream::Terminal => &mut self.stdout,
            ChunkStream::Stderr => &mut self.stderr,
        };
        held.extend_from_slice(bytes);
        let mut lines = Vec::new();
        while let Some(end) = held.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = held.drain(..=end).collect();
            let line = line.strip_suffix(b"\n").unwrap_or(&line);
            lines.push(String::from_utf8_lossy(line).into_owned());
        }
        if held.len() > LONGEST_LINE {
            lines.push(String::from_utf8_lossy(&std::mem::take(held)).into_owned());
        }
        lines
    }

    fn rest(&mut self) -> Vec<(ChunkStream, String)> {
        let streams =
            [(ChunkStream::Stdout, &mut self.stdout), (ChunkStream::Stderr, &mut self.stderr)];
        let rest = streams.into_iter().filter(|(_, held)| !held.is_empty());
        rest.map(|(stream, held)| {
            (stream, String::from_utf8_lossy(&std::mem::take(held)).into_owned())
        })
        .collect()
    }
}

fn said(stream: ChunkStream, line: &str) -> Vec<u8> {
    let kind = match stream {
        ChunkStream::Stdout | ChunkStream::Terminal => "stdout",
        ChunkStream::Stderr => "stderr",
    };
    event(json!({ "type": kind, "text": line }))
}

/// Returns the event of an end. What was not let to its end is an error, never a success.
fn last(end: &End, process: &Process) -> Vec<u8> {
    let took = end.at.unix_ms().saturating_sub(process.facts().started_at.unix_ms());
    let failed = |name: &str, value: String, text: &str| {
        event(json!({ "type": "error",
            "error": { "ename": name, "evalue": value, "traceback": [text] } }))
    };
    match end.exit_code() {
        Some(0) => event(json!({ "type": "execution_complete", "execution_time": took })),
        _ if end.is_timeout() => failed("CommandExecError", "-1".to_owned(), "signal: killed"),
        Some(code) => failed("CommandExecError", code.to_string(), &format!("exit status {code}")),
        None => failed("PolicyDenied", "-1".to_owned(), &end.message),
    }
}

/// Returns one event: a line of JSON and an empty line, without any field name.
fn event(mut value: Value) -> Vec<u8> {
    if let (Some(value), Ok(now)) = (value.as_object_mut(), crate::random::now()) {
        value.insert("timestamp".into(), json!(now.unix_ms()));
    }
    let mut bytes = value.to_string().into_bytes();
    bytes.extend_from_slice(b"\n\n");
    bytes
}

pub(crate) async fn interrupt(
    State(hall): State<Hall>,
    Enter(visit): Enter,
    Query(query): Query<BTreeMap<String, String>>,
) -> Response {
    let name = query.get("id").map(String::as_str).unwrap_or_default();
    match find(&hall, &visit, name) {
        Some(process) => {
            process.grip().kill();
            process.wait().await;
            reply::empty(StatusCode::OK)
        }
        None => no_command(),
    }
}

pub(crate) async fn status(
    State(hall): State<Hall>,
    Enter(visit): Enter,
    Path((_, command)): Path<(String, String)>,
) -> Response {
    let Some(process) = find(&hall, &visit, &command) else { return no_command() };
    let facts = process.facts();
    let end = process.end();
    let mut body = json!({
        "id": command,
        "content": facts.argv.last(),
        "running": end.is_none(),
        "exit_code": end.as_ref().map(|end| end.exit_code().unwrap_or(-1)),
        "started_at": facts.started_at.to_string(),
        "finished_at": end.as_ref().map(|end| end.at.to_string()),
    });
    let message = end.map(|end| end.message).filter(|message| !message.is_empty());
    if let (Some(message), Some(body)) = (message, body.as_object_mut()) {
        body.insert("error".into(), json!(message));
    }
    reply::with_receipt(reply::json(StatusCode::OK, &body), Some(&facts.run))
}

pub(crate) async fn logs(
    State(hall): State<Hall>,
    Enter(visit): Enter,
    Path((_, command)): Path<(String, String)>,
    Query(query): Query<BTreeMap<String, String>>,
) -> Response {
    let Some(process) = find(&hall, &visit, &command) else { return no_command() };
    let cursor = match query.get("cursor").map(|text| text.parse::<u64>()) {
        None => 0,
        Some(Ok(cursor)) => cursor,
        Some(Err(_)) => return invalid("cursor must be a whole number"),
    };
    let (chunks, next) = process.output_from(cursor);
    let missed =
        if next - chunks.len() as u64 > cursor { format!("{MISSED}\n") } else { String::new() };
    let said = chunks.iter().flat_map(|chunk| chunk.bytes.iter().copied());
    let bytes: Vec<u8> = missed.into_bytes().into_iter().chain(said).collect();
    let mut response = reply::bytes(StatusCode::OK, "text/plain; charset=utf-8", bytes);
    response.headers_mut().insert(CURSOR_HEADER, HeaderValue::from(next));
    reply::with_receipt(response, Some(&process.facts().run))
}

fn no_command() -> Response {
    fault(StatusCode::NOT_FOUND, "COMMAND_NOT_FOUND", "there is no such command")
}

/// A command is named by its run.
fn find(hall: &Hall, (guest, sandbox): &(ActorRef, Sandbox), name: &str) -> Option<Arc<Process>> {
    let processes = hall.workshop.processes(guest, &sandbox.id).ok()?;
    processes.into_iter().find(|process| process.facts().run.as_str() == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_cut_into_lines_and_the_rest_comes_at_the_end() {
        let mut lines = Lines::default();
        assert_eq!(lines.push(ChunkStream::Stdout, b"a\nb"), ["a"]);
        assert_eq!(lines.push(ChunkStream::Stderr, b"e"), Vec::<String>::new());
        assert_eq!(lines.push(ChunkStream::Stdout, b"c\n\n"), ["bc", ""]);
        assert_eq!(lines.rest(), [(ChunkStream::Stderr, "e".to_owned())]);
    }
}
