//! Claims against reality: what the posture says is enforced is tried from inside.

use std::fs;
use std::os::unix::fs::symlink;

use warrant_sandbox::{Command, Network, Shell};

use super::Check;
use super::surroundings::host_variables;
use crate::lab::{Broken, CANARY, Finding, Lab, Passed, Ran, ensure};
use crate::tier::Level;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "claims.files-read",
        level: Level::L2,
        name: "claimed files.read: a file outside cannot be read in any way",
        run: files_read,
    },
    Check {
        id: "claims.files-write",
        level: Level::L2,
        name: "claimed files.write: nothing outside can be changed in any way",
        run: files_write,
    },
    Check {
        id: "claims.environment",
        level: Level::L2,
        name: "claimed environment: nothing of the host's is in the program's own",
        run: environment,
    },
    Check {
        id: "claims.neighbors-environment",
        level: Level::L3,
        name: "claimed files.read: no other process gives the host's environment away",
        run: neighbors_environment,
    },
    Check {
        id: "claims.processes-namespace",
        level: Level::L2,
        name: "claimed processes.namespace: processes of the host are not seen",
        run: processes_namespace,
    },
    Check {
        id: "claims.privileges",
        level: Level::L2,
        name: "claimed privileges: none are held and none can be gained",
        run: privileges,
    },
    Check {
        id: "claims.syscalls",
        level: Level::L2,
        name: "claimed syscalls: a filter is in force and refuses new namespaces",
        run: syscalls,
    },
    Check {
        id: "claims.network-names",
        level: Level::L2,
        name: "claimed network.names: a name that nobody allowed is refused, and that is told",
        run: network_names,
    },
    Check {
        id: "claims.ipc",
        level: Level::L2,
        name: "claimed ipc: objects of the host are in another namespace",
        run: ipc,
    },
];

/// Returns why there is nothing to try, where the posture does not claim a component.
fn unclaimed(lab: &Lab<'_>, name: &str) -> Result<Option<Passed>, Broken> {
    let is_claimed = lab.open()?.probe().enforces(name);
    Ok((!is_claimed).then(|| Passed::Moot(format!("the posture does not claim {name}"))))
}

/// Returns why a claim cannot be looked at from inside, where no program can be started.
fn unseen(lab: &Lab<'_>, name: &str) -> Result<Option<Passed>, Broken> {
    if let Some(moot) = unclaimed(lab, name)? {
        return Ok(Some(moot));
    }
    let why = "no program is started that it would have to hold";
    Ok((!lab.starts_programs()).then(|| Passed::Moot(why.to_owned())))
}

fn bash(lab: &Lab<'_>, script: &str) -> Result<Ran, Broken> {
    let command = Command::Shell { shell: Shell::Bash, script: script.to_owned() };
    lab.run_invocation(lab.invocation(command))
}

fn files_read(lab: &Lab<'_>) -> Finding {
    if let Some(moot) = unclaimed(lab, "files.read")? {
        return Ok(moot);
    }
    symlink(lab.canary(), lab.workspace().join("absolute"))?;
    symlink("../outside/canary", lab.workspace().join("relative"))?;
    symlink("../outside", lab.workspace().join("door"))?;
    lab.put("inside", "inside\n")?;
    let canary = lab.canary().display().to_string();
    let script = format!(
        "cat '{canary}'; cat ../outside/canary; cat absolute; cat relative; cat door/canary\n\
         cat < '{canary}'; cat '/proc/self/root{canary}'; cat /proc/self/cwd/../outside/canary\n\
         (cd .. && cat outside/canary); (cd door && cat canary); ln -s '{canary}' made; cat made\n\
         ln '{canary}' hard; cat hard; cp -L absolute copy; cat copy; . '{canary}'\n\
         cat //..//..//'{canary}'; exit 0"
    );
    let ran = bash(lab, &script)?;
    let said = format!("{}{}", ran.text(), String::from_utf8_lossy(&ran.stderr));
    ensure(!said.contains(CANARY), || "a file outside the workspace was read".to_owned())?;
    Ok(Passed::Held)
}

fn files_write(lab: &Lab<'_>) -> Finding {
    if let Some(moot) = unclaimed(lab, "files.write")? {
        return Ok(moot);
    }
    symlink("../outside", lab.workspace().join("door"))?;
    symlink(lab.outside().join("through"), lab.workspace().join("dangling"))?;
    let outside = lab.outside().display().to_string();
    let script = format!(
        "echo x > '{outside}/a'; echo x > ../outside/b; echo x > door/c; echo x > dangling\n\
         echo x > file; mv file '{outside}/d'; ln file '{outside}/e'; cp file door/f\n\
         mkdir '{outside}/g' door/h; echo x > '/proc/self/root{outside}/i'; rm '{outside}/canary'\n\
         rm door/canary; echo x >> ../outside/canary; chmod 777 door/canary; touch door/j; exit 0"
    );
    bash(lab, &script)?;
    let mut names = Vec::new();
    for entry in fs::read_dir(lab.outside())? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    ensure(names == ["canary"], || format!("outside there is now {names:?}"))?;
    let kept = fs::read_to_string(lab.canary())?;
    ensure(kept == format!("{CANARY}\n"), || format!("the file outside now holds `{kept}`"))?;
    Ok(Passed::Held)
}

