//! What every provider's client can do; one folder per provider speaks its true wire.
//!
//! An adapter only translates. Deadlines, limits, staging, evidence and clean-up are the same for
//! all and live beside it.

use std::time::Duration;

use serde_json::{Value, json};
use warrant_protocol::Isolation;

use super::answer::id;
use super::call::{Call, Server};
use super::settings::Account;
use super::wire::{Wire, WireError};
use crate::{Network, Refusal, Stream};

/// The label that names the home a sandbox belongs to.
pub(crate) const HOME_LABEL: &str = "warrant-home";
/// The label that names the session a sandbox was made for; the receipt binds it.
pub(crate) const SESSION_LABEL: &str = "warrant-session";

/// What a sandbox is asked to be. It holds no secret, for providers keep what they are told.
#[derive(Debug, Clone)]
pub(crate) struct Spec {
    /// The image or template.
    pub(crate) image: String,
    /// What may be reached.
    pub(crate) network: Network,
    /// The largest memory in bytes, if it is limited.
    pub(crate) memory_bytes: Option<u64>,
    /// The most it may write in bytes, if that is limited; no provider can be asked for it.
    pub(crate) disk_bytes: Option<u64>,
    /// How long the sandbox lives if nobody renews its lease.
    pub(crate) term: Duration,
    /// The home it belongs to.
    pub(crate) home: String,
    /// The session it is made for.
    pub(crate) session: String,
}

impl Spec {
    /// Returns the labels by which orphans are found.
    pub(crate) fn labels(&self) -> Value {
        json!({ HOME_LABEL: self.home, SESSION_LABEL: self.session })
    }

    /// Returns the hosts that may be reached; none means everything may.
    pub(crate) fn hosts(&self) -> Option<&[String]> {
        match &self.network {
            Network::Allow(hosts) => Some(hosts),
            Network::DangerEverything => None,
        }
    }
}

/// A sandbox that exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Handle {
    /// The provider's name for it.
    pub(crate) id: String,
    /// Where its own services answer, and what they want to see.
    pub(crate) inside: Server,
}

/// A sandbox, and the wire it is reached by.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reached<'a> {
    pub(crate) wire: &'a Wire,
    pub(crate) handle: &'a Handle,
}

/// Something a provider tells, or does not.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Told<T> {
    /// It says so.
    Is(T),
    /// It does not say.
    Nothing,
}

/// What a provider says about a sandbox. Two readings of an unchanged sandbox are equal.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Observed {
    /// The version of what enforces.
    pub(crate) version: Told<String>,
    /// Where the version was asked.
    pub(crate) version_source: String,
    /// What it says the image is.
    pub(crate) image: Told<String>,
    /// The digest it says the image has; no provider does today.
    pub(crate) image_digest: Told<String>,
    /// The rules it says are applied.
    pub(crate) egress: Told<Egress>,
    /// Further volumes it says are mounted.
    pub(crate) mounts: Told<Value>,
    /// Memory in bytes.
    pub(crate) memory_bytes: Told<u64>,
    /// Whether the request could ask for memory at all.
    pub(crate) asks_memory: bool,
    /// Disk in bytes.
    pub(crate) disk_bytes: Told<u64>,
    /// Processors, in thousandths.
    pub(crate) cpu_milli: Told<u64>,
    /// What kind of boundary it says it is.
    pub(crate) class: Told<String>,
    /// The session label it carries.
    pub(crate) session: Told<String>,
    /// Where all this was read.
    pub(crate) source: String,
}

/// The egress rules a provider says it applies.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Egress {
    /// As it tells them.
    pub(crate) rules: Value,
    /// Whether they are the ones that were asked for.
    pub(crate) matches: bool,
    /// How they are enforced, where it tells.
    pub(crate) mechanism: Option<String>,
    /// Why that mechanism is not enough, if it is not.
    pub(crate) weakness: Option<String>,
}

