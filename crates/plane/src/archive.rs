//! The archive: bundles, exports and lists of what is stored.

use std::io::{self, Write};
use std::path::Path;

use serde_json::{Value, json};
use thiserror::Error;
use warrant_protocol::succession::SuccessionRole;
use warrant_protocol::{KeyRole, PublicKey, RunId, RunnerId, Timestamp, TrustedKeys};

use crate::embedded::{EmbeddedError, EmbeddedPlane};
use crate::files::check_private;
use crate::home::{Check, HomeError, approvers_of};
use crate::request_context::keep_cause;
use crate::retired::retired_keys;
use crate::store::{ExportPosition, Store, StoreError};

/// How much is read from the store at once.
pub(crate) const PIECE_BYTES: usize = 256 * 1024;

/// Why something could not be taken out of the archive.
#[derive(Debug, Error)]
pub enum ArchiveError {
    /// The plane failed.
    #[error(transparent)]
    Plane(#[from] EmbeddedError),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The run has not ended.
    #[error("run {0} has no receipt yet")]
    NotEnded(RunId),
    /// Nobody takes what is exported.
    #[error("cannot write the export")]
    Write(#[from] io::Error),
}

/// What of a home can be read back: its store, and the public halves of its keys.
#[derive(Clone, Copy)]
pub struct Records<'a> {
    pub(crate) store: &'a Store,
    pub(crate) root: &'a Path,
    pub(crate) plane: &'a PublicKey,
    pub(crate) runner: &'a PublicKey,
    pub(crate) runner_id: &'a RunnerId,
    /// Says whose keys are believed.
    pub(crate) check: Check,
}

impl EmbeddedPlane {
    /// Returns what can be read back.
    #[must_use]
    pub fn records(&self) -> Records<'_> {
        Records {
            store: self.store(),
            root: self.home().root(),
            plane: self.home().plane_key().public(),
            runner: self.home().runner_key().public(),
            runner_id: self.home().runner_id(),
            check: check_private,
        }
    }

    /// Returns the bundle of a run: everything a verifier needs but trust.
    ///
    /// # Errors
    /// [`ArchiveError::NotEnded`] when there is no receipt yet.
    pub fn bundle(&self, run: &RunId) -> Result<Value, ArchiveError> {
        self.records().bundle(run)
    }

    /// Returns the plane's key and the successions that lead to it, as they are told to everyone.
    ///
    /// # Errors
    /// [`HomeError`] when a retired key cannot be read or believed.
    pub fn plane_keys(&self) -> Result<Value, HomeError> {
        let retired = retired_keys(self.home().root(), check_private)?;
        let of_plane = retired.iter().filter(|retired| retired.role == SuccessionRole::Plane);
        let successions: Vec<Value> =
            of_plane.filter_map(|retired| Some(retired.succession.as_ref()?.to_value())).collect();
        let key = self.home().plane_key().public();
        Ok(json!({"planePublicKeyPem": key.pem(), "successions": successions}))
    }

    /// Writes every event since a moment, one JSON object with its `runId` per line.
    ///
    /// # Errors
    /// [`ArchiveError`] when the store cannot be read or nobody takes it.
    pub fn export(&self, since: Timestamp, out: &mut dyn Write) -> Result<(), ArchiveError> {
        self.records().export(since, out)
    }
}

