//! The packing room: what the program changed becomes one diff, without executing anything of it,
//! and without any secret.
//!
//! A diff that carries a binary file is compressed, so a secret inside could not be seen in it;
//! such a diff is withheld when a changed file holds a secret, or held one before: the diff goes
//! both ways.

use std::fs::{self, File};
use std::io::{self, Read, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::Dir;
use warrant_protocol::event::{ArtifactKind, Direction, FailureClass};
use warrant_protocol::execution::DEFAULT_TIMEOUT_MS;
use warrant_protocol::port::{BlobRef, Lease};
use warrant_protocol::{Digest, Event};
use warrant_sandbox::Cancel;
use warrant_workspace::{
    Checkout, CollectOptions, Collected, Diff, GitBundleOptions, Progress, Stop, TreeLimits, Watch,
    collect as collect_checkout, collect_overlay, never_stop, write_checkout_bundle,
    write_git_bundle,
};

use crate::capture::{
    GateReport, JudgedPath, record_capture, record_no_capture, record_nothing_changed,
};
use crate::halt::Halt;
use crate::journal::Journal;
use crate::redact::{Redactor, Search};
use crate::run::Surroundings;
use crate::sink::FoldedBlocks;

/// The size of every copying buffer.
const BUFFER_BYTES: usize = 64 * 1024;
/// What git writes before a compressed file.
const BINARY_MARK: &[u8] = b"GIT binary patch";

/// Why the work could not be packed, for the receipt.
pub(crate) type NotPacked = (FailureClass, String);

/// What came of packing.
#[derive(Debug)]
pub(crate) struct Packed {
    /// Why there is no diff of the work.
    pub(crate) failure: Option<NotPacked>,
    /// What the export gate decided.
    pub(crate) judged: Vec<JudgedPath>,
}

impl Packed {
    /// There was nothing to pack.
    pub(crate) const fn nothing() -> Self {
        Self { failure: None, judged: Vec::new() }
    }

    /// Returns it with a failure, unless it has one.
    fn or_failure(self, why: String) -> Self {
        let failure = self.failure.or(Some((FailureClass::CaptureFailed, why)));
        Self { failure, ..self }
    }
}

/// The least time that collecting has, however much of its time the program used.
const LEAST_TIME: Duration = Duration::from_secs(10);
/// How long collecting may take after the run was cancelled.
const TIME_AFTER_CANCEL: Duration = Duration::from_secs(5);

/// When collecting must end: what the program left of its time is over, or somebody cancels.
///
/// A program that hides its files among millions, or makes them out of holes, must not keep the
/// runner busy beyond what the run was allowed.
#[derive(Debug)]
pub(crate) struct CollectDeadline<'a> {
    until: Instant,
    cancel: Option<&'a Cancel>,
}

impl<'a> CollectDeadline<'a> {
    /// Counts from now, when the program ended after `used_ms` of `wall_ms`.
    pub(crate) fn new(cancel: &'a Cancel, wall_ms: Option<u64>, used_ms: u64) -> Self {
        if cancel.is_cancelled() {
            return Self { until: Instant::now() + TIME_AFTER_CANCEL, cancel: None };
        }
        let left = wall_ms.unwrap_or(DEFAULT_TIMEOUT_MS).saturating_sub(used_ms);
        let left = Duration::from_millis(left).max(LEAST_TIME);
        // A limit beyond what a clock can hold is no limit.
        let until = Instant::now().checked_add(left).unwrap_or_else(Instant::now);
        Self { until, cancel: Some(cancel) }
    }

    /// Returns whether it is over.
    pub(crate) fn is_over(&self) -> bool {
        Instant::now() >= self.until || self.cancel.is_some_and(Cancel::is_cancelled)
    }
}

/// Whose changes are packed, what must not be in them, and until when.
#[derive(Clone, Copy)]
pub(crate) struct Packing<'a> {
    pub(crate) surroundings: &'a Surroundings<'a>,
    pub(crate) lease: &'a Lease,
    pub(crate) redactor: &'a Redactor,
    pub(crate) stop: Stop<'a>,
}

