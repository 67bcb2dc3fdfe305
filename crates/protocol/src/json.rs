//! JSON as it is read from the outside: one strict parse to a [`Value`].
//!
//! Duplicate members and lone surrogates are refused, because two readers would see two
//! different objects. Numbers are IEEE doubles, as in ECMAScript: what is integral and exact
//! becomes an integer, everything else stays a double, so equal numbers are equal values.

use std::fmt;

use serde::de::{DeserializeSeed, Error as _, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::map::Entry;
use serde_json::{Map, Number, Value};
use thiserror::Error;

/// The largest integer that every reader of JSON agrees on.
pub const MAX_SAFE_INTEGER: u64 = (1 << 53) - 1;

/// A JSON value that was read strictly, also when it stands inside another type.
#[derive(Debug, Clone, PartialEq)]
pub struct StrictValue(pub Value);

impl<'de> Deserialize<'de> for StrictValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Strict.deserialize(deserializer).map(Self)
    }
}

/// Why bytes are not JSON we read.
#[derive(Debug, Error)]
#[error("not valid JSON")]
pub struct InvalidJson(#[source] serde_json::Error);

/// Why a JSON value is not one we sign.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum Unsignable {
    /// A number that other readers may round.
    #[error("{path} is a number beyond ±(2^53-1)")]
    UnsafeNumber {
        /// Where it stands, in dots.
        path: String,
    },
    /// A null; what is absent is left out.
    #[error("{path} is null, and what is absent is left out")]
    Null {
        /// Where it stands, in dots.
        path: String,
    },
}

/// Returns the JSON value of `bytes`.
///
/// # Errors
/// [`InvalidJson`] when the bytes are not JSON, name a member twice, hold a lone surrogate, or
/// nest deeper than 127.
pub fn parse(bytes: &[u8]) -> Result<Value, InvalidJson> {
    // Once for all of them, instead of string by string.
    let text = std::str::from_utf8(bytes)
        .map_err(|cause| InvalidJson(serde_json::Error::custom(cause)))?;
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let value = Strict.deserialize(&mut deserializer).map_err(InvalidJson)?;
    deserializer.end().map_err(InvalidJson)?;
    Ok(value)
}

/// Returns a typed value as JSON, with numbers in the form that [`parse`] gives them.
///
/// # Errors
/// [`InvalidJson`] when the type has no JSON form (a map whose keys are not text).
pub fn to_value<T: Serialize>(value: &T) -> Result<Value, InvalidJson> {
    let mut value = serde_json::to_value(value).map_err(InvalidJson)?;
    normalize(&mut value);
    Ok(value)
}

/// Returns a typed view of `value`; members the type does not know are ignored.
///
/// # Errors
/// [`InvalidJson`] naming the member that does not fit.
pub fn view<'a, T: Deserialize<'a>>(value: &'a Value) -> Result<T, InvalidJson> {
    T::deserialize(value).map_err(InvalidJson)
}

/// Checks that `value` holds nothing that two readers could take for different things.
///
/// # Errors
/// [`Unsignable`] with the first member at fault.
pub fn check_signable(value: &Value) -> Result<(), Unsignable> {
    check_at(value, &mut Vec::new())
}

impl InvalidJson {
    /// Returns what is wrong and where, for people.
    #[must_use]
    pub fn detail(&self) -> String {
        self.0.to_string()
    }
}

fn check_at<'a>(value: &'a Value, path: &mut Vec<&'a str>) -> Result<(), Unsignable> {
    match value {
        Value::Null => Err(Unsignable::Null { path: path.join(".") }),
        Value::Number(number) if !is_safe(number) => {
            Err(Unsignable::UnsafeNumber { path: path.join(".") })
        }
        Value::Array(items) => items.iter().try_for_each(|item| check_at(item, path)),
        Value::Object(members) => members.iter().try_for_each(|(name, member)| {
            path.push(name);
            check_at(member, path)?;
            path.pop();
            Ok(())
        }),
        Value::Bool(_) | Value::Number(_) | Value::String(_) => Ok(()),
    }
}

