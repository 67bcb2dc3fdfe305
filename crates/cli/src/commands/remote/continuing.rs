//! `warrant continue` at a plane: a run of the plane goes on there, or the repository travels with
//! what was said so far.

use std::fs::File;
use std::io::{self, Cursor};
use std::path::Path;

use anyhow::{Context as _, bail};
use serde_json::{Value, json};
use warrant_govern::principal;
use warrant_plane::random;
use warrant_protocol::contract::Task;
use warrant_protocol::handoff::{
    EnvelopeVersion, HandoffEnvelope, HandoffSource, HandoffTarget, SourceKind, TargetKind,
};
use warrant_protocol::request::{AgentSpec, ContinuationRef, SecretClaim};
use warrant_protocol::{
    CheckpointId, Contract, ContractBody, Digest, EnvelopeId, RunId, RunRequest, WorkspaceManifest,
};
use warrant_workspace::{BlobSink, CheckpointParts, make_checkpoint, store_envelope};

use super::run::{capture_workspace, request, submit};
use super::{artifact_of, ended};
use crate::args::{Continue, Run};
use crate::commands::continuing::{Words, argv_execution, read_journal};
use crate::exit::{Exit, Misuse};
use crate::plane_client::{DigestOnly, PlaneClient};
use crate::progress::Meter;
use crate::ui;

/// A run of the plane that ended, as far as the next one goes on from it.
struct Before {
    run: RunId,
    contract: ContractBody,
    diff: Option<Digest>,
    log: Option<Digest>,
}

/// Goes on at the plane.
pub(crate) fn run(plane: &PlaneClient, arguments: &Continue) -> anyhow::Result<Exit> {
    let usage = |text: &str| Err(Misuse::of(anyhow::anyhow!(text.to_owned())));
    if arguments.wait {
        return usage("--wait is for this machine; a plane's run is watched to its end");
    }
    if arguments.out.is_some() && (arguments.there.told.no_watch || arguments.there.told.dry_run) {
        return usage("--out needs a run that is watched to its end");
    }
    let words = Words::read(arguments)?;
    let before = match &words.run {
        Some(run) => Some(Before::read(plane, run)?),
        None => None,
    };
    let asked = as_run(arguments, (&words, before.as_ref()))?;
    let workspace = match &before {
        Some(before) => before.workspace(),
        None => capture_workspace(plane, &asked)?,
    };
    let mut request = request(&asked, workspace)?;
    if let Some(before) = &before {
        before.carry_over(&mut request, &words, arguments);
    }
    if let Some(execution) = argv_execution(&arguments.argv, arguments.there.told.timeout) {
        request.execution = Some(execution);
    }
    let (reference, envelope) = hand_over(plane, &request, (arguments, before.as_ref()))?;
    if arguments.only_envelope {
        tell_envelope(&reference, &envelope, arguments.json);
        return Ok(Exit::Success);
    }
    request.continuation = Some(reference);
    let (run, exit) = submit(plane, &asked, request)?;
    if let (Some(file), Some(run)) = (&arguments.out, run) {
        write_bundle(plane, &run, file)?;
    }
    Ok(exit)
}

impl Before {
    fn read(plane: &PlaneClient, run: &RunId) -> anyhow::Result<Self> {
        let bundle = ended(plane, run)?;
        let contract = bundle.get("contract").cloned().unwrap_or(Value::Null);
        let contract = Contract::from_value(contract);
        let contract =
            contract.map_err(|error| anyhow::anyhow!("{run} has no contract: {error}"))?;
        let diff = bundle.pointer("/receipt/workspaceOut/diffHash").and_then(Value::as_str);
        Ok(Self {
            run: run.clone(),
            contract: contract.body().clone(),
            diff: diff.and_then(|digest| digest.parse().ok()),
            log: artifact_of(&bundle, "log"),
        })
    }

    /// Returns the files to go on from. A run's diff is against its commit and has in it whatever
    /// else came along, so it stands for all of that.
    fn workspace(&self) -> WorkspaceManifest {
        let mut workspace = self.contract.workspace.clone();
        if self.diff.is_some() {
            workspace.dirty_diff_hash = self.diff;
            workspace.untracked_files = Vec::new();
        }
        workspace
    }

    /// Asks for what the run was given, where nothing else is said.
    fn carry_over(&self, request: &mut RunRequest, words: &Words, arguments: &Continue) {
        let contract = &self.contract;
        if words.task.is_none() && arguments.there.agent.is_none() {
            request.execution.clone_from(&contract.execution);
        }
        if arguments.there.told.secrets.is_empty() {
            request.secret_names =
                contract.secrets.iter().map(|secret| secret.name.clone()).collect();
        }
        if arguments.there.told.allow_hosts.is_empty() {
            request.network = contract.network.clone();
            request.egress.clone_from(&contract.egress);
        }
        request.agent_version.clone_from(&contract.agent.version);
        request.budget = contract.budget.clone();
        request.disclosure = contract.disclosure;
        request.limits.clone_from(&contract.limits);
        request.required_posture.clone_from(&contract.required_posture);
        request.mode = contract.mode;
        request.files.clone_from(&contract.files);
        request.masks.clone_from(&contract.masks);
        request.image.clone_from(&contract.image);
    }
}

