//! The supervisor's loop: streams in and out, limits, cancellation, and the end of a jail.
//!
//! One thread, one `poll`. Output goes to the sink as it comes; a slow sink lets the pipe fill,
//! which slows the program. Nothing is buffered beyond one read.
//!
//! ```text
//! Running ── program ended, could not be executed ─► Draining ── streams at their end ─► gone
//!    └────── limit, cancel, sink closed: kill ───────────┘
//! ```

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use warrant_jail::{Confinement, Ended, Event, Jail};
use warrant_protocol::{LimitKind, Limits, Outcome};

use crate::door::Door;
use crate::streams::{Input, Output};
use crate::{BoundaryError, Cancel, Sink, Stream};

/// Something that looks at the run from time to time and says when a limit struck.
pub(crate) trait Watcher {
    /// Returns how soon it wants to look again, if at all.
    fn interval(&self) -> Option<Duration>;
    /// Looks, and returns the limit that struck.
    fn look(&mut self) -> Option<LimitKind>;
    /// Returns whether there are traces of this limit once the program has ended.
    fn confirms(&self, limit: LimitKind) -> bool;
    /// Counts what everyone used so far, because they are about to be killed: what the kernel
    /// counted of a process can be gone with it.
    fn count_usage(&mut self);
    /// Returns descriptors whose priority events ask for a look.
    fn alarms(&self) -> Vec<BorrowedFd<'_>>;
}

/// Everything the loop needs.
pub(crate) struct Supervision<'a> {
    pub(crate) jail: Jail,
    pub(crate) input: Input,
    pub(crate) stdout: Option<OwnedFd>,
    pub(crate) stderr: Option<OwnedFd>,
    pub(crate) limits: &'a Limits,
    pub(crate) sink: &'a dyn Sink,
    pub(crate) cancel: &'a Cancel,
    pub(crate) watcher: &'a mut dyn Watcher,
    pub(crate) door: &'a mut Door,
}

/// What the loop saw.
#[derive(Debug)]
pub(crate) struct Observed {
    pub(crate) outcome: Outcome,
    pub(crate) stdout: Output,
    pub(crate) stderr: Output,
    pub(crate) wall: Duration,
    pub(crate) ended: Ended,
    /// What the program's process saw of itself just before it executed, if it came that far.
    pub(crate) seen: Option<Confinement>,
}

/// What a poll was about.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Token {
    Control,
    Cancel,
    Output(Stream),
    Source,
    Sink,
    Alarm,
    Door,
    Witness,
}

/// Watches the jail to the end of its whole tree.
///
/// # Errors
/// When the boundary broke while the program ran; then everyone in it is gone too.
pub(crate) fn supervise(supervision: Supervision<'_>) -> Result<Observed, BoundaryError> {
    let started = Instant::now();
    let deadline = supervision.limits.wall_ms.map(|ms| started + Duration::from_millis(ms));
    let state = State {
        outcome: None,
        is_over: false,
        is_deaf: false,
        output_left: supervision.limits.output_bytes,
        stdout: Output::default(),
        stderr: Output::default(),
        next_look: None,
        seen: None,
        buffer: vec![0; 64 * 1024],
    };
    let mut run = Run { supervision, state, deadline };
    run.watch().map_err(|cause| BoundaryError { step: "watching the program", cause })?;
    let Run { supervision, state, .. } = run;
    let ended = supervision.jail.wait();
    let wall = started.elapsed();
    match state.outcome {
        Some(Ok(outcome)) => {
            let State { stdout, stderr, seen, .. } = state;
            Ok(Observed { outcome, stdout, stderr, wall, ended, seen })
        }
        Some(Err(error)) => Err(error),
        None => Err(BoundaryError {
            step: "watching the program",
            cause: io::Error::from(io::ErrorKind::UnexpectedEof),
        }),
    }
}

struct Run<'a> {
    supervision: Supervision<'a>,
    state: State,
    deadline: Option<Instant>,
}

struct State {
    /// The first cause of the end; later ones do not change it.
    outcome: Option<Result<Outcome, BoundaryError>>,
    /// Whether pid 1 has nothing more to say.
    is_over: bool,
    /// Whether output is not listened to any more. Its ends stay open until everyone is gone.
    is_deaf: bool,
    output_left: Option<u64>,
    stdout: Output,
    stderr: Output,
    next_look: Option<Instant>,
    seen: Option<Confinement>,
    buffer: Vec<u8>,
}

