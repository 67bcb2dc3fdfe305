//! Limits: each one that the posture claims is run into.
//!
//! What counts is the effect, not the word: a program that gets more than it was given fails the
//! check however it ends.

use std::fs;

use warrant_protocol::{Digest, LimitKind, Outcome};
use warrant_sandbox::{Command, Invocation, Shell, WorkspaceAccess};

use super::Check;
use crate::lab::{Finding, Lab, Passed, Ran, ensure};
use crate::tier::Level;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "limits.output",
        level: Level::L2,
        name: "output stops exactly at its limit, and the report says that more came",
        run: output,
    },
    Check { id: "limits.cpu", level: Level::L2, name: "a claimed CPU limit strikes", run: cpu },
    Check {
        id: "limits.memory",
        level: Level::L2,
        name: "a claimed memory limit holds",
        run: memory,
    },
    Check {
        id: "limits.processes",
        level: Level::L2,
        name: "a claimed limit of processes holds",
        run: processes,
    },
    Check {
        id: "limits.open-files",
        level: Level::L2,
        name: "a claimed limit of open files holds",
        run: open_files,
    },
    Check {
        id: "limits.file-size",
        level: Level::L2,
        name: "a claimed limit on the size of a file holds",
        run: file_size,
    },
    Check {
        id: "limits.disk",
        level: Level::L2,
        name: "a claimed limit on bytes written holds",
        run: disk,
    },
    Check {
        id: "limits.inodes",
        level: Level::L2,
        name: "a claimed limit on files made holds",
        run: inodes,
    },
];

/// Returns why there is nothing to try, where the posture does not claim a limit.
fn unclaimed(lab: &Lab<'_>, kind: LimitKind) -> Result<Option<Passed>, crate::lab::Broken> {
    let name = format!("limits.{}", kind.as_str());
    let posture = lab.open()?.probe();
    // A sampled limit is no wall, but it must strike all the same.
    let is_claimed = posture.enforces(&name) || posture.observes(&name);
    Ok((!is_claimed).then(|| Passed::Moot(format!("the posture does not claim {name}"))))
}

/// Goes on when a program that says `done` once it got too much has not said so, and not for
/// want of time.
fn ensure_not_done(ran: &Ran, what: &str) -> Result<(), crate::lab::Broken> {
    let is_slow = ran.report.outcome == Outcome::Limited { limit: LimitKind::Wall };
    ensure(!is_slow, || "nothing struck before the deadline did".to_owned())?;
    ensure(!ran.text().contains("done") && !ran.report.outcome.is_success(), || {
        format!("{what}; it ended as {:?}", ran.report.outcome)
    })
}

/// Returns what a run into a limit showed. A report that itself says that the limit did not hold
/// at this size is honest: whoever demands it is refused before the program starts.
fn held(ran: &Ran, kind: LimitKind, what: &str) -> Finding {
    if !ran.report.posture.enforces(&format!("limits.{}", kind.as_str())) {
        return Ok(Passed::HeldAs(
            "not at this size, and the run's own posture says so".to_owned(),
        ));
    }
    ensure_not_done(ran, what)?;
    Ok(Passed::HeldAs(format!("ended as {:?}", ran.report.outcome)))
}

fn output(lab: &Lab<'_>) -> Finding {
    if let Some(moot) = unclaimed(lab, LimitKind::Output)? {
        return Ok(moot);
    }
    let limit = 60_000;
    let mut invocation = lab.script("while :; do echo 0123456789; echo abc >&2; done");
    invocation.limits.output_bytes = Some(limit);
    invocation.limits.wall_ms = Some(4_000);
    let ran = lab.run_invocation(invocation)?;
    ran.expect(&Outcome::Limited { limit: LimitKind::Output })?;
    ensure(ran.total == limit, || format!("{} bytes passed a limit of {limit}", ran.total))?;
    let (stdout, stderr) = (ran.report.stdout, ran.report.stderr);
    ensure(stdout.bytes + stderr.bytes == limit, || {
        format!("{} bytes passed and {} + {} are told", ran.total, stdout.bytes, stderr.bytes)
    })?;
    ensure(stdout.digest == Digest::of(&ran.stdout), || "the digest is of other bytes".to_owned())?;
    ensure(stdout.truncated || stderr.truncated, || "nothing is told to be cut".to_owned())?;
    Ok(Passed::Held)
}

fn cpu(lab: &Lab<'_>) -> Finding {
    if let Some(moot) = unclaimed(lab, LimitKind::Cpu)? {
        return Ok(moot);
    }
    let mut invocation = lab.script("while :; do :; done");
    invocation.limits.cpu_ms = Some(300);
    invocation.limits.wall_ms = Some(5_000);
    let ran = lab.run_invocation(invocation)?;
    ran.expect(&Outcome::Limited { limit: LimitKind::Cpu })?;
    Ok(Passed::Held)
}

