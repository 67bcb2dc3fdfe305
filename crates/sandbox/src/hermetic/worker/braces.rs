//! Ranges longer than the interpreter expands by itself.
//!
//! The interpreter takes `{1..10001}` for plain text and stops silently at 100 000 words. A longer
//! range is written as several, and what would be cut is refused before the script starts.

use warrant_script::{Dialect, brace_positions};

/// The longest range the interpreter expands.
const LONGEST: u128 = 10_000;

/// The most words it makes of one.
const MOST_WORDS: u128 = 100_000;

/// The most bytes it makes of one word.
const MOST_BYTES: u128 = 10 << 20;

/// Returns a script in which no range is longer than the interpreter expands.
///
/// # Errors
/// The complaint about a range that cannot be written so.
pub(super) fn spell_out_ranges(script: &str) -> Result<String, String> {
    let mut ranges: Vec<(usize, Range)> = script
        .match_indices('{')
        .filter_map(|(at, _)| Some((at, Range::at(script.get(at..)?)?)))
        .collect();
    if !is_long(&ranges) {
        return Ok(script.to_owned());
    }
    let unquoted = brace_positions(script, Dialect::Bash).map_err(|error| {
        let range = ranges.iter().max_by_key(|(_, range)| range.count());
        let shown = range.map(|(_, range)| range.text.clone()).unwrap_or_default();
        format!("{shown}: ranges beyond {LONGEST} are expanded only in a script that is understood completely: {error}")
    })?;
    ranges.retain(|(at, _)| unquoted.contains(at));
    let mut spelled = script.to_owned();
    let mut words: Option<(usize, u128, u128)> = None;
    for (at, range) in ranges.iter().rev() {
        // Ranges that touch multiply.
        let end = at + range.text.len();
        let (count, width) = match words {
            Some((next, count, width)) if next == end => {
                (count * range.count(), width + range.width() as u128)
            }
            _ => (range.count(), range.width() as u128),
        };
        words = Some((*at, count, width));
        if count > MOST_WORDS || count * width > MOST_BYTES {
            return Err(format!(
                "{}: the hermetic tier expands a brace to at most {MOST_WORDS} words and {MOST_BYTES} bytes; use seq, or the namespace tier (`--provider namespace` for exec, `--isolation namespace` for run)",
                range.text
            ));
        }
        if range.count() > LONGEST {
            spelled.replace_range(*at..end, &range.in_parts());
        }
    }
    Ok(spelled)
}

fn is_long(ranges: &[(usize, Range)]) -> bool {
    let all = ranges.iter().fold(1_u128, |all, (_, range)| all.saturating_mul(range.count()));
    all > LONGEST
}

/// `{first..last..step}` of whole numbers.
struct Range {
    text: String,
    first: i64,
    last: i64,
    step: i64,
    /// Digits every number is filled up to.
    filled: usize,
}

impl Range {
    /// Returns the range a text starts with.
    fn at(text: &str) -> Option<Self> {
        let end = text.find('}')?;
        let inner = text.get(1..end)?;
        let parts: Vec<&str> = inner.split("..").collect();
        let (first, last, step) = match parts.as_slice() {
            [first, last] => (*first, *last, "1"),
            [first, last, step] => (*first, *last, *step),
            _ => return None,
        };
        let is_filled = |number: &str| {
            let digits = number.trim_start_matches('-');
            digits.len() > 1 && digits.starts_with('0')
        };
        let filled =
            if is_filled(first) || is_filled(last) { first.len().max(last.len()) } else { 0 };
        Some(Self {
            text: text.get(..=end)?.to_owned(),
            first: first.parse().ok()?,
            last: last.parse().ok()?,
            step: step.parse::<i64>().ok()?,
            filled,
        })
    }

    fn step(&self) -> u128 {
        u128::from(self.step.unsigned_abs().max(1))
    }

    fn count(&self) -> u128 {
        let across = (i128::from(self.last) - i128::from(self.first)).unsigned_abs();
        across / self.step() + 1
    }

    fn width(&self) -> usize {
        self.filled.max(self.first.to_string().len()).max(self.last.to_string().len()) + 1
    }

    /// Returns the same numbers as several shorter ranges.
    fn in_parts(&self) -> String {
        let count = i128::try_from(self.count()).unwrap_or(i128::MAX);
        let step = i128::try_from(self.step()).unwrap_or(i128::MAX);
        let step = if self.last < self.first { -step } else { step };
        let longest = i128::try_from(LONGEST).unwrap_or(i128::MAX);
        let width = self.filled;
        let mut parts = Vec::new();
        let mut done = 0;
        while done < count {
            let here = longest.min(count - done);
            let from = i128::from(self.first) + done * step;
            let to = from + (here - 1) * step;
            parts.push(format!("{{{from:0width$}..{to:0width$}..{}}}", step.unsigned_abs()));
            done += here;
        }
        if let [only] = parts.as_slice() {
            return only.clone();
        }
        format!("{{{}}}", parts.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_range_is_written_as_several() {
        let check = |script: &str, expected: &str| {
            assert_eq!(spell_out_ranges(script).as_deref(), Ok(expected));
        };
        check("echo {1..10}", "echo {1..10}");
        check("echo {1..10001}", "echo {{1..10000..1},{10001..10001..1}}");
        check("echo x{010001..0}y", "echo x{{010001..000002..1},{000001..000000..1}}y");
        check("echo '{1..10001}' \"{1..10001}\"", "echo '{1..10001}' \"{1..10001}\"");
        check("cat <<E\n{1..10001}\nE\n", "cat <<E\n{1..10001}\nE\n");
    }

    #[test]
    fn what_would_be_cut_is_refused() {
        for script in ["echo {1..100001}", "echo {1..400}{1..400}"] {
            let complaint = spell_out_ranges(script).unwrap_err();
            assert!(complaint.contains("at most 100000 words"), "{complaint}");
        }
        assert!(spell_out_ranges("echo {1..10001} )").unwrap_err().contains("understood"));
    }
}
