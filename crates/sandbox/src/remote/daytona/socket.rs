//! The reading side of a WebSocket: frames in, and an answer to a ping.
//!
//! Only what listening to a log needs. Frames are bounded; what is not understood ends it.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::remote::wire::Wire;

const MOST_FRAME_BYTES: u64 = 16 << 20;
const CONTINUED: u8 = 0;
const TEXT: u8 = 1;
const BINARY: u8 = 2;
const PING: u8 = 9;
const PONG: u8 = 10;

/// A connection that became a WebSocket.
pub(super) struct Socket {
    stream: reqwest::Upgraded,
    buffer: Vec<u8>,
    is_over: bool,
}

/// What came.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Frame {
    Content(Vec<u8>),
    Nothing,
    End,
}

impl Socket {
    /// Returns what asks for the change of protocol.
    pub(super) fn headers() -> Vec<(String, String)> {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let key = STANDARD.encode(now.map_or(0, |now| now.as_nanos()).to_be_bytes());
        [
            ("Connection", "Upgrade"),
            ("Upgrade", "websocket"),
            ("Sec-WebSocket-Version", "13"),
            ("Sec-WebSocket-Key", &key),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .to_vec()
    }

    pub(super) const fn new(stream: reqwest::Upgraded) -> Self {
        Self { stream, buffer: Vec::new(), is_over: false }
    }

    /// Returns the next frame, or nothing when none came within `how_long`.
    pub(super) fn next(&mut self, wire: &Wire, how_long: Duration) -> Frame {
        loop {
            match take(&mut self.buffer) {
                Taken::Frame(CONTINUED | TEXT | BINARY, content) => return Frame::Content(content),
                Taken::Frame(PING, content) => {
                    let pong = masked(PONG, &content);
                    let sent = wire.within(how_long, self.stream.write_all(&pong));
                    self.is_over |= !matches!(sent, Some(Ok(())));
                    continue;
                }
                Taken::Frame(PONG, _) => continue,
                Taken::Frame(..) | Taken::Senseless => self.is_over = true,
                Taken::Nothing => {}
            }
            if self.is_over {
                return Frame::End;
            }
            let mut piece = vec![0; 16 << 10];
            match wire.within(how_long, self.stream.read(&mut piece)) {
                None => return Frame::Nothing,
                Some(Ok(count @ 1..)) => {
                    self.buffer.extend_from_slice(piece.get(..count).unwrap_or_default());
                }
                Some(Ok(_) | Err(_)) => self.is_over = true,
            }
        }
    }
}

enum Taken {
    Frame(u8, Vec<u8>),
    Nothing,
    Senseless,
}

/// Takes one whole frame off the front of a buffer.
fn take(buffer: &mut Vec<u8>) -> Taken {
    let &[first, second, ..] = buffer.as_slice() else { return Taken::Nothing };
    // A server never masks, and no extension was asked for.
    if second & 0x80 != 0 || first & 0x70 != 0 {
        return Taken::Senseless;
    }
    let number = |from: usize, count: usize| {
        let bytes = buffer.get(from..from + count)?;
        Some(bytes.iter().fold(0_u64, |sum, byte| (sum << 8) | u64::from(*byte)))
    };
    let (length, head) = match second & 0x7f {
        126 => (number(2, 2), 4),
        127 => (number(2, 8), 10),
        short => (Some(u64::from(short)), 2),
    };
    let Some(length) = length else { return Taken::Nothing };
    if length > MOST_FRAME_BYTES {
        return Taken::Senseless;
    }
    let end = head + usize::try_from(length).unwrap_or(usize::MAX);
    let Some(content) = buffer.get(head..end) else { return Taken::Nothing };
    let content = content.to_vec();
    buffer.drain(..end);
    Taken::Frame(first & 0x0f, content)
}

/// Returns a short frame of ours; the mask may be anything.
fn masked(kind: u8, content: &[u8]) -> Vec<u8> {
    let content = content.get(..content.len().min(125)).unwrap_or_default();
    let length = u8::try_from(content.len()).unwrap_or(125);
    let mut frame = vec![0x80 | kind, 0x80 | length, 0, 0, 0, 0];
    frame.extend_from_slice(content);
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_taken_whole() {
        let long = vec![7; 300];
        let frame = [&[0x82, 126, 1, 44][..], &long].concat();
        for cut in 0..frame.len() {
            assert!(matches!(take(&mut frame[..cut].to_vec()), Taken::Nothing));
        }
        let mut two = [frame.as_slice(), &[0x88, 0]].concat();
        assert!(matches!(take(&mut two), Taken::Frame(BINARY, content) if content == long));
        assert!(matches!(take(&mut two), Taken::Frame(8, _)));
        assert!(two.is_empty());
        assert!(matches!(take(&mut vec![0x82, 127, 1, 0, 0, 0, 0, 0, 0, 0]), Taken::Senseless));
        assert!(matches!(take(&mut vec![0x82, 0x81, 0, 0]), Taken::Senseless));
    }
}
