//! What only the whole binary shows: its terminal, its signals, and the smaller commands.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::process::{Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::{stderr, stdout, warrant};

struct Place {
    directory: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("work")).unwrap();
        Self { directory }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = warrant();
        command.args(arguments);
        self.placed(command)
    }

    fn placed(&self, mut command: Command) -> Command {
        command.env("WARRANT_HOME", self.directory.path().join("home"));
        command.current_dir(self.directory.path().join("work")).stdin(Stdio::null());
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    #[track_caller]
    fn done(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", stderr(&output));
        stdout(&output)
    }

    #[track_caller]
    fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.done(arguments)).unwrap()
    }
}

#[test]
fn a_terminal_is_given_when_asked_for() {
    let place = Place::new();
    let line = format!(
        "stty rows 33 cols 111; {} sandbox exec --tty -- sh -c 'test -t 0 && test -t 1 && stty size'",
        env!("CARGO_BIN_EXE_warrant")
    );
    let mut script = Command::new("script");
    script.args(["--quiet", "--return", "--command", &line, "/dev/null"]);
    script.env("WARRANT_HOME", place.directory.path().join("home"));
    script.current_dir(place.directory.path().join("work")).stdin(Stdio::null());
    let output = script.output().unwrap();
    assert!(output.status.success(), "{}{}", stdout(&output), stderr(&output));
    assert!(stdout(&output).contains("33 111"), "{}", stdout(&output));
    let refused = place.run(&["sandbox", "exec", "--tty", "--", "true"]);
    assert_eq!(refused.status.code(), Some(2), "{}", stderr(&refused));
    assert_eq!(place.json(&["runs", "--json"])["runs"].as_array().unwrap().len(), 1);
    assert!(stderr(&refused).contains("--tty needs a terminal"), "{}", stderr(&refused));
}

#[test]
fn signals_cancel_the_run_and_leave_a_receipt() {
    for signal in [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT] {
        let place = Place::new();
        // As a job in the background of a script; whoever runs the tests may ignore hangups, and
        // then so would the run.
        let mut command = Command::new("env");
        command.args(["--default-signal=HUP", "--ignore-signal=INT", "--ignore-signal=QUIT"]);
        command.arg(env!("CARGO_BIN_EXE_warrant"));
        command.args(["sandbox", "exec", "--", "sh", "-c", "echo ready; sleep 600"]);
        let mut child =
            place.placed(command).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut said = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut said).unwrap();
        assert_eq!(said, "ready\n");
        kill_process(Pid::from_child(&child), signal).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(130), "{signal:?}: {}", stderr(&output));
        let runs = place.json(&["runs", "--json"]);
        let run = &runs["runs"][0];
        assert_eq!((run["state"].as_str(), &run["hasReceipt"]), (Some("cancelled"), &true.into()));
        place.done(&["verify", run["runId"].as_str().unwrap()]);
    }
}

#[test]
fn export_prints_every_event_since_a_time() {
    let place = Place::new();
    place.done(&["sandbox", "exec", "--", "true"]);
    place.done(&["sandbox", "exec", "--", "true"]);
    let all = place.done(&["export", "--jsonl"]);
    let events: Vec<Value> = all.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let ends = events.iter().filter(|event| event["event"]["type"] == "run.completed").count();
    assert_eq!(ends, 2);
    let none = place.done(&["export", "--jsonl", "--since", "2999-01-01T00:00:00.000Z"]);
    assert_eq!(none, "");
    let first = events[0]["ts"].as_str().unwrap();
    assert_eq!(place.done(&["export", "--jsonl", "--since", first]), all);
    let misuse = place.run(&["export", "--jsonl", "--since", "yesterday"]);
    assert!(!misuse.status.success());
    assert!(stderr(&misuse).contains("--since yesterday"), "{}", stderr(&misuse));
}

