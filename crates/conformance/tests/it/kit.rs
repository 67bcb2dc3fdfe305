//! Subjects over real backends, in a scratch directory that everyone can enter.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::time::{SystemTime, UNIX_EPOCH};

use tempfile::TempDir;
use warrant_conformance::local::Setting;
use warrant_conformance::{EvidenceKeys, Progress, Report, Subject, Tier};
use warrant_protocol::{Isolation, SigningKey, Timestamp};
#[cfg(feature = "hermetic")]
use warrant_sandbox::hermetic::WorkerProgram;

fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    Timestamp::from_unix_ms(u64::try_from(since.as_millis()).unwrap()).unwrap()
}

/// A scratch directory with what every subject needs.
pub(crate) struct Bench {
    pub(crate) setting: Setting,
    _scratch: TempDir,
}

impl Bench {
    pub(crate) fn new() -> Self {
        let scratch = TempDir::new().unwrap();
        fs::set_permissions(scratch.path(), Permissions::from_mode(0o755)).unwrap();
        let setting = Setting {
            scratch: scratch.path().to_owned(),
            clock: now,
            keys: EvidenceKeys {
                plane: SigningKey::from_seed(&[1; 32]),
                runner: SigningKey::from_seed(&[2; 32]),
            },
            #[cfg(feature = "hermetic")]
            worker: WorkerProgram::at(env!("CARGO_BIN_EXE_warrant-conformance-worker")),
        };
        Self { setting, _scratch: scratch }
    }

    pub(crate) fn subject(&self, isolation: Isolation) -> Subject {
        self.setting.subject(isolation).unwrap()
    }
}

/// Runs every check of a tier and prints what each took.
pub(crate) fn examine(subject: &Subject, tier: Tier) -> Report {
    warrant_conformance::run(subject, tier, &mut |progress| {
        if let Progress::Finished(check) = progress {
            let mark = if check.pass { "ok" } else { "FAILED" };
            let detail = check.detail.as_deref().unwrap_or_default();
            let (provider, id, ms) = (&subject.provider, &check.id, check.duration_ms);
            println!("{provider}: {mark} {id} ({ms} ms) {detail}");
        }
    })
}
