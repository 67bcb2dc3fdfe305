//! One sandbox of a provider, from asking for it to its deletion, whatever happens between.
//!
//! ```text
//! asked ── ready ── observed ── staged ── observed again ── started ── listened ── taken back
//!    └────────┴─────────┴──────────┴───────────┴───────────────┴──────────┴──────────┴─► deleted
//! ```

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use thiserror::Error;
use warrant_protocol::{Digest, Outcome};

use super::adapter::{Adapter, Handle, NotStarted, Observed, Reached, Spec, Start, Told};
use super::archive::{self, Entry, InvalidArchive};
use super::drive::{Driven, Feed, Watch, drive, without_output};
use super::inside::{self, ARCHIVE_IN, ARCHIVE_OUT, Look, StepFailed};
use super::lease::Lease;
use super::ledger::{Ledger, Left};
use super::posture::SandboxEnd;
use super::records::{self, Record};
use super::settings::Surroundings;
use super::staging::MOST_BYTES;
use super::wire::{Tamper, Wire, WireError};
use crate::Cancel;

/// Why a session could not go on; nothing of the program ran.
#[derive(Debug, Error)]
pub(crate) enum SessionError {
    /// The wire failed.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// The system failed.
    #[error("{0}")]
    System(String),
    /// A step of ours inside failed.
    #[error("{what} failed inside: {why}")]
    Step { what: &'static str, why: String },
    /// It never became ready.
    #[error("the sandbox did not become ready in time")]
    NotReady,
    /// What came back is not what was sent.
    #[error("the digest of what came back is not the one told inside")]
    Digest,
    /// What came back makes no sense.
    #[error(transparent)]
    Archive(#[from] InvalidArchive),
    /// The answers speak of a sandbox that was made for another session.
    #[error("the sandbox carries the label of another session")]
    OtherSession,
}

impl From<std::io::Error> for SessionError {
    fn from(error: std::io::Error) -> Self {
        Self::System(error.to_string())
    }
}

/// How long a sandbox may take to become ready.
const READY_TIME: Duration = Duration::from_secs(90);
const READY_PAUSE: Duration = Duration::from_millis(200);

/// A sandbox that exists, and is deleted when this is dropped.
#[derive(Debug)]
pub(crate) struct Session {
    adapter: Arc<dyn Adapter>,
    wire: Wire,
    pub(crate) handle: Handle,
    pub(crate) spec: Spec,
    record: Record,
    around: Arc<Surroundings>,
    ledger: Ledger,
    /// Renewed while the session lives.
    lease: Lease,
}

/// What a session is made with.
#[derive(Debug, Clone)]
pub(crate) struct With {
    pub(crate) adapter: Arc<dyn Adapter>,
    pub(crate) around: Arc<Surroundings>,
    pub(crate) ledger: Ledger,
}

impl Session {
    /// Asks for a sandbox and waits until it can be used.
    pub(crate) fn open(
        With { adapter, around, ledger }: With,
        spec: Spec,
        (patience, tamper): (Duration, Option<Tamper>),
        cancel: Option<&Cancel>,
    ) -> Result<Self, SessionError> {
        let mut wire = Wire::open(patience)?;
        wire.tamper(tamper);
        wire.watch(cancel.cloned());
        let mut record = Record::open(&around.records(adapter.isolation()), &spec.session)?;
        let handle = match adapter.create(&wire, &spec) {
            Ok(handle) => handle,
            Err(error) => {
                wire.watch(None);
                // It may exist without our knowing its name; the label finds it.
                let searched = match error.is_ambiguous() {
                    true => delete_by_label(&*adapter, &wire, &spec),
                    false => Ok(()),
                };
                match searched {
                    Ok(()) => record.settle(),
                    Err(refused) => ledger.note(&Left {
                        provider: adapter.isolation(),
                        id: None,
                        session: &spec.session,
                        until: SystemTime::now() + spec.term,
                        why: refused.to_string(),
                    }),
                }
                return Err(error.into());
            }
        };
        let lease = Lease::begin(spec.term);
        let mut session = Self { adapter, wire, handle, spec, record, around, ledger, lease };
        session.wait_ready()?;
        let (adapter, handle) = (Arc::clone(&session.adapter), session.handle.clone());
        session.lease.keep(adapter, handle, patience)?;
        Ok(session)
    }

    fn wait_ready(&mut self) -> Result<(), SessionError> {
        let until = Instant::now() + READY_TIME;
        while Instant::now() < until {
            if self.adapter.is_ready(&self.wire, &mut self.handle)? {
                return Ok(());
            }
            self.lease.renew_if_due(&*self.adapter, self.at());
            self.wire.pause("waiting for the sandbox", READY_PAUSE)?;
        }
        Err(SessionError::NotReady)
    }

    /// From now on waiting ends when `cancel` is asked for.
    pub(crate) fn watch(&mut self, cancel: &Cancel) {
        self.wire.watch(Some(cancel.clone()));
    }

    const fn at(&self) -> Reached<'_> {
        Reached { wire: &self.wire, handle: &self.handle }
    }

    /// Reads back what the sandbox is.
    pub(crate) fn observe(&self) -> Result<Observed, SessionError> {
        let observed = self.adapter.observe(self.at(), &self.spec)?;
        match &observed.session {
            Told::Is(session) if *session != self.spec.session => Err(SessionError::OtherSession),
            _ => Ok(observed),
        }
    }

    /// Looks around inside.
    pub(crate) fn look(&self, canary: Option<&str>) -> Result<Look, SessionError> {
        let text = self.step("looking around", &inside::look_line(canary))?;
        let why = "it did not say everything".to_owned();
        Look::read(&text).ok_or(SessionError::Step { what: "looking around", why })
    }

    /// Sends the workspace; its digest is looked at inside before it is unpacked.
    pub(crate) fn send(&self, entries: &[Entry]) -> Result<Digest, SessionError> {
        let bytes = archive::write(entries);
        let digest = Digest::of(&bytes);
        self.adapter.put(self.at(), ARCHIVE_IN, &bytes)?;
        let said = self.step("unpacking the workspace", &inside::unpack_line(&digest.to_hex()))?;
        if said.trim() == "unpacked" { Ok(digest) } else { Err(SessionError::Digest) }
    }

    /// Writes a file, finds it listed, and reads it back.
    pub(crate) fn round_trip(&self, content: &[u8]) -> Result<bool, SessionError> {
        const FOLDER: &str = "/tmp";
        const NAME: &str = "warrant-round-trip";
        let path = format!("{FOLDER}/{NAME}");
        self.put(&path, content)?;
        let is_listed = self.adapter.list(self.at(), FOLDER)?.iter().any(|name| name == NAME);
        let most = content.len() as u64 + 1;
        Ok(is_listed && self.adapter.get(self.at(), &path, most)? == content)
    }

    /// Puts one file there.
    pub(crate) fn put(&self, path: &str, bytes: &[u8]) -> Result<(), SessionError> {
        Ok(self.adapter.put(self.at(), path, bytes)?)
    }

    /// Starts the program, once, and listens to it.
    pub(crate) fn listen(
        &self,
        start: &Start,
        feed: Feed,
        watch: Watch<'_>,
    ) -> Result<Driven, SessionError> {
        self.wire.arm();
        let mut running = match self.adapter.start(self.at(), start) {
            Ok(running) => running,
            Err(NotStarted::Refused(error)) => return Err(error.into()),
            // It may run: nobody will see how it ends, and nobody starts it again.
            Err(NotStarted::Ambiguous) => {
                let is_cancelled = watch.cancel.is_cancelled();
                let outcome = if is_cancelled { Outcome::Cancelled } else { Outcome::Unobserved };
                return Ok(without_output(outcome));
            }
        };
        drive((&self.wire, &self.lease), &mut *running, feed, watch).map_err(|code| {
            SessionError::Step {
                what: "starting the program",
                why: format!("the provider refused: {code}"),
            }
        })
    }

    /// Asks whether the sandbox is there and ours: its provider grants it another term.
    pub(crate) fn is_held(&self) -> bool {
        self.adapter.extend(self.at(), self.spec.term).is_ok()
    }

    /// Takes the workspace back; its digest inside must be the one that arrived.
    pub(crate) fn take_back(&self) -> Result<Vec<Entry>, SessionError> {
        let said = self.step("packing the workspace", &inside::pack_line())?;
        let mut words = said.split_whitespace();
        let told = words.next().unwrap_or_default().to_owned();
        let size: u64 = words.nth(1).and_then(|word| word.parse().ok()).unwrap_or(u64::MAX);
        if size > MOST_BYTES {
            let why = format!("{size} bytes are too many to take back");
            return Err(SessionError::Step { what: "packing the workspace", why });
        }
        let bytes = self.adapter.get(self.at(), ARCHIVE_OUT, MOST_BYTES)?;
        if Digest::of(&bytes).to_hex() != told || bytes.len() as u64 != size {
            return Err(SessionError::Digest);
        }
        Ok(archive::read(&bytes)?)
    }

    /// Runs a step of ours.
    fn step(&self, what: &'static str, line: &str) -> Result<String, SessionError> {
        inside::step(&*self.adapter, self.at(), line).map_err(|error| match error {
            StepFailed::Wire(error) => SessionError::Wire(error),
            StepFailed::Exited(code, said) => {
                let said: String = said.chars().filter(|c| !c.is_control()).collect();
                SessionError::Step { what, why: format!("exit code {code}: {said}") }
            }
            StepFailed::Unobserved => {
                SessionError::Step { what, why: "nobody saw its end".to_owned() }
            }
        })
    }

    /// Deletes the sandbox and returns what came of it. What cannot be deleted now keeps its record,
    /// for the reaper.
    pub(crate) fn close(&mut self) -> SandboxEnd {
        if self.record.is_settled() {
            return SandboxEnd::Deleted;
        }
        // Cancelling a run does not cancel cleaning up after it.
        self.wire.watch(None);
        let lost = self.lease.lost();
        self.lease.close();
        let left = |why: String| Left {
            provider: self.adapter.isolation(),
            id: Some(&self.handle.id),
            session: &self.spec.session,
            until: self.lease.until(),
            why,
        };
        match self.adapter.delete(&self.wire, &self.handle.id) {
            Ok(()) => {
                if let Some(why) = lost {
                    self.ledger.note_lost(&left(why));
                }
                self.record.settle();
                SandboxEnd::Deleted
            }
            Err(refused) => {
                self.ledger.note(&left(refused.to_string()));
                SandboxEnd::Left
            }
        }
    }

    /// Returns where this session's things lie.
    pub(crate) fn around(&self) -> &Surroundings {
        &self.around
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.close();
    }
}

fn delete_by_label(adapter: &dyn Adapter, wire: &Wire, spec: &Spec) -> Result<(), WireError> {
    for orphan in adapter.orphans(wire, &spec.home)? {
        if orphan.session.as_deref() == Some(&spec.session) {
            adapter.delete(wire, &orphan.id)?;
        }
    }
    Ok(())
}

/// Deletes the sandboxes of this home that no living process holds; returns their names.
pub(crate) fn reap(
    adapter: &dyn Adapter,
    wire: &Wire,
    around: &Surroundings,
) -> Result<Vec<String>, WireError> {
    let mut reaped = Vec::new();
    let mut is_complete = true;
    let records = around.records(adapter.isolation());
    let abandoned = records::abandoned(&records).unwrap_or_default();
    for orphan in adapter.orphans(wire, &around.home)? {
        let is_live =
            orphan.session.as_deref().is_some_and(|name| records::is_live(&records, name));
        if is_live {
            continue;
        }
        match adapter.delete(wire, &orphan.id) {
            Ok(()) => reaped.push(orphan.id),
            Err(_) => is_complete = false,
        }
    }
    if is_complete {
        abandoned.iter().for_each(|session| records::forget(&records, session));
    }
    Ok(reaped)
}
