//! Goes on where a run ended: its files, what was said and what its tools did become a checkpoint
//! in an envelope, and a new request that names the envelope by its digest.
//!
//! Start at [`Desk::continue_run`]. Nothing runs here; the ask it returns is judged like any other.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use serde_json::Value;
use thiserror::Error;
use warrant_plane::random;
use warrant_plane::store::{NewBlob, Store, StoreError};
use warrant_protocol::contract::Task;
use warrant_protocol::event::ArtifactKind;
use warrant_protocol::execution::ExecutionSpec;
use warrant_protocol::handoff::{
    EnvelopeVersion, HandoffEnvelope, HandoffSource, HandoffTarget, SourceKind, TargetKind,
    ToolJournal,
};
use warrant_protocol::request::{AgentSpec, ContinuationRef, SecretClaim};
use warrant_protocol::{
    CheckpointId, Digest, EnvelopeId, Event, Isolation, RunId, RunRequest, WorkspaceManifest,
};
use warrant_workspace::{
    BlobDirectory, BlobSink, BlobSource, BranchWish, CaptureError, CaptureOptions, CheckpointParts,
    ContinuationError, DEFAULT_DENY, DiscoverError, GatePolicy, GitDirectory, History, Journal,
    MaterializeError, MaterializeOptions, Progress, PullError, PullOptions, StoredBlob, TreeLimits,
    Verdict, capture, capture_folder, is_applied, make_checkpoint, materialize, pull,
    store_envelope,
};

mod again;

use self::again::put_down_before;
use crate::ask::{Ask, find_program};
use crate::desk::{Desk, DeskError, principal};

/// What a person adds when work goes on.
pub struct Continuation<'a> {
    /// The run that ended.
    pub run: &'a RunId,
    /// The workspace it ran in.
    pub workspace: &'a Path,
    /// What to start; without it, what the run started.
    pub execution: Option<ExecutionSpec>,
    /// The task; without it, the run's.
    pub prompt: Option<String>,
    /// The tier; without it, the run's.
    pub isolation: Option<Isolation>,
    /// A message for people.
    pub message: Option<String>,
    /// A note for whoever goes on.
    pub note: Option<String>,
    /// Why it goes on; without it, that it continues the run.
    pub reason: Option<String>,
    /// What was said; without it, what the run's program said.
    pub transcript: Option<&'a mut dyn Read>,
    /// What the tools did.
    pub tool_journal: Option<&'a ToolJournal>,
    /// Told how far it is.
    pub progress: Progress<'a>,
}

/// Work taken up: what to ask for, and the files it starts from.
#[derive(Debug)]
pub struct TakenUp {
    /// The ask; its request names the envelope.
    pub ask: Ask,
    /// The envelope, whose blobs are in the store.
    pub envelope: HandoffEnvelope,
    /// What names it.
    pub reference: ContinuationRef,
    /// Sentences the person should read.
    pub warnings: Vec<String>,
    /// Holds the files until the new run has ended.
    _place: tempfile::TempDir,
}

