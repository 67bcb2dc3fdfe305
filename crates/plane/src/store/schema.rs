//! The schema, by version. What a run left behind is append-only; triggers hold that.

use std::path::Path;

use rusqlite::Connection;

use super::StoreError;
use crate::files::FileLock;

/// The schema this program writes.
pub(super) const VERSION: u32 = 8;

const V1: &str = "
CREATE TABLE runs (
  seq INTEGER PRIMARY KEY,
  id TEXT NOT NULL UNIQUE,
  state TEXT NOT NULL,
  epoch INTEGER NOT NULL DEFAULT 0,
  owner TEXT,
  runner TEXT,
  lease_until INTEGER,
  pool TEXT NOT NULL,
  agent_kind TEXT NOT NULL,
  isolation TEXT,
  prompt TEXT NOT NULL,
  requested_by TEXT NOT NULL,
  request_hash BLOB NOT NULL,
  policy_hash BLOB NOT NULL,
  created_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL,
  deadline INTEGER,
  judgment TEXT NOT NULL,
  request TEXT NOT NULL,
  contract TEXT,
  head BLOB,
  event_count INTEGER NOT NULL DEFAULT 0,
  idempotency TEXT UNIQUE
) STRICT;
CREATE INDEX runs_live ON runs (state, seq)
  WHERE state IN ('awaiting_approval', 'queued', 'leased', 'running');
