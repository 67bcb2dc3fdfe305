//! Blobs: streamed in and out, hashed on the way, never whole in memory.

use std::io::{Read as _, Write as _};
use std::net::IpAddr;
use std::sync::Arc;

use axum::body::{Body, BodyDataStream};
use axum::extract::{Path, Request, State};
use axum::response::Response;
use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt as _, stream};
use hyper::HeaderMap;
use hyper::header::CONTENT_LENGTH;
use warrant_protocol::Digest;
use warrant_protocol::wire::StoredBlob;

use super::error::HttpError;
use super::lanes::{Lane, in_lane};
use super::registry::{Capability, Principal};
use super::service::{Shared, bearer};
use super::{answer, body, no_route, peer_of};
use crate::request_context::keep_cause;
use crate::store::{BlobReader, BlobWriter, CheckedFile, INLINE_BYTES};

/// How much of a blob is read or written at once.
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
    let pieces = request.into_body().into_data_stream();
    if announced.is_some_and(|length| length > limit) {
        body::drain(pieces);
        return Err(HttpError::too_large(limit));
    }
    let writer = receive(&service, pieces, limit).await?;
    let hash = in_lane(Lane::Transfers, &service, move |service| {
        let blob = writer.finish()?;
        let hash = blob.digest;
        if let Some(uploader) = uploader {
            service.plane.store().add_blob_uploader(&hash, &uploader.actor.label())?;
        }
        service.plane.store().record_blobs(vec![blob], service.plane.now())?;
        Ok(hash)
    });
    Ok(answer::json(&StoredBlob { hash: hash.await? }))
}

/// Writes a blob as it arrives. No thread is held while nothing arrives, and no more than one piece
/// is in memory.
async fn receive(
    service: &Shared,
    mut pieces: BodyDataStream,
    limit: u64,
) -> Result<BlobWriter, HttpError> {
    let mut writer = service.plane.store().blob_writer();
    let (mut total, mut piece) = (0_u64, BytesMut::new());
    loop {
        let next = pieces.next().await.transpose().map_err(body::broken)?;
        let is_end = next.is_none();
        if let Some(bytes) = next {
            total += bytes.len() as u64;
            if total > limit {
                body::drain(pieces);
                return Err(HttpError::too_large(limit));
            }
            piece.extend_from_slice(&bytes);
        }
        if piece.len() >= PIECE_BYTES || (is_end && !piece.is_empty()) {
            let bytes = piece.split().freeze();
            let written = in_lane(Lane::Transfers, service, move |_| {
                writer.write_all(&bytes)?;
                Ok(writer)
            });
            writer = written.await?;
        }
        if is_end {
            return Ok(writer);
        }
    }
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
    let opened = service.open_claim(token).map_err(|error| keep_cause(&error, None))?;
    let is_held = in_lane(Lane::Transfers, service, move |service| {
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
        let is_readable = in_lane(Lane::Transfers, &service, move |service| {
            Ok(service.may_read_blob(&caller, &digest)?)
        });
        if !is_readable.await? {
            return Err(HttpError::missing("blob not found"));
        }
    }
    let found = in_lane(Lane::Transfers, &service, move |service| {
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

/// Reads a file as its reader takes it: a thread is used for as long as one piece takes.
fn streamed(service: Shared, file: CheckedFile) -> Body {
    Body::from_stream(stream::try_unfold((service, file), |(service, mut file)| async move {
        let read = in_lane(Lane::Transfers, &service, move |service| {
            let mut piece = vec![0; PIECE_BYTES];
            let read = file.read(&mut piece);
            let count = read.inspect_err(|_| service.metrics.count("blobs.unreadable"))?;
            piece.truncate(count);
            Ok((piece, file))
        });
        let (piece, file) = read
            .await
            .map_err(|error| keep_cause(&error, std::io::Error::other("the blob broke off")))?;
        let rest = (service, file);
        Ok::<_, std::io::Error>((!piece.is_empty()).then(|| (Bytes::from(piece), rest)))
    }))
}
