//! Power cuts of the machine under a plane: whatever the plane said before, it still says after.
//!
//! The plane works under `strace`. From the log every moment of its disk can be made again, as a
//! power cut in that moment might have left it ([`super::disk`]).

use std::fs;
use std::process::Command;
use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use super::disk::{ForgetfulDisk, Kept};
use super::trace::{CALLS, FileChange, TraceStep, read_trace};
use super::{Chance, number_of};
use crate::fleet::house::{House, PlaneAccess, script};

/// How many runs the plane has before it is looked at.
const RUNS: u64 = 18;

/// How many cuts there are for each that is also brought to the end of all its runs.
const CUTS_PER_RECOVERY: u64 = 50;

/// What the plane told somebody, and when it had arrived.
#[derive(Debug, Clone)]
struct Told {
    at_us: u64,
    run: String,
    what: Promise,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Promise {
    /// The run is there.
    Submitted,
    /// It does not wait for anybody.
    Approved,
    /// It ended like this.
    Ended(String),
}

#[test]
fn a_power_cut_at_any_moment_takes_back_nothing_that_was_said() {
    let cuts = number_of("WARRANT_FAULTS_POWER_CUTS", 6);
    let mut chance = Chance::new();
    println!("power cuts: WARRANT_FAULTS_SEED={}", chance.seed);
    let house = House::with_pools(&["default".to_owned()]);
    let mut disk = ForgetfulDisk::of(&house.home());
    let house_before = disk.clone();
    let (steps, told) = record(&house);
    assert!(steps.len() > 100 && told.len() as u64 > 2 * RUNS, "{} {}", steps.len(), told.len());
    println!("power cuts: {} steps on disk, {} answers", steps.len(), told.len());
    let mut points: Vec<usize> =
        (0..cuts).map(|_| usize::try_from(chance.below(steps.len() as u64)).unwrap() + 1).collect();
    points.sort_unstable();
    let mut applied = 0;
    for (number, point) in (1_u64..).zip(points) {
        for step in &steps[applied..point] {
            disk.apply(&step.change);
        }
        applied = point;
        let kept = [Kept::Nothing, Kept::Everything, Kept::AnyPart, Kept::AnyPart];
        let kept = kept[usize::try_from(chance.below(4)).unwrap()];
        let after = House::without_home();
        disk.cut((&house.home(), &after.home()), kept, &mut chance);
        let last = steps[point - 1].at_us;
        let owed: Vec<&Told> = told.iter().filter(|told| told.at_us < last).collect();
        if let Err(problem) = check(&after, &owed) {
            panic!("cut {number} after step {point}, {kept:?}: {problem}");
        }
        if number % CUTS_PER_RECOVERY == 1 && !owed.is_empty() {
            check_recovery(&after, point);
        }
        if number % 50 == 0 {
            println!("power cuts: {number} of {cuts}");
        }
    }
    println!("power cuts: {cuts} cuts, nothing was taken back");
    let without_syncs = disk_without_syncs(&house_before, &steps);
    let after = House::without_home();
    without_syncs.cut((&house.home(), &after.home()), Kept::Nothing, &mut chance);
    let owed: Vec<&Told> = told.iter().collect();
    assert!(check(&after, &owed).is_err(), "a disk that never keeps anything is noticed");
}

/// Returns the disk at the end of everything, had no sync ever done anything.
fn disk_without_syncs(before: &ForgetfulDisk, steps: &[TraceStep]) -> ForgetfulDisk {
    let mut disk = before.clone();
    let is_sync = |change: &FileChange| matches!(change, FileChange::SyncEnded { .. });
    for step in steps.iter().filter(|step| !is_sync(&step.change)) {
        disk.apply(&step.change);
    }
    disk
}

/// Has a plane work under `strace`; returns what it did to its home and what it told.
fn record(house: &House) -> (Vec<TraceStep>, Vec<Told>) {
    let log = house.path("trace");
    let mut command = Command::new("strace");
    command.args(["-D", "-f", "-ttt", "-y", "-xx", "-s", "33554432", "-e"]);
    command.arg(format!("trace={CALLS}")).arg("-o").arg(&log);
    command.arg(env!("CARGO_BIN_EXE_warrant"));
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
    let plane = house.start_plane_by(command, "127.0.0.1:0");
    let runner = house.start_runner("one", &[]);
    let access = house.access();
    let boss = json!({"name": "boss", "role": "approver"});
    let boss = access.http().post_as("/v1/principals", &access.admin, &boss).unwrap();
    let boss = boss["token"].as_str().unwrap();
    let told = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let (access, told) = (&access, &told);
            scope.spawn(move || {
                for number in (0..RUNS).filter(|number| number % 3 == thread) {
                    let all = ask_for_run(access, boss, number);
                    told.lock().unwrap().extend(all);
                }
            });
        }
    });
    assert!(runner.drain().success());
    let is_over = |log: &str| log.trim_end().ends_with("+++ exited with 0 +++");
    assert!(plane.drain().success());
    let until = Instant::now() + Duration::from_secs(30);
    let text = loop {
        let text = fs::read_to_string(&log).unwrap();
        if is_over(&text) {
            break text;
        }
        assert!(Instant::now() < until, "the log does not end");
        std::thread::sleep(Duration::from_millis(20));
    };
    (read_trace(&text, &house.home()), told.into_inner().unwrap())
}

