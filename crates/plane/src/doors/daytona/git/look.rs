//! What is told of a repository: status, branches, history, remotes, settings.

use std::collections::BTreeMap;

use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Value, json};

use super::{Body, Git, Visited, answer, failed, known, plain, run, scope};
use crate::doors::Hall;
use crate::doors::daytona::{Visit, invalid};

/// What git says when a setting has no value.
const UNSET: i64 = 1;

type Pairs = Query<BTreeMap<String, String>>;

pub(crate) async fn status(
    State(hall): State<Hall>,
    Visit(visit): Visit,
    Query(query): Pairs,
) -> Response {
    let words = ["status", "--porcelain=v2", "--branch", "-z"];
    look(&hall, visit, &query, (&words, |said| status_of(&said))).await
}

pub(crate) async fn branches(
    State(hall): State<Hall>,
    Visit(visit): Visit,
    Query(query): Pairs,
) -> Response {
    let words = ["for-each-ref", "--format=%(HEAD)%(refname:short)", "refs/heads"];
    let read = |said: String| {
        let current = said.lines().find_map(|line| line.strip_prefix('*'));
        let names: Vec<&str> = said.lines().filter_map(|line| line.get(1..)).collect();
        json!({ "branches": names, "current": current.unwrap_or_default() })
    };
    look(&hall, visit, &query, (&words, read)).await
}

pub(crate) async fn history(
    State(hall): State<Hall>,
    Visit(visit): Visit,
    Query(query): Pairs,
) -> Response {
    let words = ["log", "-z", "--format=%H%n%an%n%ae%n%aI%n%B"];
    let read = |said: String| {
        let row = |entry: &str| {
            let mut lines = entry.splitn(5, '\n');
            let (hash, author, email) = (lines.next()?, lines.next()?, lines.next()?);
            let (at, message) = (lines.next()?, lines.next()?);
            Some(json!({ "hash": hash, "author": author, "email": email, "timestamp": at,
                "message": message }))
        };
        said.split('\0').filter_map(row).collect()
    };
    look(&hall, visit, &query, (&words, read)).await
}

pub(crate) async fn remotes(
    State(hall): State<Hall>,
    Visit(visit): Visit,
    Query(query): Pairs,
) -> Response {
    let words = ["remote", "--verbose"];
    let read = |said: String| {
        let row = |line: &str| {
            let (name, url) = line.strip_suffix(" (fetch)")?.split_once('\t')?;
            Some(json!({ "name": name, "url": url }))
        };
        json!({ "remotes": said.lines().filter_map(row).collect::<Vec<Value>>() })
    };
    look(&hall, visit, &query, (&words, read)).await
}

pub(crate) async fn setting(
    State(hall): State<Hall>,
    Visit(visit): Visit,
    Query(query): Pairs,
) -> Response {
    let body: Body = query.into_iter().map(|(name, value)| (name, Value::String(value))).collect();
    let wish = known(&body, &["key", "path", "scope"]).and_then(|()| {
        let (at, scope) = scope(&body)?;
        let words = [scope, "--get".to_owned(), "--".to_owned(), plain(&body, "key")?];
        Ok(Git { at, words: [vec!["config".to_owned()], words.to_vec()].concat() })
    });
    let said = match wish {
        Ok(wish) => run(&hall, visit, wish).await,
        Err(message) => return invalid(&message),
    };
    match said {
        Ok(said) if said.code == UNSET && said.stderr.is_empty() => {
            answer(StatusCode::OK, Some(json!({ "value": null })), &said.run)
        }
        Ok(said) if said.code == 0 => {
            let value = said.stdout.strip_suffix('\n').unwrap_or(&said.stdout);
            answer(StatusCode::OK, Some(json!({ "value": value })), &said.run)
        }
        Ok(said) => failed(&said),
        Err(response) => response,
    }
}

