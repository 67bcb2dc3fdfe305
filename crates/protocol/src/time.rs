//! Moments in the one form the wire knows: `YYYY-MM-DDTHH:MM:SS.mmmZ`.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use crate::text::wire_text;

/// A moment in UTC, exact to the millisecond, between the years 1970 and 9999.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Timestamp {
    unix_ms: u64,
}

wire_text!(Timestamp);

/// Why a text or number is not a moment.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("a time here is YYYY-MM-DDTHH:MM:SS.mmmZ, from 1970 to 9999")]
pub struct InvalidTimestamp;

const MS_PER_DAY: u64 = 86_400_000;
const LAST_MS: u64 = 253_402_300_799_999;

impl Timestamp {
    /// The start of 1970.
    pub const EPOCH: Self = Self { unix_ms: 0 };

    /// Returns the moment this many milliseconds after 1970.
    ///
    /// # Errors
    /// [`InvalidTimestamp`] after the year 9999.
    pub const fn from_unix_ms(unix_ms: u64) -> Result<Self, InvalidTimestamp> {
        if unix_ms > LAST_MS { Err(InvalidTimestamp) } else { Ok(Self { unix_ms }) }
    }

    /// Returns the milliseconds since 1970.
    #[must_use]
    pub const fn unix_ms(self) -> u64 {
        self.unix_ms
    }

    /// Returns the moment `ms` later, at the latest the end of the year 9999.
    #[must_use]
    pub const fn plus_ms(self, ms: u64) -> Self {
        let unix_ms = self.unix_ms.saturating_add(ms);
        Self { unix_ms: if unix_ms > LAST_MS { LAST_MS } else { unix_ms } }
    }
}

impl FromStr for Timestamp {
    type Err = InvalidTimestamp;

    fn from_str(text: &str) -> Result<Self, InvalidTimestamp> {
        let &[
            y1,
            y2,
            y3,
            y4,
            b'-',
            m1,
            m2,
            b'-',
            d1,
            d2,
            b'T',
            h1,
            h2,
            b':',
            i1,
            i2,
            b':',
            s1,
            s2,
            b'.',
            f1,
            f2,
            f3,
            b'Z',
        ] = text.as_bytes()
        else {
            return Err(InvalidTimestamp);
        };
        let (year, month, day) =
            (number(&[y1, y2, y3, y4])?, number(&[m1, m2])?, number(&[d1, d2])?);
        let (hour, minute, second) = (number(&[h1, h2])?, number(&[i1, i2])?, number(&[s1, s2])?);
        let millis = number(&[f1, f2, f3])?;
        if year < 1970 || !(1..=12).contains(&month) || hour > 23 || minute > 59 || second > 59 {
            return Err(InvalidTimestamp);
        }
        if day < 1 || day > days_in_month(year, month) {
            return Err(InvalidTimestamp);
        }
        let seconds = (hour * 60 + minute) * 60 + second;
        Ok(Self { unix_ms: days_before(year, month, day) * MS_PER_DAY + seconds * 1000 + millis })
    }
}

fn number(digits: &[u8]) -> Result<u64, InvalidTimestamp> {
    digits.iter().try_fold(0, |sum, digit| {
        if digit.is_ascii_digit() {
            Ok(sum * 10 + u64::from(digit - b'0'))
        } else {
            Err(InvalidTimestamp)
        }
    })
}

const fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

const fn days_in_month(year: u64, month: u64) -> u64 {
    match month {
        2 if is_leap(year) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Days from 1970-01-01 to this date; years are counted from March so that leap days come last.
const fn days_before(year: u64, month: u64, day: u64) -> u64 {
    let year = if month <= 2 { year - 1 } else { year };
    let month = if month <= 2 { month + 9 } else { month - 3 };
    let in_year = (153 * month + 2) / 5 + day - 1;
    year * 365 + year / 4 - year / 100 + year / 400 + in_year - 719_468
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (days, ms) = (self.unix_ms / MS_PER_DAY + 719_468, self.unix_ms % MS_PER_DAY);
        let era = days / 146_097;
        let in_era = days % 146_097;
        let year_of_era = (in_era - in_era / 1460 + in_era / 36_524 - in_era / 146_096) / 365;
        let in_year = in_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let month = (5 * in_year + 2) / 153;
        let day = in_year - (153 * month + 2) / 5 + 1;
        let month = if month < 10 { month + 3 } else { month - 9 };
        let year = year_of_era + era * 400 + u64::from(month <= 2);
        let (seconds, millis) = (ms / 1000, ms % 1000);
        let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<Timestamp> for String {
    fn from(timestamp: Timestamp) -> Self {
        timestamp.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_moments_convert_both_ways() {
        for (text, unix_ms) in [
            ("1970-01-01T00:00:00.000Z", 0),
            ("2000-02-29T23:59:59.999Z", 951_868_799_999),
            ("2026-06-18T19:39:07.000Z", 1_781_811_547_000),
            ("2099-01-01T00:00:00.000Z", 4_070_908_800_000),
            ("9999-12-31T23:59:59.999Z", LAST_MS),
        ] {
            let timestamp: Timestamp = text.parse().unwrap();
            assert_eq!(timestamp.unix_ms(), unix_ms, "{text}");
            assert_eq!(timestamp.to_string(), text);
        }
    }

    #[test]
    fn every_day_of_four_centuries_survives_a_round_trip() {
        for day in 0..146_097 {
            let timestamp = Timestamp::from_unix_ms(day * MS_PER_DAY).unwrap();
            assert_eq!(timestamp.to_string().parse(), Ok(timestamp));
        }
    }

    #[test]
    fn other_spellings_are_refused() {
        for bad in [
            "",
            "soon",
            "2026-06-18T19:39:07Z",
            "2026-06-18T19:39:07.000+00:00",
            "2026-02-29T00:00:00.000Z",
            "2026-13-01T00:00:00.000Z",
            "2026-00-01T00:00:00.000Z",
            "2026-01-00T00:00:00.000Z",
            "2026-01-01T24:00:00.000Z",
            "2026-01-01T00:60:00.000Z",
            "2026-01-01T00:00:60.000Z",
            "2026-01-01t00:00:00.000z",
            "+026-01-01T00:00:00.000Z",
            "1969-12-31T23:59:59.999Z",
            "2026-01-01T00:00:00.00éZ",
        ] {
            assert_eq!(bad.parse::<Timestamp>(), Err(InvalidTimestamp), "{bad}");
        }
    }
}
