//! Watches one worker from request to end: output, input, limits, cancellation, death.
//!
//! ```text
//! request sent ── Exit ───────────────────► Exited
//!   ├─ Struck, deadline, CPU, memory, output ► Limited   (killed)
//!   ├─ cancelled, sink gone ───────────────► Cancelled (killed)
//!   └─ socket closed ── signal ────────────► Signaled, or Limited if a limit sent it
//! ```

mod usage;

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use warrant_protocol::{LimitKind, Limits, Outcome, Usage};

use super::fetcher::{Fetcher, News};
use super::frame::{self, Decoder, Frame, Kind};
use super::launch::Worker;
use super::output::{Output, Passed};
use super::request::Request;
use crate::{Cancel, Sink, Stdin, Stream, StreamDigest};

/// How often CPU and memory are looked at.
const TICK: Duration = Duration::from_millis(20);

/// What is said when a script was stopped while its input was still open.
const OPEN_INPUT: &[u8] = b"warrant: the script was stopped while its standard input was still \
open; a script that reads it starts only when it has ended: close it, or give it < /dev/null\n";

/// The largest frame a worker may send.
const MAX_FRAME: usize = 32 << 20;

/// What the supervisor holds a run to.
pub(crate) struct Watch<'a> {
    /// The limits.
    pub limits: &'a Limits,
    /// Where output goes.
    pub sink: &'a dyn Sink,
    /// Who can stop it.
    pub cancel: &'a Cancel,
    /// Its network, if it has one.
    pub fetcher: Option<Fetcher>,
}

/// How a worker's run went.
pub(crate) struct Ended {
    /// How it ended.
    pub outcome: Outcome,
    /// What it used.
    pub usage: Usage,
    /// What of stdout passed.
    pub stdout: StreamDigest,
    /// What of stderr passed.
    pub stderr: StreamDigest,
}

/// Runs one request in a worker to its end. The worker is gone when this returns.
pub(crate) fn supervise(
    mut worker: Worker,
    request: &Request,
    (root, stdin): (Option<BorrowedFd<'_>>, &Stdin),
    watch: Watch<'_>,
) -> io::Result<Ended> {
    let started = Instant::now();
    let payload = request.encode();
    match root {
        Some(root) => frame::send_with_fd(&worker.line, Kind::Request, &payload, root)?,
        None => frame::send(&worker.line, Kind::Request, &payload)?,
    }
    let mut session = Session::new(stdin, watch);
    session.deadline = session.limits.wall_ms.map(|ms| started + Duration::from_millis(ms));
    session.pid = Some(worker.pid());
    let said = session.run(&worker.line)?;
    // Before it is reaped: the kernel's count of its CPU time goes with it.
    session.measure();
    let outcome = match said {
        Some(outcome) => outcome,
        None => died(&mut worker)?,
    };
    drop(worker);
    Ok(session.finish(outcome, started.elapsed()))
}

/// Talks to a worker that somebody else keeps, limits and ends; `None` for an outcome means that
/// the worker left without a word.
pub(super) fn converse(
    line: &UnixStream,
    request: &Request,
    stdin: &Stdin,
    watch: Watch<'_>,
) -> io::Result<(Option<Outcome>, Ended)> {
    let started = Instant::now();
    let mut session = Session::new(stdin, watch);
    // What was asked for is sent like everything else, so that a dead worker blocks nobody.
    session.outgoing = frame::bytes(Kind::Request, &request.encode())?;
    let said = session.run(line)?;
    if said.is_none() {
        session.tell_of_open_input()?;
    }
    Ok((said.clone(), session.finish(said.unwrap_or(Outcome::Lost), started.elapsed())))
}

/// Tells how a worker ended that closed its socket without saying so.
fn died(worker: &mut Worker) -> io::Result<Outcome> {
    worker.settle(Duration::from_millis(500))?;
    let signal = worker.end()?;
    cause_of_death(signal, &worker.last_words())
        .ok_or_else(|| io::Error::other("the worker left without a word"))
}

/// Returns what killed a worker, from its signal and from what its runtime said last.
pub(super) fn cause_of_death(signal: Option<u8>, words: &str) -> Option<Outcome> {
    // The runtime says this and aborts when the address space limit refuses an allocation.
    if words.contains("memory allocation of") {
        return Some(Outcome::Limited { limit: LimitKind::Memory });
    }
    let signal = signal?;
    if i32::from(signal) == rustix::process::Signal::XCPU.as_raw() {
        return Some(Outcome::Limited { limit: LimitKind::Cpu });
    }
    Some(Outcome::Signaled { signal })
}

/// What is still to be sent as standard input.
enum Feed<'a> {
    Bytes(&'a [u8]),
    Descriptor(BorrowedFd<'a>),
    Done,
}

fn feed(stdin: &Stdin) -> Feed<'_> {
    match stdin {
        Stdin::Empty => Feed::Bytes(&[]),
        Stdin::Bytes(bytes) => Feed::Bytes(bytes),
        // LIMIT: the interpreter wants all input before it starts, and a terminal has no end.
        Stdin::Descriptor(fd) if rustix::termios::isatty(fd) => Feed::Bytes(&[]),
        Stdin::Descriptor(fd) => Feed::Descriptor(fd.as_fd()),
    }
}

struct Session<'a> {
    deadline: Option<Instant>,
    /// The process whose CPU and memory are looked at.
    pid: Option<u32>,
    output: Output<'a>,
    incoming: Vec<u8>,
    outgoing: Vec<u8>,
    stdin: Feed<'a>,
    fetcher: Option<Fetcher>,
    is_fetching: bool,
    limits: &'a Limits,
    sink: &'a dyn Sink,
    cancel: &'a Cancel,
    peak_memory: u64,
    /// What the kernel counted, once somebody looked.
    cpu: Option<Duration>,
}

