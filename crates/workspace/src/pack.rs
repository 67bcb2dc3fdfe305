//! Reads a git pack without git: every object named by its own hash, deltas resolved once.
//!
//! The pack comes from a requester. Sizes, counts and delta chains are bounded before memory is
//! taken; large blobs are never held whole. Start at [`Pack::index`].

mod delta;
mod idx;
mod inflate;
mod namer;
mod writer;

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write};
use std::sync::Arc;

use sha1::Digest as _;
use thiserror::Error;

use crate::limits::TreeLimits;
use crate::object::{ByOid, ObjectKind, Oid, object_hash, object_name};
use crate::progress::{Phase, Progress, Step};
use inflate::Cursor;
use namer::{Namer, SMALL_BYTES};

pub(crate) use writer::{PackWriter, write_pack};

/// A blob above this is streamed, never held.
const STREAMED_BYTES: u64 = 4 << 20;
/// An object that must be held (a tree, a commit, a delta, what a delta makes) is not larger.
const HELD_BYTES: u64 = 512 << 20;
/// Content kept from indexing for the checkout that follows.
const CACHE_BYTES: usize = 24 << 20;

/// Why a pack is refused.
#[derive(Debug, Error)]
pub enum PackError {
    /// It could not be read.
    #[error("the bundle could not be read")]
    Io(#[from] io::Error),
    /// Its bytes are not a pack.
    #[error("the bundle's pack is malformed: {0}")]
    Malformed(&'static str),
    /// It holds more than allowed.
    #[error("the bundle's pack holds too much: {0}")]
    TooLarge(&'static str),
    /// An object is not in it.
    #[error("object {0:?} is missing from the bundle")]
    Missing(Oid),
}

/// Where an object's bytes come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    Whole,
    OffsetDelta(u64),
    NameDelta(Oid),
}

/// One object of the pack.
#[derive(Debug, Clone, Copy)]
struct Record {
    offset: u64,
    crc: u32,
    source: Source,
    /// Known once the object is resolved.
    named: Option<(Oid, ObjectKind, u64)>,
}

/// A pack whose objects are all named and whole.
#[derive(Debug)]
pub(crate) struct Pack {
    file: File,
    start: u64,
    end: u64,
    trailer: [u8; 20],
    records: Vec<Record>,
    by_name: ByOid<usize>,
    /// The content of each record, where there was room to keep it.
    kept: Vec<Option<Arc<[u8]>>>,
    kept_bytes: usize,
}

impl Pack {
    /// Indexes the pack that begins at `start` in `file`.
    pub(crate) fn index(
        file: File,
        start: u64,
        limits: &TreeLimits,
        progress: Progress<'_>,
    ) -> Result<Self, PackError> {
        let mut pack = Self {
            file,
            start,
            end: start,
            trailer: [0; 20],
            records: Vec::new(),
            by_name: ByOid::default(),
            kept: Vec::new(),
            kept_bytes: 0,
        };
        pack.read_all(limits, progress)?;
        pack.resolve_deltas(limits)?;
        Ok(pack)
    }

    /// Returns the kind and size of an object.
    pub(crate) fn stat(&self, oid: Oid) -> Option<(ObjectKind, u64)> {
        let record = self.records.get(*self.by_name.get(&oid)?)?;
        record.named.map(|(_, kind, bytes)| (kind, bytes))
    }

    /// Returns an object's content, held in memory.
    pub(crate) fn read(&self, oid: Oid, kind: ObjectKind) -> Result<Arc<[u8]>, PackError> {
        let index = *self.by_name.get(&oid).ok_or(PackError::Missing(oid))?;
        match self.records.get(index).and_then(|record| record.named) {
            Some((_, found, bytes)) if found == kind && bytes <= HELD_BYTES => {}
            Some((_, found, _)) if found == kind => return Err(PackError::TooLarge("an object")),
            Some(_) => return Err(PackError::Malformed("an object is of another kind")),
            None => return Err(PackError::Missing(oid)),
        }
        match self.kept.get(index) {
            Some(Some(content)) => Ok(Arc::clone(content)),
            _ => self.read_record(index),
        }
    }

    /// Writes a blob's content to `sink`, streamed when it is large and stored whole.
    pub(crate) fn copy_blob(&self, oid: Oid, sink: &mut dyn Write) -> Result<(), PackError> {
        let index = *self.by_name.get(&oid).ok_or(PackError::Missing(oid))?;
        let record = self.records.get(index).ok_or(PackError::Missing(oid))?;
        match (record.named, self.kept.get(index)) {
            (Some((_, ObjectKind::Blob, _)), Some(Some(content))) => Ok(sink.write_all(content)?),
            (Some((_, ObjectKind::Blob, bytes)), _)
                if record.source == Source::Whole && bytes > STREAMED_BYTES =>
            {
                let mut cursor = Cursor::new(&self.file, record.offset);
                let header = read_header(&mut cursor, record.offset)?;
                cursor.inflate(header.bytes, &mut |chunk| sink.write_all(chunk))
            }
            _ => Ok(sink.write_all(&self.read(oid, ObjectKind::Blob)?)?),
        }
    }

    /// Copies the pack itself.
    pub(crate) fn copy_to(&self, sink: &File) -> io::Result<()> {
        let (mut from, mut to) = (self.start, 0);
        while from < self.end {
            let wanted = usize::try_from(self.end - from).unwrap_or(usize::MAX).min(1 << 30);
            let copied = match rustix::fs::copy_file_range(
                &self.file,
                Some(&mut from),
                sink,
                Some(&mut to),
                wanted,
            ) {
                Ok(copied) => copied,
                Err(_) => {
                    let mut buffer = vec![0; wanted.min(crate::blob::BUFFER_BYTES)];
                    let count = rustix::io::pread(&self.file, &mut buffer, from)?;
                    let chunk = buffer.get(..count).unwrap_or_default();
                    std::os::unix::fs::FileExt::write_all_at(sink, chunk, to)?;
                    from += count as u64;
                    to += count as u64;
                    count
                }
            };
            if copied == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(())
    }

    /// Writes the pack itself.
    pub(crate) fn write_to(&self, sink: &mut dyn Write) -> io::Result<()> {
        let mut buffer = vec![0; crate::blob::BUFFER_BYTES];
        let mut at = self.start;
        while at < self.end {
            let wanted = usize::try_from(self.end - at).unwrap_or(buffer.len()).min(buffer.len());
            let piece = buffer.get_mut(..wanted).unwrap_or_default();
            let count = rustix::io::pread(&self.file, piece, at)?;
            if count == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            sink.write_all(buffer.get(..count).unwrap_or_default())?;
            at += count as u64;
        }
        Ok(())
    }

    /// Returns the names of all objects.
    pub(crate) fn names(&self) -> impl Iterator<Item = Oid> + '_ {
        self.by_name.keys().copied()
    }

    /// Returns whether the pack is the whole file and its last bytes are the hash of all others.
    pub(crate) fn is_whole_file(&self) -> io::Result<bool> {
        let mut hash = sha1::Sha1::new();
        let mut buffer = vec![0; crate::blob::BUFFER_BYTES];
        let end = self.end.saturating_sub(20);
        let mut at = self.start;
        while at < end {
            let wanted = usize::try_from(end - at).unwrap_or(buffer.len()).min(buffer.len());
            let count =
                rustix::io::pread(&self.file, buffer.get_mut(..wanted).unwrap_or_default(), at)?;
            if count == 0 {
                return Ok(false);
            }
            hash.update(buffer.get(..count).unwrap_or_default());
            at += count as u64;
        }
        let sum: [u8; 20] = hash.finalize().into();
        Ok(sum == self.trailer && self.file.metadata()?.len() == self.end)
    }

    /// Returns the hex name git gives the pack's files.
    pub(crate) fn name(&self) -> String {
        Oid::from_bytes(self.trailer).to_hex()
    }

    fn read_all(&mut self, limits: &TreeLimits, progress: Progress<'_>) -> Result<(), PackError> {
        let file = self.file.try_clone()?;
        let mut cursor = Cursor::new(&file, self.start);
        let header = cursor.take::<12>()?;
        let count = match header {
            [b'P', b'A', b'C', b'K', 0, 0, 0, 2 | 3, a, b, c, d] => {
                u32::from_be_bytes([a, b, c, d])
            }
            _ => return Err(PackError::Malformed("no header")),
        };
        // History holds more objects than a checkout has entries.
        if u64::from(count) > limits.entries.saturating_mul(8) {
            return Err(PackError::TooLarge("objects"));
        }
        let named = std::thread::scope(|scope| {
            let mut namer = Namer::new(scope);
            let read = self.read_objects((&mut cursor, count), (limits, progress), &mut namer);
            let named = namer.finish();
            read.and(named)
        })?;
        self.kept.resize(self.records.len(), None);
        for object in named {
            let Some(record) = self.records.get_mut(object.index) else { continue };
            record.named = Some((object.oid, object.kind, object.bytes));
            self.kept_bytes += object.content.as_ref().map_or(0, |content| content.len());
            if let Some(kept) = self.kept.get_mut(object.index) {
                *kept = object.content;
            }
        }
        for (index, record) in self.records.iter().enumerate() {
            if let Some((oid, ..)) = record.named {
                self.by_name.entry(oid).or_insert(index);
            }
        }
        self.trailer = cursor.take::<20>()?;
        self.end = cursor.position();
        Ok(())
    }

    fn read_objects(
        &mut self,
        (cursor, count): (&mut Cursor<'_>, u32),
        (limits, progress): (&TreeLimits, Progress<'_>),
        namer: &mut Namer<'_, '_>,
    ) -> Result<(), PackError> {
        let mut inflated = 0_u64;
        for done in 0..count {
            let offset = cursor.position();
            cursor.start_crc();
            let header = read_header(cursor, offset)?;
            inflated = inflated.saturating_add(header.bytes);
            if inflated > limits.bytes {
                return Err(PackError::TooLarge("bytes"));
            }
            let named = read_object(cursor, &header, self.records.len(), namer)?;
            self.records.push(Record { offset, crc: cursor.crc(), source: header.source, named });
            if done % 1024 == 0 {
                let (done, total) = (u64::from(done), Some(u64::from(count)));
                progress(Step { phase: Phase::Unpacking, done, total });
            }
        }
        Ok(())
    }

    fn keep(&mut self, index: usize, content: Vec<u8>) {
        if self.kept_bytes + content.len() <= CACHE_BYTES
            && let Some(kept) = self.kept.get_mut(index)
        {
            self.kept_bytes += content.len();
            *kept = Some(content.into());
        }
    }

    /// Names every delta by walking down from each whole object, so each is inflated once.
    fn resolve_deltas(&mut self, limits: &TreeLimits) -> Result<(), PackError> {
        let mut by_offset: HashMap<u64, Vec<usize>> = HashMap::new();
        let mut by_base: HashMap<Oid, Vec<usize>> = HashMap::new();
        for (index, record) in self.records.iter().enumerate() {
            match record.source {
                Source::Whole => {}
                Source::OffsetDelta(offset) => by_offset.entry(offset).or_default().push(index),
                Source::NameDelta(oid) => by_base.entry(oid).or_default().push(index),
            }
        }
        let children = |record: &Record| -> Vec<usize> {
            let by_name = record.named.and_then(|(oid, ..)| by_base.get(&oid));
            let below = by_offset.get(&record.offset).into_iter().chain(by_name);
            below.flatten().copied().collect()
        };
        let file = self.file.try_clone()?;
        let mut cursor = Cursor::new(&file, self.start);
        let mut inflated = 0_u64;
        for index in 0..self.records.len() {
            let Some(record) =
                self.records.get(index).filter(|record| record.source == Source::Whole)
            else {
                continue;
            };
            let waiting = children(record);
            let Some((oid, kind, _)) = record.named.filter(|_| !waiting.is_empty()) else {
                continue;
            };
            let mut stack = vec![(self.read(oid, kind)?, waiting)];
            while let Some((base, waiting)) = stack.last_mut() {
                let Some(child) = waiting.pop() else {
                    stack.pop();
                    continue;
                };
                let base = Arc::clone(base);
                let content = self.apply_delta(&mut cursor, child, &base)?;
                inflated = inflated.saturating_add(content.len() as u64);
                if inflated > limits.bytes {
                    return Err(PackError::TooLarge("bytes"));
                }
                let waiting = self.name_delta(child, kind, &content).map(children);
                if let Some(waiting) = waiting.filter(|waiting| !waiting.is_empty()) {
                    stack.push((Arc::from(content), waiting));
                }
            }
        }
        if self.records.iter().any(|record| record.named.is_none()) {
            return Err(PackError::Malformed("a delta's base is not in it"));
        }
        Ok(())
    }

    /// Names a resolved delta and returns its record, unless it had a name already.
    fn name_delta(&mut self, index: usize, kind: ObjectKind, content: &[u8]) -> Option<&Record> {
        let oid = object_name(kind, content);
        let record = self.records.get_mut(index).filter(|record| record.named.is_none())?;
        record.named = Some((oid, kind, content.len() as u64));
        self.by_name.entry(oid).or_insert(index);
        self.keep(index, content.to_vec());
        self.records.get(index)
    }

    fn apply_delta(
        &self,
        cursor: &mut Cursor<'_>,
        index: usize,
        base: &[u8],
    ) -> Result<Vec<u8>, PackError> {
        let record = self.records.get(index).ok_or(PackError::Malformed("an offset"))?;
        cursor.seek(record.offset);
        let header = read_header(cursor, record.offset)?;
        let delta = cursor.inflate_whole(header.bytes, HELD_BYTES)?;
        delta::apply(base, &delta, HELD_BYTES)
    }

    fn read_record(&self, index: usize) -> Result<Arc<[u8]>, PackError> {
        let mut cursor = Cursor::new(&self.file, self.start);
        let mut chain = Vec::new();
        let mut index = index;
        let mut content = loop {
            let record = self.records.get(index).ok_or(PackError::Malformed("an offset"))?;
            let base = match record.source {
                Source::Whole => {
                    cursor.seek(record.offset);
                    let header = read_header(&mut cursor, record.offset)?;
                    break cursor.inflate_whole(header.bytes, HELD_BYTES)?;
                }
                Source::OffsetDelta(offset) => self
                    .records
                    .binary_search_by_key(&offset, |record| record.offset)
                    .map_err(|_| PackError::Malformed("an offset"))?,
                Source::NameDelta(oid) => *self.by_name.get(&oid).ok_or(PackError::Missing(oid))?,
            };
            chain.push(index);
            // INVARIANT: indexing resolved this chain from its root, so it has no cycle.
            if chain.len() > self.records.len() {
                return Err(PackError::Malformed("a cycle"));
            }
            index = base;
        };
        for index in chain.into_iter().rev() {
            content = self.apply_delta(&mut cursor, index, &content)?;
        }
        Ok(content.into())
    }
}

/// One object of a pack as it is stored.
pub(crate) enum PackedEntry {
    /// A whole object.
    Whole { kind: ObjectKind, content: Vec<u8> },
    /// What makes it from the object at another offset.
    OffsetDelta { base: u64, delta: Vec<u8> },
    /// What makes it from a named object.
    NameDelta { base: Oid, delta: Vec<u8> },
}

/// Reads the object at an offset of a pack, without resolving it.
pub(crate) fn read_entry(file: &File, offset: u64) -> Result<PackedEntry, PackError> {
    let mut cursor = Cursor::new(file, offset);
    let header = read_header(&mut cursor, offset)?;
    let content = cursor.inflate_whole(header.bytes, HELD_BYTES)?;
    match (header.kind, header.source) {
        (Some(kind), Source::Whole) => Ok(PackedEntry::Whole { kind, content }),
        (_, Source::OffsetDelta(base)) => Ok(PackedEntry::OffsetDelta { base, delta: content }),
        (_, Source::NameDelta(base)) => Ok(PackedEntry::NameDelta { base, delta: content }),
        (None, Source::Whole) => Err(PackError::Malformed("an object's kind")),
    }
}

/// Returns what a delta makes of its base.
pub(crate) fn apply_delta(base: &[u8], delta: &[u8]) -> Result<Vec<u8>, PackError> {
    delta::apply(base, delta, HELD_BYTES)
}

/// Passes over one object, and returns its name if it got one here; small ones get theirs from
/// `namer`, and deltas once their base is known.
fn read_object(
    cursor: &mut Cursor<'_>,
    header: &Header,
    index: usize,
    namer: &mut Namer<'_, '_>,
) -> Result<Option<(Oid, ObjectKind, u64)>, PackError> {
    let Some(kind) = header.kind else {
        if header.bytes > HELD_BYTES {
            return Err(PackError::TooLarge("a delta"));
        }
        cursor.inflate(header.bytes, &mut |_| Ok(()))?;
        return Ok(None);
    };
    if header.bytes <= SMALL_BYTES {
        namer.push(index, kind, cursor.inflate_whole(header.bytes, HELD_BYTES)?);
        return Ok(None);
    }
    if kind != ObjectKind::Blob && header.bytes > HELD_BYTES {
        return Err(PackError::TooLarge("an object"));
    }
    let mut hash = object_hash(kind, header.bytes);
    cursor.inflate(header.bytes, &mut |chunk| {
        hash.update(chunk);
        Ok(())
    })?;
    Ok(Some((Oid::from_bytes(hash.finalize().into()), kind, header.bytes)))
}

/// The start of one object in the pack.
struct Header {
    kind: Option<ObjectKind>,
    source: Source,
    bytes: u64,
}

fn read_header(cursor: &mut Cursor<'_>, offset: u64) -> Result<Header, PackError> {
    let [first] = cursor.take::<1>()?;
    let mut bytes = u64::from(first & 15);
    let mut shift = 4;
    let mut more = first & 0x80 != 0;
    while more {
        let [byte] = cursor.take::<1>()?;
        if shift > 56 {
            return Err(PackError::Malformed("a size"));
        }
        bytes |= u64::from(byte & 0x7f) << shift;
        shift += 7;
        more = byte & 0x80 != 0;
    }
    let whole = |kind| Header { kind: Some(kind), source: Source::Whole, bytes };
    Ok(match (first >> 4) & 7 {
        1 => whole(ObjectKind::Commit),
        2 => whole(ObjectKind::Tree),
        3 => whole(ObjectKind::Blob),
        4 => whole(ObjectKind::Tag),
        6 => {
            let back = read_offset(cursor)?;
            let base = offset.checked_sub(back).filter(|_| back > 0);
            let base = base.ok_or(PackError::Malformed("an offset"))?;
            Header { kind: None, source: Source::OffsetDelta(base), bytes }
        }
        7 => {
            let oid = Oid::from_bytes(cursor.take::<20>()?);
            Header { kind: None, source: Source::NameDelta(oid), bytes }
        }
        _ => return Err(PackError::Malformed("an object's kind")),
    })
}

fn read_offset(cursor: &mut Cursor<'_>) -> Result<u64, PackError> {
    let mut value = 0_u64;
    for step in 0..10 {
        let [byte] = cursor.take::<1>()?;
        let carried = if step == 0 { 0 } else { value.saturating_add(1) };
        value = carried.checked_mul(128).ok_or(PackError::Malformed("an offset"))?
            | u64::from(byte & 0x7f);
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(PackError::Malformed("an offset"))
}
