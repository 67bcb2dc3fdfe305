//! Takes what a running program says and does: redacts it, shows it live, keeps it, counts it.
//!
//! Nothing here grows with the output: the log streams into a blob, and destinations are counted
//! per host, port and decision. Every allowed one is an event of its own; of the blocked ones the
//! first are, and the others are a list that is kept as an artifact. How many there can be is bound
//! by the proxy, which refuses what could not be recorded.

use std::collections::HashMap;
use std::io::{self, Write as _};
use std::sync::{Mutex, PoisonError};

use sha2::Digest as _;
use warrant_protocol::event::{NetworkVerdict, StreamSummary};
use warrant_protocol::port::{BlobRef, BlobWrite};
use warrant_protocol::{Digest, Event, Outcome};
use warrant_sandbox::{NetworkDecision, RunReport, Sink, Stream};

use crate::redact::{RedactStream, Redactor};
use crate::run::Observer;

/// Blocked destinations beyond this many are in a list, not in an event each.
const MOST_BLOCKED_EVENTS: usize = 1024;
/// More models than this are not told apart.
const MOST_MODELS: usize = 64;
/// Hosts that serve models and nothing else; what is said to them is encrypted.
const MODEL_HOSTS: [(&str, &str); 8] = [
    ("api.anthropic.com", "anthropic"),
    ("api.openai.com", "openai"),
    ("generativelanguage.googleapis.com", "google"),
    ("api.mistral.ai", "mistral"),
    ("api.deepseek.com", "deepseek"),
    ("api.x.ai", "xai"),
    ("openrouter.ai", "openrouter"),
    ("api.groq.com", "groq"),
];
/// The sink of one run.
pub(crate) struct RunSink<'a> {
    observer: &'a dyn Observer,
    redactor: Redactor,
    state: Mutex<State>,
}

struct State {
    stdout: Channel,
    stderr: Channel,
    log: Option<Box<dyn BlobWrite>>,
    log_bytes: u64,
    destinations: Vec<Destination>,
    /// Where in the list each is.
    places: HashMap<DestinationKey, usize>,
    /// Provider and model of the calls that were seen.
    models: Vec<(String, String)>,
}

struct Channel {
    redact: RedactStream,
    hasher: sha2::Sha256,
    bytes: u64,
}

/// What tells one destination from another.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct DestinationKey {
    host: String,
    port: u16,
    allowed: bool,
    why: String,
}

struct Destination {
    key: DestinationKey,
    count: u64,
    bytes_out: u64,
    bytes_in: u64,
}

/// What was taken, when the program is over.
pub(crate) struct Taken {
    /// What of stdout was kept, redacted.
    pub(crate) stdout: StreamSummary,
    /// What of stderr was kept, redacted.
    pub(crate) stderr: StreamSummary,
    /// The log, unless the program said nothing.
    pub(crate) log: Option<BlobRef>,
    /// What was reached or refused, as events.
    pub(crate) network: Vec<Event>,
    /// Blocked destinations beyond those.
    pub(crate) folded: Option<FoldedBlocks>,
}

/// Blocked destinations that are in a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FoldedBlocks {
    /// How many.
    pub(crate) destinations: u64,
    /// How many attempts, over all of them.
    pub(crate) attempts: u64,
    /// One line each: host, port, reason, attempts.
    pub(crate) list: String,
}

impl<'a> RunSink<'a> {
    pub(crate) fn new(
        observer: &'a dyn Observer,
        redactor: Redactor,
        log: Box<dyn BlobWrite>,
    ) -> Self {
        let channel =
            || Channel { redact: redactor.stream(), hasher: sha2::Sha256::new(), bytes: 0 };
        let state = State {
            stdout: channel(),
            stderr: channel(),
            log: Some(log),
            log_bytes: 0,
            destinations: Vec::new(),
            places: HashMap::new(),
            models: Vec::new(),
        };
        Self { observer, redactor, state: Mutex::new(state) }
    }

    /// Lets out what was held back and returns what was taken.
    pub(crate) fn finish(self, report: &RunReport) -> io::Result<Taken> {
        let Self { observer, state, .. } = self;
        let RunReport { stdout, stderr, outcome, .. } = report;
        let mut state = state.into_inner().unwrap_or_else(PoisonError::into_inner);
        for (stream, digest) in [(Stream::Stdout, stdout), (Stream::Stderr, stderr)] {
            let mut rest = Vec::new();
            let redact = &mut state.channel(stream).redact;
            // SECURITY: a limit or a kill may come in the middle of a secret.
            match outcome {
                Outcome::Exited { .. } if !digest.truncated => redact.finish(&mut rest),
                _ => redact.finish_cut_off(&mut rest),
            }
            state.keep(stream, &rest)?;
            if !rest.is_empty() {
                // Nobody reads any more; the record is complete all the same.
                let _ = observer.output(stream, &rest);
            }
        }
        let log = match state.log.take() {
            Some(log) if state.log_bytes > 0 => Some(log.finish()?),
            _ => None,
        };
        let models = models_called(&state);
        let (recorded, folded) = fold_blocked(state.destinations);
        let network = recorded.into_iter().map(Destination::into_event);
        let network = network.chain(models).collect();
        Ok(Taken {
            stdout: state.stdout.summary(stdout.truncated),
            stderr: state.stderr.summary(stderr.truncated),
            log,
            network,
            folded,
        })
    }
}

