//! Installs what the tests start: Debian packages by `apt-get`, only those that are missing, and
//! the clients of the whole-stack tests by `npm`.
//!
//! Never touches what is already there, so a second run costs nothing.

use std::path::Path;
use std::process::Command;

mod clients;

/// A program the tests start, and the Debian package that brings it.
struct Tool {
    program: &'static str,
    package: &'static str,
}

const TOOLS: &[Tool] = &[
    Tool { program: "bash", package: "bash" },
    Tool { program: "bwrap", package: "bubblewrap" },
    Tool { program: "bzip2", package: "bzip2" },
    Tool { program: "c++", package: "g++" },
    Tool { program: "cc", package: "gcc" },
    Tool { program: "chromium", package: "chromium" },
    Tool { program: "cmake", package: "cmake" },
    Tool { program: "column", package: "bsdextrautils" },
    Tool { program: "curl", package: "curl" },
    Tool { program: "dbus-run-session", package: "dbus-daemon" },
    Tool { program: "git", package: "git" },
    Tool { program: "gnome-keyring-daemon", package: "gnome-keyring" },
    Tool { program: "ip", package: "iproute2" },
    Tool { program: "jq", package: "jq" },
    Tool { program: "keyctl", package: "keyutils" },
    Tool { program: "kill", package: "procps" },
    Tool { program: "make", package: "make" },
    Tool { program: "node", package: "nodejs" },
    Tool { program: "mkfs.btrfs", package: "btrfs-progs" },
    Tool { program: "mount", package: "mount" },
    Tool { program: "npm", package: "npm" },
    Tool { program: "openssl", package: "openssl" },
    Tool { program: "perl", package: "perl" },
    Tool { program: "pg_createcluster", package: "postgresql" },
    Tool { program: "pip3", package: "python3-pip" },
    Tool { program: "pytest-3", package: "python3-pytest" },
    Tool { program: "python3", package: "python3" },
    Tool { program: "redis-server", package: "redis-server" },
    Tool { program: "script", package: "bsdutils" },
    Tool { program: "secret-tool", package: "libsecret-tools" },
    Tool { program: "setpriv", package: "util-linux" },
    Tool { program: "sqlite3", package: "sqlite3" },
    Tool { program: "strace", package: "strace" },
    Tool { program: "strings", package: "binutils" },
    Tool { program: "tmux", package: "tmux" },
    Tool { program: "vim", package: "vim" },
];

/// Toolchains that are large to install, for [`crate::steps::toolchains`].
const TOOLCHAINS: &[Tool] = &[
    Tool { program: "ffmpeg", package: "ffmpeg" },
    Tool { program: "go", package: "golang-go" },
    Tool { program: "javac", package: "default-jdk-headless" },
];

/// What the benchmarks' peers need besides.
const BENCH_TOOLS: &[Tool] =
    &[Tool { program: "rg", package: "ripgrep" }, Tool { program: "socat", package: "socat" }];

/// Installs what is missing for the tests.
///
/// # Errors
/// A sentence naming what cannot be installed.
pub(crate) fn ensure() -> Result<(), String> {
    packages(TOOLS)?;
    cargo_deny()?;
    clients::ensure()
}

/// Installs what is missing for the tests and the toolchains that are large.
///
/// # Errors
/// A sentence naming what cannot be installed.
pub(crate) fn ensure_toolchains() -> Result<(), String> {
    ensure()?;
    packages(TOOLCHAINS)
}

/// Installs what is missing for the tests and the benchmarks.
///
/// # Errors
/// A sentence naming what cannot be installed.
pub(crate) fn ensure_bench() -> Result<(), String> {
    ensure()?;
    packages(BENCH_TOOLS)
}

/// Installs `cargo deny` from crates.io, unless it is there.
fn cargo_deny() -> Result<(), String> {
    let cargo = || Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    let is_there = cargo().args(["deny", "--version"]).output();
    if is_there.is_ok_and(|output| output.status.success()) {
        return Ok(());
    }
    let install = ["install", "cargo-deny", "--locked", "--no-default-features", "--quiet"];
    let installed = cargo().args(install).status();
    match installed.is_ok_and(|status| status.success()) {
        true => Ok(()),
        false => Err("install it and try again: cargo install cargo-deny --locked".to_owned()),
    }
}

fn packages(tools: &[Tool]) -> Result<(), String> {
    let missing: Vec<&str> =
        tools.iter().filter(|tool| !is_on_path(tool.program)).map(|tool| tool.package).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let remedy = || format!("install these Debian packages and try again: {}", missing.join(" "));
    apt(&["update"]).ok_or_else(remedy)?;
    let install = ["install", "--yes", "--no-install-recommends"];
    apt(&[&install[..], &missing].concat()).ok_or_else(remedy)
}

fn is_on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain([Path::new("/usr/sbin").into(), Path::new("/sbin").into()])
        .any(|directory| directory.join(program).is_file())
}

fn apt(arguments: &[&str]) -> Option<()> {
    let status = Command::new("apt-get")
        .arg("--quiet")
        .args(arguments)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .status()
        .ok()?;
    status.success().then_some(())
}