/// Brings one run to its end; returns what the plane said on the way.
fn ask_for_run(access: &PlaneAccess, boss: &str, number: u64) -> Vec<Told> {
    let http = access.http();
    let mut request = script(&format!("echo {number} > out.txt"));
    let needs_consent = number % 3 == 1;
    if needs_consent {
        request["agentKind"] = json!("mock");
        request["execution"] = Value::Null;
    }
    let run = access.submit_by_key(&http, &format!("cut-{number}"), &request);
    let mut told = vec![heard(&run, Promise::Submitted)];
    if needs_consent {
        http.post_as(&format!("/v1/runs/{run}/approve"), boss, &json!({})).unwrap();
        told.push(heard(&run, Promise::Approved));
    }
    let until = Instant::now() + Duration::from_secs(120);
    loop {
        let view = http.get(&format!("/v1/runs/{run}"), Some(&access.admin)).unwrap();
        let state = view["state"].as_str().unwrap();
        if ["completed", "failed"].contains(&state) {
            told.push(heard(&run, Promise::Ended(state.to_owned())));
            return told;
        }
        assert!(Instant::now() < until, "{view}");
        std::thread::sleep(Duration::from_millis(30));
    }
}

fn heard(run: &str, what: Promise) -> Told {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    Told { at_us: u64::try_from(now.as_micros()).unwrap(), run: run.to_owned(), what }
}

/// Checks that the home is sound and that everything is as it was told.
fn check(after: &House, owed: &[&Told]) -> Result<(), String> {
    if owed.is_empty() {
        // Nobody heard anything of this home yet, so there may be none.
        return Ok(());
    }
    let checked = after.local(&["fsck", "--json"]);
    if !checked.status.success() {
        return Err(format!("{}{}", crate::stdout(&checked), crate::stderr(&checked)));
    }
    let runs = after.local(&["runs", "--json", "--limit", "1000"]);
    let runs: Value = serde_json::from_slice(&runs.stdout).map_err(|error| error.to_string())?;
    for told in owed {
        let found = runs["runs"].as_array().unwrap().iter().find(|run| run["runId"] == told.run);
        let run = found.ok_or_else(|| format!("{told:?}: there is no such run"))?;
        let is_kept = match &told.what {
            Promise::Submitted => true,
            Promise::Approved => run["state"] != "awaiting_approval",
            Promise::Ended(state) => run["state"] == state.as_str() && run["hasReceipt"] == true,
        };
        if !is_kept {
            return Err(format!("{told:?}: {run}"));
        }
    }
    Ok(())
}

/// Checks that a plane and a runner bring every run to its end that waits for nobody.
fn check_recovery(after: &House, point: usize) {
    let _plane = after.start_plane("127.0.0.1:0");
    let _runner = after.start_runner("one", &[]);
    let access = after.access();
    let http = access.http();
    after.wait(Duration::from_secs(90), || {
        let listed = http.get("/v1/runs?limit=1000", Some(&access.admin)).unwrap();
        let is_over = |run: &Value| {
            let state = run["state"].as_str().unwrap();
            !["queued", "leased", "running", "stopping"].contains(&state)
        };
        listed["runs"].as_array().unwrap().iter().all(is_over)
    });
    let checked = after.local(&["fsck", "--json"]);
    assert!(checked.status.success(), "{point}: {}", crate::stdout(&checked));
}
