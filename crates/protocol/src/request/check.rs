//! The limits of the wire for a run request, member by member.
//!
//! Unknown members are left out silently, except inside `execution`, where they are refused:
//! a misspelled restriction there would otherwise permit.

use serde_json::{Map, Value};

use super::RunRequest;
use crate::validate::{At, Bound, Checker, Invalid};
use crate::{CheckpointId, EgressHost, Host, Isolation, PoolName, RelPath, SecretName, json};

const EVIDENCE: [&str; 4] = ["measured", "reported", "requested", "unavailable"];
const DISCLOSURES: [&str; 5] = ["none", "metadata-only", "redacted", "minimal-context", "full"];

impl RunRequest {
    /// Reads a request; what comes back holds no member that was not checked.
    ///
    /// # Errors
    /// [`Invalid`] with every issue, each `path: message`.
    pub fn from_value(value: &Value) -> Result<Self, Invalid> {
        Self::from_value_at(value, &At::ROOT)
    }

    pub(crate) fn from_value_at(value: &Value, at: &At<'_>) -> Result<Self, Invalid> {
        let mut checker = Checker::new();
        check_request(&mut checker, at, Some(value));
        checker.finish()?;
        json::view(value)
            .map_err(|error| Invalid { issues: vec![format!("{at}: {}", error.detail())] })
    }
}

pub(crate) fn check_request(checker: &mut Checker, at: &At<'_>, value: Option<&Value>) {
    let Some(request) = checker.object(at, value) else { return };
    let member = |name: &str| request.get(name);
    check_actor(checker, &at.name("requestedBy"), member("requestedBy"));
    checker.text(&at.name("agentKind"), member("agentKind"), 1..=64);
    if let Some(version) = member("agentVersion") {
        checker.text(&at.name("agentVersion"), Some(version), 0..=128);
    }
    checker.text(&at.name("prompt"), member("prompt"), 1..=1_000_000);
    checker.name::<PoolName>(&at.name("pool"), member("pool"), 1..=128);
    let names_at = at.name("secretNames");
    let names = checker.list(&names_at, member("secretNames"), 256);
    for (index, name) in names.iter().enumerate() {
        checker.name::<SecretName>(&names_at.index(index), Some(name), 1..=256);
    }
    check_manifest(checker, &at.name("workspace"), member("workspace"));
    check_network(checker, &at.name("network"), member("network"));
    check_budget(checker, &at.name("budget"), member("budget"));
    checker.one_of(&at.name("disclosure"), member("disclosure"), &DISCLOSURES);
    if let Some(execution) = member("execution") {
        check_execution(checker, &at.name("execution"), execution);
    }
    if let Some(isolation) = member("isolation") {
        let tiers = Isolation::ALL.map(Isolation::as_str);
        checker.one_of(&at.name("isolation"), Some(isolation), &tiers);
    }
    if let Some(continuation) = member("continuation") {
        check_continuation(checker, &at.name("continuation"), continuation);
    }
    check_ours(checker, at, request);
}

pub(crate) fn check_actor(checker: &mut Checker, at: &At<'_>, value: Option<&Value>) {
    let Some(actor) = checker.object(at, value) else { return };
    checker.one_of(&at.name("kind"), actor.get("kind"), &["human", "service"]);
    checker.text(&at.name("id"), actor.get("id"), 1..=256);
}

fn check_manifest(checker: &mut Checker, at: &At<'_>, value: Option<&Value>) {
    let Some(manifest) = checker.object(at, value) else { return };
    checker.literal(&at.name("version"), manifest.get("version"), "warrant.manifest.v1");
    checker.text(&at.name("baseRef"), manifest.get("baseRef"), 1..=256);
    checker.digest(&at.name("bundleHash"), manifest.get("bundleHash"));
    if let Some(hash) = manifest.get("dirtyDiffHash") {
        checker.digest(&at.name("dirtyDiffHash"), Some(hash));
    }
    let files_at = at.name("untrackedFiles");
    let files = checker.list(&files_at, manifest.get("untrackedFiles"), 100_000);
    for (index, file) in files.iter().enumerate() {
        let at = files_at.index(index);
        let Some(file) = checker.object(&at, Some(file)) else { continue };
        checker.name::<RelPath>(&at.name("path"), file.get("path"), 1..=4096);
        checker.digest(&at.name("hash"), file.get("hash"));
        checker.integer(&at.name("bytes"), file.get("bytes"), 0);
    }
    texts(checker, &at.name("deniedPatterns"), manifest.get("deniedPatterns"), (10_000, 512));
    let paths_at = at.name("deniedPaths");
    let paths = checker.list(&paths_at, manifest.get("deniedPaths"), 100_000);
    for (index, path) in paths.iter().enumerate() {
        checker.name::<RelPath>(&paths_at.index(index), Some(path), 1..=4096);
    }
}

