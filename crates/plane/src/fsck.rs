//! Checks everything that a home stores: the database, every run with its chain, receipt and
//! bundle, every blob, every record. Nothing is changed, and nothing needs a private key.
//!
//! A bundle is checked by the function that `warrant verify` uses. The home may be in use: a run
//! or blob that retention removes meanwhile is not a problem.

use std::path::Path;

use serde::Serialize;
use thiserror::Error;
use warrant_protocol::bundle::Bundle;
use warrant_protocol::verify::verify;
use warrant_protocol::{
    Chain, ChainedEvent, Contract, Digest, KeyRole, PublicKey, Receipt, RunId, TrustedKeys,
};

use crate::archive::{ArchiveError, Records};
use crate::home::HomeError;
use crate::read_only::{ReadOnlyError, ReadOnlyHome};
use crate::store::{BLOB_GRACE_MS, RunFacts, RunRow, StoreError};

/// How many rows are looked at between two reports of progress.
const BATCH: u32 = 64;

/// More problems than this are counted and not kept.
const MOST_KEPT: usize = 1_000;

/// What a check found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FsckReport {
    /// How much was checked.
    pub checked: FsckCounts,
    /// How many problems there are.
    pub problem_count: u64,
    /// The first thousand of them.
    pub problems: Vec<FsckProblem>,
    /// Artifacts that receipts name and the store no longer has; retention removes them before
    /// the receipts.
    pub artifacts_absent: u64,
}

/// How much was checked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FsckCounts {
    /// Runs.
    pub runs: u64,
    /// Bundles of ended runs.
    pub bundles: u64,
    /// Events of chains.
    pub events: u64,
    /// Blobs.
    pub blobs: u64,
    /// Bytes of blobs.
    pub blob_bytes: u64,
}

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FsckProblem {
    /// Which kind.
    pub kind: ProblemKind,
    /// The run, blob or session it is about; the store when it is none of them.
    pub subject: String,
    /// What is wrong.
    pub detail: String,
}

/// What a problem is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ProblemKind {
    /// Pages, indexes, tables and triggers of the database.
    Database,
    /// The row of a run, and what other tables say of it.
    Run,
    /// The links of a chain.
    Chain,
    /// A receipt.
    Receipt,
    /// A bundle does not verify.
    Bundle,
    /// A blob is missing or holds other bytes.
    Blob,
    /// A record of a session.
    Record,
}

impl ProblemKind {
    /// Returns the word for it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Database => "database",
            Self::Run => "run",
            Self::Chain => "chain",
            Self::Receipt => "receipt",
            Self::Bundle => "bundle",
            Self::Blob => "blob",
            Self::Record => "record",
        }
    }
}

/// How far a check is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FsckProgress {
    /// What is looked at.
    pub phase: &'static str,
    /// How many were.
    pub done: u64,
    /// How many there are.
    pub total: u64,
}

