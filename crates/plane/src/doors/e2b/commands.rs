//! E2B's `process.Process`: start, connect, list, input, signals.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::HeaderMap;
use axum::http::header::{CONTENT_TYPE, HeaderValue};
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures_util::stream;
use serde_json::{Map, Value, json};
use warrant_protocol::{LimitKind, Outcome};

use super::connect::{self, Fault};
use super::{USER, Visit};
use crate::doors::process::MISSED;
use crate::doors::reply::{self, list as texts_of, text, texts, unknown_member};
use crate::doors::{
    Attended, Chunk, ChunkStream, End, Hall, Next, Process, Start, Terminal, WorkshopError,
};
use crate::request_context::keep_cause;

/// How often a quiet stream shows that it is alive when the client does not say, in seconds.
const KEEPALIVE_S: u64 = 50;
const SIGNAL_KILL: u64 = 9;
/// The type of a stream's messages.
const STREAM: &str = "application/connect+json";

pub(crate) async fn start(visit: Visit, headers: HeaderMap, body: Bytes) -> Response {
    let wish = check_user(&headers)
        .and_then(|()| connect::request(&body))
        .and_then(|request| wish(&request, timeout(&headers)));
    let wish = match wish {
        Ok(wish) => wish,
        Err(fault) => return stream_of_fault(&fault),
    };
    let watcher = visit.clone();
    let started = visit.ask(move |hall, visit| hall.start(&visit.0, &visit.1, wish)).await;
    match started {
        Ok(process) => watch(watcher, (process.attend(), 0), &headers),
        Err(error) => stream_of_fault(&Fault::from(&error)),
    }
}

pub(crate) async fn connect(visit: Visit, headers: HeaderMap, body: Bytes) -> Response {
    let found = match connect::request(&body) {
        Ok(request) => find(&visit, &request),
        Err(fault) => Err(fault),
    };
    match found {
        Ok(process) => {
            let from = process.now();
            watch(visit, (process.attend(), from), &headers)
        }
        Err(fault) => stream_of_fault(&fault),
    }
}

pub(crate) async fn list(State(hall): State<Hall>, visit: Visit) -> Response {
    let processes = match hall.workshop.processes(&visit.guest, &visit.id) {
        Ok(processes) => processes,
        Err(error) => return connect::error(&Fault::from(&error)),
    };
    let row = |process: &Arc<Process>| {
        let facts = process.facts();
        let cmd = facts.argv.first().map_or("", String::as_str);
        let args = facts.argv.get(1..).unwrap_or_default();
        // Values of variables are never told again.
        let mut config = json!({ "cmd": cmd, "args": args, "envs": {} });
        if let (Some(cwd), Some(config)) = (&facts.cwd, config.as_object_mut()) {
            config.insert("cwd".into(), json!(cwd));
        }
        let mut row = json!({ "config": config, "pid": facts.pid });
        if let (Some(tag), Some(row)) = (&facts.tag, row.as_object_mut()) {
            row.insert("tag".into(), json!(tag));
        }
        row
    };
    let rows: Vec<Value> =
        processes.iter().filter(|process| process.end().is_none()).map(row).collect();
    connect::answer(&json!({ "processes": rows }), None)
}

pub(crate) async fn send_input(visit: Visit, body: Bytes) -> Response {
    let given = async {
        let request = reply::object(&body).map_err(Fault::invalid)?;
        give(&*find(&visit, &request)?, &request).await
    };
    match given.await {
        Ok(()) => connect::answer(&json!({}), None),
        Err(fault) => connect::error(&fault),
    }
}

/// Writes the input that a request carries.
pub(super) async fn give(process: &Process, request: &Map<String, Value>) -> Result<(), Fault> {
    let input = request.get("input").and_then(Value::as_object);
    let data = input.and_then(|input| input.get("stdin").or_else(|| input.get("pty")));
    let data = data.and_then(Value::as_str).ok_or_else(|| Fault::invalid("input is missing"))?;
    let bytes = STANDARD
        .decode(data)
        .map_err(|error| keep_cause(&error, Fault::invalid("input is not base64")))?;
    process.write(&bytes).await.map_err(|error| {
        keep_cause(
            &error,
            Fault {
                code: "failed_precondition",
                message: "the command does not read input".to_owned(),
                run: None,
            },
        )
    })
}

