//! `warrant sandbox exec` from outside: the whole path on one machine, with real tiers.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use serde_json::Value;

use crate::machine::Machine;
use crate::{stderr, stdout, warrant};

#[test]
fn the_first_run_prints_hello_and_leaves_a_verifiable_receipt() {
    let machine = Machine::new();
    let output = machine.exec(&["--", "echo", "hello"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(stdout(&output), "hello\n");
    let summary = stderr(&output);
    assert!(summary.starts_with("warrant: namespace"), "{summary}");
    let run = summary.split_whitespace().find(|word| word.starts_with("run_")).unwrap();
    let verified = machine.run(&["verify", run]);
    assert_eq!(verified.status.code(), Some(0), "{}{}", stdout(&verified), stderr(&verified));
    let mode =
        |name: &str| std::fs::metadata(machine.home().join(name)).unwrap().permissions().mode();
    assert_eq!(mode("keys/plane.key.pem") & 0o777, 0o600);
    assert_eq!((mode("policy") & 0o777, mode("policy/document.json") & 0o777), (0o700, 0o600));
    assert_eq!(mode("") & 0o077, 0);
}

#[test]
fn many_first_users_at_once_find_one_home_with_its_policy() {
    let machine = Machine::new();
    std::thread::scope(|scope| {
        let runs: Vec<_> = (0..24).map(|_| scope.spawn(|| machine.exec(&["--", "true"]))).collect();
        for run in runs {
            let output = run.join().unwrap();
            assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        }
    });
}

#[test]
fn exit_codes_are_the_programs_and_ours_are_named() {
    let machine = Machine::new();
    for (script, code) in [("exit 0", 0), ("exit 7", 7), ("exit 126", 126), ("kill -SEGV $$", 139)]
    {
        let output = machine.exec(&["--", "sh", "-c", script]);
        assert_eq!(output.status.code(), Some(code), "{script}: {}", stderr(&output));
    }
    let timed_out =
        machine.json(&["sandbox", "exec", "--json", "--timeout", "300ms", "--", "sleep", "9"]);
    assert_eq!(timed_out["exitCode"], 124, "{timed_out}");
    assert_eq!(timed_out["exitCodeIs"], "warrant");
    let own = machine.json(&["sandbox", "exec", "--json", "--", "sh", "-c", "exit 3"]);
    assert_eq!(own["exitCode"], 3);
    assert_eq!(own["exitCodeIs"], "program", "a 3 of the program is not a denial");
}

#[test]
fn hosts_that_were_blocked_are_named_below_the_summary() {
    let machine = Machine::new();
    let six = "for n in 1 2 3 4 5 6; do getent hosts host$n.example; done; echo done";
    let output = machine.exec(&["--", "sh", "-c", six]);
    assert_eq!((stdout(&output), output.status.code()), ("done\n".to_owned(), Some(0)));
    let told = stderr(&output);
    let line = told.lines().find(|line| line.starts_with("  blocked: ")).unwrap_or_default();
    assert!(line.contains("host1.example, host2.example"), "{told}");
    assert!(line.ends_with("and 1 more; to ask for one: --allow-host host1.example"), "{told}");
    assert!(!stderr(&machine.exec(&["--", "true"])).contains("blocked"));
}

#[test]
fn denied_never_reaches_the_backend_and_has_a_receipt() {
    let machine = Machine::new();
    let marker = machine.work("ran");
    let script = format!("touch {}", marker.display());
    let output = machine.exec(&["--provider", "process", "--json", "--", "sh", "-c", &script]);
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    let denied: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(denied["status"], "denied");
    assert!(!denied["reasons"].as_array().unwrap().is_empty());
    assert!(!marker.exists());
    let verified = machine.run(&["verify", denied["runId"].as_str().unwrap()]);
    assert_eq!(verified.status.code(), Some(0), "{}{}", stdout(&verified), stderr(&verified));
}

#[test]
fn the_workspace_stays_untouched_and_the_diff_can_be_pulled() {
    let machine = Machine::new();
    let git = |arguments: &[&str]| {
        let status = std::process::Command::new("git")
            .args(arguments)
            .current_dir(machine.work(""))
            .output();
        assert!(status.unwrap().status.success(), "git {arguments:?}");
    };
    git(&["init", "-q"]);
    git(&["add", "-A"]);
    git(&["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "x"]);
    let done = machine.json(&[
        "sandbox",
        "exec",
        "--json",
        "--",
        "sh",
        "-c",
        "echo b >> a.txt; echo n > new",
    ]);
    assert_eq!(done["exitCode"], 0, "{done}");
    assert_eq!(std::fs::read_to_string(machine.work("a.txt")).unwrap(), "a\n");
    assert!(!machine.work("new").exists());
    let run = done["runId"].as_str().unwrap();
    let diff = stdout(&machine.run(&["diff", run]));
    assert!(diff.contains("+b") && diff.contains("new"), "{diff}");
    let pulled = machine.run(&["pull", run, "--json"]);
    let pulled: Value =
        serde_json::from_slice(&pulled.stdout).unwrap_or_else(|_| panic!("{}", stderr(&pulled)));
    assert_eq!(pulled["mode"], "applied", "{pulled}");
    assert_eq!(std::fs::read_to_string(machine.work("a.txt")).unwrap(), "a\nb\n");
    let undone = machine.run(&["undo"]);
    assert_eq!(undone.status.code(), Some(0), "{}", stderr(&undone));
    assert_eq!(std::fs::read_to_string(machine.work("a.txt")).unwrap(), "a\n");
}

#[test]
fn rollback_mode_keeps_success_drops_failure_and_undoes() {
    let machine = Machine::new();
    let failing =
        machine.exec(&["--mode", "workspace-rollback", "--", "sh", "-c", "echo x > a.txt; exit 1"]);
    assert_eq!(failing.status.code(), Some(1));
    assert_eq!(std::fs::read_to_string(machine.work("a.txt")).unwrap(), "a\n");
    let good = machine.exec(&["--mode", "workspace-rollback", "--", "sh", "-c", "echo x > a.txt"]);
    assert_eq!(good.status.code(), Some(0), "{}", stderr(&good));
    assert_eq!(std::fs::read_to_string(machine.work("a.txt")).unwrap(), "x\n");
    assert_eq!(machine.run(&["undo"]).status.code(), Some(0));
    assert_eq!(std::fs::read_to_string(machine.work("a.txt")).unwrap(), "a\n");
}

#[test]
fn rollback_mode_never_overwrites_what_a_person_changed_meanwhile() {
    let machine = Machine::new();
    let mut run = warrant()
        .args(["sandbox", "exec", "--mode", "workspace-rollback", "--"])
        .args(["sh", "-c", "echo begun; read go; echo program > a.txt; echo new > b.txt; mkfifo p"])
        .env("WARRANT_HOME", machine.home())
        .current_dir(machine.work(""))
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut begun = [0; 6];
    std::io::Read::read_exact(run.stdout.as_mut().unwrap(), &mut begun).unwrap();
    std::fs::write(machine.work("a.txt"), "person\n").unwrap();
    std::io::Write::write_all(run.stdin.as_mut().unwrap(), b"go\n").unwrap();
    let output = run.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(std::fs::read_to_string(machine.work("a.txt")).unwrap(), "person\n");
    assert_eq!(std::fs::read_to_string(machine.work("b.txt")).unwrap(), "new\n");
    let told = stderr(&output);
    assert!(told.contains("changed here meanwhile: a.txt"), "{told}");
    assert!(told.contains("no file: p"), "{told}");
}

#[test]
fn a_dry_run_runs_nothing_and_stores_nothing() {
    let machine = Machine::new();
    assert!(machine.run(&["init"]).status.success());
    let plan =
        machine.json(&["sandbox", "exec", "--dry-run", "--json", "--", "sh", "-c", "touch ran"]);
    assert_eq!(plan["dryRun"], true);
    assert_eq!(plan["decision"]["decision"], "allow", "{plan}");
    assert!(plan["plan"]["backend"]["mounts"].is_array(), "{plan}");
    assert!(!machine.work("ran").exists());
    assert!(machine.json(&["runs", "--json"])["runs"].as_array().unwrap().is_empty());
}

#[test]
fn a_dry_run_on_a_new_machine_leaves_no_home() {
    let machine = Machine::new();
    let plan = machine.json(&["sandbox", "exec", "--dry-run", "--json", "--", "true"]);
    assert_eq!(plan["decision"]["decision"], "allow", "{plan}");
    assert!(!machine.home().exists());
}

#[test]
fn a_dry_run_tells_masks_and_refusals_as_the_run_would_have_them() {
    let machine = Machine::new();
    std::fs::write(machine.work(".env"), "A=1").unwrap();
    let plan = machine.json(&["sandbox", "exec", "--dry-run", "--json", "--", "true"]);
    let veil = machine.work(".env");
    let mounts = plan["plan"]["backend"]["mounts"].as_array().unwrap();
    let veiled = mounts.iter().filter(|mount| mount["kind"] == "veil");
    let mut targets = veiled.map(|mount| mount["target"].as_str().unwrap());
    assert!(targets.any(|target| Path::new(target) == veil), "{mounts:?}");
    let refused = machine.exec(&["--dry-run", "--json", "--", "sh", "-c", "rm -rf ~/x; cat a.txt"]);
    assert_eq!(refused.status.code(), Some(8), "{}", stdout(&refused));
    let plan: Value = serde_json::from_slice(&refused.stdout).unwrap();
    let effects = plan["plan"]["lowering"]["effects"].as_array().unwrap();
    let told = |token: &str| {
        let effect = effects.iter().find(|effect| effect["token"] == token).unwrap();
        (effect["access"].clone(), effect["confidence"].clone())
    };
    assert_eq!(told("~/x").0, "write", "{effects:?}");
    assert_eq!(told("a.txt"), ("read".into(), "high".into()), "{effects:?}");
}

#[test]
fn a_program_that_is_not_there_is_named() {
    let machine = Machine::new();
    let missing = machine.exec(&["--", "no-such-program"]);
    assert_eq!(missing.status.code(), Some(127));
    assert!(stderr(&missing).contains("`no-such-program`"), "{}", stderr(&missing));
    assert!(
        stderr(&missing).contains("install it there in /usr/local/bin"),
        "{}",
        stderr(&missing)
    );
    let own = machine.exec(&["--", "sh", "-c", "echo mine >&2; exit 127"]);
    assert!(!stderr(&own).contains("was not found"), "{}", stderr(&own));
}

#[test]
fn output_that_is_no_text_is_exact_in_json() {
    let machine = Machine::new();
    let script = r"printf 'a\377b'";
    let done = machine.json(&["sandbox", "exec", "--json", "--", "sh", "-c", script]);
    assert_eq!(done["output"], "a\u{fffd}b", "{done}");
    assert_eq!(done["outputBase64"], "Yf9i", "{done}");
    let plain = machine.json(&["sandbox", "exec", "--json", "--", "echo", "a"]);
    assert_eq!(plain.get("outputBase64"), None, "{plain}");
}

#[test]
fn data_that_went_nowhere_is_no_success() {
    let machine = Machine::new();
    assert!(machine.run(&["init"]).status.success());
    for arguments in [
        vec!["policy", "show"],
        vec!["sandbox", "exec", "--json", "--", "true"],
        vec!["export", "--jsonl"],
    ] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output = warrant()
            .args(&arguments)
            .env("WARRANT_HOME", machine.home())
            .current_dir(machine.work(""))
            .stdin(std::process::Stdio::null())
            .stdout(full)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        assert!(stderr(&output).contains("stdout"), "{arguments:?}: {}", stderr(&output));
    }
}

#[test]
fn where_no_tier_holds_a_run_is_refused_with_a_receipt() {
    let machine = Machine::new();
    let script = "echo 0 > /proc/sys/user/max_user_namespaces && \
                  \"$0\" sandbox exec -- echo ran; code=$?; \"$0\" runs; exit $code";
    let output = std::process::Command::new("unshare")
        .args(["-Ur", "sh", "-c", script, env!("CARGO_BIN_EXE_warrant")])
        .env("WARRANT_HOME", machine.home())
        .current_dir(machine.work(""))
        .stdin(std::process::Stdio::null())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(7), "{}", stderr(&output));
    assert!(stderr(&output).contains("warrant doctor"), "{}", stderr(&output));
    let listed = stdout(&output);
    assert!(!listed.starts_with("ran") && listed.lines().count() == 1, "{listed}");
    let run = listed.split_whitespace().next().unwrap();
    let verified = machine.run(&["verify", run]);
    assert_eq!(verified.status.code(), Some(0), "{}", stderr(&verified));
}

#[test]
fn a_failure_of_ours_is_told_from_the_programs_code() {
    let machine = Machine::new();
    assert!(machine.run(&["init"]).status.success());
    std::fs::write(machine.home().join("home.json"), "{").unwrap();
    let failed = machine.json(&["sandbox", "exec", "--json", "--", "true"]);
    assert_eq!(failed["status"], "error", "{failed}");
    assert_eq!((&failed["exitCode"], &failed["exitCodeIs"]), (&1.into(), &"warrant".into()));
    assert!(failed["message"].as_str().unwrap().contains("home.json"), "{failed}");
    let told = machine.exec(&["--", "true"]);
    assert_eq!(told.status.code(), Some(1));
    assert!(stderr(&told).contains("exit code 1 is warrant's own"), "{}", stderr(&told));
}

#[test]
fn a_home_keeps_its_policy_when_another_preset_is_asked_for() {
    let machine = Machine::new();
    assert!(machine.run(&["init", "--preset", "strict"]).status.success());
    assert!(machine.run(&["init", "--preset", "strict"]).status.success());
    assert!(machine.run(&["init"]).status.success());
    let other = machine.run(&["init", "--preset", "dev"]);
    assert_eq!(other.status.code(), Some(1), "{}", stdout(&other));
    assert!(stderr(&other).contains("policy set dev"), "{}", stderr(&other));
}

#[test]
fn a_full_disk_is_named_and_nothing_runs() {
    if !rustix::process::geteuid().is_root() {
        // Only root can make a disk that is full.
        return;
    }
    let machine = Machine::new();
    std::fs::create_dir(machine.home()).unwrap();
    let script = "mount -t tmpfs -o size=3m,mode=700 none \"$WARRANT_HOME\" && \
                  \"$0\" sandbox exec -- true && \
                  { cat /dev/zero > \"$WARRANT_HOME/fill\" 2>/dev/null; \
                  \"$0\" sandbox exec -- echo ran; code=$?; rm \"$WARRANT_HOME/fill\"; \
                  \"$0\" runs; exit $code; }";
    let output = std::process::Command::new("unshare")
        .args(["-m", "sh", "-c", script, env!("CARGO_BIN_EXE_warrant")])
        .env("WARRANT_HOME", machine.home())
        .current_dir(machine.work(""))
        .stdin(std::process::Stdio::null())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).contains("disk is full"), "{}", stderr(&output));
    assert!(!stdout(&output).contains("ran\n"), "{}", stdout(&output));
    assert_eq!(stdout(&output).lines().count(), 1, "{}", stdout(&output));
}

