//! A plane somewhere else, as the commands see it: where it is, who we are there, and its calls.
//!
//! Which plane: `--plane`, `WARRANT_PLANE`, else the one that `warrant login` wrote into the home.
//! The token: `WARRANT_TOKEN`, else the one of the login, else that of the home's own plane while it
//! serves. The home's own plane is reached over the Unix socket in the home, whatever the token
//! came from. Without a plane a command speaks of this machine.

use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use warrant_plane::{HomeEnvironment, random};
use warrant_protocol::error_chain;
use warrant_protocol::wire::{RunView, SubmitResult};
use warrant_protocol::{Digest, PublicKey, RunId, RunRequest};
use warrant_runner::remote::{BlobStream, CallError, EventsFrom, Http, KeyedCall};
use warrant_workspace::{BlobSink, StoredBlob};

use crate::args::PlaneArguments;
use crate::exit::Misuse;
use crate::own_plane::OwnPlane;
use crate::progress::{Meter, Metered};
use crate::ui;

const LOGIN_FILE: &str = "login.json";
const LOGIN_VERSION: &str = "warrant.login.v1";

/// How often a request is sent before the person is told that the plane does not answer.
const SUBMIT_ATTEMPTS: u32 = 6;
/// How long to wait before it is sent again, at first.
const SUBMIT_PAUSE: Duration = Duration::from_millis(200);
/// A stream of events on which nothing comes for so long is opened again; heartbeats come every
/// 15 seconds.
const SILENCE: Duration = Duration::from_secs(45);

/// A plane and who we are there.
pub(crate) struct PlaneClient {
    pub(crate) http: Http,
    token: String,
    /// The plane's key, when it was given at login.
    pub(crate) plane_key: Option<PublicKey>,
    /// Keeps the way to the home's own plane open.
    _own: Option<OwnPlane>,
}

/// What `warrant login` keeps.
struct Login {
    plane: String,
    token: String,
    plane_key: Option<PublicKey>,
    ca: Option<PathBuf>,
}

impl PlaneClient {
    /// Returns the plane that is meant; none means this machine.
    pub(crate) fn find(
        home: Option<&Path>,
        arguments: &PlaneArguments,
    ) -> anyhow::Result<Option<Self>> {
        // Without a home nobody has logged in.
        let home = home_of(home).ok();
        let login = match &home {
            Some(home) => Login::read(home)?,
            None => None,
        };
        let given = arguments.plane.clone();
        let Some(plane) = given.or_else(|| login.as_ref().map(|login| login.plane.clone())) else {
            return Ok(None);
        };
        let same =
            |login: &&Login| login.plane.trim_end_matches('/') == plane.trim_end_matches('/');
        let login = login.as_ref().filter(same);
        let own = home.map(|home| OwnPlane::find(&home, &plane)).transpose()?.flatten();
        let token = std::env::var("WARRANT_TOKEN").ok().filter(|token| !token.is_empty());
        let token = token
            .or_else(|| login.map(|login| login.token.clone()))
            .or_else(|| own.as_ref().map(|own| own.token.clone()));
        let Some(token) = token else {
            return Err(Misuse::of(anyhow::anyhow!(
                "no token for {plane}: set WARRANT_TOKEN, or: warrant login --plane {plane}"
            )));
        };
        let ca = arguments.plane_ca.clone().or_else(|| login.and_then(|login| login.ca.clone()));
        let http = match &own {
            Some(own) => own.http(&plane)?,
            None => Http::new(&plane, ca.as_deref()).map_err(|error| Misuse::of(error.into()))?,
        };
        let plane_key = login.and_then(|login| login.plane_key.clone());
        let plane_key = plane_key.or_else(|| own.as_ref().and_then(|own| own.key.clone()));
        Ok(Some(Self { http, token, plane_key, _own: own }))
    }