pub(crate) async fn close_stdin(visit: Visit, body: Bytes) -> Response {
    on_process(visit, &body, |process, _| {
        process.grip().close_input();
        Ok(())
    })
    .await
}

pub(crate) async fn send_signal(visit: Visit, body: Bytes) -> Response {
    on_process(visit, &body, |process, request| {
        let is_kill = match request.get("signal") {
            Some(Value::String(name)) => name == "SIGNAL_SIGKILL",
            Some(number) => number.as_u64() == Some(SIGNAL_KILL),
            None => false,
        };
        if !is_kill {
            return Err(Fault {
                code: "unimplemented",
                message: "only SIGKILL can be sent here; it ends the whole tree".to_owned(),
                run: None,
            });
        }
        process.grip().kill();
        Ok(())
    })
    .await
}

pub(crate) async fn update(visit: Visit, body: Bytes) -> Response {
    on_process(visit, &body, |process, request| {
        let Some(size) = terminal(request)? else {
            return Err(Fault::invalid("pty.size is missing"));
        };
        process.grip().resize(size.columns, size.rows).map_err(|error| {
            keep_cause(
                &error,
                Fault {
                    code: "failed_precondition",
                    message: "the command has no terminal".to_owned(),
                    run: None,
                },
            )
        })
    })
    .await
}

/// Does something to a running command on a thread that may wait.
async fn on_process(
    visit: Visit,
    body: &[u8],
    act: fn(&Process, &Map<String, Value>) -> Result<(), Fault>,
) -> Response {
    let request = match reply::object(body) {
        Ok(request) => request,
        Err(message) => return connect::error(&Fault::invalid(message)),
    };
    let process = match find(&visit, &request) {
        Ok(process) => process,
        Err(fault) => return connect::error(&fault),
    };
    let done = tokio::task::spawn_blocking(move || act(&process, &request)).await;
    match done {
        Ok(Ok(())) => connect::answer(&json!({}), None),
        Ok(Err(fault)) => connect::error(&fault),
        Err(error) => connect::error(&Fault::from(&WorkshopError::of_error(error))),
    }
}

/// Returns the running command a request selects by number or tag.
pub(super) fn find(visit: &Visit, request: &Map<String, Value>) -> Result<Arc<Process>, Fault> {
    let selector = request.get("process").and_then(Value::as_object);
    let selector = selector.ok_or_else(|| Fault::invalid("process is missing"))?;
    let pid = selector.get("pid").and_then(Value::as_u64);
    let tag = selector.get("tag").and_then(Value::as_str);
    let processes = visit.hall.workshop.processes(&visit.guest, &visit.id);
    let processes = processes.map_err(|error| Fault::from(&error))?;
    let selected = |process: &Arc<Process>| {
        let facts = process.facts();
        process.end().is_none()
            && match (pid, tag) {
                (Some(pid), _) => u64::from(facts.pid) == pid,
                (None, Some(tag)) => facts.tag.as_deref() == Some(tag),
                (None, None) => false,
            }
    };
    processes.into_iter().find(selected).ok_or_else(|| Fault {
        code: "not_found",
        message: "there is no such process".to_owned(),
        run: None,
    })
}

/// Reads a start request.
fn wish(request: &Map<String, Value>, timeout_ms: Option<u64>) -> Result<Start, Fault> {
    if let Some(name) = unknown_member(request, &["process", "pty", "tag", "stdin"]) {
        return Err(Fault::invalid(format!("{name} is not served here")));
    }
    let config = request.get("process").and_then(Value::as_object);
    let config = config.ok_or_else(|| Fault::invalid("process is missing"))?;
    if let Some(name) = unknown_member(config, &["cmd", "args", "envs", "cwd"]) {
        return Err(Fault::invalid(format!("process.{name} is not served here")));
    }
    let program = text(config, "cmd").map_err(Fault::invalid)?.unwrap_or_default();
    if program.is_empty() {
        return Err(Fault::invalid("process.cmd is missing"));
    }
    let args = texts_of(config, "args").map_err(Fault::invalid)?.unwrap_or_default();
    let stdin = reply::boolean(request, "stdin").map_err(Fault::invalid)?;
    Ok(Start {
        argv: std::iter::once(program).chain(args).collect(),
        env: texts(config, "envs").map_err(Fault::invalid)?,
        cwd: text(config, "cwd").map_err(Fault::invalid)?.filter(|cwd| !cwd.is_empty()),
        timeout_ms,
        stdin: stdin.unwrap_or(true),
        terminal: terminal(request)?,
        tag: text(request, "tag").map_err(Fault::invalid)?,
        session: None,
        approved: None,
    })
}

