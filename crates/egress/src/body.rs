//! Bodies: how many bytes still belong to one, and what of a chunked one is data.
//!
//! Chunks are decoded and encoded anew, so that no odd chunk line ever reaches the other side.

use crate::head::Framing;

/// What the next bytes of a body are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Piece {
    /// More bytes are needed to tell.
    More,
    /// This many bytes of framing, to be dropped.
    Skip(usize),
    /// This many bytes of data.
    Data(usize),
    /// The body ended before these bytes.
    End,
}

/// Chunk framing that is not in the one accepted spelling.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BadChunk;

/// Reads the body of one message.
#[derive(Debug)]
pub(crate) enum Body {
    Length(u64),
    Chunked(Chunks),
    UntilClose,
}

impl Body {
    pub(crate) fn new(framing: Framing) -> Self {
        match framing {
            Framing::Empty => Self::Length(0),
            Framing::Length(length) => Self::Length(length),
            Framing::Chunked => Self::Chunked(Chunks::default()),
            Framing::UntilClose => Self::UntilClose,
        }
    }

    /// Tells what the next bytes are; the caller drops or uses exactly that many.
    pub(crate) fn next(&mut self, bytes: &[u8]) -> Result<Piece, BadChunk> {
        match self {
            Self::Length(0) => Ok(Piece::End),
            Self::Length(_) | Self::UntilClose if bytes.is_empty() => Ok(Piece::More),
            Self::Length(left) => {
                let count = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
                *left -= count as u64;
                Ok(Piece::Data(count))
            }
            Self::UntilClose => Ok(Piece::Data(bytes.len())),
            Self::Chunked(chunks) => chunks.next(bytes),
        }
    }

    /// Returns whether the end of the stream is the end of this body.
    pub(crate) fn ends_at_close(&self) -> bool {
        matches!(self, Self::UntilClose)
    }
}

/// The longest accepted chunk line or trailer line.
const MAX_LINE: usize = 1024;
/// The most trailer lines accepted; they are dropped.
const MAX_TRAILERS: u32 = 32;

/// Decodes chunked framing.
#[derive(Debug, Default)]
pub struct Chunks {
    state: State,
}

#[derive(Debug, Default, Clone, Copy)]
enum State {
    #[default]
    Size,
    Data(u64),
    DataEnd,
    Trailer(u32),
    Done,
}

impl Chunks {
    /// Tells what the next bytes are; the caller drops or uses exactly that many.
    ///
    /// # Errors
    /// When the framing is not in the one accepted spelling.
    pub fn next(&mut self, bytes: &[u8]) -> Result<Piece, BadChunk> {
        match self.state {
            State::Done => Ok(Piece::End),
            State::Data(left) => {
                if bytes.is_empty() {
                    return Ok(Piece::More);
                }
                let count = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
                let left = left - count as u64;
                self.state = if left == 0 { State::DataEnd } else { State::Data(left) };
                Ok(Piece::Data(count))
            }
            State::DataEnd => match bytes {
                [b'\r', b'\n', ..] => {
                    self.state = State::Size;
                    Ok(Piece::Skip(2))
                }
                [] | [b'\r'] => Ok(Piece::More),
                _ => Err(BadChunk),
            },
            State::Size => {
                let Some(line) = whole_line(bytes)? else { return Ok(Piece::More) };
                self.state = match parse_size(line)? {
                    0 => State::Trailer(0),
                    size => State::Data(size),
                };
                Ok(Piece::Skip(line.len() + 2))
            }
            State::Trailer(count) => {
                let Some(line) = whole_line(bytes)? else { return Ok(Piece::More) };
                self.state = match (line.is_empty(), count) {
                    (true, _) => State::Done,
                    (false, MAX_TRAILERS..) => return Err(BadChunk),
                    (false, _) => State::Trailer(count + 1),
                };
                Ok(Piece::Skip(line.len() + 2))
            }
        }
    }
}

fn whole_line(bytes: &[u8]) -> Result<Option<&[u8]>, BadChunk> {
    let stray = bytes.iter().take(MAX_LINE).position(|b| matches!(b, b'\r' | b'\n' | 0));
    let Some(at) = stray else {
        return if bytes.len() >= MAX_LINE { Err(BadChunk) } else { Ok(None) };
    };
    let (line, end) = bytes.split_at_checked(at).ok_or(BadChunk)?;
    match end {
        [b'\r', b'\n', ..] => Ok(Some(line)),
        [b'\r'] => Ok(None),
        _ => Err(BadChunk),
    }
}

/// Reads a chunk line; extensions are dropped.
fn parse_size(line: &[u8]) -> Result<u64, BadChunk> {
    let digits = line.split(|b| *b == b';').next().unwrap_or_default();
    let digits = digits.trim_ascii_end();
    let is_hex = (1..=15).contains(&digits.len()) && digits.iter().all(u8::is_ascii_hexdigit);
    if !is_hex {
        return Err(BadChunk);
    }
    let digits = std::str::from_utf8(digits).map_err(|_| BadChunk)?;
    u64::from_str_radix(digits, 16).map_err(|_| BadChunk)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(mut bytes: &[u8]) -> Result<(Vec<u8>, usize), BadChunk> {
        let mut chunks = Chunks::default();
        let mut data = Vec::new();
        loop {
            let count = match chunks.next(bytes)? {
                Piece::More => return Err(BadChunk),
                Piece::End => return Ok((data, bytes.len())),
                Piece::Skip(count) => count,
                Piece::Data(count) => {
                    data.extend_from_slice(&bytes[..count]);
                    count
                }
            };
            bytes = &bytes[count..];
        }
    }

    #[test]
    fn chunks_are_decoded_to_the_byte() {
        let body = b"3;x=y\r\nabc\r\nA\r\n0123456789\r\n0\r\nT: 1\r\n\r\nGET";
        assert_eq!(decode(body), Ok((b"abc0123456789".to_vec(), 3)));
    }

    #[test]
    fn odd_chunk_lines_are_refused() {
        for body in [
            &b"3\nabc\r\n0\r\n\r\n"[..],
            b"3\r\nabcd\r\n0\r\n\r\n",
            b"0x3\r\nabc\r\n0\r\n\r\n",
            b"-3\r\nabc\r\n0\r\n\r\n",
            b" 3\r\nabc\r\n0\r\n\r\n",
            b"\r\nabc\r\n0\r\n\r\n",
            b"fffffffffffffffff\r\n",
            b"3\r\nabc\n0\r\n\r\n",
            b"3;\rx\r\nabc\r\n0\r\n\r\n",
        ] {
            assert_eq!(decode(body), Err(BadChunk), "{:?}", String::from_utf8_lossy(body));
        }
    }
}
