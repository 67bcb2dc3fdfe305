//! A plane and its runners as processes of their own, on loopback.

mod agents;
pub(crate) mod house;

use std::collections::HashSet;
use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use warrant_runner::remote::Http;

use self::house::{House, script};

#[test]
fn two_runners_and_a_plane_end_every_run_in_a_verified_bundle() {
    let house = House::new();
    let _plane = house.start_plane("127.0.0.1:0");
    let runners = [house.start_runner("one", &[]), house.start_runner("two", &[])];
    let runs: Vec<String> = (0..house.count(60))
        .map(|number| house.submit(&script(&format!("echo {number} > out.txt"))))
        .collect();
    let bundles = house.wait_for_bundles(&runs, Duration::from_secs(240));
    let mut who = HashSet::new();
    for bundle in &bundles {
        house.verify(bundle);
        assert_eq!(bundle["receipt"]["status"], "completed", "{bundle}");
        assert!(bundle["receipt"]["workspaceOut"]["diffHash"].as_str().unwrap().len() == 64);
        who.insert(bundle["receipt"]["runner"]["runnerId"].as_str().unwrap().to_owned());
    }
    assert_eq!(who.len(), runners.len(), "both runners worked");
    for runner in runners {
        assert!(runner.drain().success());
    }
}

#[test]
fn kills_of_plane_and_runner_lose_nothing_and_run_nothing_twice() {
    let house = House::new();
    let mut plane = house.start_plane("127.0.0.1:0");
    let listen = plane.address();
    let mut runners = [house.start_runner("one", &[]), house.start_runner("two", &[])];
    let marks = house.directory("marks");
    let total = house.count(24);
    let mut runs = Vec::new();
    let mut chance = 0x2545_f491_4f6c_dd1d_u64;
    let mut next = |below: u64| {
        chance ^= chance << 13;
        chance ^= chance >> 7;
        chance ^= chance << 17;
        chance % below
    };
    for number in 0..total {
        // What a program does outside tells how often it was started.
        let mark = marks.join(number.to_string());
        let work = format!(
            "echo ran >> {}; sleep 0.0{}; echo {number} > out.txt",
            mark.display(),
            next(9)
        );
        runs.push(house.submit_until_taken(&script(&work)));
        if next(4) == 0 {
            std::thread::sleep(Duration::from_millis(next(120)));
            match next(3) {
                0 => {
                    plane.kill();
                    plane = house.start_plane(&listen);
                }
                which => {
                    let at = usize::try_from(which - 1).unwrap();
                    runners[at].kill();
                    let name = ["one", "two"][at];
                    runners[at] = house.start_runner(name, &[]);
                }
            }
        }
    }
    let bundles = house.wait_for_bundles(&runs, Duration::from_secs(300));
    let mut lost = 0;
    for (number, bundle) in bundles.iter().enumerate() {
        house.verify(bundle);
        let mark = fs::read_to_string(marks.join(number.to_string())).unwrap_or_default();
        let times = mark.lines().count();
        assert!(times <= 1, "run {number} was started {times} times");
        if bundle["receipt"]["status"] == "completed" {
            assert_eq!(times, 1, "run {number} claims to have run");
        } else {
            lost += 1;
        }
    }
    assert!(lost < bundles.len(), "some ran to their end");
}

#[test]
fn a_cancelled_run_is_stopped_within_a_second_and_says_who_stopped_it() {
    let house = House::new();
    let _plane = house.start_plane("127.0.0.1:0");
    let _runner = house.start_runner("one", &[]);
    let mark = house.directory("marks").join("alive");
    let run = house.submit(&script(&format!("echo on > {}; sleep 60", mark.display())));
    house.wait(Duration::from_secs(60), || mark.exists());
    let asked = Instant::now();
    let cancelled = house.warrant(&["cancel", &run]);
    assert!(cancelled.status.success(), "{}", crate::stderr(&cancelled));
    let bundle = house.wait_for_bundles(&[run], Duration::from_secs(30)).remove(0);
    // A second for the stop itself; the rest is a loaded machine.
    assert!(asked.elapsed() < Duration::from_secs(15), "{:?}", asked.elapsed());
    house.verify(&bundle);
    assert_eq!(bundle["receipt"]["status"], "cancelled");
    let last = bundle["events"].as_array().unwrap().last().unwrap().clone();
    assert_eq!(last["event"]["actor"]["id"], "admin", "{last}");
}

