//! How large a runner may make the chain of a run.

use warrant_protocol::Chain;
use warrant_protocol::chain::{ChainLimit, END_BYTES, END_EVENTS, MAX_BYTES, MAX_EVENTS};
use warrant_protocol::event::FailureClass;
use warrant_protocol::port::PlaneError;

/// Which events of a run were added last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Those before its end, which leave space for it.
    Before,
    /// Those that end it.
    End,
}

/// Checks that a chain stays within its limits.
pub(crate) fn check_limits(chain: &Chain, phase: Phase) -> Result<(), PlaneError> {
    let (more_events, more_bytes) = match phase {
        Phase::Before => (0, 0),
        Phase::End => (END_EVENTS, END_BYTES),
    };
    for (limit, has, most) in [
        (ChainLimit::Events, chain.len(), MAX_EVENTS + more_events),
        (ChainLimit::Bytes, chain.size(), MAX_BYTES + more_bytes),
    ] {
        if has > most {
            let (name, max) = (limit.as_str(), limit.max());
            let message = format!(
                "the chain would have {has} {name}, its limit is {max}: record no more than \
                 `chain.limited` and complete the run"
            );
            return Err(PlaneError::Refused { failure: FailureClass::BudgetExceeded, message });
        }
    }
    Ok(())
}
