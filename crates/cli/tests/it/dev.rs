//! `warrant dev` as a process: plane, runner and page in one, and how it ends.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use crate::{stderr, stdout, warrant};

/// A laptop: a home, a repository, and `warrant dev` at work.
pub(crate) struct Laptop {
    dir: TempDir,
    child: Child,
    said: BufReader<ChildStdout>,
    hello: Value,
}

impl Drop for Laptop {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Laptop {
    pub(crate) fn start(more: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut child = warrant()
            .arg("--home")
            .arg(dir.path().join("home"))
            .args(["dev", "--listen", "127.0.0.1:0", "--json"])
            .args(more)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut said = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        let hello = serde_json::from_str(&line).unwrap();
        let laptop = Self { dir, child, said, hello };
        laptop.make_repo();
        laptop
    }

    fn url(&self) -> String {
        self.hello["url"].as_str().unwrap().to_owned()
    }

    pub(crate) fn repo(&self) -> PathBuf {
        self.dir.path().join("repo")
    }

    fn make_repo(&self) {
        fs::create_dir(self.repo()).unwrap();
        fs::write(self.repo().join("README.md"), "# laptop\n").unwrap();
        for arguments in [&["init", "-q", "."][..], &["add", "-A"], &["commit", "-qm", "one"]] {
            let done = Command::new("git")
                .current_dir(self.repo())
                .args(["-c", "user.name=t", "-c", "user.email=t@localhost"])
                .args(arguments)
                .output()
                .unwrap();
            assert!(done.status.success(), "{}", stderr(&done));
        }
    }

    /// Runs a command on the same home, in the repository, without any token.
    fn here(&self, arguments: &[&str]) -> Output {
        warrant()
            .arg("--home")
            .arg(self.dir.path().join("home"))
            .args(arguments)
            .current_dir(self.repo())
            .stdin(Stdio::null())
            .output()
            .unwrap()
    }

    /// As `here`, at the plane.
    pub(crate) fn there(&self, arguments: &[&str]) -> Output {
        let url = self.url();
        self.here(&[&["--plane", &url], arguments].concat())
    }

    /// As `there`, on a terminal; returns what the terminal got and the exit code.
    pub(crate) fn on_terminal(&self, arguments: &[&str]) -> (String, Option<i32>) {
        let home = self.dir.path().join("home");
        let url = self.url();
        let words = [env!("CARGO_BIN_EXE_warrant"), "--home", home.to_str().unwrap()];
        let words = words.into_iter().chain(["--plane", &url]).chain(arguments.iter().copied());
        let quoted: Vec<String> =
            words.map(|word| format!("'{}'", word.replace('\'', r"'\''"))).collect();
        let done = Command::new("script")
            .args(["-qefc", &quoted.join(" "), "/dev/null"])
            .env("TERM", "xterm")
            .current_dir(self.repo())
            .stdin(Stdio::null())
            .output()
            .unwrap();
        (String::from_utf8(done.stdout).unwrap(), done.status.code())
    }

    /// Sends a signal to it.
    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// The newest run of the plane.
    fn newest(&self) -> String {
        let listed = self.there(&["runs", "--json"]);
        let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
        listed["runs"][0]["runId"].as_str().unwrap().to_owned()
    }

    /// Where the newest run of the plane stands; nothing where there is none.
    pub(crate) fn newest_state(&self) -> String {
        let listed = self.there(&["runs", "--json"]);
        let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
        listed["runs"][0]["state"].as_str().unwrap_or_default().to_owned()
    }

