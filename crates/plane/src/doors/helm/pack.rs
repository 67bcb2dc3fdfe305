//! Packs of evidence: a `.tar.gz` of plain files, the same content always the same bytes.
//!
//! Reading takes what others send: it is bounded before anything is kept, follows no link and
//! writes nothing to any disk.

use std::io::{self, Read, Write};

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use thiserror::Error;

const BLOCK: usize = 512;
/// The most that a pack comes to when it is unpacked.
pub(crate) const MOST_BYTES: usize = 64 * 1024 * 1024;
/// The most files of a pack.
pub(crate) const MOST_FILES: usize = 20_000;

/// Why something is no pack.
#[derive(Debug, Error)]
pub(crate) enum PackError {
    #[error("the bundle is no gzip, or broken")]
    Gzip(#[source] io::Error),
    #[error("the bundle holds more than {MOST_BYTES} bytes or {MOST_FILES} files")]
    TooLarge,
    #[error("the bundle is no tar of plain files")]
    Tar,
}

/// Files with their names, in order.
pub(crate) type Files = Vec<(String, Vec<u8>)>;

/// Packs files.
pub(crate) fn pack(files: &Files) -> Result<Vec<u8>, PackError> {
    let mut out = GzEncoder::new(Vec::new(), Compression::fast());
    let mut total = 0;
    for (name, content) in files {
        total += BLOCK + content.len().next_multiple_of(BLOCK);
        if total > MOST_BYTES || files.len() > MOST_FILES {
            return Err(PackError::TooLarge);
        }
        let header = header(name, content.len()).ok_or(PackError::Tar)?;
        let padding = content.len().next_multiple_of(BLOCK) - content.len();
        let written = out
            .write_all(&header)
            .and_then(|()| out.write_all(content))
            .and_then(|()| out.write_all(&vec![0; padding]));
        written.map_err(PackError::Gzip)?;
    }
    out.write_all(&[0; 2 * BLOCK]).map_err(PackError::Gzip)?;
    out.finish().map_err(PackError::Gzip)
}

/// Returns the head of one file, in the oldest form of tar that all readers know.
fn header(name: &str, size: usize) -> Option<[u8; BLOCK]> {
    let mut block = [0; BLOCK];
    let mut put = |at: usize, text: &[u8]| {
        block.get_mut(at..at + text.len()).map(|place| place.copy_from_slice(text))
    };
    if name.len() > 99 {
        return None;
    }
    put(0, name.as_bytes())?;
    put(100, b"0000644\0")?;
    put(108, b"0000000\0")?;
    put(116, b"0000000\0")?;
    put(124, format!("{size:011o}\0").as_bytes())?;
    put(136, b"00000000000\0")?;
    put(148, b"        ")?;
    put(156, b"0")?;
    put(257, b"ustar\x0000")?;
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    let text = format!("{sum:06o}\0 ");
    block.get_mut(148..156)?.copy_from_slice(text.as_bytes());
    Some(block)
}

/// Unpacks what somebody sent.
pub(crate) fn unpack(bytes: &[u8]) -> Result<Files, PackError> {
    let mut tar = Vec::new();
    let most = MOST_BYTES as u64 + 1;
    GzDecoder::new(bytes).take(most).read_to_end(&mut tar).map_err(PackError::Gzip)?;
    if tar.len() > MOST_BYTES {
        return Err(PackError::TooLarge);
    }
    let mut files = Files::new();
    let mut rest = tar.as_slice();
    loop {
        let (head, after) = rest.split_at_checked(BLOCK).ok_or(PackError::Tar)?;
        if head.iter().all(|byte| *byte == 0) {
            return Ok(files);
        }
        let (name, size) = entry(head).ok_or(PackError::Tar)?;
        let (content, after) = after.split_at_checked(size).ok_or(PackError::Tar)?;
        let padding = size.next_multiple_of(BLOCK) - size;
        rest = after.get(padding..).ok_or(PackError::Tar)?;
        if files.len() == MOST_FILES {
            return Err(PackError::TooLarge);
        }
        files.push((name, content.to_vec()));
    }
}

/// Reads the head of one file; nothing for what is none, or not plain.
fn entry(head: &[u8]) -> Option<(String, usize)> {
    let text = |from: usize, to: usize| {
        let field = head.get(from..to)?;
        let end = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
        std::str::from_utf8(field.get(..end)?).ok()
    };
    let is_plain = matches!(head.get(156), Some(b'0' | 0));
    let size = usize::from_str_radix(text(124, 136)?.trim(), 8).ok()?;
    let prefix = text(345, 500)?;
    let name = text(0, 100)?;
    let is_fine = is_plain && prefix.is_empty() && !name.is_empty() && size <= MOST_BYTES;
    is_fine.then(|| (name.to_owned(), size))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]
    use super::*;

    #[test]
    fn the_same_content_gives_the_same_bytes_and_comes_back() {
        let files: Files = vec![
            ("manifest.json".into(), b"{}".to_vec()),
            ("bundles/run.json".into(), vec![7; 1024]),
            ("empty".into(), Vec::new()),
        ];
        let packed = pack(&files).unwrap();
        assert_eq!(packed, pack(&files).unwrap());
        assert_eq!(unpack(&packed).unwrap(), files);
    }

    #[test]
    fn whatever_else_is_sent_is_an_error_and_no_flood() {
        let files: Files = vec![("a".into(), vec![1; 600])];
        let packed = pack(&files).unwrap();
        for length in 0..packed.len() {
            assert!(unpack(&packed[..length]).is_err(), "{length}");
        }
        let mut bomb = GzEncoder::new(Vec::new(), Compression::best());
        for _ in 0..65 {
            bomb.write_all(&vec![0x30; 1024 * 1024]).unwrap();
        }
        assert!(matches!(unpack(&bomb.finish().unwrap()), Err(PackError::TooLarge)));
        let mut link = GzEncoder::new(Vec::new(), Compression::fast());
        let mut head = header("a", 0).unwrap();
        head[156] = b'2';
        link.write_all(&head).unwrap();
        link.write_all(&[0; 1024]).unwrap();
        assert!(matches!(unpack(&link.finish().unwrap()), Err(PackError::Tar)));
    }
}
