//! The hash chain of one run: events in order, each bound to the one before.
//!
//! The first `prev` is the contract's hash. A link's hash covers `seq`, `ts`, `prev` and
//! `event`; the wire leaves `version` and `hash` itself out.

use std::fmt::Write as _;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use thiserror::Error;

use crate::canonical::write_value;
use crate::event::Event;
use crate::json::{self, StrictValue};
use crate::{Digest, Timestamp};

/// The version text of chained events.
pub const EVENT_VERSION: &str = "warrant.event.v1";

/// The most events a chain has, but for those that end it.
pub const MAX_EVENTS: u64 = 50_000;

/// The most bytes a chain has ([`Chain::size`]), but for the events that end it.
pub const MAX_BYTES: u64 = 16 * 1024 * 1024;

/// How many events more may end a chain: destinations, outcome, artifacts, and that its limit was
/// reached.
pub const END_EVENTS: u64 = 2048;

/// How many bytes more they may have.
pub const END_BYTES: u64 = 1024 * 1024;

/// Which limit a chain has reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ChainLimit {
    /// That of its events.
    Events,
    /// That of its bytes.
    Bytes,
}

impl ChainLimit {
    /// Returns the word on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Events => "events",
            Self::Bytes => "bytes",
        }
    }

    /// Returns the limit itself.
    #[must_use]
    pub const fn max(self) -> u64 {
        match self {
            Self::Events => MAX_EVENTS,
            Self::Bytes => MAX_BYTES,
        }
    }
}

/// One link of a chain: the received JSON beside a typed view. It never changes, so copies share
/// both.
#[derive(Debug, Clone, PartialEq)]
pub struct ChainedEvent {
    raw: Arc<Map<String, Value>>,
    link: Link,
    event: Arc<Event>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
struct Link {
    seq: u64,
    ts: Timestamp,
    prev: Digest,
    hash: Digest,
}

/// Why JSON is not a link.
#[derive(Debug, Error)]
#[error("event: {detail}")]
pub struct InvalidEvent {
    /// Which member, and what is wrong with it.
    pub detail: String,
}

/// Where a chain breaks and how.
#[derive(Debug, Clone, Copy, Error, PartialEq, Eq)]
#[error("event chain broken at seq {seq}: {reason}")]
pub struct BrokenChain {
    /// The place in the chain.
    pub seq: u64,
    /// How it breaks there.
    pub reason: Break,
}

/// The ways a chain breaks, in the reference's words.
#[derive(Debug, Clone, Copy, Error, PartialEq, Eq)]
pub enum Break {
    /// There is no entry.
    #[error("missing entry")]
    MissingEntry,
    /// The number is not the next one.
    #[error("sequence gap")]
    SequenceGap,
    /// It does not follow the one before.
    #[error("prev hash mismatch")]
    PrevMismatch,
    /// It was changed.
    #[error("event hash mismatch")]
    HashMismatch,
}

/// A chain that holds: it was built here, or checked from its first link.
#[derive(Debug, Clone, PartialEq)]
pub struct Chain {
    genesis: Digest,
    events: Vec<ChainedEvent>,
    size: u64,
}

impl Chain {
    /// Returns the empty chain of a contract.
    #[must_use]
    pub const fn new(contract_hash: Digest) -> Self {
        Self { genesis: contract_hash, events: Vec::new(), size: 0 }
    }

    /// Returns the chain of these events after checking every link.
    ///
    /// # Errors
    /// [`BrokenChain`] at the first link that does not hold.
    pub fn from_events(
        contract_hash: Digest,
        events: Vec<ChainedEvent>,
    ) -> Result<Self, BrokenChain> {
        check_chain(contract_hash, events.iter().map(Some))?;
        Ok(Self::checked(contract_hash, events))
    }

    /// Takes events whose links were just found to hold.
    pub(crate) fn checked(contract_hash: Digest, events: Vec<ChainedEvent>) -> Self {
        let size = events.iter().map(ChainedEvent::size).sum();
        Self { genesis: contract_hash, events, size }
    }

    /// Appends an event that happened at `at`.
    ///
    /// # Errors
    /// [`InvalidEvent`] when the event holds something we do not sign.
    pub fn append(&mut self, at: Timestamp, event: &Event) -> Result<&ChainedEvent, InvalidEvent> {
        let next = ChainedEvent::next(self.head(), self.len(), at, event)?;
        self.size += next.size();
        Ok(self.events.push_mut(next))
    }

