//! The forms a secret value can appear as.
//!
//! Literal, lower and upper case; base64 in its three alignments and both alphabets; hex in both
//! cases; percent (everything, or what a URL, a path or a form needs, both cases); JSON-escaped
//! (short escapes, all of non-ASCII, with an escaped slash, safe for HTML); quoted as git quotes a
//! path; reversed; UTF-16 in both byte orders. All of this also without the white space around
//! the value, which shells and editors drop; and a value with several lines as a diff or a
//! terminal writes it.
//!
//! Of a base64 form only the characters that the value alone decides are looked for: what
//! precedes and follows the value shares one character at each end, which can keep up to four
//! bits of the first and of the last byte.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};

/// Values below this many bytes are removed in their literal form only.
const SHORTEST_ENCODED: usize = 4;
/// Lines of a value with several lines are removed by themselves from this many bytes on.
const SHORTEST_LINE: usize = 8;

/// What is written for control characters in a quoted path.
const CONTROLS: [(u8, &str); 7] = [
    (b'\n', "\\n"),
    (b'\t', "\\t"),
    (b'\r', "\\r"),
    (0x07, "\\a"),
    (0x08, "\\b"),
    (0x0b, "\\v"),
    (0x0c, "\\f"),
];
/// What stands between the lines of a value in a diff, and on a terminal.
const BETWEEN_LINES: [&str; 4] = ["\n+", "\n-", "\n ", "\r\n"];

/// Returns every form of `value`, without repetition, and what it is replaced by; none for the
/// empty value.
pub(super) fn of(value: &str, placeholder: &str) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut forms = BTreeSet::new();
    add(value, &mut forms);
    let trimmed = value.trim();
    if trimmed.len() >= SHORTEST_ENCODED {
        add(trimmed, &mut forms);
    }
    if value.contains(['\n', '\r']) {
        for line in value.split(['\n', '\r']).filter(|line| line.len() >= SHORTEST_LINE) {
            add(line, &mut forms);
        }
    }
    let plain = |form| (form, placeholder.as_bytes().to_vec());
    let mut forms: BTreeMap<Vec<u8>, Vec<u8>> = forms.into_iter().map(plain).collect();
    add_lines(trimmed, placeholder, &mut forms);
    forms
}

/// Short lines cannot be told by themselves, but they can all together. A diff keeps its lines,
/// so that it can still be applied.
fn add_lines(value: &str, placeholder: &str, forms: &mut BTreeMap<Vec<u8>, Vec<u8>>) {
    let lines: Vec<&str> = value.split('\n').collect();
    if lines.len() < 2 || lines.iter().all(|line| line.len() >= SHORTEST_LINE) {
        return;
    }
    for between in BETWEEN_LINES {
        let hidden = vec![placeholder; lines.len()].join(between);
        forms.insert(lines.join(between).into_bytes(), hidden.into_bytes());
    }
}

fn add(value: &str, forms: &mut BTreeSet<Vec<u8>>) {
    let bytes = value.as_bytes();
    if bytes.is_empty() {
        return;
    }
    forms.insert(bytes.to_vec());
    if bytes.len() < SHORTEST_ENCODED {
        return;
    }
    forms.insert(value.to_lowercase().into_bytes());
    forms.insert(value.to_uppercase().into_bytes());
    add_base64(bytes, forms);
    let hex = hex(bytes);
    forms.insert(hex.to_uppercase().into_bytes());
    forms.insert(hex.into_bytes());
    add_percent(bytes, forms);
    add_json(value, forms);
    // Git has a letter for every control character that C has one for, we only for two.
    forms.insert(git_quoted(bytes, &CONTROLS));
    forms.insert(git_quoted(bytes, CONTROLS.get(..2).unwrap_or_default()));
    forms.insert(bytes.iter().rev().copied().collect());
    forms.insert(value.chars().rev().collect::<String>().into_bytes());
    forms.insert(value.encode_utf16().flat_map(u16::to_le_bytes).collect());
    forms.insert(value.encode_utf16().flat_map(u16::to_be_bytes).collect());
}

