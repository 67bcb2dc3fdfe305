//! Opening, preparing, running and letting go; and whether the subject is what it says it is.

use std::fs;

use warrant_protocol::Outcome;
use warrant_sandbox::WorkspaceAccess;

use super::Check;
use crate::lab::{Attempt, Broken, Finding, Lab, Passed, ensure, excerpt};
use crate::sinks::Manner;
use crate::subject::{OutputFidelity, WorkspaceKind};
use crate::tier::Level;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "lifecycle.create-destroy",
        level: Level::L1,
        name: "a fresh handle runs a program to its end and leaves nothing in the workspace",
        run: create_destroy,
    },
    Check {
        id: "lifecycle.prepare-runs-nothing",
        level: Level::L1,
        name: "preparing is repeatable and runs nothing",
        run: prepare_runs_nothing,
    },
    Check {
        id: "lifecycle.one-isolation",
        level: Level::L1,
        name: "handle, plan, probe and report speak of the same isolation",
        run: one_isolation,
    },
    Check {
        id: "lifecycle.capabilities",
        level: Level::L1,
        name: "the subject can do what it declares, and no more",
        run: capabilities,
    },
];

fn create_destroy(lab: &Lab<'_>) -> Finding {
    lab.put("kept", "as it was")?;
    for _ in 0..2 {
        let ran = lab.run(":")?;
        ran.expect(&Outcome::Exited { code: 0 })?;
        ensure(ran.report.usage.wall_us.is_some(), || "the time it took is not told".to_owned())?;
    }
    let names = names(lab)?;
    ensure(names == ["kept"], || format!("the workspace now holds {names:?}"))?;
    Ok(Passed::Held)
}

fn prepare_runs_nothing(lab: &Lab<'_>) -> Finding {
    let backend = lab.open()?;
    let prepare = || {
        let plan = backend.prepare(lab.script("echo ran > ran"));
        plan.map_err(|refusal| Broken(format!("refused: {refusal}")))
    };
    let (first, second) = (prepare()?, prepare()?);
    ensure(first.artifact == second.artifact, || "two plans of one invocation differ".to_owned())?;
    let names = names(lab)?;
    ensure(names.is_empty(), || format!("preparing left {names:?} in the workspace"))?;
    Ok(Passed::Held)
}

fn one_isolation(lab: &Lab<'_>) -> Finding {
    let backend = lab.open()?;
    let (handle, probe) = (backend.isolation(), backend.probe().isolation);
    let ran = lab.run(":")?;
    let (plan, report) = (ran.plan.isolation, ran.report.posture.isolation);
    ensure([probe, plan, report] == [handle; 3], || {
        format!("the handle says {handle}, probe {probe}, plan {plan}, report {report}")
    })?;
    Ok(Passed::Held)
}

/// A program of the host, copied into the workspace, starts or does not; a file of the host's
/// workspace is seen or is not.
fn capabilities(lab: &Lab<'_>) -> Finding {
    let shell = fs::canonicalize("/bin/sh")?;
    fs::copy(shell, lab.workspace().join("program"))?;
    lab.put("seen", "seen")?;
    // Another thread of ours that forks may hold the copy open for a moment, which makes it busy.
    let script = "cat seen; i=0; while [ $i -lt 10 ]; do ./program -c 'exit 42'; code=$?; \
                  [ $code -eq 126 ] || break; sleep 0.05; i=$((i+1)); done; exit $code";
    let ran = lab.run(script)?;
    let started = ran.report.outcome == Outcome::Exited { code: 42 };
    let declared = lab.subject.capabilities;
    let output = format!("{:?}", declared.output).to_lowercase();
    ensure(started == declared.starts_programs, || {
        let does = if started { "starts" } else { "does not start" };
        format!("it declares otherwise, but {does} programs: {:?}", ran.report.outcome)
    })?;
    let (is_seen, is_exact) = (ran.stdout.starts_with(b"seen"), ran.stdout == b"seen");
    let seen = if is_seen { WorkspaceKind::Host } else { WorkspaceKind::Memory };
    let arriving = if is_exact { OutputFidelity::Bytes } else { OutputFidelity::Lines };
    ensure(!is_seen || arriving == declared.output, || {
        let (declared, found) = (declared.output, excerpt(&ran.stdout));
        format!("it declares output as {declared:?}, and of `seen` without a line end came {found}")
    })?;
    ensure(seen == declared.workspace, || {
        format!("it declares a {:?} workspace, and has one of {seen:?}", declared.workspace)
    })?;
    let mut offered = Vec::new();
    for access in [WorkspaceAccess::ReadOnly, WorkspaceAccess::Overlay, WorkspaceAccess::Direct] {
        let mut invocation = lab.script(":");
        invocation.files.access = access;
        match lab.attempt(invocation, Manner::Keep)? {
            Attempt::Ran(_) => offered.push(format!("{access:?}").to_lowercase()),
            Attempt::Refused(_) => {}
            Attempt::Failed(what) => return Err(Broken(format!("{access:?}: {what}"))),
        }
    }
    ensure(!offered.is_empty(), || "no access to the workspace is offered".to_owned())?;
    Ok(Passed::HeldAs(format!("workspace access: {}; output as {output}", offered.join(", "))))
}

fn names(lab: &Lab<'_>) -> Result<Vec<String>, Broken> {
    let mut names = Vec::new();
    for entry in fs::read_dir(lab.workspace())? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    Ok(names)
}