impl<'a> Session<'a> {
    fn new(stdin: &'a Stdin, watch: Watch<'a>) -> Self {
        let Watch { limits, sink, cancel, fetcher } = watch;
        Self {
            deadline: None,
            pid: None,
            output: Output::new(sink, limits.output_bytes),
            incoming: Vec::new(),
            outgoing: Vec::new(),
            stdin: feed(stdin),
            fetcher,
            is_fetching: false,
            limits,
            sink,
            cancel,
            peak_memory: 0,
            cpu: None,
        }
    }

    /// Returns how the run ended, or `None` when the worker closed its socket without a word.
    fn run(&mut self, line: &UnixStream) -> io::Result<Option<Outcome>> {
        line.set_nonblocking(true)?;
        loop {
            let ready = self.wait(line)?;
            if ready.cancelled {
                return Ok(Some(Outcome::Cancelled));
            }
            if let Some(limit) = self.struck() {
                self.tell_of_open_input()?;
                return Ok(Some(Outcome::Limited { limit }));
            }
            if ready.news {
                let news = self.fetcher.as_ref().map(Fetcher::news).unwrap_or_default();
                self.tell(news);
            }
            self.supply(line, &ready)?;
            if ready.readable {
                match self.receive(line)? {
                    Received::More => {}
                    Received::Ended(outcome) => return Ok(Some(outcome)),
                    Received::Closed => return Ok(None),
                }
            }
        }
    }

    /// Says that the script's input never ended, where that may be why it had to be stopped.
    fn tell_of_open_input(&mut self) -> io::Result<()> {
        if matches!(self.stdin, Feed::Descriptor(_)) {
            self.output.pass(Stream::Stderr, OPEN_INPUT)?;
        }
        Ok(())
    }

    fn finish(mut self, outcome: Outcome, wall: Duration) -> Ended {
        let network = self.fetcher.take().map(|fetcher| {
            let (news, totals) = fetcher.finish();
            self.tell(news);
            totals
        });
        let [(stdout, stdout_bytes), (stderr, stderr_bytes)] = self.output.finish();
        let usage = Usage {
            wall_us: u64::try_from(wall.as_micros()).ok(),
            cpu_us: self.cpu.and_then(|cpu| u64::try_from(cpu.as_micros()).ok()),
            peak_memory_bytes: (self.peak_memory > 0).then_some(self.peak_memory),
            stdout_bytes: Some(stdout_bytes),
            stderr_bytes: Some(stderr_bytes),
            net_in_bytes: network.map(|totals| totals.bytes_in),
            net_out_bytes: network.map(|totals| totals.bytes_out),
        };
        Ended { outcome, usage, stdout, stderr }
    }

