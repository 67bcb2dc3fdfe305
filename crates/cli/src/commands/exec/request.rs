//! Arguments become a request: what the person wishes for, before anyone judged it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use warrant_policy::facts::{History, ProgramFile, Surroundings};
use warrant_protocol::execution::{EnvSpec, ExecutionSpec};
use warrant_protocol::manifest::{ManifestVersion, WorkspaceManifest};
use warrant_protocol::request::{
    BudgetSpec, Disclosure, EgressRule, FileGrants, NetworkPolicy, WorkspaceMode,
};
use warrant_protocol::{Digest, Isolation, RelPath, RunRequest, SecretName};

use crate::args::Exec;
use crate::local::{Local, principal};

/// What the person wishes for, and where.
pub(crate) struct Wish {
    pub(crate) request: RunRequest,
    pub(crate) workspace: PathBuf,
    pub(crate) mode: Mode,
    image: Option<String>,
    program: Option<ProgramFile>,
}

/// Where writes to the workspace go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Into a layer of the run, kept as a diff.
    Isolated,
    /// Into the workspace when the program succeeds; dropped, or kept all the same, when it fails.
    Rollback {
        /// Whether a failing program's writes are kept.
        keeps_failure: bool,
    },
}

impl Wish {
    /// Reads the arguments. Nothing is judged here.
    pub(crate) fn read(
        arguments: &Exec,
        local: &Local,
        isolation: Isolation,
    ) -> anyhow::Result<Self> {
        if arguments.image.is_some() {
            bail!("--image: {isolation} has no images; leave it out");
        }
        let workspace = workspace(arguments.workspace.as_deref())?;
        let (program, args) = arguments.argv.split_first().context("no program to run")?;
        let (hosts, egress) = hosts(&arguments.allow_hosts)?;
        let request = RunRequest {
            requested_by: principal(),
            agent_kind: "command".to_owned(),
            agent_version: None,
            // The workspace's path is part of what is judged and approved.
            prompt: format!("{} (in {})", arguments.argv.join(" "), workspace.display()),
            pool: local.plane.home().pool().clone(),
            secret_names: secret_names(&arguments.secrets)?,
            workspace: manifest(&workspace),
            network: NetworkPolicy { default_deny: true, allow_hosts: hosts },
            budget: BudgetSpec { max_spend_usd: None, max_duration_min: None },
            // On one machine nothing is told to anyone else.
            disclosure: Disclosure::None,
            execution: Some(ExecutionSpec::Argv {
                command: program.clone(),
                args: args.to_vec(),
                cwd: cwd(&workspace)?,
                timeout_ms: arguments.timeout,
                env: Some(env(&arguments.env)?),
                log: None,
            }),
            isolation: Some(isolation),
            continuation: None,
            limits: None,
            required_posture: None,
            mode: Some(WorkspaceMode::Overlay),
            files: file_grants(arguments)?,
            egress: (!egress.is_empty()).then_some(egress),
            masks: None,
        };
        Ok(Self {
            request,
            mode: mode(arguments)?,
            image: arguments.image.clone(),
            program: find_program(program),
            workspace,
        })
    }

    /// Returns what is known around the request.
    pub(crate) fn around(&self, now_ms: u64) -> Surroundings {
        Surroundings {
            program: self.program.clone(),
            image: self.image.clone(),
            ..around_plain(&self.request, now_ms)
        }
    }
}

/// Returns what is known around a request of which nothing else is known.
pub(crate) fn around_plain(request: &RunRequest, now_ms: u64) -> Surroundings {
    Surroundings {
        requester: request.requested_by.label(),
        program: None,
        isolation: request.isolation.unwrap_or(Isolation::Namespace),
        mode: WorkspaceMode::Overlay,
        image: None,
        accepted_evidence: BTreeMap::new(),
        data_classes: BTreeSet::new(),
        history: History { run_execs: 0, denies_10m: 0, spent_cents: 0 },
        now_ms,
        approvals: Vec::new(),
    }
}

fn workspace(given: Option<&Path>) -> anyhow::Result<PathBuf> {
    let path = given.unwrap_or(Path::new("."));
    let workspace =
        fs::canonicalize(path).with_context(|| format!("no workspace at {}", path.display()))?;
    if workspace.parent().is_none() {
        bail!("/ is no workspace; change into a project or name one with --workspace");
    }
    Ok(workspace)
}

/// The current directory, when it lies below the workspace.
fn cwd(workspace: &Path) -> anyhow::Result<Option<RelPath>> {
    let here =
        std::env::current_dir().and_then(fs::canonicalize).context("no current directory")?;
    match here.strip_prefix(workspace) {
        Ok(below) if !below.as_os_str().is_empty() => {
            let text = below.to_str().context("the current directory is not UTF-8")?;
            Ok(Some(text.parse()?))
        }
        _ => Ok(None),
    }
}

