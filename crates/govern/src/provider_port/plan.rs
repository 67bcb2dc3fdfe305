//! A policy owner's request becomes a request of ours. Nothing is judged here.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use warrant_protocol::execution::{EnvSpec, ExecutionSpec};
use warrant_protocol::request::{ActorRef, EgressRule, FileGrants, WorkspaceMode};
use warrant_protocol::{Digest, Host, Isolation, Limits, RelPath};
use warrant_runner::preview::runtime_roots;
use warrant_sandbox::lowering::{Access, Gap, GapReason};

use super::request::{NetworkRequest, OwnerGrant, PortRequest, ResourceRequest, SandboxMode};
use super::results::{PortDenial, PortWarning};
use crate::desk::Desk;
use crate::keep::{self, Mode};
use crate::{Ask, find_program, plain_request};

/// A root that a command is given, as the lowering report tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DeclaredRoot {
    path: PathBuf,
    is_writable: bool,
    source: &'static str,
}

impl DeclaredRoot {
    pub(super) fn to_value(&self) -> Value {
        let access = if self.is_writable { "write" } else { "read" };
        let path = self.path.display().to_string();
        json!({"path": path, "access": access, "source": self.source})
    }
}

/// What is asked of us for one request.
pub(super) struct PortPlan {
    pub(super) ask: Ask,
    pub(super) mode: Mode,
    pub(super) declared: Vec<DeclaredRoot>,
    pub(super) warnings: Vec<PortWarning>,
}

/// Why there is no plan.
pub(super) enum NoPlan {
    /// It is not done here.
    Denied(PortDenial),
    /// It starts outside everything that it was given.
    Gap(Gap),
}

impl From<PortDenial> for NoPlan {
    fn from(denial: PortDenial) -> Self {
        Self::Denied(denial)
    }
}

/// Who asks, and where it will run.
pub(super) struct Caller<'a> {
    pub(super) desk: &'a Desk,
    pub(super) principal: &'a ActorRef,
    pub(super) isolation: Isolation,
}

impl PortPlan {
    /// Makes the plan of a request.
    pub(super) fn make(request: &PortRequest, caller: &Caller<'_>) -> Result<Self, NoPlan> {
        let mode = mode_of(request)?;
        check_family(request, caller.isolation)?;
        let workspace = workspace(&request.workspace)?;
        let mut warnings = warnings_of(request);
        let roots = Roots::find(request, &workspace, &mut warnings)?;
        let access = workspace_mode(&roots, mode, &mut warnings)?;
        if access == WorkspaceMode::Overlay {
            keep::check(&workspace, mode).map_err(|error| {
                PortDenial::denied(format!(
                    "filesystem.workspaceRoot {} cannot be written ({error}), so nothing could be \
                     kept; use sandboxMode isolated",
                    workspace.display()
                ))
            })?;
        }
        let ask = ask(request, caller, (&workspace, &roots, access))?;
        let declared = roots.declared(&workspace, access);
        Ok(Self { ask, mode, declared, warnings })
    }
}

fn mode_of(request: &PortRequest) -> Result<Mode, PortDenial> {
    match request.mode {
        SandboxMode::Unprotected => Err(PortDenial::denied(
            "policy.sandboxMode none: nothing runs here without a sandbox; use isolated or \
             workspace-rollback",
        )),
        SandboxMode::WorkspaceRollback => Ok(Mode::Rollback { keeps_failure: false }),
        SandboxMode::Isolated => Ok(Mode::Isolated),
    }
}

fn check_family(request: &PortRequest, isolation: Isolation) -> Result<(), PortDenial> {
    match request.family.as_deref() {
        None | Some("" | "external" | "workspace-rollback") => {}
        Some("linux-bubblewrap") if isolation == Isolation::Namespace => {}
        Some(other) => {
            return Err(PortDenial::unavailable(format!(
                "metadata.providerFamily {other} is not available here; this provider runs commands \
                 in the {isolation} tier"
            )));
        }
    }
    let starts_nothing = matches!(isolation, Isolation::Hermetic | Isolation::Mock);
    if !request.may_spawn && !starts_nothing {
        return Err(PortDenial::denied(format!(
            "policy.process.spawn false: the {isolation} tier cannot keep a program from starting \
             others; start the provider with --provider hermetic, where no program is started"
        )));
    }
    Ok(())
}

fn workspace(path: &Path) -> Result<PathBuf, PortDenial> {
    let name = "filesystem.workspaceRoot";
    let real = fs::canonicalize(path).ok().filter(|real| real.is_dir());
    let Some(real) = real else {
        let path = path.display();
        return Err(PortDenial::denied(format!("{name} {path} is no directory on this machine")));
    };
    if real.parent().is_none() {
        return Err(PortDenial::denied(format!("{name}: / is no workspace; name a project")));
    }
    // SECURITY: an agent could replace the program that governs it.
    if std::env::current_exe().is_ok_and(|program| program.starts_with(&real)) {
        return Err(PortDenial::denied(format!(
            "{name} {} contains the program warrant itself; install warrant elsewhere",
            real.display()
        )));
    }
    Ok(real)
}

