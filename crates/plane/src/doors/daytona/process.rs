//! Daytona's toolbox, commands: execute and code.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Map, Value, json};
use warrant_protocol::request::ActorRef;

use super::{Visit, error, fault, invalid};
use crate::doors::reply::{self, list as texts_of, number, text, texts, unknown_member};
use crate::doors::{End, Hall, Process, Sandbox, Start, WorkshopError};

pub(crate) async fn execute(
    State(hall): State<Hall>,
    Visit((guest, sandbox)): Visit,
    body: Bytes,
) -> Response {
    let wish = reply::object(&body).and_then(|body| {
        let known = ["command", "cwd", "envs", "env", "timeout"];
        match unknown_member(&body, &known) {
            Some(name) => Err(format!("{name} is not served here")),
            None => {
                let command = text(&body, "command")?.filter(|text| !text.is_empty());
                let command = command.ok_or_else(|| "command is missing".to_owned())?;
                wish(&body, vec!["bash".to_owned(), "-c".to_owned(), command])
            }
        }
    });
    match wish {
        Ok(wish) => run(&hall, (guest, sandbox), wish).await,
        Err(message) => invalid(&message),
    }
}

pub(crate) async fn code_run(
    State(hall): State<Hall>,
    Visit((guest, sandbox)): Visit,
    body: Bytes,
) -> Response {
    let wish = reply::object(&body).and_then(|body| {
        let known = ["code", "language", "argv", "cwd", "envs", "env", "timeout"];
        if let Some(name) = unknown_member(&body, &known) {
            return Err(format!("{name} is not served here"));
        }
        let code = text(&body, "code")?.ok_or_else(|| "code is missing".to_owned())?;
        let argv = texts_of(&body, "argv")?.unwrap_or_default();
        let interpreter = match text(&body, "language")?.as_deref() {
            None | Some("python") => ["python3", "-c"],
            Some("javascript") => ["node", "-e"],
            Some(other) => return Err(format!("language `{other}` is not served here")),
        };
        let words = interpreter.iter().map(|word| (*word).to_owned());
        wish(&body, words.chain([code]).chain(argv).collect())
    });
    match wish {
        Ok(wish) => run(&hall, (guest, sandbox), wish).await,
        Err(message) => invalid(&message),
    }
}

/// Runs a command to its end and answers with both streams together.
async fn run(hall: &Hall, (guest, sandbox): (ActorRef, Sandbox), wish: Start) -> Response {
    let process = match start(hall, (guest, sandbox), wish).await {
        Ok(process) => process.attend(),
        Err(refusal) => return error(&refusal),
    };
    let end = process.wait().await;
    let run = &process.facts().run;
    if end.is_timeout() {
        let message = "request timeout: command execution timeout";
        let response = fault(StatusCode::REQUEST_TIMEOUT, "REQUEST_TIMEOUT", message);
        return reply::with_receipt(response, Some(run));
    }
    let Some(code) = end.exit_code() else { return refused(&process, end) };
    let body = json!({ "exitCode": code, "result": process.text(None), "receipt": run.as_str() });
    reply::with_receipt(reply::json(StatusCode::OK, &body), Some(run))
}

pub(super) async fn start(
    hall: &Hall,
    (guest, sandbox): (ActorRef, Sandbox),
    wish: Start,
) -> Result<Arc<Process>, WorkshopError> {
    hall.ask(move |workshop| workshop.start(&guest, &sandbox.id, wish)).await
}

pub(super) fn refused(process: &Process, end: End) -> Response {
    let run = process.facts().run.clone();
    error(&WorkshopError::Refused { run, message: end.message })
}

pub(super) fn wish(body: &Map<String, Value>, argv: Vec<String>) -> Result<Start, String> {
    let mut env = texts(body, "envs")?;
    env.extend(texts(body, "env")?);
    let timeout_ms = number(body, "timeout")?.filter(|seconds| *seconds > 0.0);
    let timeout_ms = timeout_ms.map(|seconds| {
        let time = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
        u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1)
    });
    let cwd = text(body, "cwd")?.filter(|cwd| !cwd.is_empty());
    let (stdin, terminal, tag) = (false, None, None);
    let (session, approved) = (None, None);
    Ok(Start { argv, env, cwd, timeout_ms, stdin, terminal, tag, session, approved })
}