/// Records what changed and keeps the diff. An error of packing is the run's failure, not ours.
pub(crate) fn pack_changes(
    journal: &mut Journal<'_>,
    packing: &Packing<'_>,
    upper: &OwnedFd,
) -> Result<Packed, Halt> {
    match is_empty(upper.as_fd()) {
        Ok(true) => {
            record_nothing_changed(journal)?;
            return Ok(Packed::nothing());
        }
        Ok(false) => {}
        Err(error) => {
            return not_captured(
                (journal, packing.redactor),
                &format!("the changes cannot be read: {error}"),
            );
        }
    }
    let Packing { surroundings, lease, redactor, stop } = *packing;
    let scratch = match Scratch::create(&surroundings.scratch.join(lease.key.run.as_str())) {
        Ok(scratch) => scratch,
        Err(error) => {
            let message = format!("there is no room to collect the changes in: {error}");
            return not_captured((journal, packing.redactor), &message);
        }
    };
    let search = redactor.search();
    let lower = match File::open(surroundings.workspace) {
        Ok(lower) => lower,
        Err(error) => {
            return not_captured(
                (journal, packing.redactor),
                &format!("the workspace is gone: {error}"),
            );
        }
    };
    let gate = GateReport::of_overlay(surroundings.gate, lower.as_fd(), upper.as_fd());
    match collect(surroundings, ((&lower, upper), &search), &scratch, stop) {
        Ok(collected) => {
            let packed = pack_collected(journal, packing, (&gate, collected, &search))?;
            match gate.has_commits() {
                true => keep_commits(journal, packing, (&lower, upper), packed),
                false => Ok(packed),
            }
        }
        Err(message) => not_captured((journal, packing.redactor), &message),
    }
}

/// Keeps what the program committed as a git bundle.
fn keep_commits(
    journal: &mut Journal<'_>,
    packing: &Packing<'_>,
    (lower, upper): (&File, &OwnedFd),
    packed: Packed,
) -> Result<Packed, Halt> {
    let Packing { surroundings, redactor, .. } = *packing;
    let search = redactor.search();
    let watch = |content: &[u8]| search.look_at(content);
    let options = GitBundleOptions {
        scratch: surroundings.scratch,
        limits: TreeLimits::generous(),
        watch: &watch,
    };
    let bundle = match write_git_bundle(lower.as_fd(), upper.as_fd(), &options) {
        Ok(Some(bundle)) => bundle,
        Ok(None) => return Ok(packed),
        Err(error) => {
            return Ok(packed.or_failure(format!("the commits could not be kept: {error}")));
        }
    };
    store_commits(journal, packing, (bundle, &search), packed)
}

/// Stores a bundle as an artifact of the run.
fn store_commits(
    journal: &mut Journal<'_>,
    packing: &Packing<'_>,
    (mut bundle, search): (File, &Search),
    packed: Packed,
) -> Result<Packed, Halt> {
    let Packing { surroundings, lease, .. } = *packing;
    // SECURITY: a bundle is compressed, so a secret could not be taken out of it.
    if search.has_found() {
        let why = "the commits are withheld: they may hold a secret";
        return Ok(packed.or_failure(why.to_owned()));
    }
    let mut blob = surroundings.plane.new_blob(&lease.key)?;
    let stored = io::copy(&mut bundle, &mut blob).and_then(|_| blob.finish());
    let stored = stored
        .map_err(|error| Halt::internal(format!("the commits could not be kept: {error}")))?;
    record_artifact(journal, ArtifactKind::Bundle, stored.digest, "git-commits")?;
    Ok(packed)
}

