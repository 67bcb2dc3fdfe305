//! Facts: everything a request can set, normalised once, and what is known around it.
//!
//! Built by [`Facts::of`] from a request that was already read strictly. No files are looked at
//! here: the caller brings the program's real path and digest, the history and the time.
//! Facts are stored beside a decision so that another policy can be asked about them later.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use warrant_protocol::execution::ShellName;
use warrant_protocol::request::{Disclosure, EgressRule, PathGap, WorkspaceMode};
use warrant_protocol::{
    Digest, Evidence, ExecutionSpec, Host, Isolation, Limits, PoolName, RunRequest, SecretName,
};
use warrant_script::{Dialect, Name};

/// Everything a decision depends on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Facts {
    /// Who asks, as authenticated: `human:alice`.
    pub requester: String,
    /// Which agent.
    pub agent_kind: String,
    /// Where to run.
    pub pool: PoolName,
    /// What is started, by which kind of execution.
    pub execution: ExecutionFacts,
    /// The command.
    pub cmd: CommandFacts,
    /// The directory below the workspace.
    pub cwd: String,
    /// The environment.
    pub env: EnvironmentFacts,
    /// The network.
    pub network: NetworkFacts,
    /// The files.
    pub files: FileFacts,
    /// The secrets wanted; one may be named twice.
    pub secrets: Vec<SecretName>,
    /// The tier that will be used.
    pub isolation: Isolation,
    /// The image, when the request chooses one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// The limits asked for.
    pub limits: Limits,
    /// The time asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// Output bytes asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_max_bytes: Option<u64>,
    /// Money asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_spend_usd: Option<f64>,
    /// Minutes asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_duration_min: Option<f64>,
    /// What may be told.
    pub disclosure: Disclosure,
    /// Classes of the data that travels.
    pub data_classes: BTreeSet<String>,
    /// Components the request itself demands.
    pub required_posture: BTreeSet<String>,
    /// Evidence the request would be content with, by component.
    pub accepted_evidence: BTreeMap<String, Evidence>,
    /// What happened before.
    pub history: History,
    /// The time, in milliseconds since 1970.
    pub now_ms: u64,
    /// Approvals that were verified for exactly this request and are still good.
    pub approvals: Vec<Approval>,
}

/// What is started, by which kind of execution.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum ExecutionFacts {
    /// A script.
    Shell,
    /// A program.
    Argv,
    /// An agent.
    Agent {
        /// Its kind.
        agent: String,
    },
}

/// The command, in the forms rules can speak about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CommandFacts {
    /// The real path, or the name as written when nobody looked it up.
    pub program: String,
    /// Whether the path is the real one.
    pub resolved: bool,
    /// The digest of the program's file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub program_digest: Option<Digest>,
    /// The name as written.
    pub argv0: String,
    /// The first argument that is not an option.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sub: Option<String>,
    /// The first three arguments.
    pub first: Vec<String>,
    /// The arguments that start with a dash.
    pub flags: BTreeSet<String>,
    /// All arguments.
    pub args: BTreeSet<String>,
    /// The words joined by spaces, or the script.
    pub line: String,
    /// How many arguments there are.
    pub nargs: u32,
    /// Whether a shell interprets any of it.
    pub shell: bool,
    /// Every program that would be started, as written and by its last segment.
    pub programs: BTreeSet<String>,
    /// Whether something is started that cannot be named.
    pub dynamic: bool,
    /// Whether the script was understood completely, and every script inside it.
    pub parsed: bool,
    /// Hosts that appear in the text.
    pub mentions: BTreeSet<String>,
}

/// The environment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EnvironmentFacts {
    /// Names the request sets.
    pub names: BTreeSet<String>,
    /// Names taken over from the runner.
    pub inherit: BTreeSet<String>,
    /// Secrets that variables carry.
    pub secrets: BTreeSet<SecretName>,
    /// Whether the egress proxy is announced.
    pub egress_proxy: bool,
}

/// The network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NetworkFacts {
    /// Whether everything not listed is refused.
    pub default_deny: bool,
    /// Hosts wanted.
    pub hosts: Vec<Host>,
    /// Destinations wanted, with ports.
    pub egress: Vec<EgressRule>,
}

/// The files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FileFacts {
    /// Further roots to read: real paths, so that no link leads around a rule.
    pub read: Vec<String>,
    /// Further roots to write: real paths.
    pub write: Vec<String>,
    /// Paths the command names and was not given: real paths.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gaps: Vec<PathGap>,
    /// How the workspace is used.
    pub mode: WorkspaceMode,
    /// Masks, when the request names them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub masks: Option<BTreeSet<String>>,
}