fn terminal(request: &Map<String, Value>) -> Result<Option<Terminal>, Fault> {
    let Some(pty) = request.get("pty").and_then(Value::as_object) else { return Ok(None) };
    let size = pty.get("size").and_then(Value::as_object);
    let size = size.ok_or_else(|| Fault::invalid("pty.size is missing"))?;
    let side = |name: &str| {
        let value = size.get(name).and_then(Value::as_u64);
        let value = value.and_then(|value| u16::try_from(value).ok()).filter(|value| *value > 0);
        value.ok_or_else(|| Fault::invalid(format!("pty.size.{name} must be 1 to 65535")))
    };
    Ok(Some(Terminal { columns: side("cols")?, rows: side("rows")? }))
}

/// Another user than the only one is refused, not ignored.
pub(super) fn check_user(headers: &HeaderMap) -> Result<(), Fault> {
    let basic =
        reply::header(headers, "authorization").and_then(|value| value.strip_prefix("Basic "));
    let Some(basic) = basic else { return Ok(()) };
    let decoded = STANDARD.decode(basic.trim()).unwrap_or_default();
    let name = decoded.split(|byte| *byte == b':').next().unwrap_or_default();
    if name == USER.as_bytes() {
        return Ok(());
    }
    Err(Fault::invalid(format!(
        "commands and files belong to the user `{USER}` here; there is no other"
    )))
}

/// Connect's own deadline; zero and none are none.
pub(super) fn timeout(headers: &HeaderMap) -> Option<u64> {
    let ms = reply::header(headers, "connect-timeout-ms")?.parse::<u64>().ok()?;
    (ms > 0).then_some(ms)
}

/// Returns how often a quiet stream shows that it is alive.
pub(super) fn keepalive(headers: &HeaderMap) -> Duration {
    let seconds = reply::header(headers, "keepalive-ping-interval").and_then(|s| s.parse().ok());
    Duration::from_secs(seconds.filter(|s| *s > 0).unwrap_or(KEEPALIVE_S))
}

/// Streams a command from a place on to its end. Who stops watching does not stop the command.
fn watch(visit: Visit, (process, from): (Attended, u64), headers: &HeaderMap) -> Response {
    let every = keepalive(headers);
    let run = process.facts().run.clone();
    let first = connect::message(&json!({ "event": { "start": { "pid": process.facts().pid } } }));
    let state = Watch { visit, process, cursor: from, every, is_over: false };
    let rest = stream::unfold(state, |mut state| async move {
        if state.is_over {
            return None;
        }
        let next = tokio::time::timeout(state.every, state.process.next(&mut state.cursor)).await;
        let bytes = match next {
            Err(_) => connect::message(&json!({ "event": { "keepalive": {} } })),
            Ok(Next::Chunk(chunk)) => {
                connect::message(&json!({ "event": { "data": data(&chunk) } }))
            }
            Ok(Next::Missed) => {
                state.is_over = true;
                let message = MISSED.to_owned();
                connect::end(Some(&Fault { code: "data_loss", message, run: None }), None)
            }
            Ok(Next::Ended(end)) => {
                state.is_over = true;
                last(&end, &state)
            }
        };
        Some((Ok::<Bytes, std::convert::Infallible>(bytes), state))
    });
    let first = stream::once(async move { Ok::<Bytes, std::convert::Infallible>(first) });
    let body = Body::from_stream(futures_util::StreamExt::chain(first, rest));
    reply::with_receipt(stream_response(body), Some(&run))
}

struct Watch {
    visit: Visit,
    process: Attended,
    cursor: u64,
    every: Duration,
    is_over: bool,
}

fn data(chunk: &Chunk) -> Value {
    let bytes = STANDARD.encode(&chunk.bytes);
    match chunk.stream {
        ChunkStream::Stdout => json!({ "stdout": bytes }),
        ChunkStream::Stderr => json!({ "stderr": bytes }),
        ChunkStream::Terminal => json!({ "pty": bytes }),
    }
}

