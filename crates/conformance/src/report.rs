//! The report: what was tried, what held, and the tier earned by it; plain and signed.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use warrant_protocol::signed::{InvalidSigned, SignedBody};
use warrant_protocol::{Signed, Signer, SigningKey, Timestamp};

use crate::tier::{Level, Tier};

/// What became of one check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckReport {
    /// The check's id.
    pub id: String,
    /// Its level.
    pub level: Level,
    /// What it is about.
    pub name: String,
    /// Whether it held.
    pub pass: bool,
    /// What was found, or why it does not apply.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// How long it took.
    pub duration_ms: u64,
}

/// What was tried on one provider.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The provider.
    pub provider: String,
    /// The tier that was asked for.
    pub tier: Tier,
    /// Every check, in the order they were run.
    pub checks: Vec<CheckReport>,
}

/// A report as it is signed.
pub type SignedReport = Signed<ReportBody>;

/// The members of a signed report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportBody {
    /// The provider.
    pub provider: String,
    /// The tier that was asked for.
    pub tier: Tier,
    /// Whether it was earned.
    pub pass: bool,
    /// The tier that was earned; absent when none was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub earned: Option<Tier>,
    /// Every check.
    pub checks: Vec<CheckReport>,
    /// When it was signed.
    pub issued_at: Timestamp,
}

impl SignedBody for ReportBody {
    const VERSION: &'static str = "warrant.conformance.v1";
    const NAME: &'static str = "conformance report";
}

impl Report {
    pub(crate) fn new(provider: String, tier: Tier, checks: Vec<CheckReport>) -> Self {
        Self { provider, tier, checks }
    }

    /// Returns whether the tier that was asked for is earned.
    #[must_use]
    pub fn pass(&self) -> bool {
        self.earned() == Some(self.tier)
    }

    /// Returns the highest tier, up to the one asked for, all of whose checks were run and held.
    #[must_use]
    pub fn earned(&self) -> Option<Tier> {
        let holds = |tier: &Tier| {
            let mut levels = [Level::L1, Level::L2, Level::L3].into_iter();
            // A level with no check proves nothing.
            levels.all(|level| level > tier.level() || self.has(level))
                && self.failed().all(|check| check.level > tier.level())
        };
        Tier::ALL.into_iter().filter(|tier| *tier <= self.tier).rfind(holds)
    }

    /// Returns the checks that did not hold.
    pub fn failed(&self) -> impl Iterator<Item = &CheckReport> {
        self.checks.iter().filter(|check| !check.pass)
    }

    /// Returns what the process that made this report should exit with: 0 or 1.
    /// A usage error, 2, never gets as far as a report.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        u8::from(!self.pass())
    }

    /// Returns the exit code in words.
    #[must_use]
    pub fn exit_code_meaning(&self) -> &'static str {
        if self.pass() { "the tier is earned" } else { "the tier is not earned" }
    }

    /// Returns `{provider, tier, pass, checks}`.
    #[must_use]
    pub fn to_value(&self) -> Value {
        let checks: Vec<Value> = self.checks.iter().map(check_value).collect();
        json!({
            "provider": self.provider,
            "tier": self.tier.as_str(),
            "pass": self.pass(),
            "checks": checks,
        })
    }

    /// Returns the report signed by whoever ran it.
    ///
    /// # Errors
    /// [`InvalidSigned`] when it holds something we do not sign.
    pub fn sign(&self, key: &SigningKey, at: Timestamp) -> Result<SignedReport, InvalidSigned> {
        let body = ReportBody {
            provider: self.provider.clone(),
            tier: self.tier,
            pass: self.pass(),
            earned: self.earned(),
            checks: self.checks.clone(),
            issued_at: at,
        };
        SignedReport::seal(&body, Signer::Runner, key)
    }

    fn has(&self, level: Level) -> bool {
        self.checks.iter().any(|check| check.level == level)
    }
}

fn check_value(check: &CheckReport) -> Value {
    let mut value = json!({
        "id": check.id,
        "level": check.level.as_str(),
        "name": check.name,
        "pass": check.pass,
        "duration_ms": check.duration_ms,
    });
    if let (Value::Object(members), Some(detail)) = (&mut value, &check.detail) {
        members.insert("detail".to_owned(), Value::String(detail.clone()));
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(level: Level, pass: bool) -> CheckReport {
        let detail = (!pass).then(|| "broke".to_owned());
        CheckReport { id: "a.b".into(), level, name: "n".into(), pass, detail, duration_ms: 3 }
    }

    #[track_caller]
    fn earns(tier: Tier, checks: &[(Level, bool)], expected: Option<Tier>) {
        let checks = checks.iter().map(|(level, pass)| check(*level, *pass)).collect();
        let report = Report::new("p".into(), tier, checks);
        assert_eq!(report.earned(), expected);
        assert_eq!(report.pass(), expected == Some(tier));
        assert_eq!(report.exit_code(), u8::from(expected != Some(tier)));
    }

    #[test]
    fn a_failed_check_costs_its_level_and_all_above() {
        use Level::{L1, L2, L3};
        use Tier::{Compatible, Sovereign, Verified};
        earns(Sovereign, &[(L1, true), (L2, true), (L3, true)], Some(Sovereign));
        earns(Sovereign, &[(L1, true), (L2, true), (L3, false)], Some(Verified));
        earns(Sovereign, &[(L1, true), (L2, false), (L3, true)], Some(Compatible));
        earns(Sovereign, &[(L1, false), (L2, true), (L3, true)], None);
        earns(Compatible, &[(L1, true)], Some(Compatible));
        earns(Verified, &[(L1, true), (L2, true)], Some(Verified));
    }

    #[test]
    fn a_level_nobody_tried_earns_nothing() {
        earns(Tier::Sovereign, &[(Level::L1, true)], Some(Tier::Compatible));
        earns(Tier::Compatible, &[], None);
    }

    #[test]
    fn the_json_has_exactly_the_documented_members() {
        let checks = vec![check(Level::L1, true), check(Level::L2, false)];
        let value = Report::new("p".into(), Tier::Verified, checks).to_value();
        let expected = json!({"provider": "p", "tier": "verified", "pass": false, "checks": [
            {"id": "a.b", "level": "L1", "name": "n", "pass": true, "duration_ms": 3},
            {"id": "a.b", "level": "L2", "name": "n", "pass": false, "duration_ms": 3,
             "detail": "broke"},
        ]});
        assert_eq!(value, expected);
    }

    #[test]
    fn a_signed_report_does_not_survive_a_change() {
        let key = SigningKey::from_seed(&[7; 32]);
        let at = Timestamp::from_unix_ms(0).unwrap();
        let report = Report::new("p".into(), Tier::Compatible, vec![check(Level::L1, false)]);
        let signed = report.sign(&key, at).unwrap();
        assert_eq!(signed.check_signature(Signer::Runner, key.public()), Ok(()));
        let mut value = signed.to_value();
        value["pass"] = json!(true);
        let changed = SignedReport::from_value(value).unwrap();
        assert!(changed.check_signature(Signer::Runner, key.public()).is_err());
    }
}
