//! The remote providers: one backend over whatever an adapter speaks to.
//!
//! [`Backend::ready`] asks for a sandbox, reads back what it is and looks around inside, before
//! any secret is released. [`Backend::run`] stages the workspace, reads the sandbox back once
//! more, and only if it is still the same starts the program, once. The sandbox is deleted
//! whatever happens; what a crash leaves is found again by its labels, and ends with its lease.

mod adapter;
mod answer;
mod archive;
mod bind;
mod call;
mod daytona;
mod drive;
mod e2b;
mod inside;
mod lease;
mod ledger;
mod lower;
mod opensandbox;
mod posture;
mod records;
mod session;
pub mod settings;
mod staging;
mod wire;

use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use warrant_protocol::{Isolation, Limits, Outcome, Posture, error_chain};

pub use settings::{NotConfigured, ProviderConfig, Surroundings, shipped_versions};
pub use wire::Tamper;

use crate::{
    Backend, BoundaryError, Cancel, Files, Invocation, Network, Plan, Refusal, RunReport, Sink,
    Stdin, WorkspaceAccess,
};
use adapter::{Adapter, Fidelity, Observed, Spec, Start, Told};
use bind::{bind, signable};
use drive::{Driven, Feed, Watch, without_output};
use inside::{Look, Source, WORKSPACE, program_line};
use ledger::Ledger;
use lower::{check, directory, probe_invocation, revealed, start_timeout};
use posture::{Findings, RemoteStage, after_end, not_read_again, pinned_digest, unavailable};
use session::{Session, SessionError, With};
use settings::Account;
use staging::Staged;
use wire::{Wire, WireError};

/// A destination that is denied everywhere and would answer if it were not.
const CANARY: &str = "1.1.1.1:80";

/// Runs programs in the sandboxes of one provider.
#[derive(Debug)]
pub struct Remote {
    adapter: Arc<dyn Adapter>,
    account: Account,
    around: Arc<Surroundings>,
    /// Sandboxes that are ready and wait for their program, by session.
    waiting: Mutex<BTreeMap<String, Readied>>,
    /// Directories of what came back, gone with this backend.
    uppers: Mutex<Vec<PathBuf>>,
    tamper: Option<Tamper>,
    /// Sandboxes that could not be deleted.
    ledger: Ledger,
}

/// A sandbox that was looked at.
#[derive(Debug)]
struct Readied {
    session: Session,
    observed: Observed,
    look: Look,
}

impl Remote {
    /// Returns the backend of a provider; nothing is asked of it yet.
    ///
    /// # Errors
    /// [`NotConfigured`] when a key is missing or an address makes no sense.
    pub fn open(isolation: Isolation, around: Surroundings) -> Result<Self, NotConfigured> {
        let account = Account::read(isolation, &around)?;
        let adapter: Arc<dyn Adapter> = match isolation {
            Isolation::E2b => Arc::new(e2b::E2b::new(account.clone())),
            Isolation::Daytona => Arc::new(daytona::Daytona::new(account.clone())),
            Isolation::Opensandbox => Arc::new(opensandbox::OpenSandbox::new(account.clone())),
            other => return Err(NotConfigured::NotRemote(other)),
        };
        Ok(Self {
            adapter,
            account,
            around: Arc::new(around),
            waiting: Mutex::new(BTreeMap::new()),
            uppers: Mutex::new(Vec::new()),
            tamper: None,
            ledger: Ledger::default(),
        })
    }

    /// Returns where the provider's API is.
    #[must_use]
    pub fn endpoint(&self) -> &str {
        self.adapter.endpoint()
    }

    /// Returns whether the provider's protocol carries lines of text instead of bytes.
    #[must_use]
    pub fn carries_lines(&self) -> bool {
        self.adapter.manner().fidelity == Fidelity::Lines
    }

    /// Returns the same backend with something going wrong on its wire, for checks.
    #[must_use]
    pub fn tampered(mut self, tamper: Tamper) -> Self {
        self.tamper = Some(tamper);
        self
    }

    /// Deletes the sandboxes of this home that no living process holds; returns their names.
    ///
    /// # Errors
    /// What the provider said when it could not be asked.
    pub fn reap(&self) -> io::Result<Vec<String>> {
        let wire = Wire::open(self.account.patience)?;
        session::reap(&*self.adapter, &wire, &self.around).map_err(io::Error::other)
    }

