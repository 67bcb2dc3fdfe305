//! Listens to a program that runs at a provider, and keeps limits and deadlines on this side.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, fstat};
use warrant_protocol::{LimitKind, Limits, Outcome, Usage};

use super::adapter::{Running, Said};
use super::lease::Lease;
use super::wire::Wire;
use crate::streams::Output;
use crate::{Cancel, Sink, Stdin, Stream, StreamDigest};

/// How long the program's next word is waited for before the clock is looked at.
const TICK: Duration = Duration::from_millis(50);
/// How much input is sent at once.
const INPUT_BYTES: usize = 64 << 10;
/// Input that has to be put into a file first is not larger than this.
const MOST_INPUT_BYTES: usize = 64 << 20;
/// How long a descriptor may stay silent when its whole content is needed first.
const INPUT_PATIENCE: Duration = Duration::from_secs(5);

/// How a program went.
#[derive(Debug)]
pub(crate) struct Driven {
    pub(crate) outcome: Outcome,
    pub(crate) usage: Usage,
    pub(crate) stdout: StreamDigest,
    pub(crate) stderr: StreamDigest,
}

/// What a run is held to.
#[derive(Clone, Copy)]
pub(crate) struct Watch<'a> {
    pub(crate) limits: &'a Limits,
    pub(crate) sink: &'a dyn Sink,
    pub(crate) cancel: &'a Cancel,
}

/// The end of a program that was never started, or of which nothing is known.
pub(crate) fn without_output(outcome: Outcome) -> Driven {
    let nothing = Output::default().finish();
    Driven { outcome, usage: Usage::default(), stdout: nothing, stderr: nothing }
}

/// Listens until the program ended, a limit struck, or nobody can tell any more.
pub(crate) fn drive(
    (wire, lease): (&Wire, &Lease),
    running: &mut dyn Running,
    mut input: Feed,
    watch: Watch<'_>,
) -> Result<Driven, String> {
    let began = Instant::now();
    let wall = Duration::from_millis(watch.limits.wall_ms.unwrap_or(u64::MAX));
    let mut heard = Heard { stdout: Output::default(), stderr: Output::default() };
    let mut has_started = false;
    let outcome = loop {
        if watch.cancel.is_cancelled() {
            break Outcome::Cancelled;
        }
        if lease.lost().is_some() {
            // Its provider has ended it by now, and what was running in it.
            break Outcome::Unobserved;
        }
        let left = wall.saturating_sub(began.elapsed());
        if left.is_zero() {
            break Outcome::Limited { limit: LimitKind::Wall };
        }
        if has_started && input.pump(wire, running).is_err() {
            // What becomes of the program is told by its stream, not by its input.
            input = Feed::Done;
        }
        let tick = if input.is_ready() { Duration::from_millis(1) } else { TICK };
        match running.next(wire, tick.min(left)) {
            Said::Nothing => {}
            Said::Started => has_started = true,
            Said::Output(stream, bytes) => match heard.take(stream, &bytes, watch) {
                Ok(()) => {}
                Err(Full::Limit) => break Outcome::Limited { limit: LimitKind::Output },
                Err(Full::NobodyReads) => break Outcome::Cancelled,
            },
            Said::Exited(code) => break Outcome::Exited { code },
            Said::Signaled(signal) => break Outcome::Signaled { signal },
            Said::Refused(code) => return Err(code),
            Said::Lost => break Outcome::Unobserved,
        }
    };
    let usage = Usage {
        wall_us: u64::try_from(began.elapsed().as_micros()).ok(),
        stdout_bytes: Some(heard.stdout.seen()),
        stderr_bytes: Some(heard.stderr.seen()),
        ..Usage::default()
    };
    let (stdout, stderr) = (heard.stdout.finish(), heard.stderr.finish());
    Ok(Driven { outcome, usage, stdout, stderr })
}

struct Heard {
    stdout: Output,
    stderr: Output,
}

enum Full {
    Limit,
    NobodyReads,
}

