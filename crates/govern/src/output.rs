//! Takes a program's output for someone who wants a bounded piece of it: the beginning and the
//! end. The whole of it is in the run's log.

use std::collections::VecDeque;
use std::io;
use std::sync::{Mutex, PoisonError};

use warrant_runner::run::Observer;
use warrant_sandbox::Stream;

/// Takes both streams of one run, each up to a bound.
#[derive(Debug)]
pub struct Capture {
    streams: Mutex<[Cut; 2]>,
}

/// A bounded piece of one stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Excerpt {
    /// The beginning; everything, when nothing is missing.
    pub head: Vec<u8>,
    /// How many bytes are missing between beginning and end.
    pub missing: u64,
    /// The end; empty when nothing is missing.
    pub tail: Vec<u8>,
}

#[derive(Debug)]
struct Cut {
    head_room: usize,
    tail_room: usize,
    head: Vec<u8>,
    tail: VecDeque<u8>,
    total: u64,
}

impl Capture {
    /// Returns a capture that keeps `limit` bytes of each stream, half from either end.
    #[must_use]
    pub fn both_ends(limit: usize) -> Self {
        Self::with(limit - limit / 2, limit / 2)
    }

    /// Returns a capture that keeps the first `limit` bytes of each stream.
    #[must_use]
    pub fn beginning(limit: usize) -> Self {
        Self::with(limit, 0)
    }

    fn with(head_room: usize, tail_room: usize) -> Self {
        let cut =
            || Cut { head_room, tail_room, head: Vec::new(), tail: VecDeque::new(), total: 0 };
        Self { streams: Mutex::new([cut(), cut()]) }
    }

    /// Returns what was kept of standard output and standard error.
    #[must_use]
    pub fn excerpts(&self) -> (Excerpt, Excerpt) {
        let streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        let [stdout, stderr] = &*streams;
        (stdout.excerpt(), stderr.excerpt())
    }

    /// Returns how many bytes came so far, on both streams.
    #[must_use]
    pub fn total(&self) -> u64 {
        let streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        streams.iter().map(|cut| cut.total).sum()
    }

    /// Returns the last line that came whole on standard output, as far as it was kept.
    #[must_use]
    pub fn last_line(&self) -> Option<String> {
        let streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        let [stdout, _] = &*streams;
        let bytes: Vec<u8> = stdout.head.iter().chain(&stdout.tail).copied().collect();
        let text = String::from_utf8_lossy(&bytes);
        let whole = text.rsplit_once('\n').map(|(whole, _)| whole)?;
        whole.rsplit('\n').next().map(str::to_owned).filter(|line| !line.is_empty())
    }
}

impl Cut {
    fn take(&mut self, bytes: &[u8]) {
        self.total = self.total.saturating_add(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
        let free = self.head_room.saturating_sub(self.head.len()).min(bytes.len());
        let (first, rest) = bytes.split_at(free);
        self.head.extend_from_slice(first);
        let last = rest.len().saturating_sub(self.tail_room);
        self.tail.extend(rest.iter().skip(last));
        let over = self.tail.len().saturating_sub(self.tail_room);
        self.tail.drain(..over);
    }

    fn excerpt(&self) -> Excerpt {
        let kept = u64::try_from(self.head.len() + self.tail.len()).unwrap_or(u64::MAX);
        let missing = self.total.saturating_sub(kept);
        let (mut head, tail) = (self.head.clone(), self.tail.iter().copied().collect::<Vec<u8>>());
        if missing == 0 {
            head.extend(tail);
            return Excerpt { head, missing, tail: Vec::new() };
        }
        Excerpt { head, missing, tail }
    }
}

impl Observer for Capture {
    fn output(&self, stream: Stream, bytes: &[u8]) -> io::Result<()> {
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        let [stdout, stderr] = &mut *streams;
        match stream {
            Stream::Stdout => stdout.take(bytes),
            Stream::Stderr => stderr.take(bytes),
        }
        Ok(())
    }
}

impl Excerpt {
    /// Returns whether this is everything.
    #[must_use]
    pub const fn is_whole(&self) -> bool {
        self.missing == 0
    }

    /// Returns the piece as text; bytes that are no UTF-8 are replaced, what is missing is named.
    #[must_use]
    pub fn text(&self) -> String {
        let head = String::from_utf8_lossy(&self.head);
        if self.is_whole() {
            return head.into_owned();
        }
        let tail = String::from_utf8_lossy(&self.tail);
        format!("{head}\n[… {} bytes left out …]\n{tail}", self.missing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(limit: usize, pieces: &[&str], expected: (&str, u64, &str)) {
        let capture = Capture::both_ends(limit);
        for piece in pieces {
            capture.output(Stream::Stdout, piece.as_bytes()).unwrap();
        }
        let (stdout, stderr) = capture.excerpts();
        let (head, missing, tail) = expected;
        let expected = Excerpt { head: head.into(), missing, tail: tail.into() };
        assert_eq!(stdout, expected);
        assert!(stderr.is_whole() && stderr.head.is_empty());
    }

    #[test]
    fn beginning_and_end_are_kept_and_the_rest_is_counted() {
        check(8, &["abc"], ("abc", 0, ""));
        check(8, &["abcdefgh"], ("abcdefgh", 0, ""));
        check(8, &["abcdefghi"], ("abcd", 1, "fghi"));
        check(8, &["a", "bcdefghijk", "lm"], ("abcd", 5, "jklm"));
        check(8, &["abcdefgh", "", "0123456789"], ("abcd", 10, "6789"));
        check(0, &["abc"], ("", 3, ""));
        check(1, &["abc"], ("a", 2, ""));
    }

    #[test]
    fn the_last_whole_line_is_told() {
        let capture = Capture::both_ends(1 << 10);
        assert_eq!(capture.last_line(), None);
        capture.output(Stream::Stdout, b"one\ntwo\nhal").unwrap();
        assert_eq!(capture.last_line().as_deref(), Some("two"));
        assert_eq!(capture.total(), 11);
    }
}
