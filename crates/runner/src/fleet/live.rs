//! Shows the output of a run to whoever watches it at the plane, while it runs.
//!
//! Only what is already redacted comes here. It is no evidence: when the plane is slow or away,
//! pieces are dropped, and the log of the run is still whole.

use std::io;
use std::time::Duration;

use tokio::sync::mpsc;
use warrant_protocol::port::LeaseKey;
use warrant_sandbox::Stream;

use crate::remote::RemotePlane;
use crate::run::Observer;

/// How many pieces wait to be shown.
const PIECES: usize = 64;
/// How long pieces are gathered before they are sent.
const GATHER: Duration = Duration::from_millis(150);
/// The most that is sent at once.
const MOST_BYTES: usize = 256 * 1024;

/// The output of one run, on its way to the plane.
pub(super) struct Live {
    pieces: Option<mpsc::Sender<Vec<u8>>>,
}

impl Live {
    /// Returns the way for one run; it leads nowhere with a plane that does not take output.
    pub(super) fn of(plane: &RemotePlane, lease: &LeaseKey) -> Self {
        let Some(show) = plane.show(lease) else { return Self { pieces: None } };
        let (pieces, mut arriving) = mpsc::channel::<Vec<u8>>(PIECES);
        let http = std::sync::Arc::clone(&show.http);
        http.spawn(async move {
            while let Some(mut batch) = arriving.recv().await {
                tokio::time::sleep(GATHER).await;
                while batch.len() < MOST_BYTES {
                    match arriving.try_recv() {
                        Ok(piece) => batch.extend_from_slice(&piece),
                        Err(_) => break,
                    }
                }
                if arriving.is_closed() && arriving.is_empty() {
                    // The run is over; its log says the same.
                    return;
                }
                if show.send(batch).await.is_err() {
                    return;
                }
            }
        });
        Self { pieces: Some(pieces) }
    }
}

impl Observer for Live {
    fn output(&self, _stream: Stream, bytes: &[u8]) -> io::Result<()> {
        if let Some(pieces) = &self.pieces {
            // A full way drops the piece.
            let _ = pieces.try_send(bytes.to_vec());
        }
        Ok(())
    }
}
