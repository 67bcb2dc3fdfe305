//! Tar archives, as much as a workspace needs: files, directories, links, long names.
//!
//! What is read came from somebody else's machine: every size, name and count is bounded, and
//! what is not understood is an error.

use thiserror::Error;

/// One entry of a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Below the root, without `.`, `..` and empty segments.
    pub(crate) path: Vec<u8>,
    pub(crate) node: Node,
}

/// What lies at a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Node {
    /// A directory with its permissions.
    Directory { mode: u32 },
    /// A file with its permissions and content.
    File { mode: u32, content: Vec<u8> },
    /// A link and where it points.
    Link { target: Vec<u8> },
}

/// Why an archive was not read.
#[derive(Debug, Error, PartialEq, Eq)]
pub(crate) enum InvalidArchive {
    /// It ends in the middle of something.
    #[error("the archive is cut off")]
    Truncated,
    /// A header is damaged.
    #[error("a header of the archive is damaged")]
    Header,
    /// A path leaves the tree, or is no path.
    #[error("a path in the archive leaves the workspace")]
    Path,
    /// More than a workspace may have.
    #[error("the archive holds more than {0} entries")]
    Entries(usize),
    /// A link to something that is not there.
    #[error("a hard link in the archive points to nothing")]
    HardLink,
}

const BLOCK: usize = 512;
const MOST_ENTRIES: usize = 500_000;
const MOST_PATH_BYTES: usize = 4096;

/// Returns the archive of these entries, parents before children.
pub(crate) fn write(entries: &[Entry]) -> Vec<u8> {
    let mut out = Vec::new();
    for Entry { path, node } in entries {
        let (kind, mode, content, target): (u8, u32, &[u8], &[u8]) = match node {
            Node::Directory { mode } => (b'5', *mode, b"", b""),
            Node::File { mode, content } => (b'0', *mode, content, b""),
            Node::Link { target } => (b'2', 0o777, b"", target),
        };
        if target.len() > 100 {
            long(&mut out, b'K', target);
        }
        if path.len() > 100 {
            long(&mut out, b'L', path);
        }
        header(&mut out, (path, target), (kind, mode), content.len());
        padded(&mut out, content);
    }
    out.extend_from_slice(&[0; BLOCK * 2]);
    out
}

fn long(out: &mut Vec<u8>, kind: u8, name: &[u8]) {
    let mut content = name.to_vec();
    content.push(0);
    header(out, (b"././@LongLink", b""), (kind, 0o644), content.len());
    padded(out, &content);
}

fn padded(out: &mut Vec<u8>, content: &[u8]) {
    out.extend_from_slice(content);
    let rest = content.len() % BLOCK;
    if rest > 0 {
        out.resize(out.len() + BLOCK - rest, 0);
    }
}

fn header(out: &mut Vec<u8>, (path, target): (&[u8], &[u8]), (kind, mode): (u8, u32), size: usize) {
    let fixed = |text: &[u8], width: usize| {
        let mut field = text.get(..width.min(text.len())).unwrap_or_default().to_vec();
        field.resize(width, 0);
        field
    };
    let size_field = if size >= 1 << 33 {
        let mut field = vec![0x80, 0, 0, 0];
        field.extend_from_slice(&(size as u64).to_be_bytes());
        field
    } else {
        format!("{size:011o}\0").into_bytes()
    };
    let before = [
        fixed(path, 100),
        format!("{:07o}\0", mode & 0o7777).into_bytes(),
        b"0000000\0".to_vec(),
        b"0000000\0".to_vec(),
        size_field,
        b"00000000000\0".to_vec(),
    ]
    .concat();
    let after = [vec![kind], fixed(target, 100), b"ustar  \0".to_vec(), vec![0; 247]].concat();
    let sum: u32 = before.iter().chain(&after).map(|byte| u32::from(*byte)).sum::<u32>() + 8 * 32;
    let start = out.len();
    out.extend(before);
    out.extend_from_slice(format!("{sum:06o}\0 ").as_bytes());
    out.extend(after);
    out.resize(start + BLOCK, 0);
}

