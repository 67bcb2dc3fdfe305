//! A home and a workspace of one test, and the binary in them.

use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

use crate::{stderr, stdout, warrant};

/// A home and a workspace of one test.
pub(crate) struct Machine {
    pub(crate) directory: tempfile::TempDir,
}

impl Machine {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("work")).unwrap();
        std::fs::write(directory.path().join("work/a.txt"), "a\n").unwrap();
        Self { directory }
    }

    pub(crate) fn home(&self) -> PathBuf {
        self.directory.path().join("home")
    }

    pub(crate) fn work(&self, name: &str) -> PathBuf {
        self.directory.path().join("work").join(name)
    }

    /// Returns the binary in this home and workspace.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = warrant();
        command.args(arguments).env("WARRANT_HOME", self.home()).current_dir(self.work(""));
        command
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).stdin(Stdio::null()).output().unwrap()
    }

    /// Starts it with all of its streams at hand.
    pub(crate) fn start(&self, arguments: &[&str]) -> Child {
        let mut command = self.command(arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    }

    /// Starts an MCP server that is spoken to over its streams.
    pub(crate) fn serve_mcp(&self) -> Child {
        let mut command = self.command(&["mcp", "--workspace"]);
        command
            .arg(self.work(""))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        command.spawn().unwrap()
    }

    pub(crate) fn exec(&self, arguments: &[&str]) -> Output {
        self.run(&[&["sandbox", "exec"], arguments].concat())
    }

    pub(crate) fn json(&self, arguments: &[&str]) -> Value {
        let output = self.run(arguments);
        serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|_| panic!("{}{}", stdout(&output), stderr(&output)))
    }
}
