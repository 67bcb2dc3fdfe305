//! Idle times and pauses in real time: whoever waited does the next run as if nothing had been.

use std::time::{Duration, Instant};

use super::number_of;
use crate::dev::Laptop;
use crate::fleet::house::{House, script};
use crate::{stderr, stdout};

fn seconds(name: &str, usual: u64) -> Duration {
    Duration::from_secs(number_of(name, usual))
}

#[test]
fn runners_that_waited_any_time_complete_the_next_run() {
    let longest = number_of("WARRANT_SOAK_PARKED_S", 2);
    let pools: Vec<String> =
        (0..=longest).map(|number| format!("parked-{number}")).chain(["default".into()]).collect();
    let house = House::with_pools(&pools);
    let _plane = house.start_plane("127.0.0.1:0");
    let runners: Vec<_> = (0..=longest)
        .map(|number| house.start_runner(&number.to_string(), &["--pool", &pools[number as usize]]))
        .collect();
    let access = house.access();
    let http = access.http();
    house.wait(Duration::from_secs(120), || {
        let listed = http.get("/v1/runners", Some(&access.admin)).unwrap();
        listed["runners"].as_array().is_some_and(|all| all.len() == runners.len())
    });
    let began = Instant::now();
    let mut runs = Vec::new();
    for number in 0..=longest {
        let due = Duration::from_secs(number);
        std::thread::sleep(due.saturating_sub(began.elapsed()));
        let mut request = script(&format!("echo {number}"));
        request["pool"] = pools[number as usize].as_str().into();
        runs.push(access.submit_by_key(&http, &format!("parked-{number}"), &request));
    }
    let bundles = house.wait_for_bundles(&runs, Duration::from_secs(60));
    for (number, bundle) in bundles.iter().enumerate() {
        assert_eq!(bundle["receipt"]["status"], "completed", "parked for {number} s: {bundle}");
    }
    println!("soak: runners parked for 0 to {longest} s completed {} runs", runs.len());
}

#[test]
fn a_laptop_that_was_idle_runs_and_shows_everything() {
    let idle = seconds("WARRANT_SOAK_IDLE_S", 1);
    let laptop = Laptop::start(&[]);
    std::thread::sleep(idle);
    let ran = laptop.there(&["run", "--", "echo A; echo B; seq 1 500"]);
    let expected: String = ["A".to_owned(), "B".to_owned()]
        .into_iter()
        .chain((1..=500).map(|n| n.to_string()))
        .map(|line| format!("{line}\n"))
        .collect();
    assert_eq!(ran.status.code(), Some(0), "{}{}", stdout(&ran), stderr(&ran));
    assert_eq!(stdout(&ran), expected, "piped");
    std::thread::sleep(idle);
    let (shown, code) = laptop.on_terminal(&["run", "--", "echo A; echo B; seq 1 500"]);
    assert_eq!(code, Some(0), "{shown}");
    let shown = shown.replace('\r', "");
    let lines: Vec<&str> = shown.lines().collect();
    let from = lines.iter().position(|line| *line == "A").unwrap_or_else(|| panic!("{shown}"));
    let wanted: Vec<&str> = expected.lines().collect();
    assert_eq!(lines[from..from + wanted.len()], wanted[..], "on a terminal: {shown}");
    println!("soak: a laptop that was idle for {} s, twice, showed everything", idle.as_secs());
}

#[test]
fn a_laptop_that_was_suspended_goes_on_with_its_run() {
    let paused = seconds("WARRANT_SOAK_SUSPENDED_S", 1);
    let laptop = Laptop::start(&[]);
    let running = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| laptop.there(&["run", "--", "sleep 2; echo done"]));
        let until = Instant::now() + Duration::from_secs(60);
        while laptop.newest_state() != "running" {
            assert!(Instant::now() < until && !waiting.is_finished(), "{:?}", waiting.join());
            std::thread::sleep(Duration::from_millis(50));
        }
        laptop.signal(rustix::process::Signal::STOP);
        std::thread::sleep(paused);
        laptop.signal(rustix::process::Signal::CONT);
        waiting.join().unwrap()
    });
    assert_eq!(running.status.code(), Some(0), "{}{}", stdout(&running), stderr(&running));
    assert_eq!(stdout(&running), "done\n");
    let next = laptop.there(&["run", "--", "echo next"]);
    assert_eq!((next.status.code(), stdout(&next)), (Some(0), "next\n".to_owned()));
    println!("soak: a laptop that was suspended for {} s lost nothing", paused.as_secs());
}
