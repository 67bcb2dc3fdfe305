//! What is asked for: the request, where it runs, and what is known around it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use warrant_policy::facts::{History, ProgramFile, Surroundings};
use warrant_protocol::execution::ExecutionSpec;
use warrant_protocol::manifest::{ManifestVersion, WorkspaceManifest};
use warrant_protocol::request::{ActorRef, BudgetSpec, Disclosure, NetworkPolicy, WorkspaceMode};
use warrant_protocol::{Digest, Isolation, PoolName, RunRequest};
use warrant_workspace::head_commit;

/// One wish, before anyone judged it.
#[derive(Debug, Clone)]
pub struct Ask {
    /// The request.
    pub request: RunRequest,
    /// Who asks, as authenticated; written over whatever the request says.
    pub principal: ActorRef,
    /// The workspace on this machine.
    pub workspace: PathBuf,
    /// The program's file, when it was found.
    pub program: Option<ProgramFile>,
    /// The image, for tiers that have one.
    pub image: Option<String>,
    /// Variables of the request that come from commands which were judged when they set them.
    pub settled_env: BTreeSet<String>,
}

impl Ask {
    /// Returns what is known around the request.
    #[must_use]
    pub fn around(&self, now_ms: u64) -> Surroundings {
        Surroundings {
            requester: self.principal.label(),
            program: self.program.clone(),
            image: self.image.clone(),
            settled_env: self.settled_env.clone(),
            ..around_plain(&self.request, now_ms)
        }
    }
}

/// Returns what is known around a request of which nothing else is known.
#[must_use]
pub fn around_plain(request: &RunRequest, now_ms: u64) -> Surroundings {
    Surroundings {
        requester: request.requested_by.label(),
        program: None,
        settled_env: BTreeSet::new(),
        isolation: request.isolation.unwrap_or(Isolation::Namespace),
        mode: request.mode.unwrap_or(WorkspaceMode::Overlay),
        image: None,
        accepted_evidence: BTreeMap::new(),
        data_classes: BTreeSet::new(),
        history: History::default(),
        now_ms,
        approvals: Vec::new(),
    }
}

/// Returns a request that runs `execution` in a workspace of this machine: no network, no
/// secrets, no further files, writes into a layer of the run. Callers widen it field by field.
#[must_use]
pub fn plain_request(
    (principal, pool): (&ActorRef, &PoolName),
    workspace: &Path,
    execution: ExecutionSpec,
    isolation: Isolation,
) -> RunRequest {
    // The workspace's path is part of what is judged and approved.
    let prompt = format!("{} (in {})", words(&execution), workspace.display());
    told_request((principal, pool), (prompt, local_manifest(workspace)), execution, isolation)
}

/// Returns a request like [`plain_request`], told in other words, of a workspace that was looked
/// at before.
pub(crate) fn told_request(
    (principal, pool): (&ActorRef, &PoolName),
    (prompt, workspace): (String, WorkspaceManifest),
    execution: ExecutionSpec,
    isolation: Isolation,
) -> RunRequest {
    RunRequest {
        requested_by: principal.clone(),
        agent_kind: "command".to_owned(),
        agent_version: None,
        prompt,
        pool: pool.clone(),
        secret_names: Vec::new(),
        workspace,
        network: NetworkPolicy { default_deny: true, allow_hosts: Vec::new() },
        budget: BudgetSpec { max_spend_usd: None, max_duration_min: None },
        // On one machine nothing is told to anyone else.
        disclosure: Disclosure::None,
        execution: Some(execution),
        isolation: Some(isolation),
        continuation: None,
        limits: None,
        required_posture: None,
        mode: Some(WorkspaceMode::Overlay),
        files: None,
        egress: None,
        masks: None,
        image: None,
        accept_evidence: None,
        data_classes: None,
    }
}

fn words(execution: &ExecutionSpec) -> String {
    match execution {
        ExecutionSpec::Argv { command, args, .. } => {
            let all: Vec<&str> = std::iter::once(command).chain(args).map(String::as_str).collect();
            all.join(" ")
        }
        ExecutionSpec::Shell { script, .. } => script.clone(),
        ExecutionSpec::Agent { prompt, .. } => prompt.clone(),
    }
}

/// On one machine nothing travels: the manifest names the commit and nothing else.
pub(crate) fn local_manifest(workspace: &Path) -> WorkspaceManifest {
    WorkspaceManifest {
        version: ManifestVersion::V1,
        base_ref: head_commit(workspace).unwrap_or_else(|| "none".to_owned()),
        bundle_hash: Digest::of(b""),
        dirty_diff_hash: None,
        untracked_files: Vec::new(),
        denied_patterns: Vec::new(),
        denied_paths: Vec::new(),
    }
}

/// Looks a program up as the sandbox will, for rules that speak of real paths.
#[must_use]
pub fn find_program(program: &str) -> Option<ProgramFile> {
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