#[test]
fn policy_diff_and_test_say_what_another_policy_would_do() {
    let place = Place::new();
    place.done(&["sandbox", "exec", "--", "true"]);
    place.done(&["sandbox", "exec", "--", "sh", "-c", "true"]);
    let same = place.json(&["policy", "diff", "default", "--json"]);
    assert_eq!((&same["compared"], same["changed"].as_array().unwrap().len()), (&2.into(), 0));
    let strict = place.json(&["policy", "diff", "strict", "--json"]);
    let changed = strict["changed"].as_array().unwrap();
    assert!(changed.iter().any(|row| row["old"] == "allow" && row["new"] != "allow"), "{strict}");
    for source in [&["policy", "test"][..], &["policy", "test", "ci"]] {
        assert!(place.done(source).contains(" passed, 0 failed"));
    }
    let folder = place.directory.path().join("broken");
    fs::create_dir(&folder).unwrap();
    let policy = place.directory.path().join("home/policy");
    for name in ["document.json", "rules.cedar"] {
        fs::copy(policy.join(name), folder.join(name)).unwrap();
    }
    let lie = r#"{"name": "sudo is fine", "argv": ["sudo", "id"], "expect": "allow"}"#;
    fs::write(folder.join("tests.jsonl"), lie).unwrap();
    let failed = place.run(&["policy", "test", folder.to_str().unwrap()]);
    assert!(!failed.status.success());
    assert!(stderr(&failed).contains("sudo is fine"), "{}", stderr(&failed));
    // A broken policy is refused, and the old one stays in force.
    assert!(!place.run(&["policy", "set", folder.to_str().unwrap()]).status.success());
    place.done(&["sandbox", "exec", "--", "true"]);
}

#[test]
fn conform_prints_its_checks_and_writes_a_report() {
    let place = Place::new();
    let report = place.directory.path().join("report.json");
    let output = place.run(&[
        "sandbox",
        "conform",
        "--provider",
        "mock",
        "--tier",
        "compatible",
        "--json",
        "--report",
        report.to_str().unwrap(),
    ]);
    assert!(output.status.success(), "{}{}", stdout(&output), stderr(&output));
    let printed: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(printed.is_object());
    let signed: Value = serde_json::from_slice(&fs::read(&report).unwrap()).unwrap();
    assert_eq!(signed["signatures"].as_array().unwrap().len(), 1);
    let misuse = place.run(&["sandbox", "conform", "--provider", "mock", "--tier", "royal"]);
    assert_eq!(misuse.status.code(), Some(2), "{}", stderr(&misuse));
}

#[test]
fn the_master_key_comes_from_a_keyring_or_a_file_when_asked() {
    let place = Place::new();
    // A session keyring of its own: the person's keys stay untouched.
    let within = |key: &str, arguments: &str| {
        let line = format!(
            "printf %s {key} | keyctl padd user warrant-master @s > /dev/null && exec {} {arguments}",
            env!("CARGO_BIN_EXE_warrant")
        );
        let mut command = Command::new("keyctl");
        command.args(["session", "-", "sh", "-c", &line]);
        command.env("WARRANT_HOME", place.directory.path().join("home"));
        command.env("WARRANT_MASTER_KEY_FROM", "keyring:kernel").stdin(Stdio::null());
        command.output().unwrap()
    };
    let value = place.directory.path().join("value");
    fs::write(&value, "correct horse battery").unwrap();
    let set = within("one-key", &format!("secret set TOKEN --from-file {}", value.display()));
    assert!(set.status.success(), "{}", stderr(&set));
    assert!(!place.directory.path().join("home/master.key").exists());
    assert!(!place.directory.path().join("home/keys/plane.key.pem").exists(), "keys lie open");
    let listed = within("one-key", "secret list");
    assert!(stdout(&listed).contains("TOKEN"), "{}", stderr(&listed));
    let other = within("another-key", "secret list");
    assert_eq!(other.status.code(), Some(1), "{}", stdout(&other));

    let from = |source: &str| {
        let mut command = place.command(&["secret", "list"]);
        command.env("WARRANT_MASTER_KEY_FROM", source).output().unwrap()
    };
    let file = place.directory.path().join("key");
    fs::write(&file, "one-key\n").unwrap();
    assert!(stdout(&from(&format!("file:{}", file.display()))).contains("TOKEN"));
    for (source, words) in [
        ("file:/no/such/file", "cannot read the master key"),
        ("keyring:pocket", "keyring:kernel, keyring:secret-service or file:PATH"),
        ("one-key", "keyring:kernel, keyring:secret-service or file:PATH"),
    ] {
        let refused = from(source);
        assert_eq!(refused.status.code(), Some(1), "{}", stdout(&refused));
        assert!(stderr(&refused).contains(words), "{}", stderr(&refused));
    }
}