/// As [`pack_changes`], for a checkout that the program wrote into directly.
pub(crate) fn pack_checkout(
    journal: &mut Journal<'_>,
    packing: &Packing<'_>,
    checkout: &Checkout,
) -> Result<Packed, Halt> {
    let Packing { surroundings, redactor, stop, .. } = *packing;
    // The directory is this run's own and goes with it.
    let search = redactor.search();
    let collected = surroundings.told(|progress| {
        let watch = |content: &[u8]| search.look_at(content);
        let options = options_for(surroundings.scratch, progress, &watch);
        collect_checkout(checkout, &CollectOptions { stop, ..options })
    });
    let collected = match collected {
        Ok(collected) => collected,
        Err(error) => {
            return not_captured(
                (journal, packing.redactor),
                &format!("the changes could not be collected: {error}"),
            );
        }
    };
    let commits_search = redactor.search();
    let watch = |content: &[u8]| commits_search.look_at(content);
    let options = GitBundleOptions {
        scratch: surroundings.scratch,
        limits: TreeLimits::generous(),
        watch: &watch,
    };
    // What cannot be read of its git directory is not taken over; the diff has the files.
    let commits = write_checkout_bundle(checkout, &options).ok().flatten();
    let (bundle, refs) = commits.map(|commits| (commits.bundle, commits.refs)).unzip();
    let mut gate = GateReport::of_changes(surroundings.gate, &collected.changes);
    gate.add_refs(refs.unwrap_or_default());
    let packed = pack_collected(journal, packing, (&gate, collected, &search))?;
    match bundle {
        Some(bundle) => store_commits(journal, packing, (bundle, &commits_search), packed),
        None => Ok(packed),
    }
}

fn pack_collected(
    journal: &mut Journal<'_>,
    packing: &Packing<'_>,
    (gate, collected, search): (&GateReport, Collected, &Search),
) -> Result<Packed, Halt> {
    let Packing { surroundings, lease, redactor, .. } = *packing;
    let judged = record_capture(journal, redactor, (gate, &collected))?;
    let packed = |not_packed: Option<&str>| {
        let failure = not_packed.map(|why| (FailureClass::CaptureFailed, why.to_owned()));
        Ok(Packed { failure, judged: judged.clone() })
    };
    let Some(diff) = &collected.diff else { return packed(None) };
    match hides_secret(diff, search) {
        Ok(false) => {}
        Ok(true) => {
            return packed(Some("the diff is withheld: a binary file in it may hold a secret"));
        }
        Err(_) => return packed(Some("the diff cannot be read again")),
    }
    let stored = keep_redacted(surroundings, lease, (diff, redactor))?;
    record_artifact(journal, ArtifactKind::Diff, stored.digest, "code-diff")?;
    packed(None)
}

/// Keeps the list of blocked destinations that are not recorded one by one.
pub(crate) fn keep_blocked(
    surroundings: &Surroundings<'_>,
    lease: &Lease,
    journal: &mut Journal<'_>,
    folded: &FoldedBlocks,
) -> Result<(), Halt> {
    let mut blob = surroundings.plane.new_blob(&lease.key)?;
    let kept = blob.write_all(folded.list.as_bytes()).and_then(|()| blob.finish());
    let kept = kept.map_err(|error| {
        Halt::internal(format!("the list of blocked destinations could not be kept: {error}"))
    })?;
    record_artifact(journal, ArtifactKind::Trace, kept.digest, "blocked-destinations")?;
    let FoldedBlocks { destinations, attempts, .. } = *folded;
    Ok(journal.record(&Event::NetworkFolded { destinations, attempts, hash: kept.digest })?)
}

/// Records that something was kept and left the run.
pub(crate) fn record_artifact(
    journal: &mut Journal<'_>,
    kind: ArtifactKind,
    hash: Digest,
    data_class: &str,
) -> Result<(), Halt> {
    journal.record(&Event::ArtifactCreated { kind, hash })?;
    let crossed = Event::BoundaryCrossed {
        direction: Direction::Out,
        content_hash: hash,
        data_class: data_class.to_owned(),
    };
    Ok(journal.record(&crossed)?)
}