    fn wait(&self, socket: &UnixStream) -> io::Result<Ready> {
        let wants_input = self.outgoing.is_empty() && !matches!(self.stdin, Feed::Done);
        let mut line = PollFlags::IN;
        line.set(PollFlags::OUT, !self.outgoing.is_empty());
        let mut fds = vec![PollFd::new(socket, line), PollFd::new(self.cancel, PollFlags::IN)];
        // Nothing on the cancellation's descriptor is news a second time.
        let news = self.fetcher.as_ref().map_or(self.cancel.as_fd(), AsFd::as_fd);
        fds.push(PollFd::from_borrowed_fd(news, PollFlags::IN));
        let mut timeout = self.timeout();
        match &self.stdin {
            Feed::Descriptor(fd) if wants_input => {
                fds.push(PollFd::from_borrowed_fd(*fd, PollFlags::IN));
            }
            Feed::Bytes(_) if wants_input => timeout = Some(Duration::ZERO),
            Feed::Descriptor(_) | Feed::Bytes(_) | Feed::Done => {}
        }
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let happened = |at: usize, flags| {
            fds.get(at).is_some_and(|fd: &PollFd<'_>| fd.revents().intersects(flags))
        };
        let down = PollFlags::HUP | PollFlags::ERR;
        Ok(Ready {
            readable: happened(0, PollFlags::IN | down),
            writable: happened(0, PollFlags::OUT),
            cancelled: happened(1, PollFlags::IN),
            news: happened(2, PollFlags::IN),
            input: happened(3, PollFlags::IN | down | PollFlags::NVAL),
        })
    }

    fn timeout(&self) -> Option<Duration> {
        let left = self.deadline.map(|at| at.saturating_duration_since(Instant::now()));
        let limits = self.limits;
        let watches = limits.cpu_ms.is_some() || limits.memory_bytes.is_some();
        let ticks = watches && self.pid.is_some();
        match (left, ticks) {
            (Some(left), true) => Some(left.min(TICK)),
            (None, true) => Some(TICK),
            (left, false) => left,
        }
    }

    /// Returns the limit that has been passed, as seen from outside.
    fn struck(&mut self) -> Option<LimitKind> {
        if self.deadline.is_some_and(|at| Instant::now() >= at) {
            return Some(LimitKind::Wall);
        }
        let limits = self.limits;
        if limits.cpu_ms.is_none() && limits.memory_bytes.is_none() {
            return None;
        }
        let memory = self.measure();
        if limits.cpu_ms.is_some_and(|ms| self.cpu > Some(Duration::from_millis(ms))) {
            return Some(LimitKind::Cpu);
        }
        limits.memory_bytes.is_some_and(|bytes| memory > bytes).then_some(LimitKind::Memory)
    }

    /// Looks at the worker's CPU time and memory; returns the memory it holds now.
    fn measure(&mut self) -> u64 {
        let Some(pid) = self.pid else { return 0 };
        if let Some(cpu) = usage::cpu(pid) {
            self.cpu = self.cpu.max(Some(cpu));
        }
        let Some(memory) = usage::memory(pid) else { return 0 };
        self.peak_memory = self.peak_memory.max(memory.peak);
        memory.now
    }

    /// Sends what is waiting, and fetches more standard input when nothing is.
    fn supply(&mut self, mut line: &UnixStream, ready: &Ready) -> io::Result<()> {
        if ready.writable {
            match line.write(&self.outgoing) {
                Ok(count) => drop(self.outgoing.drain(..count)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // The worker is gone; reading will tell how.
                Err(_) => self.outgoing.clear(),
            }
        }
        if !self.outgoing.is_empty() {
            return Ok(());
        }
        match &mut self.stdin {
            Feed::Done => {}
            Feed::Bytes([]) => self.end_input(),
            Feed::Bytes(bytes) => {
                let (chunk, rest) = bytes.split_at(bytes.len().min(frame::CHUNK));
                self.outgoing = frame::bytes(Kind::Stdin, chunk)?;
                self.stdin = Feed::Bytes(rest);
            }
            Feed::Descriptor(fd) if ready.input => {
                let mut chunk = vec![0; frame::CHUNK];
                match rustix::io::read(*fd, &mut chunk) {
                    Ok(0) => self.end_input(),
                    Ok(count) => {
                        chunk.truncate(count);
                        self.outgoing = frame::bytes(Kind::Stdin, &chunk)?;
                    }
                    Err(Errno::AGAIN | Errno::INTR) => {}
                    Err(_) => self.end_input(),
                }
            }
            Feed::Descriptor(_) => {}
        }
        Ok(())
    }

    /// Passes decisions on to the sink and the answer on to the worker.
    fn tell(&mut self, news: Vec<News>) {
        for news in news {
            match news {
                News::Decided(decision) => self.sink.network(decision),
                News::Fetched(payload) => {
                    self.is_fetching = false;
                    let frame = frame::bytes(Kind::Fetched, &payload).unwrap_or_default();
                    self.outgoing.extend_from_slice(&frame);
                }
            }
        }
    }

    fn end_input(&mut self) {
        self.stdin = Feed::Done;
        self.outgoing = frame::bytes(Kind::StdinEnd, &[]).unwrap_or_default();
    }

    fn receive(&mut self, mut line: &UnixStream) -> io::Result<Received> {
        let mut chunk = [0; frame::CHUNK];
        match line.read(&mut chunk) {
            Ok(0) => return Ok(Received::Closed),
            Ok(count) => self.incoming.extend_from_slice(chunk.get(..count).unwrap_or_default()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Received::More),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(Received::More),
            Err(_) => return Ok(Received::Closed),
        }
        while let Some(frame) = frame::take(&mut self.incoming, MAX_FRAME)? {
            if let Some(outcome) = self.answer(&frame)? {
                self.measure();
                return Ok(Received::Ended(outcome));
            }
        }
        Ok(Received::More)
    }

    fn answer(&mut self, frame: &Frame) -> io::Result<Option<Outcome>> {
        let stream = match frame.kind {
            Kind::Stdout => Stream::Stdout,
            Kind::Stderr => Stream::Stderr,
            Kind::Exit => {
                let code = Decoder::new(&frame.payload).byte()?;
                return Ok(Some(Outcome::Exited { code }));
            }
            Kind::Struck => {
                let named = |limit: &LimitKind| limit.as_str().as_bytes() == frame.payload;
                let limit = LimitKind::ALL.into_iter().find(named);
                let limit = limit.ok_or_else(|| frame::broken("unknown limit"))?;
                return Ok(Some(Outcome::Limited { limit }));
            }
            Kind::Fetch => {
                // SECURITY: a worker that was taken over cannot flood the network with requests.
                let fetcher = self.fetcher.as_ref().filter(|_| !self.is_fetching);
                let fetcher = fetcher.ok_or_else(|| frame::broken("no fetch is possible now"))?;
                fetcher.ask(&frame.payload)?;
                self.is_fetching = true;
                return Ok(None);
            }
            // A jailed worker says so while its request is already on the way.
            Kind::Ready => return Ok(None),
            Kind::Request | Kind::Stdin | Kind::StdinEnd | Kind::Fetched | Kind::Root => {
                return Err(frame::broken("a frame the worker may not send"));
            }
        };
        Ok(match self.output.pass(stream, &frame.payload) {
            Ok(Passed::Whole) => None,
            Ok(Passed::Cut) => Some(Outcome::Limited { limit: LimitKind::Output }),
            Err(_) => Some(Outcome::Cancelled),
        })
    }
}

struct Ready {
    readable: bool,
    writable: bool,
    cancelled: bool,
    news: bool,
    input: bool,
}

enum Received {
    More,
    Ended(Outcome),
    Closed,
}
