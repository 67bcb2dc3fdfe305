//! The reading room: runs, bundles, logs, diffs and exports of this machine.

use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use anyhow::{Context as _, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use warrant_plane::store::{RunFilter, RunRow};
use warrant_protocol::event::ArtifactKind;
use warrant_protocol::observation::CaptureExtent;
use warrant_protocol::{ChainedEvent, Digest, Event, RunId, RunState, Timestamp};

use crate::args::{Bundle, Export, Log, Runs, Watch};
use crate::commands::ending::RunEnding;
use crate::commands::remote::output::{OnGap, OutputPrinter};
use crate::commands::remote::watch::{Format, show};
use crate::exit::{Exit, Misuse};
use crate::terminal::copy_to_stdout;
use crate::ui;
use warrant_govern::Desk;
use warrant_govern::archive::run_named;
use warrant_plane::Records;
use warrant_workspace::RefUpdate;

/// `warrant runs`.
pub(crate) fn runs(records: Records<'_>, arguments: &Runs) -> anyhow::Result<Exit> {
    let before = arguments.before.as_deref().map(str::parse).transpose();
    let before = before.context("--before is no cursor").map_err(Misuse::of)?;
    let filter = RunFilter { state: None, before, limit: Some(arguments.limit) };
    let page = records.store().list(&filter)?;
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
        let (id, at) = (row.id.to_string(), row.created_at.to_string());
        ui::data(&line((&id, row.state.as_str()), &at, &task));
    }
    if let Some(next) = page.next {
        ui::note(&format!("older ones: warrant runs --before {next}"));
    }
    Ok(Exit::Success)
}

/// Returns one run as a line whose columns stand below each other, whatever its state.
pub(crate) fn line((id, state): (&str, &str), created_at: &str, task: &str) -> String {
    let width = RunState::ALL.iter().map(|state| state.as_str().len()).max().unwrap_or_default();
    format!("{id}  {state:<width$}  {created_at}  {task}\n")
}

