//! The container of a backup: a tar file that is written and read as a stream, ending with a
//! digest over everything before it. A file that was cut off or changed has no matching end.

use std::io::{self, Read, Write};

use serde::{Deserialize, Serialize};
use sha2::Digest as _;
use thiserror::Error;
use warrant_protocol::Digest;

const BLOCK: u64 = 512;

/// The name of the last entry.
const END: &str = "end.json";

/// The longest name of an entry.
const MOST_NAME_BYTES: usize = 100;

/// What the last entry says.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct ArchiveEnd {
    entries: u64,
    digest: Digest,
}

/// Hashes names, sizes and contents of entries in their order.
#[derive(Default)]
struct RunningDigest {
    hasher: sha2::Sha256,
    entries: u64,
}

impl RunningDigest {
    fn begin(&mut self, name: &str, size: u64) {
        self.entries += 1;
        self.hasher.update(format!("{name}\n{size}\n"));
    }

    fn end(self) -> ArchiveEnd {
        let digest = Digest::from_bytes(self.hasher.finalize().into());
        ArchiveEnd { entries: self.entries, digest }
    }
}

/// Writes a container.
pub(super) struct ArchiveWriter<W> {
    out: W,
    running: RunningDigest,
}

impl<W: Write> ArchiveWriter<W> {
    pub(super) fn new(out: W) -> Self {
        Self { out, running: RunningDigest::default() }
    }

    /// Adds an entry of exactly `size` bytes.
    pub(super) fn add(&mut self, name: &str, size: u64, content: &mut dyn Read) -> io::Result<()> {
        self.running.begin(name, size);
        self.out.write_all(&header(name, size)?)?;
        let mut piece = vec![0; 64 * 1024];
        let mut left = size;
        while left > 0 {
            let most = usize::try_from(left).unwrap_or(usize::MAX).min(piece.len());
            let count = content.read(piece.get_mut(..most).unwrap_or_default())?;
            if count == 0 {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, format!("{name} shrank")));
            }
            let read = piece.get(..count).unwrap_or_default();
            self.running.hasher.update(read);
            self.out.write_all(read)?;
            left -= count as u64;
        }
        self.out.write_all(&padding(size))
    }

    /// Adds an entry that is in memory.
    pub(super) fn add_bytes(&mut self, name: &str, content: &[u8]) -> io::Result<()> {
        self.add(name, content.len() as u64, &mut &*content)
    }

    /// Writes the end and returns what was written to.
    pub(super) fn finish(mut self) -> io::Result<W> {
        let end = serde_json::to_vec(&std::mem::take(&mut self.running).end())?;
        self.out.write_all(&header(END, end.len() as u64)?)?;
        self.out.write_all(&end)?;
        self.out.write_all(&padding(end.len() as u64))?;
        self.out.write_all(&[0; 2 * BLOCK as usize])?;
        Ok(self.out)
    }
}

/// Reads a container.
pub(super) struct ArchiveReader<R> {
    input: R,
    running: RunningDigest,
}

/// An entry whose content comes next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct EntryHead {
    pub(super) name: String,
    pub(super) size: u64,
}

impl<R: Read> ArchiveReader<R> {
    pub(super) fn new(input: R) -> Self {
        Self { input, running: RunningDigest::default() }
    }

