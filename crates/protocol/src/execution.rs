//! What a run starts: the execution spec of requests and contracts, and the prepared form.
//!
//! The prepared form decides what is hashed into `command.executed`: command and directory,
//! never environment, time or log settings.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::canonical::hash_canonical;
use crate::request::{AgentSpec, BudgetSpec};
use crate::{Digest, RelPath, SecretName};

/// The text that stands for a secret's value before release.
pub const SECRET_PLACEHOLDER: &str = "__WARRANT_SECRET__:";

/// The text that stands for the path of a file with a secret in it.
pub const SECRET_FILE_PLACEHOLDER: &str = "__WARRANT_SECRET_FILE__:";

/// The time a run gets when neither the request nor the budget says.
pub const DEFAULT_TIMEOUT_MS: u64 = 600_000;

/// The shells a contract can name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ShellName {
    /// `sh`.
    Sh,
    /// `bash`.
    Bash,
}

impl ShellName {
    /// Returns the name of the program.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Sh => "sh",
            Self::Bash => "bash",
        }
    }
}

/// What to start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", rename_all_fields = "camelCase")]
pub enum ExecutionSpec {
    /// A script for a shell.
    Shell {
        /// The script.
        script: String,
        /// Which shell; `sh` when absent.
        #[serde(skip_serializing_if = "Option::is_none")]
        shell: Option<ShellName>,
        /// Where to start, below the workspace.
        #[serde(skip_serializing_if = "Option::is_none")]
        cwd: Option<RelPath>,
        /// How long it may take.
        #[serde(skip_serializing_if = "Option::is_none")]
        timeout_ms: Option<u64>,
        /// Its environment.
        #[serde(skip_serializing_if = "Option::is_none")]
        env: Option<EnvSpec>,
        /// How its output is kept.
        #[serde(skip_serializing_if = "Option::is_none")]
        log: Option<LogSpec>,
    },
    /// A program with arguments.
    Argv {
        /// The program.
        command: String,
        /// Its arguments.
        args: Vec<String>,
        /// Where to start, below the workspace.
        #[serde(skip_serializing_if = "Option::is_none")]
        cwd: Option<RelPath>,
        /// How long it may take.
        #[serde(skip_serializing_if = "Option::is_none")]
        timeout_ms: Option<u64>,
        /// Its environment.
        #[serde(skip_serializing_if = "Option::is_none")]
        env: Option<EnvSpec>,
        /// How its output is kept.
        #[serde(skip_serializing_if = "Option::is_none")]
        log: Option<LogSpec>,
    },
    /// An agent with a task.
    Agent {
        /// Which agent.
        agent: AgentSpec,
        /// The task.
        prompt: String,
        /// How long it may take.
        #[serde(skip_serializing_if = "Option::is_none")]
        timeout_ms: Option<u64>,
        /// Its environment.
        #[serde(skip_serializing_if = "Option::is_none")]
        env: Option<EnvSpec>,
        /// How its output is kept.
        #[serde(skip_serializing_if = "Option::is_none")]
        log: Option<LogSpec>,
    },
}

/// The environment a request asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EnvSpec {
    /// Names taken over from the runner's own environment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inherit: Option<Vec<String>>,
    /// Variables that carry a secret.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secrets: Option<Vec<EnvSecret>>,
    /// Plain variables.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vars: Option<BTreeMap<String, String>>,
    /// Whether the egress proxy is announced to the program; true when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub egress_proxy: Option<bool>,
}

/// A variable that carries a secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EnvSecret {
    /// The variable's name.
    pub env: String,
    /// The secret's name.
    pub secret_name: SecretName,
    /// How it is carried; the value itself when absent.
    #[serde(rename = "as", skip_serializing_if = "Option::is_none")]
    pub form: Option<SecretForm>,
}

/// How a variable carries a secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SecretForm {
    /// The variable is the value.
    Value,
    /// The variable is the path of a file, inside the session only, that holds the value.
    File,
}

/// How standard output is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StdoutMode {
    /// It is kept.
    Capture,
}

/// How standard error is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StderrMode {
    /// Together with standard output.
    Merge,
    /// By itself.
    Capture,
}