fn warnings_of(request: &PortRequest) -> Vec<PortWarning> {
    let mut warnings = Vec::new();
    if let Some(mode) = request.fallback.as_deref().filter(|mode| *mode != "none") {
        let message =
            format!("fallback.mode {mode} has no effect: there is no other way to run here");
        warnings.push(PortWarning { code: "NO_FALLBACK", message });
    }
    if request.network == NetworkRequest::HostsOfPolicy {
        let message = "only the hosts that the policy of this machine lists can be reached";
        warnings
            .push(PortWarning { code: "NETWORK_LIMITED_BY_POLICY", message: message.to_owned() });
    }
    if request.claims_approval {
        let message = "metadata.approvalAccepted is the caller's own claim and does not count; what \
                       needs approval is approved with `warrant approve`";
        warnings.push(PortWarning { code: "APPROVAL_NOT_COUNTED", message: message.to_owned() });
    }
    warnings
}

/// Everything that a request names as readable or writable.
struct Roots {
    all: Vec<DeclaredRoot>,
    /// Whether the whole workspace is among what may be written.
    covers_workspace: bool,
    /// Whether something below the workspace is.
    is_below_workspace: bool,
}

impl Roots {
    fn find(
        request: &PortRequest,
        workspace: &Path,
        warnings: &mut Vec<PortWarning>,
    ) -> Result<Self, PortDenial> {
        let mut roots =
            Self { all: Vec::new(), covers_workspace: false, is_below_workspace: false };
        let declared = request.read.iter().map(|path| (path, false));
        for (path, is_writable) in declared.chain(request.write.iter().map(|path| (path, true))) {
            match fs::canonicalize(path) {
                Ok(path) => {
                    roots.add(DeclaredRoot { path, is_writable, source: "declared" }, workspace);
                }
                Err(_) => {
                    let message = format!("{} does not exist here and is left out", path.display());
                    warnings.push(PortWarning { code: "ROOT_MISSING", message });
                }
            }
        }
        for (index, OwnerGrant { path, is_writable, .. }) in request.grants.iter().enumerate() {
            let Ok(real) = fs::canonicalize(path) else {
                return Err(PortDenial::denied(format!(
                    "policyGrants[{index}].path {} does not exist here; grant a directory that does",
                    path.display()
                )));
            };
            let is_writable = *is_writable;
            let root = DeclaredRoot { path: real, is_writable, source: "policy-grant" };
            roots.add(root, workspace);
        }
        Ok(roots)
    }

    fn add(&mut self, root: DeclaredRoot, workspace: &Path) {
        self.covers_workspace |= root.is_writable && workspace.starts_with(&root.path);
        self.is_below_workspace |= root.is_writable && root.path.starts_with(workspace);
        self.all.push(root);
    }

    /// Returns whether a path lies below something that was given.
    fn contains(&self, path: &Path) -> bool {
        self.all.iter().any(|root| path.starts_with(&root.path))
    }

    /// Returns what has to be asked for beside the workspace and what every program has.
    fn grants(&self, workspace: &Path) -> Option<FileGrants> {
        let runtime = runtime_roots();
        let is_brought = |root: &DeclaredRoot| {
            let readable = runtime.iter().filter(|brought| brought.access == Access::Read);
            !root.is_writable
                && readable.into_iter().any(|brought| root.path.starts_with(&brought.path))
        };
        let named = |is_writable: bool| -> BTreeSet<String> {
            let outside = self.all.iter().filter(|root| root.is_writable == is_writable);
            let outside = outside.filter(|root| !root.path.starts_with(workspace));
            let outside = outside.filter(|root| !is_brought(root));
            outside.filter_map(|root| root.path.to_str().map(str::to_owned)).collect()
        };
        let (read, write): (Vec<_>, Vec<_>) =
            (named(false).into_iter().collect(), named(true).into_iter().collect());
        (!read.is_empty() || !write.is_empty()).then_some(FileGrants { read, write, gaps: None })
    }

    /// Returns the roots as the lowering report tells them, the workspace first.
    fn declared(self, workspace: &Path, access: WorkspaceMode) -> Vec<DeclaredRoot> {
        let is_writable = access != WorkspaceMode::ReadOnly;
        let first = DeclaredRoot { path: workspace.to_owned(), is_writable, source: "declared" };
        let rest = self.all.into_iter().filter(|root| root.path != workspace);
        std::iter::once(first).chain(rest).collect()
    }
}

/// Decides how the workspace may be used by what of it may be written.
fn workspace_mode(
    roots: &Roots,
    mode: Mode,
    warnings: &mut Vec<PortWarning>,
) -> Result<WorkspaceMode, PortDenial> {
    match (roots.covers_workspace, roots.is_below_workspace, mode) {
        (true, ..) => Ok(WorkspaceMode::Overlay),
        (false, false, _) => Ok(WorkspaceMode::ReadOnly),
        (false, true, Mode::Isolated) => {
            let message = "everything in the workspace can be written, but only in a layer of this \
                           run: nothing of it reaches the workspace";
            let message = message.to_owned();
            warnings.push(PortWarning { code: "WORKSPACE_WRITES_IN_LAYER", message });
            Ok(WorkspaceMode::Overlay)
        }
        (false, true, Mode::Rollback { .. }) => Err(PortDenial::denied(
            "filesystem.write names a part of the workspace, and workspace-rollback keeps or puts \
             back all of it: name filesystem.workspaceRoot, or use sandboxMode isolated",
        )),
    }
}

