//! The `warrant` binary: arguments in, text and exit code out. It holds no logic that a library
//! could hold. Start at [`args`] for the commands.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use warrant_runner::harness::{self, MOCK_ARGUMENT, MockEnvironment, MockStreams};

mod args;
mod commands;
mod duration;
mod exit;
mod logs;
mod own_plane;
mod plane_client;
mod progress;
mod terminal;
mod toml;
mod ui;

fn main() -> ExitCode {
    // The interpreting tiers start this very binary again as their worker.
    if let Some(code) = warrant_sandbox::hermetic::worker_main() {
        return code;
    }
    if let Some(code) = mock_agent() {
        return code;
    }
    survive_file_limits();
    let cli = match args::Cli::read() {
        Ok(cli) => cli,
        Err(refusal) => return usage(&refusal),
    };
    match commands::run(cli) {
        Ok(exit) => told(exit).into(),
        Err(error) => {
            ui::error(&error);
            exit::Exit::of_error(&error).into()
        }
    }
}

/// Has a write beyond `ulimit -f` fail with an error that can be told, instead of ending us without
/// a word. What we start has the signal's default again: a handler does not outlive an exec.
fn survive_file_limits() {
    // Without it we are as any program is.
    let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::default());
}

/// Whoever asked for data that went nowhere is told; success it is not.
fn told(exit: exit::Exit) -> exit::Exit {
    match (ui::lost(), exit) {
        (None, exit) => exit,
        (Some(error), exit) => {
            ui::note(&format!("error: stdout cannot be written: {error}"));
            if exit.code() == 0 { exit::Exit::Failure } else { exit }
        }
    }
}

/// Runners start this very binary again as their built-in agent.
fn mock_agent() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next()? != MOCK_ARGUMENT {
        return None;
    }
    let prompt = arguments.next().unwrap_or_default().to_string_lossy().into_owned();
    let (mut stdout, mut stderr) = (std::io::stdout(), std::io::stderr());
    let streams = MockStreams { stdout: &mut stdout, stderr: &mut stderr };
    let environment = MockEnvironment::of_process();
    let done = harness::mock_agent(Path::new("."), &prompt, &environment, streams);
    Some(done.map_or(ExitCode::FAILURE, ExitCode::from))
}

fn usage(refusal: &clap::Error) -> ExitCode {
    let text = refusal.render().to_string();
    if refusal.use_stderr() {
        ui::note(text.trim_end());
        if let Some(as_json) = args::is_exec() {
            // An exit code of an exec is always told whose it is.
            let lines = text.lines().take_while(|line| !line.is_empty()).map(str::trim);
            let told = lines.collect::<Vec<_>>().join(" ");
            let told = told.strip_prefix("error: ").unwrap_or(&told).to_owned();
            commands::told_as_ours(&anyhow::Error::msg(told), exit::Exit::Usage, as_json);
        }
        exit::Exit::Usage.into()
    } else {
        ui::data(&text);
        exit::Exit::Success.into()
    }
}