/// How output is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LogSpec {
    /// Standard output.
    pub stdout: StdoutMode,
    /// Standard error.
    pub stderr: StderrMode,
    /// How many bytes before the run is stopped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_bytes: Option<u64>,
}

/// A command in the form that is hashed and run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PreparedCommand {
    /// A program with arguments.
    Argv {
        /// The program.
        cmd: String,
        /// Its arguments.
        args: Vec<String>,
    },
    /// A script for a shell.
    Shell {
        /// Which shell.
        shell: ShellName,
        /// The script.
        script: String,
    },
}

/// An execution with every default filled in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PreparedExecution {
    /// What runs.
    pub command: PreparedCommand,
    /// Where, below the workspace; `.` is the workspace itself.
    pub cwd: String,
    /// How long it may take.
    pub timeout_ms: u64,
    /// How many bytes of output before it is stopped.
    pub log_max_bytes: Option<u64>,
    /// Its environment; secrets as placeholders.
    pub env: BTreeMap<String, String>,
    /// Whether the egress proxy is announced.
    pub egress_proxy: bool,
}

/// How an agent's program is started on this runner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MockAgent<'a> {
    /// The interpreter the mock agent runs in.
    pub interpreter: &'a str,
    /// The mock agent's file.
    pub script: &'a str,
}

/// What of the runner's surroundings preparation needs.
#[derive(Debug, Clone, Copy)]
pub struct PrepareContext<'a> {
    /// The runner's environment, for `env.inherit`.
    pub environment: &'a BTreeMap<String, String>,
    /// How the mock agent is started here, if it is.
    pub mock_agent: Option<MockAgent<'a>>,
}

/// An agent nobody here can start.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "agent kind \"{0}\" cannot be started here; known kinds are claude-code, codex, cursor, command and mock"
)]
pub struct UnknownAgent(pub String);

impl ExecutionSpec {
    /// Returns what an agent kind and a prompt mean when nothing else is said.
    #[must_use]
    pub fn by_agent(kind: &str, version: Option<&str>, prompt: &str) -> Self {
        let prompt = prompt.to_owned();
        if kind == "command" {
            return Self::Shell {
                script: prompt,
                shell: None,
                cwd: None,
                timeout_ms: None,
                env: None,
                log: None,
            };
        }
        let version = version.filter(|version| !version.is_empty()).map(str::to_owned);
        let agent = AgentSpec { kind: kind.to_owned(), version };
        Self::Agent { agent, prompt, timeout_ms: None, env: None, log: None }
    }

    /// Returns the time asked for.
    #[must_use]
    pub const fn timeout_ms(&self) -> Option<u64> {
        match self {
            Self::Shell { timeout_ms, .. }
            | Self::Argv { timeout_ms, .. }
            | Self::Agent { timeout_ms, .. } => *timeout_ms,
        }
    }

    /// Returns the environment asked for.
    #[must_use]
    pub const fn env(&self) -> Option<&EnvSpec> {
        match self {
            Self::Shell { env, .. } | Self::Argv { env, .. } | Self::Agent { env, .. } => {
                env.as_ref()
            }
        }
    }

    /// Returns the log settings asked for.
    #[must_use]
    pub const fn log(&self) -> Option<&LogSpec> {
        match self {
            Self::Shell { log, .. } | Self::Argv { log, .. } | Self::Agent { log, .. } => {
                log.as_ref()
            }
        }
    }

    /// Returns the directory asked for.
    #[must_use]
    pub const fn cwd(&self) -> Option<&RelPath> {
        match self {
            Self::Shell { cwd, .. } | Self::Argv { cwd, .. } => cwd.as_ref(),
            Self::Agent { .. } => None,
        }
    }

