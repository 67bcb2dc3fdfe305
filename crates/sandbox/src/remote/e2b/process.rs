//! Programs inside an E2B sandbox: Connect envelopes of JSON, one way and the other.
//!
//! ```text
//! envelope = flags:u8 length:u32be json        flags & 2 = the last one, with an error or none
//! ```

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::Stream;
use crate::remote::adapter::{Handle, NotStarted, Reached, Running, Said, Start};
use crate::remote::call::Content;
use crate::remote::wire::{Piece, Streaming, Wire, WireError};

const WHAT: &str = crate::remote::wire::STARTING;
/// One envelope is never larger than this.
const MOST_ENVELOPE_BYTES: usize = 16 << 20;
const LAST: u8 = 2;
/// Errors that say that nothing was started, when they come before the start.
const REFUSALS: [&str; 5] =
    ["permission_denied", "unauthenticated", "invalid_argument", "not_found", "unimplemented"];

/// A program that was started.
pub(super) struct Process {
    stream: Streaming,
    handle: Handle,
    buffer: Vec<u8>,
    pid: Option<u64>,
    is_over: bool,
}

/// Starts a program.
pub(super) fn start(at: Reached<'_>, start: &Start) -> Result<Process, NotStarted> {
    let message = json!({
        "process": {
            "cmd": "/bin/sh",
            "args": ["-c", start.line],
            "envs": start.variables(),
            "cwd": "/",
        },
        "stdin": start.has_input,
    });
    let content = Content::Bytes("application/connect+json", envelope(&message));
    let call = at.handle.inside.post(WHAT, "/process.Process/Start", content);
    let call = call
        .with("Connect-Protocol-Version", "1")
        .with("Connect-Timeout-Ms", start.timeout.as_millis().to_string())
        .with("Keepalive-Ping-Interval", "20");
    let stream = at.wire.stream(&call)?;
    let handle = at.handle.clone();
    Ok(Process { stream, handle, buffer: Vec::new(), pid: None, is_over: false })
}

/// Asks a question with one answer.
pub(super) fn unary(
    at: Reached<'_>,
    what: &'static str,
    (path, content): (&str, Content),
) -> Result<Value, WireError> {
    let call = at.handle.inside.post(what, path, content);
    at.wire.call(&call.with("Connect-Protocol-Version", "1"))?.json()
}

impl Running for Process {
    fn next(&mut self, wire: &Wire, how_long: Duration) -> Said {
        loop {
            match self.take_envelope() {
                Ok(Some((flags, message))) => {
                    if let Some(said) = self.read(flags, &message) {
                        return said;
                    }
                    continue;
                }
                Ok(None) => {}
                Err(TooLarge) => return Said::Lost,
            }
            if self.is_over {
                return Said::Lost;
            }
            match self.stream.next(wire, how_long) {
                Ok(Piece::Bytes(bytes)) => self.buffer.extend_from_slice(&bytes),
                Ok(Piece::Nothing) => return Said::Nothing,
                Ok(Piece::End) | Err(_) => self.is_over = true,
            }
        }
    }

    fn feed(&mut self, wire: &Wire, bytes: &[u8]) -> Result<(), WireError> {
        let input = json!({
            "process": { "pid": self.pid },
            "input": { "stdin": STANDARD.encode(bytes) },
        });
        let question = ("/process.Process/SendInput", Content::Json(input));
        unary(Reached { wire, handle: &self.handle }, "giving input", question).map(drop)
    }

    fn end_input(&mut self, wire: &Wire) -> Result<(), WireError> {
        let process = Content::Json(json!({ "process": { "pid": self.pid } }));
        let question = ("/process.Process/CloseStdin", process);
        unary(Reached { wire, handle: &self.handle }, "ending input", question).map(drop)
    }
}

struct TooLarge;

impl Process {
    fn take_envelope(&mut self) -> Result<Option<(u8, Value)>, TooLarge> {
        let Some((head, rest)) = self.buffer.split_at_checked(5) else { return Ok(None) };
        let &[flags, a, b, c, d] = head else { return Ok(None) };
        let length = u32::from_be_bytes([a, b, c, d]) as usize;
        if length > MOST_ENVELOPE_BYTES {
            return Err(TooLarge);
        }
        let Some(message) = rest.get(..length) else { return Ok(None) };
        // What is no JSON tells nothing; the end of the program is then never seen.
        let message = serde_json::from_slice(message).unwrap_or(Value::Null);
        self.buffer.drain(..5 + length);
        Ok(Some((flags, message)))
    }

    fn read(&mut self, flags: u8, message: &Value) -> Option<Said> {
        if flags & LAST != 0 {
            self.is_over = true;
            let error = message.get("error");
            let code = error.and_then(|error| error.get("code")).and_then(Value::as_str);
            let is_refusal = code.is_some_and(|code| REFUSALS.contains(&code));
            return Some(if self.pid.is_none() && is_refusal {
                Said::Refused(code.unwrap_or_default().to_owned())
            } else {
                Said::Lost
            });
        }
        let event = message.get("event")?;
        if let Some(pid) = event.pointer("/start/pid").and_then(Value::as_u64) {
            self.pid = Some(pid);
            return Some(Said::Started);
        }
        if let Some(data) = event.get("data") {
            let bytes = |name: &str| {
                let text = data.get(name).and_then(Value::as_str)?;
                STANDARD.decode(text).ok()
            };
            let stdout = bytes("stdout").map(|bytes| Said::Output(Stream::Stdout, bytes));
            return stdout
                .or_else(|| bytes("stderr").map(|bytes| Said::Output(Stream::Stderr, bytes)));
        }
        let end = event.get("end")?;
        Some(ended(end))
    }
}

/// Returns how a program ended; an end that tells nothing understandable is not one.
fn ended(end: &Value) -> Said {
    let status = end.get("status").and_then(Value::as_str).unwrap_or_default();
    let code = match end.get("exitCode") {
        None => Some(0),
        Some(code) => code.as_i64(),
    };
    if let Some(signal) = status.strip_prefix("signal: ") {
        return crate::remote::answer::signal_number(signal).map_or(Said::Lost, Said::Signaled);
    }
    let has_exited = end.get("exited").and_then(Value::as_bool).unwrap_or(false);
    match code {
        Some(code @ 0..=255) if has_exited => Said::Exited(u8::try_from(code).unwrap_or(u8::MAX)),
        _ => Said::Lost,
    }
}

fn envelope(message: &Value) -> Vec<u8> {
    let body = message.to_string().into_bytes();
    let length = u32::try_from(body.len()).unwrap_or(u32::MAX);
    let mut bytes = vec![0];
    bytes.extend_from_slice(&length.to_be_bytes());
    bytes.extend(body);
    bytes
}
