//! E2B: control API over JSON, sandboxes over Connect-RPC with the JSON codec.
//!
//! Rules by name hold for port 80 (Host) and 443 (SNI) only, so rules with other ports are
//! refused. Nothing tells which build of a template runs.

mod process;

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use warrant_protocol::Isolation;

use super::adapter::{
    Adapter, Egress, Fidelity, HOME_LABEL, Handle, LISTING, Manner, NotStarted, Observed, Page,
    Reached, Running, SESSION_LABEL, Spec, Start, Told,
};
use super::answer::{escaped, id, items, same_id, text, texts, told, told_amount, told_mounts};
use super::call::{Call, Content, Server, file_field};
use super::lower::{host_only, names_only};
use super::settings::Account;
use super::wire::{CREATING, READING, Wire, WireError};
use crate::{Network, Refusal};

/// Everything, as E2B writes it.
const EVERYTHING: &str = "0.0.0.0/0";
/// The port of the service inside every sandbox.
const ENVD_PORT: &str = "49983";
/// Until this version of the inner service, a user had to be named.
const NAMES_USER_BEFORE: (u32, u32) = (0, 4);
const MOST_LISTED: usize = 10_000;

/// Speaks to E2B.
#[derive(Debug)]
pub(crate) struct E2b {
    account: Account,
    api: Server,
}

impl E2b {
    pub(crate) fn new(account: Account) -> Self {
        let headers = vec![("X-API-KEY".to_owned(), account.key.clone())];
        let api = Server { base: account.api.clone(), headers };
        Self { account, api }
    }

    fn create_body(&self, spec: &Spec) -> Value {
        let mut body = json!({
            "templateID": spec.image,
            "timeout": spec.term.as_secs(),
            "metadata": spec.labels(),
            "envVars": {},
            "allow_internet_access": spec.hosts().is_none_or(|hosts| !hosts.is_empty()),
        });
        if let (Some(hosts @ [_, ..]), Value::Object(members)) = (spec.hosts(), &mut body) {
            let network = json!({ "allowOut": host_only(hosts), "denyOut": [EVERYTHING] });
            members.insert("network".to_owned(), network);
        }
        body
    }

    /// Where a sandbox's own services are, as the official clients find them.
    fn base(&self, id: &str, domain: Option<&str>) -> Result<String, WireError> {
        if let Some(own) = &self.account.sandboxes {
            return Ok(own.clone());
        }
        let domain = domain.or(self.account.variable("E2B_DOMAIN")).unwrap_or("e2b.app");
        let is_plain = domain.bytes().all(|b| b.is_ascii_alphanumeric() || b"-.:".contains(&b));
        if !is_plain {
            let why = "the domain is no host".to_owned();
            return Err(WireError::Malformed { what: CREATING, why });
        }
        Ok(match domain {
            "e2b.app" | "e2b.dev" => "https://sandbox.e2b.app".to_owned(),
            _ => format!("https://{ENVD_PORT}-{id}.{domain}"),
        })
    }

    fn egress(&self, info: &Value, spec: &Spec) -> Told<Egress> {
        let is_open = info.get("allowInternetAccess").and_then(Value::as_bool);
        let network = info.get("network").filter(|network| network.is_object());
        if is_open.is_none() && network.is_none() {
            return Told::Nothing;
        }
        let list = |name: &str| {
            let listed = network.and_then(|network| network.get(name)).and_then(texts);
            let mut listed = listed.unwrap_or_default();
            listed.sort();
            listed
        };
        let matches = match spec.hosts() {
            None => true,
            Some([]) => {
                (is_open == Some(false) || list("denyOut").iter().any(|rule| rule == EVERYTHING))
                    && list("allowOut").is_empty()
            }
            Some(hosts) => {
                let mut wanted = host_only(hosts);
                wanted.sort();
                list("allowOut") == wanted && list("denyOut").iter().any(|rule| rule == EVERYTHING)
            }
        };
        let rules = json!({
            "allowInternetAccess": is_open,
            "allowOut": list("allowOut"),
            "denyOut": list("denyOut"),
        });
        Told::Is(Egress::plain(rules, matches))
    }
}

impl Adapter for E2b {
    fn manner(&self) -> Manner {
        Manner {
            isolation: Isolation::E2b,
            image: "base",
            takes_input: true,
            fidelity: Fidelity::Bytes,
            listed: ("sandboxID", "metadata"),
        }
    }

    fn account(&self) -> &Account {
        &self.account
    }

    fn lower_network(&self, network: &Network) -> Result<Value, Refusal> {
        match network {
            Network::DangerEverything => Ok(json!({ "allow": "everything" })),
            Network::Allow(hosts) => {
                names_only(hosts)?;
                Ok(json!({ "allowOut": host_only(hosts), "denyOut": [EVERYTHING] }))
            }
        }
    }

