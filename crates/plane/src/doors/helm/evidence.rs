//! Evidence of sessions: gathered into a pack, and a pack checked against the keys of this home.
//!
//! ```text
//! manifest.json                       what is inside, and which runs had not ended
//! records/SESSION/LAMPORT.json        {"record": …, "signature": hex}
//! bundles/RUN.json                    what `warrant verify` reads
//! ```

use std::collections::{BTreeMap, HashMap};

use serde_json::{Value, json};
use warrant_protocol::request::ActorRef;
use warrant_protocol::verify::verify_slice;
use warrant_protocol::{
    Digest, KeyRole, Outcome, RunId, TrustedKeys, VerifiedBundle, canonicalize,
};

use super::pack::Files;
use super::records::VERSION;
use crate::EmbeddedPlane;
use crate::archive::ArchiveError;
use crate::doors::WorkshopError;
use crate::request_context::keep_cause;

/// More problems than this are not told.
const MOST_TOLD: usize = 50;
/// The records of one export.
const MOST_RECORDS: u32 = 5_000;

/// Gathers the evidence of one session, or of the caller's newest ones.
pub(crate) fn gather(
    plane: &EmbeddedPlane,
    guest: &ActorRef,
    session: Option<&str>,
) -> Result<Files, WorkshopError> {
    let owner = guest.label();
    let sessions = match session {
        Some(session) => vec![session.to_owned()],
        None => {
            let rows = plane.store().sessions(&owner, (100, 0)).map_err(WorkshopError::of_error)?;
            rows.into_iter().map(|row| row.session).collect()
        }
    };
    let (mut files, mut bundles, mut open) = (Files::new(), BTreeMap::new(), Vec::new());
    for session in &sessions {
        let records = plane
            .store()
            .records((session, &owner), (0, MOST_RECORDS + 1))
            .map_err(WorkshopError::of_error)?;
        if records.is_empty() {
            return Err(WorkshopError::NoSandbox);
        }
        if files.len() + records.len() > MOST_RECORDS as usize {
            let text = format!("more than {MOST_RECORDS} records; export fewer sessions at once");
            return Err(WorkshopError::Invalid(text));
        }
        for row in &records {
            let record: Value = serde_json::from_str(&row.body).map_err(WorkshopError::of_error)?;
            add_bundle(plane, &record, (&mut bundles, &mut open))?;
            let name = format!("records/{session}/{:08}.json", row.lamport);
            let signed = json!({ "record": record, "signature": row.signature });
            files.push((name, canonicalize(&signed).into_bytes()));
        }
    }
    let manifest = json!({
        "version": "warrant.evidence.v1",
        "sessions": sessions,
        "records": files.len(),
        "bundles": bundles.len(),
        "notEnded": open,
    });
    files.insert(0, ("manifest.json".to_owned(), canonicalize(&manifest).into_bytes()));
    files.extend(bundles.into_iter().map(|(run, bundle)| (format!("bundles/{run}.json"), bundle)));
    Ok(files)
}

fn add_bundle(
    plane: &EmbeddedPlane,
    record: &Value,
    (bundles, open): (&mut BTreeMap<String, Vec<u8>>, &mut Vec<String>),
) -> Result<(), WorkshopError> {
    let run = text(record, "run");
    let id: RunId = run.parse().map_err(WorkshopError::of_error)?;
    if bundles.contains_key(run) || open.iter().any(|known| known == run) {
        return Ok(());
    }
    match plane.bundle(&id) {
        Ok(bundle) => {
            bundles.insert(run.to_owned(), canonicalize(&bundle).into_bytes());
        }
        Err(ArchiveError::NotEnded(_)) => open.push(run.to_owned()),
        Err(error) => return Err(WorkshopError::of_error(error)),
    }
    Ok(())
}

/// What was found wrong with a pack, by what it touches.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    signatures: Vec<String>,
    causal_chain: Vec<String>,
    policy_compliance: Vec<String>,
}

impl Findings {
    /// Returns the result in the SDK's words.
    pub(crate) fn told(&self) -> Value {
        let word = |problems: &[String]| if problems.is_empty() { "PASS" } else { "FAIL" };
        let all = [&self.signatures, &self.causal_chain, &self.policy_compliance];
        let errors: Vec<&String> = all.iter().flat_map(|list| list.iter()).collect();
        json!({
            "verdict": if errors.is_empty() { "PASS" } else { "FAIL" },
            "checks": {
                "signatures": word(&self.signatures),
                "causal_chain": word(&self.causal_chain),
                "policy_compliance": word(&self.policy_compliance),
            },
            "errors": errors.iter().take(MOST_TOLD).collect::<Vec<_>>(),
        })
    }
}

/// Checks a pack: every signature, every link, and that runs say what their records say.
///
/// Trusted keys are those of this home, never those in the pack.
pub(crate) fn check(plane: &EmbeddedPlane, files: &Files) -> Result<Findings, String> {
    let mut found = Findings::default();
    let bundles = bundles(plane, files, &mut found);
    let records = records(files)?;
    for (session, records) in &records {
        check_session(plane, (session, records), (&bundles, &mut found));
    }
    Ok(found)
}

