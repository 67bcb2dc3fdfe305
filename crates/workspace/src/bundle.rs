//! The header of a git bundle: which commits it holds and which it expects to be there already.

use std::io::{self, BufRead};

use crate::object::Oid;

/// What stands before the pack in a bundle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BundleHeader {
    /// Commits the receiver must have; for a shallow bundle, the parents that did not travel.
    pub(crate) prerequisites: Vec<Oid>,
    /// The commits it holds, by name.
    pub(crate) references: Vec<(String, Oid)>,
}

impl BundleHeader {
    /// Returns the header's bytes.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut text = String::from("# v2 git bundle\n");
        for oid in &self.prerequisites {
            text.push_str(&format!("-{}\n", oid.to_hex()));
        }
        for (name, oid) in &self.references {
            text.push_str(&format!("{} {name}\n", oid.to_hex()));
        }
        text.push('\n');
        text.into_bytes()
    }

    /// Reads a header, leaving `source` at the first byte of the pack.
    pub(crate) fn read(source: &mut impl BufRead) -> io::Result<Self> {
        const MAX_LINES: usize = 100_000;
        let malformed =
            || io::Error::new(io::ErrorKind::InvalidData, "the bundle's header is malformed");
        if read_line(source)? != b"# v2 git bundle" {
            return Err(malformed());
        }
        let mut header = Self { prerequisites: Vec::new(), references: Vec::new() };
        for _ in 0..MAX_LINES {
            let line = read_line(source)?;
            let line = std::str::from_utf8(&line).map_err(|_| malformed())?;
            if line.is_empty() {
                return Ok(header);
            }
            if let Some(rest) = line.strip_prefix('-') {
                let oid = rest.get(..40).and_then(Oid::from_hex).ok_or_else(malformed)?;
                header.prerequisites.push(oid);
            } else {
                let (oid, name) = line.split_once(' ').ok_or_else(malformed)?;
                let oid = Oid::from_hex(oid).ok_or_else(malformed)?;
                header.references.push((name.to_owned(), oid));
            }
        }
        Err(malformed())
    }
}

fn read_line(source: &mut impl BufRead) -> io::Result<Vec<u8>> {
    const MAX_LINE_BYTES: u64 = 64 * 1024;
    let mut line = Vec::new();
    io::Read::take(&mut *source, MAX_LINE_BYTES).read_until(b'\n', &mut line)?;
    match line.pop() {
        Some(b'\n') => Ok(line),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "the bundle's header is cut")),
    }
}
