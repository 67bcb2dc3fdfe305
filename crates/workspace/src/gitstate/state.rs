//! Checks the files that say what git is in the middle of: a merge, a rebase, a cherry-pick.
//!
//! SECURITY: `git rebase --continue` runs what `git-rebase-todo` says, older versions read
//! `author-script` as a shell does, and a merge strategy is the name of a program. So every file is
//! one we know, and is parsed.

use super::parts::StateGroup;
use crate::object::Oid;

/// A larger one of these files is not read.
pub(super) const MOST_BYTES: u64 = 16 << 20;

/// What a file of a group leads to.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct StateLinks {
    /// Objects that must be there.
    pub(super) required: Vec<Oid>,
    /// Objects that are taken over if they are there.
    pub(super) optional: Vec<Oid>,
}

/// Checks one file of a group; `name` is its path below the git directory.
pub(super) fn check_file(
    group: StateGroup,
    name: &str,
    content: &[u8],
) -> Result<StateLinks, &'static str> {
    let file = name.rsplit('/').next().unwrap_or(name);
    match group {
        StateGroup::Objects(_) => objects(content),
        StateGroup::Text(_) => text(content),
        StateGroup::FetchHead => fetch_head(content),
        StateGroup::RebaseMerge => rebase_merge(file, content),
        StateGroup::RebaseApply => rebase_apply(file, content),
        StateGroup::Sequencer => sequencer(file, content),
    }
}

const UNKNOWN: &str = "it is not a file that git writes there";

fn objects(content: &[u8]) -> Result<StateLinks, &'static str> {
    let text = std::str::from_utf8(content).map_err(|_| "it is not text")?;
    let required: Option<Vec<Oid>> = text.lines().map(Oid::from_hex).collect();
    Ok(StateLinks { required: required.ok_or("it does not hold objects")?, optional: Vec::new() })
}

fn text(content: &[u8]) -> Result<StateLinks, &'static str> {
    if content.contains(&0) {
        return Err("it is not text");
    }
    Ok(StateLinks::default())
}

fn one_of(content: &[u8], allowed: &[&str]) -> Result<StateLinks, &'static str> {
    let text = std::str::from_utf8(content).map_err(|_| "it is not text")?;
    if allowed.contains(&text.trim_end()) {
        Ok(StateLinks::default())
    } else {
        Err("its content is not known")
    }
}

fn fetch_head(content: &[u8]) -> Result<StateLinks, &'static str> {
    let text = std::str::from_utf8(content).map_err(|_| "it is not text")?;
    let line = |line: &str| {
        let mut fields = line.split('\t');
        let oid = fields.next().and_then(Oid::from_hex)?;
        matches!(fields.next()?, "" | "not-for-merge").then_some(oid)
    };
    let oids: Option<Vec<Oid>> = text.lines().map(line).collect();
    let optional = oids.ok_or("it does not hold objects")?;
    Ok(StateLinks { required: Vec::new(), optional })
}

fn rebase_merge(file: &str, content: &[u8]) -> Result<StateLinks, &'static str> {
    match file {
        "onto" | "orig-head" | "head" | "stopped-sha" | "squash-onto" | "autostash" | "amend" => {
            objects(content)
        }
        "head-name"
        | "end"
        | "msgnum"
        | "message"
        | "message-squash"
        | "message-fixup"
        | "done"
        | "interactive"
        | "quiet"
        | "verbose"
        | "signoff"
        | "drop_redundant_commits"
        | "keep_redundant_commits"
        | "no-reschedule-failed-exec"
        | "rewritten-list"
        | "rewritten-pending"
        | "patch"
        | "current-fixups"
        | "refs-to-rewrite"
        | "cdate_is_adate"
        | "ignore_date"
        | "update-refs" => text(content),
        "allow_rerere_autoupdate" => {
            one_of(content, &["--rerere-autoupdate", "--no-rerere-autoupdate"])
        }
        "strategy" => {
            one_of(content, &["ort", "recursive", "resolve", "octopus", "ours", "subtree"])
        }
        "git-rebase-todo" | "git-rebase-todo.backup" => todo(content),
        "author-script" => author_script(content),
        _ => Err(UNKNOWN),
    }
}

fn rebase_apply(file: &str, content: &[u8]) -> Result<StateLinks, &'static str> {
    match file {
        "onto" | "orig-head" | "original-commit" => objects(content),
        "abort-safety" if content.is_empty() => Ok(StateLinks::default()),
        "abort-safety" => objects(content),
        "apply-opt" => one_of(content, &[""]),
        "author-script" => author_script(content),
        "head-name" | "next" | "last" | "applying" | "rebasing" | "final-commit" | "info"
        | "msg" | "patch" | "quiet" | "scissors" | "messageid" | "keep" | "sign" | "threeway"
        | "utf8" | "dirtyindex" | "patch-merge-index" | "rewritten" | "no_inbody_headers"
        | "quoted-cr" => text(content),
        _ if !file.is_empty() && file.bytes().all(|byte| byte.is_ascii_digit()) => text(content),
        _ => Err(UNKNOWN),
    }
}

fn sequencer(file: &str, content: &[u8]) -> Result<StateLinks, &'static str> {
    match file {
        "head" => objects(content),
        "abort-safety" if content.is_empty() => Ok(StateLinks::default()),
        "abort-safety" => objects(content),
        "todo" => todo(content),
        "opts" => sequencer_options(content),
        _ => Err(UNKNOWN),
    }
}

