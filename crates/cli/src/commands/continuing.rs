//! `warrant sandbox continue`: go on where a run ended.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::Context as _;
use serde_json::json;
use warrant_govern::keep::Mode;
use warrant_govern::{Continuation, ContinueError, Desk, TakenUp, backends};
use warrant_protocol::Isolation;
use warrant_protocol::execution::ExecutionSpec;
use warrant_protocol::handoff::ToolJournal;

use super::exec::{carry_out, request::Wish};
use crate::args::{Exec, TakeUp};
use crate::exit::{Exit, Misuse};
use crate::progress::Meter;
use crate::ui;

/// Puts a run's work down and takes it up in a new run.
pub(crate) fn run(home: Option<&Path>, arguments: &TakeUp) -> anyhow::Result<Exit> {
    let desk = Desk::open(home)?;
    let taken = take_up(&desk, arguments)?;
    let reference = json!({
        "envelopeHash": taken.reference.envelope_hash,
        "envelopeId": taken.envelope.envelope_id,
        "checkpointId": taken.reference.checkpoint_id,
        "tier": taken.reference.tier,
        "warnings": taken.warnings,
    });
    taken.warnings.iter().for_each(|warning| ui::note(&ui::printable(warning)));
    if arguments.only_envelope {
        if arguments.json {
            ui::json(&reference);
        } else {
            ui::data(&format!("{}\n", taken.reference.envelope_hash));
        }
        return Ok(Exit::Success);
    }
    let all = backends::local_of(desk.plane().home());
    let isolation = taken.ask.request.isolation.map(|isolation| isolation.to_string());
    let backend = super::providers::choose(&all, isolation.as_deref())?;
    let exec = Exec {
        wait: arguments.wait,
        json: arguments.json,
        out: arguments.out.clone(),
        dry_run: false,
        ..Exec::plain(&arguments.argv)
    };
    let wish = Wish { ask: taken.ask.clone(), mode: Mode::Isolated };
    carry_out(&desk, &wish, backend, &exec)
}

fn take_up(desk: &Desk, arguments: &TakeUp) -> anyhow::Result<TakenUp> {
    let workspace = std::fs::canonicalize(&arguments.workspace)
        .with_context(|| format!("no workspace at {}", arguments.workspace.display()))
        .map_err(Misuse::of)?;
    let isolation = match &arguments.provider {
        Some(name) => {
            let parsed = name.parse::<Isolation>().with_context(|| format!("--provider {name}"));
            Some(parsed.map_err(Misuse::of)?)
        }
        None => None,
    };
    let mut transcript = match &arguments.transcript {
        Some(file) => Some(open(file)?),
        None => None,
    };
    let tool_journal = match &arguments.tool_journal {
        Some(file) => Some(read_journal(file)?),
        None => None,
    };
    let meter = Meter::on_terminal();
    let taken = desk.continue_run(Continuation {
        run: &desk.run_named(&arguments.run)?,
        workspace: &workspace,
        execution: execution(&arguments.argv),
        prompt: arguments.prompt.clone(),
        isolation,
        message: arguments.message.clone(),
        note: arguments.note.clone(),
        transcript: transcript.as_mut().map(|file| file as &mut dyn Read),
        tool_journal: tool_journal.as_ref(),
        progress: &|step| meter.step(step),
    });
    match taken {
        Err(error @ ContinueError::NotEnded(_)) => Err(Misuse::of(error.into())),
        taken => Ok(taken?),
    }
}

fn execution(argv: &[String]) -> Option<ExecutionSpec> {
    let (command, args) = argv.split_first()?;
    Some(ExecutionSpec::Argv {
        command: command.clone(),
        args: args.to_vec(),
        cwd: None,
        timeout_ms: None,
        env: None,
        log: None,
    })
}

fn open(file: &Path) -> anyhow::Result<File> {
    let opened = File::open(file).with_context(|| format!("cannot read {}", file.display()));
    opened.map_err(Misuse::of)
}

fn read_journal(file: &Path) -> anyhow::Result<ToolJournal> {
    let mut text = String::new();
    open(file)?.take(64 << 20).read_to_string(&mut text)?;
    let journal = serde_json::from_str(&text)
        .with_context(|| format!("{} is no tool journal", file.display()));
    journal.map_err(Misuse::of)
}
