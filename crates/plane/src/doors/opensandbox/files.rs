//! OpenSandbox's execd, files.

use axum::body::Bytes;
use axum::extract::{Multipart, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use serde_json::{Map, Value, json};
use warrant_protocol::glob::matches_pattern;
use warrant_protocol::request::ActorRef;

use super::piece::Piece;
use super::{Enter, USER, error, fault, invalid};
use crate::doors::reply::{self, text, unknown_member, whole};
use crate::doors::{
    Entry, EntryKind, FileAnswer, FileCall, FileFault, Hall, Sandbox, Workshop, WorkshopError,
};

/// Deeper than this nothing is listed or searched.
const DEEPEST: u32 = 32;
/// So many names one request has at most: each is a run with a receipt of its own.
const MOST_NAMES: usize = 1000;
/// What stands beside a file in a form is short.
const MOST_METADATA: usize = 64 * 1024;

type Pairs = Query<Vec<(String, String)>>;
type Visit = (ActorRef, Sandbox);

fn named<'a>(query: &'a [(String, String)], name: &'a str) -> impl Iterator<Item = &'a str> {
    query.iter().filter(move |(key, _)| key == name).map(|(_, value)| value.as_str())
}

/// Returns the refusal of the first parameter that is not served.
fn unserved(query: &[(String, String)], known: &[&str]) -> Option<Response> {
    let (name, _) = query.iter().find(|(name, _)| !known.contains(&name.as_str()))?;
    Some(invalid(&format!("{name} is not served here")))
}

/// Returns the refusal of a request for more names than one may have.
fn too_many(count: usize) -> Option<Response> {
    let message = format!("one request has at most {MOST_NAMES} names");
    (count > MOST_NAMES).then(|| invalid(&message))
}

/// Does work on the files of one sandbox and answers with what it says and the last receipt.
async fn work<F>(hall: &Hall, (guest, sandbox): Visit, work: F) -> Response
where
    F: FnOnce(&mut Files<'_>) -> Result<Option<Value>, WorkshopError> + Send + 'static,
{
    let done = hall.ask(move |workshop| {
        let mut files = Files { workshop, guest: &guest, id: &sandbox.id, last: None };
        let said = work(&mut files)?;
        Ok((said, files.last))
    });
    match done.await {
        Ok((said, run)) => {
            let response = match said {
                Some(body) => reply::json(StatusCode::OK, &body),
                None => reply::empty(StatusCode::OK),
            };
            reply::with_receipt(response, run.as_ref())
        }
        Err(refusal) => error(&refusal),
    }
}

/// The files of one sandbox, for a call of several steps.
struct Files<'a> {
    workshop: &'a dyn Workshop,
    guest: &'a ActorRef,
    id: &'a str,
    last: Option<warrant_protocol::RunId>,
}

impl Files<'_> {
    fn call(&mut self, call: FileCall) -> Result<FileAnswer, WorkshopError> {
        let (answer, run) = self.workshop.file(self.guest, self.id, call)?;
        self.last = Some(run);
        Ok(answer)
    }

    /// Looks at a name, which need not be there.
    fn look(&mut self, path: &str) -> Result<Option<Entry>, WorkshopError> {
        match self.call(FileCall::Stat { path: path.to_owned() }) {
            Ok(FileAnswer::Entry(entry)) => Ok(Some(entry)),
            Ok(_) => Err(WorkshopError::Failed),
            Err(WorkshopError::File { fault: FileFault::Missing, run, .. }) => {
                self.last = Some(run);
                Ok(None)
            }
            Err(refusal) => Err(refusal),
        }
    }

    /// Removes a name; one that is not there is none to remove.
    fn remove(&mut self, path: &str, recursive: bool) -> Result<(), WorkshopError> {
        match self.call(FileCall::Remove { path: path.to_owned(), recursive }) {
            Err(WorkshopError::File { fault: FileFault::Missing, run, .. }) => {
                self.last = Some(run);
                Ok(())
            }
            other => other.map(drop),
        }
    }
}

