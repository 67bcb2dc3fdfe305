//! Counters by name, in the reference's words, and the same as Prometheus text.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Mutex, PoisonError};

/// Counts what happened since the start.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    counts: Mutex<BTreeMap<String, u64>>,
}

/// A value that is measured when asked for.
pub(crate) struct Gauge {
    pub(crate) name: &'static str,
    pub(crate) help: &'static str,
    pub(crate) values: Vec<(Option<(&'static str, String)>, u64)>,
}

impl Metrics {
    pub(crate) fn count(&self, name: &str) {
        self.add(name, 1);
    }

    pub(crate) fn add(&self, name: &str, by: u64) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        match counts.get_mut(name) {
            Some(count) => *count += by,
            None if by > 0 => drop(counts.insert(name.to_owned(), by)),
            None => {}
        }
    }

    /// Counts an answer by the class of its status.
    pub(crate) fn count_status(&self, status: u16) {
        self.count(match status {
            ..200 => "requests.1xx",
            200..300 => "requests.2xx",
            300..400 => "requests.3xx",
            400..500 => "requests.4xx",
            500.. => "requests.5xx",
        });
    }

    /// Returns every counter that moved, sorted.
    pub(crate) fn all(&self) -> BTreeMap<String, u64> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the Prometheus text.
    pub(crate) fn prometheus(&self, gauges: &[Gauge]) -> String {
        let mut text = String::new();
        let line = "# HELP warrant_events_total What happened since the plane started.\n\
                    # TYPE warrant_events_total counter\n";
        text.push_str(line);
        for (name, count) in self.all() {
            let _ = writeln!(text, "warrant_events_total{{event=\"{name}\"}} {count}");
        }
        for gauge in gauges {
            let Gauge { name, help, values } = gauge;
            let _ = writeln!(text, "# HELP warrant_{name} {help}\n# TYPE warrant_{name} gauge");
            for (label, value) in values {
                let label = label.as_ref().map(|(name, value)| {
                    let value = value.replace('\\', "\\\\").replace('"', "\\\"");
                    format!("{{{name}=\"{value}\"}}")
                });
                let _ = writeln!(text, "warrant_{name}{} {value}", label.unwrap_or_default());
            }
        }
        text
    }
}
