//! People of a simulation: each submits one run, some approve it, some cancel it.

use warrant_protocol::RunId;

use super::super::time::SeededRandom;
use super::super::wire::{ApprovalNeed, Party, PlaneReply, PlaneRequest, SecretUse, SimulatedRun};
use super::{Happening, Simulation};

/// How long a person waits for an answer.
const RETRY_MS: u64 = 3_000;

/// What one person wants, and what they were told.
#[derive(Debug)]
pub(super) struct SimulatedPerson {
    pub(super) spec: SimulatedRun,
    pub(super) begin_ms: u64,
    pub(super) run: Option<RunId>,
    pub(super) approve_ms: u64,
    pub(super) is_approved: bool,
    pub(super) cancel_ms: Option<u64>,
    pub(super) was_cancel_sent: bool,
    pub(super) is_cancelled: bool,
    pub(super) call: Option<(u64, u64)>,
}

impl SimulatedPerson {
    pub(super) fn any(number: usize, chance: &mut SeededRandom) -> Self {
        let approval = if chance.percent(40) { ApprovalNeed::One } else { ApprovalNeed::None };
        let secret = if chance.percent(40) { SecretUse::One } else { SecretUse::None };
        let begin_ms = chance.range(0, 150_000);
        Self {
            spec: SimulatedRun { number, approval, secret },
            begin_ms,
            run: None,
            approve_ms: begin_ms + chance.range(0, 60_000),
            is_approved: false,
            cancel_ms: chance.percent(20).then(|| begin_ms + chance.range(0, 90_000)),
            was_cancel_sent: false,
            is_cancelled: false,
            call: None,
        }
    }
}

impl Simulation {
    /// Lets a person say what they have to say, until they are answered.
    pub(super) fn person(&mut self, number: usize) {
        let ms = self.time.ms();
        let person = &mut self.people[number];
        if person.call.is_some_and(|(_, sent)| ms < sent + RETRY_MS) {
            return self.after(RETRY_MS, Happening::PersonTick(number));
        }
        let request = match &person.run {
            None => Some(PlaneRequest::Submit(person.spec)),
            Some(run) => {
                let needs = person.spec.approval == ApprovalNeed::One && !person.is_approved;
                let wants_end = person.cancel_ms.is_some_and(|at| at <= ms) && !person.is_cancelled;
                if needs && person.approve_ms <= ms {
                    Some(PlaneRequest::Approve(run.clone()))
                } else if wants_end {
                    person.was_cancel_sent = true;
                    Some(PlaneRequest::Cancel(run.clone()))
                } else {
                    None
                }
            }
        };
        if let Some(request) = request {
            self.next_call += 1;
            let call = self.next_call;
            self.people[number].call = Some((call, ms));
            if let PlaneRequest::Cancel(run) = &request {
                self.observed.cancel_asked.insert(run.clone());
            }
            let from = Party::Person(number);
            self.send(from, Happening::Request { from, generation: 0, call, request });
        }
        self.after(RETRY_MS, Happening::PersonTick(number));
    }

    pub(super) fn answer_person(&mut self, number: usize, call: u64, reply: &PlaneReply) {
        let person = &mut self.people[number];
        if person.call.is_none_or(|(own, _)| own != call) {
            return;
        }
        person.call = None;
        let run = person.run.clone();
        match (reply, run) {
            (PlaneReply::Submitted(run), _) => {
                person.run = Some(run.clone());
                self.observed.submitted.insert(run.clone());
            }
            (PlaneReply::Approved, Some(run)) => {
                person.is_approved = true;
                self.observed.approved.insert(run);
            }
            (PlaneReply::Cancelled, Some(_)) => person.is_cancelled = true,
            // Whoever approves something that ended otherwise meanwhile has nothing more to say.
            (PlaneReply::Refused(_), Some(_)) if person.was_cancel_sent => {
                (person.is_approved, person.is_cancelled) = (true, true);
            }
            (PlaneReply::Refused(state), Some(_)) => {
                let is_over = self.observed.did_clocks_jump && state == "expired";
                assert!(is_over, "an approver is refused: {state}");
                person.is_approved = true;
            }
            (reply, run) => panic!("an answer that fits nothing: {reply:?} {run:?}"),
        }
    }
}