impl Egress {
    /// Returns rules that are told without how they are enforced.
    pub(crate) const fn plain(rules: Value, matches: bool) -> Self {
        Self { rules, matches, mechanism: None, weakness: None }
    }
}

/// One program to start.
#[derive(Debug, Clone)]
pub(crate) struct Start {
    /// A line for the shell.
    pub(crate) line: String,
    /// Its variables, secrets included.
    pub(crate) env: Vec<(String, String)>,
    /// How long the provider should let it run; ours is the deadline that counts.
    pub(crate) timeout: Duration,
    /// Whether it gets input while it runs.
    pub(crate) has_input: bool,
}

impl Start {
    /// Returns the variables as an object.
    pub(crate) fn variables(&self) -> Value {
        self.env.iter().map(|(name, value)| (name.clone(), json!(value))).collect()
    }
}

/// What a started program says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Said {
    /// Bytes of a stream.
    Output(Stream, Vec<u8>),
    /// It runs.
    Started,
    /// It ended by itself with this code.
    Exited(u8),
    /// A signal ended it.
    Signaled(u8),
    /// Nothing within the time that was given.
    Nothing,
    /// The provider will not run it, and says so before it started.
    Refused(String),
    /// The stream ended, and nobody told how the program ended.
    Lost,
}

/// Why a program was not started.
#[derive(Debug)]
pub(crate) enum NotStarted {
    /// It certainly does not run.
    Refused(WireError),
    /// It may run.
    Ambiguous,
}

impl From<WireError> for NotStarted {
    fn from(error: WireError) -> Self {
        if error.is_ambiguous() { Self::Ambiguous } else { Self::Refused(error) }
    }
}

/// A program that was started and is listened to.
pub(crate) trait Running {
    /// Returns what it says next, or [`Said::Nothing`] after `how_long`.
    fn next(&mut self, wire: &Wire, how_long: Duration) -> Said;

    /// Gives it input, where the provider takes any.
    fn feed(&mut self, _wire: &Wire, _bytes: &[u8]) -> Result<(), WireError> {
        Err(WireError::Unanswered { what: "giving input" })
    }

    /// Ends its input.
    fn end_input(&mut self, _wire: &Wire) -> Result<(), WireError> {
        Ok(())
    }
}

/// How exactly output arrives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fidelity {
    /// Every byte.
    Bytes,
    /// Lines; how the last one ended is not told.
    Lines,
}

/// A sandbox that nobody deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Orphan {
    /// The provider's name for it.
    pub(crate) id: String,
    /// The session it was made for.
    pub(crate) session: Option<String>,
}

/// One page of the sandboxes there are.
#[derive(Debug)]
pub(crate) struct Page {
    /// As the provider tells them.
    pub(crate) sandboxes: Vec<Value>,
    /// What leads to the next page.
    pub(crate) next: Option<String>,
}

/// What is the same for every sandbox of a provider.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Manner {
    /// The tier.
    pub(crate) isolation: Isolation,
    /// The image used when nobody names one.
    pub(crate) image: &'static str,
    /// Whether it can give a program input while it runs.
    pub(crate) takes_input: bool,
    /// How exactly output arrives.
    pub(crate) fidelity: Fidelity,
    /// The members that hold name and labels of a sandbox in a listing.
    pub(crate) listed: (&'static str, &'static str),
}

/// More pages of sandboxes than this are not read: a listing that never ends is no listing.
const MOST_PAGES: usize = 200;

/// One provider's client.
pub(crate) trait Adapter: Send + Sync + std::fmt::Debug {
    /// Returns what is the same for all its sandboxes.
    fn manner(&self) -> Manner;

    /// Returns where it is and what it is opened with.
    fn account(&self) -> &Account;

    /// Returns the rules it will be asked for, or why it cannot express them.
    fn lower_network(&self, network: &Network) -> Result<Value, Refusal>;

    /// Asks for a sandbox. Never repeated: an ambiguous answer leaves an orphan to find by label.
    fn create(&self, wire: &Wire, spec: &Spec) -> Result<Handle, WireError>;

