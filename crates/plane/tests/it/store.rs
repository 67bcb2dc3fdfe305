//! The store: fencing, idempotence, append-only rows, blobs, pages, and commits shared by threads.

use std::io::{Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;

use warrant_plane::store::{
    Abilities, Completion, Durability, Entry, ListingFilter, NewRecord, RunFilter, Store,
    StoreError, Submitted,
};
use warrant_protocol::port::LeaseKey;
use warrant_protocol::{Digest, RunId, RunState};

use crate::support::{at, event, lease, new_run, owner, queued, run_id, store};

fn completion(receipt: &str) -> Completion {
    Completion {
        state: RunState::Completed,
        events: Vec::new(),
        receipt_hash: Digest::of(receipt.as_bytes()),
        receipt: receipt.to_owned(),
        blobs: Vec::new(),
        at: at(3_000),
    }
}

#[test]
fn a_run_goes_from_queued_to_completed_once() {
    let (_dir, store) = store();
    let run = run_id(1);
    queued(&store, &run);
    store.claim(&run, 0, (owner(), vec![event(&run, 1)])).unwrap();
    let again = store.claim(&run, 1, (owner(), Vec::new()));
    assert!(matches!(again, Err(StoreError::Conflict { .. })), "leased once");
    let build = {
        let run = run.clone();
        move |_| Ok(vec![event(&run, 2)])
    };
    store.start(&lease(&run, 1), at(2_500), build).unwrap();
    let again = store.start(&lease(&run, 1), at(2_500), |_| Ok(Vec::new()));
    assert!(matches!(again, Err(StoreError::Conflict { .. })), "started once");
    store.complete(&run, 1, completion("a")).unwrap();
    store.complete(&run, 1, completion("a")).unwrap();
    let other = store.complete(&run, 1, completion("b"));
    assert!(matches!(other, Err(StoreError::Conflict { .. })), "one receipt only");
    assert_eq!(store.receipt(&run).unwrap().as_deref(), Some("a"));
    assert_eq!(store.events(&run).unwrap().len(), 3);
    assert!(store.live().unwrap().is_empty());
}

#[test]
fn an_old_epoch_writes_nothing() {
    let (_dir, store) = store();
    let run = run_id(1);
    queued(&store, &run);
    store.claim(&run, 0, (owner(), Vec::new())).unwrap();
    store.hand_back(&run, 1, at(2_000)).unwrap();
    store.claim(&run, 1, (owner(), Vec::new())).unwrap();
    let stale = 1;
    assert!(store.append(&run, stale, vec![event(&run, 1)]).is_err());
    assert!(store.renew(&run, stale, at(9_000)).is_err());
    assert!(store.start(&lease(&run, stale), at(2_000), |_| Ok(Vec::new())).is_err());
    assert!(store.complete(&run, stale, completion("a")).is_err());
    assert!(store.hand_back(&run, stale, at(2_000)).is_err());
    assert_eq!(store.run(&run).unwrap().event_count, 1);
}

#[test]
fn the_same_events_again_are_no_change_and_others_are_a_fork() {
    let (_dir, store) = store();
    let run = run_id(1);
    queued(&store, &run);
    store.claim(&run, 0, (owner(), vec![event(&run, 1)])).unwrap();
    let batch = vec![event(&run, 1), event(&run, 2)];
    assert_eq!(store.append(&run, 1, batch.clone()).unwrap().event_count, 3);
    assert_eq!(store.append(&run, 1, batch).unwrap().event_count, 3);
    let mut forged = event(&run, 2);
    forged.hash = Digest::of(b"forged");
    assert!(matches!(store.append(&run, 1, vec![forged]), Err(StoreError::Fork { seq: 2, .. })));
    let gap = store.append(&run, 1, vec![event(&run, 9)]);
    assert!(matches!(gap, Err(StoreError::Fork { seq: 9, .. })));
}

#[test]
fn what_a_run_left_behind_cannot_be_changed_even_with_sql() {
    let (dir, store) = store();
    let run = run_id(1);
    queued(&store, &run);
    store.claim(&run, 0, (owner(), Vec::new())).unwrap();
    store.complete(&run, 1, completion("a")).unwrap();
    let raw = rusqlite::Connection::open(dir.path().join("plane.db")).unwrap();
    for sql in [
        "UPDATE events SET body = 'x'",
        "DELETE FROM events",
        "UPDATE receipts SET body = 'x'",
        "DELETE FROM receipts",
        "DELETE FROM runs",
        "UPDATE runs SET request_hash = zeroblob(32)",
        "UPDATE papers SET contract = 'x'",
        "UPDATE papers SET request = 'x'",
        "DELETE FROM papers",
    ] {
        assert!(raw.execute(sql, []).is_err(), "{sql}");
    }
}

#[test]
fn the_same_submission_gives_the_same_run() {
    let (_dir, store) = store();
    let mut first = new_run(&run_id(1), Entry::AwaitingApproval { deadline: at(9_000) });
    first.idempotency_key = Some("key".into());
    let mut second = first.clone();
    second.id = run_id(2);
    assert_eq!(store.submit(first, Durability::Now).unwrap(), Submitted::New);
    assert_eq!(store.submit(second, Durability::Now).unwrap(), Submitted::Repeated(run_id(1)));
}

#[test]
fn pages_are_newest_first_and_complete() {
    let (_dir, store) = store();
    for number in 0..25 {
        queued(&store, &run_id(number));
    }
    let mut filter = RunFilter { limit: Some(10), ..RunFilter::default() };
    let mut seen = Vec::new();
    loop {
        let page = store.list(&filter).unwrap();
        seen.extend(page.runs.into_iter().map(|run| run.id));
        filter.before = page.next;
        if page.next.is_none() {
            break;
        }
    }
    assert_eq!(seen, (0..25).rev().map(run_id).collect::<Vec<_>>());
    let state = Some(RunState::Completed);
    assert!(store.list(&RunFilter { state, ..RunFilter::default() }).unwrap().runs.is_empty());
}

#[test]
fn blobs_small_and_large_come_back_byte_for_byte() {
    let (dir, store) = store();
    for size in [0, 1, 16 * 1024, 16 * 1024 + 1, 300_000] {
        let content: Vec<u8> = (0..size).map(|at| u8::try_from(at % 251).unwrap()).collect();
        let mut writer = store.blob_writer();
        content.chunks(4093).for_each(|chunk| writer.write_all(chunk).unwrap());
        let blob = writer.finish().unwrap();
        assert_eq!(blob.digest, Digest::of(&content));
        assert!(!store.has_blob(&blob.digest).unwrap(), "not before it is recorded");
        let digest = blob.digest;
        store.record_blobs(vec![blob], at(1)).unwrap();
        let mut back = Vec::new();
        store.blob(&digest).unwrap().unwrap().read_to_end(&mut back).unwrap();
        assert_eq!(back, content);
    }
    store.blob_writer().write_all(&vec![0; 100_000]).unwrap();
    let incoming = dir.path().join("blobs/incoming");
    assert_eq!(std::fs::read_dir(incoming).unwrap().count(), 0, "nothing unfinished stays");
}

#[test]
fn the_files_of_the_store_are_only_the_owners() {
    let (dir, store) = store();
    queued(&store, &run_id(1));
    let mut checked = 0;
    for entry in std::fs::read_dir(dir.path()).unwrap() {
        let entry = entry.unwrap();
        let metadata = entry.metadata().unwrap();
        if metadata.is_file() {
            assert_eq!(metadata.mode() & 0o777, 0o600, "{:?}", entry.path());
            checked += 1;
        }
    }
    assert!(checked >= 2, "database and log");
}

#[test]
fn a_store_of_the_version_before_keeps_what_it_holds() {
    let (dir, store) = store();
    let (run, other) = (run_id(1), run_id(2));
    queued(&store, &run);
    store
        .submit(new_run(&other, Entry::AwaitingApproval { deadline: at(9) }), Durability::Now)
        .unwrap();
    let before = [store.run(&run).unwrap(), store.run(&other).unwrap()];
    drop(store);
    let raw = rusqlite::Connection::open(dir.path().join("plane.db")).unwrap();
    raw.execute_batch(
        "ALTER TABLE runs DROP COLUMN lease_ms;
         ALTER TABLE runs DROP COLUMN disconnect_ms;
         ALTER TABLE runs DROP COLUMN generation;
         ALTER TABLE runs DROP COLUMN process;
         ALTER TABLE enroll_tokens DROP COLUMN used_by;
         ALTER TABLE runners DROP COLUMN is_proved;
         ALTER TABLE runs ADD COLUMN prompt TEXT NOT NULL DEFAULT '';
         ALTER TABLE runs ADD COLUMN judgment TEXT NOT NULL DEFAULT '';
         ALTER TABLE runs ADD COLUMN request TEXT NOT NULL DEFAULT '';
         ALTER TABLE runs ADD COLUMN contract TEXT;
         UPDATE runs SET (prompt, judgment, request, contract) =
           (SELECT prompt, judgment, request, contract FROM papers WHERE run = runs.seq);
         DROP TABLE papers;
         DROP TABLE reports;
         DROP TABLE false_claims;
         DROP TABLE blob_uploaders;
         DROP TABLE blob_runs;
         DROP INDEX approvals_by_approver;
         DROP INDEX runs_by_time;
         DROP INDEX runs_denied;
         ALTER TABLE runners DROP COLUMN abilities;
         DROP TRIGGER requests_stay;
         CREATE TRIGGER contracts_stay BEFORE UPDATE OF contract, request, request_hash ON runs
           WHEN OLD.contract IS NOT NULL OR NEW.request IS NOT OLD.request
           BEGIN SELECT RAISE(ABORT, 'a request and a contract never change'); END;
         DROP INDEX runs_by_state;
         CREATE INDEX runs_by_state ON runs (state, seq);
         PRAGMA user_version = 4;",
    )
    .unwrap();
    drop(raw);
    let store = Store::open(dir.path()).unwrap();
    assert_eq!([store.run(&run).unwrap(), store.run(&other).unwrap()], before);
    store.claim(&run, 0, (owner(), Vec::new())).unwrap();
}

#[test]
fn reports_stay_and_are_their_owners_own() {
    let (dir, store) = store();
    for number in 0..66_u64 {
        store.keep_report((&format!("r{number}"), "a"), "{}".into(), at(number)).unwrap();
    }
    store.keep_report(("other", "b"), "{}".into(), at(0)).unwrap();
    drop(store);
    let store = Store::open(dir.path()).unwrap();
    let has = |id: &str, owner: &str| store.report(id, owner).unwrap().is_some();
    assert!(has("r65", "a") && has("r2", "a") && has("other", "b"));
    assert!(!has("r0", "a") && !has("r1", "a"), "the oldest go");
    assert!(!has("other", "a") && !has("r65", "b"), "another owner's report does not exist");
}

#[test]
fn a_run_and_its_record_are_kept_together_or_not_at_all() {
    let (_dir, store) = store();
    let record = |run: &RunId| {
        let told = NewRecord {
            run: run.clone(),
            body: run.to_string(),
            hash: Digest::of(run.as_str().as_bytes()),
            signature: String::new(),
            at: at(1),
        };
        let run = new_run(run, Entry::AwaitingApproval { deadline: at(9) });
        store.record(("s", "a"), Some(run), move |_, _| told)
    };
    assert_eq!(record(&run_id(1)).unwrap().lamport, 1);
    // A run that cannot be kept takes its record with it, and the clock stands still.
    assert!(record(&run_id(1)).is_err());
    assert_eq!(record(&run_id(2)).unwrap().lamport, 2);
    assert_eq!(store.records(("s", "a"), (0, 10)).unwrap().len(), 2);
    assert_eq!(store.live().unwrap().len(), 2);
}

#[test]
fn work_that_panics_holds_up_no_other_writer() {
    let (_dir, store) = store();
    let broken = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        store.record(("s", "a"), None, |_, _| panic!("in the middle of a commit"))
    }));
    assert!(broken.is_err());
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let store = &store;
            scope.spawn(move || queued(store, &run_id(thread)));
        }
    });
    assert_eq!(store.live().unwrap().len(), 4);
    assert_eq!(store.records(("s", "a"), (0, 10)).unwrap(), [], "nothing of it was kept");
}

