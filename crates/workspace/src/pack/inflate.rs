//! Reads bytes of a pack by position, inflates them, and sums what was passed over.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use flate2::{Decompress, FlushDecompress, Status};

use super::PackError;
use crate::blob::BUFFER_BYTES;

/// A place in the pack.
pub(super) struct Cursor<'a> {
    file: &'a File,
    buffer: Vec<u8>,
    /// The part of `buffer` that is not used up.
    from: usize,
    to: usize,
    /// Where in the file `buffer[to]` would be.
    next: u64,
    crc: crc32fast::Hasher,
    /// Kept from object to object, because making them costs more than a small object.
    inflater: Option<Decompress>,
    output: Vec<u8>,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(file: &'a File, at: u64) -> Self {
        Self {
            file,
            buffer: Vec::new(),
            from: 0,
            to: 0,
            next: at,
            crc: crc32fast::Hasher::new(),
            inflater: None,
            output: Vec::new(),
        }
    }

    /// Goes to another place, keeping what is buffered if it is there.
    pub(super) fn seek(&mut self, at: u64) {
        let buffered = self.next - self.to as u64;
        match at.checked_sub(buffered).and_then(|skip| usize::try_from(skip).ok()) {
            Some(skip) if skip <= self.to => self.from = skip,
            _ => {
                (self.from, self.to) = (0, 0);
                self.next = at;
            }
        }
    }

    pub(super) fn position(&self) -> u64 {
        self.next - (self.to - self.from) as u64
    }

    pub(super) fn start_crc(&mut self) {
        self.crc.reset();
    }

    pub(super) fn crc(&self) -> u32 {
        self.crc.clone().finalize()
    }

    /// Returns the next bytes.
    pub(super) fn take<const N: usize>(&mut self) -> Result<[u8; N], PackError> {
        let mut bytes = [0; N];
        for byte in &mut bytes {
            let available = self.available()?;
            *byte = *available.first().ok_or(PackError::Malformed("it is cut"))?;
            self.consume(1);
        }
        Ok(bytes)
    }

    /// Inflates one object of exactly `bytes` bytes into memory.
    pub(super) fn inflate_whole(&mut self, bytes: u64, limit: u64) -> Result<Vec<u8>, PackError> {
        if bytes > limit {
            return Err(PackError::TooLarge("an object"));
        }
        // Memory grows with what is really there, not with what the header says.
        let mut content = Vec::with_capacity(usize::try_from(bytes.min(1 << 20)).unwrap_or(0));
        self.inflate(bytes, &mut |chunk| {
            content.extend_from_slice(chunk);
            Ok(())
        })?;
        Ok(content)
    }

    /// Inflates one object of exactly `bytes` bytes, chunk by chunk.
    pub(super) fn inflate(
        &mut self,
        bytes: u64,
        sink: &mut dyn FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<(), PackError> {
        let mut inflater = self.inflater.take().unwrap_or_else(|| Decompress::new(true));
        inflater.reset(true);
        let mut output = std::mem::take(&mut self.output);
        if output.is_empty() {
            output = vec![0; BUFFER_BYTES];
        }
        let mut seen = 0_u64;
        loop {
            let input = self.available()?;
            if input.is_empty() {
                return Err(PackError::Malformed("it is cut"));
            }
            let (before_in, before_out) = (inflater.total_in(), inflater.total_out());
            let status = inflater
                .decompress(input, &mut output, FlushDecompress::None)
                .map_err(|_| PackError::Malformed("an object does not inflate"))?;
            let used = usize::try_from(inflater.total_in() - before_in).unwrap_or(0);
            let made = usize::try_from(inflater.total_out() - before_out).unwrap_or(0);
            self.consume(used);
            seen += made as u64;
            if seen > bytes {
                return Err(PackError::Malformed("an object is longer than it says"));
            }
            sink(output.get(..made).unwrap_or_default())?;
            match status {
                Status::StreamEnd if seen == bytes => break,
                Status::StreamEnd => return Err(PackError::Malformed("an object is cut")),
                Status::Ok | Status::BufError if used == 0 && made == 0 => {
                    return Err(PackError::Malformed("an object does not inflate"));
                }
                Status::Ok | Status::BufError => {}
            }
        }
        self.inflater = Some(inflater);
        self.output = output;
        Ok(())
    }

    fn available(&mut self) -> Result<&[u8], PackError> {
        if self.from == self.to {
            if self.buffer.is_empty() {
                self.buffer = vec![0; 64 * 1024];
            }
            let count = self.file.read_at(&mut self.buffer, self.next)?;
            self.next += count as u64;
            (self.from, self.to) = (0, count);
        }
        Ok(self.buffer.get(self.from..self.to).unwrap_or_default())
    }

    fn consume(&mut self, count: usize) {
        let end = (self.from + count).min(self.to);
        self.crc.update(self.buffer.get(self.from..end).unwrap_or_default());
        self.from = end;
    }
}
