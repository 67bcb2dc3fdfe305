//! Arguments become a request: what the person wishes for, before anyone judged it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use warrant_govern::keep::{self, Mode};
use warrant_govern::{Ask, Desk, WithGit, agent_principal, find_program, plain_request, principal};
use warrant_protocol::execution::{EnvSecret, EnvSpec, ExecutionSpec, SecretForm};
use warrant_protocol::request::{EgressRule, FileGrants, NetworkPolicy};
use warrant_protocol::{Evidence, Isolation, RelPath, RunRequest, SecretName};

use crate::args::Exec;
use crate::ui;

/// What the person wishes for, and where.
pub(crate) struct Wish {
    pub(crate) ask: Ask,
    pub(crate) mode: Mode,
}

impl Wish {
    /// Reads the arguments. Nothing is judged here.
    pub(crate) fn read(
        arguments: &Exec,
        desk: &Desk,
        isolation: Isolation,
    ) -> anyhow::Result<Self> {
        if arguments.image.is_some() && !isolation.is_remote() {
            bail!("--image: {isolation} has no images; leave it out");
        }
        let workspace = workspace(arguments.workspace.as_deref())?;
        let (program, args) = arguments.argv.split_first().context("no program to run")?;
        if program.starts_with('-') {
            bail!("there is no option {program}; the program comes after the options and `--`");
        }
        let (hosts, egress) = hosts(&arguments.allow_hosts)?;
        let principal = match &arguments.agent {
            Some(name) => agent_principal(name),
            None => principal(),
        };
        let secret_files = secret_files(&arguments.secret_files)?;
        let mut secret_names = secret_names(&arguments.secrets)?;
        secret_names.extend(secret_files.iter().map(|file| file.secret_name.clone()));
        let env = env(&arguments.env)?;
        check_secret_variables(&env, (&arguments.secrets, &secret_files))?;
        let execution = ExecutionSpec::Argv {
            command: program.clone(),
            args: args.to_vec(),
            cwd: cwd(&workspace)?,
            timeout_ms: arguments.timeout,
            env: Some(EnvSpec {
                secrets: (!secret_files.is_empty()).then(|| secret_files.clone()),
                ..env
            }),
            log: None,
        };
        let who = (&principal, desk.plane().home().pool());
        let request = RunRequest {
            secret_names,
            network: NetworkPolicy { default_deny: true, allow_hosts: hosts },
            files: file_grants(arguments)?,
            egress,
            image: arguments.image.clone(),
            accept_evidence: accepted_evidence(&arguments.accept_evidence)?,
            ..plain_request(who, &workspace, execution, isolation)
        };
        let ask = Ask {
            request,
            image: arguments.image.clone(),
            program: find_program(program),
            settled_env: BTreeSet::new(),
            principal,
            workspace,
        };
        let mode = mode(arguments)?;
        keep::check(&ask.workspace, mode).with_context(|| {
            let workspace = ask.workspace.display();
            format!(
                "--mode workspace-rollback: {workspace} cannot be written, so nothing could be \
                 kept; without it changes are kept as a diff"
            )
        })?;
        let WithGit { ask, withheld } = desk.with_git(ask)?;
        if let Some(git) = withheld {
            let git = git.display();
            ui::note(&format!("policy does not let git's own directory be read inside: {git}"));
        }
        Ok(Self { ask: desk.with_gaps(ask)?, mode })
    }
}

fn workspace(given: Option<&Path>) -> anyhow::Result<PathBuf> {
    let path = given.unwrap_or(Path::new("."));
    let workspace =
        fs::canonicalize(path).with_context(|| format!("no workspace at {}", path.display()))?;
    if workspace.parent().is_none() {
        bail!("/ is no workspace; change into a project or name one with --workspace");
    }
    if workspace.to_str().is_none() {
        // SECURITY: what is approved names it, and two such names would read the same.
        bail!("the path of the workspace is no text: {}", workspace.display());
    }
    Ok(workspace)
}

/// The current directory, when there is one and it lies below the workspace.
fn cwd(workspace: &Path) -> anyhow::Result<Option<RelPath>> {
    let Ok(here) = std::env::current_dir().and_then(fs::canonicalize) else { return Ok(None) };
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

/// Reads what `--allow-host` names.
pub(crate) fn hosts(
    given: &[String],
) -> anyhow::Result<(Vec<warrant_protocol::Host>, Option<Vec<EgressRule>>)> {
    let rules: anyhow::Result<Vec<EgressRule>> = given
        .iter()
        .map(|text| text.parse().with_context(|| format!("--allow-host {text}")))
        .collect();
    Ok(EgressRule::part(rules?))
}

/// Reads `LEVEL:COMPONENT` pairs.
fn accepted_evidence(given: &[String]) -> anyhow::Result<Option<BTreeMap<String, Evidence>>> {
    let mut accepted = BTreeMap::new();
    for text in given {
        let (level, component) = text.split_once(':').with_context(|| {
            format!("--accept-evidence {text}: write it as LEVEL:COMPONENT, requested:image_digest")
        })?;
        let level = match level {
            "measured" => Evidence::Measured,
            "reported" => Evidence::Reported,
            "requested" => Evidence::Requested,
            "unavailable" => Evidence::Unavailable,
            _ => bail!(
                "--accept-evidence {text}: the level is measured, reported, requested or unavailable"
            ),
        };
        if component.is_empty() {
            bail!("--accept-evidence {text}: the component is empty");
        }
        accepted.insert(component.to_owned(), level);
    }
    Ok((!accepted.is_empty()).then_some(accepted))
}

fn secret_names(given: &[String]) -> anyhow::Result<Vec<SecretName>> {
    given.iter().map(|name| name.parse().with_context(|| format!("--secret {name}"))).collect()
}

fn secret_files(given: &[String]) -> anyhow::Result<Vec<EnvSecret>> {
    let file = |text: &String| {
        let (name, variable) = match text.split_once('=') {
            Some((name, variable)) => (name, variable.to_owned()),
            None => (text.as_str(), format!("{text}_FILE")),
        };
        if variable.is_empty() {
            bail!("--secret-file {text}: the variable is empty");
        }
        let secret_name = name.parse().with_context(|| format!("--secret-file {text}"))?;
        Ok(EnvSecret { env: variable, secret_name, form: Some(SecretForm::File) })
    };
    given.iter().map(file).collect()
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

/// Refuses a variable that a secret has already: only one of the two could be meant.
fn check_secret_variables(
    env: &EnvSpec,
    (secrets, files): (&[String], &[EnvSecret]),
) -> anyhow::Result<()> {
    let vars = env.vars.iter().flatten().map(|(name, _)| name);
    let is_taken =
        |name: &&String| secrets.contains(name) || files.iter().any(|file| file.env == **name);
    match vars.into_iter().find(is_taken) {
        Some(name) => bail!("--env {name}: a secret is given by that name"),
        None => Ok(()),
    }
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
    Ok((!read.is_empty() || !write.is_empty()).then_some(FileGrants { read, write, gaps: None }))
}

fn absolute(path: &Path) -> anyhow::Result<String> {
    let real = fs::canonicalize(path).context("it does not exist")?;
    Ok(real.to_str().context("its path is not UTF-8")?.to_owned())
}