fn mode(arguments: &Exec) -> anyhow::Result<Mode> {
    let keeps_failure = match arguments.on_failure.as_str() {
        "rollback" => false,
        "keep" => true,
        other => bail!("--on-failure is rollback or keep, not `{other}`"),
    };
    match arguments.mode.as_str() {
        "isolated" => Ok(Mode::Isolated),
        "workspace-rollback" => Ok(Mode::Rollback { keeps_failure }),
        other => bail!("--mode is isolated or workspace-rollback, not `{other}`"),
    }
}

fn hosts(given: &[String]) -> anyhow::Result<(Vec<warrant_protocol::Host>, Vec<EgressRule>)> {
    let (mut hosts, mut egress) = (Vec::new(), Vec::new());
    for text in given {
        match text.rsplit_once(':') {
            Some((host, port)) => {
                let host = host.parse().with_context(|| format!("--allow-host {text}"))?;
                let port = port.parse().with_context(|| format!("--allow-host {text}: no port"))?;
                egress.push(EgressRule { host, port: Some(port) });
            }
            None => hosts.push(text.parse().with_context(|| format!("--allow-host {text}"))?),
        }
    }
    Ok((hosts, egress))
}

fn secret_names(given: &[String]) -> anyhow::Result<Vec<SecretName>> {
    given.iter().map(|name| name.parse().with_context(|| format!("--secret {name}"))).collect()
}

fn env(given: &[String]) -> anyhow::Result<EnvSpec> {
    let mut vars = BTreeMap::new();
    for text in given {
        let (name, value) = text
            .split_once('=')
            .with_context(|| format!("--env {text}: write it as NAME=VALUE"))?;
        if name.is_empty() {
            bail!("--env {text}: the name is empty");
        }
        vars.insert(name.to_owned(), value.to_owned());
    }
    Ok(EnvSpec { inherit: None, secrets: None, vars: Some(vars), egress_proxy: None })
}

fn file_grants(arguments: &Exec) -> anyhow::Result<Option<FileGrants>> {
    let absolute = |paths: &[PathBuf], flag: &str| -> anyhow::Result<Vec<String>> {
        paths
            .iter()
            .map(|path| absolute(path).with_context(|| format!("{flag} {}", path.display())))
            .collect()
    };
    let read = absolute(&arguments.read, "--read")?;
    let write = absolute(&arguments.write, "--write")?;
    Ok((!read.is_empty() || !write.is_empty()).then_some(FileGrants { read, write }))
}

fn absolute(path: &Path) -> anyhow::Result<String> {
    let real = fs::canonicalize(path).context("it does not exist")?;
    Ok(real.to_str().context("its path is not UTF-8")?.to_owned())
}

/// On one machine nothing travels: the manifest names the commit and nothing else.
fn manifest(workspace: &Path) -> WorkspaceManifest {
    WorkspaceManifest {
        version: ManifestVersion::V1,
        base_ref: head(workspace).unwrap_or_else(|| "none".to_owned()),
        bundle_hash: Digest::of(b""),
        dirty_diff_hash: None,
        untracked_files: Vec::new(),
        denied_patterns: Vec::new(),
        denied_paths: Vec::new(),
    }
}

/// Reads the commit without starting git; whatever does not look like one is no commit.
fn head(workspace: &Path) -> Option<String> {
    let git = workspace.join(".git");
    let head = fs::read_to_string(git.join("HEAD")).ok()?;
    let oid = match head.trim().strip_prefix("ref: ") {
        None => head.trim().to_owned(),
        Some(name) if name.starts_with("refs/") && !name.contains("..") => {
            fs::read_to_string(git.join(name)).ok()?.trim().to_owned()
        }
        Some(_) => return None,
    };
    let is_oid = [40, 64].contains(&oid.len()) && oid.bytes().all(|b| b.is_ascii_hexdigit());
    is_oid.then_some(oid)
}

/// Looks a program up as the sandbox will, for rules that speak of real paths.
fn find_program(program: &str) -> Option<ProgramFile> {
    const PATH: [&str; 6] =
        ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];
    let candidates: Vec<PathBuf> = if program.contains('/') {
        vec![PathBuf::from(program)]
    } else {
        PATH.iter().map(|directory| Path::new(directory).join(program)).collect()
    };
    let real = candidates
        .iter()
        .find(|path| path.is_file())
        .and_then(|path| fs::canonicalize(path).ok())?;
    Some(ProgramFile { path: real.to_str()?.to_owned(), digest: None })
}
