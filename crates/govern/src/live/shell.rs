//! The state of a shell between the commands of one session: where it stands, what it exported.
//!
//! Every command is a jail and a run of its own, so no shell lives between them. A command of a
//! session has a directory of its own at [`DESK`], in which bash finds a script of ours
//! (`BASH_ENV`) that has it write down its directory and its environment when it ends. Once nothing
//! of the command runs any more both are read, and the next one starts with them. What is judged
//! stays the command as it came. Lines that replace the shell (`exec`), set a trap of their own on
//! `EXIT` or are killed leave no state; options, functions and aliases are not kept.
//!
//! SECURITY: no other command sees that directory, so the script is the one that was put there. But
//! whatever the command itself starts can write what is read in the end: that counts like what a
//! client says. Variables whose values shells or the loader run are not kept, others that choose
//! what words mean make the next command one that cannot be named, and the directory is judged
//! with each command.

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, openat};
use warrant_plane::doors::ShellSession;

use super::{asks, disk, files};

/// Where a command of a session finds its script and leaves its state, inside.
pub(super) const DESK: &str = "/run/warrant-shell";
/// What bash reads before a command of a session.
pub(super) const SCRIPT: &str = "/run/warrant-shell/begin.sh";
/// Larger states are not taken up.
const MOST_BYTES: usize = 256 * 1024;
/// No program can be started with a longer variable.
const MOST_OF_ONE: usize = 128 * 1024;
/// So many sessions are remembered; doors let fewer exist at once.
const MOST_SHELLS: usize = 256;
/// What belongs to one shell and not to the session.
const OWN: [&str; 6] = ["_", "SHLVL", "PWD", "OLDPWD", "BASH_ENV", "BASHOPTS"];
const TEXT: &str = "unset BASH_ENV\n\
    /usr/bin/env -0 > /run/warrant-shell/before 2>/dev/null\n\
    trap '{ printf \"%s\\0\\0\" \"$PWD\"; /usr/bin/env -0; } \
    > /run/warrant-shell/state 2>/dev/null' EXIT\n";

/// What a session has come to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Shell {
    pub(super) cwd: Option<String>,
    pub(super) env: BTreeMap<String, String>,
}

/// What the sessions of a sandbox have come to, the one used last at the end.
#[derive(Debug, Default)]
pub(super) struct Shells(VecDeque<(String, Shell)>);

impl Shells {
    /// Returns where a session stands; a new one where its door said.
    pub(super) fn enter(&mut self, session: &ShellSession) -> Shell {
        let place = self.0.iter().position(|(name, _)| *name == session.name);
        let known = place.and_then(|place| self.0.remove(place));
        let (name, shell) = known.unwrap_or_else(|| {
            let shell = Shell { cwd: session.cwd.clone(), env: BTreeMap::new() };
            (session.name.clone(), shell)
        });
        if self.0.len() >= MOST_SHELLS {
            self.0.pop_front();
        }
        self.0.push_back((name, shell.clone()));
        shell
    }

    /// Follows what a command of a session left, unless the session is over.
    pub(super) fn follow(&mut self, name: &str, left: &Left) {
        if let Some((_, shell)) = self.0.iter_mut().find(|(of, _)| of == name) {
            shell.follow(left);
        }
    }

    pub(super) fn forget(&mut self, name: &str) {
        self.0.retain(|(of, _)| of != name);
    }
}

/// The directory of one command, as the host sees it; gone when this is.
pub(super) struct Desk {
    directory: PathBuf,
}

impl Desk {
    /// Makes the directory with the script, in that of a sandbox.
    pub(super) fn new(sandbox: &Path, name: &str) -> io::Result<Self> {
        let desk = Self { directory: sandbox.join("shells").join(name) };
        fs::DirBuilder::new().mode(0o700).recursive(true).create(&desk.directory)?;
        fs::write(desk.directory.join("begin.sh"), TEXT)?;
        Ok(desk)
    }

    pub(super) fn path(&self) -> &Path {
        &self.directory
    }

    /// Returns what the command left, if it is what our script writes.
    pub(super) fn left(&self) -> Option<Left> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = openat(CWD, &self.directory, flags, Mode::empty()).ok()?;
        let read = |name: &str| read(&directory, name);
        Left::parse(&read("before")?, &read("state")?)
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        // What cannot be removed goes with its sandbox.
        let _ = disk::remove(&self.directory);
    }
}

fn read(directory: &OwnedFd, name: &str) -> Option<String> {
    let bytes = files::read_below(directory, Path::new(name), MOST_BYTES as u64).ok()?;
    String::from_utf8(bytes).ok()
}

