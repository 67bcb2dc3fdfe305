//! Looking at JSON before it is parsed: how many values it would become, how deep it nests, and
//! one member of it.
//!
//! Three bytes (`[],`) become more than thirty as a value, so the size of a body says little about
//! the memory that parsing takes. These scans build nothing; what they count is an upper bound, also
//! for bytes that are not JSON at all.

use thiserror::Error;

/// The deepest that JSON may nest.
pub(crate) const MAX_DEPTH: usize = 100;

/// What one value takes in memory, beside its text: its slot, its name, its share of the
/// container.
const VALUE_BYTES: usize = 96;

/// JSON has too many values or nests too deep.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum TooComplex {
    /// It has too many values.
    #[error("the JSON has more than {limit} values")]
    Values {
        /// The limit.
        limit: usize,
    },
    /// It nests too deep.
    #[error("the JSON nests deeper than {limit}")]
    Depth {
        /// The limit.
        limit: usize,
    },
}

/// Returns an upper bound of the memory that parsing takes, beside the bytes themselves.
pub(crate) fn parsed_size(bytes: &[u8], most_values: usize) -> Result<usize, TooComplex> {
    let values = count_values(bytes, most_values)?;
    Ok(values * VALUE_BYTES + bytes.len())
}

/// Counts values, which are at least as many as the parser will make.
pub(crate) fn count_values(bytes: &[u8], most: usize) -> Result<usize, TooComplex> {
    let (mut values, mut depth) = (1_usize, 0_usize);
    let mut rest = bytes.iter();
    while let Some(byte) = rest.next() {
        match byte {
            b'"' => skip_string(&mut rest),
            b'[' | b'{' => {
                depth += 1;
                values += 1;
                if depth > MAX_DEPTH {
                    return Err(TooComplex::Depth { limit: MAX_DEPTH });
                }
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            b',' => values += 1,
            _ => {}
        }
        if values > most {
            return Err(TooComplex::Values { limit: most });
        }
    }
    Ok(values)
}

fn skip_string(rest: &mut std::slice::Iter<'_, u8>) {
    while let Some(byte) = rest.next() {
        match byte {
            b'\\' => drop(rest.next()),
            b'"' => return,
            _ => {}
        }
    }
}

/// What the beginning of a body says about one of its members.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Member {
    /// It is there, with this text.
    Text(String),
    /// The beginning does not say.
    NotYet,
    /// It cannot be there: the bytes are no object, or the member is no text.
    Absent,
}

/// Looks for a member of the outermost object in the beginning of its JSON.
pub(crate) fn member(start: &[u8], name: &str) -> Member {
    let mut scan = Scan { bytes: start, at: 0 };
    scan.member(name).unwrap_or(Member::NotYet)
}

struct Scan<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Scan<'a> {
    /// Nothing when the bytes end before the answer is known.
    fn member(&mut self, name: &str) -> Option<Member> {
        if self.token()? != b'{' {
            return Some(Member::Absent);
        }
        loop {
            match self.token()? {
                b'"' => {}
                b',' => continue,
                _ => return Some(Member::Absent),
            }
            let key = self.string()?;
            if self.token()? != b':' {
                return Some(Member::Absent);
            }
            let is_wanted = serde_json::from_slice::<String>(key).is_ok_and(|key| key == name);
            if !is_wanted {
                self.skip_value()?;
                continue;
            }
            if self.token()? != b'"' {
                return Some(Member::Absent);
            }
            let text = serde_json::from_slice(self.string()?);
            return Some(text.map_or(Member::Absent, Member::Text));
        }
    }

    /// Returns the next byte that is no white space.
    fn token(&mut self) -> Option<u8> {
        loop {
            let byte = *self.bytes.get(self.at)?;
            self.at += 1;
            if !byte.is_ascii_whitespace() {
                return Some(byte);
            }
        }
    }

    /// Returns the string whose first quote was just read, with both quotes.
    fn string(&mut self) -> Option<&'a [u8]> {
        let from = self.at - 1;
        loop {
            let byte = *self.bytes.get(self.at)?;
            self.at += 1;
            match byte {
                b'\\' => self.at += 1,
                b'"' => return self.bytes.get(from..self.at),
                _ => {}
            }
        }
    }

    /// Skips a value up to the comma or brace behind it.
    fn skip_value(&mut self) -> Option<()> {
        let mut depth = 0_usize;
        loop {
            match *self.bytes.get(self.at)? {
                b'"' => {
                    self.at += 1;
                    self.string()?;
                    continue;
                }
                b'[' | b'{' => depth += 1,
                b']' | b'}' if depth > 0 => depth -= 1,
                b',' | b']' | b'}' if depth == 0 => return Some(()),
                _ => {}
            }
            self.at += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_counted_as_the_parser_makes_them_or_more() {
        fn made(value: &serde_json::Value) -> usize {
            1 + match value {
                serde_json::Value::Array(items) => items.iter().map(made).sum(),
                serde_json::Value::Object(members) => members.values().map(made).sum(),
                _ => 0,
            }
        }
        for text in [
            "1",
            "[]",
            "{}",
            "[[],[],[]]",
            r#"{"a":[1,2,{"b":null}],"c":"x,[{\"]"}"#,
            r#"["\\",",","\",",[[[]]]]"#,
        ] {
            let parsed = serde_json::from_str(text).unwrap();
            let counted = count_values(text.as_bytes(), 1000).unwrap();
            assert!(counted >= made(&parsed) && counted <= 2 * made(&parsed), "{text}: {counted}");
        }
    }

    #[test]
    fn too_many_values_and_too_deep_ones_are_seen_before_parsing() {
        let many = format!("[{}]", "[],".repeat(1000));
        assert_eq!(count_values(many.as_bytes(), 100), Err(TooComplex::Values { limit: 100 }));
        let deep = "[".repeat(MAX_DEPTH + 1);
        let depth = Err(TooComplex::Depth { limit: MAX_DEPTH });
        assert_eq!(count_values(deep.as_bytes(), 1000), depth);
        assert!(count_values("[".repeat(MAX_DEPTH).as_bytes(), 1000).is_ok());
        assert!(count_values(format!("\"{}\"", "[,".repeat(1000)).as_bytes(), 10).is_ok());
    }

    #[test]
    fn a_member_is_found_in_the_beginning_of_a_body() {
        let text = |text: &str| Member::Text(text.to_owned());
        for (start, expected) in [
            (r#"{"claimToken":"a.b","events":[{"#, text("a.b")),
            (r#" { "events" : [ {"claimToken":"x"}, "]}" ] , "claimToken" : "a" "#, text("a")),
            (r#"{"claim\u0054oken":"\u0061"}"#, text("a")),
            (r#"{"n":1,"claimToken":"a"}"#, text("a")),
            (r#"{"claimToken":"a"#, Member::NotYet),
            (r#"{"events":[{"claimToken":"x"}"#, Member::NotYet),
            ("", Member::NotYet),
            ("[", Member::Absent),
            ("{}", Member::Absent),
            (r#"{"claimToken":7}"#, Member::Absent),
            (r#"{"claimToken":"\q"}"#, Member::Absent),
            (r#"{1:"claimToken"}"#, Member::Absent),
        ] {
            assert_eq!(member(start.as_bytes(), "claimToken"), expected, "{start}");
        }
    }
}
