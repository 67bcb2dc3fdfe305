//! What a sandbox's calls ask of policy: one request for each, with both forms of a command.

use std::cell::{OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use warrant_plane::doors::WorkshopError;
use warrant_policy::facts::ProgramFile;
use warrant_protocol::execution::{EnvSpec, ExecutionSpec, ShellName};
use warrant_protocol::manifest::WorkspaceManifest;
use warrant_protocol::request::{ActorRef, EgressRule, NetworkPolicy};
use warrant_protocol::{Host, Isolation, Limits, PoolName};
use warrant_script::{Dialect, Inner, unwrap};

use crate::ask::{Ask, find_program, local_manifest, told_request};

/// Variables of a client hold no more bytes than this, names and values together.
const MOST_VARIABLE_BYTES: usize = 256 * 1024;
/// Labels hold no more than this.
const MOST_LABEL_BYTES: usize = 64 * 1024;
/// Names are no longer than this.
const MOST_NAME_BYTES: usize = 256;
/// The longest text a contract takes.
const MOST_PROMPT: usize = 200_000;

/// What is the same for every call of one sandbox.
pub(super) struct Place<'a> {
    pub(super) guest: &'a ActorRef,
    pub(super) pool: &'a PoolName,
    pub(super) directory: &'a Path,
    /// Told in every contract: which door, which sandbox.
    pub(super) label: String,
    /// What was looked up for one call is not looked up again for its other forms.
    pub(super) seen: Seen,
}

/// What one call saw of the machine.
#[derive(Default)]
pub(super) struct Seen {
    manifest: OnceCell<WorkspaceManifest>,
    programs: RefCell<BTreeMap<String, Option<ProgramFile>>>,
}

impl Place<'_> {
    fn manifest(&self) -> WorkspaceManifest {
        self.seen.manifest.get_or_init(|| local_manifest(self.directory)).clone()
    }

    fn program(&self, name: &str) -> Option<ProgramFile> {
        let mut programs = self.seen.programs.borrow_mut();
        programs.entry(name.to_owned()).or_insert_with(|| find_program(name)).clone()
    }
}

/// A program with its arguments, to be asked for.
pub(super) struct Wish<'a> {
    pub(super) argv: &'a [String],
    pub(super) cwd: Option<&'a str>,
    pub(super) env: BTreeMap<String, String>,
    pub(super) timeout_ms: Option<u64>,
    pub(super) hosts: &'a [String],
    pub(super) limits: Option<Limits>,
    /// What a reader of the contract should know besides.
    pub(super) note: Option<String>,
}

/// Returns the request of a program.
pub(super) fn ask(place: &Place<'_>, wish: &Wish<'_>) -> Result<Ask, WorkshopError> {
    let invalid = |message: &str| WorkshopError::Invalid(message.to_owned());
    let (program, args) = wish.argv.split_first().ok_or_else(|| invalid("no program to run"))?;
    if program.is_empty() || wish.argv.iter().any(|word| word.contains('\0')) {
        return Err(invalid("the command is empty or has a NUL byte"));
    }
    let execution = ExecutionSpec::Argv {
        command: program.clone(),
        args: args.to_vec(),
        cwd: below_root(wish.cwd)?,
        timeout_ms: wish.timeout_ms,
        env: Some(environment(&wish.env)?),
        log: None,
    };
    let meant = match meant(wish.argv) {
        Inner::Argv(argv) => argv.join(" "),
        Inner::Script { script, .. } => script,
    };
    request(place, wish, (execution, &meant))
}

/// Returns the request of what a wrapped command was meant to run, when that is not what came.
pub(super) fn unwrapped(place: &Place<'_>, wish: &Wish<'_>) -> Result<Option<Ask>, WorkshopError> {
    let Inner::Script { dialect, script, .. } = meant(wish.argv) else { return Ok(None) };
    if script.trim().is_empty() {
        return Ok(None);
    }
    let shell = match dialect {
        Dialect::Sh => ShellName::Sh,
        Dialect::Bash => ShellName::Bash,
    };
    let execution = ExecutionSpec::Shell {
        script: script.clone(),
        shell: Some(shell),
        cwd: below_root(wish.cwd)?,
        timeout_ms: wish.timeout_ms,
        env: Some(environment(&wish.env)?),
        log: None,
    };
    request(place, wish, (execution, &script)).map(Some)
}

/// Returns what a command was meant to run; a script that is nothing but another shell's is
/// opened as well.
fn meant(argv: &[String]) -> Inner {
    const MOST_SHELLS: usize = 4;
    let mut inner = unwrap(argv).inner;
    for _ in 0..MOST_SHELLS {
        let Inner::Script { script, .. } = &inner else { break };
        let Some((shell, text)) = nested_shell(script) else { break };
        inner = unwrap(&[shell.to_owned(), "-c".to_owned(), text.to_owned()]).inner;
    }
    inner
}

