//! The provider port: an external runtime decides about its commands, and this machine runs them
//! as its sandbox provider, over a pipe.
//!
//! ```text
//! {"id":1,"call":"prepareRun","request":{…}}  ──►  {"id":1,"result":{…}}
//! {"id":2,"call":"run","request":{…}}         ──►  {"id":2,"result":{…}}
//! anything else                               ──►  {"id":null,"error":{"code":…,"message":…}}
//! ```
//!
//! Start at [`ProviderPort::serve`]. One object per line in either direction; calls are answered in
//! the order in which they end. The caller decides what it asks for, never what is allowed: our own
//! policy judges every request, whatever the caller granted or claims that somebody approved.
//! `prepareRun` starts and stores nothing; every `run` that is judged leaves a signed receipt.
//! Messages are safe to show to an agent; causes are logged.

mod calls;
mod plan;
mod request;
mod results;

use std::collections::{BTreeMap, HashMap};
use std::io::{BufRead, Read as _, Write};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SyncSender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use serde_json::{Value, json};
use warrant_protocol::error_chain;
use warrant_protocol::request::ActorRef;
use warrant_sandbox::{Backend, Cancel};

pub use self::request::InvalidField;
use self::request::PortRequest;
use crate::backends;
use crate::desk::{Desk, DeskError, variables};
use crate::workbench::{WorkbenchError, agent_principal};

/// The longest line that is read.
const MAX_LINE_BYTES: u64 = 16 * 1024 * 1024;
/// How many calls are worked on at once.
const MAX_CALLS: usize = 64;

/// How a provider port is opened.
#[derive(Debug, Clone)]
pub struct PortOptions {
    /// The home directory; by the environment when absent.
    pub home: Option<PathBuf>,
    /// The local tier; the strongest that holds here when absent.
    pub provider: Option<String>,
}

/// What arrives at the port.
#[derive(Debug)]
pub enum PortInput {
    /// One line, without its end.
    Line(Vec<u8>),
    /// A line that is longer than the port reads.
    TooLong,
    /// Nothing more will arrive.
    End,
}

/// This machine as the sandbox provider of an external runtime. Threads may share it.
pub struct ProviderPort {
    home: Option<PathBuf>,
    principal: ActorRef,
    backend: Arc<dyn Backend>,
    environment: BTreeMap<String, String>,
    current: Mutex<Arc<Desk>>,
    /// The calls under way, by id.
    calls: Mutex<HashMap<String, Cancel>>,
}

/// Why a call has no result.
#[derive(Debug)]
struct CallFailure {
    code: &'static str,
    message: String,
}

impl CallFailure {
    fn invalid(error: &InvalidField) -> Self {
        Self { code: "INVALID_REQUEST", message: error.to_string() }
    }

    /// SECURITY: what exactly failed names files and keys of this machine.
    fn internal(code: &'static str, error: &DeskError) -> Self {
        tracing::error!(error = error_chain(error), "a call of the provider port failed");
        let message = "the sandbox could not do its work; its log on this machine says why";
        Self { code, message: message.to_owned() }
    }
}

/// Sends every line of `input`, and the end, to the port. Ends early when nobody takes them.
pub fn read_lines(mut input: impl BufRead, port: &SyncSender<PortInput>) {
    loop {
        let mut line = Vec::new();
        let read = input.by_ref().take(MAX_LINE_BYTES + 1).read_until(b'\n', &mut line);
        let message = match read {
            Ok(0) => PortInput::End,
            Ok(_) if line.ends_with(b"\n") => {
                line.pop();
                PortInput::Line(line)
            }
            Ok(read) if read as u64 > MAX_LINE_BYTES => {
                // The rest of it is read and dropped piece by piece.
                match skip_line(&mut input) {
                    true => PortInput::TooLong,
                    false => PortInput::End,
                }
            }
            // The last line has no end.
            Ok(_) => PortInput::Line(line),
            Err(error) => {
                tracing::error!(%error, "standard input cannot be read");
                PortInput::End
            }
        };
        let is_end = matches!(message, PortInput::End);
        if port.send(message).is_err() || is_end {
            return;
        }
    }
}

/// Reads to the end of a line; returns whether there was one.
fn skip_line(input: &mut impl BufRead) -> bool {
    loop {
        let mut piece = Vec::new();
        match input.by_ref().take(64 * 1024).read_until(b'\n', &mut piece) {
            Ok(0) | Err(_) => return false,
            Ok(_) if piece.ends_with(b"\n") => return true,
            Ok(_) => {}
        }
    }
}

impl ProviderPort {
    /// Opens the port.
    ///
    /// # Errors
    /// [`WorkbenchError`] when home, policy or tier cannot be used.
    pub fn open(options: PortOptions) -> Result<Self, WorkbenchError> {
        let current = Arc::new(Desk::open(options.home.as_deref())?);
        let all = backends::local();
        let backend = Arc::clone(backends::choose(&all, options.provider.as_deref())?);
        Ok(Self {
            home: options.home,
            principal: agent_principal("provider-port"),
            backend,
            environment: variables(),
            current: Mutex::new(current),
            calls: Mutex::new(HashMap::new()),
        })
    }