#[test]
fn a_newer_store_is_refused() {
    let (dir, store) = store();
    drop(store);
    let raw = rusqlite::Connection::open(dir.path().join("plane.db")).unwrap();
    raw.pragma_update(None, "user_version", 99).unwrap();
    drop(raw);
    let again = Store::open(dir.path());
    assert!(matches!(again, Err(StoreError::Newer { found: 99, .. })));
}

#[test]
fn many_writers_share_commits_and_lose_nothing() {
    let (dir, store) = store();
    std::thread::scope(|scope| {
        for thread in 0..8_u64 {
            let store = &store;
            scope.spawn(move || {
                for number in 0..25 {
                    let run = run_id(thread * 1000 + number);
                    let entry =
                        Entry::Queued { contract: "{}".into(), events: vec![event(&run, 0)] };
                    store.submit(new_run(&run, entry), Durability::Now).unwrap();
                    // A failing neighbor in the same commit must not hurt.
                    assert!(store.renew(&run, 7, at(1)).is_err());
                }
            });
        }
    });
    drop(store);
    let store = Store::open(dir.path()).unwrap();
    assert_eq!(store.live().unwrap().len(), 200);
}

#[test]
fn work_that_fails_halfway_takes_back_its_own_and_nothing_of_others() {
    let (_dir, store) = store();
    let waiting: Vec<RunId> = (0..40).map(run_id).collect();
    waiting.iter().for_each(|run| queued(&store, run));
    std::thread::scope(|scope| {
        for (number, run) in (0..).zip(&waiting) {
            let store = &store;
            // Leased first, then the events do not fit: both must go.
            scope.spawn(move || {
                let forged = store.claim(run, 0, (owner(), vec![event(run, 9)]));
                assert!(matches!(forged, Err(StoreError::Fork { seq: 9, .. })));
            });
            scope.spawn(move || queued(store, &run_id(100 + number)));
        }
    });
    for run in waiting {
        let row = store.run(&run).unwrap();
        assert_eq!((row.state, row.event_count), (RunState::Queued, 1), "{run}");
    }
    let filter = RunFilter { limit: Some(1_000), ..RunFilter::default() };
    assert_eq!(store.list(&filter).unwrap().runs.len(), 80);
}