fn check_network(checker: &mut Checker, at: &At<'_>, value: Option<&Value>) {
    let Some(network) = checker.object(at, value) else { return };
    checker.boolean(&at.name("defaultDeny"), network.get("defaultDeny"));
    let hosts_at = at.name("allowHosts");
    let hosts = checker.list(&hosts_at, network.get("allowHosts"), 1000);
    for (index, host) in hosts.iter().enumerate() {
        checker.name::<Host>(&hosts_at.index(index), Some(host), 1..=253);
    }
}

fn check_budget(checker: &mut Checker, at: &At<'_>, value: Option<&Value>) {
    let Some(budget) = checker.object(at, value) else { return };
    if let Some(spend) = budget.get("maxSpendUsd") {
        checker.number(&at.name("maxSpendUsd"), Some(spend), Bound::AtLeastZero);
    }
    if let Some(duration) = budget.get("maxDurationMin") {
        checker.number(&at.name("maxDurationMin"), Some(duration), Bound::AboveZero);
    }
}

fn check_execution(checker: &mut Checker, at: &At<'_>, value: &Value) {
    let Some(execution) = checker.object(at, Some(value)) else { return };
    let member = |name: &str| execution.get(name);
    let shared = ["kind", "timeoutMs", "env", "log"];
    let own: &[&str] = match member("kind").and_then(Value::as_str) {
        Some("shell") => &["script", "shell", "cwd"],
        Some("argv") => &["command", "args", "cwd"],
        Some("agent") => &["agent", "prompt"],
        _ => return checker.issue(&at.name("kind"), "Invalid input"),
    };
    match member("kind").and_then(Value::as_str) {
        Some("shell") => {
            checker.text(&at.name("script"), member("script"), 1..=1_000_000);
            if let Some(shell) = member("shell") {
                checker.one_of(&at.name("shell"), Some(shell), &["sh", "bash"]);
            }
        }
        Some("argv") => {
            checker.text(&at.name("command"), member("command"), 1..=4096);
            texts(checker, &at.name("args"), member("args"), (10_000, 100_000));
        }
        _ => {
            check_agent(checker, &at.name("agent"), member("agent"));
            checker.text(&at.name("prompt"), member("prompt"), 1..=1_000_000);
        }
    }
    if let Some(cwd) = member("cwd").filter(|_| own.contains(&"cwd")) {
        checker.name::<RelPath>(&at.name("cwd"), Some(cwd), 1..=4096);
    }
    if let Some(timeout) = member("timeoutMs") {
        checker.integer(&at.name("timeoutMs"), Some(timeout), 1);
    }
    if let Some(env) = member("env") {
        check_env(checker, &at.name("env"), env);
    }
    if let Some(log) = member("log") {
        check_log(checker, &at.name("log"), log);
    }
    let known: Vec<&str> = shared.into_iter().chain(own.iter().copied()).collect();
    checker.only(at, execution, &known);
}

fn check_agent(checker: &mut Checker, at: &At<'_>, value: Option<&Value>) {
    let Some(agent) = checker.object(at, value) else { return };
    checker.text(&at.name("kind"), agent.get("kind"), 1..=64);
    if let Some(version) = agent.get("version") {
        checker.text(&at.name("version"), Some(version), 0..=128);
    }
    checker.only(at, agent, &["kind", "version"]);
}

fn check_env(checker: &mut Checker, at: &At<'_>, value: &Value) {
    let Some(env) = checker.object(at, Some(value)) else { return };
    if let Some(inherit) = env.get("inherit") {
        let inherit_at = at.name("inherit");
        for (index, name) in checker.list(&inherit_at, Some(inherit), 256).iter().enumerate() {
            checker.text(&inherit_at.index(index), Some(name), 1..=128);
        }
    }
    if let Some(secrets) = env.get("secrets") {
        let secrets_at = at.name("secrets");
        for (index, secret) in checker.list(&secrets_at, Some(secrets), 256).iter().enumerate() {
            let at = secrets_at.index(index);
            let Some(secret) = checker.object(&at, Some(secret)) else { continue };
            checker.text(&at.name("env"), secret.get("env"), 1..=256);
            let name = secret.get("secretName");
            checker.name::<SecretName>(&at.name("secretName"), name, 1..=256);
            checker.only(&at, secret, &["env", "secretName"]);
        }
    }
    if let Some(vars) = env.get("vars") {
        check_vars(checker, &at.name("vars"), vars);
    }
    if let Some(proxy) = env.get("egressProxy") {
        checker.boolean(&at.name("egressProxy"), Some(proxy));
    }
    checker.only(at, env, &["inherit", "secrets", "vars", "egressProxy"]);
}

fn check_vars(checker: &mut Checker, at: &At<'_>, value: &Value) {
    let Some(vars) = checker.object(at, Some(value)) else { return };
    for (name, value) in vars {
        if name.is_empty() || name.encode_utf16().count() > 256 {
            checker.issue(&at.name(name), "Invalid key in record");
        }
        // SECURITY: `=` or NUL in a name, NUL in a value, would forge another variable.
        if name.contains(['=', '\0']) || value.as_str().is_some_and(|text| text.contains('\0')) {
            checker.issue(&at.name(name), "Invalid environment variable");
        }
        checker.text(&at.name(name), Some(value), 0..=100_000);
    }
}

