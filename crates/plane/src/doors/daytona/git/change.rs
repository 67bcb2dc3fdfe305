//! What changes a repository, or makes one.

use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::json;

use super::{Body, Git, Visited, answer, failed, known, path, plain, required, run, scope};
use crate::doors::Hall;
use crate::doors::daytona::{Visit, invalid};
use crate::doors::reply::{self, boolean, list as texts_of, text, whole};

/// The repository that others mean by default.
const ORIGIN: &str = "origin";

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
        if let Some(branch) = text(body, "initial_branch")?.filter(|branch| !branch.is_empty()) {
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
        // What is copied from a path would be copied whole.
        words.extend([format!("--depth={depth}"), "--no-local".to_owned()]);
    }
    words.extend(["--".to_owned(), address(required(body, "url")?)?, path(body)?]);
    let mut wishes = vec![Git { at: None, words }];
    if text(body, "commit_id")?.is_some_and(|commit| !commit.is_empty()) {
        let words = ["checkout", "-q", "--detach", &plain(body, "commit_id")?, "--"];
        wishes.push(Git { at: Some(path(body)?), words: words.map(str::to_owned).to_vec() });
    }
    Ok(wishes)
});
const CLONE: [&str; 8] =
    ["path", "url", "branch", "commit_id", "depth", "username", "password", "insecure_skip_tls"];
change!(
    /// Pulls what the current branch follows, or what is named.
    pull,
    OK,
    ["path", "branch", "remote", "username", "password"],
    |body| {
        without_credentials(body)?;
        let (remote, branch) = (remote(body)?, branch(body)?);
        let mut words = vec!["pull".to_owned(), "-q".to_owned()];
        if remote.is_some() || branch.is_some() {
            words.extend(["--".to_owned(), remote.unwrap_or_else(|| ORIGIN.to_owned())]);
            words.extend(branch);
        }
        one(body, words)
    }
);
const PUSH: [&str; 6] = ["path", "branch", "remote", "set_upstream", "username", "password"];
change!(
    /// Pushes a branch, or the current one, to the branch of that name.
    push,
    OK,
    PUSH,
    |body| {
        without_credentials(body)?;
        let mut words = vec!["push".to_owned(), "-q".to_owned()];
        if boolean(body, "set_upstream")? == Some(true) {
            words.push("--set-upstream".to_owned());
        }
        words.extend(["--".to_owned(), remote(body)?.unwrap_or_else(|| ORIGIN.to_owned())]);
        words.push(branch(body)?.unwrap_or_else(|| "HEAD".to_owned()));
        one(body, words)
    }
);
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
    let (staged, worktree) = (boolean(body, "staged")?, boolean(body, "worktree")?);
    if worktree == Some(false) && staged != Some(true) {
        return Err("nothing would be restored: staged or worktree must be true".to_owned());
    }
    for (name, is_wanted) in [("staged", staged), ("worktree", worktree)] {
        if is_wanted == Some(true) {
            words.push(format!("--{name}"));
        }
    }
    if let Some(source) = text(body, "source")?.filter(|source| !source.is_empty()) {
        words.push(format!("--source={source}"));
    }
    words.push("--".to_owned());
    one(body, [words, files(body)?].concat())
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

/// Names another repository; in place of one that has the name, if that is asked for.
pub(crate) async fn add_remote(
    State(hall): State<Hall>,
    Visit(visit): Visit,
    body: Bytes,
) -> Response {
    let read = reply::object(&body).and_then(|body| {
        known(&body, &["path", "name", "url", "fetch", "overwrite"])?;
        let (at, name) = (path(&body)?, plain(&body, "name")?);
        let url = address(plain(&body, "url")?)?;
        let of = |words: &[&str]| Git {
            at: Some(at.clone()),
            words: words.iter().map(|word| (*word).to_owned()).collect(),
        };
        let mut wishes = vec![of(&["remote", "add", "--", &name, &url])];
        if boolean(&body, "fetch")? == Some(true) {
            wishes.push(of(&["fetch", "-q", "--", &name]));
        }
        let replaces = boolean(&body, "overwrite")? == Some(true);
        let replaced = [of(&["remote", "get-url", "--", &name]), of(&["remote", "remove", &name])];
        Ok((replaces.then_some(replaced), wishes))
    });
    let (replaced, mut wishes) = match read {
        Ok(read) => read,
        Err(message) => return invalid(&message),
    };
    if let Some([look, remove]) = replaced {
        match run(&hall, visit.clone(), look).await {
            Ok(said) if said.code == 0 => wishes.insert(0, remove),
            Ok(_) => {}
            Err(response) => return response,
        }
    }
    do_all(&hall, visit, wishes, StatusCode::CREATED).await
}

