//! The fitting room: a contract becomes an invocation, and the backend's plan for it.
//!
//! Secrets are only names here; [`fill_secrets`] puts the values in after the start.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use warrant_protocol::event::FailureClass;
use warrant_protocol::execution::{
    ExecutionSpec, PrepareContext, PreparedCommand, PreparedExecution, SECRET_FILE_PLACEHOLDER,
    SECRET_PLACEHOLDER, ShellName,
};
use warrant_protocol::port::SecretValue;
use warrant_protocol::request::WorkspaceMode;
use warrant_protocol::{
    ContractBody, Event, Limits, Outcome, Posture, Preimage, PreimageInputs, SecretName,
};
use warrant_sandbox::{
    Backend, Cancel, Command, EnvValue, EnvVar, Files, Invocation, Network, Plan, Shell, Stdin,
    TtySize, WorkspaceAccess, WriteTarget,
};

use crate::halt::Halt;
use crate::journal::Journal;
use crate::site::{Ownership, Visit};

/// Where programs are looked for when the contract does not say.
pub(crate) const DEFAULT_PATH: &str =
    "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Returns the execution of a contract with every default filled in.
pub(crate) fn prepare_execution(
    contract: &ContractBody,
    environment: &BTreeMap<String, String>,
    visit: Option<&Visit<'_>>,
) -> Result<PreparedExecution, Halt> {
    let mismatch =
        |message: String| Halt::new(Outcome::Failed, FailureClass::CapabilityMismatch, message);
    let execution = contract.execution_or_default();
    let is_pi = matches!(&execution, ExecutionSpec::Agent { agent, .. } if agent.kind == "pi");
    if is_pi {
        let message = "agent kind \"pi\" cannot be started in any tier: it has no program of its \
                       own and runs only inside the harness of the reference implementation; use \
                       claude-code, codex, cursor or command";
        return Err(mismatch(message.to_owned()));
    }
    let mock_agent = visit.and_then(Visit::mock_agent);
    let context = PrepareContext { environment, mock_agent };
    execution.prepare(&contract.budget, &context).map_err(|unknown| mismatch(unknown.to_string()))
}

/// Returns the limits of a contract; the shorter time and the smaller output win.
pub(crate) fn limits_of(
    contract: &ContractBody,
    execution: &PreparedExecution,
    visit: Option<&Visit<'_>>,
) -> Limits {
    let mut limits = contract.limits.clone().unwrap_or_else(Limits::danger_unlimited);
    let wall = limits.wall_ms.unwrap_or(u64::MAX).min(execution.timeout_ms);
    limits.wall_ms = Some(wall);
    limits.output_bytes = match (limits.output_bytes, execution.log_max_bytes) {
        (Some(limit), Some(log)) => Some(limit.min(log)),
        // A visitor's log lies on this machine's disk, so it always has a bound.
        (limit, log) => limit.or(log).or(visit.map(|visit| visit.most_output_bytes)),
    };
    limits
}

/// Where on this machine a program runs, and what it reads.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    pub(crate) workspace: &'a Path,
    pub(crate) ownership: Ownership,
    /// A further file that the program must be able to read: itself.
    pub(crate) read: Option<&'a Path>,
    pub(crate) stdin: &'a Stdin,
    pub(crate) tty: Option<TtySize>,
}

/// Returns what the backend is asked to run; secrets are names without values.
pub(crate) fn invocation(
    contract: &ContractBody,
    execution: &PreparedExecution,
    place: Place<'_>,
    limits: Limits,
) -> Invocation {
    let command = match &execution.command {
        PreparedCommand::Argv { cmd, args } => {
            Command::Argv { program: cmd.clone(), args: args.clone() }
        }
        PreparedCommand::Shell { shell, script } => Command::Shell {
            shell: match shell {
                ShellName::Sh => Shell::Sh,
                ShellName::Bash => Shell::Bash,
            },
            script: script.clone(),
        },
    };
    Invocation {
        command,
        cwd: directory(place.workspace, &execution.cwd),
        env: environment(contract, execution),
        stdin: place.stdin.clone(),
        tty: place.tty,
        files: files(contract, &place),
        network: network(contract),
        limits,
        image: contract.image.clone(),
        neighbors: None,
    }
}

