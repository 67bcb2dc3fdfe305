//! Faults injected where the subject offers it: everything ambiguous ends as a failure.

use warrant_protocol::{LimitKind, Outcome};

use super::Check;
use crate::lab::{Attempt, Broken, Finding, Lab, Passed, ensure};
use crate::preflight::STRICT;
use crate::sinks::Manner;
use crate::subject::Fault;
use crate::tier::Level;

/// One check per fault; each hands the same trial another fault.
macro_rules! faults {
    ($($function:ident $fault:ident $id:literal $name:literal,)*) => {
        pub(super) const CHECKS: &[Check] =
            &[$(Check { id: $id, level: Level::L3, name: $name, run: $function }),*];
        $(fn $function(lab: &Lab<'_>) -> Finding {
            trial(lab, Fault::$fault)
        })*
    };
}

faults! {
    crash Crash "fault.crash" "what runs the program dies: never a success",
    hang Hang "fault.hang" "what runs the program hangs: ended at the deadline",
    boundary BrokenBoundary "fault.boundary" "the boundary cannot be built: nothing runs",
    posture PostureDegraded "fault.posture" "a boundary that got weaker after preparing is noticed",
    server_error ServerError "fault.server-error" "the provider answers with an error",
    server_hang ServerHang "fault.server-hang" "the provider never answers",
    truncated TruncatedAnswer "fault.truncated" "the provider's answer stops in the middle",
    malformed MalformedAnswer "fault.malformed" "the provider's answer is malformed",
    wrong_sandbox WrongSandbox "fault.wrong-sandbox" "the provider answers for another sandbox",
    other_spec OtherSpecOnResume "fault.other-spec" "the sandbox resumes with another spec",
    key_revoked KeyRevoked "fault.key-revoked" "the provider's key is revoked",
    egress_opened EgressOpened "fault.egress-opened" "egress is opened after preflight",
    image_swapped ImageSwapped "fault.image-swapped" "the image is swapped after preflight",
    connection_cut ConnectionCut "fault.connection-cut" "nobody saw the end: never a success",
}

/// What the program would say if nothing went wrong.
const SAID: &str = "fine\n";

fn trial(lab: &Lab<'_>, fault: Fault) -> Finding {
    let injected = lab.subject.inject.as_ref().and_then(|inject| inject(fault));
    let Some(backend) = injected else {
        return not_offered(lab, fault);
    };
    let mut invocation = lab.script("echo fine");
    invocation.limits.wall_ms = Some(1_000);
    let ran = match lab.attempt_on(backend, invocation, Manner::Keep)? {
        Attempt::Refused(refusal) => return Ok(Passed::HeldAs(format!("refused: {refusal}"))),
        Attempt::Failed(what) => return Ok(Passed::HeldAs(what)),
        Attempt::Ran(ran) => ran,
    };
    let outcome = &ran.report.outcome;
    if fault == Fault::PostureDegraded || fault == Fault::EgressOpened {
        let lacking = ran.report.posture.lacking(STRICT);
        let is_noticed = !lacking.is_empty() || !outcome.is_success();
        ensure(is_noticed, || "the report still says that everything held".to_owned())?;
        return Ok(Passed::HeldAs(format!("the report lacks {}", lacking.join(", "))));
    }
    ensure(!outcome.is_success(), || format!("it is told as a success, having said {SAID:?}"))?;
    if fault == Fault::Hang {
        ran.expect(&Outcome::Limited { limit: LimitKind::Wall })?;
    }
    if fault == Fault::ConnectionCut {
        ensure(matches!(outcome, Outcome::Unobserved | Outcome::Failed), || {
            format!("nobody saw its end, and it is told as {outcome:?}")
        })?;
    }
    Ok(Passed::HeldAs(format!("ended as {outcome:?}")))
}

/// A wire can always be made to fail; a boundary built here by ourselves cannot, save by what
/// the other checks do to it from inside.
fn not_offered(lab: &Lab<'_>, fault: Fault) -> Finding {
    if lab.subject.capabilities.is_remote {
        return Err(Broken(format!("the subject offers no way to try {fault:?}")));
    }
    let why = match fault {
        Fault::Crash => "not offered; tried from inside by hostile.crash",
        Fault::Hang => "not offered; tried from inside by stop.deadline and stop.sigstop",
        Fault::BrokenBoundary => "not offered; the boundary is built of this machine's own parts",
        Fault::PostureDegraded => {
            "not offered; the boundary is built within the run, see preflight.run-agrees"
        }
        Fault::ServerError
        | Fault::ServerHang
        | Fault::TruncatedAnswer
        | Fault::MalformedAnswer
        | Fault::WrongSandbox
        | Fault::OtherSpecOnResume
        | Fault::KeyRevoked
        | Fault::EgressOpened
        | Fault::ImageSwapped
        | Fault::ConnectionCut => "there is no provider's wire",
    };
    Ok(Passed::Moot(why.to_owned()))
}
