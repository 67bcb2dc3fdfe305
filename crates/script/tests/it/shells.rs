//! Real shells run random scripts over stub programs; whatever starts must have been found.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use warrant_script::{Dialect, analyze};

const STUBS: [&str; 4] = ["aa", "bb", "cc", "dd"];
const CASES: u32 = 300;

/// Pieces of scripts: whole commands, and syntax that might be read wrongly around them.
fn scripts() -> impl Strategy<Value = String> {
    let parts = prop::sample::select(vec![
        "aa",
        "bb",
        "cc x",
        "dd",
        "aa",
        " ",
        " ",
        "\n",
        "\n",
        ";",
        "; ",
        " & ",
        " && ",
        " || ",
        " | ",
        "(",
        ")",
        "{ ",
        "; }",
        "$(",
        ")",
        "`",
        "'",
        "\"",
        "\\",
        "\\\n",
        " >f ",
        " <f ",
        "<<E\n",
        "\nE\n",
        "<<'E'\n",
        "<<-E\n",
        "E",
        "$((",
        "))",
        "((",
        "${x:-",
        "}",
        "x=",
        "x=1 ",
        "if ",
        "; then ",
        "; fi",
        "; do ",
        "; done",
        "case x in ",
        "x) ",
        ";; ",
        "esac",
        "for i in 1 2",
        "[[ ",
        " ]]",
        "~",
        "*",
        "#",
        "eval ",
        "f() ",
        "f",
        "! ",
        "time ",
        "sh -c ",
        "command ",
        "env ",
        "$x",
        "$'",
        "<(",
        "&>f ",
        "2>&1 ",
        "<<<",
        "function f ",
        "else ",
        "elif ",
        "x+=",
        "$[",
        "]",
        "$\"",
        "é",
        "trap ",
        " EXIT",
        "unset -f aa",
        "aa() { :; }; ",
        "echo ",
        " | sh",
        "xargs ",
        "\t",
        "a",
        "=",
    ]);
    prop::collection::vec(parts, 1..14).prop_map(|parts| parts.concat())
}

/// Returns the stubs a shell really started.
fn started(shell: &str, script: &str, room: &Path, case: usize) -> BTreeSet<String> {
    let log = room.join(format!("log{case}"));
    let cwd = room.join(format!("cwd{case}"));
    fs::create_dir(&cwd).unwrap();
    fs::write(&log, "").unwrap();
    let mut child = Command::new(shell)
        .args(["-c", script])
        .current_dir(&cwd)
        .env_clear()
        .env("PATH", room.join("bin"))
        .env("HOME", &cwd)
        .env("STUB_LOG", &log)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let deadline = Instant::now() + Duration::from_secs(2);
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > deadline {
            child.kill().unwrap();
            child.wait().unwrap();
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    fs::read_to_string(&log).unwrap().lines().map(str::to_owned).collect()
}

fn room(directory: &Path) {
    let bin = directory.join("bin");
    fs::create_dir(&bin).unwrap();
    for stub in STUBS {
        // What a script left running in the background writes to its own log.
        let text = format!("#!/bin/sh\necho {stub} >>\"$STUB_LOG\"\n");
        fs::write(bin.join(stub), text).unwrap();
        fs::set_permissions(bin.join(stub), fs::Permissions::from_mode(0o755)).unwrap();
    }
    for tool in ["sh", "env", "xargs"] {
        let real =
            ["/usr/bin", "/bin"].iter().map(|d| Path::new(d).join(tool)).find(|p| p.exists());
        std::os::unix::fs::symlink(real.unwrap(), bin.join(tool)).unwrap();
    }
}

#[test]
fn real_shells_start_nothing_that_was_not_found() {
    let directory = tempfile::tempdir().unwrap();
    room(directory.path());
    let seed = [7; 32];
    let config = Config { failure_persistence: None, ..Config::default() };
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &seed);
    let mut runner = TestRunner::new_with_rng(config, rng);
    let strategy = scripts();
    let mut judged = 0_usize;
    for _ in 0..CASES {
        let script = strategy.new_tree(&mut runner).unwrap().current();
        for (shell, dialect) in [("/bin/sh", Dialect::Sh), ("/bin/bash", Dialect::Bash)] {
            // A refused script never runs, and one with an unnamed program says so.
            let Ok(analysis) = analyze(&script, dialect) else { continue };
            if analysis.is_dynamic() {
                continue;
            }
            judged += 1;
            let names = analysis.names();
            for stub in started(shell, &script, directory.path(), judged) {
                assert!(
                    names.contains(stub.as_str()),
                    "{shell} started {stub} in {script:?}: {names:?}"
                );
            }
        }
    }
    assert!(judged > 50, "only {judged} scripts were understood");
}
