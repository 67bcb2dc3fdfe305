//! Masks: the files that policy hides, read in one way by every tier, file call and hook.
//!
//! Case does not count. Without a slash a mask speaks of a name at any depth, with one of the path
//! below the workspace; a slash at its end changes nothing, and what ends in `/**` means the
//! directory with all that is in it. Every alternative of braces is read for itself. A `!` or `#`
//! at the start is an ordinary letter, because no mask takes another one back. What cannot be told
//! within bounds is masked.

use super::{Budget, MAX_PATTERN, MAX_STEPS, expand_braces, match_segments};

/// What policy hides in a workspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Masks {
    masks: Vec<Mask>,
    /// Whether one of them opens up too much to be read.
    is_too_complex: bool,
}

/// One alternative of a pattern, in lower case.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Mask {
    segments: Vec<String>,
    is_path: bool,
    /// What every matching name starts and ends with, where only stars lie between.
    ends: Option<(String, String)>,
}

impl Masks {
    /// Reads patterns; none of them is refused.
    #[must_use]
    pub fn new<T: AsRef<str>>(patterns: &[T]) -> Self {
        let mut all = Self { masks: Vec::new(), is_too_complex: false };
        for pattern in patterns {
            let pattern = pattern.as_ref();
            let choices = match pattern.len() {
                0..=MAX_PATTERN => expand_braces(&pattern.to_lowercase().replace("\\/", "/")),
                _ => None,
            };
            match choices {
                Some(choices) => all.masks.extend(choices.iter().filter_map(|it| Mask::new(it))),
                None => all.is_too_complex = true,
            }
        }
        all
    }

    /// Returns whether nothing is hidden.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.masks.is_empty() && !self.is_too_complex
    }

    /// Returns whether a mask speaks of whole paths, so that moving a directory could dodge it.
    #[must_use]
    pub fn speak_of_paths(&self) -> bool {
        self.is_too_complex || self.masks.iter().any(|mask| mask.is_path)
    }

    /// Returns whether a path below the workspace is masked by itself. What lies in a masked
    /// directory is masked too; see [`Masks::veil`].
    #[must_use]
    pub fn match_path(&self, path: &str) -> bool {
        !path.is_empty() && self.match_lower(&path.to_lowercase())
    }

    /// Returns whether a path below the workspace is masked, or a directory that it lies in.
    ///
    /// Names alone are looked at; other names of the same file are found by whoever walks the tree.
    #[must_use]
    pub fn veil(&self, path: &str) -> bool {
        if path.is_empty() {
            return false;
        }
        let path = path.to_lowercase();
        let mut ends = path.match_indices('/').map(|(at, _)| at).chain([path.len()]);
        ends.any(|end| path.get(..end).is_some_and(|prefix| self.match_lower(prefix)))
    }

    /// Returns the names that are masked wherever they appear, of masks without wildcards.
    pub fn literal_names(&self) -> impl Iterator<Item = &str> {
        self.masks.iter().filter_map(|mask| match mask.segments.as_slice() {
            [name] if !mask.is_path && !name.contains(['*', '?', '[', '\\', '(']) => {
                Some(name.as_str())
            }
            _ => None,
        })
    }

    fn match_lower(&self, path: &str) -> bool {
        if self.is_too_complex {
            return true;
        }
        let name = path.rsplit_once('/').map_or(path, |(_, name)| name);
        self.masks.iter().any(|mask| mask.matches(if mask.is_path { path } else { name }))
    }
}

impl Mask {
    /// Reads one alternative; one without letters names nothing.
    fn new(text: &str) -> Option<Self> {
        let text = text.trim_end_matches('/');
        let is_path = text.contains('/');
        let named = text.split('/').filter(|segment| !matches!(*segment, "" | "."));
        let mut segments: Vec<String> = named.map(str::to_owned).collect();
        while segments.len() > 1 && segments.last().is_some_and(|last| last == "**") {
            segments.pop();
        }
        let ends = match segments.as_slice() {
            [] => return None,
            [name] if !name.contains(['?', '[', '\\', '(']) => {
                let start = name.split('*').next().unwrap_or_default();
                let end = name.rsplit('*').next().unwrap_or_default();
                Some((start.to_owned(), end.to_owned()))
            }
            _ => None,
        };
        Some(Self { segments, is_path, ends })
    }