CREATE TABLE events (
  run INTEGER NOT NULL,
  seq INTEGER NOT NULL,
  ts INTEGER NOT NULL,
  hash BLOB NOT NULL,
  body TEXT NOT NULL,
  PRIMARY KEY (run, seq)
) STRICT, WITHOUT ROWID;
CREATE INDEX events_by_time ON events (ts, run, seq);
CREATE TABLE receipts (
  run INTEGER PRIMARY KEY,
  hash BLOB NOT NULL,
  body TEXT NOT NULL,
  created_at INTEGER NOT NULL
) STRICT;
CREATE TABLE approvals (
  id INTEGER PRIMARY KEY,
  run INTEGER NOT NULL,
  approver TEXT NOT NULL,
  key_id TEXT NOT NULL,
  level INTEGER NOT NULL,
  statement TEXT NOT NULL,
  expires_at INTEGER NOT NULL,
  created_at INTEGER NOT NULL,
  used_at INTEGER,
  UNIQUE (run, approver)
) STRICT;
CREATE TABLE blobs (
  digest BLOB PRIMARY KEY,
  size INTEGER NOT NULL,
  content BLOB,
  created_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE policies (
  seq INTEGER PRIMARY KEY,
  hash BLOB NOT NULL,
  body TEXT NOT NULL,
  set_by TEXT NOT NULL,
  created_at INTEGER NOT NULL
) STRICT;
CREATE TABLE clocks (name TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT, WITHOUT ROWID;
CREATE TRIGGER events_stay BEFORE UPDATE ON events
  BEGIN SELECT RAISE(ABORT, 'events are append-only'); END;
CREATE TRIGGER events_last BEFORE DELETE ON events
  BEGIN SELECT RAISE(ABORT, 'events are append-only'); END;
CREATE TRIGGER receipts_stay BEFORE UPDATE ON receipts
  BEGIN SELECT RAISE(ABORT, 'receipts are append-only'); END;
CREATE TRIGGER receipts_last BEFORE DELETE ON receipts
  BEGIN SELECT RAISE(ABORT, 'receipts are append-only'); END;
CREATE TRIGGER runs_last BEFORE DELETE ON runs
  BEGIN SELECT RAISE(ABORT, 'runs are append-only'); END;
CREATE TRIGGER contracts_stay BEFORE UPDATE OF contract, request, request_hash ON runs
  WHEN OLD.contract IS NOT NULL OR NEW.request IS NOT OLD.request
       OR NEW.request_hash IS NOT OLD.request_hash
  BEGIN SELECT RAISE(ABORT, 'a request and a contract never change'); END;
";

/// Runners and people who come over the network, a fair queue, stops, and retention.
const V2: &str = "
ALTER TABLE runs ADD COLUMN priority INTEGER NOT NULL DEFAULT 0;
ALTER TABLE runs ADD COLUMN turn INTEGER NOT NULL DEFAULT 0;
ALTER TABLE runs ADD COLUMN stop_by TEXT;
ALTER TABLE runs ADD COLUMN stop_at INTEGER;
DROP INDEX runs_live;
CREATE INDEX runs_by_state ON runs (state, seq);
CREATE INDEX runs_queue ON runs (pool, priority DESC, turn, seq) WHERE state = 'queued';
CREATE TABLE turns (
  pool TEXT NOT NULL,
  requester TEXT NOT NULL,
  turn INTEGER NOT NULL,
  PRIMARY KEY (pool, requester)
) STRICT, WITHOUT ROWID;
CREATE TABLE principals (
  id TEXT PRIMARY KEY,
  name TEXT NOT NULL UNIQUE,
  role TEXT NOT NULL,
  kind TEXT NOT NULL,
  groups TEXT NOT NULL,
  token_hash BLOB NOT NULL UNIQUE,
  created_at INTEGER NOT NULL,
  revoked_at INTEGER
) STRICT, WITHOUT ROWID;
CREATE TABLE runners (
  id TEXT PRIMARY KEY,
  pool TEXT NOT NULL,
  public_key_pem TEXT NOT NULL,
  token_hash BLOB NOT NULL UNIQUE,
  enrolled_at INTEGER NOT NULL,
  revoked_at INTEGER
) STRICT, WITHOUT ROWID;
CREATE TABLE enroll_tokens (
  token_hash BLOB PRIMARY KEY,
  pool TEXT,
  created_at INTEGER NOT NULL,
  expires_at INTEGER NOT NULL,
  used_at INTEGER
) STRICT, WITHOUT ROWID;
CREATE TABLE sweeping (run INTEGER PRIMARY KEY) STRICT;
DROP TRIGGER events_last;
DROP TRIGGER receipts_last;
DROP TRIGGER runs_last;
CREATE TRIGGER events_last BEFORE DELETE ON events
  WHEN OLD.run NOT IN (SELECT run FROM sweeping)
  BEGIN SELECT RAISE(ABORT, 'events are append-only'); END;
CREATE TRIGGER receipts_last BEFORE DELETE ON receipts
  WHEN OLD.run NOT IN (SELECT run FROM sweeping)
  BEGIN SELECT RAISE(ABORT, 'receipts are append-only'); END;
CREATE TRIGGER runs_last BEFORE DELETE ON runs
  WHEN OLD.seq NOT IN (SELECT run FROM sweeping)
  BEGIN SELECT RAISE(ABORT, 'runs are append-only'); END;
PRAGMA user_version = 2;
";

/// What was decided and done in the sessions of foreign clients, in their own order.
const V3: &str = "
CREATE TABLE records (
  session TEXT NOT NULL,
  lamport INTEGER NOT NULL,
  owner TEXT NOT NULL,
  run TEXT NOT NULL,
  hash BLOB NOT NULL,
  body TEXT NOT NULL,
  signature TEXT NOT NULL,
  created_at INTEGER NOT NULL,
  PRIMARY KEY (session, lamport)
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX records_by_hash ON records (hash);
CREATE TABLE sessions (
  session TEXT PRIMARY KEY,
  owner TEXT NOT NULL,
  created_at INTEGER NOT NULL,
  lamport INTEGER NOT NULL,
  count INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX sessions_by_owner ON sessions (owner, created_at DESC, session);
CREATE TRIGGER records_stay BEFORE UPDATE ON records
  BEGIN SELECT RAISE(ABORT, 'records are append-only'); END;
PRAGMA user_version = 3;
";

/// Runs that only this machine can carry out, and lists by whatever a list is narrowed by.
const V4: &str = "
ALTER TABLE runs ADD COLUMN is_local INTEGER NOT NULL DEFAULT 0;
CREATE INDEX runs_by_pool ON runs (pool, seq, requested_by, agent_kind);
CREATE INDEX runs_by_requester ON runs (requested_by, seq, pool, agent_kind);
CREATE INDEX runs_by_agent ON runs (agent_kind, seq, pool, requested_by);
PRAGMA user_version = 4;
";

/// What of a run never changes lies beside it, so that a change of state writes a short row; lists
/// narrowed by a state need no row that they do not show; and reports of examinations.
const V5: &str = "
CREATE TABLE papers (
  run INTEGER PRIMARY KEY,
  prompt TEXT NOT NULL,
  judgment TEXT NOT NULL,
  request TEXT NOT NULL,
  contract TEXT
) STRICT;
INSERT INTO papers SELECT seq, prompt, judgment, request, contract FROM runs;
DROP TRIGGER contracts_stay;
ALTER TABLE runs DROP COLUMN prompt;
ALTER TABLE runs DROP COLUMN judgment;
ALTER TABLE runs DROP COLUMN request;
ALTER TABLE runs DROP COLUMN contract;
CREATE TRIGGER requests_stay BEFORE UPDATE OF request_hash ON runs
  WHEN NEW.request_hash IS NOT OLD.request_hash
  BEGIN SELECT RAISE(ABORT, 'a request and a contract never change'); END;
CREATE TRIGGER papers_stay BEFORE UPDATE ON papers
  WHEN OLD.contract IS NOT NULL OR NEW.request IS NOT OLD.request
       OR NEW.prompt IS NOT OLD.prompt OR NEW.judgment IS NOT OLD.judgment
  BEGIN SELECT RAISE(ABORT, 'a request and a contract never change'); END;
CREATE TRIGGER papers_last BEFORE DELETE ON papers
  WHEN OLD.run NOT IN (SELECT run FROM sweeping)
  BEGIN SELECT RAISE(ABORT, 'runs are append-only'); END;
DROP INDEX runs_by_state;
CREATE INDEX runs_by_state ON runs (state, seq, pool, requested_by, agent_kind);
CREATE TABLE reports (
  id TEXT PRIMARY KEY,
  owner TEXT NOT NULL,
  body TEXT NOT NULL,
  created_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX reports_by_owner ON reports (owner, created_at, id);
PRAGMA user_version = 5;
";

/// What runners said that could be refuted, what each runner can do, whose blobs are whose, and
/// counts of a requester's last minutes whatever came before them.
const V6: &str = "
CREATE TABLE false_claims (
  id INTEGER PRIMARY KEY,
  runner TEXT NOT NULL,
  run TEXT NOT NULL,
  epoch INTEGER NOT NULL,
  field TEXT NOT NULL,
  detail TEXT NOT NULL,
  created_at INTEGER NOT NULL,
  UNIQUE (runner, run, epoch, field, detail)
) STRICT;
CREATE TRIGGER false_claims_stay BEFORE UPDATE ON false_claims
  BEGIN SELECT RAISE(ABORT, 'false claims are append-only'); END;
ALTER TABLE runners ADD COLUMN abilities TEXT;
CREATE INDEX runs_by_time ON runs (requested_by, created_at);
CREATE INDEX runs_denied ON runs (requested_by, created_at) WHERE state = 'denied';
CREATE TABLE blob_uploaders (
  principal TEXT NOT NULL,
  digest BLOB NOT NULL,
  PRIMARY KEY (principal, digest)
) STRICT, WITHOUT ROWID;
CREATE INDEX blob_uploaders_by_digest ON blob_uploaders (digest);
CREATE INDEX approvals_by_approver ON approvals (approver, run);
CREATE TABLE blob_runs (
  digest BLOB NOT NULL,
  run INTEGER NOT NULL,
  PRIMARY KEY (digest, run)
) STRICT, WITHOUT ROWID;
CREATE INDEX blob_runs_by_run ON blob_runs (run);
INSERT OR IGNORE INTO blob_runs
  SELECT unhex(artifact.value), receipts.run
  FROM receipts, json_each(CASE WHEN json_valid(receipts.body) THEN receipts.body ELSE '{}' END,
    '$.workspaceOut.artifactHashes') AS artifact
  WHERE unhex(artifact.value) IS NOT NULL;
INSERT OR IGNORE INTO blob_runs
  SELECT unhex(found.value), papers.run
  FROM papers, json_tree(CASE WHEN json_valid(papers.request) THEN papers.request ELSE '{}' END,
    '$.workspace') AS found
  WHERE found.type = 'text' AND length(found.value) = 64 AND unhex(found.value) IS NOT NULL;
PRAGMA user_version = 6;
";

/// What was agreed with the runner of a lease, in durations, and which process of it took the run;
/// and which runner a one-time enroll token let in, and whether it proved to have its key.
const V7: &str = "
ALTER TABLE runs ADD COLUMN lease_ms INTEGER;
ALTER TABLE runs ADD COLUMN disconnect_ms INTEGER;
ALTER TABLE runs ADD COLUMN generation INTEGER;
UPDATE runs SET lease_ms = lease_until - updated_at WHERE lease_until > updated_at;
ALTER TABLE enroll_tokens ADD COLUMN used_by TEXT;
ALTER TABLE runners ADD COLUMN is_proved INTEGER NOT NULL DEFAULT 0;
PRAGMA user_version = 7;
";

/// Which process of its machine took a run, for a plane of the same machine.
const V8: &str = "
ALTER TABLE runs ADD COLUMN process TEXT;
PRAGMA user_version = 8;
";

/// What leads from each version to the next; the first makes an empty database one of version 1.
const STEPS: [&str; VERSION as usize] = [V1, V2, V3, V4, V5, V6, V7, V8];

/// Makes everything that a database of this version has.
pub(super) fn make(connection: &Connection) -> Result<(), StoreError> {
    Ok(connection.execute_batch(&STEPS.concat())?)
}

/// Brings the database to the schema we write; refuses one that is newer.
pub(super) fn prepare(
    connection: &Connection,
    is_new: bool,
    lock: &Path,
) -> Result<(), StoreError> {
    // Else what savepoints may have to take back spills into a file at every larger commit.
    connection.pragma_update(None, "temp_store", "MEMORY")?;
    if !is_new && version(connection)? == VERSION {
        return Ok(());
    }
    // SQLite does not wait while another process changes the journal's mode.
    let _lock = FileLock::wait(lock)?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.execute_batch("BEGIN IMMEDIATE")?;
    // Another process may have been faster.
    let found = version(connection)?;
    let Some(missing) = STEPS.get(found as usize..) else {
        connection.execute_batch("ROLLBACK")?;
        return Err(StoreError::Newer { found, known: VERSION });
    };
    let result = connection.execute_batch(&missing.concat());
    let end = if result.is_ok() { "COMMIT" } else { "ROLLBACK" };
    connection.execute_batch(end)?;
    Ok(result?)
}

pub(super) fn version(connection: &Connection) -> Result<u32, StoreError> {
    Ok(connection.pragma_query_value(None, "user_version", |row| row.get(0))?)
}
