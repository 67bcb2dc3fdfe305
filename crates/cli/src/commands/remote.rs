//! The verbs against a plane: the same words as for this machine, answered over HTTP.

use std::io;
use std::path::Path;
use std::time::SystemTime;

use anyhow::{Context as _, bail};
use serde_json::{Value, json};
use warrant_govern::Desk;
use warrant_govern::keep::{gate, open_journal};
use warrant_protocol::bundle::Bundle as Evidence;
use warrant_protocol::keys::{KeyRole, PublicKey, TrustedKeys};
use warrant_protocol::{Digest, RunId};
use warrant_runner::remote::Http;
use warrant_workspace::{BranchWish, PullCommits, PullOptions, PullWork, pull_with_commits};

use crate::args::{Approve, Bundle, Cancel, Deny, Export, Log, Login, Pull, Runs};
use crate::commands::{keys, pulling, reading};
use crate::exit::{Exit, Misuse};
use crate::own_plane::OwnPlane;
use crate::plane_client::{PlaneClient, home_of, run_id, write_login};
use crate::progress::Meter;
use crate::terminal::copy_to_stdout;
use crate::ui;

pub(crate) mod continuing;
pub(crate) mod output;
pub(crate) mod run;
pub(crate) mod watch;

/// `warrant login`.
pub(crate) fn login(
    home: Option<&Path>,
    plane: &crate::args::PlaneArguments,
    arguments: &Login,
) -> anyhow::Result<Exit> {
    let Some(address) = &plane.plane else {
        return Err(Misuse::of(anyhow::anyhow!("say which plane: --plane URL")));
    };
    let token = match (&arguments.token_file, std::env::var("WARRANT_TOKEN")) {
        (Some(file), _) => std::fs::read_to_string(file)
            .with_context(|| format!("cannot read {}", file.display()))?,
        (None, Ok(token)) if !token.is_empty() => token,
        _ => io::read_to_string(io::stdin()).context("no token on standard input")?,
    };
    let token = token.trim();
    if token.is_empty() || token.contains(char::is_whitespace) {
        return Err(Misuse::of(anyhow::anyhow!("that is no token: one word is")));
    }
    let key = arguments.plane_key.as_deref().map(keys::read_public).transpose()?;
    let ca = plane.plane_ca.as_deref();
    let own = home_of(home).ok().map(|home| OwnPlane::find(&home, address)).transpose()?.flatten();
    let http = match &own {
        Some(own) => own.http(address)?,
        None => Http::new(address, ca).map_err(|error| Misuse::of(error.into()))?,
    };
    http.get("/v1/policy", Some(token)).context("the plane does not accept the token")?;
    let file = write_login(home, (address.trim_end_matches('/'), token), (key.as_ref(), ca))?;
    if arguments.json {
        let file = file.to_string_lossy();
        ui::json(&json!({"plane": http.base(), "file": file, "hasPlaneKey": key.is_some()}));
    } else {
        ui::note(&format!("logged in to {}; kept in {}", http.base(), file.display()));
    }
    Ok(Exit::Success)
}

/// `warrant runs`.
pub(crate) fn runs(plane: &PlaneClient, arguments: &Runs) -> anyhow::Result<Exit> {
    let mut path = format!("/v1/runs?limit={}", arguments.limit);
    if let Some(cursor) = &arguments.before {
        let is_cursor = cursor.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
        if !is_cursor {
            return Err(Misuse::of(anyhow::anyhow!("--before is no cursor")));
        }
        path.push_str(&format!("&cursor={cursor}"));
    }
    let answer = plane.get(&path)?;
    if arguments.json {
        ui::json(&answer);
        return Ok(Exit::Success);
    }
    let rows = answer.get("runs").and_then(Value::as_array).cloned().unwrap_or_default();
    if rows.is_empty() {
        ui::note("no runs yet; try: warrant run 'echo hello'");
    }
    let most = usize::try_from(arguments.limit).unwrap_or(usize::MAX);
    for row in rows.iter().take(most) {
        let word =
            |name: &str| ui::printable(row.get(name).and_then(Value::as_str).unwrap_or_default());
        let state = if row.get("state").is_some() { word("state") } else { word("status") };
        let task: String = word("prompt").chars().take(60).collect();
        ui::data(&reading::line((&word("runId"), &state), &word("createdAt"), &task));
    }
    if let Some(next) = answer.get("next").and_then(Value::as_str) {
        ui::note(&format!("older ones: warrant runs --before {next}"));
    }
    Ok(Exit::Success)
}