#[test]
fn the_interpreting_tiers_run_scripts_and_plain_commands() {
    let machine = Machine::new();
    let mock = machine.exec(&["--provider", "mock", "--", "echo", "Hello"]);
    assert_eq!(stdout(&mock), "Hello\n", "{}", stderr(&mock));
    let hermetic =
        machine.exec(&["--provider", "hermetic", "--", "sh", "-c", "cat a.txt | tr a z"]);
    assert_eq!(stdout(&hermetic), "z\n", "{}", stderr(&hermetic));
}

#[test]
fn a_secret_reaches_the_program_by_policy_and_never_the_disk_or_the_screen() {
    let machine = Machine::new();
    assert!(machine.run(&["init"]).status.success());
    let value = "s3cr3t-Value-9471";
    set_secret(&machine, "TOKEN", value);
    let refused = machine.exec(&["--secret", "TOKEN", "--", "true"]);
    assert_eq!(refused.status.code(), Some(3), "no rule releases it: {}", stderr(&refused));
    release(&machine, "TOKEN");
    let script =
        "test -n \"$TOKEN\" && echo got $TOKEN && echo $TOKEN | base64 && echo $TOKEN > leak.txt";
    let out = machine.directory.path().join("b.json");
    let output = machine.exec(&[
        "--secret",
        "TOKEN",
        "--out",
        out.to_str().unwrap(),
        "--",
        "sh",
        "-c",
        script,
    ]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stdout(&output).contains("got [REDACTED:TOKEN]"), "{}", stdout(&output));
    assert!(!std::fs::read_to_string(&out).unwrap().contains(value));
    assert!(!stdout(&output).contains(value));
    nothing_at_home_holds(&machine, value);
}

