//! One simulated fleet: people, two runners, a plane, a bad network, and everything that breaks.
//!
//! Events happen one at a time, in the order of simulated time; after each one every promise is
//! checked. What happens follows from the seed alone, so a failing seed can be replayed.

mod disruptions;
mod people;
mod promises;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::panic::{AssertUnwindSafe, catch_unwind};

use warrant_protocol::{RunId, RunState};

use self::disruptions::Disruption;
use self::people::SimulatedPerson;
use self::promises::Observations;
use super::plane::{Handled, SimulatedPlane};
use super::runner::{Act, SimulatedRunner};
use super::time::{SeededRandom, SimulatedTime};
use super::wire::{Mistake, Party, PlaneReply, PlaneRequest, brief, brief_reply};

/// When the last disruption begins; from then on everything works.
const HEALED_MS: u64 = 300_000;
/// When everything must have come to an end: the longest wait is for a runner that is gone.
const END_MS: u64 = HEALED_MS + 1_500_000;
/// How often the plane looks for leases that ran out, and for runs that nobody works on.
const SWEEP_EVERY_MS: u64 = 1_000;
const SEAL_EVERY_MS: u64 = 15_000;
/// How long the plane lets a claim wait.
const PARKED_MS: u64 = 25_000;

/// Something that happens.
#[derive(Debug, Clone)]
enum Happening {
    Request {
        from: Party,
        generation: u64,
        call: u64,
        request: PlaneRequest,
    },
    Answer {
        to: Party,
        generation: u64,
        call: u64,
        reply: PlaneReply,
    },
    /// The plane looks for leases that ran out.
    Sweep,
    /// The plane looks for runs that nobody works on.
    Seal,
    RunnerTick(usize),
    PersonTick(usize),
    Disruption(Disruption),
    StartPlane,
    StartRunner(usize),
}

#[derive(Debug)]
struct Parked {
    runner: usize,
    generation: u64,
    call: u64,
    until_ms: u64,
}

/// Chances of the network, in percent.
#[derive(Debug, Clone, Copy)]
struct NetworkChances {
    lost: u64,
    doubled: u64,
    slow: u64,
}

/// The world.
#[derive(Debug)]
pub(crate) struct Simulation {
    steps: u64,
    chance: SeededRandom,
    time: SimulatedTime,
    queue: BinaryHeap<Reverse<(u64, u64)>>,
    happenings: BTreeMap<u64, Happening>,
    next_number: u64,
    network: NetworkChances,
    plane: SimulatedPlane,
    plane_asleep_until: u64,
    runners: Vec<SimulatedRunner>,
    runners_asleep_until: Vec<u64>,
    cut_off_until: Vec<u64>,
    people: Vec<SimulatedPerson>,
    parked: Vec<Parked>,
    next_call: u64,
    observed: Observations,
    log: Vec<String>,
    _dir: tempfile::TempDir,
}

/// How a simulation ended.
#[derive(Debug)]
pub(crate) struct SimulationOutcome {
    /// How many events happened.
    pub(crate) steps: u64,
    /// In which states runs ended.
    pub(crate) ends: Vec<RunState>,
    /// What was broken.
    pub(crate) problem: Option<String>,
    /// What happened, in order.
    pub(crate) log: Vec<String>,
}