/// Returns the arguments as those of `warrant run`.
fn as_run(arguments: &Continue, (words, before): (&Words, Option<&Before>)) -> anyhow::Result<Run> {
    let contract = before.map(|before| &before.contract);
    let prompt = words.task.clone().or_else(|| contract.map(|body| body.task.prompt.clone()));
    let Some(prompt) = prompt else {
        return Err(Misuse::of(anyhow::anyhow!("say which run goes on, or what the task is")));
    };
    let there = &arguments.there;
    let of_run = |text: &Option<String>, run: Option<String>, default: &str| {
        text.clone().or(run).unwrap_or_else(|| default.to_owned())
    };
    let isolation = contract.and_then(|body| body.isolation).map(|tier| tier.to_string());
    Ok(Run {
        agent: of_run(&there.agent, contract.map(|body| body.agent.kind.clone()), "command"),
        pool: of_run(&there.pool, contract.map(|body| body.runner.pool.to_string()), "default"),
        told: there.told.clone(),
        repo: arguments.repo.clone(),
        isolation: of_run(&arguments.isolation, isolation, "namespace"),
        json: arguments.json,
        task: vec![prompt],
    })
}

/// Puts the work down at the plane: checkpoint, envelope, and what they name.
fn hand_over(
    plane: &PlaneClient,
    request: &RunRequest,
    (arguments, before): (&Continue, Option<&Before>),
) -> anyhow::Result<(ContinuationRef, HandoffEnvelope)> {
    let meter = Meter::on_terminal();
    let sink: &dyn BlobSink = if arguments.there.told.dry_run { &DigestOnly } else { plane };
    let mut transcript: Option<Box<dyn io::Read>> = match (&arguments.transcript, before) {
        (Some(file), _) => Some(Box::new(open(file)?)),
        (None, Some(Before { log: Some(log), .. })) => {
            Some(Box::new(Cursor::new(plane.blob(log, &meter)?)))
        }
        (None, _) => None,
    };
    let tool_journal = arguments.tool_journal.as_deref().map(read_journal).transpose()?;
    let now = random::now()?;
    let continues = before.map(|before| format!("continues {}", before.run));
    let earlier = before.and_then(|before| before.contract.continuation.as_ref());
    let parts = CheckpointParts {
        checkpoint_id: CheckpointId::from_random(random::bytes()?),
        created_at: now,
        message: arguments.message.clone(),
        note: arguments.note.clone(),
        parent: earlier.map(|earlier| earlier.checkpoint_id.clone()),
        workspace: Some(request.workspace.clone()),
        transcript: transcript.as_mut().map(|said| said as &mut dyn io::Read),
        tool_journal: tool_journal.as_ref(),
    };
    meter.doing("sending");
    let checkpoint = make_checkpoint(parts, sink)?;
    let claim = |name: &warrant_protocol::SecretName| SecretClaim {
        name: name.clone(),
        scope: "requested".to_owned(),
    };
    let envelope = HandoffEnvelope {
        version: EnvelopeVersion::V1,
        envelope_id: EnvelopeId::from_random(random::bytes()?),
        created_at: now,
        source: HandoffSource { kind: SourceKind::Local, actor: principal(), host: None },
        target: HandoffTarget { kind: TargetKind::RunnerPool, pool: request.pool.clone() },
        checkpoint,
        agent: AgentSpec {
            kind: request.agent_kind.clone(),
            version: request.agent_version.clone(),
        },
        task: Task { prompt: request.prompt.clone() },
        reason: arguments.reason.clone().or(continues),
        secrets: request.secret_names.iter().map(claim).collect(),
        network: request.network.clone(),
        budget: request.budget.clone(),
        disclosure: request.disclosure,
        execution: request.execution.clone(),
        isolation: request.isolation,
    };
    Ok((store_envelope(&envelope, sink)?, envelope))
}

fn open(file: &Path) -> anyhow::Result<File> {
    let opened = File::open(file).with_context(|| format!("cannot read {}", file.display()));
    opened.map_err(Misuse::of)
}

fn tell_envelope(reference: &ContinuationRef, envelope: &HandoffEnvelope, as_json: bool) {
    if as_json {
        ui::json(&json!({
            "envelopeHash": reference.envelope_hash,
            "envelopeId": envelope.envelope_id,
            "checkpointId": reference.checkpoint_id,
            "tier": reference.tier,
        }));
    } else {
        ui::data(&format!("{}\n", reference.envelope_hash));
    }
}

fn write_bundle(plane: &PlaneClient, run: &RunId, file: &Path) -> anyhow::Result<()> {
    let Some(bundle) = plane.bundle(run)? else { bail!("{run} has no bundle") };
    std::fs::write(file, format!("{bundle}\n"))
        .with_context(|| format!("cannot write {}", file.display()))
}
