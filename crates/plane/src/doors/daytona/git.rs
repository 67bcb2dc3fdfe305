//! Daytona's toolbox, git: each call is one or two commands of git in the sandbox.
//!
//! They are judged and run like any other command of the sandbox, in the directory of the
//! repository; what a client names never stands where git reads an option. Credentials are
//! refused: they would stand in the command, in its contract and in its receipt.

mod change;
mod look;

use std::collections::BTreeMap;

use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Map, Value};
use warrant_protocol::RunId;
use warrant_protocol::request::ActorRef;

pub(crate) use change::{
    add, add_remote, authenticate, checkout, clone, commit, create_branch, delete_branch, init,
    pull, push, reset, restore, set_setting, set_user,
};
pub(crate) use look::{branches, history, remotes, setting, status};

use super::{error, fault};
use crate::doors::reply::{self, text, unknown_member};
use crate::doors::{ChunkStream, Hall, Sandbox, Start, WorkshopError};

/// How long one of these calls may take.
const LONGEST_MS: u64 = 600_000;
type Visited = (ActorRef, Sandbox);
type Body = Map<String, Value>;

/// A command of git: where, and which words.
struct Git {
    /// Absent means the home directory.
    at: Option<String>,
    words: Vec<String>,
}

/// What git said in the end.
struct Said {
    code: i64,
    stdout: String,
    stderr: String,
    run: RunId,
}

async fn run(hall: &Hall, (guest, sandbox): Visited, wish: Git) -> Result<Said, Response> {
    let start = Start {
        argv: [vec!["git".to_owned()], wish.words].concat(),
        env: BTreeMap::new(),
        cwd: wish.at,
        timeout_ms: Some(LONGEST_MS),
        stdin: false,
        terminal: None,
        tag: None,
        session: None,
        approved: None,
    };
    let started = hall.ask(move |workshop| workshop.start(&guest, &sandbox.id, start)).await;
    let process = started.map_err(|refusal| error(&refusal))?.attend();
    let end = process.wait().await;
    let run = process.facts().run.clone();
    match end.exit_code() {
        Some(code) => Ok(Said {
            code,
            stdout: process.text(Some(ChunkStream::Stdout)),
            stderr: process.text(Some(ChunkStream::Stderr)),
            run,
        }),
        None => Err(error(&WorkshopError::Refused { run, message: end.message })),
    }
}

fn answer(status: StatusCode, body: Option<Value>, run: &RunId) -> Response {
    let response = body.map_or_else(|| reply::empty(status), |body| reply::json(status, &body));
    reply::with_receipt(response, Some(run))
}

/// Says in git's words why it did not do it.
fn failed(said: &Said) -> Response {
    let words = match said.stderr.trim() {
        "" => said.stdout.trim(),
        stderr => stderr,
    };
    let words = format!("git ended with {}: {words}", said.code);
    let status = match said.stderr.contains("not a git repository") {
        true => StatusCode::NOT_FOUND,
        false => StatusCode::BAD_REQUEST,
    };
    reply::with_receipt(fault(status, "GIT_FAILED", &words), Some(&said.run))
}

fn known(body: &Body, known: &[&str]) -> Result<(), String> {
    match unknown_member(body, known) {
        None => Ok(()),
        Some(name) => Err(format!("{name} is not served here")),
    }
}

fn required(body: &Body, name: &str) -> Result<String, String> {
    let value = text(body, name)?.filter(|value| !value.is_empty());
    value.ok_or_else(|| format!("{name} is missing"))
}

/// Returns a member that stands where git would read an option too.
fn plain(body: &Body, name: &str) -> Result<String, String> {
    let value = required(body, name)?;
    match value.starts_with('-') {
        false => Ok(value),
        true => Err(format!("{name} cannot begin with -")),
    }
}

/// Returns the path of a repository as git finds it from home.
fn path(body: &Body) -> Result<String, String> {
    let path = required(body, "path")?;
    Ok(match path.strip_prefix('~') {
        Some(rest) if rest.is_empty() || rest.starts_with('/') => format!("{}{rest}", super::HOME),
        _ => path,
    })
}

fn scope(body: &Body) -> Result<(Option<String>, String), String> {
    match text(body, "scope")?.as_deref() {
        None | Some("" | "global") => Ok((None, "--global".to_owned())),
        Some("local") => Ok((Some(path(body)?), "--local".to_owned())),
        Some(other) => Err(format!("scope must be global or local, not {other}")),
    }
}