pub(crate) async fn describe(
    State(hall): State<Hall>,
    Enter(visit): Enter,
    Query(query): Pairs,
) -> Response {
    if let Some(refusal) = too_many(query.len()).or_else(|| unserved(&query, &["path"])) {
        return refusal;
    }
    work(&hall, visit, move |files| {
        let mut rows = Map::new();
        for path in named(&query, "path") {
            if let FileAnswer::Entry(entry) = files.call(FileCall::Stat { path: path.into() })? {
                rows.insert(path.to_owned(), row(&entry));
            }
        }
        Ok(Some(Value::Object(rows)))
    })
    .await
}

pub(crate) async fn list(
    State(hall): State<Hall>,
    Enter(visit): Enter,
    Query(query): Pairs,
) -> Response {
    if let Some(refusal) = unserved(&query, &["path", "depth"]) {
        return refusal;
    }
    let depth = match named(&query, "depth").next().map(str::parse::<u32>) {
        None => 1,
        Some(Ok(depth)) if depth <= DEEPEST => depth,
        Some(_) => return invalid(&format!("depth must be 0 to {DEEPEST}")),
    };
    let path = named(&query, "path").next().unwrap_or(".").to_owned();
    work(&hall, visit, move |files| {
        let answer = files.call(FileCall::List { path, depth: depth.max(1) })?;
        Ok(Some(rows(&answer, |_| depth > 0)))
    })
    .await
}

pub(crate) async fn search(
    State(hall): State<Hall>,
    Enter(visit): Enter,
    Query(query): Pairs,
) -> Response {
    if let Some(refusal) = unserved(&query, &["path", "pattern"]) {
        return refusal;
    }
    let path = named(&query, "path").next().unwrap_or(".").to_owned();
    let pattern = named(&query, "pattern").next().unwrap_or("**").to_owned();
    work(&hall, visit, move |files| {
        let answer = files.call(FileCall::List { path, depth: DEEPEST })?;
        let fits = |entry: &Entry| {
            entry.kind != EntryKind::Directory
                && matches_pattern(&entry.path, &pattern).unwrap_or(false)
        };
        Ok(Some(rows(&answer, fits)))
    })
    .await
}

fn rows(answer: &FileAnswer, fits: impl Fn(&Entry) -> bool) -> Value {
    match answer {
        FileAnswer::Entries(entries) => {
            Value::Array(entries.iter().filter(|entry| fits(entry)).map(row).collect())
        }
        FileAnswer::Entry(_) | FileAnswer::Content(_) | FileAnswer::Lookout(_) => json!([]),
    }
}

pub(crate) async fn download(
    State(hall): State<Hall>,
    Enter((guest, sandbox)): Enter,
    headers: HeaderMap,
    Query(query): Pairs,
) -> Response {
    if let Some(refusal) = unserved(&query, &["path", "offset", "limit"]) {
        return refusal;
    }
    let piece = match Piece::read(&headers, &query) {
        Ok(piece) => piece,
        Err(message) => return invalid(&message),
    };
    let path = named(&query, "path").next().unwrap_or_default().to_owned();
    let read =
        hall.ask(move |workshop| workshop.file(&guest, &sandbox.id, FileCall::Read { path }));
    match read.await {
        Ok((FileAnswer::Content(content), run)) => {
            reply::with_receipt(piece.answer(&content), Some(&run))
        }
        Ok(_) => error(&WorkshopError::Failed),
        Err(refusal) => error(&refusal),
    }
}

