//! E2B's files: `filesystem.Filesystem` and `/files`.

use std::collections::BTreeMap;
use std::io::Read as _;

use axum::body::Bytes;
use axum::extract::{FromRequest as _, Multipart, Query, Request};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use flate2::read::GzDecoder;
use serde_json::{Map, Value, json};
use warrant_protocol::RunId;

use super::commands::check_user;
use super::connect::{self, Fault};
use super::{USER, Visit, api_fault};
use crate::doors::reply::{self, text, unknown_member, whole};
use crate::doors::{
    Entry, EntryKind, FileAnswer, FileCall, FileFault, MAX_BODY_BYTES, WorkshopError,
};
use crate::request_context::keep_cause;

/// Deeper listings are refused.
const DEEPEST: u64 = 32;

pub(crate) async fn stat(visit: Visit, headers: HeaderMap, body: Bytes) -> Response {
    call(visit, &headers, &body, |request| Ok(FileCall::Stat { path: path(request, "path")? }))
        .await
}

pub(crate) async fn make_directory(visit: Visit, headers: HeaderMap, body: Bytes) -> Response {
    call(visit, &headers, &body, |request| {
        Ok(FileCall::MakeDirectory { path: path(request, "path")?, mode: None })
    })
    .await
}

pub(crate) async fn rename(visit: Visit, headers: HeaderMap, body: Bytes) -> Response {
    call(visit, &headers, &body, |request| {
        Ok(FileCall::Move { from: path(request, "source")?, to: path(request, "destination")? })
    })
    .await
}

pub(crate) async fn list(visit: Visit, headers: HeaderMap, body: Bytes) -> Response {
    call(visit, &headers, &body, |request| {
        let depth = whole(request, "depth")?.unwrap_or(1).max(1);
        let depth = u32::try_from(depth).ok().filter(|depth| u64::from(*depth) <= DEEPEST);
        let depth = depth.ok_or_else(|| format!("depth must be 1 to {DEEPEST}"))?;
        Ok(FileCall::List { path: path(request, "path")?, depth })
    })
    .await
}

pub(crate) async fn remove(visit: Visit, headers: HeaderMap, body: Bytes) -> Response {
    call(visit, &headers, &body, |request| {
        Ok(FileCall::Remove { path: path(request, "path")?, recursive: true })
    })
    .await
}

/// Does one unary call.
async fn call(
    visit: Visit,
    headers: &HeaderMap,
    body: &[u8],
    read: fn(&Map<String, Value>) -> Result<FileCall, String>,
) -> Response {
    if let Err(fault) = check_user(headers) {
        return connect::error(&fault);
    }
    let known = ["path", "source", "destination", "depth"];
    let wish = reply::object(body).and_then(|request| match unknown_member(&request, &known) {
        Some(name) => Err(format!("{name} is not served here")),
        None => read(&request),
    });
    let wish = match wish {
        Ok(wish) => wish,
        Err(message) => return connect::error(&Fault::invalid(message)),
    };
    let is_removal = matches!(wish, FileCall::Remove { .. });
    match visit.ask(move |workshop, visit| workshop.file(&visit.0, &visit.1, wish)).await {
        Ok((_, run)) if is_removal => connect::answer(&json!({}), Some(&run)),
        Ok((FileAnswer::Entry(entry), run)) => {
            connect::answer(&json!({ "entry": row(&entry) }), Some(&run))
        }
        Ok((FileAnswer::Entries(entries), run)) => {
            let rows: Vec<Value> = entries.iter().map(row).collect();
            connect::answer(&json!({ "entries": rows }), Some(&run))
        }
        Ok((FileAnswer::Content(_) | FileAnswer::Lookout(_), run)) => {
            connect::answer(&json!({}), Some(&run))
        }
        // What is not there is gone already.
        Err(WorkshopError::File { fault: FileFault::Missing, run, .. }) if is_removal => {
            connect::answer(&json!({}), Some(&run))
        }
        Err(error) => connect::error(&Fault::from(&error)),
    }
}

fn path(request: &Map<String, Value>, name: &str) -> Result<String, String> {
    match text(request, name)? {
        Some(path) if !path.is_empty() => Ok(path),
        _ => Err(format!("{name} is missing")),
    }
}

