//! Backups of a home in use, putting them back, and finding damage.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use warrant_plane::backup::{BackupError, RestoreError, RestoreOptions, back_up, restore};
use warrant_plane::fsck::{FsckReport, fsck};
use warrant_plane::http::settings::Settings;
use warrant_plane::sealed::MasterKey;
use warrant_protocol::Digest;

use crate::http::support::{HandRunner, Plane};
use crate::integrity::flip;

const PASSPHRASE: &str = "a passphrase for a test";

pub(crate) fn check(home: &Path) -> FsckReport {
    fsck(home, &mut |_| {}).unwrap()
}

fn save(home: &Path, out: &Path, passphrase: Option<&MasterKey>) -> Result<(), BackupError> {
    back_up(home, (out, passphrase), &mut |_, _| {}).map(drop)
}

fn put_back(
    file: &Path,
    root: &Path,
    options: Option<RestoreOptions<'_>>,
) -> Result<FsckReport, RestoreError> {
    restore(file, (root, options), &mut |_| {}).map(|restored| restored.report)
}

/// Submits, works and uploads until it is told to stop.
fn keep_busy(plane: &Plane, stop: &AtomicBool) {
    let runner = HandRunner::enroll(plane, "default");
    let mut number = 0_u32;
    while !stop.load(Ordering::Relaxed) {
        number += 1;
        plane.submit(&format!("echo {number}"));
        let mut held = runner.claim(0).unwrap();
        runner.start(&mut held);
        let body = number.to_le_bytes().repeat(20_000);
        let (status, _) = plane.client().bytes("POST", "/v1/blobs", Some(&plane.admin), Some(body));
        assert_eq!(status, 200);
        assert_eq!(runner.finish(&mut held).0, 200);
    }
    assert!(number > 1, "there was no load");
}

#[test]
fn every_backup_taken_under_load_restores_to_a_sound_home() {
    let plane = Plane::start();
    let home = plane.dir.path().join("home");
    let there = tempfile::tempdir().unwrap();
    let passphrase = MasterKey::from_text(PASSPHRASE).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| keep_busy(&plane, &stop));
        let mut seen = 0;
        for number in 0..6 {
            let file = there.path().join(format!("{number}.backup"));
            let root = there.path().join(format!("home-{number}"));
            let with_keys = number % 2 == 0;
            save(&home, &file, with_keys.then_some(&passphrase)).unwrap();
            let options = with_keys.then_some(RestoreOptions::Unseal(&passphrase));
            let report = put_back(&file, &root, options).unwrap();
            assert!(report.is_sound() && report.checked.runs >= seen, "{report:?}");
            seen = report.checked.runs;
            assert!(check(&home).is_sound(), "the home in use is sound, too");
        }
        stop.store(true, Ordering::Relaxed);
    });
    let last = there.path().join("last.backup");
    save(&home, &last, None).unwrap();
    let report = put_back(&last, &there.path().join("last"), None).unwrap();
    assert!(report.checked.bundles > 1 && report.checked.blobs > 1, "{report:?}");
}

/// A home with runs and blobs that nobody uses any more, and a backup of it.
struct Saved {
    dir: tempfile::TempDir,
    home: PathBuf,
    file: PathBuf,
}

fn saved(passphrase: Option<&MasterKey>) -> Saved {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("home");
    {
        let plane = Plane::start();
        let runner = HandRunner::enroll(&plane, "default");
        for number in 0..3 {
            plane.submit(&format!("echo {number}"));
            let mut held = runner.claim(0).unwrap();
            runner.start(&mut held);
            assert_eq!(runner.finish(&mut held).0, 200);
        }
        plane.submit("waits");
        for body in [b"small".to_vec(), vec![7; 300_000]] {
            let done = plane.client().bytes("POST", "/v1/blobs", Some(&plane.admin), Some(body));
            assert_eq!(done.0, 200);
        }
        let from = plane.dir.path().join("home");
        Settings::open(&from).unwrap();
        let file = dir.path().join("saved.backup");
        save(&from, &file, passphrase).unwrap();
        let options = Some(passphrase.map_or(RestoreOptions::LeaveOut, RestoreOptions::Unseal));
        put_back(&file, &home, options).unwrap();
    }
    let file = dir.path().join("saved.backup");
    Saved { dir, home, file }
}