    fn create(&self, wire: &Wire, spec: &Spec) -> Result<Handle, WireError> {
        let what = CREATING;
        let mut body = self.create_body(spec);
        let call =
            |path: &str, body: &Value| self.api.post(what, path, Content::Json(body.clone()));
        let reply = match wire.call(&call("/v2/sandboxes", &body)) {
            // An older server does not have the route, so nothing was created.
            Err(WireError::Refused { status: 404 | 405, .. }) => {
                if let Value::Object(members) = &mut body {
                    members.insert("secure".to_owned(), json!(true));
                }
                wire.call(&call("/sandboxes", &body))?
            }
            other => other?,
        };
        let created = reply.json()?;
        let id = id(what, &created, "sandboxID")?;
        let base = self.base(&id, created.get("domain").and_then(Value::as_str))?;
        let mut headers = vec![
            ("E2b-Sandbox-Id".to_owned(), id.clone()),
            ("E2b-Sandbox-Port".to_owned(), ENVD_PORT.to_owned()),
        ];
        if let Some(token) = created.get("envdAccessToken").and_then(Value::as_str) {
            headers.push(("X-Access-Token".to_owned(), token.to_owned()));
        }
        if created.get("envdVersion").and_then(Value::as_str).is_some_and(names_user) {
            let user = STANDARD.encode("user:");
            headers.push(("Authorization".to_owned(), format!("Basic {user}")));
        }
        Ok(Handle { id, inside: Server { base, headers } })
    }

    fn is_ready(&self, wire: &Wire, handle: &mut Handle) -> Result<bool, WireError> {
        match wire.call(&handle.inside.get("waiting for the sandbox", "/health")) {
            Ok(_) => Ok(true),
            Err(WireError::Refused { status: 502 | 503 | 404, .. }) => Ok(false),
            Err(other) => Err(other),
        }
    }

    fn observe(&self, at: Reached<'_>, spec: &Spec) -> Result<Observed, WireError> {
        let what = READING;
        let call = self.api.get(what, &format!("/sandboxes/{}", at.handle.id));
        let info = at.wire.repeat(&call)?.json()?;
        same_id(what, &info, ("sandboxID", &at.handle.id))?;
        Ok(Observed {
            version: told(info.get("envdVersion")),
            version_source: "GET /sandboxes/{id} envdVersion".to_owned(),
            image: told(info.get("templateID")),
            image_digest: Told::Nothing,
            egress: self.egress(&info, spec),
            mounts: told_mounts(info.get("volumeMounts")),
            memory_bytes: told_amount(info.get("memoryMB"), 1 << 20),
            asks_memory: false,
            disk_bytes: told_amount(info.get("diskSizeMB"), 1 << 20),
            cpu_milli: told_amount(info.get("cpuCount"), 1000),
            class: Told::Nothing,
            session: told(info.pointer(&format!("/metadata/{SESSION_LABEL}"))),
            source: "GET /sandboxes/{id}".to_owned(),
        })
    }

    fn start(&self, at: Reached<'_>, start: &Start) -> Result<Box<dyn Running>, NotStarted> {
        Ok(Box::new(process::start(at, start)?))
    }

    fn writing(&self, handle: &Handle, path: &str, bytes: &[u8]) -> Call {
        let content = Content::Form(vec![file_field("file", path, bytes)]);
        handle.inside.post("writing a file", &files_path(path), content)
    }

    fn reading(&self, handle: &Handle, path: &str) -> Call {
        handle.inside.get("reading a file", &files_path(path))
    }

    fn deleting(&self, id: &str) -> Call {
        self.api.delete("deleting the sandbox", &format!("/sandboxes/{id}"))
    }

    fn extending(&self, handle: &Handle, term: Duration) -> Result<Call, WireError> {
        let path = format!("/sandboxes/{}/timeout", handle.id);
        let content = Content::Json(json!({ "timeout": term.as_secs() }));
        Ok(self.api.post("extending the sandbox", &path, content))
    }

    fn list(&self, at: Reached<'_>, path: &str) -> Result<Vec<String>, WireError> {
        let what = "listing a directory";
        let content = Content::Json(json!({ "path": path, "depth": 1 }));
        let listed = process::unary(at, what, ("/filesystem.Filesystem/ListDir", content))?;
        let entries = items(listed.get("entries"));
        entries.iter().take(MOST_LISTED).map(|entry| text(what, entry, "name")).collect()
    }

    fn page(&self, wire: &Wire, home: &str, next: Option<&str>) -> Result<Page, WireError> {
        let label = escaped(&format!("{HOME_LABEL}={home}"));
        let more = next.map(|token| format!("&nextToken={}", escaped(token)));
        let path = format!(
            "/v2/sandboxes?metadata={label}&state=running%2Cpaused&limit=100{}",
            more.unwrap_or_default()
        );
        let reply = wire.repeat(&self.api.get(LISTING, &path))?;
        let next = reply.header("x-next-token").filter(|token| !token.is_empty());
        Ok(Page { sandboxes: items(Some(&reply.json()?)), next })
    }
}

fn files_path(path: &str) -> String {
    format!("/files?path={}", escaped(path))
}

fn names_user(version: &str) -> bool {
    let mut parts = version.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    let found = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    found < NAMES_USER_BEFORE
}
