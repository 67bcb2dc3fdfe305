//! The steps of the test command, in the order that fails soonest.

use std::process::Command;
use std::time::Instant;

/// One cargo call with its environment.
struct Step {
    name: &'static str,
    arguments: &'static [&'static str],
    environment: &'static [(&'static str, &'static str)],
}

const TEST: &[Step] = &[
    Step { name: "format", arguments: &["fmt", "--all", "--check"], environment: &[] },
    // Without advisories: their database is no package of a registry.
    Step {
        name: "licenses and sources of dependencies",
        arguments: &["deny", "--locked", "check", "bans", "licenses", "sources"],
        environment: &[],
    },
    Step {
        name: "lints",
        arguments: &["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"],
        environment: &[],
    },
    Step {
        name: "tests and doc tests",
        arguments: &["test", "--workspace", "--locked", "--no-fail-fast"],
        environment: &[],
    },
    Step {
        name: "documentation",
        arguments: &["doc", "--workspace", "--no-deps", "--locked"],
        environment: &[("RUSTDOCFLAGS", "-D warnings")],
    },
];

const BENCH: &[Step] = &[Step {
    name: "benchmarks",
    arguments: &["bench", "--workspace", "--locked", "--benches"],
    environment: &[],
}];

const TOOLCHAINS: &[Step] = &[Step {
    name: "toolchains in the sandbox",
    arguments: &[
        "test",
        "--package",
        "warrant-sandbox",
        "--test",
        "it",
        "--locked",
        "--",
        "--include-ignored",
        "toolchains::",
        "tools::",
    ],
    environment: &[],
}];

/// Runs every check; the first that fails ends it.
///
/// # Errors
/// A sentence naming the failed step.
pub(crate) fn test() -> Result<(), String> {
    run(TEST)
}

/// Runs every toolchain in the sandbox, also those that are large.
///
/// # Errors
/// A sentence naming the failed step.
pub(crate) fn toolchains() -> Result<(), String> {
    run(TOOLCHAINS)
}

/// Runs every benchmark.
///
/// # Errors
/// A sentence naming the failed step.
pub(crate) fn bench() -> Result<(), String> {
    run(BENCH)
}

#[expect(clippy::print_stderr, reason = "progress for the person who waits")]
fn run(steps: &[Step]) -> Result<(), String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    for (index, step) in steps.iter().enumerate() {
        eprintln!("==> {}/{} {}", index + 1, steps.len(), step.name);
        let started = Instant::now();
        let status = Command::new(&cargo)
            .args(step.arguments)
            .envs(step.environment.iter().copied())
            .status()
            .map_err(|error| format!("cargo did not start: {error}"))?;
        if !status.success() {
            let command = step.arguments.join(" ");
            return Err(format!("{} failed; to repeat it alone: cargo {command}", step.name));
        }
        eprintln!("    {} took {} s", step.name, started.elapsed().as_secs());
    }
    Ok(())
}
