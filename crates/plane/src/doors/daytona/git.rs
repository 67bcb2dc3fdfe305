//! Daytona's toolbox, git: each call is one or two commands of git in the sandbox.
//!
//! They are judged and run like any other command of the sandbox, in the directory of the
//! repository; what a client names never stands where git reads an option. Credentials are
//! refused: they would stand in the command, in its contract and in its receipt.

use std::collections::BTreeMap;

use axum::body::Bytes;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Map, Value, json};
use warrant_protocol::RunId;
use warrant_protocol::request::ActorRef;

use super::{Visit, error, fault, invalid};
use crate::doors::reply::{self, boolean, list as texts_of, text, unknown_member, whole};
use crate::doors::{ChunkStream, Hall, Sandbox, Start, WorkshopError};

/// How long one of these calls may take.
const LONGEST_MS: u64 = 600_000;
/// What git says when a setting has no value.
const UNSET: i64 = 1;

type Visited = (ActorRef, Sandbox);
type Body = Map<String, Value>;
type Pairs = Query<BTreeMap<String, String>>;

/// A command of git: where, and which words.
struct Git {
    /// Absent means the home directory.
    at: Option<String>,
    words: Vec<String>,
}

/// What git said in the end.
struct Said {
    code: i64,
    stdout: String,
    stderr: String,
    run: RunId,
}

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

