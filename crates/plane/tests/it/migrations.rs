//! Databases of every schema so far are kept as text; each becomes one of today's and is sound.
//!
//! The files are `tests/stores/vN.sql`, with the public keys of their home in
//! `tests/stores/home-vN`, or `tests/stores/home` for the first five.
//! Whoever adds a schema writes the file of the one before it first:
//! `WARRANT_WRITE_STORE=1 cargo test -p warrant-plane --test it migrations`.

use std::fs;
use std::path::{Path, PathBuf};

use rusqlite::Connection;
use warrant_plane::Store;
use warrant_protocol::{Decision, RunState};

use crate::backup::check;
use crate::rotation::{complete_own, open};
use crate::support::{judgment, requirement, submit};

fn stores() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/stores")
}

/// The schema that this program writes.
fn today() -> u32 {
    let dir = tempfile::tempdir().unwrap();
    drop(Store::open(dir.path()).unwrap());
    version(&dir.path().join("plane.db"))
}

fn version(database: &Path) -> u32 {
    let connection = Connection::open(database).unwrap();
    connection.pragma_query_value(None, "user_version", |row| row.get(0)).unwrap()
}

/// Where the public keys of the home are whose store this is.
fn keys_of(number: u32) -> PathBuf {
    let own = stores().join(format!("home-v{number}"));
    if own.exists() { own } else { stores().join("home") }
}

/// Makes a home with the database of a file.
fn home_of(number: u32, text: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("home");
    for below in ["keys", "data", "data/alive", "data/sessions", "data/blobs"] {
        fs::create_dir_all(home.join(below)).unwrap();
    }
    for name in ["home.json", "keys/plane.pub.pem", "keys/runner.pub.pem"] {
        fs::copy(keys_of(number).join(name), home.join(name)).unwrap();
    }
    let connection = Connection::open(home.join("data/plane.db")).unwrap();
    connection.pragma_update(None, "journal_mode", "WAL").unwrap();
    connection.execute_batch(text).unwrap();
    dir
}

/// Returns a database as text that makes it again.
fn dump(database: &Path) -> String {
    let connection = Connection::open(database).unwrap();
    let strings = |sql: &str| -> Vec<String> {
        let mut statement = connection.prepare(sql).unwrap();
        let rows = statement.query_map([], |row| row.get(0)).unwrap();
        rows.collect::<Result<_, _>>().unwrap()
    };
    let made = "FROM sqlite_master WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%'";
    let mut text = String::from("BEGIN;\n");
    for sql in strings(&format!("SELECT sql {made} AND type = 'table' ORDER BY rowid")) {
        text.push_str(&format!("{sql};\n"));
    }
    for table in strings(&format!("SELECT name {made} AND type = 'table' ORDER BY rowid")) {
        let columns = strings(&format!("SELECT name FROM pragma_table_info('{table}')"));
        let quoted: Vec<String> = columns.iter().map(|name| format!("quote({name})")).collect();
        let rows = format!("SELECT {} FROM {table}", quoted.join(" || ',' || "));
        for row in strings(&rows) {
            text.push_str(&format!(
                "INSERT INTO {table} ({}) VALUES ({row});\n",
                columns.join(",")
            ));
        }
    }
    for sql in strings(&format!("SELECT sql {made} AND type <> 'table' ORDER BY rowid")) {
        text.push_str(&format!("{sql};\n"));
    }
    format!("{text}PRAGMA user_version = {};\nCOMMIT;\n", version(database))
}

/// Writes the file of today's schema, from a home whose runs ended, wait and were denied.
fn write_today() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("home");
    let plane = open(&home);
    complete_own(&plane, "echo one");
    complete_own(&plane, "echo two");
    submit(&plane, "rm -rf /", judgment(Decision::Deny, Vec::new()));
    let asks = judgment(Decision::Ask, vec![requirement(&["bob"], 1)]);
    submit(&plane, "git push", asks);
    submit(&plane, "echo three", judgment(Decision::Allow, Vec::new()));
    let mut writer = plane.store().blob_writer();
    std::io::Write::write_all(&mut writer, b"a small blob").unwrap();
    plane.store().record_blobs(vec![writer.finish().unwrap()], crate::support::now()).unwrap();
    drop(plane);
    let keys = stores().join(format!("home-v{}", today()));
    fs::create_dir_all(keys.join("keys")).unwrap();
    for name in ["home.json", "keys/plane.pub.pem", "keys/runner.pub.pem"] {
        fs::copy(home.join(name), keys.join(name)).unwrap();
    }
    let text = dump(&home.join("data/plane.db"));
    fs::write(stores().join(format!("v{}.sql", today())), text).unwrap();
}

#[test]
fn a_store_of_every_schema_becomes_one_of_today_and_is_sound() {
    let today = today();
    if std::env::var_os("WARRANT_WRITE_STORE").is_some() {
        write_today();
    }
    for number in 1..today {
        let file = stores().join(format!("v{number}.sql"));
        let text =
            fs::read_to_string(&file).unwrap_or_else(|_| panic!("{} is missing", file.display()));
        let dir = home_of(number, &text);
        let home = dir.path().join("home");
        assert_eq!(version(&home.join("data/plane.db")), number);
        let store = Store::open(&home.join("data")).unwrap();
        assert_eq!(version(&home.join("data/plane.db")), today);
        store.check_at_opening().unwrap_or_else(|error| panic!("v{number}: {error}"));
        let states: Vec<RunState> = store
            .list(&warrant_plane::store::RunFilter::default())
            .unwrap()
            .runs
            .iter()
            .map(|run| run.state)
            .collect();
        assert!(states.contains(&RunState::Completed) && states.contains(&RunState::Denied));
        assert!(states.contains(&RunState::AwaitingApproval), "v{number}: {states:?}");
        drop(store);
        let report = check(&home);
        assert!(report.is_sound(), "v{number}: {:?}", report.problems);
        assert!(report.checked.bundles >= 3 && report.checked.blobs == 1, "v{number}: {report:?}");
    }
}

#[test]
fn a_store_of_a_newer_schema_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    drop(Store::open(dir.path()).unwrap());
    let newer = today() + 1;
    let connection = Connection::open(dir.path().join("plane.db")).unwrap();
    connection.pragma_update(None, "user_version", newer).unwrap();
    let refused = Store::open(dir.path()).unwrap_err().to_string();
    assert!(refused.contains(&format!("schema {newer}")), "{refused}");
    assert_eq!(version(&dir.path().join("plane.db")), newer, "and left as it is");
}
