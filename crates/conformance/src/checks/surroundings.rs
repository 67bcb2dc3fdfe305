//! What a program is given: input, environment, directory, files.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use warrant_protocol::Outcome;
use warrant_sandbox::{Command, EnvValue, EnvVar, Stdin};

use super::Check;
use crate::lab::{Broken, Finding, Lab, Passed, ensure, excerpt};
use crate::subject::{OutputFidelity, WorkspaceKind};
use crate::tier::Level;

/// What a shell sets by itself.
const MADE_BY_SHELLS: [&str; 6] = ["PWD", "OLDPWD", "SHLVL", "_", "OPTIND", "IFS"];

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "stdin.bytes",
        level: Level::L1,
        name: "standard input arrives whole, from bytes and from a descriptor, and ends",
        run: stdin,
    },
    Check {
        id: "env.exact",
        level: Level::L1,
        name: "the environment is exactly what was asked for",
        run: env_exact,
    },
    Check {
        id: "env.nothing-inherited",
        level: Level::L1,
        name: "no variable of the host is inherited",
        run: nothing_inherited,
    },
    Check {
        id: "cwd.honored",
        level: Level::L1,
        name: "the program starts in the directory that was asked for",
        run: cwd,
    },
    Check {
        id: "files.round-trip",
        level: Level::L1,
        name: "files written into the workspace are read inside, and the other way",
        run: round_trip,
    },
];

fn stdin(lab: &Lab<'_>) -> Finding {
    lab.run("cat; echo end")?.expect(&Outcome::Exited { code: 0 })?;
    let mut invocation = lab.script("cat; echo end");
    invocation.stdin = Stdin::Bytes(b"one\ntwo".to_vec());
    let ran = lab.run_invocation(invocation)?;
    ensure(ran.stdout == b"one\ntwoend\n", || format!("of bytes came {}", excerpt(&ran.stdout)))?;
    let (read, mut write) = std::io::pipe()?;
    let feeder = std::thread::spawn(move || {
        for _ in 0..50 {
            // A backend that reads nothing is told below.
            let _ = write.write_all(&[b'x'; 4000]);
        }
    });
    let mut invocation = lab.script("wc -c | tr -d ' '");
    invocation.stdin = Stdin::Descriptor(Arc::new(OwnedFd::from(read)));
    let ran = lab.run_invocation(invocation);
    // The reading end is closed by now, so that the feeder ends in any case.
    let _ = feeder.join();
    let ran = ran?;
    ensure(ran.stdout == b"200000\n", || {
        format!("of 200000 bytes in a pipe came {}", excerpt(&ran.stdout))
    })?;
    Ok(Passed::Held)
}

fn env_exact(lab: &Lab<'_>) -> Finding {
    let (plan, found) = environment_inside(lab)?;
    for (name, value) in [("PLAIN", "value"), ("SPACED", " a  b "), ("SECRET", "s3cr3t=")] {
        ensure(found.get(name).is_some_and(|found| found == value), || {
            format!("{name} is {:?}, not `{value}`", found.get(name))
        })?;
    }
    let asked = ["PATH", "PLAIN", "SPACED", "SECRET"];
    let added: Vec<_> = found
        .keys()
        .filter(|name| !asked.contains(&name.as_str()) && !MADE_BY_SHELLS.contains(&name.as_str()))
        .collect();
    // A backend may add what its plan tells, which the receipt binds.
    let untold: Vec<_> =
        added.iter().filter(|name| !plan.contains(&format!("\"{name}\""))).collect();
    ensure(untold.is_empty(), || format!("nobody asked for {untold:?}, and no plan tells of it"))?;
    if added.is_empty() {
        return Ok(Passed::Held);
    }
    Ok(Passed::HeldAs(format!("the plan adds {added:?}")))
}

fn nothing_inherited(lab: &Lab<'_>) -> Finding {
    let (_, found) = environment_inside(lab)?;
    let leaked: Vec<_> = host_variables()
        .into_iter()
        .filter(|(name, value)| found.get(name).is_some_and(|found| found == value))
        .map(|(name, _)| name)
        .collect();
    ensure(leaked.is_empty(), || format!("the host's {leaked:?} are seen inside"))?;
    Ok(Passed::Held)
}

