//! `warrant run` and `warrant watch` at a plane, from outside: everything the program printed, once,
//! on a terminal and in a pipe; what the exit code means; what is sent, and how often.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::Value;
use warrant_protocol::Digest;
use warrant_runner::remote::{CallError, Http};

use crate::fleet::house::House;
use crate::{stderr, stdout};

/// The words of `warrant run` for a script in the process tier.
fn run_words<'a>(repo: &'a str, more: &[&'a str], script: &'a str) -> Vec<&'a str> {
    let start = ["run", "--isolation", "process", "--repo", repo];
    [&start[..], more, &["--", script]].concat()
}

#[test]
fn everything_a_program_prints_arrives_in_a_pipe_and_on_a_terminal() {
    let house = House::new();
    let _plane = house.start_plane("127.0.0.1:0");
    let _runner = house.start_runner("one", &[]);
    let repo = house.repo();
    let repo = repo.to_str().unwrap();
    for _ in 0..3 {
        let ran = house.warrant(&run_words(repo, &[], "echo A; echo B"));
        assert_eq!(ran.status.code(), Some(0), "{}", stderr(&ran));
        assert_eq!(stdout(&ran), "A\nB\n", "{}", stderr(&ran));
        let (seen, code) = house.on_terminal(&run_words(repo, &[], "echo A; echo B"));
        assert_eq!(code, Some(0), "{seen}");
        assert!(seen.contains("A\r\nB\r\n"), "{seen}");
        assert_eq!(seen.matches("A\r\nB\r\n").count(), 1, "once: {seen}");
        assert!(seen.contains("exit code 0 is the program's"), "{seen}");
    }
    // Slowly, so that pieces are shown while it runs; and much more than is kept for late readers.
    let slowly = "for i in 1 2 3 4 5; do echo $i; sleep 0.3; done";
    let ran = house.warrant(&run_words(repo, &[], slowly));
    assert_eq!(stdout(&ran), "1\n2\n3\n4\n5\n", "{}", stderr(&ran));
    let much = "i=0; while [ $i -lt 4 ]; do seq 1 40000; i=$((i+1)); sleep 0.2; done; printf end";
    let ran = house.warrant(&run_words(repo, &[], much));
    let count: String = (1..=40_000).map(|number| format!("{number}\n")).collect();
    let told = stdout(&ran);
    assert_eq!(told.len(), count.len() * 4 + 3, "{}", stderr(&ran));
    assert!(told == format!("{}end", count.repeat(4)), "in order and once");
}

#[test]
fn the_last_line_says_which_run_how_it_ended_and_whose_code_it_is() {
    let house = House::new();
    let _plane = house.start_plane("127.0.0.1:0");
    let _runner = house.start_runner("one", &[]);
    let repo = house.repo();
    let repo = repo.to_str().unwrap();
    let program = house.warrant(&run_words(repo, &[], "echo out; exit 3"));
    let denied = house.warrant(&run_words(repo, &["--agent", "nobody"], "x"));
    assert_eq!((program.status.code(), denied.status.code()), (Some(3), Some(3)));
    let last = |text: &str| text.lines().last().unwrap_or_default().to_owned();
    let line = last(&stderr(&program));
    let run = line.split_whitespace().find(|word| word.starts_with("run_")).unwrap().to_owned();
    assert!(line.contains("failed") && line.contains("exit code 3 is the program's"), "{line}");
    assert!(stderr(&denied).contains("exit code 3 is warrant's own"), "{}", stderr(&denied));

    let told = house.warrant(&run_words(repo, &["--json"], "echo out; exit 3"));
    let lines: Vec<Value> =
        stdout(&told).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let end = lines.last().unwrap();
    assert_eq!((&end["exitCode"], &end["exitCodeIs"]), (&3.into(), &"program".into()), "{end}");
    assert_eq!(end["output"], "out\n");
    assert!(end["runId"].as_str().unwrap().starts_with("run_"), "{end}");
    let denied = house.warrant(&run_words(repo, &["--json", "--agent", "nobody"], "x"));
    let end: Value = serde_json::from_str(&stdout(&denied)).unwrap();
    assert_eq!((&end["exitCode"], &end["exitCodeIs"]), (&3.into(), &"warrant".into()), "{end}");
    assert!(end["runId"].as_str().unwrap().starts_with("run_"), "a denial has a record: {end}");

    // Whoever watches what has ended sees the same.
    let watched = house.warrant(&["watch", &run]);
    assert_eq!((watched.status.code(), stdout(&watched)), (Some(3), "out\n".to_owned()));
    assert!(stderr(&watched).contains(&run), "{}", stderr(&watched));
}

