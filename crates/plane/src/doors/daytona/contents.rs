//! Daytona's toolbox, what files hold: finding text in them, and replacing it.
//!
//! Finding is `grep` in the sandbox, with one receipt; replacing reads and writes each file whole.

use std::collections::BTreeMap;

use axum::body::Bytes;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Value, json};
use warrant_protocol::RunId;
use warrant_protocol::request::ActorRef;

use super::files::MOST_FILES;
use super::{HOME, Visit, error, invalid};
use crate::doors::reply::{self, list as texts_of, text, unknown_member};
use crate::doors::{
    ChunkStream, FileAnswer, FileCall, Hall, Process, Start, Workshop, WorkshopError,
};
use crate::request_context::keep_cause;

/// How long a search may take.
const FIND_MS: u64 = 60_000;
/// What `grep` says when nothing fits.
const NOTHING: i64 = 1;

pub(crate) async fn find(
    State(hall): State<Hall>,
    Visit((guest, sandbox)): Visit,
    Query(query): Query<BTreeMap<String, String>>,
) -> Response {
    let member = |name: &str| query.get(name).filter(|text| !text.is_empty()).cloned();
    let (Some(path), Some(pattern)) = (member("path"), member("pattern")) else {
        return invalid("path or pattern is missing");
    };
    let path = match path.strip_prefix('~') {
        Some(rest) if rest.is_empty() || rest.starts_with('/') => format!("{HOME}{rest}"),
        _ if path.starts_with('/') => path,
        _ => format!("{HOME}/{path}"),
    };
    let words = ["grep", "-rnIZF", "-e", &pattern, "--", &path];
    let wish = Start {
        argv: words.map(str::to_owned).to_vec(),
        env: BTreeMap::new(),
        cwd: None,
        timeout_ms: Some(FIND_MS),
        stdin: false,
        terminal: None,
        tag: None,
        session: None,
        approved: None,
    };
    let started = hall.ask(move |workshop| workshop.start(&guest, &sandbox.id, wish)).await;
    let process = match started {
        Ok(process) => process.attend(),
        Err(refusal) => return error(&refusal),
    };
    let end = process.wait().await;
    let run = process.facts().run.clone();
    match end.exit_code() {
        Some(0 | NOTHING) => {
            let body = Value::Array(matches(&process));
            reply::with_receipt(reply::json(StatusCode::OK, &body), Some(&run))
        }
        Some(_) => {
            let said = process.text(Some(ChunkStream::Stderr));
            let said = if said.is_empty() { end.message } else { said };
            reply::with_receipt(invalid(said.trim()), Some(&run))
        }
        None => error(&WorkshopError::Refused { run, message: end.message }),
    }
}

fn matches(process: &Process) -> Vec<Value> {
    rows(&process.text(Some(ChunkStream::Stdout)))
}

/// Reads `FILE\0LINE:CONTENT` of each line.
///
/// SECURITY: a name may have ends of lines, and must not pass for a match in another file.
fn rows(said: &str) -> Vec<Value> {
    let (mut rows, mut rest) = (Vec::new(), said);
    while let Some((file, after)) = rest.split_once('\0') {
        let (line, next) = after.split_once('\n').unwrap_or((after, ""));
        rest = next;
        let found = line.split_once(':').and_then(|(number, content)| {
            let number: u64 = number.parse().ok()?;
            Some(json!({ "file": file, "line": number, "content": content }))
        });
        rows.extend(found);
    }
    rows
}

pub(crate) async fn replace(
    State(hall): State<Hall>,
    Visit((guest, sandbox)): Visit,
    body: Bytes,
) -> Response {
    let wish = reply::object(&body).and_then(|body| {
        if let Some(name) = unknown_member(&body, &["files", "pattern", "newValue"]) {
            return Err(format!("{name} is not served here"));
        }
        let files = texts_of(&body, "files")?.ok_or("files is missing")?;
        if files.len() > MOST_FILES {
            return Err(format!("files must be at most {MOST_FILES} paths"));
        }
        let pattern = text(&body, "pattern")?.filter(|pattern| !pattern.is_empty());
        let pattern = pattern.ok_or("pattern is missing")?;
        Ok((files, pattern, text(&body, "newValue")?.unwrap_or_default()))
    });
    let (files, pattern, new) = match wish {
        Ok(wish) => wish,
        Err(message) => return invalid(&message),
    };
    let done = hall.ask(move |workshop| {
        let (mut rows, mut last) = (Vec::new(), None);
        for file in files {
            let visit = (&guest, sandbox.id.as_str());
            let row = match replace_one(workshop, visit, (&file, &pattern, &new)) {
                Ok(run) => {
                    last = Some(run);
                    json!({ "file": file, "success": true })
                }
                Err(refusal) => {
                    last = refusal.run().cloned().or(last);
                    json!({ "file": file, "success": false, "error": reply::told(&refusal) })
                }
            };
            rows.push(row);
        }
        Ok((rows, last))
    });
    match done.await {
        Ok((rows, run)) => {
            let response = reply::json(StatusCode::OK, &Value::Array(rows));
            reply::with_receipt(response, run.as_ref())
        }
        Err(refusal) => error(&refusal),
    }
}

fn replace_one(
    workshop: &dyn Workshop,
    (guest, id): (&ActorRef, &str),
    (file, pattern, new): (&str, &str, &str),
) -> Result<RunId, WorkshopError> {
    let read = FileCall::Read { path: file.to_owned() };
    let (answer, run) = workshop.file(guest, id, read)?;
    let FileAnswer::Content(content) = answer else {
        return Err(WorkshopError::because("a call on files gave another answer"));
    };
    let held = std::str::from_utf8(&content).map_err(|error| {
        keep_cause(&error, WorkshopError::Invalid(format!("{file} is no text")))
    })?;
    let too_large = || WorkshopError::Invalid(format!("{file} would become too large"));
    let (changed, count) = reply::replaced(held, pattern, new).ok_or_else(too_large)?;
    if count == 0 {
        return Ok(run);
    }
    let content = Bytes::from(changed);
    let write = FileCall::Write { path: file.to_owned(), content, mode: None };
    workshop.file(guest, id, write).map(|(_, run)| run)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_pass_for_a_match_in_another_file() {
        let said = "/h/a\n/h/real\x001:forged\n/h/b\x002:c:d\r\n/h/cut";
        let expected = json!([
            { "file": "/h/a\n/h/real", "line": 1, "content": "forged" },
            { "file": "/h/b", "line": 2, "content": "c:d\r" },
        ]);
        assert_eq!(Value::Array(rows(said)), expected);
    }
}
