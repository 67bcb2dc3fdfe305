//! Real tools do their ordinary work inside: git, python, cargo, node, a static program.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use warrant_protocol::{Limits, Outcome};
use warrant_sandbox::{EnvValue, EnvVar, Invocation, Namespace};

use crate::bench::{run, shell, workspace};

/// Where a tool really lives; toolchains are often in somebody's home and must be granted.
fn tool(name: &str) -> PathBuf {
    let found = Command::new("sh").args(["-c", &format!("command -v {name}")]).output().unwrap();
    let path = PathBuf::from(String::from_utf8(found.stdout).unwrap().trim());
    assert!(path.is_absolute(), "{name} is not installed");
    path
}

fn set(invocation: &mut Invocation, name: &str, value: &str) {
    let value = EnvValue::Plain(value.to_owned());
    invocation.env.push(EnvVar { name: name.to_owned(), value });
}

#[track_caller]
fn check(invocation: Invocation, expected: &str) {
    let (report, memory) = run(&Namespace::new(), invocation);
    let outcome = report.unwrap().outcome;
    let told = format!("{}\n{}", memory.stdout(), memory.stderr());
    assert_eq!(outcome, Outcome::Exited { code: 0 }, "{told}");
    assert!(memory.stdout().contains(expected), "{told}");
}

fn generous(workspace: &Path, script: &str) -> Invocation {
    let mut invocation = shell(workspace, script);
    invocation.limits = Limits { wall_ms: Some(120_000), ..Limits::danger_unlimited() };
    invocation
}

#[test]
fn git_commits_in_an_existing_repository() {
    let workspace = workspace();
    let git = |args: &[&str]| {
        let status = Command::new("git").args(args).current_dir(workspace.path()).output().unwrap();
        assert!(status.status.success(), "{}", String::from_utf8_lossy(&status.stderr));
    };
    git(&["init", "-q", "-b", "main"]);
    git(&["config", "user.email", "a@b.c"]);
    git(&["config", "user.name", "a"]);
    fs::write(workspace.path().join("a"), "1").unwrap();
    git(&["add", "a"]);
    git(&["commit", "-qm", "first"]);
    let script = "git status --short; echo 2 > a; git mv a b; git commit -qam second && git log --oneline | wc -l; git diff HEAD~1 --stat; git stash list; git branch x; git checkout -q x";
    check(generous(workspace.path(), script), "2\n");
    let log = Command::new("git").args(["log", "--oneline"]).current_dir(workspace.path()).output();
    assert_eq!(String::from_utf8(log.unwrap().stdout).unwrap().lines().count(), 1);
}

#[test]
fn python_runs_a_test_suite() {
    let workspace = workspace();
    let test = "import unittest, tempfile, subprocess, os, multiprocessing\n\
        class T(unittest.TestCase):\n\
        \x20   def test_files(self):\n\
        \x20       with tempfile.TemporaryDirectory() as d: open(os.path.join(d, 'x'), 'w').write('1')\n\
        \x20   def test_processes(self):\n\
        \x20       self.assertEqual(subprocess.check_output(['echo', 'hi']), b'hi\\n')\n\
        \x20   def test_pool(self):\n\
        \x20       with multiprocessing.Pool(2) as p: self.assertEqual(p.map(abs, [-1, 2]), [1, 2])\n";
    fs::write(workspace.path().join("test_it.py"), test).unwrap();
    let script = "/usr/bin/python3 -m unittest -v 2>&1 && echo passed";
    check(generous(workspace.path(), script), "passed");
}

#[test]
fn node_runs_with_workers_and_children() {
    let workspace = workspace();
    let program = "const { Worker } = require('worker_threads'); const cp = require('child_process');\n\
        const fs = require('fs'); fs.mkdirSync('out'); fs.writeFileSync('out/x', cp.execSync('echo child'));\n\
        new Worker(\"require('worker_threads').parentPort.postMessage('worker')\", { eval: true })\n\
          .on('message', m => console.log(m, fs.readFileSync('out/x', 'utf8').trim()));";
    fs::write(workspace.path().join("main.js"), program).unwrap();
    check(generous(workspace.path(), "node main.js"), "worker child");
}

#[test]
fn cargo_builds_offline_with_a_granted_toolchain() {
    let workspace = workspace();
    fs::create_dir(workspace.path().join("src")).unwrap();
    fs::write(
        workspace.path().join("Cargo.toml"),
        "[package]\nname = \"x\"\nversion = \"0.1.0\"\nedition = \"2021\"\n",
    )
    .unwrap();
    fs::write(
        workspace.path().join("src/main.rs"),
        "fn main() { println!(\"built {}\", 6 * 7); }\n",
    )
    .unwrap();
    // The compiler behind rustup's front door, so that only the toolchain itself is granted.
    let sysroot = Command::new("rustc").args(["--print", "sysroot"]).output().unwrap();
    let sysroot = PathBuf::from(String::from_utf8(sysroot.stdout).unwrap().trim());
    let mut invocation = generous(workspace.path(), "cargo build --offline -q && ./target/debug/x");
    let bin = sysroot.join("bin");
    set(&mut invocation, "PATH", &format!("{}:/usr/local/bin:/usr/bin:/bin", bin.display()));
    invocation.files.read_roots.push(sysroot);
    check(invocation, "built 42");
}

#[test]
fn a_static_program_runs() {
    // busybox is static on Debian when installed so; `ldconfig` always is.
    let workspace = workspace();
    fs::copy("/sbin/ldconfig", workspace.path().join("static")).unwrap();
    check(generous(workspace.path(), "./static --version"), "ldconfig");
    assert!(tool("git").is_absolute());
}