    /// Writes a file in a fresh sandbox, finds it listed and reads it back, without any program;
    /// returns whether it came back the same.
    ///
    /// # Errors
    /// What the provider said when one of these could not be done.
    pub fn round_trip(&self, content: &[u8]) -> io::Result<bool> {
        let spec = self.spec(&probe_invocation()).map_err(io::Error::other)?;
        let manner = (self.account.patience, self.tamper);
        let session = Session::open(self.with(), spec, manner, None).map_err(io::Error::other)?;
        session.round_trip(content).map_err(io::Error::other)
    }

    /// Reaps only when a session of this home was left behind.
    fn reap_abandoned(&self) {
        let records = self.around.records(self.adapter.isolation());
        if records::abandoned(&records).is_ok_and(|left| !left.is_empty()) {
            // What cannot be reaped now keeps its record and is tried again.
            let _ = self.reap();
        }
    }

    fn spec(&self, invocation: &Invocation) -> Result<Spec, Refusal> {
        let image = invocation.image.as_deref().unwrap_or(self.adapter.default_image());
        let random = (self.around.random)().map_err(|error| Refusal {
            code: "SANDBOX_PREPARE_FAILED",
            message: format!("no randomness: {error}"),
        })?;
        Ok(Spec {
            image: image.to_owned(),
            network: invocation.network.clone(),
            memory_bytes: invocation.limits.memory_bytes,
            disk_bytes: invocation.limits.disk_bytes,
            term: self.adapter.term(self.account.lease),
            home: self.around.home.clone(),
            session: format!("{:032x}", u128::from_be_bytes(random)),
        })
    }

    fn canary(&self) -> &str {
        let named = self.account.config.canary.as_deref();
        named.or(self.account.variable("WARRANT_EGRESS_CANARY")).unwrap_or(CANARY)
    }

    fn with(&self) -> With {
        With {
            adapter: Arc::clone(&self.adapter),
            around: Arc::clone(&self.around),
            ledger: self.ledger.clone(),
        }
    }

    /// Asks for a sandbox and finds out what it is.
    fn build(&self, spec: Spec, cancel: Option<&Cancel>) -> Result<Readied, SessionError> {
        self.reap_abandoned();
        let is_open = spec.network == Network::DangerEverything;
        let manner = (self.account.patience, self.tamper);
        let session = Session::open(self.with(), spec, manner, cancel)?;
        let observed = session.observe()?;
        let canary = (!is_open).then(|| self.canary());
        let look = session.look(canary)?;
        Ok(Readied { session, observed, look })
    }

    fn posture_of(
        &self,
        readied: &Readied,
        observed: &Observed,
        (limits, stage): (&Limits, RemoteStage),
    ) -> Posture {
        let version_refusal = match &observed.version {
            Told::Is(version) => self.account.refuses(version),
            Told::Nothing => None,
        };
        posture::posture(&Findings {
            isolation: self.adapter.isolation(),
            spec: &readied.session.spec,
            observed,
            look: Some(&readied.look),
            version_refusal,
            limits,
            stage,
        })
    }

    fn work(
        &self,
        readied: &mut Readied,
        plan: &Plan,
        (sink, cancel): (&dyn Sink, &Cancel),
    ) -> Result<(Driven, Posture, Option<Staged>), SessionError> {
        let invocation = &plan.invocation;
        readied.session.watch(cancel);
        let session = &readied.session;
        let files = &invocation.files;
        let (entries, staged) = staging::collect(&files.workspace, &files.masks)?;
        session.send(&entries)?;
        let source = self.stage_input(session, invocation, cancel)?;
        // Policies change at run time: what is bound is what is read right before the start.
        let again = session.observe()?;
        let sent = (&invocation.limits, RemoteStage::Sent);
        let now = self.posture_of(readied, &again, sent);
        if again != readied.observed {
            return Ok((without_output(Outcome::PostureRefused), now, None));
        }
        if cancel.is_cancelled() {
            return Ok((without_output(Outcome::Cancelled), now, None));
        }
        let start = Start {
            line: program_line(
                (&invocation.command, &invocation.env),
                &directory(invocation),
                source,
            ),
            env: revealed(invocation),
            timeout: start_timeout(&invocation.limits),
            has_input: source == Source::Streamed,
        };
        let feed = match source {
            Source::Streamed => Feed::streamed(&invocation.stdin),
            Source::Nothing | Source::File => Feed::Done,
        };
        let driven =
            session.listen(&start, feed, Watch { limits: &invocation.limits, sink, cancel })?;
        // What was opened while the program ran shows in the report.
        let now = match session.observe() {
            Ok(after) => self.posture_of(readied, &after, sent),
            Err(_) => not_read_again(now),
        };
        Ok((driven, now, Some(staged)))
    }