/// What happened before.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct History {
    /// Commands this run already executed; nobody supplies it, and no rule may read it.
    pub run_execs: u32,
    /// Denials of this requester in the last ten minutes.
    pub denies_10m: u32,
    /// Requests of this requester in the last ten minutes, whatever became of them.
    #[serde(default)]
    pub runs_10m: u32,
    /// Money this run already cost; nobody supplies it, and no rule may read it.
    pub spent_cents: u64,
}

/// One approval that was verified.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Approval {
    /// Its level.
    pub level: u8,
    /// Who gave it, as authenticated.
    pub by: String,
    /// The groups that person is in.
    pub groups: BTreeSet<String>,
}

/// What the caller knows around a request.
#[derive(Debug, Clone, PartialEq)]
pub struct Surroundings {
    /// Who asks, as authenticated; never taken from the request.
    pub requester: String,
    /// The program's real path and digest, when the caller could look.
    pub program: Option<ProgramFile>,
    /// Variables of the request that it did not set itself: they come from commands that were
    /// judged when they set them.
    pub settled_env: BTreeSet<String>,
    /// The tier that will be used when the request names none.
    pub isolation: Isolation,
    /// How the workspace is used when the request does not say.
    pub mode: WorkspaceMode,
    /// The image, when the request chooses one.
    pub image: Option<String>,
    /// Evidence the request would be content with, by component.
    pub accepted_evidence: BTreeMap<String, Evidence>,
    /// Classes of the data that travels.
    pub data_classes: BTreeSet<String>,
    /// What happened before.
    pub history: History,
    /// The time, in milliseconds since 1970.
    pub now_ms: u64,
    /// Approvals that were verified for exactly this request and are still good.
    pub approvals: Vec<Approval>,
}

/// A program's file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProgramFile {
    /// Its real path.
    pub path: String,
    /// Its digest.
    pub digest: Option<Digest>,
}

impl Facts {
    /// Returns the facts of a request in its surroundings.
    #[must_use]
    pub fn of(request: &RunRequest, around: Surroundings) -> Self {
        let execution = request.execution_or_default();
        let env = execution.env();
        let inherit = env.and_then(|env| env.inherit.clone()).unwrap_or_default();
        let vars = env.and_then(|env| env.vars.as_ref());
        let env_secrets = env.and_then(|env| env.secrets.as_deref()).unwrap_or_default();
        let names = vars.into_iter().flatten().map(|(name, _)| name.clone());
        let files = request.files.as_ref();
        let set = names.clone().chain(env_secrets.iter().map(|secret| secret.env.clone()));
        let set = set.filter(|name| !around.settled_env.contains(name)).collect();
        let cmd = CommandFacts::of(&execution, around.program.as_ref());
        Self {
            requester: around.requester,
            agent_kind: request.agent_kind.clone(),
            pool: request.pool.clone(),
            cmd: cmd.among(&set),
            cwd: execution.cwd().map_or_else(|| ".".to_owned(), ToString::to_string),
            env: EnvironmentFacts {
                names: names.chain(env_secrets.iter().map(|secret| secret.env.clone())).collect(),
                inherit: inherit.into_iter().collect(),
                secrets: env_secrets.iter().map(|secret| secret.secret_name.clone()).collect(),
                egress_proxy: env.and_then(|env| env.egress_proxy).unwrap_or(true),
            },
            network: NetworkFacts {
                default_deny: request.network.default_deny,
                hosts: request.network.allow_hosts.clone(),
                egress: request.egress.clone().unwrap_or_default(),
            },
            files: FileFacts {
                read: files.map(|files| files.read.clone()).unwrap_or_default(),
                write: files.map(|files| files.write.clone()).unwrap_or_default(),
                gaps: files.and_then(|files| files.gaps.clone()).unwrap_or_default(),
                mode: request.mode.unwrap_or(around.mode),
                masks: request.masks.as_ref().map(|masks| masks.iter().cloned().collect()),
            },
            secrets: request.secret_names.clone(),
            isolation: request.isolation.unwrap_or(around.isolation),
            image: request.image.clone().or(around.image),
            limits: request.limits.clone().unwrap_or_else(Limits::danger_unlimited),
            timeout_ms: execution.timeout_ms(),
            log_max_bytes: execution.log().and_then(|log| log.max_bytes),
            max_spend_usd: request.budget.max_spend_usd,
            max_duration_min: request.budget.max_duration_min,
            disclosure: request.disclosure,
            data_classes: around.data_classes,
            required_posture: request.required_posture.iter().flatten().cloned().collect(),
            accepted_evidence: request.accept_evidence.clone().unwrap_or(around.accepted_evidence),
            history: around.history,
            now_ms: around.now_ms,
            approvals: around.approvals,
            execution: ExecutionFacts::of(&execution),
        }
    }
}

