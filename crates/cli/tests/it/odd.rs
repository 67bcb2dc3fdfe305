//! An exec in odd places, with odd names around it, and at odd ends.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::machine::Machine;
use crate::{stderr, stdout, warrant};

/// A name that is no text.
fn odd(name: &[u8]) -> OsString {
    OsString::from_vec([name, b"\xff"].concat())
}

#[test]
fn a_variable_that_is_no_text_keeps_nothing_from_running() {
    let machine = Machine::new();
    for (name, value) in [(OsString::from("ODD"), odd(b"x")), (odd(b"ODD"), OsString::from("x"))] {
        let ran = warrant()
            .args(["sandbox", "exec", "--", "echo", "ran"])
            .env("WARRANT_HOME", machine.home())
            .env(name, value)
            .current_dir(machine.work(""))
            .output()
            .unwrap();
        assert_eq!(stdout(&ran), "ran\n", "{}", stderr(&ran));
    }
}

#[test]
fn a_master_key_that_is_no_text_is_refused_and_no_key_lies_open() {
    let machine = Machine::new();
    let refused = warrant()
        .arg("init")
        .env("WARRANT_HOME", machine.home())
        .env("WARRANT_MASTER_KEY", odd(b"key"))
        .output()
        .unwrap();
    assert_eq!(refused.status.code(), Some(1), "{}", stderr(&refused));
    assert!(stderr(&refused).contains("no text"), "{}", stderr(&refused));
    assert!(!machine.home().join("keys").exists());
}

#[test]
fn a_masked_name_that_is_no_text_keeps_nothing_from_running_and_stays_masked() {
    let machine = Machine::new();
    let folder = machine.work("").join(odd(b"folder"));
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join(".env"), "hidden").unwrap();
    let mut key = odd(b"key");
    key.push(".pem");
    fs::write(machine.work("").join(key), "hidden").unwrap();
    let ran = machine.exec(&["--", "sh", "-c", "cat *.pem */.env; echo end"]);
    assert_eq!(stdout(&ran), "end\n", "{}", stderr(&ran));
    let planned = machine.exec(&["--dry-run", "--json", "--", "true"]);
    assert_eq!(planned.status.code(), Some(0), "{}", stderr(&planned));
    assert!(stdout(&planned).contains(r"key\\xff.pem"), "{}", stdout(&planned));
}

#[test]
fn a_workspace_whose_path_is_no_text_is_refused() {
    let machine = Machine::new();
    let workspace = machine.work("").join(odd(b"work"));
    fs::create_dir(&workspace).unwrap();
    let exec = |words: &[&str]| {
        let arguments = words.iter().map(OsStr::new).chain([OsStr::new("--"), OsStr::new("true")]);
        let home = machine.home();
        warrant()
            .args(arguments)
            .env("WARRANT_HOME", home)
            .current_dir(&workspace)
            .output()
            .unwrap()
    };
    for words in [&["sandbox", "exec"][..], &["sandbox", "exec", "--dry-run"]] {
        let refused = exec(words);
        assert_eq!(refused.status.code(), Some(2), "{}", stderr(&refused));
        assert!(stderr(&refused).contains("no text"), "{}", stderr(&refused));
    }
}

#[test]
fn an_argument_that_is_no_text_is_wrong_use() {
    let output = warrant().arg(OsStr::from_bytes(b"\xff")).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
}

#[test]
fn a_named_workspace_needs_no_current_directory() {
    let machine = Machine::new();
    fs::create_dir(machine.work("gone")).unwrap();
    let script =
        "cd gone && rmdir ../gone && exec \"$0\" sandbox exec --workspace \"$1\" -- cat a.txt";
    let ran = Command::new("sh")
        .args(["-c", script, env!("CARGO_BIN_EXE_warrant")])
        .arg(machine.work(""))
        .env("WARRANT_HOME", machine.home())
        .current_dir(machine.work(""))
        .output()
        .unwrap();
    assert_eq!(stdout(&ran), "a\n", "{}", stderr(&ran));
}