pub(super) fn row(entry: &Entry) -> Value {
    let kind = match entry.kind {
        EntryKind::File => "FILE_TYPE_FILE",
        EntryKind::Directory => "FILE_TYPE_DIRECTORY",
        EntryKind::Link => "FILE_TYPE_SYMLINK",
        EntryKind::Other => "FILE_TYPE_UNSPECIFIED",
    };
    let mut row = json!({
        "name": entry.name,
        "type": kind,
        "path": entry.path,
        "size": entry.size.to_string(),
        "mode": entry.mode,
        "permissions": reply::permissions(entry.kind, entry.mode),
        "owner": USER,
        "group": USER,
        "modifiedTime": reply::rfc3339(entry.modified_ns),
    });
    if let (Some(target), Some(row)) = (&entry.target, row.as_object_mut()) {
        row.insert("symlinkTarget".into(), json!(absolute(&entry.path, target)));
    }
    row
}

/// Returns where a link says that it leads, from the root; nobody has gone there.
fn absolute(link: &str, target: &str) -> String {
    let parent = link.rsplit_once('/').map_or("", |(parent, _)| parent);
    let mut parts = Vec::new();
    let below = if target.starts_with('/') { "" } else { parent };
    for part in below.split('/').chain(target.split('/')) {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            name => parts.push(name),
        }
    }
    format!("/{}", parts.join("/"))
}

pub(crate) async fn download(
    visit: Visit,
    headers: HeaderMap,
    Query(query): Query<BTreeMap<String, String>>,
) -> Response {
    let path = match check_query(&query, &headers).map(|()| query.get("path").cloned()) {
        Ok(path) => path.unwrap_or_default(),
        Err(message) => return api_fault(StatusCode::BAD_REQUEST, &message),
    };
    let read = FileCall::Read { path };
    match visit.ask(move |workshop, visit| workshop.file(&visit.0, &visit.1, read)).await {
        Ok((FileAnswer::Content(content), run)) => {
            let response = reply::bytes(StatusCode::OK, "application/octet-stream", content);
            reply::with_receipt(response, Some(&run))
        }
        Ok(_) => file_error(&WorkshopError::because("a call on files gave another answer")),
        Err(error) => file_error(&error),
    }
}

pub(crate) async fn upload(
    visit: Visit,
    Query(query): Query<BTreeMap<String, String>>,
    request: Request,
) -> Response {
    let headers = request.headers();
    let has_metadata = headers.keys().any(|name| name.as_str().starts_with("x-metadata-"));
    let encoded = reply::header(headers, "content-encoding").unwrap_or("identity");
    let is_packed = encoded == "gzip";
    let refusal = match check_query(&query, headers) {
        Err(message) => Some(message),
        Ok(()) if has_metadata => Some("metadata of files is not kept here".to_owned()),
        Ok(()) if !is_packed && encoded != "identity" => {
            Some(format!("{encoded} bodies are not read here"))
        }
        Ok(()) => None,
    };
    if let Some(message) = refusal {
        return api_fault(StatusCode::BAD_REQUEST, &message);
    }
    let request = match is_packed {
        true => match unpacked(request).await {
            Ok(request) => request,
            Err((status, message)) => return api_fault(status, &message),
        },
        false => request,
    };
    let files = match read_upload(request, query.get("path")).await {
        Ok(files) => files,
        Err((status, message)) => return api_fault(status, &message),
    };
    write_all(visit, files).await
}

type Upload = (String, Bytes);

/// Unpacks a body that came packed; it is bounded like one that did not.
async fn unpacked(request: Request) -> Result<Request, (StatusCode, String)> {
    let too_large = || (StatusCode::PAYLOAD_TOO_LARGE, "the upload is too large".to_owned());
    let (parts, body) = request.into_parts();
    let packed = Bytes::from_request(Request::from_parts(parts.clone(), body), &()).await;
    let packed = packed.map_err(|error| keep_cause(&error, too_large()))?;
    let content = tokio::task::spawn_blocking(move || {
        let mut content = Vec::new();
        let most = MAX_BODY_BYTES as u64 + 1;
        GzDecoder::new(&*packed).take(most).read_to_end(&mut content).map(|_| content)
    });
    let content = content.await.ok().and_then(Result::ok);
    let bad = || (StatusCode::BAD_REQUEST, "the body is no gzip, or broken".to_owned());
    let content = content.ok_or_else(bad)?;
    if content.len() > MAX_BODY_BYTES {
        return Err(too_large());
    }
    Ok(Request::from_parts(parts, content.into()))
}