    /// Appends an event that was received.
    ///
    /// # Errors
    /// [`BrokenChain`] when it does not follow.
    pub fn push(&mut self, event: ChainedEvent) -> Result<(), BrokenChain> {
        event.check_follows(self.head(), self.len())?;
        self.size += event.size();
        self.events.push(event);
        Ok(())
    }

    /// Returns the hash of the last link, or of the contract when there is none.
    #[must_use]
    pub fn head(&self) -> Digest {
        self.events.last().map_or(self.genesis, ChainedEvent::hash)
    }

    /// Returns the number of links.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.events.len() as u64
    }

    /// Returns the size of all links together ([`ChainedEvent::size`]).
    #[must_use]
    pub const fn size(&self) -> u64 {
        self.size
    }

    /// Returns the limit that the chain has reached, if it has reached one. Only events that end a
    /// run follow then.
    #[must_use]
    pub const fn limit_reached(&self) -> Option<ChainLimit> {
        if self.events.len() as u64 >= MAX_EVENTS {
            Some(ChainLimit::Events)
        } else if self.size >= MAX_BYTES {
            Some(ChainLimit::Bytes)
        } else {
            None
        }
    }

    /// Returns whether there is no link.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// Returns the hash of the contract the chain hangs on.
    #[must_use]
    pub const fn contract_hash(&self) -> Digest {
        self.genesis
    }

    /// Returns the links in order.
    #[must_use]
    pub fn events(&self) -> &[ChainedEvent] {
        &self.events
    }
}

impl ChainedEvent {
    /// Makes the link that follows `prev` at place `seq`.
    ///
    /// # Errors
    /// [`InvalidEvent`] when the event holds something we do not sign.
    pub fn next(
        prev: Digest,
        seq: u64,
        at: Timestamp,
        event: &Event,
    ) -> Result<Self, InvalidEvent> {
        let body =
            json::to_value(event).map_err(|cause| InvalidEvent { detail: cause.detail() })?;
        json::check_signable(&body).map_err(|cause| InvalidEvent { detail: cause.to_string() })?;
        let (raw, link) = linked(prev, seq, at, body);
        // What was just written down needs no second look.
        Ok(Self { raw: Arc::new(raw), link, event: Arc::new(event.clone()) })
    }

    /// Makes the link that follows `prev` at place `seq`, with a body in JSON.
    ///
    /// # Errors
    /// [`InvalidEvent`] when the body is no event or holds something we do not sign.
    pub fn next_raw(
        prev: Digest,
        seq: u64,
        at: Timestamp,
        event: Value,
    ) -> Result<Self, InvalidEvent> {
        let (raw, _) = linked(prev, seq, at, event);
        Self::from_value(Value::Object(raw))
    }

    /// Reads a link from JSON. Whether it holds is checked by its chain.
    ///
    /// # Errors
    /// [`InvalidEvent`] naming what is wrong.
    pub fn from_value(value: Value) -> Result<Self, InvalidEvent> {
        let invalid = |cause: json::InvalidJson| InvalidEvent { detail: cause.detail() };
        json::check_signable(&value).map_err(|cause| InvalidEvent { detail: cause.to_string() })?;
        let link = json::view(&value).map_err(invalid)?;
        let Value::Object(raw) = value else {
            return Err(InvalidEvent { detail: "not an object".to_owned() });
        };
        let body = raw
            .get("event")
            .ok_or_else(|| InvalidEvent { detail: "missing field `event`".to_owned() })?;
        let event = Arc::new(json::view(body).map_err(invalid)?);
        Ok(Self { raw: Arc::new(raw), link, event })
    }

    /// Checks that this link stands at place `seq`, follows `prev`, and was not changed.
    ///
    /// # Errors
    /// [`BrokenChain`] with the first thing that is wrong.
    pub fn check_follows(&self, prev: Digest, seq: u64) -> Result<(), BrokenChain> {
        let broken = |reason| Err(BrokenChain { seq, reason });
        if self.link.seq != seq {
            return broken(Break::SequenceGap);
        }
        if self.link.prev != prev {
            return broken(Break::PrevMismatch);
        }
        if self.computed_hash() != self.link.hash {
            return broken(Break::HashMismatch);
        }
        Ok(())
    }