fn memory(lab: &Lab<'_>) -> Finding {
    if let Some(moot) = unclaimed(lab, LimitKind::Memory)? {
        return Ok(moot);
    }
    let script = if lab.starts_programs() {
        "head -c 134217728 /dev/zero | tail -c 134217728 | wc -c | grep 134217728 && echo done"
    } else {
        "x=0123456789abcdef; i=0; while [ $i -lt 23 ]; do x=$x$x; i=$((i+1)); done; echo done"
    };
    let mut invocation = lab.script(script);
    invocation.limits.memory_bytes = Some(40 << 20);
    let ran = lab.run_invocation(invocation)?;
    held(&ran, LimitKind::Memory, "a program held 128 MiB within a limit of 40")
}

fn processes(lab: &Lab<'_>) -> Finding {
    if let Some(moot) = unclaimed(lab, LimitKind::Processes)? {
        return Ok(moot);
    }
    if !lab.starts_programs() {
        return Ok(Passed::Moot("no process is ever started, so none is too many".to_owned()));
    }
    let limit = 12;
    let script = "i=0; while [ $i -lt 60 ]; do sleep 5 & i=$((i+1)); echo started; done; echo done";
    let mut invocation = lab.script(script);
    invocation.limits.processes = Some(limit);
    invocation.limits.wall_ms = Some(3_000);
    let ran = lab.run_invocation(invocation)?;
    let started = ran.text().lines().filter(|line| *line == "started").count() as u64;
    ensure_not_done(&ran, "60 processes were alive within a limit of 12")?;
    ensure(started <= limit, || format!("{started} were started within a limit of {limit}"))?;
    Ok(Passed::HeldAs(format!("{started} were started, then {:?}", ran.report.outcome)))
}

fn open_files(lab: &Lab<'_>) -> Finding {
    if let Some(moot) = unclaimed(lab, LimitKind::OpenFiles)? {
        return Ok(moot);
    }
    if !lab.starts_programs() {
        return Ok(Passed::Moot("a script holds no descriptor of the host".to_owned()));
    }
    let script = "i=10; while [ $i -lt 90 ]; do eval \"exec $i<.\" || exit 1; i=$((i+1)); done\n\
                  echo done";
    let command = Command::Shell { shell: Shell::Bash, script: script.to_owned() };
    let mut invocation = lab.invocation(command);
    invocation.limits.open_files = Some(40);
    let ran = lab.run_invocation(invocation)?;
    ensure_not_done(&ran, "80 files were open within a limit of 40")?;
    Ok(Passed::Held)
}

fn file_size(lab: &Lab<'_>) -> Finding {
    if let Some(moot) = unclaimed(lab, LimitKind::FileSize)? {
        return Ok(moot);
    }
    let limit = 100_000;
    let mut invocation = lab.script("seq 1 100000 > big && echo done");
    invocation.limits.file_bytes = Some(limit);
    let ran = lab.run_invocation(invocation)?;
    ensure_not_done(&ran, "588895 bytes went into one file within a limit of 100000")?;
    if lab.is_shared() {
        let size = fs::metadata(lab.workspace().join("big")).map_or(0, |file| file.len());
        ensure(size <= limit, || format!("the file has {size} bytes, the limit is {limit}"))?;
    }
    Ok(Passed::Held)
}

/// Returns an invocation that writes where limits on writing count: to a layer of its own if
/// there is one.
fn writing(lab: &Lab<'_>, script: &str) -> Result<Invocation, crate::lab::Broken> {
    let mut invocation = lab.script(script);
    if lab.refusal_of(WorkspaceAccess::Overlay)?.is_none() {
        invocation.files.access = WorkspaceAccess::Overlay;
    }
    Ok(invocation)
}

fn disk(lab: &Lab<'_>) -> Finding {
    if let Some(moot) = unclaimed(lab, LimitKind::Disk)? {
        return Ok(moot);
    }
    let script = "i=0; while [ $i -lt 40 ]; do seq 1 10000 > f$i || exit 1; i=$((i+1)); done\n\
                  echo done";
    let mut invocation = writing(lab, script)?;
    invocation.limits.disk_bytes = Some(512 << 10);
    let ran = lab.run_invocation(invocation)?;
    held(&ran, LimitKind::Disk, "1955760 bytes were written within a limit of 524288")
}

fn inodes(lab: &Lab<'_>) -> Finding {
    if let Some(moot) = unclaimed(lab, LimitKind::Inodes)? {
        return Ok(moot);
    }
    let script = "i=0; while [ $i -lt 300 ]; do mkdir d$i || exit 1; i=$((i+1)); done; echo done";
    let mut invocation = writing(lab, script)?;
    invocation.limits.inodes = Some(60);
    let ran = lab.run_invocation(invocation)?;
    ensure_not_done(&ran, "300 directories were made within a limit of 60")?;
    Ok(Passed::HeldAs(format!("ended as {:?}", ran.report.outcome)))
}
