//! Writes the index git wants beside a pack (version 2).

use std::io::{self, Write};

use sha1::{Digest as _, Sha1};

use super::Pack;

impl Pack {
    /// Writes the `.idx` file of this pack.
    pub(crate) fn write_idx(&self, sink: &mut dyn Write) -> io::Result<()> {
        let mut rows: Vec<([u8; 20], u32, u64)> = self
            .records
            .iter()
            .filter_map(|record| {
                let (oid, ..) = record.named?;
                Some((*oid.as_bytes(), record.crc, record.offset - self.start))
            })
            .collect();
        rows.sort_unstable();
        let mut bytes = Vec::with_capacity(1032 + rows.len() * 28 + 40);
        bytes.extend_from_slice(&[0xff, b't', b'O', b'c', 0, 0, 0, 2]);
        for first in 0..=u8::MAX {
            let below =
                rows.partition_point(|(oid, ..)| oid.first().is_some_and(|byte| *byte <= first));
            bytes.extend_from_slice(&u32::try_from(below).unwrap_or(u32::MAX).to_be_bytes());
        }
        for (oid, ..) in &rows {
            bytes.extend_from_slice(oid);
        }
        for (_, crc, _) in &rows {
            bytes.extend_from_slice(&crc.to_be_bytes());
        }
        let mut large = Vec::new();
        for (.., offset) in &rows {
            let small = u32::try_from(*offset).ok().filter(|offset| offset & 0x8000_0000 == 0);
            let word = small.unwrap_or_else(|| {
                large.extend_from_slice(&offset.to_be_bytes());
                0x8000_0000 | u32::try_from(large.len() / 8 - 1).unwrap_or(0)
            });
            bytes.extend_from_slice(&word.to_be_bytes());
        }
        bytes.extend_from_slice(&large);
        bytes.extend_from_slice(&self.trailer);
        let sum: [u8; 20] = Sha1::digest(&bytes).into();
        bytes.extend_from_slice(&sum);
        sink.write_all(&bytes)
    }
}
