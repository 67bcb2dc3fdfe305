//! Blobs: streamed in and out, hashed on the way, never whole in memory.

use std::io::{Read as _, Write as _};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::response::Response;
use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use hyper::HeaderMap;
use hyper::header::CONTENT_LENGTH;
use tokio::sync::mpsc;
use warrant_protocol::Digest;
use warrant_protocol::wire::StoredBlob;

use super::error::HttpError;
use super::registry::{Capability, Principal};
use super::service::{Shared, bearer, blocking};
use super::{answer, body, no_route, peer_of};
use crate::random;
use crate::store::{BlobReader, CheckedFile, INLINE_BYTES};

/// How long the next piece of a blob may take.
const PIECE_TIME: Duration = Duration::from_secs(60);

/// How much of a blob is read at once.
const PIECE_BYTES: usize = 64 * 1024;

/// `POST /v1/blobs`.
pub(super) async fn store(
    State(service): State<Shared>,
    request: Request,
) -> Result<Response, HttpError> {
    let peer = peer_of(&request);
    let uploader = match may_write(&service, request.headers().clone(), peer).await {
        Ok(uploader) => uploader,
        Err(error) => {
            body::drain_body(request.into_body());
            return Err(error.unwrap_or_else(|| service.stranger(peer)));
        }
    };
    let limit = service.limits.blob_bytes;
    let announced = body::length_of(request.headers());
    let mut pieces = request.into_body().into_data_stream();
    if announced.is_some_and(|length| length > limit) {
        body::drain(pieces);
        return Err(HttpError::too_large());
    }
    let (send, mut receive) = mpsc::channel::<Bytes>(4);
    let writing = blocking(&service, move |service| {
        let mut writer = service.plane.store().blob_writer();
        let mut is_whole = false;
        while let Some(piece) = receive.blocking_recv() {
            // An empty piece marks the end; a sender that broke off never sends it.
            if piece.is_empty() {
                is_whole = true;
                break;
            }
            writer.write_all(&piece)?;
        }
        if !is_whole {
            return Err(HttpError::bad_request("the body broke off"));
        }
        let blob = writer.finish()?;
        let hash = blob.digest;
        if let Some(uploader) = uploader {
            service.plane.store().add_blob_uploader(&hash, &uploader.actor.label())?;
        }
        service.plane.store().record_blobs(vec![blob], random::now()?)?;
        Ok(hash)
    });
    let feeding = async {
        let mut total: u64 = 0;
        loop {
            let next = tokio::time::timeout(PIECE_TIME, pieces.next()).await;
            let piece = match next {
                Err(_) => return Err(HttpError::slow_body()),
                Ok(None) => break,
                Ok(Some(Err(_))) => return Err(HttpError::bad_request("the body broke off")),
                Ok(Some(Ok(piece))) => piece,
            };
            total += piece.len() as u64;
            if total > limit {
                body::drain(pieces);
                return Err(HttpError::too_large());
            }
            if !piece.is_empty() && send.send(piece).await.is_err() {
                break;
            }
        }
        // Whoever writes has failed already when this cannot be sent.
        let _ = send.send(Bytes::new()).await;
        drop(send);
        Ok(())
    };
    let (fed, written) = tokio::join!(feeding, writing);
    fed?;
    Ok(answer::json(&StoredBlob { hash: written? }))
}

/// Whether the caller may store a blob: a principal who may, or the holder of a run. Returns who
/// it is when it is a principal.
async fn may_write(
    service: &Shared,
    headers: HeaderMap,
    peer: IpAddr,
) -> Result<Option<Arc<Principal>>, Option<HttpError>> {
    let token = bearer(&headers).ok_or(None)?;
    if service.registry.principal(token).is_some() {
        // The reference answers 401 here; who they are is known, so 403 is the truth.
        return service.admit((&headers, peer), Capability::BlobsWrite).map(Some).map_err(Some);
    }
    let opened = service.open_claim(token).map_err(|_| None)?;
    let is_held = blocking(service, move |service| {
        Ok(service.plane.store().holds(&opened.lease.run, opened.lease.epoch)?)
    });
    match is_held.await {
        Ok(true) => Ok(None),
        Ok(false) => Err(None),
        Err(error) => Err(Some(error)),
    }
}

/// `GET /v1/blobs/:hash`.
pub(super) async fn fetch(
    State(service): State<Shared>,
    Path(hash): Path<String>,
    request: Request,
) -> Result<Response, HttpError> {
    let Ok(digest) = hash.parse::<Digest>() else { return Err(no_route(&request)) };
    if digest.to_hex() != hash {
        return Err(no_route(&request));
    }
    if !service.settings.compat.open_blob_reads
        && let Some(caller) = may_read(&service, &request)?
    {
        let is_readable =
            blocking(&service, move |service| Ok(service.may_read_blob(&caller, &digest)?));
        if !is_readable.await? {
            return Err(HttpError::missing("blob not found"));
        }
    }
    let found = blocking(&service, move |service| {
        let found = service.plane.store().sized_blob(&digest);
        Ok(found.inspect_err(|_| service.metrics.count("blobs.unreadable"))?)
    });
    let Some((size, reader)) = found.await? else {
        return Err(HttpError::missing("blob not found"));
    };
    let body = match reader {
        BlobReader::Inline(bytes) => Body::from(bytes.into_inner()),
        BlobReader::File(file) => streamed(Arc::clone(&service), file),
    };
    let mut response = answer::typed("application/octet-stream", body);
    if size > INLINE_BYTES as u64 {
        response.headers_mut().insert(CONTENT_LENGTH, size.into());
    }
    Ok(response)
}

/// Returns who reads when it is a principal; a runner reads whatever its runs need.
fn may_read(service: &Shared, request: &Request) -> Result<Option<Arc<Principal>>, HttpError> {
    let peer = peer_of(request);
    let Some(token) = bearer(request.headers()) else { return Err(service.stranger(peer)) };
    let is_runner =
        service.registry.runner_by_token(token).is_some() || service.open_claim(token).is_ok();
    if is_runner {
        return Ok(None);
    }
    service.admit((request.headers(), peer), Capability::RunsRead).map(Some)
}

/// Reads a file piece by piece on a thread that may wait for the disk.
fn streamed(service: Shared, mut file: CheckedFile) -> Body {
    let (send, receive) = mpsc::channel::<std::io::Result<Bytes>>(2);
    tokio::task::spawn_blocking(move || {
        loop {
            let mut piece = vec![0; PIECE_BYTES];
            let read = match file.read(&mut piece) {
                Ok(0) => return,
                Ok(read) => {
                    piece.truncate(read);
                    Ok(Bytes::from(piece))
                }
                Err(error) => {
                    service.metrics.count("blobs.unreadable");
                    Err(error)
                }
            };
            let is_end = read.is_err();
            if send.blocking_send(read).is_err() || is_end {
                return;
            }
        }
    });
    Body::from_stream(stream::unfold(receive, |mut receive| async {
        receive.recv().await.map(|piece| (piece, receive))
    }))
}
