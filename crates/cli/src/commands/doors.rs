//! `warrant doors`: tokens for other people's clients, and the hall that `plane start` opens.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use serde_json::{Value, json};
use warrant_conformance::local::Setting;
use warrant_conformance::{EvidenceKeys, Tier};
use warrant_govern::Desk;
use warrant_govern::live::{Live, Scope, TokenFile, TokenFileError, TokenRow};
use warrant_govern::mcp::http::{Door, DoorOptions, ListenerScope};
use warrant_plane::doors::{ExamLevel, Examined, Examiner, Hall};
use warrant_plane::random;
use warrant_protocol::{Isolation, SigningKey, Timestamp};
use warrant_sandbox::Namespace;
use warrant_sandbox::hermetic::WorkerProgram;

use crate::args::Doors;
use crate::exit::{Exit, Misuse};
use crate::ui;

/// Runs one command.
pub(crate) fn run(desk: &Desk, command: Doors) -> anyhow::Result<Exit> {
    let tokens = TokenFile::of(desk.plane().home().root());
    match command {
        Doors::Issue { name, scope, workspace, json: as_json } => {
            let token = match (scope.as_str(), &workspace) {
                ("mcp", workspace) => {
                    let workspace = workspace.as_deref().unwrap_or(Path::new("."));
                    tokens.issue_mcp(&name, workspace)
                }
                (_, Some(_)) => {
                    return Err(Misuse::of(anyhow::anyhow!("--workspace needs --scope mcp")));
                }
                (_, None) => tokens.issue(&name),
            };
            let token = token.map_err(usage)?;
            if as_json {
                ui::json(&json!({ "name": name, "scope": scope, "token": token }));
            } else {
                ui::note(&format!("token of {name}, shown once:"));
                ui::data(&format!("{token}\n"));
            }
        }
        Doors::List { json: as_json } => {
            let rows = tokens.rows()?;
            if as_json {
                let rows: Vec<Value> = rows.iter().map(told).collect();
                ui::json(&json!({ "tokens": rows }));
            } else {
                rows.iter().for_each(|row| {
                    let opens = match &row.scope {
                        Scope::Sandboxes => "sandboxes".to_owned(),
                        Scope::Mcp(workspace) => format!("mcp in {}", workspace.display()),
                    };
                    let line = format!("{}  {}  {opens}", row.name, row.created_at);
                    ui::data(&format!("{}\n", ui::printable(&line)));
                });
            }
        }
        Doors::Revoke { name, json: as_json } => {
            if !tokens.revoke(&name)? {
                return Err(Misuse::of(anyhow::anyhow!("there is no token named {name}")));
            }
            if as_json {
                ui::json(&json!({ "name": name, "revoked": true }));
            } else {
                ui::note(&format!("{name} opens nothing any more"));
            }
        }
    }
    Ok(Exit::Success)
}

fn told(row: &TokenRow) -> Value {
    let (scope, workspace) = match &row.scope {
        Scope::Sandboxes => ("sandboxes", None),
        Scope::Mcp(workspace) => ("mcp", Some(workspace)),
    };
    json!({
        "name": row.name, "createdAt": row.created_at, "scope": scope, "workspace": workspace,
    })
}

fn usage(error: TokenFileError) -> anyhow::Error {
    match error {
        TokenFileError::Name
        | TokenFileError::Taken(_)
        | TokenFileError::NoWorkspace { .. }
        | TokenFileError::BadWorkspace { .. } => Misuse::of(error.into()),
        other @ (TokenFileError::File { .. } | TokenFileError::Damaged(..)) => other.into(),
    }
}

/// Every door of a plane. Whoever holds it ends every sandbox and every call when it is dropped.
pub(crate) struct Opened {
    _live: Arc<Live>,
    pub(crate) hall: Hall,
    pub(crate) mcp: Arc<Door>,
}

/// How clients reach the compat APIs and MCP.
pub(crate) struct Reachable {
    /// Names of this machine besides those of loopback.
    pub(crate) hosts: Vec<String>,
    /// Where the plane listens.
    pub(crate) address: IpAddr,
}

/// Opens the compat APIs and MCP.
pub(crate) fn open(home: Option<&Path>, reachable: Reachable) -> anyhow::Result<Opened> {
    let desk = Arc::new(Desk::open(home)?);
    let tokens = TokenFile::of(desk.plane().home().root());
    let live =
        Live::open(desk, Arc::new(Namespace::new())).context("the doors cannot be opened")?;
    let live = Arc::new(live);
    let examiner: Option<Arc<dyn Examiner>> = Some(Arc::new(Examination));
    let hall =
        Hall { workshop: Arc::clone(&live) as _, keeper: Arc::new(tokens.clone()), examiner };
    let options = DoorOptions {
        home: home.map(Path::to_owned),
        tokens,
        hosts: reachable.hosts,
        listener: ListenerScope::of(reachable.address),
    };
    let mcp = Door::open(options).context("the door of MCP cannot be opened")?;
    Ok(Opened { _live: live, hall, mcp: Arc::new(mcp) })
}

/// The black-box checks on the tier that the doors use.
struct Examination;

impl Examiner for Examination {
    fn examine(&self, level: ExamLevel) -> Result<Vec<Examined>, String> {
        let tier = match level {
            ExamLevel::L1 => Tier::Compatible,
            ExamLevel::L2 => Tier::Verified,
        };
        let failed = |_| "the system has no scratch directory or no randomness".to_owned();
        let scratch = tempfile::tempdir().map_err(failed)?;
        let key = || random::bytes().map(|seed| SigningKey::from_seed(&seed)).map_err(failed);
        let setting = Setting {
            scratch: scratch.path().to_owned(),
            clock: || random::now().unwrap_or(Timestamp::EPOCH),
            keys: EvidenceKeys { plane: key()?, runner: key()? },
            worker: WorkerProgram::this(),
        };
        let subject = setting.subject(Isolation::Namespace);
        let subject = subject.ok_or("the tier of the doors cannot be examined here")?;
        let report = warrant_conformance::run(&subject, tier, &mut |_| {});
        let examined = |check: &warrant_conformance::CheckReport| Examined {
            id: check.id.to_string(),
            failure: (!check.pass).then(|| check.detail.clone().unwrap_or_default()),
        };
        Ok(report.checks.iter().map(examined).collect())
    }
}
