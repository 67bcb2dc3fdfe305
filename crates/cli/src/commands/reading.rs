//! The reading room: runs, bundles, logs, diffs and exports of this machine.

use std::fs::{self, OpenOptions};
use std::io::{self, IsTerminal as _, Read, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use anyhow::{Context as _, bail};
use serde_json::{Value, json};
use warrant_plane::store::{RunFilter, RunRow};
use warrant_protocol::event::ArtifactKind;
use warrant_protocol::{ChainedEvent, Digest, Event, RunId, Timestamp};

use crate::args::{Bundle, Export, Log, Runs, Watch};
use crate::commands::remote::watch::{Style, show};
use crate::exit::Exit;
use crate::ui;
use warrant_govern::Desk;

/// `warrant runs`.
pub(crate) fn runs(desk: &Desk, arguments: &Runs) -> anyhow::Result<Exit> {
    let before =
        arguments.before.as_deref().map(str::parse).transpose().context("--before is no cursor")?;
    let filter = RunFilter { state: None, before, limit: Some(arguments.limit) };
    let page = desk.plane().store().list(&filter)?;
    if arguments.json {
        let rows: Vec<Value> = page.runs.iter().map(row_json).collect();
        ui::json(&json!({"runs": rows, "next": page.next}));
        return Ok(Exit::Success);
    }
    if page.runs.is_empty() {
        ui::note("no runs yet; try: warrant sandbox exec -- echo hello");
    }
    for row in &page.runs {
        let task: String = ui::printable(&row.prompt).chars().take(60).collect();
        ui::data(&format!("{}  {:<10} {}  {task}\n", row.id, row.state.as_str(), row.created_at));
    }
    if let Some(next) = page.next {
        ui::note(&format!("older ones: warrant runs --before {next}"));
    }
    Ok(Exit::Success)
}

fn row_json(row: &RunRow) -> Value {
    json!({
        "runId": row.id,
        "state": row.state.as_str(),
        "isolation": row.isolation,
        "prompt": row.prompt,
        "requestedBy": row.requested_by,
        "policyHash": row.policy_hash,
        "createdAt": row.created_at,
        "updatedAt": row.updated_at,
        "hasReceipt": row.has_receipt,
    })
}

/// `warrant bundle`.
pub(crate) fn bundle(desk: &Desk, arguments: &Bundle) -> anyhow::Result<Exit> {
    let run = desk.run_named(&arguments.run)?;
    match &arguments.out {
        Some(file) => {
            write_bundle(desk, &run, file)?;
            ui::note(&format!("wrote {}", file.display()));
        }
        None => ui::data(&format!("{}\n", desk.plane().bundle(&run)?)),
    }
    Ok(Exit::Success)
}

/// Writes a run's bundle to a file.
pub(crate) fn write_bundle(desk: &Desk, run: &RunId, file: &Path) -> anyhow::Result<()> {
    let bundle = desk.plane().bundle(run).with_context(|| format!("{run} has no bundle yet"))?;
    let mut out = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(file)
        .with_context(|| format!("cannot write {}", file.display()))?;
    out.write_all(format!("{bundle}\n").as_bytes())
        .with_context(|| format!("cannot write {}", file.display()))
}

/// `warrant log`.
pub(crate) fn log(desk: &Desk, arguments: &Log) -> anyhow::Result<Exit> {
    copy_artifact(desk, &arguments.run, ArtifactKind::Log)
}

/// `warrant diff`.
pub(crate) fn diff(desk: &Desk, arguments: &Log) -> anyhow::Result<Exit> {
    copy_artifact(desk, &arguments.run, ArtifactKind::Diff)
}

fn copy_artifact(desk: &Desk, run: &str, kind: ArtifactKind) -> anyhow::Result<Exit> {
    let run = desk.run_named(run)?;
    let Some(digest) = artifact(desk, &run, kind)? else {
        ui::note(&format!("{run} has no {}", kind.as_str()));
        return Ok(Exit::Success);
    };
    let mut blob = open_blob(desk, &digest)?;
    match io::copy(&mut blob, &mut io::stdout().lock()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(error).context("cannot print it")
        }
        _ => Ok(Exit::Success),
    }
}

