//! A trial that is remembered: that a whole jail was built and held a program, on this boot of
//! this kernel, by this binary, for this user with these rights, a short while ago.
//!
//! Only success is remembered. Building a jail is a row of hard steps, so a run whose own jail
//! lacks a wall never starts its program, whatever was remembered; the run then makes the memory
//! forget. What is remembered is only who need not try once more before.

use std::fmt::Write as _;
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// How long a trial counts.
const LIFE: Duration = Duration::from_secs(300);
/// What stands before a result.
const RESULT: &str = "result ";
/// No memory of ours is larger.
const MAX_BYTES: u64 = 16 << 10;
/// What decides whether a jail can be built, and may change while the machine is up.
const SETTINGS: [&str; 8] = [
    "/proc/sys/kernel/random/boot_id",
    "/proc/sys/kernel/unprivileged_userns_clone",
    "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
    "/proc/sys/user/max_user_namespaces",
    "/proc/sys/user/max_mnt_namespaces",
    "/proc/sys/user/max_pid_namespaces",
    "/proc/sys/user/max_net_namespaces",
    "/proc/self/cgroup",
];
const NAMESPACES: [&str; 3] =
    ["/proc/self/ns/user", "/proc/self/ns/mnt", "/proc/self/ns/pid_for_children"];
/// The lines of `/proc/self/status` that say what this process may do.
const RIGHTS: [&str; 9] = [
    "Uid:",
    "Gid:",
    "Groups:",
    "NoNewPrivs:",
    "Seccomp:",
    "Seccomp_filters:",
    "CapPrm:",
    "CapEff:",
    "CapBnd:",
];

/// A file that remembers one trial.
#[derive(Debug)]
pub(crate) struct Memory {
    path: PathBuf,
}

impl Memory {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path }
    }

    /// Returns whether the same trial held a short while ago. Whatever is in doubt is no.
    pub(crate) fn recalls(&self, landlock: Option<u32>) -> bool {
        self.recalled_result(landlock).is_some()
    }

    /// Returns what was kept of the result of the same trial, if it held a short while ago.
    pub(crate) fn recalled_result(&self, landlock: Option<u32>) -> Option<String> {
        let (kept, at) = self.read()?;
        let (kept, result) = kept.split_once(RESULT).unwrap_or((&kept, ""));
        let is_recent = now()?.checked_sub(at).is_some_and(|age| age < LIFE);
        let is_same = circumstances(landlock).is_ok_and(|circumstances| circumstances == kept);
        (is_recent && is_same).then(|| result.to_owned())
    }

    /// Keeps a trial that held. Nobody is hurt when that fails: it is tried again.
    pub(crate) fn keep(&self, landlock: Option<u32>) {
        let _ = self.write(landlock, "");
    }

    /// Keeps a trial that held, with its result.
    pub(crate) fn keep_result(&self, landlock: Option<u32>, result: &str) {
        let _ = self.write(landlock, &format!("{RESULT}{result}"));
    }

    /// Forgets.
    pub(crate) fn forget(&self) {
        let _ = fs::remove_file(&self.path);
    }

    fn read(&self) -> Option<(String, Duration)> {
        let metadata = fs::symlink_metadata(&self.path).ok()?;
        // SECURITY: a memory that somebody else planted would vouch for a boundary nobody tried.
        let is_ours = metadata.is_file()
            && metadata.uid() == rustix::process::geteuid().as_raw()
            && metadata.mode() & 0o077 == 0
            && metadata.len() <= MAX_BYTES;
        if !is_ours {
            return None;
        }
        let text = fs::read_to_string(&self.path).ok()?;
        let (at, circumstances) = text.split_once('\n')?;
        Some((circumstances.to_owned(), Duration::from_millis(at.parse().ok()?)))
    }

    fn write(&self, landlock: Option<u32>, result: &str) -> io::Result<()> {
        let now = now().ok_or(io::ErrorKind::Unsupported)?;
        let text = format!("{}\n{}{result}", now.as_millis(), circumstances(landlock)?);
        let fresh = self.path.with_extension(format!("{}.new", std::process::id()));
        let written = write_new(&fresh, &text).and_then(|()| fs::rename(&fresh, &self.path));
        if written.is_err() {
            let _ = fs::remove_file(&fresh);
        }
        written
    }
}

fn write_new(path: &Path, text: &str) -> io::Result<()> {
    let mut options = fs::OpenOptions::new();
    let mut file = options.write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())
}

/// Time since the machine was started, which nobody can set.
fn now() -> Option<Duration> {
    let now = clock_gettime(ClockId::Boottime);
    Some(Duration::new(u64::try_from(now.tv_sec).ok()?, u32::try_from(now.tv_nsec).ok()?))
}

/// Returns everything a trial's result depends on, as text to be compared.
fn circumstances(landlock: Option<u32>) -> io::Result<String> {
    let binary = fs::metadata("/proc/self/exe")?;
    let uname = rustix::system::uname();
    let mut text = String::new();
    let _ = writeln!(
        text,
        "{} {} landlock {landlock:?}",
        super::provider_version(),
        uname.version().to_string_lossy()
    );
    let _ = writeln!(
        text,
        "binary {} {} {} {}.{}",
        binary.dev(),
        binary.ino(),
        binary.size(),
        binary.mtime(),
        binary.mtime_nsec()
    );
    for path in SETTINGS {
        let setting = fs::read_to_string(path).unwrap_or_else(|_| "none".to_owned());
        let _ = writeln!(text, "{path} {}", setting.trim());
    }
    for path in NAMESPACES {
        let _ = writeln!(text, "{path} {}", fs::read_link(path)?.display());
    }
    let status = fs::read_to_string("/proc/self/status")?;
    for line in status.lines().filter(|line| RIGHTS.iter().any(|name| line.starts_with(name))) {
        let _ = writeln!(text, "{line}");
    }
    Ok(text)
}