#[test]
fn a_runner_killed_on_this_machine_loses_its_started_run_at_once() {
    let house = House::new();
    let _plane = house.start_plane("127.0.0.1:0");
    let mut runner = house.start_runner("one", &[]);
    let mark = house.directory("marks").join("alive");
    let run = house.submit(&script(&format!("echo on > {}; sleep 60", mark.display())));
    house.wait(Duration::from_secs(60), || mark.exists());
    runner.kill();
    // Policy would wait for ten minutes; the rest is a loaded machine.
    let bundle = house.wait_for_bundles(&[run], Duration::from_secs(60)).remove(0);
    house.verify(&bundle);
    let last = bundle["events"].as_array().unwrap().last().unwrap().clone();
    assert_eq!(last["event"]["message"], "the process that ran it is gone", "{last}");
}

#[test]
fn a_drained_runner_cancels_with_receipts_what_does_not_end() {
    let house = House::new();
    let _plane = house.start_plane("127.0.0.1:0");
    let runner = house.start_runner("one", &["--drain", "200ms"]);
    let mark = house.directory("marks").join("alive");
    let run = house.submit(&script(&format!("echo on > {}; sleep 60", mark.display())));
    house.wait(Duration::from_secs(60), || mark.exists());
    assert!(runner.drain().success());
    let bundle = house.wait_for_bundles(&[run], Duration::from_secs(10)).remove(0);
    house.verify(&bundle);
    assert_eq!(bundle["receipt"]["status"], "cancelled");
}

#[test]
fn the_verbs_speak_with_a_plane_as_with_this_machine() {
    let house = House::new();
    let _plane = house.start_plane("127.0.0.1:0");
    let _runner = house.start_runner("one", &[]);
    let repo = house.repo();
    let repo_text = repo.to_str().unwrap();
    let ran = house.warrant(&[
        "run",
        "--isolation",
        "process",
        "--repo",
        repo_text,
        "--json",
        "--",
        "echo hello; echo new > new.txt",
    ]);
    assert!(ran.status.success(), "{}", crate::stderr(&ran));
    let mut events: Vec<Value> =
        crate::stdout(&ran).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let end = events.pop().unwrap();
    assert_eq!((&end["status"], &end["output"]), (&json!("completed"), &json!("hello\n")), "{end}");
    let kind = |event: &Value| event["event"]["type"].as_str().unwrap().to_owned();
    assert_eq!(kind(&events[0]), "run.created");
    assert_eq!(kind(events.last().unwrap()), "run.completed");

    let listed = house.warrant(&["runs", "--json"]);
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    let run = listed["runs"][0]["runId"].as_str().unwrap().to_owned();
    assert_eq!(crate::stdout(&house.warrant(&["log", &run])), "hello\n");
    assert!(crate::stdout(&house.warrant(&["diff", &run])).contains("+new"));
    let verified = house.warrant(&["verify", &run]);
    assert!(verified.status.success(), "{}", crate::stdout(&verified));
    assert!(crate::stdout(&house.warrant(&["receipt", &run])).contains("completed"));
    let watched = house.warrant(&["watch", &run]);
    assert!(watched.status.success());
    assert_eq!(crate::stdout(&watched), "hello\n", "what it printed, and nothing else");
    let runners = crate::stdout(&house.warrant(&["runners"]));
    assert!(runners.contains("rnr_"), "{runners}");
    let pulled = house.warrant(&["pull", &run, "--repo", repo_text]);
    assert!(pulled.status.success(), "{}", crate::stderr(&pulled));
    assert_eq!(fs::read_to_string(repo.join("new.txt")).unwrap(), "new\n");
    let exported = crate::stdout(&house.warrant(&["export"]));
    assert!(exported.lines().count() >= events.len());

    let failed = house.warrant(&[
        "run",
        "--isolation",
        "process",
        "--repo",
        repo_text,
        "--json",
        "--",
        "exit 7",
    ]);
    assert_eq!(failed.status.code(), Some(7), "{}", crate::stderr(&failed));
    let denied = house.warrant(&[
        "run",
        "--isolation",
        "process",
        "--repo",
        repo_text,
        "--agent",
        "nobody",
        "--",
        "x",
    ]);
    assert_eq!(denied.status.code(), Some(3), "{}", crate::stderr(&denied));
    let nonsense = house.warrant(&["cancel", "not-a-run"]);
    assert_eq!(nonsense.status.code(), Some(2), "{}", crate::stderr(&nonsense));
}

