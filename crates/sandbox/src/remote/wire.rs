//! The wire to a provider: one small runtime, one client, bounded answers, deadlines, and retries
//! only where asking twice is the same as asking once.
//!
//! Redirects are not followed, so a key never travels to a place nobody named.

use std::cell::Cell;
use std::time::{Duration, Instant};

use reqwest::header::{CONTENT_TYPE, HeaderMap};
use reqwest::redirect::Policy;
use reqwest::{Client, RequestBuilder, Response};
use serde_json::Value;
use thiserror::Error;
use tokio::runtime::{Builder, Runtime};

use super::call::{Call, Content, form};
use crate::Cancel;

/// Why a call gave no answer that can be used.
#[derive(Debug, Error)]
pub(crate) enum WireError {
    /// The provider was never reached; nothing was asked.
    #[error("{what}: the provider cannot be reached")]
    NotSent {
        what: &'static str,
        #[source]
        cause: reqwest::Error,
    },
    /// It was asked, and what became of it is not known.
    #[error("{what}: no whole answer came")]
    Unanswered { what: &'static str },
    /// It answered with a refusal.
    #[error("{what}: the provider answered {status}: {message}")]
    Refused { what: &'static str, status: u16, message: String },
    /// It answered something that makes no sense.
    #[error("{what}: the answer makes no sense: {why}")]
    Malformed { what: &'static str, why: String },
    /// The run was asked to stop meanwhile.
    #[error("{what}: cancelled")]
    Cancelled { what: &'static str },
}

impl WireError {
    /// Whether the provider may have done what it was asked all the same.
    pub(crate) fn is_ambiguous(&self) -> bool {
        match self {
            Self::NotSent { .. } => false,
            Self::Refused { status, .. } => *status >= 500,
            Self::Unanswered { .. } | Self::Malformed { .. } | Self::Cancelled { .. } => true,
        }
    }

    /// Whether the provider says that the thing does not exist.
    pub(crate) const fn is_missing(&self) -> bool {
        matches!(self, Self::Refused { status: 404, .. })
    }

    /// Whether the provider says that it cannot do that now: something else is being done to it.
    const fn is_busy(&self) -> bool {
        matches!(self, Self::Refused { status: 409 | 423, .. })
    }

    fn is_passing(&self) -> bool {
        match self {
            Self::NotSent { .. } | Self::Unanswered { .. } => true,
            Self::Refused { status, .. } => matches!(status, 429 | 500 | 502 | 503 | 504),
            Self::Malformed { .. } | Self::Cancelled { .. } => false,
        }
    }
}

/// One whole answer.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) headers: HeaderMap,
    pub(crate) body: Vec<u8>,
    what: &'static str,
}

impl Reply {
    /// Returns the answer as JSON.
    pub(crate) fn json(&self) -> Result<Value, WireError> {
        serde_json::from_slice(&self.body)
            .map_err(|error| WireError::Malformed { what: self.what, why: error.to_string() })
    }

    /// Returns the answer with its JSON changed.
    fn with(self, change: impl FnOnce(&mut Value)) -> Result<Self, WireError> {
        let mut value = self.json()?;
        change(&mut value);
        Ok(Self { body: value.to_string().into_bytes(), ..self })
    }

    /// Returns a header as text.
    pub(crate) fn header(&self, name: &str) -> Option<String> {
        self.headers.get(name)?.to_str().ok().map(str::to_owned)
    }
}

/// Answers that are read whole are never larger than this, save files.
const MOST_ANSWER_BYTES: u64 = 4 << 20;
/// How often a question that may be repeated is asked at most.
const ATTEMPTS: u32 = 3;
/// How long the first pause before asking again is.
const FIRST_PAUSE: Duration = Duration::from_millis(150);
/// How often something that is busy is asked to go.
const BUSY_ATTEMPTS: u32 = 10;
const BUSY_PAUSE: Duration = Duration::from_millis(500);
/// How often a waiting call looks whether the run was cancelled.
const LOOK: Duration = Duration::from_millis(50);

/// What is made to go wrong on the wire, to see that it is noticed: the answers of a provider are
/// replaced on their way in, as a provider that misbehaves would replace them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tamper {
    /// Every reading back is answered with a server error.
    ServerError,
    /// Every reading back is never answered.
    ServerHang,
    /// Every reading back is cut off.
    Truncated,
    /// Every reading back is answered with something that is no JSON.
    Malformed,
    /// Every reading back speaks of another sandbox.
    WrongSandbox,
    /// The second reading back tells of another amount of memory.
    OtherSpec,
    /// The key is refused from the second reading back on.
    KeyRevoked,
    /// The second reading back tells of open egress.
    EgressOpened,
    /// The second reading back tells of another image.
    ImageSwapped,
    /// The sandbox cannot be made.
    Unbuildable,
    /// The connection to the program is cut right after its start.
    Cut,
    /// The program is accepted and never says anything.
    Silent,
}

/// What readings of the sandbox are for, in calls.
pub(crate) const READING: &str = "reading the sandbox back";
/// What starting a program is for, in calls.
pub(crate) const STARTING: &str = "starting the program";
pub(crate) const CREATING: &str = "creating the sandbox";

/// A client with its own runtime; connections live as long as it does.
pub(crate) struct Wire {
    runtime: Runtime,
    client: Client,
    /// How long one whole answer may take.
    patience: Duration,
    /// Looked at while waiting.
    cancel: Option<Cancel>,
    tamper: Option<Tamper>,
    /// How many readings back were asked for.
    readings: Cell<u32>,
    /// Whether the next program is the one that was asked for, not a step of ours.
    is_armed: Cell<bool>,
}

impl std::fmt::Debug for Wire {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Wire").field("patience", &self.patience).finish_non_exhaustive()
    }
}

impl Wire {
    /// Opens a wire; nothing is sent yet.
    pub(crate) fn open(patience: Duration) -> std::io::Result<Self> {
        // Somebody else may have installed the same one already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let client = Client::builder()
            .redirect(Policy::none())
            .connect_timeout(patience.min(Duration::from_secs(10)))
            .user_agent(concat!("warrant/", env!("CARGO_PKG_VERSION")))
            .http1_only()
            .build()
            .map_err(std::io::Error::other)?;
        let (readings, is_armed) = (Cell::new(0), Cell::new(false));
        Ok(Self { runtime, client, patience, cancel: None, tamper: None, readings, is_armed })
    }

