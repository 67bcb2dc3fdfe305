//! The lease automaton of one run, one plane and two runners, every interleaving of it.
//!
//! The states of the run change by the real table ([`RunState::after`]), the plane ends leases by
//! the real [`LeaseTable`], and a runner gives up by the real [`LeaseTimer`]. Modeled are: messages
//! that are lost, doubled and overtaken, plane and runners that are killed and started again, a
//! clock of each process that runs at any speed or stands still, an approver and somebody who
//! cancels.

mod steps;

use std::collections::BTreeMap;
use std::time::Duration;

use warrant_plane::lease_table::{HolderStatus, LeaseFacts, LeaseTable, LeaseTerms, LeaseVerdict};
use warrant_protocol::port::LeaseKey;
use warrant_protocol::wire::DisconnectRule;
use warrant_protocol::{Moment, RunId, RunState, Transition};
use warrant_runner::lease_timer::{LeaseStanding, LeaseTimer};

use super::explore::Model;

/// The step of every clock, which is observed twice in it.
const HALF_TICK: Duration = Duration::from_secs(5);
const LEASE: Duration = Duration::from_secs(15);
const RULE: DisconnectRule = DisconnectRule::ContinueFor(Duration::from_secs(10));
/// After so many ticks nothing changes any more: of silence, of a stop unheard, of a lease.
const MOST_SILENT: u8 = 3;
const MOST_DEAF: u8 = 6;
const MOST_AGE: u8 = 2;

/// A mistake that can be put back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// None: the protocol as it is.
    None,
    /// The lease is counted from when the claim was sent.
    CountFromClaim,
    /// Approval and contract are two commits, and an approval counts once.
    TwoCommits,
    /// A start that comes again is refused.
    StartOnce,
}

/// How much can happen.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    /// Messages under way at a time; more are lost.
    pub(crate) messages: usize,
    /// Leases given.
    pub(crate) leases: u8,
    /// Kills of runners.
    pub(crate) runner_kills: u8,
    /// Kills of the plane.
    pub(crate) plane_kills: u8,
    /// Whether somebody may cancel.
    pub(crate) cancels: Cancels,
}

/// Whether somebody may cancel. Nothing may wait for that forever, so both are explored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cancels {
    Never,
    AnyTime,
}

/// How a run ended, by its receipt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Ending {
    Completed,
    /// Stopped because somebody asked.
    CancelledBy,
    /// Stopped, and nobody asked.
    CancelledByNobody,
    /// The plane was away for longer than policy allows; says so.
    Disconnected,
    /// Refused before it began.
    Refused,
    /// Begun by an earlier life of the runner.
    Unobserved,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Message {
    Approve,
    Cancel,
    Claim(u8),
    Claimed(u8, u8),
    Start(u8, u8),
    Started(u8, u8),
    Renew(u8, u8),
    Complete(u8, u8, Ending),
    HandBack(u8, u8),
}

