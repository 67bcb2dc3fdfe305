//! A heartbeat: a file that grows as long as anything of a program is alive.

use std::fs;
use std::time::Duration;

use crate::lab::{Broken, Lab, ensure};

/// Longer than several beats.
const WATCH: Duration = Duration::from_millis(300);

/// Returns a script that leaves a daemon behind: in its own session, orphaned, deaf to the
/// signals one is polite with, and with nothing of ours open. It ends by itself after some
/// seconds, because a backend that fails the check does not end it.
pub(crate) fn start(lab: &Lab<'_>) -> &'static str {
    if lab.starts_programs() {
        "setsid sh -c '(trap \"\" HUP INT TERM; i=0; while [ $i -lt 120 ]; do echo x >> beat; \
         i=$((i+1)); sleep 0.05; done) &' </dev/null >/dev/null 2>&1 &\n\
         while [ ! -s beat ]; do sleep 0.02; done\n"
    } else {
        "(i=0; while [ $i -lt 120 ]; do echo x >> beat; i=$((i+1)); sleep 0.05; done) &\n"
    }
}

/// Goes on when the daemon has lived and beats no longer.
pub(crate) fn ensure_stopped(lab: &Lab<'_>) -> Result<(), Broken> {
    if !lab.is_shared() {
        return Ok(());
    }
    let before = beats(lab);
    ensure(before > 0 || !lab.starts_programs(), || "the daemon was never started".to_owned())?;
    std::thread::sleep(WATCH);
    let after = beats(lab);
    ensure(after == before, || {
        format!("a daemon outlived the run: {} beats after its end", (after - before) / 2)
    })
}

fn beats(lab: &Lab<'_>) -> u64 {
    fs::metadata(lab.workspace().join("beat")).map_or(0, |metadata| metadata.len())
}
