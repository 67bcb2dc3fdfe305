//! A piece of a file, as a download of execd may ask for it: a range of bytes by header, or lines
//! by their numbers. What cannot be read is refused, not answered with the whole file.

use std::ops::Range;

use axum::body::Bytes;
use axum::http::header::{CONTENT_RANGE, HeaderMap, HeaderValue, RANGE};
use axum::http::{StatusCode, header};
use axum::response::Response;

use super::fault;
use crate::doors::reply;

/// Which piece of a file is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Piece {
    /// All of it.
    Whole,
    /// From a byte to one, both within.
    Bytes(usize, Option<usize>),
    /// So many bytes at its end.
    Last(usize),
    /// Lines from a number on, which starts at one, and how many.
    Lines(usize, Option<usize>),
}

impl Piece {
    /// Reads what a download asks for.
    pub(crate) fn read(headers: &HeaderMap, query: &[(String, String)]) -> Result<Self, String> {
        let number = |name: &str| -> Result<Option<usize>, String> {
            let Some((_, text)) = query.iter().find(|(key, _)| key == name) else {
                return Ok(None);
            };
            let number = text.parse().ok().filter(|number| *number > 0);
            number.map(Some).ok_or_else(|| format!("{name} must be a whole number of at least 1"))
        };
        let (offset, limit) = (number("offset")?, number("limit")?);
        let is_by_lines = offset.is_some() || limit.is_some();
        match headers.get(RANGE).map(|range| range.to_str().unwrap_or_default()) {
            Some(_) if is_by_lines => Err("Range and lines exclude each other".to_owned()),
            Some(range) => {
                bytes(range).ok_or_else(|| format!("Range `{range}` is not served here"))
            }
            None if is_by_lines => Ok(Self::Lines(offset.unwrap_or(1), limit)),
            None => Ok(Self::Whole),
        }
    }

    /// Returns the answer with this piece of a file.
    pub(crate) fn answer(self, content: &Bytes) -> Response {
        let kind = match self {
            Self::Lines(..) => "text/plain; charset=utf-8",
            Self::Whole | Self::Bytes(..) | Self::Last(_) => "application/octet-stream",
        };
        let Some(range) = self.within(content) else {
            let mut response = fault(
                StatusCode::RANGE_NOT_SATISFIABLE,
                "INVALID_RANGE",
                "the file is shorter than that",
            );
            tell_range(&mut response, &format!("bytes */{}", content.len()));
            return response;
        };
        let told = format!("bytes {}-{}/{}", range.start, range.end.max(1) - 1, content.len());
        let piece = content.slice(range);
        match self {
            Self::Whole | Self::Lines(..) => reply::bytes(StatusCode::OK, kind, piece),
            Self::Bytes(..) | Self::Last(_) => {
                let mut response = reply::bytes(StatusCode::PARTIAL_CONTENT, kind, piece);
                tell_range(&mut response, &told);
                response
            }
        }
    }

    fn within(self, content: &[u8]) -> Option<Range<usize>> {
        let length = content.len();
        match self {
            Self::Whole => Some(0..length),
            Self::Bytes(from, _) if from >= length => None,
            Self::Bytes(from, to) => {
                Some(from..to.map_or(length, |to| to.saturating_add(1).min(length)))
            }
            Self::Last(0) => None,
            Self::Last(count) => Some(length.saturating_sub(count)..length),
            Self::Lines(from, count) => {
                let ends = content.iter().enumerate().filter(|(_, byte)| **byte == b'\n');
                let starts: Vec<usize> =
                    std::iter::once(0).chain(ends.map(|(place, _)| place + 1)).collect();
                let at = |line: usize| starts.get(line).copied().unwrap_or(length);
                let first = from - 1;
                let end = count.map_or(length, |count| at(first.saturating_add(count)));
                // Lines are told without the end of the last one.
                let has_end = end > at(first) && content.get(end - 1) == Some(&b'\n');
                Some(at(first)..end - usize::from(has_end))
            }
        }
    }
}

fn tell_range(response: &mut Response, range: &str) {
    if let Ok(range) = HeaderValue::from_str(range) {
        response.headers_mut().insert(CONTENT_RANGE, range);
        response.headers_mut().insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    }
}

/// Reads one range of bytes.
fn bytes(range: &str) -> Option<Piece> {
    let (from, to) = range.trim().strip_prefix("bytes=")?.split_once('-')?;
    match (from, to) {
        ("", count) => Some(Piece::Last(count.parse().ok()?)),
        (from, "") => Some(Piece::Bytes(from.parse().ok()?, None)),
        (from, to) => {
            let (from, to) = (from.parse().ok()?, to.parse().ok()?);
            (from <= to).then_some(Piece::Bytes(from, Some(to)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(piece: Piece, expected: Option<&str>) {
        let content = b"one\ntwo\nthree";
        let got = piece.within(content).map(|range| &content[range]);
        assert_eq!(got, expected.map(str::as_bytes), "{piece:?}");
    }

    #[test]
    fn a_piece_is_what_was_asked_for() {
        check(Piece::Whole, Some("one\ntwo\nthree"));
        check(Piece::Bytes(0, Some(2)), Some("one"));
        check(Piece::Bytes(8, None), Some("three"));
        check(Piece::Bytes(8, Some(usize::MAX)), Some("three"));
        check(Piece::Bytes(13, None), None);
        check(Piece::Last(3), Some("ree"));
        check(Piece::Last(99), Some("one\ntwo\nthree"));
        check(Piece::Last(0), None);
        check(Piece::Lines(2, Some(1)), Some("two"));
        check(Piece::Lines(1, Some(2)), Some("one\ntwo"));
        check(Piece::Lines(1, None), Some("one\ntwo\nthree"));
        check(Piece::Lines(3, Some(9)), Some("three"));
        check(Piece::Lines(4, Some(1)), Some(""));
    }

    #[test]
    fn a_range_that_is_not_understood_is_refused() {
        for range in ["bytes=", "bytes=-", "bytes=5-1", "lines=1-2", "bytes=0-1,4-5", "bytes=a-b"] {
            let mut headers = HeaderMap::new();
            headers.insert(RANGE, range.parse().unwrap());
            assert!(Piece::read(&headers, &[]).is_err(), "{range}");
        }
        let both = [("offset".to_owned(), "1".to_owned())];
        let mut headers = HeaderMap::new();
        assert_eq!(Piece::read(&headers, &both), Ok(Piece::Lines(1, None)));
        headers.insert(RANGE, "bytes=0-1".parse().unwrap());
        assert!(Piece::read(&headers, &both).is_err());
        assert!(Piece::read(&HeaderMap::new(), &[("limit".to_owned(), "0".to_owned())]).is_err());
    }
}
