//! Daytona's toolbox, files.

use std::collections::BTreeMap;

use axum::body::Bytes;
use axum::extract::{Multipart, Query, State};
use axum::http::StatusCode;
use axum::http::header::{CONTENT_TYPE, HeaderValue};
use axum::response::Response;
use serde_json::{Value, json};
use warrant_protocol::glob::matches_pattern;
use warrant_protocol::request::ActorRef;

use super::{USER, Visit, error, fault, invalid};
use crate::doors::reply::{self, list as texts_of};
use crate::doors::{Entry, EntryKind, FileAnswer, FileCall, Hall, Sandbox, WorkshopError};

/// Deeper than this nothing is listed or searched.
const DEEPEST: u32 = 32;
const BOUNDARY: &str = "DAYTONA-FILE-BOUNDARY";

type Pairs = Query<BTreeMap<String, String>>;

pub(crate) async fn list(
    State(hall): State<Hall>,
    Visit(visit): Visit,
    Query(query): Pairs,
) -> Response {
    let depth = match query.get("depth").map(|text| text.parse::<u32>()) {
        None => 1,
        Some(Ok(depth)) if (1..=DEEPEST).contains(&depth) => depth,
        Some(_) => return invalid(&format!("depth must be 1 to {DEEPEST}")),
    };
    let path = query.get("path").cloned().unwrap_or_else(|| ".".to_owned());
    match call(&hall, visit, FileCall::List { path, depth }).await {
        Ok((FileAnswer::Entries(entries), response)) => {
            let rows: Vec<Value> = entries.iter().map(row).collect();
            response(StatusCode::OK, Some(Value::Array(rows)))
        }
        Ok((_, response)) => response(StatusCode::OK, Some(json!([]))),
        Err(response) => response,
    }
}

pub(crate) async fn describe(
    State(hall): State<Hall>,
    Visit(visit): Visit,
    Query(query): Pairs,
) -> Response {
    let Some(path) = query.get("path").cloned() else { return invalid("path is missing") };
    match call(&hall, visit, FileCall::Stat { path }).await {
        Ok((FileAnswer::Entry(entry), response)) => response(StatusCode::OK, Some(row(&entry))),
        Ok((_, response)) => response(StatusCode::OK, None),
        Err(response) => response,
    }
}

pub(crate) async fn make_directory(
    State(hall): State<Hall>,
    Visit(visit): Visit,
    Query(query): Pairs,
) -> Response {
    let Some(path) = query.get("path").cloned() else { return invalid("path is missing") };
    let mode = match query.get("mode").map(|text| octal(text)) {
        None => None,
        Some(Some(mode)) => Some(mode),
        Some(None) => return invalid("mode must be octal digits"),
    };
    match call(&hall, visit, FileCall::MakeDirectory { path, mode }).await {
        Ok((_, response)) => response(StatusCode::CREATED, None),
        Err(response) => response,
    }
}

pub(crate) async fn rename(
    State(hall): State<Hall>,
    Visit(visit): Visit,
    Query(query): Pairs,
) -> Response {
    let (Some(from), Some(to)) = (query.get("source").cloned(), query.get("destination").cloned())
    else {
        return invalid("source or destination is missing");
    };
    match call(&hall, visit, FileCall::Move { from, to }).await {
        Ok((_, response)) => response(StatusCode::OK, None),
        Err(response) => response,
    }
}

pub(crate) async fn remove(
    State(hall): State<Hall>,
    Visit(visit): Visit,
    Query(query): Pairs,
) -> Response {
    let Some(path) = query.get("path").cloned() else { return invalid("path is missing") };
    let recursive = query.get("recursive").is_some_and(|value| value == "true");
    match call(&hall, visit, FileCall::Remove { path, recursive }).await {
        Ok((_, response)) => response(StatusCode::NO_CONTENT, None),
        Err(response) => response,
    }
}

pub(crate) async fn set_permissions(
    State(hall): State<Hall>,
    Visit(visit): Visit,
    Query(query): Pairs,
) -> Response {
    let Some(path) = query.get("path").cloned() else { return invalid("path is missing") };
    for name in ["owner", "group"] {
        if query.get(name).is_some_and(|value| !value.is_empty() && value != USER) {
            return invalid(&format!("{name} cannot be changed here: files belong to `{USER}`"));
        }
    }
    let Some(mode) = query.get("mode").and_then(|text| octal(text)) else {
        return invalid("mode must be octal digits");
    };
    match call(&hall, visit, FileCall::SetMode { path, mode }).await {
        Ok((_, response)) => response(StatusCode::OK, None),
        Err(response) => response,
    }
}

