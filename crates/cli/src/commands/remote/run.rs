//! `warrant run`: a task becomes a request, the workspace travels, and the run is watched to its
//! end.

use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;
use std::str::FromStr;

use anyhow::Context as _;
use serde_json::{Value, json};
use warrant_govern::principal;
use warrant_protocol::execution::{EnvSpec, ExecutionSpec};
use warrant_protocol::request::{BudgetSpec, Disclosure, NetworkPolicy};
use warrant_protocol::state::WireStatus;
use warrant_protocol::{RunId, RunRequest, WorkspaceManifest};
use warrant_runner::remote::CallError;
use warrant_workspace::{
    BlobSink, CaptureError, CaptureOptions, DEFAULT_DENY, DiscoverError, History, capture,
    capture_folder,
};

use super::output::OnGap;
use super::watch::{Following, Format, follow};
use crate::args::{Exec, Run};
use crate::commands::ending::exit_text;
use crate::commands::exec;
use crate::commands::exec::request::hosts;
use crate::exit::{Exit, Misuse};
use crate::plane_client::{DigestOnly, PlaneClient};
use crate::progress::{Meter, Sending};
use crate::ui;

/// `warrant run` at a plane.
pub(crate) fn run(plane: &PlaneClient, arguments: &Run) -> anyhow::Result<Exit> {
    let manifest = capture_workspace(plane, arguments)?;
    let (_, exit) = submit(plane, arguments, request(arguments, manifest)?)?;
    Ok(exit)
}

/// `warrant run` without a plane: the same program, here.
pub(crate) fn here(home: Option<&Path>, arguments: &Run) -> anyhow::Result<Exit> {
    let only_there = [
        ("--pool", arguments.pool != "default"),
        ("--allow-untracked", !arguments.told.allow_untracked.is_empty()),
        ("--no-watch", arguments.told.no_watch),
    ];
    if let Some((name, _)) = only_there.into_iter().find(|(_, is_given)| *is_given) {
        return Err(Misuse::of(anyhow::anyhow!("{name} needs a plane: --plane URL")));
    }
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
        timeout: arguments.told.timeout,
        allow_hosts: arguments.told.allow_hosts.clone(),
        secrets: arguments.told.secrets.clone(),
        env: arguments.told.env.clone(),
        workspace: Some(arguments.repo.clone()),
        dry_run: arguments.told.dry_run,
        json: arguments.json,
        ..Exec::plain(&argv)
    };
    exec::run(home, &exec)
}

/// Captures the workspace; its blobs are at the plane then, or nowhere on a dry run.
pub(super) fn capture_workspace(
    plane: &PlaneClient,
    arguments: &Run,
) -> anyhow::Result<WorkspaceManifest> {
    let repo = std::fs::canonicalize(&arguments.repo)
        .with_context(|| format!("no repository at {}", arguments.repo.display()))?;
    let scratch = tempfile::tempdir().context("no scratch directory")?;
    let deny: Vec<String> = DEFAULT_DENY.iter().map(|&pattern| pattern.to_owned()).collect();
    let meter = Meter::on_terminal();
    let options = CaptureOptions {
        scratch: scratch.path(),
        allow_untracked: &arguments.told.allow_untracked,
        deny_patterns: &deny,
        history: History::Commit,
        progress: &|step| meter.step(step),
    };
    let sending = Sending { sink: plane, meter: &meter };
    let sink: &dyn BlobSink = if arguments.told.dry_run { &DigestOnly } else { &sending };
    let captured = match capture(&repo, sink, &options) {
        Err(CaptureError::Discover(_)) if !arguments.told.allow_untracked.is_empty() => {
            capture_folder(&repo, sink, &options)
        }
        other => other,
    };
    meter.rest();
    let captured = captured.map_err(|error| match error {
        CaptureError::Discover(DiscoverError::NotGit(_) | DiscoverError::Unborn(_)) => {
            Misuse::of(anyhow::Error::new(error).context(format!(
                "{} cannot be sent without a commit; make one with git, or send the folder as it \
                 is with --allow-untracked '*'",
                repo.display()
            )))
        }
        other => anyhow::Error::new(other).context(format!("{} cannot be sent", repo.display())),
    })?;
    for warning in &captured.warnings {
        ui::note(&format!("warrant: {}", ui::printable(warning)));
    }
    Ok(captured.manifest)
}

/// Returns what the arguments ask for.
pub(super) fn request(arguments: &Run, workspace: WorkspaceManifest) -> anyhow::Result<RunRequest> {
    let (allow_hosts, egress) = hosts(&arguments.told.allow_hosts)?;
    let secret_names = parsed_all(&arguments.told.secrets, "--secret")?;
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
        egress,
        masks: None,
        image: None,
        accept_evidence: None,
        data_classes: None,
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
    for pair in &arguments.told.env {
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
    let timeout_ms = arguments.told.timeout;
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

/// Submits a request and watches its run, as the arguments say; returns the run, if there is one,
/// and how it ended.
pub(super) fn submit(
    plane: &PlaneClient,
    arguments: &Run,
    request: RunRequest,
) -> anyhow::Result<(Option<RunId>, Exit)> {
    if arguments.told.dry_run {
        let body = json!({"request": request, "dryRun": true});
        return match plane.post("/v1/runs", &body) {
            Ok(report) => {
                ui::json(&report);
                Ok((None, Exit::Success))
            }
            Err(error) => Ok((None, refused_submission(error.into(), arguments.json)?)),
        };
    }
    let submitted = match plane.submit(&request) {
        Ok(submitted) => submitted,
        Err(error) => return Ok((None, refused_submission(error, arguments.json)?)),
    };
    let run = &submitted.run_id;
    if let Some(unserved) = &submitted.unserved {
        ui::note(&format!("warrant: {}", ui::printable(unserved)));
    }
    let waits = submitted.status == WireStatus::AwaitingApproval;
    if arguments.told.no_watch {
        if arguments.json {
            ui::json(&serde_json::to_value(&submitted)?);
        } else {
            ui::data(&format!("{run}\n"));
        }
        let exit = if waits { Exit::WaitingForApproval } else { Exit::Success };
        return Ok((Some(run.clone()), exit));
    }
    if waits {
        let needs = ui::printable(&submitted.consent_requirements.join(", "));
        ui::note(&format!("warrant: {run} waits for approval of {needs}"));
        ui::note(&format!("  approve it with: warrant approve {run}"));
    } else if !arguments.json {
        ui::note(&format!("warrant: {run}"));
    }
    let following = Following { format: Format::of(arguments.json), on_gap: OnGap::Wait };
    Ok((Some(run.clone()), follow(plane, run, following)?))
}

/// A policy that says no is an answer, not an error.
fn refused_submission(error: anyhow::Error, as_json: bool) -> anyhow::Result<Exit> {
    match error.downcast_ref() {
        Some(CallError::Refused { status: 403, message, code, run, .. })
            if code.as_deref() == Some("policy_denied") =>
        {
            if as_json {
                let mut object = json!({
                    "status": "denied",
                    "error": message,
                    "exitCode": Exit::Denied.code(),
                    "exitCodeIs": Exit::Denied.owner(),
                });
                if let (Value::Object(members), Some(run)) = (&mut object, run) {
                    members.insert("runId".to_owned(), json!(run));
                }
                ui::json(&object);
            } else {
                let code = exit_text(Exit::Denied);
                ui::note(&format!("warrant: {} · {code}", ui::printable(message)));
                ui::note("  what is allowed: warrant policy show, on the machine of the plane");
            }
            Ok(Exit::Denied)
        }
        _ => Err(error.context("the plane did not take the request")),
    }
}
