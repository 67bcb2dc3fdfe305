//! Ending: at the deadline, on request, and with everything the program started.

use warrant_protocol::{LimitKind, Outcome};
use warrant_sandbox::Invocation;

use super::Check;
use crate::beat;
use crate::lab::{Attempt, Broken, Finding, GRACE, Lab, Passed, Ran, ensure};
use crate::sinks::Manner;
use crate::tier::Level;

/// The deadline of checks that wait for it.
const WALL_MS: u64 = 700;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "stop.deadline",
        level: Level::L2,
        name: "a program that never ends is stopped at its deadline, and that is the outcome",
        run: deadline,
    },
    Check {
        id: "stop.deadline-kills-tree",
        level: Level::L2,
        name: "the deadline ends the whole tree, with a daemon that left it",
        run: deadline_kills_tree,
    },
    Check {
        id: "stop.exit-kills-tree",
        level: Level::L2,
        name: "nothing a program started outlives its end",
        run: exit_kills_tree,
    },
    Check {
        id: "stop.cancel",
        level: Level::L3,
        name: "a run cancelled in the middle ends at once, with everything it started",
        run: cancel,
    },
    Check {
        id: "stop.reader-gone",
        level: Level::L3,
        name: "a run that nobody listens to any more is cancelled",
        run: reader_gone,
    },
    Check {
        id: "stop.sigstop",
        level: Level::L3,
        name: "a tree that stopped itself still ends at its deadline",
        run: sigstop,
    },
];

fn with_deadline(lab: &Lab<'_>, script: &str) -> Invocation {
    let mut invocation = lab.script(script);
    invocation.limits.wall_ms = Some(WALL_MS);
    invocation
}

/// Goes on when a run was ended by its deadline, and in time.
fn ended_at_deadline(ran: &Ran) -> Result<(), Broken> {
    ran.expect(&Outcome::Limited { limit: LimitKind::Wall })?;
    let (took, wall) = (ran.took.as_millis(), u128::from(WALL_MS));
    ensure(took >= wall && ran.took < GRACE + std::time::Duration::from_millis(WALL_MS), || {
        format!("the deadline was {wall} ms, and it took {took}")
    })
}

fn deadline(lab: &Lab<'_>) -> Finding {
    for script in ["echo before; sleep 30; echo after", "trap '' TERM INT; while :; do :; done"] {
        let ran = lab.run_invocation(with_deadline(lab, script))?;
        ended_at_deadline(&ran)?;
        ensure(!ran.text().contains("after"), || "it went on after the deadline".to_owned())?;
    }
    Ok(Passed::Held)
}

fn deadline_kills_tree(lab: &Lab<'_>) -> Finding {
    let script = format!("{}sleep 30", beat::start(lab));
    let ran = lab.run_invocation(with_deadline(lab, &script))?;
    ended_at_deadline(&ran)?;
    beat::ensure_stopped(lab)?;
    Ok(held_in_tree(lab))
}

fn exit_kills_tree(lab: &Lab<'_>) -> Finding {
    let ran = lab.run(&format!("{}exit 3", beat::start(lab)))?;
    ran.expect(&Outcome::Exited { code: 3 })?;
    beat::ensure_stopped(lab)?;
    Ok(held_in_tree(lab))
}

fn cancel(lab: &Lab<'_>) -> Finding {
    let script = format!("{}echo ready; while :; do sleep 0.1; done", beat::start(lab));
    let ran = stopped(lab, &script, Manner::CancelAtFirst)?;
    ran.expect(&Outcome::Cancelled)?;
    beat::ensure_stopped(lab)?;
    Ok(held_in_tree(lab))
}

fn reader_gone(lab: &Lab<'_>) -> Finding {
    let ran = stopped(lab, "while :; do echo more; sleep 0.02; done", Manner::Refuse)?;
    ran.expect(&Outcome::Cancelled)?;
    Ok(Passed::Held)
}

/// Runs a script that would not end by itself for long, and that someone stops early.
fn stopped(lab: &Lab<'_>, script: &str, manner: Manner) -> Result<Ran, Broken> {
    let ran = match lab.attempt(lab.script(script), manner)? {
        Attempt::Ran(ran) => *ran,
        Attempt::Refused(refusal) => return Err(Broken(format!("refused: {refusal}"))),
        Attempt::Failed(what) => return Err(Broken(what)),
    };
    ensure(ran.took < GRACE * 2, || format!("it took {} ms to stop", ran.took.as_millis()))?;
    Ok(ran)
}

fn sigstop(lab: &Lab<'_>) -> Finding {
    if !lab.starts_programs() {
        return Ok(Passed::Moot("no program is started that could stop itself".to_owned()));
    }
    // SECURITY: the claim of a namespace may be a lie, and then everything would be everything
    // of the host; so the program looks before it shoots.
    let host = std::fs::read_link("/proc/self/ns/pid")?.display().to_string();
    let everything = format!(
        "ns=$(readlink /proc/self/ns/pid); [ -n \"$ns\" ] && [ \"$ns\" != '{host}' ] && \
         kill -STOP -1; "
    );
    let script = format!(
        "{}sh -c 'kill -STOP $$; sleep 30' & {everything}kill -STOP $$; sleep 30",
        beat::start(lab)
    );
    let ran = lab.run_invocation(with_deadline(lab, &script))?;
    ended_at_deadline(&ran)?;
    beat::ensure_stopped(lab)?;
    Ok(Passed::Held)
}

fn held_in_tree(lab: &Lab<'_>) -> Passed {
    if lab.starts_programs() {
        Passed::Held
    } else {
        Passed::HeldAs("of background jobs; no program is started that could leave".to_owned())
    }
}
