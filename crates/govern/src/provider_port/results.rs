//! The objects that a policy owner gets back.

use serde_json::{Map, Value, json};
use warrant_protocol::{Isolation, Outcome};
use warrant_runner::run::Ended;
use warrant_sandbox::Refusal;
use warrant_sandbox::lowering::{Access, Gap, Lowering, Root};
use warrant_script::{Effect, Target};
use warrant_workspace::Verdict;

use super::plan::DeclaredRoot;
use crate::keep::Kept;
use crate::output::Capture;

/// The kind of an answer to `prepareRun`.
const PREPARE_KIND: &str = "runtime.sandboxPlane.provider.prepareRunResult";
/// The kind of an answer to `run`.
const RUN_KIND: &str = "runtime.sandboxPlane.provider.runResult";

/// The exit code of a command whose time was up.
const TIMED_OUT_CODE: i64 = 124;

/// Why a command does not run, in words that an agent may read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PortDenial {
    pub(super) code: &'static str,
    pub(super) message: String,
}

impl PortDenial {
    pub(super) fn denied(message: impl Into<String>) -> Self {
        Self { code: "SANDBOX_DENIED", message: message.into() }
    }

    pub(super) fn unavailable(message: impl Into<String>) -> Self {
        Self { code: "SANDBOX_PROVIDER_UNAVAILABLE", message: message.into() }
    }

    fn run_failed(message: impl Into<String>) -> Self {
        Self { code: "SANDBOX_RUN_FAILED", message: message.into() }
    }

    fn to_value(&self) -> Value {
        json!({"code": self.code, "message": self.message, "publicSafe": true})
    }
}

impl From<Refusal> for PortDenial {
    fn from(refusal: Refusal) -> Self {
        Self { code: refusal.code, message: refusal.message }
    }
}

/// Something that may surprise the policy owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PortWarning {
    pub(super) code: &'static str,
    pub(super) message: String,
}

impl PortWarning {
    fn to_value(&self) -> Value {
        json!({"code": self.code, "message": self.message})
    }
}

/// Returns the family that a tier fills the place of.
pub(super) const fn family_of(isolation: Isolation) -> &'static str {
    match isolation {
        Isolation::Namespace => "linux-bubblewrap",
        Isolation::Mock
        | Isolation::Process
        | Isolation::Hermetic
        | Isolation::Opensandbox
        | Isolation::E2b
        | Isolation::Daytona
        | Isolation::VercelSandbox => "external",
    }
}

/// What is known about a command before it runs.
#[derive(Debug, Default)]
pub(super) struct PortFindings {
    pub(super) denial: Option<PortDenial>,
    pub(super) gap: Option<Gap>,
    pub(super) lowering: Option<Value>,
    pub(super) artifact: Option<Value>,
    pub(super) warnings: Vec<PortWarning>,
    pub(super) metadata: Map<String, Value>,
}

impl PortFindings {
    pub(super) fn denied(denial: PortDenial) -> Self {
        Self { denial: Some(denial), ..Self::default() }
    }

    pub(super) fn is_ready(&self) -> bool {
        self.denial.is_none() && self.gap.is_none()
    }

    /// Returns the answer to `prepareRun`.
    pub(super) fn prepare_result(self, isolation: Isolation) -> Value {
        let warnings: Vec<Value> = self.warnings.iter().map(PortWarning::to_value).collect();
        let artifact = |data: Value| {
            json!({
                "backend": family_of(isolation),
                "format": "warrant.plan.v1",
                "arguments": [],
                "data": data,
                "warnings": warnings,
            })
        };
        let mut result = json!({
            "kind": PREPARE_KIND,
            "ok": self.is_ready(),
            "providerFamily": family_of(isolation),
            "backendArtifacts": self.artifact.clone().map(artifact).into_iter().collect::<Vec<_>>(),
            "metadata": metadata(isolation, self.metadata.clone()),
        });
        self.add_to(&mut result);
        result
    }

