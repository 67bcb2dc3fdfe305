//! What breaks in a simulation: processes are killed or suspended, the network is cut, clocks jump.

use super::super::time::SeededRandom;
use super::{Happening, Simulation};

/// Something that breaks.
#[derive(Debug, Clone, Copy)]
pub(super) enum Disruption {
    KillPlane { down_ms: u64 },
    KillPlaneAtWrite { writes: u64 },
    KillRunner { runner: usize, down_ms: u64 },
    SuspendPlane { for_ms: u64 },
    SuspendRunner { runner: usize, for_ms: u64 },
    Partition { runner: usize, for_ms: u64 },
    JumpPlaneClock { by_ms: i64 },
    JumpRunnerClock { runner: usize, by_ms: i64 },
}

impl Disruption {
    pub(super) fn any(chance: &mut SeededRandom) -> Self {
        let runner = chance.range(0, 2) as usize;
        let hour: i64 = 3_600_000;
        let by_ms = if chance.percent(50) { hour } else { -hour };
        match chance.range(0, 9) {
            0 => Self::KillPlane { down_ms: chance.range(100, 60_000) },
            1 | 2 => Self::KillPlaneAtWrite { writes: chance.range(0, 12) },
            3 => Self::KillRunner { runner, down_ms: chance.range(100, 40_000) },
            4 => Self::SuspendPlane { for_ms: chance.range(1_000, 60_000) },
            5 => Self::SuspendRunner { runner, for_ms: chance.range(1_000, 60_000) },
            6 => Self::Partition { runner, for_ms: chance.range(1_000, 60_000) },
            7 => Self::JumpPlaneClock { by_ms },
            _ => Self::JumpRunnerClock { runner, by_ms },
        }
    }
}

impl Simulation {
    /// Breaks something.
    pub(super) fn disrupt(&mut self, disruption: Disruption) {
        self.note(|| format!("{disruption:?}"));
        let ms = self.time.ms();
        match disruption {
            Disruption::KillPlane { down_ms } => {
                self.plane.kill();
                self.parked.clear();
                self.plane_asleep_until = 0;
                self.after(down_ms, Happening::StartPlane);
            }
            Disruption::KillPlaneAtWrite { writes } if self.plane.is_up() => {
                self.plane.kill_after(writes);
            }
            Disruption::KillPlaneAtWrite { .. } => {}
            Disruption::KillRunner { runner, down_ms } => {
                let generation = self.runners[runner].generation();
                self.observed.killed.insert((runner, generation));
                self.runners[runner].kill();
                self.runners_asleep_until[runner] = 0;
                self.parked.retain(|parked| parked.runner != runner);
                self.after(down_ms, Happening::StartRunner(runner));
            }
            Disruption::SuspendPlane { for_ms } => self.plane_asleep_until = ms + for_ms,
            Disruption::SuspendRunner { runner, for_ms } => {
                self.runners_asleep_until[runner] = ms + for_ms;
            }
            Disruption::Partition { runner, for_ms } => self.cut_off_until[runner] = ms + for_ms,
            Disruption::JumpPlaneClock { by_ms } => {
                self.observed.did_clocks_jump = true;
                self.plane.clocks().jump(by_ms);
            }
            Disruption::JumpRunnerClock { runner, by_ms } => {
                self.observed.did_clocks_jump = true;
                self.runners[runner].clocks().jump(by_ms);
            }
        }
    }
}
