//! Paths that a command names and was not given: people are asked where policy names somebody.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::machine::Machine;
use crate::{stderr, stdout};

/// A machine whose policy asks bob about paths below one directory, and bob's key.
struct Asking {
    machine: Machine,
    /// Lies outside every place that a run has by itself.
    outside: tempfile::TempDir,
    key: String,
}

impl Asking {
    fn new(gaps: &Value) -> Self {
        let machine = Machine::new();
        assert!(machine.run(&["init"]).status.success());
        let outside = tempfile::tempdir_in("/var").unwrap();
        std::fs::write(outside.path().join("told"), "told\n").unwrap();
        std::fs::write(outside.path().join("other"), "other\n").unwrap();
        let policy = machine.home().join("policy");
        let document = std::fs::read_to_string(policy.join("document.json")).unwrap();
        let mut document: Value = serde_json::from_str(&document).unwrap();
        let named = gaps.to_string().replace("OUTSIDE", outside.path().to_str().unwrap());
        document["controls"]["files"]["gaps"] = serde_json::from_str(&named).unwrap();
        document["controls"]["approvals"] =
            json!([{"level": 1, "approvers": ["bob"], "quorum": 1, "expiresMin": 60}]);
        let folder = machine.directory.path().join("asking");
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join("document.json"), document.to_string()).unwrap();
        std::fs::copy(policy.join("rules.cedar"), folder.join("rules.cedar")).unwrap();
        let set = machine.run(&["policy", "set", folder.to_str().unwrap()]);
        assert!(set.status.success(), "{}", stderr(&set));
        let key = machine.directory.path().join("bob").to_str().unwrap().to_owned();
        assert!(machine.run(&["keys", "new", &key]).status.success());
        let public = format!("{key}.pub.pem");
        assert!(machine.run(&["keys", "approver", "bob", &public]).status.success());
        Self { machine, outside, key: format!("{key}.key.pem") }
    }

    /// Reading and writing may be asked about.
    fn about_all() -> Self {
        Self::new(&json!({"level": 1, "readRoots": ["OUTSIDE"], "writeRoots": ["OUTSIDE"]}))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.outside.path().join(name)
    }

    /// Runs a script; `NAME` stands for the directory outside.
    fn exec(&self, options: &[&str], script: &str) -> std::process::Output {
        let script = script.replace("OUTSIDE", self.outside.path().to_str().unwrap());
        self.machine.exec(&[options, &["--", "sh", "-c", &script]].concat())
    }

    /// Asks about a script; returns the run that waits.
    #[track_caller]
    fn ask(&self, script: &str) -> String {
        let asked = self.exec(&["--json"], script);
        assert_eq!(asked.status.code(), Some(4), "{}{}", stdout(&asked), stderr(&asked));
        let asked: Value = serde_json::from_slice(&asked.stdout).unwrap();
        asked["runId"].as_str().unwrap().to_owned()
    }

    /// Goes on where a run ended with a script.
    fn go_on(&self, run: &str, options: &[&str], script: &str) -> std::process::Output {
        let script = script.replace("OUTSIDE", self.outside.path().to_str().unwrap());
        self.machine.run(&[&["continue", run], options, &["--", "sh", "-c", &script]].concat())
    }

    /// Runs something that ends, to go on from.
    #[track_caller]
    fn first(&self) -> String {
        let first = self.machine.json(&["sandbox", "exec", "--json", "--", "sh", "-c", "date > b"]);
        assert_eq!(first["exitCode"], 0, "{first}");
        first["runId"].as_str().unwrap().to_owned()
    }

    #[track_caller]
    fn approve(&self, run: &str) {
        let approved = self.machine.run(&["approve", run, "--as", "bob", "--key", &self.key]);
        assert_eq!(approved.status.code(), Some(0), "{}", stderr(&approved));
    }
}

#[test]
fn a_path_that_was_not_given_is_asked_about_and_granted_once_it_is_approved() {
    let asking = Asking::about_all();
    let script = "cat OUTSIDE/told";
    let run = asking.ask(script);
    let waiting = asking.machine.json(&["approvals", "--json"]);
    let told = asking.path("told");
    let needed = format!("path-read:{}", told.display());
    assert!(waiting.to_string().contains(&needed), "{waiting}");
    assert_eq!(asking.ask(script), run, "the same question is asked once");
    asking.approve(&run);

    let ran = asking.exec(&["--out", "bundle.json"], script);
    assert_eq!(stdout(&ran), "told\n", "{}", stderr(&ran));
    let verified = asking.machine.run(&["verify", &run]);
    assert_eq!(verified.status.code(), Some(0), "{}", stdout(&verified));
    let bundle = std::fs::read_to_string(asking.machine.work("bundle.json")).unwrap();
    let bundle: Value = serde_json::from_str(&bundle).unwrap();
    assert_eq!(bundle["receipt"]["runId"], run);
    let granted = json!({"kind": "read", "value": told, "by": {"kind": "human", "id": "bob"}});
    assert!(bundle["receipt"]["grants"].as_array().unwrap().contains(&granted), "{bundle:#}");
    let mounts = bundle["receipt"]["preimage"].to_string();
    assert!(mounts.contains(told.to_str().unwrap()), "{mounts}");
    let events = bundle["events"].to_string();
    assert!(events.contains("gap.found") && events.contains("grant.added"), "{events}");

    let again = asking.exec(&[], script);
    assert_eq!(again.status.code(), Some(4), "an approval is used up");
}