/// Returns the end event, if the program ran to one, and the end of the stream.
fn last(end: &End, watch: &Watch) -> Bytes {
    let run = &watch.process.facts().run;
    let ended = |code: i64, status: String, exited: bool| {
        let mut event = json!({ "exitCode": code, "exited": exited, "status": status });
        if let (Some(event), true) = (event.as_object_mut(), code != 0) {
            event.insert("error".into(), json!(status));
        }
        (Some(connect::message(&json!({ "event": { "end": event } }))), None)
    };
    let refused = |code: &'static str| {
        let message = end.message.clone();
        (None, Some(Fault { code, message, run: Some(run.clone()) }))
    };
    let (event, fault) = match &end.outcome {
        Outcome::Exited { code } => ended(i64::from(*code), format!("exit status {code}"), true),
        Outcome::Performed { succeeded } => {
            let code = i64::from(!succeeded);
            ended(code, format!("exit status {code}"), true)
        }
        Outcome::Signaled { signal } => ended(-1, format!("signal: {signal}"), false),
        // Its end is the sandbox's; a program of its own would have an end to tell.
        Outcome::Cancelled if !watch.visit.is_alive() => {
            let message =
                "the sandbox was killed or reached its end of life before the command ended"
                    .to_owned();
            (None, Some(Fault { code: "unavailable", message, run: Some(run.clone()) }))
        }
        Outcome::Cancelled => ended(-1, "signal: killed".to_owned(), false),
        Outcome::Limited { limit: LimitKind::Wall } => refused("deadline_exceeded"),
        Outcome::Limited { limit } => {
            ended(-1, format!("signal: killed (limit of {})", limit.as_str()), false)
        }
        Outcome::Denied
        | Outcome::ApprovalExpired
        | Outcome::PostureRefused
        | Outcome::GapDenied => refused("permission_denied"),
        Outcome::Unobserved | Outcome::Lost | Outcome::Failed => refused("internal"),
    };
    let mut bytes = event.unwrap_or_default().to_vec();
    bytes.extend_from_slice(&connect::end(fault.as_ref(), Some(run)));
    bytes.into()
}

/// Returns whether a call is one whose answer is a stream: errors are told at its end.
pub(super) fn is_stream(headers: &HeaderMap) -> bool {
    reply::header(headers, "content-type").is_some_and(|kind| kind.starts_with(STREAM))
}

pub(super) fn stream_of_fault(fault: &Fault) -> Response {
    let body = Body::from(connect::end(Some(fault), fault.run.as_ref()));
    reply::with_receipt(stream_response(body), fault.run.as_ref())
}

pub(super) fn stream_response(body: Body) -> Response {
    let mut response = Response::new(body);
    let value = HeaderValue::from_static(STREAM);
    response.headers_mut().insert(CONTENT_TYPE, value);
    response
}

impl Visit {
    /// Returns whether the sandbox still lives.
    fn is_alive(&self) -> bool {
        self.hall.workshop.find(&self.guest, &self.id).is_ok()
    }

    /// Asks the workshop about this sandbox on a thread that may wait.
    pub(super) async fn ask<T, F>(self, work: F) -> Result<T, WorkshopError>
    where
        T: Send + 'static,
        F: FnOnce(
                &dyn crate::doors::Workshop,
                &(warrant_protocol::request::ActorRef, String),
            ) -> Result<T, WorkshopError>
            + Send
            + 'static,
    {
        let Self { hall, guest, id } = self;
        let visit = (guest, id);
        hall.ask(move |workshop| work(workshop, &visit)).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_that_is_not_served_is_refused_by_name() {
        let request = json!({"process": {"cmd": "true", "nice": 5}});
        let fault = wish(request.as_object().unwrap(), None).unwrap_err();
        assert_eq!(fault.message, "process.nice is not served here");
        let request = json!({"process": {"cmd": "true"}, "pty": {"size": {"cols": 0, "rows": 1}}});
        assert!(wish(request.as_object().unwrap(), None).is_err());
    }

    #[test]
    fn another_user_is_refused() {
        let mut headers = HeaderMap::new();
        assert!(check_user(&headers).is_ok());
        let root = format!("Basic {}", STANDARD.encode("root:"));
        headers.insert("authorization", root.parse().unwrap());
        assert!(check_user(&headers).is_err());
    }
}
