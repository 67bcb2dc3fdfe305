//! `warrant pull`, `warrant undo` and `warrant continue` from outside, with real runs.

use std::fs;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::{stderr, stdout, warrant};

/// A home and a repository of one test.
struct Machine {
    directory: tempfile::TempDir,
}

impl Machine {
    fn with_repository() -> Self {
        let machine = Self { directory: tempfile::tempdir().unwrap() };
        fs::create_dir(machine.work("")).unwrap();
        fs::write(machine.work("a.txt"), "one\ntwo\nthree\n").unwrap();
        machine.git(&["init", "-q", "-b", "main"]);
        machine.commit();
        machine
    }

    fn work(&self, name: &str) -> std::path::PathBuf {
        self.directory.path().join("work").join(name)
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.work(name)).unwrap()
    }

    fn git(&self, arguments: &[&str]) {
        let output = Command::new("git")
            .args(["-c", "user.name=a", "-c", "user.email=a@b"])
            .args(arguments)
            .current_dir(self.work(""))
            .output()
            .unwrap();
        assert!(output.status.success(), "git {arguments:?}: {}", stderr(&output));
    }

    fn commit(&self) {
        self.git(&["add", "-A"]);
        self.git(&["commit", "-qm", "x"]);
    }

    fn run_in(&self, directory: &str, arguments: &[&str]) -> Output {
        warrant()
            .args(arguments)
            .env("WARRANT_HOME", self.directory.path().join("home"))
            .current_dir(self.work(directory))
            .stdin(Stdio::null())
            .output()
            .unwrap()
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.run_in("", arguments)
    }

    #[track_caller]
    fn json(&self, arguments: &[&str]) -> Value {
        let output = self.run(arguments);
        serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|_| panic!("{}{}", stdout(&output), stderr(&output)))
    }

    /// Runs a script in the sandbox and returns the run's id.
    #[track_caller]
    fn sandboxed(&self, script: &str) -> String {
        let done = self.json(&["sandbox", "exec", "--json", "--", "sh", "-c", script]);
        assert_eq!(done["exitCode"], 0, "{done}");
        done["runId"].as_str().unwrap().to_owned()
    }
}

#[test]
fn conflicting_pull_is_a_branch_and_shows_the_conflict() {
    let machine = Machine::with_repository();
    let run = machine.sandboxed("sed -i s/two/ZWEI/ a.txt");
    fs::write(machine.work("a.txt"), "one\ndeux\nthree\n").unwrap();
    machine.commit();
    let pulled = machine.json(&["pull", &run, "--json"]);
    assert_eq!(pulled["mode"], "branch", "{pulled}");
    assert_eq!((&pulled["why"], &pulled["merge"]), (&"diverged".into(), &"conflicts".into()));
    let text = pulled["conflicts"][0]["text"].as_str().unwrap();
    assert!(text.contains("deux") && text.contains("ZWEI"), "{text}");
    let told = stderr(&machine.run(&["pull", &run]));
    assert!(told.contains("would conflict in:") && told.contains("ZWEI"), "{told}");
    assert_eq!(machine.read("a.txt"), "one\ndeux\nthree\n", "nothing was merged");
}

#[test]
fn run_on_uncommitted_work_is_pulled_from_below_the_top_and_undone() {
    let machine = Machine::with_repository();
    fs::create_dir(machine.work("deep")).unwrap();
    fs::write(machine.work("a.txt"), "one\nmine\nthree\n").unwrap();
    let run = machine.sandboxed("sed -i s/mine/ours/ a.txt; echo evil > .envrc");
    let pulled = machine.run_in("deep", &["pull", &run]);
    assert_eq!(pulled.status.code(), Some(0), "{}", stderr(&pulled));
    assert!(stderr(&pulled).contains(".envrc: held back"), "{}", stderr(&pulled));
    assert_eq!(machine.read("a.txt"), "one\nours\nthree\n");
    assert!(!machine.work(".envrc").exists());
    let undone = machine.run_in("deep", &["undo"]);
    assert_eq!(undone.status.code(), Some(0), "{}", stderr(&undone));
    assert_eq!(machine.read("a.txt"), "one\nmine\nthree\n");
    let released = machine.json(&["pull", &run, "--release", ".envrc", "--json"]);
    assert_eq!(released["paths"].as_array().unwrap().len(), 2, "{released}");
    let bad = machine.run(&["pull", &run, "--release", "../x"]);
    assert_eq!(bad.status.code(), Some(2), "{}", stderr(&bad));
}

