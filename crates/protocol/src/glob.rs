//! Glob patterns as the reference matches them: a pattern with a slash against the whole path,
//! one without against the file name.
//!
//! `*`, `?`, `[…]`, `{a,b}`, `**`, `!(…)`, `@(…)`, `?(…)`, `*(…)`, `+(…)`; a leading `!` negates,
//! a leading `#` never matches; dots are ordinary; case counts. Matching is bounded: a pattern
//! that needs more steps than [`MAX_STEPS`] counts as matching nothing, and says so.

mod mask;

use thiserror::Error;

pub use self::mask::Masks;

/// How many steps one match may take; patterns arrive from outside.
pub const MAX_STEPS: u32 = 200_000;

/// How deep stars and groups may nest; matching recurses only there.
const MAX_DEPTH: u32 = 128;

/// How many characters a pattern may have; the wire allows 512.
const MAX_PATTERN: usize = 4096;

/// How many alternatives braces may open up.
const MAX_ALTERNATIVES: usize = 1024;

/// A pattern that takes too long or opens up too much.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("glob pattern \"{0}\" is too complex")]
pub struct TooComplex(pub String);

/// Returns whether `pattern` matches `path`.
///
/// # Errors
/// [`TooComplex`] when it cannot be told within bounds; a deny pattern must then be taken to
/// match, an allow pattern not to.
pub fn matches_pattern(path: &str, pattern: &str) -> Result<bool, TooComplex> {
    if pattern.starts_with('#') {
        return Ok(false);
    }
    let subject = if pattern.contains('/') {
        path
    } else {
        path.rsplit_once('/').map_or(path, |(_, name)| name)
    };
    let too_complex = || TooComplex(pattern.to_owned());
    if pattern.len() > MAX_PATTERN {
        return Err(too_complex());
    }
    let (is_negated, pattern) = negation(pattern);
    let mut budget = Budget { steps: MAX_STEPS, depth: 0 };
    let subject: Vec<&str> = subject.split('/').collect();
    for alternative in expand_braces(pattern).ok_or_else(too_complex)? {
        let segments: Vec<&str> = alternative.split('/').collect();
        if match_segments(&segments, &subject, &mut budget).ok_or_else(too_complex)? {
            return Ok(!is_negated);
        }
    }
    Ok(is_negated)
}

/// Strips leading `!`; `!(` opens a group instead.
fn negation(mut pattern: &str) -> (bool, &str) {
    let mut is_negated = false;
    while let Some(rest) = pattern.strip_prefix('!') {
        if rest.starts_with('(') {
            break;
        }
        is_negated = !is_negated;
        pattern = rest;
    }
    (is_negated, pattern)
}

struct Budget {
    steps: u32,
    depth: u32,
}

impl Budget {
    fn spend(&mut self) -> Option<()> {
        self.steps = self.steps.checked_sub(1)?;
        Some(())
    }

    /// Goes one level deeper, if there is room.
    fn deeper(&mut self, inner: impl FnOnce(&mut Self) -> Option<bool>) -> Option<bool> {
        if self.depth == MAX_DEPTH {
            return None;
        }
        self.depth += 1;
        let result = inner(self);
        self.depth -= 1;
        result
    }
}

/// Returns every alternative of `{a,b}` and `{1..3}`; braces that list nothing are literal.
fn expand_braces(pattern: &str) -> Option<Vec<String>> {
    let mut done = Vec::new();
    let mut open = vec![pattern.to_owned()];
    while let Some(next) = open.pop() {
        match first_brace(&next) {
            None => done.push(next),
            Some((before, choices, after)) => {
                if done.len() + open.len() + choices.len() > MAX_ALTERNATIVES {
                    return None;
                }
                open.extend(choices.iter().map(|choice| format!("{before}{choice}{after}")));
            }
        }
        if done.len() > MAX_ALTERNATIVES {
            return None;
        }
    }
    Some(done)
}

/// Finds the first brace group with a comma at its own depth, or a numeric range.
fn first_brace(pattern: &str) -> Option<(&str, Vec<String>, &str)> {
    let mut from = 0;
    while let Some(start) = pattern.get(from..)?.find('{').map(|at| at + from) {
        let inner_start = start + 1;
        if let Some((inner_end, commas)) = brace_end(pattern, inner_start) {
            let before = pattern.get(..start)?;
            let inner = pattern.get(inner_start..inner_end)?;
            let after = pattern.get(inner_end + 1..)?;
            if !commas.is_empty() {
                return Some((before, split_at(inner, &commas, inner_start), after));
            }
            if let Some(range) = numeric_range(inner) {
                return Some((before, range, after));
            }
        }
        from = inner_start;
    }
    None
}

