//! Lowers an invocation to a worker's request, or says why it cannot be.

use std::path::Path;

use serde_json::{Value, json};
use warrant_egress::Rules;
use warrant_protocol::Limits;

use super::commands::Commands;
use super::names;
use super::request::{FilesRequest, Request, WorkerLimits};
use crate::{Command, Files, Invocation, Network, Refusal, Shell, WorkspaceAccess};

/// Returns the request that stands for an invocation.
pub(super) fn lower(invocation: &Invocation) -> Result<Request, Refusal> {
    let network = rules(&invocation.network)?.is_some();
    let (script, arg0) = script(&invocation.command, Commands::new(network))?;
    Ok(Request {
        script,
        arg0,
        cwd: cwd(&invocation.cwd, &invocation.files.workspace)?,
        files: files(&invocation.files)?,
        network,
        ..common(invocation)?
    })
}

/// Returns what may be reached; `None` when that is nothing, and no command for it exists.
pub(super) fn rules(network: &Network) -> Result<Option<Rules>, Refusal> {
    match network {
        Network::Allow(entries) if entries.is_empty() => Ok(None),
        Network::Allow(entries) => match Rules::parse(entries) {
            Ok(rules) => Ok((!rules.is_nothing()).then_some(rules)),
            Err(error) => Err(denied(&error.to_string())),
        },
        Network::DangerEverything => Ok(Some(Rules::danger_everything())),
    }
}

/// Returns the request for a run that sees none of the host's files and no network.
pub(crate) fn without_files(invocation: &Invocation) -> Result<Request, Refusal> {
    let (script, arg0) = script(&invocation.command, Commands::new(false))?;
    Ok(Request { script, arg0, ..common(invocation)? })
}

/// Returns what every request has, still without its script.
fn common(invocation: &Invocation) -> Result<Request, Refusal> {
    if invocation.tty.is_some() {
        return Err(denied("the hermetic tier has no terminal; run without one"));
    }
    Ok(Request {
        script: String::new(),
        arg0: String::new(),
        cwd: "/".into(),
        env: environment(invocation),
        files: FilesRequest::Memory,
        network: false,
        fixed: false,
        limits: limits(&invocation.limits),
        fault: None,
    })
}

/// Returns what will be applied, to be read; without any secret value.
pub(super) fn artifact(request: &Request, invocation: &Invocation) -> Value {
    let names: Vec<&str> = request.env.iter().map(|(name, _)| name.as_str()).collect();
    let hosts = match &invocation.network {
        Network::Allow(hosts) => json!(hosts),
        Network::DangerEverything => json!("everything"),
    };
    let limits = &invocation.limits;
    let limits: serde_json::Map<String, Value> = warrant_protocol::LimitKind::ALL
        .into_iter()
        .filter_map(|kind| Some((kind.as_str().to_owned(), json!(limits.of(kind)?))))
        .collect();
    json!({
        "interpreter": "bashkit",
        "shell": request.arg0,
        "cwd": request.cwd,
        "environment": names,
        "workspace": {
            "at": "/",
            "access": match invocation.files.access {
                WorkspaceAccess::ReadOnly => "read-only",
                WorkspaceAccess::Overlay => "overlay",
                WorkspaceAccess::Direct => "direct",
            },
            "masks": invocation.files.masks,
        },
        "network": hosts,
        "limits": limits,
    })
}

/// What a script has when nobody says otherwise. The plan tells of it, as of everything else.
const DEFAULT_ENVIRONMENT: [(&str, &str); 3] =
    [("HOME", "/tmp"), ("PATH", "/usr/bin:/bin"), ("USER", "agent")];

/// Returns the environment as the script will see it.
fn environment(invocation: &Invocation) -> Vec<(String, String)> {
    let is_asked = |name: &str| invocation.env.iter().any(|var| var.name == name);
    let defaults = DEFAULT_ENVIRONMENT.into_iter().filter(|(name, _)| !is_asked(name));
    let defaults = defaults.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let pair = |var: &crate::EnvVar| (var.name.clone(), var.value.reveal().to_owned());
    invocation.env.iter().map(pair).chain(defaults).collect()
}

/// Returns the limits the worker holds itself to.
fn limits(limits: &Limits) -> WorkerLimits {
    WorkerLimits {
        cpu_ms: limits.cpu_ms,
        memory_bytes: limits.memory_bytes,
        open_files: limits.open_files,
        file_bytes: limits.file_bytes,
        disk_bytes: limits.disk_bytes,
        inodes: limits.inodes,
    }
}

/// Returns the script and `$0` that stand for a command.
fn script(command: &Command, commands: Commands) -> Result<(String, String), Refusal> {
    match command {
        Command::Shell { shell: Shell::Sh, script } => Ok((script.clone(), "sh".into())),
        Command::Shell { shell: Shell::Bash, script } => Ok((script.clone(), "bash".into())),
        Command::Argv { program, args } => {
            let name = ["/usr/bin/", "/bin/"]
                .iter()
                .find_map(|directory| program.strip_prefix(directory))
                .unwrap_or(program);
            if !commands.has(name) {
                return Err(missing(program, commands));
            }
            let words = std::iter::once(name).chain(args.iter().map(String::as_str));
            let words: Vec<String> = words.map(quote).collect();
            Ok((words.join(" "), "sh".into()))
        }
    }
}

fn missing(program: &str, commands: Commands) -> Refusal {
    let near = commands.near(program);
    let hint = if near.is_empty() {
        let all: Vec<&str> = commands.programs().collect();
        format!("available are {}", all.join(", "))
    } else {
        format!("near names that are: {}", near.join(", "))
    };
    denied(&format!(
        "the hermetic tier interprets and starts no programs; `{program}` is not available; {hint}"
    ))
}

fn quote(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

fn cwd(cwd: &Path, workspace: &Path) -> Result<String, Refusal> {
    let below = cwd.strip_prefix(workspace).map_err(|_| {
        denied("the working directory is outside the workspace, which is all the hermetic tier has")
    })?;
    Ok(format!("/{}", names::to_text(below.as_os_str())))
}

fn files(files: &Files) -> Result<FilesRequest, Refusal> {
    let repository = files.workspace.join(".git");
    let is_grant = |root: &&std::path::PathBuf| **root == repository;
    let others = files.write_roots.iter().filter(|root| !is_grant(root)).count();
    if others > 0 || !files.read_roots.is_empty() || !files.places.is_empty() {
        return Err(denied("the hermetic tier shows only the workspace; ask for no other roots"));
    }
    Ok(FilesRequest::Directory {
        host_root: files.workspace.clone(),
        writable: files.access != WorkspaceAccess::ReadOnly,
        masks: files.masks.clone(),
        repository_granted: files.write_roots.iter().any(|root| is_grant(&root)),
    })
}

fn denied(message: &str) -> Refusal {
    Refusal { code: "SANDBOX_DENIED", message: message.to_owned() }
}