/// Refuses a list of steps one of which starts a program.
fn todo(content: &[u8]) -> Result<StateLinks, &'static str> {
    const STEPS: [&str; 23] = [
        "pick",
        "p",
        "revert",
        "reword",
        "r",
        "edit",
        "e",
        "squash",
        "s",
        "fixup",
        "f",
        "drop",
        "d",
        "label",
        "l",
        "reset",
        "t",
        "merge",
        "m",
        "break",
        "b",
        "update-ref",
        "u",
    ];
    let text = std::str::from_utf8(content).map_err(|_| "it is not text")?;
    let mut links = StateLinks::default();
    for line in text.split(['\n', '\r']).map(str::trim) {
        // Whatever else the comment character is, such a line is refused.
        if line.is_empty() || line.starts_with('#') || line == "noop" {
            continue;
        }
        let mut words = line.split([' ', '\t']);
        match words.next() {
            Some("exec" | "x") => return Err("it holds an `exec` step, which would run here"),
            Some(step) if STEPS.contains(&step) => {}
            _ => return Err("it holds an unknown step"),
        }
        links.optional.extend(words.filter_map(Oid::from_hex));
    }
    Ok(links)
}

/// Accepts exactly what git writes: three assignments, each in single quotes.
fn author_script(content: &[u8]) -> Result<StateLinks, &'static str> {
    const NAMES: [&str; 3] = ["GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL", "GIT_AUTHOR_DATE"];
    let text = std::str::from_utf8(content).map_err(|_| "it is not text")?;
    let is_assignment = |line: &str| {
        let value = NAMES.iter().find_map(|name| line.strip_prefix(name)?.strip_prefix('='));
        value.is_some_and(is_single_quoted)
    };
    if text.lines().all(is_assignment) {
        Ok(StateLinks::default())
    } else {
        Err("it holds more than an author")
    }
}

/// Returns whether a shell would read the text as one word without doing anything.
fn is_single_quoted(text: &str) -> bool {
    let mut rest = text;
    loop {
        let Some(inner) = rest.strip_prefix('\'') else { return false };
        let Some((_, after)) = inner.split_once('\'') else { return false };
        if after.is_empty() {
            return true;
        }
        // A quote inside is written '\'' by git.
        let after = after.strip_prefix("\\'").or_else(|| after.strip_prefix("\\!"));
        let Some(after) = after else { return false };
        rest = after;
    }
}

fn sequencer_options(content: &[u8]) -> Result<StateLinks, &'static str> {
    const KEYS: [&str; 11] = [
        "no-commit",
        "edit",
        "allow-empty",
        "allow-empty-message",
        "drop-redundant-commits",
        "keep-redundant-commits",
        "signoff",
        "record-origin",
        "allow-ff",
        "mainline",
        "default-msg-cleanup",
    ];
    let text = std::str::from_utf8(content).map_err(|_| "it is not text")?;
    let is_known = |line: &str| {
        let key = line.split('=').next().unwrap_or_default().trim();
        let is_plain = |c: char| c.is_ascii_alphanumeric() || " =-\t".contains(c);
        line == "[options]" || KEYS.contains(&key) && line.chars().all(is_plain)
    };
    match text.lines().map(str::trim).filter(|line| !line.is_empty()).all(is_known) {
        true => Ok(StateLinks::default()),
        false => Err("it holds an option that is not taken over"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(group: StateGroup, name: &str, content: &str, is_fine: bool) {
        let checked = check_file(group, name, content.as_bytes());
        assert_eq!(checked.is_ok(), is_fine, "{name}: {content:?}: {checked:?}");
    }

    #[test]
    fn rebase_step_that_starts_a_program_is_refused() {
        let name = "rebase-merge/git-rebase-todo";
        let pick = "pick 4b825dc642cb6eb9a060e54bf8d69288fbee4904 x\n# comment\nlabel a\n";
        check(StateGroup::RebaseMerge, name, pick, true);
        for step in ["exec id", "x id", " \texec id", "; id", "exec\tid", "\rexec id"] {
            check(StateGroup::RebaseMerge, name, &format!("{pick}{step}\n"), false);
        }
        check(StateGroup::RebaseMerge, "rebase-merge/strategy", "ort\n", true);
        check(StateGroup::RebaseMerge, "rebase-merge/strategy", "../../evil", false);
        check(StateGroup::RebaseMerge, "rebase-merge/anything", "x", false);
        check(StateGroup::RebaseMerge, "rebase-merge/gpg_sign_opt", "-S", false);
    }

    #[test]
    fn author_script_that_does_more_is_refused() {
        let name = "rebase-merge/author-script";
        let plain =
            "GIT_AUTHOR_NAME='O'\\''Neil'\nGIT_AUTHOR_EMAIL='a@b'\nGIT_AUTHOR_DATE='@1 +0000'\n";
        check(StateGroup::RebaseMerge, name, plain, true);
        for bad in [
            "GIT_AUTHOR_NAME='a'; id\n",
            "GIT_AUTHOR_NAME=$(id)\n",
            "GIT_AUTHOR_NAME='a'$(id)\n",
            "PATH='/tmp'\n",
            "GIT_AUTHOR_NAME='a\n",
            "GIT_AUTHOR_NAME='a''b'`id`\n",
        ] {
            check(StateGroup::RebaseMerge, name, bad, false);
        }
    }

    #[test]
    fn sequencer_options_that_choose_programs_are_refused() {
        check(StateGroup::Sequencer, "sequencer/opts", "[options]\n\tno-commit = true\n", true);
        for bad in ["strategy = x", "gpg-sign = y", "no-commit = true\n[core]\n\tpager = id"] {
            check(StateGroup::Sequencer, "sequencer/opts", &format!("[options]\n\t{bad}\n"), false);
        }
    }
}
