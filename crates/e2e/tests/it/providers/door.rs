//! A plane with open doors, as a process of its own.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;
use warrant_govern::Desk;
use warrant_plane::store::{RunFilter, RunRow};
use warrant_protocol::RunState;

/// Returns the program; the workspace's tests build it.
pub(crate) fn binary() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let path = own.parent().and_then(Path::parent).unwrap().join("warrant");
    assert!(path.is_file(), "{} is built by `cargo test --workspace`", path.display());
    path
}

/// The process, its home and a token that opens its doors.
pub(crate) struct Door {
    home: TempDir,
    process: Child,
    /// Kept open: whoever writes to a closed pipe dies of it.
    _words: BufReader<ChildStdout>,
    /// `host:port`.
    pub(crate) address: String,
    pub(crate) token: String,
}

impl Door {
    pub(crate) fn open() -> Self {
        let home = tempfile::tempdir().unwrap();
        let root = home.path().join("home");
        let warrant = || {
            let mut command = Command::new(binary());
            command.arg("--home").arg(&root).stdin(Stdio::null());
            command
        };
        let issued = warrant().args(["doors", "issue", "tester", "--json"]).output().unwrap();
        let issued: Value = serde_json::from_slice(&issued.stdout).unwrap();
        let mut process = warrant()
            .args(["plane", "start", "--doors", "--listen", "127.0.0.1:0", "--json"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut words = BufReader::new(process.stdout.take().unwrap());
        let mut hello = String::new();
        words.read_line(&mut hello).unwrap();
        let hello: Value = serde_json::from_str(&hello).unwrap();
        let url = hello["url"].as_str().unwrap();
        let address = url.trim_start_matches("http://").to_owned();
        let token = issued["token"].as_str().unwrap().to_owned();
        Self { home, process, _words: words, address, token }
    }

    /// Returns every run the doors have seen.
    fn runs(&self) -> Vec<RunRow> {
        let desk = Desk::open(Some(&self.home.path().join("home"))).unwrap();
        let mut all = Vec::new();
        let mut before = None;
        loop {
            let filter = RunFilter { limit: Some(500), before, ..RunFilter::default() };
            let page = desk.plane().store().list(&filter).unwrap();
            all.extend(page.runs);
            match page.next {
                Some(next) => before = Some(next),
                None => return all,
            }
        }
    }

    /// Returns how often a command that holds this word was let in and started.
    pub(crate) fn started(&self, word: &str) -> usize {
        let was_started = |run: &&RunRow| {
            run.prompt.contains(word)
                && !matches!(run.state, RunState::Denied | RunState::AwaitingApproval)
        };
        self.runs().iter().filter(was_started).count()
    }

    /// Returns the names of the sandboxes that live.
    pub(crate) fn sandboxes(&self) -> Vec<String> {
        let live = self.home.path().join("home/data/live");
        let entries = std::fs::read_dir(live).unwrap().map(|entry| entry.unwrap());
        let folders = entries.filter(|entry| entry.path().is_dir());
        folders.map(|entry| entry.file_name().into_string().unwrap()).collect()
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.process);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let _ = self.process.wait();
    }
}