/// Finds names below a directory by a pattern.
pub(crate) async fn search(
    State(hall): State<Hall>,
    Visit(visit): Visit,
    Query(query): Pairs,
) -> Response {
    let (Some(path), Some(pattern)) = (query.get("path").cloned(), query.get("pattern").cloned())
    else {
        return invalid("path or pattern is missing");
    };
    match call(&hall, visit, FileCall::List { path, depth: DEEPEST }).await {
        Ok((FileAnswer::Entries(entries), response)) => {
            let found = entries
                .iter()
                .filter(|entry| matches_pattern(&entry.path, &pattern).unwrap_or(false));
            let files: Vec<&str> = found.map(|entry| entry.path.as_str()).collect();
            response(StatusCode::OK, Some(json!({ "files": files })))
        }
        Ok((_, response)) => response(StatusCode::OK, Some(json!({ "files": [] }))),
        Err(response) => response,
    }
}

pub(crate) async fn download(
    State(hall): State<Hall>,
    Visit((guest, sandbox)): Visit,
    Query(query): Pairs,
) -> Response {
    let Some(path) = query.get("path").cloned() else { return invalid("path is missing") };
    match read(&hall, &guest, &sandbox, path).await {
        Ok((content, run)) => {
            let response = reply::bytes(StatusCode::OK, "application/octet-stream", content);
            reply::with_receipt(response, Some(&run))
        }
        Err(refusal) => error(&refusal),
    }
}

/// Answers with a form that has a part for each file, or for the error of it.
pub(crate) async fn bulk_download(
    State(hall): State<Hall>,
    Visit((guest, sandbox)): Visit,
    body: Bytes,
) -> Response {
    let paths = match reply::object(&body).and_then(|body| texts_of(&body, "paths")) {
        Ok(Some(paths)) if !paths.is_empty() => paths,
        Ok(_) => return invalid("paths is missing"),
        Err(message) => return invalid(&message),
    };
    let mut form = Vec::new();
    let mut last = None;
    for path in paths {
        let named = quoted(&path);
        match read(&hall, &guest, &sandbox, path).await {
            Ok((content, run)) => {
                let head = format!(
                    "--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"file\"; \
                     filename=\"{named}\"\r\nContent-Type: application/octet-stream\r\n\
                     Content-Length: {}\r\n\r\n",
                    content.len()
                );
                form.extend_from_slice(head.as_bytes());
                form.extend_from_slice(&content);
                last = Some(run);
            }
            Err(refusal) => {
                let (status, message) = (status_of(&refusal), reply::told(&refusal));
                let code = "FILE_NOT_READ";
                let told = json!({ "statusCode": status, "message": message, "code": code });
                let head = format!(
                    "--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"error\"; \
                     filename=\"{named}\"\r\nContent-Type: application/json\r\n\r\n{told}"
                );
                form.extend_from_slice(head.as_bytes());
                last = refusal.run().cloned().or(last);
            }
        }
        form.extend_from_slice(b"\r\n");
    }
    form.extend_from_slice(format!("--{BOUNDARY}--\r\n").as_bytes());
    let mut response = reply::bytes(StatusCode::OK, "multipart/form-data", form);
    let kind = HeaderValue::from_static("multipart/form-data; boundary=DAYTONA-FILE-BOUNDARY");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    reply::with_receipt(response, last.as_ref())
}

pub(crate) async fn upload(
    State(hall): State<Hall>,
    Visit((guest, sandbox)): Visit,
    Query(query): Pairs,
    mut form: Multipart,
) -> Response {
    let Some(path) = query.get("path").cloned() else { return invalid("path is missing") };
    let content = match form.next_field().await {
        Ok(Some(field)) => field.bytes().await,
        Ok(None) => return invalid("the form has no file"),
        Err(error) => Err(error),
    };
    match content {
        Ok(content) => write_all(&hall, (guest, sandbox), vec![(path, content)]).await,
        Err(_) => fault(StatusCode::PAYLOAD_TOO_LARGE, "FILE_TOO_LARGE", "the form is too large"),
    }
}