/// Whether the answer to a request arrives. Those that can do harm when they are late, `Claimed`
/// and `Started`, are messages of their own; the others arrive at once or never.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    Arrives,
    IsLost,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Stop {
    No,
    Asked,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Work {
    Idle,
    /// A claim is under way, for so many ticks.
    Claiming(u8),
    Leased(u8),
    Starting(u8),
    Executing(u8, Stop),
    Ended(u8, Ending),
}

/// What survives the kill of a runner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Saved {
    Nothing,
    Leased(u8),
    Starting(u8),
    Ended(u8, Ending),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Runner {
    is_up: bool,
    work: Work,
    saved: Saved,
    /// Ticks since the lease was counted from.
    age: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Stored {
    state: RunState,
    epoch: u8,
    holder: Option<u8>,
    has_started: bool,
    is_half_approved: bool,
    stop_asked: bool,
    receipts: u8,
    ending: Option<(u8, u8, Ending)>,
    is_cancelled_by_somebody: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct World {
    stored: Stored,
    plane_is_up: bool,
    /// Ticks since the holder was heard, and since the stop was asked for, as the plane counts.
    silent: u8,
    deaf: u8,
    runners: [Runner; 2],
    messages: Vec<Message>,
    executions: u8,
    runner_kills: u8,
    plane_kills: u8,
    /// Whether this process of the plane is between the two commits of an approval.
    is_issuing: bool,
    /// What went wrong on the way.
    broken: Option<&'static str>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    Send(Message),
    Deliver(Message, Answer),
    DeliverTwice(Message, Answer),
    Lose(Message),
    Issue,
    KillPlane,
    StartPlane,
    PlaneTick,
    Sweep,
    KillRunner(u8),
    StartRunner(u8),
    RunnerTick(u8),
    GiveUpClaim(u8),
    Refuse(u8),
    HandBackAtDrain(u8),
    Finish(u8),
    StopExecution(u8),
    GiveUpLease(u8),
}

/// The model.
#[derive(Debug)]
pub(crate) struct Leases {
    pub(crate) fault: Fault,
    pub(crate) bounds: Bounds,
    verdicts: BTreeMap<(bool, bool, u8, u8), LeaseVerdict>,
    standings: Vec<LeaseStanding>,
}

/// Returns whether the bounds of time are where nothing changes any more.
pub(crate) fn are_bounds_final() -> bool {
    standing(MOST_AGE) == LeaseStanding::Over
        && matches!(verdict(RunState::Leased, MOST_SILENT, 0), LeaseVerdict::Requeue(_))
        && matches!(verdict(RunState::Running, MOST_SILENT, 0), LeaseVerdict::Lost(_))
        && matches!(verdict(RunState::Stopping, 0, MOST_DEAF), LeaseVerdict::Lost(_))
}

impl Leases {
    pub(crate) fn new(fault: Fault, bounds: Bounds) -> Self {
        let mut verdicts = BTreeMap::new();
        for (state, has_started, is_stopping) in [
            (RunState::Leased, false, false),
            (RunState::Running, true, false),
            (RunState::Stopping, true, true),
        ] {
            for silent in 0..=MOST_SILENT {
                for deaf in 0..=MOST_DEAF {
                    let verdict = verdict(state, silent, deaf);
                    verdicts.insert((has_started, is_stopping, silent, deaf), verdict);
                }
            }
        }
        let standings = (0..=MOST_AGE).map(standing).collect();
        Self { fault, bounds, verdicts, standings }
    }

    fn verdict(&self, world: &World) -> LeaseVerdict {
        let (has_started, is_stopping) = match world.stored.state {
            RunState::Leased => (false, false),
            RunState::Running => (true, false),
            RunState::Stopping => (true, true),
            _ => return LeaseVerdict::Holds,
        };
        self.verdicts[&(has_started, is_stopping, world.silent, world.deaf)]
    }

    fn standing(&self, age: u8) -> LeaseStanding {
        self.standings[usize::from(age)]
    }
}

/// Asks the real table about a lease that was last heard so long ago.
fn verdict(state: RunState, silent: u8, deaf: u8) -> LeaseVerdict {
    let key = LeaseKey { run: RunId::from_random([1; 16]), epoch: 1 };
    let terms = LeaseTerms { lease: LEASE, disconnect: RULE };
    let facts = LeaseFacts { key: &key, state, terms, holder: HolderStatus::Possible };
    let begin = Moment::ORIGIN;
    let mut table = LeaseTable::begin(begin);
    let last = 2 * silent.max(deaf);
    let mut verdict = LeaseVerdict::Holds;
    for half in 0..=last {
        let now = begin.plus(HALF_TICK * u32::from(half));
        if last - half == 2 * silent {
            table.heard(now, &key);
        }
        if last - half <= 2 * deaf || state != RunState::Stopping {
            verdict = table.judge(now, facts);
        } else {
            table.elapsed(now);
        }
    }
    verdict
}

/// Asks the real timer about a lease that was counted from so long ago.
fn standing(age: u8) -> LeaseStanding {
    let mut timer = LeaseTimer::granted(Moment::ORIGIN, LEASE, RULE);
    let moments = (0..=2 * age).map(|half| Moment::ORIGIN.plus(HALF_TICK * u32::from(half)));
    moments.fold(LeaseStanding::Held, |_, now| timer.standing(now))
}

impl Model for Leases {
    type State = World;
    type Step = Step;

    fn first(&self) -> World {
        let runner = Runner { is_up: true, work: Work::Idle, saved: Saved::Nothing, age: 0 };
        World {
            stored: Stored {
                state: RunState::first(Transition::Ask).unwrap(),
                epoch: 0,
                holder: None,
                has_started: false,
                is_half_approved: false,
                stop_asked: false,
                receipts: 0,
                ending: None,
                is_cancelled_by_somebody: false,
            },
            plane_is_up: true,
            silent: 0,
            deaf: 0,
            runners: [runner; 2],
            messages: Vec::new(),
            executions: 0,
            runner_kills: 0,
            plane_kills: 0,
            is_issuing: false,
            broken: None,
        }
    }

    fn next(&self, world: &World) -> Vec<(Step, World)> {
        if world.stored.state.is_terminal() && world.messages.is_empty() {
            // What is left is the runners' clearing up, which changes nothing of the run.
            return Vec::new();
        }
        let mut steps = Vec::new();
        self.network_steps(world, &mut steps);
        self.plane_steps(world, &mut steps);
        for number in [0, 1] {
            self.runner_steps(world, number, &mut steps);
        }
        steps
    }

    fn wrong(&self, world: &World) -> Option<String> {
        let stored = &world.stored;
        let wrong = [
            (world.executions > 1, "it was executed twice"),
            (stored.receipts > 1, "it has two receipts"),
            (stored.state.is_terminal() != (stored.receipts == 1), "an end without a receipt"),
            (
                stored.state == RunState::Cancelled && !stored.is_cancelled_by_somebody,
                "it was cancelled, and nobody asked for it",
            ),
            (world.executions > 0 && !stored.has_started, "it was executed and never started"),
        ];
        let wrong = wrong.into_iter().find_map(|(is_so, what)| is_so.then_some(what));
        wrong.or(world.broken).map(str::to_owned)
    }

    fn is_end(&self, world: &World) -> bool {
        let Stored { state, epoch, .. } = world.stored;
        // A run that waits in the queue can be taken; only the bounds of the model say no.
        state.is_terminal() || (state == RunState::Queued && epoch == self.bounds.leases)
    }
}
