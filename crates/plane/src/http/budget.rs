//! One memory budget for everything that callers make the plane hold: bodies while they are read,
//! JSON while it is parsed, and answers that are built whole.
//!
//! ```text
//! nobody known ───────────────────────► strangers   8 MiB, 2 MiB for one address
//! somebody known ─► the first 512 KiB ─► small      24 MiB, 8 MiB for one holder
//!              └──► the rest ──────────► large     160 MiB, 136 MiB for one holder
//! ```
//!
//! So strangers never take what is there for people, large calls never what small ones need
//! (claims, renewals, most submissions), and one holder never what others need. Whoever does not get
//! its space within [`WAIT`] is refused and may come again.

use crate::request_context::keep_cause;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// What of one call counts as small.
const SMALL_BYTES: usize = 512 * 1024;

/// What one call of somebody who is not known may take, read and parsed.
const STRANGER_BYTES: usize = 512 * 1024;

/// How long somebody waits for space.
const WAIT: Duration = Duration::from_secs(10);

const MIB: usize = 1024;

/// The budget.
#[derive(Debug)]
pub(crate) struct MemoryBudget {
    strangers: Arc<Compartment>,
    small: Arc<Compartment>,
    large: Arc<Compartment>,
    wait: Duration,
}

/// Whose space it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Holder {
    /// Somebody whose token was checked, by a name of their own.
    Known(String),
    /// Nobody we know yet, at this address.
    Stranger(IpAddr),
}

/// Why there is no space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoSpace {
    /// The holder has all that one may have.
    Share {
        /// How many MiB that are.
        mib: usize,
    },
    /// The plane has none left.
    Busy,
}

/// Space that is taken until this is dropped.
#[derive(Debug)]
pub(crate) struct Reservation {
    budget: Arc<MemoryBudget>,
    holder: Holder,
    bytes: usize,
    first: Option<Taken>,
    rest: Option<Taken>,
}

/// A part of the budget, all sizes in KiB.
#[derive(Debug)]
struct Compartment {
    space: Arc<Semaphore>,
    share: usize,
    shares: Mutex<HashMap<String, usize>>,
}

/// What one reservation has of a compartment.
#[derive(Debug)]
struct Taken {
    compartment: Arc<Compartment>,
    holder: String,
    kib: usize,
    permit: Option<OwnedSemaphorePermit>,
}

impl MemoryBudget {
    pub(crate) fn new() -> Self {
        Self::with_wait(WAIT)
    }

    fn with_wait(wait: Duration) -> Self {
        Self {
            wait,
            strangers: Compartment::new(8 * MIB, 2 * MIB),
            small: Compartment::new(24 * MIB, 8 * MIB),
            // One file of the compat APIs is read and copied once.
            large: Compartment::new(160 * MIB, 136 * MIB),
        }
    }

    /// Returns a reservation of nothing yet.
    pub(crate) fn reservation(self: &Arc<Self>, holder: Holder) -> Reservation {
        Reservation { budget: Arc::clone(self), holder, bytes: 0, first: None, rest: None }
    }
}

impl Reservation {
    /// Returns a reservation of nothing for the same holder.
    pub(crate) fn of_the_same_holder(&self) -> Self {
        self.budget.reservation(self.holder.clone())
    }

    /// Says who it is, once that is known.
    pub(crate) fn identify(&mut self, holder: String) {
        self.holder = Holder::Known(holder);
    }

    /// Takes space for `bytes` more, and waits for it if there is none.
    pub(crate) async fn grow(&mut self, bytes: usize) -> Result<(), NoSpace> {
        for (slot, compartment, kib) in self.plan(bytes)? {
            let mut taken = compartment.begin(&self.holder, kib)?;
            let wait = Arc::clone(&taken.compartment.space).acquire_many_owned(permits(kib));
            let permit = tokio::time::timeout(self.budget.wait, wait).await;
            let Ok(Ok(permit)) = permit else { return Err(NoSpace::Busy) };
            taken.permit = Some(permit);
            self.keep(slot, taken);
        }
        self.bytes += bytes;
        Ok(())
    }

    /// Takes space for `bytes` more at once, or none.
    pub(crate) fn try_grow(&mut self, bytes: usize) -> Result<(), NoSpace> {
        for (slot, compartment, kib) in self.plan(bytes)? {
            let mut taken = compartment.begin(&self.holder, kib)?;
            let space = Arc::clone(&taken.compartment.space);
            let permit = space.try_acquire_many_owned(permits(kib));
            taken.permit = Some(permit.map_err(|error| keep_cause(&error, NoSpace::Busy))?);
            self.keep(slot, taken);
        }
        self.bytes += bytes;
        Ok(())
    }

    /// Returns from which compartments `bytes` more are taken.
    fn plan(&self, bytes: usize) -> Result<Vec<(Slot, Arc<Compartment>, usize)>, NoSpace> {
        let mut parts = Vec::new();
        match &self.holder {
            Holder::Stranger(_) if self.bytes + bytes > STRANGER_BYTES => {
                return Err(NoSpace::Busy);
            }
            Holder::Stranger(_) => {
                parts.push((Slot::First, Arc::clone(&self.budget.strangers), kib(bytes)));
            }
            Holder::Known(_) => {
                let small = bytes.min(SMALL_BYTES.saturating_sub(self.bytes));
                parts.push((Slot::First, Arc::clone(&self.budget.small), kib(small)));
                parts.push((Slot::Rest, Arc::clone(&self.budget.large), kib(bytes - small)));
            }
        }
        parts.retain(|(_, _, kib)| *kib > 0);
        Ok(parts)
    }

