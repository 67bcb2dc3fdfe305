//! What an invocation becomes at a provider, and what no provider can give.

use std::path::{Path, PathBuf};
use std::time::Duration;

use warrant_protocol::authority::split_port;
use warrant_protocol::{LimitKind, Limits};

use super::inside::{self, WORKSPACE};
use crate::{Files, Invocation, Network, Refusal, Stdin, WorkspaceAccess};

/// The longest a sandbox is asked to live.
pub(super) const LONGEST_LIFE: Duration = Duration::from_secs(3600);

/// Refuses what no provider can give.
pub(super) fn check(invocation: &Invocation) -> Result<(), Refusal> {
    let files = &invocation.files;
    if files.access == WorkspaceAccess::ReadOnly {
        let message = "a provider cannot keep a workspace from being written".to_owned();
        return Err(denied(message));
    }
    let roots = [files.read_roots.len(), files.write_roots.len(), files.places.len()];
    if roots != [0; 3] {
        let message = "further directories of this machine do not exist at a provider".to_owned();
        return Err(denied(message));
    }
    if invocation.tty.is_some() {
        return Err(denied("a provider gives no terminal here; leave --tty out".to_owned()));
    }
    if !invocation.cwd.starts_with(&files.workspace) {
        return Err(denied("the directory to start in is outside the workspace".to_owned()));
    }
    let has_bad_name = invocation.env.iter().any(|variable| !is_variable(&variable.name));
    let words = inside::words(&invocation.command);
    if has_bad_name || words.iter().any(|word| word.contains('\0')) {
        return Err(denied("a name or word that no shell can carry".to_owned()));
    }
    if words.first().is_none_or(String::is_empty) {
        return Err(denied("the program's name is empty".to_owned()));
    }
    Ok(())
}

fn is_variable(name: &str) -> bool {
    let mut bytes = name.bytes();
    let first = bytes.next();
    first.is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_')
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// Refuses rules that are more than names: providers filter names on ports 80 and 443 only.
pub(super) fn names_only(hosts: &[String]) -> Result<(), Refusal> {
    for host in hosts {
        if let Some(port) = split_port(host).1
            && !matches!(port, "80" | "443")
        {
            return Err(denied(format!("{host}: this provider has no rules with ports")));
        }
    }
    Ok(())
}

pub(super) fn host_only(hosts: &[String]) -> Vec<String> {
    let mut names: Vec<String> = hosts.iter().map(|host| split_port(host).0.to_owned()).collect();
    names.sort();
    names.dedup();
    names
}

pub(super) fn directory(invocation: &Invocation) -> String {
    let below = invocation.cwd.strip_prefix(&invocation.files.workspace).unwrap_or(Path::new(""));
    let below = below.to_string_lossy();
    if below.is_empty() { WORKSPACE.to_owned() } else { format!("{WORKSPACE}/{below}") }
}

pub(super) fn revealed(invocation: &Invocation) -> Vec<(String, String)> {
    let variables = invocation.env.iter();
    variables.map(|variable| (variable.name.clone(), variable.value.reveal().to_owned())).collect()
}

/// The provider's own clock strikes a little after ours.
pub(super) fn start_timeout(limits: &Limits) -> Duration {
    let wall = limits.of(LimitKind::Wall).map_or(LONGEST_LIFE, Duration::from_millis);
    wall.min(LONGEST_LIFE) + Duration::from_secs(10)
}

pub(super) fn probe_invocation() -> Invocation {
    Invocation {
        command: crate::Command::Argv { program: "true".to_owned(), args: Vec::new() },
        cwd: PathBuf::from("/"),
        env: Vec::new(),
        stdin: Stdin::Empty,
        tty: None,
        files: Files {
            workspace: PathBuf::from("/"),
            access: WorkspaceAccess::Overlay,
            read_roots: Vec::new(),
            write_roots: Vec::new(),
            masks: Vec::new(),
            places: Vec::new(),
        },
        network: Network::Allow(Vec::new()),
        limits: Limits { wall_ms: Some(60_000), ..Limits::danger_unlimited() },
        image: None,
        neighbors: None,
    }
}

fn denied(message: String) -> Refusal {
    Refusal { code: "SANDBOX_DENIED", message }
}
