//! Runs that are submitted while something breaks, and what must be true of them at the end.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::Value;
use warrant_runner::remote::Http;

use crate::fleet::house::{House, PlaneAccess, script};

/// How many queued runs are enough to keep every runner busy.
const QUEUED: usize = 6;

/// Somebody who submits runs one after another. Each run writes a line into a file of its own, so
/// that it shows how often it was executed.
pub(super) struct Load {
    access: PlaneAccess,
    marks: PathBuf,
    is_over: AtomicBool,
}

impl Load {
    pub(super) fn of(house: &House, access: PlaneAccess) -> Self {
        Self { access, marks: house.directory("marks"), is_over: AtomicBool::new(false) }
    }

    pub(super) fn stop(&self) {
        self.is_over.store(true, Ordering::Release);
    }

    /// Submits until it is stopped or `most` were submitted; returns the runs.
    pub(super) fn submit(&self, most: u64) -> Vec<String> {
        let http = self.access.http();
        let mut runs = Vec::new();
        for number in 0..most {
            while self.is_enough(&http) && !self.is_over.load(Ordering::Acquire) {
                std::thread::sleep(Duration::from_millis(20));
            }
            if self.is_over.load(Ordering::Acquire) {
                break;
            }
            let mark = self.marks.join(number.to_string());
            let work =
                format!("echo ran >> {}; sleep 0.0{}; echo {number}", mark.display(), number % 9);
            let key = format!("load-{number}");
            runs.push(self.access.submit_by_key(&http, &key, &script(&work)));
        }
        runs
    }

    fn is_enough(&self, http: &Http) -> bool {
        let path = "/v1/runs?state=queued&limit=10";
        // A plane that does not answer is not asked for more.
        let Ok(answer) = http.get(path, Some(&self.access.admin)) else { return true };
        answer["runs"].as_array().is_none_or(|queued| queued.len() >= QUEUED)
    }

    /// Waits until every run ended and checks all of them: each has one verified bundle, none was
    /// executed twice, none was cancelled, the plane has as many as were submitted, and the home is
    /// sound. Returns how many ended how.
    pub(super) fn check(&self, house: &House, runs: &[String]) -> BTreeMap<String, u32> {
        let bundles = house.wait_for_bundles(runs, Duration::from_secs(300));
        let mut ends: BTreeMap<String, u32> = BTreeMap::new();
        for (number, bundle) in bundles.iter().enumerate() {
            house.verify(bundle);
            let mark = fs::read_to_string(self.marks.join(number.to_string())).unwrap_or_default();
            let times = mark.lines().count();
            assert!(times <= 1, "run {number} was executed {times} times");
            let status = bundle["receipt"]["status"].as_str().unwrap();
            assert_ne!(status, "cancelled", "nobody asked for it: {bundle}");
            if status == "completed" {
                assert_eq!(times, 1, "run {number} was never executed");
            }
            *ends.entry(status.to_owned()).or_default() += 1;
        }
        let access = house.access();
        let claims = access.http().get("/v1/false-claims", Some(&access.admin)).unwrap();
        assert_eq!(claims["falseClaims"], serde_json::json!([]), "nobody lied");
        let checked = house.local(&["fsck", "--json"]);
        assert!(checked.status.success(), "{}", crate::stdout(&checked));
        let report: Value = serde_json::from_slice(&checked.stdout).unwrap();
        assert_eq!(report["checked"]["runs"], runs.len(), "each request is one run");
        assert_eq!(report["checked"]["bundles"], runs.len(), "{report}");
        ends
    }
}