/// Reads pairs of a part `metadata` and a part `file`.
pub(crate) async fn upload(
    State(hall): State<Hall>,
    Enter(visit): Enter,
    mut form: Multipart,
) -> Response {
    let mut pending: Option<(String, Option<u32>)> = None;
    let mut files: Vec<FileCall> = Vec::new();
    loop {
        let field = match form.next_field().await {
            Ok(Some(field)) => field,
            Ok(None) => break,
            Err(_) => return invalid("the form cannot be read"),
        };
        let name = field.name().unwrap_or_default().to_owned();
        let content = match field.bytes().await {
            Ok(content) => content,
            Err(error) if error.status() == StatusCode::PAYLOAD_TOO_LARGE => {
                return fault(error.status(), "FILE_TOO_LARGE", "the form is too large");
            }
            Err(_) => return invalid("the form cannot be read"),
        };
        match (name.as_str(), pending.take()) {
            ("metadata", None) if content.len() > MOST_METADATA => {
                return invalid("metadata is too long");
            }
            ("metadata", None) => match reply::object(&content).and_then(|meta| target(&meta)) {
                Ok(target) => pending = Some(target),
                Err(message) => return invalid(&message),
            },
            ("file", Some((path, mode))) => files.push(FileCall::Write { path, content, mode }),
            _ => return invalid("a form has pairs of metadata and file"),
        }
        if let Some(refusal) = too_many(files.len()) {
            return refusal;
        }
    }
    if files.is_empty() || pending.is_some() {
        return invalid("a form has pairs of metadata and file");
    }
    work(&hall, visit, move |all| {
        for file in files {
            all.call(file)?;
        }
        Ok(None)
    })
    .await
}

fn target(meta: &Map<String, Value>) -> Result<(String, Option<u32>), String> {
    let path = text(meta, "path")?.filter(|path| !path.is_empty());
    Ok((path.ok_or_else(|| "path is missing".to_owned())?, mode(meta)?))
}

/// Reads permissions, octal digits written as a decimal number, and refuses another owner.
fn mode(meta: &Map<String, Value>) -> Result<Option<u32>, String> {
    if let Some(name) = unknown_member(meta, &["path", "mode", "owner", "group"]) {
        return Err(format!("{name} is not served here"));
    }
    for name in ["owner", "group"] {
        if text(meta, name)?.is_some_and(|value| !value.is_empty() && value != USER) {
            return Err(format!("{name} cannot be chosen here: files belong to `{USER}`"));
        }
    }
    let Some(digits) = whole(meta, "mode")?.filter(|mode| *mode > 0) else { return Ok(None) };
    // A bit that would not be set must not look as if it were.
    let mode = u32::from_str_radix(&digits.to_string(), 8).ok().filter(|mode| *mode <= 0o777);
    mode.map(Some).ok_or_else(|| "mode must be octal digits of at most 777".to_owned())
}

/// Removes files, and no directories.
pub(crate) async fn remove(
    State(hall): State<Hall>,
    Enter(visit): Enter,
    Query(query): Pairs,
) -> Response {
    if let Some(refusal) = too_many(query.len()).or_else(|| unserved(&query, &["path"])) {
        return refusal;
    }
    work(&hall, visit, move |files| {
        for path in named(&query, "path") {
            match files.look(path)? {
                None => {}
                Some(entry) if entry.kind == EntryKind::Directory => {
                    return Err(WorkshopError::Invalid(format!("path '{path}' is a directory")));
                }
                Some(_) => files.remove(path, false)?,
            }
        }
        Ok(None)
    })
    .await
}

/// Removes directories with everything in them.
pub(crate) async fn remove_directories(
    State(hall): State<Hall>,
    Enter(visit): Enter,
    Query(query): Pairs,
) -> Response {
    if let Some(refusal) = too_many(query.len()).or_else(|| unserved(&query, &["path"])) {
        return refusal;
    }
    work(&hall, visit, move |files| {
        for path in named(&query, "path") {
            files.remove(path, true)?;
        }
        Ok(None)
    })
    .await
}

pub(crate) async fn rename(State(hall): State<Hall>, Enter(visit): Enter, body: Bytes) -> Response {
    let items: Vec<Value> = match serde_json::from_slice(&body) {
        Ok(items) => items,
        Err(_) => return invalid("the body must be a list of src and dest"),
    };
    if let Some(refusal) = too_many(items.len()) {
        return refusal;
    }
    let mut moves = Vec::new();
    for item in &items {
        let member = |name: &str| item.get(name).and_then(Value::as_str).map(str::to_owned);
        match (member("src"), member("dest")) {
            (Some(from), Some(to)) => moves.push((from, to)),
            _ => return invalid("src or dest is missing"),
        }
    }
    work(&hall, visit, move |files| {
        for (from, to) in moves {
            // The protocol's own server moves nothing over what is there.
            if files.look(&to)?.is_some() {
                return Err(WorkshopError::Invalid(format!("path '{to}' already exists")));
            }
            files.call(FileCall::Move { from, to })?;
        }
        Ok(None)
    })
    .await
}

