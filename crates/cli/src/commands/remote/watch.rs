//! `warrant watch`: a run as it happens, to its end.
//!
//! What the program prints goes to stdout, byte for byte when that is no terminal; what happens to
//! the run goes to stderr. With `--json` stdout has one object per event and one for the end.

use std::io::{self, BufRead as _, BufReader, IsTerminal as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use warrant_protocol::story::summarize;
use warrant_protocol::{ChainedEvent, RunId, error_chain};
use warrant_runner::remote::CallError;

use super::artifact_of;
use super::output::{OnGap, OutputPrinter};
use crate::args::Watch;
use crate::commands::ending::RunEnding;
use crate::exit::Exit;
use crate::plane_client::{PlaneClient, run_id};
use crate::progress::Meter;
use crate::ui::{self, Tone, paint};

/// How often a plane is asked that does not tell by itself.
const POLL: Duration = Duration::from_millis(500);
/// How long to wait after a stream broke off.
const AGAIN: Duration = Duration::from_millis(300);
/// How long a plane may be away before the person is told to come back later.
const MOST_ABSENCE: Duration = Duration::from_secs(600);

/// `warrant watch`.
pub(crate) fn watch(plane: &PlaneClient, arguments: &Watch) -> anyhow::Result<Exit> {
    let run = run_id(&arguments.run)?;
    let following = Following { format: Format::of(arguments.json), on_gap: OnGap::Skip };
    follow(plane, &run, following)
}

/// What stdout gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    /// The program's output.
    Output,
    /// One JSON object per event, and one for the end.
    Json,
}

impl Format {
    /// Returns the format that `--json` asks for or does not.
    pub(crate) const fn of(is_json: bool) -> Self {
        if is_json { Self::Json } else { Self::Output }
    }
}

/// How a run is followed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Following {
    /// What stdout gets.
    pub(crate) format: Format,
    /// What becomes of output that did not arrive live.
    pub(crate) on_gap: OnGap,
}

/// Shows a run to its end, and returns how it ended.
pub(crate) fn follow(
    plane: &PlaneClient,
    run: &RunId,
    following: Following,
) -> anyhow::Result<Exit> {
    // The first look also says whether there is such a run.
    plane.view(run)?;
    let printer = OutputPrinter::new(following.on_gap, format!("all of it: warrant log {run}"));
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        if following.format == Format::Output {
            scope.spawn(|| show_output(plane, run, (&printer, &is_over)));
        }
        let followed = follow_events(plane, run, following.format);
        is_over.store(true, Ordering::Release);
        followed
    })?;
    conclude(plane, run, (&printer, following.format))
}

/// Shows events until the run is over.
fn follow_events(plane: &PlaneClient, run: &RunId, format: Format) -> anyhow::Result<()> {
    let mut shown = 0;
    let mut heard = Instant::now();
    let mut is_away = false;
    loop {
        let before = shown;
        let ended = match stream(plane, run, (&mut shown, format)) {
            Ok(is_over) => Ok(is_over),
            Err(CallError::Refused { status: 404 | 405, .. }) => {
                let is_over = look(plane, run, (&mut shown, format))?;
                if !is_over {
                    std::thread::sleep(POLL);
                }
                Ok(is_over)
            }
            Err(error) if error.is_transient() => Err(error),
            Err(error) => return Err(error.into()),
        };
        match ended {
            Ok(true) => return Ok(()),
            Ok(false) => heard = Instant::now(),
            Err(error) if heard.elapsed() > MOST_ABSENCE => {
                let text = format!("the plane is away; go on later with: warrant watch {run}");
                return Err(anyhow::Error::new(error).context(text));
            }
            Err(error) if !is_away => {
                is_away = true;
                let error = error_chain(&error);
                ui::note(&format!("warrant: {error}; the run goes on, and so does this command"));
            }
            Err(_) => {}
        }
        if shown > before {
            is_away = false;
        }
        std::thread::sleep(AGAIN);
    }
}

/// Shows events as the plane tells them; returns whether the run is over.
fn stream(
    plane: &PlaneClient,
    run: &RunId,
    (shown, format): (&mut u64, Format),
) -> Result<bool, CallError> {
    let path = format!("/v1/runs/{run}/events");
    let mut reader = EventReader::new(plane.events(&path, shown.checked_sub(1))?);
    while let Some(event) = reader.next() {
        match event.kind.as_str() {
            "event" => {
                if let Ok(event) = serde_json::from_str::<ChainedEvent>(&event.data) {
                    show(&event, shown, format);
                }
            }
            "end" => return Ok(true),
            _ => {}
        }
    }
    Ok(false)
}