fn brace_end(pattern: &str, from: usize) -> Option<(usize, Vec<usize>)> {
    let mut depth = 0_u32;
    let mut commas = Vec::new();
    let mut is_escaped = false;
    for (at, c) in pattern.get(from..)?.char_indices() {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '{' => depth += 1,
            '}' if depth == 0 => return Some((from + at, commas)),
            '}' => depth -= 1,
            ',' if depth == 0 => commas.push(from + at),
            _ => {}
        }
    }
    None
}

fn split_at(inner: &str, commas: &[usize], offset: usize) -> Vec<String> {
    let mut parts = Vec::new();
    let mut start = 0;
    for comma in commas {
        let end = comma - offset;
        parts.extend(inner.get(start..end).map(str::to_owned));
        start = end + 1;
    }
    parts.extend(inner.get(start..).map(str::to_owned));
    parts
}

fn numeric_range(inner: &str) -> Option<Vec<String>> {
    let (low, high) = inner.split_once("..")?;
    let (low, high): (i32, i32) = (low.parse().ok()?, high.parse().ok()?);
    if low.abs_diff(high) as usize > MAX_ALTERNATIVES {
        return None;
    }
    let numbers: Vec<i32> =
        if low <= high { (low..=high).collect() } else { (high..=low).rev().collect() };
    Some(numbers.iter().map(ToString::to_string).collect())
}

/// Matches path segments; `**` takes any number of them, but never `.` or `..`.
fn match_segments(mut pattern: &[&str], mut path: &[&str], budget: &mut Budget) -> Option<bool> {
    while let Some((first, rest)) = pattern.split_first() {
        budget.spend()?;
        if *first == "**" {
            return match_globstar(rest, path, budget);
        }
        let Some((segment, tail)) = path.split_first() else { return Some(false) };
        let wanted: Vec<char> = first.chars().collect();
        let given: Vec<char> = segment.chars().collect();
        let is_wild = wanted.iter().any(|c| matches!(c, '*' | '?' | '['));
        // Wildcards never stand for an empty segment, nor for `.` and `..`.
        let is_special = matches!(*segment, "" | "." | "..");
        if (is_wild && is_special) || !match_chars(&wanted, &given, budget)? {
            return Some(false);
        }
        (pattern, path) = (rest, tail);
    }
    // A trailing slash of the path names the directory itself.
    Some(path.is_empty() || path == [""])
}

fn match_globstar(rest: &[&str], path: &[&str], budget: &mut Budget) -> Option<bool> {
    for skip in 0..=path.len() {
        let (skipped, tail) = path.split_at_checked(skip)?;
        if skipped.iter().any(|segment| *segment == "." || *segment == "..") {
            break;
        }
        // The last `**` needs at least one segment to stand for.
        let is_enough = !rest.is_empty() || skip > 0;
        if is_enough && budget.deeper(|budget| match_segments(rest, tail, budget))? {
            return Some(true);
        }
    }
    Some(false)
}

fn match_chars(mut pattern: &[char], mut text: &[char], budget: &mut Budget) -> Option<bool> {
    while let Some((first, rest)) = pattern.split_first() {
        budget.spend()?;
        if let (kind @ ('!' | '@' | '?' | '*' | '+'), Some('(')) = (*first, rest.first())
            && let Some((choices, after)) = group(rest.get(1..)?)
        {
            let group = Group { kind, choices: &choices, after };
            return budget.deeper(|budget| match_group(&group, text, budget));
        }
        if *first == '*' {
            return match_star(rest, text, budget);
        }
        let (is_match, after) = match (first, text.first()) {
            (_, None) => return Some(false),
            ('?', Some(_)) => (true, rest),
            ('[', Some(c)) => match class(rest) {
                Some((class, after)) => (class.contains(*c), after),
                None => (*c == '[', rest),
            },
            ('\\', Some(c)) => match rest.split_first() {
                Some((escaped, after)) => (c == escaped, after),
                None => (*c == '\\', rest),
            },
            (wanted, Some(c)) => (wanted == c, rest),
        };
        if !is_match {
            return Some(false);
        }
        (pattern, text) = (after, text.get(1..)?);
    }
    Some(text.is_empty())
}

fn match_star(rest: &[char], text: &[char], budget: &mut Budget) -> Option<bool> {
    for skip in 0..=text.len() {
        let tail = text.get(skip..)?;
        if budget.deeper(|budget| match_chars(rest, tail, budget))? {
            return Some(true);
        }
    }
    Some(false)
}

