//! A program that says more than anyone listens to.

use std::fs;
use std::time::Duration;

use warrant_protocol::Outcome;

use super::Check;
use crate::lab::{Attempt, Broken, Finding, GRACE, Lab, Passed, ensure};
use crate::sinks::Manner;
use crate::tier::Level;

/// What the program says at a time.
const BLOCK: u64 = 64 << 10;

/// How far a program may be ahead of its reader: pipes and one buffer, no more.
const AHEAD: u64 = 4 << 20;

pub(super) const CHECKS: &[Check] = &[Check {
    id: "flood.back-pressure",
    level: Level::L3,
    name: "a slow reader slows the program down, and nothing is piled up between them",
    run: back_pressure,
}];

fn back_pressure(lab: &Lab<'_>) -> Finding {
    // 64 bytes doubled ten times are a block; every block is counted in a file.
    let script = "x=0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\n\
                  for i in 1 2 3 4 5 6 7 8 9 10; do x=$x$x; done\n\
                  i=0; while [ $i -lt 1000 ]; do printf %s \"$x\"; echo >> said; i=$((i+1)); done\n\
                  sleep 30";
    let cancel_after = Duration::from_millis(1_000);
    let manner = Manner::Slow { pause: Duration::from_millis(40), cancel_after };
    let mut invocation = lab.script(script);
    invocation.limits.wall_ms = Some(8_000);
    let ran = match lab.attempt(invocation, manner)? {
        Attempt::Ran(ran) => ran,
        Attempt::Refused(refusal) => return Err(Broken(format!("refused: {refusal}"))),
        Attempt::Failed(what) => return Err(Broken(what)),
    };
    ran.expect(&Outcome::Cancelled)?;
    ensure(ran.took < GRACE * 2, || format!("it took {} ms to end", ran.took.as_millis()))?;
    ensure(ran.total > 0, || "nothing was heard of the flood".to_owned())?;
    ensure(ran.largest as u64 <= AHEAD, || format!("{} bytes came at once", ran.largest))?;
    let seen = ran.report.usage.stdout_bytes.unwrap_or(ran.total);
    let said = match lab.is_shared() {
        true => fs::metadata(lab.workspace().join("said")).map_or(0, |file| file.len()) * BLOCK,
        false => seen,
    };
    let ahead = said.max(seen).saturating_sub(ran.total);
    ensure(ahead <= AHEAD, || {
        format!("the program was {ahead} bytes ahead of a reader that had {}", ran.total)
    })?;
    Ok(Passed::HeldAs(format!("{ahead} bytes ahead of a reader that had {}", ran.total)))
}