impl Run<'_> {
    fn watch(&mut self) -> io::Result<()> {
        self.schedule_look();
        loop {
            let streams_open =
                self.supervision.stdout.is_some() || self.supervision.stderr.is_some();
            if self.state.is_over && (self.state.is_deaf || !streams_open) {
                return Ok(());
            }
            for token in self.wait()? {
                self.serve(token)?;
            }
            self.check_clock();
        }
    }

    /// Waits for the next thing to do.
    fn wait(&self) -> io::Result<Vec<Token>> {
        let supervision = &self.supervision;
        let mut tokens = Vec::with_capacity(8);
        let mut fds = Vec::with_capacity(8);
        let mut add = |token, fd, flags| {
            tokens.push(token);
            fds.push(PollFd::from_borrowed_fd(fd, flags));
        };
        let is_running = self.state.outcome.is_none();
        if !self.state.is_over {
            add(Token::Control, supervision.jail.control(), PollFlags::IN);
        }
        let is_heard = !self.state.is_deaf;
        if let Some(fd) = supervision.stdout.as_ref().filter(|_| is_heard) {
            add(Token::Output(Stream::Stdout), fd.as_fd(), PollFlags::IN);
        }
        if let Some(fd) = supervision.stderr.as_ref().filter(|_| is_heard) {
            add(Token::Output(Stream::Stderr), fd.as_fd(), PollFlags::IN);
        }
        let alarms = supervision.watcher.alarms();
        let listeners = supervision.door.listeners();
        let witnesses = supervision.door.witnesses();
        if is_running {
            add(Token::Cancel, supervision.cancel.as_fd(), PollFlags::IN);
            if let Some(fd) = supervision.input.wants_source() {
                add(Token::Source, fd, PollFlags::IN);
            }
            if let Some(fd) = supervision.input.wants_sink() {
                add(Token::Sink, fd, PollFlags::OUT);
            }
            for fd in &alarms {
                add(Token::Alarm, *fd, PollFlags::PRI);
            }
            for fd in &listeners {
                add(Token::Door, *fd, PollFlags::IN);
            }
            for fd in &witnesses {
                add(Token::Witness, *fd, PollFlags::IN);
            }
        }
        let timeout = self.next_wake().map(|at| at.saturating_duration_since(Instant::now()));
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) => {}
            Err(Errno::INTR) => return Ok(Vec::new()),
            Err(error) => return Err(error.into()),
        }
        let ready = tokens.into_iter().zip(&fds).filter(|(_, fd)| !fd.revents().is_empty());
        Ok(ready.map(|(token, _)| token).collect())
    }

    fn next_wake(&self) -> Option<Instant> {
        if self.state.outcome.is_some() {
            return None;
        }
        [self.deadline, self.state.next_look].into_iter().flatten().min()
    }

    fn serve(&mut self, token: Token) -> io::Result<()> {
        match token {
            Token::Control => self.hear(),
            Token::Cancel => self.stop(Outcome::Cancelled),
            Token::Output(stream) => self.read(stream),
            Token::Source => self.supervision.input.fill(),
            Token::Sink => self.supervision.input.drain(),
            Token::Alarm => self.look(),
            Token::Door => return self.supervision.door.wake(self.supervision.sink),
            Token::Witness => self.supervision.door.tell_attempts(self.supervision.sink),
        }
        Ok(())
    }

    fn hear(&mut self) {
        let event = self.supervision.jail.event();
        match event {
            Ok(Event::Ended(status)) => {
                // What a limit did to the program is told by the limit, not by the signal.
                self.look();
                let confirms = |limit| self.supervision.watcher.confirms(limit);
                let outcome = ended_outcome(status, self.supervision.limits, confirms);
                self.settle(Ok(outcome));
                self.state.is_over = true;
            }
            Ok(Event::Observed(seen)) => self.state.seen = Some(seen),
            Ok(Event::NotExecuted(errno)) => {
                let code = if errno.0 == Errno::NOENT.raw_os_error() { 127 } else { 126 };
                self.settle(Ok(Outcome::Exited { code }));
                self.state.is_over = true;
            }
            Ok(Event::Overdue) => self.settle(Ok(Outcome::Limited { limit: LimitKind::Wall })),
            Ok(Event::Crowded) => {
                self.settle(Ok(Outcome::Limited { limit: LimitKind::Processes }));
            }
            Ok(Event::Gone) => {
                // Pid 1 itself can be the one that is killed when memory runs out.
                self.look();
                self.state.is_over = true;
            }
            Ok(Event::Failed(error)) | Err(error) => {
                let cause = io::Error::from(error.errno);
                self.settle(Err(BoundaryError { step: error.step.as_str(), cause }));
                self.supervision.jail.kill();
            }
        }
    }

    fn read(&mut self, stream: Stream) {
        let source = match stream {
            Stream::Stdout => &self.supervision.stdout,
            Stream::Stderr => &self.supervision.stderr,
        };
        let Some(fd) = source else { return };
        let count = match rustix::io::read(fd, &mut self.state.buffer) {
            Ok(count) => count,
            Err(Errno::INTR | Errno::AGAIN) => return,
            // A terminal whose other side is gone answers with an error instead of an end.
            Err(_) => 0,
        };
        if count == 0 {
            self.close(stream);
            return;
        }
        let kept = self
            .state
            .output_left
            .map_or(count, |left| usize::try_from(left).map_or(count, |left| left.min(count)));
        if let Some(left) = &mut self.state.output_left {
            *left -= kept as u64;
        }
        let bytes = self.state.buffer.get(..kept).unwrap_or_default();
        let output = match stream {
            Stream::Stdout => &mut self.state.stdout,
            Stream::Stderr => &mut self.state.stderr,
        };
        output.take(bytes, count);
        let sent =
            if bytes.is_empty() { Ok(()) } else { self.supervision.sink.output(stream, bytes) };
        if sent.is_err() {
            self.stop(Outcome::Cancelled);
            self.state.is_deaf = true;
        } else if kept < count {
            self.stop(Outcome::Limited { limit: LimitKind::Output });
            // A closed pipe would end its writer before the kill does, and whoever waits for the
            // writer would go on.
            self.state.is_deaf = true;
        }
    }

    fn close(&mut self, stream: Stream) {
        match stream {
            Stream::Stdout => self.supervision.stdout = None,
            Stream::Stderr => self.supervision.stderr = None,
        }
    }

    fn check_clock(&mut self) {
        let now = Instant::now();
        if self.state.outcome.is_some() {
            return;
        }
        if self.deadline.is_some_and(|deadline| now >= deadline) {
            self.stop(Outcome::Limited { limit: LimitKind::Wall });
        } else if self.state.next_look.is_some_and(|at| now >= at) {
            self.look();
            self.supervision.input.follow_terminal_size();
            self.schedule_look();
        }
    }

    fn schedule_look(&mut self) {
        let intervals = [self.supervision.watcher.interval(), self.supervision.input.interval()];
        let soonest = intervals.into_iter().flatten().min();
        self.state.next_look = soonest.map(|interval| Instant::now() + interval);
    }

    fn look(&mut self) {
        if let Some(limit) = self.supervision.watcher.look() {
            self.stop(Outcome::Limited { limit });
        }
    }

    /// Ends the program because of `outcome`, unless it has ended for another reason.
    fn stop(&mut self, outcome: Outcome) {
        self.settle(Ok(outcome));
        self.supervision.watcher.count_usage();
        self.supervision.jail.kill();
    }

    fn settle(&mut self, outcome: Result<Outcome, BoundaryError>) {
        self.state.outcome.get_or_insert(outcome);
    }
}

