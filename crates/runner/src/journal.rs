//! The journal: the run's chain as this runner continues it, and what the plane has of it.
//!
//! Everything that enters goes through here once, with its time. Texts that come from inside a
//! session are redacted by whoever makes the event.

use warrant_protocol::chain::{BrokenChain, InvalidEvent};
use warrant_protocol::{Chain, ChainedEvent, Event, Timestamp};

/// The chain of one run, seen from its runner.
pub(crate) struct Journal<'a> {
    chain: Chain,
    /// How many links the plane has.
    told: usize,
    /// Whether the plane recorded the start.
    is_started: bool,
    /// When this runner began with it.
    begun: Timestamp,
    clock: &'a (dyn Fn() -> Timestamp + Sync),
}

impl<'a> Journal<'a> {
    /// Continues a chain that the plane handed over.
    pub(crate) fn new(chain: Chain, clock: &'a (dyn Fn() -> Timestamp + Sync)) -> Self {
        let told = chain.events().len();
        Self { chain, told, is_started: false, begun: clock(), clock }
    }

    /// Records what happened, now.
    pub(crate) fn record(&mut self, event: &Event) -> Result<(), InvalidEvent> {
        // A clock that was set back must not make the chain run backwards.
        let last = self.chain.events().last().map(ChainedEvent::at);
        let now = (self.clock)().max(last.unwrap_or_else(self.clock));
        self.chain.append(now, event).map(|_| ())
    }

    /// Returns what the plane does not have yet.
    pub(crate) fn untold(&self) -> &[ChainedEvent] {
        self.chain.events().get(self.told..).unwrap_or_default()
    }

    /// Takes over what the plane wrote after everything that was told to it: the start.
    pub(crate) fn take_over(&mut self, events: Vec<ChainedEvent>) -> Result<(), BrokenChain> {
        for event in events {
            self.chain.push(event)?;
        }
        self.told = self.chain.events().len();
        self.is_started = true;
        Ok(())
    }

    /// Returns whether the plane recorded the start; without it no program runs.
    pub(crate) const fn is_started(&self) -> bool {
        self.is_started
    }

    /// Returns the whole chain.
    pub(crate) const fn chain(&self) -> &Chain {
        &self.chain
    }

    /// Returns when this runner began with it.
    pub(crate) const fn begun(&self) -> Timestamp {
        self.begun
    }

    /// Returns the present moment.
    pub(crate) fn now(&self) -> Timestamp {
        (self.clock)()
    }
}