    /// As [`PlaneClient::find`], for commands that only a plane can answer.
    pub(crate) fn needed(home: Option<&Path>, arguments: &PlaneArguments) -> anyhow::Result<Self> {
        match Self::find(home, arguments)? {
            Some(plane) => Ok(plane),
            None => Err(Misuse::of(anyhow::anyhow!(
                "this needs a plane: --plane URL, WARRANT_PLANE, or warrant login"
            ))),
        }
    }

    /// Returns the answer to a read.
    pub(crate) fn get(&self, path: &str) -> anyhow::Result<Value> {
        Ok(self.http.get(path, Some(&self.token))?)
    }

    /// Returns the answer to a read, or nothing when the plane has no such thing.
    pub(crate) fn try_get(&self, path: &str) -> anyhow::Result<Option<Value>> {
        match self.http.get(path, Some(&self.token)) {
            Ok(answer) => Ok(Some(answer)),
            Err(CallError::Refused { status: 404, .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns the answer to a write.
    pub(crate) fn post(&self, path: &str, body: &Value) -> Result<Value, CallError> {
        self.http.post_as(path, &self.token, body)
    }

    /// Returns the answer to a write about a run; one that is not there is named.
    pub(crate) fn post_about(
        &self,
        run: &RunId,
        verb: &str,
        body: &Value,
    ) -> anyhow::Result<Value> {
        match self.post(&format!("/v1/runs/{run}/{verb}"), body) {
            Err(error @ CallError::Refused { status: 404, .. }) => {
                let plane = self.http.base();
                let what = format!(
                    "there is no run {run} at {plane}, or it is not yours to see; `warrant runs` \
                     lists those you can see"
                );
                Err(Misuse::of(anyhow::Error::new(error).context(what)))
            }
            other => Ok(other?),
        }
    }

    /// Opens an answer that is read as it comes.
    pub(crate) fn stream(&self, path: &str) -> Result<BlobStream, CallError> {
        self.http.get_stream(path, Some(&self.token))
    }

    /// Opens a stream of events from after the one with the id `last` on.
    pub(crate) fn events(&self, path: &str, last: Option<u64>) -> Result<BlobStream, CallError> {
        self.http.get_events(path, &self.token, EventsFrom { last, silence: SILENCE })
    }

    /// Submits a request once: when no answer comes, it is sent again under the same key.
    pub(crate) fn submit(&self, request: &RunRequest) -> anyhow::Result<SubmitResult> {
        let key = random::hex().context("no randomness for the idempotency key")?;
        let body = json!({"request": request});
        let call = KeyedCall { path: "/v1/runs", token: &self.token, key: &key, body: &body };
        let mut pause = SUBMIT_PAUSE;
        for attempt in 1.. {
            match self.http.post_with_key(&call) {
                Ok(answer) => {
                    return serde_json::from_value(answer)
                        .context("the plane's answer cannot be read");
                }
                // What never arrived at a plane that is not there is no reason to wait.
                Err(error) if attempt == 1 && error.is_unsent() => return Err(error.into()),
                Err(error) if attempt < SUBMIT_ATTEMPTS && error.is_transient() => {
                    let error = error_chain(&error);
                    ui::note(&format!("warrant: no answer to the request ({error}); once more"));
                }
                Err(error) => return Err(error.into()),
            }
            std::thread::sleep(pause);
            pause *= 2;
        }
        bail!("the request was never sent")
    }

    /// Returns a run.
    pub(crate) fn view(&self, run: &RunId) -> anyhow::Result<RunView> {
        let answer = self.get(&format!("/v1/runs/{run}"))?;
        serde_json::from_value(answer).context("the plane's answer makes no sense")
    }

    /// Returns the bundle of a run, if it has ended.
    pub(crate) fn bundle(&self, run: &RunId) -> anyhow::Result<Option<Value>> {
        self.try_get(&format!("/v1/runs/{run}/bundle"))
    }

    /// Reads a blob while `meter` tells how far it is; it is checked against its digest.
    pub(crate) fn blob(&self, digest: &Digest, meter: &Meter) -> anyhow::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        meter.doing("fetching");
        let blob = self.http.open_blob(digest, &self.token)?;
        Metered::new(blob, meter).read_to_end(&mut bytes)?;
        meter.rest();
        if Digest::of(&bytes) != *digest {
            bail!("blob {digest} arrived as another one");
        }
        Ok(bytes)
    }
}

impl BlobSink for PlaneClient {
    fn put(&self, source: &mut dyn Read) -> io::Result<StoredBlob> {
        let mut file = tempfile::NamedTempFile::new()?;
        let bytes = io::copy(source, &mut file)?;
        file.flush()?;
        let digest = self.http.put_blob(file.path(), &self.token).map_err(io::Error::other)?;
        Ok(StoredBlob { digest, bytes })
    }
}

/// Takes blobs nowhere: it only says what they would be called.
pub(crate) struct DigestOnly;

impl BlobSink for DigestOnly {
    fn put(&self, source: &mut dyn Read) -> io::Result<StoredBlob> {
        let mut hash = Sha256::new();
        let mut buffer = vec![0; 64 * 1024];
        let mut bytes = 0;
        loop {
            let count = match source.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            hash.update(buffer.get(..count).unwrap_or_default());
            bytes += count as u64;
        }
        Ok(StoredBlob { digest: Digest::from_bytes(hash.finalize().into()), bytes })
    }
}

/// Reads the run a person named.
pub(crate) fn run_id(text: &str) -> anyhow::Result<RunId> {
    text.parse().map_err(|error| {
        Misuse::of(anyhow::Error::new(error).context(format!("`{text}` names no run")))
    })
}

/// Keeps who we are at a plane.
pub(crate) fn write_login(
    home: Option<&Path>,
    (plane, token): (&str, &str),
    (plane_key, ca): (Option<&PublicKey>, Option<&Path>),
) -> anyhow::Result<PathBuf> {
    let home = home_of(home)?;
    fs::create_dir_all(&home).with_context(|| format!("cannot use {}", home.display()))?;
    let ca = ca.map(std::path::absolute).transpose().context("--plane-ca")?;
    let login = json!({
        "version": LOGIN_VERSION,
        "planeUrl": plane,
        "token": token,
        "planePublicKeyPem": plane_key.map(PublicKey::pem),
        "ca": ca,
    });
    let path = home.join(LOGIN_FILE);
    let fresh = home.join("login.json.new");
    let _ = fs::remove_file(&fresh);
    let written = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&fresh)
        .and_then(|mut file| file.write_all(format!("{login:#}\n").as_bytes()))
        .and_then(|()| fs::rename(&fresh, &path));
    written.with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}

pub(crate) fn home_of(home: Option<&Path>) -> anyhow::Result<PathBuf> {
    match home {
        Some(home) => {
            std::path::absolute(home).with_context(|| format!("cannot use {}", home.display()))
        }
        None => Ok(HomeEnvironment::of_process().locate()?),
    }
}

impl Login {
    fn read(home: &Path) -> anyhow::Result<Option<Self>> {
        let path = home.join(LOGIN_FILE);
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => {
                return Err(error).with_context(|| format!("cannot read {}", path.display()));
            }
        };
        // SECURITY: a token that others can read is not ours any more.
        if fs::metadata(&path).is_ok_and(|metadata| metadata.mode() & 0o077 != 0) {
            bail!("{} is open to others; chmod 600 it, or log in again", path.display());
        }
        let login: Value = serde_json::from_slice(&text)
            .with_context(|| format!("{} is damaged; log in again", path.display()))?;
        let word = |name: &str| login.get(name).and_then(Value::as_str).map(str::to_owned);
        let (Some(plane), Some(token)) = (word("planeUrl"), word("token")) else {
            bail!("{} is damaged; log in again", path.display());
        };
        let plane_key = word("planePublicKeyPem").map(|pem| PublicKey::from_pem(&pem));
        let plane_key = plane_key.transpose().context("the plane's key of the login is damaged")?;
        Ok(Some(Self { plane, token, plane_key, ca: word("ca").map(PathBuf::from) }))
    }
}
