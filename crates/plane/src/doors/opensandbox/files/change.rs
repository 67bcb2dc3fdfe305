//! OpenSandbox's execd, files: uploads, removals, moves, directories, permissions, replaced text.

use axum::body::Bytes;
use axum::extract::{Multipart, Query, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Map, Value, json};

use super::super::{Enter, USER, fault, invalid};
use super::{Files, MOST_NAMES, Pairs, Visit, named, too_many, unserved, work};
use crate::doors::reply::{self, text, unknown_member, whole};
use crate::doors::{EntryKind, FileAnswer, FileCall, FileFault, Hall, WorkshopError};
use crate::request_context::keep_cause;

/// What stands beside a file in a form is short.
const MOST_METADATA: usize = 64 * 1024;

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
    remove_each(&hall, visit, query, |files, path| match files.look(path)? {
        None => Ok(()),
        Some(entry) if entry.kind == EntryKind::Directory => {
            Err(WorkshopError::Invalid(format!("path '{path}' is a directory")))
        }
        Some(_) => files.remove(path, false),
    })
    .await
}

/// Removes directories with everything in them.
pub(crate) async fn remove_directories(
    State(hall): State<Hall>,
    Enter(visit): Enter,
    Query(query): Pairs,
) -> Response {
    remove_each(&hall, visit, query, |files, path| files.remove(path, true)).await
}

/// Removes whatever a query names, one after the other.
async fn remove_each(
    hall: &Hall,
    visit: Visit,
    query: Vec<(String, String)>,
    remove: fn(&mut Files<'_>, &str) -> Result<(), WorkshopError>,
) -> Response {
    if let Some(refusal) = too_many(query.len()).or_else(|| unserved(&query, &["path"])) {
        return refusal;
    }
    work(hall, visit, move |files| {
        named(&query, "path").try_for_each(|path| remove(files, path))?;
        Ok(None)
    })
    .await
}

pub(crate) async fn rename(State(hall): State<Hall>, Enter(visit): Enter, body: Bytes) -> Response {
    if let Err(message) = reply::check_complexity(&body) {
        return invalid(&message);
    }
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

/// Makes directories; those that are there stay as they are.
pub(crate) async fn make_directories(
    State(hall): State<Hall>,
    Enter(visit): Enter,
    body: Bytes,
) -> Response {
    with_modes(&hall, visit, &body, |files, path, mode| {
        match files.call(FileCall::MakeDirectory { path, mode }) {
            Ok(_) | Err(WorkshopError::File { fault: FileFault::Exists, .. }) => Ok(()),
            Err(refusal) => Err(refusal),
        }
    })
    .await
}

pub(crate) async fn set_permissions(
    State(hall): State<Hall>,
    Enter(visit): Enter,
    body: Bytes,
) -> Response {
    with_modes(&hall, visit, &body, |files, path, mode| match mode {
        Some(mode) => files.call(FileCall::SetMode { path, mode }).map(drop),
        None => Ok(()),
    })
    .await
}

/// Does a step for each name of a body, with the permissions that it says.
async fn with_modes(
    hall: &Hall,
    visit: Visit,
    body: &Bytes,
    step: fn(&mut Files<'_>, String, Option<u32>) -> Result<(), WorkshopError>,
) -> Response {
    let wanted = match reply::object(body).and_then(|body| modes(&body)) {
        Ok(wanted) => wanted,
        Err(message) => return invalid(&message),
    };
    work(hall, visit, move |files| {
        wanted.into_iter().try_for_each(|(path, mode)| step(files, path, mode))?;
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
            let text = text.map_err(|error| {
                keep_cause(&error, WorkshopError::Invalid(format!("{path} is no text")))
            })?;
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
