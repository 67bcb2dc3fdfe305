//! The steps of the lease automaton: what the network, the plane and the runners can do next.

use warrant_plane::lease_table::LeaseVerdict;
use warrant_protocol::{RunState, Transition};
use warrant_runner::lease_timer::LeaseStanding;

use super::{
    Answer, Cancels, Ending, Fault, Leases, MOST_AGE, MOST_DEAF, MOST_SILENT, Message, Runner,
    Saved, Step, Stop, Work, World,
};

type Steps = Vec<(Step, World)>;

type AddStep<'a> = dyn FnMut(Step, &dyn Fn(&mut World, &mut Runner)) + 'a;

impl Leases {
    /// Puts a message on its way, if there is room for it and it is not under way already.
    fn send(&self, world: &mut World, message: Message) {
        if world.messages.len() < self.bounds.messages && !world.messages.contains(&message) {
            world.messages.push(message);
            world.messages.sort_unstable();
        }
    }

    pub(super) fn network_steps(&self, world: &World, steps: &mut Steps) {
        for message in &world.messages {
            let mut lost = world.clone();
            lost.messages.retain(|other| other != message);
            let reaches = match message {
                // A claim waits at the plane until there is something to take.
                Message::Claim(_) => world.plane_is_up && world.stored.state == RunState::Queued,
                Message::Approve
                | Message::Cancel
                | Message::Start(..)
                | Message::Renew(..)
                | Message::Complete(..)
                | Message::HandBack(..) => world.plane_is_up,
                Message::Claimed(runner, _) | Message::Started(runner, _) => {
                    world.runners[usize::from(*runner)].is_up
                }
            };
            let has_answer =
                matches!(message, Message::Renew(..) | Message::Complete(..) | Message::Start(..));
            let answers: &[Answer] =
                if has_answer { &[Answer::Arrives, Answer::IsLost] } else { &[Answer::Arrives] };
            for answer in answers.iter().filter(|_| reaches) {
                let mut once = lost.clone();
                self.deliver(&mut once, *message, *answer);
                steps.push((Step::Deliver(*message, *answer), once));
                let mut twice = world.clone();
                self.deliver(&mut twice, *message, *answer);
                if twice != *world {
                    steps.push((Step::DeliverTwice(*message, *answer), twice));
                }
            }
            steps.push((Step::Lose(*message), lost));
        }
    }

    fn deliver(&self, world: &mut World, message: Message, answer: Answer) {
        match message {
            Message::Approve => self.approve(world),
            Message::Cancel => cancel(world),
            Message::Claim(runner) => self.claim(world, runner),
            Message::Start(runner, epoch) => self.start(world, (runner, epoch), answer),
            Message::Renew(runner, epoch) => renew(world, (runner, epoch), answer),
            Message::Complete(runner, epoch, ending) => {
                complete(world, (runner, epoch), ending, answer);
            }
            Message::HandBack(runner, epoch) => {
                if holds(world, (runner, epoch)) && change(world, Transition::Requeue) {
                    world.stored.holder = None;
                }
            }
            Message::Claimed(runner, epoch) => self.claimed(world, (runner, epoch)),
            Message::Started(runner, epoch) => {
                let runner = &mut world.runners[usize::from(runner)];
                if runner.work == Work::Starting(epoch) {
                    runner.work = Work::Executing(epoch, Stop::No);
                    world.executions = (world.executions + 1).min(2);
                }
            }
        }
    }

    fn approve(&self, world: &mut World) {
        match (self.fault, world.stored.state) {
            (Fault::TwoCommits, RunState::AwaitingApproval) if !world.stored.is_half_approved => {
                (world.stored.is_half_approved, world.is_issuing) = (true, true);
            }
            (Fault::TwoCommits, _) => {}
            (_, RunState::AwaitingApproval) => {
                change(world, Transition::Approve);
            }
            _ => {}
        }
    }

    fn claim(&self, world: &mut World, runner: u8) {
        if world.stored.epoch < self.bounds.leases && change(world, Transition::Claim) {
            world.stored.epoch += 1;
            world.stored.holder = Some(runner);
            (world.silent, world.deaf) = (0, 0);
            let epoch = world.stored.epoch;
            self.send(world, Message::Claimed(runner, epoch));
        }
    }

    fn claimed(&self, world: &mut World, (runner, epoch): (u8, u8)) {
        let runner = &mut world.runners[usize::from(runner)];
        if let Work::Claiming(waited) = runner.work {
            runner.work = Work::Leased(epoch);
            runner.saved = Saved::Leased(epoch);
            runner.age = if self.fault == Fault::CountFromClaim { waited } else { 0 };
        }
    }

    fn start(&self, world: &mut World, lease: (u8, u8), answer: Answer) {
        let (runner, epoch) = lease;
        let is_again = holds(world, lease) && world.stored.has_started;
        if holds(world, lease) && change(world, Transition::Start) {
            world.stored.has_started = true;
            world.silent = 0;
        } else if !is_again || self.fault == Fault::StartOnce {
            return fence(world, lease, answer);
        }
        if answer == Answer::Arrives {
            self.send(world, Message::Started(runner, epoch));
        }
    }

