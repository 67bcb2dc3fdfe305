//! Which paths of the workspace a script may not read or not change, decided by name.
//!
//! Paths here are relative, without links or `..`: the filesystem opens nothing else.

/// What the guard lets a script do with one path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    /// Read and, if the workspace is writable, change.
    Open,
    /// Read only: it belongs to a repository's own files.
    Repository,
    /// Neither: it is a masked secret, or lies inside one.
    Masked,
}

/// The rules of one run.
#[derive(Debug)]
pub(super) struct Guard {
    name_masks: Vec<String>,
    path_masks: Vec<String>,
    repository_granted: bool,
}

/// The three entries that together make a directory a bare repository.
const BARE_REPOSITORY: [&str; 3] = ["head", "objects", "refs"];

impl Guard {
    /// Returns the guard for these masks; a mask with a slash speaks of paths, others of names.
    pub(super) fn new(masks: &[String], repository_granted: bool) -> Self {
        let folded = masks.iter().map(|mask| mask.to_lowercase());
        let (path_masks, name_masks) = folded.partition(|mask| mask.contains('/'));
        let trim = |masks: Vec<String>| {
            masks.into_iter().map(|mask| mask.trim_start_matches('/').to_owned()).collect()
        };
        Self { name_masks, path_masks: trim(path_masks), repository_granted }
    }

    /// Returns whether there is anything to mask.
    pub(super) fn has_masks(&self) -> bool {
        !self.name_masks.is_empty() || !self.path_masks.is_empty()
    }

    /// Returns whether a mask speaks of whole paths, so that moving a directory could dodge it.
    pub(super) fn masks_paths(&self) -> bool {
        !self.path_masks.is_empty()
    }

    /// Returns what may be done with `path`. An ancestor's rule holds for all below it.
    pub(super) fn access(&self, path: &str) -> Access {
        if self.has_masks() && self.is_masked(&path.to_lowercase()) {
            return Access::Masked;
        }
        let is_repository = |name: &str| name.eq_ignore_ascii_case(".git");
        if !self.repository_granted && path.split('/').any(is_repository) {
            return Access::Repository;
        }
        Access::Open
    }

    /// Returns the two names that would make the directory a bare repository if `name` were
    /// added to them, or `None` when adding it cannot.
    pub(super) fn bare_repository_partners(&self, name: &str) -> Option<[&'static str; 2]> {
        if self.repository_granted {
            return None;
        }
        let [head, objects, refs] = BARE_REPOSITORY;
        match name.to_lowercase().as_str() {
            "head" => Some([objects, refs]),
            "objects" => Some([head, refs]),
            "refs" => Some([head, objects]),
            _ => None,
        }
    }

    fn is_masked(&self, path: &str) -> bool {
        let ends = path.match_indices('/').map(|(at, _)| at).chain([path.len()]);
        ends.into_iter().any(|end| {
            let prefix = path.get(..end).unwrap_or(path);
            let name = prefix.rsplit('/').next().unwrap_or(prefix);
            self.name_masks.iter().any(|mask| matches(mask, name))
                || self.path_masks.iter().any(|mask| matches(mask, prefix))
        })
    }
}

/// Returns whether a glob matches a text: `*` and `?` stay within one segment, `**` does not,
/// `[a-z]` and `[!a-z]` match one character.
fn matches(glob: &str, text: &str) -> bool {
    let glob: Vec<char> = glob.chars().collect();
    let text: Vec<char> = text.chars().collect();
    let mut reachable = vec![false; text.len() + 1];
    if let Some(first) = reachable.first_mut() {
        *first = true;
    }
    let mut rest = glob.as_slice();
    // One pass over the text per piece of the glob: no pattern makes this slower than their product.
    while !rest.is_empty() {
        let (piece, after) = split_piece(rest);
        reachable = advance(&piece, &text, &reachable);
        rest = after;
    }
    reachable.last().copied().unwrap_or(false)
}

enum Piece {
    One(char),
    AnyOne,
    Class { negated: bool, ranges: Vec<(char, char)> },
    Segment,
    Everything,
    Directories,
}

fn split_piece(glob: &[char]) -> (Piece, &[char]) {
    match glob {
        ['*', '*', '/', rest @ ..] => (Piece::Directories, rest),
        ['*', '*', rest @ ..] => (Piece::Everything, rest),
        ['*', rest @ ..] => (Piece::Segment, rest),
        ['?', rest @ ..] => (Piece::AnyOne, rest),
        ['\\', escaped, rest @ ..] => (Piece::One(*escaped), rest),
        ['[', rest @ ..] => split_class(rest).unwrap_or((Piece::One('['), rest)),
        [character, rest @ ..] => (Piece::One(*character), rest),
        [] => (Piece::Everything, &[]),
    }
}