pub(crate) async fn make_directories(
    State(hall): State<Hall>,
    Enter(visit): Enter,
    body: Bytes,
) -> Response {
    let wanted = match reply::object(&body).and_then(|body| modes(&body)) {
        Ok(wanted) => wanted,
        Err(message) => return invalid(&message),
    };
    work(&hall, visit, move |files| {
        for (path, mode) in wanted {
            match files.call(FileCall::MakeDirectory { path, mode }) {
                Ok(_) | Err(WorkshopError::File { fault: FileFault::Exists, .. }) => {}
                Err(refusal) => return Err(refusal),
            }
        }
        Ok(None)
    })
    .await
}

pub(crate) async fn set_permissions(
    State(hall): State<Hall>,
    Enter(visit): Enter,
    body: Bytes,
) -> Response {
    let wanted = match reply::object(&body).and_then(|body| modes(&body)) {
        Ok(wanted) => wanted,
        Err(message) => return invalid(&message),
    };
    work(&hall, visit, move |files| {
        for (path, mode) in wanted {
            if let Some(mode) = mode {
                files.call(FileCall::SetMode { path, mode })?;
            }
        }
        Ok(None)
    })
    .await
}

fn modes(body: &Map<String, Value>) -> Result<Vec<(String, Option<u32>)>, String> {
    if body.len() > MOST_NAMES {
        return Err(format!("one request has at most {MOST_NAMES} names"));
    }
    let none = Map::new();
    let read = |(path, value): (&String, &Value)| match value {
        Value::Object(member) => Ok((path.clone(), mode(member)?)),
        Value::Null => Ok((path.clone(), mode(&none)?)),
        _ => Err(format!("`{path}` must be an object")),
    };
    body.iter().map(read).collect()
}

/// Replaces text in files: each is read, changed here and written whole.
pub(crate) async fn replace(
    State(hall): State<Hall>,
    Enter(visit): Enter,
    body: Bytes,
) -> Response {
    let body = match reply::object(&body) {
        Ok(body) => body,
        Err(message) => return invalid(&message),
    };
    if let Some(refusal) = too_many(body.len()) {
        return refusal;
    }
    let mut changes = Vec::new();
    for (path, change) in &body {
        let member = |name: &str| change.get(name).and_then(Value::as_str).map(str::to_owned);
        match (member("old"), member("new")) {
            (Some(old), Some(new)) if !old.is_empty() => changes.push((path.clone(), old, new)),
            _ => return invalid("old or new is missing"),
        }
    }
    work(&hall, visit, move |files| {
        let mut counts = Map::new();
        for (path, old, new) in changes {
            let FileAnswer::Content(content) = files.call(FileCall::Read { path: path.clone() })?
            else {
                continue;
            };
            let text = String::from_utf8(content.to_vec());
            let text = text.map_err(|_| WorkshopError::Invalid(format!("{path} is no text")))?;
            let (changed, count) = reply::replaced(&text, &old, &new)
                .ok_or_else(|| WorkshopError::Invalid(format!("{path} would become too large")))?;
            if count > 0 {
                let content = Bytes::from(changed);
                files.call(FileCall::Write { path: path.clone(), content, mode: None })?;
            }
            counts.insert(path, json!({ "replacedCount": count }));
        }
        Ok(Some(Value::Object(counts)))
    })
    .await
}

fn row(entry: &Entry) -> Value {
    let kind = match entry.kind {
        EntryKind::File => "file",
        EntryKind::Directory => "directory",
        EntryKind::Link => "symlink",
        EntryKind::Other => "other",
    };
    // Octal digits, written as a decimal number.
    let mode = format!("{:o}", entry.mode).parse::<u64>().unwrap_or(0);
    json!({
        "path": entry.path,
        "type": kind,
        "size": entry.size,
        "modified_at": reply::rfc3339(entry.modified_ns),
        "created_at": reply::rfc3339(entry.modified_ns),
        "owner": USER,
        "group": USER,
        "mode": mode,
    })
}
