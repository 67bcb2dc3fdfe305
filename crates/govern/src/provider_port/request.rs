//! What a policy owner sends, read strictly: every problem names the field it is in.
//!
//! What decides how much a command may do is never guessed: a limit, a network policy or a process
//! policy that is not understood is refused. Other members that are not known are ignored.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_json::{Map, Value};
use thiserror::Error;
use warrant_protocol::request::EgressRule;

/// The kind of a request.
const KIND: &str = "runtime.sandboxPlane.provider.runRequest";

/// The profile whose default is workspace rollback.
const ROLLBACK_PROFILE: &str = "yolo";

/// What is masked when secrets are to be protected and nobody says which files those are.
const SECRET_GLOBS: [&str; 2] = [".env", ".env.*"];

/// What of a line cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{field}: {problem}")]
pub struct InvalidField {
    /// Which member, as a path.
    pub field: String,
    /// What is wrong with it.
    pub problem: String,
}

/// Where a command may run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SandboxMode {
    /// Without a sandbox; never done.
    Unprotected,
    /// In the workspace, which is put back when the command fails.
    WorkspaceRollback,
    /// In a layer over the workspace, kept as a diff.
    Isolated,
}

/// What a command may reach.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum NetworkRequest {
    /// Nothing.
    Nothing,
    /// The hosts that our policy lists.
    HostsOfPolicy,
    /// These, as far as our policy lists them.
    Hosts(Vec<EgressRule>),
}

/// What a command may use.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ResourceRequest {
    pub(super) timeout_ms: Option<u64>,
    pub(super) max_output_bytes: Option<u64>,
    pub(super) max_processes: Option<u64>,
    pub(super) memory_bytes: Option<u64>,
    pub(super) cpu_ms: Option<u64>,
    pub(super) disk_bytes: Option<u64>,
}

/// Something the policy owner gives after a gap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OwnerGrant {
    pub(super) path: PathBuf,
    pub(super) is_writable: bool,
    /// As it was sent.
    pub(super) sent: Value,
}

/// One command with what its policy owner decided about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PortRequest {
    pub(super) argv: Vec<String>,
    pub(super) cwd: PathBuf,
    pub(super) env: BTreeMap<String, String>,
    pub(super) stdin: Vec<u8>,
    pub(super) mode: SandboxMode,
    /// The family that the caller chose, when it says so.
    pub(super) family: Option<String>,
    pub(super) network: NetworkRequest,
    pub(super) may_spawn: bool,
    pub(super) resources: ResourceRequest,
    pub(super) workspace: PathBuf,
    pub(super) read: Vec<PathBuf>,
    pub(super) write: Vec<PathBuf>,
    pub(super) masks: Vec<String>,
    pub(super) grants: Vec<OwnerGrant>,
    /// Whether the caller says that somebody approved it.
    pub(super) claims_approval: bool,
    pub(super) fallback: Option<String>,
}

impl PortRequest {
    /// Reads the member `request` of a line.
    pub(super) fn read(value: Option<&Value>) -> Result<Self, InvalidField> {
        let root = RequestField { name: "request".to_owned(), value };
        let kind = root.member("kind")?;
        if kind.text()? != KIND {
            return Err(kind.wrong(format!("is not {KIND}")));
        }
        check_action(&root.member("action")?)?;
        let command = root.member("command")?;
        let policy = root.member("policy")?;
        let files = root.member("filesystem")?;
        let metadata = root.member("metadata")?;
        let metadata = if metadata.is_absent() { None } else { Some(metadata) };
        let of_metadata = |name: &str| metadata.as_ref().map(|all| all.member(name)).transpose();
        let stdin = command.member("stdin")?.or_absent(RequestField::any_text)?.unwrap_or_default();
        Ok(Self {
            argv: argv(&command.member("argv")?)?,
            cwd: command.member("cwd")?.path()?,
            env: env(&command.member("env")?)?,
            stdin: stdin.as_bytes().to_vec(),
            mode: mode(&policy)?,
            family: match of_metadata("providerFamily")? {
                Some(family) => family.or_absent(RequestField::text)?.map(str::to_owned),
                None => None,
            },
            network: network(&policy.member("network")?)?,
            may_spawn: may_spawn(&policy.member("process")?)?,
            resources: resources(&policy.member("resources")?)?,
            workspace: files.member("workspaceRoot")?.path()?,
            read: paths(&files.member("read")?)?,
            write: paths(&files.member("write")?)?,
            masks: masks(&files, of_metadata("secretGlobs")?)?,
            grants: grants(&root.member("policyGrants")?)?,
            claims_approval: match of_metadata("approvalAccepted")? {
                Some(accepted) => accepted.or_absent(RequestField::flag)?.unwrap_or(false),
                None => false,
            },
            fallback: match root.member("fallback")? {
                fallback if fallback.is_absent() => None,
                fallback => {
                    fallback.member("mode")?.or_absent(RequestField::text)?.map(str::to_owned)
                }
            },
        })
    }
}

