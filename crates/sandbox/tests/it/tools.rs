//! Real tools do their ordinary work inside: git, python, cargo, node, npm, pip, a static program.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use warrant_protocol::{Limits, Outcome};
use warrant_sandbox::{EnvValue, EnvVar, Invocation, Namespace, Network};

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
    invocation.limits = Limits { wall_ms: Some(300_000), ..Limits::danger_unlimited() };
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

/// Lets an invocation reach these names, also where a test network resolves public names to the
/// range kept for documentation.
fn reach(invocation: &mut Invocation, names: &[&str]) {
    let rules = names.iter().chain(&["203.0.113.0/24"]).map(|rule| (*rule).to_owned());
    invocation.network = Network::Allow(rules.collect());
    // The machine's own certificates, for programs that bring theirs.
    set(invocation, "NODE_EXTRA_CA_CERTS", "/etc/ssl/certs/ca-certificates.crt");
    set(invocation, "PIP_CERT", "/etc/ssl/certs/ca-certificates.crt");
}

#[test]
fn npm_ci_installs_from_an_allowed_registry() {
    let workspace = workspace();
    let lock = r#"{ "name": "x", "version": "1.0.0", "lockfileVersion": 3, "requires": true, "packages": {
        "": { "name": "x", "version": "1.0.0", "dependencies": { "is-number": "7.0.0" } },
        "node_modules/is-number": { "version": "7.0.0",
            "resolved": "https://registry.npmjs.org/is-number/-/is-number-7.0.0.tgz",
            "integrity": "sha512-41Cifkg6e8TylSpdtTpeLVMqvSBEVzTttHvERD741+pnZ8ANv0004MRL43QKPDlK9cGvNp6NZWZUBlbGXYxxng==" } } }"#;
    fs::write(workspace.path().join("package-lock.json"), lock).unwrap();
    let package =
        r#"{ "name": "x", "version": "1.0.0", "dependencies": { "is-number": "7.0.0" } }"#;
    fs::write(workspace.path().join("package.json"), package).unwrap();
    let script =
        "npm ci --no-audit --no-fund 2>&1 && node -e 'console.log(require(\"is-number\")(\"5\"))'";
    let mut invocation = generous(workspace.path(), script);
    reach(&mut invocation, &["registry.npmjs.org"]);
    check(invocation, "true\n");
    assert!(!workspace.path().join("node_modules").exists());
    // The same without the name on the list.
    let mut invocation =
        generous(workspace.path(), "npm ci --no-audit --no-fund --fetch-retries=0 2>&1");
    reach(&mut invocation, &["example.com"]);
    let (report, memory) = run(&Namespace::new(), invocation);
    assert_ne!(report.unwrap().outcome, Outcome::Exited { code: 0 }, "{}", memory.stdout());
    let decisions = memory.decisions.lock().unwrap();
    assert!(decisions.iter().all(|decision| !decision.allowed), "{decisions:?}");
}

#[test]
fn pip_installs_from_an_allowed_registry() {
    let workspace = workspace();
    let script = "/usr/bin/python3 -m pip install -q --no-cache-dir --disable-pip-version-check --target lib six==1.17.0 2>&1 \
                  && PYTHONPATH=lib /usr/bin/python3 -c 'import six; print(\"six\", six.__version__)'";
    let mut invocation = generous(workspace.path(), script);
    reach(&mut invocation, &["pypi.org", "files.pythonhosted.org"]);
    check(invocation, "six 1.17.0");
}

#[test]
fn pytest_runs_a_test_suite() {
    let workspace = workspace();
    let test = "import pytest\n\n@pytest.fixture\ndef place(tmp_path):\n    return tmp_path / 'x'\n\n\
        def test_files(place):\n    place.write_text('1')\n    assert place.read_text() == '1'\n\n\
        @pytest.mark.parametrize('n', [1, 2, 3])\ndef test_numbers(n):\n    assert n > 0\n";
    fs::write(workspace.path().join("test_it.py"), test).unwrap();
    check(generous(workspace.path(), "/usr/bin/python3 -m pytest -q 2>&1"), "4 passed");
}

/// As Go's linker makes them: no loader, no libraries, its own system calls, threads by `clone`.
#[test]
fn a_static_program_with_threads_and_sockets_runs() {
    let workspace = workspace();
    let source = "#include <stdio.h>\n#include <pthread.h>\n#include <sys/socket.h>\n#include <sys/epoll.h>\n\
        #include <netinet/in.h>\n#include <unistd.h>\n\
        static void *work(void *p) { *(int *)p = 42; return 0; }\n\
        int main(void) { pthread_t t; int n = 0; if (pthread_create(&t, 0, work, &n)) return 1; pthread_join(t, 0);\n\
        int s = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0); struct sockaddr_in a = { .sin_family = AF_INET };\n\
        if (s < 0 || bind(s, (void *)&a, sizeof a) || listen(s, 8) || epoll_create1(0) < 0) return 2;\n\
        printf(\"static %d\\n\", n); return 0; }\n";
    fs::write(workspace.path().join("main.c"), source).unwrap();
    let script = "gcc -static -pthread -o main main.c 2>&1 && ./main";
    check(generous(workspace.path(), script), "static 42");
}

#[test]
fn a_static_program_runs() {
    // busybox is static on Debian when installed so; `ldconfig` always is.
    let workspace = workspace();
    fs::copy("/sbin/ldconfig", workspace.path().join("static")).unwrap();
    check(generous(workspace.path(), "./static --version"), "ldconfig");
    assert!(tool("git").is_absolute());
}
