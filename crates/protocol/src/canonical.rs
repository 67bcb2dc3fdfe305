//! Canonical JSON (RFC 8785) and the digest over it.
//!
//! Members are ordered by the UTF-16 code units of their names; numbers are written as
//! ECMAScript writes them. A [`Value`] holds no infinity, so writing cannot fail.

use std::fmt::Write as _;

use serde_json::{Map, Number, Value};

use crate::Digest;
use crate::json::MAX_SAFE_INTEGER;

/// Returns the canonical text of `value`.
#[must_use]
pub fn canonicalize(value: &Value) -> String {
    let mut text = String::with_capacity(1024);
    write_value(value, &mut text);
    text
}

/// Returns the digest of the canonical text of `value`.
#[must_use]
pub fn hash_canonical(value: &Value) -> Digest {
    Digest::of(canonicalize(value).as_bytes())
}

/// Returns the canonical text of an object as if it had no member called `left_out`.
#[must_use]
pub fn canonicalize_without(object: &Map<String, Value>, left_out: &str) -> String {
    let mut text = String::with_capacity(2048);
    write_object(object, Some(left_out), &mut text);
    text
}

pub(crate) fn write_value(value: &Value, text: &mut String) {
    match value {
        Value::Null => text.push_str("null"),
        Value::Bool(true) => text.push_str("true"),
        Value::Bool(false) => text.push_str("false"),
        Value::Number(number) => write_number(number, text),
        Value::String(string) => write_string(string, text),
        Value::Array(items) => {
            text.push('[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    text.push(',');
                }
                write_value(item, text);
            }
            text.push(']');
        }
        Value::Object(members) => write_object(members, None, text),
    }
}

fn write_object(object: &Map<String, Value>, left_out: Option<&str>, text: &mut String) {
    let members = object.iter().filter(|(name, _)| Some(name.as_str()) != left_out);
    // For ASCII names the order of bytes is the order of UTF-16 units, and far quicker to find.
    let is_ascii = object.keys().all(|name| name.is_ascii());
    if is_ascii && object.keys().is_sorted() {
        return write_members(members, text);
    }
    let mut members: Vec<_> = members.collect();
    if is_ascii {
        members.sort_unstable_by_key(|(name, _)| *name);
    } else {
        members.sort_unstable_by(|(a, _), (b, _)| a.encode_utf16().cmp(b.encode_utf16()));
    }
    write_members(members.into_iter(), text);
}

fn write_members<'a>(members: impl Iterator<Item = (&'a String, &'a Value)>, text: &mut String) {
    text.push('{');
    for (index, (name, member)) in members.enumerate() {
        if index > 0 {
            text.push(',');
        }
        write_string(name, text);
        text.push(':');
        write_value(member, text);
    }
    text.push('}');
}

fn write_number(number: &Number, text: &mut String) {
    // What every reader takes for the same integer is written as one; most numbers are such.
    if let Some(integer) = number.as_u64().filter(|integer| *integer <= MAX_SAFE_INTEGER) {
        let _ = write!(text, "{integer}");
        return;
    }
    let double = number.as_f64().unwrap_or(0.0);
    text.push_str(ryu_js::Buffer::new().format_finite(double));
}

pub(crate) fn write_string(string: &str, text: &mut String) {
    let is_special = |byte: u8| byte < 0x20 || byte == b'"' || byte == b'\\';
    text.push('"');
    let mut rest = string;
    // Without an early exit the compiler looks at many bytes at once; most texts are plain.
    let is_plain = !string.bytes().fold(false, |found, byte| found | is_special(byte));
    while let Some(at) = if is_plain { None } else { rest.bytes().position(is_special) } {
        let (plain, tail) = rest.split_at(at);
        text.push_str(plain);
        let mut chars = tail.chars();
        match chars.next() {
            Some('"') => text.push_str("\\\""),
            Some('\\') => text.push_str("\\\\"),
            Some('\u{8}') => text.push_str("\\b"),
            Some('\t') => text.push_str("\\t"),
            Some('\n') => text.push_str("\\n"),
            Some('\u{c}') => text.push_str("\\f"),
            Some('\r') => text.push_str("\\r"),
            Some(control) => text.push_str(&format!("\\u{:04x}", u32::from(control))),
            None => {}
        }
        rest = chars.as_str();
    }
    text.push_str(rest);
    text.push('"');
}