/// Who asks and what for are the caller's words: they must be there, and decide nothing.
fn check_action(action: &RequestField<'_>) -> Result<(), InvalidField> {
    for name in ["actionId", "runtimeId", "sessionId", "toolId", "ownerRuntime", "intentLabel"] {
        action.member(name)?.text()?;
    }
    action.member("metadata")?.or_absent(RequestField::object).map(drop)
}

fn argv(field: &RequestField<'_>) -> Result<Vec<String>, InvalidField> {
    let argv = field.texts()?;
    match argv.first() {
        Some(program) if !program.is_empty() => Ok(argv),
        _ => Err(field.wrong("needs at least the name of a program".to_owned())),
    }
}

fn env(field: &RequestField<'_>) -> Result<BTreeMap<String, String>, InvalidField> {
    let Some(object) = field.or_absent(RequestField::object)? else { return Ok(BTreeMap::new()) };
    let mut env = BTreeMap::new();
    for (name, value) in object {
        let at = RequestField { name: format!("{}.{name}", field.name), value: Some(value) };
        if name.is_empty() || name.contains(['=', '\0']) {
            return Err(at.wrong("is no name of a variable".to_owned()));
        }
        // A value that is absent leaves the variable out.
        if let Some(value) = at.or_absent(RequestField::text)? {
            env.insert(name.clone(), value.to_owned());
        }
    }
    Ok(env)
}

fn mode(policy: &RequestField<'_>) -> Result<SandboxMode, InvalidField> {
    let profile = policy.member("profile")?.text()?;
    policy.member("sandboxId")?.or_absent(RequestField::text)?;
    let field = policy.member("sandboxMode")?;
    match field.or_absent(RequestField::text)? {
        None if profile == ROLLBACK_PROFILE => Ok(SandboxMode::WorkspaceRollback),
        None | Some("isolated") => Ok(SandboxMode::Isolated),
        Some("workspace-rollback") => Ok(SandboxMode::WorkspaceRollback),
        Some("none") => Ok(SandboxMode::Unprotected),
        Some(other) => {
            Err(field.wrong(format!("is none, workspace-rollback or isolated, not `{other}`")))
        }
    }
}

fn network(field: &RequestField<'_>) -> Result<NetworkRequest, InvalidField> {
    let (word, hosts, at) = match field.value {
        None | Some(Value::Null) => return Ok(NetworkRequest::Nothing),
        Some(Value::Object(_)) => {
            let mode = field.member("mode")?;
            let hosts = field.member("hosts")?;
            let given = if hosts.is_absent() { None } else { Some((hosts.texts()?, hosts)) };
            (mode.text()?, given, mode)
        }
        Some(_) => (field.text()?, None, field.clone()),
    };
    match (word, hosts) {
        // Nobody has approved anything yet.
        ("deny" | "approval", _) => Ok(NetworkRequest::Nothing),
        ("allow" | "provider-policy", None) => Ok(NetworkRequest::HostsOfPolicy),
        ("allow" | "provider-policy", Some((hosts, list))) => {
            let rule = |(index, host): (usize, &String)| {
                let at = format!("{}[{index}]", list.name);
                host.parse::<EgressRule>()
                    .map_err(|error| InvalidField { field: at, problem: error.to_string() })
            };
            let rules: Result<Vec<_>, _> = hosts.iter().enumerate().map(rule).collect();
            Ok(NetworkRequest::Hosts(rules?))
        }
        (other, _) => {
            Err(at.wrong(format!("is deny, allow, approval or provider-policy, not `{other}`")))
        }
    }
}

fn may_spawn(field: &RequestField<'_>) -> Result<bool, InvalidField> {
    if field.is_absent() {
        return Ok(true);
    }
    field.only(&["spawn"])?;
    Ok(field.member("spawn")?.or_absent(RequestField::flag)?.unwrap_or(true))
}

fn resources(field: &RequestField<'_>) -> Result<ResourceRequest, InvalidField> {
    if field.is_absent() {
        return Ok(ResourceRequest::default());
    }
    // SECURITY: a limit that is not understood would not be held.
    field.only(&[
        "timeoutMs",
        "maxOutputBytes",
        "maxProcesses",
        "memoryBytes",
        "cpuMs",
        "diskBytes",
    ])?;
    let number = |name: &str| field.member(name)?.or_absent(RequestField::number);
    Ok(ResourceRequest {
        timeout_ms: number("timeoutMs")?,
        max_output_bytes: number("maxOutputBytes")?,
        max_processes: number("maxProcesses")?,
        memory_bytes: number("memoryBytes")?,
        cpu_ms: number("cpuMs")?,
        disk_bytes: number("diskBytes")?,
    })
}

fn paths(field: &RequestField<'_>) -> Result<Vec<PathBuf>, InvalidField> {
    field.items()?.iter().map(RequestField::path).collect()
}