#[test]
fn clocks_go_forward_across_restarts() {
    let (dir, store) = store();
    assert_eq!([store.tick("a").unwrap(), store.tick("a").unwrap()], [1, 2]);
    drop(store);
    let store = Store::open(dir.path()).unwrap();
    assert_eq!(store.tick("a").unwrap(), 3);
    assert_eq!(store.tick("b").unwrap(), 1);
}

#[test]
fn a_page_of_many_runs_costs_what_it_shows() {
    let (dir, store) = store();
    let many = 100_000_u32;
    let connection = rusqlite::Connection::open(dir.path().join("plane.db")).unwrap();
    // As large as real ones: pages must not pay for rows that are not on them.
    connection
        .execute_batch(&format!(
            "WITH RECURSIVE number(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM number WHERE n < {many})
             INSERT INTO runs (id, state, pool, agent_kind, requested_by, request_hash,
               policy_hash, created_at, updated_at)
             SELECT 'run_' || n,
               CASE n % 20 WHEN 0 THEN 'failed' WHEN 1 THEN 'denied' WHEN 2 THEN 'lost'
                 ELSE 'completed' END,
               CASE WHEN n % 1000 = 3 THEN 'rare' ELSE 'default' END,
               CASE n % 2 WHEN 0 THEN 'command' ELSE 'codex' END,
               'human:' || (n % 7), zeroblob(32), zeroblob(32), n, n
             FROM number;
             INSERT INTO papers (run, prompt, judgment, request, contract)
             SELECT seq, 'task ' || seq, '{{\"requirements\":[]}}',
               '{{\"pad\":\"' || hex(zeroblob(300)) || '\"}}', hex(zeroblob(500))
             FROM runs;"
        ))
        .unwrap();
    drop(connection);
    let all = ListingFilter { limit: 100, ..ListingFilter::default() };
    let texts = |pool: Option<&str>, requester: Option<&str>, agent: Option<&str>| ListingFilter {
        pool: pool.map(str::to_owned),
        requested_by: requester.map(str::to_owned),
        agent_kind: agent.map(str::to_owned),
        ..all.clone()
    };
    let bad = vec![RunState::Failed, RunState::Denied, RunState::Lost, RunState::Expired];
    let cases = [
        ("newest", all.clone(), 100),
        ("middle", ListingFilter { before: Some(u64::from(many / 2)), ..all.clone() }, 100),
        ("last", ListingFilter { before: Some(50), ..all.clone() }, 49),
        ("one state", ListingFilter { states: vec![RunState::Failed], ..all.clone() }, 100),
        ("many states", ListingFilter { states: bad.clone(), ..all.clone() }, 100),
        ("no such state", ListingFilter { states: vec![RunState::Queued], ..all.clone() }, 0),
        ("rare pool", texts(Some("rare"), None, None), 100),
        ("no such pool", texts(Some("none"), None, None), 0),
        ("requester", texts(None, Some("human:3"), None), 100),
        ("agent", texts(None, None, Some("codex")), 100),
        (
            "rare pool and states",
            ListingFilter { states: bad, ..texts(Some("rare"), None, None) },
            0,
        ),
        (
            "pool, agent and a state that nearly all have",
            ListingFilter {
                states: vec![RunState::Completed],
                ..texts(Some("rare"), None, Some("codex"))
            },
            100,
        ),
        (
            "all four",
            ListingFilter {
                states: vec![RunState::Completed],
                ..texts(Some("rare"), Some("human:3"), Some("codex"))
            },
            15,
        ),
        ("all at once", texts(Some("rare"), Some("human:3"), Some("codex")), 15),
    ];
    for (name, filter, expected) in cases {
        let best = (0..5)
            .map(|_| {
                let began = std::time::Instant::now();
                let page = store.page(&filter).unwrap();
                let took = began.elapsed();
                let is_sorted = page.runs.is_sorted_by(|one, next| one.seq > next.seq);
                assert!(is_sorted && page.runs.len() <= 100, "{name}");
                assert_eq!(page.runs.len(), expected, "{name}");
                took
            })
            .min()
            .unwrap();
        println!("{name}: {best:?}");
        // Twenty milliseconds is the promise; the rest is for a build without optimization.
        assert!(best < std::time::Duration::from_millis(100), "{name}: {best:?}");
    }
}

