//! Programs inside an OpenSandbox: events as bare JSON or as `data:` lines, one per paragraph.

use std::collections::VecDeque;
use std::time::Duration;

use serde_json::{Value, json};

use crate::Stream;
use crate::remote::adapter::{NotStarted, Reached, Running, Said, Start};
use crate::remote::call::Content;
use crate::remote::wire::{Piece, STARTING, Streaming, Wire};

/// One event is never larger than this.
const MOST_EVENT_BYTES: usize = 16 << 20;

/// A program that was started.
pub(super) struct Process {
    stream: Streaming,
    buffer: Vec<u8>,
    said: VecDeque<Said>,
    is_over: bool,
}

/// Starts a program.
pub(super) fn start(at: Reached<'_>, start: &Start) -> Result<Process, NotStarted> {
    let body = json!({
        "command": start.line,
        "cwd": "/",
        "envs": start.variables(),
        "timeout": u64::try_from(start.timeout.as_millis()).unwrap_or(u64::MAX),
        "background": false,
    });
    let call = at.handle.inside.post(STARTING, "/command", Content::Json(body));
    let stream = at.wire.stream(&call.with("Accept", "text/event-stream"))?;
    Ok(Process { stream, buffer: Vec::new(), said: VecDeque::new(), is_over: false })
}

impl Running for Process {
    fn next(&mut self, wire: &Wire, how_long: Duration) -> Said {
        loop {
            if let Some(said) = self.said.pop_front() {
                return said;
            }
            if self.is_over {
                return Said::Lost;
            }
            match self.stream.next(wire, how_long) {
                Ok(Piece::Bytes(bytes)) => self.take(&bytes),
                Ok(Piece::Nothing) => return Said::Nothing,
                Ok(Piece::End) | Err(_) => {
                    self.is_over = true;
                    let rest = std::mem::take(&mut self.buffer);
                    self.said.extend(read(&rest));
                }
            }
        }
    }
}

impl Process {
    fn take(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
        while let Some(at) = self.buffer.windows(2).position(|pair| pair == b"\n\n") {
            let event: Vec<u8> = self.buffer.drain(..at + 2).collect();
            self.said.extend(read(&event));
        }
        if self.buffer.len() > MOST_EVENT_BYTES {
            self.is_over = true;
        }
    }
}

/// Returns what an event says; one that is not understood says nothing.
fn read(event: &[u8]) -> Option<Said> {
    let text = String::from_utf8_lossy(event);
    let json: String = text
        .lines()
        .map(|line| line.strip_prefix("data:").unwrap_or(line).trim_start())
        .filter(|line| !line.starts_with("event:") && !line.starts_with("id:"))
        .collect();
    let event: Value = serde_json::from_str(json.trim()).ok()?;
    let line = || {
        let text = event.get("text").and_then(Value::as_str).unwrap_or_default();
        format!("{text}\n").into_bytes()
    };
    match event.get("type").and_then(Value::as_str)? {
        "init" => Some(Said::Started),
        "stdout" => Some(Said::Output(Stream::Stdout, line())),
        "stderr" => Some(Said::Output(Stream::Stderr, line())),
        "execution_complete" => Some(Said::Exited(0)),
        "error" => Some(ended(event.get("error").unwrap_or(&Value::Null))),
        _ => None,
    }
}

fn ended(error: &Value) -> Said {
    let value = error.get("evalue");
    let code = value.and_then(Value::as_str).and_then(|text| text.trim().parse::<i64>().ok());
    let code = code.or_else(|| value.and_then(Value::as_i64));
    let trace = error.get("traceback").and_then(Value::as_array).cloned().unwrap_or_default();
    let signal = trace
        .iter()
        .filter_map(Value::as_str)
        .find_map(|line| crate::remote::answer::signal_number(line.strip_prefix("signal: ")?));
    match (signal, code) {
        (Some(signal), _) => Said::Signaled(signal),
        (None, Some(code @ 0..=255)) => u8::try_from(code).map_or(Said::Lost, Said::Exited),
        _ => Said::Lost,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_of_an_event_are_read() {
        let out = Some(Said::Output(Stream::Stdout, b"hi\n".to_vec()));
        assert_eq!(read(b"{\"type\":\"stdout\",\"text\":\"hi\"}\n\n"), out);
        assert_eq!(read(b"data: {\"type\":\"stdout\",\"text\":\"hi\"}\n\n"), out);
        assert_eq!(read(b"{\"type\":\"ping\"}\n\n"), None);
        let failed = br#"{"type":"error","error":{"ename":"CommandExecError","evalue":"3","traceback":["exit status 3"]}}"#;
        assert_eq!(read(failed), Some(Said::Exited(3)));
        let killed = br#"{"type":"error","error":{"evalue":"-1","traceback":["signal: killed"]}}"#;
        assert_eq!(read(killed), Some(Said::Signaled(9)));
        assert_eq!(read(br#"{"type":"error","error":{"evalue":"?"}}"#), Some(Said::Lost));
    }
}
