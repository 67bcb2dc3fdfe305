//! `warrant continue` on this machine: go on where a run ended.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::Context as _;
use serde_json::json;
use warrant_govern::keep::Mode;
use warrant_govern::{Continuation, ContinueError, Desk, TakenUp, backends};
use warrant_protocol::execution::ExecutionSpec;
use warrant_protocol::handoff::ToolJournal;
use warrant_protocol::{Isolation, RunId};

use super::exec::{Trace, carry_out, request::Wish};
use crate::args::{Continue, Exec};
use crate::exit::{Exit, Misuse};
use crate::plane_client::run_id;
use crate::progress::Meter;
use crate::ui;

/// Puts a run's work down and takes it up in a new run.
pub(crate) fn run(home: Option<&Path>, arguments: &Continue) -> anyhow::Result<Exit> {
    if let Some(name) = arguments.there.given() {
        return Err(Misuse::of(anyhow::anyhow!("{name} needs a plane: --plane URL")));
    }
    let words = Words::read(arguments)?;
    let Some(run) = &words.run else {
        return Err(Misuse::of(anyhow::anyhow!(
            "say which run goes on (run_…), or give a task to a plane: --plane URL"
        )));
    };
    let desk = Desk::open(home)?;
    let taken = take_up(&desk, run, (&words, arguments))?;
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
        ..Exec::plain(&words.argv(arguments))
    };
    let wish = Wish { ask: taken.ask.clone(), mode: Mode::Isolated };
    let mut trace = Trace::default();
    let exit = carry_out(&desk, &wish, backend, (&exec, &mut trace));
    // The process ends here; the kernel takes what it held apart faster.
    std::mem::forget(trace);
    exit
}

/// The words of the command: which run, and what is to be done.
pub(crate) struct Words {
    pub(crate) run: Option<RunId>,
    pub(crate) task: Option<String>,
}

impl Words {
    /// Reads the words: the first one is the run if it looks like one.
    pub(crate) fn read(arguments: &Continue) -> anyhow::Result<Self> {
        let usage = |text: String| Err(Misuse::of(anyhow::anyhow!(text)));
        let (run, rest) = match arguments.words.split_first() {
            Some((first, rest)) if first.starts_with("run_") => (Some(run_id(first)?), rest),
            _ => (None, arguments.words.as_slice()),
        };
        let task = match (rest, &arguments.prompt) {
            ([], prompt) => prompt.clone(),
            (_, Some(_)) => {
                return usage("the task is said twice: as --prompt and by itself".into());
            }
            (rest, None) => Some(rest.join(" ")),
        };
        if !rest.is_empty() && !arguments.argv.is_empty() {
            return usage("give a task or a program after --, not both".into());
        }
        Ok(Self { run, task })
    }

    /// Returns the program to start: the one after `--`, else the task as a script.
    fn argv(&self, arguments: &Continue) -> Vec<String> {
        match &self.task {
            Some(task) if arguments.argv.is_empty() && arguments.prompt.is_none() => {
                vec!["sh".to_owned(), "-c".to_owned(), task.clone()]
            }
            _ => arguments.argv.clone(),
        }
    }
}

fn take_up(
    desk: &Desk,
    run: &RunId,
    (words, arguments): (&Words, &Continue),
) -> anyhow::Result<TakenUp> {
    let workspace = std::fs::canonicalize(&arguments.repo)
        .with_context(|| format!("no workspace at {}", arguments.repo.display()))
        .map_err(Misuse::of)?;
    let isolation = match &arguments.isolation {
        Some(name) => {
            let parsed = name.parse::<Isolation>().with_context(|| format!("--isolation {name}"));
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
        run: &desk.run_named(run.as_str())?,
        workspace: &workspace,
        execution: argv_execution(&words.argv(arguments), None),
        prompt: words.task.clone(),
        isolation,
        message: arguments.message.clone(),
        note: arguments.note.clone(),
        reason: arguments.reason.clone(),
        transcript: transcript.as_mut().map(|file| file as &mut dyn Read),
        tool_journal: tool_journal.as_ref(),
        progress: &|step| meter.step(step),
    });
    match taken {
        Err(error @ ContinueError::NotEnded(_)) => Err(Misuse::of(error.into())),
        taken => Ok(taken?),
    }
}

/// Returns what starts a program, if one is named.
pub(crate) fn argv_execution(argv: &[String], timeout_ms: Option<u64>) -> Option<ExecutionSpec> {
    let (command, args) = argv.split_first()?;
    Some(ExecutionSpec::Argv {
        command: command.clone(),
        args: args.to_vec(),
        cwd: None,
        timeout_ms,
        env: None,
        log: None,
    })
}

fn open(file: &Path) -> anyhow::Result<File> {
    let opened = File::open(file).with_context(|| format!("cannot read {}", file.display()));
    opened.map_err(Misuse::of)
}

/// Reads what tools did.
pub(crate) fn read_journal(file: &Path) -> anyhow::Result<ToolJournal> {
    let mut text = String::new();
    open(file)?.take(64 << 20).read_to_string(&mut text)?;
    let journal = serde_json::from_str(&text)
        .with_context(|| format!("{} is no tool journal", file.display()));
    journal.map_err(Misuse::of)
}