#[test]
fn a_backup_without_a_passphrase_holds_nothing_private() {
    let plane = Plane::start();
    let home = plane.dir.path().join("home");
    let (settings, _) = Settings::open(&home).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let passphrase = MasterKey::from_text(PASSPHRASE).unwrap();
    let key = fs::read_to_string(home.join("keys/plane.key.pem")).unwrap();
    let secrets = [key.lines().nth(1).unwrap().to_owned(), settings.admin_token.clone()];
    for (name, passphrase) in [("plain", None), ("sealed", Some(&passphrase))] {
        let file = dir.path().join(name);
        save(&home, &file, passphrase).unwrap();
        let bytes = fs::read(&file).unwrap();
        for secret in &secrets {
            let is_there = bytes.windows(secret.len()).any(|part| part == secret.as_bytes());
            assert!(!is_there, "{name} holds a secret as it is");
        }
    }
    let again = save(&home, &dir.path().join("plain"), None).unwrap_err();
    assert!(matches!(again, BackupError::Exists(_)), "{again}");
    let left: Vec<_> = fs::read_dir(dir.path()).unwrap().collect();
    assert_eq!(left.len(), 2, "nothing else is left: {left:?}");
}

#[test]
fn sealed_keys_need_their_passphrase_and_come_back_as_they_were() {
    let passphrase = MasterKey::from_text(PASSPHRASE).unwrap();
    let saved = saved(Some(&passphrase));
    let other = MasterKey::from_text("another passphrase").unwrap();
    let root = saved.dir.path().join("again");
    let refused = put_back(&saved.file, &root, None).unwrap_err();
    assert!(matches!(refused, RestoreError::Sealed), "{refused}");
    let refused = put_back(&saved.file, &root, Some(RestoreOptions::Unseal(&other))).unwrap_err();
    assert!(matches!(refused, RestoreError::Seal(_)), "{refused}");
    put_back(&saved.file, &root, Some(RestoreOptions::Unseal(&passphrase))).unwrap();
    for name in ["keys/plane.key.pem", "config.json", "keys/plane.pub.pem", "home.json"] {
        let read = |home: &Path| fs::read(home.join(name)).unwrap();
        assert_eq!(read(&root), read(&saved.home), "{name}");
    }
    let fresh = saved.dir.path().join("fresh");
    put_back(&saved.file, &fresh, Some(RestoreOptions::LeaveOut)).unwrap();
    assert_ne!(
        fs::read(fresh.join("keys/plane.pub.pem")).unwrap(),
        fs::read(saved.home.join("keys/plane.pub.pem")).unwrap()
    );
    assert!(check(&fresh).is_sound(), "what the old keys signed still counts");
}

#[test]
fn a_changed_or_cut_backup_is_refused_and_leaves_nothing() {
    let saved = saved(None);
    let whole = fs::read(&saved.file).unwrap();
    let root = saved.dir.path().join("target");
    let file = saved.dir.path().join("changed");
    let refuse = |bytes: &[u8], what: &str| {
        fs::write(&file, bytes).unwrap();
        assert!(put_back(&file, &root, None).is_err(), "{what}");
        assert!(!root.exists(), "{what}");
    };
    // The two blocks of zeros after the end say nothing.
    let meant = whole.len() - 1024;
    for place in (0..meant).step_by(meant / 60) {
        let mut bytes = whole.clone();
        bytes[place] ^= 4;
        refuse(&bytes, &format!("byte {place} of {meant} changed"));
    }
    for part in 1..8 {
        refuse(&whole[..meant / 8 * part], &format!("{part} eighths"));
    }
    put_back(&saved.file, &root, None).unwrap();
    let again = put_back(&saved.file, &root, None).unwrap_err();
    assert!(matches!(again, RestoreError::NotEmpty(_)), "{again}");
}