#[test]
fn a_run_that_rides_is_seen_by_every_reader_and_leased_once() {
    let (dir, store) = store();
    let (seen, leased) = (run_id(1), run_id(2));
    let entry = |id| Entry::Queued { contract: "{}".into(), events: vec![event(id, 0)] };
    store.submit_later(new_run(&seen, entry(&seen)));
    assert_eq!(store.run(&seen).unwrap().state, RunState::Queued);
    store.claim_own(&seen, (owner(), vec![event(&seen, 1)])).unwrap();
    let row = store.run(&seen).unwrap();
    assert_eq!((row.state, row.epoch), (RunState::Leased, 1));

    store.submit_later(new_run(&leased, entry(&leased)));
    store.claim_own(&leased, (owner(), vec![event(&leased, 1)])).unwrap();
    let again = store.claim_own(&leased, (owner(), vec![event(&leased, 1)]));
    assert!(matches!(again, Err(StoreError::Conflict { .. })), "{again:?}");
    let key = LeaseKey { run: leased.clone(), epoch: 1 };
    let next = event(&leased, 2);
    store.start(&key, at(3_000), move |_| Ok(vec![next])).unwrap();
    drop(store);
    let store = Store::open(dir.path()).unwrap();
    let row = store.run(&leased).unwrap();
    assert_eq!((row.state, row.epoch), (RunState::Running, 1));
    assert_eq!(store.events(&leased).unwrap().len(), 3);
}

