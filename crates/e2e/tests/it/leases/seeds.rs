//! Which seeds are simulated, and what is expected of them.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use warrant_protocol::RunState;

use super::plane::{Handled, SimulatedPlane};
use super::runner::SimulatedRunner;
use super::simulation::{SimulationOutcome, simulate, temporary_dir};
use super::time::SimulatedTime;
use super::wire::{ApprovalNeed, Mistake, PlaneReply, PlaneRequest, SecretUse, SimulatedRun};

/// How many seeds are simulated unless `cargo xtask simulate` names another number.
const SEEDS: u64 = 300;

/// How many seeds are simulated at the same time.
const THREADS: usize = 2;

/// After how many seeds the person who waits is told.
const PROGRESS: u64 = 500;

/// How many failing seeds are enough.
const MOST_FAILURES: usize = 5;

/// How many lines of a failing seed are shown; a seed that is replayed shows all.
const LOG_LINES: usize = 40;

/// Reads a number that `cargo xtask simulate` sets.
fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap())
}

/// What a number of seeds led to.
#[derive(Debug, Default)]
struct SimulatedSeeds {
    steps: u64,
    ends: Vec<RunState>,
    failures: Vec<String>,
}

impl SimulatedSeeds {
    fn add(&mut self, seed: u64, outcome: SimulationOutcome, log_lines: usize) {
        self.steps += outcome.steps;
        self.ends.extend(outcome.ends);
        if let Some(problem) = outcome.problem {
            let from = outcome.log.len().saturating_sub(log_lines);
            self.failures.push(format!(
                "seed {seed}: {problem}\n{}\nto replay it: cargo xtask simulate --seed {seed}\n",
                outcome.log[from..].join("\n")
            ));
        }
    }
}

#[test]
fn simulated_fleets_keep_every_promise() {
    let (from, to, log_lines) = match number("WARRANT_SIMULATE_SEED") {
        Some(seed) => (seed, seed + 1, usize::MAX),
        None => (0, number("WARRANT_SIMULATE_SEEDS").unwrap_or(SEEDS), LOG_LINES),
    };
    let (next, seen) = (AtomicU64::new(from), Mutex::new(SimulatedSeeds::default()));
    let work = || {
        while seen.lock().unwrap().failures.len() < MOST_FAILURES {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= to {
                break;
            }
            let outcome = simulate(seed, Mistake::None);
            let mut seen = seen.lock().unwrap();
            seen.add(seed, outcome, log_lines);
            if (seed + 1) % PROGRESS == 0 {
                println!("seed {} of {to}, {} failed", seed + 1, seen.failures.len());
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(work);
        }
    });
    let seen = seen.into_inner().unwrap();
    assert!(seen.failures.is_empty(), "{}", seen.failures.join("\n"));
    assert!(seen.steps > 100 && !seen.ends.is_empty(), "{} steps", seen.steps);
    if to - from >= SEEDS {
        let states = [RunState::Completed, RunState::Failed, RunState::Cancelled];
        for state in states.into_iter().chain([RunState::Lost, RunState::Expired]) {
            assert!(seen.ends.contains(&state), "no run of {SEEDS} seeds ends as {state}");
        }
    }
}

#[test]
fn a_seed_replays() {
    for seed in [7, 68] {
        let (first, again) = (simulate(seed, Mistake::None), simulate(seed, Mistake::None));
        assert_eq!((first.steps, &first.ends), (again.steps, &again.ends), "seed {seed}");
        assert_eq!(first.log.len(), again.log.len(), "seed {seed}");
        assert!(first.steps > 100, "seed {seed}: {} steps", first.steps);
    }
}

/// Checks that the first seed that finds a mistake is the recorded one.
#[track_caller]
fn check_first_seed(mistake: Mistake, recorded: u64, expected: &str) {
    let finds = |seed: &u64| {
        let problem = simulate(*seed, mistake).problem;
        problem.is_some_and(|problem| problem.contains(expected))
    };
    if !finds(&recorded) {
        let first = (0..SEEDS).find(finds);
        panic!("seed {recorded} does not find {mistake:?}; the first that does: {first:?}");
    }
}

#[test]
fn simulations_find_old_mistakes_that_are_put_back() {
    check_first_seed(Mistake::CountFromClaim, 0, "ended as cancelled for no reason");
    check_first_seed(Mistake::WallClockLeases, 70, "ended as lost for no reason");
    check_first_seed(Mistake::StartOnce, 0, "for no reason");
}

#[test]
fn a_run_whose_contract_expired_is_sealed_instead_of_leased() {
    let (dir, time) = (temporary_dir(), SimulatedTime::default());
    let mut plane = SimulatedPlane::create(dir.path(), time.process(), Mistake::None);
    let outbox = dir.path().join("outbox");
    let runner = SimulatedRunner::create(&outbox, time.process(), Mistake::None).known();
    plane.enroll(&runner);
    let (approval, secret) = (ApprovalNeed::None, SecretUse::None);
    let run = SimulatedRun { number: 0, approval, secret };
    let submitted = plane.handle(None, &PlaneRequest::Submit(run));
    assert!(matches!(submitted, Handled::Answered(PlaneReply::Submitted(_))), "{submitted:?}");
    plane.clocks().jump(3_600_000);
    let claimed = plane.claim(&runner, 1);
    assert!(matches!(claimed, Handled::Answered(PlaneReply::Empty)), "{claimed:?}");
    let states: Vec<_> = plane.rows().iter().map(|row| row.state).collect();
    assert_eq!(states, [RunState::Expired]);
}
