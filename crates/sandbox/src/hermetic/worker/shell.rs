//! The interpreter, set up for one request and run to its end.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use bashkit::hooks::{HookAction, ToolEvent};
use bashkit::{
    Bash, ExecOptions, ExecutionLimits, FileSystem, HttpLimits, MemoryLimits, NetworkAllowlist,
    SessionLimits,
};

use super::braces::spell_out_ranges;
use super::fixed::{self, FixedFs, Mktemp};
use super::loops::read_by_line;
use super::network::Transport;
use super::sharing::shared_input;
use super::tools::{self, MissingCommands, spell_out_date};
use super::{Incoming, Line, curl};
use crate::hermetic::commands::Commands;
use crate::hermetic::fetcher::MAX_BODY;
use crate::hermetic::frame::{Kind, broken};
use crate::hermetic::guard::Guard;
use crate::hermetic::meter::Meter;
use crate::hermetic::request::{FilesRequest, Request};
use crate::hermetic::rooms::Rooms;
use crate::hermetic::softened::{RunningCommand, Softened};
use crate::hermetic::tree::{Rules, Tree, Writes};

/// What every script starts with: variables bash sets and the interpreter does not.
const PRELUDE: &str = "OPTERR=1";

/// Nesting of scripts, functions, substitutions and subshells beyond this is an error of the
/// script; it is well within the stack the worker reserves.
const MAX_DEPTH: usize = 500;

/// Everything one execution needs.
pub(super) struct Job {
    /// What to run.
    pub request: Request,
    /// The workspace, if there is one.
    pub root: Option<OwnedFd>,
    /// All of standard input.
    pub stdin: Vec<u8>,
}

/// Runs the script and returns its exit code.
pub(super) fn run(line: &Line, incoming: Receiver<Incoming>, job: Job) -> io::Result<u8> {
    let Job { request, root, stdin } = job;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .thread_stack_size(super::STACK_BYTES / 4)
        .build()?;
    let transport =
        request.network.then(|| Transport::new(line.clone(), Arc::new(Mutex::new(incoming))));
    let script = match prepared(&request, &stdin) {
        Ok(script) => script,
        Err(complaint) => {
            let text = format!("{}: {complaint}\n", request.arg0);
            line.send_stream(Kind::Stderr, text.as_bytes());
            return Ok(1);
        }
    };
    let mut bash = build(line, &request, root, transport)?;
    let options = ExecOptions::new().arg0(request.arg0.clone()).stdin(stdin);
    let (out, err) = (line.clone(), line.clone());
    let execution = async {
        bash.exec(if request.fixed { fixed::PRELUDE } else { PRELUDE }).await?;
        bash.execute(&script)
            .options(options)
            .stdout_fn(move |bytes| {
                out.send_stream(Kind::Stdout, &bytes);
                std::future::ready(Ok(()))
            })
            .stderr_fn(move |bytes| {
                err.send_stream(Kind::Stderr, &bytes);
                std::future::ready(Ok(()))
            })
            .await
    };
    match runtime.block_on(execution) {
        Ok(result) => Ok(u8::try_from(result.exit_code & 0xff).unwrap_or(1)),
        Err(error) => {
            line.send_stream(Kind::Stderr, format!("{}: {error}\n", request.arg0).as_bytes());
            Ok(match error {
                bashkit::Error::Parse { .. } => 2,
                _ => 1,
            })
        }
    }
}

/// Returns the script as the interpreter gets it, or why it would be interpreted wrongly.
fn prepared(request: &Request, stdin: &[u8]) -> Result<String, String> {
    let script = spell_out_ranges(&request.script)?;
    if let Some(at) = shared_input(&script, !stdin.is_empty()) {
        return Err(format!(
            "line {at}: this command reads an input that another one has read to its end, which \
             the hermetic tier cannot do as bash does; give each its own input, or use \
             the namespace tier (`--provider namespace` for exec, `--isolation namespace` for \
             run)"
        ));
    }
    Ok(if request.fixed { script } else { read_by_line(&script) })
}