fn split_class(glob: &[char]) -> Option<(Piece, &[char])> {
    let (negated, body) = match glob {
        ['!' | '^', rest @ ..] => (true, rest),
        rest => (false, rest),
    };
    let end = body.iter().skip(1).position(|c| *c == ']')? + 1;
    let (members, rest) = body.split_at_checked(end)?;
    let mut ranges = Vec::new();
    let mut members = members;
    loop {
        members = match members {
            [low, '-', high, more @ ..] => {
                ranges.push((*low, *high));
                more
            }
            [one, more @ ..] => {
                ranges.push((*one, *one));
                more
            }
            [] => break,
        };
    }
    Some((Piece::Class { negated, ranges }, rest.get(1..)?))
}

/// Returns where in the text one can stand after matching `piece` from any of `from`.
fn advance(piece: &Piece, text: &[char], from: &[bool]) -> Vec<bool> {
    let mut to = vec![false; from.len()];
    let mut carried = false;
    for (at, slot) in to.iter_mut().enumerate() {
        let here = from.get(at).copied().unwrap_or(false);
        let before = at.checked_sub(1).and_then(|at| text.get(at)).copied();
        let came = at.checked_sub(1).and_then(|at| from.get(at)).copied().unwrap_or(false);
        let steps = |allowed: bool| came && allowed;
        *slot = match (piece, before) {
            (Piece::Segment, before) => {
                carried = here || (carried && before != Some('/'));
                carried
            }
            (Piece::Everything, _) => {
                carried |= here;
                carried
            }
            (Piece::Directories, before) => {
                let arrived = here || (carried && before == Some('/'));
                carried |= here;
                arrived
            }
            (_, None) => false,
            (Piece::One(wanted), Some(before)) => steps(*wanted == before),
            (Piece::AnyOne, Some(before)) => steps(before != '/'),
            (Piece::Class { negated, ranges }, Some(before)) => {
                let inside = ranges.iter().any(|(low, high)| (*low..=*high).contains(&before));
                steps(before != '/' && inside != *negated)
            }
        };
    }
    to
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(masks: &[&str], path: &str, expected: Access) {
        let masks: Vec<String> = masks.iter().map(ToString::to_string).collect();
        assert_eq!(Guard::new(&masks, false).access(path), expected, "{masks:?} on {path}");
    }

    #[test]
    fn masks_hold_at_any_depth_and_in_any_case() {
        check(&[".env"], ".env", Access::Masked);
        check(&[".env"], "a/b/.ENV", Access::Masked);
        check(&[".env*"], "a/.env.local", Access::Masked);
        check(&[".env"], "a/.environment", Access::Open);
        check(&["*.pem"], "deep/er/Key.PEM", Access::Masked);
        check(&["id_[rd]sa"], "x/id_rsa", Access::Masked);
        check(&["id_[!rd]sa"], "x/id_rsa", Access::Open);
        check(&["?ey"], "key", Access::Masked);
        check(&["?ey"], "/ey", Access::Open);
    }

    #[test]
    fn a_mask_with_a_slash_speaks_of_the_path() {
        check(&["config/secret.yml"], "config/secret.yml", Access::Masked);
        check(&["config/secret.yml"], "a/config/secret.yml", Access::Open);
        check(&["/config/*.yml"], "config/a.yml", Access::Masked);
        check(&["config/*.yml"], "config/a/b.yml", Access::Open);
        check(&["config/**"], "config/a/b.yml", Access::Masked);
        check(&["**/secret"], "secret", Access::Masked);
        check(&["**/secret"], "a/b/secret", Access::Masked);
        check(&["a/**/z"], "a/z", Access::Masked);
        check(&["a/**/z"], "a/b/c/z", Access::Masked);
        check(&["a/**/z"], "a/b/cz", Access::Open);
    }

    #[test]
    fn what_lies_inside_a_masked_directory_is_masked() {
        check(&[".ssh"], ".ssh/id", Access::Masked);
        check(&["private/*"], "private/a/b", Access::Masked);
    }

    #[test]
    fn a_repository_is_read_only_in_every_spelling_and_depth() {
        check(&[], ".git/config", Access::Repository);
        check(&[], "a/b/.GIT/hooks/pre-commit", Access::Repository);
        check(&[], ".git", Access::Repository);
        check(&[], ".gitignore", Access::Open);
        assert_eq!(Guard::new(&[], true).access(".git/config"), Access::Open);
    }

    #[test]
    fn a_glob_of_many_stars_stays_quick() {
        let glob = "*a".repeat(40);
        let text = "a".repeat(4000) + "b";
        assert!(!matches(&glob, &text));
    }
}