/// Simulates one seed; what panics in it is a problem of that seed.
pub(crate) fn simulate(seed: u64, mistake: Mistake) -> SimulationOutcome {
    let mut simulation = Simulation::new(seed, mistake);
    let result = catch_unwind(AssertUnwindSafe(|| simulation.run()));
    let problem = result.unwrap_or_else(|payload| {
        let text = payload.downcast_ref::<String>().cloned();
        let text = text.or_else(|| payload.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Some(format!("it panics: {}", text.unwrap_or_default()))
    });
    let ends = simulation.plane.rows().iter().map(|row| row.state).collect();
    SimulationOutcome { steps: simulation.steps, ends, problem, log: simulation.log }
}

impl Simulation {
    fn new(seed: u64, mistake: Mistake) -> Self {
        let mut chance = SeededRandom::of_seed(seed);
        let time = SimulatedTime::default();
        let dir = temporary_dir();
        let plane = SimulatedPlane::create(dir.path(), time.process(), mistake);
        let runner = |number: usize| {
            let dir = dir.path().join(format!("outbox-{number}"));
            SimulatedRunner::create(&dir, time.process(), mistake)
        };
        let runners: Vec<_> = (0..2).map(runner).collect();
        runners.iter().for_each(|runner| plane.enroll(&runner.known()));
        let people = (0..chance.range(1, 5) as usize)
            .map(|number| SimulatedPerson::any(number, &mut chance));
        let people: Vec<_> = people.collect();
        let network = match chance.range(0, 3) {
            0 => NetworkChances { lost: 0, doubled: 0, slow: 0 },
            1 => NetworkChances { lost: 10, doubled: 10, slow: 5 },
            _ => NetworkChances { lost: 25, doubled: 20, slow: 10 },
        };
        let mut world = Self {
            steps: 0,
            chance,
            time,
            queue: BinaryHeap::new(),
            happenings: BTreeMap::new(),
            next_number: 0,
            network,
            plane,
            plane_asleep_until: 0,
            runners,
            runners_asleep_until: vec![0; 2],
            cut_off_until: vec![0; 2],
            people,
            parked: Vec::new(),
            next_call: 0,
            observed: Observations::default(),
            log: Vec::new(),
            _dir: dir,
        };
        world.plan();
        world
    }

    fn plan(&mut self) {
        for number in 0..self.people.len() {
            let begin_ms = self.people[number].begin_ms;
            self.at(begin_ms, Happening::PersonTick(number));
        }
        for number in 0..self.runners.len() {
            self.at(0, Happening::StartRunner(number));
        }
        self.at(SWEEP_EVERY_MS, Happening::Sweep);
        self.at(SEAL_EVERY_MS, Happening::Seal);
        for _ in 0..self.chance.range(0, 7) {
            let at_ms = self.chance.range(0, HEALED_MS);
            let disruption = Disruption::any(&mut self.chance);
            self.at(at_ms, Happening::Disruption(disruption));
        }
    }

    fn at(&mut self, ms: u64, happening: Happening) {
        self.next_number += 1;
        self.queue.push(Reverse((ms, self.next_number)));
        self.happenings.insert(self.next_number, happening);
    }

    fn after(&mut self, ms: u64, happening: Happening) {
        self.at(self.time.ms() + ms, happening);
    }

    /// Lets everything happen until all is over; returns what was broken.
    fn run(&mut self) -> Option<String> {
        loop {
            let Some(Reverse((ms, number))) = self.queue.pop() else { return self.unfinished() };
            let happening = self.happenings.remove(&number).unwrap();
            self.time.set_ms(ms);
            if ms > END_MS {
                return self.unfinished();
            }
            self.steps += 1;
            self.happen(happening);
            if let Some(problem) = self.broken_promise() {
                return Some(problem);
            }
            if self.is_over() {
                return self.wrong_evidence();
            }
        }
    }

    fn note(&mut self, text: impl FnOnce() -> String) {
        let line = format!("  {:>8} ms  {}", self.time.ms(), text());
        self.log.push(line);
    }

    fn happen(&mut self, happening: Happening) {
        let ms = self.time.ms();
        let asleep_until = match &happening {
            Happening::Request { .. } | Happening::Sweep | Happening::Seal => {
                self.plane_asleep_until
            }
            Happening::Answer { to: Party::Runner(runner), .. } | Happening::RunnerTick(runner) => {
                self.runners_asleep_until[*runner]
            }
            _ => 0,
        };
        if asleep_until > ms {
            return self.at(asleep_until, happening);
        }
        match happening {
            Happening::Request { from, generation, call, request } => {
                self.receive(from, (generation, call), &request);
            }
            Happening::Answer { to, generation, call, reply } => {
                self.receive_reply(to, (generation, call), &reply);
            }
            Happening::Sweep => {
                self.after(SWEEP_EVERY_MS, Happening::Sweep);
                if self.plane.is_up() {
                    let swept = self.plane.sweep();
                    self.died_if(&swept);
                    self.serve_parked();
                }
            }
            Happening::Seal => {
                self.after(SEAL_EVERY_MS, Happening::Seal);
                if self.plane.is_up() {
                    let sealed = self.plane.seal_lost();
                    self.died_if(&sealed);
                }
            }
            Happening::RunnerTick(runner) => {
                if self.runners[runner].is_up() {
                    let acts = self.runners[runner].tick(&mut self.chance);
                    self.act(runner, acts);
                    self.after(500, Happening::RunnerTick(runner));
                }
            }
            Happening::PersonTick(number) => self.person(number),
            Happening::Disruption(disruption) => self.disrupt(disruption),
            Happening::StartPlane => {
                self.note(|| "the plane starts".into());
                self.plane.start();
            }
            Happening::StartRunner(runner) => {
                let order: BTreeMap<RunId, usize> = self
                    .people
                    .iter()
                    .filter_map(|person| Some((person.run.clone()?, person.spec.number)))
                    .collect();
                self.runners[runner].start(|run| order.get(run).copied().unwrap_or(usize::MAX));
                let generation = self.runners[runner].generation();
                self.note(|| format!("runner {runner} starts, process {generation}"));
                self.after(1, Happening::RunnerTick(runner));
            }
        }
    }

    fn died_if(&mut self, handled: &Handled) {
        if matches!(handled, Handled::Died) {
            self.note(|| "the plane is killed at a write".into());
            self.parked.clear();
            let down_ms = self.chance.range(100, 20_000);
            self.after(down_ms, Happening::StartPlane);
        }
    }

    fn receive(&mut self, from: Party, (generation, call): (u64, u64), request: &PlaneRequest) {
        if !self.plane.is_up() {
            return;
        }
        self.note(|| format!("plane hears {from:?}: {}", brief(request)));
        if let (Party::Runner(runner), PlaneRequest::Claim { .. }) = (from, request) {
            let until_ms = self.time.ms() + PARKED_MS;
            self.parked.push(Parked { runner, generation, call, until_ms });
            return self.serve_parked();
        }
        let known = match from {
            Party::Runner(runner) => Some(self.runners[runner].known()),
            Party::Person(_) => None,
        };
        match self.plane.handle(known.as_ref(), request) {
            Handled::Answered(reply) => {
                self.note(|| format!("  and says {}", brief_reply(&reply)));
                self.send_answer(from, (generation, call), reply);
            }
            died @ Handled::Died => self.died_if(&died),
        }
        self.serve_parked();
    }

    /// Gives waiting claims what there is.
    fn serve_parked(&mut self) {
        let ms = self.time.ms();
        for parked in std::mem::take(&mut self.parked) {
            if !self.plane.is_up() {
                return;
            }
            let known = self.runners[parked.runner].known();
            let handled = self.plane.claim(&known, parked.generation);
            let to = Party::Runner(parked.runner);
            match handled {
                Handled::Answered(
                    PlaneReply::Empty | PlaneReply::Fenced | PlaneReply::Refused(_),
                ) => {
                    if parked.until_ms <= ms {
                        let id = (parked.generation, parked.call);
                        self.send_answer(to, id, PlaneReply::Empty);
                    } else {
                        self.parked.push(parked);
                    }
                }
                Handled::Answered(reply) => {
                    if let PlaneReply::Claimed(lease) = &reply {
                        let (runner, generation) = (parked.runner, parked.generation);
                        let key = lease.key.clone();
                        self.note(|| format!("runner {runner} is given {} {}", key.run, key.epoch));
                        let holders = self.observed.holders.entry(key.run).or_default();
                        holders.push((runner, generation));
                    }
                    self.send_answer(to, (parked.generation, parked.call), reply);
                }
                died @ Handled::Died => self.died_if(&died),
            }
        }
    }

    fn send_answer(&mut self, to: Party, (generation, call): (u64, u64), reply: PlaneReply) {
        self.send(to, Happening::Answer { to, generation, call, reply });
    }

    /// Puts a message on the network: it is lost, doubled, slow or just there.
    fn send(&mut self, party: Party, message: Happening) {
        let is_healed = self.time.ms() >= HEALED_MS;
        if let Party::Runner(runner) = party
            && self.cut_off_until[runner] > self.time.ms()
        {
            return;
        }
        let network =
            if is_healed { NetworkChances { lost: 0, doubled: 0, slow: 0 } } else { self.network };
        if self.chance.percent(network.lost) {
            return self.note(|| format!("lost: {}", brief_happening(&message)));
        }
        let copies = if self.chance.percent(network.doubled) { 2 } else { 1 };
        for _ in 0..copies {
            let most = if self.chance.percent(network.slow) { 20_000 } else { 200 };
            let takes_ms = self.chance.range(1, most);
            self.after(takes_ms, message.clone());
        }
    }

    fn receive_reply(&mut self, to: Party, (generation, call): (u64, u64), reply: &PlaneReply) {
        match to {
            Party::Runner(runner) => {
                if self.runners[runner].generation() != generation {
                    return;
                }
                if let PlaneReply::Kept(run, receipt) = reply {
                    self.observed.kept.insert(run.clone(), *receipt);
                }
                let acts = self.runners[runner].receive_reply(call, reply, &mut self.chance);
                self.act(runner, acts);
                let acts = self.runners[runner].tick(&mut self.chance);
                self.act(runner, acts);
            }
            Party::Person(number) => self.answer_person(number, call, reply),
        }
    }

    fn act(&mut self, runner: usize, acts: Vec<Act>) {
        let generation = self.runners[runner].generation();
        for act in acts {
            match act {
                Act::Send { call, request } => {
                    if let PlaneRequest::Complete { receipt, lease, .. } = &request {
                        let status = receipt.body().status;
                        let run = lease.run.clone();
                        self.note(|| format!("runner {runner} ends {run}: {}", status.as_str()));
                    }
                    let from = Party::Runner(runner);
                    self.send(from, Happening::Request { from, generation, call, request });
                }
                Act::Executed(run) => {
                    self.note(|| format!("runner {runner} executes {run}"));
                    *self.observed.executions.entry(run).or_default() += 1;
                }
                Act::Refused(run) => {
                    self.note(|| format!("runner {runner} refuses {run}"));
                    self.observed.refused.insert(run);
                }
            }
        }
    }
}

/// A directory in memory where there is one: thousands of small databases are made and removed.
pub(crate) fn temporary_dir() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

fn brief_happening(happening: &Happening) -> String {
    match happening {
        Happening::Request { from, request, .. } => format!("{from:?}: {}", brief(request)),
        Happening::Answer { to, reply, .. } => format!("to {to:?}: {}", brief_reply(reply)),
        other => format!("{other:?}"),
    }
}