/// Why nothing could be checked.
#[derive(Debug, Error)]
pub enum FsckError {
    /// The home cannot be read.
    #[error(transparent)]
    Home(#[from] HomeError),
    /// The store cannot be read for another reason than damage.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Checks the home at `root`; `progress` hears how far it is.
///
/// # Errors
/// [`FsckError`] when nothing could be checked. Damage is no error but a report.
pub fn fsck(root: &Path, progress: &mut dyn FnMut(FsckProgress)) -> Result<FsckReport, FsckError> {
    let mut report = FsckReport::default();
    let home = match ReadOnlyHome::open(root) {
        Ok(home) => home,
        Err(ReadOnlyError::Home(error)) => return Err(error.into()),
        Err(ReadOnlyError::Store(error)) => return unreadable(report, error),
    };
    let mut check = FsckRun { records: home.records(), report: &mut report, progress };
    match check.everything() {
        Ok(()) => Ok(report),
        Err(FsckError::Store(error)) => unreadable(report, error),
        Err(error) => Err(error),
    }
}

/// A store that cannot be read because it is damaged is a report, not an error.
fn unreadable(mut report: FsckReport, error: StoreError) -> Result<FsckReport, FsckError> {
    let detail = match error {
        StoreError::Corrupt { detail, .. } => detail,
        StoreError::Unreadable { cause: Some(cause), .. } => cause.to_string(),
        StoreError::Sql(cause) => cause.to_string(),
        StoreError::Malformed(what) => format!("malformed {what}"),
        other => return Err(other.into()),
    };
    report.add(ProblemKind::Database, "store", detail);
    Ok(report)
}

impl FsckReport {
    /// Returns whether nothing is wrong.
    #[must_use]
    pub const fn is_sound(&self) -> bool {
        self.problem_count == 0
    }

    fn add(&mut self, kind: ProblemKind, subject: &str, detail: impl Into<String>) {
        self.problem_count += 1;
        if self.problems.len() < MOST_KEPT {
            let (subject, detail) = (subject.to_owned(), detail.into());
            self.problems.push(FsckProblem { kind, subject, detail });
        }
    }
}

struct FsckRun<'a> {
    records: Records<'a>,
    report: &'a mut FsckReport,
    progress: &'a mut dyn FnMut(FsckProgress),
}

impl FsckRun<'_> {
    fn everything(&mut self) -> Result<(), FsckError> {
        let store = self.records.store();
        (self.progress)(FsckProgress { phase: "database", done: 0, total: 1 });
        for problem in store.database_problems()? {
            self.report.add(ProblemKind::Database, "store", problem);
        }
        let (runs, blobs) = store.counts()?;
        self.runs(runs)?;
        self.blobs(blobs)?;
        for (session, problem) in store.record_problems()? {
            self.report.add(ProblemKind::Record, &session, problem);
        }
        Ok(())
    }

    fn runs(&mut self, total: u64) -> Result<(), FsckError> {
        let trusted = self.records.trusted()?;
        let mut after = 0;
        loop {
            (self.progress)(FsckProgress { phase: "runs", done: self.report.checked.runs, total });
            let batch = self.records.store().run_facts(after, BATCH)?;
            let Some(last) = batch.last() else { return Ok(()) };
            after = last.seq;
            for facts in &batch {
                self.report.checked.runs += 1;
                self.run(facts, &trusted)?;
            }
        }
    }

