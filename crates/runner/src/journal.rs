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
    /// Whether the chain says that it has reached its limit.
    is_limited: bool,
    /// When this runner began with it.
    begun: Timestamp,
    clock: &'a (dyn Fn() -> Timestamp + Sync),
}

impl<'a> Journal<'a> {
    /// Continues a chain that the plane handed over.
    pub(crate) fn new(chain: Chain, clock: &'a (dyn Fn() -> Timestamp + Sync)) -> Self {
        let told = chain.events().len();
        Self { chain, told, is_started: false, is_limited: false, begun: clock(), clock }
    }

    /// Records what happened, now. A chain that has reached its limit says so once; after that only
    /// what a run has few of is recorded, so that its end always fits.
    pub(crate) fn record(&mut self, event: &Event) -> Result<(), InvalidEvent> {
        match self.chain.limit_reached() {
            Some(_) if event.is_one_of_many() && self.is_limited => Ok(()),
            Some(limit) if event.is_one_of_many() => {
                self.is_limited = true;
                self.append(&Event::ChainLimited { limit, max: limit.max() })
            }
            Some(_) | None => self.append(event),
        }
    }

    fn append(&mut self, event: &Event) -> Result<(), InvalidEvent> {
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

#[cfg(test)]
mod tests {
    use warrant_protocol::chain::{ChainLimit, END_BYTES, END_EVENTS, MAX_BYTES};
    use warrant_protocol::{Digest, Outcome, Usage};

    use super::*;

    #[test]
    fn a_chain_that_reaches_its_limit_says_so_once_and_its_end_fits() {
        let clock = || Timestamp::from_unix_ms(1).unwrap();
        let mut journal = Journal::new(Chain::new(Digest::of(b"contract")), &clock);
        let content_hash = Digest::of(b"content");
        for number in 0..6_000 {
            let path = format!("{number}/{}", "x".repeat(4_000));
            journal.record(&Event::FileChanged { path, content_hash }).unwrap();
        }
        let usage = Usage::default();
        let ended = Event::OutcomeRecorded { outcome: Outcome::Failed, exit_code: None, usage };
        journal.record(&ended).unwrap();
        journal.record(&Event::RunCompleted {}).unwrap();
        let events = journal.chain().events();
        let limited = Event::ChainLimited { limit: ChainLimit::Bytes, max: MAX_BYTES };
        let place = events.iter().position(|event| *event.event() == limited).unwrap();
        assert_eq!(events.len() - place, 3, "outcome and end follow, and nothing else");
        assert!(place > 3_000 && (events.len() - place) as u64 <= END_EVENTS);
        assert!(journal.chain().size() <= MAX_BYTES + END_BYTES);
    }
}