#[test]
fn refusals_name_the_command_that_gets_further() {
    let house = House::new();
    let _plane = house.start_plane("127.0.0.1:0");
    let nobody = "run_00000000-0000-4000-8000-000000000000";
    for verb in ["cancel", "approve", "deny"] {
        let refused = house.warrant(&[verb, nobody]);
        let said = crate::stderr(&refused);
        assert_eq!(refused.status.code(), Some(2), "{verb}: {said}");
        assert!(said.contains(nobody) && said.contains("`warrant runs`"), "{verb}: {said}");
    }
    let folder = house.directory("folder");
    fs::write(folder.join("notes.txt"), "notes\n").unwrap();
    let folder = folder.to_str().unwrap();
    let run = ["run", "--isolation", "process", "--dry-run", "--repo", folder];
    let refused = house.warrant(&[&run[..], &["--", "true"]].concat());
    let said = crate::stderr(&refused);
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(said.contains("--allow-untracked '*'"), "{said}");
    let taken = house.warrant(&[&run[..], &["--allow-untracked", "*", "--", "true"]].concat());
    assert_eq!(taken.status.code(), Some(0), "{}", crate::stderr(&taken));
}

#[test]
fn the_built_in_agent_works_in_a_fleet() {
    let house = House::new();
    let _plane = house.start_plane("127.0.0.1:0");
    let _runner = house.start_runner("one", &[]);
    let mut request = script("unused");
    request["agentKind"] = json!("mock");
    request["prompt"] = json!("write something");
    request["execution"] = Value::Null;
    let run = house.submit(&request);
    let bundle =
        house.wait_for_bundles(std::slice::from_ref(&run), Duration::from_secs(60)).remove(0);
    house.verify(&bundle);
    assert_eq!(bundle["receipt"]["status"], "completed", "{bundle}");
    let diff = crate::stdout(&house.warrant(&["diff", &run]));
    assert!(diff.contains("+## task\n+write something\n+\n+secret:absent\n"), "{diff}");
    let log = crate::stdout(&house.warrant(&["log", &run]));
    assert_eq!(log, "mock agent received task: write something\nmock agent done\n");

    // The probe reaches the proxy, which says no and records it.
    request["prompt"] = json!("try the network");
    let run = house.submit(&request);
    let bundle =
        house.wait_for_bundles(std::slice::from_ref(&run), Duration::from_secs(60)).remove(0);
    let log = crate::stdout(&house.warrant(&["log", &run]));
    assert!(log.contains("network probe status: 403\nmock agent done\n"), "{log}");
    let accessed = &bundle["receipt"]["networkAccessed"];
    assert_eq!(accessed[0]["host"], "denied.example.com", "{accessed}");
    assert_eq!(accessed[0]["decision"], "blocked", "{accessed}");

    request["prompt"] = json!("please fail");
    let run = house.submit(&request);
    let bundle =
        house.wait_for_bundles(std::slice::from_ref(&run), Duration::from_secs(60)).remove(0);
    assert_eq!(bundle["receipt"]["status"], "failed");
    let log = crate::stdout(&house.warrant(&["log", &run]));
    assert!(log.contains("mock agent failing as instructed"), "{log}");
}

