//! Records that go through the journal: durable when they are told, in order, and found again by
//! whoever opens the store after a keeper that was killed.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use warrant_plane::store::{Entry, NewRecord, RecordRow, Sealing, Store, StoreError};
use warrant_protocol::{Digest, RunState};

use crate::support::{at, event, new_run, run_id, store};

const WHO: (&str, &str) = ("s", "service:a");

/// A store that keeps records in its journal.
fn keeper() -> (TempDir, Store) {
    let (dir, store) = store();
    store.expect_many_records().unwrap();
    (dir, store)
}

/// Keeps a record with a whole run; its body tells the digest of the one before it.
fn keep(
    store: &Store,
    who: (&str, &str),
    number: u64,
    size: usize,
) -> Result<RecordRow, StoreError> {
    let run = run_id(number);
    let sealing = Sealing {
        state: RunState::Completed,
        contract: Some(format!("{{\"contract\":{number}}}")),
        events: vec![event(&run, 0), event(&run, 1)],
        receipt_hash: Digest::of(run.as_str().as_bytes()),
        receipt: "r".repeat(size),
        at: at(2_000),
    };
    let new = new_run(&run, Entry::Sealed(sealing));
    store.record(who, Some(new), move |lamport, previous| {
        let body = format!("{lamport} {}", previous.map(|hash| hash.to_hex()).unwrap_or_default());
        let body = format!("{body} {run}");
        let hash = Digest::of(body.as_bytes());
        NewRecord { run, hash, body, signature: "f".repeat(8), at: at(lamport) }
    })
}

/// Every record of a session, checked to be one chain from 1 on.
#[track_caller]
fn chain(store: &Store, who: (&str, &str)) -> Vec<RecordRow> {
    let rows = store.records(who, (0, 10_000)).unwrap();
    let mut previous = String::new();
    for (place, row) in (1..).zip(&rows) {
        assert_eq!(row.lamport, place);
        assert!(row.body.starts_with(&format!("{place} {previous} ")), "{}", row.body);
        assert_eq!(row.hash, Digest::of(row.body.as_bytes()));
        previous = row.hash.to_hex();
    }
    rows
}

fn journal_files(dir: &Path) -> Vec<PathBuf> {
    ["records.0", "records.1"]
        .map(|name| dir.join(name))
        .into_iter()
        .filter(|p| p.exists())
        .collect()
}

/// What the disk holds of a journal when its keeper is killed now, in a directory of its own.
fn killed(dir: &Path, into: &Path, and: &[&str]) {
    for name in ["records.0", "records.1"].iter().chain(and) {
        fs::copy(dir.join(name), into.join(name)).unwrap();
    }
}

#[test]
fn records_of_a_killed_keeper_are_found_again_and_its_clock_goes_on() {
    let (dir, store) = keeper();
    for number in 1..=5 {
        assert_eq!(keep(&store, WHO, number, 100).unwrap().lamport, number);
    }
    // Nothing of them was moved, as far as this copy knows.
    let other = tempfile::tempdir().unwrap();
    killed(dir.path(), other.path(), &[]);
    let found = Store::open(other.path()).unwrap();
    assert_eq!(chain(&found, WHO), chain(&store, WHO));
    let row = found.run(&run_id(3)).unwrap();
    assert_eq!((row.state, row.event_count), (RunState::Completed, 2));
    assert_eq!(found.receipt(&run_id(3)).unwrap().as_deref(), Some("r".repeat(100).as_str()));
    assert_eq!(found.events(&run_id(3)).unwrap(), store.events(&run_id(3)).unwrap());
    let session = &found.sessions(WHO.1, (10, 0)).unwrap()[0];
    assert_eq!((session.count, session.lamport, session.created_at), (5, 5, at(1)));
    assert_eq!(journal_files(other.path()), Vec::<PathBuf>::new(), "moved once");
    assert_eq!(keep(&found, WHO, 6, 100).unwrap().lamport, 6);
    found.expect_many_records().unwrap();
    assert_eq!(keep(&found, WHO, 7, 100).unwrap().lamport, 7);
    assert_eq!(chain(&found, WHO).len(), 7);
}

#[test]
fn records_that_were_moved_before_the_keeper_was_killed_are_there_once() {
    let (dir, store) = keeper();
    for number in 1..=5 {
        keep(&store, WHO, number, 100).unwrap();
    }
    // Whoever reads has them moved.
    let before = chain(&store, WHO);
    let other = tempfile::tempdir().unwrap();
    killed(dir.path(), other.path(), &["plane.db", "plane.db-wal"]);
    let found = Store::open(other.path()).unwrap();
    assert_eq!(chain(&found, WHO), before);
    assert_eq!(found.sessions(WHO.1, (10, 0)).unwrap()[0].count, 5);
}

