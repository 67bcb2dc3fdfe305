//! Who this runner is, and which plane it believes.
//!
//! The identity is four files, readable by their owner alone: `identity.json` (id, token, pool),
//! `runner.key.pem`, `runner.pub.pem`, `plane.pub.pem`. A runner enrolls only when one of the
//! first three is missing. The plane's key is pinned then: given by the operator, or taken from
//! the plane's own first answer, which is told. It moves only along successions that the pinned key
//! itself signed; nothing else that a plane says changes it.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::thread;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use thiserror::Error;
use warrant_protocol::keys::InvalidKey;
use warrant_protocol::succession::{CheckedSuccession, MOST_SUCCESSIONS, Succession};
use warrant_protocol::wire::{Enroll, EnrollResult};
use warrant_protocol::{KeyRole, PoolName, PublicKey, SigningKey, TimeSource, json as strict};

use super::{CallError, Http};
use crate::run::RunnerIdentity;

/// How long to wait before the plane is tried again.
const RETRY_EVERY: Duration = Duration::from_secs(2);

/// A runner that a plane knows.
#[derive(Clone)]
pub struct Enrolled {
    identity: RunnerIdentity,
    token: String,
    plane_key: Arc<RwLock<PublicKey>>,
    plane_file: PathBuf,
    pinned_by: PinnedBy,
}

/// Where the pinned key of the plane comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PinnedBy {
    /// The operator gave it.
    Operator,
    /// The plane said it at enrollment and was believed.
    FirstUse,
    /// It was pinned at an earlier start.
    Before,
}

/// How to enroll.
#[derive(Debug)]
pub struct EnrollOptions<'a> {
    /// Where the identity lies.
    pub data: &'a Path,
    /// The pool to work for.
    pub pool: &'a PoolName,
    /// Lets this runner in, when it is not enrolled yet.
    pub token: Option<&'a str>,
    /// The plane's key, when the operator knows it.
    pub plane_key: Option<&'a PublicKey>,
    /// Randomness for the runner's key.
    pub seed: [u8; 32],
    /// How long a plane may be unreachable.
    pub patience: Duration,
    /// The clocks.
    pub time: &'a dyn TimeSource,
}

/// Why a runner is not enrolled.
#[derive(Debug, Error)]
pub enum EnrollError {
    /// The file system refused.
    #[error("cannot use {path}")]
    File {
        /// Which file or directory.
        path: PathBuf,
        /// What the system said.
        #[source]
        cause: io::Error,
    },
    /// A key file holds no key.
    #[error("{path} holds no key")]
    Key {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        #[source]
        cause: InvalidKey,
    },
    /// A file of the identity makes no sense.
    #[error("{path} is damaged")]
    Damaged {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        cause: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Others could change the identity.
    #[error("{0} belongs to others or is open to them; make it yours alone")]
    NotPrivate(PathBuf),
    /// The identity is of another pool.
    #[error("this runner is enrolled in pool {enrolled}, not {wanted}; use another data directory")]
    OtherPool {
        /// Where it is enrolled.
        enrolled: PoolName,
        /// What was asked for.
        wanted: PoolName,
    },
    /// There is nothing to enroll with.
    #[error(
        "this runner is not enrolled yet: give --enroll-token-file FILE or set WARRANT_ENROLL_TOKEN"
    )]
    NoToken,
    /// The plane said no, or could not be reached in time.
    #[error("the plane did not enroll this runner")]
    Plane(#[source] CallError),
    /// Nobody knows the plane's key.
    #[error("the plane does not say its key: give it with --plane-key FILE")]
    NoPlaneKey,
    /// The plane is not the one that was pinned.
    #[error("the plane's key is not the one that was given")]
    OtherPlane,
}

impl std::fmt::Debug for Enrolled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "<runner {} of pool {}>", self.identity.id, self.identity.pool)
    }
}

impl Enrolled {
    /// Returns who the runner is.
    #[must_use]
    pub const fn identity(&self) -> &RunnerIdentity {
        &self.identity
    }