/// Returns what a run's program said, for `--json`; bytes that are not UTF-8 are replaced.
pub(crate) fn log_text(desk: &Desk, run: &RunId) -> anyhow::Result<String> {
    let Some(digest) = artifact(desk, run, ArtifactKind::Log)? else { return Ok(String::new()) };
    let mut bytes = Vec::new();
    open_blob(desk, &digest)?.read_to_end(&mut bytes).context("the log does not read back")?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Returns the digest of the newest artifact of a kind on the run's chain.
pub(crate) fn artifact(
    desk: &Desk,
    run: &RunId,
    wanted: ArtifactKind,
) -> anyhow::Result<Option<Digest>> {
    let mut found = None;
    for row in desk.plane().store().events(run)? {
        let event: Value =
            serde_json::from_str(&row.body).context("a stored event does not read back")?;
        let body = event.get("event").cloned().unwrap_or_default();
        if let Ok(Event::ArtifactCreated { kind, hash }) = serde_json::from_value(body)
            && kind == wanted
        {
            found = Some(hash);
        }
    }
    Ok(found)
}

/// Opens a blob of the store.
pub(crate) fn open_blob(desk: &Desk, digest: &Digest) -> anyhow::Result<Box<dyn Read>> {
    match desk.plane().store().blob(digest)? {
        Some(reader) => Ok(Box::new(reader)),
        None => bail!("blob {digest} is not here any more"),
    }
}

/// `warrant export`.
pub(crate) fn export(desk: &Desk, arguments: &Export) -> anyhow::Result<Exit> {
    let since = match &arguments.since {
        Some(text) => text
            .parse()
            .with_context(|| format!("--since {text}: write it as 2026-01-31T00:00:00.000Z"))?,
        None => Timestamp::from_unix_ms(0)?,
    };
    desk.plane().export(since, &mut io::stdout().lock())?;
    Ok(Exit::Success)
}

/// `warrant watch`, for a run of this machine: what its chain says, until it ends.
pub(crate) fn watch(desk: &Desk, arguments: &Watch) -> anyhow::Result<Exit> {
    let run = desk.run_named(&arguments.run)?;
    let mut shown = 0;
    let style = Style { is_pretty: !arguments.json && io::stdout().is_terminal() };
    loop {
        let state = desk.plane().store().run(&run)?.state;
        for row in desk.plane().store().events_from(&run, shown)? {
            let event: ChainedEvent =
                serde_json::from_str(&row.body).context("a stored event does not read back")?;
            show(&event, (&mut shown, style));
        }
        if state.is_terminal() {
            let is_good = state == warrant_protocol::RunState::Completed;
            return Ok(if is_good { Exit::Success } else { Exit::Failure });
        }
        // Another process writes the chain; the store has no way to call us.
        std::thread::sleep(std::time::Duration::from_millis(200));
        desk.plane().seal_lost()?;
    }
}

/// Reads the contract's base commit of a run, for pulling.
pub(crate) fn base_ref(desk: &Desk, run: &RunId) -> anyhow::Result<String> {
    let row = desk.plane().store().run(run)?;
    let request: Value =
        serde_json::from_str(&row.request).context("the stored request does not read back")?;
    let base = request.pointer("/workspace/baseRef").and_then(Value::as_str);
    Ok(base.context("the run started from no commit")?.to_owned())
}

/// Returns a fresh scratch directory below the home.
pub(crate) fn scratch(desk: &Desk) -> anyhow::Result<tempfile::TempDir> {
    let parent = desk.plane().home().data();
    fs::create_dir_all(&parent).context("the home cannot be used")?;
    tempfile::Builder::new().prefix("scratch-").tempdir_in(parent).context("no scratch directory")
}