impl<'a> Records<'a> {
    /// Returns the store.
    #[must_use]
    pub const fn store(&self) -> &'a Store {
        self.store
    }

    /// Returns the keys of this home, each in its role.
    ///
    /// # Errors
    /// [`HomeError`] when an approver's key cannot be read or believed.
    pub fn trusted(&self) -> Result<TrustedKeys, HomeError> {
        let trusted = TrustedKeys::none()
            .and(KeyRole::Plane, self.plane.clone())
            .and(KeyRole::Runner, self.runner.clone());
        let approvers = approvers_of(self.root, self.check)?.into_iter();
        let trusted =
            approvers.fold(trusted, |trusted, (_, key)| trusted.and(KeyRole::Approver, key));
        let retired = retired_keys(self.root, self.check)?;
        Ok(retired.into_iter().fold(trusted, |mut trusted, retired| {
            trusted.retire(retired.role.key_role(), &retired.key, retired.retired_at);
            trusted
        }))
    }

    /// Returns the bundle of a run: everything a verifier needs but trust.
    ///
    /// # Errors
    /// [`ArchiveError::NotEnded`] when there is no receipt yet.
    pub fn bundle(&self, run: &RunId) -> Result<Value, ArchiveError> {
        let row = self.store.run(run)?;
        let receipt = self.store.receipt(run)?;
        let receipt = receipt.ok_or_else(|| ArchiveError::NotEnded(run.clone()))?;
        let read = |what: &'static str, text: &str| {
            let damaged = || EmbeddedError::Damaged { what, run: run.clone() };
            warrant_protocol::json::parse(text.as_bytes())
                .map_err(|error| keep_cause(&error, damaged()))
        };
        let contract = read("contract", row.contract.as_deref().unwrap_or_default())?;
        let receipt = read("receipt", &receipt)?;
        let mut events = Vec::new();
        loop {
            let piece = self.store.events_piece(run, events.len() as u64, PIECE_BYTES)?;
            if piece.is_empty() {
                break;
            }
            for event in piece {
                events.push(read("chain", &event.body)?);
            }
        }
        let retired = retired_keys(self.root, self.check).map_err(EmbeddedError::from)?;
        let signed_by = |key: &PublicKey, role: SuccessionRole, id: Option<&str>| {
            let known = retired.iter().filter(|retired| retired.role == role);
            let used = known.map(|retired| &retired.key).find(|old| Some(old.id().as_str()) == id);
            used.unwrap_or(key).pem().to_owned()
        };
        let issuer = contract.pointer("/issuer/keyId").and_then(Value::as_str);
        let plane = signed_by(self.plane, SuccessionRole::Plane, issuer);
        let sealed_with = receipt.pointer("/runner/keyId").and_then(Value::as_str);
        // Where no runner could sign, the plane stands in for it.
        let is_sealed_by_plane = receipt.get("sealedBy").is_some();
        let runner = match row.runner.as_deref() {
            _ if is_sealed_by_plane => plane.clone(),
            Some(id) if id != self.runner_id.as_str() => {
                let damaged = || EmbeddedError::Damaged { what: "runner", run: run.clone() };
                self.store.runner(id)?.ok_or_else(damaged)?.public_key_pem
            }
            _ => signed_by(self.runner, SuccessionRole::Runner, sealed_with),
        };
        let mut bundle = json!({
            "version": "warrant.bundle.v1",
            "contract": contract,
            "receipt": receipt,
            "events": events,
            "keys": {
                "planePublicKeyPem": plane,
                "runnerPublicKeyPem": runner,
            },
        });
        let successions: Vec<Value> = retired
            .iter()
            .filter_map(|retired| Some(retired.succession.as_ref()?.to_value()))
            .collect();
        if let (false, Some(members)) = (successions.is_empty(), bundle.as_object_mut()) {
            members.insert("successions".to_owned(), successions.into());
        }
        Ok(bundle)
    }

    /// Writes every event since a moment, one JSON object with its `runId` per line.
    ///
    /// # Errors
    /// [`ArchiveError`] when the store cannot be read or nobody takes it.
    pub fn export(&self, since: Timestamp, out: &mut dyn Write) -> Result<(), ArchiveError> {
        let mut position = Some(ExportPosition::since(since));
        let mut piece = Vec::new();
        while let Some(after) = position {
            piece.clear();
            position = self.store.export_piece(after, &mut piece, PIECE_BYTES)?;
            out.write_all(&piece)?;
        }
        Ok(())
    }
}
