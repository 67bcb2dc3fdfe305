//! Checks JSON from outside against the wire's limits and tells every issue at once.
//!
//! Issues read `path: message`, with the sentences of the reference's validator.
//! Lengths are counted in UTF-16 units, as the reference counts them.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use serde_json::{Map, Value};
use thiserror::Error;

/// Every issue of a body, each `path: message`; never empty.
#[derive(Debug, Clone, Error, PartialEq, Eq)]
#[error("invalid request: {}", issues.join("; "))]
pub struct Invalid {
    /// The issues, in the order of the members.
    pub issues: Vec<String>,
}

/// Where a value stands; the root has no segments.
#[derive(Clone, Copy)]
pub(crate) struct At<'a> {
    parent: Option<&'a At<'a>>,
    segment: Segment<'a>,
}

#[derive(Clone, Copy)]
enum Segment<'a> {
    Root,
    Name(&'a str),
    Index(usize),
}

/// Collects issues while a body is walked.
pub(crate) struct Checker {
    issues: Vec<String>,
}

impl<'a> At<'a> {
    pub(crate) const ROOT: At<'static> = At { parent: None, segment: Segment::Root };

    pub(crate) const fn name(&'a self, name: &'a str) -> Self {
        Self { parent: Some(self), segment: Segment::Name(name) }
    }

    pub(crate) const fn index(&'a self, index: usize) -> Self {
        Self { parent: Some(self), segment: Segment::Index(index) }
    }
}

impl fmt::Display for At<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_below_root = match self.parent {
            Some(At { segment: Segment::Root, .. }) => false,
            Some(parent) => {
                write!(f, "{parent}")?;
                true
            }
            None => false,
        };
        let dot = if is_below_root { "." } else { "" };
        match self.segment {
            Segment::Root => f.write_str("(root)"),
            Segment::Name(name) => write!(f, "{dot}{name}"),
            Segment::Index(index) => write!(f, "{dot}{index}"),
        }
    }
}

impl Checker {
    pub(crate) const fn new() -> Self {
        Self { issues: Vec::new() }
    }

    pub(crate) fn finish(self) -> Result<(), Invalid> {
        if self.issues.is_empty() { Ok(()) } else { Err(Invalid { issues: self.issues }) }
    }

    /// Ends the walk where an issue was certainly told.
    pub(crate) fn into_invalid(self) -> Invalid {
        Invalid { issues: self.issues }
    }

    pub(crate) fn issue(&mut self, at: &At<'_>, message: impl fmt::Display) {
        self.issues.push(format!("{at}: {message}"));
    }