#[test]
fn a_secret_in_a_kept_file_or_its_name_is_in_the_workspace_alone() {
    let machine = Machine::new();
    assert!(machine.run(&["init"]).status.success());
    let value = "s3cr3t-Value-9471";
    set_secret(&machine, "TOKEN", value);
    release(&machine, "TOKEN");
    let script = "echo $TOKEN > content; echo x > name-$TOKEN; echo x > .envrc-$TOKEN.desktop";
    let arguments = ["--mode", "workspace-rollback", "--secret", "TOKEN"];
    let json = machine.exec(&[&arguments[..], &["--json", "--", "sh", "-c", script]].concat());
    let object: Value = serde_json::from_slice(&json.stdout).unwrap();
    let paths = object["workspace"]["paths"].to_string();
    assert!(paths.contains("name-[REDACTED:TOKEN]"), "{object}");
    assert!(!stdout(&json).contains(value), "{}", stdout(&json));
    assert!(machine.work(&format!("name-{value}")).exists(), "the workspace has what was written");
    for file in walk(&machine.home()).iter().filter(|file| !file.ends_with("record.json")) {
        let bytes = std::fs::read(file).unwrap();
        let found = bytes.windows(value.len()).any(|window| window == value.as_bytes());
        assert!(!found, "{} holds the secret", file.display());
    }
    assert!(machine.run(&["undo"]).status.success());
    assert!(!machine.work("content").exists());
}