/// Why work was not taken up; nothing of the workspace was changed.
#[derive(Debug, Error)]
pub enum ContinueError {
    /// The desk failed.
    #[error(transparent)]
    Desk(#[from] DeskError),
    /// The run has not ended.
    #[error("{0} has not ended, so nothing can go on from it")]
    NotEnded(RunId),
    /// The stored run does not read back.
    #[error("what is stored of {0} does not read back")]
    Stored(RunId, #[source] Box<dyn std::error::Error + Send + Sync>),
    /// The workspace could not be captured.
    #[error(transparent)]
    Capture(#[from] CaptureError),
    /// The checkpoint's files could not be made.
    #[error(transparent)]
    Materialize(#[from] MaterializeError),
    /// The workspace is not the one the run started from any more.
    #[error("what the run changed does not fit the workspace as it is now; pull or undo it first")]
    Changes(#[source] PullError),
    /// The checkpoint or envelope could not be made.
    #[error(transparent)]
    Continuation(#[from] ContinuationError),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A file of ours failed.
    #[error("the home cannot be used")]
    Home(#[source] io::Error),
}

impl Desk {
    /// Puts down what a run left and takes it up as a new ask.
    ///
    /// The files are those of the workspace with the run's changes on top; changes that are in the
    /// workspace already are not applied again. Paths that the command names and was not given
    /// are looked for as in [`Desk::with_gaps`]. The same work taken up again, while its first
    /// ask has not started, is the same ask.
    ///
    /// # Errors
    /// [`ContinueError`]; then nothing is asked for.
    pub fn continue_run(&self, wish: Continuation<'_>) -> Result<TakenUp, ContinueError> {
        let store = self.plane().store();
        let row = store.run(wish.run)?;
        if !row.has_receipt {
            return Err(ContinueError::NotEnded(wish.run.clone()));
        }
        let before: RunRequest = serde_json::from_str(&row.request)
            .map_err(|error| ContinueError::Stored(wish.run.clone(), error.into()))?;
        let sessions = self.plane().home().sessions();
        fs::create_dir_all(&sessions).map_err(ContinueError::Home)?;
        let place = tempfile::Builder::new().prefix("continued-").tempdir_in(&sessions);
        let place = place.map_err(ContinueError::Home)?;
        let sink = StoreSink { store, waiting: Mutex::new(Vec::new()) };
        let (manifest, warnings) = self.put_down(&wish, &before, (place.path(), &sink))?;
        let said = match &wish.transcript {
            Some(_) => None,
            None => artifact(store, wish.run, ArtifactKind::Log)?,
        };
        let mut said = match said {
            Some(digest) => store.blob(&digest)?,
            None => None,
        };
        let mut given = wish.transcript;
        let transcript: Option<&mut dyn Read> = match (&mut given, &mut said) {
            (Some(given), _) => Some(&mut **given),
            (None, Some(said)) => Some(said),
            (None, None) => None,
        };
        let now = random::now().map_err(ContinueError::Home)?;
        let parts = CheckpointParts {
            checkpoint_id: CheckpointId::from_random(random::bytes().map_err(ContinueError::Home)?),
            created_at: now,
            message: wish.message,
            note: wish.note,
            parent: before.continuation.as_ref().map(|before| before.checkpoint_id.clone()),
            workspace: Some(manifest.clone()),
            transcript,
            tool_journal: wish.tool_journal,
        };
        let checkpoint = make_checkpoint(parts, &sink)?;
        let mut request = RunRequest { workspace: manifest, ..before };
        request.requested_by = principal();
        request.pool = self.plane().home().pool().clone();
        request.execution = wish.execution.or(request.execution);
        request.prompt = wish.prompt.unwrap_or(request.prompt);
        request.isolation = wish.isolation.or(request.isolation);
        // It is the next command's own paths that people are asked about.
        request.files.iter_mut().for_each(|files| files.gaps = None);
        request.continuation = None;
        let envelope = HandoffEnvelope {
            version: EnvelopeVersion::V1,
            envelope_id: EnvelopeId::from_random(random::bytes().map_err(ContinueError::Home)?),
            created_at: now,
            source: HandoffSource {
                kind: SourceKind::Local,
                actor: request.requested_by.clone(),
                host: None,
            },
            target: HandoffTarget { kind: TargetKind::RunnerPool, pool: request.pool.clone() },
            checkpoint,
            agent: AgentSpec {
                kind: request.agent_kind.clone(),
                version: request.agent_version.clone(),
            },
            task: Task { prompt: request.prompt.clone() },
            reason: wish.reason.or_else(|| Some(format!("continues {}", wish.run))),
            secrets: claims(&request),
            network: request.network.clone(),
            budget: request.budget.clone(),
            disclosure: request.disclosure,
            execution: request.execution.clone(),
            isolation: request.isolation,
        };
        let program = match &request.execution {
            Some(ExecutionSpec::Argv { command, .. }) => find_program(command),
            _ => None,
        };
        let mut ask = self.with_gaps(Ask {
            principal: request.requested_by.clone(),
            request,
            workspace: place.path().join("files"),
            program,
            image: None,
            settled_env: BTreeSet::new(),
        })?;
        let (envelope, reference) = match put_down_before(&sink, &ask.request, &envelope)? {
            Some(before) => before,
            None => {
                let reference = store_envelope(&envelope, &sink)?;
                (envelope, reference)
            }
        };
        ask.request.continuation = Some(reference.clone());
        sink.record(now)?;
        Ok(TakenUp { ask, envelope, reference, warnings, _place: place })
    }

    /// Makes the files to go on from and captures them; returns their manifest.
    fn put_down(
        &self,
        wish: &Continuation<'_>,
        before: &RunRequest,
        (place, sink): (&Path, &StoreSink<'_>),
    ) -> Result<(WorkspaceManifest, Vec<String>), ContinueError> {
        let at = Places::make(place).map_err(ContinueError::Home)?;
        let blobs = BlobDirectory::open(&at.blobs).map_err(ContinueError::Home)?;
        let deny: Vec<String> = DEFAULT_DENY.iter().map(ToString::to_string).collect();
        let allow = ["*".to_owned()];
        let options = CaptureOptions {
            scratch: &at.scratch,
            allow_untracked: &allow,
            deny_patterns: &deny,
            history: History::Commit,
            progress: wish.progress,
        };
        let captured = match capture(wish.workspace, &blobs, &options) {
            Err(CaptureError::Discover(DiscoverError::NotGit(_) | DiscoverError::Unborn(_))) => {
                capture_folder(wish.workspace, &blobs, &options)?
            }
            captured => captured?,
        };
        let materializing = MaterializeOptions {
            scratch: &at.scratch,
            limits: TreeLimits::generous(),
            git_directory: GitDirectory::Write,
            progress: wish.progress,
        };
        materialize(&captured.manifest, &blobs, &at.files, &materializing)?;
        let diff = artifact(self.plane().store(), wish.run, ArtifactKind::Diff)?;
        if let Some(digest) = diff {
            self.add_changes(wish.run, digest, &at)?;
        }
        let again = capture(&at.files, sink, &options)?;
        let mut warnings = captured.warnings;
        warnings.extend(differs(before, &captured.manifest).map(str::to_owned));
        Ok((again.manifest, warnings))
    }

    /// Applies a run's diff to the files, unless they have it already.
    fn add_changes(&self, run: &RunId, digest: Digest, at: &Places) -> Result<(), ContinueError> {
        let open = || -> Result<_, ContinueError> {
            let blob = self.plane().store().blob(&digest)?;
            blob.ok_or_else(|| {
                let cause = format!("its blob {digest} is missing");
                ContinueError::Stored(run.clone(), cause.into())
            })
        };
        let (journal, _) = Journal::open(&at.journal, &at.files)
            .map_err(|error| ContinueError::Changes(PullError::Journal(error)))?;
        let options = PullOptions {
            scratch: &at.scratch,
            run_id: run.as_str(),
            // Onto the files as they are, whatever commit they came from.
            base_ref: "none",
            branch: BranchWish::WhenNeeded,
            branch_prefix: "warrant/",
            at: SystemTime::now(),
            policy: &everything(),
            released: &[],
        };
        if is_applied(&at.files, &mut open()?, &at.scratch).map_err(ContinueError::Changes)? {
            return Ok(());
        }
        let pulled = pull(&at.files, &mut open()?, &journal, &options);
        pulled.map(drop).map_err(ContinueError::Changes)
    }
}

/// Returns what a person should know when the workspace is not what a run started from.
fn differs(before: &RunRequest, now: &WorkspaceManifest) -> Option<&'static str> {
    let then = &before.workspace;
    if then.base_ref != now.base_ref {
        return (then.base_ref != "none")
            .then_some("the workspace is at another commit than the run started from");
    }
    let is_same = (&then.dirty_diff_hash, &then.untracked_files)
        == (&now.dirty_diff_hash, &now.untracked_files);
    // LIMIT L-107: what the run before that one changed is in no diff of this one.
    (before.continuation.is_some() && !is_same).then_some(
        "the run went on from another one, and the workspace is not what it started from; \
         pull the other one first to go on from both",
    )
}

/// Inside a sandbox every file may come along; the gate stands where files leave it.
fn everything() -> GatePolicy {
    let mut policy = GatePolicy::advised();
    policy.automatic = Verdict::Flag;
    policy.ci = Verdict::Flag;
    policy.packages = Verdict::Flag;
    policy.builds = Verdict::Flag;
    policy
}

fn claims(request: &RunRequest) -> Vec<SecretClaim> {
    let claim = |name: &warrant_protocol::SecretName| SecretClaim {
        name: name.clone(),
        scope: "requested".to_owned(),
    };
    request.secret_names.iter().map(claim).collect()
}

/// The directories work is taken up in.
struct Places {
    files: PathBuf,
    blobs: PathBuf,
    scratch: PathBuf,
    journal: PathBuf,
}

impl Places {
    fn make(place: &Path) -> io::Result<Self> {
        let below = |name: &str| place.join(name);
        let (files, scratch) = (below("files"), below("scratch"));
        fs::create_dir(&files)?;
        fs::create_dir(&scratch)?;
        Ok(Self { files, blobs: below("blobs"), scratch, journal: below("journal") })
    }
}

/// Stores blobs; they are part of the store once recorded together.
struct StoreSink<'a> {
    store: &'a Store,
    waiting: Mutex<Vec<NewBlob>>,
}

impl StoreSink<'_> {
    fn record(self, now: warrant_protocol::Timestamp) -> Result<(), StoreError> {
        let blobs = self.waiting.into_inner().unwrap_or_default();
        self.store.record_blobs(blobs, now)
    }
}

impl BlobSink for StoreSink<'_> {
    fn put(&self, source: &mut dyn Read) -> io::Result<StoredBlob> {
        let mut writer = self.store.blob_writer();
        io::copy(source, &mut writer)?;
        let blob = writer.finish()?;
        let stored = StoredBlob { digest: blob.digest, bytes: blob.size };
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.push(blob);
        Ok(stored)
    }
}

impl BlobSource for StoreSink<'_> {
    fn open(&self, digest: &Digest) -> io::Result<Box<dyn Read + Send + '_>> {
        let blob = self.store.blob(digest).map_err(io::Error::other)?;
        Ok(Box::new(blob.ok_or(io::ErrorKind::NotFound)?))
    }
}

/// Returns the digest of the newest artifact of a kind on a run's chain.
fn artifact(
    store: &Store,
    run: &RunId,
    wanted: ArtifactKind,
) -> Result<Option<Digest>, ContinueError> {
    let mut found = None;
    for row in store.events(run)? {
        let event: Value = serde_json::from_str(&row.body)
            .map_err(|error| ContinueError::Stored(run.clone(), error.into()))?;
        let body = event.get("event").cloned().unwrap_or_default();
        if let Ok(Event::ArtifactCreated { kind, hash }) = serde_json::from_value(body)
            && kind == wanted
        {
            found = Some(hash);
        }
    }
    Ok(found)
}