    /// Returns the plane's pinned key.
    #[must_use]
    pub fn plane_key(&self) -> PublicKey {
        self.plane_key.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Asks the plane whether its key took over from the pinned one, and moves the pin if the
    /// pinned key itself signed that. Returns whether it moved.
    ///
    /// # Errors
    /// [`EnrollError`] when the plane does not answer or the new pin cannot be kept.
    // SECURITY: every step needs the signature of the key that is pinned then.
    pub fn follow_plane(&self, http: &Http) -> Result<bool, EnrollError> {
        let pinned = self.plane_key();
        let followed = follow_from(http, &pinned)?;
        if followed.as_bytes() == pinned.as_bytes() {
            return Ok(false);
        }
        write_private(&self.plane_file, followed.pem().as_bytes())?;
        tracing::warn!(old = %pinned.id(), new = %followed.id(), "the plane's key was replaced");
        *self.plane_key.write().unwrap_or_else(PoisonError::into_inner) = followed;
        Ok(true)
    }

    /// Returns where the pinned key comes from.
    #[must_use]
    pub const fn pinned_by(&self) -> PinnedBy {
        self.pinned_by
    }

    pub(super) fn token(&self) -> &str {
        &self.token
    }

    /// Reads the identity, or enrolls: retried while the plane cannot be reached, never after a
    /// refusal.
    ///
    /// # Errors
    /// [`EnrollError`].
    pub fn open(http: &Http, options: &EnrollOptions<'_>) -> Result<Self, EnrollError> {
        let data = options.data;
        DirBuilder::new().recursive(true).mode(0o700).create(data).map_err(at(data))?;
        check_private(data, 0o022)?;
        let files = Files::of(data);
        if files.all.iter().all(|path| path.exists()) {
            return files.load(http, options);
        }
        let key = files.key(options.seed)?;
        let enrolled = enroll(http, &key, options)?;
        let (plane_key, pinned_by) = pin(&enrolled, options)?;
        write_private(&files.plane, plane_key.pem().as_bytes())?;
        write_private(&files.public, key.public().pem().as_bytes())?;
        let identity = json!({
            "runnerId": enrolled.runner_id,
            "runnerToken": enrolled.runner_token,
            "pool": options.pool,
        });
        write_private(&files.identity, format!("{identity}\n").as_bytes())?;
        let identity = RunnerIdentity { id: enrolled.runner_id, key, pool: options.pool.clone() };
        let (plane_key, plane_file) = (Arc::new(RwLock::new(plane_key)), files.plane);
        Ok(Self { identity, token: enrolled.runner_token, plane_key, plane_file, pinned_by })
    }
}

struct Files {
    identity: PathBuf,
    secret: PathBuf,
    public: PathBuf,
    plane: PathBuf,
    all: [PathBuf; 3],
}

impl Files {
    fn of(data: &Path) -> Self {
        let (identity, secret) = (data.join("identity.json"), data.join("runner.key.pem"));
        let public = data.join("runner.pub.pem");
        let all = [identity.clone(), secret.clone(), public.clone()];
        Self { identity, secret, public, plane: data.join("plane.pub.pem"), all }
    }

    fn load(&self, http: &Http, options: &EnrollOptions<'_>) -> Result<Enrolled, EnrollError> {
        for path in &self.all {
            check_private(path, 0o077)?;
        }
        let path = &self.identity;
        let text = fs::read(&self.identity).map_err(at(&self.identity))?;
        let identity: Value = strict::parse(&text).map_err(|error| damaged(path, error))?;
        let word = |name: &str| {
            let text = identity.get(name).and_then(Value::as_str);
            text.ok_or_else(|| damaged(path, format!("it has no text called {name}")))
        };
        let pool: PoolName = word("pool")?.parse().map_err(|error| damaged(path, error))?;
        if pool != *options.pool {
            let wanted = options.pool.clone();
            return Err(EnrollError::OtherPool { enrolled: pool, wanted });
        }
        let (plane_key, pinned_by) = match (options.plane_key, self.plane.exists()) {
            (Some(given), true) => {
                let pinned = read_public(&self.plane)?;
                let is_given = |key: &PublicKey| key.as_bytes() == given.as_bytes();
                if !is_given(&pinned) {
                    let followed = follow_from(http, &pinned);
                    if !followed.is_ok_and(|followed| is_given(&followed)) {
                        return Err(EnrollError::OtherPlane);
                    }
                    write_private(&self.plane, given.pem().as_bytes())?;
                }
                (given.clone(), PinnedBy::Operator)
            }
            (Some(given), false) => {
                write_private(&self.plane, given.pem().as_bytes())?;
                (given.clone(), PinnedBy::Operator)
            }
            (None, true) => (read_public(&self.plane)?, PinnedBy::Before),
            (None, false) => return Err(EnrollError::NoPlaneKey),
        };
        let identity = RunnerIdentity {
            id: word("runnerId")?.parse().map_err(|error| damaged(path, error))?,
            key: read_secret(&self.secret)?,
            pool,
        };
        let token = word("runnerToken")?.to_owned();
        let (plane_key, plane_file) = (Arc::new(RwLock::new(plane_key)), self.plane.clone());
        Ok(Enrolled { identity, token, plane_key, plane_file, pinned_by })
    }