#[test]
fn changes_that_were_withheld_are_told() {
    let machine = Machine::new();
    assert!(machine.run(&["init"]).status.success());
    set_secret(&machine, "TOKEN", "s3cr3t-Value-9474");
    release(&machine, "TOKEN");
    let script = r#"printf '\000\377%s' "$TOKEN" > file"#;
    let output = machine.exec(&["--secret", "TOKEN", "--", "sh", "-c", script]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stderr(&output).contains("kept nowhere: the diff is withheld"), "{}", stderr(&output));
    let run = stderr(&output);
    let run = run.split_whitespace().find(|word| word.starts_with("run_")).unwrap();
    for command in ["diff", "pull"] {
        let told = machine.run(&[command, run]);
        assert_eq!(told.status.code(), Some(1), "{command}: {}", stderr(&told));
        assert!(stderr(&told).contains("no diff of them was kept"), "{}", stderr(&told));
    }
}

#[test]
fn a_secret_in_the_command_itself_is_refused_and_kept_nowhere() {
    let machine = Machine::new();
    assert!(machine.run(&["init"]).status.success());
    let value = "s3cr3t-Value-9473";
    set_secret(&machine, "TOKEN", value);
    release(&machine, "TOKEN");
    let assigned = format!("X={value}");
    let script = format!("echo {value}");
    let encoded = format!("echo {} | base64 -d", "czNjcjN0LVZhbHVlLTk0NzM=");
    for arguments in [
        vec!["--", "echo", value],
        vec!["--", "sh", "-c", &script],
        vec!["--", "sh", "-c", &encoded],
        vec!["--env", &assigned, "--", "true"],
        vec!["--dry-run", "--", "echo", value],
    ] {
        let refused = machine.exec(&[vec!["--secret", "TOKEN"], arguments.clone()].concat());
        assert_eq!(refused.status.code(), Some(2), "{arguments:?}: {}", stderr(&refused));
        assert!(stderr(&refused).contains("TOKEN"), "{}", stderr(&refused));
        assert!(!stderr(&refused).contains(value), "{}", stderr(&refused));
        assert!(stderr(&refused).contains("execution."), "no field: {}", stderr(&refused));
    }
    nothing_at_home_holds(&machine, value);
}

