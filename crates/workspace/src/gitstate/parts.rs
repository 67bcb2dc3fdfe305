//! What each path of a git directory is, and what becomes of it.

use super::names::RefName;
use crate::GateClass;

/// What a path below a git directory is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum GitPart {
    /// An object or a pack: read by name when something needs it.
    Object,
    /// A reference.
    Ref(RefName),
    /// A name below `refs/` that is no reference, or one that is never taken over.
    NoRef(&'static str),
    PackedRefs,
    Head,
    Index,
    /// The log of `HEAD` or of a reference.
    Log,
    /// A file that says what git is in the middle of.
    State(StateGroup),
    /// Locks, caches and whatever git makes anew by itself.
    Derived,
    /// What decides how git behaves, or runs.
    Never(GateClass),
    /// Of a submodule's or a linked worktree's git directory.
    Other,
}

/// Files that are taken over together or not at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum StateGroup {
    /// One line or more, each with an object.
    Objects(&'static str),
    /// A message or another text nobody executes.
    Text(&'static str),
    FetchHead,
    RebaseMerge,
    RebaseApply,
    Sequencer,
}

/// Returns what the path `below` a git directory is.
pub(super) fn part_of(below: &str) -> GitPart {
    let segments: Vec<&str> = below.split('/').collect();
    match segments.as_slice() {
        [.., last] if last.ends_with(".lock") => GitPart::Derived,
        ["hooks", ..] => GitPart::Never(GateClass::GitHook),
        ["config" | "config.worktree" | "commondir" | "gitdir" | "description", ..]
        | ["info" | "branches" | "remotes", ..] => GitPart::Never(GateClass::GitConfig),
        ["objects", "info", "alternates" | "http-alternates"] => {
            GitPart::Never(GateClass::GitConfig)
        }
        ["objects", ..] => GitPart::Object,
        ["refs", "replace", ..] => {
            GitPart::NoRef("a replacement makes git show other content than a commit holds")
        }
        ["refs", ..] => RefName::new(below)
            .map_or(GitPart::NoRef("its name is not that of a reference"), GitPart::Ref),
        ["packed-refs"] => GitPart::PackedRefs,
        ["HEAD"] => GitPart::Head,
        ["index"] => GitPart::Index,
        ["logs", "HEAD"] => GitPart::Log,
        ["logs", rest @ ..] if RefName::new(&rest.join("/")).is_some() => GitPart::Log,
        ["logs", ..] => GitPart::Derived,
        ["rebase-merge", ..] => GitPart::State(StateGroup::RebaseMerge),
        ["rebase-apply", ..] => GitPart::State(StateGroup::RebaseApply),
        ["sequencer", ..] => GitPart::State(StateGroup::Sequencer),
        ["FETCH_HEAD"] => GitPart::State(StateGroup::FetchHead),
        ["gc.log" | "gc.pid" | "MERGE_RR" | "rr-cache" | "fsmonitor--daemon", ..]
        | ["fsmonitor--daemon.ipc"] => GitPart::Derived,
        [name] if name.starts_with("sharedindex.") => GitPart::Derived,
        [name] => single_file(name).map_or(GitPart::Other, GitPart::State),
        _ => GitPart::Other,
    }
}

fn single_file(name: &str) -> Option<StateGroup> {
    const OBJECTS: [&str; 8] = [
        "ORIG_HEAD",
        "MERGE_HEAD",
        "CHERRY_PICK_HEAD",
        "REVERT_HEAD",
        "REBASE_HEAD",
        "AUTO_MERGE",
        "MERGE_AUTOSTASH",
        "BISECT_EXPECTED_REV",
    ];
    const TEXTS: [&str; 6] =
        ["MERGE_MSG", "MERGE_MODE", "SQUASH_MSG", "COMMIT_EDITMSG", "TAG_EDITMSG", "NOTES_EDITMSG"];
    let in_list = |list: &[&'static str]| list.iter().copied().find(|listed| *listed == name);
    in_list(&OBJECTS).map(StateGroup::Objects).or_else(|| in_list(&TEXTS).map(StateGroup::Text))
}