fn build(
    line: &Line,
    request: &Request,
    root: Option<OwnedFd>,
    transport: Option<Transport>,
) -> io::Result<Bash> {
    let commands = Commands::new(request.network);
    let files = files(line, request, root, commands)?;
    let running = RunningCommand::default();
    let files: Arc<dyn FileSystem> =
        if request.fixed { files } else { Softened::new(files, running.clone()) };
    if !request.cwd.starts_with('/') {
        return Err(broken("the working directory is not absolute"));
    }
    let without: &[&str] = if request.fixed { &fixed::WITHOUT } else { &[] };
    let mut builder = Bash::builder()
        .fs(files)
        .rootfs(false)
        .cwd(&request.cwd)
        .username("agent")
        .hostname("warrant")
        .limits(limits())
        .memory_limits(MemoryLimits::unlimited())
        .session_limits(SessionLimits::unlimited())
        .builtin_registry(tools::registry(match request.fixed {
            true => tools::Seen::Memory,
            false => tools::Seen::Workspace,
        }))
        .command_resolver(Arc::new(MissingCommands { commands, arg0: request.arg0.clone() }))
        .before_tool(Box::new(move |tool| {
            running.starts(&tool.name);
            HookAction::Continue(tool)
        }))
        .before_tool(Box::new(with_plain_dates(request.fixed)))
        .before_tool(Box::new(with_short_ranges))
        .builtin_filter(move |name| commands.has(name) && !without.contains(&name));
    let has = |wanted: &str| request.env.iter().any(|(name, _)| name == wanted);
    if !has("HOME") {
        builder = builder.env("HOME", "/tmp");
    }
    if !has("PATH") {
        builder = builder.env("PATH", "/usr/bin:/bin");
    }
    for (name, value) in &request.env {
        builder = builder.env(name, value);
    }
    if let Some(transport) = transport {
        // SECURITY: nothing is decided or looked up here; the supervisor decides every request.
        let everything = NetworkAllowlist::allow_all().block_private_ips(false);
        builder = builder
            .network(everything)
            .http_limits(HttpLimits::default().max_response_bytes(MAX_BODY))
            .http_transport(Arc::new(transport))
            .before_tool(Box::new(|mut tool| {
                if tool.name == "curl" {
                    tool.args = curl::spell_out(tool.args);
                }
                HookAction::Continue(tool)
            }));
    }
    if request.fixed {
        builder = builder
            .fixed_epoch(fixed::EPOCH)
            .builtin("mktemp", Box::new(Mktemp::default()))
            .before_tool(Box::new(|tool| HookAction::Continue(fixed::tame(tool))));
    }
    Ok(builder.build())
}

/// Returns the hook that works out relative dates before `date` sees them.
fn with_plain_dates(fixed: bool) -> impl Fn(ToolEvent) -> HookAction<ToolEvent> {
    move |mut tool| {
        if tool.name == "date" {
            let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
            let seconds = since.ok().and_then(|since| i64::try_from(since.as_secs()).ok());
            let now = if fixed { fixed::EPOCH } else { seconds.unwrap_or(0) };
            tool.args = spell_out_date(tool.args, now);
        }
        HookAction::Continue(tool)
    }
}

/// Writes the long ranges of a script that a script runs as several.
fn with_short_ranges(mut tool: ToolEvent) -> HookAction<ToolEvent> {
    let is_shell = matches!(tool.name.as_str(), "bash" | "sh");
    if tool.name != "eval" && !is_shell {
        return HookAction::Continue(tool);
    }
    for arg in &mut tool.args {
        match spell_out_ranges(arg) {
            Ok(spelled) => *arg = spelled,
            Err(complaint) => return HookAction::Cancel(complaint),
        }
    }
    HookAction::Continue(tool)
}

fn files(
    line: &Line,
    request: &Request,
    root: Option<OwnedFd>,
    commands: Commands,
) -> io::Result<Arc<dyn FileSystem>> {
    let FilesRequest::Directory { host_root, writable, masks, repository_granted } = &request.files
    else {
        return Ok(FixedFs::new());
    };
    let root = root.ok_or_else(|| broken("no workspace came with the request"))?;
    let limits = &request.limits;
    let striking = line.clone();
    let rules = Rules {
        guard: Guard::new(masks, *repository_granted),
        meter: Meter::new(
            [limits.file_bytes, limits.disk_bytes, limits.inodes],
            Box::new(move |limit| striking.struck(limit)),
        ),
    };
    let writes = if *writable { Writes::Allowed } else { Writes::Refused };
    let tree = Tree::new(root, host_root.clone(), writes, rules);
    let is_directory = tree
        .stat(Path::new(&request.cwd))
        .is_ok_and(|entry| entry.sort == crate::hermetic::tree::Sort::Directory);
    if !is_directory {
        return Err(broken("the working directory is not there"));
    }
    Ok(Rooms::new(tree, commands, SystemTime::now()))
}

/// Counting is left to the process's own limits; only what would overflow the stack stays.
fn limits() -> ExecutionLimits {
    ExecutionLimits::new()
        .max_work_units(u64::MAX)
        .max_aggregate_input_bytes(u64::MAX)
        .max_live_intermediate_bytes(u64::MAX)
        .max_commands(usize::MAX)
        .max_loop_iterations(usize::MAX)
        .max_total_loop_iterations(usize::MAX)
        .max_function_depth(MAX_DEPTH)
        .timeout(Duration::from_secs(u64::MAX / 4))
        .parser_timeout(Duration::from_secs(3600))
        .max_input_bytes(usize::MAX)
        .max_ast_depth(MAX_DEPTH)
        .max_parser_operations(usize::MAX)
        .max_stdout_bytes(usize::MAX)
        .max_stderr_bytes(usize::MAX)
        .max_subst_depth(MAX_DEPTH)
        .max_subshell_depth(MAX_DEPTH)
        .max_file_descriptors(usize::MAX)
        .max_word_split_fields(usize::MAX)
        .max_word_split_bytes(usize::MAX)
}
