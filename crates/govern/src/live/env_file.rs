//! Variables that a client of OpenSandbox keeps in a file of its sandbox, for every later command.
//!
//! The file is the one that the sandbox's `EXECD_ENVS` names; its SDKs append to it from inside
//! (`set_env`). It is read before each command, by descriptor and through no link. What it holds
//! counts like variables that a client gives with the command: names that make programs run
//! something are refused, others that choose what words mean are judged.
//!
//! ```text
//! NAME=value       trimmed
//! NAME="a \"b\""   with \n \r \t \\ \"
//! NAME='a b'       as it is, over any number of lines
//! ```
//!
//! Nothing is expanded: the values are those that were kept.

use std::collections::BTreeMap;

use warrant_plane::doors::{DoorName, FileAnswer, FileCall, FileFault, WorkshopError};

use super::Shared;
use super::asks;
use super::files::{self, Ground};
use super::sandbox::Living;

/// The variable that names the file.
const NAMED_BY: &str = "EXECD_ENVS";
/// A larger file is refused.
const MOST_BYTES: usize = 256 * 1024;

/// Returns the variables of every command of a sandbox: those it was made with and, over them,
/// those of its file.
pub(super) fn variables(
    shared: &Shared,
    living: &Living,
) -> Result<BTreeMap<String, String>, WorkshopError> {
    let mut variables = living.wanted.env.clone();
    let named = variables.get(NAMED_BY).filter(|_| living.door() == DoorName::Opensandbox);
    let Some(path) = named.cloned() else { return Ok(variables) };
    let policy = shared.desk.policy();
    let files = policy.and_then(|policy| policy.controls().files.as_ref());
    let masks: Vec<String> = files.map(|files| files.masks.clone()).unwrap_or_default();
    let ground = Ground { directory: &living.directory, home: &living.wanted.home };
    let held = match files::perform(&ground, &FileCall::Read { path: path.clone() }, &masks) {
        Ok(FileAnswer::Content(content)) => content,
        Err((FileFault::Missing, _)) => return Ok(variables),
        Err((_, message)) => return Err(unusable(&message)),
        Ok(_) => return Err(WorkshopError::because("a call on files gave another answer")),
    };
    if held.len() > MOST_BYTES {
        return Err(unusable(&format!("path '{path}' is too large")));
    }
    let text = std::str::from_utf8(&held);
    let kept = read(text.map_err(|error| unusable(&format!("path '{path}' is no text: {error}")))?);
    // SECURITY: whatever writes the file, its variables may do no more than a client's own.
    asks::check_client(&kept)?;
    variables.extend(kept);
    Ok(variables)
}

/// What cannot be read is not passed over: the client was told that its variables are kept.
fn unusable(message: &str) -> WorkshopError {
    WorkshopError::Invalid(format!("the variables that {NAMED_BY} names cannot be used: {message}"))
}

/// Reads every entry; a line that is none is passed over, and of several for one name the last
/// counts.
fn read(text: &str) -> BTreeMap<String, String> {
    let mut kept = BTreeMap::new();
    let mut rest = text;
    while !rest.is_empty() {
        let (line, after) = rest.split_once('\n').unwrap_or((rest, ""));
        let Some((name, value)) = entry(line) else {
            rest = after;
            continue;
        };
        let value_on = rest.get(line.len() - value.len()..).unwrap_or_default();
        let (value, after) = match value.chars().next() {
            Some(quote @ ('"' | '\'')) => match quoted(value_on, quote) {
                Some(read) => read,
                None => {
                    rest = after;
                    continue;
                }
            },
            _ => (value.trim_end().to_owned(), after),
        };
        kept.insert(name.to_owned(), value);
        rest = after;
    }
    kept
}

/// Splits a line into a name and what follows it.
fn entry(line: &str) -> Option<(&str, &str)> {
    let (name, value) = line.split_once('=')?;
    let name = name.trim();
    let is_entry = !name.is_empty() && !name.starts_with('#');
    is_entry.then(|| (name, value.trim_start()))
}

/// Returns a quoted value and what follows its last line; nothing when it has no end, or when
/// something stands behind it.
fn quoted(text: &str, quote: char) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut letters = text.char_indices().skip(1);
    while let Some((place, letter)) = letters.next() {
        match letter {
            _ if letter == quote => {
                let (tail, after) =
                    text.get(place + 1..)?.split_once('\n').unwrap_or((text.get(place + 1..)?, ""));
                return tail.trim().is_empty().then_some((value, after));
            }
            '\\' if quote == '"' => match letters.next()?.1 {
                'n' => value.push('\n'),
                'r' => value.push('\r'),
                't' => value.push('\t'),
                same @ ('\\' | '"') => value.push(same),
                other => value.extend(['\\', other]),
            },
            _ => value.push(letter),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: &[(&str, &str)]) {
        let pair = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        assert_eq!(read(text), expected.iter().map(pair).collect(), "{text:?}");
    }

    #[test]
    fn kept_variables_are_read_as_they_were_written() {
        check("A=b\n", &[("A", "b")]);
        check("# A=b\n\nnothing\n=x\n B = c d \n", &[("B", "c d")]);
        check(
            "A='cost $5 ${HOME}'\nB='one\ntwo'\nC=''\n",
            &[("A", "cost $5 ${HOME}"), ("B", "one\ntwo"), ("C", "")],
        );
        check(r#"A="it's \"so\"\n\\\x""#, &[("A", "it's \"so\"\n\\\\x")]);
        check("A='a=b=c'\nA='last'", &[("A", "last")]);
        check("A='open\nB=c\n", &[("B", "c")]);
        check("A=\"open\\", &[]);
        check("A='x' y\nB=c", &[("B", "c")]);
        check("A='ä'\r\nB=ö", &[("A", "ä"), ("B", "ö")]);
    }
}