/// Returns the plan, and the environment a program sees that was given three variables.
fn environment_inside(lab: &Lab<'_>) -> Result<(String, BTreeMap<String, String>), Broken> {
    let mut invocation =
        lab.invocation(Command::Argv { program: "env".to_owned(), args: Vec::new() });
    let secret = "SECRET".parse().map_err(|error| Broken(format!("{error}")))?;
    for (name, value) in [
        ("PLAIN", EnvValue::Plain("value".to_owned())),
        ("SPACED", EnvValue::Plain(" a  b ".to_owned())),
        ("SECRET", EnvValue::Secret { name: secret, value: "s3cr3t=".to_owned() }),
    ] {
        invocation.env.push(EnvVar { name: name.to_owned(), value });
    }
    let ran = lab.run_invocation(invocation)?;
    ran.expect(&Outcome::Exited { code: 0 })?;
    let text = ran.text();
    let pairs = text.lines().filter_map(|line| line.split_once('='));
    let found = pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    Ok((ran.plan.artifact.to_string(), found))
}

/// Returns the variables of the host whose values could only have come from there.
pub(super) fn host_variables() -> BTreeSet<(String, String)> {
    // A shell also guesses these from the machine's own files.
    let is_guessed = |name: &str| ["PATH", "SHELL", "TERM", "HOSTNAME"].contains(&name);
    let is_made = |name: &str| is_guessed(name) || MADE_BY_SHELLS.contains(&name);
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .filter(|(name, value)| !is_made(name) && value.len() > 3 && !value.contains('\n'))
        .collect()
}

fn cwd(lab: &Lab<'_>) -> Finding {
    fs::create_dir_all(lab.workspace().join("sub/deep"))?;
    lab.put("sub/deep/here", "found")?;
    let mut invocation = lab.script("pwd; cat here");
    invocation.cwd = lab.workspace().join("sub/deep");
    let text = lab.run_invocation(invocation)?.text();
    let (directory, rest) = text.split_once('\n').unwrap_or((&text, ""));
    ensure(directory.starts_with('/'), || format!("`pwd` says `{directory}`"))?;
    if lab.subject.capabilities.workspace == WorkspaceKind::Memory {
        return Ok(Passed::HeldAs(format!("in memory there is only `{directory}`")));
    }
    ensure(rest.as_bytes() == lab.arriving(b"found"), || {
        format!("in `{directory}` the file reads `{rest}`")
    })?;
    ensure(directory.ends_with("/sub/deep"), || format!("`pwd` says `{directory}`"))?;
    Ok(Passed::Held)
}

fn round_trip(lab: &Lab<'_>) -> Finding {
    let bytes: Vec<u8> = (0..=255).collect();
    if lab.subject.capabilities.workspace == WorkspaceKind::Memory {
        let mut invocation = lab.script("mkdir -p d; cat > 'd/a b'; cat 'd/a b'");
        invocation.stdin = Stdin::Bytes(bytes.clone());
        let ran = lab.run_invocation(invocation)?;
        ensure(ran.stdout == bytes, || format!("read back {}", excerpt(&ran.stdout)))?;
        let on_host = fs::read_dir(lab.workspace())?.count();
        ensure(on_host == 0, || "a workspace in memory was written to the host".to_owned())?;
        return Ok(Passed::HeldAs("in memory, and nothing on the host".to_owned()));
    }
    lab.put("in/ä b", &bytes)?;
    let (reads, inside) = match lab.subject.capabilities.output {
        OutputFidelity::Bytes => ("cat 'in/ä b'", bytes.clone()),
        // Lines of text do not carry every byte, so they are read as numbers.
        OutputFidelity::Lines => ("od -An -v -tx1 'in/ä b' | tr -d ' \\n'; echo", hex_line(&bytes)),
    };
    let script = format!("{reads}; mkdir -p out/d; cat 'in/ä b' > 'out/d/c d'; rm 'in/ä b'");
    let ran = lab.run(&script)?;
    ran.expect(&Outcome::Exited { code: 0 })?;
    ensure(ran.stdout == inside, || format!("inside reads {}", excerpt(&ran.stdout)))?;
    let back = fs::read(lab.workspace().join("out/d/c d"))
        .map_err(|error| Broken(format!("a file written inside is not there after: {error}")))?;
    ensure(back == bytes, || format!("a file written inside holds {}", excerpt(&back)))?;
    let is_gone = !lab.workspace().join("in/ä b").exists();
    ensure(is_gone, || "a file deleted inside is still there".to_owned())?;
    Ok(Passed::Held)
}

fn hex_line(bytes: &[u8]) -> Vec<u8> {
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{digits}\n").into_bytes()
}
