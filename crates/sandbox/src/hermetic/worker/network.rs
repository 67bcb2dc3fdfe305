//! The interpreter's HTTP client: every request goes to the supervisor, which decides and fetches.

use std::io;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use bashkit::{HttpResponse, HttpTransport, HttpTransportError, HttpTransportRequest};

use super::{Incoming, Line};
use crate::hermetic::frame::{Decoder, Encoder, Kind, broken};

/// The way to the supervisor.
pub(super) struct Transport {
    line: Line,
    incoming: Arc<Mutex<Receiver<Incoming>>>,
}

impl Transport {
    /// Returns the transport over the worker's socket.
    pub(super) fn new(line: Line, incoming: Arc<Mutex<Receiver<Incoming>>>) -> Self {
        Self { line, incoming }
    }
}

#[async_trait]
impl HttpTransport for Transport {
    async fn execute(
        &self,
        request: HttpTransportRequest,
    ) -> Result<HttpResponse, HttpTransportError> {
        let timeout_ms = u64::try_from(request.timeout.as_millis()).unwrap_or(u64::MAX);
        let payload = Encoder::default()
            .bytes(request.method.as_str().as_bytes())
            .bytes(request.url.as_bytes())
            .list(&request.headers, |e, (name, value)| {
                e.bytes(name.as_bytes()).bytes(value.as_bytes())
            })
            .bytes(&request.body.unwrap_or_default())
            .number(timeout_ms)
            .finish();
        // Asking and waiting happen under one lock, so that answers meet their questions.
        let incoming = self.incoming.lock().unwrap_or_else(PoisonError::into_inner);
        self.line.send(Kind::Fetch, &payload);
        let payload = loop {
            match incoming.recv() {
                Ok(Incoming::Fetched(payload)) => break payload,
                // Input that the script does not read may still arrive.
                Ok(Incoming::Stdin(_) | Incoming::StdinEnd) => {}
                Ok(Incoming::Request(..)) | Err(_) => {
                    return Err(HttpTransportError::Transport("nobody answered".into()));
                }
            }
        };
        decode(&payload)
            .unwrap_or_else(|error| Err(HttpTransportError::Transport(error.to_string())))
    }
}

fn decode(payload: &[u8]) -> io::Result<Result<HttpResponse, HttpTransportError>> {
    let mut decoder = Decoder::new(payload);
    let text = |decoder: &mut Decoder<'_>| decoder.text();
    Ok(match decoder.byte()? {
        0 => Ok(HttpResponse {
            status: u16::try_from(decoder.number()?).map_err(|_| broken("status"))?,
            headers: decoder.list(|d| Ok((d.text()?, d.text()?)))?,
            body: decoder.bytes()?.to_vec(),
        }),
        1 => Err(HttpTransportError::Timeout),
        2 => Err(HttpTransportError::TooLarge(text(&mut decoder)?)),
        3 => Err(HttpTransportError::Denied(text(&mut decoder)?)),
        _ => Err(HttpTransportError::Transport(text(&mut decoder)?)),
    })
}
