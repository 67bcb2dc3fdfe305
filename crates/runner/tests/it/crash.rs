//! Killed at random moments: every started run has exactly one receipt, nothing runs twice.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use warrant_plane::store::RunFilter;
use warrant_plane::{EmbeddedPlane, Home, random};
use warrant_protocol::{KeyRole, RunState, TrustedKeys};

use crate::support::{House, TestBackend, policy_hash, request};

const HOME: &str = "WARRANT_TEST_CRASH_HOME";
const NUMBER: &str = "WARRANT_TEST_CRASH_NUMBER";
const KILLS: u64 = 200;

/// The victim: one run in the home of the environment. Does nothing without it.
#[test]
fn victim_of_the_crash_test() {
    let Some(root) = std::env::var_os(HOME) else { return };
    let number = std::env::var(NUMBER).unwrap();
    let house = House::in_directory(Path::new(&root));
    let marker = Path::new(&root).join("marker");
    let script = format!("echo {number} >> {}; sleep 0.01; echo {number}", marker.display());
    house.run(request(&script), &TestBackend::new());
}

fn kill_one_at_random(root: &Path, number: u64) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "crash::victim_of_the_crash_test", "--test-threads", "1"])
        .env(HOME, root)
        .env(NUMBER, number.to_string())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let random = u64::from(u16::from_be_bytes(random::bytes().unwrap()));
    std::thread::sleep(Duration::from_micros(random));
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_process_killed_at_any_moment_leaves_exactly_one_receipt_for_what_it_started() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    drop(House::in_directory(root));
    for number in 0..KILLS {
        kill_one_at_random(root, number);
    }
    let home = Home::open_at(root.join("home"), None).unwrap();
    let plane = EmbeddedPlane::open(home, policy_hash()).unwrap();
    let page =
        plane.store().list(&RunFilter { limit: Some(1000), ..RunFilter::default() }).unwrap();
    let trusted = TrustedKeys::none()
        .and(KeyRole::Plane, plane.home().plane_key().public().clone())
        .and(KeyRole::Runner, plane.home().runner_key().public().clone());
    let mut started: BTreeMap<u64, RunState> = BTreeMap::new();
    for run in &page.runs {
        // A queued run was never leased; it expires with its contract.
        if run.state == RunState::Queued {
            continue;
        }
        assert!(run.state.is_terminal(), "{} is {}", run.id, run.state);
        assert!(run.has_receipt);
        let bundle = plane.bundle(&run.id).unwrap().to_string();
        let verified = warrant_protocol::verify::verify_slice(bundle.as_bytes(), &trusted);
        assert!(verified.is_ok(), "{}: {:?}", run.id, verified.err());
        if bundle.contains("\"run.started\"") {
            let number = run.prompt.split([' ', ';']).nth(1).unwrap().parse().unwrap();
            assert_eq!(started.insert(number, run.state), None, "one run for one submission");
        }
    }
    let ran = fs::read_to_string(root.join("marker")).unwrap_or_default();
    let mut executed: Vec<u64> = ran.lines().map(|line| line.parse().unwrap()).collect();
    executed.sort_unstable();
    let before = executed.len();
    executed.dedup();
    assert_eq!(executed.len(), before, "nothing ran twice");
    for number in &executed {
        assert!(started.contains_key(number), "{number} ran without a recorded start");
    }
    assert!(plane.seal_lost().unwrap().is_empty(), "sealed once");
    let leftovers = |name: &str| -> Vec<PathBuf> {
        let entries = fs::read_dir(plane.home().data().join(name)).unwrap();
        entries.map(|entry| entry.unwrap().path()).collect()
    };
    assert!(leftovers("sessions").is_empty());
    let lost = started.values().filter(|state| **state == RunState::Lost).count();
    let completed = started.values().filter(|state| **state == RunState::Completed).count();
    assert!(lost + completed > 0, "the kills came too early to show anything");
}
