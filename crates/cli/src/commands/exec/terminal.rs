//! The person's terminal: its size, raw mode while a program has a terminal of its own, and the
//! signals that mean stop.

use std::fs;
use std::io::{self, IsTerminal as _};
use std::os::unix::net::UnixStream;

use anyhow::{Context as _, bail};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use signal_hook::SigId;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1};
use signal_hook::low_level::{pipe, unregister};
use warrant_sandbox::{Cancel, TtySize};

/// What means stop: the person's keys, the end of the session or of the machine, and
/// `warrant cancel` of another process.
const STOPS: [i32; 5] = [SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1];

/// A cancellation that is asked for when this process is told to stop, as long as it lives; the
/// receipt is still written. The handler itself rings, so no thread has to wait for signals.
pub(crate) struct Stops {
    pub(crate) cancel: Cancel,
    registered: [Option<SigId>; STOPS.len()],
}

/// Every descriptor that listening takes, before it begins: whoever has it will not fail to begin
/// for want of one.
pub(crate) struct Bells {
    cancel: Cancel,
    bells: Vec<UnixStream>,
}

impl Bells {
    /// Takes them.
    pub(crate) fn take() -> anyhow::Result<Self> {
        let (cancel, bell) = Cancel::with_bell().context("no descriptor for cancellation")?;
        let clones = STOPS.iter().map(|_| bell.try_clone());
        let bells = clones.collect::<io::Result<_>>().context("no descriptor for cancellation")?;
        Ok(Self { cancel, bells })
    }
}

impl Stops {
    /// Listens from now on. A hangup that we were started to ignore (`nohup`) stays ignored; other
    /// signals stop the run also where a shell had them ignored for its jobs in the background.
    pub(crate) fn listen(Bells { cancel, bells }: Bells) -> anyhow::Result<Self> {
        let mut stops = Self { cancel, registered: [const { None }; STOPS.len()] };
        let each = STOPS.into_iter().zip(bells).zip(&mut stops.registered);
        for ((signal, bell), registered) in each {
            if signal == SIGHUP && is_ignored(signal) {
                continue;
            }
            *registered = Some(pipe::register(signal, bell).context("signals cannot be watched")?);
        }
        Ok(stops)
    }
}

impl Drop for Stops {
    fn drop(&mut self) {
        for registered in self.registered.iter().flatten() {
            unregister(*registered);
        }
    }
}

/// Returns whether this process was started to ignore a signal.
fn is_ignored(signal: i32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    // A bit for each, the first one for signal 1.
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default();
    mask & 1_u64 << (signal - 1) != 0
}

/// Returns the size of the person's terminal when the program wants one.
pub(crate) fn size(is_wanted: bool) -> anyhow::Result<Option<TtySize>> {
    if !is_wanted {
        return Ok(None);
    }
    if !io::stdin().is_terminal() {
        bail!("--tty needs a terminal on standard input");
    }
    let size = tcgetwinsize(io::stdin()).context("the terminal does not tell its size")?;
    Ok(Some(TtySize { columns: size.ws_col.max(1), rows: size.ws_row.max(1) }))
}

/// Raw mode for as long as it lives.
pub(crate) struct Raw {
    before: Option<Termios>,
}

impl Raw {
    /// Enters raw mode when `is_wanted`.
    pub(crate) fn enter(is_wanted: bool) -> anyhow::Result<Self> {
        if !is_wanted {
            return Ok(Self { before: None });
        }
        let before = tcgetattr(io::stdin()).context("the terminal does not tell its mode")?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(io::stdin(), OptionalActions::Now, &raw)
            .context("the terminal does not change its mode")?;
        Ok(Self { before: Some(before) })
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            // There is nobody left to tell if the terminal is gone.
            let _ = tcsetattr(io::stdin(), OptionalActions::Now, before);
        }
    }
}
