//! Black-box checks of a backend, and of the evidence made from it, by tier.
//!
//! A [`Subject`] opens fresh handles to a backend; [`run()`] tries every [`Check`] of a [`Tier`] on
//! it and tells in a [`Report`] which tier it earned. No check knows which backend it looks at:
//! what a backend cannot do at all is declared as [`Capabilities`], and that declaration is
//! checked like everything else.
//!
//! ```text
//! compatible = L1        verified = L1 + L2        sovereign = L1 + L2 + L3
//! ```

mod beat;
pub mod checks;
mod evidence;
mod lab;
pub mod local;
pub mod preflight;
#[cfg(feature = "remote")]
mod remote;
pub mod report;
mod sinks;
pub mod subject;
pub mod tier;

pub use checks::Check;
pub use evidence::EvidenceKeys;
pub use lab::{Finding, Lab};
pub use report::{CheckReport, Report, ReportBody, SignedReport};
pub use subject::{Capabilities, Fault, OutputFidelity, Subject, WorkspaceKind};
pub use tier::{Level, Tier, UnknownTier};

use std::time::Instant;

/// What [`run()`] tells while it works.
#[derive(Debug, Clone, Copy)]
pub enum Progress<'a> {
    /// A check begins.
    Started {
        /// Its id.
        id: &'static str,
        /// What it is about.
        name: &'static str,
    },
    /// A check ended.
    Finished(&'a CheckReport),
}

/// Runs every check that `tier` requires on `subject`, one after the other.
pub fn run(subject: &Subject, tier: Tier, on_progress: &mut dyn FnMut(Progress<'_>)) -> Report {
    run_checks(subject, tier, checks::required_by(tier), on_progress)
}

/// Runs only these checks; the report speaks of nothing else.
pub fn run_checks<'a>(
    subject: &Subject,
    tier: Tier,
    checks: impl IntoIterator<Item = &'a Check>,
    on_progress: &mut dyn FnMut(Progress<'_>),
) -> Report {
    let mut reports = Vec::new();
    for check in checks {
        on_progress(Progress::Started { id: check.id, name: check.name });
        let report = try_one(subject, check);
        on_progress(Progress::Finished(&report));
        reports.push(report);
    }
    Report::new(subject.provider.clone(), tier, reports)
}

fn try_one(subject: &Subject, check: &Check) -> CheckReport {
    let started = Instant::now();
    let finding = Lab::new(subject, check.id).and_then(|lab| {
        let finding = (check.run)(&lab);
        lab.tidy();
        finding
    });
    let duration_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
    let (pass, detail) = match finding {
        Ok(lab::Passed::Held) => (true, None),
        Ok(lab::Passed::HeldAs(how)) => (true, Some(how)),
        Ok(lab::Passed::Moot(why)) => (true, Some(format!("not applicable: {why}"))),
        Err(lab::Broken(what)) => (false, Some(what)),
    };
    let (id, name) = (check.id.to_owned(), check.name.to_owned());
    CheckReport { id, level: check.level, name, pass, detail, duration_ms }
}