    /// Logs in to the page with what the address says after `#`.
    fn log_in(&self, ticket: &str) -> String {
        let url = self.url();
        let address = url.trim_start_matches("http://");
        let body = format!("{{\"ticket\":\"{ticket}\"}}");
        let mut stream = TcpStream::connect(address).unwrap();
        let head = "POST /ui/session HTTP/1.1\r\nhost: x\r\nx-warrant-page: 1";
        write!(
            stream,
            "{head}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    /// Asks it to end; returns its exit code and its last words.
    fn drain(&mut self) -> (Option<i32>, Value) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        let mut rest = String::new();
        self.said.read_to_string(&mut rest).unwrap();
        let last = rest.lines().last().map(|line| serde_json::from_str(line).unwrap());
        (self.child.wait().unwrap().code(), last.unwrap_or_default())
    }
}

#[test]
fn one_process_is_plane_runner_and_page_and_drains_when_told() {
    let mut laptop = Laptop::start(&[]);
    let ran = laptop.there(&["run", "--", "echo made > out.txt; echo said"]);
    assert_eq!(ran.status.code(), Some(0), "{}{}", stdout(&ran), stderr(&ran));
    assert_eq!(stdout(&ran), "said\n", "what the program printed, and nothing else");
    let run = laptop.newest();
    assert_eq!(stdout(&laptop.there(&["log", &run])), "said\n");
    let verified = laptop.there(&["verify", &run]);
    assert_eq!(verified.status.code(), Some(0), "{}", stdout(&verified));
    let pulled = laptop.there(&["pull", &run]);
    assert_eq!(pulled.status.code(), Some(0), "{}", stderr(&pulled));
    assert_eq!(fs::read_to_string(laptop.repo().join("out.txt")).unwrap(), "made\n");

    let page = laptop.hello["page"].as_str().unwrap().to_owned();
    let (place, ticket) = page.split_once("#ticket=").unwrap();
    assert_eq!(place, format!("{}/ui/", laptop.url()), "nothing secret is in what is sent");
    let token = fs::read_to_string(laptop.hello["adminTokenFile"].as_str().unwrap()).unwrap();
    assert!(!page.contains(&token));
    assert!(laptop.log_in("00").starts_with("HTTP/1.1 401"));
    assert!(laptop.log_in(ticket).contains("set-cookie: warrant_session="));
    assert!(laptop.log_in(ticket).starts_with("HTTP/1.1 401"), "once");

    let (code, last) = laptop.drain();
    assert_eq!((code, &last["ended"]), (Some(0), &Value::from(1)), "{last}");
    let gone = laptop.there(&["runs"]);
    assert_eq!(gone.status.code(), Some(2), "no token for a plane that is gone: {}", stderr(&gone));
}

#[test]
fn a_runner_of_the_fleet_never_takes_a_run_of_this_machine() {
    let laptop = Laptop::start(&[]);
    for number in 0..5 {
        let word = format!("local {number}");
        let ran = laptop.here(&["sandbox", "exec", "--", "echo", &word]);
        assert_eq!(ran.status.code(), Some(0), "{}", stderr(&ran));
        assert_eq!(stdout(&ran), format!("{word}\n"));
    }
}

#[test]
fn a_run_of_a_plane_goes_on_from_its_own_files_and_words() {
    let laptop = Laptop::start(&["--doors"]);
    fs::write(laptop.repo().join("notes.txt"), "untracked\n").unwrap();
    fs::write(laptop.repo().join("README.md"), "# changed\n").unwrap();
    let first = laptop.there(&[
        "run",
        "--allow-untracked",
        "notes.txt",
        "--",
        "echo one > made.txt; echo more >> notes.txt; echo said",
    ]);
    assert_eq!(first.status.code(), Some(0), "{}{}", stdout(&first), stderr(&first));
    let first = laptop.newest();
    let file = laptop.dir.path().join("second.json");
    let out = file.to_str().unwrap();
    let script = "cat made.txt notes.txt README.md; echo two >> made.txt";
    let second = laptop.there(&["continue", &first, "--out", out, script]);
    assert_eq!(second.status.code(), Some(0), "{}{}", stdout(&second), stderr(&second));
    let run = laptop.newest();
    let log = stdout(&laptop.there(&["log", &run]));
    assert_eq!(log, "one\nuntracked\nmore\n# changed\n");
    let bundle: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    assert_eq!(bundle["contract"]["continuation"]["tier"], "workspace", "{bundle}");
    assert_eq!(bundle["receipt"]["runId"], Value::from(run.clone()));
    let verified = laptop.there(&["verify", &run]);
    assert_eq!(verified.status.code(), Some(0), "{}", stdout(&verified));

    let again = laptop.there(&["continue", &run, "--json"]);
    assert_eq!(again.status.code(), Some(0), "the same again: {}", stderr(&again));
    let log = stdout(&laptop.there(&["log", &laptop.newest()]));
    assert_eq!(log, "one\ntwo\nuntracked\nmore\n# changed\n");

    let talk = laptop.dir.path().join("talk.md");
    fs::write(&talk, "what was said\n").unwrap();
    let talk = talk.to_str().unwrap();
    let handed = laptop.there(&["continue", "--transcript", talk, "--only-envelope", "echo hi"]);
    assert_eq!(stdout(&handed).trim().len(), 64, "{}", stderr(&handed));
    for words in [&["continue"][..], &["continue", &run, "--wait"]] {
        let refused = laptop.there(words);
        assert_eq!(refused.status.code(), Some(2), "{words:?}: {}", stderr(&refused));
    }
}

#[test]
fn a_laptop_serves_nobody_else() {
    let dir = tempfile::tempdir().unwrap();
    let refused = warrant()
        .arg("--home")
        .arg(dir.path().join("home"))
        .args(["dev", "--listen", "0.0.0.0:0"])
        .output()
        .unwrap();
    assert_eq!(refused.status.code(), Some(2), "{}", stderr(&refused));
    assert!(stderr(&refused).contains("plane start"), "{}", stderr(&refused));
}