fn masks(
    files: &RequestField<'_>,
    globs: Option<RequestField<'_>>,
) -> Result<Vec<String>, InvalidField> {
    files.member("readonlyRoot")?.or_absent(RequestField::flag)?;
    let is_protecting =
        files.member("protectSecrets")?.or_absent(RequestField::flag)?.unwrap_or(true);
    if !is_protecting {
        return Ok(Vec::new());
    }
    match globs {
        Some(globs) if !globs.is_absent() => globs.texts(),
        _ => Ok(SECRET_GLOBS.map(str::to_owned).to_vec()),
    }
}

fn grants(field: &RequestField<'_>) -> Result<Vec<OwnerGrant>, InvalidField> {
    let grant = |item: &RequestField<'_>| {
        item.member("reason")?.text()?;
        item.member("grantedBy")?.or_absent(RequestField::text)?;
        let access = item.member("access")?;
        let mut is_writable = false;
        for kind in access.items()? {
            match kind.text()? {
                "read" => {}
                "write" | "readwrite" => is_writable = true,
                other => return Err(kind.wrong(format!("is read or write, not `{other}`"))),
            }
        }
        let sent = item.value.cloned().unwrap_or_default();
        Ok(OwnerGrant { path: item.member("path")?.path()?, is_writable, sent })
    };
    field.items()?.iter().map(grant).collect()
}

/// A member of an object, with the path that leads to it.
#[derive(Debug, Clone)]
struct RequestField<'a> {
    name: String,
    value: Option<&'a Value>,
}

impl<'a> RequestField<'a> {
    fn wrong(&self, problem: String) -> InvalidField {
        InvalidField { field: self.name.clone(), problem }
    }

    /// Says what the member is and what it should be.
    fn expected(&self, wanted: &str) -> InvalidField {
        self.wrong(match self.value {
            None => format!("is missing; it is {wanted}"),
            Some(value) => format!("is {}; it has to be {wanted}", type_of(value)),
        })
    }

    const fn is_absent(&self) -> bool {
        matches!(self.value, None | Some(Value::Null))
    }

    fn object(&self) -> Result<&'a Map<String, Value>, InvalidField> {
        match self.value {
            Some(Value::Object(members)) => Ok(members),
            _ => Err(self.expected("an object")),
        }
    }

    fn member(&self, name: &str) -> Result<RequestField<'a>, InvalidField> {
        let value = self.object()?.get(name);
        Ok(RequestField { name: format!("{}.{name}", self.name), value })
    }

    /// Refuses members that nobody knows.
    fn only(&self, known: &[&str]) -> Result<(), InvalidField> {
        match self.object()?.keys().find(|name| !known.contains(&name.as_str())) {
            None => Ok(()),
            Some(name) => {
                let at = RequestField { name: format!("{}.{name}", self.name), value: None };
                Err(at.wrong(format!("is not known; known are {}", known.join(", "))))
            }
        }
    }

    fn or_absent<T>(
        &self,
        read: impl FnOnce(&Self) -> Result<T, InvalidField>,
    ) -> Result<Option<T>, InvalidField> {
        if self.is_absent() { Ok(None) } else { read(self).map(Some) }
    }

    fn any_text(&self) -> Result<&'a str, InvalidField> {
        match self.value {
            Some(Value::String(text)) => Ok(text),
            _ => Err(self.expected("a string")),
        }
    }

    /// Returns a text that can be an argument, a variable or a path.
    fn text(&self) -> Result<&'a str, InvalidField> {
        match self.any_text()? {
            text if text.contains('\0') => Err(self.wrong("contains a zero byte".to_owned())),
            text => Ok(text),
        }
    }

    fn flag(&self) -> Result<bool, InvalidField> {
        match self.value {
            Some(Value::Bool(flag)) => Ok(*flag),
            _ => Err(self.expected("true or false")),
        }
    }

    fn number(&self) -> Result<u64, InvalidField> {
        match self.value.and_then(Value::as_u64) {
            Some(number) if number > 0 => Ok(number),
            _ => Err(self.expected("a whole number above 0")),
        }
    }

    fn path(&self) -> Result<PathBuf, InvalidField> {
        match self.text()? {
            text if text.starts_with('/') => Ok(PathBuf::from(text)),
            text => Err(self.wrong(format!("is an absolute path, not `{text}`"))),
        }
    }

    /// Returns the items of a list; one that is absent has none.
    fn items(&self) -> Result<Vec<RequestField<'a>>, InvalidField> {
        match self.value {
            None | Some(Value::Null) => Ok(Vec::new()),
            Some(Value::Array(items)) => {
                let item = |(index, value): (usize, &'a Value)| RequestField {
                    name: format!("{}[{index}]", self.name),
                    value: Some(value),
                };
                Ok(items.iter().enumerate().map(item).collect())
            }
            Some(_) => Err(self.expected("a list")),
        }
    }

    fn texts(&self) -> Result<Vec<String>, InvalidField> {
        self.items()?.iter().map(|item| item.text().map(str::to_owned)).collect()
    }
}

const fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