    /// From now on something goes wrong.
    pub(crate) fn tamper(&mut self, tamper: Option<Tamper>) {
        self.tamper = tamper;
    }

    /// The next program to be started is the one that was asked for.
    pub(crate) fn arm(&self) {
        self.is_armed.set(true);
    }

    /// Returns the answer as it arrives when something is made to go wrong.
    fn tampered(&self, what: &'static str, reply: Reply) -> Result<Reply, WireError> {
        let Some(tamper) = self.tamper.filter(|_| what == READING) else { return Ok(reply) };
        let count = self.readings.get() + 1;
        self.readings.set(count);
        let refused = |status| Err(WireError::Refused { what, status, message: String::new() });
        match tamper {
            Tamper::ServerError => refused(500),
            Tamper::ServerHang | Tamper::Truncated => Err(WireError::Unanswered { what }),
            Tamper::Malformed => Ok(Reply { body: b"<html>".to_vec(), ..reply }),
            Tamper::KeyRevoked if count > 1 => refused(401),
            Tamper::WrongSandbox => reply.with(|info| {
                set(info, &["sandboxID", "id"], Value::from("another"));
            }),
            Tamper::OtherSpec if count > 1 => reply.with(|info| {
                set(info, &["memoryMB", "memory"], Value::from(4_000_000));
                // A provider that tells no memory is told by its image.
                set_at(info, "/image/uri", Value::from("another"));
            }),
            Tamper::ImageSwapped if count > 1 => reply.with(|info| {
                set(info, &["templateID", "snapshot"], Value::from("another"));
                set_at(info, "/image/uri", Value::from("another"));
            }),
            Tamper::EgressOpened if count > 1 => reply.with(|info| {
                set(info, &["allowInternetAccess"], Value::from(true));
                set(info, &["networkBlockAll"], Value::from(false));
                set_at(info, "/policy/defaultAction", Value::from("allow"));
            }),
            _ => Ok(reply),
        }
    }

    /// From now on waiting ends when `cancel` is asked for; none lets every call end by itself.
    pub(crate) fn watch(&mut self, cancel: Option<Cancel>) {
        self.cancel = cancel;
    }

    /// Asks once.
    pub(crate) fn call(&self, call: &Call) -> Result<Reply, WireError> {
        self.call_large(call, MOST_ANSWER_BYTES)
    }

