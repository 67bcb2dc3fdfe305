//! A program that is nothing but a worker, for tests that cannot be one themselves.

use std::process::ExitCode;

fn main() -> ExitCode {
    // Started by hand it has nothing to do.
    warrant_sandbox::hermetic::worker_main().unwrap_or(ExitCode::FAILURE)
}
