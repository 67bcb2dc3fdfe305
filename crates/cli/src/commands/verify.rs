//! `warrant verify` and `warrant receipt FILE`: a bundle and the caller's keys in, claims or a
//! story out. Keys inside the bundle are never trusted.

use std::fs;
use std::io::Read as _;
use std::path::Path;

use anyhow::Context as _;
use serde_json::{Value, json};
use warrant_protocol::RunId;
use warrant_protocol::bundle::Bundle;
use warrant_protocol::keys::{KeyRole, PublicKey, TrustedKeys};
use warrant_protocol::story::outcome_words;
use warrant_protocol::verify::{Problem, VerifiedBundle, verify as check};

use crate::args::Verify;
use crate::commands::keys::read_public;
use crate::exit::{Exit, Misuse};
use crate::plane_client::PlaneClient;
use crate::ui::{self, Tone, paint};
use warrant_govern::archive::run_named;

/// Finds the plane that is meant, when a run is named.
type FindPlane<'a> = &'a dyn Fn() -> anyhow::Result<Option<PlaneClient>>;

/// Checks a bundle and says one line per claim.
pub(crate) fn verify(
    home: Option<&Path>,
    plane: FindPlane<'_>,
    arguments: &Verify,
) -> anyhow::Result<Exit> {
    let checked = read((home, plane), arguments)?;
    match &checked {
        Ok(verified) if arguments.json => ui::json(&claims_json(verified)),
        Ok(verified) => ui::data(&claims_text(verified)),
        Err(refusal) => refusal.print(arguments.json),
    }
    Ok(if checked.is_ok() { Exit::Success } else { Exit::NotVerified })
}

/// Tells the story of a bundle that verifies; anything else has no story.
pub(crate) fn receipt(
    home: Option<&Path>,
    plane: FindPlane<'_>,
    arguments: &Verify,
) -> anyhow::Result<Exit> {
    match read((home, plane), arguments)? {
        Ok(verified) => {
            super::story::print(&verified, arguments.json);
            Ok(Exit::Success)
        }
        Err(refusal) => {
            refusal.print(arguments.json);
            Ok(Exit::NotVerified)
        }
    }
}

/// Why a bundle is not believed.
struct Refused {
    /// Nobody named a key.
    has_no_trust: bool,
    problems: Vec<Problem>,
}

impl Refused {
    fn print(&self, as_json: bool) {
        let problems: Vec<String> = self.problems.iter().map(ToString::to_string).collect();
        let status = if self.has_no_trust { "untrusted" } else { "failed" };
        if as_json {
            ui::json(&json!({"verified": false, "status": status, "problems": problems}));
            return;
        }
        let headline = if self.has_no_trust {
            "UNTRUSTED: no key was named with --trust"
        } else {
            "VERIFICATION FAILED:"
        };
        let mut text = format!("{}\n", paint(headline, Tone::Bad, ui::stdout_has_color()));
        for problem in problems {
            text.push_str(&format!("  - {}\n", ui::printable(&problem)));
        }
        ui::data(&text);
    }
}