/// `warrant runners`.
pub(crate) fn runners(plane: &PlaneClient, as_json: bool) -> anyhow::Result<Exit> {
    let answer = plane.get("/v1/runners")?;
    if as_json {
        ui::json(&answer);
        return Ok(Exit::Success);
    }
    let rows = answer.get("runners").and_then(Value::as_array).cloned().unwrap_or_default();
    if rows.is_empty() {
        ui::note("no runner is enrolled; see warrant runner start --help");
    }
    for row in &rows {
        let word =
            |name: &str| ui::printable(row.get(name).and_then(Value::as_str).unwrap_or_default());
        let seen = match row.get("lastSeenAt").and_then(Value::as_str) {
            Some(at) => format!("seen {}", ui::printable(at)),
            None => format!("enrolled {}", word("enrolledAt")),
        };
        let is = |name: &str| row.get(name).and_then(Value::as_bool) == Some(true);
        let state = match (is("revoked"), is("unreachable")) {
            (true, _) => "  revoked",
            (false, true) => "  unreachable",
            (false, false) => "",
        };
        ui::data(&format!(
            "{}  {:<12} {}  {seen}{state}\n",
            word("runnerId"),
            word("pool"),
            word("keyId")
        ));
    }
    Ok(Exit::Success)
}

/// `warrant approvals`.
pub(crate) fn approvals(plane: &PlaneClient, as_json: bool) -> anyhow::Result<Exit> {
    let answer = plane.get("/v1/runs?status=awaiting_approval")?;
    let rows = answer.get("runs").and_then(Value::as_array).cloned().unwrap_or_default();
    let waits =
        |row: &&Value| row.get("status").and_then(Value::as_str) == Some("awaiting_approval");
    let waiting: Vec<Value> = rows.iter().filter(waits).cloned().collect();
    if as_json {
        ui::json(&json!({"approvals": waiting}));
        return Ok(Exit::Success);
    }
    if waiting.is_empty() {
        ui::note("nothing waits for approval");
    }
    for row in &waiting {
        let text = |pointer: &str| {
            ui::printable(row.pointer(pointer).and_then(Value::as_str).unwrap_or_default())
        };
        ui::data(&format!("{}  {}\n", text("/runId"), text("/prompt")));
        ui::data(&format!("  asked by {}\n", text("/requestedBy/id")));
    }
    Ok(Exit::Success)
}

/// `warrant approve`.
pub(crate) fn approve(plane: &PlaneClient, arguments: &Approve) -> anyhow::Result<Exit> {
    if arguments.key.is_some() || arguments.name.is_some() {
        return Err(Misuse::of(anyhow::anyhow!(
            "--key and --as are for this machine; a plane knows you by your token"
        )));
    }
    let run = run_id(&arguments.run)?;
    let answer = plane.post_about(&run, "approve", &json!({}))?;
    told(&answer, arguments.json, &format!("approved {run}"))
}

/// `warrant deny`.
pub(crate) fn deny(plane: &PlaneClient, arguments: &Deny) -> anyhow::Result<Exit> {
    let run = run_id(&arguments.run)?;
    let body = match &arguments.reason {
        Some(reason) => json!({"reason": reason}),
        None => json!({}),
    };
    let answer = plane.post_about(&run, "deny", &body)?;
    told(&answer, arguments.json, &format!("refused {run}"))
}