/// A desktop's own keyring, on a session bus of the test's own.
#[test]
fn the_master_key_comes_from_the_desktops_keyring() {
    const SESSION: &str = r#"
        printf unlock | gnome-keyring-daemon --unlock --components=secrets --daemonize > /dev/null
        "$WARRANT" secret list 2> "$OUT/before"; echo $? >> "$OUT/before"
        printf %s one-key | secret-tool store --label=Warrant application warrant-master
        "$WARRANT" secret set TOKEN --from-file "$OUT/value" > "$OUT/set" 2>&1
        "$WARRANT" secret list > "$OUT/listed"
        printf %s another-key | secret-tool store --label=Warrant application warrant-master
        "$WARRANT" secret list > "$OUT/other" 2>&1; echo $? >> "$OUT/other"
    "#;
    let place = Place::new();
    let directory = place.directory.path();
    let (out, runtime) = (directory.join("out"), directory.join("runtime"));
    for path in [&out, &runtime] {
        fs::create_dir(path).unwrap();
    }
    fs::set_permissions(&runtime, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    fs::write(out.join("value"), "correct horse battery").unwrap();
    let mut session = Command::new("dbus-run-session");
    session.args(["--", "sh", "-c", SESSION]).stdin(Stdio::null());
    session.env("HOME", directory).env("XDG_RUNTIME_DIR", &runtime).env("OUT", &out);
    session.env("WARRANT", env!("CARGO_BIN_EXE_warrant"));
    session.env("WARRANT_HOME", directory.join("home"));
    session.env("WARRANT_MASTER_KEY_FROM", "keyring:secret-service");
    let ended = session.output().unwrap();
    let said = |name: &str| fs::read_to_string(out.join(name)).unwrap_or_default();
    assert!(said("before").contains("no key called warrant-master"), "{}", stderr(&ended));
    assert!(said("before").ends_with("1\n"), "{}", said("before"));
    assert!(said("listed").contains("TOKEN"), "{}{}", said("set"), stderr(&ended));
    assert!(said("other").ends_with("1\n"), "{}", said("other"));
    assert!(!directory.join("home/master.key").exists());
}

#[test]
fn log_and_diff_cannot_drive_the_terminal_of_whoever_reads_them() {
    let place = Place::new();
    let script = r"printf '\033]0;owned\007\342\200\256x\n'; printf '\033[2Jgone' > new.txt";
    let ran = place.json(&["sandbox", "exec", "--json", "--", "sh", "-c", script]);
    let run = ran["runId"].as_str().unwrap();
    for command in ["log", "diff"] {
        let on_terminal = |raw: &str| {
            let line = format!("exec {} {command} {run} {raw}", env!("CARGO_BIN_EXE_warrant"));
            let mut script = Command::new("script");
            script.args(["--quiet", "--return", "--command", &line, "/dev/null"]);
            stdout(&place.placed(script).output().unwrap())
        };
        let shown = on_terminal("");
        assert!(!shown.contains(['\u{1b}', '\u{202e}']), "{command}: {shown:?}");
        assert!(shown.contains("\\u{1b}"), "{command}: {shown:?}");
        assert!(on_terminal("--raw").contains('\u{1b}'), "{command} --raw");
        assert!(place.done(&[command, run]).contains('\u{1b}'), "{command} piped");
    }
}