    /// Returns the key of an enrollment that did not finish, or a new one.
    fn key(&self, seed: [u8; 32]) -> Result<SigningKey, EnrollError> {
        if self.secret.exists() {
            check_private(&self.secret, 0o077)?;
            return read_secret(&self.secret);
        }
        let key = SigningKey::from_seed(&seed);
        write_private(&self.secret, key.to_secret_pem().as_bytes())?;
        Ok(key)
    }
}

fn enroll(
    http: &Http,
    key: &SigningKey,
    options: &EnrollOptions<'_>,
) -> Result<EnrollResult, EnrollError> {
    let token = options.token.ok_or(EnrollError::NoToken)?;
    let pem = key.public().pem();
    let proof = key.sign(Enroll::proof_text(token, pem, options.pool).as_bytes());
    let body = Enroll {
        enroll_token: token.to_owned(),
        public_key_pem: pem.to_owned(),
        pool: options.pool.clone(),
        proof: Some(STANDARD.encode(proof)),
    };
    let malformed =
        |error: strict::InvalidJson| EnrollError::Plane(CallError::Malformed(error.detail()));
    let body = strict::to_value(&body).map_err(malformed)?;
    let until = options.time.moment().plus(options.patience);
    loop {
        match http.post("/v1/runners/enroll", &body) {
            Ok(answer) => return strict::view(&answer).map_err(malformed),
            Err(error) if error.is_transient() && options.time.moment() < until => {
                tracing::warn!(%error, "the plane cannot be reached yet");
                thread::sleep(RETRY_EVERY.min(options.patience));
            }
            Err(error) => return Err(EnrollError::Plane(error)),
        }
    }
}

fn damaged(path: &Path, cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> EnrollError {
    EnrollError::Damaged { path: path.to_owned(), cause: cause.into() }
}

/// Returns the key to which the successions lead that the plane tells, from `pinned` on.
fn follow_from(http: &Http, pinned: &PublicKey) -> Result<PublicKey, EnrollError> {
    let answer = http.get("/v1/plane-keys", None).map_err(EnrollError::Plane)?;
    let told = answer.get("successions").and_then(Value::as_array).cloned().unwrap_or_default();
    let mut steps = Vec::new();
    for value in told.into_iter().take(MOST_SUCCESSIONS) {
        // One that does not hold leads nowhere; the others may.
        let step = Succession::from_value(value).ok();
        let step = step.and_then(|step| CheckedSuccession::of(&step).ok());
        steps.extend(step.filter(|step| step.role() == KeyRole::Plane));
    }
    let mut key = pinned.clone();
    for _ in 0..steps.len() {
        let next = steps.iter().find(|step| step.old_key().as_bytes() == key.as_bytes());
        match next {
            Some(step) => key = step.new_key().clone(),
            None => break,
        }
    }
    Ok(key)
}

/// Returns the key of the plane from now on.
fn pin(
    enrolled: &EnrollResult,
    options: &EnrollOptions<'_>,
) -> Result<(PublicKey, PinnedBy), EnrollError> {
    let said = enrolled.plane_public_key_pem.as_deref();
    let said = said.and_then(|pem| PublicKey::from_pem(pem).ok());
    match (options.plane_key, said) {
        (Some(given), Some(said)) if given.as_bytes() != said.as_bytes() => {
            Err(EnrollError::OtherPlane)
        }
        (Some(given), _) => Ok((given.clone(), PinnedBy::Operator)),
        (None, Some(said)) => Ok((said, PinnedBy::FirstUse)),
        (None, None) => Err(EnrollError::NoPlaneKey),
    }
}

fn read_public(path: &Path) -> Result<PublicKey, EnrollError> {
    let pem = fs::read_to_string(path).map_err(at(path))?;
    PublicKey::from_pem(&pem).map_err(|cause| EnrollError::Key { path: path.to_owned(), cause })
}

fn read_secret(path: &Path) -> Result<SigningKey, EnrollError> {
    let pem = fs::read_to_string(path).map_err(at(path))?;
    SigningKey::from_pem(&pem).map_err(|cause| EnrollError::Key { path: path.to_owned(), cause })
}

/// Refuses what gives others a forbidden permission or belongs to somebody else.
fn check_private(path: &Path, forbidden: u32) -> Result<(), EnrollError> {
    let metadata = fs::symlink_metadata(path).map_err(at(path))?;
    // SECURITY: whoever can write here could swap the keys; whoever can read could be this runner.
    let is_ours = metadata.uid() == rustix::process::geteuid().as_raw();
    if is_ours && metadata.mode() & forbidden == 0 && !metadata.is_symlink() {
        return Ok(());
    }
    Err(EnrollError::NotPrivate(path.to_owned()))
}

/// Writes a file of mode 0600 whole or not at all, durably.
fn write_private(path: &Path, content: &[u8]) -> Result<(), EnrollError> {
    let fresh = path.with_extension("new");
    let written = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&fresh)
        .and_then(|mut file| file.write_all(content).and_then(|()| file.sync_all()))
        .and_then(|()| fs::rename(&fresh, path));
    written.map_err(at(path))
}

fn at(path: &Path) -> impl Fn(io::Error) -> EnrollError + '_ {
    move |cause| EnrollError::File { path: path.to_owned(), cause }
}
