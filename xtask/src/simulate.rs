//! Simulates fleets with more seeds than the tests do, or replays one.

use std::process::Command;

const TEST: &str = "leases::seeds::simulated_fleets_keep_every_promise";

/// How many seeds are simulated where no number is given.
const SEEDS: u64 = 10_000;

/// Which seeds are simulated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Seeds {
    /// This many, from 0 on.
    First(u64),
    /// This one.
    One(u64),
}

impl Seeds {
    /// Reads the options of the command.
    ///
    /// # Errors
    /// A sentence naming the option that is wrong.
    pub(crate) fn parse(options: &[&str]) -> Result<Self, String> {
        let number = |option: &str, text: &str| {
            text.parse().map_err(|error| format!("{option} {text}: not a number: {error}"))
        };
        match options {
            [] => Ok(Self::First(SEEDS)),
            ["--seeds", text] => Ok(Self::First(number("--seeds", text)?)),
            ["--seed", text] => Ok(Self::One(number("--seed", text)?)),
            other => {
                let given = other.join(" ");
                Err(format!("simulate {given}: expected nothing, --seeds N or --seed S"))
            }
        }
    }

    /// Simulates them.
    ///
    /// # Errors
    /// A sentence naming the command that failed.
    pub(crate) fn simulate(self) -> Result<(), String> {
        let (name, value) = match self {
            Self::First(seeds) => ("WARRANT_SIMULATE_SEEDS", seeds),
            Self::One(seed) => ("WARRANT_SIMULATE_SEED", seed),
        };
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let status = Command::new(&cargo)
            .args([
                "test",
                "-p",
                "warrant-e2e",
                "--test",
                "it",
                TEST,
                "--",
                "--exact",
                "--nocapture",
            ])
            .env_remove("WARRANT_SIMULATE_SEED")
            .env(name, value.to_string())
            .status()
            .map_err(|error| format!("cargo did not start: {error}"))?;
        match status.success() {
            true => Ok(()),
            false => Err(format!("a seed failed or the test did not run ({name}={value})")),
        }
    }
}
