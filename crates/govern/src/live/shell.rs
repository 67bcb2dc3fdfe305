//! The state of a shell between the commands of one session: where it stands, what it exported.
//!
//! Every command is a jail and a run of its own, so no shell lives between them. Before a command
//! of a session bash reads a script of ours (`BASH_ENV`), which has it write down its directory and
//! its environment when it ends; the next command starts with both. What is judged stays the
//! command as it came. Lines that replace the shell (`exec`), set a trap of their own on `EXIT` or
//! are killed leave no state; options, functions that are not exported and aliases are not kept.

use std::collections::BTreeMap;

use warrant_plane::doors::{FileAnswer, FileCall, ShellSession};
use warrant_protocol::Digest;

use super::files::{self, Ground};

/// Larger states are not taken up.
const MOST_BYTES: usize = 256 * 1024;
/// Where scripts and states are, inside.
const FOLDER: &str = "/tmp/.warrant-shell";
/// What belongs to one shell and not to the session.
const OWN: [&str; 6] = ["_", "SHLVL", "PWD", "OLDPWD", "BASH_ENV", "BASHOPTS"];

/// What a session has come to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Shell {
    pub(super) cwd: Option<String>,
    pub(super) env: BTreeMap<String, String>,
}

/// Takes up what the last command of a session left, and prepares the next one.
///
/// A state that cannot be read leaves the session where it was: all of this lies inside, where it
/// is the commands' own to break.
pub(super) fn take_up(ground: &Ground<'_>, session: &ShellSession, shell: &mut Shell) {
    let (script, state) = paths(session);
    let read = files::perform(ground, &FileCall::Read { path: state.clone() }, &[]);
    if let Ok(FileAnswer::Content(content)) = read
        && content.len() <= MOST_BYTES
    {
        shell.follow(&content);
    }
    let _ = files::perform(ground, &FileCall::Remove { path: state, recursive: false }, &[]);
    let text = script_text(session);
    let write = FileCall::Write { path: script, content: text.into(), mode: None };
    let _ = files::perform(ground, &write, &[]);
    if shell.cwd.is_none() {
        shell.cwd.clone_from(&session.cwd);
    }
    // A directory that is gone is none to start in.
    let is_gone = |cwd: &String| ground.has_directory(cwd) == Some(false);
    if shell.cwd.as_ref().is_some_and(is_gone) {
        shell.cwd = None;
    }
}

/// Returns whether a path inside is one of ours.
///
/// SECURITY: what a session exported counts as judged, since a command that was judged exported it;
/// a state or a script that a client uploads would be neither, and would make any command another.
pub(super) fn is_own(path: &str) -> bool {
    std::path::Path::new(path).starts_with(FOLDER)
}

/// Returns what bash reads before a command of a session.
pub(super) fn script(session: &ShellSession) -> String {
    paths(session).0
}

fn paths(session: &ShellSession) -> (String, String) {
    let name = Digest::of(session.name.as_bytes()).to_hex();
    let name = name.get(..16).unwrap_or(&name);
    (format!("{FOLDER}/{name}.sh"), format!("{FOLDER}/{name}.state"))
}

fn script_text(session: &ShellSession) -> String {
    let (_, state) = paths(session);
    format!(
        "unset BASH_ENV\n\
         env -0 2>/dev/null > {state}.$$.before\n\
         trap '{{ printf \"%s\\0\\0\" \"$PWD\"; cat {state}.$$.before; printf \"\\0\"; env -0; }} \
         2>/dev/null > {state}.$$.new; mv -f {state}.$$.new {state} 2>/dev/null; \
         rm -f {state}.$$.before' EXIT\n"
    )
}

impl Shell {
    /// Follows one command: its directory, and the variables it changed.
    fn follow(&mut self, state: &[u8]) {
        let Ok(text) = std::str::from_utf8(state) else { return };
        let mut items = text.split('\0');
        let Some(cwd) = items.next().filter(|cwd| cwd.starts_with('/')) else { return };
        if items.next() != Some("") {
            return;
        }
        let variables = |items: &mut dyn Iterator<Item = &str>| -> BTreeMap<String, String> {
            let pairs = items.take_while(|item| !item.is_empty());
            let pairs = pairs.filter_map(|item| item.split_once('='));
            pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
        };
        let before = variables(&mut items);
        let after = variables(&mut items);
        if after.is_empty() {
            return;
        }
        self.cwd = Some(cwd.to_owned());
        self.env.retain(|name, _| after.contains_key(name));
        let changed = after.into_iter().filter(|(name, value)| {
            before.get(name) != Some(value) && !OWN.contains(&name.as_str())
        });
        self.env.extend(changed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_keeps_what_changed_and_nothing_of_the_shell_itself() {
        let mut shell = Shell::default();
        shell.follow(b"/tmp\0\0A=1\0PWD=/\0X=old\0\0A=1\0B=two\nlines\0PWD=/tmp\0SHLVL=2\0");
        assert_eq!(shell.cwd.as_deref(), Some("/tmp"));
        let env = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
        };
        assert_eq!(shell.env, env(&[("B", "two\nlines")]));
        shell.follow(b"/\0\0A=1\0B=two\0\0A=2\0");
        assert_eq!(shell.env, env(&[("A", "2")]), "what was unset is gone");
        for broken in [&b""[..], b"\0", b"relative\0\0", b"/x", b"/x\0A=1\0", b"/x\0\0", b"\xff"] {
            let before = shell.clone();
            shell.follow(broken);
            assert_eq!(shell, before);
        }
    }
}