    /// Returns the next entry; none after a matching end.
    pub(super) fn next(&mut self) -> io::Result<Option<EntryHead>> {
        let mut block = [0; BLOCK as usize];
        self.input.read_exact(&mut block).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => damaged("it is cut off"),
            _ => error,
        })?;
        let head = read_header(&block)?;
        if head.name != END {
            self.running.begin(&head.name, head.size);
            return Ok(Some(head));
        }
        let expected = std::mem::take(&mut self.running).end();
        let mut text = Vec::new();
        (&mut self.input).take(head.size.min(4096)).read_to_end(&mut text)?;
        self.skip_padding(head.size)?;
        let recorded: ArchiveEnd =
            serde_json::from_slice(&text).map_err(damaged_by("its last entry cannot be read"))?;
        match recorded == expected {
            true => Ok(None),
            false => Err(damaged("its content is not what its end says")),
        }
    }

    /// Hands the content of the present entry to `out`.
    pub(super) fn copy(&mut self, head: &EntryHead, out: &mut dyn Write) -> io::Result<()> {
        let mut piece = vec![0; 64 * 1024];
        let mut left = head.size;
        while left > 0 {
            let most = usize::try_from(left).unwrap_or(usize::MAX).min(piece.len());
            let count = self.input.read(piece.get_mut(..most).unwrap_or_default())?;
            if count == 0 {
                return Err(damaged("it is cut off"));
            }
            let read = piece.get(..count).unwrap_or_default();
            self.running.hasher.update(read);
            out.write_all(read)?;
            left -= count as u64;
        }
        self.skip_padding(head.size)
    }

    fn skip_padding(&mut self, size: u64) -> io::Result<()> {
        let expected = padding(size);
        let mut found = vec![1; expected.len()];
        self.input.read_exact(&mut found).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => damaged("it is cut off"),
            _ => error,
        })?;
        if found == expected { Ok(()) } else { Err(damaged("it holds more than its entries")) }
    }

    /// Returns the content of the present entry, which has at most `most` bytes.
    pub(super) fn bytes(&mut self, head: &EntryHead, most: u64) -> io::Result<Vec<u8>> {
        if head.size > most {
            return Err(damaged("an entry is too large"));
        }
        let mut bytes = Vec::new();
        self.copy(head, &mut bytes)?;
        Ok(bytes)
    }
}

/// An error about the file that was given.
pub(super) fn damaged(detail: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the backup is damaged: {detail}"))
}

/// An error about the file that was given, with its cause.
#[derive(Debug, Error)]
#[error("the backup is damaged: {detail}")]
struct UnreadableEntry {
    detail: &'static str,
    #[source]
    cause: Box<dyn std::error::Error + Send + Sync>,
}

/// Makes an error about the file that was given of its cause.
pub(super) fn damaged_by<E>(detail: &'static str) -> impl Fn(E) -> io::Error
where
    E: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    move |cause| {
        let entry = UnreadableEntry { detail, cause: cause.into() };
        io::Error::new(io::ErrorKind::InvalidData, entry)
    }
}

fn padding(size: u64) -> Vec<u8> {
    let rest = size % BLOCK;
    vec![0; if rest == 0 { 0 } else { (BLOCK - rest) as usize }]
}

fn header(name: &str, size: u64) -> io::Result<[u8; BLOCK as usize]> {
    let mut block = [0_u8; BLOCK as usize];
    let mut put = |at: usize, text: &[u8]| {
        if let Some(field) = block.get_mut(at..at + text.len()) {
            field.copy_from_slice(text);
        }
    };
    if name.len() >= MOST_NAME_BYTES {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{name} is too long")));
    }
    put(0, name.as_bytes());
    put(100, b"0000600\0");
    put(108, b"0000000\0");
    put(116, b"0000000\0");
    // Sizes from 8 GiB on have the binary form that every tar reads.
    match size < 1 << 33 {
        true => put(124, format!("{size:011o}\0").as_bytes()),
        false => {
            put(124, &[0x80, 0, 0, 0]);
            put(128, &size.to_be_bytes());
        }
    }
    put(136, b"00000000000\0");
    put(148, b"        ");
    put(156, b"0");
    put(257, b"ustar\x0000");
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    if let Some(field) = block.get_mut(148..156) {
        field.copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    }
    Ok(block)
}

fn read_header(block: &[u8; BLOCK as usize]) -> io::Result<EntryHead> {
    let field = |from: usize, to: usize| block.get(from..to).unwrap_or_default();
    let name: Vec<u8> = field(0, 100).iter().copied().take_while(|byte| *byte != 0).collect();
    let name = String::from_utf8(name).map_err(damaged_by("the name of an entry is not UTF-8"))?;
    let size = match field(124, 136) {
        [0x80, 0, 0, 0, rest @ ..] => {
            let bytes: [u8; 8] =
                rest.try_into().map_err(damaged_by("the size of an entry cannot be read"))?;
            u64::from_be_bytes(bytes)
        }
        digits => {
            let digits = std::str::from_utf8(digits)
                .map_err(damaged_by("the size of an entry cannot be read"))?;
            let digits = digits.trim_matches(['\0', ' ']);
            u64::from_str_radix(digits, 8)
                .map_err(damaged_by("the size of an entry cannot be read"))?
        }
    };
    // Everything but the sum itself follows from name and size.
    match header(&name, size)? == *block {
        true => Ok(EntryHead { name, size }),
        false => Err(damaged("a header is not one of ours")),
    }
}
