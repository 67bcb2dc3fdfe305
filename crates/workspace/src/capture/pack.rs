//! Packs one commit's files without its past and without those that stay at home.

use std::collections::HashSet;
use std::io::Read;

use super::tracked::Listing;
use super::{CaptureError, Job};
use crate::bundle::BundleHeader;
use crate::git::ScratchRepo;
use crate::object::{ObjectKind, Oid, parse_commit, write_tree};
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

/// Returns the commit that stands for one of the person's when its past does not travel.
///
/// Everything in it follows from that commit, so it can be made again to be found again.
pub(crate) fn snapshot_commit(tree: Oid, of: Oid) -> String {
    format!(
        "tree {}\nauthor warrant <warrant@localhost> 0 +0000\n\
         committer warrant <warrant@localhost> 0 +0000\n\nfiles of {}\n",
        tree.to_hex(),
        of.to_hex()
    )
}

/// Stores a bundle of the commit's files under a commit without parents, which any git can clone.
pub(super) fn snapshot_bundle(
    job: &Job<'_>,
    listing: &Listing,
    denied: &[TreePath],
) -> Result<(Oid, StoredBlob), CaptureError> {
    let Job { repository, sink, options, .. } = job;
    let repo = ScratchRepo::create(options.scratch)
        .and_then(|repo| repo.with_alternate(&repository.objects()))
        .map_err(CaptureError::Store)?;
    let tree = if denied.is_empty() {
        repository.tree
    } else {
        let denied: HashSet<&TreePath> = denied.iter().collect();
        let travels = listing.0.iter().filter(|listed| !denied.contains(&listed.path));
        let files: Vec<_> =
            travels.filter_map(|listed| Some((&listed.path, listed.mode?, listed.oid))).collect();
        write_tree(&mut repo.loose(), &files).map_err(CaptureError::Store)?
    };
    let commit = snapshot_commit(tree, repository.head);
    let commit = repo.loose().write(ObjectKind::Commit, commit.as_bytes());
    let commit = commit.map_err(CaptureError::Store)?;
    let header = BundleHeader { prerequisites: vec![], references: vec![("HEAD".into(), commit)] };
    let header = header.to_bytes();
    let bundle = repo
        .git("pack-objects")
        .args(["-q", "--revs", "--stdout", "--delta-base-offset"])
        .stream(format!("{}\n", commit.to_hex()).into_bytes(), |pack| {
            sink.put(&mut header.as_slice().chain(pack))
        })?;
    Ok((commit, bundle))
}
