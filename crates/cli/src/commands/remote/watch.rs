//! `warrant watch`: a run as it happens, for people on a terminal and for programs in a pipe.

use std::io::{self, BufRead as _, BufReader, IsTerminal as _, Write as _};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use warrant_protocol::story::summarize;
use warrant_protocol::{ChainedEvent, Outcome, RunId};
use warrant_runner::remote::CallError;

use crate::args::Watch;
use crate::commands::exec::report::exit_of;
use crate::exit::Exit;
use crate::plane_client::{PlaneClient, run_id};
use crate::ui::{self, Tone, paint};

/// How often a plane is asked that does not tell by itself.
const POLL: Duration = Duration::from_millis(500);
/// How long to wait after a stream broke off.
const AGAIN: Duration = Duration::from_millis(300);

/// `warrant watch`.
pub(crate) fn watch(plane: &PlaneClient, arguments: &Watch) -> anyhow::Result<Exit> {
    let run = run_id(&arguments.run)?;
    let is_pretty = !arguments.json && io::stdout().is_terminal();
    follow(plane, &run, Style { is_pretty })
}

/// How a run is shown.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Style {
    /// Lines for people, instead of one JSON object per event.
    pub(crate) is_pretty: bool,
}

/// Shows a run to its end, and returns how it ended.
pub(crate) fn follow(plane: &PlaneClient, run: &RunId, style: Style) -> anyhow::Result<Exit> {
    let mut shown = 0;
    // The first look also says whether there is such a run.
    plane.view(run)?;
    std::thread::scope(|scope| {
        if style.is_pretty {
            scope.spawn(|| show_log(plane, run));
        }
        loop {
            let ended = match stream(plane, run, (&mut shown, style)) {
                Ok(is_over) => is_over,
                Err(CallError::Refused { status: 404 | 405, .. }) => {
                    let is_over = look(plane, run, (&mut shown, style))?;
                    if !is_over {
                        std::thread::sleep(POLL);
                    }
                    is_over
                }
                Err(error) if error.is_transient() => false,
                Err(error) => return Err(error.into()),
            };
            if ended {
                return conclude(plane, run, style);
            }
            std::thread::sleep(AGAIN);
        }
    })
}

/// Shows events as the plane tells them; returns whether the run is over.
fn stream(
    plane: &PlaneClient,
    run: &RunId,
    (shown, style): (&mut u64, Style),
) -> Result<bool, CallError> {
    let mut kind = String::new();
    let reader = BufReader::new(plane.stream(&format!("/v1/runs/{run}/events"))?);
    for line in reader.lines() {
        let Ok(line) = line else { return Ok(false) };
        if let Some(name) = line.strip_prefix("event: ") {
            name.clone_into(&mut kind);
        } else if let Some(data) = line.strip_prefix("data: ") {
            match kind.as_str() {
                "event" => {
                    if let Ok(event) = serde_json::from_str::<ChainedEvent>(data) {
                        show(&event, (shown, style));
                    }
                }
                "end" => return Ok(true),
                _ => {}
            }
        }
    }
    Ok(false)
}

/// Looks at the run once; returns whether it is over.
fn look(
    plane: &PlaneClient,
    run: &RunId,
    (shown, style): (&mut u64, Style),
) -> anyhow::Result<bool> {
    let view = plane.view(run)?;
    for event in &view.events {
        show(event, (shown, style));
    }
    Ok(matches!(view.status.as_str(), "completed" | "failed" | "cancelled"))
}

/// Shows an event that was not shown before.
pub(crate) fn show(event: &ChainedEvent, (shown, style): (&mut u64, Style)) {
    if event.seq() < *shown {
        return;
    }
    *shown = event.seq() + 1;
    if style.is_pretty {
        let summary = summarize(event);
        let line = format!("{:>3} {:<22} {}", event.seq(), summary.label, summary.detail);
        ui::note(&paint(&ui::printable(&line), Tone::Quiet, io::stderr().is_terminal()));
    } else if let Ok(value) = serde_json::to_value(event) {
        ui::json(&value);
    }
}

/// Passes the live output of the program through.
fn show_log(plane: &PlaneClient, run: &RunId) {
    let Ok(stream) = plane.stream(&format!("/v1/runs/{run}/logs")) else { return };
    let mut kind = String::new();
    for line in BufReader::new(stream).lines() {
        let Ok(line) = line else { return };
        if let Some(name) = line.strip_prefix("event: ") {
            name.clone_into(&mut kind);
            if kind == "end" {
                return;
            }
        } else if let Some(data) = line.strip_prefix("data: ")
            && kind == "log"
            && let Ok(bytes) = STANDARD.decode(data)
        {
            // SECURITY: what a program says must not drive the terminal of whoever watches.
            let text = String::from_utf8_lossy(&bytes);
            let keeps = |c: &char| !c.is_control() || matches!(c, '\n' | '\t');
            let text: String = text.chars().filter(keeps).collect();
            let _ = io::stdout().lock().write_all(text.as_bytes());
        }
    }
}

/// Says how the run ended.
fn conclude(plane: &PlaneClient, run: &RunId, style: Style) -> anyhow::Result<Exit> {
    let bundle = plane.bundle(run)?;
    let receipt = bundle.as_ref().and_then(|bundle| bundle.get("receipt"));
    let status = receipt.and_then(|receipt| receipt.get("status")).and_then(Value::as_str);
    let outcome = receipt.and_then(|receipt| receipt.get("outcome")).cloned();
    let outcome = outcome.and_then(|outcome| serde_json::from_value::<Outcome>(outcome).ok());
    let exit = match (&outcome, status) {
        (Some(outcome), _) => exit_of(outcome),
        (None, Some("completed")) => Exit::Success,
        (None, Some("cancelled") | None) => Exit::Cancelled,
        (None, Some(_)) => Exit::Failure,
    };
    if style.is_pretty {
        let tone = if exit.code() == 0 { Tone::Good } else { Tone::Bad };
        let word = paint(status.unwrap_or("cancelled"), tone, io::stderr().is_terminal());
        ui::note(&format!("warrant: {run} {word} · receipt: warrant receipt {run}"));
    }
    Ok(exit)
}
