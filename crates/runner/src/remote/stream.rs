//! Bytes between threads that block and connections that do not, never more than a few pieces at
//! a time.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use reqwest::{Body, Response};
use tokio::runtime::Handle;
use tokio::sync::mpsc;

/// How many pieces wait between the two sides.
const PIECES: usize = 4;
/// The size of a piece of a file.
const PIECE_BYTES: usize = 64 * 1024;

/// The bytes of an answer, read as they come.
pub struct BlobStream {
    pieces: mpsc::Receiver<io::Result<Bytes>>,
    rest: Bytes,
}

impl BlobStream {
    /// Reads the answer on the client's thread, as fast as somebody takes it.
    pub(super) fn of(response: Response) -> Self {
        Self::reading(response, None)
    }

    /// As [`BlobStream::of`], and fails when nothing comes for longer than `silence`.
    pub(super) fn of_events(response: Response, silence: Duration) -> Self {
        Self::reading(response, Some(silence))
    }

    fn reading(mut response: Response, silence: Option<Duration>) -> Self {
        let (sender, pieces) = mpsc::channel(PIECES);
        tokio::spawn(async move {
            loop {
                let chunk = match silence {
                    None => response.chunk().await.map_err(io::Error::other),
                    Some(most) => match tokio::time::timeout(most, response.chunk()).await {
                        Ok(chunk) => chunk.map_err(io::Error::other),
                        Err(late) => Err(io::Error::new(io::ErrorKind::TimedOut, late)),
                    },
                };
                let piece = match chunk {
                    Ok(Some(piece)) => Ok(piece),
                    Ok(None) => break,
                    Err(error) => Err(error),
                };
                let is_last = piece.is_err();
                // Nobody reading any more ends the transfer.
                if sender.send(piece).await.is_err() || is_last {
                    break;
                }
            }
        });
        Self { pieces, rest: Bytes::new() }
    }
}

impl Read for BlobStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.rest.is_empty() {
            match self.pieces.blocking_recv() {
                Some(piece) => self.rest = piece?,
                None => return Ok(0),
            }
        }
        let count = self.rest.len().min(buffer.len());
        let taken = self.rest.split_to(count);
        if let Some(place) = buffer.get_mut(..count) {
            place.copy_from_slice(&taken);
        }
        Ok(count)
    }
}

/// Returns a file as a body that is read while it is sent, and its length.
pub(super) fn file_body(path: &Path, handle: &Handle) -> io::Result<(Body, u64)> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    if length <= PIECE_BYTES as u64 {
        let mut content = Vec::new();
        file.read_to_end(&mut content)?;
        return Ok((Body::from(content), length));
    }
    let (sender, pieces) = mpsc::channel::<io::Result<Bytes>>(PIECES);
    handle.spawn_blocking(move || {
        let mut buffer = vec![0; PIECE_BYTES];
        loop {
            let piece = match file.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => Ok(Bytes::copy_from_slice(buffer.get(..count).unwrap_or_default())),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => Err(error),
            };
            let is_last = piece.is_err();
            if sender.blocking_send(piece).is_err() || is_last {
                break;
            }
        }
    });
    let stream = futures_util::stream::unfold(pieces, |mut pieces| async move {
        pieces.recv().await.map(|piece| (piece, pieces))
    });
    Ok((Body::wrap_stream(stream), length))
}
