//! The door for agents that speak MCP: eight tools over one workbench.
//!
//! Start at [`Server`]; [`serve_stdio`] runs it for one client on standard input and output,
//! [`http`] for the holders of tokens over HTTP. Every call that runs something is a governed run
//! of its own. A denial, a wrong argument and a failing
//! program are tool results the model can read; only a call for a tool that does not exist is an
//! error of the protocol.

mod answer;
mod arguments;
mod files;
pub mod http;
mod members;
mod review;
mod running;
mod secrets;
mod tools;
mod uses;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rmcp::handler::server::ServerHandler;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CompleteRequestParams, CompleteResult, CustomRequest,
    CustomResult, ErrorData, Implementation, ListPromptsResult, ListResourceTemplatesResult,
    ListResourcesResult, ListToolsResult, PaginatedRequestParams, ProgressNotificationParam,
    ServerCapabilities, ServerConfig,
};
use rmcp::service::{RequestContext, RoleServer, ServiceExt as _};
use serde_json::Map;
use thiserror::Error;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use warrant_protocol::{RunId, SecretName};
use warrant_runner::Redactor;
use warrant_sandbox::Cancel;
use warrant_workspace::ChangeId;

use self::answer::Answer;
use self::arguments::{Arguments, MOST_BYTES, Misuse};
use self::tools::ToolName;
use crate::output::Capture;
use crate::workbench::Workbench;

/// Returns whether a tool of that name is ours.
pub(crate) fn is_tool(name: &str) -> bool {
    ToolName::named(name).is_some()
}

/// How many calls of one client work at the same time; the others wait their turn.
const CALLS_AT_ONCE: usize = 8;

/// How many calls of one client are worked on or wait for it; a further one is refused at once.
// SECURITY: whoever floods the door with calls must not fill our memory with them.
const CALLS_AT_HAND: usize = 64;

/// How long `request_approval` waits at the most.
const MOST_WAIT_MS: u64 = 600_000;

/// How often a client that wants to know hears of a running program.
const PROGRESS: Duration = Duration::from_secs(1);

/// How many characters of a program's last line are told while it runs.
const MOST_SAID: usize = 200;

/// How long programs that were told to stop may take to leave their receipts.
const LAST_RECEIPTS: Duration = Duration::from_secs(10);

/// The tools over one workbench, for one client.
#[derive(Clone)]
pub struct Server {
    bench: Arc<Workbench>,
    session: Arc<Session>,
    slots: Arc<Semaphore>,
    places: Arc<Semaphore>,
    /// Where calls may wait for their programs.
    workers: Handle,
}

/// What this client did so far.
#[derive(Default)]
struct Session {
    done: Mutex<Done>,
}

#[derive(Default)]
struct Done {
    last_run: Option<RunId>,
    /// What the calls of this session left in the workspace and was not taken back.
    kept: Vec<ChangeId>,
    /// The secrets that its runs were given.
    secrets: BTreeSet<SecretName>,
}

