//! Takes the two streams of a session's log apart: `01 01 01` begins stdout, `02 02 02` stderr.

use crate::Stream;

const MARK: usize = 3;

/// Which stream the next bytes belong to, and bytes that may be the beginning of a mark.
#[derive(Debug)]
pub(super) struct Demux {
    stream: Stream,
    held: Vec<u8>,
}

impl Demux {
    pub(super) const fn new() -> Self {
        Self { stream: Stream::Stdout, held: Vec::new() }
    }

    /// Returns the pieces of a frame; what may be half a mark waits for the next one.
    pub(super) fn take(&mut self, frame: &[u8]) -> Vec<(Stream, Vec<u8>)> {
        self.held.extend_from_slice(frame);
        let bytes = std::mem::take(&mut self.held);
        let mut pieces = Vec::new();
        let mut rest = bytes.as_slice();
        let mut plain: Vec<u8> = Vec::new();
        while let Some((first, after)) = rest.split_first() {
            let marked = match first {
                1 => Some(Stream::Stdout),
                2 => Some(Stream::Stderr),
                _ => None,
            };
            let run = rest.iter().take(MARK).take_while(|byte| *byte == first).count();
            match marked {
                Some(stream) if run == MARK => {
                    self.put(&mut pieces, &mut plain);
                    self.stream = stream;
                    rest = rest.get(MARK..).unwrap_or_default();
                }
                Some(_) if run == rest.len() => {
                    self.held = rest.to_vec();
                    break;
                }
                _ => {
                    plain.push(*first);
                    rest = after;
                }
            }
        }
        self.put(&mut pieces, &mut plain);
        pieces
    }

    /// Returns what waited for the rest of a mark that never came.
    pub(super) fn finish(&mut self) -> Option<(Stream, Vec<u8>)> {
        let rest = std::mem::take(&mut self.held);
        (!rest.is_empty()).then_some((self.stream, rest))
    }

    fn put(&self, pieces: &mut Vec<(Stream, Vec<u8>)>, plain: &mut Vec<u8>) {
        if !plain.is_empty() {
            pieces.push((self.stream, std::mem::take(plain)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_found_wherever_frames_are_cut() {
        let log = b"\x01\x01\x01out\x01x\n\x02\x02\x02err\n\x01\x01\x01more";
        for cut in 0..log.len() {
            let mut demux = Demux::new();
            let (mut out, mut err) = (Vec::new(), Vec::new());
            let mut pieces = demux.take(&log[..cut]);
            pieces.extend(demux.take(&log[cut..]));
            pieces.extend(demux.finish());
            for (stream, bytes) in pieces {
                let kept = if stream == Stream::Stdout { &mut out } else { &mut err };
                kept.extend(bytes);
            }
            assert_eq!((out.as_slice(), err.as_slice()), (&b"out\x01x\nmore"[..], &b"err\n"[..]));
        }
    }

    #[test]
    fn half_a_mark_at_the_end_is_output() {
        let mut demux = Demux::new();
        assert_eq!(demux.take(b"a\x02\x02"), [(Stream::Stdout, b"a".to_vec())]);
        assert_eq!(demux.finish(), Some((Stream::Stdout, b"\x02\x02".to_vec())));
    }
}
