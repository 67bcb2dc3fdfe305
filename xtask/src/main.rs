//! Chores of this repository. `cargo xtask test` is the one test command, for people and for CI.

use std::process::ExitCode;

mod faults;
mod fuzz;
mod install;
mod simulate;
mod steps;

const HELP: &str = "\
Chores of this repository

Usage: cargo xtask <COMMAND>

Commands:
  test        Install what the tests need, then check format, dependencies, lints, tests,
              documentation and, shortly, every fuzz target
  fuzz        Run every fuzz target for a few seconds
  install     Install what the tests need, and nothing else
  toolchains  Install large toolchains too, and run each of them in the sandbox
  bench       Run every benchmark and print its figures
  faults      Kill planes and runners, break the network, cut the power: 200, 100, 200 and 300
              times, or --plane-kills N, --runner-kills N, --proxy-runs N, --power-cuts N alone
  soak        Let runners and a laptop wait in real time: up to 30 s, 60 s idle, 30 s suspended
  simulate    Simulate fleets: 10 000 seeds, `--seeds N` of them, or `--seed S` alone
";

#[expect(
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "this is the edge that speaks to the person"
)]
fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let result = match words.as_slice() {
        ["test"] => install::ensure().and_then(|()| steps::test()).and_then(|()| fuzz::smoke()),
        ["fuzz"] => fuzz::smoke(),
        ["install"] => install::ensure(),
        ["toolchains"] => install::ensure_toolchains().and_then(|()| steps::toolchains()),
        ["bench"] => install::ensure_bench().and_then(|()| steps::bench()),
        ["faults", options @ ..] => match faults::parse(options) {
            Ok(suites) => faults::run(&suites),
            Err(message) => {
                eprintln!("xtask: {message}");
                return ExitCode::from(2);
            }
        },
        ["soak"] => faults::soak(),
        ["simulate", options @ ..] => match simulate::Seeds::parse(options) {
            Ok(seeds) => seeds.simulate(),
            Err(message) => {
                eprintln!("xtask: {message}");
                return ExitCode::from(2);
            }
        },
        ["--help" | "-h" | "help"] => {
            print!("{HELP}");
            return ExitCode::SUCCESS;
        }
        _ => {
            eprint!("{HELP}");
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
    }
}