#[test]
fn a_path_that_was_approved_for_writing_is_written() {
    let asking = Asking::about_all();
    let script = "echo more >> OUTSIDE/told";
    let run = asking.ask(script);
    asking.approve(&run);
    let ran = asking.exec(&[], script);
    assert_eq!(ran.status.code(), Some(0), "{}", stderr(&ran));
    assert_eq!(std::fs::read_to_string(asking.path("told")).unwrap(), "told\nmore\n");
    assert_eq!(std::fs::read_to_string(asking.path("other")).unwrap(), "other\n");
}

#[test]
fn an_approval_does_not_count_for_another_path_or_for_writing() {
    let asking = Asking::about_all();
    let run = asking.ask("cat OUTSIDE/told");
    asking.approve(&run);
    for script in ["cat OUTSIDE/other", "echo x >> OUTSIDE/told", "cat OUTSIDE/told OUTSIDE/other"]
    {
        assert_ne!(asking.ask(script), run, "{script} is another question");
    }
    assert_eq!(std::fs::read_to_string(asking.path("told")).unwrap(), "told\n");
}

#[test]
fn a_path_that_somebody_refused_or_nobody_approved_is_not_given() {
    let asking = Asking::about_all();
    let run = asking.ask("cat OUTSIDE/told > copied");
    let denied = asking.machine.run(&["deny", &run, "--reason", "not that one"]);
    assert!(denied.status.success(), "{}", stderr(&denied));
    let verified = asking.machine.run(&["verify", &run]);
    assert_eq!(verified.status.code(), Some(0), "{}", stdout(&verified));
    assert_ne!(asking.ask("cat OUTSIDE/told > copied"), run, "it is asked anew");
    let own = asking.ask("cat OUTSIDE/other");
    assert_eq!(asking.machine.run(&["approve", &own]).status.code(), Some(1), "not one's own");
}

#[test]
fn a_path_nobody_may_be_asked_about_is_denied_as_ever() {
    let asking = Asking::new(&json!({"level": 1, "readRoots": ["OUTSIDE/told"], "writeRoots": []}));
    for script in ["cat OUTSIDE/other", "echo x >> OUTSIDE/told", "cat OUTSIDE/told OUTSIDE/other"]
    {
        let denied = asking.exec(&[], script);
        assert_eq!(denied.status.code(), Some(8), "{script}: {}", stderr(&denied));
    }
    std::os::unix::fs::symlink(asking.path("other"), asking.path("link")).unwrap();
    std::fs::remove_file(asking.path("told")).unwrap();
    std::fs::rename(asking.path("link"), asking.path("told")).unwrap();
    let linked = asking.exec(&[], "cat OUTSIDE/told");
    assert_eq!(linked.status.code(), Some(8), "a link leads elsewhere: {}", stderr(&linked));
    // Without an approver for paths nobody is asked.
    let plain = Machine::new();
    let script = format!("cat {}", asking.path("other").display());
    let denied = plain.exec(&["--", "sh", "-c", &script]);
    assert_eq!(denied.status.code(), Some(8), "{}", stderr(&denied));
}

#[test]
fn a_file_swapped_for_a_link_after_the_approval_is_not_read() {
    let asking = Asking::about_all();
    let run = asking.ask("cat OUTSIDE/told");
    asking.approve(&run);
    std::fs::remove_file(asking.path("told")).unwrap();
    std::os::unix::fs::symlink(asking.path("other"), asking.path("told")).unwrap();
    let ran = asking.exec(&[], "cat OUTSIDE/told");
    assert_eq!(ran.status.code(), Some(8), "{}", stderr(&ran));
    assert_eq!(stdout(&ran), "");
}

#[test]
fn a_dry_run_shows_who_would_be_asked_about_which_path() {
    let asking = Asking::about_all();
    let planned = asking.exec(&["--dry-run", "--json"], "cat OUTSIDE/told");
    assert_eq!(planned.status.code(), Some(4), "{}", stderr(&planned));
    let planned: Value = serde_json::from_slice(&planned.stdout).unwrap();
    let told = asking.path("told");
    assert_eq!(planned["requirements"][0]["name"], format!("path-read:{}", told.display()));
    assert_eq!(planned["requirements"][0]["approvers"], json!(["bob"]));
    let gap = &planned["plan"]["gaps"][0];
    assert_eq!((&gap["path"], &gap["decision"]), (&json!(told), &json!("ask")));
    assert_eq!(planned["plan"]["lowering"]["grantedRoots"][0]["path"], json!(told));
    assert_eq!(asking.machine.json(&["approvals", "--json"])["approvals"], json!([]));
}

