//! What a sandbox uses: looked up when somebody asks, from the processes of its commands and from
//! its directory. Nothing is guessed; what was not asked about was not measured.

use std::collections::VecDeque;
use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::statvfs;
use warrant_plane::doors::{Measure, WorkshopError};

use super::sandbox::Living;
use super::{disk, now};

/// Measures are not taken more often: asking is cheap, looking is not.
const MEASURE_EVERY: Duration = Duration::from_millis(500);
/// So many measures are remembered.
const REMEMBERED: usize = 120;

/// What is known of the use of one sandbox.
#[derive(Debug)]
pub(super) struct Meter {
    /// CPU time of the commands that are over, in microseconds.
    spent_us: AtomicU64,
    seen: Mutex<Seen>,
}

#[derive(Debug)]
struct Seen {
    /// When it was last looked, or when the sandbox began.
    at: Instant,
    cpu_us: u64,
    measures: VecDeque<Measure>,
}

impl Default for Meter {
    fn default() -> Self {
        let seen = Seen { at: Instant::now(), cpu_us: 0, measures: VecDeque::new() };
        Self { spent_us: AtomicU64::new(0), seen: Mutex::new(seen) }
    }
}

impl Meter {
    /// Counts the CPU time of a command that is over.
    pub(super) fn spend(&self, cpu_us: Option<u64>) {
        self.spent_us.fetch_add(cpu_us.unwrap_or(0), Ordering::Relaxed);
    }

    /// Measures, unless that was done a moment ago, and returns every measure that is remembered.
    pub(super) fn read(&self, living: &Living) -> Result<Vec<Measure>, WorkshopError> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.measures.is_empty() || seen.at.elapsed() >= MEASURE_EVERY {
            let measure = self
                .take(living, &mut seen)
                .ok_or(WorkshopError::because("nothing could be measured"))?;
            if seen.measures.len() >= REMEMBERED {
                seen.measures.pop_front();
            }
            seen.measures.push_back(measure);
        }
        Ok(seen.measures.iter().copied().collect())
    }

    fn take(&self, living: &Living, seen: &mut Seen) -> Option<Measure> {
        let together = living.neighbors.together();
        let cpu_us = self.spent_us.load(Ordering::Relaxed).saturating_add(together.cpu_ms * 1000);
        let cpus = living.cpus()?;
        let at = Instant::now();
        let wall_us = at.saturating_duration_since(seen.at).as_micros().max(1);
        // A command that ended between two looks may not be counted yet.
        let used_us = cpu_us.saturating_sub(seen.cpu_us);
        let share = percent(used_us, wall_us, cpus);
        (seen.at, seen.cpu_us) = (at, cpu_us.max(seen.cpu_us));
        let usage = disk::usage(&living.directory);
        let (memory, disk) = living.granted_bytes();
        let room = statvfs(&living.directory).ok()?;
        Some(Measure {
            at: now(),
            cpus,
            cpu_used_pct: share,
            memory_used: together.memory_bytes,
            memory_total: memory.or_else(machine_memory)?,
            memory_mapped: together.mapped_bytes,
            disk_used: usage.bytes,
            disk_total: disk.unwrap_or_else(|| room.f_blocks.saturating_mul(room.f_frsize)),
        })
    }
}

/// Returns how much of so many processors was used, in hundredths.
#[expect(clippy::cast_precision_loss, reason = "hundredths of times far below 2^53 microseconds")]
fn percent(used_us: u64, wall_us: u128, cpus: f64) -> f64 {
    let share = used_us as f64 / (wall_us as f64 * cpus) * 100.0;
    // Ticks of the kernel's clock may end just after the time they are measured by.
    (share.clamp(0.0, 100.0) * 100.0).round() / 100.0
}

/// Returns the memory of the machine, in bytes.
fn machine_memory() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::float_cmp, reason = "rounded to hundredths")]
    fn a_share_is_one_of_all_processors() {
        assert_eq!(percent(0, 1_000_000, 2.0), 0.0);
        assert_eq!(percent(1_000_000, 1_000_000, 2.0), 50.0);
        assert_eq!(percent(500_000, 1_000_000, 0.5), 100.0);
        assert_eq!(percent(9_000_000, 1_000_000, 1.0), 100.0);
    }

    #[test]
    fn the_machine_has_memory() {
        assert!(machine_memory().is_some_and(|bytes| bytes > 64 * 1024 * 1024));
    }
}