/// Does a command that only looks, and tells what it found.
async fn look(
    hall: &Hall,
    visit: Visited,
    query: &BTreeMap<String, String>,
    (words, read): (&[&str], fn(String) -> Value),
) -> Response {
    if let Some(name) = query.keys().find(|name| *name != "path") {
        return invalid(&format!("{name} is not served here"));
    }
    let Some(path) = query.get("path").filter(|path| !path.is_empty()) else {
        return invalid("path is missing");
    };
    let words = words.iter().map(|word| (*word).to_owned()).collect();
    match run(hall, visit, Git { at: Some(path.clone()), words }).await {
        Ok(said) if said.code == 0 => answer(StatusCode::OK, Some(read(said.stdout)), &said.run),
        Ok(said) => failed(&said),
        Err(response) => response,
    }
}

/// Reads what git tells of a work tree.
fn status_of(said: &str) -> Value {
    let (mut head, mut upstream, mut counts) = ("", "", (0, 0));
    let mut rows = Vec::new();
    let mut items = said.split('\0');
    while let Some(item) = items.next() {
        let (kind, rest) = item.split_once(' ').unwrap_or((item, ""));
        match kind {
            "#" => match rest.split_once(' ') {
                Some(("branch.head", name)) => head = name,
                Some(("branch.upstream", name)) => upstream = name,
                Some(("branch.ab", both)) => counts = ahead_behind(both),
                _ => {}
            },
            "?" => rows.push(row(rest, ('?', '?'), "")),
            "1" | "u" => {
                let before = if kind == "1" { 7 } else { 9 };
                let name = rest.splitn(before + 1, ' ').last().unwrap_or_default();
                rows.push(row(name, letters(rest), ""));
            }
            // What it was called before comes as an item of its own.
            "2" => {
                let name = rest.splitn(9, ' ').last().unwrap_or_default();
                rows.push(row(name, letters(rest), items.next().unwrap_or_default()));
            }
            _ => {}
        }
    }
    let is_detached = head == "(detached)";
    json!({
        "currentBranch": if is_detached { "HEAD" } else { head },
        "detached": is_detached,
        "upstream": upstream,
        "branchPublished": !upstream.is_empty(),
        "ahead": counts.0,
        "behind": counts.1,
        "fileStatus": rows,
    })
}

fn ahead_behind(both: &str) -> (u64, u64) {
    let count = |text: &str| text.trim_start_matches(['+', '-']).parse().unwrap_or(0);
    both.split_once(' ').map_or((0, 0), |(ahead, behind)| (count(ahead), count(behind)))
}

fn letters(rest: &str) -> (char, char) {
    let mut letters = rest.chars();
    (letters.next().unwrap_or('.'), letters.next().unwrap_or('.'))
}

fn row(name: &str, (staged, worktree): (char, char), before: &str) -> Value {
    let word = |letter: char| match letter {
        '?' => "Untracked",
        'M' | 'T' => "Modified",
        'A' => "Added",
        'D' => "Deleted",
        'R' => "Renamed",
        'C' => "Copied",
        'U' => "Updated but unmerged",
        _ => "Unmodified",
    };
    json!({ "name": name, "staging": word(staged), "worktree": word(worktree), "extra": before })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_work_tree_is_told_as_git_tells_it() {
        let said = "# branch.oid 1\0# branch.head main\0# branch.upstream origin/main\0\
                    # branch.ab +2 -1\0\
                    1 A. N... 0 1 1 0 1 a b.txt\0\
                    2 R. N... 1 1 1 1 1 R100 new name\0old name\0\
                    u UU N... 1 1 1 1 1 1 1 both.txt\0? left over\0";
        let rows = json!([
            { "name": "a b.txt", "staging": "Added", "worktree": "Unmodified", "extra": "" },
            { "name": "new name", "staging": "Renamed", "worktree": "Unmodified",
              "extra": "old name" },
            { "name": "both.txt", "staging": "Updated but unmerged",
              "worktree": "Updated but unmerged", "extra": "" },
            { "name": "left over", "staging": "Untracked", "worktree": "Untracked", "extra": "" },
        ]);
        let expected = json!({ "currentBranch": "main", "detached": false, "ahead": 2,
            "behind": 1, "upstream": "origin/main", "branchPublished": true, "fileStatus": rows });
        assert_eq!(status_of(said), expected);
        assert_eq!(status_of("# branch.head (detached)\0")["currentBranch"], "HEAD");
    }
}
