//! `warrant sandbox conform`: which tier a provider earns, by black-box checks.

use std::path::Path;

use anyhow::{Context as _, anyhow};
use warrant_conformance::local::Setting;
use warrant_conformance::{EvidenceKeys, Progress, Tier, run as examine};
use warrant_plane::random;
use warrant_protocol::{Isolation, SigningKey, Timestamp};
use warrant_sandbox::hermetic::WorkerProgram;

use crate::exit::{Exit, Misuse};
use crate::ui::{self, Tone, paint};
use warrant_govern::{Desk, providers};

/// What to examine, and how to tell it.
pub(crate) struct Wanted<'a> {
    pub(crate) provider: &'a str,
    pub(crate) tier: &'a str,
    pub(crate) json: bool,
    pub(crate) report: Option<&'a Path>,
}

/// Runs the checks; exit 0 when the tier is earned, 1 when not.
pub(crate) fn run(home: Option<&Path>, wanted: &Wanted<'_>) -> anyhow::Result<Exit> {
    let isolation: Isolation =
        wanted.provider.parse().map_err(|e| Misuse::of(anyhow::Error::new(e)))?;
    let tier: Tier = wanted.tier.parse().map_err(|e| Misuse::of(anyhow::Error::new(e)))?;
    let scratch = tempfile::tempdir().context("no scratch directory")?;
    let key = || random::bytes().map(|seed| SigningKey::from_seed(&seed)).context("no randomness");
    let setting = Setting {
        scratch: scratch.path().to_owned(),
        clock: now,
        keys: EvidenceKeys { plane: key()?, runner: key()? },
        worker: WorkerProgram::this(),
    };
    let subject = match super::providers::remote_named(Some(wanted.provider), home)? {
        Some(isolation) => {
            let desk = Desk::open(home)?;
            let around = providers::around(desk.plane().home());
            let around = around.map_err(|error| Misuse::of(error.into()))?;
            setting.remote(isolation, around).map_err(|error| Misuse::of(error.into()))?
        }
        None => setting
            .subject(isolation)
            .ok_or_else(|| Misuse::of(anyhow!("--provider {isolation} cannot be examined here")))?,
    };
    let report = examine(&subject, tier, &mut |progress| {
        if let (Progress::Finished(check), false) = (progress, wanted.json) {
            let word = if check.pass {
                paint("ok  ", Tone::Good, ui::stdout_has_color())
            } else {
                paint("fail", Tone::Bad, ui::stdout_has_color())
            };
            let detail =
                check.detail.as_deref().map(|detail| format!(": {}", ui::printable(detail)));
            ui::data(&format!(
                "{word} {} {}{}\n",
                check.id,
                check.name,
                detail.unwrap_or_default()
            ));
        }
    });
    let desk = Desk::open(home)?;
    let signed = report.sign(desk.plane().home().plane_key(), random::now()?)?;
    let kept = super::providers::report_file(&desk, isolation);
    for file in wanted.report.into_iter().chain([kept.as_path()]) {
        let folder = file.parent().map_or(Ok(()), std::fs::create_dir_all);
        folder
            .and_then(|()| std::fs::write(file, format!("{}\n", signed.to_value())))
            .with_context(|| format!("cannot write {}", file.display()))?;
    }
    if wanted.json {
        ui::json(&report.to_value());
    } else {
        let earned = report.earned().map_or("no tier", Tier::as_str);
        ui::data(&format!("{isolation} earns {earned}; {tier} was asked for\n"));
    }
    Ok(if report.pass() { Exit::Success } else { Exit::Failure })
}

/// Returns the present moment; where the clock is broken, the checks see 1970.
fn now() -> Timestamp {
    random::now().unwrap_or(Timestamp::EPOCH)
}