/// A plan, and what its backend may have built for it: given up when this is dropped.
pub(crate) struct Fitted<'a> {
    backend: &'a dyn Backend,
    pub(crate) plan: Plan,
    /// Where what could not be taken down is told.
    left: &'a Cell<Option<String>>,
}

impl<'a> Fitted<'a> {
    /// Has the backend make its plan.
    pub(crate) fn new(
        backend: &'a dyn Backend,
        invocation: Invocation,
        left: &'a Cell<Option<String>>,
    ) -> Result<Self, Halt> {
        Ok(Self { backend, plan: backend.prepare(invocation)?, left })
    }

    /// Has the backend build what it can before the program, and returns what that holds.
    pub(crate) fn ready(&mut self, cancel: &Cancel) -> Result<Posture, Halt> {
        self.backend.ready(&mut self.plan, cancel).map_err(|refusal| {
            if cancel.is_cancelled() {
                return Halt::new(Outcome::Cancelled, FailureClass::SessionFailed, "cancelled");
            }
            refusal.into()
        })
    }

    /// Binds what will be applied; without a boundary there is nothing.
    pub(crate) fn bind(
        &self,
        journal: &mut Journal<'_>,
        posture: Option<&Posture>,
    ) -> Result<(), Halt> {
        let Some(posture) = posture else { return Ok(()) };
        let Invocation { limits, network, .. } = &self.plan.invocation;
        let artifact = |name: &str| self.plan.artifact.get(name).cloned();
        let egress = || match network {
            Network::Allow(rules) => serde_json::json!({ "allow": rules }),
            Network::DangerEverything => serde_json::json!({ "allow": "everything" }),
        };
        let limits = warrant_protocol::json::to_value(limits);
        let limits = limits.map_err(|error| Halt::internal(error.to_string()))?;
        let inputs = PreimageInputs {
            mounts: artifact("mounts").unwrap_or_else(|| serde_json::json!([])),
            egress_policy: artifact("egress_policy").unwrap_or_else(egress),
            resource_limits: artifact("resource_limits").unwrap_or(limits),
            sandbox_spec: self.plan.artifact.clone(),
        };
        let image = artifact("image_digest").and_then(|image| image.as_str().map(str::to_owned));
        let image = image.unwrap_or_else(|| "none".to_owned());
        let preimage = Preimage::of(posture.provider_version.clone(), image, inputs);
        Ok(journal.record(&Event::PreimageBound { preimage })?)
    }
}

impl Drop for Fitted<'_> {
    fn drop(&mut self) {
        self.backend.release(&self.plan);
        self.left.set(self.backend.left_behind(&self.plan));
    }
}

/// Puts the released values where the plan has the names.
pub(crate) fn fill_secrets(plan: &mut Plan, released: &[SecretValue]) {
    for variable in &mut plan.invocation.env {
        let (name, value) = match &mut variable.value {
            EnvValue::Plain(_) => continue,
            EnvValue::Secret { name, value } | EnvValue::SecretFile { name, value, .. } => {
                (name, value)
            }
        };
        if let Some(secret) = released.iter().find(|secret| secret.name == *name) {
            value.clone_from(&secret.value);
        }
    }
}

fn directory(workspace: &Path, cwd: &str) -> PathBuf {
    let below = cwd.split('/').filter(|segment| !segment.is_empty() && *segment != ".");
    below.fold(workspace.to_owned(), |path, segment| path.join(segment))
}