    fn matches(&self, subject: &str) -> bool {
        // Most of the answers, at no cost; a walk asks about every file of a workspace.
        if let Some((start, end)) = &self.ends
            && !self.is_path
            && !(subject.starts_with(start.as_str()) && subject.ends_with(end.as_str()))
        {
            return false;
        }
        let pattern: Vec<&str> = self.segments.iter().map(String::as_str).collect();
        let path: Vec<&str> = subject.split('/').collect();
        let mut budget = Budget { steps: MAX_STEPS, depth: 0 };
        match_segments(&pattern, &path, &mut budget).unwrap_or(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(pattern: &str, masked: &[&str], open: &[&str]) {
        let masks = Masks::new(&[pattern]);
        for path in masked {
            assert!(masks.veil(path), "{pattern} masks {path}");
        }
        for path in open {
            assert!(!masks.veil(path), "{pattern} does not mask {path}");
        }
    }

    #[test]
    fn a_name_is_masked_at_any_depth_in_any_case_with_all_that_is_in_it() {
        check(".env", &[".env", "a/b/.ENV", ".env/x"], &[".envrc", "a.env", ""]);
        check(".Env.*", &["x/.env.Local"], &[".env"]);
        check("*.pem", &["deep/er/key.PEM", ".pem"], &["pem", "x.pem.txt"]);
        check("a?c", &["abc"], &["ac", "a/c"]);
        check("*a*b*", &["xxaxxbxx"], &["ba"]);
        check("**", &["a", "a/b"], &[""]);
    }

    #[test]
    fn a_slash_makes_it_a_path_unless_it_is_the_last_letter() {
        check("config/secrets.yml", &["config/secrets.yml"], &["x/config/secrets.yml"]);
        check("config/*.key", &["config/a.KEY"], &["config/a/b.key"]);
        check("/top.key", &["top.key"], &["a/top.key"]);
        check("./top.key", &["top.key"], &["a/top.key"]);
        check("private/", &["private", "a/private/x"], &["privates"]);
        check("a//b/", &["a/b/c"], &["x/a/b"]);
        check("a\\/b", &["a/b"], &[]);
        check("secrets/**", &["secrets", "secrets/a/b"], &["a/secrets"]);
        check("**/secrets/**", &["secrets/a", "a/b/secrets/c/d"], &["a"]);
        check("a/**/z", &["a/z", "a/b/c/z"], &["a/b/cz"]);
    }

    #[test]
    fn braces_classes_and_groups_are_read() {
        check("*.{pem,key}", &["a.pem", "b/c.KEY"], &["a.txt", "*.{pem,key}"]);
        check("{.env,conf/{a,b}.yml,d/}", &["x/.env", "conf/B.yml", "x/d/y"], &["x/conf/a.yml"]);
        check("key{1..3}", &["key2"], &["key4"]);
        check("{a}", &["{a}"], &["a"]);
        check("id_[rd]sa", &["x/id_RSA"], &["id_xsa"]);
        check("id_[!R]sa", &["id_dsa"], &["id_rsa"]);
        check("[A-C]x", &["bx", "BX"], &["dx"]);
        check("[]]", &["]"], &["["]);
        check("[", &["["], &["]"]);
        check("@(a|b).key", &["a.key"], &["c.key"]);
        check("\\*", &["*"], &["x"]);
    }

    #[test]
    fn no_mask_takes_another_one_back_or_is_passed_over() {
        check("!.env", &["!.env"], &[".env", "x"]);
        check("#notes#", &["#notes#"], &["notes"]);
        check("", &[], &["a"]);
        check("/", &[], &["a"]);
        check(&"{a,b}".repeat(30), &["x", "a/b"], &[""]);
        check(&"x".repeat(5000), &["x"], &[""]);
        let slow = format!("{}b", "*[a]".repeat(60));
        check(&slow, &[&"a".repeat(200)], &["c"]);
        let quick = format!("{}b", "*a".repeat(60));
        check(&quick, &[], &[&"a".repeat(200)]);
    }

    #[test]
    fn only_plain_names_are_literal() {
        let masks = Masks::new(&["{.Env,.npmrc}", "*.pem", "a/b", "x?", "private/"]);
        let mut names: Vec<&str> = masks.literal_names().collect();
        names.sort_unstable();
        assert_eq!(names, [".env", ".npmrc", "private"]);
        assert!(masks.speak_of_paths() && !Masks::new(&[".env"]).speak_of_paths());
        assert!(Masks::new::<&str>(&[]).is_empty() && !masks.is_empty());
    }
}