    /// Returns the answer to `run` for a command that did not run.
    pub(super) fn not_run_result(self, isolation: Isolation) -> Value {
        let mut result = json!({
            "kind": RUN_KIND,
            "ok": false,
            "providerFamily": family_of(isolation),
            "exitCode": null,
            "stdout": "",
            "stderr": "",
            "timedOut": false,
            "metadata": metadata(isolation, self.metadata.clone()),
        });
        self.add_to(&mut result);
        result
    }

    /// Returns the answer to `run` for a command with a receipt of its own.
    pub(super) fn ended_result(mut self, isolation: Isolation, run: &EndedRun<'_>) -> Value {
        let EndedRun { ended, kept, capture } = run;
        let (stdout, stderr) = capture.excerpts();
        let end = CommandEnd::of(ended);
        let mut facts = std::mem::take(&mut self.metadata);
        facts.insert("runId".to_owned(), json!(ended.run));
        facts.insert("receiptHash".to_owned(), json!(ended.receipt.hash()));
        facts.insert("outcome".to_owned(), json!(ended.outcome));
        facts.insert("stdoutMissingBytes".to_owned(), json!(stdout.missing));
        facts.insert("stderrMissingBytes".to_owned(), json!(stderr.missing));
        facts.insert("blockedHosts".to_owned(), json!(ended.blocked_hosts()));
        facts.insert("workspace".to_owned(), writes(kept));
        let mut result = json!({
            "kind": RUN_KIND,
            "ok": end.denial.is_none(),
            "providerFamily": family_of(isolation),
            "exitCode": end.exit_code,
            "stdout": String::from_utf8_lossy(&stdout.head),
            "stderr": String::from_utf8_lossy(&stderr.head),
            "timedOut": end.is_timed_out,
            "metadata": metadata(isolation, facts),
        });
        if !matches!(ended.outcome, Outcome::GapDenied) {
            self.gap = None;
        }
        self.denial = end.denial;
        self.add_to(&mut result);
        result
    }

    fn add_to(self, result: &mut Value) {
        let Value::Object(members) = result else { return };
        if let Some(denial) = &self.denial {
            members.insert("denial".to_owned(), denial.to_value());
        }
        if let Some(gap) = &self.gap {
            members.insert("environmentGap".to_owned(), gap_value(gap));
        }
        if let Some(lowering) = self.lowering {
            members.insert("filesystemLowering".to_owned(), lowering);
        }
    }
}

/// A command that has a receipt of its own.
pub(super) struct EndedRun<'a> {
    pub(super) ended: &'a Ended,
    pub(super) kept: &'a Kept,
    pub(super) capture: &'a Capture,
}

/// How a command ended, as the port tells it.
struct CommandEnd {
    exit_code: Option<i64>,
    is_timed_out: bool,
    denial: Option<PortDenial>,
}

impl CommandEnd {
    fn of(ended: &Ended) -> Self {
        let code =
            |exit_code: i64| Self { exit_code: Some(exit_code), is_timed_out: false, denial: None };
        let not = |denial: PortDenial| Self {
            exit_code: None,
            is_timed_out: false,
            denial: Some(denial),
        };
        let message = ended.message.clone();
        match &ended.outcome {
            Outcome::Exited { code: exit } => code(i64::from(*exit)),
            Outcome::Signaled { signal } => code(128 + i64::from(*signal)),
            Outcome::Limited { limit: warrant_protocol::LimitKind::Wall } => {
                Self { is_timed_out: true, ..code(TIMED_OUT_CODE) }
            }
            Outcome::GapDenied | Outcome::Denied | Outcome::ApprovalExpired => {
                not(PortDenial::denied(message))
            }
            Outcome::PostureRefused => not(PortDenial::unavailable(message)),
            Outcome::Limited { .. }
            | Outcome::Performed { .. }
            | Outcome::Cancelled
            | Outcome::Unobserved
            | Outcome::Lost
            | Outcome::Failed => not(PortDenial::run_failed(message)),
        }
    }
}

