//! A home and a workspace of one test, and the binary in them.

use std::path::PathBuf;
use std::process::Output;

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

    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        warrant()
            .args(arguments)
            .env("WARRANT_HOME", self.home())
            .current_dir(self.work(""))
            .stdin(std::process::Stdio::null())
            .output()
            .unwrap()
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
