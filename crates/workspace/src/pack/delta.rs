//! Applies one delta: copies from a base and inserts, all bounds checked.

use super::PackError;

/// Returns what `delta` makes of `base`.
pub(super) fn apply(base: &[u8], delta: &[u8], limit: u64) -> Result<Vec<u8>, PackError> {
    let malformed = || PackError::Malformed("a delta");
    let (base_bytes, rest) = size(delta).ok_or_else(malformed)?;
    let (bytes, mut rest) = size(rest).ok_or_else(malformed)?;
    if base_bytes != base.len() as u64 {
        return Err(malformed());
    }
    if bytes > limit {
        return Err(PackError::TooLarge("an object"));
    }
    let mut content = Vec::with_capacity(usize::try_from(bytes.min(1 << 20)).unwrap_or(0));
    while let Some((op, after)) = rest.split_first() {
        rest = if op & 0x80 != 0 {
            let (offset, length, after) = copy_arguments(*op, after).ok_or_else(malformed)?;
            let end = offset.checked_add(length).ok_or_else(malformed)?;
            content.extend_from_slice(base.get(offset..end).ok_or_else(malformed)?);
            after
        } else {
            let count = usize::from(*op);
            if count == 0 {
                return Err(malformed());
            }
            content.extend_from_slice(after.get(..count).ok_or_else(malformed)?);
            after.get(count..).unwrap_or_default()
        };
        if content.len() as u64 > bytes {
            return Err(malformed());
        }
    }
    if content.len() as u64 == bytes { Ok(content) } else { Err(malformed()) }
}

fn copy_arguments(op: u8, mut rest: &[u8]) -> Option<(usize, usize, &[u8])> {
    let mut fields = [0_usize; 7];
    for (bit, field) in fields.iter_mut().enumerate() {
        if op & (1 << bit) != 0 {
            let (byte, after) = rest.split_first()?;
            *field = usize::from(*byte);
            rest = after;
        }
    }
    let [a, b, c, d, e, f, g] = fields;
    let offset = a | b << 8 | c << 16 | d << 24;
    let length = e | f << 8 | g << 16;
    Some((offset, if length == 0 { 0x10000 } else { length }, rest))
}

fn size(mut bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut value = 0_u64;
    for shift in (0..63).step_by(7) {
        let (byte, after) = bytes.split_first()?;
        bytes = after;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some((value, bytes));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_and_inserts() {
        let delta = [5, 6, 0b1001_0001, 1, 3, 3, b'x', b'y', b'z'];
        assert_eq!(apply(b"abcde", &delta, 100).unwrap(), b"bcdxyz");
    }

    #[test]
    fn delta_cannot_read_past_its_base() {
        for delta in [
            [5, 3, 0b1001_0001, 4, 3].as_slice(),
            &[4, 1, 1, b'x'],
            &[5, 9, 1, b'x'],
            &[5, 1, 0],
            &[5, 1, 2, b'x'],
            &[5],
        ] {
            assert!(apply(b"abcde", delta, 100).is_err(), "{delta:?}");
        }
    }
}