/// Returns the calls to models: those that could be read, and where they could not, by host.
fn models_called(state: &State) -> Vec<Event> {
    let mut calls = state.models.clone();
    for (host, provider) in MODEL_HOSTS {
        let is_read = calls.iter().any(|(known, _)| known == provider);
        let is_reached =
            state.destinations.iter().any(|known| known.key.allowed && known.key.host == host);
        if is_reached && !is_read {
            calls.push((provider.to_owned(), "unknown".to_owned()));
        }
    }
    let event = |(provider, model)| Event::ModelCalled { provider, model, cost_usd: None };
    calls.into_iter().map(event).collect()
}

impl Sink for RunSink<'_> {
    fn output(&self, stream: Stream, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let mut shown = Vec::with_capacity(bytes.len());
        state.channel(stream).redact.push(bytes, &mut shown);
        state.keep(stream, &shown)?;
        if shown.is_empty() { Ok(()) } else { self.observer.output(stream, &shown) }
    }

    fn network(&self, decision: NetworkDecision) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((provider, model)) = &decision.model {
            let call = (provider.clone(), self.redactor.redact_text(model));
            if state.models.len() < MOST_MODELS && !state.models.contains(&call) {
                state.models.push(call);
            }
            return;
        }
        let host = self.redactor.redact_host(&decision.host);
        state.count(host, &decision);
    }
}

impl State {
    fn channel(&mut self, stream: Stream) -> &mut Channel {
        match stream {
            Stream::Stdout => &mut self.stdout,
            Stream::Stderr => &mut self.stderr,
        }
    }

    fn keep(&mut self, stream: Stream, bytes: &[u8]) -> io::Result<()> {
        let channel = self.channel(stream);
        channel.hasher.update(bytes);
        channel.bytes += bytes.len() as u64;
        self.log_bytes += bytes.len() as u64;
        match &mut self.log {
            Some(log) => log.write_all(bytes),
            None => Ok(()),
        }
    }

    fn count(&mut self, host: String, decision: &NetworkDecision) {
        let NetworkDecision { port, allowed, .. } = *decision;
        let key = DestinationKey { host, port, allowed, why: decision.why.clone() };
        let next = self.destinations.len();
        let at = *self.places.entry(key.clone()).or_insert(next);
        if at == next {
            self.destinations.push(Destination { key, count: 0, bytes_out: 0, bytes_in: 0 });
        }
        let Some(known) = self.destinations.get_mut(at) else { return };
        known.count = known.count.saturating_add(decision.count);
        known.bytes_out = known.bytes_out.saturating_add(decision.bytes_out);
        known.bytes_in = known.bytes_in.saturating_add(decision.bytes_in);
    }
}

/// Parts what is recorded one by one from the blocked destinations that go into a list.
fn fold_blocked(all: Vec<Destination>) -> (Vec<Destination>, Option<FoldedBlocks>) {
    let mut blocked = 0;
    let (recorded, folded): (Vec<_>, Vec<_>) = all.into_iter().partition(|one| {
        blocked += usize::from(!one.key.allowed);
        // SECURITY: a flood of blocked names must never hide where something really went.
        one.key.allowed || blocked <= MOST_BLOCKED_EVENTS
    });
    if folded.is_empty() {
        return (recorded, None);
    }
    let attempts = folded.iter().map(|one| one.count).sum();
    let line = |one: &Destination| {
        let DestinationKey { host, port, why, .. } = &one.key;
        format!("{host}\t{port}\t{why}\t{}\n", one.count)
    };
    let mut lines: Vec<String> = folded.iter().map(line).collect();
    lines.sort_unstable();
    let destinations = folded.len() as u64;
    (recorded, Some(FoldedBlocks { destinations, attempts, list: lines.concat() }))
}

impl Channel {
    fn summary(&self, truncated: bool) -> StreamSummary {
        let digest = Digest::from_bytes(self.hasher.clone().finalize().into());
        StreamSummary { digest, bytes: self.bytes, truncated }
    }
}

impl Destination {
    fn into_event(self) -> Event {
        let DestinationKey { host, port, allowed, why } = self.key;
        Event::NetworkConnected {
            host,
            decision: if allowed { NetworkVerdict::Allowed } else { NetworkVerdict::Blocked },
            port: Some(port),
            why: Some(why),
            count: Some(self.count),
            bytes_out: Some(self.bytes_out),
            bytes_in: Some(self.bytes_in),
        }
    }
}