#[test]
fn a_torn_entry_ends_what_is_found() {
    let (dir, store) = keeper();
    for number in 1..=3 {
        keep(&store, WHO, number, 1_000).unwrap();
    }
    let bytes = fs::read(dir.path().join("records.0")).unwrap();
    let end = bytes.iter().rposition(|byte| *byte != 0).unwrap();
    for (at_byte, expected) in [(end, 2), (end - 500, 2), (40, 0)] {
        let other = tempfile::tempdir().unwrap();
        killed(dir.path(), other.path(), &[]);
        let mut torn = bytes.clone();
        torn[at_byte] ^= 1;
        fs::write(other.path().join("records.0"), torn).unwrap();
        let found = Store::open(other.path()).unwrap();
        assert_eq!(chain(&found, WHO).len(), expected, "torn at {at_byte}");
    }
    let other = tempfile::tempdir().unwrap();
    fs::write(other.path().join("records.0"), &bytes[..end - 100]).unwrap();
    assert_eq!(chain(&Store::open(other.path()).unwrap(), WHO).len(), 2);
}

#[test]
fn another_process_leaves_the_journal_of_a_living_keeper_alone() {
    let (dir, store) = keeper();
    keep(&store, WHO, 1, 100).unwrap();
    let other = Store::open(dir.path()).unwrap();
    assert_eq!(journal_files(dir.path()).len(), 2);
    // A second keeper has no journal, and keeps what it is given all the same.
    other.expect_many_records().unwrap();
    keep(&other, ("t", WHO.1), 2, 100).unwrap();
    keep(&store, WHO, 3, 100).unwrap();
    assert_eq!((chain(&store, WHO).len(), chain(&store, ("t", WHO.1)).len()), (2, 1));
    drop(other);
    drop(store);
    assert_eq!(journal_files(dir.path()), Vec::<PathBuf>::new(), "nothing is left of it");
    assert_eq!(chain(&Store::open(dir.path()).unwrap(), WHO).len(), 2);
}

#[test]
fn many_who_record_at_once_make_one_chain_over_many_turns_of_the_files() {
    let (dir, store) = keeper();
    std::thread::scope(|scope| {
        for thread in 0..8_u64 {
            let store = &store;
            scope.spawn(move || {
                let who = if thread % 2 == 0 { WHO } else { ("t", WHO.1) };
                for number in 0..50 {
                    let kept = keep(store, who, thread * 1_000 + number, 60_000).unwrap();
                    if number % 10 == 0 {
                        // Whoever reads sees what was told before.
                        let digest = kept.hash;
                        assert_eq!(store.record_of(WHO.1, &digest).unwrap(), Some(kept));
                    }
                }
            });
        }
    });
    // 24 MB went through files of 4 MB.
    let other = tempfile::tempdir().unwrap();
    let told = (chain(&store, WHO), chain(&store, ("t", WHO.1)));
    assert_eq!((told.0.len(), told.1.len()), (200, 200));
    killed(dir.path(), other.path(), &["plane.db", "plane.db-wal"]);
    let found = Store::open(other.path()).unwrap();
    assert_eq!((chain(&found, WHO), chain(&found, ("t", WHO.1))), told);
    let sizes = journal_files(dir.path()).into_iter().map(|path| fs::metadata(path).unwrap().len());
    assert!(sizes.max().unwrap() < 16 * 1024 * 1024, "the files are used again");
}

#[test]
fn a_record_that_the_journal_cannot_hold_has_its_place_among_the_others() {
    let (_dir, store) = keeper();
    keep(&store, WHO, 1, 100).unwrap();
    let waiting = new_run(&run_id(2), Entry::AwaitingApproval { deadline: at(9) });
    let told = |lamport: u64, previous: Option<Digest>| {
        let body = format!("{lamport} {} -", previous.unwrap().to_hex());
        let hash = Digest::of(body.as_bytes());
        NewRecord { run: run_id(2), hash, body, signature: String::new(), at: at(1) }
    };
    assert_eq!(store.record(WHO, Some(waiting), told).unwrap().lamport, 2);
    assert_eq!(store.record(WHO, None, told).unwrap().lamport, 3);
    assert_eq!(keep(&store, WHO, 4, 100).unwrap().lamport, 4);
    assert_eq!(chain(&store, WHO).len(), 4);
}

#[test]
fn a_record_whose_making_panics_takes_no_place() {
    let (_dir, store) = keeper();
    keep(&store, WHO, 1, 100).unwrap();
    let broken = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        store.record(WHO, None, |_, _| panic!("in the middle of a group"))
    }));
    assert!(broken.is_err());
    assert_eq!(keep(&store, WHO, 2, 100).unwrap().lamport, 2);
    assert_eq!(chain(&store, WHO).len(), 2);
}