#[test]
fn the_reference_preset_serves_old_runners_out_of_the_box() {
    let house = House::without_home();
    let plane = house.start_plane_with("127.0.0.1:0", &["--preset", "reference"]);
    let _runner = house.start_runner("one", &[]);
    let http = Http::new(&format!("http://{}", plane.address()), None).unwrap();
    // As the reference's runner does: no leases, and blobs without a token.
    let key = warrant_plane::home::fresh_key().unwrap();
    let wish = json!({
        "enrollToken": house.enroll_token(),
        "publicKeyPem": key.public().pem(),
        "pool": "default",
    });
    let enrolled = http.post("/v1/runners/enroll", &wish).unwrap();
    let claim = json!({"runnerToken": enrolled["runnerToken"], "pool": "default"});
    assert_eq!(http.post("/v1/claims", &claim).unwrap(), json!({"empty": true}));
    let repo = house.repo();
    let ran = house.warrant(&[
        "run",
        "--isolation",
        "process",
        "--repo",
        repo.to_str().unwrap(),
        "--",
        "echo hi",
    ]);
    assert_eq!(crate::stdout(&ran), "hi\n", "{}", crate::stderr(&ran));
    let shown = crate::stdout(&house.local(&["policy", "show", "--json"]));
    assert!(shown.contains("reference-run"), "{shown}");
    drop(plane);
    // Said anew at every start: without it such a runner is refused before it gets anything.
    let plane = house.start_plane("127.0.0.1:0");
    let http = Http::new(&format!("http://{}", plane.address()), None).unwrap();
    let refused = http.post("/v1/claims", &claim).unwrap_err();
    assert!(refused.to_string().contains("--preset reference"), "{refused}");
    drop(plane);
    let misspelled = house.local(&["plane", "start", "--preset", "refrence"]);
    assert_eq!(misspelled.status.code(), Some(2));
    assert!(crate::stderr(&misspelled).contains("reference"), "{}", crate::stderr(&misspelled));
}

#[test]
fn the_agent_pi_is_refused_in_every_tier_with_a_receipt() {
    let house = House::new();
    let _plane = house.start_plane("127.0.0.1:0");
    let others = ["--provider", "hermetic", "--provider", "mock"];
    let _runner = house.start_runner("one", &others);
    for tier in ["process", "hermetic", "namespace", "mock"] {
        let mut request = script("unused");
        request["agentKind"] = json!("pi");
        request["execution"] = Value::Null;
        request["isolation"] = json!(tier);
        let run = house.submit(&request);
        let bundle = house.wait_for_bundles(&[run], Duration::from_secs(60)).remove(0);
        house.verify(&bundle);
        let last = bundle["events"].as_array().unwrap().last().unwrap().clone();
        assert_eq!(last["event"]["failure"], "capability_mismatch", "{tier}: {last}");
        let reason = last["event"]["message"].as_str().unwrap();
        assert!(reason.contains("\"pi\"") && reason.contains("claude-code"), "{tier}: {reason}");
    }
}

#[test]
fn a_second_runner_does_not_take_the_data_of_the_first() {
    let house = House::new();
    let _plane = house.start_plane("127.0.0.1:0");
    let _runner = house.start_runner("one", &[]);
    let second = Command::new(env!("CARGO_BIN_EXE_warrant"))
        .args(house.runner_arguments("one"))
        .output()
        .unwrap();
    assert_eq!(second.status.code(), Some(1));
    assert!(crate::stderr(&second).contains("another runner"), "{}", crate::stderr(&second));
}

