//! Running a program: every byte it says, on the stream it said it, and the code it exits with.

use std::fmt::Write as _;

use warrant_protocol::{Digest, Outcome};
use warrant_sandbox::{Command, Stdin, StreamDigest};

use super::Check;
use crate::lab::{Attempt, Broken, Finding, Lab, Passed, Ran, ensure, excerpt};
use crate::sinks::Manner;
use crate::subject::OutputFidelity;
use crate::tier::Level;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "exec.stdout",
        level: Level::L1,
        name: "what a program says arrives exactly, and nothing else",
        run: stdout,
    },
    Check {
        id: "exec.binary",
        level: Level::L1,
        name: "output of every byte value arrives exactly",
        run: binary,
    },
    Check {
        id: "exec.large",
        level: Level::L1,
        name: "large output arrives whole and in order",
        run: large,
    },
    Check {
        id: "exec.streams",
        level: Level::L1,
        name: "stdout and stderr stay apart",
        run: streams,
    },
    Check {
        id: "exec.digests",
        level: Level::L1,
        name: "the reported digests and lengths are of the bytes that passed",
        run: digests,
    },
    Check {
        id: "exec.exit-codes",
        level: Level::L1,
        name: "the exit code is the program's",
        run: exit_codes,
    },
    Check {
        id: "exec.not-found",
        level: Level::L1,
        name: "a missing program is 127, one that cannot be executed 126, and neither a success",
        run: not_found,
    },
    Check {
        id: "exec.argv",
        level: Level::L1,
        name: "arguments arrive as they are, untouched by any shell",
        run: argv,
    },
];

/// A program that ended well and what it printed on both streams.
struct ExpectedOutput<'a> {
    stdout: &'a [u8],
    stderr: &'a [u8],
}

fn expect_output(lab: &Lab<'_>, ran: &Ran, expected: &ExpectedOutput<'_>) -> Result<(), Broken> {
    ran.expect(&Outcome::Exited { code: 0 })?;
    let streams =
        [("stdout", &ran.stdout, expected.stdout), ("stderr", &ran.stderr, expected.stderr)];
    for (name, found, printed) in streams {
        let wanted = lab.arriving(printed);
        ensure(*found == wanted, || {
            let (found_len, wanted_len) = (found.len(), wanted.len());
            let (found, wanted) = (excerpt(found), excerpt(&wanted));
            format!("{name} is {found} ({found_len} bytes), not {wanted} ({wanted_len} bytes)")
        })?;
    }
    Ok(())
}

fn stdout(lab: &Lab<'_>) -> Finding {
    let printed = ExpectedOutput { stdout: b"a\tb\n\n  c", stderr: b"" };
    expect_output(lab, &lab.run(r"printf 'a\tb\n\n  c'")?, &printed)?;
    expect_output(lab, &lab.run(":")?, &ExpectedOutput { stdout: b"", stderr: b"" })?;
    Ok(Passed::Held)
}

fn binary(lab: &Lab<'_>) -> Finding {
    if lab.subject.capabilities.output == OutputFidelity::Lines {
        let why = "its protocol carries lines of text, as it declares";
        return Ok(Passed::Moot(why.to_owned()));
    }
    let bytes: Vec<u8> = (0..=255).cycle().take(256 * 20).collect();
    let mut invocation = lab.script("cat");
    invocation.stdin = Stdin::Bytes(bytes.clone());
    expect_output(
        lab,
        &lab.run_invocation(invocation)?,
        &ExpectedOutput { stdout: &bytes, stderr: b"" },
    )?;
    Ok(Passed::Held)
}

fn large(lab: &Lab<'_>) -> Finding {
    let count = 150_000;
    let mut expected = String::new();
    for number in 1..=count {
        // Writing to a string does not fail.
        let _ = writeln!(expected, "{number}");
    }
    let ran = lab.run(&format!("seq 1 75000; seq 75001 {count}"))?;
    expect_output(lab, &ran, &ExpectedOutput { stdout: expected.as_bytes(), stderr: b"" })?;
    Ok(Passed::Held)
}

fn streams(lab: &Lab<'_>) -> Finding {
    let script = "echo one; echo two >&2; echo three; echo four >&2";
    let printed = ExpectedOutput { stdout: b"one\nthree\n", stderr: b"two\nfour\n" };
    expect_output(lab, &lab.run(script)?, &printed)?;
    Ok(Passed::Held)
}

fn digests(lab: &Lab<'_>) -> Finding {
    for script in ["echo out", "seq 1 3000; seq 1 2000 >&2"] {
        let ran = lab.run(script)?;
        for (name, told, passed) in
            [("stdout", ran.report.stdout, &ran.stdout), ("stderr", ran.report.stderr, &ran.stderr)]
        {
            let bytes = passed.len() as u64;
            let true_digest = StreamDigest { digest: Digest::of(passed), bytes, truncated: false };
            ensure(told == true_digest, || {
                format!("`{script}`: of {name} the report tells {told:?}, but {bytes} bytes passed")
            })?;
        }
    }
    Ok(Passed::Held)
}

fn exit_codes(lab: &Lab<'_>) -> Finding {
    for code in [1, 7, 126, 255] {
        lab.run(&format!("exit {code}"))?.expect(&Outcome::Exited { code })?;
    }
    Ok(Passed::Held)
}

fn not_found(lab: &Lab<'_>) -> Finding {
    let missing = "no-such-program-here";
    let ran = lab.run(missing)?;
    ran.expect(&Outcome::Exited { code: 127 })?;
    ensure(!ran.stderr.is_empty(), || "nothing is said about the missing program".to_owned())?;
    let command = Command::Argv { program: missing.to_owned(), args: Vec::new() };
    let ended = match lab.attempt(lab.invocation(command), Manner::Keep)? {
        Attempt::Ran(ran) => {
            ran.expect(&Outcome::Exited { code: 127 })?;
            "ran and ended with 127"
        }
        Attempt::Refused(_) => "was refused before anything ran",
        Attempt::Failed(_) => "failed before anything ran",
    };
    if lab.starts_programs() {
        lab.put("plain", "not a program")?;
        lab.run("./plain")?.expect(&Outcome::Exited { code: 126 })?;
    }
    Ok(Passed::HeldAs(format!("as argv it {ended}")))
}

fn argv(lab: &Lab<'_>) -> Finding {
    let words = ["a", "b c", "", "$HOME", "it's", "\"q\"", "new\nline", "*", "\\", "é"];
    let mut args = vec!["[%s]".to_owned()];
    args.extend(words.iter().map(ToString::to_string));
    let expected: String = words.iter().map(|word| format!("[{word}]")).collect();
    let command = Command::Argv { program: "printf".to_owned(), args };
    let ran = lab.run_invocation(lab.invocation(command))?;
    expect_output(lab, &ran, &ExpectedOutput { stdout: expected.as_bytes(), stderr: b"" })?;
    Ok(Passed::Held)
}