fn read(
    (home, plane): (Option<&Path>, FindPlane<'_>),
    arguments: &Verify,
) -> anyhow::Result<Result<VerifiedBundle, Refused>> {
    let mut known = None;
    let bytes = match run_of(&arguments.subject) {
        None => read_bytes(&arguments.subject)?,
        Some(run) => match plane()? {
            None => return read_run(home, (run, arguments)),
            Some(plane) => {
                let (bundle, keys) = super::remote::evidence(&plane, run)?;
                known = keys;
                bundle.to_string().into_bytes()
            }
        },
    };
    let keys = named(arguments)?;
    let has_no_trust = keys.is_empty() && known.is_none();
    let refused = |problems| Refused { has_no_trust, problems };
    let bundle = match Bundle::from_slice(&bytes) {
        Ok(bundle) => bundle,
        Err(malformed) => {
            return Ok(Err(refused(vec![Problem::Malformed { detail: malformed.0 }])));
        }
    };
    let trusted = trusted(&bundle, (known.unwrap_or_else(TrustedKeys::none), keys));
    Ok(check(bundle, &trusted).map_err(refused))
}

/// A subject that looks like a run and is no file is a run of this machine.
fn run_of(subject: &Path) -> Option<&str> {
    subject.to_str().filter(|text| text.starts_with(RunId::PREFIX) && !subject.exists())
}

/// Checks a run of this machine against this machine's own keys.
fn read_run(
    home: Option<&Path>,
    (run, arguments): (&str, &Verify),
) -> anyhow::Result<Result<VerifiedBundle, Refused>> {
    let archive = super::open_archive(home)?;
    let records = archive.records();
    let run = run_named(records, run)?;
    let named = named(arguments)?;
    let refused = |problems| Refused { has_no_trust: false, problems };
    let bundle = match Bundle::from_value(records.bundle(&run)?) {
        Ok(bundle) => bundle,
        Err(malformed) => {
            return Ok(Err(refused(vec![Problem::Malformed { detail: malformed.0 }])));
        }
    };
    let trusted = match archive.is_foreign() {
        // Who reads somebody else's home may know better whom they trust.
        true if !named.is_empty() => trusted(&bundle, (TrustedKeys::none(), named)),
        true => {
            ui::note(
                "checked against the keys of that home, which is somebody else's; name the keys \
                 you trust with --trust",
            );
            records.trusted()?
        }
        false => records.trusted()?,
    };
    Ok(check(bundle, &trusted).map_err(refused))
}

fn named(arguments: &Verify) -> anyhow::Result<Vec<Trust>> {
    arguments.trust.iter().chain(&arguments.more_trust).map(|file| Trust::parse(file)).collect()
}

fn read_bytes(file: &Path) -> anyhow::Result<Vec<u8>> {
    if file.as_os_str() != "-" {
        return fs::read(file)
            .with_context(|| format!("RUN|FILE: cannot read {}", file.display()))
            .map_err(Misuse::of);
    }
    let mut bytes = Vec::new();
    std::io::stdin().read_to_end(&mut bytes).context("cannot read standard input")?;
    Ok(bytes)
}

/// A key the caller named, with the role it was named for, if any.
struct Trust {
    role: Option<KeyRole>,
    key: PublicKey,
}

const ROLES: [(&str, KeyRole); 3] =
    [("plane", KeyRole::Plane), ("runner", KeyRole::Runner), ("approver", KeyRole::Approver)];

impl Trust {
    /// Reads `ROLE=FILE`, or `FILE` whose name may start with a role.
    fn parse(argument: &Path) -> anyhow::Result<Self> {
        let text = argument.to_string_lossy();
        for (name, role) in ROLES {
            if let Some(file) = text.strip_prefix(name).and_then(|rest| rest.strip_prefix('=')) {
                return Ok(Self { role: Some(role), key: read_public(Path::new(file))? });
            }
        }
        let file_name = argument.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
        let role =
            ROLES.iter().find(|(name, _)| file_name.starts_with(name)).map(|(_, role)| *role);
        Ok(Self { role, key: read_public(argument)? })
    }
}

/// Returns the trusted keys by role.
///
/// SECURITY: a key named without a role is believed in one role only, the one in which this
/// bundle uses it, and never as a plane that sealed the receipt itself. Otherwise a runner whose
/// key is trusted could sign its own contracts as if it were the plane.
fn trusted(bundle: &Bundle, (known, keys): (TrustedKeys, Vec<Trust>)) -> TrustedKeys {
    let used = |member: &str| {
        let pem = bundle.raw().get("keys").and_then(|keys| keys.get(member));
        pem.and_then(Value::as_str).and_then(|pem| PublicKey::from_pem(pem).ok())
    };
    let (plane, runner) = (used("planePublicKeyPem"), used("runnerPublicKeyPem"));
    let is = |key: &PublicKey, other: &Option<PublicKey>| {
        other.as_ref().is_some_and(|other| other.as_bytes() == key.as_bytes())
    };
    keys.into_iter().fold(known, |trusted, Trust { role, key }| match role {
        Some(role) => trusted.and(role, key),
        None if is(&key, &plane) && is(&key, &runner) => trusted,
        None if is(&key, &plane) => trusted.and(KeyRole::Plane, key),
        None if is(&key, &runner) => trusted.and(KeyRole::Runner, key),
        None => trusted.and(KeyRole::Approver, key),
    })
}

/// The claims that hold, in the order of the walk.
fn claims(verified: &VerifiedBundle) -> Vec<(&'static str, String)> {
    let contract = verified.contract();
    let receipt = verified.receipt();
    let body = receipt.body();
    let mut claims = vec![
        ("contract", format!("{} signed by plane {}", contract.hash(), verified.plane_key().id())),
        ("runner", format!("{} sealed with {}", body.runner.runner_id, verified.runner_key().id())),
        ("countersigned", format!("{} by plane {}", receipt.hash(), verified.plane_key().id())),
        ("chain", format!("{} events, head {}", body.event_count, body.events_head)),
        ("folded", "every member of the receipt follows from the chain".to_owned()),
        (
            "workspace",
            format!("{} manifest {}", body.workspace_in.base_ref, body.workspace_in.manifest_hash),
        ),
        ("policy", contract.body().policy_hash.to_string()),
    ];
    if let Some(isolation) = body.runner.isolation {
        claims.push(("isolation", isolation.to_string()));
    }
    if let Some(outcome) = &body.outcome {
        claims.push(("outcome", outcome_words(outcome)));
    }
    if body.preimage.is_some() {
        claims.push(("preimage", "all six values recompute from their inputs".to_owned()));
    }
    for actor in contract.body().approved_by.iter().flatten() {
        claims.push(("approved", actor.label()));
    }
    claims
}

fn claims_text(verified: &VerifiedBundle) -> String {
    let body = verified.receipt().body();
    let headline = format!("VERIFIED {} {}", body.run_id, body.status.as_str());
    let has_color = ui::stdout_has_color();
    let mut text = format!("{}\n", paint(&headline, Tone::Good, has_color));
    for (name, claim) in claims(verified) {
        let claim = ui::printable(&claim);
        text.push_str(&format!("  {} {name:<13} {claim}\n", paint("ok", Tone::Good, has_color)));
    }
    text
}

fn claims_json(verified: &VerifiedBundle) -> Value {
    let body = verified.receipt().body();
    let claims = claims(verified);
    let claims: Vec<Value> =
        claims.into_iter().map(|(name, claim)| json!({"claim": name, "value": claim})).collect();
    json!({
        "verified": true,
        "status": "verified",
        "runId": body.run_id,
        "runStatus": body.status.as_str(),
        "contractHash": body.contract_hash,
        "receiptHash": verified.receipt().hash(),
        "claims": claims,
        "problems": [],
    })
}