#[test]
fn a_cancelled_run_names_who_cancelled_it() {
    let house = House::new();
    let _plane = house.start_plane("127.0.0.1:0");
    let _runner = house.start_runner("one", &[]);
    let repo = house.repo();
    let mark = house.directory("marks").join("alive");
    let script = format!("echo before; echo on > {}; sleep 60", mark.display());
    let ran = house
        .command(&run_words(repo.to_str().unwrap(), &[], &script))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    house.wait(Duration::from_secs(60), || mark.exists());
    let listed: Value = serde_json::from_slice(&house.warrant(&["runs", "--json"]).stdout).unwrap();
    let run = listed["runs"][0]["runId"].as_str().unwrap();
    assert!(house.warrant(&["cancel", run]).status.success());
    let ran = ran.wait_with_output().unwrap();
    assert_eq!((ran.status.code(), stdout(&ran)), (Some(130), "before\n".to_owned()));
    let line = stderr(&ran);
    assert!(line.contains("cancelled by human admin") && line.contains(run), "{line}");
}

#[test]
fn a_dry_run_sends_nothing() {
    let house = House::new();
    let plane = house.start_plane("127.0.0.1:0");
    let repo = house.repo();
    fs::write(repo.join("secret-plan.txt"), "not to travel\n").unwrap();
    for words in [&["add", "-A"][..], &["commit", "-qm", "two"]] {
        let identity = ["-c", "user.name=t", "-c", "user.email=t@localhost"];
        let done = Command::new("git").current_dir(&repo).args(identity).args(words).output();
        assert!(done.unwrap().status.success());
    }
    fs::write(repo.join("README.md"), "# changed\n").unwrap();
    let planned = house.warrant(&run_words(repo.to_str().unwrap(), &["--dry-run"], "echo hi"));
    assert_eq!(planned.status.code(), Some(0), "{}", stderr(&planned));
    let plan: Value = serde_json::from_str(&stdout(&planned)).unwrap();
    let http = Http::new(&format!("http://{}", plane.address()), None).unwrap();
    for name in ["bundleHash", "dirtyDiffHash"] {
        let digest: Digest = plan["workspace"][name].as_str().unwrap().parse().unwrap();
        let found = http.open_blob(&digest, &house.admin());
        assert!(matches!(found, Err(CallError::Refused { status: 404, .. })), "{name}: {plan}");
    }
}

/// A proxy in front of a plane that cuts the reply to the first submission off: the plane has it,
/// and the client does not know. Returns its address and how many submissions it has seen.
fn cutting_proxy(plane: String) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let seen = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&seen);
    thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let (plane, counted) = (plane.clone(), Arc::clone(&counted));
            thread::spawn(move || pass(client, &plane, &counted));
        }
    });
    (url, seen)
}

fn pass(mut client: TcpStream, plane: &str, seen: &AtomicUsize) {
    let Ok(mut upstream) = TcpStream::connect(plane) else { return };
    let (mut from, mut to) = (upstream.try_clone().unwrap(), client.try_clone().unwrap());
    let is_cut = Arc::new(AtomicUsize::new(0));
    let cut = Arc::clone(&is_cut);
    thread::spawn(move || {
        let mut piece = [0; 64 * 1024];
        while let Ok(count @ 1..) = from.read(&mut piece) {
            if cut.load(Ordering::SeqCst) == 1 || to.write_all(&piece[..count]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
    });
    let mut piece = [0; 64 * 1024];
    while let Ok(count @ 1..) = client.read(&mut piece) {
        if piece[..count].starts_with(b"POST /v1/runs HTTP")
            && seen.fetch_add(1, Ordering::SeqCst) == 0
        {
            is_cut.store(1, Ordering::SeqCst);
        }
        if upstream.write_all(&piece[..count]).is_err() {
            break;
        }
    }
    let _ = upstream.shutdown(Shutdown::Both);
}

#[test]
fn a_submission_whose_reply_is_cut_off_becomes_one_run() {
    let house = House::new();
    let plane = house.start_plane("127.0.0.1:0");
    let _runner = house.start_runner("one", &[]);
    let (url, seen) = cutting_proxy(plane.address());
    let repo = house.repo();
    let words = run_words(repo.to_str().unwrap(), &[], "echo once");
    let ran = crate::warrant()
        .arg("--home")
        .arg(house.path("elsewhere"))
        .args(["--plane", &url])
        .args(&words)
        .env("WARRANT_TOKEN", house.admin())
        .output()
        .unwrap();
    assert_eq!(ran.status.code(), Some(0), "{}", stderr(&ran));
    assert_eq!(stdout(&ran), "once\n");
    assert_eq!(seen.load(Ordering::SeqCst), 2, "sent again: {}", stderr(&ran));
    let listed: Value = serde_json::from_slice(&house.warrant(&["runs", "--json"]).stdout).unwrap();
    assert_eq!(listed["runs"].as_array().unwrap().len(), 1, "{listed}");
}