fn check_log(checker: &mut Checker, at: &At<'_>, value: &Value) {
    let Some(log) = checker.object(at, Some(value)) else { return };
    checker.literal(&at.name("stdout"), log.get("stdout"), "capture");
    checker.one_of(&at.name("stderr"), log.get("stderr"), &["merge", "capture"]);
    if let Some(bytes) = log.get("maxBytes") {
        checker.integer(&at.name("maxBytes"), Some(bytes), 1);
    }
    checker.only(at, log, &["stdout", "stderr", "maxBytes"]);
}

fn check_continuation(checker: &mut Checker, at: &At<'_>, value: &Value) {
    let Some(continuation) = checker.object(at, Some(value)) else { return };
    checker.digest(&at.name("envelopeHash"), continuation.get("envelopeHash"));
    let checkpoint = continuation.get("checkpointId");
    checker.name::<CheckpointId>(&at.name("checkpointId"), checkpoint, 1..=256);
    checker.one_of(&at.name("tier"), continuation.get("tier"), &["semantic", "workspace"]);
}

/// The members the reference does not know.
fn check_ours(checker: &mut Checker, at: &At<'_>, request: &Map<String, Value>) {
    if let Some(limits) = request.get("limits") {
        check_limits(checker, &at.name("limits"), limits);
    }
    if let Some(posture) = request.get("requiredPosture") {
        texts(checker, &at.name("requiredPosture"), Some(posture), (256, 128));
    }
    if let Some(mode) = request.get("mode") {
        checker.one_of(&at.name("mode"), Some(mode), &["read-only", "overlay", "direct"]);
    }
    if let Some(files) = request.get("files") {
        let at = at.name("files");
        if let Some(files) = checker.object(&at, Some(files)) {
            check_roots(checker, &at.name("read"), files.get("read"));
            check_roots(checker, &at.name("write"), files.get("write"));
            checker.only(&at, files, &["read", "write"]);
        }
    }
    if let Some(egress) = request.get("egress") {
        let rules_at = at.name("egress");
        for (index, rule) in checker.list(&rules_at, Some(egress), 1000).iter().enumerate() {
            let at = rules_at.index(index);
            let Some(rule) = checker.object(&at, Some(rule)) else { continue };
            checker.name::<EgressHost>(&at.name("host"), rule.get("host"), 1..=253);
            if let Some(port) = rule.get("port")
                && !port.as_u64().is_some_and(|port| (1..=65_535).contains(&port))
            {
                checker.issue(&at.name("port"), "Invalid input: expected a port from 1 to 65535");
            }
            checker.only(&at, rule, &["host", "port"]);
        }
    }
    if let Some(masks) = request.get("masks") {
        texts(checker, &at.name("masks"), Some(masks), (10_000, 512));
    }
    if let Some(image) = request.get("image") {
        checker.text(&at.name("image"), Some(image), 1..=512);
    }
    if let Some(classes) = request.get("dataClasses") {
        texts(checker, &at.name("dataClasses"), Some(classes), (64, 128));
    }
    if let Some(accepted) = request.get("acceptEvidence") {
        let at = at.name("acceptEvidence");
        for (component, level) in checker.object(&at, Some(accepted)).into_iter().flatten() {
            checker.one_of(&at.name(component), Some(level), &EVIDENCE);
        }
    }
}

fn check_limits(checker: &mut Checker, at: &At<'_>, value: &Value) {
    const NAMES: [&str; 9] = [
        "wallMs",
        "cpuMs",
        "memoryBytes",
        "processes",
        "openFiles",
        "fileBytes",
        "diskBytes",
        "inodes",
        "outputBytes",
    ];
    let Some(limits) = checker.object(at, Some(value)) else { return };
    for name in NAMES {
        if let Some(limit) = limits.get(name) {
            checker.integer(&at.name(name), Some(limit), 1);
        }
    }
    checker.only(at, limits, &NAMES);
}

fn check_roots(checker: &mut Checker, at: &At<'_>, value: Option<&Value>) {
    for (index, root) in checker.list(at, value, 1000).iter().enumerate() {
        let at = at.index(index);
        let Some(root) = checker.text(&at, Some(root), 1..=4096) else { continue };
        let is_plain = root.starts_with('/')
            && !root.contains(['\0', '\n'])
            && root.split('/').all(|segment| segment != "..");
        if !is_plain {
            checker.issue(&at, "Invalid input: expected an absolute path without `..`");
        }
    }
}

/// A list of texts: at most so many, each at most so long.
fn texts(checker: &mut Checker, at: &At<'_>, value: Option<&Value>, (max, length): (usize, usize)) {
    for (index, text) in checker.list(at, value, max).iter().enumerate() {
        checker.text(&at.index(index), Some(text), 0..=length);
    }
}
