//! Programs that work against what holds them.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use warrant_protocol::Outcome;
use warrant_sandbox::{EnvValue, EnvVar, WorkspaceAccess};

use super::Check;
use crate::beat;
use crate::lab::{Broken, CANARY, Finding, GRACE, Lab, Passed, ensure};
use crate::tier::Level;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "hostile.crash",
        level: Level::L3,
        name: "a program that dies of itself is never a success",
        run: crash,
    },
    Check {
        id: "hostile.leftovers",
        level: Level::L3,
        name: "pipes, links, sparse files and odd names left behind hang nothing",
        run: leftovers,
    },
    Check {
        id: "hostile.names",
        level: Level::L3,
        name: "no name and no link leads out of the workspace",
        run: names,
    },
    Check {
        id: "hostile.fork-bomb",
        level: Level::L3,
        name: "a fork bomb stays within the claimed limit and ends with its run",
        run: fork_bomb,
    },
];

fn crash(lab: &Lab<'_>) -> Finding {
    let scripts: &[&str] = if lab.starts_programs() {
        &["kill -KILL $$; exit 0", "kill -SEGV $$; exit 0"]
    } else {
        &["f='eval \"$f\"'; eval \"$f\"", "f() { f; }; f"]
    };
    let mut ends = Vec::new();
    for script in scripts {
        let ran = lab.run(script)?;
        let outcome = &ran.report.outcome;
        ensure(!outcome.is_success(), || format!("`{script}` is told as a success"))?;
        ends.push(format!("{outcome:?}"));
    }
    Ok(Passed::HeldAs(ends.join(", ")))
}

fn leftovers(lab: &Lab<'_>) -> Finding {
    let script = "mkdir $ROOM; cd $ROOM || exit 9; mkfifo pipe; ln -s pipe to-pipe; ln -s / root; ln -s loop loop; ln -s .. up\n\
         d=.; i=0; while [ $i -lt 60 ]; do d=$d/d; i=$((i+1)); done; mkdir -p $d\n\
         true > 'new\nline'; true > ' '; true > '-rf'; printf x > \"$(printf 'esc\\033[2J')\"\n\
         truncate -s 100G sparse; mkdir closed; true > closed/file; chmod 000 closed\n\
         mkdir .git; echo '[core]' > .git/config; exit 0";
    let mut told = Vec::new();
    for access in [WorkspaceAccess::Direct, WorkspaceAccess::Overlay] {
        if lab.refusal_of(access)?.is_some() {
            continue;
        }
        let room = format!("{access:?}").to_lowercase();
        let mut invocation = lab.script(script);
        invocation.files.access = access;
        let value = EnvValue::Plain(room.clone());
        invocation.env.push(EnvVar { name: "ROOM".to_owned(), value });
        let ran = lab.run_invocation(invocation)?;
        // A limit that strikes at the sparse file is as good an end.
        let outcome = &ran.report.outcome;
        let is_ended = matches!(outcome, Outcome::Exited { code: 0 } | Outcome::Limited { .. });
        ensure(is_ended, || format!("{access:?}: ended as {outcome:?}"))?;
        ensure(ran.took < GRACE * 2, || format!("{access:?}: {} ms", ran.took.as_millis()))?;
        told.push(room);
    }
    // A second run, with masks so that every name is looked at.
    let mut invocation = lab.script("echo again");
    invocation.files.masks = vec![".env".to_owned(), "*.pem".to_owned()];
    let ran = lab.run_invocation(invocation);
    let closed = lab.workspace().join("direct/closed");
    if closed.exists() {
        fs::set_permissions(&closed, fs::Permissions::from_mode(0o755))?;
    }
    let ran = ran?;
    ensure(ran.text() == "again\n", || format!("a run after it said `{}`", ran.text()))?;
    Ok(Passed::HeldAs(format!("with {} access, and a run after it", told.join(" and "))))
}