/// Where a command starts.
enum StartDirectory {
    /// Below the workspace; absent is the workspace itself.
    Below(Option<RelPath>),
    /// In another directory that it was given.
    Elsewhere(String),
}

fn start(request: &PortRequest, workspace: &Path, roots: &Roots) -> Result<StartDirectory, NoPlan> {
    let cwd = fs::canonicalize(&request.cwd).unwrap_or_else(|_| request.cwd.clone());
    let no_text = || PortDenial::denied("command.cwd is a path that no request can name");
    if let Ok(below) = cwd.strip_prefix(workspace) {
        if below.as_os_str().is_empty() {
            return Ok(StartDirectory::Below(None));
        }
        let below = below.to_str().and_then(|below| below.parse().ok());
        return Ok(StartDirectory::Below(Some(below.ok_or_else(no_text)?)));
    }
    let path = cwd.to_str().ok_or_else(no_text)?.to_owned();
    if roots.contains(&cwd) {
        return Ok(StartDirectory::Elsewhere(path));
    }
    let message = format!("the command would start in {path}, which it was not given");
    let reason = GapReason::CwdOutsideDeclaredRoots;
    Err(NoPlan::Gap(Gap { reason, path, required: Some(Access::Read), message }))
}

fn ask(
    request: &PortRequest,
    caller: &Caller<'_>,
    (workspace, roots, access): (&Path, &Roots, WorkspaceMode),
) -> Result<Ask, NoPlan> {
    let (argv, cwd) = match start(request, workspace, roots)? {
        StartDirectory::Below(cwd) => (request.argv.clone(), cwd),
        // A contract names directories below the workspace; `env -C` starts in any other.
        StartDirectory::Elsewhere(path) => {
            let change = ["env".to_owned(), "-C".to_owned(), path];
            (change.into_iter().chain(request.argv.iter().cloned()).collect(), None)
        }
    };
    let Some((program, args)) = argv.split_first() else {
        return Err(PortDenial::denied("command.argv is empty").into());
    };
    let vars = Some(request.env.clone());
    let execution = ExecutionSpec::Argv {
        command: program.clone(),
        args: args.to_vec(),
        cwd,
        timeout_ms: request.resources.timeout_ms,
        env: Some(EnvSpec { inherit: None, secrets: None, vars, egress_proxy: None }),
        log: None,
    };
    let who = (caller.principal, caller.desk.plane().home().pool());
    let mut ours = plain_request(who, workspace, execution, caller.isolation);
    if !request.stdin.is_empty() {
        // SECURITY: what the program reads is judged and approved with it.
        ours.prompt = format!("reading {}: {}", Digest::of(&request.stdin), ours.prompt);
    }
    (ours.network.allow_hosts, ours.egress) = hosts(&request.network, caller.desk);
    ours.mode = Some(access);
    ours.files = roots.grants(workspace);
    ours.masks = masks(&request.masks, caller.desk);
    ours.limits = limits(&request.resources);
    Ok(Ask {
        request: ours,
        principal: caller.principal.clone(),
        workspace: workspace.to_owned(),
        program: find_program(program),
        image: None,
        settled_env: BTreeSet::new(),
    })
}

/// Returns the masks to ask for. Those of the policy are always among them; a request that names
/// others without them would be denied.
fn masks(named: &[String], desk: &Desk) -> Option<Vec<String>> {
    let files = desk.policy().and_then(|policy| policy.controls().files.as_ref());
    let always = files.into_iter().flat_map(|files| &files.masks);
    let all: BTreeSet<String> = named.iter().chain(always).cloned().collect();
    (!named.is_empty()).then(|| all.into_iter().collect())
}

fn hosts(network: &NetworkRequest, desk: &Desk) -> (Vec<Host>, Option<Vec<EgressRule>>) {
    match network {
        NetworkRequest::Nothing => (Vec::new(), None),
        NetworkRequest::Hosts(rules) => EgressRule::part(rules.clone()),
        NetworkRequest::HostsOfPolicy => {
            let listed =
                desk.policy().map(|policy| policy.document().body().network.allow_hosts.clone());
            let listed = listed.unwrap_or_default();
            (listed.iter().filter_map(|host| host.to_string().parse().ok()).collect(), None)
        }
    }
}

fn limits(resources: &ResourceRequest) -> Option<Limits> {
    let limits = Limits {
        cpu_ms: resources.cpu_ms,
        memory_bytes: resources.memory_bytes,
        processes: resources.max_processes,
        disk_bytes: resources.disk_bytes,
        ..Limits::danger_unlimited()
    };
    (limits != Limits::danger_unlimited()).then_some(limits)
}