/// `warrant cancel`.
pub(crate) fn cancel(plane: &PlaneClient, arguments: &Cancel) -> anyhow::Result<Exit> {
    let run = run_id(&arguments.run)?;
    let answer = plane.post_about(&run, "cancel", &json!({}))?;
    let word = answer.get("status").and_then(Value::as_str).unwrap_or("stopping");
    let line = format!("{run}: {}", ui::printable(word));
    told(&answer, arguments.json, &line)
}

fn told(answer: &Value, as_json: bool, line: &str) -> anyhow::Result<Exit> {
    if as_json {
        ui::json(answer)
    } else {
        ui::note(line)
    }
    Ok(Exit::Success)
}

/// `warrant bundle`.
pub(crate) fn bundle(plane: &PlaneClient, arguments: &Bundle) -> anyhow::Result<Exit> {
    let bundle = ended(plane, &run_id(&arguments.run)?)?;
    match &arguments.out {
        Some(file) => {
            std::fs::write(file, format!("{bundle}\n"))
                .with_context(|| format!("cannot write {}", file.display()))?;
            reading::wrote(&arguments.run, file, arguments.json);
        }
        None => ui::data(&format!("{bundle}\n")),
    }
    Ok(Exit::Success)
}

/// `warrant log` and `warrant diff`.
pub(crate) fn artifact(plane: &PlaneClient, log: &Log, kind: &str) -> anyhow::Result<Exit> {
    let run = run_id(&log.run)?;
    let bundle = ended(plane, &run)?;
    let digest = artifact_of(&bundle, kind);
    let bytes = match &digest {
        Some(digest) => plane.blob(digest, &Meter::on_terminal())?,
        None => Vec::new(),
    };
    if log.json {
        let text = String::from_utf8_lossy(&bytes);
        ui::json(&json!({"runId": run, "kind": kind, "hash": digest, "text": text}));
    } else if digest.is_none() {
        ui::note(&format!("{run} has no {kind}"));
    } else {
        copy_to_stdout(&mut bytes.as_slice(), log.raw.into()).context("cannot print it")?;
    }
    Ok(Exit::Success)
}

/// `warrant export`.
pub(crate) fn export(plane: &PlaneClient, arguments: &Export) -> anyhow::Result<Exit> {
    let path = match &arguments.since {
        Some(text) => {
            let since: warrant_protocol::Timestamp = text.parse().map_err(|error| {
                Misuse::of(anyhow::Error::new(error).context(format!("--since {text}")))
            })?;
            format!("/v1/export?since={}", since.to_string().replace(':', "%3A"))
        }
        None => "/v1/export".to_owned(),
    };
    let mut stream = plane.stream(&path)?;
    match io::copy(&mut stream, &mut io::stdout().lock()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(error).context("the export broke off")
        }
        _ => Ok(Exit::Success),
    }
}

