//! Daytona's toolbox, files.

use std::collections::BTreeMap;

use axum::body::Bytes;
use axum::extract::{Multipart, Query, State};
use axum::http::StatusCode;
use axum::http::header::{CONTENT_TYPE, HeaderValue};
use axum::response::Response;
use serde_json::{Value, json};
use warrant_protocol::RunId;
use warrant_protocol::glob::matches_pattern;
use warrant_protocol::request::ActorRef;

use super::{USER, Visit, error, fault, invalid};
use crate::doors::reply::{self, list as texts_of};
use crate::doors::{
    Entry, EntryKind, FileAnswer, FileCall, FileFault, Hall, MAX_BODY_BYTES, Sandbox, WorkshopError,
};

/// Deeper than this nothing is listed or searched.
const DEEPEST: u32 = 32;
/// More files than this do not travel in one call.
pub(super) const MOST_FILES: usize = 4096;

const OCTAL: &str = "mode must be octal digits, 0 to 777";

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
        Some(None) => return invalid(OCTAL),
    };
    let (guest, sandbox) = visit;
    let made = hall.ask(move |workshop| {
        let file = |call| workshop.file(&guest, &sandbox.id, call);
        match file(FileCall::MakeDirectory { path: path.clone(), mode }) {
            // A folder that is there already is what was asked for.
            Err(exists) if has_fault(&exists, FileFault::Exists) => {
                match file(FileCall::Stat { path })? {
                    (FileAnswer::Entry(entry), run) if entry.kind == EntryKind::Directory => {
                        Ok(run)
                    }
                    _ => Err(exists),
                }
            }
            made => made.map(|(_, run)| run),
        }
    });
    done(made.await, StatusCode::CREATED)
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
    let (guest, sandbox) = visit;
    let moved = hall.ask(move |workshop| {
        let file = |call| workshop.file(&guest, &sandbox.id, call);
        // Nothing is replaced by a move.
        match file(FileCall::Stat { path: to.clone() }) {
            Err(missing) if has_fault(&missing, FileFault::Missing) => {}
            Err(refusal) => return Err(refusal),
            Ok((_, run)) => {
                let message = format!("path '{to}' already exists");
                return Err(WorkshopError::File { fault: FileFault::Exists, message, run });
            }
        }
        file(FileCall::Move { from, to }).map(|(_, run)| run)
    });
    done(moved.await, StatusCode::OK)
}

fn has_fault(refusal: &WorkshopError, wanted: FileFault) -> bool {
    matches!(refusal, WorkshopError::File { fault, .. } if *fault == wanted)
}

fn done(run: Result<RunId, WorkshopError>, status: StatusCode) -> Response {
    match run {
        Ok(run) => reply::with_receipt(reply::empty(status), Some(&run)),
        Err(refusal) => error(&refusal),
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
    let wish = match query.get("mode").map(|text| octal(text)) {
        // Whom it belongs to is settled; whether it is there is not.
        None => FileCall::Stat { path },
        Some(Some(mode)) => FileCall::SetMode { path, mode },
        Some(None) => return invalid(OCTAL),
    };
    match call(&hall, visit, wish).await {
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
    let (guest, sandbox) = visit;
    let found = hall.ask(move |workshop| {
        let wish = FileCall::List { path, depth: DEEPEST };
        let (answer, run) = workshop.file(&guest, &sandbox.id, wish)?;
        let entries = match answer {
            FileAnswer::Entries(entries) => entries,
            _ => Vec::new(),
        };
        let names = entries.into_iter().map(|entry| entry.path);
        // Matching many names takes long, so it is done here and not where others wait.
        let fits = |name: &String| matches_pattern(name, &pattern).unwrap_or(false);
        Ok((names.filter(fits).collect::<Vec<String>>(), run))
    });
    match found.await {
        Ok((files, run)) => {
            let response = reply::json(StatusCode::OK, &json!({ "files": files }));
            reply::with_receipt(response, Some(&run))
        }
        Err(refusal) => error(&refusal),
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
        Ok(Some(paths)) if (1..=MOST_FILES).contains(&paths.len()) => paths,
        Ok(_) => return invalid(&format!("paths must be 1 to {MOST_FILES} paths")),
        Err(message) => return invalid(&message),
    };
    // SECURITY: what files hold came out of the sandbox. A mark that none of them can know cannot
    // stand in one of them and begin the part of another.
    let mark = match crate::random::hex() {
        Ok(mark) => mark,
        Err(cause) => return error(&WorkshopError::of_error(cause)),
    };
    let mut form = Form { mark, bytes: Vec::new() };
    let mut last = None;
    for path in paths {
        // SECURITY: one file can be named often, so the answer is bounded and not the request.
        if form.bytes.len() >= MAX_BODY_BYTES {
            form.error(&path, (413, "the answer is full: ask for this file alone"));
            continue;
        }
        match read(&hall, &guest, &sandbox, path.clone()).await {
            Ok((content, run)) => {
                form.file(&path, &content);
                last = Some(run);
            }
            Err(refusal) => {
                form.error(&path, (status_of(&refusal), &reply::told(&refusal)));
                last = refusal.run().cloned().or(last);
            }
        }
    }
    reply::with_receipt(form.into_response(), last.as_ref())
}

/// An answer of many parts.
struct Form {
    mark: String,
    bytes: Vec<u8>,
}

impl Form {
    fn file(&mut self, path: &str, content: &[u8]) {
        let length = format!("Content-Length: {}\r\n", content.len());
        self.part(("file", path), ("application/octet-stream", &length), content);
    }

    fn error(&mut self, path: &str, (status, message): (u16, &str)) {
        let code = "FILE_NOT_READ";
        let told = json!({ "statusCode": status, "message": message, "code": code });
        self.part(("error", path), ("application/json", ""), told.to_string().as_bytes());
    }

    fn part(&mut self, (name, path): (&str, &str), (kind, more): (&str, &str), content: &[u8]) {
        let (mark, path) = (&self.mark, quoted(path));
        let head = format!(
            "--{mark}\r\nContent-Disposition: form-data; name=\"{name}\"; filename=\"{path}\"\r\n\
             Content-Type: {kind}\r\n{more}\r\n"
        );
        self.bytes.extend_from_slice(head.as_bytes());
        self.bytes.extend_from_slice(content);
        self.bytes.extend_from_slice(b"\r\n");
    }

    fn into_response(mut self) -> Response {
        self.bytes.extend_from_slice(format!("--{}--\r\n", self.mark).as_bytes());
        let mut response = reply::bytes(StatusCode::OK, "multipart/form-data", self.bytes);
        let kind = format!("multipart/form-data; boundary={}", self.mark);
        if let Ok(kind) = HeaderValue::from_str(&kind) {
            response.headers_mut().insert(CONTENT_TYPE, kind);
        }
        response
    }
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
            if files.len() >= MOST_FILES {
                return invalid(&format!("a form has at most {MOST_FILES} files"));
            }
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
) -> Result<(Bytes, RunId), WorkshopError> {
    let (guest, id) = (guest.clone(), sandbox.id.clone());
    let read = hall.ask(move |workshop| workshop.file(&guest, &id, FileCall::Read { path }));
    match read.await? {
        (FileAnswer::Content(content), run) => Ok((content, run)),
        _ => Err(WorkshopError::because("a call on files gave another answer")),
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
    // Bits beyond these change who a program runs as, which nothing here can.
    u32::from_str_radix(digits, 8).ok().filter(|mode| *mode <= 0o777)
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