fn change(home: &Path, sql: &str) {
    let database = rusqlite::Connection::open(home.join("data/plane.db")).unwrap();
    database.execute_batch(sql).unwrap();
}

/// Damages a copy of a sound home and returns the kinds of problems that are found.
#[track_caller]
fn finds(saved: &Saved, kind: &str, damage: impl FnOnce(&Path)) {
    let root = saved.dir.path().join("damaged");
    put_back(&saved.file, &root, None).unwrap();
    damage(&root);
    let report = check(&root);
    let kinds: Vec<&str> = report.problems.iter().map(|problem| problem.kind.as_str()).collect();
    assert!(kinds.contains(&kind), "{kind} is not among {:?}", report.problems);
    fs::remove_dir_all(root).unwrap();
}

#[test]
fn fsck_finds_every_kind_of_damage() {
    let saved = saved(None);
    assert!(check(&saved.home).is_sound());
    let large = Digest::of(&[7; 300_000]).to_hex();
    let blob = |home: &Path| home.join("data/blobs").join(&large[..2]).join(&large[2..]);
    finds(&saved, "blob", |home| flip(&blob(home)));
    finds(&saved, "blob", |home| fs::remove_file(blob(home)).unwrap());
    finds(&saved, "blob", |home| {
        fs::OpenOptions::new().append(true).open(blob(home)).unwrap().write_all(b"more").unwrap();
    });
    finds(&saved, "blob", |home| {
        change(home, "UPDATE blobs SET content = x'00' WHERE content IS NOT NULL");
    });
    let events = "DROP TRIGGER events_stay; DROP TRIGGER events_last;";
    finds(&saved, "chain", |home| {
        let forged = "UPDATE events SET body = replace(body, 'echo 1', 'echo 9')";
        change(
            home,
            &format!("{events} {forged}; UPDATE events SET hash = zeroblob(32) WHERE seq = 1"),
        );
    });
    finds(&saved, "run", |home| {
        change(home, &format!("{events} DELETE FROM events WHERE seq = 2"))
    });
    finds(&saved, "run", |home| change(home, "UPDATE runs SET state = 'running' WHERE seq = 1"));
    finds(&saved, "run", |home| change(home, "UPDATE runs SET state = 'mystery' WHERE seq = 1"));
    let receipts = "DROP TRIGGER receipts_stay; DROP TRIGGER receipts_last;";
    finds(&saved, "receipt", |home| {
        change(home, &format!("{receipts} UPDATE receipts SET hash = zeroblob(32) WHERE run = 1"));
    });
    finds(&saved, "bundle", |home| {
        let forged = "UPDATE receipts SET body = replace(body, 'completed', 'failed')";
        change(home, &format!("{receipts} {forged} WHERE run = 1"));
    });
    finds(&saved, "database", |home| change(home, "DROP TRIGGER papers_last"));
    finds(&saved, "database", |home| {
        change(home, "PRAGMA wal_checkpoint(TRUNCATE)");
        let file = home.join("data/plane.db");
        let mut bytes = fs::read(&file).unwrap();
        let pages = bytes.len() / 4096;
        for page in 2..pages {
            bytes[page * 4096..page * 4096 + 64].fill(0xA5);
        }
        fs::write(&file, bytes).unwrap();
    });
    finds(&saved, "bundle", |home| {
        // A home whose key was swapped does not verify what the old one signed.
        for entry in fs::read_dir(home.join("keys/retired")).unwrap() {
            fs::remove_file(entry.unwrap().path()).unwrap();
        }
    });
}