#[test]
fn a_guess_of_a_secret_that_policy_keeps_is_told_neither_right_nor_wrong() {
    let machine = Machine::new();
    assert!(machine.run(&["init"]).status.success());
    let (value, wrong) = ("s3cr3t-Value-9475", "s3cr3t-Value-0000");
    set_secret(&machine, "TOKEN", value);
    let forms: [fn(&str) -> Vec<String>; 4] = [
        |guess| vec!["--".into(), "echo".into(), guess.into()],
        |guess| vec!["--env".into(), format!("X={guess}"), "--".into(), "true".into()],
        |guess| vec!["--env".into(), format!("{guess}=x"), "--".into(), "true".into()],
        |guess| vec!["--allow-host".into(), format!("{guess}.test"), "--".into(), "true".into()],
    ];
    for form in forms {
        let ask = |guess: &str| {
            let words = form(guess);
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let output = machine.exec(&[vec!["--secret", "TOKEN", "--json"], words].concat());
            let mut told: Value = serde_json::from_slice(&output.stdout).unwrap();
            told["runId"] = Value::Null;
            let told = told.to_string().to_lowercase().replace(&guess.to_lowercase(), "GUESS");
            (output.status.code(), told)
        };
        let (right, other) = (ask(value), ask(wrong));
        assert_eq!(right, other);
        assert_eq!(right.0, Some(3));
    }
    nothing_at_home_holds(&machine, value);
    let runs = machine.json(&["runs", "--json"]);
    let runs = runs["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 8);
    for run in runs {
        let verified = machine.run(&["verify", run["runId"].as_str().unwrap()]);
        assert!(verified.status.success(), "{}{}", stdout(&verified), stderr(&verified));
    }
}

#[test]
fn a_command_with_a_secret_in_it_that_people_approved_is_refused_and_ends() {
    let machine = Machine::new();
    assert!(machine.run(&["init"]).status.success());
    let value = "s3cr3t-Value-9476";
    set_secret(&machine, "TOKEN", value);
    let consent = serde_json::json!([{"when": "secret-release", "approvers": ["*"]}]);
    release_after(&machine, "TOKEN", consent);
    let ask = || machine.exec(&["--secret", "TOKEN", "--agent", "helper", "--", "echo", value]);
    let waiting = ask();
    assert_eq!(waiting.status.code(), Some(4), "{}", stderr(&waiting));
    let run = stderr(&waiting);
    let run = run.split_whitespace().find(|word| word.starts_with("run_")).unwrap();
    let approved = machine.run(&["approve", run]);
    assert!(approved.status.success(), "{}", stderr(&approved));
    let refused = ask();
    assert_eq!(refused.status.code(), Some(2), "{}{}", stdout(&refused), stderr(&refused));
    assert!(stderr(&refused).contains("execution.args.0"), "{}", stderr(&refused));
    let verified = machine.run(&["verify", run]);
    assert!(verified.status.success(), "{}{}", stdout(&verified), stderr(&verified));
    nothing_at_home_holds(&machine, value);
}

#[test]
fn a_secret_can_be_a_file_that_only_the_session_has() {
    let machine = Machine::new();
    assert!(machine.run(&["init"]).status.success());
    let value = "s3cr3t-Value-9472";
    set_secret(&machine, "TOKEN", value);
    let refused = machine.exec(&["--secret-file", "TOKEN", "--", "true"]);
    assert_eq!(refused.status.code(), Some(3), "no rule releases it: {}", stderr(&refused));
    release(&machine, "TOKEN");
    let script = "test -z \"$TOKEN\" && echo at $TOKEN_FILE && wc -c < $TOKEN_FILE && \
                  cat $TOKEN_FILE && ! echo x > $TOKEN_FILE";
    let output = machine.exec(&["--secret-file", "TOKEN", "--", "sh", "-c", script]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let told = format!("at /run/secrets/TOKEN\n{}\n[REDACTED:TOKEN]", value.len());
    assert_eq!(stdout(&output), told, "{}", stderr(&output));
    let named = ["--secret-file", "TOKEN=KEY", "--", "sh", "-c", "wc -c < $KEY"];
    assert_eq!(stdout(&machine.exec(&named)), format!("{}\n", value.len()));
    let hermetic = ["--provider", "hermetic", "--secret-file", "TOKEN", "--", "true"];
    let refused = machine.exec(&hermetic);
    assert!(stderr(&refused).contains("no private place for a file"), "{}", stderr(&refused));
    nothing_at_home_holds(&machine, value);
}

pub(crate) fn set_secret(machine: &Machine, name: &str, value: &str) {
    let mut set = warrant()
        .args(["secret", "set", name])
        .env("WARRANT_HOME", machine.home())
        .stdin(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Write::write_all(&mut set.stdin.take().unwrap(), value.as_bytes()).unwrap();
    assert!(set.wait().unwrap().success());
}

fn nothing_at_home_holds(machine: &Machine, value: &str) {
    for file in walk(&machine.home()) {
        let bytes = std::fs::read(&file).unwrap();
        let found = bytes.windows(value.len()).any(|window| window == value.as_bytes());
        assert!(!found, "{} holds the secret", file.display());
    }
}

/// Puts a policy in force that releases one secret to this machine's pool.
pub(crate) fn release(machine: &Machine, name: &str) {
    release_after(machine, name, serde_json::json!([]));
}

/// Puts a policy in force that releases one secret to this machine's pool, with these consents.
fn release_after(machine: &Machine, name: &str, consent: Value) {
    let document = std::fs::read_to_string(machine.home().join("policy/document.json")).unwrap();
    let mut document: Value = serde_json::from_str(&document).unwrap();
    document["secrets"]["releasable"] =
        serde_json::json!([{"name": name, "scope": "test", "pools": ["default"]}]);
    document["consent"] = consent;
    let folder = machine.directory.path().join("policy");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("document.json"), document.to_string()).unwrap();
    std::fs::copy(machine.home().join("policy/rules.cedar"), folder.join("rules.cedar")).unwrap();
    let set = machine.run(&["policy", "set", folder.to_str().unwrap()]);
    assert!(set.status.success(), "{}", stderr(&set));
}

fn walk(directory: &Path) -> Vec<std::path::PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(walk(&path))
        } else if path.is_file() {
            files.push(path)
        }
    }
    files
}

