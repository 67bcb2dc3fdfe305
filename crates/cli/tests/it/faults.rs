//! Fault suites: kills, a faulty network, power cuts and idle times, with real processes.
//!
//! In the normal tests each runs a small sample. `cargo xtask faults` and `cargo xtask soak` set the
//! numbers in the environment and run them in full.

mod disk;
mod kills;
mod load;
mod power;
mod proxy;
mod soak;
mod trace;

/// Reads a number that `cargo xtask faults` or `cargo xtask soak` sets.
fn number_of(name: &str, usual: u64) -> u64 {
    std::env::var(name).map_or(usual, |text| text.parse().unwrap())
}

/// Numbers by seed, so that a failure can be repeated.
struct Chance {
    seed: u64,
    state: u64,
}

impl Chance {
    /// Takes the seed from `WARRANT_FAULTS_SEED`, else another one each time.
    fn new() -> Self {
        let mut fresh = [0; 8];
        getrandom::fill(&mut fresh).unwrap();
        let seed = number_of("WARRANT_FAULTS_SEED", u64::from_ne_bytes(fresh) >> 16) | 1;
        Self::of(seed)
    }

    fn of(seed: u64) -> Self {
        Self { seed, state: seed }
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        (self.state >> 8) % bound
    }
}
