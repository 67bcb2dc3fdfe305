//! Stored bytes that changed under the plane are noticed.

use std::fs::{self, OpenOptions};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use warrant_plane::home::Home;
use warrant_plane::{EmbeddedPlane, Store};
use warrant_protocol::Digest;

use crate::http::support::{HandRunner, Plane};

/// Changes one byte in the middle of a file.
pub(crate) fn flip(path: &Path) {
    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    let middle = file.metadata().unwrap().len() / 2;
    let mut byte = [0];
    file.read_exact_at(&mut byte, middle).unwrap();
    file.write_all_at(&[byte[0] ^ 1], middle).unwrap();
}

fn blob_file(home: &Path, digest: &str) -> PathBuf {
    home.join("data/blobs").join(&digest[..2]).join(&digest[2..])
}

fn upload(plane: &Plane, size: usize) -> String {
    let bytes: Vec<u8> = (0..size).map(|place| (place % 251) as u8).collect();
    let (status, _) =
        plane.client().bytes("POST", "/v1/blobs", Some(&plane.admin), Some(bytes.clone()));
    assert_eq!(status, 200);
    Digest::of(&bytes).to_hex()
}

/// Returns the whole answer to a read, as far as it came.
fn raw(plane: &Plane, path: &str) -> Vec<u8> {
    let mut stream = TcpStream::connect(plane.url.trim_start_matches("http://")).unwrap();
    let token = &plane.admin;
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\nauthorization: Bearer {token}\r\n\r\n"
    )
    .unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    answer
}

#[test]
fn a_changed_blob_is_never_served_whole() {
    let plane = Plane::start();
    let home = plane.dir.path().join("home");
    let (medium, large) = (upload(&plane, 100_000), upload(&plane, 1_000_000));
    for digest in [&medium, &large] {
        let path = format!("/v1/blobs/{digest}");
        let (status, bytes) = plane.client().bytes("GET", &path, Some(&plane.admin), None);
        assert_eq!((status, Digest::of(&bytes).to_hex()), (200, digest.clone()));
        flip(&blob_file(&home, digest));
    }
    let path = format!("/v1/blobs/{medium}");
    let (status, answer) = plane.client().call("GET", &path, Some(&plane.admin), None);
    assert_eq!((status, &answer["code"]), (500, &"blob_damaged".into()), "{answer}");
    assert!(answer["error"].as_str().unwrap().contains(&medium), "{answer}");
    let answer = raw(&plane, &format!("/v1/blobs/{large}"));
    assert!(answer.len() < 1_000_000, "the transfer breaks off: {} bytes", answer.len());
    let (_, metrics) = plane.client().call("GET", "/v1/metrics", Some(&plane.admin), None);
    assert_eq!(metrics["metrics"]["blobs.unreadable"], 2, "{metrics}");
    fs::remove_file(blob_file(&home, &large)).unwrap();
    let path = format!("/v1/blobs/{large}");
    let (status, answer) = plane.client().call("GET", &path, Some(&plane.admin), None);
    assert_eq!((status, &answer["code"]), (500, &"blob_damaged".into()), "{answer}");
    // The same content, stored again, is whole again.
    upload(&plane, 1_000_000);
    let (status, bytes) = plane.client().bytes("GET", &path, Some(&plane.admin), None);
    assert_eq!((status, Digest::of(&bytes).to_hex()), (200, large));
}

#[test]
fn a_changed_row_of_a_small_blob_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let mut writer = store.blob_writer();
    writer.write_all(b"small").unwrap();
    let blob = writer.finish().unwrap();
    let digest = blob.digest;
    store.record_blobs(vec![blob], crate::support::now()).unwrap();
    assert!(store.blob(&digest).unwrap().is_some());
    let database = rusqlite::Connection::open(dir.path().join("plane.db")).unwrap();
    database.execute("UPDATE blobs SET content = x'6f74686572'", []).unwrap();
    let error = store.blob(&digest).unwrap_err();
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert!(cause.contains(&digest.to_hex()), "{cause}");
}

/// A home with runs that ended, and nobody who uses it.
fn home_with_runs() -> (tempfile::TempDir, PathBuf) {
    let plane = Plane::start();
    let runner = HandRunner::enroll(&plane, "default");
    for number in 0..8 {
        plane.submit(&format!("echo {number} {}", "x".repeat(2_000)));
        let mut held = runner.claim(0).unwrap();
        runner.start(&mut held);
        assert_eq!(runner.finish(&mut held).0, 200);
    }
    let copy = tempfile::tempdir().unwrap();
    let home = copy.path().join("home");
    let from = plane.dir.path().join("home");
    drop(plane.service.plane().store().check_writable());
    let copied = std::process::Command::new("cp").arg("-a").args([&from, &home]).status().unwrap();
    assert!(copied.success());
    (copy, home)
}

fn serve(home: &Path) -> Result<EmbeddedPlane, String> {
    let home = Home::open_at(home.to_owned(), None).unwrap();
    EmbeddedPlane::open_service(home, crate::support::policy_hash()).map_err(|e| e.to_string())
}

fn change(home: &Path, sql: &str) {
    let database = rusqlite::Connection::open(home.join("data/plane.db")).unwrap();
    database.execute_batch(sql).unwrap();
}

#[test]
fn a_damaged_store_is_not_served() {
    let (_dir, home) = home_with_runs();
    drop(serve(&home).unwrap());
    change(&home, "PRAGMA wal_checkpoint(TRUNCATE)");
    let sound = fs::read(home.join("data/plane.db")).unwrap();
    let check = |damage: &dyn Fn()| {
        for name in ["plane.db-wal", "plane.db-shm"] {
            let _ = fs::remove_file(home.join("data").join(name));
        }
        fs::write(home.join("data/plane.db"), &sound).unwrap();
        damage();
        let refusal = serve(&home).unwrap_err();
        assert!(refusal.contains("damaged") && refusal.contains("warrant fsck"), "{refusal}");
        assert!(refusal.contains("restore FILE"), "{refusal}");
    };
    check(&|| {
        let file = OpenOptions::new().write(true).open(home.join("data/plane.db")).unwrap();
        let pages = file.metadata().unwrap().len() / 4096;
        for page in 2..pages {
            file.write_all_at(&[0xA5; 512], page * 4096).unwrap();
        }
    });
    check(&|| {
        change(&home, "DROP TRIGGER events_last; DELETE FROM events WHERE run = 3 AND seq = 1;")
    });
    check(&|| {
        change(
            &home,
            "DROP TRIGGER receipts_last; DELETE FROM receipts WHERE run = 5;
             CREATE TRIGGER receipts_last BEFORE DELETE ON receipts
               WHEN OLD.run NOT IN (SELECT run FROM sweeping)
               BEGIN SELECT RAISE(ABORT, 'receipts are append-only'); END;",
        );
    });
    check(&|| change(&home, "UPDATE runs SET event_count = event_count + 1 WHERE seq = 2"));
}
