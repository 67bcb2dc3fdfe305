//! Packs one commit without its past and without the files that stay at home.

use std::collections::HashSet;
use std::io::Read;

use super::tracked::Listing;
use super::{CaptureError, Job};
use crate::bundle::BundleHeader;
use crate::object::{Oid, parse_commit};
use crate::{FileMode, GitError, StoredBlob, TreePath};

/// Stores a bundle of the one commit; its parents are named as what the receiver would need.
pub(super) fn commit_bundle(
    job: &Job<'_>,
    listing: &Listing,
    denied: &[TreePath],
) -> Result<StoredBlob, CaptureError> {
    let Job { repo, sink, .. } = job;
    let head = job.repository.head;
    let commit = repo.git("cat-file").args(["commit", &head.to_hex()]).output()?;
    let (tree, prerequisites) =
        parse_commit(&commit).ok_or(GitError::Answer { command: "cat-file" })?;
    let header = BundleHeader { prerequisites, references: vec![("HEAD".into(), head)] }.to_bytes();
    let denied: HashSet<&TreePath> = denied.iter().collect();
    let travelling: HashSet<Oid> = listing
        .0
        .iter()
        .filter(|listed| listed.mode != Some(FileMode::Submodule) && !denied.contains(&listed.path))
        .map(|listed| listed.oid)
        .collect();
    let mut input = format!("{}\n{}\n", head.to_hex(), tree.to_hex()).into_bytes();
    let mut seen = HashSet::from([head, tree]);
    for listed in &listing.0 {
        if travelling.contains(&listed.oid) && seen.insert(listed.oid) {
            // The name helps git find what to make deltas of; only its last bytes count.
            let name: Vec<u8> =
                listed.path.as_bytes().iter().copied().filter(|byte| *byte != b'\n').collect();
            input.extend_from_slice(format!("{} ", listed.oid.to_hex()).as_bytes());
            input.extend_from_slice(&name);
            input.push(b'\n');
        }
    }
    let bundle = repo
        .git("pack-objects")
        .args(["-q", "--stdout", "--delta-base-offset"])
        .stream(input, |pack| sink.put(&mut header.as_slice().chain(pack)))?;
    Ok(bundle)
}