/// Reads pairs `files[n].path` and `files[n].file`.
pub(crate) async fn bulk_upload(
    State(hall): State<Hall>,
    Visit((guest, sandbox)): Visit,
    mut form: Multipart,
) -> Response {
    let mut paths: BTreeMap<String, String> = BTreeMap::new();
    let mut files: Vec<(String, Bytes)> = Vec::new();
    loop {
        let field = match form.next_field().await {
            Ok(Some(field)) => field,
            Ok(None) => break,
            Err(_) => return invalid("the form cannot be read"),
        };
        let name = field.name().unwrap_or_default().to_owned();
        let Ok(content) = field.bytes().await else {
            return fault(StatusCode::PAYLOAD_TOO_LARGE, "FILE_TOO_LARGE", "the form is too large");
        };
        if let Some(key) = name.strip_suffix(".path") {
            paths.insert(key.to_owned(), String::from_utf8_lossy(&content).into_owned());
        } else if let Some(key) = name.strip_suffix(".file") {
            let Some(path) = paths.get(key) else { return invalid("a file comes before its path") };
            files.push((path.clone(), content));
        } else {
            return invalid("a form has only parts named files[n].path and files[n].file");
        }
    }
    if files.is_empty() {
        return invalid("the form has no file");
    }
    write_all(&hall, (guest, sandbox), files).await
}

async fn write_all(
    hall: &Hall,
    (guest, sandbox): (ActorRef, Sandbox),
    files: Vec<(String, Bytes)>,
) -> Response {
    let written = hall.ask(move |workshop| {
        let mut last = None;
        for (path, content) in files {
            let write = FileCall::Write { path, content, mode: None };
            last = Some(workshop.file(&guest, &sandbox.id, write)?.1);
        }
        Ok(last)
    });
    match written.await {
        Ok(run) => reply::with_receipt(reply::empty(StatusCode::OK), run.as_ref()),
        Err(refusal) => error(&refusal),
    }
}

async fn read(
    hall: &Hall,
    guest: &ActorRef,
    sandbox: &Sandbox,
    path: String,
) -> Result<(Bytes, warrant_protocol::RunId), WorkshopError> {
    let (guest, id) = (guest.clone(), sandbox.id.clone());
    let read = hall.ask(move |workshop| workshop.file(&guest, &id, FileCall::Read { path }));
    match read.await? {
        (FileAnswer::Content(content), run) => Ok((content, run)),
        _ => Err(WorkshopError::Failed),
    }
}

type Answer = Box<dyn FnOnce(StatusCode, Option<Value>) -> Response + Send>;

/// Does a call and returns what it found, with the way to answer that names its receipt.
async fn call(
    hall: &Hall,
    (guest, sandbox): (ActorRef, Sandbox),
    call: FileCall,
) -> Result<(FileAnswer, Answer), Response> {
    let done = hall.ask(move |workshop| workshop.file(&guest, &sandbox.id, call)).await;
    let (answer, run) = done.map_err(|refusal| error(&refusal))?;
    let respond: Answer = Box::new(move |status, body| {
        let response = match body {
            Some(body) => reply::json(status, &body),
            None => reply::empty(status),
        };
        reply::with_receipt(response, Some(&run))
    });
    Ok((answer, respond))
}

fn status_of(refusal: &WorkshopError) -> u16 {
    error(refusal).status().as_u16()
}

fn octal(text: &str) -> Option<u32> {
    let digits = text.strip_prefix("0o").unwrap_or(text);
    u32::from_str_radix(digits, 8).ok().filter(|mode| *mode <= 0o7777)
}

/// A file's name inside a form's head.
fn quoted(path: &str) -> String {
    let is_plain = |c: &char| !c.is_control() && *c != '"' && *c != '\\';
    path.chars().filter(is_plain).collect()
}

fn row(entry: &Entry) -> Value {
    json!({
        "name": entry.name,
        "path": entry.path,
        "size": entry.size,
        "mode": reply::permissions(entry.kind, entry.mode),
        "modTime": reply::rfc3339(entry.modified_ns),
        "modifiedAt": reply::rfc3339(entry.modified_ns),
        "isDir": entry.kind == EntryKind::Directory,
        "owner": USER,
        "group": USER,
        "permissions": format!("{:04o}", entry.mode),
    })
}