    fn stage_input(
        &self,
        session: &Session,
        invocation: &Invocation,
        cancel: &Cancel,
    ) -> Result<Source, SessionError> {
        if matches!(invocation.stdin, Stdin::Empty) {
            return Ok(Source::Nothing);
        }
        if self.adapter.manner().takes_input {
            return Ok(Source::Streamed);
        }
        let Some(bytes) = drive::whole_input(&invocation.stdin, cancel)? else {
            return Ok(Source::Nothing);
        };
        session.put(inside::INPUT, &bytes)?;
        Ok(Source::File)
    }

    /// Takes back what the program changed.
    fn take_back(
        &self,
        session: &Session,
        staged: &Staged,
        files: &Files,
    ) -> Result<Option<std::os::fd::OwnedFd>, SessionError> {
        let differences = staged.compare(session.take_back()?);
        match files.access {
            WorkspaceAccess::ReadOnly => Ok(None),
            WorkspaceAccess::Direct => {
                staging::apply(&files.workspace, &differences)?;
                Ok(None)
            }
            WorkspaceAccess::Overlay => {
                let name = format!("upper-{}-{}", std::process::id(), session.spec.session);
                let folder = session.around().scratch.join("remote");
                let (path, upper) = staging::fresh_directory(&folder, &name)?;
                self.uppers.lock().unwrap_or_else(PoisonError::into_inner).push(path);
                staging::write_upper(&upper, staged, &differences)?;
                Ok(Some(upper))
            }
        }
    }

    fn take_waiting(&self, plan: &Plan) -> Option<Readied> {
        let session = session_of(plan)?;
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).remove(session)
    }
}

impl Backend for Remote {
    fn isolation(&self) -> Isolation {
        self.adapter.isolation()
    }

    /// Asks for a sandbox that may reach nothing, looks at it and deletes it.
    fn probe(&self) -> Posture {
        let invocation = probe_invocation();
        let built = self
            .spec(&invocation)
            .map_err(|refusal| refusal.message)
            .and_then(|spec| self.build(spec, None).map_err(|error| error_chain(&error)));
        match built {
            Ok(mut readied) => {
                let ready = (&invocation.limits, RemoteStage::Ready);
                let posture = self.posture_of(&readied, &readied.observed, ready);
                let end = readied.session.close();
                after_end(posture, end, &Outcome::Exited { code: 0 })
            }
            Err(why) => unavailable(self.isolation(), &why),
        }
    }

    fn prepare(&self, invocation: Invocation) -> Result<Plan, Refusal> {
        check(&invocation)?;
        invocation.refuse_secret_files(self.isolation().as_str())?;
        let spec = self.spec(&invocation)?;
        let network = self.adapter.lower_network(&invocation.network)?;
        let names = invocation.env.iter().map(|variable| variable.value.shown(&variable.name));
        let artifact = json!({
            "provider": self.isolation(),
            "endpoint": self.adapter.endpoint(),
            "image": spec.image,
            "image_digest": pinned_digest(&spec.image).unwrap_or("unknown"),
            "command": { "argv": inside::words(&invocation.command), "cwd": directory(&invocation) },
            "environment": names.collect::<Vec<_>>(),
            "workspace": {
                "path": WORKSPACE,
                "access": match invocation.files.access {
                    WorkspaceAccess::ReadOnly => "read-only",
                    WorkspaceAccess::Overlay => "overlay",
                    WorkspaceAccess::Direct => "direct",
                },
                "masks": invocation.files.masks,
            },
            "mounts": [],
            "network": network,
            "limits": serde_json::to_value(&invocation.limits).unwrap_or(Value::Null),
            "streams": "separate",
            "fidelity": match self.adapter.manner().fidelity {
                Fidelity::Bytes => "bytes",
                Fidelity::Lines => "lines",
            },
        });
        Ok(Plan { isolation: self.isolation(), invocation, artifact })
    }

