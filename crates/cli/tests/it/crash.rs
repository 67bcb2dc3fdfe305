//! The binary killed at two hundred random moments of a run in the namespace tier: one receipt
//! for whatever was started, nothing run twice, nothing left behind.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::{stderr, stdout, warrant};

const KILLS: u32 = 200;
/// How long the kernel may take to end the jail of a dead supervisor.
const PATIENCE: Duration = Duration::from_secs(20);

struct Place {
    directory: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let directory = tempfile::Builder::new().prefix("crash-").tempdir().unwrap();
        for name in ["work", "ledger", "policy"] {
            fs::create_dir(directory.path().join(name)).unwrap();
        }
        let place = Self { directory };
        place.allow_writing();
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The default policy, but for its wish to ask before a directory is written.
    fn allow_writing(&self) {
        assert!(self.run(&["init"]).status.success());
        for name in ["document.json", "rules.cedar"] {
            fs::copy(self.path("home/policy").join(name), self.path("policy").join(name)).unwrap();
        }
        let rules = fs::read_to_string(self.path("policy/rules.cedar")).unwrap();
        let (kept, _) = rules.split_once("@id(\"default-write-grants\")").unwrap();
        let free = "@id(\"ledger\")\n@reason(\"the test's ledger\")\n\
                    permit (principal, action == Action::\"fs_grant\", resource);\n";
        fs::write(self.path("policy/rules.cedar"), format!("{kept}{free}")).unwrap();
        let set = self.run(&["policy", "set", self.path("policy").to_str().unwrap()]);
        assert!(set.status.success(), "{}", stderr(&set));
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = warrant();
        command.args(arguments).env("WARRANT_HOME", self.path("home"));
        command.current_dir(self.path("work")).stdin(Stdio::null());
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// The run with this number: it writes the number into the ledger and goes on for a moment.
    fn victim(&self, number: u32) -> Command {
        let ledger = self.path("ledger");
        let script = format!("echo {number} >> {}/lines; sleep 0.03", ledger.display());
        let write = ledger.to_str().unwrap();
        let mut command =
            self.command(&["sandbox", "exec", "--write", write, "--", "sh", "-c", &script]);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    fn ledger(&self) -> Vec<u32> {
        let lines = fs::read_to_string(self.path("ledger/lines")).unwrap_or_default();
        lines.lines().map(|line| line.parse().unwrap()).collect()
    }

    /// Returns the processes of this machine that still work for this place.
    fn processes(&self) -> Vec<u32> {
        let ours = self.directory.path().to_str().unwrap().as_bytes();
        let all = fs::read_dir("/proc").unwrap().flatten();
        let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        pids.filter(|pid| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.windows(ours.len()).any(|window| window == ours)
        })
        .collect()
    }

    fn wait_until_nobody_works(&self) {
        let started = Instant::now();
        while !self.processes().is_empty() {
            assert!(started.elapsed() < PATIENCE, "still there: {:?}", self.processes());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Numbers that differ from run to run of the test.
struct Dice(u64);

impl Dice {
    fn new() -> Self {
        let mut seed = [0; 8];
        getrandom::fill(&mut seed).unwrap();
        Self(u64::from_ne_bytes(seed) | 1)
    }

    fn below(&mut self, bound: Duration) -> Duration {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        bound.mul_f64((self.0 % 10_000) as f64 / 10_000.0)
    }
}

/// Returns the directories of control groups that these supervisors left.
fn groups_of(pids: &BTreeSet<u32>) -> Vec<PathBuf> {
    fn search(directory: &Path, pids: &BTreeSet<u32>, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            let name = entry.file_name().to_string_lossy().into_owned();
            let pid = name.strip_prefix("warrant-").and_then(|rest| rest.split('-').next());
            if pid.and_then(|pid| pid.parse().ok()).is_some_and(|pid| pids.contains(&pid)) {
                found.push(entry.path());
            }
            search(&entry.path(), pids, found);
        }
    }
    let mut found = Vec::new();
    search(Path::new("/sys/fs/cgroup"), pids, &mut found);
    found
}

/// Returns the types of the events of every run, in their order.
fn stories(place: &Place) -> BTreeMap<String, Vec<String>> {
    let exported = place.run(&["export", "--jsonl"]);
    assert!(exported.status.success(), "{}", stderr(&exported));
    let mut stories: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for line in stdout(&exported).lines() {
        let event: Value = serde_json::from_str(line).unwrap();
        let run = event["runId"].as_str().unwrap().to_owned();
        stories.entry(run).or_default().push(event["event"]["type"].as_str().unwrap().to_owned());
    }
    stories
}

#[test]
fn two_hundred_kills_leave_one_receipt_each_and_nothing_behind() {
    let place = Place::new();
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    // How long a run takes here, so that the kills fall into all of it.
    let whole = (0..3)
        .map(|number| {
            let started = Instant::now();
            assert!(place.victim(KILLS + number).status().unwrap().success());
            started.elapsed()
        })
        .min()
        .unwrap();
    let (mut dice, mut killed) = (Dice::new(), BTreeSet::new());
    for number in 0..KILLS {
        let mut child = place.victim(number).spawn().unwrap();
        std::thread::sleep(dice.below(whole));
        killed.insert(child.id());
        child.kill().unwrap();
        child.wait().unwrap();
    }
    place.wait_until_nobody_works();
    let executed = place.ledger();

    // The next start seals what was lost and removes what was left.
    assert!(place.victim(KILLS + 3).status().unwrap().success());
    let listed = place.run(&["runs", "--json", "--limit", "1000"]);
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    let stories = stories(&place);
    let mut fell: BTreeMap<&str, u32> = BTreeMap::new();
    let mut started = BTreeSet::new();
    for run in listed["runs"].as_array().unwrap() {
        let id = run["runId"].as_str().unwrap();
        let events = &stories[id];
        let count = |name: &str| events.iter().filter(|kind| *kind == name).count();
        assert_eq!(run["hasReceipt"], true, "{run}");
        let ends =
            ["run.completed", "run.failed", "run.cancelled"].map(count).iter().sum::<usize>();
        assert_eq!(ends, 1, "{id}: {events:?}");
        let verified = place.run(&["verify", id]);
        assert!(verified.status.success(), "{id}: {}{}", stdout(&verified), stderr(&verified));
        match count("run.started") {
            1 => {
                let prompt = run["prompt"].as_str().unwrap();
                let number: u32 = prompt.split_whitespace().nth(3).unwrap().parse().unwrap();
                assert!(started.insert(number), "{number} was started twice");
                let state = run["state"].as_str().unwrap();
                let word = match (state, executed.contains(&number)) {
                    ("lost", false) => "started, before the program",
                    ("lost", true) => "started, during or after the program",
                    _ => "ended by itself",
                };
                *fell.entry(word).or_default() += 1;
            }
            // A run is written together with its start: there is none without.
            other => panic!("{id} was started {other} times"),
        }
    }
    let known: u32 = fell.values().sum();
    println!("kills before anything was stored: {}; {fell:?}", KILLS + 4 - known);

    let once: BTreeSet<u32> = executed.iter().copied().collect();
    assert_eq!(once.len(), executed.len(), "something ran twice");
    assert!(once.is_subset(&started), "something ran without a recorded start");
    let early = KILLS + 4 - known;
    let phases = [
        ("before anything was stored", early),
        ("before the program", fell.get("started, before the program").copied().unwrap_or(0)),
        ("the program", fell.get("started, during or after the program").copied().unwrap_or(0)),
    ];
    for (phase, kills) in phases {
        assert!(kills > 0, "no kill fell into {phase}: {early} early, {fell:?}");
    }

    for name in ["sessions", "alive"] {
        let left = fs::read_dir(place.path("home/data").join(name)).unwrap();
        let left: Vec<_> = left.flatten().map(|entry| entry.path()).collect();
        assert!(left.is_empty(), "{left:?}");
    }
    assert_eq!(groups_of(&killed), Vec::<PathBuf>::new());
    assert_eq!(fs::read_to_string("/proc/self/mountinfo").unwrap(), mounts);
    let again = place.run(&["runs", "--json", "--limit", "1000"]);
    let again: Value = serde_json::from_slice(&again.stdout).unwrap();
    assert_eq!(again, listed, "what is sealed stays as it is");
}