/// Returns the shell and the script of `sh -c "…"`, when the quotes hold nothing that the outer
/// shell would change.
fn nested_shell(script: &str) -> Option<(&'static str, &str)> {
    let (shell, rest) = ["sh", "bash"].into_iter().find_map(|shell| {
        let rest = script.trim().strip_prefix(shell)?.strip_prefix(" -c ")?;
        Some((shell, rest.trim()))
    })?;
    let text = rest.strip_prefix('"')?.strip_suffix('"')?;
    (!text.contains(['"', '$', '`', '\\'])).then_some((shell, text))
}

fn request(
    place: &Place<'_>,
    wish: &Wish<'_>,
    (execution, meant): (ExecutionSpec, &str),
) -> Result<Ask, WorkshopError> {
    let program = wish.argv.first().map_or("", String::as_str);
    let who = (place.guest, place.pool);
    let prompt = match &wish.note {
        Some(note) => format!("{meant} ({}; {note})", place.label),
        None => format!("{meant} ({})", place.label),
    };
    if prompt.len() > MOST_PROMPT {
        return Err(WorkshopError::Invalid("the command is too long".to_owned()));
    }
    let told = (prompt, place.manifest());
    let mut request = told_request(who, told, execution, Isolation::Namespace);
    let (hosts, egress) = destinations(wish.hosts)?;
    request.network = NetworkPolicy { default_deny: true, allow_hosts: hosts };
    request.egress = egress;
    request.limits.clone_from(&wish.limits);
    Ok(Ask {
        request,
        principal: place.guest.clone(),
        workspace: place.directory.to_owned(),
        program: place.program(program),
        image: None,
        settled_env: BTreeSet::new(),
    })
}

/// Reads hosts, each with a port or without.
pub(super) fn destinations(
    given: &[String],
) -> Result<(Vec<Host>, Option<Vec<EgressRule>>), WorkshopError> {
    let bad = |text: &str, error| {
        let what = format!("`{text}` is no host name or address that can be allowed: {error}");
        WorkshopError::Invalid(what)
    };
    let rules: Result<Vec<EgressRule>, _> =
        given.iter().map(|text| text.parse().map_err(|error| bad(text, error))).collect();
    Ok(EgressRule::part(rules?))
}

/// Fails when a variable could not be one.
pub(super) fn check_values(vars: &BTreeMap<String, String>) -> Result<(), WorkshopError> {
    for (name, value) in vars {
        let is_name = !name.is_empty() && !name.contains(['=', '\0']);
        if !is_name || value.contains('\0') {
            return Err(WorkshopError::Invalid(format!("`{name}` cannot be a variable")));
        }
    }
    Ok(())
}

/// Fails when a client's variable could not be one, or is one whose value shells or the loader run.
///
/// SECURITY: a command is judged as it came and values are not, so `BASH_FUNC_ls%%` would turn an
/// allowed `ls` into anything.
pub(super) fn check_client(vars: &BTreeMap<String, String>) -> Result<(), WorkshopError> {
    check_values(vars)?;
    check_bytes("variables", vars, MOST_VARIABLE_BYTES)?;
    match vars.keys().find(|name| is_run(name)) {
        None => Ok(()),
        Some(name) => Err(WorkshopError::Invalid(format!(
            "variable `{name}` would run what nobody judged: say it in the command"
        ))),
    }
}

/// Fails when a client's own name or labels are too long.
///
/// SECURITY: they are kept as long as the sandbox and told with every list of it.
pub(super) fn check_labels(
    name: Option<&str>,
    labels: &BTreeMap<String, String>,
) -> Result<(), WorkshopError> {
    if name.is_some_and(|name| !(1..=MOST_NAME_BYTES).contains(&name.len())) {
        let message = format!("a name has 1 to {MOST_NAME_BYTES} bytes");
        return Err(WorkshopError::Invalid(message));
    }
    check_bytes("labels", labels, MOST_LABEL_BYTES)
}

fn check_bytes(
    what: &str,
    texts: &BTreeMap<String, String>,
    most: usize,
) -> Result<(), WorkshopError> {
    match texts.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>() > most {
        false => Ok(()),
        true => Err(WorkshopError::Invalid(format!("{what} hold at most {most} bytes"))),
    }
}

/// Returns whether programs run what a variable of this name holds, or names.
pub(super) fn is_run(name: &str) -> bool {
    const NAMED: [&str; 4] = ["BASH_ENV", "PS4", "LD_PRELOAD", "LD_AUDIT"];
    NAMED.contains(&name) || name.starts_with("BASH_FUNC_")
}

fn environment(vars: &BTreeMap<String, String>) -> Result<EnvSpec, WorkshopError> {
    check_values(vars)?;
    Ok(EnvSpec { inherit: None, secrets: None, vars: Some(vars.clone()), egress_proxy: None })
}

/// A sandbox's directory stands for its root, so a working directory is told from there.
fn below_root(cwd: Option<&str>) -> Result<Option<warrant_protocol::RelPath>, WorkshopError> {
    let Some(below) = cwd.map(|cwd| cwd.trim_matches('/')).filter(|cwd| !cwd.is_empty()) else {
        return Ok(None);
    };
    let parsed = below.parse();
    parsed.map(Some).map_err(|error| {
        let what = format!("`/{below}` cannot be a working directory: {error}");
        WorkshopError::Invalid(what)
    })
}