    pub(super) fn plane_steps(&self, world: &World, steps: &mut Steps) {
        let mut add = |step: Step, change: &dyn Fn(&mut World)| {
            let mut next = world.clone();
            change(&mut next);
            if next != *world {
                steps.push((step, next));
            }
        };
        add(Step::Send(Message::Approve), &|next| {
            let is_open = next.stored.state == RunState::AwaitingApproval;
            // Who approved by halves is told that they did.
            if is_open && !next.stored.is_half_approved {
                self.send(next, Message::Approve);
            }
        });
        let may_cancel = self.bounds.cancels == Cancels::AnyTime;
        if may_cancel && !world.stored.stop_asked && !world.stored.state.is_terminal() {
            add(Step::Send(Message::Cancel), &|next| self.send(next, Message::Cancel));
        }
        if !world.plane_is_up {
            add(Step::StartPlane, &|next| {
                next.plane_is_up = true;
                (next.silent, next.deaf) = (0, 0);
            });
            return;
        }
        if world.is_issuing {
            add(Step::Issue, &|next| {
                next.is_issuing = false;
                change(next, Transition::Approve);
            });
        }
        if world.plane_kills < self.bounds.plane_kills {
            add(Step::KillPlane, &|next| {
                (next.plane_is_up, next.is_issuing) = (false, false);
                next.plane_kills += 1;
            });
        }
        if world.stored.state.is_held() {
            add(Step::PlaneTick, &|next| {
                next.silent = (next.silent + 1).min(MOST_SILENT);
                if next.stored.state == RunState::Stopping {
                    next.deaf = (next.deaf + 1).min(MOST_DEAF);
                }
            });
        }
        match self.verdict(world) {
            LeaseVerdict::Holds => {}
            LeaseVerdict::Requeue(_) => add(Step::Sweep, &|next| {
                if change(next, Transition::Requeue) {
                    next.stored.holder = None;
                }
            }),
            LeaseVerdict::Lost(_) => add(Step::Sweep, &|next| {
                if change(next, Transition::Lose) {
                    next.stored.receipts += 1;
                }
            }),
        }
    }

    pub(super) fn runner_steps(&self, world: &World, number: u8, steps: &mut Steps) {
        let index = usize::from(number);
        let runner = world.runners[index];
        let mut add = |step: Step, change: &dyn Fn(&mut World, &mut Runner)| {
            let (mut next, mut runner) = (world.clone(), runner);
            change(&mut next, &mut runner);
            next.runners[index] = runner;
            if next != *world {
                steps.push((step, next));
            }
        };
        if !runner.is_up {
            return add(Step::StartRunner(number), &|next, runner| {
                runner.is_up = true;
                runner.work = match runner.saved {
                    Saved::Nothing => Work::Idle,
                    Saved::Leased(epoch) => {
                        self.send(next, Message::HandBack(number, epoch));
                        runner.saved = Saved::Nothing;
                        Work::Idle
                    }
                    Saved::Starting(epoch) => {
                        runner.saved = Saved::Ended(epoch, Ending::Unobserved);
                        Work::Ended(epoch, Ending::Unobserved)
                    }
                    Saved::Ended(epoch, ending) => Work::Ended(epoch, ending),
                };
            });
        }
        if world.runner_kills < self.bounds.runner_kills && runner.work != Work::Idle {
            add(Step::KillRunner(number), &|next, runner| {
                next.runner_kills += 1;
                (runner.is_up, runner.work, runner.age) = (false, Work::Idle, 0);
            });
        }
        self.work_steps(number, runner, &mut add);
    }

    fn work_steps(&self, number: u8, runner: Runner, add: &mut AddStep<'_>) {
        let is_over = self.standing(runner.age) == LeaseStanding::Over;
        let tick = |_: &mut World, runner: &mut Runner| runner.age = (runner.age + 1).min(MOST_AGE);
        match runner.work {
            Work::Idle => add(Step::Send(Message::Claim(number)), &|next, runner| {
                if next.stored.epoch < self.bounds.leases {
                    runner.work = Work::Claiming(0);
                    self.send(next, Message::Claim(number));
                }
            }),
            Work::Claiming(waited) => {
                add(Step::GiveUpClaim(number), &|_, runner| runner.work = Work::Idle);
                if self.fault == Fault::CountFromClaim {
                    add(Step::RunnerTick(number), &|_, runner| {
                        runner.work = Work::Claiming((waited + 1).min(MOST_AGE));
                    });
                }
            }
            Work::Leased(_) | Work::Starting(_) | Work::Executing(..) if is_over => {
                add(Step::GiveUpLease(number), &|_, runner| self.give_up(runner));
            }
            Work::Leased(epoch) => {
                add(Step::RunnerTick(number), &tick);
                add(Step::Send(Message::Start(number, epoch)), &|next, runner| {
                    runner.work = Work::Starting(epoch);
                    runner.saved = Saved::Starting(epoch);
                    self.send(next, Message::Start(number, epoch));
                });
                add(Step::Refuse(number), &|_, runner| end(runner, epoch, Ending::Refused));
                add(Step::HandBackAtDrain(number), &|next, runner| {
                    self.send(next, Message::HandBack(number, epoch));
                    (runner.work, runner.saved) = (Work::Idle, Saved::Nothing);
                });
            }
            Work::Starting(epoch) => {
                add(Step::RunnerTick(number), &tick);
                add(Step::Send(Message::Start(number, epoch)), &|next, _| {
                    self.send(next, Message::Start(number, epoch));
                });
            }
            Work::Executing(epoch, stop) => {
                add(Step::RunnerTick(number), &tick);
                add(Step::Send(Message::Renew(number, epoch)), &|next, _| {
                    self.send(next, Message::Renew(number, epoch));
                });
                add(Step::Finish(number), &|_, runner| end(runner, epoch, Ending::Completed));
                if stop == Stop::Asked {
                    add(Step::StopExecution(number), &|_, runner| {
                        end(runner, epoch, Ending::CancelledBy);
                    });
                }
            }
            Work::Ended(epoch, ending) => {
                let complete = Message::Complete(number, epoch, ending);
                add(Step::Send(complete), &|next, _| self.send(next, complete));
            }
        }
    }

