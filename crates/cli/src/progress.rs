//! A progress bar for work that takes longer than a second; silent when nobody looks.

use std::io::{self, IsTerminal as _};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use warrant_workspace::{Phase, Step};

/// Work that ends within this time shows nothing.
const PATIENCE: Duration = Duration::from_secs(1);

/// Draws steps on a terminal; gone when dropped.
pub(crate) struct Meter {
    started: Instant,
    is_watched: bool,
    bar: OnceLock<ProgressBar>,
    phase: Mutex<Option<Phase>>,
}

impl Meter {
    /// Returns a meter that draws on stderr if that is a terminal.
    pub(crate) fn on_terminal() -> Self {
        Self::new(io::stderr().is_terminal())
    }

    fn new(is_watched: bool) -> Self {
        let (bar, phase) = (OnceLock::new(), Mutex::new(None));
        Self { started: Instant::now(), is_watched, bar, phase }
    }

    /// Takes a step; cheap while there is nothing to show.
    pub(crate) fn step(&self, step: Step) {
        if !self.is_watched || self.started.elapsed() < PATIENCE {
            return;
        }
        let bar = self.bar.get_or_init(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
            bar.set_style(ProgressStyle::default_spinner());
            bar
        });
        if let Ok(mut phase) = self.phase.lock()
            && *phase != Some(step.phase)
        {
            *phase = Some(step.phase);
            bar.set_message(words(step.phase));
        }
        show(bar, step);
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        if let Some(bar) = self.bar.get() {
            bar.finish_and_clear();
        }
    }
}

fn show(bar: &ProgressBar, step: Step) {
    if bar.length() != step.total {
        let template = match step.total {
            Some(_) => "{msg} {bar:30} {pos}/{len} {elapsed}",
            None => "{spinner} {msg} {elapsed}",
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        match step.total {
            Some(total) => bar.set_length(total),
            None => bar.unset_length(),
        }
    }
    bar.set_position(step.done);
}

const fn words(phase: Phase) -> &'static str {
    match phase {
        Phase::Bundling => "packing the commit",
        Phase::Reading => "reading files",
        Phase::Fetching => "fetching",
        Phase::Unpacking => "unpacking",
        Phase::Writing => "writing files",
        Phase::Comparing => "comparing files",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_drawn_when_piped_or_quick() {
        let step = Step { phase: Phase::Reading, done: 1, total: Some(2) };
        let past = Instant::now().checked_sub(Duration::from_secs(2)).expect("a running clock");
        let check = |is_watched, started, expected| {
            let mut meter = Meter::new(is_watched);
            meter.started = started;
            meter.step(step);
            assert_eq!(meter.bar.get().is_some(), expected);
        };
        check(false, past, false);
        check(true, Instant::now(), false);
        check(true, past, true);
    }
}