/// What one command changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Left {
    cwd: String,
    set: BTreeMap<String, String>,
    unset: Vec<String>,
}

impl Left {
    fn parse(before: &str, state: &str) -> Option<Self> {
        let (cwd, after) = state.split_once("\0\0").filter(|(cwd, _)| cwd.starts_with('/'))?;
        let (before, after) = (variables(before), variables(after));
        if cwd.contains('\0') || before.is_empty() || after.is_empty() {
            return None;
        }
        let is_kept = |name: &str, value: &str| {
            let is_own = OWN.contains(&name) || asks::is_run(name);
            !name.is_empty() && !is_own && name.len() + value.len() + 2 <= MOST_OF_ONE
        };
        let unset = before.keys().filter(|name| !after.contains_key(*name)).cloned().collect();
        let changed = |(name, value): &(String, String)| {
            before.get(name) != Some(value) && is_kept(name, value)
        };
        let set = after.into_iter().filter(changed).collect();
        Some(Self { cwd: cwd.to_owned(), set, unset })
    }
}

fn variables(text: &str) -> BTreeMap<String, String> {
    let pairs = text.split('\0').filter_map(|item| item.split_once('='));
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

impl Shell {
    /// Follows one command: its directory, and the variables it changed. One that would have the
    /// session hold too much leaves it where it was.
    fn follow(&mut self, left: &Left) {
        let mut env = self.env.clone();
        env.retain(|name, _| !left.unset.contains(name));
        env.extend(left.set.clone());
        if env.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>() <= MOST_BYTES {
            *self = Self { cwd: Some(left.cwd.clone()), env };
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn env(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn a_session_keeps_what_changed_and_nothing_of_the_shell_itself() {
        let mut shell = Shell::default();
        let mut follow = |before: &str, state: &str| {
            shell.follow(&Left::parse(before, state).unwrap());
            shell.clone()
        };
        let first = follow("A=1\0PWD=/\0X=old\0", "/tmp\0\0A=1\0B=two\nlines\0PWD=/tmp\0SHLVL=2\0");
        assert_eq!(first.cwd.as_deref(), Some("/tmp"));
        assert_eq!(first.env, env(&[("B", "two\nlines")]));
        let second = follow("A=1\0B=two\0", "/\0\0A=2\0");
        assert_eq!(second.env, env(&[("A", "2")]), "what was unset is gone");
        let third = follow("C=1\0", "/\0\0C=1\0");
        assert_eq!(third.env, env(&[("A", "2")]), "what another command set meanwhile stays");
        for broken in ["", "\0", "relative\0\0A=1", "/x", "/x\0A=1\0", "/x\0\0", "/a\0b\0\0A=1"] {
            assert_eq!(Left::parse("A=1", broken), None, "{broken:?}");
        }
    }

    #[test]
    fn a_forged_state_cannot_have_a_session_run_or_hold_what_it_likes() {
        let run = ["BASH_ENV", "BASH_FUNC_ls%%", "LD_PRELOAD", "LD_AUDIT", "PS4", ""];
        let forged: String = run.iter().map(|name| format!("{name}=x\0")).collect();
        let left = Left::parse("A=1", &format!("/\0\0{forged}B=2\0")).unwrap();
        assert_eq!(left.set, env(&[("B", "2")]));
        let long = "x".repeat(MOST_OF_ONE);
        assert_eq!(Left::parse("A=1", &format!("/\0\0L={long}\0B=2\0")).unwrap().set, left.set);
        let mut shell = Shell::default();
        for number in 0..100 {
            let state = format!("/\0\0L{number}={}\0", "x".repeat(100_000));
            shell.follow(&Left::parse("A=1", &state).unwrap());
        }
        assert!(shell.env.len() <= 2, "{}", shell.env.len());
    }

    #[test]
    fn a_session_is_remembered_until_it_ends_and_there_are_never_too_many() {
        let session = |name: &str| ShellSession { name: name.to_owned(), cwd: None };
        let left = Left::parse("A=1", "/tmp\0\0A=1\0B=2\0").unwrap();
        let mut shells = Shells::default();
        for number in 0..(2 * MOST_SHELLS) {
            shells.enter(&session(&number.to_string()));
            shells.enter(&session("used"));
            shells.follow("used", &left);
        }
        assert_eq!(shells.0.len(), MOST_SHELLS);
        assert_eq!(shells.enter(&session("used")).env, env(&[("B", "2")]));
        shells.forget("used");
        shells.follow("used", &left);
        assert_eq!(shells.enter(&session("used")), Shell::default());
    }
}
