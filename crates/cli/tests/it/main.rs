//! The binary from outside: arguments in, text and exit code out.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

mod agents;
mod binary;
mod bringing;
mod crash;
mod crowd;
mod dev;
mod doors_crash;
mod exec;
mod faults;
mod fleet;
mod full;
mod gaps;
mod git;
mod helm_quick_start;
mod hook;
mod hook_masks;
mod hostile;
mod keys;
mod logging;
mod machine;
mod mcp;
mod mcp_conformance;
mod mcp_http;
mod mcp_messages;
mod mcp_secrets;
mod misuse;
mod odd;
mod others;
mod own;
mod plane;
mod policy_holder;
mod progress;
mod provider_port;
mod read_only;
mod remote;
mod rollback;
mod run_output;
mod serving;
mod shell;
mod stopping;
mod verify;
mod worktree;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Returns the binary with an empty environment, so that nothing of the machine leaks into a test.
fn warrant() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_warrant"));
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
    command
}

/// Runs the binary to its end.
fn run(arguments: &[&str]) -> Output {
    warrant().args(arguments).output().unwrap()
}

/// Runs the binary to its end with bytes on its stdin.
fn run_with_stdin(arguments: &[&str], stdin: &[u8]) -> Output {
    let mut child = warrant()
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(stdin).unwrap();
    child.wait_with_output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn sample(name: &str) -> String {
    root().join("samples").join(name).to_str().unwrap().to_owned()
}
