//! Writes one file's change as a literal binary patch, without ever holding the file.

use std::io::{self, Read, Write};

use flate2::Compression;
use flate2::read::ZlibEncoder;

use super::Version;
use crate::TreePath;
use crate::object::Oid;
use crate::path::c_quoted;

/// Writes the change from the first version to the second, whose content is given.
///
/// The patch goes forward only: undoing it needs the old file.
pub(super) fn write(
    sink: &mut impl Write,
    path: &TreePath,
    (old, new): (Option<Version>, Option<Version>),
    content: Option<Box<dyn Read>>,
) -> io::Result<()> {
    let side = |letter: &str| c_quoted(&[letter.as_bytes(), b"/", path.as_bytes()].concat());
    writeln!(sink, "diff --git {} {}", side("a"), side("b"))?;
    let name = |version: Option<Version>| version.map_or(Oid::NULL, |version| version.oid).to_hex();
    let names = format!("{}..{}", name(old), name(new));
    let mode = |version: Version| version.mode.as_str();
    match (old, new) {
        (None, Some(new)) => writeln!(sink, "new file mode {}\nindex {names}", mode(new))?,
        (Some(old), None) => writeln!(sink, "deleted file mode {}\nindex {names}", mode(old))?,
        (Some(old), Some(new)) if old.mode == new.mode => {
            writeln!(sink, "index {names} {}", mode(old))?;
        }
        (Some(old), Some(new)) => {
            writeln!(sink, "old mode {}\nnew mode {}", mode(old), mode(new))?;
            if old.oid == new.oid {
                return Ok(());
            }
            writeln!(sink, "index {names}")?;
        }
        (None, None) => return Ok(()),
    }
    let bytes = new.map_or(0, |version| version.stored.bytes);
    writeln!(sink, "GIT binary patch\nliteral {bytes}")?;
    let content = content.unwrap_or_else(|| Box::new(io::empty()));
    // Speed counts here: what is this large is rarely text.
    let content = io::BufReader::with_capacity(crate::blob::BUFFER_BYTES, content);
    write_lines(sink, &mut ZlibEncoder::new(content, Compression::fast()))?;
    writeln!(sink)
}

/// Writes bytes in lines of at most 52, each with its length and in base 85.
fn write_lines(sink: &mut impl Write, source: &mut impl Read) -> io::Result<()> {
    const LINE_BYTES: usize = 52;
    let mut chunk = vec![0_u8; 1024 * LINE_BYTES];
    let mut text = Vec::new();
    loop {
        let mut filled = 0;
        while let Some(room) = chunk.get_mut(filled..).filter(|room| !room.is_empty()) {
            match source.read(room)? {
                0 => break,
                count => filled += count,
            }
        }
        let Some(bytes) = chunk.get(..filled).filter(|bytes| !bytes.is_empty()) else {
            return Ok(());
        };
        text.clear();
        bytes.chunks(LINE_BYTES).for_each(|line| push_line(&mut text, line));
        sink.write_all(&text)?;
    }
}

fn push_line(text: &mut Vec<u8>, bytes: &[u8]) {
    const DIGITS: &[u8; 85] =
        b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~";
    let length = u8::try_from(bytes.len()).unwrap_or(52);
    text.push(if length <= 26 { b'A' + length - 1 } else { b'a' + length - 27 });
    for group in bytes.chunks(4) {
        let mut word = [0; 4];
        word.iter_mut().zip(group).for_each(|(to, from)| *to = *from);
        let mut value = u32::from_be_bytes(word);
        let mut digits = [0; 5];
        for digit in digits.iter_mut().rev() {
            *digit = DIGITS.get((value % 85) as usize).copied().unwrap_or(b'0');
            value /= 85;
        }
        text.extend_from_slice(&digits);
    }
    text.push(b'\n');
}
