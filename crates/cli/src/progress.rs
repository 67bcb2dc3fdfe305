//! A progress bar for work that takes longer than a second; silent when nobody looks.
//!
//! A thread of its own draws, so that the bar lives also while the work says nothing. Before
//! anything else is written to the terminal the bar is taken away ([`Meter::rest`]).

use std::io::{self, IsTerminal as _, Read};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use warrant_workspace::{BlobSink, Phase, Step, StoredBlob};

/// Work that ends within this time shows nothing.
const PATIENCE: Duration = Duration::from_secs(1);
/// How often the bar is drawn.
const TICK: Duration = Duration::from_millis(100);

/// Draws what is done on a terminal; gone when dropped.
pub(crate) struct Meter {
    board: Arc<Board>,
    drawer: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Board {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// What is done now, and since when something is.
    doing: Option<(Doing, Instant)>,
    bar: Option<ProgressBar>,
    is_over: bool,
}

/// What is done, and how far it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Doing {
    words: &'static str,
    done: u64,
    total: Option<u64>,
}

impl Meter {
    /// Returns a meter that draws on stderr if that is a terminal.
    pub(crate) fn on_terminal() -> Self {
        Self::new(io::stderr().is_terminal())
    }

    fn new(is_watched: bool) -> Self {
        let board = Arc::new(Board::default());
        let shared = Arc::clone(&board);
        let draw = move || shared.draw();
        let thread = || thread::Builder::new().name("progress".to_owned()).spawn(draw).ok();
        let drawer = if is_watched { thread() } else { None };
        Self { board, drawer }
    }

    /// Takes a step of work on a workspace; cheap while there is nothing to show.
    pub(crate) fn step(&self, step: Step) {
        self.show(words(step.phase), step.done, step.total);
    }

    /// Says what is done now.
    pub(crate) fn doing(&self, words: &'static str) {
        self.show(words, 0, None);
    }

    fn show(&self, words: &'static str, done: u64, total: Option<u64>) {
        if self.drawer.is_none() {
            return;
        }
        let mut state = self.board.state();
        let since = state.doing.map_or_else(Instant::now, |(_, since)| since);
        let is_first = state.doing.is_none();
        state.doing = Some((Doing { words, done, total }, since));
        if is_first {
            self.board.changed.notify_all();
        }
    }

    /// Says that nothing is under way; the terminal is free when this returns.
    pub(crate) fn rest(&self) {
        if self.drawer.is_some() {
            self.board.state().clear();
        }
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        {
            let mut state = self.board.state();
            state.clear();
            state.is_over = true;
        }
        self.board.changed.notify_all();
        if let Some(drawer) = self.drawer.take() {
            // A bar that could not be drawn is no reason to fail.
            let _ = drawer.join();
        }
    }
}

impl State {
    fn clear(&mut self) {
        self.doing = None;
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

impl Board {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Draws until the meter is gone.
    fn draw(&self) {
        let mut state = self.state();
        while !state.is_over {
            let pause = match &mut *state {
                State { doing: Some((doing, since)), bar, .. } => match wait(since.elapsed()) {
                    Some(pause) => pause,
                    None => {
                        show(bar.get_or_insert_with(new_bar), *doing);
                        TICK
                    }
                },
                State { doing: None, .. } => Duration::from_secs(3600),
            };
            let waited = self.changed.wait_timeout(state, pause);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// Returns how much longer nothing is shown.
fn wait(elapsed: Duration) -> Option<Duration> {
    PATIENCE.checked_sub(elapsed).filter(|rest| !rest.is_zero())
}

fn new_bar() -> ProgressBar {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    bar.set_style(ProgressStyle::default_spinner());
    bar
}

fn show(bar: &ProgressBar, doing: Doing) {
    if bar.length() != doing.total || bar.message() != doing.words {
        let template = match doing.total {
            Some(_) => "{msg} {bar:30} {pos}/{len} {elapsed}",
            None => "{spinner} {msg} {elapsed}",
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        bar.set_message(doing.words);
        match doing.total {
            Some(total) => bar.set_length(total),
            None => bar.unset_length(),
        }
    }
    bar.set_position(doing.done);
    bar.tick();
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

/// Reads while a meter tells how much has come.
pub(crate) struct Metered<'a, R> {
    pub(crate) inner: R,
    pub(crate) meter: &'a Meter,
    done: u64,
}

impl<'a, R> Metered<'a, R> {
    pub(crate) const fn new(inner: R, meter: &'a Meter) -> Self {
        Self { inner, meter, done: 0 }
    }
}

impl<R: Read> Read for Metered<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.done += read as u64;
        self.meter.show("fetching", self.done, None);
        Ok(read)
    }
}

/// Stores blobs while a meter tells that they travel.
pub(crate) struct Sending<'a> {
    pub(crate) sink: &'a dyn BlobSink,
    pub(crate) meter: &'a Meter,
}

impl BlobSink for Sending<'_> {
    fn put(&self, source: &mut dyn Read) -> io::Result<StoredBlob> {
        self.meter.doing("sending");
        self.sink.put(source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_shown_before_a_second_is_over() {
        assert_eq!(wait(Duration::ZERO), Some(PATIENCE));
        assert_eq!(wait(Duration::from_millis(400)), Some(Duration::from_millis(600)));
        assert_eq!(wait(PATIENCE), None);
        assert_eq!(wait(Duration::from_secs(60)), None);
    }

    #[test]
    fn a_meter_that_nobody_watches_keeps_nothing() {
        let meter = Meter::new(false);
        meter.step(Step { phase: Phase::Reading, done: 1, total: Some(2) });
        assert!(meter.drawer.is_none() && meter.board.state().doing.is_none());
    }

    #[test]
    fn work_after_a_rest_has_its_own_second() {
        let meter = Meter::new(true);
        meter.doing("one");
        let first = meter.board.state().doing.unwrap();
        meter.step(Step { phase: Phase::Reading, done: 1, total: None });
        let second = meter.board.state().doing.unwrap();
        assert_eq!((first.1, second.0.words), (second.1, "reading files"));
        meter.rest();
        assert!(meter.board.state().doing.is_none());
    }
}