    /// Answers calls until the end, then stops what still runs and waits for its receipts.
    pub fn serve(&self, input: &Receiver<PortInput>, output: &Mutex<impl Write + Send>) {
        thread::scope(|scope| {
            while let Ok(message) = input.recv() {
                let line = match message {
                    PortInput::End => break,
                    PortInput::TooLong => {
                        let message = format!("a line has at most {MAX_LINE_BYTES} bytes");
                        let failure = CallFailure { code: "INVALID_REQUEST", message };
                        send(output, &answer(&Value::Null, Err(failure)));
                        continue;
                    }
                    PortInput::Line(line) if line.iter().all(u8::is_ascii_whitespace) => continue,
                    PortInput::Line(line) => line,
                };
                let call = match self.take(&line) {
                    Ok(call) => call,
                    Err((id, failure)) => {
                        send(output, &answer(&id, Err(failure)));
                        continue;
                    }
                };
                let key = call.key.clone();
                let work = move || {
                    let result = self.perform(&call);
                    self.calls().remove(&call.key);
                    send(output, &answer(&call.id, result));
                };
                let spawned = thread::Builder::new().name("port-call".to_owned());
                if let Err(error) = spawned.spawn_scoped(scope, work) {
                    tracing::error!(%error, "no thread for a call");
                    self.calls().remove(&key);
                }
            }
            for cancel in self.calls().values() {
                cancel.cancel();
            }
        });
    }

    /// Stops the runs that `warrant cancel` of another process names.
    pub fn heed_stops(&self) {
        // Without a policy that loads nothing runs, so there is nothing to stop.
        if let Ok(desk) = self.desk() {
            desk.heed_stops();
        }
    }

    fn calls(&self) -> MutexGuard<'_, HashMap<String, Cancel>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the desk with the policy that is in force now.
    fn desk(&self) -> Result<Arc<Desk>, DeskError> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        // SECURITY: a policy put in force while we are alive counts from the next call on.
        if current.is_outdated() {
            *current = Arc::new(Desk::open(self.home.as_deref())?);
        }
        Ok(Arc::clone(&current))
    }
}

/// What a line calls for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PortCall {
    Prepare,
    Run,
}

/// One line, read.
struct TakenCall {
    id: Value,
    /// The id as text, to find the call again.
    key: String,
    call: PortCall,
    request: PortRequest,
    cancel: Cancel,
}

impl ProviderPort {
    /// Reads a line and counts it among the calls under way.
    fn take(&self, line: &[u8]) -> Result<TakenCall, (Value, CallFailure)> {
        let invalid = |id: &Value, field: &str, problem: String| {
            let field = InvalidField { field: field.to_owned(), problem };
            (id.clone(), CallFailure::invalid(&field))
        };
        let value: Value = serde_json::from_slice(line)
            .map_err(|error| invalid(&Value::Null, "line", format!("is not JSON: {error}")))?;
        let Value::Object(members) = &value else {
            return Err(invalid(&Value::Null, "line", "is not a JSON object".to_owned()));
        };
        let id = match members.get("id") {
            Some(id @ (Value::String(_) | Value::Number(_))) => id.clone(),
            _ => {
                return Err(invalid(&Value::Null, "id", "has to be a string or a number".into()));
            }
        };
        let call = match members.get("call").and_then(Value::as_str) {
            Some("prepareRun") => PortCall::Prepare,
            Some("run") => PortCall::Run,
            _ => return Err(invalid(&id, "call", "has to be prepareRun or run".to_owned())),
        };
        let request = PortRequest::read(members.get("request"))
            .map_err(|error| (id.clone(), CallFailure::invalid(&error)))?;
        let cancel = Cancel::new().map_err(|error| {
            (id.clone(), CallFailure::internal("SANDBOX_PREPARE_FAILED", &error.into()))
        })?;
        let key = id.to_string();
        let mut calls = self.calls();
        if calls.contains_key(&key) {
            return Err(invalid(&id, "id", format!("{key} is under way; use another one")));
        }
        if calls.len() >= MAX_CALLS {
            let message = format!("{MAX_CALLS} calls are under way; wait for an answer");
            return Err((id, CallFailure { code: "TOO_MANY_CALLS", message }));
        }
        calls.insert(key.clone(), cancel.clone());
        drop(calls);
        Ok(TakenCall { id, key, call, request, cancel })
    }
}

fn answer(id: &Value, result: Result<Value, CallFailure>) -> Value {
    match result {
        Ok(result) => json!({"id": id, "result": result}),
        Err(CallFailure { code, message }) => {
            json!({"id": id, "error": {"code": code, "message": message}})
        }
    }
}

/// Writes one line. Where nobody reads any more, nobody misses it.
fn send(output: &Mutex<impl Write>, value: &Value) {
    let mut text = value.to_string();
    text.push('\n');
    let mut output = output.lock().unwrap_or_else(PoisonError::into_inner);
    let written = output.write_all(text.as_bytes()).and_then(|()| output.flush());
    if let Err(error) = written {
        tracing::warn!(%error, "an answer of the provider port was not taken");
    }
}