#[test]
fn a_token_that_begins_like_an_option_is_a_token() {
    let house = House::new();
    let plane = house.start_plane("127.0.0.1:0");
    let data = house.directory("refused");
    let refused = Command::new(env!("CARGO_BIN_EXE_warrant"))
        .args(["runner", "start", "--plane", &format!("http://{}", plane.address())])
        .args(["--enroll-token", "-Q3rs5jD7aUnoFf2", "--data-dir", data.to_str().unwrap()])
        .output()
        .unwrap();
    assert_eq!(refused.status.code(), Some(1), "{}", crate::stderr(&refused));
    assert!(crate::stderr(&refused).contains("enroll token"), "{}", crate::stderr(&refused));
}

#[test]
fn a_runner_takes_its_token_from_a_file_or_the_environment() {
    let house = House::new();
    let plane = house.start_plane("127.0.0.1:0");
    let url = format!("http://{}", plane.address());
    let start = |name: &str| {
        let mut command = crate::warrant();
        command.args(["runner", "start", "--plane", &url, "--data-dir"]);
        command.arg(house.directory(name));
        command
    };
    let refused = |output: std::process::Output| {
        assert_eq!(output.status.code(), Some(1), "{}", crate::stderr(&output));
        crate::stderr(&output)
    };
    let wrong = house.directory("tokens").join("wrong");
    fs::write(&wrong, "not-a-token-of-this-plane\n").unwrap();
    let by_file = start("file").arg("--enroll-token-file").arg(&wrong).output().unwrap();
    assert!(refused(by_file).contains("enroll token"));
    let mut by_environment = start("environment");
    by_environment.env("WARRANT_ENROLL_TOKEN", "not-a-token-of-this-plane");
    let said = refused(by_environment.output().unwrap());
    assert!(said.contains("enroll token") && !said.contains("warning"), "{said}");
    let by_argument = start("argument").args(["--enroll-token", "not-a-token"]).output().unwrap();
    let said = refused(by_argument);
    assert!(said.contains("warning") && said.contains("--enroll-token-file"), "{said}");
    let without = refused(start("without").output().unwrap());
    assert!(without.contains("WARRANT_ENROLL_TOKEN"), "{without}");
    let missing = start("missing").args(["--enroll-token-file", "/no/such/file"]).output().unwrap();
    assert_eq!(missing.status.code(), Some(2), "{}", crate::stderr(&missing));
}

#[test]
fn a_fleet_goes_on_when_the_plane_key_is_replaced() {
    let house = House::new();
    let plane = house.start_plane("127.0.0.1:0");
    let listen = plane.address();
    let _runner = house.start_runner("one", &[]);
    let before = house.submit(&script("echo before"));
    let before = house.wait_for_bundles(&[before], Duration::from_secs(60)).remove(0);
    house.verify(&before);
    assert!(before.get("successions").is_none(), "nothing was replaced yet");
    let served = house.local(&["keys", "rotate", "plane"]);
    assert_eq!(served.status.code(), Some(1), "{}", crate::stderr(&served));
    assert!(crate::stderr(&served).contains("already served"), "{}", crate::stderr(&served));
    assert!(plane.drain().success());
    let rotated = house.local(&["keys", "rotate", "plane", "--json"]);
    assert_eq!(rotated.status.code(), Some(0), "{}", crate::stderr(&rotated));
    // The runner was never stopped, and trusts the old key until then.
    let _plane = house.start_plane(&listen);
    let after = house.submit(&script("echo after"));
    let after = house.wait_for_bundles(&[after], Duration::from_secs(60)).remove(0);
    assert_eq!(after["receipt"]["status"], "completed", "{after}");
    assert_ne!(after["keys"]["planePublicKeyPem"], before["keys"]["planePublicKeyPem"]);
    // Who trusts the old key follows.
    house.verify(&after);
    let fsck = house.local(&["fsck"]);
    assert_eq!(fsck.status.code(), Some(0), "{}{}", crate::stdout(&fsck), crate::stderr(&fsck));
}
