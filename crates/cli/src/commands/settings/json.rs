//! One member of a JSON text is set, and every other letter stays: order, blanks and numbers are
//! the person's.

use std::ops::Range;

use anyhow::{Context as _, bail};
use serde_json::{Value, json};

/// Returns `text`, which is a JSON object, with the member at `path` set to `value`.
pub(crate) fn with_member(text: &str, path: &[&str], value: &Value) -> anyhow::Result<String> {
    let start = text.find('{').context("it is no JSON object")?;
    let unit = indent(text, start);
    set(text, &Place { start, depth: 1, unit: &unit }, (path, value))
}

/// An object in a text: where it starts, and how its members are indented.
struct Place<'a> {
    start: usize,
    depth: usize,
    unit: &'a str,
}

/// A member of an object in a text.
struct Member {
    name: String,
    value: Range<usize>,
}

fn set(text: &str, at: &Place<'_>, (path, value): (&[&str], &Value)) -> anyhow::Result<String> {
    let Some((name, rest)) = path.split_first() else { bail!("no member is named") };
    let (members, end) = members(text, at.start).context("it is no JSON we can read")?;
    let mut named = members.iter().filter(|member| member.name == *name);
    let found = named.next();
    if named.next().is_some() {
        bail!("it names `{name}` twice");
    }
    let part = |range: Range<usize>| text.get(range).unwrap_or_default();
    let Some(found) = found else {
        let value = rest.iter().rev().fold(value.clone(), |inner, name| json!({*name: inner}));
        let line = format!("\n{}{}: ", at.unit.repeat(at.depth), json!(name));
        let value = rendered(&value, at)?;
        return Ok(match members.last() {
            Some(last) => {
                let (before, after) = (part(0..last.value.end), part(last.value.end..text.len()));
                format!("{before},{line}{value}{after}")
            }
            None => {
                let (before, after) = (part(0..at.start + 1), part(end..text.len()));
                let outer = at.unit.repeat(at.depth - 1);
                format!("{before}{line}{value}\n{outer}{after}")
            }
        });
    };
    if rest.is_empty() {
        let (before, after) = (part(0..found.value.start), part(found.value.end..text.len()));
        let now: Option<Value> = serde_json::from_str(part(found.value.clone())).ok();
        return Ok(match now.as_ref() == Some(value) {
            true => text.to_owned(),
            false => format!("{before}{}{after}", rendered(value, at)?),
        });
    }
    if !part(found.value.clone()).starts_with('{') {
        bail!("its `{name}` is no object");
    }
    let inner = Place { start: found.value.start, depth: at.depth + 1, unit: at.unit };
    set(text, &inner, (rest, value))
}

/// Returns a value as text, indented as a member of that object.
fn rendered(value: &Value, at: &Place<'_>) -> anyhow::Result<String> {
    let text = serde_json::to_string_pretty(value).context("no JSON")?;
    let indented = |line: &str| {
        let bare = line.trim_start();
        // Two blanks for each depth; texts have no line breaks of their own.
        let depth = (line.len() - bare.len()) / 2;
        format!("{}{bare}", at.unit.repeat(at.depth + depth))
    };
    let lines: Vec<String> = text.lines().map(indented).collect();
    Ok(lines.join("\n").trim_start().to_owned())
}

/// Returns the blanks before the first member of the outermost object.
fn indent(text: &str, start: usize) -> String {
    let inside = text.get(start + 1..).unwrap_or_default();
    let blanks = inside.find(|c: char| !c.is_ascii_whitespace()).unwrap_or(0);
    let blanks = inside.get(..blanks).unwrap_or_default();
    match blanks.rsplit_once('\n') {
        Some((_, unit)) if !unit.is_empty() => unit.to_owned(),
        _ => "  ".to_owned(),
    }
}

/// Returns the members of the object that starts at `start`, and where its last brace is.
fn members(text: &str, start: usize) -> Option<(Vec<Member>, usize)> {
    let mut members = Vec::new();
    let mut at = after_blanks(text, start + 1)?;
    loop {
        match text.as_bytes().get(at)? {
            b'}' => return Some((members, at)),
            b',' => at = after_blanks(text, at + 1)?,
            b'"' => {
                let key_end = value_end(text, at)?;
                let name = serde_json::from_str(text.get(at..key_end)?).ok()?;
                let colon = after_blanks(text, key_end)?;
                let value = after_blanks(text, colon + 1)?;
                let end = value_end(text, value)?;
                members.push(Member { name, value: value..end });
                at = after_blanks(text, end)?;
            }
            _ => return None,
        }
    }
}

fn after_blanks(text: &str, from: usize) -> Option<usize> {
    text.get(from..)?.find(|c: char| !c.is_ascii_whitespace()).map(|blanks| from + blanks)
}

/// Returns where the value ends that starts at `from`; the text is known to be JSON.
fn value_end(text: &str, from: usize) -> Option<usize> {
    let (mut depth, mut is_text, mut is_escaped) = (0_usize, false, false);
    for (at, byte) in text.bytes().enumerate().skip(from) {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_text => is_escaped = true,
            b'"' => {
                is_text = !is_text;
                if !is_text && depth == 0 {
                    return Some(at + 1);
                }
            }
            _ if is_text => {}
            b'{' | b'[' => depth += 1,
            b'}' | b']' | b',' if depth == 0 => return Some(at),
            b'}' | b']' => {
                depth -= 1;
                if depth == 0 {
                    return Some(at + 1);
                }
            }
            _ if depth == 0 && byte.is_ascii_whitespace() => return Some(at),
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(before: &str, expected: &str) {
        let value = json!({"c": [1]});
        let after = with_member(before, &["a", "b"], &value).unwrap();
        assert_eq!(after, expected);
        let read: Value = serde_json::from_str(&after).unwrap();
        assert_eq!(read["a"]["b"], value);
        assert_eq!(with_member(&after, &["a", "b"], &value).unwrap(), after, "once is enough");
    }

    #[test]
    fn one_member_is_set_and_every_other_letter_stays() {
        let set =
            "{\n  \"a\": {\n    \"b\": {\n      \"c\": [\n        1\n      ]\n    }\n  }\n}\n";
        check("{}\n", set);
        check("{ }\n", set);
        check(
            "{\n    \"z\": 1.0e2,\n    \"a\": {\"x\":12345678901234567890123 , \"b\": 1}\r\n}",
            "{\n    \"z\": 1.0e2,\n    \"a\": {\"x\":12345678901234567890123 , \"b\": {\n            \
             \"c\": [\n                1\n            ]\n        }}\r\n}",
        );
        check(
            "{\"a\\u0020\": \"}\\\"{\", \"a\": {}}",
            "{\"a\\u0020\": \"}\\\"{\", \"a\": {\n    \"b\": {\n      \"c\": [\n        1\n      \
             ]\n    }\n  }}",
        );
        check(
            "{\n\t\"q\": [{\"a\": 1}, \"]\"]\n}\n",
            "{\n\t\"q\": [{\"a\": 1}, \"]\"],\n\t\"a\": {\n\t\t\"b\": {\n\t\t\t\"c\": [\n\t\t\t\t1\n\
             \t\t\t]\n\t\t}\n\t}\n}\n",
        );
    }

    #[test]
    fn what_cannot_be_set_without_a_loss_is_refused() {
        for before in ["[]", "{\"a\": []}", "{\"a\": 1}", "{\"a\": {}, \"a\": {}}"] {
            assert!(with_member(before, &["a", "b"], &json!(1)).is_err(), "{before}");
        }
    }
}