    /// Asks once for an answer of at most so many bytes.
    pub(crate) fn call_large(&self, call: &Call, most: u64) -> Result<Reply, WireError> {
        let request = self.request(call);
        if self.tamper == Some(Tamper::Unbuildable) && call.what == CREATING {
            let message = "it cannot be made".to_owned();
            return Err(WireError::Refused { what: call.what, status: 400, message });
        }
        let reply = self.wait(call.what, self.patience, async {
            let response = request.send().await.map_err(|error| unsent(call.what, error))?;
            whole(call.what, response, most).await
        })?;
        self.tampered(call.what, reply)
    }

    /// Asks again, a few times and with growing pauses, while the trouble looks like passing.
    ///
    /// Only for questions of which two have the same effect as one.
    pub(crate) fn repeat(&self, call: &Call) -> Result<Reply, WireError> {
        self.repeat_large(call, MOST_ANSWER_BYTES)
    }

    /// The same for an answer of at most so many bytes.
    pub(crate) fn repeat_large(&self, call: &Call, most: u64) -> Result<Reply, WireError> {
        let mut pause = FIRST_PAUSE;
        for attempt in 1.. {
            match self.call_large(call, most) {
                Err(error) if error.is_passing() && attempt < ATTEMPTS => {
                    self.pause(call.what, jittered(pause))?;
                    pause *= 3;
                }
                answer => return answer,
            }
        }
        Err(WireError::Unanswered { what: call.what })
    }

    /// Asks for something to be gone; what is gone already is gone. Whatever is still being done
    /// to it is waited for.
    pub(crate) fn remove(&self, call: &Call) -> Result<(), WireError> {
        for attempt in 1.. {
            match self.repeat(call) {
                Err(error) if error.is_missing() => return Ok(()),
                Err(error) if error.is_busy() && attempt < BUSY_ATTEMPTS => {
                    self.pause(call.what, jittered(BUSY_PAUSE))?;
                }
                other => return other.map(drop),
            }
        }
        Err(WireError::Unanswered { what: call.what })
    }

    /// Sleeps, unless the run is cancelled.
    pub(crate) fn pause(&self, what: &'static str, how_long: Duration) -> Result<(), WireError> {
        self.wait(what, how_long + LOOK, async {
            tokio::time::sleep(how_long).await;
            Ok(())
        })
    }

    /// Asks and returns the answer's head; its body is read piece by piece.
    pub(crate) fn stream(&self, call: &Call) -> Result<Streaming, WireError> {
        let request = self.request(call);
        let response = self.wait(call.what, self.patience, async {
            request.send().await.map_err(|error| unsent(call.what, error))
        })?;
        if response.status().as_u16() >= 300 {
            let refused =
                self.wait(call.what, self.patience, whole(call.what, response, MOST_ANSWER_BYTES));
            return Err(refused.err().unwrap_or(WireError::Unanswered { what: call.what }));
        }
        let tamper = self.tamper.filter(|_| self.is_armed.get());
        Ok(Streaming { response, what: call.what, tamper })
    }

    /// Returns what is made to go wrong with the program that was asked for.
    pub(crate) fn program_tamper(&self) -> Option<Tamper> {
        self.tamper.filter(|_| self.is_armed.get())
    }

    /// Asks for a change of protocol and returns the raw connection.
    pub(crate) fn upgrade(&self, call: &Call) -> Result<reqwest::Upgraded, WireError> {
        let request = self.request(call);
        let what = call.what;
        self.wait(what, self.patience, async {
            let response = request.send().await.map_err(|error| unsent(what, error))?;
            if response.status().as_u16() != 101 {
                return Err(whole(what, response, MOST_ANSWER_BYTES)
                    .await
                    .err()
                    .unwrap_or(WireError::Malformed { what, why: "no upgrade".to_owned() }));
            }
            response.upgrade().await.map_err(|_| WireError::Unanswered { what })
        })
    }

    /// Waits for something on this wire's runtime; nothing after `how_long`.
    pub(crate) fn within<T>(
        &self,
        how_long: Duration,
        future: impl Future<Output = T>,
    ) -> Option<T> {
        self.runtime.block_on(async { tokio::time::timeout(how_long, future).await.ok() })
    }