    /// Returns the place in the chain.
    #[must_use]
    pub const fn seq(&self) -> u64 {
        self.link.seq
    }

    /// Returns when it happened, as whoever wrote it says.
    #[must_use]
    pub const fn at(&self) -> Timestamp {
        self.link.ts
    }

    /// Returns the hash of the link before.
    #[must_use]
    pub const fn prev(&self) -> Digest {
        self.link.prev
    }

    /// Returns the hash the link carries.
    #[must_use]
    pub const fn hash(&self) -> Digest {
        self.link.hash
    }

    /// Returns what happened.
    #[must_use]
    pub fn event(&self) -> &Event {
        &self.event
    }

    /// Returns about how many bytes the link has as JSON: its names and texts, and eight for
    /// everything else.
    #[must_use]
    pub fn size(&self) -> u64 {
        members_size(&self.raw)
    }

    /// Returns the event's type as it was received.
    #[must_use]
    pub fn event_type(&self) -> &str {
        let name = self.raw.get("event").and_then(|event| event.get("type"));
        name.and_then(Value::as_str).unwrap_or_default()
    }

    /// Returns the text of the member `version`, if there is one.
    #[must_use]
    pub fn version(&self) -> Option<&str> {
        self.raw.get("version").and_then(Value::as_str)
    }

    /// Returns the JSON as it was received.
    #[must_use]
    pub fn raw(&self) -> &Map<String, Value> {
        &self.raw
    }

    /// Returns the JSON as a value of its own, to be stored or sent.
    #[must_use]
    pub fn to_value(&self) -> Value {
        Value::Object((*self.raw).clone())
    }

    fn computed_hash(&self) -> Digest {
        let body = self.raw.get("event").unwrap_or(&Value::Null);
        link_hash(body, self.link.prev, self.link.seq, self.link.ts)
    }
}

/// Checks a chain from its first link on; `None` stands for an entry that is missing.
///
/// # Errors
/// [`BrokenChain`] at the first link that does not hold.
pub fn check_chain<'a>(
    contract_hash: Digest,
    events: impl IntoIterator<Item = Option<&'a ChainedEvent>>,
) -> Result<(), BrokenChain> {
    let mut prev = contract_hash;
    for (seq, event) in (0..).zip(events) {
        let event = event.ok_or(BrokenChain { seq, reason: Break::MissingEntry })?;
        event.check_follows(prev, seq)?;
        prev = event.hash();
    }
    Ok(())
}

fn members_size(members: &Map<String, Value>) -> u64 {
    members.iter().map(|(name, value)| name.len() as u64 + 4 + value_size(value)).sum()
}

fn value_size(value: &Value) -> u64 {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 8,
        Value::String(text) => text.len() as u64 + 2,
        Value::Array(items) => items.iter().map(|item| 1 + value_size(item)).sum::<u64>() + 2,
        Value::Object(members) => members_size(members) + 2,
    }
}

/// Returns the JSON of a link and what it says of its place.
fn linked(prev: Digest, seq: u64, ts: Timestamp, event: Value) -> (Map<String, Value>, Link) {
    let hash = link_hash(&event, prev, seq, ts);
    let mut raw = Map::new();
    raw.insert("version".to_owned(), EVENT_VERSION.into());
    raw.insert("seq".to_owned(), seq.into());
    raw.insert("ts".to_owned(), ts.to_string().into());
    raw.insert("prev".to_owned(), prev.to_hex().into());
    raw.insert("event".to_owned(), event);
    raw.insert("hash".to_owned(), hash.to_hex().into());
    (raw, Link { seq, ts, prev, hash })
}

/// The canonical JSON of `{event, prev, seq, ts}`; the names are already in order.
fn link_hash(event: &Value, prev: Digest, seq: u64, ts: Timestamp) -> Digest {
    let mut text = String::with_capacity(512);
    text.push_str("{\"event\":");
    write_value(event, &mut text);
    let _ = write!(text, ",\"prev\":\"{prev}\",\"seq\":{seq},\"ts\":\"{ts}\"}}");
    Digest::of(text.as_bytes())
}

impl Serialize for ChainedEvent {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.raw.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for ChainedEvent {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = StrictValue::deserialize(deserializer)?;
        Self::from_value(value.0).map_err(serde::de::Error::custom)
    }
}
