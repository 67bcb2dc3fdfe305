//! Globs of secret files, matched without regard to case.

/// A pattern: without a slash it matches a name, with one the path below the workspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Glob {
    segments: Vec<Vec<char>>,
    is_path: bool,
}

impl Glob {
    /// Returns the pattern; a trailing slash is dropped.
    pub(crate) fn new(pattern: &str) -> Self {
        let lower = pattern.trim_end_matches('/').to_lowercase();
        let is_path = lower.contains('/');
        let text = lower.trim_start_matches('/');
        Self {
            segments: text.split('/').map(|segment| segment.chars().collect()).collect(),
            is_path,
        }
    }

    /// Returns whether it matches a file with this path below the workspace.
    pub(crate) fn matches(&self, path: &str) -> bool {
        let lower = path.to_lowercase();
        let all: Vec<Vec<char>> =
            lower.split('/').map(|segment| segment.chars().collect()).collect();
        let names = if self.is_path {
            all.as_slice()
        } else {
            all.last_chunk::<1>().map_or(&[][..], |last| last)
        };
        matches_segments(&self.segments, names)
    }

    /// Returns the one name it matches, if it has no wildcard and no slash.
    pub(crate) fn literal_name(&self) -> Option<String> {
        match self.segments.as_slice() {
            [name] if !self.is_path && !name.iter().any(|c| "*?[".contains(*c)) => {
                Some(name.iter().collect())
            }
            _ => None,
        }
    }
}

/// Returns whether masks veil a path below the workspace: itself, or a directory that it lies in.
///
/// Names alone are looked at; further names of the same file are found by whoever walks the tree.
#[must_use]
pub fn is_veiled(path: &str, masks: &[String]) -> bool {
    let ends = path.match_indices('/').map(|(at, _)| at).chain([path.len()]);
    let prefixes: Vec<&str> = ends.filter_map(|end| path.get(..end)).collect();
    masks.iter().any(|mask| {
        let glob = Glob::new(mask);
        prefixes.iter().any(|prefix| glob.matches(prefix))
    })
}

fn matches_segments(pattern: &[Vec<char>], names: &[Vec<char>]) -> bool {
    match (pattern.split_first(), names.split_first()) {
        (None, None) => true,
        (Some((first, rest)), _) if *first == ['*', '*'] => (0..=names.len())
            .any(|skip| matches_segments(rest, names.get(skip..).unwrap_or_default())),
        (Some((first, rest)), Some((name, others))) => {
            matches_name(first, name) && matches_segments(rest, others)
        }
        (Some(_), None) | (None, Some(_)) => false,
    }
}

/// Matches one name, going back only to the last star, so the work is bounded by the product.
fn matches_name(pattern: &[char], name: &[char]) -> bool {
    let (mut p, mut n) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        let step = match pattern.get(p) {
            Some('*') => {
                star = Some((p, n));
                p += 1;
                continue;
            }
            Some('?') => Some(1),
            Some('[') => name.get(n).and_then(|c| class(pattern.get(p..).unwrap_or_default(), *c)),
            Some(c) => (name.get(n) == Some(c)).then_some(1),
            None => None,
        };
        match (step, star) {
            (Some(step), _) => {
                p += step;
                n += 1;
            }
            (None, Some((star_p, star_n))) => {
                p = star_p + 1;
                n = star_n + 1;
                star = Some((star_p, star_n + 1));
            }
            (None, None) => return false,
        }
    }
    pattern.get(p..).unwrap_or_default().iter().all(|c| *c == '*')
}

/// Returns how long the class at the start of `pattern` is, if `c` is in it. An unclosed one
/// stands for the bracket itself.
fn class(pattern: &[char], c: char) -> Option<usize> {
    let Some(end) = pattern.iter().skip(2).position(|c| *c == ']').map(|at| at + 2) else {
        return (c == '[').then_some(1);
    };
    let inner = pattern.get(1..end).unwrap_or_default();
    let (negated, inner) = match inner {
        ['!' | '^', rest @ ..] => (true, rest),
        _ => (false, inner),
    };
    let mut found = false;
    let mut rest = inner;
    while let [low, tail @ ..] = rest {
        match tail {
            ['-', high, after @ ..] => {
                found |= (*low..=*high).contains(&c);
                rest = after;
            }
            _ => {
                found |= *low == c;
                rest = tail;
            }
        }
    }
    (found != negated).then_some(end + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(pattern: &str, path: &str, expected: bool) {
        assert_eq!(Glob::new(pattern).matches(path), expected, "{pattern} on {path}");
    }

    #[test]
    fn names_match_at_any_depth_and_in_any_case() {
        check(".env", ".env", true);
        check(".env", "a/b/.ENV", true);
        check(".env", ".envrc", false);
        check(".env.*", "x/.Env.Local", true);
        check("*.pem", "deep/er/key.PEM", true);
        check("id_[re]*", "keys/id_rsa", true);
        check("id_[!re]*", "keys/id_rsa", false);
        check("a?c", "abc", true);
        check("*a*b*", "xxaxxbxx", true);
        check("[", "[", true);
    }

    #[test]
    fn patterns_with_a_slash_match_the_whole_path() {
        check("config/secrets.yml", "config/secrets.yml", true);
        check("config/secrets.yml", "x/config/secrets.yml", false);
        check("**/secrets/**", "a/b/secrets/c/d", true);
        check("config/*.key", "config/a/b.key", false);
        check("/top.key", "top.key", true);
        check("/top.key", "a/top.key", false);
    }

    #[test]
    fn a_path_is_veiled_with_every_directory_above_it() {
        let masks = [".ssh".to_owned(), "/top".to_owned(), "private/".to_owned()];
        for (path, expected) in [
            (".ssh/id", true),
            ("a/.SSH/deep/er", true),
            ("top/x", true),
            ("a/top/x", false),
            ("a/private/x", true),
            ("sshd/x", false),
            ("", false),
        ] {
            assert_eq!(is_veiled(path, &masks), expected, "{path}");
        }
    }

    #[test]
    fn only_plain_names_are_literal() {
        assert_eq!(Glob::new(".Env").literal_name().as_deref(), Some(".env"));
        assert_eq!(Glob::new("*.pem").literal_name(), None);
        assert_eq!(Glob::new("a/b").literal_name(), None);
    }
}