fn metadata(isolation: Isolation, mut facts: Map<String, Value>) -> Value {
    facts.insert("providerId".to_owned(), json!("warrant"));
    facts.insert("isolation".to_owned(), json!(isolation));
    Value::Object(facts)
}

fn gap_value(gap: &Gap) -> Value {
    let required = match gap.required {
        None => json!(["read"]),
        Some(Access::Read) => json!(["read"]),
        Some(Access::Write) => json!(["write"]),
        Some(Access::ReadWrite) => json!(["read", "write"]),
    };
    json!({
        "reason": gap.reason.as_str(),
        "path": gap.path,
        "required": required,
        "publicSafeMessage": gap.message,
    })
}

/// Says what became of a command's writes to the workspace.
fn writes(kept: &Kept) -> Value {
    match kept {
        Kept::Nothing => json!({"writes": "none"}),
        Kept::AsDiff(digest) => json!({"writes": "diff", "diffHash": digest}),
        Kept::RolledBack => json!({"writes": "rolled-back"}),
        Kept::Exported { paths, gated, conflicts, .. } => {
            let paths: Vec<String> = paths.iter().map(ToString::to_string).collect();
            let held: Vec<String> = gated
                .iter()
                .filter(|gated| matches!(gated.verdict, Verdict::Hold | Verdict::Refuse))
                .map(|gated| gated.path.to_string())
                .collect();
            let conflicts: Vec<String> = conflicts.iter().map(ToString::to_string).collect();
            json!({"writes": "kept", "paths": paths, "heldBack": held, "conflicts": conflicts})
        }
    }
}

/// What a lowering report is made of.
pub(super) struct LoweringParts<'a> {
    pub(super) declared: &'a [DeclaredRoot],
    pub(super) lowering: &'a Lowering,
    pub(super) grants: Vec<Value>,
    pub(super) warnings: &'a [PortWarning],
}

/// Returns the member `filesystemLowering`.
pub(super) fn lowering_value(parts: LoweringParts<'_>) -> Value {
    let LoweringParts { declared, lowering, grants, warnings } = parts;
    let declared = declared.iter().map(DeclaredRoot::to_value);
    let runtime = lowering.runtime.iter().filter(|root| root.path.exists());
    let of_script = lowering.warnings.iter();
    let of_script =
        of_script.map(|message| json!({"code": "COMMAND_MAY_FAIL", "message": message}));
    let warnings = warnings.iter().map(PortWarning::to_value).chain(of_script);
    json!({
        "declaredRoots": declared.collect::<Vec<_>>(),
        "runtimeRoots": runtime.map(runtime_root).collect::<Vec<_>>(),
        "policyGrants": grants,
        "warnings": warnings.collect::<Vec<_>>(),
        "effects": lowering.effects.iter().map(effect_value).collect::<Vec<_>>(),
    })
}

fn runtime_root(root: &Root) -> Value {
    let access = match root.path.to_str() {
        Some("/tmp") => "scratch",
        _ if root.path.is_symlink() => "runtime-link",
        _ => "runtime",
    };
    json!({"path": root.path.display().to_string(), "access": access, "source": "backend-runtime"})
}

fn effect_value(effect: &Effect) -> Value {
    let mut value = json!({
        "rawToken": effect.token,
        "access": effect.access.as_str(),
        "command": effect.program,
        "reason": effect.why,
        "confidence": effect.confidence.as_str(),
    });
    let Value::Object(members) = &mut value else { return value };
    let mut add = |name: &str, text: &str| members.insert(name.to_owned(), json!(text));
    match &effect.target {
        Target::Path(path) => add("path", path),
        Target::Pattern(pattern) => add("pattern", pattern),
        Target::Home { rest } => add("pattern", &format!("~{rest}")),
        Target::Dynamic => add("warning", "only the shell will know the path"),
    };
    value
}
