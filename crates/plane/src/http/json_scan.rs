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

/// Counts the values of JSON while its bytes arrive.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ValueCounter {
    most: usize,
    values: usize,
    depth: usize,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Between,
    InString,
    AfterBackslash,
}

impl ValueCounter {
    /// Returns a counter that takes at most so many values.
    pub(crate) const fn new(most: usize) -> Self {
        Self { most, values: 1, depth: 0, state: State::Between }
    }

    /// Counts the values in the next bytes; they are at least as many as the parser will make.
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> Result<(), TooComplex> {
        for byte in bytes {
            match (self.state, byte) {
                (State::AfterBackslash, _) => self.state = State::InString,
                (State::InString, b'\\') => self.state = State::AfterBackslash,
                (State::InString, b'"') => self.state = State::Between,
                (State::InString, _) => {}
                (State::Between, b'"') => self.state = State::InString,
                (State::Between, b'[' | b'{') => {
                    self.depth += 1;
                    self.values += 1;
                }
                (State::Between, b']' | b'}') => self.depth = self.depth.saturating_sub(1),
                (State::Between, b',') => self.values += 1,
                (State::Between, _) => {}
            }
            if self.values > self.most || self.depth > MAX_DEPTH {
                return Err(self.excess());
            }
        }
        Ok(())
    }

    /// Returns an upper bound of the memory that parsing takes, beside the bytes themselves, after
    /// checking the count against a lower limit.
    pub(crate) const fn parsed_size(&self, bytes: usize, most: usize) -> Result<usize, TooComplex> {
        if self.values > most {
            return Err(TooComplex::Values { limit: most });
        }
        Ok(self.values * VALUE_BYTES + bytes)
    }

    const fn excess(&self) -> TooComplex {
        if self.depth > MAX_DEPTH {
            TooComplex::Depth { limit: MAX_DEPTH }
        } else {
            TooComplex::Values { limit: self.most }
        }
    }
}

/// Counts the values of JSON that is there already.
pub(crate) fn count_values(bytes: &[u8], most: usize) -> Result<usize, TooComplex> {
    let mut counter = ValueCounter::new(most);
    counter.feed(bytes)?;
    Ok(counter.values)
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
    fn where_the_pieces_end_does_not_matter() {
        let text = r#"{"a":["\\\"[,","x\\"],"b":[1,2,[3]]}"#;
        let whole = count_values(text.as_bytes(), 100).unwrap();
        for at in 0..text.len() {
            let mut counter = ValueCounter::new(100);
            counter.feed(&text.as_bytes()[..at]).unwrap();
            counter.feed(&text.as_bytes()[at..]).unwrap();
            assert_eq!(counter.values, whole, "{at}");
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
