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
use crate::doors::{
    Attended, ChunkStream, End, Hall, Life, Next, Process, Sandbox, ShellSession, Start,
    WorkshopError,
};

/// More sessions than this do not exist at once in one sandbox.
const MOST_SESSIONS: usize = 64;
/// No path is longer.
const LONGEST_PATH: usize = 4096;
const CURSOR_HEADER: HeaderName = HeaderName::from_static("execd-commands-tail-cursor");

/// Says that commands are taken, which they are not while the sandbox is paused.
pub(crate) async fn ping(Enter((_, sandbox)): Enter) -> Response {
    match sandbox.life {
        Life::Running => reply::empty(StatusCode::OK),
        Life::Paused => error(&WorkshopError::Paused),
    }
}

pub(crate) async fn run(State(hall): State<Hall>, Enter(visit): Enter, body: Bytes) -> Response {
    let known = ["command", "argv", "cwd", "envs", "timeout", "background"];
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
    let read = reply::object(&body).and_then(|body| match unknown_member(&body, &["cwd"]) {
        Some(name) => Err(format!("{name} cannot be enforced here")),
        None => text(&body, "cwd"),
    });
    let cwd = match read {
        Ok(Some(cwd)) if cwd.len() > LONGEST_PATH => return invalid("cwd is too long"),
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
    Enter((guest, sandbox)): Enter,
    Path((_, session)): Path<(String, String)>,
) -> Response {
    let key = (sandbox.id, session);
    let removed = {
        let mut sessions = desk.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        sessions.remove(&key)
    };
    let (sandbox, session) = &key;
    desk.hall.workshop.end_session(&guest, sandbox, session);
    match removed {
        Some(_) => reply::empty(StatusCode::OK),
        None => fault(StatusCode::NOT_FOUND, "SESSION_NOT_FOUND", "there is no such session"),
    }
}

/// Reads a command: a line for a shell, or a program with its arguments.
fn wish(body: &Map<String, Value>) -> Result<Start, String> {
    let command = text(body, "command")?.filter(|text| !text.trim().is_empty());
    let words = reply::list(body, "argv")?.filter(|words| !words.is_empty());
    let argv = match (command, words) {
        (Some(command), None) => vec!["bash".to_owned(), "-c".to_owned(), command],
        (None, Some(words)) => words,
        (None, None) => return Err("command is missing".to_owned()),
        (Some(_), Some(_)) => return Err("command and argv exclude each other".to_owned()),
    };
    Ok(Start {
        argv,
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
        let mut lines = Vec::new();
        let mut pieces = bytes.split(|byte| *byte == b'\n');
        // What follows the last end of a line is the beginning of another one.
        let rest = pieces.next_back().unwrap_or_default();
        for piece in pieces {
            held.extend_from_slice(piece);
            lines.push(String::from_utf8_lossy(held).into_owned());
            held.clear();
        }
        held.extend_from_slice(rest);
        if held.len() > LONGEST_LINE {
            let whole = held.len() - unfinished(held);
            let rest = held.split_off(whole);
            lines.push(String::from_utf8_lossy(&std::mem::replace(held, rest)).into_owned());
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

/// Returns how many bytes at the end are the beginning of a character.
fn unfinished(bytes: &[u8]) -> usize {
    let end = bytes.len();
    let begins = |count: &usize| bytes.get(end - count).is_some_and(|byte| byte & 0xC0 == 0xC0);
    let count = (1..=end.min(3)).find(begins).unwrap_or(0);
    let tail = bytes.get(end - count..).unwrap_or_default();
    match std::str::from_utf8(tail) {
        // It is cut, not wrong.
        Err(error) if error.error_len().is_none() => count,
        _ => 0,
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
    let mut text = value.to_string();
    // Some clients take these for ends of lines, and would lose the event.
    let ends = [('\u{85}', "\\u0085"), ('\u{2028}', "\\u2028"), ('\u{2029}', "\\u2029")];
    if !text.is_ascii() {
        text = ends.iter().fold(text, |text, (end, told)| text.replace(*end, told));
    }
    text.push_str("\n\n");
    text.into_bytes()
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
        "content": content(&facts.argv),
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

/// Returns a command as its client gave it.
fn content(argv: &[String]) -> String {
    match argv {
        [shell, option, line] if shell == "bash" && option == "-c" => line.clone(),
        words => words.join(" "),
    }
}

pub(crate) async fn logs(
    State(hall): State<Hall>,
    Enter(visit): Enter,
    Path((_, command)): Path<(String, String)>,
    Query(query): Query<BTreeMap<String, String>>,
) -> Response {
    let Some(process) = find(&hall, &visit, &command) else { return no_command() };
    if let Some(name) = query.keys().find(|name| *name != "cursor") {
        return invalid(&format!("{name} is not served here"));
    }
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
    // Of unknown length: an older client takes a length of nothing for no answer.
    let said = stream::once(async move { Piece::Ok(bytes.into()) });
    let mut response = Response::new(Body::from_stream(said));
    let kind = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, kind);
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

    #[test]
    fn a_line_that_is_too_long_is_cut_between_characters() {
        let mut lines = Lines::default();
        let long = "ä".repeat(LONGEST_LINE);
        let (first, second) = long.as_bytes().split_at(LONGEST_LINE + 1);
        let mut said = lines.push(ChunkStream::Stdout, first);
        said.extend(lines.push(ChunkStream::Stdout, second));
        said.extend(lines.rest().into_iter().map(|(_, line)| line));
        assert!(said.len() > 1);
        assert_eq!(said.concat(), long);
        assert_eq!(unfinished(b"a\xFF"), 0);
        assert_eq!(unfinished(b""), 0);
    }

    #[test]
    fn output_cannot_break_an_event_in_two() {
        let said =
            said(ChunkStream::Stdout, "a\u{2028}b\u{2029}c\u{85}d\r\n\n{\"type\":\"error\"}");
        let text = String::from_utf8(said).unwrap();
        assert!(text.contains(r#""text":"a\u2028b\u2029c\u0085d\r\n\n{\"type"#), "{text}");
        assert_eq!(
            text.split_terminator(['\n', '\r', '\u{2028}', '\u{2029}', '\u{85}']).count(),
            2
        );
    }

    #[test]
    fn a_command_is_a_line_or_words_but_not_both() {
        let read =
            |text: &str| wish(serde_json::from_str::<Value>(text).unwrap().as_object().unwrap());
        assert_eq!(read(r#"{"command":"ls -l"}"#).unwrap().argv, ["bash", "-c", "ls -l"]);
        assert_eq!(read(r#"{"argv":["ls","-l"]}"#).unwrap().argv, ["ls", "-l"]);
        for wrong in
            [r#"{"command":"ls","argv":["ls"]}"#, "{}", r#"{"argv":[]}"#, r#"{"argv":"ls"}"#]
        {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