    pub(crate) fn object<'v>(
        &mut self,
        at: &At<'_>,
        value: Option<&'v Value>,
    ) -> Option<&'v Map<String, Value>> {
        let object = value.and_then(Value::as_object);
        if object.is_none() {
            self.wrong_kind(at, value, "object");
        }
        object
    }

    /// Refuses members that are not in `known`.
    pub(crate) fn only(&mut self, at: &At<'_>, object: &Map<String, Value>, known: &[&str]) {
        let unknown: Vec<_> = object
            .keys()
            .filter(|name| !known.contains(&name.as_str()))
            .map(|name| format!("\"{name}\""))
            .collect();
        match unknown.as_slice() {
            [] => {}
            [one] => self.issue(at, format_args!("Unrecognized key: {one}")),
            more => self.issue(at, format_args!("Unrecognized keys: {}", more.join(", "))),
        }
    }

    pub(crate) fn text<'v>(
        &mut self,
        at: &At<'_>,
        value: Option<&'v Value>,
        length: RangeInclusive<usize>,
    ) -> Option<&'v str> {
        let Some(text) = value.and_then(Value::as_str) else {
            self.wrong_kind(at, value, "string");
            return None;
        };
        let (min, max) = (length.start(), length.end());
        // UTF-8 is never shorter than UTF-16 counts, so most texts need no counting.
        let units = if text.len() <= *max { text.len() } else { text.encode_utf16().count() };
        if units < *min {
            self.issue(at, format_args!("Too small: expected string to have >={min} characters"));
            return None;
        }
        if units > *max {
            self.issue(at, format_args!("Too big: expected string to have <={max} characters"));
            return None;
        }
        Some(text)
    }

    /// Checks text that is a name with rules of its own.
    pub(crate) fn name<T: FromStr<Err: fmt::Display>>(
        &mut self,
        at: &At<'_>,
        value: Option<&Value>,
        length: RangeInclusive<usize>,
    ) {
        if let Some(text) = self.text(at, value, length)
            && let Err(error) = text.parse::<T>()
        {
            self.issue(at, error);
        }
    }

    pub(crate) fn digest(&mut self, at: &At<'_>, value: Option<&Value>) {
        match value.and_then(Value::as_str) {
            None => self.wrong_kind(at, value, "string"),
            Some(text) if text.parse::<crate::Digest>().is_err() => {
                self.issue(at, "Invalid string: must match pattern /^[0-9a-f]{64}$/");
            }
            Some(_) => {}
        }
    }

    pub(crate) fn list<'v>(
        &mut self,
        at: &At<'_>,
        value: Option<&'v Value>,
        max: usize,
    ) -> &'v [Value] {
        let Some(items) = value.and_then(Value::as_array) else {
            self.wrong_kind(at, value, "array");
            return &[];
        };
        if items.len() > max {
            self.issue(at, format_args!("Too big: expected array to have <={max} items"));
            return &[];
        }
        items
    }

    pub(crate) fn boolean(&mut self, at: &At<'_>, value: Option<&Value>) {
        if value.and_then(Value::as_bool).is_none() {
            self.wrong_kind(at, value, "boolean");
        }
    }

    /// Checks a whole number of at least `min`, within what every reader agrees on.
    pub(crate) fn integer(&mut self, at: &At<'_>, value: Option<&Value>, min: u64) {
        let Some(Value::Number(number)) = value else {
            return self.wrong_kind(at, value, "number");
        };
        let double = number.as_f64().unwrap_or(f64::MAX);
        if double.fract() != 0.0 {
            return self.issue(at, "Invalid input: expected int, received number");
        }
        match number.as_u64() {
            Some(number) if number > crate::json::MAX_SAFE_INTEGER => self.too_big(at),
            Some(number) if number >= min => {}
            None if double > 0.0 => self.too_big(at),
            _ if min == 1 => self.issue(at, "Too small: expected number to be >0"),
            _ => self.issue(at, format_args!("Too small: expected number to be >={min}")),
        }
    }

    /// Checks a number of at least zero, or above it.
    pub(crate) fn number(&mut self, at: &At<'_>, value: Option<&Value>, bound: Bound) {
        let Some(number) = value.and_then(Value::as_f64) else {
            return self.wrong_kind(at, value, "number");
        };
        match bound {
            Bound::AtLeastZero if number < 0.0 => {
                self.issue(at, "Too small: expected number to be >=0");
            }
            Bound::AboveZero if number <= 0.0 => {
                self.issue(at, "Too small: expected number to be >0");
            }
            Bound::AtLeastZero | Bound::AboveZero => {}
        }
    }

    pub(crate) fn one_of<'v>(
        &mut self,
        at: &At<'_>,
        value: Option<&'v Value>,
        known: &[&str],
    ) -> Option<&'v str> {
        let found = value.and_then(Value::as_str).filter(|text| known.contains(text));
        if found.is_none() {
            let known: Vec<_> = known.iter().map(|name| format!("\"{name}\"")).collect();
            let message = format_args!("Invalid option: expected one of {}", known.join("|"));
            self.issue(at, message);
        }
        found
    }

    pub(crate) fn literal(&mut self, at: &At<'_>, value: Option<&Value>, expected: &str) {
        if value.and_then(Value::as_str) != Some(expected) {
            self.issue(at, format_args!("Invalid input: expected \"{expected}\""));
        }
    }

    fn too_big(&mut self, at: &At<'_>) {
        let max = crate::json::MAX_SAFE_INTEGER;
        self.issue(at, format_args!("Too big: expected int to be <={max}"));
    }

    fn wrong_kind(&mut self, at: &At<'_>, value: Option<&Value>, expected: &str) {
        let received = match value {
            None => "undefined",
            Some(Value::Null) => "null",
            Some(Value::Bool(_)) => "boolean",
            Some(Value::Number(_)) => "number",
            Some(Value::String(_)) => "string",
            Some(Value::Array(_)) => "array",
            Some(Value::Object(_)) => "object",
        };
        self.issue(at, format_args!("Invalid input: expected {expected}, received {received}"));
    }
}

/// From where a number is right.
#[derive(Clone, Copy)]
pub(crate) enum Bound {
    AtLeastZero,
    AboveZero,
}
