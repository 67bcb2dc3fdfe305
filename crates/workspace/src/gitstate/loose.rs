//! Reads one loose object: its header is parsed, its content streamed, its name computed.

use std::fs::File;
use std::io::{self, BufReader, Read, Write};

use flate2::bufread::ZlibDecoder;
use sha1::Digest as _;

use crate::blob::{BUFFER_BYTES, read_some};
use crate::object::{ObjectKind, Oid, object_hash};

/// An object that must be held is not larger.
pub(crate) const HELD_BYTES: u64 = 512 << 20;

/// A loose object whose header was read.
pub(crate) struct LooseObject {
    pub(crate) kind: ObjectKind,
    pub(crate) bytes: u64,
    content: ZlibDecoder<BufReader<File>>,
}

/// Reads the header of a loose object.
pub(crate) fn open_loose(file: File) -> io::Result<LooseObject> {
    const LONGEST_HEADER: usize = 32;
    let mut content = ZlibDecoder::new(BufReader::new(file));
    let mut header = Vec::new();
    loop {
        let mut byte = [0];
        content.read_exact(&mut byte)?;
        match byte {
            [0] => break,
            [byte] if header.len() < LONGEST_HEADER => header.push(byte),
            [_] => return Err(malformed("its header is too long")),
        }
    }
    let text = std::str::from_utf8(&header).map_err(io::Error::other)?;
    let (kind, bytes) = text.split_once(' ').ok_or_else(|| malformed("it has no header"))?;
    let kind = match kind {
        "commit" => ObjectKind::Commit,
        "tree" => ObjectKind::Tree,
        "blob" => ObjectKind::Blob,
        "tag" => ObjectKind::Tag,
        _ => return Err(malformed("its kind is unknown")),
    };
    let is_number =
        bytes == "0" || !bytes.starts_with('0') && bytes.bytes().all(|b| b.is_ascii_digit());
    if !is_number {
        return Err(malformed("its size is not a number"));
    }
    let bytes = bytes.parse().map_err(io::Error::other)?;
    Ok(LooseObject { kind, bytes, content })
}

impl LooseObject {
    /// Copies the content and returns the object's name, computed from the bytes.
    ///
    /// # Errors
    /// When it cannot be read, or is longer or shorter than its header says.
    pub(crate) fn copy_to(&mut self, sink: &mut dyn Write) -> io::Result<Oid> {
        let mut hash = object_hash(self.kind, self.bytes);
        let mut buffer = vec![0; BUFFER_BYTES];
        let mut seen = 0_u64;
        loop {
            let count = read_some(&mut self.content, &mut buffer)?;
            let Some(chunk) = buffer.get(..count).filter(|chunk| !chunk.is_empty()) else { break };
            seen += count as u64;
            // SECURITY: a small file may inflate to anything; no more than it says is made.
            if seen > self.bytes {
                return Err(malformed("it is longer than its header says"));
            }
            hash.update(chunk);
            sink.write_all(chunk)?;
        }
        if seen != self.bytes {
            return Err(malformed("it is shorter than its header says"));
        }
        Ok(Oid::from_bytes(hash.finalize().into()))
    }

    /// Returns the content, held in memory.
    pub(crate) fn read_whole(&mut self) -> io::Result<Vec<u8>> {
        if self.bytes > HELD_BYTES {
            return Err(malformed("it is too large"));
        }
        let mut content = Vec::new();
        self.copy_to(&mut content)?;
        Ok(content)
    }
}

fn malformed(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}