/// Reads every file of an upload: raw bytes for one path, or a form with a name for each.
async fn read_upload(
    request: Request,
    path: Option<&String>,
) -> Result<Vec<Upload>, (StatusCode, String)> {
    let bad = |message: &str| (StatusCode::BAD_REQUEST, message.to_owned());
    let too_large = |error: axum::extract::multipart::MultipartError| {
        (error.status(), "the upload could not be read".to_owned())
    };
    let kind = reply::header(request.headers(), "content-type").unwrap_or_default().to_owned();
    if !kind.starts_with("multipart/form-data") {
        let path = path.ok_or_else(|| bad("path is missing"))?.clone();
        let content = Bytes::from_request(request, &()).await;
        let content = content.map_err(|error| {
            keep_cause(
                &error,
                (StatusCode::PAYLOAD_TOO_LARGE, "the upload is too large".to_owned()),
            )
        })?;
        return Ok(vec![(path, content)]);
    }
    let form = Multipart::from_request(request, &()).await;
    let mut form = form.map_err(|error| keep_cause(&error, bad("the form cannot be read")))?;
    let mut files = Vec::new();
    while let Some(field) = form.next_field().await.map_err(too_large)? {
        if field.name() != Some("file") {
            return Err(bad("a form has only parts named file"));
        }
        let name = field.file_name().map(str::to_owned);
        let name = path.cloned().or(name).ok_or_else(|| bad("path is missing"))?;
        files.push((name, field.bytes().await.map_err(too_large)?));
    }
    if files.is_empty() {
        return Err(bad("the form has no file"));
    }
    if path.is_some() && files.len() > 1 {
        return Err(bad("one path cannot name several files"));
    }
    Ok(files)
}

async fn write_all(visit: Visit, files: Vec<Upload>) -> Response {
    let written = visit.ask(move |workshop, visit| {
        let mut rows = Vec::new();
        let mut last = None;
        for (path, content) in files {
            let write = FileCall::Write { path, content, mode: None };
            let (answer, run) = workshop.file(&visit.0, &visit.1, write)?;
            if let FileAnswer::Entry(entry) = answer {
                rows.push(json!({ "name": entry.name, "path": entry.path, "type": "file" }));
            }
            last = Some(run);
        }
        Ok::<(Vec<Value>, Option<RunId>), WorkshopError>((rows, last))
    });
    match written.await {
        Ok((rows, run)) => {
            let response = reply::json(StatusCode::OK, &Value::Array(rows));
            reply::with_receipt(response, run.as_ref())
        }
        Err(error) => file_error(&error),
    }
}

fn check_query(query: &BTreeMap<String, String>, headers: &HeaderMap) -> Result<(), String> {
    check_user(headers).map_err(|fault| fault.message)?;
    match query.get("username") {
        Some(name) if name != USER => {
            Err(format!("files belong to the user `{USER}` here; there is no other"))
        }
        _ => Ok(()),
    }
}

fn file_error(error: &WorkshopError) -> Response {
    let status = match error {
        WorkshopError::File { fault, .. } => match fault {
            FileFault::Missing => StatusCode::NOT_FOUND,
            FileFault::Forbidden => StatusCode::FORBIDDEN,
            FileFault::TooLarge => StatusCode::INSUFFICIENT_STORAGE,
            FileFault::Exists
            | FileFault::IsDirectory
            | FileFault::NotDirectory
            | FileFault::NotEmpty => StatusCode::BAD_REQUEST,
        },
        other => return super::api_error(other),
    };
    reply::with_receipt(api_fault(status, &error.to_string()), error.run())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_told_from_the_root() {
        for (target, told) in
            [("b", "/home/a/b"), ("../b/./c", "/home/b/c"), ("/x//y", "/x/y"), ("../../../..", "/")]
        {
            assert_eq!(absolute("/home/a/link", target), told, "{target}");
        }
    }
}
