//! What an object leads to, and whether it is one that git would accept.

use crate::FileMode;
use crate::object::{ObjectKind, Oid, TreeEntry, parse_tree};

/// What a place that names an object wants there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ExpectedKind {
    Commit,
    Tree,
    Blob,
    /// A tag may lead to anything, and so may a reference outside of `refs/heads/`.
    Anything,
}

impl ExpectedKind {
    pub(super) const fn of(kind: ObjectKind) -> Self {
        match kind {
            ObjectKind::Commit => Self::Commit,
            ObjectKind::Tree => Self::Tree,
            ObjectKind::Blob => Self::Blob,
            ObjectKind::Tag => Self::Anything,
        }
    }

    pub(super) fn accepts(self, kind: ObjectKind) -> bool {
        self == Self::Anything || self == Self::of(kind) && kind != ObjectKind::Tag
    }
}

/// An object that another one names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ObjectLink {
    pub(super) oid: Oid,
    pub(super) expected: ExpectedKind,
    /// Its name in a tree.
    pub(super) name: Vec<u8>,
}

/// Returns what a commit, tree or tag names, or why it is not one.
pub(super) fn links_of(kind: ObjectKind, content: &[u8]) -> Result<Vec<ObjectLink>, String> {
    match kind {
        ObjectKind::Blob => Ok(Vec::new()),
        ObjectKind::Tree => tree_links(content),
        ObjectKind::Commit => commit_links(content).ok_or_else(|| "a commit is malformed".into()),
        ObjectKind::Tag => tag_links(content).ok_or_else(|| "a tag is malformed".into()),
    }
}

fn tree_links(content: &[u8]) -> Result<Vec<ObjectLink>, String> {
    let entries = parse_tree(content).map_err(|error| error.to_string())?;
    let mut links = Vec::with_capacity(entries.len());
    let mut before: Option<Vec<u8>> = None;
    for entry in entries {
        let (key, link) = match entry {
            TreeEntry::Directory { name, oid } => {
                let link = ObjectLink { oid, expected: ExpectedKind::Tree, name: name.clone() };
                ([name.as_slice(), b"/"].concat(), Some(link))
            }
            TreeEntry::File { name, mode: FileMode::Submodule, .. } => (name, None),
            TreeEntry::File { name, oid, .. } => {
                (name.clone(), Some(ObjectLink { oid, expected: ExpectedKind::Blob, name }))
            }
        };
        if before.as_ref().is_some_and(|before| *before >= key) {
            return Err("a tree is not in order".to_owned());
        }
        before = Some(key);
        links.extend(link);
    }
    Ok(links)
}

fn commit_links(content: &[u8]) -> Option<Vec<ObjectLink>> {
    let head = header_of(content)?;
    let mut lines = head.split(|byte| *byte == b'\n');
    let tree = oid_line(lines.next()?, "tree ")?;
    let mut links = vec![ObjectLink { oid: tree, expected: ExpectedKind::Tree, name: Vec::new() }];
    let mut line = lines.next()?;
    while let Some(oid) = oid_line(line, "parent ") {
        links.push(ObjectLink { oid, expected: ExpectedKind::Commit, name: Vec::new() });
        line = lines.next()?;
    }
    let is_author = is_person_line(line, b"author ");
    (is_author && is_person_line(lines.next()?, b"committer ")).then_some(links)
}

fn tag_links(content: &[u8]) -> Option<Vec<ObjectLink>> {
    let mut lines = header_of(content)?.split(|byte| *byte == b'\n');
    let oid = oid_line(lines.next()?, "object ")?;
    let expected = match lines.next()? {
        b"type commit" => ExpectedKind::Commit,
        b"type tree" => ExpectedKind::Tree,
        b"type blob" => ExpectedKind::Blob,
        b"type tag" => ExpectedKind::Anything,
        _ => return None,
    };
    lines.next()?.strip_prefix(b"tag ".as_slice())?;
    Some(vec![ObjectLink { oid, expected, name: Vec::new() }])
}

/// Returns the lines before the message; none of them holds a NUL.
fn header_of(content: &[u8]) -> Option<&[u8]> {
    let end = content.windows(2).position(|pair| pair == b"\n\n").map(|at| at + 1);
    let head = content.get(..end.unwrap_or(content.len()))?;
    (!head.contains(&0)).then_some(head)
}

fn oid_line(line: &[u8], prefix: &str) -> Option<Oid> {
    Oid::from_hex(std::str::from_utf8(line).ok()?.strip_prefix(prefix)?)
}

/// Returns whether a line is `author NAME <EMAIL> SECONDS ZONE`.
pub(super) fn is_person_line(line: &[u8], prefix: &[u8]) -> bool {
    let Some(person) = line.strip_prefix(prefix) else { return false };
    let Some(end) = person.iter().rposition(|byte| *byte == b'>') else { return false };
    let (name, time) = person.split_at(end);
    let is_named = name.iter().filter(|byte| **byte == b'<').count() == 1
        && !name.contains(&b'>')
        && !name.contains(&b'\n');
    let Some(time) = time.strip_prefix(b"> ".as_slice()) else { return false };
    let mut parts = time.split(|byte| *byte == b' ');
    let is_number = |part: &[u8]| !part.is_empty() && part.iter().all(u8::is_ascii_digit);
    let seconds = parts.next().is_some_and(|part| is_number(part) && part.len() < 20);
    let zone = parts.next().is_some_and(|part| match part {
        [b'+' | b'-', digits @ ..] => digits.len() == 4 && is_number(digits),
        _ => false,
    });
    is_named && seconds && zone && parts.next().is_none()
}