/// Checks a pack as [`check`] does, and walks through its sessions once more: an execution needs a
/// decision for the same command that came before it and was not used up.
pub(crate) fn replay(plane: &EmbeddedPlane, files: &Files) -> Result<Findings, String> {
    let mut found = check(plane, files)?;
    for (session, records) in &records(files)? {
        let mut grants: HashMap<&str, &str> = HashMap::new();
        for (lamport, signed) in records {
            let record = signed.get("record").unwrap_or(&Value::Null);
            let (run, command) = (text(record, "run"), text(record, "command"));
            match (text(record, "kind"), text(record, "decision")) {
                ("decision", "ALLOW") => {
                    grants.insert(run, command);
                }
                ("execution", _)
                    if grants.remove(text(record, "usedDecision")) != Some(command) =>
                {
                    let text = format!("{session} {lamport}: no decision allowed this execution");
                    found.policy_compliance.push(text);
                }
                _ => {}
            }
        }
    }
    Ok(found)
}

type Bundles = HashMap<String, VerifiedBundle>;

fn bundles(plane: &EmbeddedPlane, files: &Files, found: &mut Findings) -> Bundles {
    let home = plane.home();
    let trusted = TrustedKeys::none()
        .and(KeyRole::Plane, home.plane_key().public().clone())
        .and(KeyRole::Runner, home.plane_key().public().clone())
        .and(KeyRole::Runner, home.runner_key().public().clone());
    let approvers = home.approvers().unwrap_or_default();
    let trusted = approvers.into_iter().fold(trusted, |all, key| all.and(KeyRole::Approver, key));
    let mut bundles = Bundles::new();
    for (name, content) in files {
        let run = name.strip_prefix("bundles/").and_then(|name| name.strip_suffix(".json"));
        let Some(run) = run else { continue };
        match verify_slice(content, &trusted) {
            Ok(bundle) if bundle.contract().body().run_id.as_str() == run => {
                bundles.insert(run.to_owned(), bundle);
            }
            Ok(_) => found.causal_chain.push(format!("{name} is the bundle of another run")),
            Err(problems) => {
                let text: Vec<String> = problems.iter().map(ToString::to_string).collect();
                found.signatures.push(format!("{name}: {}", text.join("; ")));
            }
        }
    }
    bundles
}

type Sessions = BTreeMap<String, BTreeMap<u64, Value>>;

/// Reads the records by session and place.
fn records(files: &Files) -> Result<Sessions, String> {
    let mut sessions = Sessions::new();
    for (name, content) in files {
        let Some(path) = name.strip_prefix("records/") else { continue };
        let malformed = || format!("{name} is no record");
        let (session, place) = path.split_once('/').ok_or_else(malformed)?;
        let place = place.strip_suffix(".json").and_then(|place| place.parse().ok());
        let signed = warrant_protocol::json::parse(content)
            .map_err(|error| keep_cause(&error, malformed()))?;
        let places = sessions.entry(session.to_owned()).or_default();
        if places.insert(place.ok_or_else(malformed)?, signed).is_some() {
            return Err(format!("{name} is there twice"));
        }
    }
    if sessions.is_empty() {
        return Err("the bundle holds no records".to_owned());
    }
    Ok(sessions)
}

fn check_session(
    plane: &EmbeddedPlane,
    (session, records): (&str, &BTreeMap<u64, Value>),
    (bundles, found): (&Bundles, &mut Findings),
) {
    let key = plane.home().plane_key().public();
    let mut previous: Option<Digest> = None;
    for (lamport, signed) in records {
        let at = |what: &str| format!("{session} {lamport}: {what}");
        let record = signed.get("record").unwrap_or(&Value::Null);
        let canonical = canonicalize(record);
        let signature = hex(text(signed, "signature"));
        let is_signed =
            signature.is_some_and(|signature| key.verify(canonical.as_bytes(), &signature).is_ok());
        if !is_signed || text(record, "version") != VERSION {
            found.signatures.push(at("not signed by this plane"));
        }
        let is_in_place = text(record, "session") == session
            && record.get("lamport").and_then(Value::as_u64) == Some(*lamport)
            && text(record, "prev") == previous.map(|hash| hash.to_string()).unwrap_or_default();
        if !is_in_place {
            found.causal_chain.push(at("does not follow the record before it"));
        }
        previous = Some(Digest::of(canonical.as_bytes()));
        check_run(record, bundles, |what| at(what), found);
    }
}

/// Checks that a run says what its record says. A run that had not ended proves nothing yet.
fn check_run(record: &Value, bundles: &Bundles, at: impl Fn(&str) -> String, found: &mut Findings) {
    let named = text(record, "receipt");
    let Some(bundle) = bundles.get(text(record, "run")) else {
        if !named.is_empty() {
            found.causal_chain.push(at("the bundle of its run is missing"));
        }
        return;
    };
    if !named.is_empty() && bundle.receipt().hash().to_string() != named {
        found.causal_chain.push(at("its run has another receipt"));
    }
    let was_denied =
        matches!(bundle.receipt().body().outcome, Some(Outcome::Denied | Outcome::ApprovalExpired));
    let says_allowed = text(record, "decision") == "ALLOW";
    // What waited for people may have ended either way since, also after their word.
    let is_open = text(record, "decision") == "ASK" || text(record, "kind") == "approval";
    if !is_open && says_allowed == was_denied {
        found.policy_compliance.push(at("its run was decided otherwise"));
    }
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value.get(name).and_then(Value::as_str).unwrap_or_default()
}

fn hex(text: &str) -> Option<[u8; 64]> {
    let mut bytes = [0; 64];
    if text.len() != 128 || !text.is_ascii() {
        return None;
    }
    for (index, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * index..2 * index + 2)?, 16).ok()?;
    }
    Some(bytes)
}