    fn keep(&mut self, slot: Slot, taken: Taken) {
        let kept = match slot {
            Slot::First => &mut self.first,
            Slot::Rest => &mut self.rest,
        };
        match kept {
            // What somebody had before they were known goes back to the strangers.
            Some(kept) if Arc::ptr_eq(&kept.compartment, &taken.compartment) => kept.merge(taken),
            _ => *kept = Some(taken),
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum Slot {
    First,
    Rest,
}

impl Compartment {
    fn new(kib: usize, share: usize) -> Arc<Self> {
        let space = Arc::new(Semaphore::new(kib));
        Arc::new(Self { space, share, shares: Mutex::default() })
    }

    /// Counts what a holder is about to take, unless that is more than its share.
    fn begin(self: &Arc<Self>, holder: &Holder, kib: usize) -> Result<Taken, NoSpace> {
        let holder = match holder {
            Holder::Known(name) => name.clone(),
            Holder::Stranger(address) => address.to_string(),
        };
        let mut shares = self.shares();
        let count = shares.entry(holder.clone()).or_default();
        if *count + kib > self.share {
            return Err(NoSpace::Share { mib: self.share / MIB });
        }
        *count += kib;
        drop(shares);
        Ok(Taken { compartment: Arc::clone(self), holder, kib, permit: None })
    }

    fn shares(&self) -> MutexGuard<'_, HashMap<String, usize>> {
        self.shares.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Taken {
    fn merge(&mut self, mut other: Self) {
        if let (Some(permit), Some(more)) = (&mut self.permit, other.permit.take())
            && self.holder == other.holder
        {
            permit.merge(more);
            self.kib += std::mem::take(&mut other.kib);
        }
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let mut shares = self.compartment.shares();
        if let Some(count) = shares.get_mut(&self.holder) {
            *count = count.saturating_sub(self.kib);
            if *count == 0 {
                shares.remove(&self.holder);
            }
        }
    }
}

const fn kib(bytes: usize) -> usize {
    bytes.div_ceil(1024)
}

fn permits(kib: usize) -> u32 {
    u32::try_from(kib).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEBIBYTE: usize = 1024 * 1024;

    fn known(name: &str) -> Holder {
        Holder::Known(name.to_owned())
    }

    #[tokio::test]
    async fn one_holder_cannot_take_what_others_need() {
        let budget = Arc::new(MemoryBudget::with_wait(Duration::from_millis(1)));
        let mut greedy = budget.reservation(known("greedy"));
        greedy.grow(136 * MEBIBYTE).await.unwrap();
        assert_eq!(greedy.grow(MEBIBYTE).await, Err(NoSpace::Share { mib: 136 }));
        let mut again = budget.reservation(known("greedy"));
        again.grow(SMALL_BYTES).await.unwrap();
        assert_eq!(again.grow(MEBIBYTE).await, Err(NoSpace::Share { mib: 136 }));
        let mut other = budget.reservation(known("other"));
        other.grow(20 * MEBIBYTE).await.unwrap();
        assert_eq!(other.grow(10 * MEBIBYTE).await, Err(NoSpace::Busy), "it waited first");
        drop(greedy);
        other.grow(10 * MEBIBYTE).await.unwrap();
    }

    #[tokio::test]
    async fn strangers_have_little_and_take_nothing_from_people() {
        let budget = Arc::new(MemoryBudget::with_wait(Duration::from_millis(1)));
        let stranger = |last: u8| Holder::Stranger(IpAddr::from([192, 0, 2, last]));
        let mut one = budget.reservation(stranger(1));
        one.grow(STRANGER_BYTES).await.unwrap();
        assert_eq!(one.grow(1).await, Err(NoSpace::Busy));
        let mut many = Vec::new();
        for address in 1..=4 {
            loop {
                let mut more = budget.reservation(stranger(address));
                if more.grow(STRANGER_BYTES).await == Err(NoSpace::Share { mib: 2 }) {
                    break;
                }
                many.push(more);
            }
        }
        assert_eq!(many.len(), 15, "each address has its share");
        let mut last = budget.reservation(stranger(5));
        assert_eq!(last.grow(1024).await, Err(NoSpace::Busy));
        let mut person = budget.reservation(known("person"));
        person.grow(MEBIBYTE).await.unwrap();
        one.identify("runner".to_owned());
        one.grow(MEBIBYTE).await.unwrap();
    }

    #[tokio::test]
    async fn what_was_taken_comes_back() {
        let budget = Arc::new(MemoryBudget::with_wait(Duration::from_millis(1)));
        let free = |budget: &MemoryBudget| {
            [&budget.strangers, &budget.small, &budget.large].map(|part| {
                assert!(part.shares().is_empty());
                part.space.available_permits()
            })
        };
        let before = free(&budget);
        for _ in 0..50 {
            let mut taken = budget.reservation(Holder::Stranger(IpAddr::from([127, 0, 0, 1])));
            taken.grow(1000).await.unwrap();
            taken.identify("a".to_owned());
            taken.grow(100 * MEBIBYTE).await.unwrap();
            taken.grow(10).await.unwrap();
            assert_eq!(taken.try_grow(100 * MEBIBYTE), Err(NoSpace::Share { mib: 136 }));
        }
        assert_eq!(free(&budget), before);
    }
}
