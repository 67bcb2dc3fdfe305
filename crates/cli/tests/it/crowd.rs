//! Many execs of one home at once, and execs that lack what they need to begin: each ends, and
//! what was begun has a receipt.

use std::collections::BTreeSet;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::machine::Machine;
use crate::{stderr, stdout, warrant};

/// How many want to write at once.
const CROWD: usize = 60;

/// Returns every run of a home with its state.
fn runs(machine: &Machine) -> Vec<Value> {
    let told = machine.json(&["runs", "--json", "--limit", "1000"]);
    told["runs"].as_array().unwrap().clone()
}

#[test]
fn a_crowd_of_execs_on_one_home_all_end_with_a_receipt() {
    let machine = Machine::new();
    let start = |number: usize| -> Child {
        warrant()
            .args(["sandbox", "exec", "--", "echo", &number.to_string()])
            .env("WARRANT_HOME", machine.home())
            .current_dir(machine.work(""))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    // The home is not set up yet: they agree on that, too.
    let crowd: Vec<Child> = (0..CROWD).map(start).collect();
    for (number, child) in crowd.into_iter().enumerate() {
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{number}: {}", stderr(&output));
        assert_eq!(stdout(&output), format!("{number}\n"));
    }
    let runs = runs(&machine);
    assert_eq!(runs.len(), CROWD);
    let ids: BTreeSet<&str> = runs.iter().map(|run| run["runId"].as_str().unwrap()).collect();
    assert_eq!(ids.len(), CROWD);
    for run in &runs {
        assert_eq!((&run["state"], &run["hasReceipt"]), (&"completed".into(), &true.into()));
    }
    let verified = machine.run(&["verify", ids.first().unwrap()]);
    assert!(verified.status.success(), "{}", stderr(&verified));
}

#[test]
fn a_run_that_cannot_be_begun_does_not_wait_for_ever() {
    let machine = Machine::new();
    assert!(machine.exec(&["--", "true"]).status.success());
    for descriptors in 5..60 {
        let script = format!("ulimit -n {descriptors} && exec \"$0\" sandbox exec -- echo ran");
        let output = Command::new("sh")
            .args(["-c", &script])
            .arg(env!("CARGO_BIN_EXE_warrant"))
            .env("WARRANT_HOME", machine.home())
            .current_dir(machine.work(""))
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let has_run = stdout(&output) == "ran\n";
        assert_eq!(has_run, output.status.code() == Some(0), "{descriptors}: {}", stderr(&output));
    }
    let open: Vec<Value> =
        runs(&machine).into_iter().filter(|run| run["hasReceipt"] == false).collect();
    assert!(open.is_empty(), "{open:?}");
}

#[test]
fn the_same_command_given_many_times_at_once_asks_once_and_runs_once() {
    let machine = Machine::new();
    let out = machine.directory.path().join("out");
    std::fs::create_dir(&out).unwrap();
    assert!(machine.run(&["keys", "new", "alice"]).status.success());
    assert!(machine.run(&["keys", "approver", "alice", "alice.pub.pem"]).status.success());
    let script = format!("echo ran >> {}/ledger", out.display());
    let at_once = || -> Vec<Option<i32>> {
        let start = |_| {
            warrant()
                .args(["sandbox", "exec", "--write"])
                .arg(&out)
                .args(["--", "sh", "-c", &script])
                .env("WARRANT_HOME", machine.home())
                .current_dir(machine.work(""))
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap()
        };
        let children: Vec<Child> = (0..8).map(start).collect();
        let mut codes: Vec<_> =
            children.into_iter().map(|mut child| child.wait().unwrap().code()).collect();
        codes.sort_unstable();
        codes
    };
    assert_eq!(at_once(), [Some(4); 8]);
    let asked = runs(&machine);
    assert_eq!(asked.len(), 1, "{asked:?}");
    let run = asked[0]["runId"].as_str().unwrap();
    let approved = machine.run(&["approve", run, "--key", "alice.key.pem"]);
    assert!(approved.status.success(), "{}", stderr(&approved));
    let mut expected = [Some(4); 8];
    expected[0] = Some(0);
    assert_eq!(at_once(), expected);
    assert_eq!(std::fs::read_to_string(out.join("ledger")).unwrap(), "ran\n");
}