#[test]
fn bad_arguments_are_named() {
    let machine = Machine::new();
    for (arguments, word) in [
        (&["--provider", "nope", "--", "true"][..], "nope"),
        (&["--timeout", "soon", "--", "true"], "soon"),
        (&["--env", "NOVALUE", "--", "true"], "NOVALUE"),
        (&["--read", "/no/such/dir", "--", "true"], "/no/such/dir"),
        (&["--secret", "bad-name", "--", "true"], "bad-name"),
        (&["--secret-file", "TOKEN=", "--", "true"], "TOKEN="),
        (&["--mode", "yolo", "--", "true"], "yolo"),
        (&[][..], "ARGV"),
    ] {
        let output = machine.exec(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(word), "{arguments:?}: {}", stderr(&output));
    }
}

#[test]
fn a_broken_policy_denies_everything_and_a_bad_one_is_not_set() {
    let machine = Machine::new();
    assert!(machine.run(&["init"]).status.success());
    let bad = machine.directory.path().join("bad");
    std::fs::create_dir(&bad).unwrap();
    std::fs::write(bad.join("document.json"), "{}").unwrap();
    let refused = machine.run(&["policy", "set", bad.to_str().unwrap()]);
    assert_eq!(refused.status.code(), Some(1));
    assert_eq!(machine.exec(&["--", "true"]).status.code(), Some(0), "the old one stays");
    std::fs::remove_dir_all(machine.home().join("policy")).unwrap();
    assert_eq!(machine.exec(&["--", "true"]).status.code(), Some(3), "no policy, no run");
}

