//! The black-box suite: shell cases of our own, judged by the real bash on this machine.
//!
//! A case is `== name` and its script. A line `!! reason` after the name marks a known
//! difference: such a case must differ, so that a mark that is no longer true is found.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command as Process, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use warrant_protocol::Outcome;

use super::kit::Bench;

struct Case {
    id: String,
    difference: Option<String>,
    script: String,
}

/// What is compared: everything said on stdout, and the exit code.
#[derive(Debug, PartialEq, Eq)]
struct Verdict {
    stdout: String,
    code: i32,
}

fn cases() -> Vec<Case> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/shell");
    let mut files: Vec<_> = fs::read_dir(directory).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    let mut cases = Vec::new();
    for file in files {
        let topic = file.file_stem().unwrap().to_str().unwrap().to_owned();
        let text = fs::read_to_string(&file).unwrap();
        let mut lines = text.lines().peekable();
        while let Some(line) = lines.next() {
            let name = line.strip_prefix("== ").unwrap_or_else(|| panic!("{topic}: {line}"));
            let mark = |line: &&str| line.strip_prefix("!! ").map(str::to_owned);
            let difference = lines.peek().and_then(mark);
            if difference.is_some() {
                lines.next();
            }
            let mut script = String::new();
            while let Some(line) = lines.next_if(|line| !line.starts_with("== ")) {
                script.push_str(line);
                script.push('\n');
            }
            cases.push(Case { id: format!("{topic}/{name}"), difference, script });
        }
    }
    cases
}

fn judge(script: &str) -> Verdict {
    let directory = tempfile::TempDir::new().unwrap();
    let output = Process::new("bash")
        .args(["-c", script])
        .current_dir(directory.path())
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("HOME", "/tmp")
        .env("LC_ALL", "C.UTF-8")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    Verdict {
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        code: output.status.code().unwrap_or(-1),
    }
}

fn candidate(script: &str) -> Verdict {
    let mut bench = Bench::new();
    bench.env("HOME", "/tmp");
    bench.env("LC_ALL", "C.UTF-8");
    let ran = bench.run(script);
    let code = match ran.report.outcome {
        Outcome::Exited { code } => i32::from(code),
        other => panic!("{other:?} {}", ran.stderr),
    };
    Verdict { stdout: ran.stdout, code }
}

#[test]
fn the_black_box_suite_agrees_with_bash() {
    let cases = cases();
    let ids: BTreeSet<&str> = cases.iter().map(|case| case.id.as_str()).collect();
    assert_eq!(ids.len(), cases.len(), "two cases share an id");
    assert!(cases.len() >= 400, "only {} cases", cases.len());
    let next = AtomicUsize::new(0);
    let wrong = Mutex::new(Vec::new());
    let agreed = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let (bash, ours) = (judge(&case.script), candidate(&case.script));
                    let agrees = bash == ours;
                    agreed.fetch_add(usize::from(agrees), Ordering::Relaxed);
                    match (&case.difference, agrees) {
                        (None, true) | (Some(_), false) => {}
                        (None, false) => wrong
                            .lock()
                            .unwrap()
                            .push(format!("{}\n  bash {bash:?}\n  ours {ours:?}", case.id)),
                        (Some(_), true) => {
                            let stale = format!("{}: marked, but agrees", case.id);
                            wrong.lock().unwrap().push(stale);
                        }
                    }
                }
            });
        }
    });
    let agreed = agreed.into_inner();
    let percent = agreed as f64 * 100.0 / cases.len() as f64;
    println!("{agreed} of {} cases agree with bash ({percent:.1} %)", cases.len());
    let mut wrong = wrong.into_inner().unwrap();
    wrong.sort();
    assert!(wrong.is_empty(), "{} surprises:\n{}", wrong.len(), wrong.join("\n"));
}
