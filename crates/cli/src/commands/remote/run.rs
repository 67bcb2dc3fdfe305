//! `warrant run` and `warrant continue`: a task becomes a request, the workspace travels, and the
//! run is watched to its end.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs::File;
use std::io::{self, IsTerminal as _};
use std::path::Path;
use std::str::FromStr;

use anyhow::{Context as _, bail};
use serde_json::json;
use warrant_govern::principal;
use warrant_plane::random;
use warrant_protocol::contract::Task;
use warrant_protocol::execution::{EnvSpec, ExecutionSpec};
use warrant_protocol::handoff::{
    EnvelopeVersion, HandoffEnvelope, HandoffSource, HandoffTarget, SourceKind, TargetKind,
};
use warrant_protocol::request::{AgentSpec, BudgetSpec, Disclosure, NetworkPolicy, SecretClaim};
use warrant_protocol::state::WireStatus;
use warrant_protocol::{CheckpointId, EnvelopeId, RunRequest, WorkspaceManifest};
use warrant_runner::remote::CallError;
use warrant_workspace::{
    CaptureError, CaptureOptions, CheckpointParts, DEFAULT_DENY, History, capture, capture_folder,
    make_checkpoint, quiet, store_envelope,
};

use super::watch::{Style, follow};
use crate::args::{Continue, Exec, Run};
use crate::commands::exec;
use crate::exit::{Exit, Misuse};
use crate::plane_client::PlaneClient;
use crate::ui;

/// `warrant run` at a plane.
pub(crate) fn run(plane: &PlaneClient, arguments: &Run) -> anyhow::Result<Exit> {
    let manifest = captured(plane, arguments)?;
    submit(plane, arguments, request(arguments, manifest)?)
}

/// `warrant continue`.
pub(crate) fn go_on(plane: &PlaneClient, arguments: &Continue) -> anyhow::Result<Exit> {
    let manifest = captured(plane, &arguments.run)?;
    let mut request = request(&arguments.run, manifest.clone())?;
    let mut transcript = match &arguments.transcript {
        Some(file) => {
            Some(File::open(file).with_context(|| format!("cannot read {}", file.display()))?)
        }
        None => None,
    };
    let now = random::now()?;
    let parts = CheckpointParts {
        checkpoint_id: CheckpointId::from_random(random::bytes()?),
        created_at: now,
        message: None,
        note: arguments.reason.clone(),
        parent: None,
        workspace: Some(manifest),
        transcript: transcript.as_mut().map(|file| file as &mut dyn io::Read),
        tool_journal: None,
    };
    let checkpoint = make_checkpoint(parts, plane)?;
    let envelope = HandoffEnvelope {
        version: EnvelopeVersion::V1,
        envelope_id: EnvelopeId::from_random(random::bytes()?),
        created_at: now,
        source: HandoffSource { kind: SourceKind::Local, actor: principal(), host: None },
        target: HandoffTarget { kind: TargetKind::RunnerPool, pool: request.pool.clone() },
        checkpoint,
        agent: AgentSpec { kind: request.agent_kind.clone(), version: None },
        task: Task { prompt: request.prompt.clone() },
        reason: arguments.reason.clone(),
        secrets: request
            .secret_names
            .iter()
            .map(|name| SecretClaim { name: name.clone(), scope: "requested".to_owned() })
            .collect(),
        network: request.network.clone(),
        budget: request.budget.clone(),
        disclosure: request.disclosure,
        execution: request.execution.clone(),
        isolation: request.isolation,
    };
    request.continuation = Some(store_envelope(&envelope, plane)?);
    submit(plane, &arguments.run, request)
}

/// `warrant run` without a plane: the same program, here.
pub(crate) fn here(home: Option<&Path>, arguments: &Run) -> anyhow::Result<Exit> {
    let task = arguments.task.join(" ");
    let argv: Vec<String> = match arguments.agent.as_str() {
        "command" => vec!["sh".into(), "-c".into(), task],
        "claude-code" => {
            vec![
                "claude".into(),
                "-p".into(),
                task,
                "--permission-mode".into(),
                "acceptEdits".into(),
            ]
        }
        "codex" => vec!["codex".into(), "exec".into(), "--skip-git-repo-check".into(), task],
        "cursor" => vec!["cursor-agent".into(), "-p".into(), "--force".into(), task],
        other => {
            return Err(Misuse::of(anyhow::anyhow!("--agent {other} needs a plane: --plane URL")));
        }
    };
    let exec = Exec {
        provider: Some(arguments.isolation.clone()),
        timeout: arguments.timeout,
        allow_hosts: arguments.allow_hosts.clone(),
        secrets: arguments.secrets.clone(),
        env: arguments.env.clone(),
        workspace: Some(arguments.repo.clone()),
        dry_run: arguments.dry_run,
        json: arguments.json,
        ..Exec::plain(&argv)
    };
    exec::run(home, &exec)
}