/// Makes a handler of a call that changes something and tells nothing.
macro_rules! change {
    ($(#[$doc:meta])* $name:ident, $status:ident, $known:expr, $wish:expr) => {
        $(#[$doc])*
        pub(crate) async fn $name(
            State(hall): State<Hall>,
            Visit(visit): Visit,
            body: Bytes,
        ) -> Response {
            let wish: fn(&Body) -> Result<Vec<Git>, String> = $wish;
            let read = reply::object(&body).and_then(|body| {
                known(&body, &$known)?;
                wish(&body)
            });
            match read {
                Ok(wishes) => do_all(&hall, visit, wishes, StatusCode::$status).await,
                Err(message) => invalid(&message),
            }
        }
    };
}

change!(create_branch, CREATED, ["path", "name"], |body| {
    one(body, vec!["checkout".into(), "-q".into(), "-b".into(), plain(body, "name")?])
});
change!(delete_branch, NO_CONTENT, ["path", "name"], |body| {
    one(body, vec!["branch".into(), "-D".into(), "--".into(), plain(body, "name")?])
});
change!(checkout, OK, ["path", "branch"], |body| {
    one(body, vec!["checkout".into(), "-q".into(), plain(body, "branch")?, "--".into()])
});
change!(add, OK, ["path", "files"], |body| {
    one(body, [vec!["add".into(), "--".into()], files(body)?].concat())
});
change!(
    /// Makes a repository.
    init,
    CREATED,
    ["path", "bare", "initial_branch"],
    |body| {
        let mut words = vec!["init".to_owned(), "-q".to_owned()];
        if boolean(body, "bare")? == Some(true) {
            words.push("--bare".to_owned());
        }
        if let Some(branch) = text(body, "initial_branch")? {
            words.push(format!("--initial-branch={branch}"));
        }
        words.extend(["--".to_owned(), path(body)?]);
        Ok(vec![Git { at: None, words }])
    }
);
change!(clone, OK, CLONE, |body| {
    without_credentials(body)?;
    if boolean(body, "insecure_skip_tls")? == Some(true) {
        return Err("insecure_skip_tls cannot be had here".to_owned());
    }
    let mut words = vec!["clone".to_owned(), "-q".to_owned()];
    if let Some(branch) = text(body, "branch")?.filter(|branch| !branch.is_empty()) {
        words.push(format!("--branch={branch}"));
    }
    if let Some(depth) = whole(body, "depth")?.filter(|depth| *depth > 0) {
        words.push(format!("--depth={depth}"));
    }
    words.extend(["--".to_owned(), required(body, "url")?, path(body)?]);
    let mut wishes = vec![Git { at: None, words }];
    if text(body, "commit_id")?.is_some_and(|commit| !commit.is_empty()) {
        let words = ["checkout", "-q", "--detach", &plain(body, "commit_id")?, "--"];
        wishes.push(Git { at: Some(path(body)?), words: words.map(str::to_owned).to_vec() });
    }
    Ok(wishes)
});
const CLONE: [&str; 8] =
    ["path", "url", "branch", "commit_id", "depth", "username", "password", "insecure_skip_tls"];
change!(pull, OK, ["path", "branch", "remote", "username", "password"], |body| {
    without_credentials(body)?;
    one(body, [vec!["pull".into(), "-q".into()], remote_and_branch(body)?].concat())
});
const PUSH: [&str; 6] = ["path", "branch", "remote", "set_upstream", "username", "password"];
change!(push, OK, PUSH, |body| {
    without_credentials(body)?;
    let mut words = vec!["push".to_owned(), "-q".to_owned()];
    if boolean(body, "set_upstream")? == Some(true) {
        words.push("--set-upstream".to_owned());
    }
    one(body, [words, remote_and_branch(body)?].concat())
});
change!(reset, OK, ["path", "mode", "target", "files"], |body| {
    let mut words = vec!["reset".to_owned(), "-q".to_owned()];
    match text(body, "mode")?.as_deref() {
        None | Some("") => {}
        Some(mode @ ("soft" | "mixed" | "hard" | "merge" | "keep")) => {
            words.push(format!("--{mode}"));
        }
        Some(_) => return Err("mode must be soft, mixed, hard, merge or keep".to_owned()),
    }
    if text(body, "target")?.is_some_and(|target| !target.is_empty()) {
        words.push(plain(body, "target")?);
    }
    words.push("--".to_owned());
    words.extend(texts_of(body, "files")?.unwrap_or_default());
    one(body, words)
});
change!(restore, OK, ["path", "files", "staged", "worktree", "source"], |body| {
    let mut words = vec!["restore".to_owned(), "-q".to_owned()];
    for name in ["staged", "worktree"] {
        if boolean(body, name)? == Some(true) {
            words.push(format!("--{name}"));
        }
    }
    if let Some(source) = text(body, "source")?.filter(|source| !source.is_empty()) {
        words.push(format!("--source={source}"));
    }
    words.push("--".to_owned());
    one(body, [words, files(body)?].concat())
});
change!(add_remote, CREATED, ["path", "name", "url", "fetch", "overwrite"], |body| {
    let (name, url) = (plain(body, "name")?, plain(body, "url")?);
    let mut wishes = Vec::new();
    if boolean(body, "overwrite")? == Some(true) {
        return Err("overwrite is not served here: use git remote set-url".to_owned());
    }
    let at = Some(path(body)?);
    let words = ["remote", "add", "--", &name, &url].map(str::to_owned).to_vec();
    wishes.push(Git { at: at.clone(), words });
    if boolean(body, "fetch")? == Some(true) {
        let words = ["fetch", "-q", "--", &name].map(str::to_owned).to_vec();
        wishes.push(Git { at, words });
    }
    Ok(wishes)
});
change!(set_setting, OK, ["path", "scope", "key", "value"], |body| {
    let value = text(body, "value")?.ok_or("value is missing")?;
    let (at, scope) = scope(body)?;
    Ok(vec![set(at, &scope, (&plain(body, "key")?, &value))])
});
change!(set_user, OK, ["path", "scope", "name", "email"], |body| {
    let (at, scope) = scope(body)?;
    let (name, email) = (required(body, "name")?, required(body, "email")?);
    let name = set(at.clone(), &scope, ("user.name", &name));
    Ok(vec![name, set(at, &scope, ("user.email", &email))])
});

/// Commits what is staged and tells the commit.
pub(crate) async fn commit(State(hall): State<Hall>, Visit(visit): Visit, body: Bytes) -> Response {
    let read = reply::object(&body).and_then(|body| {
        known(&body, &["path", "message", "author", "email", "allow_empty"])?;
        let (author, email) = (required(&body, "author")?, required(&body, "email")?);
        let who = [format!("user.name={author}"), format!("user.email={email}")];
        let mut words: Vec<String> = who.into_iter().flat_map(|who| ["-c".into(), who]).collect();
        words.extend(["commit".to_owned(), "-q".to_owned()]);
        if boolean(&body, "allow_empty")? == Some(true) {
            words.push("--allow-empty".to_owned());
        }
        words.push(format!("--message={}", required(&body, "message")?));
        Ok(Git { at: Some(path(&body)?), words })
    });
    let wish = match read {
        Ok(wish) => wish,
        Err(message) => return invalid(&message),
    };
    let tell = Git { at: wish.at.clone(), words: vec!["rev-parse".into(), "HEAD".into()] };
    let made = match run(&hall, visit.clone(), wish).await {
        Ok(said) if said.code == 0 => said.run,
        Ok(said) => return failed(&said),
        Err(response) => return response,
    };
    match run(&hall, visit, tell).await {
        Ok(said) if said.code == 0 => {
            answer(StatusCode::OK, Some(json!({ "hash": said.stdout.trim() })), &made)
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

/// Does one command after the other, as long as they end well.
async fn do_all(hall: &Hall, visit: Visited, wishes: Vec<Git>, status: StatusCode) -> Response {
    let mut last = None;
    for wish in wishes {
        match run(hall, visit.clone(), wish).await {
            Ok(said) if said.code == 0 => last = Some(said.run),
            Ok(said) => return failed(&said),
            Err(response) => return response,
        }
    }
    reply::with_receipt(reply::empty(status), last.as_ref())
}

async fn run(hall: &Hall, (guest, sandbox): Visited, wish: Git) -> Result<Said, Response> {
    let start = Start {
        argv: [vec!["git".to_owned()], wish.words].concat(),
        env: BTreeMap::new(),
        cwd: wish.at,
        timeout_ms: Some(LONGEST_MS),
        stdin: false,
        terminal: None,
        tag: None,
        session: None,
        approved: None,
    };
    let started = hall.ask(move |workshop| workshop.start(&guest, &sandbox.id, start)).await;
    let process = started.map_err(|refusal| error(&refusal))?.attend();
    let end = process.wait().await;
    let run = process.facts().run.clone();
    match end.exit_code() {
        Some(code) => Ok(Said {
            code,
            stdout: process.text(Some(ChunkStream::Stdout)),
            stderr: process.text(Some(ChunkStream::Stderr)),
            run,
        }),
        None => Err(error(&WorkshopError::Refused { run, message: end.message })),
    }
}

fn answer(status: StatusCode, body: Option<Value>, run: &RunId) -> Response {
    let response = body.map_or_else(|| reply::empty(status), |body| reply::json(status, &body));
    reply::with_receipt(response, Some(run))
}

/// Says in git's words why it did not do it.
fn failed(said: &Said) -> Response {
    let words = match said.stderr.trim() {
        "" => said.stdout.trim(),
        stderr => stderr,
    };
    let words = format!("git ended with {}: {words}", said.code);
    let status = match said.stderr.contains("not a git repository") {
        true => StatusCode::NOT_FOUND,
        false => StatusCode::BAD_REQUEST,
    };
    reply::with_receipt(fault(status, "GIT_FAILED", &words), Some(&said.run))
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

fn known(body: &Body, known: &[&str]) -> Result<(), String> {
    match unknown_member(body, known) {
        None => Ok(()),
        Some(name) => Err(format!("{name} is not served here")),
    }
}

fn one(body: &Body, words: Vec<String>) -> Result<Vec<Git>, String> {
    Ok(vec![Git { at: Some(path(body)?), words }])
}

fn required(body: &Body, name: &str) -> Result<String, String> {
    let value = text(body, name)?.filter(|value| !value.is_empty());
    value.ok_or_else(|| format!("{name} is missing"))
}

/// Returns a member that stands where git would read an option too.
fn plain(body: &Body, name: &str) -> Result<String, String> {
    let value = required(body, name)?;
    match value.starts_with('-') {
        false => Ok(value),
        true => Err(format!("{name} cannot begin with -")),
    }
}

/// Returns the path of a repository as git finds it from home.
fn path(body: &Body) -> Result<String, String> {
    let path = required(body, "path")?;
    Ok(match path.strip_prefix('~') {
        Some(rest) if rest.is_empty() || rest.starts_with('/') => format!("{}{rest}", super::HOME),
        _ => path,
    })
}

fn files(body: &Body) -> Result<Vec<String>, String> {
    let files = texts_of(body, "files")?.filter(|files| !files.is_empty());
    files.ok_or_else(|| "files is missing".to_owned())
}

fn remote_and_branch(body: &Body) -> Result<Vec<String>, String> {
    let is_set =
        |name: &str| Ok::<_, String>(text(body, name)?.is_some_and(|text| !text.is_empty()));
    Ok(match (is_set("remote")?, is_set("branch")?) {
        (false, false) => Vec::new(),
        (true, false) => vec!["--".to_owned(), plain(body, "remote")?],
        (false, true) => vec!["--".to_owned(), "origin".to_owned(), plain(body, "branch")?],
        (true, true) => vec!["--".to_owned(), plain(body, "remote")?, plain(body, "branch")?],
    })
}

fn scope(body: &Body) -> Result<(Option<String>, String), String> {
    match text(body, "scope")?.as_deref() {
        None | Some("" | "global") => Ok((None, "--global".to_owned())),
        Some("local") => Ok((Some(path(body)?), "--local".to_owned())),
        Some(other) => Err(format!("scope must be global or local, not {other}")),
    }
}

fn set(at: Option<String>, scope: &str, (key, value): (&str, &str)) -> Git {
    Git { at, words: ["config", scope, "--", key, value].map(str::to_owned).to_vec() }
}

/// SECURITY: what stands in a command stands in its contract, for everybody who may read that.
fn without_credentials(body: &Body) -> Result<(), String> {
    for name in ["username", "password"] {
        if text(body, name)?.is_some_and(|text| !text.is_empty()) {
            return Err(format!("{name} cannot be taken here: it would be kept with the command"));
        }
    }
    Ok(())
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