    /// Waits for an answer, and ends with the deadline or the run's cancellation.
    fn wait<T>(
        &self,
        what: &'static str,
        how_long: Duration,
        future: impl Future<Output = Result<T, WireError>>,
    ) -> Result<T, WireError> {
        let until = Instant::now() + how_long;
        self.runtime.block_on(async {
            tokio::pin!(future);
            loop {
                if self.cancel.as_ref().is_some_and(Cancel::is_cancelled) {
                    return Err(WireError::Cancelled { what });
                }
                let left = until.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Err(WireError::Unanswered { what });
                }
                if let Ok(done) = tokio::time::timeout(left.min(LOOK), &mut future).await {
                    return done;
                }
            }
        })
    }

    fn request(&self, call: &Call) -> RequestBuilder {
        let mut request = self.client.request(call.method.clone(), &call.url);
        for (name, value) in &call.headers {
            request = request.header(name, value);
        }
        match &call.content {
            Content::Nothing => request,
            Content::Json(value) => request.json(value),
            Content::Bytes(kind, bytes) => request.header(CONTENT_TYPE, *kind).body(bytes.clone()),
            Content::Form(fields) => {
                let (kind, body) = form(fields);
                request.header(CONTENT_TYPE, kind).body(body)
            }
        }
    }
}

/// An answer that is read piece by piece.
#[derive(Debug)]
pub(crate) struct Streaming {
    response: Response,
    what: &'static str,
    tamper: Option<Tamper>,
}

/// What came within the time that was given.
#[derive(Debug)]
pub(crate) enum Piece {
    /// Bytes.
    Bytes(Vec<u8>),
    /// Nothing yet.
    Nothing,
    /// The end, as the protocol has it.
    End,
}

impl Streaming {
    /// Returns the next piece, or nothing when none came within `how_long`.
    pub(crate) fn next(&mut self, wire: &Wire, how_long: Duration) -> Result<Piece, WireError> {
        match self.tamper {
            Some(Tamper::Cut) => return Err(WireError::Unanswered { what: self.what }),
            Some(Tamper::Silent) => {
                wire.within(how_long, std::future::pending::<()>());
                return Ok(Piece::Nothing);
            }
            _ => {}
        }
        match wire.within(how_long, self.response.chunk()) {
            None => Ok(Piece::Nothing),
            Some(Ok(Some(bytes))) => Ok(Piece::Bytes(bytes.to_vec())),
            Some(Ok(None)) => Ok(Piece::End),
            Some(Err(_)) => Err(WireError::Unanswered { what: self.what }),
        }
    }
}

/// Reads an answer to its end; anything but success is a refusal.
async fn whole(what: &'static str, mut response: Response, most: u64) -> Result<Reply, WireError> {
    let status = response.status().as_u16();
    let headers = response.headers().clone();
    let mut body = Vec::new();
    loop {
        match response.chunk().await {
            Ok(Some(bytes)) => body.extend_from_slice(&bytes),
            Ok(None) => break,
            Err(_) => return Err(WireError::Unanswered { what }),
        }
        if body.len() as u64 > most {
            return Err(WireError::Malformed { what, why: format!("more than {most} bytes") });
        }
    }
    if (200..300).contains(&status) {
        return Ok(Reply { headers, body, what });
    }
    Err(WireError::Refused { what, status, message: message(&body) })
}

/// Returns what a refusal says, in one short line that cannot move a terminal.
fn message(body: &[u8]) -> String {
    let value: Value = serde_json::from_slice(body).unwrap_or(Value::Null);
    let said = ["message", "detail", "error", "code"].into_iter().find_map(|name| value.get(name));
    let text = match said {
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
        None => String::from_utf8_lossy(body).into_owned(),
    };
    text.chars().filter(|c| !c.is_control()).take(200).collect()
}

fn unsent(what: &'static str, error: reqwest::Error) -> WireError {
    if error.is_connect() || error.is_builder() {
        WireError::NotSent { what, cause: error.without_url() }
    } else {
        WireError::Unanswered { what }
    }
}

/// Changes those of the members that exist.
fn set(value: &mut Value, names: &[&str], to: Value) {
    for name in names {
        set_at(value, &format!("/{name}"), to.clone());
    }
}

fn set_at(value: &mut Value, pointer: &str, to: Value) {
    if let Some(member) = value.pointer_mut(pointer) {
        *member = to;
    }
}

/// Spreads pauses so that many clients do not ask at once.
fn jittered(pause: Duration) -> Duration {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let noise = now.map_or(0, |now| now.subsec_nanos() % 1000);
    pause + pause * noise / 2000
}
