//! Logs of references: each line parsed, those that lead to objects which are nowhere dropped.

use super::object_links::is_person_line;
use crate::object::Oid;

/// A larger log is not taken over.
pub(super) const MOST_BYTES: u64 = 256 << 20;

/// One line of a log.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct LogLine {
    pub(super) old: Oid,
    pub(super) new: Oid,
}

/// Parses a line without its end.
pub(super) fn parse_line(line: &[u8]) -> Option<LogLine> {
    let oid =
        |range: std::ops::Range<usize>| Oid::from_hex(std::str::from_utf8(line.get(range)?).ok()?);
    let (old, new) = (oid(0..40)?, oid(41..81)?);
    let rest = line.get(81..)?;
    let person = rest.split(|byte| *byte == b'\t').next()?;
    let is_plain = line.get(40) == Some(&b' ') && !line.contains(&0);
    (is_plain && is_person_line(person, b" ")).then_some(LogLine { old, new })
}

/// Returns the lines that a log has beyond what it was, and whether it begins with what it was.
pub(super) fn new_lines<'a>(before: &[u8], after: &'a [u8]) -> (&'a [u8], bool) {
    match after.strip_prefix(before) {
        Some(added) => (added, true),
        None => (after, false),
    }
}

/// Returns the old value of the first line that was added, which is what the run saw.
pub(super) fn first_old(before: &[u8], after: &[u8]) -> Option<Oid> {
    let (added, is_longer) = new_lines(before, after);
    let line = added.split(|byte| *byte == b'\n').next()?;
    parse_line(line).filter(|_| is_longer).map(|line| line.old)
}
