//! Captures a folder that is no repository, by an explicit allow list.

use std::path::Path;

use super::untracked::{Sorted, Sorter};
use super::{Bundled, CaptureError, CaptureOptions, Captured, Files, History, assemble};
use crate::bundle::BundleHeader;
use crate::git::ScratchRepo;
use crate::object::ObjectKind;
use crate::root::{Listed, Root};
use crate::walk::{GitNames, child_of, walk};
use crate::{BlobSink, TreeLimits};

/// Captures the files of a folder that an allow pattern matches; the base is an empty commit.
///
/// # Errors
/// [`CaptureError`] when something cannot be read or stored.
pub fn capture_folder(
    path: &Path,
    sink: &dyn BlobSink,
    options: &CaptureOptions<'_>,
) -> Result<Captured, CaptureError> {
    const COMMIT: &str = "author warrant <warrant@localhost> 0 +0000\n\
                          committer warrant <warrant@localhost> 0 +0000\n\nempty base\n";
    let repo = ScratchRepo::create(options.scratch).map_err(CaptureError::Store)?;
    let tree = repo.loose().write(ObjectKind::Tree, b"").map_err(CaptureError::Store)?;
    let commit = format!("tree {}\n{COMMIT}", tree.to_hex());
    let head =
        repo.loose().write(ObjectKind::Commit, commit.as_bytes()).map_err(CaptureError::Store)?;
    let header =
        BundleHeader { prerequisites: Vec::new(), references: vec![("HEAD".into(), head)] };
    let header = header.to_bytes();
    let input = format!("{}\n{}\n", head.to_hex(), tree.to_hex()).into_bytes();
    let bundle = repo
        .git("pack-objects")
        .args(["-q", "--stdout"])
        .stream(input, |pack| sink.put(&mut std::io::Read::chain(header.as_slice(), pack)))?;
    let root = Root::open(path).map_err(CaptureError::Store)?;
    let mut sorter = Sorter::new(&root, sink, options);
    for name in names_of_folder(&root)? {
        sorter.sort(&name)?;
    }
    let (sorted, extra) = sorter.finish()?;
    let dirty = match extra {
        Some(diff) => {
            let mut reader = diff.reader().map_err(CaptureError::Store)?;
            Some(sink.put(&mut reader).map_err(CaptureError::Store)?)
        }
        None => None,
    };
    let bundled = Bundled { bundle, tracked_denied: Vec::new(), submodules: Vec::new() };
    let Sorted { files, denied, warnings } = sorted;
    let files = Files { dirty, untracked: files, denied, warnings };
    assemble(head, &CaptureOptions { history: History::Full, ..*options }, bundled, files)
}

fn names_of_folder(root: &Root) -> Result<Vec<Vec<u8>>, CaptureError> {
    let walked = walk(root, None, &TreeLimits::generous(), GitNames::Leave)?;
    let mut names: Vec<Vec<u8>> = walked
        .folders
        .iter()
        .flat_map(|folder| {
            let name = |file: &Listed| child_of(folder.path.as_ref(), &file.name);
            folder.files.iter().map(move |file| name(file).as_bytes().to_vec())
        })
        .collect();
    names.sort();
    Ok(names)
}