/// Says where a bundle was written.
pub(crate) fn wrote(run: &str, file: &Path, as_json: bool) {
    if as_json {
        ui::json(&json!({"runId": run, "file": file.to_string_lossy()}));
    } else {
        ui::note(&format!("wrote {}", file.display()));
    }
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
pub(crate) fn bundle(records: Records<'_>, arguments: &Bundle) -> anyhow::Result<Exit> {
    let run = run_named(records, &arguments.run)?;
    match &arguments.out {
        Some(file) => {
            write_bundle(records, &run, file)?;
            wrote(run.as_str(), file, arguments.json);
        }
        None => ui::data(&format!("{}\n", records.bundle(&run)?)),
    }
    Ok(Exit::Success)
}

/// Writes a run's bundle to a file.
pub(crate) fn write_bundle(records: Records<'_>, run: &RunId, file: &Path) -> anyhow::Result<()> {
    let bundle = records.bundle(run).with_context(|| format!("{run} has no bundle yet"))?;
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
pub(crate) fn log(records: Records<'_>, arguments: &Log) -> anyhow::Result<Exit> {
    copy_artifact(records, arguments, ArtifactKind::Log)
}

/// `warrant diff`.
pub(crate) fn diff(records: Records<'_>, arguments: &Log) -> anyhow::Result<Exit> {
    copy_artifact(records, arguments, ArtifactKind::Diff)
}

fn copy_artifact(
    records: Records<'_>,
    arguments: &Log,
    kind: ArtifactKind,
) -> anyhow::Result<Exit> {
    let run = run_named(records, &arguments.run)?;
    let found = artifact(records, &run, kind)?;
    if kind == ArtifactKind::Diff && found.is_none() {
        check_unchanged(records, &run)?;
    }
    if arguments.json {
        let bytes = match &found {
            Some(digest) => blob_bytes(records, digest)?,
            None => Vec::new(),
        };
        let mut object = json!({"runId": run, "kind": kind.as_str(), "hash": found});
        insert_bytes(&mut object, ("text", "base64"), bytes);
        ui::json(&object);
        return Ok(Exit::Success);
    }
    let Some(digest) = found else {
        let still = if records.store().run(&run)?.state.is_terminal() { "" } else { " yet" };
        ui::note(&format!("{run} has no {}{still}", kind.as_str()));
        return Ok(Exit::Success);
    };
    let mut blob = open_blob(records, &digest)?;
    copy_to_stdout(&mut blob, arguments.raw.into()).context("cannot print it")?;
    Ok(Exit::Success)
}

/// Returns what a run's program said.
pub(crate) fn log_bytes(records: Records<'_>, run: &RunId) -> anyhow::Result<Vec<u8>> {
    match artifact(records, run, ArtifactKind::Log)? {
        Some(digest) => blob_bytes(records, &digest),
        None => Ok(Vec::new()),
    }
}

fn blob_bytes(records: Records<'_>, digest: &Digest) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_blob(records, digest)?.read_to_end(&mut bytes).context("a blob does not read back")?;
    Ok(bytes)
}

/// Puts bytes into an object as text. Those that are none are replaced there, and a second member
/// has them all in base64.
pub(crate) fn insert_bytes(object: &mut Value, (text, exact): (&str, &str), bytes: Vec<u8>) {
    let Value::Object(members) = object else { return };
    let value = match String::from_utf8(bytes) {
        Ok(value) => value,
        Err(error) => {
            members.insert(exact.to_owned(), json!(STANDARD.encode(error.as_bytes())));
            String::from_utf8_lossy(error.as_bytes()).into_owned()
        }
    };
    members.insert(text.to_owned(), json!(value));
}

/// Returns the digest of the newest artifact of a kind on the run's chain.
pub(crate) fn artifact(
    records: Records<'_>,
    run: &RunId,
    wanted: ArtifactKind,
) -> anyhow::Result<Option<Digest>> {
    let mut found = None;
    for row in records.store().events(run)? {
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

/// Returns the references of the workspace's own repository that a run changed.
pub(crate) fn ref_updates(records: Records<'_>, run: &RunId) -> anyhow::Result<Vec<RefUpdate>> {
    let mut updates = Vec::new();
    for row in records.store().events(run)? {
        let event: Value =
            serde_json::from_str(&row.body).context("a stored event does not read back")?;
        let body = event.get("event").cloned().unwrap_or_default();
        if let Ok(Event::GitRefUpdated { reference, repository: None, old, new }) =
            serde_json::from_value(body)
        {
            let update = RefUpdate::parse(&reference, old.as_deref(), new.as_deref());
            updates.push(update.with_context(|| format!("{reference} is not a reference"))?);
        }
    }
    Ok(updates)
}

/// Fails for a run that changed files of which no diff was kept, and for one of which nobody saw
/// everything it may have changed.
pub(crate) fn check_unchanged(records: Records<'_>, run: &RunId) -> anyhow::Result<()> {
    for row in records.store().events(run)? {
        let event: Value =
            serde_json::from_str(&row.body).context("a stored event does not read back")?;
        let body = event.get("event").cloned().unwrap_or_default();
        match serde_json::from_value(body) {
            Ok(Event::FileChanged { .. }) => {
                bail!(
                    "{run} changed files, but no diff of them was kept; see warrant receipt {run}"
                )
            }
            Ok(Event::CaptureRecorded { extent, reason, .. })
                if extent != CaptureExtent::Complete =>
            {
                let reason = reason.unwrap_or_else(|| "no reason given".to_owned());
                bail!(
                    "what {run} changed was not captured ({}): {}; see warrant receipt {run}",
                    extent.as_str(),
                    ui::printable(&reason)
                )
            }
            _ => {}
        }
    }
    Ok(())
}

/// Opens a blob of the store.
pub(crate) fn open_blob(records: Records<'_>, digest: &Digest) -> anyhow::Result<Box<dyn Read>> {
    match records.store().blob(digest)? {
        Some(reader) => Ok(Box::new(reader)),
        None => bail!("blob {digest} is not here any more"),
    }
}

/// `warrant export`.
pub(crate) fn export(records: Records<'_>, arguments: &Export) -> anyhow::Result<Exit> {
    let since = match &arguments.since {
        Some(text) => text
            .parse()
            .with_context(|| format!("--since {text}: write it as 2026-01-31T00:00:00.000Z"))
            .map_err(Misuse::of)?,
        None => Timestamp::from_unix_ms(0)?,
    };
    let mut out = Stdout(Ok(()));
    let exported = records.export(since, &mut out);
    if out.0.is_ok() {
        exported?;
    }
    // Whoever reads no further, as after `| head`, has what they wanted.
    ui::note_loss(out.0);
    Ok(Exit::Success)
}

/// Standard output that remembers why it cannot be written.
struct Stdout(io::Result<()>);

impl Stdout {
    fn remember<T>(&mut self, done: io::Result<T>) -> io::Result<T> {
        done.inspect_err(|error| self.0 = Err(error.kind().into()))
    }
}

impl io::Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = io::stdout().write(bytes);
        self.remember(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        let flushed = io::stdout().flush();
        self.remember(flushed)
    }
}

/// `warrant watch`, for a run of this machine: what its chain says, until it ends.
pub(crate) fn watch(desk: &Desk, arguments: &Watch) -> anyhow::Result<Exit> {
    let run = desk.run_named(&arguments.run)?;
    let mut shown = 0;
    let format = Format::of(arguments.json);
    loop {
        let state = desk.plane().store().run(&run)?.state;
        for row in desk.plane().store().events_from(&run, shown)? {
            let event: ChainedEvent =
                serde_json::from_str(&row.body).context("a stored event does not read back")?;
            show(&event, &mut shown, format);
        }
        if state.is_terminal() {
            return conclude_watch(desk.plane().records(), &run, format);
        }
        // Another process writes the chain; the store has no way to call us.
        std::thread::sleep(std::time::Duration::from_millis(200));
        desk.plane().seal_lost()?;
    }
}

/// Prints what the program printed, says how the run ended, and returns its exit code.
fn conclude_watch(records: Records<'_>, run: &RunId, format: Format) -> anyhow::Result<Exit> {
    let bundle = records.bundle(run).with_context(|| format!("{run} has no bundle"))?;
    let ending = RunEnding::read(run, Some(&bundle), "");
    let log = log_bytes(records, run)?;
    match format {
        Format::Json => ui::json(&ending.json(log)),
        Format::Output => {
            let printer = OutputPrinter::new(OnGap::Wait, String::new());
            printer.print_rest(&log);
            ending.note();
        }
    }
    Ok(ending.exit())
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