impl Heard {
    fn take(&mut self, stream: Stream, bytes: &[u8], watch: Watch<'_>) -> Result<(), Full> {
        let most = watch.limits.output_bytes.unwrap_or(u64::MAX);
        let left = most.saturating_sub(self.stdout.seen() + self.stderr.seen());
        let room = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
        let kept = bytes.get(..room).unwrap_or_default();
        let output = match stream {
            Stream::Stdout => &mut self.stdout,
            Stream::Stderr => &mut self.stderr,
        };
        output.take(kept, bytes.len());
        if !kept.is_empty() && watch.sink.output(stream, kept).is_err() {
            return Err(Full::NobodyReads);
        }
        if room < bytes.len() { Err(Full::Limit) } else { Ok(()) }
    }
}

/// Input that is streamed to a running program.
pub(crate) enum Feed {
    /// Bytes, then the end.
    Bytes(Vec<u8>),
    /// Whatever a descriptor yields.
    Descriptor(Arc<OwnedFd>),
    /// Nothing more.
    Done,
}

impl Feed {
    /// Returns the input as it is streamed.
    pub(crate) fn streamed(stdin: &Stdin) -> Self {
        match stdin {
            Stdin::Empty => Self::Bytes(Vec::new()),
            Stdin::Bytes(bytes) => Self::Bytes(bytes.clone()),
            Stdin::Descriptor(fd) => Self::Descriptor(Arc::clone(fd)),
        }
    }

    fn is_ready(&self) -> bool {
        match self {
            Self::Bytes(_) => true,
            Self::Descriptor(fd) => is_readable(fd),
            Self::Done => false,
        }
    }

    /// Sends what there is now; the end is told once.
    fn pump(&mut self, wire: &Wire, running: &mut dyn Running) -> Result<(), ()> {
        match self {
            Self::Done => return Ok(()),
            Self::Bytes(bytes) => {
                for piece in bytes.chunks(INPUT_BYTES) {
                    running.feed(wire, piece).map_err(drop)?;
                }
            }
            Self::Descriptor(fd) => {
                if !is_readable(fd) {
                    return Ok(());
                }
                let mut buffer = vec![0; INPUT_BYTES];
                match rustix::io::read(&**fd, &mut buffer) {
                    Ok(0) | Err(_) => {}
                    Ok(count) => {
                        let piece = buffer.get(..count).unwrap_or_default();
                        return running.feed(wire, piece).map_err(drop);
                    }
                }
            }
        }
        *self = Self::Done;
        running.end_input(wire).map_err(drop)
    }
}

fn is_readable(fd: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(fd, PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(poll(&mut fds, Some(&now)), Ok(ready) if ready > 0)
}

/// Reads all input, for providers that cannot stream it. A terminal yields nothing.
///
/// # Errors
/// When it is too large, or stays open without a word: then nobody knows what would still come.
pub(crate) fn whole_input(stdin: &Stdin, cancel: &Cancel) -> io::Result<Option<Vec<u8>>> {
    let fd = match stdin {
        Stdin::Empty => return Ok(None),
        Stdin::Bytes(bytes) => return Ok(Some(bytes.clone())),
        Stdin::Descriptor(fd) => fd,
    };
    if rustix::termios::isatty(&**fd) {
        return Ok(None);
    }
    let is_device = FileType::from_raw_mode(fstat(&**fd)?.st_mode) == FileType::CharacterDevice;
    let mut all = Vec::new();
    let mut last = Instant::now();
    loop {
        if cancel.is_cancelled() || (is_device && all.len() > MOST_INPUT_BYTES) {
            return Ok(None);
        }
        if !is_readable(fd) {
            if last.elapsed() > INPUT_PATIENCE {
                return Err(io::Error::other(
                    "standard input stays open, and this provider cannot stream it; \
                     close it with </dev/null",
                ));
            }
            std::thread::sleep(TICK);
            continue;
        }
        let mut buffer = vec![0; INPUT_BYTES];
        let count = rustix::io::read(&**fd, &mut buffer)?;
        if count == 0 {
            return Ok((!all.is_empty()).then_some(all));
        }
        all.extend_from_slice(buffer.get(..count).unwrap_or_default());
        last = Instant::now();
        if all.len() > MOST_INPUT_BYTES {
            return Err(io::Error::other("standard input is too large for this provider"));
        }
    }
}
