//! Shows the output of a run to whoever watches it at the plane, while it runs.
//!
//! Only what is already redacted comes here. It is no evidence: when the plane is slow or away,
//! pieces are dropped, and the log of the run is still whole. Each piece says at which byte of that
//! log it begins, so whoever watches knows what is missing and reads it from the log at the end.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::mpsc;
use warrant_protocol::port::LeaseKey;
use warrant_sandbox::Stream;

use crate::remote::{RemotePlane, Show};
use crate::run::Observer;

/// How many pieces wait to be shown.
const PIECES: usize = 64;
/// How long pieces are gathered before they are sent.
const GATHER: Duration = Duration::from_millis(150);
/// The most that is sent at once.
const MOST_BYTES: usize = 256 * 1024;

/// The output of one run, on its way to the plane.
pub(super) struct Live {
    pieces: Option<mpsc::Sender<OutputPiece>>,
    /// How much the program has written so far.
    written: AtomicU64,
}

/// A piece of output and the byte it begins at.
struct OutputPiece {
    at: u64,
    bytes: Vec<u8>,
}

impl OutputPiece {
    fn end(&self) -> u64 {
        self.at + self.bytes.len() as u64
    }
}

impl Live {
    /// Returns the way for one run; it leads nowhere with a plane that does not take output.
    pub(super) fn of(plane: &RemotePlane, lease: &LeaseKey) -> Self {
        let written = AtomicU64::new(0);
        let Some(show) = plane.show(lease) else { return Self { pieces: None, written } };
        let (pieces, arriving) = mpsc::channel(PIECES);
        let http = std::sync::Arc::clone(&show.http);
        http.spawn(send_all(show, arriving));
        Self { pieces: Some(pieces), written }
    }
}

/// Sends pieces until the run is over; pieces without a gap between them travel together.
async fn send_all(show: Show, mut arriving: mpsc::Receiver<OutputPiece>) {
    let mut next = None;
    loop {
        let batch = match next.take() {
            Some(piece) => Some(piece),
            None => arriving.recv().await,
        };
        let Some(mut batch) = batch else { return };
        tokio::time::sleep(GATHER).await;
        while batch.bytes.len() < MOST_BYTES {
            match arriving.try_recv() {
                Ok(piece) if piece.at == batch.end() => batch.bytes.extend_from_slice(&piece.bytes),
                Ok(piece) => {
                    next = Some(piece);
                    break;
                }
                Err(_) => break,
            }
        }
        if next.is_none() && arriving.is_closed() && arriving.is_empty() {
            // The run is over, and whoever watches reads the rest from its log.
            return;
        }
        if let Err(error) = show.send(batch.at, batch.bytes).await {
            tracing::debug!(%error, "output is not shown live any more");
            return;
        }
    }
}

impl Observer for Live {
    fn output(&self, _stream: Stream, bytes: &[u8]) -> io::Result<()> {
        let at = self.written.fetch_add(bytes.len() as u64, Ordering::AcqRel);
        if let Some(pieces) = &self.pieces {
            // A full way drops the piece; the next one says at which byte it begins.
            let _ = pieces.try_send(OutputPiece { at, bytes: bytes.to_vec() });
        }
        Ok(())
    }
}