impl ExecutionFacts {
    fn of(execution: &ExecutionSpec) -> Self {
        match execution {
            ExecutionSpec::Shell { .. } => Self::Shell,
            ExecutionSpec::Argv { .. } => Self::Argv,
            ExecutionSpec::Agent { agent, .. } => Self::Agent { agent: agent.kind.clone() },
        }
    }
}

impl CommandFacts {
    /// Returns the facts of what an execution starts.
    #[must_use]
    pub fn of(execution: &ExecutionSpec, file: Option<&ProgramFile>) -> Self {
        match execution {
            ExecutionSpec::Shell { script, shell, .. } => {
                Self::of_script(script, shell.unwrap_or(ShellName::Sh), file)
            }
            ExecutionSpec::Argv { command, args, .. } => Self::of_argv(command, args, file),
            // The reference starts this kind as `sh -c <prompt>`.
            ExecutionSpec::Agent { agent, prompt, .. } if agent.kind == "command" => {
                Self::of_script(prompt, ShellName::Sh, file)
            }
            ExecutionSpec::Agent { agent, .. } => Self::of_argv(&agent.kind, &[], file),
        }
    }

    /// Returns the facts of a script.
    #[must_use]
    pub fn of_script(script: &str, shell: ShellName, file: Option<&ProgramFile>) -> Self {
        let dialect = match shell {
            ShellName::Sh => Dialect::Sh,
            ShellName::Bash => Dialect::Bash,
        };
        let args = ["-c".to_owned(), script.to_owned()];
        let mut facts = Self::plain(shell.as_str(), &args, file);
        script.clone_into(&mut facts.line);
        facts.shell = true;
        facts.programs = names_of(shell.as_str()).collect();
        match warrant_script::analyze(script, dialect) {
            Ok(analysis) => facts.add(&analysis),
            Err(_) => {
                facts.parsed = false;
                facts.dynamic = true;
            }
        }
        facts
    }

    /// Returns the facts of a program with its arguments.
    #[must_use]
    pub fn of_argv(command: &str, args: &[String], file: Option<&ProgramFile>) -> Self {
        let mut facts = Self::plain(command, args, file);
        let argv: Vec<String> =
            std::iter::once(command.to_owned()).chain(args.iter().cloned()).collect();
        let analysis = warrant_script::analyze_argv(&argv);
        // SECURITY: a link or copy of a shell under another name is told by its real path.
        let real_shell = file.is_some_and(|file| warrant_script::is_shell(&file.path));
        facts.shell = analysis.starts_shell() || real_shell;
        facts.dynamic = real_shell && !warrant_script::is_shell(command);
        facts.add(&analysis);
        facts
    }

    fn plain(command: &str, args: &[String], file: Option<&ProgramFile>) -> Self {
        let words = std::iter::once(command).chain(args.iter().map(String::as_str));
        Self {
            program: file.map_or_else(|| command.to_owned(), |file| file.path.clone()),
            resolved: file.is_some(),
            program_digest: file.and_then(|file| file.digest),
            argv0: command.to_owned(),
            sub: args.iter().find(|arg| !arg.starts_with('-')).cloned(),
            first: args.iter().take(3).cloned().collect(),
            flags: args.iter().filter(|arg| arg.starts_with('-')).cloned().collect(),
            args: args.iter().cloned().collect(),
            line: words.collect::<Vec<_>>().join(" "),
            nargs: u32::try_from(args.len()).unwrap_or(u32::MAX),
            shell: false,
            programs: BTreeSet::new(),
            dynamic: false,
            parsed: true,
            mentions: BTreeSet::new(),
        }
    }

    /// Returns the facts where the request sets these variables.
    ///
    /// SECURITY: values are not judged, and an allowed word means something else where `PATH`
    /// leads elsewhere; so such a command counts as one that cannot be named, as it does when a
    /// script sets them, and the program that was looked up is not believed to be the one.
    fn among(mut self, set: &BTreeSet<String>) -> Self {
        self.dynamic |= set.iter().any(|name| warrant_script::chooses_programs(name));
        if set.contains("PATH") && !self.argv0.contains('/') {
            self.program.clone_from(&self.argv0);
            self.program_digest = None;
            self.resolved = false;
        }
        self
    }

    fn add(&mut self, analysis: &warrant_script::Analysis) {
        for program in &analysis.programs {
            if let Name::Literal(name) = &program.name {
                self.programs.extend(names_of(name));
            }
        }
        self.dynamic |= analysis.is_dynamic();
        self.parsed &= !analysis.has_unread;
        self.mentions.extend(analysis.hosts.iter().cloned());
    }
}

/// Returns a name as written and its last segment.
fn names_of(name: &str) -> impl Iterator<Item = String> {
    let last = name.rsplit('/').next().unwrap_or(name);
    [name.to_owned(), last.to_owned()].into_iter()
}
