//! Writes the index git wants beside a pack (version 2).

use std::io::{self, Write};

use sha1::{Digest as _, Sha1};

use super::Pack;

/// Where one object lies in its pack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct IdxRow {
    pub(super) oid: [u8; 20],
    pub(super) crc: u32,
    pub(super) offset: u64,
}

impl Pack {
    /// Writes the `.idx` file of this pack.
    pub(crate) fn write_idx(&self, sink: &mut dyn Write) -> io::Result<()> {
        let rows = self.records.iter().filter_map(|record| {
            let (oid, ..) = record.named?;
            let offset = record.offset - self.start;
            Some(IdxRow { oid: *oid.as_bytes(), crc: record.crc, offset })
        });
        write_idx(rows.collect(), &self.trailer, sink)
    }
}

/// Writes the index of the pack that ends with `trailer`.
pub(super) fn write_idx(
    mut rows: Vec<IdxRow>,
    trailer: &[u8; 20],
    sink: &mut dyn Write,
) -> io::Result<()> {
    rows.sort_unstable();
    let mut bytes = Vec::with_capacity(1032 + rows.len() * 28 + 40);
    bytes.extend_from_slice(&[0xff, b't', b'O', b'c', 0, 0, 0, 2]);
    for first in 0..=u8::MAX {
        let below = rows.partition_point(|row| row.oid.first().is_some_and(|byte| *byte <= first));
        bytes.extend_from_slice(&u32::try_from(below).unwrap_or(u32::MAX).to_be_bytes());
    }
    for row in &rows {
        bytes.extend_from_slice(&row.oid);
    }
    for row in &rows {
        bytes.extend_from_slice(&row.crc.to_be_bytes());
    }
    let mut large = Vec::new();
    for row in &rows {
        let small = u32::try_from(row.offset).ok().filter(|offset| offset & 0x8000_0000 == 0);
        let word = small.unwrap_or_else(|| {
            large.extend_from_slice(&row.offset.to_be_bytes());
            0x8000_0000 | u32::try_from(large.len() / 8 - 1).unwrap_or(0)
        });
        bytes.extend_from_slice(&word.to_be_bytes());
    }
    bytes.extend_from_slice(&large);
    bytes.extend_from_slice(trailer);
    let sum: [u8; 20] = Sha1::digest(&bytes).into();
    bytes.extend_from_slice(&sum);
    sink.write_all(&bytes)
}