#[test]
fn a_policy_broken_in_place_leaves_the_last_good_one_in_force_and_can_be_mended() {
    let machine = Machine::new();
    assert!(machine.exec(&["--", "true"]).status.success());
    for (file, text) in [("document.json", "{"), ("rules.cedar", "permit (principal")] {
        std::fs::write(machine.home().join("policy").join(file), text).unwrap();
        let ran = machine.exec(&["--", "echo", "ran"]);
        assert_eq!(stdout(&ran), "ran\n", "{}", stderr(&ran));
        assert!(stderr(&ran).contains(file) && stderr(&ran).contains("stays in force"));
        let denied = machine.json(&["sandbox", "exec", "--json", "--", "sudo", "id"]);
        assert_ne!(denied["exitCode"], 0, "the last good one decides: {denied}");
        let shown = machine.run(&["policy", "show"]);
        assert_eq!(shown.status.code(), Some(0), "what is in force: {}", stderr(&shown));
        let check = machine.run(&["policy", "check"]);
        assert_eq!(check.status.code(), Some(1), "{}", stdout(&check));
        let set = machine.run(&["policy", "set", "default"]);
        assert_eq!(set.status.code(), Some(0), "{}", stderr(&set));
        assert_eq!(machine.exec(&["--", "true"]).status.code(), Some(0), "{file}");
    }
}