/// Records that nothing was seen of what changed, which is the run's failure.
fn not_captured(
    (journal, redactor): (&mut Journal<'_>, &Redactor),
    message: &str,
) -> Result<Packed, Halt> {
    record_no_capture(journal, &redactor.redact_text(message))?;
    let failure = Some((FailureClass::CaptureFailed, message.to_owned()));
    Ok(Packed { failure, judged: Vec::new() })
}

fn is_empty(directory: BorrowedFd<'_>) -> io::Result<bool> {
    let mut entries = Dir::read_from(directory)?;
    for entry in &mut entries {
        let entry = entry?;
        if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            return Ok(false);
        }
    }
    Ok(true)
}

fn collect(
    surroundings: &Surroundings<'_>,
    ((lower, upper), search): ((&File, &OwnedFd), &Search),
    scratch: &Scratch,
    stop: Stop<'_>,
) -> Result<Collected, String> {
    let collected = surroundings.told(|progress| {
        let watch = |content: &[u8]| search.look_at(content);
        let options = options_for(&scratch.path, progress, &watch);
        let options = CollectOptions { stop, ..options };
        collect_overlay(lower.as_fd(), upper.as_fd(), &options)
    });
    collected.map_err(|error| format!("the changes could not be collected: {error}"))
}

fn options_for<'a>(
    scratch: &'a Path,
    progress: Progress<'a>,
    watch: Watch<'a>,
) -> CollectOptions<'a> {
    CollectOptions { scratch, limits: TreeLimits::generous(), progress, stop: &never_stop, watch }
}

/// Whether a compressed part of the diff may carry a secret.
fn hides_secret(diff: &Diff, search: &Search) -> io::Result<bool> {
    Ok(search.has_found() && contains(&mut diff.reader()?, BINARY_MARK)?)
}

/// Whether a stream contains `mark` at the start of a line.
fn contains(reader: &mut dyn Read, mark: &[u8]) -> io::Result<bool> {
    let mut tail: Vec<u8> = Vec::new();
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let read = reader.read(&mut buffer)?;
        if read == 0 {
            return Ok(false);
        }
        tail.extend_from_slice(buffer.get(..read).unwrap_or_default());
        if tail.windows(mark.len()).any(|window| window == mark) {
            return Ok(true);
        }
        let keep = tail.len().min(mark.len() - 1);
        tail.drain(..tail.len() - keep);
    }
}

fn keep_redacted(
    surroundings: &Surroundings<'_>,
    lease: &Lease,
    (diff, redactor): (&Diff, &Redactor),
) -> Result<BlobRef, Halt> {
    let mut blob = surroundings.plane.new_blob(&lease.key)?;
    let mut copy = || -> io::Result<()> {
        let mut reader = diff.reader()?;
        let mut stream = redactor.stream();
        let mut buffer = vec![0; BUFFER_BYTES];
        let mut out = Vec::with_capacity(BUFFER_BYTES);
        loop {
            let read = reader.read(&mut buffer)?;
            if read == 0 {
                break;
            }
            stream.push(buffer.get(..read).unwrap_or_default(), &mut out);
            blob.write_all(&out)?;
            out.clear();
        }
        stream.finish(&mut out);
        blob.write_all(&out)
    };
    let kept = copy();
    let kept = kept.and_then(|()| blob.finish());
    kept.map_err(|error| Halt::internal(format!("the diff could not be kept: {error}")))
}

/// A directory of ours that is gone when the packing is done.
struct Scratch {
    path: PathBuf,
}

impl Scratch {
    fn create(path: &Path) -> io::Result<Self> {
        use std::os::unix::fs::DirBuilderExt as _;
        fs::DirBuilder::new().recursive(true).mode(0o700).create(path)?;
        Ok(Self { path: path.to_owned() })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What stays is removed when the plane seals or the home is opened again.
        let _ = fs::remove_dir_all(&self.path);
    }
}
