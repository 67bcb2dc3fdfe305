//! Leases: every interleaving of a small model, and seeded simulations of the real thing.

mod explore;
mod model;
mod plane;
mod runner;
mod seeds;
mod simulation;
mod time;
mod wire;

use explore::{Explored, explore};
use model::{Bounds, Cancels, Fault, Leases, are_bounds_final};

const BOUNDS: Bounds =
    Bounds { messages: 2, leases: 1, runner_kills: 0, plane_kills: 1, cancels: Cancels::Never };

fn explored(fault: Fault, bounds: Bounds) -> Explored {
    explore(&Leases::new(fault, bounds))
}

#[track_caller]
fn check_sound(bounds: Bounds) {
    let explored = explored(Fault::None, bounds);
    assert!(explored.problem.is_none(), "{bounds:?}: {}", explored.problem.unwrap_or_default());
    assert!(explored.steps > explored.states, "{explored:?}");
    assert!(explored.states > 1_000 && explored.ends > 100, "{explored:?}");
}

#[test]
fn no_interleaving_of_leases_breaks_a_promise_or_waits_forever() {
    assert!(are_bounds_final());
    check_sound(BOUNDS);
    check_sound(Bounds { cancels: Cancels::AnyTime, plane_kills: 0, ..BOUNDS });
    check_sound(Bounds { runner_kills: 1, ..BOUNDS });
    check_sound(Bounds { leases: 2, plane_kills: 0, ..BOUNDS });
}

#[track_caller]
fn check_found(fault: Fault, expected: &str) {
    let explored = explored(fault, BOUNDS);
    let problem = explored.problem.unwrap_or_default();
    assert!(problem.starts_with(expected), "{fault:?}: {problem:?}");
}

#[test]
fn the_model_finds_old_mistakes_that_are_put_back() {
    check_found(Fault::CountFromClaim, "it was cancelled, and nobody asked for it");
    check_found(Fault::TwoCommits, "waits forever");
    check_found(Fault::StartOnce, "a runner was sent away from a lease that it holds");
}