#[test]
fn continued_run_starts_from_what_the_first_one_left() {
    let machine = Machine::with_repository();
    fs::write(machine.work("untracked.txt"), "here\n").unwrap();
    let first = machine.sandboxed("echo four >> a.txt; echo made > new.txt; echo said");
    let journal = machine.directory.path().join("journal.json");
    fs::write(
        &journal,
        r#"{"version":"warrant.tooljournal.v1","entries":[{"seq":0,
            "ts":"2026-01-31T00:00:00.000Z","toolName":"sh","input":{},"durationMs":1}]}"#,
    )
    .unwrap();
    let second = machine.json(&[
        "continue",
        &first,
        "--json",
        "--note",
        "go on",
        "--tool-journal",
        journal.to_str().unwrap(),
        "--",
        "sh",
        "-c",
        "cat a.txt new.txt untracked.txt; git status --short; echo five >> a.txt",
    ]);
    assert_eq!(second["exitCode"], 0, "{second}");
    let log = second["output"].as_str().or(second["log"].as_str()).unwrap_or_default().to_owned();
    let second = second["runId"].as_str().unwrap();
    let log = if log.is_empty() { stdout(&machine.run(&["log", second])) } else { log };
    for word in ["four", "made", "here"] {
        assert!(log.contains(word), "{word}: {log}");
    }
    assert_eq!(machine.read("a.txt"), "one\ntwo\nthree\n", "the workspace stays as it was");
    let bundle: Value = serde_json::from_str(&stdout(&machine.run(&["bundle", second]))).unwrap();
    let named = &bundle["contract"]["continuation"];
    assert_eq!(named["tier"], "workspace", "{named}");
    let verified = machine.run(&["verify", second]);
    assert_eq!(verified.status.code(), Some(0), "{}", stderr(&verified));
    for run in [first.as_str(), second] {
        let pulled = machine.json(&["pull", run, "--json"]);
        assert_eq!(pulled["mode"], "applied", "{run}: {pulled}");
    }
    assert_eq!(machine.read("a.txt"), "one\ntwo\nthree\nfour\nfive\n");
}

#[test]
fn continuing_needs_a_run_that_ended_and_fits() {
    let machine = Machine::with_repository();
    let run = machine.sandboxed("sed -i s/two/ZWEI/ a.txt");
    let unknown = machine.run(&["continue", "run_00000000-0000-4000-8000-000000000000"]);
    assert_eq!(unknown.status.code(), Some(2), "{}", stderr(&unknown));
    let missing = machine.run(&["continue", &run, "--tool-journal", "/nonexistent"]);
    assert_eq!(missing.status.code(), Some(2), "{}", stderr(&missing));
    for (words, why) in [
        (&["continue"][..], "say which run"),
        (&["continue", "not a run"], "say which run"),
        (&["continue", &run, "--agent", "codex"], "--agent needs a plane"),
        (&["continue", &run, "x", "--", "y"], "not both"),
        (&["continue", &run, "x", "--prompt", "y"], "said twice"),
    ] {
        let refused = machine.run(words);
        assert_eq!(refused.status.code(), Some(2), "{words:?}: {}", stderr(&refused));
        assert!(stderr(&refused).contains(why), "{words:?}: {}", stderr(&refused));
    }
    let again = machine.json(&["continue", &run, "--json", "cat a.txt; echo by a task"]);
    let log = stdout(&machine.run(&["log", again["runId"].as_str().unwrap()]));
    assert!(log.contains("ZWEI") && log.contains("by a task"), "{log}");
    let envelope = machine.run(&["sandbox", "continue", &run, "--only-envelope"]);
    assert_eq!(stdout(&envelope).trim().len(), 64, "{}", stderr(&envelope));
    fs::write(machine.work("a.txt"), "another\n").unwrap();
    let changed = machine.run(&["continue", &run]);
    assert_eq!(changed.status.code(), Some(1));
    assert!(stderr(&changed).contains("does not fit the workspace"), "{}", stderr(&changed));
}

#[test]
fn going_on_from_a_run_that_went_on_says_what_is_missing() {
    let machine = Machine::with_repository();
    let first = machine.sandboxed("echo made > new.txt");
    let second = machine.json(&["continue", &first, "--json", "cat new.txt; echo 2 > second.txt"]);
    assert_eq!(second["exitCode"], 0, "{second}");
    let second = second["runId"].as_str().unwrap();
    let without = machine.run(&["continue", second, "ls"]);
    assert!(stderr(&without).contains("pull the other one first"), "{}", stderr(&without));
    assert_eq!(stdout(&without), "a.txt\nsecond.txt\n");
    let pulled = machine.run(&["pull", &first]);
    assert_eq!(pulled.status.code(), Some(0), "{}", stderr(&pulled));
    let with = machine.run(&["continue", second, "ls"]);
    assert!(!stderr(&with).contains("pull the other one first"), "{}", stderr(&with));
    assert_eq!(stdout(&with), "a.txt\nnew.txt\nsecond.txt\n");
}
