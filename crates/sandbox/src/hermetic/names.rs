//! File names as the interpreter can hold them: text that stands for any bytes.
//!
//! The interpreter knows only UTF-8 names without control and invisible characters. A byte that
//! is not part of such text becomes one private character, and comes back as that byte. A real
//! name that holds a private character is written byte by byte as well, so the way there and
//! back is exact for every name.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// The private character that stands for byte 0; byte `b` is this plus `b`.
const BASE: u32 = 0x10_FF00;

/// Returns the text that stands for a name.
pub(super) fn to_text(name: &OsStr) -> String {
    let mut text = String::with_capacity(name.len());
    for chunk in name.as_bytes().utf8_chunks() {
        for character in chunk.valid().chars() {
            if stands_for(character).is_some() || is_refused(character) {
                let mut buffer = [0; 4];
                character.encode_utf8(&mut buffer).bytes().for_each(|b| text.push(stand_in(b)));
            } else {
                text.push(character);
            }
        }
        chunk.invalid().iter().for_each(|byte| text.push(stand_in(*byte)));
    }
    text
}

/// Returns the name a text stands for.
pub(super) fn to_name(text: &str) -> OsString {
    if text.is_ascii() {
        return text.into();
    }
    let mut bytes = Vec::with_capacity(text.len());
    for character in text.chars() {
        match stands_for(character) {
            Some(byte) => bytes.push(byte),
            None => bytes.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    OsString::from_vec(bytes)
}

fn stand_in(byte: u8) -> char {
    char::from_u32(BASE + u32::from(byte)).unwrap_or(char::REPLACEMENT_CHARACTER)
}

fn stands_for(character: char) -> Option<u8> {
    // SECURITY: only controls and bytes beyond ASCII have a stand-in, so that no private
    // character smuggles in a slash, a dot or a NUL.
    let byte = u8::try_from(u32::from(character).checked_sub(BASE)?).ok()?;
    (byte >= 0x80 || (byte != 0 && byte.is_ascii_control())).then_some(byte)
}

/// Returns whether the interpreter refuses a path with this character in it.
fn is_refused(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            '\u{180E}'
                | '\u{200B}'..='\u{200D}'
                | '\u{202A}'..='\u{202E}'
                | '\u{2060}'
                | '\u{2066}'..='\u{206F}'
                | '\u{FEFF}'
                | '\u{FFF9}'..='\u{FFFB}'
                | '\u{E0000}'..='\u{E007F}'
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_comes_back_exactly() {
        let private = "a\u{10FFE9}b";
        let names: [&[u8]; 9] = [
            b"plain",
            b"new\nline",
            b"\xff\xfe",
            b"caf\xe9",
            "caf\u{e9}".as_bytes(),
            b"\xf4\x8f",
            private.as_bytes(),
            b"a\x1b[31m",
            "z\u{200d}w".as_bytes(),
        ];
        for name in names {
            let name = OsStr::from_bytes(name);
            assert_eq!(to_name(&to_text(name)), name);
            assert!(!to_text(name).contains(is_refused));
        }
    }

    #[test]
    fn a_private_character_cannot_smuggle_a_slash() {
        let text = char::from_u32(BASE + u32::from(b'/')).unwrap().to_string();
        assert!(!to_name(&text).as_bytes().contains(&b'/'));
    }
}
