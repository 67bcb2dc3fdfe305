//! `warrant sandbox provider-port`: the sandbox provider of an external runtime, on standard input
//! and output.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;

use anyhow::Context as _;
use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;
use warrant_govern::provider_port::{PortInput, PortOptions, ProviderPort, read_lines};

use crate::exit::Exit;
use crate::logs::{self, LogArguments};

/// How many lines may wait to be read.
const WAITING_LINES: usize = 4;

/// Answers calls until standard input ends or a signal says so.
pub(crate) fn run(
    home: Option<&Path>,
    provider: Option<String>,
    logging: &LogArguments,
) -> anyhow::Result<Exit> {
    logs::begin(logging, "warn")?;
    let options = PortOptions { home: home.map(Path::to_owned), provider };
    let port = Arc::new(ProviderPort::open(options)?);
    let (sender, input) = mpsc::sync_channel(WAITING_LINES);
    watch_signals(&port, sender.clone())?;
    let read = move || read_lines(io::stdin().lock(), &sender);
    // Not joined: it waits for a line that may never come.
    thread::Builder::new().name("port-lines".to_owned()).spawn(read).context("no thread")?;
    port.serve(&input, &Mutex::new(io::stdout()));
    Ok(Exit::Success)
}

/// Ends the port on SIGINT and SIGTERM, and looks on SIGUSR1 which run `warrant cancel` stops.
fn watch_signals(
    port: &Arc<ProviderPort>,
    sender: mpsc::SyncSender<PortInput>,
) -> anyhow::Result<()> {
    let mut signals =
        Signals::new([SIGINT, SIGTERM, SIGUSR1]).context("signals cannot be watched")?;
    let port = Arc::clone(port);
    let watch = move || {
        for signal in signals.forever() {
            match signal {
                SIGUSR1 => port.heed_stops(),
                _ => {
                    // Whoever takes it may have ended already.
                    let _ = sender.send(PortInput::End);
                }
            }
        }
    };
    thread::Builder::new().name("port-signals".to_owned()).spawn(watch).context("no thread")?;
    Ok(())
}