/// Looks at the run once; returns whether it is over.
fn look(
    plane: &PlaneClient,
    run: &RunId,
    (shown, format): (&mut u64, Format),
) -> anyhow::Result<bool> {
    let view = plane.view(run)?;
    for event in &view.events {
        show(event, shown, format);
    }
    Ok(matches!(view.status.as_str(), "completed" | "failed" | "cancelled"))
}

/// Shows an event that was not shown before.
pub(crate) fn show(event: &ChainedEvent, shown: &mut u64, format: Format) {
    if event.seq() < *shown {
        return;
    }
    *shown = event.seq() + 1;
    let is_terminal = io::stderr().is_terminal();
    match format {
        Format::Json => {
            if let Ok(value) = serde_json::to_value(event) {
                ui::json(&value);
            }
        }
        // A program that reads stderr wants what went wrong; a person wants to see it happen.
        Format::Output if is_terminal => {
            let summary = summarize(event);
            let line = format!("{:>3} {:<22} {}", event.seq(), summary.label, summary.detail);
            ui::note(&paint(&ui::printable(&line), Tone::Quiet, is_terminal));
        }
        Format::Output => {}
    }
}

/// Prints the program's output as the plane tells it, until the run is over.
fn show_output(
    plane: &PlaneClient,
    run: &RunId,
    (printer, is_over): (&OutputPrinter, &AtomicBool),
) {
    let path = format!("/v1/runs/{run}/logs");
    while !is_over.load(Ordering::Acquire) {
        match plane.events(&path, Some(printer.next())) {
            Ok(stream) => {
                let mut reader = EventReader::new(stream);
                while let Some(event) = reader.next() {
                    match (event.kind.as_str(), event.id, STANDARD.decode(&event.data)) {
                        ("end", ..) => return,
                        ("log", Some(end), Ok(bytes)) => printer.print_piece(end, &bytes),
                        _ => {}
                    }
                }
            }
            // Whatever is not shown live is printed when the run is over.
            Err(error) if !error.is_transient() => return,
            Err(_) => {}
        }
        std::thread::sleep(AGAIN);
    }
}

/// Prints what is left of the output, says how the run ended, and returns its exit code.
fn conclude(
    plane: &PlaneClient,
    run: &RunId,
    (printer, format): (&OutputPrinter, Format),
) -> anyhow::Result<Exit> {
    let bundle = plane.bundle(run)?;
    let log = bundle.as_ref().map_or(Ok(Vec::new()), |bundle| whole_log(plane, bundle));
    let status = match &bundle {
        Some(_) => String::new(),
        None => plane.view(run)?.status.as_str().to_owned(),
    };
    let ending = RunEnding::read(run, bundle.as_ref(), &status);
    match format {
        Format::Json => {
            let log = log.context("the output cannot be fetched")?;
            ui::json(&ending.json(log));
        }
        Format::Output => {
            match &log {
                Ok(log) => printer.print_rest(log),
                Err(error) => printer.lose_rest(error),
            }
            ending.note();
        }
    }
    Ok(ending.exit())
}

/// Returns everything the program printed.
fn whole_log(plane: &PlaneClient, bundle: &Value) -> anyhow::Result<Vec<u8>> {
    match artifact_of(bundle, "log") {
        Some(digest) => plane.blob(&digest, &Meter::on_terminal()),
        None => Ok(Vec::new()),
    }
}

/// One server-sent event.
#[derive(Debug, Default)]
struct ServerEvent {
    id: Option<u64>,
    kind: String,
    data: String,
}

/// Reads server-sent events until the stream ends or breaks off.
struct EventReader<R> {
    lines: io::Lines<BufReader<R>>,
}

impl<R: io::Read> EventReader<R> {
    fn new(stream: R) -> Self {
        Self { lines: BufReader::new(stream).lines() }
    }

    /// Returns the next event; one that was cut off is none.
    fn next(&mut self) -> Option<ServerEvent> {
        let mut event = ServerEvent::default();
        loop {
            let line = self.lines.next()?.ok()?;
            if line.is_empty() {
                if event.kind.is_empty() && event.data.is_empty() {
                    continue;
                }
                return Some(event);
            }
            if let Some(id) = line.strip_prefix("id: ") {
                event.id = id.parse().ok();
            } else if let Some(kind) = line.strip_prefix("event: ") {
                kind.clone_into(&mut event.kind);
            } else if let Some(data) = line.strip_prefix("data: ") {
                data.clone_into(&mut event.data);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_that_was_cut_off_is_no_event() {
        let stream =
            b": here\n\nid: 5\nevent: log\ndata: aGk=\n\nid: 9\nevent: log\ndata: a".as_slice();
        let mut reader = EventReader::new(stream);
        let event = reader.next().unwrap();
        assert_eq!((event.id, event.kind.as_str(), event.data.as_str()), (Some(5), "log", "aGk="));
        assert!(reader.next().is_none());
    }
}