/// Refuses to keep credentials for later commands.
pub(crate) async fn authenticate(_: Visit) -> Response {
    invalid("a password cannot be taken here: it would be kept where every command reads it")
}

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

fn one(body: &Body, words: Vec<String>) -> Result<Vec<Git>, String> {
    Ok(vec![Git { at: Some(path(body)?), words }])
}

fn files(body: &Body) -> Result<Vec<String>, String> {
    let files = texts_of(body, "files")?.filter(|files| !files.is_empty());
    files.ok_or_else(|| "files is missing".to_owned())
}

/// Returns the repository that is named, if one is.
fn remote(body: &Body) -> Result<Option<String>, String> {
    match text(body, "remote")?.is_some_and(|remote| !remote.is_empty()) {
        true => address(plain(body, "remote")?).map(Some),
        false => Ok(None),
    }
}

/// Returns the branch that is named, if one is, as git calls it in full.
///
/// SECURITY: where git reads a branch it also reads two of them, and that one is forced or removed.
fn branch(body: &Body) -> Result<Option<String>, String> {
    let Some(branch) = text(body, "branch")?.filter(|branch| !branch.is_empty()) else {
        return Ok(None);
    };
    let is_odd = |letter: char| letter.is_control() || " :?*[\\^~".contains(letter);
    match branch.starts_with(['-', '+']) || branch.contains(is_odd) {
        true => Err(format!("`{branch}` cannot be the name of a branch")),
        false => Ok(Some(format!("refs/heads/{branch}"))),
    }
}

/// Returns where a repository is.
///
/// SECURITY: what stands in a command stands in its contract, for everybody who may read that.
fn address(url: String) -> Result<String, String> {
    let is_http = |scheme: &str| ["http", "https"].iter().any(|http| scheme.ends_with(http));
    let authority = url
        .split_once("://")
        .filter(|(scheme, _)| is_http(&scheme.to_ascii_lowercase()))
        .map(|(_, rest)| rest.split(['/', '?', '#']).next().unwrap_or_default());
    match authority.is_some_and(|authority| authority.contains('@')) {
        true => {
            Err("an address cannot hold credentials: they would be kept with the command".into())
        }
        false => Ok(url),
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
    #![allow(clippy::unwrap_used, reason = "tests")]
    use serde_json::Value;

    use super::*;

    #[test]
    fn the_name_of_a_branch_says_nothing_else() {
        let read = |name: &str| branch(json!({ "branch": name }).as_object().unwrap());
        assert_eq!(read("side/a"), Ok(Some("refs/heads/side/a".to_owned())));
        assert_eq!(read(""), Ok(None));
        assert_eq!(branch(json!({ "branch": Value::Null }).as_object().unwrap()), Ok(None));
        for odd in ["+a", "-a", ":a", "a:b", "a b", "*", "a^", "a~1", "a?", "a[", "a\\", "a\n"] {
            assert!(read(odd).is_err(), "{odd}");
        }
    }

    #[test]
    fn credentials_in_an_address_are_not_kept() {
        for kept in
            ["https://u:p@host/x", "http://token@host", "HTTPS://t@host:8/x", "git+https://t@h"]
        {
            assert!(address(kept.to_owned()).is_err(), "{kept}");
        }
        for fine in ["https://host/a@b", "ssh://git@host/x", "git@host:x", "/home/a@b", "../x"] {
            assert_eq!(address(fine.to_owned()), Ok(fine.to_owned()));
        }
    }
}
