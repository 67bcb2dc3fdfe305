//! Planes and runners killed again and again while they work.

use std::time::Duration;

use super::load::Load;
use super::{Chance, number_of};
use crate::fleet::house::House;

/// How many runs there are at most for each kill.
const RUNS_PER_KILL: u64 = 4;

#[test]
fn a_plane_killed_under_load_loses_nothing_and_runs_nothing_twice() {
    let kills = number_of("WARRANT_FAULTS_PLANE_KILLS", 4);
    let mut chance = Chance::new();
    println!("plane kills: WARRANT_FAULTS_SEED={}", chance.seed);
    let house = House::new();
    let mut plane = house.start_plane("127.0.0.1:0");
    let listen = plane.address();
    let _runners = [house.start_runner("one", &[]), house.start_runner("two", &[])];
    let load = Load::of(&house, house.access());
    let runs = std::thread::scope(|scope| {
        let submitting = scope.spawn(|| load.submit(kills * RUNS_PER_KILL));
        for kill in 1..=kills {
            std::thread::sleep(Duration::from_millis(chance.below(300)));
            plane.kill();
            std::thread::sleep(Duration::from_millis(chance.below(60)));
            plane = house.start_plane(&listen);
            if kill % 20 == 0 {
                println!("plane kills: {kill} of {kills}");
            }
        }
        load.stop();
        submitting.join().unwrap()
    });
    assert!(runs.len() > 2, "{} runs", runs.len());
    let ends = load.check(&house, &runs);
    println!("plane kills: {kills} kills, {} runs, ends {ends:?}", runs.len());
    assert_eq!(ends.get("completed").copied(), Some(runs.len() as u32), "{ends:?}");
}

#[test]
fn runners_killed_under_load_leave_one_receipt_for_every_run() {
    let kills = number_of("WARRANT_FAULTS_RUNNER_KILLS", 4);
    let mut chance = Chance::new();
    println!("runner kills: WARRANT_FAULTS_SEED={}", chance.seed);
    let house = House::new();
    let _plane = house.start_plane("127.0.0.1:0");
    let names = ["one", "two"];
    let mut runners = names.map(|name| house.start_runner(name, &[]));
    let load = Load::of(&house, house.access());
    let runs = std::thread::scope(|scope| {
        let submitting = scope.spawn(|| load.submit(kills * RUNS_PER_KILL));
        for kill in 1..=kills {
            std::thread::sleep(Duration::from_millis(200 + chance.below(500)));
            let which = usize::try_from(chance.below(2)).unwrap();
            runners[which].kill();
            // Now and then it stays away for longer than it has time to return.
            let pause = if chance.below(8) == 0 { 4000 } else { chance.below(100) };
            std::thread::sleep(Duration::from_millis(pause));
            runners[which] = house.start_runner(names[which], &[]);
            if kill % 10 == 0 {
                println!("runner kills: {kill} of {kills}");
            }
        }
        load.stop();
        submitting.join().unwrap()
    });
    assert!(runs.len() > 2, "{} runs", runs.len());
    let ends = load.check(&house, &runs);
    println!("runner kills: {kills} kills, {} runs, ends {ends:?}", runs.len());
    assert!(ends.get("completed").is_some_and(|completed| *completed > 0), "{ends:?}");
}