/// Returns the entries of an archive, sorted by path, without its root. Devices, pipes and
/// sockets are left out.
pub(crate) fn read(bytes: &[u8]) -> Result<Vec<Entry>, InvalidArchive> {
    let mut rest = bytes;
    let mut entries: std::collections::BTreeMap<Vec<u8>, Node> = std::collections::BTreeMap::new();
    let (mut long_path, mut long_target) = (None, None);
    loop {
        let (block, after) = rest.split_at_checked(BLOCK).ok_or(InvalidArchive::Truncated)?;
        rest = after;
        if block.iter().all(|byte| *byte == 0) {
            break;
        }
        let head = Head::read(block)?;
        let size = usize::try_from(head.size).map_err(|_| InvalidArchive::Truncated)?;
        let content = rest.get(..size).ok_or(InvalidArchive::Truncated)?;
        let full = size.div_ceil(BLOCK).saturating_mul(BLOCK);
        rest = rest.get(full.min(rest.len())..).unwrap_or_default();
        match head.kind {
            b'L' => long_path = Some(until_nul(content).to_vec()),
            b'K' => long_target = Some(until_nul(content).to_vec()),
            b'x' => {
                let (path, target) = extended(content);
                long_path = path.or(long_path);
                long_target = target.or(long_target);
            }
            b'g' => {}
            _ => {
                let path = long_path.take().unwrap_or(head.path);
                let target = long_target.take().unwrap_or(head.target);
                let Some(path) = normal(&path)? else { continue };
                let node = match head.kind {
                    b'0' | 0 | b'7' => Node::File { mode: head.mode, content: content.to_vec() },
                    b'5' => Node::Directory { mode: head.mode },
                    b'2' => Node::Link { target },
                    b'1' => linked(&entries, &target)?,
                    _ => continue,
                };
                entries.insert(path, node);
            }
        }
        if entries.len() > MOST_ENTRIES {
            return Err(InvalidArchive::Entries(MOST_ENTRIES));
        }
    }
    check_parents(&entries)?;
    Ok(entries.into_iter().map(|(path, node)| Entry { path, node }).collect())
}

/// SECURITY: nothing lies below a file or a link, so that writing never follows one.
fn check_parents(
    entries: &std::collections::BTreeMap<Vec<u8>, Node>,
) -> Result<(), InvalidArchive> {
    for path in entries.keys() {
        for (at, byte) in path.iter().enumerate() {
            let parent = path.get(..at).unwrap_or_default();
            let is_directory =
                || entries.get(parent).is_none_or(|node| matches!(node, Node::Directory { .. }));
            if *byte == b'/' && !is_directory() {
                return Err(InvalidArchive::Path);
            }
        }
    }
    Ok(())
}

fn linked(
    entries: &std::collections::BTreeMap<Vec<u8>, Node>,
    target: &[u8],
) -> Result<Node, InvalidArchive> {
    let target = normal(target)?.ok_or(InvalidArchive::HardLink)?;
    match entries.get(&target) {
        Some(node @ (Node::File { .. } | Node::Link { .. })) => Ok(node.clone()),
        Some(Node::Directory { .. }) | None => Err(InvalidArchive::HardLink),
    }
}

struct Head {
    path: Vec<u8>,
    target: Vec<u8>,
    mode: u32,
    size: u64,
    kind: u8,
}

impl Head {
    fn read(block: &[u8]) -> Result<Self, InvalidArchive> {
        let field = |from: usize, to: usize| block.get(from..to).unwrap_or_default();
        let sum = number(field(148, 156))?;
        let counted: u64 = block
            .iter()
            .enumerate()
            .map(|(at, byte)| if (148..156).contains(&at) { 32 } else { u64::from(*byte) })
            .sum();
        if sum != counted {
            return Err(InvalidArchive::Header);
        }
        let mut path = until_nul(field(0, 100)).to_vec();
        // Only the POSIX form has a prefix; the GNU form keeps other things there.
        let prefix = until_nul(field(345, 500));
        if field(257, 263) == b"ustar\0" && !prefix.is_empty() {
            path = [prefix, b"/", &path].concat();
        }
        Ok(Self {
            path,
            target: until_nul(field(157, 257)).to_vec(),
            mode: u32::try_from(number(field(100, 108))? & 0o7777).unwrap_or(0),
            size: number(field(124, 136))?,
            kind: block.get(156).copied().unwrap_or(0),
        })
    }
}

fn number(field: &[u8]) -> Result<u64, InvalidArchive> {
    if let Some((first, rest)) = field.split_first()
        && first & 0x80 != 0
    {
        let start = u64::from(first & 0x7f);
        return rest
            .iter()
            .try_fold(start, |sum, byte| sum.checked_mul(256)?.checked_add(u64::from(*byte)))
            .ok_or(InvalidArchive::Header);
    }
    let text = std::str::from_utf8(until_nul(field)).map_err(|_| InvalidArchive::Header)?.trim();
    if text.is_empty() {
        return Ok(0);
    }
    u64::from_str_radix(text, 8).map_err(|_| InvalidArchive::Header)
}

fn until_nul(field: &[u8]) -> &[u8] {
    let end = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
    field.get(..end).unwrap_or_default()
}