    /// The lease is over: what did not start is left to the plane, what did is stopped.
    fn give_up(&self, runner: &mut Runner) {
        match runner.work {
            Work::Executing(epoch, _) => end(runner, epoch, Ending::Disconnected),
            // As it was: a run that did not begin was cancelled by its own runner.
            Work::Leased(epoch) if self.fault == Fault::CountFromClaim => {
                end(runner, epoch, Ending::CancelledByNobody);
            }
            _ => runner.work = Work::Idle,
        }
    }
}

fn renew(world: &mut World, lease: (u8, u8), answer: Answer) {
    if !holds(world, lease) {
        return fence(world, lease, answer);
    }
    world.silent = 0;
    let stop = if world.stored.stop_asked { Stop::Asked } else { Stop::No };
    let runner = &mut world.runners[usize::from(lease.0)];
    if let (Answer::Arrives, true, Work::Executing(own, _)) = (answer, runner.is_up, runner.work)
        && own == lease.1
    {
        (runner.work, runner.age) = (Work::Executing(own, stop), 0);
    }
}

fn complete(world: &mut World, lease: (u8, u8), ending: Ending, answer: Answer) {
    let transition = match ending {
        Ending::Completed => Transition::Complete,
        Ending::CancelledBy | Ending::CancelledByNobody => Transition::Cancel,
        Ending::Disconnected | Ending::Refused | Ending::Unobserved => Transition::Fail,
    };
    let is_again = world.stored.ending == Some((lease.0, lease.1, ending));
    if !is_again {
        if !holds(world, lease) || !change(world, transition) {
            return fence(world, lease, answer);
        }
        world.stored.receipts += 1;
        world.stored.ending = Some((lease.0, lease.1, ending));
        world.stored.is_cancelled_by_somebody = ending == Ending::CancelledBy;
    }
    if answer == Answer::Arrives {
        forget(world, lease.0, lease.1);
    }
}

/// Tells a runner that its lease is over: it writes nothing more.
fn fence(world: &mut World, lease: (u8, u8), answer: Answer) {
    if holds(world, lease) {
        world.broken = Some("a runner was sent away from a lease that it holds");
    }
    if answer == Answer::Arrives {
        forget(world, lease.0, lease.1);
    }
}

fn end(runner: &mut Runner, epoch: u8, ending: Ending) {
    runner.work = Work::Ended(epoch, ending);
    runner.saved = Saved::Ended(epoch, ending);
}

/// Forgets a lease that the plane has everything of, or that somebody else has.
fn forget(world: &mut World, runner: u8, epoch: u8) {
    let runner = &mut world.runners[usize::from(runner)];
    if !runner.is_up {
        return;
    }
    let of_work = match runner.work {
        Work::Leased(own) | Work::Starting(own) | Work::Executing(own, _) | Work::Ended(own, _) => {
            Some(own)
        }
        Work::Idle | Work::Claiming(_) => None,
    };
    if of_work == Some(epoch) {
        (runner.work, runner.age) = (Work::Idle, 0);
    }
    let of_saved = match runner.saved {
        Saved::Leased(own) | Saved::Starting(own) | Saved::Ended(own, _) => Some(own),
        Saved::Nothing => None,
    };
    if of_saved == Some(epoch) {
        runner.saved = Saved::Nothing;
    }
}

fn holds(world: &World, (runner, epoch): (u8, u8)) -> bool {
    let stored = &world.stored;
    stored.state.is_held() && stored.epoch == epoch && stored.holder == Some(runner)
}

/// Changes the state as the table says; false when it does not.
fn change(world: &mut World, transition: Transition) -> bool {
    match world.stored.state.after(transition) {
        Ok(after) => {
            world.stored.state = after;
            true
        }
        Err(_) => false,
    }
}

fn cancel(world: &mut World) {
    if change(world, Transition::Stop) {
        world.stored.stop_asked = true;
    } else if change(world, Transition::Cancel) {
        world.stored.receipts += 1;
        world.stored.is_cancelled_by_somebody = true;
    }
}