/// Captures the workspace; its blobs are at the plane then.
fn captured(plane: &PlaneClient, arguments: &Run) -> anyhow::Result<WorkspaceManifest> {
    let repo = std::fs::canonicalize(&arguments.repo)
        .with_context(|| format!("no repository at {}", arguments.repo.display()))?;
    let scratch = tempfile::tempdir().context("no scratch directory")?;
    let deny: Vec<String> = DEFAULT_DENY.iter().map(|&pattern| pattern.to_owned()).collect();
    let options = CaptureOptions {
        scratch: scratch.path(),
        allow_untracked: &arguments.allow_untracked,
        deny_patterns: &deny,
        history: History::Commit,
        progress: &quiet,
    };
    let captured = match capture(&repo, plane, &options) {
        Err(CaptureError::Discover(_)) if !arguments.allow_untracked.is_empty() => {
            capture_folder(&repo, plane, &options)
        }
        other => other,
    };
    let captured = captured.with_context(|| format!("{} cannot travel", repo.display()))?;
    for warning in &captured.warnings {
        ui::note(&format!("warrant: {}", ui::printable(warning)));
    }
    Ok(captured.manifest)
}

fn request(arguments: &Run, workspace: WorkspaceManifest) -> anyhow::Result<RunRequest> {
    let allow_hosts = parsed_all(&arguments.allow_hosts, "--allow-host")?;
    let secret_names = parsed_all(&arguments.secrets, "--secret")?;
    let prompt = arguments.task.join(" ");
    Ok(RunRequest {
        requested_by: principal(),
        agent_kind: arguments.agent.clone(),
        agent_version: None,
        prompt: prompt.clone(),
        pool: parsed(&arguments.pool, "--pool")?,
        secret_names,
        workspace,
        network: NetworkPolicy { default_deny: true, allow_hosts },
        budget: BudgetSpec { max_spend_usd: None, max_duration_min: None },
        disclosure: Disclosure::MinimalContext,
        execution: Some(execution(arguments, prompt)?),
        isolation: Some(parsed(&arguments.isolation, "--isolation")?),
        continuation: None,
        limits: None,
        required_posture: None,
        mode: None,
        files: None,
        egress: None,
        masks: None,
        image: None,
        accept_evidence: None,
    })
}

fn parsed<T>(text: &str, argument: &'static str) -> anyhow::Result<T>
where
    T: FromStr<Err: Error + Send + Sync + 'static>,
{
    text.parse().map_err(|error| Misuse::of(anyhow::Error::new(error).context(argument)))
}

fn parsed_all<T>(texts: &[String], argument: &'static str) -> anyhow::Result<Vec<T>>
where
    T: FromStr<Err: Error + Send + Sync + 'static>,
{
    texts.iter().map(|text| parsed(text, argument)).collect()
}

fn execution(arguments: &Run, prompt: String) -> anyhow::Result<ExecutionSpec> {
    let mut vars = BTreeMap::new();
    for pair in &arguments.env {
        match pair.split_once('=') {
            Some((name, value)) if !name.is_empty() => {
                vars.insert(name.to_owned(), value.to_owned());
            }
            _ => return Err(Misuse::of(anyhow::anyhow!("--env is K=V, not `{pair}`"))),
        }
    }
    let env = (!vars.is_empty()).then_some(EnvSpec {
        inherit: None,
        secrets: None,
        vars: Some(vars),
        egress_proxy: None,
    });
    let spec = ExecutionSpec::by_agent(&arguments.agent, None, &prompt);
    let timeout_ms = arguments.timeout;
    Ok(match spec {
        ExecutionSpec::Shell { script, shell, cwd, log, .. } => {
            ExecutionSpec::Shell { script, shell, cwd, timeout_ms, env, log }
        }
        ExecutionSpec::Argv { command, args, cwd, log, .. } => {
            ExecutionSpec::Argv { command, args, cwd, timeout_ms, env, log }
        }
        ExecutionSpec::Agent { agent, prompt, log, .. } => {
            ExecutionSpec::Agent { agent, prompt, timeout_ms, env, log }
        }
    })
}

fn submit(plane: &PlaneClient, arguments: &Run, request: RunRequest) -> anyhow::Result<Exit> {
    if arguments.dry_run {
        let body = json!({"request": request, "dryRun": true});
        return match plane.post("/v1/runs", &body) {
            Ok(report) => {
                ui::json(&report);
                Ok(Exit::Success)
            }
            Err(error) => refused(error, arguments.json),
        };
    }
    let submitted = match plane.submit(&request) {
        Ok(submitted) => submitted,
        Err(error) => return refused(error, arguments.json),
    };
    let run = &submitted.run_id;
    let waits = submitted.status == WireStatus::AwaitingApproval;
    if arguments.no_watch {
        if arguments.json {
            ui::json(&serde_json::to_value(&submitted)?);
        } else {
            ui::data(&format!("{run}\n"));
        }
        return Ok(if waits { Exit::WaitingForApproval } else { Exit::Success });
    }
    if waits {
        let needs = submitted.consent_requirements.join(", ");
        ui::note(&format!("warrant: {run} waits for approval of {}", ui::printable(&needs)));
    } else if !arguments.json {
        ui::note(&format!("warrant: {run}"));
    }
    follow(plane, run, Style { is_pretty: !arguments.json && io::stdout().is_terminal() })
}

/// A policy that says no is an answer, not an error.
fn refused(error: CallError, as_json: bool) -> anyhow::Result<Exit> {
    match error {
        CallError::Refused { status: 403, message, code, .. }
            if code.as_deref() == Some("policy_denied") =>
        {
            if as_json {
                ui::json(&json!({"status": "denied", "error": message}));
            } else {
                ui::note(&format!("warrant: {}", ui::printable(&message)));
            }
            Ok(Exit::Denied)
        }
        other => bail!(anyhow::Error::new(other).context("the plane did not take the request")),
    }
}