/// Returns path and link of an extended header.
fn extended(content: &[u8]) -> (Option<Vec<u8>>, Option<Vec<u8>>) {
    let (mut path, mut target) = (None, None);
    let mut rest = content;
    while let Some(space) = rest.iter().position(|byte| *byte == b' ') {
        let length = std::str::from_utf8(rest.get(..space).unwrap_or_default())
            .ok()
            .and_then(|text| text.parse::<usize>().ok());
        let Some(record) = length.and_then(|length| rest.get(space + 1..length)) else { break };
        let record = record.strip_suffix(b"\n").unwrap_or(record);
        if let Some(value) = record.strip_prefix(b"path=") {
            path = Some(value.to_vec());
        } else if let Some(value) = record.strip_prefix(b"linkpath=") {
            target = Some(value.to_vec());
        }
        rest = rest.get(length.unwrap_or(rest.len())..).unwrap_or_default();
    }
    (path, target)
}

/// Returns a path below the root, or nothing for the root itself.
fn normal(path: &[u8]) -> Result<Option<Vec<u8>>, InvalidArchive> {
    let is_bad = path.starts_with(b"/")
        || path.contains(&0)
        || path.len() > MOST_PATH_BYTES
        || path.split(|byte| *byte == b'/').any(|segment| segment == b".." || segment.len() > 255);
    if is_bad {
        return Err(InvalidArchive::Path);
    }
    let segments = path.split(|byte| *byte == b'/');
    let segments: Vec<&[u8]> =
        segments.filter(|segment| !segment.is_empty() && *segment != b".").collect();
    Ok((!segments.is_empty()).then(|| segments.join(&b'/')))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> Vec<Entry> {
        let long = format!("{}/{}", "d".repeat(120), "f".repeat(140)).into_bytes();
        let entry = |path: &[u8], node| Entry { path: path.to_vec(), node };
        vec![
            entry(b"a", Node::Directory { mode: 0o750 }),
            entry(b"a/run.sh", Node::File { mode: 0o755, content: vec![7; 1300] }),
            entry(b"a/link", Node::Link { target: b"../x/".repeat(40) }),
            entry(&long, Node::File { mode: 0o640, content: b"deep".to_vec() }),
            entry(b"empty", Node::File { mode: 0, content: Vec::new() }),
        ]
    }

    #[test]
    fn what_is_written_is_read_and_tar_agrees() {
        let mut wanted = tree();
        wanted.sort_by(|a, b| a.path.cmp(&b.path));
        let bytes = write(&tree());
        assert_eq!(read(&bytes).unwrap(), wanted);
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.tar");
        std::fs::write(&file, &bytes).unwrap();
        let out = folder.path().join("out");
        std::fs::create_dir(&out).unwrap();
        let run = |args: &[&str]| {
            let mut tar = std::process::Command::new("tar");
            assert!(tar.current_dir(&out).args(args).status().unwrap().success());
        };
        run(&["-xpf", "../a.tar"]);
        for format in ["gnu", "posix"] {
            run(&["--format", format, "-cf", "../b.tar", "."]);
            let back = read(&std::fs::read(folder.path().join("b.tar")).unwrap()).unwrap();
            // A directory that was only implied now exists by itself.
            let back: Vec<_> = back
                .into_iter()
                .filter(|entry| entry.path != "d".repeat(120).into_bytes())
                .collect();
            assert_eq!(back, wanted, "{format}");
        }
    }

    #[test]
    fn a_path_cannot_leave_the_workspace() {
        for path in ["../x", "/etc/passwd", "a/../../x"] {
            let node = Node::File { mode: 0o644, content: Vec::new() };
            let bytes = write(&[Entry { path: path.into(), node }]);
            assert_eq!(read(&bytes), Err(InvalidArchive::Path), "{path}");
        }
    }

    #[test]
    fn nothing_lies_below_a_link() {
        let link = Node::Link { target: b"/etc".to_vec() };
        let file = Node::File { mode: 0o644, content: Vec::new() };
        let bytes = write(&[
            Entry { path: b"a".to_vec(), node: link },
            Entry { path: b"a/passwd".to_vec(), node: file },
        ]);
        assert_eq!(read(&bytes), Err(InvalidArchive::Path));
    }

    #[test]
    fn a_cut_or_damaged_archive_is_refused() {
        let bytes = write(&tree());
        assert_eq!(read(&bytes[..700]), Err(InvalidArchive::Truncated));
        assert_eq!(read(&[]), Err(InvalidArchive::Truncated));
        let mut damaged = bytes;
        damaged[3] ^= 1;
        assert_eq!(read(&damaged), Err(InvalidArchive::Header));
    }
}
