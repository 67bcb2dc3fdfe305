//! OpenSandbox's execd, files: what is told of them.

mod change;

use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use serde_json::{Map, Value, json};
use warrant_protocol::glob::matches_pattern;
use warrant_protocol::request::ActorRef;

pub(crate) use change::{
    make_directories, remove, remove_directories, rename, replace, set_permissions, upload,
};

use super::piece::Piece;
use super::{Enter, USER, error, invalid};
use crate::doors::reply;
use crate::doors::{
    Entry, EntryKind, FileAnswer, FileCall, FileFault, Hall, Sandbox, Workshop, WorkshopError,
};

/// Deeper than this nothing is listed or searched.
const DEEPEST: u32 = 32;
/// So many names one request has at most: each is a run with a receipt of its own.
const MOST_NAMES: usize = 1000;

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
            Ok(_) => Err(WorkshopError::because("a call on files gave another answer")),
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
        Ok(_) => error(&WorkshopError::because("a call on files gave another answer")),
        Err(refusal) => error(&refusal),
    }
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
