//! Runs the fault suites and the soak of the command line's tests with their full numbers.
//!
//! They are tests like all others, which run a small sample of themselves; here the environment
//! says how much.

use std::process::Command;
use std::time::Instant;

/// One suite: its option, the variable that carries its number, its full number and its test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FaultSuite {
    option: &'static str,
    variable: &'static str,
    number: u64,
    test: &'static str,
}

const SUITES: [FaultSuite; 4] = [
    FaultSuite {
        option: "--plane-kills",
        variable: "WARRANT_FAULTS_PLANE_KILLS",
        number: 200,
        test: "faults::kills::a_plane_killed_under_load_loses_nothing_and_runs_nothing_twice",
    },
    FaultSuite {
        option: "--runner-kills",
        variable: "WARRANT_FAULTS_RUNNER_KILLS",
        number: 100,
        test: "faults::kills::runners_killed_under_load_leave_one_receipt_for_every_run",
    },
    FaultSuite {
        option: "--proxy-runs",
        variable: "WARRANT_FAULTS_PROXY_RUNS",
        number: 200,
        test: "faults::proxy::runs_through_a_faulty_network_all_complete_once",
    },
    FaultSuite {
        option: "--power-cuts",
        variable: "WARRANT_FAULTS_POWER_CUTS",
        number: 300,
        test: "faults::power::a_power_cut_at_any_moment_takes_back_nothing_that_was_said",
    },
];

const SOAK: [(&str, &str); 3] = [
    ("WARRANT_SOAK_PARKED_S", "30"),
    ("WARRANT_SOAK_IDLE_S", "60"),
    ("WARRANT_SOAK_SUSPENDED_S", "30"),
];

/// Reads the options of `faults`: every suite in full, or those that are named with their numbers.
///
/// # Errors
/// A sentence naming the option that is wrong.
pub(crate) fn parse(options: &[&str]) -> Result<Vec<FaultSuite>, String> {
    if options.is_empty() {
        return Ok(SUITES.to_vec());
    }
    let mut suites = Vec::new();
    for pair in options.chunks(2) {
        let [option, text] = pair else {
            return Err(format!("{}: expected a number after it", pair.concat()));
        };
        let suite = SUITES.iter().find(|suite| suite.option == *option).ok_or_else(|| {
            let known = SUITES.map(|suite| suite.option).join(" N, ");
            format!("faults {option}: expected nothing or some of {known} N")
        })?;
        let number =
            text.parse().map_err(|error| format!("{option} {text}: not a number: {error}"))?;
        suites.push(FaultSuite { number, ..*suite });
    }
    Ok(suites)
}

/// Runs the suites one after another; the first that fails ends it.
///
/// # Errors
/// A sentence naming the suite and how to repeat it.
#[expect(clippy::print_stderr, reason = "progress for the person who waits")]
pub(crate) fn run(suites: &[FaultSuite]) -> Result<(), String> {
    for suite in suites {
        let (option, number) = (suite.option, suite.number);
        eprintln!("==> {option} {number}");
        let began = Instant::now();
        let number_text = number.to_string();
        let environment = [(suite.variable, number_text.as_str())];
        test(&["--exact", suite.test], &environment).map_err(|error| {
            format!(
                "{error}; the seed is above, to repeat it: WARRANT_FAULTS_SEED=… cargo xtask \
                 faults {option} {number}"
            )
        })?;
        eprintln!("    {option} {number} took {} s", began.elapsed().as_secs());
    }
    Ok(())
}

/// Runs the soak in real time, its parts beside each other.
///
/// # Errors
/// A sentence when something failed.
pub(crate) fn soak() -> Result<(), String> {
    test(&["faults::soak::", "--test-threads=3"], &SOAK)
}

fn test(arguments: &[&str], environment: &[(&str, &str)]) -> Result<(), String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .args(["test", "-p", "warrant-cli", "--test", "it", "--", "--nocapture"])
        .args(arguments)
        .envs(environment.iter().copied())
        .status()
        .map_err(|error| format!("cargo did not start: {error}"))?;
    if status.success() { Ok(()) } else { Err("the tests failed".to_owned()) }
}