    /// Returns whether the sandbox can be used now.
    fn is_ready(&self, wire: &Wire, handle: &mut Handle) -> Result<bool, WireError>;

    /// Reads back what it is.
    fn observe(&self, at: Reached<'_>, spec: &Spec) -> Result<Observed, WireError>;

    /// Starts a program.
    fn start(&self, at: Reached<'_>, start: &Start) -> Result<Box<dyn Running>, NotStarted>;

    /// Returns the question that writes a file.
    fn writing(&self, handle: &Handle, path: &str, bytes: &[u8]) -> Call;

    /// Returns the question that reads a file.
    fn reading(&self, handle: &Handle, path: &str) -> Call;

    /// Returns the question that deletes a sandbox.
    fn deleting(&self, id: &str) -> Call;

    /// Returns the question that lets a sandbox live this long from now on.
    fn extending(&self, handle: &Handle, term: Duration) -> Result<Call, WireError>;

    /// Lists the names in a directory.
    fn list(&self, at: Reached<'_>, path: &str) -> Result<Vec<String>, WireError>;

    /// Lists a page of the sandboxes of a home.
    fn page(&self, wire: &Wire, home: &str, next: Option<&str>) -> Result<Page, WireError>;

    /// Returns the tier.
    fn isolation(&self) -> Isolation {
        self.manner().isolation
    }

    /// Returns where it is asked, for plans and errors; never a key.
    fn endpoint(&self) -> &str {
        &self.account().api
    }

    /// Returns the image used when nobody names one.
    fn default_image(&self) -> &str {
        self.account().config.image.as_deref().unwrap_or(self.manner().image)
    }

    /// Writes a file. Writing the same file twice is the same as writing it once.
    fn put(&self, at: Reached<'_>, path: &str, bytes: &[u8]) -> Result<(), WireError> {
        at.wire.repeat(&self.writing(at.handle, path, bytes)).map(drop)
    }

    /// Reads a file of at most so many bytes.
    fn get(&self, at: Reached<'_>, path: &str, most: u64) -> Result<Vec<u8>, WireError> {
        Ok(at.wire.repeat_large(&self.reading(at.handle, path), most)?.body)
    }

    /// Returns the shortest term the provider can be asked for that is not below the wanted one.
    fn term(&self, wanted: Duration) -> Duration {
        wanted
    }

    /// Lets the sandbox live this long from now on.
    fn extend(&self, at: Reached<'_>, term: Duration) -> Result<(), WireError> {
        at.wire.repeat(&self.extending(at.handle, term)?).map(drop)
    }

    /// Deletes a sandbox; one that is gone already is deleted.
    fn delete(&self, wire: &Wire, id: &str) -> Result<(), WireError> {
        wire.remove(&self.deleting(id))
    }

    /// Lists the sandboxes of a home.
    fn orphans(&self, wire: &Wire, home: &str) -> Result<Vec<Orphan>, WireError> {
        let (name, labels) = self.manner().listed;
        let mut orphans = Vec::new();
        let mut next = None;
        for _ in 0..MOST_PAGES {
            let page = self.page(wire, home, next.as_deref())?;
            for sandbox in &page.sandboxes {
                let labels = sandbox.get(labels);
                let label = |name: &str| labels.and_then(|all| all.get(name))?.as_str();
                // SECURITY: what the filter let through by mistake is not ours to delete.
                if label(HOME_LABEL) == Some(home) {
                    let session = label(SESSION_LABEL).map(str::to_owned);
                    orphans.push(Orphan { id: id(LISTING, sandbox, name)?, session });
                }
            }
            next = page.next;
            if next.is_none() || page.sandboxes.is_empty() {
                break;
            }
        }
        Ok(orphans)
    }
}

/// What listing sandboxes is for, in calls.
pub(crate) const LISTING: &str = "listing sandboxes";