    fn run(&mut self, facts: &RunFacts, trusted: &TrustedKeys) -> Result<(), FsckError> {
        let problems = facts.problems();
        let is_readable = problems.is_empty();
        for problem in problems {
            self.report.add(ProblemKind::Run, &facts.id, problem);
        }
        let Ok(id) = facts.id.parse::<RunId>() else {
            self.report.add(ProblemKind::Run, &facts.id, "its name is no run id");
            return Ok(());
        };
        if !is_readable || !facts.has_contract {
            return Ok(());
        }
        let row = match self.records.store().run(&id) {
            Ok(row) => row,
            // Retention has removed it meanwhile.
            Err(StoreError::UnknownRun(_)) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        if let Some(problem) = request_problem(&row) {
            self.report.add(ProblemKind::Run, &facts.id, problem);
        }
        self.chain(&row)?;
        if facts.receipt_hash.is_some() {
            self.receipt(&row, facts)?;
            self.bundle(&row, trusted)?;
        }
        Ok(())
    }

    fn chain(&mut self, row: &RunRow) -> Result<(), FsckError> {
        let contract = row.contract.as_deref().unwrap_or_default();
        let contract = match Contract::from_slice(contract.as_bytes()) {
            Ok(contract) => contract,
            Err(error) => {
                self.report.add(ProblemKind::Run, row.id.as_str(), error.to_string());
                return Ok(());
            }
        };
        let mut chain = Chain::new(contract.hash());
        for stored in self.records.store().events(&row.id)? {
            self.report.checked.events += 1;
            let read = warrant_protocol::json::parse(stored.body.as_bytes())
                .map_err(|error| error.detail())
                .and_then(|value| {
                    ChainedEvent::from_value(value).map_err(|error| error.to_string())
                });
            let problem = match read {
                Err(detail) => Some(detail),
                Ok(event) if event.hash() != stored.hash => {
                    Some("its row names another hash".to_owned())
                }
                Ok(event) => chain.push(event).err().map(|error| error.to_string()),
            };
            if let Some(problem) = problem {
                let detail = format!("event {}: {problem}", stored.seq);
                self.report.add(ProblemKind::Chain, row.id.as_str(), detail);
                return Ok(());
            }
        }
        Ok(())
    }

    fn receipt(&mut self, row: &RunRow, facts: &RunFacts) -> Result<(), FsckError> {
        let Some(text) = self.records.store().receipt(&row.id)? else { return Ok(()) };
        let receipt = match Receipt::from_slice(text.as_bytes()) {
            Ok(receipt) => receipt,
            Err(error) => {
                self.report.add(ProblemKind::Receipt, row.id.as_str(), error.to_string());
                return Ok(());
            }
        };
        if Some(receipt.hash()) != facts.receipt_hash {
            self.report.add(ProblemKind::Receipt, row.id.as_str(), "its row names another hash");
        }
        let is_recent = is_within_grace(facts.updated_at_ms);
        for artifact in &receipt.body().workspace_out.artifact_hashes {
            if self.records.store().has_blob(artifact)? {
                continue;
            }
            self.report.artifacts_absent += 1;
            // Within the grace nothing removes a blob.
            if is_recent {
                let detail = format!("named by {}, and not stored", row.id);
                self.report.add(ProblemKind::Blob, &artifact.to_hex(), detail);
            }
        }
        Ok(())
    }

    fn bundle(&mut self, row: &RunRow, trusted: &TrustedKeys) -> Result<(), FsckError> {
        self.report.checked.bundles += 1;
        let bundle = match self.records.bundle(&row.id) {
            Ok(bundle) => bundle,
            Err(ArchiveError::Store(StoreError::UnknownRun(_))) => return Ok(()),
            Err(ArchiveError::Store(error)) => return Err(error.into()),
            Err(error) => {
                self.report.add(ProblemKind::Bundle, row.id.as_str(), error.to_string());
                return Ok(());
            }
        };
        let trusted = self.with_runner(row, trusted.clone())?;
        let problems = match Bundle::from_value(bundle) {
            Ok(bundle) => verify(bundle, &trusted).err().unwrap_or_default(),
            Err(error) => {
                self.report.add(ProblemKind::Bundle, row.id.as_str(), error.to_string());
                return Ok(());
            }
        };
        for problem in problems {
            self.report.add(ProblemKind::Bundle, row.id.as_str(), problem.to_string());
        }
        Ok(())
    }

    /// Adds the key that the runner of this run enrolled with.
    fn with_runner(&self, row: &RunRow, trusted: TrustedKeys) -> Result<TrustedKeys, FsckError> {
        let Some(id) = row.runner.as_deref() else { return Ok(trusted) };
        let key = self.records.store().runner(id)?;
        let key = key.and_then(|runner| PublicKey::from_pem(&runner.public_key_pem).ok());
        Ok(match key {
            Some(key) => trusted.and(KeyRole::Runner, key),
            None => trusted,
        })
    }

    fn blobs(&mut self, total: u64) -> Result<(), FsckError> {
        let mut after: Option<Digest> = None;
        loop {
            (self.progress)(FsckProgress {
                phase: "blobs",
                done: self.report.checked.blobs,
                total,
            });
            let batch = self.records.store().blob_facts(after.as_ref(), BATCH)?;
            let Some(last) = batch.last() else { return Ok(()) };
            after = Some(last.digest);
            for blob in &batch {
                self.report.checked.blobs += 1;
                self.report.checked.blob_bytes += blob.size;
                if let Some(problem) = self.records.store().blob_problem(blob)? {
                    self.report.add(ProblemKind::Blob, &blob.digest.to_hex(), problem);
                }
            }
        }
    }
}

fn request_problem(row: &RunRow) -> Option<String> {
    let is_same = Digest::of(row.request.as_bytes()) == row.request_hash;
    (!is_same).then(|| "its request is not what its digest says".to_owned())
}

fn is_within_grace(updated_at_ms: u64) -> bool {
    let now = crate::random::now().map(|now| now.unix_ms());
    now.is_ok_and(|now| now.saturating_sub(updated_at_ms) < BLOB_GRACE_MS)
}