    /// Returns the execution with every default filled in.
    ///
    /// # Errors
    /// [`UnknownAgent`] when the agent has no known way of being started here.
    pub fn prepare(
        &self,
        budget: &BudgetSpec,
        context: &PrepareContext<'_>,
    ) -> Result<PreparedExecution, UnknownAgent> {
        let command = match self {
            Self::Shell { script, shell, .. } => PreparedCommand::Shell {
                shell: shell.unwrap_or(ShellName::Sh),
                script: script.clone(),
            },
            Self::Argv { command, args, .. } => {
                PreparedCommand::Argv { cmd: command.clone(), args: args.clone() }
            }
            Self::Agent { agent, prompt, .. } => agent_argv(agent, prompt, context)?,
        };
        let budgeted = budget.max_duration_min.map(minutes_to_ms);
        Ok(PreparedExecution {
            command,
            cwd: self.cwd().map_or_else(|| ".".to_owned(), ToString::to_string),
            timeout_ms: self.timeout_ms().or(budgeted).unwrap_or(DEFAULT_TIMEOUT_MS),
            log_max_bytes: self.log().and_then(|log| log.max_bytes),
            env: self.env().map(|env| prepare_env(env, context)).unwrap_or_default(),
            egress_proxy: self.env().and_then(|env| env.egress_proxy).unwrap_or(true),
        })
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a float cast saturates, and budgets are positive"
)]
fn minutes_to_ms(minutes: f64) -> u64 {
    (minutes * 60_000.0) as u64
}

fn agent_argv(
    agent: &AgentSpec,
    prompt: &str,
    context: &PrepareContext<'_>,
) -> Result<PreparedCommand, UnknownAgent> {
    let (cmd, args): (&str, Vec<&str>) = match agent.kind.as_str() {
        "claude-code" => ("claude", vec!["-p", prompt, "--permission-mode", "acceptEdits"]),
        "codex" => ("codex", vec!["exec", "--skip-git-repo-check", prompt]),
        "cursor" => ("cursor-agent", vec!["-p", "--force", prompt]),
        "pi" => ("pi", vec!["--harness-only"]),
        "command" => ("sh", vec!["-c", prompt]),
        "mock" => match context.mock_agent {
            Some(mock) => (mock.interpreter, vec![mock.script, prompt]),
            None => return Err(UnknownAgent(agent.kind.clone())),
        },
        _ => return Err(UnknownAgent(agent.kind.clone())),
    };
    let args = args.into_iter().map(str::to_owned).collect();
    Ok(PreparedCommand::Argv { cmd: cmd.to_owned(), args })
}

fn prepare_env(spec: &EnvSpec, context: &PrepareContext<'_>) -> BTreeMap<String, String> {
    let mut env = BTreeMap::new();
    for name in spec.inherit.iter().flatten() {
        if let Some(value) = context.environment.get(name) {
            env.insert(name.clone(), value.clone());
        }
    }
    for (name, value) in spec.vars.iter().flatten() {
        env.insert(name.clone(), value.clone());
    }
    for secret in spec.secrets.iter().flatten() {
        let placeholder = match secret.form {
            None | Some(SecretForm::Value) => SECRET_PLACEHOLDER,
            Some(SecretForm::File) => SECRET_FILE_PLACEHOLDER,
        };
        env.insert(secret.env.clone(), format!("{placeholder}{}", secret.secret_name));
    }
    env
}

impl PreparedExecution {
    /// Returns the digest that `command.executed` carries: command and directory.
    #[must_use]
    pub fn hash(&self) -> Digest {
        hash_canonical(&match &self.command {
            PreparedCommand::Argv { cmd, args } => {
                json!({"kind": "argv", "cmd": cmd, "args": args, "cwd": self.cwd})
            }
            PreparedCommand::Shell { shell, script } => {
                json!({"kind": "shell", "shell": shell.as_str(), "script": script, "cwd": self.cwd})
            }
        })
    }

    /// Returns the environment of the session: released secrets by name, then the entries with
    /// their placeholders filled; a placeholder whose secret was not released is dropped.
    #[must_use]
    pub fn resolve_env(&self, released: &[(SecretName, String)]) -> BTreeMap<String, String> {
        let mut env: BTreeMap<String, String> =
            released.iter().map(|(name, value)| (name.to_string(), value.clone())).collect();
        for (name, value) in &self.env {
            if value.starts_with(SECRET_FILE_PLACEHOLDER) {
                // Only whoever builds the session knows where the file is.
                continue;
            }
            let Some(secret) = value.strip_prefix(SECRET_PLACEHOLDER) else {
                env.insert(name.clone(), value.clone());
                continue;
            };
            if let Some((_, value)) = released.iter().find(|(name, _)| name.as_str() == secret) {
                env.insert(name.clone(), value.clone());
            }
        }
        env
    }
}