/// Returns the outcome a wait status stands for.
///
/// A program ended by `SIGXCPU` has met the limit on CPU time where it used that much; one that
/// raises the signal itself has not. `SIGXFSZ` likewise, but what it wrote may be gone with it, so
/// the signal is believed. A shell reports such a child by its exit code, which any program may
/// use for something else, so the code alone counts only where the limit left traces.
fn ended_outcome(status: i32, limits: &Limits, confirms: impl Fn(LimitKind) -> bool) -> Outcome {
    const SIGXCPU: i32 = 24;
    const SIGXFSZ: i32 = 25;
    let signal = status & 0x7f;
    let code = status >> 8 & 0xff;
    for (number, limit) in [(SIGXFSZ, LimitKind::FileSize), (SIGXCPU, LimitKind::Cpu)] {
        let is_reported = signal == 0 && code == 128 + number;
        // LIMIT L-351: the kernel sends this signal as anybody would.
        let is_believed = signal == SIGXFSZ && signal == number;
        let has_met = is_believed || (signal == number || is_reported) && confirms(limit);
        if limits.of(limit).is_some() && has_met {
            return Outcome::Limited { limit };
        }
    }
    let byte = |number: i32| u8::try_from(number).unwrap_or(u8::MAX);
    if signal == 0 {
        Outcome::Exited { code: byte(code) }
    } else {
        Outcome::Signaled { signal: byte(signal) }
    }
}