#[test]
fn a_policy_diff_decides_recorded_requests_as_they_would_be_decided() {
    let machine = Machine::new();
    assert!(machine.run(&["policy", "set", "strict"]).status.success());
    let allowed = machine.json(&["sandbox", "exec", "--json", "--", "echo", "a"]);
    assert_eq!(allowed["exitCode"], 0, "{allowed}");
    assert!(machine.run(&["policy", "set", "default"]).status.success());
    let diff = machine.json(&["policy", "diff", "--json", "strict"]);
    assert_eq!(diff["compared"], 1, "{diff}");
    let denied = diff["changed"].as_array().unwrap().iter().any(|one| one["new"] != "allow");
    assert!(!denied, "strict allowed it: {diff}");
}

/// Puts a policy in force in which bob must agree to every run.
fn ask_bob(machine: &Machine) {
    let document = std::fs::read_to_string(machine.home().join("policy/document.json")).unwrap();
    let mut document: Value = serde_json::from_str(&document).unwrap();
    document["consent"] = serde_json::json!([{"when": "any-run", "approvers": ["bob"]}]);
    let folder = machine.directory.path().join("asking");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("document.json"), document.to_string()).unwrap();
    std::fs::copy(machine.home().join("policy/rules.cedar"), folder.join("rules.cedar")).unwrap();
    let set = machine.run(&["policy", "set", folder.to_str().unwrap()]);
    assert!(set.status.success(), "{}", stderr(&set));
}

#[test]
fn an_approval_counts_once_for_the_exact_command_and_never_from_the_requester() {
    let machine = Machine::new();
    assert!(machine.run(&["init"]).status.success());
    ask_bob(&machine);
    let key = machine.directory.path().join("bob").to_str().unwrap().to_owned();
    assert!(machine.run(&["keys", "new", &key]).status.success());
    let (public, secret) = (format!("{key}.pub.pem"), format!("{key}.key.pem"));
    assert!(machine.run(&["keys", "approver", "bob", &public]).status.success());

    let asked = machine.json(&["sandbox", "exec", "--json", "--", "echo", "yes"]);
    assert_eq!(asked["exitCode"], 4, "{asked}");
    let run = asked["runId"].as_str().unwrap();
    assert_eq!(machine.run(&["approve", run]).status.code(), Some(1), "nobody approves their own");
    let approved = machine.run(&["approve", run, "--as", "bob", "--key", &secret]);
    assert_eq!(approved.status.code(), Some(0), "{}", stderr(&approved));

    let other = machine.exec(&["--", "echo", "no"]);
    assert_eq!(other.status.code(), Some(4), "another command is another question");
    let ran = machine.exec(&["--", "echo", "yes"]);
    assert_eq!(stdout(&ran), "yes\n", "{}", stderr(&ran));
    let verified = machine.run(&["verify", run]);
    assert_eq!(verified.status.code(), Some(0), "{}", stdout(&verified));
    let again = machine.exec(&["--", "echo", "yes"]);
    assert_eq!(again.status.code(), Some(4), "an approval is used up");
}

#[test]
fn a_refused_approval_ends_with_a_receipt() {
    let machine = Machine::new();
    assert!(machine.run(&["init"]).status.success());
    ask_bob(&machine);
    let asked = machine.json(&["sandbox", "exec", "--json", "--", "touch", "ran"]);
    let run = asked["runId"].as_str().unwrap();
    let waiting = machine.json(&["approvals", "--json"]);
    assert_eq!(waiting["approvals"][0]["runId"], run, "{waiting}");
    assert!(machine.run(&["deny", run, "--reason", "not today"]).status.success());
    let verified = machine.run(&["verify", run]);
    assert_eq!(verified.status.code(), Some(0), "{}{}", stdout(&verified), stderr(&verified));
    assert!(!machine.work("ran").exists());
}