/// Returns the names of host variables whose value is in what a program said.
fn given_away(ran: &Ran) -> Vec<String> {
    let said = ran.text();
    let pairs = host_variables().into_iter();
    pairs
        .filter(|(name, value)| said.contains(&format!("{name}={value}")))
        .map(|(name, _)| name)
        .collect()
}

fn environment(lab: &Lab<'_>) -> Finding {
    if let Some(moot) = unclaimed(lab, "environment")? {
        return Ok(moot);
    }
    let script = "env; export -p; set; cat /proc/self/environ | tr '\\0' '\\n'; exit 0";
    let leaked = given_away(&bash(lab, script)?);
    ensure(leaked.is_empty(), || format!("the host's {leaked:?} are seen inside"))?;
    Ok(Passed::Held)
}

fn neighbors_environment(lab: &Lab<'_>) -> Finding {
    if let Some(moot) = unclaimed(lab, "files.read")? {
        return Ok(moot);
    }
    let script = "for one in /proc/[0-9]*/environ; do tr '\\0' '\\n' < $one; done; exit 0";
    let leaked = given_away(&bash(lab, script)?);
    ensure(leaked.is_empty(), || format!("the host's {leaked:?} are read from a neighbor"))?;
    Ok(Passed::Held)
}

fn processes_namespace(lab: &Lab<'_>) -> Finding {
    if let Some(moot) = unseen(lab, "processes.namespace")? {
        return Ok(moot);
    }
    let ours = fs::read_link("/proc/self/ns/pid")?;
    let pid = std::process::id();
    let script = format!(
        "readlink /proc/self/ns/pid; tr '\\0' ' ' < /proc/{pid}/cmdline; kill -0 {pid} && echo hit"
    );
    let text = bash(lab, &script)?.text();
    let theirs = text.lines().next().unwrap_or_default();
    ensure(theirs.starts_with("pid:") && theirs != ours.display().to_string(), || {
        format!("inside, the process namespace is `{theirs}`, here it is {}", ours.display())
    })?;
    let is_self = |word: &str| std::env::args().next().is_some_and(|own| word.contains(&own));
    ensure(!text.lines().skip(1).any(is_self), || "a process of the host is seen".to_owned())?;
    Ok(Passed::Held)
}

fn privileges(lab: &Lab<'_>) -> Finding {
    if let Some(moot) = unseen(lab, "privileges")? {
        return Ok(moot);
    }
    let text = bash(lab, "grep -E '^(NoNewPrivs|Cap...):' /proc/self/status")?.text();
    let value = |name: &str| {
        let mut lines = text.lines();
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(":\t").map(str::to_owned))
    };
    ensure(value("NoNewPrivs").as_deref() == Some("1"), || {
        format!("new privileges can be gained: {text}")
    })?;
    for set in ["CapEff", "CapPrm", "CapInh", "CapBnd", "CapAmb"] {
        let is_empty = value(set).is_some_and(|bits| bits.bytes().all(|bit| bit == b'0'));
        ensure(is_empty, || format!("{set} is {:?}", value(set)))?;
    }
    Ok(Passed::Held)
}

fn syscalls(lab: &Lab<'_>) -> Finding {
    if let Some(moot) = unseen(lab, "syscalls")? {
        return Ok(moot);
    }
    let script = "grep '^Seccomp:' /proc/self/status; unshare -U true && echo namespace; \
                  unshare -m true && echo mounts; exit 0";
    let text = bash(lab, script)?.text();
    ensure(text == "Seccomp:\t2\n", || format!("inside it says `{}`", text.escape_debug()))?;
    Ok(Passed::Held)
}

fn network_names(lab: &Lab<'_>) -> Finding {
    if let Some(moot) = unseen(lab, "network.names")? {
        return Ok(moot);
    }
    if lab.subject.capabilities.is_remote {
        return Ok(Passed::Moot("names are decided at the provider".to_owned()));
    }
    let name = format!("conformance-{}.example", std::process::id());
    let script = format!("getent hosts {name}; curl -s -m 2 http://{name}/; exit 0");
    let mut invocation = lab.script(&script);
    invocation.network = Network::Allow(vec!["allowed.example".to_owned()]);
    invocation.limits.wall_ms = Some(8_000);
    let ran = lab.run_invocation(invocation)?;
    ensure(ran.refused.contains(&name), || {
        format!("nobody decided about {name}; refused were {:?}", ran.refused)
    })?;
    Ok(Passed::Held)
}

fn ipc(lab: &Lab<'_>) -> Finding {
    if let Some(moot) = unseen(lab, "ipc")? {
        return Ok(moot);
    }
    let ours = fs::read_link("/proc/self/ns/ipc")?.display().to_string();
    let theirs = bash(lab, "readlink /proc/self/ns/ipc")?.text();
    ensure(theirs.starts_with("ipc:") && theirs.trim_end() != ours, || {
        format!("inside, the namespace is `{}`, here it is {ours}", theirs.trim_end())
    })?;
    Ok(Passed::Held)
}
