//! The two calls of the port: look at a request, and run it to its receipt.

use std::sync::Arc;

use serde_json::{Value, json};
use warrant_protocol::{Decision, RunId};
use warrant_runner::preview::{Foreseen, Terms, foresee};
use warrant_sandbox::Stdin;

use super::plan::{Caller, NoPlan, PortPlan};
use super::request::PortRequest;
use super::results::{EndedRun, LoweringParts, PortDenial, PortFindings, lowering_value};
use super::{CallFailure, PortCall, ProviderPort, TakenCall};
use crate::desk::{Desk, DeskError, Hands, Permit};
use crate::keep;
use crate::output::Capture;

/// How much of each stream a result carries when the caller does not say.
const DEFAULT_OUTPUT_BYTES: u64 = 1024 * 1024;
/// How much of each stream a result carries at most.
const MAX_OUTPUT_BYTES: u64 = 16 * 1024 * 1024;

impl ProviderPort {
    /// Does what a line calls for.
    pub(super) fn perform(&self, call: &TakenCall) -> Result<Value, CallFailure> {
        let isolation = self.backend.isolation();
        let (code, done) = match call.call {
            PortCall::Prepare => {
                let looked = self.look(&call.request);
                let done = looked.map(|(findings, _)| findings.prepare_result(isolation));
                ("SANDBOX_PREPARE_FAILED", done)
            }
            PortCall::Run => ("SANDBOX_RUN_FAILED", self.run(call)),
        };
        done.or_else(|error| match error {
            DeskError::SecretInRequest { .. } => {
                let findings = PortFindings::denied(PortDenial::denied(error.to_string()));
                Ok(match call.call {
                    PortCall::Prepare => findings.prepare_result(isolation),
                    PortCall::Run => findings.not_run_result(isolation),
                })
            }
            error => Err(CallFailure::internal(code, &error)),
        })
    }

    /// Looks at a request: nothing is started or stored. The plan is there unless the request
    /// cannot be expressed here at all.
    fn look(&self, request: &PortRequest) -> Result<(PortFindings, Option<Looked>), DeskError> {
        let desk = self.desk()?;
        let caller =
            Caller { desk: &desk, principal: &self.principal, isolation: self.backend.isolation() };
        let mut plan = match PortPlan::make(request, &caller) {
            Ok(plan) => plan,
            Err(NoPlan::Denied(denial)) => return Ok((PortFindings::denied(denial), None)),
            Err(NoPlan::Gap(gap)) => {
                return Ok((PortFindings { gap: Some(gap), ..PortFindings::default() }, None));
            }
        };
        plan.ask = desk.with_git(plan.ask)?.ask;
        let judgment = desk.judge(&plan.ask)?;
        let terms = Terms { limits: judgment.limits.as_ref(), masks: &judgment.masks };
        let places = (plan.ask.workspace.as_path(), desk.plane().home().root());
        let foreseen = foresee(&plan.ask.request, terms, places, self.backend.as_ref());
        let mut findings = findings_of(request, &plan, foreseen);
        let summary = &judgment.summary;
        findings.metadata.insert("decision".to_owned(), json!(summary.decision));
        findings.metadata.insert("policyHash".to_owned(), json!(judgment.policy_hash));
        match summary.decision {
            Decision::Allow => {}
            Decision::Deny => {
                findings.gap = None;
                findings.denial = Some(PortDenial::denied(summary.reasons.join("; ")));
            }
            Decision::Ask if findings.is_ready() => {
                let names: Vec<_> =
                    judgment.requirements.iter().map(|needed| needed.name.as_str()).collect();
                findings.denial = Some(PortDenial::denied(format!(
                    "it needs approval by people of this machine: {}",
                    names.join(", ")
                )));
            }
            Decision::Ask => {}
        }
        Ok((findings, Some(Looked { desk, plan })))
    }

    /// Runs a request to its receipt.
    fn run(&self, call: &TakenCall) -> Result<Value, DeskError> {
        let isolation = self.backend.isolation();
        let (mut findings, looked) = self.look(&call.request)?;
        let Some(Looked { desk, plan }) = looked else {
            return Ok(findings.not_run_result(isolation));
        };
        let place = keep::Place::find(&plan.ask.workspace)?;
        let run = match desk.permit(&plan.ask)? {
            Permit::Granted(run) => run,
            permit => {
                note_not_run(&mut findings, &permit);
                return Ok(findings.not_run_result(isolation));
            }
        };
        let resources = &call.request.resources;
        let limit = resources.max_output_bytes.unwrap_or(DEFAULT_OUTPUT_BYTES);
        let limit = usize::try_from(limit.min(MAX_OUTPUT_BYTES)).unwrap_or(usize::MAX);
        let capture = Capture::beginning(limit);
        let stdin = match call.request.stdin.as_slice() {
            [] => Stdin::Empty,
            bytes => Stdin::Bytes(bytes.to_vec()),
        };
        let hands = Hands {
            backend: self.backend.as_ref(),
            stdin: &stdin,
            tty: None,
            cancel: &call.cancel,
            observer: &capture,
            environment: &self.environment,
        };
        let ended = desk.perform(&run, &plan.ask, &hands)?;
        let kept = keep::after(&desk, &place, plan.mode, &ended)
            .map_err(|error| DeskError::System(std::io::Error::other(error)))?;
        let run = EndedRun { ended: &ended, kept: &kept, capture: &capture };
        Ok(findings.ended_result(isolation, &run))
    }
}

/// A request that was looked at, and who judged it.
struct Looked {
    desk: Arc<Desk>,
    plan: PortPlan,
}

fn findings_of(request: &PortRequest, plan: &PortPlan, foreseen: Option<Foreseen>) -> PortFindings {
    let mut findings = PortFindings { warnings: plan.warnings.clone(), ..PortFindings::default() };
    let lowering = match foreseen {
        None => {
            findings.denial = Some(PortDenial::denied("this command cannot be started here"));
            return findings;
        }
        Some(Foreseen::Ready { lowering, artifact }) => {
            findings.artifact = Some(artifact);
            lowering
        }
        Some(Foreseen::Gap { gap, lowering }) => {
            findings.gap = Some(gap);
            lowering
        }
        Some(Foreseen::Refused { refusal, lowering }) => {
            findings.denial = Some(refusal.into());
            lowering
        }
    };
    findings.lowering = Some(lowering_value(LoweringParts {
        declared: &plan.declared,
        lowering: &lowering,
        grants: request.grants.iter().map(|grant| grant.sent.clone()).collect(),
        warnings: &plan.warnings,
    }));
    findings
}

/// Says why policy, or people, keep a command from running; both leave a record.
fn note_not_run(findings: &mut PortFindings, permit: &Permit) {
    let mut note = |name: &str, value: Value| findings.metadata.insert(name.to_owned(), value);
    let approve =
        |run: &RunId| format!("approve it with `warrant approve {run}`, then run it again");
    let message = match permit {
        Permit::Denied { run, judgment, receipt } => {
            note("runId", json!(run));
            note("receiptHash", json!(receipt.hash()));
            judgment.summary.reasons.join("; ")
        }
        Permit::Waiting { run, judgment, .. } => {
            note("runId", json!(run));
            note("approvalRequired", json!(true));
            let names: Vec<_> =
                judgment.requirements.iter().map(|needed| needed.name.as_str()).collect();
            format!("it needs approval ({}); {}", names.join(", "), approve(run))
        }
        Permit::Granted(run) => format!("{run} was not started"),
    };
    findings.gap = None;
    findings.denial = Some(PortDenial::denied(message));
}