#[test]
fn a_run_that_still_rides_is_kept_when_the_store_is_let_go() {
    let (dir, store) = store();
    let run = run_id(1);
    let entry = Entry::Queued { contract: "{}".into(), events: vec![event(&run, 0)] };
    store.submit_later(new_run(&run, entry));
    drop(store);
    let store = Store::open(dir.path()).unwrap();
    assert_eq!(store.run(&run).unwrap().state, RunState::Queued);
}

#[test]
fn a_run_that_cannot_be_kept_fails_its_start_and_nobody_elses() {
    let (_dir, store) = store();
    let (broken, other) = (run_id(1), run_id(2));
    queued(&store, &broken);
    // The same name again cannot be kept.
    let entry = Entry::Queued { contract: "{}".into(), events: vec![event(&broken, 0)] };
    store.submit_later(new_run(&broken, entry));
    store.claim_own(&broken, (owner(), vec![event(&broken, 1)])).unwrap();
    queued(&store, &other);
    let key = LeaseKey { run: broken.clone(), epoch: 1 };
    let start = store.start(&key, at(3_000), |_| Ok(Vec::new()));
    assert!(matches!(start, Err(StoreError::Conflict { .. })), "{start:?}");
    assert_eq!(store.run(&other).unwrap().state, RunState::Queued);
}

#[test]
fn a_run_of_this_machine_alone_is_no_candidate_for_a_fleet() {
    let (_dir, store) = store();
    let (here, there) = (run_id(1), run_id(2));
    let entry = |id| Entry::Queued { contract: "{}".into(), events: vec![event(id, 0)] };
    let mut local = new_run(&here, entry(&here));
    local.is_local = true;
    store.submit(local, Durability::WithNext).unwrap();
    store.submit(new_run(&there, entry(&there)), Durability::WithNext).unwrap();
    let found = store.candidates("default", &Abilities::default(), 10).unwrap();
    let found: Vec<_> = found.into_iter().map(|candidate| candidate.id).collect();
    assert_eq!(found, [there]);
    assert_eq!(store.queued_by_pool().unwrap(), [("default".to_owned(), 1)]);
}
