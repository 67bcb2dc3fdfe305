//! Programs in a session of Daytona's toolbox: started without waiting, listened to over a
//! WebSocket, and asked for their exit code at the end.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::demux::Demux;
use super::socket::{Frame, Socket};
use crate::remote::adapter::{NotStarted, Reached, Running, Said};
use crate::remote::answer::id;
use crate::remote::call::{Call, Content};
use crate::remote::inside::quoted;
use crate::remote::wire::{Tamper, Wire};

/// Where the variables of a program lie for a moment.
pub(super) const VARIABLES: &str = "/tmp/.warrant-env";
const WHAT: &str = crate::remote::wire::STARTING;
/// How long the exit code of a program whose log ended may take to be known.
const CODE_TIME: Duration = Duration::from_secs(5);
/// How long a silent log is listened to before the exit code is asked for.
const SILENCE: Duration = Duration::from_secs(1);
/// How long the log of a program that ended may still bring something.
const DRAIN: Duration = Duration::from_millis(500);

/// Returns the file that sets variables; nothing when there are none.
pub(super) fn variables_file(env: &[(String, String)]) -> Option<String> {
    let lines = env.iter().map(|(name, value)| format!("export {name}={}\n", quoted(value)));
    let content: String = lines.collect();
    (!content.is_empty()).then_some(content)
}

/// A program that was started.
pub(super) struct Process {
    socket: Option<Socket>,
    demux: Demux,
    said: VecDeque<Said>,
    status: Call,
    last: Instant,
    /// The exit code, and until when the log is still listened to.
    ended: Option<(Said, Instant)>,
}

/// Starts a program. Only the second call starts something, and it is never repeated.
pub(super) fn start(at: Reached<'_>, line: &str) -> Result<Process, NotStarted> {
    let Reached { wire, handle } = at;
    let session = session_name();
    let make = Content::Json(json!({ "sessionId": session }));
    let made = wire.call(&handle.inside.post(WHAT, "/process/session", make));
    // A session runs nothing by itself.
    made.map_err(NotStarted::Refused)?;
    let exec = Content::Json(json!({ "command": line, "runAsync": true }));
    let path = format!("/process/session/{session}/exec");
    let started = wire.call(&handle.inside.post(WHAT, &path, exec))?.json()?;
    let command = id(WHAT, &started, "cmdId")?;
    let path = format!("/process/session/{session}/command/{command}");
    let status = handle.inside.get(WHAT, &path);
    let mut logs = handle.inside.get(WHAT, &format!("{path}/logs?follow=true"));
    logs.headers.extend(Socket::headers());
    // The program runs already: whoever cannot listen to it does not know how it ends.
    let upgraded = wire.upgrade(&logs).map_err(|_| NotStarted::Ambiguous)?;
    let socket = Socket::new(upgraded);
    Ok(Process {
        socket: Some(socket),
        demux: Demux::new(),
        said: VecDeque::from([Said::Started]),
        status,
        last: Instant::now(),
        ended: None,
    })
}

/// A name no other session of the sandbox has; the sandbox itself is new.
fn session_name() -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    format!("warrant-{}", now.map_or(0, |now| now.as_nanos()))
}

impl Running for Process {
    fn next(&mut self, wire: &Wire, how_long: Duration) -> Said {
        if let Some(said) = self.said.pop_front() {
            return said;
        }
        if let Some((said, until)) = &self.ended
            && (self.socket.is_none() || Instant::now() >= *until)
        {
            return said.clone();
        }
        match wire.program_tamper() {
            Some(Tamper::Cut) => return Said::Lost,
            Some(Tamper::Silent) => {
                wire.within(how_long, std::future::pending::<()>());
                return Said::Nothing;
            }
            _ => {}
        }
        let Some(socket) = &mut self.socket else {
            return self.code(wire, CODE_TIME).unwrap_or(Said::Lost);
        };
        match socket.next(wire, how_long) {
            Frame::Nothing => self.ask_when_silent(wire),
            Frame::Content(bytes) => self.take(&bytes),
            Frame::End => {
                self.socket = None;
                let rest = self.demux.finish();
                self.said.extend(rest.map(|(stream, bytes)| Said::Output(stream, bytes)));
            }
        }
        self.said.pop_front().unwrap_or(Said::Nothing)
    }
}

impl Process {
    fn take(&mut self, bytes: &[u8]) {
        self.last = Instant::now();
        let pieces = self.demux.take(bytes);
        self.said.extend(pieces.into_iter().map(|(stream, bytes)| Said::Output(stream, bytes)));
    }

    /// Some servers never close the log of a program that ended.
    fn ask_when_silent(&mut self, wire: &Wire) {
        if self.ended.is_none() && self.last.elapsed() > SILENCE {
            self.last = Instant::now();
            if let Some(said) = self.code(wire, Duration::ZERO) {
                self.ended = Some((said, Instant::now() + DRAIN));
            }
        }
    }

    /// Asks for the exit code, again and again for `how_long` while there is none.
    fn code(&self, wire: &Wire, how_long: Duration) -> Option<Said> {
        let until = Instant::now() + how_long;
        loop {
            let answer = wire.repeat(&self.status).and_then(|reply| reply.json()).ok()?;
            match answer.get("exitCode").and_then(Value::as_i64) {
                Some(code @ 0..=255) => return u8::try_from(code).ok().map(Said::Exited),
                Some(_) => return Some(Said::Lost),
                None if Instant::now() >= until => return None,
                None => wire.pause(WHAT, Duration::from_millis(100)).ok()?,
            }
        }
    }
}
