//! Who may talk to the plane over the network: principals, runners, and tokens that let runners in.
//!
//! Tokens are kept as SHA-256 only.

use rusqlite::{Connection, OptionalExtension as _, Row, params};
use warrant_protocol::{Digest, Timestamp};

use super::read::optional_timestamp;
use super::steps::{digest_column, timestamp_column};
use super::{Durability, Store, StoreError};

/// A principal, as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrincipalRow {
    /// Their id.
    pub id: String,
    /// What they are called.
    pub name: String,
    /// What they may do.
    pub role: String,
    /// Whether it is a `human` or a `service`.
    pub kind: String,
    /// The groups they are in, as a JSON list.
    pub groups: String,
    /// The digest of their token.
    pub token_hash: Digest,
    /// Since when.
    pub created_at: Timestamp,
    /// When their token was withdrawn.
    pub revoked_at: Option<Timestamp>,
}

/// A runner, as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunnerRow {
    /// Its id.
    pub id: String,
    /// Where it works.
    pub pool: String,
    /// Its public key, verbatim.
    pub public_key_pem: String,
    /// The digest of its token.
    pub token_hash: Digest,
    /// Since when.
    pub enrolled_at: Timestamp,
    /// When it was sent away.
    pub revoked_at: Option<Timestamp>,
    /// What it said it can do when it last asked for work, as JSON text.
    pub abilities: Option<String>,
}

/// A token that lets one runner in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnrollTokenRow {
    /// Its digest.
    pub token_hash: Digest,
    /// The only pool it is good for.
    pub pool: Option<String>,
    /// Since when.
    pub created_at: Timestamp,
    /// Until when.
    pub expires_at: Timestamp,
}

/// What lets a runner in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EnrollToken {
    /// A token that lets any number in, checked by the caller.
    Reusable,
    /// A token that lets one in, by its digest.
    Once(Digest),
}

/// What an enrollment with a key that is known means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EnrollAgain {
    /// The same runner: the sender proved that it has the private key.
    SameRunner,
    /// Another runner.
    NewRunner,
}

/// What became of an enrollment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Enrolling {
    /// The runner is in, under this id.
    Enrolled(String),
    /// The token is unknown, used by another runner or over, or is for another pool; it was not
    /// used up by this.
    Refused,
    /// The runner with this key was revoked.
    Revoked,
}

impl Store {
    /// Keeps a principal; false when the name is taken.
    ///
    /// # Errors
    /// [`StoreError`] when nothing could be kept.
    pub fn add_principal(&self, principal: PrincipalRow) -> Result<bool, StoreError> {
        self.write(Durability::Now, move |connection| {
            let added = connection.execute(
                "INSERT INTO principals
                   (id, name, role, kind, groups, token_hash, created_at, revoked_at)
                 VALUES (?, ?, ?, ?, ?, ?, ?, NULL) ON CONFLICT (name) DO NOTHING",
                params![
                    principal.id,
                    principal.name,
                    principal.role,
                    principal.kind,
                    principal.groups,
                    principal.token_hash.as_bytes(),
                    principal.created_at.unix_ms(),
                ],
            )?;
            Ok(added == 1)
        })
    }

    /// Gives a principal another token, and with it their rights back; false when there is none.
    ///
    /// # Errors
    /// [`StoreError`] when nothing could be kept.
    pub fn set_principal_token(&self, name: &str, hash: Digest) -> Result<bool, StoreError> {
        let name = name.to_owned();
        self.write(Durability::Now, move |connection| {
            let changed = connection.execute(
                "UPDATE principals SET token_hash = ?, revoked_at = NULL WHERE name = ?",
                params![hash.as_bytes(), name],
            )?;
            Ok(changed == 1)
        })
    }