fn environment(contract: &ContractBody, execution: &PreparedExecution) -> Vec<EnvVar> {
    let mut env: BTreeMap<String, EnvValue> = BTreeMap::new();
    env.insert("PATH".to_owned(), EnvValue::Plain(DEFAULT_PATH.to_owned()));
    let as_file = |name: &SecretName| format!("{SECRET_FILE_PLACEHOLDER}{name}");
    for claim in &contract.secrets {
        if execution.env.values().any(|value| *value == as_file(&claim.name)) {
            // Whoever asks for a file does not want it in the environment.
            continue;
        }
        let value = EnvValue::Secret { name: claim.name.clone(), value: String::new() };
        env.insert(claim.name.to_string(), value);
    }
    for (name, value) in &execution.env {
        if let Some(secret) = value.strip_prefix(SECRET_FILE_PLACEHOLDER) {
            if let Some(secret) = claimed(contract, secret) {
                env.insert(name.clone(), EnvValue::secret_file(secret));
            }
            continue;
        }
        let value = match value.strip_prefix(SECRET_PLACEHOLDER) {
            None => EnvValue::Plain(value.clone()),
            Some(secret) => match claimed(contract, secret) {
                Some(name) => EnvValue::Secret { name, value: String::new() },
                // A secret that the contract does not release is left out.
                None => continue,
            },
        };
        env.insert(name.clone(), value);
    }
    env.into_iter().map(|(name, value)| EnvVar { name, value }).collect()
}

fn claimed(contract: &ContractBody, secret: &str) -> Option<SecretName> {
    let mut claims = contract.secrets.iter();
    claims.find(|claim| claim.name.as_str() == secret).map(|claim| claim.name.clone())
}

/// Returns where a contract lets its program write, before its workspace is there.
pub(crate) fn write_target(contract: &ContractBody, visit: Option<&Visit<'_>>) -> WriteTarget {
    let ownership = if visit.is_some() { Ownership::OfThisRun } else { Ownership::Shared };
    let has_roots = contract.files.as_ref().is_some_and(|grants| !grants.write.is_empty());
    match access(contract, ownership) == WorkspaceAccess::Direct || has_roots {
        true => WriteTarget::HostDirectories,
        false => WriteTarget::OwnLayer,
    }
}

fn access(contract: &ContractBody, ownership: Ownership) -> WorkspaceAccess {
    match (contract.mode, ownership) {
        (Some(WorkspaceMode::ReadOnly), _) => WorkspaceAccess::ReadOnly,
        // A copy that belongs to this run alone is the layer.
        (_, Ownership::OfThisRun) => WorkspaceAccess::Direct,
        (Some(WorkspaceMode::Direct), Ownership::Shared) => WorkspaceAccess::Direct,
        (Some(WorkspaceMode::Overlay) | None, Ownership::Shared) => WorkspaceAccess::Overlay,
    }
}

fn files(contract: &ContractBody, place: &Place<'_>) -> Files {
    let paths = |list: &[String]| list.iter().map(PathBuf::from).collect();
    let (mut read_roots, write_roots): (Vec<PathBuf>, Vec<PathBuf>) = match &contract.files {
        Some(grants) => (paths(&grants.read), paths(&grants.write)),
        None => (Vec::new(), Vec::new()),
    };
    read_roots.extend(place.read.map(Path::to_owned));
    Files {
        workspace: place.workspace.to_owned(),
        access: access(contract, place.ownership),
        read_roots,
        write_roots,
        masks: contract.masks.clone().unwrap_or_default(),
        places: Vec::new(),
    }
}

fn network(contract: &ContractBody) -> Network {
    if !contract.network.default_deny {
        return Network::DangerEverything;
    }
    let hosts = contract.network.allow_hosts.iter().map(ToString::to_string);
    let rules = contract.egress.iter().flatten().map(|rule| match rule.port {
        Some(_) => rule.to_string(),
        None => rule.host.to_string(),
    });
    Network::Allow(hosts.chain(rules).collect())
}