/// Why the door closed.
#[derive(Debug, Error)]
pub enum ServeError {
    /// No runtime or no streams.
    #[error("the door cannot be opened")]
    Open(#[from] std::io::Error),
    /// The client did not begin as the protocol says.
    #[error("the client did not begin the conversation")]
    Begin(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The conversation broke off.
    #[error("the conversation broke off")]
    Broken(#[from] tokio::task::JoinError),
}

/// One call while it is worked on.
struct Call {
    arguments: Arguments,
    cancel: Cancel,
    capture: Arc<Mutex<Option<Watched>>>,
}

/// What is told of a program while it runs.
#[derive(Clone)]
struct Watched {
    capture: Arc<Capture>,
    redactor: Redactor,
}

impl Server {
    /// Returns a server for one client; its calls wait for their programs on threads of `workers`.
    #[must_use]
    pub fn new(bench: Arc<Workbench>, workers: Handle) -> Self {
        let slots = Arc::new(Semaphore::new(CALLS_AT_ONCE));
        let places = Arc::new(Semaphore::new(CALLS_AT_HAND));
        Self { bench, session: Arc::default(), slots, places, workers }
    }

    /// Works on one call, off the conversation's own thread.
    async fn call(
        &self,
        tool: ToolName,
        arguments: Map<String, serde_json::Value>,
        context: &RequestContext<RoleServer>,
    ) -> Answer {
        let Ok(_place) = self.places.try_acquire() else {
            return Answer::misuse("too many calls at once; wait until some of them are answered");
        };
        // Whoever waits for people keeps nobody from working.
        let _slot = match tool {
            ToolName::RequestApproval => None,
            _ => match self.slots.acquire().await {
                Ok(slot) => Some(slot),
                Err(_) => return Answer::broken("shutting down"),
            },
        };
        let cancel = match Cancel::new() {
            Ok(cancel) => cancel,
            Err(error) => return Answer::broken(&format!("no descriptor: {error}")),
        };
        let capture = Arc::new(Mutex::new(None));
        let call = Call {
            arguments: Arguments::new(arguments),
            cancel: cancel.clone(),
            capture: Arc::clone(&capture),
        };
        let server = self.clone();
        // A call that nobody waits for any more is stopped, whichever way that comes about.
        let _guard = StopOnDrop(cancel.clone());
        let mut work = self.workers.spawn_blocking(move || server.work(tool, call));
        let mut told = Told { seconds: 0.0, capture };
        let mut beat = tokio::time::interval(PROGRESS);
        beat.tick().await;
        let mut is_cancelled = false;
        loop {
            tokio::select! {
                done = &mut work => {
                    return done.unwrap_or_else(|_| Answer::broken("the call broke off"));
                }
                () = context.ct.cancelled(), if !is_cancelled => {
                    is_cancelled = true;
                    cancel.cancel();
                }
                _ = beat.tick() => told.tell(context).await,
            }
        }
    }

    fn work(&self, tool: ToolName, call: Call) -> Answer {
        let answered = match tool {
            ToolName::Exec => self.exec(call),
            ToolName::ReadFile => self.read_file(call),
            ToolName::WriteFile => self.write_file(call),
            ToolName::ListFiles => self.list_files(call),
            ToolName::Diff => self.diff(call),
            ToolName::Undo => self.undo(call),
            ToolName::RequestApproval => self.request_approval(call),
            ToolName::Receipt => self.receipt(call),
        };
        let answer = answered.unwrap_or_else(|Misuse(sentence)| Answer::misuse(&sentence));
        match self.redactor() {
            Ok(redactor) => answer.without(&redactor),
            Err(withheld) => withheld,
        }
    }

    fn done(&self) -> std::sync::MutexGuard<'_, Done> {
        self.session.done.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Call {
    /// Lets progress be told from what is captured.
    fn watch(&self, capture: &Arc<Capture>, redactor: Redactor) {
        let mut watched = self.capture.lock().unwrap_or_else(PoisonError::into_inner);
        *watched = Some(Watched { capture: Arc::clone(capture), redactor });
    }
}

struct StopOnDrop(Cancel);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// What a client was told of a running call.
struct Told {
    seconds: f64,
    capture: Arc<Mutex<Option<Watched>>>,
}

impl Told {
    async fn tell(&mut self, context: &RequestContext<RoleServer>) {
        let Some(token) = context.meta.get_progress_token() else { return };
        self.seconds += PROGRESS.as_secs_f64();
        let capture = self.capture.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let message = match capture {
            None => "waiting".to_owned(),
            Some(Watched { capture, redactor }) => {
                let line = capture.last_line().map(|line| redactor.redact_text(&line));
                let line = line.map(|line| format!(": {}", said(&line)));
                let line = line.unwrap_or_default();
                format!("running, {} bytes of output{line}", capture.total())
            }
        };
        let progress = ProgressNotificationParam::new(token, self.seconds).with_message(message);
        // A client that is gone ends the conversation elsewhere.
        let _ = context.peer.notify_progress(progress).await;
    }
}

/// Returns as much of a program's line as fits a line that says how it goes.
fn said(line: &str) -> String {
    let cut: String = line.chars().take(MOST_SAID).collect();
    files::printable(&cut)
}

impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder().enable_tools().build();
        let implementation = Implementation::new("warrant", env!("CARGO_PKG_VERSION"))
            .with_title("Warrant: governed shell and files");
        ServerConfig::new(capabilities)
            .with_server_info(implementation)
            .with_instructions(self.instructions())
    }

    async fn list_tools(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let tools = ToolName::ALL.into_iter().map(ToolName::definition).collect();
        Ok(ListToolsResult::with_all_items(tools))
    }

    fn get_tool(&self, name: &str) -> Option<rmcp::model::Tool> {
        ToolName::named(name).map(ToolName::definition)
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let Some(tool) = ToolName::named(&request.name) else {
            let sentence = format!("there is no tool `{}`", request.name);
            return Err(ErrorData::invalid_params(sentence, None));
        };
        let arguments = request.arguments.unwrap_or_default();
        Ok(self.call(tool, arguments, &context).await.into())
    }

    // The library answers these with nothing, as if we had some; what we did not declare is not
    // there.

    async fn list_prompts(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListPromptsResult, ErrorData> {
        Err(members::not_ours("prompts/list"))
    }

    async fn list_resources(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        Err(members::not_ours("resources/list"))
    }

    async fn list_resource_templates(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        Err(members::not_ours("resources/templates/list"))
    }

    async fn complete(
        &self,
        _request: CompleteRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<CompleteResult, ErrorData> {
        Err(members::not_ours("completion/complete"))
    }

    /// Hears what is no request that the library knows: of another method, or with members that
    /// are not what its own method takes.
    async fn on_custom_request(
        &self,
        request: CustomRequest,
        _context: RequestContext<RoleServer>,
    ) -> Result<CustomResult, ErrorData> {
        Err(members::error_of(request))
    }
}

/// Serves one client on standard input and output, until it goes away.
///
/// Programs that still run then are stopped, and leave their receipts.
///
/// # Errors
/// [`ServeError`] when the conversation could not begin or broke off.
pub fn serve_stdio(bench: Arc<Workbench>) -> Result<(), ServeError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let served = runtime.block_on(async {
        let server = Server::new(bench, Handle::current());
        let (reader, writer) = rmcp::transport::io::stdio_pipes();
        let streams = (members::checked(reader), writer);
        let running =
            server.serve(streams).await.map_err(|error| ServeError::Begin(Box::new(error)))?;
        running.waiting().await?;
        Ok(())
    });
    runtime.shutdown_timeout(LAST_RECEIPTS);
    served
}