#[test]
fn the_summary_has_a_line_of_its_own() {
    let machine = Machine::new();
    let ran = machine.exec(&["--", "sh", "-c", "printf out; printf err >&2"]);
    assert_eq!(stdout(&ran), "out", "what the program said is untouched");
    assert!(stderr(&ran).starts_with("err\nwarrant: "), "{}", stderr(&ran));
    let ran = machine.exec(&["--", "sh", "-c", "echo err >&2"]);
    assert!(stderr(&ran).starts_with("err\nwarrant: "), "{}", stderr(&ran));
}

#[test]
fn a_run_that_was_started_to_ignore_hangups_goes_on_when_the_terminal_is_gone() {
    let machine = Machine::new();
    let inside = "echo ready; read line; echo $line";
    let script = "trap '' HUP; exec \"$0\" sandbox exec -- sh -c \"$1\"";
    let mut child = Command::new("sh")
        .args(["-c", script, env!("CARGO_BIN_EXE_warrant"), inside])
        .env("WARRANT_HOME", machine.home())
        .current_dir(machine.work(""))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(output.next().unwrap().unwrap(), "ready");
    kill_process(Pid::from_child(&child), Signal::HUP).unwrap();
    child.stdin.take().unwrap().write_all(b"went on\n").unwrap();
    assert_eq!(output.next().unwrap().unwrap(), "went on");
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_bundle_that_cannot_be_written_does_not_hide_how_the_run_ended() {
    let machine = Machine::new();
    let failed = machine.exec(&["--out", "/dev/full", "--", "sh", "-c", "exit 5"]);
    assert_eq!(failed.status.code(), Some(1), "{}", stderr(&failed));
    let told = stderr(&failed);
    assert!(told.contains("run_") && told.contains("exit 5"), "{told}");
    let out = machine.directory.path().join("bundle.json");
    let waiting =
        machine.exec(&["--out", out.to_str().unwrap(), "--json", "--", "sudo", "--version"]);
    let object: Value = serde_json::from_slice(&waiting.stdout).unwrap();
    assert_eq!(object["status"], "awaiting-approval", "{object}");
    assert_eq!(waiting.status.code(), Some(4), "{}", stderr(&waiting));
    assert!(!out.exists(), "what waits has no bundle");
}

#[test]
fn wrong_use_of_an_exec_says_whose_code_it_is() {
    let machine = Machine::new();
    for words in [
        &["--json"][..],
        &["--json", "--timeout", "never", "--", "true"],
        &["--json", "--dry-rum", "--", "true"],
    ] {
        let refused = machine.exec(words);
        assert_eq!(refused.status.code(), Some(2), "{words:?}: {}", stderr(&refused));
        let object: Value = serde_json::from_slice(&refused.stdout).unwrap();
        assert_eq!((&object["status"], &object["exitCode"]), (&"error".into(), &2.into()));
        assert_eq!(object["exitCodeIs"], "warrant", "{object}");
    }
    let refused = machine.exec(&["--timeout", "never", "--", "true"]);
    assert!(stderr(&refused).ends_with("exit code 2 is warrant's own\n"), "{}", stderr(&refused));
    assert!(machine.json(&["runs", "--json"])["runs"].as_array().unwrap().is_empty());
}

#[test]
fn evidence_names_no_directory_that_the_run_does_not_touch() {
    let machine = Machine::new();
    // As an earlier run may have left it, named by a secret it had.
    fs::create_dir_all(machine.work("inner/hunter2hunter2")).unwrap();
    let output = machine.exec(&["--", "true"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let runs = machine.json(&["runs", "--json"]);
    let bundle = machine.run(&["bundle", runs["runs"][0]["runId"].as_str().unwrap()]);
    assert!(stdout(&bundle).contains("hiddenNames"), "{}", stderr(&bundle));
    assert!(!stdout(&bundle).contains("hunter2hunter2"), "{}", stdout(&bundle));
}