fn is_safe(number: &Number) -> bool {
    const LIMIT: f64 = MAX_SAFE_INTEGER as f64;
    match (number.as_u64(), number.as_i64()) {
        (Some(number), _) => number <= MAX_SAFE_INTEGER,
        (None, Some(number)) => number.unsigned_abs() <= MAX_SAFE_INTEGER,
        (None, None) => number.as_f64().is_some_and(|number| number.abs() <= LIMIT),
    }
}

fn normalize(value: &mut Value) {
    match value {
        Value::Number(number) => {
            if let Some(double) = number.as_f64()
                && let Some(plain) = es_number(double)
            {
                *number = plain;
            }
        }
        Value::Array(items) => items.iter_mut().for_each(normalize),
        Value::Object(members) => members.values_mut().for_each(normalize),
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
}

/// Returns the double as a JSON number: an integer when it is integral and exact.
fn es_number(double: f64) -> Option<Number> {
    const LIMIT: f64 = MAX_SAFE_INTEGER as f64;
    if double.fract() == 0.0 && double.abs() <= LIMIT {
        #[expect(clippy::cast_possible_truncation, reason = "integral and within 53 bits")]
        return Some(Number::from(double as i64));
    }
    Number::from_f64(double)
}

/// Room that most objects need, so that their members move but once.
const USUAL_MEMBERS: usize = 8;

struct Strict;

impl<'de> DeserializeSeed<'de> for Strict {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<Value, E> {
        if value <= MAX_SAFE_INTEGER {
            return Ok(Value::Number(value.into()));
        }
        #[expect(clippy::cast_precision_loss, reason = "ECMAScript rounds here too")]
        self.visit_f64(value as f64)
    }

    fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<Value, E> {
        if value.unsigned_abs() <= MAX_SAFE_INTEGER {
            return Ok(Value::Number(value.into()));
        }
        #[expect(clippy::cast_precision_loss, reason = "ECMAScript rounds here too")]
        self.visit_f64(value as f64)
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Value, E> {
        es_number(value).map(Value::Number).ok_or_else(|| E::custom("number out of range"))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(Self)? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let mut object = Map::with_capacity(USUAL_MEMBERS);
        while let Some(name) = members.next_key::<String>()? {
            // SECURITY: with two members of one name the signer and the reader may each see another.
            match object.entry(name) {
                Entry::Vacant(slot) => drop(slot.insert(members.next_value_seed(Self)?)),
                Entry::Occupied(slot) => {
                    let name = slot.key();
                    return Err(A::Error::custom(format_args!("duplicate member \"{name}\"")));
                }
            }
        }
        Ok(Value::Object(object))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duplicate_members_and_lone_surrogates_are_refused() {
        for bad in [
            r#"{"a":1,"a":2}"#,
            r#"{"x":[{"a":1,"\u0061":2}]}"#,
            r#""\ud800""#,
            r#""\udc00x""#,
            "\"\u{0}\"",
            "01",
            "[1,]",
            "{} {}",
            "",
            "1e999",
            "\"\u{FEFF}",
        ] {
            assert!(parse(bad.as_bytes()).is_err(), "{bad}");
        }
        assert!(parse(b"\xff").is_err());
        assert!(parse("[".repeat(100_000).as_bytes()).is_err());
    }

    #[test]
    fn equal_numbers_are_equal_values() {
        let parsed = parse(b"[1,1.0,10e-1,-0,-0.0,0]").unwrap();
        assert_eq!(parsed, serde_json::json!([1, 1, 1, 0, 0, 0]));
        assert_eq!(to_value(&2.0_f64).unwrap(), serde_json::json!(2));
    }

    #[test]
    fn numbers_beyond_two_to_the_53_and_nulls_are_not_signed() {
        let check = |text: &str| check_signable(&parse(text.as_bytes()).unwrap());
        assert_eq!(check(r#"{"a":[9007199254740991,-9007199254740991,0.5]}"#), Ok(()));
        for bad in ["9007199254740992", "-9007199254740992", "1e300", "18446744073709551615"] {
            let error = check(&format!(r#"{{"a":{{"b":[{bad}]}}}}"#));
            assert_eq!(error, Err(Unsignable::UnsafeNumber { path: "a.b".into() }), "{bad}");
        }
        assert_eq!(check(r#"{"a":null}"#), Err(Unsignable::Null { path: "a".into() }));
    }
}
