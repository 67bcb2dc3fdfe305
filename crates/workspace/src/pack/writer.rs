//! Writes a pack of whole objects into a scratch repository of ours.
//!
//! One file for all objects: a file for each would cost more to create than to write, and a
//! program that leaves a hundred thousand files would keep the collector busy for minutes.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, BufWriter, Read, Seek as _, SeekFrom, Write};
use std::path::{Path, PathBuf};

use flate2::{Compress, Compression, FlushCompress, Status};
use sha1::{Digest as _, Sha1};

use super::idx::{IdxRow, write_idx};
use crate::object::{ObjectKind, ObjectSink, Oid, WrittenBlob, copy_named, object_name};

/// A pack that is being written; git sees it once it is finished.
#[derive(Debug)]
pub(crate) struct PackWriter {
    directory: PathBuf,
    file: BufWriter<File>,
    offset: u64,
    rows: Vec<IdxRow>,
    seen: HashSet<Oid>,
    /// The content of one object, then the entry made of it.
    content: Vec<u8>,
    entry: Vec<u8>,
    compress: Compress,
}

/// The name of the only pack of the repository.
const NAME: &str = "pack-warrant";

impl PackWriter {
    /// Begins a pack in the `objects` directory of a repository.
    pub(crate) fn create(objects: &Path) -> io::Result<Self> {
        let directory = objects.join("pack");
        let path = directory.join(format!("{NAME}.pack"));
        let file = File::options().write(true).create_new(true).open(path)?;
        let mut writer = Self {
            directory,
            file: BufWriter::with_capacity(1 << 17, file),
            offset: 0,
            rows: Vec::new(),
            seen: HashSet::new(),
            content: Vec::new(),
            entry: Vec::new(),
            compress: Compress::new(Compression::fast(), true),
        };
        writer.put(b"PACK\0\0\0\x02\0\0\0\0")?;
        Ok(writer)
    }

    /// Adds a blob of `bytes` bytes from `source`, which is held in memory; a source of another
    /// length is an error.
    pub(crate) fn add_blob(
        &mut self,
        source: &mut dyn Read,
        bytes: u64,
    ) -> io::Result<WrittenBlob> {
        let mut content = std::mem::take(&mut self.content);
        content.clear();
        let written = copy_named(source, bytes, &mut content);
        let added = written.and_then(|written| {
            self.add_named(ObjectKind::Blob, written.oid, &content)?;
            Ok(written)
        });
        self.content = content;
        added
    }

    fn add_named(&mut self, kind: ObjectKind, oid: Oid, content: &[u8]) -> io::Result<()> {
        if !self.seen.insert(oid) {
            return Ok(());
        }
        let mut entry = std::mem::take(&mut self.entry);
        entry.clear();
        push_header(&mut entry, kind, content.len());
        self.compress.reset();
        deflate(&mut self.compress, content, &mut entry)?;
        let mut crc = crc32fast::Hasher::new();
        crc.update(&entry);
        let row = IdxRow { oid: *oid.as_bytes(), crc: crc.finalize(), offset: self.offset };
        self.rows.push(row);
        let put = self.put(&entry);
        self.entry = entry;
        put
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)?;
        self.offset += bytes.len() as u64;
        Ok(())
    }

    /// Ends the pack and writes its index.
    pub(crate) fn finish(mut self) -> io::Result<()> {
        // Git compares the pack's trailer with the index's copy and does not recompute it when it
        // reads objects; hashing the names saves reading the whole pack again.
        let mut trailer = Sha1::new();
        self.rows.iter().for_each(|row| trailer.update(row.oid));
        let trailer: [u8; 20] = trailer.finalize().into();
        self.put(&trailer)?;
        let count = u32::try_from(self.rows.len()).map_err(io::Error::other)?;
        let mut file = self.file.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.seek(SeekFrom::Start(8))?;
        file.write_all(&count.to_be_bytes())?;
        let mut idx = File::create_new(self.directory.join(format!("{NAME}.idx")))?;
        write_idx(self.rows, &trailer, &mut idx)
    }
}

/// Writes a pack of whole objects to a stream, with a true checksum.
pub(crate) fn write_pack(
    sink: &mut dyn Write,
    count: usize,
    objects: impl Iterator<Item = io::Result<(ObjectKind, std::sync::Arc<[u8]>)>>,
) -> io::Result<()> {
    let count = u32::try_from(count).map_err(io::Error::other)?;
    let mut hash = Sha1::new();
    let mut entry = [b"PACK\0\0\0\x02".as_slice(), &count.to_be_bytes()].concat();
    let mut compress = Compress::new(Compression::fast(), true);
    hash.update(&entry);
    sink.write_all(&entry)?;
    for object in objects {
        let (kind, content) = object?;
        entry.clear();
        push_header(&mut entry, kind, content.len());
        compress.reset();
        deflate(&mut compress, &content, &mut entry)?;
        hash.update(&entry);
        sink.write_all(&entry)?;
    }
    sink.write_all(&hash.finalize())
}

impl ObjectSink for PackWriter {
    fn write(&mut self, kind: ObjectKind, content: &[u8]) -> io::Result<Oid> {
        let oid = object_name(kind, content);
        self.add_named(kind, oid, content)?;
        Ok(oid)
    }
}

/// Appends type and size, as a pack spells them.
fn push_header(entry: &mut Vec<u8>, kind: ObjectKind, bytes: usize) {
    let kind = match kind {
        ObjectKind::Commit => 1_u8,
        ObjectKind::Tree => 2,
        ObjectKind::Blob => 3,
        ObjectKind::Tag => 4,
    };
    let low = |value: usize, mask: usize| u8::try_from(value & mask).unwrap_or(0);
    let mut rest = bytes >> 4;
    let mut byte = (kind << 4) | low(bytes, 0x0f);
    while rest > 0 {
        entry.push(byte | 0x80);
        byte = low(rest, 0x7f);
        rest >>= 7;
    }
    entry.push(byte);
}

fn deflate(compress: &mut Compress, content: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
    let mut read = 0;
    loop {
        let before = compress.total_in();
        out.reserve((content.len() - read) / 2 + 64);
        let rest = content.get(read..).unwrap_or_default();
        let status = compress.compress_vec(rest, out, FlushCompress::Finish);
        read += usize::try_from(compress.total_in() - before).map_err(io::Error::other)?;
        if status.map_err(io::Error::other)? == Status::StreamEnd {
            return Ok(());
        }
    }
}