    fn ready(&self, plan: &mut Plan, cancel: &Cancel) -> Result<Posture, Refusal> {
        let spec = self.spec(&plan.invocation)?;
        let session = spec.session.clone();
        let readied = self.build(spec, Some(cancel)).map_err(|error| {
            let mut message = error_chain(&error);
            if let Some(left) = self.ledger.take(&session) {
                message = format!("{message}; {left}");
            }
            Refusal { code: "SANDBOX_PROVIDER_UNAVAILABLE", message }
        })?;
        let ready = (&plan.invocation.limits, RemoteStage::Ready);
        let posture = self.posture_of(&readied, &readied.observed, ready);
        bind(&mut plan.artifact, &readied);
        plan.artifact = signable(plan.artifact.take());
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).insert(session, readied);
        Ok(posture)
    }

    fn release(&self, plan: &Plan) {
        drop(self.take_waiting(plan));
    }

    fn left_behind(&self, plan: &Plan) -> Option<String> {
        self.ledger.take(session_of(plan)?)
    }

    fn run(
        &self,
        plan: &Plan,
        sink: &dyn Sink,
        cancel: &Cancel,
    ) -> Result<RunReport, BoundaryError> {
        let mut readied = match self.take_waiting(plan) {
            Some(readied) => readied,
            None => {
                let spec = self
                    .spec(&plan.invocation)
                    .map_err(|refusal| boundary("asking for a sandbox", refusal.to_string()))?;
                match self.build(spec, Some(cancel)) {
                    Ok(readied) => readied,
                    Err(SessionError::Wire(WireError::Cancelled { .. })) => {
                        return Ok(self.report(without_output(Outcome::Cancelled), None, None));
                    }
                    Err(error) => {
                        return Err(boundary("building the sandbox", error_chain(&error)));
                    }
                }
            }
        };
        let (mut driven, posture, staged) = match self.work(&mut readied, plan, (sink, cancel)) {
            Ok(worked) => worked,
            Err(SessionError::Wire(WireError::Cancelled { .. })) => {
                let ready = (&plan.invocation.limits, RemoteStage::Ready);
                let posture = self.posture_of(&readied, &readied.observed, ready);
                let driven = without_output(Outcome::Cancelled);
                let end = readied.session.close();
                let posture = after_end(posture, end, &driven.outcome);
                return Ok(self.report(driven, Some(posture), None));
            }
            Err(error) => return Err(boundary("preparing the sandbox", error_chain(&error))),
        };
        let has_ended = matches!(driven.outcome, Outcome::Exited { .. } | Outcome::Signaled { .. });
        let upper = match staged.filter(|_| has_ended) {
            None => None,
            Some(staged) => {
                match self.take_back(&readied.session, &staged, &plan.invocation.files) {
                    Ok(upper) => upper,
                    // Providers tell the end of a sandbox as that of its programs: once it cannot
                    // be reached any more, nobody knows which of the two was seen.
                    Err(_) if !cancel.is_cancelled() && !readied.session.is_held() => {
                        driven.outcome = Outcome::Unobserved;
                        None
                    }
                    Err(error) => {
                        return Err(boundary("taking the workspace back", error_chain(&error)));
                    }
                }
            }
        };
        let end = readied.session.close();
        let posture = after_end(posture, end, &driven.outcome);
        Ok(self.report(driven, Some(posture), upper))
    }
}

impl Remote {
    fn report(
        &self,
        driven: Driven,
        posture: Option<Posture>,
        upper: Option<std::os::fd::OwnedFd>,
    ) -> RunReport {
        let Driven { outcome, usage, stdout, stderr } = driven;
        let nothing = || unavailable(self.isolation(), "the run was stopped before it was read");
        let posture = posture.unwrap_or_else(nothing);
        RunReport { outcome, usage, stdout, stderr, posture, upper, operation: None }
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        let uppers = self.uppers.get_mut().unwrap_or_else(PoisonError::into_inner);
        for upper in uppers {
            // What stays lies in our own scratch directory.
            let _ = std::fs::remove_dir_all(upper);
        }
    }
}

/// Returns the session that was bound into a plan.
fn session_of(plan: &Plan) -> Option<&str> {
    plan.artifact.pointer("/sandbox/session")?.as_str()
}

fn boundary(step: &'static str, why: String) -> BoundaryError {
    BoundaryError { step, cause: io::Error::other(why) }
}
