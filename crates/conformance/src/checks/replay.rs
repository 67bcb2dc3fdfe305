//! The same plan again, and two at a time: runs that share nothing.

use std::sync::Arc;

use warrant_protocol::Outcome;
use warrant_sandbox::{Invocation, Stdin, WorkspaceAccess};

use super::Check;
use crate::lab::{Attempt, Broken, Finding, Lab, Passed, Ran, ensure};
use crate::sinks::Manner;
use crate::tier::Level;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "replay.independent",
        level: Level::L3,
        name: "a plan that is run again finds nothing of the run before",
        run: independent,
    },
    Check {
        id: "replay.concurrent",
        level: Level::L3,
        name: "two runs at a time do not mix",
        run: concurrent,
    },
];

/// Returns an invocation whose writes are its own, as far as the subject offers that.
fn unshared(lab: &Lab<'_>, script: &str) -> Result<Invocation, Broken> {
    let mut invocation = lab.script(script);
    for access in [WorkspaceAccess::Overlay, WorkspaceAccess::ReadOnly] {
        if lab.refusal_of(access)?.is_none() {
            invocation.files.access = access;
            return Ok(invocation);
        }
    }
    Ok(invocation)
}

fn independent(lab: &Lab<'_>) -> Finding {
    // Outside a boundary this name would be the host's; it is removed below.
    let token = format!("warrant-replay-{}-{}", std::process::id(), lab.subject.provider);
    let script = format!(
        "for place in . /tmp /var/tmp /dev/shm; do\n\
         [ -e $place/{token} ] && echo found in $place\n\
         echo left > $place/{token}\n\
         done 2>/dev/null\n\
         echo \"${{LEFT-unset}}\"; LEFT=set; export LEFT; echo ran"
    );
    let invocation = unshared(lab, &script)?;
    let access = invocation.files.access;
    let backend = lab.open()?;
    let plan = backend.prepare(invocation).map_err(|refusal| Broken(refusal.to_string()))?;
    let mut said = Vec::new();
    for handle in [Arc::clone(&backend), backend, lab.open()?] {
        let ran = ran(lab.attempt_plan(handle, plan.clone(), Manner::Keep)?)?;
        said.push(ran.text());
    }
    let mut left = Vec::new();
    for place in ["/tmp", "/var/tmp", "/dev/shm"] {
        if std::fs::remove_file(format!("{place}/{token}")).is_ok() {
            left.push(place);
        }
    }
    ensure(left.is_empty(), || format!("the run left a file in the host's {left:?}"))?;
    for text in &said {
        ensure(text == "unset\nran\n", || {
            format!("with {access:?} access one of three runs said `{}`", text.escape_debug())
        })?;
    }
    Ok(Passed::Held)
}

fn concurrent(lab: &Lab<'_>) -> Finding {
    let backend = lab.open()?;
    let one = |word: &'static str| {
        let mut invocation =
            lab.script("i=0; while [ $i -lt 50 ]; do echo $WORD; i=$((i+1)); done; cat");
        let value = warrant_sandbox::EnvValue::Plain(word.to_owned());
        invocation.env.push(warrant_sandbox::EnvVar { name: "WORD".to_owned(), value });
        invocation.stdin = Stdin::Bytes(word.as_bytes().to_vec());
        let attempt = lab.attempt_on(Arc::clone(&backend), invocation, Manner::Keep)?;
        let ran = ran(attempt)?;
        ran.expect(&Outcome::Exited { code: 0 })?;
        let expected = format!("{}{word}", format!("{word}\n").repeat(50));
        ensure(ran.stdout == lab.arriving(expected.as_bytes()), || {
            "two runs at a time mixed what they said".to_owned()
        })
    };
    std::thread::scope(|scope| {
        let words = ["left", "right", "middle"];
        let threads: Vec<_> =
            words.map(|word| scope.spawn(move || one(word))).into_iter().collect();
        threads.into_iter().try_for_each(|thread| {
            thread.join().map_err(|_| Broken("a run panicked".to_owned())).flatten()
        })
    })?;
    Ok(Passed::Held)
}

fn ran(attempt: Attempt) -> Result<Ran, Broken> {
    match attempt {
        Attempt::Ran(ran) => Ok(*ran),
        Attempt::Refused(refusal) => Err(Broken(format!("refused: {refusal}"))),
        Attempt::Failed(what) => Err(Broken(what)),
    }
}
