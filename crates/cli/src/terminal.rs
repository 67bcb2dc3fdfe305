//! Text from inside a sandbox, made safe to show on a terminal.
//!
//! SECURITY: a program that prints escape codes could rewrite what the person saw before, set the
//! clipboard or the title, or turn the order of words around. On a terminal everything but plain
//! text, line ends and tabs is shown as an escape; whoever wants the bytes asks with `--raw` or
//! sends them elsewhere.

use std::io::{self, IsTerminal as _, Read, Write};

/// Whether a character may change how a terminal shows what stands around it.
pub(crate) fn is_unsafe(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{061c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}')
        || matches!(c, '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{e0000}'..='\u{e007f}')
}

/// Copies everything to stdout: as it is where `raw` or where stdout is no terminal, else with
/// every unsafe character escaped. A reader that went away saw what it wanted.
pub(crate) fn copy_to_stdout(source: &mut dyn Read, raw: Raw) -> io::Result<()> {
    let stdout = io::stdout();
    let is_terminal = stdout.is_terminal();
    let mut stdout = stdout.lock();
    let copied = if raw == Raw::Yes || !is_terminal {
        io::copy(source, &mut stdout).map(drop)
    } else {
        let mut safe = SafeText::new(&mut stdout);
        io::copy(source, &mut safe).and_then(|_| safe.finish())
    };
    match copied.and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error),
        _ => Ok(()),
    }
}

/// Whether bytes are wanted as they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Raw {
    Yes,
    No,
}

impl From<bool> for Raw {
    fn from(given: bool) -> Self {
        if given { Self::Yes } else { Self::No }
    }
}

/// A sink that escapes what could drive a terminal. Bytes that are no UTF-8 become `\xNN`.
pub(crate) struct SafeText<W> {
    sink: W,
    /// The start of a character whose rest has not come yet.
    carry: Vec<u8>,
}

impl<W: Write> SafeText<W> {
    pub(crate) const fn new(sink: W) -> Self {
        Self { sink, carry: Vec::new() }
    }

    /// Writes what is left of a character that never ended.
    pub(crate) fn finish(mut self) -> io::Result<()> {
        let carry = std::mem::take(&mut self.carry);
        self.sink.write_all(escaped_bytes(&carry).as_bytes())
    }
}

impl<W: Write> Write for SafeText<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut whole = std::mem::take(&mut self.carry);
        whole.extend_from_slice(bytes);
        let end = match std::str::from_utf8(&whole) {
            // A character cut off by the end of this piece waits for the next one.
            Err(error) if error.error_len().is_none() => error.valid_up_to(),
            _ => whole.len(),
        };
        let (now, later) = whole.split_at(end);
        let mut text = String::with_capacity(now.len());
        for chunk in now.utf8_chunks() {
            push_safe(&mut text, chunk.valid());
            text.push_str(&escaped_bytes(chunk.invalid()));
        }
        self.carry = later.to_vec();
        self.sink.write_all(text.as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.sink.flush()
    }
}

fn push_safe(text: &mut String, valid: &str) {
    let mut characters = valid.chars().peekable();
    while let Some(c) = characters.next() {
        match c {
            '\n' | '\t' => text.push(c),
            // Only as part of a line end: alone it would overwrite the line.
            '\r' if characters.peek() == Some(&'\n') => {}
            c if is_unsafe(c) => text.extend(c.escape_default()),
            c => text.push(c),
        }
    }
}

fn escaped_bytes(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("\\x{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn safe(pieces: &[&[u8]]) -> String {
        let mut out = Vec::new();
        let mut sink = SafeText::new(&mut out);
        for piece in pieces {
            sink.write_all(piece).unwrap();
        }
        sink.finish().unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn escapes_bidi_and_broken_bytes_cannot_drive_a_terminal() {
        assert_eq!(safe(&[b"plain\ttext\r\nnext\n"]), "plain\ttext\nnext\n");
        assert_eq!(safe(&[b"\x1b]52;c;eA==\x07"]), "\\u{1b}]52;c;eA==\\u{7}");
        assert_eq!(safe(&[b"a\rb"]), "a\\rb");
        assert_eq!(safe(&["a\u{202e}b\u{2066}c".as_bytes()]), "a\\u{202e}b\\u{2066}c");
        assert_eq!(safe(&["\u{9b}31m".as_bytes()]), "\\u{9b}31m");
        assert_eq!(safe(&[b"\xff\xfe"]), "\\xff\\xfe");
        assert_eq!(safe(&["é".as_bytes()]), "é");
    }

    #[test]
    fn characters_cut_between_pieces_stay_whole() {
        let bytes = "é€😀".as_bytes();
        for at in 0..=bytes.len() {
            assert_eq!(safe(&[&bytes[..at], &bytes[at..]]), "é€😀", "cut at {at}");
        }
        assert_eq!(safe(&[&bytes[..1]]), "\\xc3");
    }
}