fn names(lab: &Lab<'_>) -> Finding {
    let posture = lab.open()?.probe();
    if !posture.enforces("files.read") || !posture.enforces("files.write") {
        let why = "the posture claims neither files.read nor files.write to stop it";
        return Ok(Passed::Moot(why.to_owned()));
    }
    for (at, to) in [
        ("a", "b"),
        ("b", "c"),
        ("c", "../outside"),
        ("deep/up", "../.."),
        ("proc", "/proc/self/root"),
        ("fd", "/proc/self/fd"),
    ] {
        let path = lab.workspace().join(at);
        fs::create_dir_all(path.parent().unwrap_or(Path::new("/")))?;
        symlink(to, path)?;
    }
    lab.put("%2e%2e/outside/canary", "inside")?;
    lab.put("..%2foutside", "inside")?;
    let outside = lab.outside().display().to_string();
    let script = format!(
        "for way in a/canary deep/up/outside/canary proc{outside}/canary fd/../cwd/../outside/canary \
         './/..//outside//canary' 'deep/../../outside/canary' '{outside}/./canary'; do\n\
         cat \"$way\"; echo x >> \"$way\"; mv \"$way\" stolen; cat stolen; ln \"$way\" kept; cat kept\n\
         done\n\
         tar cf - a/ deep/up/outside | cat; cp -rL a copied; cat copied/canary\n\
         mv deep ../moved; mkdir ../made; rm -rf a/; find -L a deep -name canary -exec cat {{}} ';'\n\
         exit 0"
    );
    let ran = lab.run(&script)?;
    ensure(!ran.text().contains(CANARY), || "a name led to a file outside".to_owned())?;
    let kept = fs::read_to_string(lab.canary()).unwrap_or_default();
    ensure(kept == format!("{CANARY}\n"), || "a name led to a change outside".to_owned())?;
    let root = lab.outside();
    let beside = root.parent().map_or(0, |root| fs::read_dir(root).map_or(0, Iterator::count));
    ensure(beside == 2, || "something was put beside the workspace".to_owned())?;
    Ok(Passed::Held)
}

fn fork_bomb(lab: &Lab<'_>) -> Finding {
    if !lab.starts_programs() {
        return Ok(Passed::Moot("no program is started that could fork".to_owned()));
    }
    if !lab.open()?.probe().enforces("limits.processes") {
        return Ok(Passed::Moot("the posture does not claim limits.processes".to_owned()));
    }
    // It ends by itself at 255 shells, because a backend that fails the check does not end it.
    let bomb = "f() { echo >> forks; [ $1 -gt 0 ] && { f $(($1-1)) & f $(($1-1)) & }; sleep 4; }";
    let script = format!("{}{bomb}; f 7", beat::start(lab));
    let mut invocation = lab.script(&script);
    let limit = 40;
    invocation.limits.processes = Some(limit);
    invocation.limits.wall_ms = Some(1_500);
    let ran = lab.run_invocation(invocation)?;
    ensure(ran.took < GRACE * 2, || format!("it took {} ms to end", ran.took.as_millis()))?;
    let forks = fs::metadata(lab.workspace().join("forks")).map_or(0, |file| file.len());
    // One that could not fork ends and makes room for another, so a few more get their turn.
    ensure(forks <= limit * 2, || {
        format!("{forks} shells were started within a limit of {limit}")
    })?;
    beat::ensure_stopped(lab)?;
    let alive = alive_in(&lab.workspace())?;
    ensure(alive == 0, || format!("{alive} processes outlived the run"))?;
    Ok(Passed::HeldAs(format!("{forks} shells, ended as {:?}", ran.report.outcome)))
}

/// Returns how many processes of this machine stand in a directory.
fn alive_in(directory: &Path) -> Result<usize, Broken> {
    let mut count = 0;
    for entry in fs::read_dir("/proc")? {
        // A process may be gone by now, which is what is hoped for.
        let Ok(cwd) = fs::read_link(entry?.path().join("cwd")) else { continue };
        count += usize::from(cwd.starts_with(directory));
    }
    Ok(count)
}