#[test]
fn waiting_for_an_approval_of_a_path_ends_with_the_run() {
    let asking = Asking::about_all();
    let script = format!("cat {}", asking.path("told").display());
    let waiting = crate::warrant()
        .args(["sandbox", "exec", "--wait", "--", "sh", "-c", &script])
        .env("WARRANT_HOME", asking.machine.home())
        .current_dir(asking.machine.work(""))
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let run = loop {
        let asked = asking.machine.json(&["approvals", "--json"]);
        if let Some(run) = asked["approvals"][0]["runId"].as_str() {
            break run.to_owned();
        }
        std::thread::yield_now();
    };
    asking.approve(&run);
    let ran = waiting.wait_with_output().unwrap();
    assert_eq!(stdout(&ran), "told\n", "{}", stderr(&ran));
}

#[test]
fn a_run_that_goes_on_is_asked_about_its_paths_and_given_them_once_they_are_approved() {
    let asking = Asking::about_all();
    let first = asking.first();
    let ask = |script: &str| {
        let asked = asking.go_on(&first, &["--json"], script);
        assert_eq!(asked.status.code(), Some(4), "{}{}", stdout(&asked), stderr(&asked));
        let asked: Value = serde_json::from_slice(&asked.stdout).unwrap();
        asked["runId"].as_str().unwrap().to_owned()
    };
    let script = "cat b OUTSIDE/told";
    let run = ask(script);
    let needed = format!("path-read:{}", asking.path("told").display());
    let waiting = asking.machine.json(&["approvals", "--json"]);
    assert!(waiting.to_string().contains(&needed), "{waiting}");
    assert_eq!(ask(script), run, "the same question is asked once");
    asking.approve(&run);
    for other in ["cat b OUTSIDE/other", "cat b; echo x >> OUTSIDE/told"] {
        assert_ne!(ask(other), run, "{other} is another question");
    }
    // What is gone on from is another one.
    std::fs::write(asking.machine.work("c"), "new\n").unwrap();
    assert_ne!(ask(script), run, "other files are another question");
    std::fs::remove_file(asking.machine.work("c")).unwrap();

    let ran = asking.go_on(&first, &["--out", "bundle.json"], script);
    assert!(stdout(&ran).ends_with("\ntold\n"), "{}{}", stdout(&ran), stderr(&ran));
    let bundle = std::fs::read_to_string(asking.machine.work("bundle.json")).unwrap();
    let bundle: Value = serde_json::from_str(&bundle).unwrap();
    assert_eq!(bundle["receipt"]["runId"], run);
    let granted = json!({"kind": "read", "value": asking.path("told"),
                         "by": {"kind": "human", "id": "bob"}});
    assert!(bundle["receipt"]["grants"].as_array().unwrap().contains(&granted), "{bundle:#}");
    let again = asking.go_on(&first, &[], script);
    assert_eq!(again.status.code(), Some(4), "an approval is used up");

    // Nobody is asked again about paths that only the run before named.
    let next = asking.go_on(&run, &[], "cat a.txt");
    assert_eq!(next.status.code(), Some(0), "{}", stderr(&next));
    let same = asking.machine.run(&["continue", &run]);
    assert_eq!(same.status.code(), Some(4), "its own command names it again: {}", stderr(&same));
}

#[test]
fn a_run_that_goes_on_is_denied_the_paths_nobody_may_be_asked_about() {
    let asking = Asking::new(&json!({"level": 1, "readRoots": ["OUTSIDE/told"], "writeRoots": []}));
    let first = asking.first();
    for script in ["cat OUTSIDE/other", "echo x >> OUTSIDE/told", "cat OUTSIDE/told OUTSIDE/other"]
    {
        let denied = asking.go_on(&first, &[], script);
        assert_eq!(denied.status.code(), Some(8), "{script}: {}", stderr(&denied));
        assert_eq!(stdout(&denied), "");
    }
    assert_eq!(std::fs::read_to_string(asking.path("told")).unwrap(), "told\n");
    let plain = Machine::new();
    let first = plain.json(&["sandbox", "exec", "--json", "--", "true"]);
    let path = asking.path("told");
    let words = ["continue", first["runId"].as_str().unwrap(), "--", "cat", path.to_str().unwrap()];
    let denied = plain.run(&words);
    assert_eq!(denied.status.code(), Some(8), "{}", stderr(&denied));
}