/// `warrant pull`.
pub(crate) fn pull(
    home: Option<&Path>,
    plane: &PlaneClient,
    arguments: &Pull,
) -> anyhow::Result<Exit> {
    let run = run_id(&arguments.run)?;
    let bundle = ended(plane, &run)?;
    let diff_hash = bundle.pointer("/receipt/workspaceOut/diffHash").and_then(Value::as_str);
    let digest = diff_hash.and_then(|hash| hash.parse::<Digest>().ok());
    let commits = pulling::commits_of(&bundle)?;
    if digest.is_none() && commits.is_none() {
        ui::note(&format!("{run} changed nothing"));
        return Ok(Exit::Success);
    }
    if let Some(key) = &plane.plane_key {
        // SECURITY: what is applied must be what the pinned plane countersigned.
        let evidence = Evidence::from_value(bundle.clone());
        let evidence = evidence.map_err(|malformed| anyhow::anyhow!(malformed.0))?;
        let trusted = trusted(plane, &bundle, key)?;
        if let Err(problems) = warrant_protocol::verify::verify(evidence, &trusted) {
            let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
            bail!("the run does not verify, so nothing is pulled: {}", problems.join("; "));
        }
    }
    let base = bundle.pointer("/contract/workspace/baseRef").and_then(Value::as_str);
    let meter = Meter::on_terminal();
    let diff = match &digest {
        Some(digest) => plane.blob(digest, &meter)?,
        None => Vec::new(),
    };
    let desk = Desk::open(home)?;
    let repo = std::fs::canonicalize(&arguments.repo)
        .with_context(|| format!("no repository at {}", arguments.repo.display()))?;
    let scratch = reading::scratch(&desk)?;
    let (journal, _) = open_journal(&desk, &repo)?;
    let options = PullOptions {
        scratch: scratch.path(),
        run_id: run.as_str(),
        base_ref: base.context("the run started from no commit")?,
        branch: if arguments.branch { BranchWish::Always } else { BranchWish::WhenNeeded },
        branch_prefix: "warrant/",
        at: SystemTime::now(),
        policy: &gate(&desk),
        released: &pulling::released(&arguments.released)?,
    };
    meter.doing("applying the changes");
    let (digest, updates) = commits.unzip();
    let kept = match &digest {
        Some(digest) => {
            let bytes = plane.blob(digest, &meter)?;
            Some(pulling::copied(&mut bytes.as_slice(), scratch.path())?)
        }
        None => None,
    };
    let updates = updates.unwrap_or_default();
    let commits = kept.as_ref().map(|bundle| PullCommits { bundle, updates: &updates });
    let work = PullWork { options, commits };
    let pulled = pull_with_commits(&repo, &mut diff.as_slice(), &journal, &work)?;
    drop(meter);
    pulling::tell(&pulled, arguments.json);
    Ok(Exit::Success)
}

/// Returns the bundle of a run of the plane and the keys it is checked against.
pub(crate) fn evidence(
    plane: &PlaneClient,
    run: &str,
) -> anyhow::Result<(Value, Option<TrustedKeys>)> {
    let bundle = ended(plane, &run_id(run)?)?;
    let trusted = match &plane.plane_key {
        Some(key) => Some(trusted(plane, &bundle, key)?),
        None => None,
    };
    Ok((bundle, trusted))
}

/// The plane's key is the one given at login; a runner's is believed when the plane lists it.
fn trusted(plane: &PlaneClient, bundle: &Value, key: &PublicKey) -> anyhow::Result<TrustedKeys> {
    let trusted = TrustedKeys::none().and(KeyRole::Plane, key.clone());
    let pem = bundle.pointer("/keys/runnerPublicKeyPem").and_then(Value::as_str);
    let Some(runner) = pem.and_then(|pem| PublicKey::from_pem(pem).ok()) else {
        return Ok(trusted);
    };
    let listed = plane.get("/v1/runners")?;
    let runners = listed.get("runners").and_then(Value::as_array).cloned().unwrap_or_default();
    let is_listed = runners
        .iter()
        .any(|row| row.get("keyId").and_then(Value::as_str) == Some(runner.id().as_str()));
    Ok(if is_listed { trusted.and(KeyRole::Runner, runner) } else { trusted })
}

fn ended(plane: &PlaneClient, run: &RunId) -> anyhow::Result<Value> {
    let meter = Meter::on_terminal();
    meter.doing("fetching the bundle");
    match plane.bundle(run)? {
        Some(bundle) => Ok(bundle),
        None => bail!("{run} has no receipt yet, or is not there; see warrant watch {run}"),
    }
}

/// Returns the newest artifact of a kind on a bundle's chain.
fn artifact_of(bundle: &Value, kind: &str) -> Option<Digest> {
    let events = bundle.get("events")?.as_array()?;
    let hash = events.iter().rev().find_map(|link| {
        let event = link.get("event")?;
        let is_wanted = event.get("type")?.as_str()? == "artifact.created"
            && event.get("kind")?.as_str()? == kind;
        is_wanted.then(|| event.get("hash"))?
    })?;
    hash.as_str()?.parse().ok()
}