/// The value may start at any of three places within a group of three bytes.
fn add_base64(bytes: &[u8], forms: &mut BTreeSet<Vec<u8>>) {
    // Before the value: this many unknown bytes, which touch this many characters.
    for (before, touched) in [(0, 0), (1, 2), (2, 3)] {
        let mut padded = vec![0_u8; before];
        padded.extend_from_slice(bytes);
        let decided = padded.len() * 8 / 6;
        for engine in [&STANDARD_NO_PAD, &URL_SAFE_NO_PAD] {
            let text = engine.encode(&padded).into_bytes();
            if let Some(form) = text.get(touched..decided) {
                forms.insert(form.to_vec());
            }
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut hex, byte| {
        // Writing to a string cannot fail.
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

fn add_percent(bytes: &[u8], forms: &mut BTreeSet<Vec<u8>>) {
    let all = |_: u8| false;
    let unreserved = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    let component = |byte: u8| unreserved(byte) || b"!'()*".contains(&byte);
    let path = |byte: u8| unreserved(byte) || byte == b'/';
    let address = |byte: u8| component(byte) || b";,/?:@&=+$#".contains(&byte);
    let keeps: [&dyn Fn(u8) -> bool; 5] = [&all, &unreserved, &component, &path, &address];
    for keep in keeps {
        for upper in [true, false] {
            let text = percent(bytes, keep, upper);
            forms.insert(text.replace("%20", "+").into_bytes());
            forms.insert(text.into_bytes());
        }
    }
}

fn percent(bytes: &[u8], keep: &dyn Fn(u8) -> bool, upper: bool) -> String {
    bytes.iter().fold(String::new(), |mut text, &byte| {
        let _ = match (keep(byte), upper) {
            (true, _) => write!(text, "{}", char::from(byte)),
            (false, true) => write!(text, "%{byte:02X}"),
            (false, false) => write!(text, "%{byte:02x}"),
        };
        text
    })
}

fn add_json(value: &str, forms: &mut BTreeSet<Vec<u8>>) {
    let Ok(quoted) = serde_json::to_string(value) else { return };
    let plain = quoted.get(1..quoted.len().saturating_sub(1)).unwrap_or_default().to_owned();
    for base in [ascii_json(&plain, false), ascii_json(&plain, true), plain] {
        let safe = base.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026");
        forms.insert(safe.into_bytes());
        forms.insert(base.replace('/', "\\/").into_bytes());
        forms.insert(base.into_bytes());
    }
}

/// Returns JSON text with everything outside ASCII as `\u` escapes.
fn ascii_json(text: &str, upper: bool) -> String {
    let mut out = String::new();
    let mut units = [0; 2];
    for character in text.chars() {
        if character.is_ascii() {
            out.push(character);
            continue;
        }
        for unit in character.encode_utf16(&mut units) {
            let _ = if upper { write!(out, "\\u{unit:04X}") } else { write!(out, "\\u{unit:04x}") };
        }
    }
    out
}

/// Returns the bytes as git writes an unusual path: octal escapes outside printable ASCII, and
/// letters for the control characters in `letters`.
fn git_quoted(bytes: &[u8], letters: &[(u8, &str)]) -> Vec<u8> {
    bytes.iter().fold(Vec::new(), |mut out, &byte| {
        let letter = letters.iter().find(|(control, _)| *control == byte);
        match (byte, letter) {
            (_, Some((_, letter))) => out.extend_from_slice(letter.as_bytes()),
            (b'"', None) => out.extend_from_slice(b"\\\""),
            (b'\\', None) => out.extend_from_slice(b"\\\\"),
            (0x20..=0x7e, None) => out.push(byte),
            (_, None) => out.extend_from_slice(format!("\\{byte:03o}").as_bytes()),
        }
        out
    })
}
