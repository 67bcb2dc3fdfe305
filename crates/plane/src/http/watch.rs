//! Watching, as server-sent events: the chain of a run, its live log, and which runs change.
//!
//! A stream ends when the run did, or when the plane goes down; `Last-Event-ID` goes on where a
//! stream was cut.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures_util::stream;
use hyper::HeaderMap;
use serde_json::json;
use tokio::sync::mpsc;
use warrant_protocol::RunId;

use super::error::HttpError;
use super::lanes::{Lane, in_lane};
use super::logs::LiveLog;
use super::registry::{Capability, Principal};
use super::service::Shared;
use super::waiting::{changed, going_down};
use super::{answer, peer_of};
use crate::archive::PIECE_BYTES;
use crate::store::EventRow;

/// How often a stream says that it is still there.
const HEARTBEAT: Duration = Duration::from_secs(15);

type Lines = mpsc::Sender<Result<Bytes, Infallible>>;

/// `GET /v1/runs/:id/events`.
pub(super) async fn events(
    State(service): State<Shared>,
    Path(id): Path<String>,
    request: Request,
) -> Result<Response, HttpError> {
    let caller = service.admit((request.headers(), peer_of(&request)), Capability::RunsRead)?;
    let from = last_id(request.headers()).map_or(0, |last| last + 1);
    let row =
        in_lane(Lane::Reads, &service, move |service| service.readable_run(&caller, &id)).await?;
    Ok(stream_of(move |lines| tell_events(service, row.id, from, lines)))
}

async fn tell_events(service: Shared, run: RunId, mut from: u64, lines: Lines) -> Option<()> {
    let mut changes = service.changes.listen();
    let mut draining = service.draining.subscribe();
    let mut told = None;
    loop {
        let (named, start) = (run.clone(), from);
        let (events, state) = in_lane(Lane::Reads, &service, move |service| {
            let state = service.plane.store().run(&named)?.state;
            Ok((service.plane.store().events_piece(&named, start, PIECE_BYTES)?, state))
        })
        .await
        .ok()?;
        let is_all = events.is_empty();
        for EventRow { seq, body, .. } in events {
            say(&lines, &format!("id: {seq}\nevent: event\ndata: {body}\n\n")).await?;
            from = seq + 1;
        }
        // What comes is told piece by piece; only after the last is there anything to wait for.
        if !is_all {
            continue;
        }
        let now = json!({"runId": run, "status": state.wire(), "state": state});
        if state.is_terminal() {
            return say(&lines, &format!("event: end\ndata: {now}\n\n")).await;
        }
        // A run that is asked to stop changes without an event.
        if told.replace(state).is_some_and(|before| before != state) {
            say(&lines, &format!("event: state\ndata: {now}\n\n")).await?;
        }
        tokio::select! {
            () = changed(&mut changes, &run) => {}
            () = tokio::time::sleep(HEARTBEAT) => say(&lines, ": here\n\n").await?,
            () = lines.closed() => return None,
            () = going_down(&mut draining) => return None,
        }
    }
}

/// `GET /v1/runs/:id/logs`: pieces of the live log, as base64, each with its place as id.
pub(super) async fn logs(
    State(service): State<Shared>,
    Path(id): Path<String>,
    request: Request,
) -> Result<Response, HttpError> {
    let caller = service.admit((request.headers(), peer_of(&request)), Capability::RunsRead)?;
    let from = last_id(request.headers()).unwrap_or(0);
    let row =
        in_lane(Lane::Reads, &service, move |service| service.readable_run(&caller, &id)).await?;
    if row.state.is_terminal() {
        return Ok(stream_of(
            move |lines| async move { say(&lines, "event: end\ndata: {}\n\n").await },
        ));
    }
    let log = service.logs.of(&row.id).ok_or_else(HttpError::busy)?;
    Ok(stream_of(move |lines| tell_log(service, (row.id, log), from, lines)))
}

async fn tell_log(
    service: Shared,
    (run, log): (RunId, Arc<LiveLog>),
    mut from: u64,
    lines: Lines,
) -> Option<()> {
    let mut grown = log.listen();
    let mut changes = service.changes.listen();
    let mut draining = service.draining.subscribe();
    loop {
        let named = run.clone();
        let state = in_lane(Lane::Reads, &service, move |service| {
            Ok(service.plane.store().run(&named)?.state)
        });
        let is_over = state.await.ok()?.is_terminal();
        let (start, bytes) = log.since(from);
        if !bytes.is_empty() {
            from = start + bytes.len() as u64;
            let data = STANDARD.encode(&bytes);
            say(&lines, &format!("id: {from}\nevent: log\ndata: {data}\n\n")).await?;
        }
        if is_over {
            // Whoever began to watch while the run ended may have opened the log again.
            service.logs.end(&run);
            return say(&lines, "event: end\ndata: {}\n\n").await;
        }
        tokio::select! {
            _ = grown.changed() => {}
            () = changed(&mut changes, &run) => {}
            () = tokio::time::sleep(HEARTBEAT) => say(&lines, ": here\n\n").await?,
            () = lines.closed() => return None,
            () = going_down(&mut draining) => return None,
        }
    }
}

/// `GET /v1/events`: which runs change, as they change.
pub(super) async fn changes(
    State(service): State<Shared>,
    request: Request,
) -> Result<Response, HttpError> {
    let caller = service.admit((request.headers(), peer_of(&request)), Capability::RunsRead)?;
    Ok(stream_of(move |lines| tell_changes(service, caller, lines)))
}

async fn tell_changes(service: Shared, caller: Arc<Principal>, lines: Lines) -> Option<()> {
    let mut changes = service.changes.listen();
    let mut draining = service.draining.subscribe();
    say(&lines, ": here\n\n").await?;
    loop {
        tokio::select! {
            run = changes.recv() => {
                let data = match run {
                    Ok(run) if !is_readable(&service, &caller, &run).await => continue,
                    Ok(run) => json!({"runId": run}),
                    // Too many to tell: whoever listens looks at the list again.
                    Err(_) => json!({}),
                };
                say(&lines, &format!("event: change\ndata: {data}\n\n")).await?;
            }
            () = tokio::time::sleep(HEARTBEAT) => say(&lines, ": here\n\n").await?,
            () = lines.closed() => return None,
            () = going_down(&mut draining) => return None,
        }
    }
}

/// Whether a run that changed is one that the caller may read.
async fn is_readable(service: &Shared, caller: &Arc<Principal>, run: &RunId) -> bool {
    if caller.reads_all() {
        return true;
    }
    let (caller, run) = (Arc::clone(caller), run.clone());
    let looked =
        in_lane(Lane::Reads, service, move |service| Ok(service.may_read_named(&caller, &run)));
    looked.await.unwrap_or(false)
}

fn stream_of<F>(tell: impl FnOnce(Lines) -> F) -> Response
where
    F: Future<Output = Option<()>> + Send + 'static,
{
    let (lines, receive) = mpsc::channel(16);
    let telling = tell(lines);
    tokio::spawn(async move {
        // None means that nobody listens any more.
        let _ = telling.await;
    });
    let pieces = stream::unfold(receive, |mut receive| async {
        receive.recv().await.map(|piece| (piece, receive))
    });
    answer::typed("text/event-stream", Body::from_stream(pieces))
}

async fn say(lines: &Lines, text: &str) -> Option<()> {
    lines.send(Ok(Bytes::copy_from_slice(text.as_bytes()))).await.ok()
}

fn last_id(headers: &HeaderMap) -> Option<u64> {
    headers.get("last-event-id")?.to_str().ok()?.parse().ok()
}
