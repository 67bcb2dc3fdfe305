//! The program's streams: what it reads is pumped to it, what it writes is counted and hashed.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use rustix::termios::{Winsize, tcgetwinsize, tcsetwinsize};
use sha2::{Digest as _, Sha256};
use warrant_protocol::Digest;

use crate::{Stdin, StreamDigest};

/// What one output stream has said so far.
#[derive(Debug, Clone, Default)]
pub(crate) struct Output {
    hash: Sha256,
    kept: u64,
    seen: u64,
}

impl Output {
    /// Takes the `kept` bytes of a read of `seen` bytes.
    pub(crate) fn take(&mut self, kept: &[u8], seen: usize) {
        self.hash.update(kept);
        self.kept += kept.len() as u64;
        self.seen += seen as u64;
    }

    /// Returns how many bytes came, kept or not.
    pub(crate) const fn seen(&self) -> u64 {
        self.seen
    }

    /// Returns what passed.
    pub(crate) fn finish(&self) -> StreamDigest {
        StreamDigest {
            digest: Digest::from_bytes(self.hash.clone().finalize().into()),
            bytes: self.kept,
            truncated: self.seen > self.kept,
        }
    }
}

/// What the program reads: a source, a small buffer, and the program's end.
#[derive(Debug)]
pub(crate) struct Input {
    source: Option<Arc<OwnedFd>>,
    pending: Vec<u8>,
    written: usize,
    sink: Option<OwnedFd>,
    /// The program's terminal, if it has one: ends are told by a character, sizes by a call.
    is_terminal: bool,
    size: Option<Winsize>,
}

const END_OF_TRANSMISSION: u8 = 4;
const BUFFER_BYTES: usize = 16 * 1024;
const SIZE_INTERVAL: Duration = Duration::from_millis(100);

impl Input {
    /// Returns the pump into a pipe.
    pub(crate) fn pipe(stdin: &Stdin, sink: OwnedFd) -> io::Result<Self> {
        let flags = fcntl_getfl(&sink)?;
        fcntl_setfl(&sink, flags | OFlags::NONBLOCK)?;
        let mut input = Self::new(stdin, sink, false);
        input.close_when_done();
        Ok(input)
    }

    /// Returns the pump into a terminal, of which `outer` is a duplicate of our side.
    pub(crate) fn terminal(stdin: &Stdin, outer: OwnedFd) -> io::Result<Self> {
        let flags = fcntl_getfl(&outer)?;
        fcntl_setfl(&outer, flags | OFlags::NONBLOCK)?;
        let mut input = Self::new(stdin, outer, true);
        if let Stdin::Bytes(_) = stdin {
            input.pending.push(END_OF_TRANSMISSION);
        }
        Ok(input)
    }

    fn new(stdin: &Stdin, sink: OwnedFd, is_terminal: bool) -> Self {
        let (source, pending) = match stdin {
            Stdin::Empty => (None, Vec::new()),
            Stdin::Bytes(bytes) => (None, bytes.clone()),
            Stdin::Descriptor(fd) => (Some(Arc::clone(fd)), Vec::new()),
        };
        Self { source, pending, written: 0, sink: Some(sink), is_terminal, size: None }
    }

    /// Returns the source when there is room for more of it.
    pub(crate) fn wants_source(&self) -> Option<BorrowedFd<'_>> {
        let has_room = self.pending.len() == self.written && self.sink.is_some();
        self.source.as_ref().filter(|_| has_room).map(|source| source.as_fd())
    }

    /// Returns the program's end when there is something for it.
    pub(crate) fn wants_sink(&self) -> Option<BorrowedFd<'_>> {
        let has_bytes = self.pending.len() > self.written;
        self.sink.as_ref().filter(|_| has_bytes).map(AsFd::as_fd)
    }

    /// Reads from the source.
    pub(crate) fn fill(&mut self) {
        // What is typed after the size was changed sees the new size.
        self.follow_terminal_size();
        let Some(source) = &self.source else { return };
        self.pending.resize(BUFFER_BYTES, 0);
        self.written = 0;
        let result = rustix::io::read(source, &mut self.pending);
        match result {
            Ok(0) => {
                self.pending.clear();
                self.source = None;
                if self.is_terminal {
                    self.pending.push(END_OF_TRANSMISSION);
                }
                self.close_when_done();
            }
            Ok(count) => self.pending.truncate(count),
            Err(Errno::INTR | Errno::AGAIN) => self.pending.clear(),
            Err(_) => {
                self.pending.clear();
                self.source = None;
                self.close_when_done();
            }
        }
    }

    /// Writes to the program.
    pub(crate) fn drain(&mut self) {
        let Some(sink) = &self.sink else { return };
        let bytes = self.pending.get(self.written..).unwrap_or_default();
        match rustix::io::write(sink, bytes) {
            Ok(count) => self.written += count,
            Err(Errno::INTR | Errno::AGAIN) => {}
            // The program closed its input; that is its right.
            Err(_) => {
                self.source = None;
                self.pending.clear();
                self.written = 0;
                self.sink = None;
            }
        }
        self.close_when_done();
    }

    fn close_when_done(&mut self) {
        let is_done = self.source.is_none() && self.pending.len() == self.written;
        if is_done && !self.is_terminal {
            self.sink = None;
        }
    }

    /// Returns how often the size of the outer terminal is looked at.
    pub(crate) fn interval(&self) -> Option<Duration> {
        (self.is_terminal && self.source.is_some()).then_some(SIZE_INTERVAL)
    }

    /// Gives the program's terminal the size of the one behind the source, if that changed.
    pub(crate) fn follow_terminal_size(&mut self) {
        let (Some(source), Some(sink), true) = (&self.source, &self.sink, self.is_terminal) else {
            return;
        };
        let Ok(size) = tcgetwinsize(source) else { return };
        let is_same =
            self.size.is_some_and(|last| (last.ws_row, last.ws_col) == (size.ws_row, size.ws_col));
        if !is_same && size.ws_row > 0 && size.ws_col > 0 {
            self.size = Some(size);
            let _ = tcsetwinsize(sink, size);
        }
    }
}
