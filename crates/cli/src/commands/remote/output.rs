//! Prints the output of a run that happens elsewhere: pieces while it runs, the rest from the log
//! that the run left.
//!
//! ```text
//! live pieces   ──► printed while each begins where the last one ended
//! the run's log ──► everything that was not printed, when the run is over
//! ```
//!
//! Live pieces may be late, lost or missing; the log of the run is whole and its digest is on the
//! chain. So nothing is lost whatever happens on the way, and nothing is printed twice.

use std::io::{self, IsTerminal as _, Write};
use std::sync::{Mutex, PoisonError};

use sha2::{Digest as _, Sha256};
use warrant_protocol::Digest;

use crate::terminal::SafeText;
use crate::ui;

/// What to do when a live piece does not begin where the last one ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnGap {
    /// Print nothing more until the run is over, then everything.
    Wait,
    /// Say so and go on: whoever began to watch late wants to see what happens now.
    Skip,
}

/// Prints one run's output, in order and once. Threads share it.
pub(crate) struct OutputPrinter {
    state: Mutex<Printed>,
    on_gap: OnGap,
    /// Told when something is skipped: how to read all of it.
    remedy: String,
}

struct Printed {
    /// The next byte of the log to print.
    next: u64,
    /// The digest of everything before `next`, unless something was skipped.
    hash: Option<Sha256>,
    is_waiting: bool,
    is_over: bool,
    /// What a terminal is written through.
    safe: Option<SafeText<ProgramStdout>>,
}

impl OutputPrinter {
    /// Returns a printer to which nothing has happened.
    pub(crate) fn new(on_gap: OnGap, remedy: String) -> Self {
        let state = Printed {
            next: 0,
            hash: Some(Sha256::new()),
            is_waiting: false,
            is_over: false,
            safe: io::stdout().is_terminal().then(|| SafeText::new(ProgramStdout)),
        };
        Self { state: Mutex::new(state), on_gap, remedy }
    }

    /// Returns the byte of the log that is printed next.
    pub(crate) fn next(&self) -> u64 {
        self.state().next
    }

    /// Prints a live piece that ends at byte `end` of the log.
    pub(crate) fn print_piece(&self, end: u64, bytes: &[u8]) {
        let mut state = self.state();
        let start = end.saturating_sub(bytes.len() as u64);
        if state.is_over || state.is_waiting || end <= state.next {
            return;
        }
        if start > state.next {
            match self.on_gap {
                OnGap::Wait => {
                    state.is_waiting = true;
                    return;
                }
                OnGap::Skip => {
                    let missing = start - state.next;
                    ui::note(&format!("warrant: {missing} bytes are not shown; {}", self.remedy));
                    state.hash = None;
                    state.next = start;
                }
            }
        }
        let known = usize::try_from(state.next - start).unwrap_or(usize::MAX);
        state.print(bytes.get(known..).unwrap_or_default());
    }

    /// Prints what of the whole log was not printed before. Nothing more is printed after it.
    pub(crate) fn print_rest(&self, log: &[u8]) {
        let mut state = self.state();
        state.is_over = true;
        let next = usize::try_from(state.next).unwrap_or(usize::MAX);
        let before = log.get(..next);
        let is_same = match (&state.hash, before) {
            (Some(hash), Some(before)) => {
                Digest::of(before) == Digest::from_bytes(hash.clone().finalize().into())
            }
            (None, Some(_)) => true,
            (_, None) => false,
        };
        if !is_same {
            ui::note("warrant: the live output was not the log of the run; the log follows");
            state.next = 0;
        }
        let next = usize::try_from(state.next).unwrap_or(usize::MAX);
        state.print(log.get(next..).unwrap_or_default());
        state.finish();
    }

    /// Says that the log cannot be read, so that what was printed may not be all.
    pub(crate) fn lose_rest(&self, error: &anyhow::Error) {
        let mut state = self.state();
        state.is_over = true;
        state.finish();
        let text = format!("the output after byte {} cannot be fetched: {error:#}", state.next);
        ui::note_loss(Err(io::Error::other(text)));
    }

    fn state(&self) -> std::sync::MutexGuard<'_, Printed> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Printed {
    fn print(&mut self, bytes: &[u8]) {
        self.next += bytes.len() as u64;
        if let Some(hash) = &mut self.hash {
            hash.update(bytes);
        }
        ui::note_loss(match &mut self.safe {
            Some(safe) => safe.write_all(bytes),
            None => ui::pass_stdout(bytes),
        });
    }

    fn finish(&mut self) {
        if let Some(safe) = self.safe.take() {
            ui::note_loss(safe.finish());
        }
    }
}

/// Our stdout, as the place for what a program printed.
struct ProgramStdout;

impl Write for ProgramStdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        ui::pass_stdout(bytes).map(|()| bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
