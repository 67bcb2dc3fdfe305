//! Passes output on to the sink up to the limit, and digests what passed.

use std::io;

use sha2::{Digest as _, Sha256};
use warrant_protocol::Digest;

use crate::{Sink, Stream, StreamDigest};

/// What became of a piece of output.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Passed {
    /// All of it went to the sink.
    Whole,
    /// The limit cut it.
    Cut,
}

/// Both streams of one run.
pub(super) struct Output<'a> {
    sink: &'a dyn Sink,
    left: u64,
    stdout: Meter,
    stderr: Meter,
}

#[derive(Default)]
struct Meter {
    hash: Sha256,
    kept: u64,
    seen: u64,
}

impl<'a> Output<'a> {
    /// Returns the output of a run that may say at most `limit` bytes.
    pub(super) fn new(sink: &'a dyn Sink, limit: Option<u64>) -> Self {
        let left = limit.unwrap_or(u64::MAX);
        Self { sink, left, stdout: Meter::default(), stderr: Meter::default() }
    }

    /// Hands bytes to the sink as far as the limit allows.
    pub(super) fn pass(&mut self, stream: Stream, bytes: &[u8]) -> io::Result<Passed> {
        let room = usize::try_from(self.left).unwrap_or(usize::MAX).min(bytes.len());
        let (kept, cut) = bytes.split_at_checked(room).unwrap_or((bytes, &[]));
        self.left -= kept.len() as u64;
        let meter = match stream {
            Stream::Stdout => &mut self.stdout,
            Stream::Stderr => &mut self.stderr,
        };
        meter.seen += bytes.len() as u64;
        meter.kept += kept.len() as u64;
        meter.hash.update(kept);
        if !kept.is_empty() {
            self.sink.output(stream, kept)?;
        }
        Ok(if cut.is_empty() { Passed::Whole } else { Passed::Cut })
    }

    /// Returns the digests of stdout and stderr, and how many bytes of each were seen.
    pub(super) fn finish(self) -> [(StreamDigest, u64); 2] {
        [self.stdout, self.stderr].map(|meter| {
            let digest = StreamDigest {
                digest: Digest::from_bytes(meter.hash.finalize().into()),
                bytes: meter.kept,
                truncated: meter.seen > meter.kept,
            };
            (digest, meter.seen)
        })
    }
}