    /// Withdraws a principal's token; false when there is no such principal.
    ///
    /// # Errors
    /// [`StoreError`] when nothing could be kept.
    pub fn revoke_principal(&self, name: &str, at: Timestamp) -> Result<bool, StoreError> {
        let name = name.to_owned();
        self.write(Durability::Now, move |connection| {
            let changed = connection.execute(
                "UPDATE principals SET revoked_at = coalesce(revoked_at, ?) WHERE name = ?",
                params![at.unix_ms(), name],
            )?;
            Ok(changed == 1)
        })
    }

    /// Returns every principal, oldest first.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be read.
    pub fn principals(&self) -> Result<Vec<PrincipalRow>, StoreError> {
        self.read(|connection| {
            let mut statement = connection.prepare_cached(
                "SELECT id, name, role, kind, groups, token_hash, created_at, revoked_at
                 FROM principals ORDER BY created_at, name",
            )?;
            let rows = statement.query_map([], principal_row)?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }

    /// Keeps a token that lets one runner in.
    ///
    /// # Errors
    /// [`StoreError`] when nothing could be kept.
    pub fn add_enroll_token(&self, token: EnrollTokenRow) -> Result<(), StoreError> {
        self.write(Durability::Now, move |connection| {
            connection.execute(
                "DELETE FROM enroll_tokens WHERE expires_at < ?",
                [token.created_at.unix_ms()],
            )?;
            connection.execute(
                "INSERT INTO enroll_tokens (token_hash, pool, created_at, expires_at)
                 VALUES (?, ?, ?, ?)",
                params![
                    token.token_hash.as_bytes(),
                    token.pool,
                    token.created_at.unix_ms(),
                    token.expires_at.unix_ms(),
                ],
            )?;
            Ok(())
        })
    }

    /// Lets a runner in and uses up its token, both or neither. The same runner again, by its key,
    /// is the same runner: with a token for many, or with the one-time token that let it in.
    ///
    /// # Errors
    /// [`StoreError`] when nothing could be kept.
    pub fn enroll(
        &self,
        token: EnrollToken,
        runner: RunnerRow,
        again: EnrollAgain,
    ) -> Result<Enrolling, StoreError> {
        self.write(Durability::Now, move |connection| {
            let known = match again {
                EnrollAgain::SameRunner => runner_with_key(connection, &runner)?,
                EnrollAgain::NewRunner => None,
            };
            if known.as_ref().is_some_and(|known| known.revoked_at.is_some()) {
                return Ok(Enrolling::Revoked);
            }
            if let EnrollToken::Once(hash) = token {
                let id = known.as_ref().map_or(&runner.id, |known| &known.id);
                let used = connection.execute(
                    "UPDATE enroll_tokens SET used_at = coalesce(used_at, ?1), used_by = ?4
                     WHERE token_hash = ?2 AND (pool IS NULL OR pool = ?3)
                       AND (used_by = ?4 OR (used_at IS NULL AND expires_at > ?1))",
                    params![runner.enrolled_at.unix_ms(), hash.as_bytes(), runner.pool, id],
                )?;
                if used == 0 {
                    return Ok(Enrolling::Refused);
                }
            }
            match known {
                Some(known) => Ok(Enrolling::Enrolled(known.id)),
                None => {
                    insert_runner(connection, &runner, again)?;
                    Ok(Enrolling::Enrolled(runner.id))
                }
            }
        })
    }

    /// Sets the token of a runner, when it is another one.
    ///
    /// # Errors
    /// [`StoreError`] when nothing could be kept.
    pub fn set_runner_token(&self, id: &str, hash: Digest) -> Result<(), StoreError> {
        let id = id.to_owned();
        self.write(Durability::Now, move |connection| {
            connection.execute(
                "UPDATE runners SET token_hash = ?1 WHERE id = ?2 AND token_hash <> ?1",
                params![hash.as_bytes(), id],
            )?;
            Ok(())
        })
    }

    /// Sends a runner away; false when there is none of that id.
    ///
    /// # Errors
    /// [`StoreError`] when nothing could be kept.
    pub fn revoke_runner(&self, id: &str, at: Timestamp) -> Result<bool, StoreError> {
        let id = id.to_owned();
        self.write(Durability::Now, move |connection| {
            let changed = connection.execute(
                "UPDATE runners SET revoked_at = coalesce(revoked_at, ?) WHERE id = ?",
                params![at.unix_ms(), id],
            )?;
            Ok(changed == 1)
        })
    }

    /// Keeps what a runner says it can do.
    ///
    /// # Errors
    /// [`StoreError`] when nothing could be kept.
    pub fn set_runner_abilities(&self, id: &str, abilities: String) -> Result<(), StoreError> {
        let id = id.to_owned();
        self.write(Durability::WithNext, move |connection| {
            connection
                .prepare_cached("UPDATE runners SET abilities = ? WHERE id = ?")?
                .execute(params![abilities, id])?;
            Ok(())
        })
    }

    /// Returns every runner, oldest first.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be read.
    pub fn runners(&self) -> Result<Vec<RunnerRow>, StoreError> {
        self.read(|connection| {
            let mut statement = connection.prepare_cached(
                "SELECT id, pool, public_key_pem, token_hash, enrolled_at, revoked_at, abilities
                 FROM runners ORDER BY enrolled_at, id",
            )?;
            let rows = statement.query_map([], runner_row)?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }

    /// Returns one runner, if there is one of that id.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be read.
    pub fn runner(&self, id: &str) -> Result<Option<RunnerRow>, StoreError> {
        self.read(|connection| {
            let mut statement = connection.prepare_cached(
                "SELECT id, pool, public_key_pem, token_hash, enrolled_at, revoked_at, abilities
                 FROM runners WHERE id = ?",
            )?;
            Ok(statement.query_row([id], runner_row).optional()?)
        })
    }
}

/// Returns the runner that proved to have this key in this pool.
// SECURITY: one that only named the key may be anybody.
fn runner_with_key(
    connection: &Connection,
    runner: &RunnerRow,
) -> Result<Option<RunnerRow>, StoreError> {
    let mut statement = connection.prepare_cached(
        "SELECT id, pool, public_key_pem, token_hash, enrolled_at, revoked_at, abilities
         FROM runners WHERE public_key_pem = ? AND pool = ? AND is_proved = 1",
    )?;
    let found = statement.query_row(params![runner.public_key_pem, runner.pool], runner_row);
    Ok(found.optional()?)
}

fn insert_runner(
    connection: &Connection,
    runner: &RunnerRow,
    again: EnrollAgain,
) -> Result<(), StoreError> {
    connection.execute(
        "INSERT INTO runners (id, pool, public_key_pem, token_hash, enrolled_at, is_proved)
         VALUES (?, ?, ?, ?, ?, ?)",
        params![
            runner.id,
            runner.pool,
            runner.public_key_pem,
            runner.token_hash.as_bytes(),
            runner.enrolled_at.unix_ms(),
            again == EnrollAgain::SameRunner,
        ],
    )?;
    Ok(())
}

fn principal_row(row: &Row<'_>) -> rusqlite::Result<PrincipalRow> {
    Ok(PrincipalRow {
        id: row.get(0)?,
        name: row.get(1)?,
        role: row.get(2)?,
        kind: row.get(3)?,
        groups: row.get(4)?,
        token_hash: digest_column(row, 5)?,
        created_at: timestamp_column(row, 6)?,
        revoked_at: optional_timestamp(row, 7)?,
    })
}

fn runner_row(row: &Row<'_>) -> rusqlite::Result<RunnerRow> {
    Ok(RunnerRow {
        id: row.get(0)?,
        pool: row.get(1)?,
        public_key_pem: row.get(2)?,
        token_hash: digest_column(row, 3)?,
        enrolled_at: timestamp_column(row, 4)?,
        revoked_at: optional_timestamp(row, 5)?,
        abilities: row.get(6)?,
    })
}