struct Group<'a> {
    kind: char,
    choices: &'a [&'a [char]],
    after: &'a [char],
}

/// Reads the choices of a group whose parenthesis is already open.
fn group(pattern: &[char]) -> Option<(Vec<&[char]>, &[char])> {
    let mut depth = 0_u32;
    let mut start = 0;
    let mut choices = Vec::new();
    for (at, c) in pattern.iter().enumerate() {
        match c {
            '(' => depth += 1,
            ')' if depth == 0 => {
                choices.push(pattern.get(start..at)?);
                return Some((choices, pattern.get(at + 1..)?));
            }
            ')' => depth -= 1,
            '|' if depth == 0 => {
                choices.push(pattern.get(start..at)?);
                start = at + 1;
            }
            _ => {}
        }
    }
    None
}

fn match_group(group: &Group<'_>, text: &[char], budget: &mut Budget) -> Option<bool> {
    budget.spend()?;
    if matches!(group.kind, '?' | '*') && match_chars(group.after, text, budget)? {
        return Some(true);
    }
    for taken in 0..=text.len() {
        let (head, tail) = text.split_at_checked(taken)?;
        let mut is_one = false;
        for choice in group.choices {
            is_one = is_one || match_chars(choice, head, budget)?;
        }
        let goes_on = match group.kind {
            '!' => !is_one && match_chars(group.after, tail, budget)?,
            '@' | '?' => is_one && match_chars(group.after, tail, budget)?,
            _ if !is_one => false,
            _ if match_chars(group.after, tail, budget)? => true,
            _ => taken > 0 && budget.deeper(|budget| match_group(group, tail, budget))?,
        };
        if goes_on {
            return Some(true);
        }
    }
    Some(false)
}

struct Class {
    is_negated: bool,
    ranges: Vec<(char, char)>,
}

impl Class {
    fn contains(&self, c: char) -> bool {
        self.ranges.iter().any(|(low, high)| (*low..=*high).contains(&c)) != self.is_negated
    }
}

/// Reads a character class whose bracket is already open.
fn class(pattern: &[char]) -> Option<(Class, &[char])> {
    let (is_negated, mut rest) = match pattern.split_first() {
        Some(('!' | '^', rest)) => (true, rest),
        _ => (false, pattern),
    };
    let mut ranges = Vec::new();
    while let Some((c, after)) = rest.split_first() {
        if *c == ']' && !ranges.is_empty() {
            return Some((Class { is_negated, ranges }, after));
        }
        let (low, after) = match (c, after.split_first()) {
            ('\\', Some((escaped, after))) => (*escaped, after),
            _ => (*c, after),
        };
        rest = match after {
            ['-', high, after @ ..] if *high != ']' => {
                ranges.push((low, *high));
                after
            }
            _ => {
                ranges.push((low, low));
                after
            }
        };
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(path: &str, pattern: &str, expected: bool) {
        assert_eq!(matches_pattern(path, pattern), Ok(expected), "{pattern} on {path}");
    }

    #[test]
    fn patterns_match_as_people_expect() {
        check("a/b/c", "a/**/c", true);
        check("a/c", "a/**/c", true);
        check("a", "a/**", false);
        check("src/x.rs", "src/*.{rs,toml}", true);
        check("src/x.md", "src/*.{rs,toml}", false);
        check("file3", "file{1..3}", true);
        check("file4", "file{1..3}", false);
        check("ab", "+(a|b)", true);
        check("abc", "+(a|b)", false);
        check("b", "*(a)b", true);
        check("x.js", "!(*.js)", false);
        check("]", "[]]", true);
        check("b", "[!a]", true);
        check("*", "\\*", true);
        check("x", "\\*", false);
        check("{a}", "{a}", true);
    }

    #[test]
    fn a_hostile_pattern_ends_in_bounded_time() {
        let path = "a".repeat(200);
        let pattern = format!("{}b", "*a".repeat(60));
        assert!(matches_pattern(&path, &pattern).is_err());
        assert!(matches_pattern("x", &"{a,b}".repeat(30)).is_err());
        let nested = format!("{}x{}", "+(".repeat(40), ")".repeat(40));
        let _ = matches_pattern(&"x".repeat(100), &nested);
        assert!(matches_pattern("x", &"x".repeat(100_000)).is_err());
        let long = "x".repeat(4096);
        assert_eq!(matches_pattern(&long, &long), Ok(true));
        let deep = "a/".repeat(2000);
        assert_eq!(matches_pattern(&deep, &format!("{deep}*")), Ok(false));
    }
}
