//! E2B: control API over JSON, sandboxes over Connect-RPC with the JSON codec.
//!
//! Rules by name hold for port 80 (Host) and 443 (SNI) only, so rules with other ports are
//! refused. Nothing tells which build of a template runs.

mod process;

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use reqwest::Method;
use serde_json::{Value, json};
use warrant_protocol::Isolation;

use super::adapter::{
    Adapter, Egress, Fidelity, Handle, NotStarted, Observed, Orphan, Running, SESSION_LABEL, Spec,
    Start, Told,
};
use super::answer::{escaped, id, same_id, text, texts};
use super::settings::Account;
use super::wire::{CREATING, Call, Content, READING, Wire, WireError};
use super::{host_only, names_only};
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
}

impl E2b {
    pub(crate) const fn new(account: Account) -> Self {
        Self { account }
    }

    #[expect(clippy::too_many_arguments, reason = "a call has these four parts")]
    fn api(&self, what: &'static str, method: Method, path: &str, content: Content) -> Call {
        Call {
            what,
            method,
            url: format!("{}{path}", self.account.api),
            headers: vec![("X-API-KEY".to_owned(), self.account.key.clone())],
            content,
        }
    }

    fn create_body(&self, spec: &Spec) -> Value {
        let mut body = json!({
            "templateID": spec.image,
            "timeout": spec.lifetime.as_secs(),
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
            return Err(WireError::Malformed { what: "creating the sandbox", why });
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
        Told::Is(Egress { rules, matches, mechanism: None, weakness: None })
    }
}

impl Adapter for E2b {
    fn isolation(&self) -> Isolation {
        Isolation::E2b
    }

    fn endpoint(&self) -> &str {
        &self.account.api
    }

    fn default_image(&self) -> Option<&str> {
        Some(self.account.config.image.as_deref().unwrap_or("base"))
    }

    fn takes_input(&self) -> bool {
        true
    }

    fn fidelity(&self) -> Fidelity {
        Fidelity::Bytes
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

    /// There is no route that tells a version; listing shows that the key is known.
    fn version(&self, wire: &Wire) -> Result<Told<String>, WireError> {
        let path = "/v2/sandboxes?limit=1";
        wire.repeat(&self.api("asking for sandboxes", Method::GET, path, Content::Nothing))?;
        Ok(Told::Nothing)
    }

    fn create(&self, wire: &Wire, spec: &Spec) -> Result<Handle, WireError> {
        let what = CREATING;
        let mut body = self.create_body(spec);
        let call = |path: &str, body: &Value| {
            self.api(what, Method::POST, path, Content::Json(body.clone()))
        };
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
        Ok(Handle { id, base, headers })
    }

    fn is_ready(&self, wire: &Wire, handle: &mut Handle) -> Result<bool, WireError> {
        let call = Call {
            what: "waiting for the sandbox",
            method: Method::GET,
            url: format!("{}/health", handle.base),
            headers: handle.headers.clone(),
            content: Content::Nothing,
        };
        match wire.call(&call) {
            Ok(_) => Ok(true),
            Err(WireError::Refused { status: 502 | 503 | 404, .. }) => Ok(false),
            Err(other) => Err(other),
        }
    }

    fn observe(&self, wire: &Wire, handle: &Handle, spec: &Spec) -> Result<Observed, WireError> {
        let what = READING;
        let path = format!("/sandboxes/{}", handle.id);
        let info = wire.repeat(&self.api(what, Method::GET, &path, Content::Nothing))?.json()?;
        same_id(what, &info, ("sandboxID", &handle.id))?;
        let told = |name: &str| match info.get(name).and_then(Value::as_str) {
            Some(text) => Told::Is(text.to_owned()),
            None => Told::Nothing,
        };
        let number = |name: &str, unit: u64| match info.get(name).and_then(Value::as_u64) {
            // Nobody has nothing: it means that nothing is told.
            Some(0) => Told::Nothing,
            Some(count) => Told::Is(count.saturating_mul(unit)),
            None => Told::Nothing,
        };
        let session = info.pointer(&format!("/metadata/{SESSION_LABEL}")).and_then(Value::as_str);
        Ok(Observed {
            version: told("envdVersion"),
            version_source: "GET /sandboxes/{id} envdVersion".to_owned(),
            image: told("templateID"),
            image_digest: Told::Nothing,
            egress: self.egress(&info, spec),
            mounts: match info.get("volumeMounts") {
                Some(mounts) if !mounts.is_null() => Told::Is(mounts.clone()),
                // The member is left out when there is none.
                _ => Told::Is(json!([])),
            },
            memory_bytes: number("memoryMB", 1 << 20),
            asks_memory: false,
            disk_bytes: number("diskSizeMB", 1 << 20),
            cpu_milli: number("cpuCount", 1000),
            class: Told::Nothing,
            session: session.map_or(Told::Nothing, |session| Told::Is(session.to_owned())),
            source: "GET /sandboxes/{id}".to_owned(),
        })
    }

    fn start(
        &self,
        wire: &Wire,
        handle: &Handle,
        start: &Start,
    ) -> Result<Box<dyn Running>, NotStarted> {
        Ok(Box::new(process::start(wire, handle, start)?))
    }

    fn put(&self, wire: &Wire, handle: &Handle, file: (&str, &[u8])) -> Result<(), WireError> {
        let (path, bytes) = file;
        let name = path.rsplit('/').next().map(str::to_owned);
        let field = ("file".to_owned(), name, "application/octet-stream", bytes.to_vec());
        let call = Call {
            what: "writing a file",
            method: Method::POST,
            url: files_url(handle, path),
            headers: handle.headers.clone(),
            content: Content::Form(vec![field]),
        };
        // Writing the same file twice is the same as writing it once.
        wire.repeat(&call).map(drop)
    }

    fn get(
        &self,
        wire: &Wire,
        handle: &Handle,
        path: &str,
        most: u64,
    ) -> Result<Vec<u8>, WireError> {
        let call = Call {
            what: "reading a file",
            method: Method::GET,
            url: files_url(handle, path),
            headers: handle.headers.clone(),
            content: Content::Nothing,
        };
        Ok(wire.repeat_large(&call, most)?.body)
    }

    fn list(&self, wire: &Wire, handle: &Handle, path: &str) -> Result<Vec<String>, WireError> {
        let what = "listing a directory";
        let content = Content::Json(json!({ "path": path, "depth": 1 }));
        let listed =
            process::unary(wire, handle, what, ("filesystem.Filesystem/ListDir", content))?;
        let entries = listed.get("entries").and_then(Value::as_array).cloned().unwrap_or_default();
        entries.iter().take(MOST_LISTED).map(|entry| text(what, entry, "name")).collect()
    }

    fn extend(&self, wire: &Wire, handle: &Handle, lifetime: Duration) -> Result<(), WireError> {
        let path = format!("/sandboxes/{}/timeout", handle.id);
        let content = Content::Json(json!({ "timeout": lifetime.as_secs() }));
        wire.repeat(&self.api("extending the sandbox", Method::POST, &path, content)).map(drop)
    }

    fn delete(&self, wire: &Wire, id: &str) -> Result<(), WireError> {
        let path = format!("/sandboxes/{id}");
        let call = self.api("deleting the sandbox", Method::DELETE, &path, Content::Nothing);
        match wire.repeat(&call) {
            Err(error) if error.is_missing() => Ok(()),
            other => other.map(drop),
        }
    }

    fn orphans(&self, wire: &Wire, home: &str) -> Result<Vec<Orphan>, WireError> {
        let what = "listing sandboxes";
        let label = escaped(&format!("{}={home}", super::adapter::HOME_LABEL));
        let mut orphans = Vec::new();
        let mut next: Option<String> = None;
        loop {
            let more = next.as_ref().map(|token| format!("&nextToken={}", escaped(token)));
            let path = format!(
                "/v2/sandboxes?metadata={label}&state=running%2Cpaused&limit=100{}",
                more.unwrap_or_default()
            );
            let reply = wire.repeat(&self.api(what, Method::GET, &path, Content::Nothing))?;
            let listed = reply.json()?;
            let page = listed.as_array().cloned().unwrap_or_default();
            for sandbox in &page {
                let labels = sandbox.get("metadata");
                let label = |name: &str| labels.and_then(|l| l.get(name)).and_then(Value::as_str);
                // SECURITY: what the filter let through by mistake is not ours to delete.
                if label(super::adapter::HOME_LABEL) == Some(home) {
                    let session = label(SESSION_LABEL).map(str::to_owned);
                    orphans.push(Orphan { id: id(what, sandbox, "sandboxID")?, session });
                }
            }
            next = reply.header("x-next-token").filter(|token| !token.is_empty());
            if next.is_none() || page.is_empty() || orphans.len() > MOST_LISTED {
                return Ok(orphans);
            }
        }
    }
}

fn files_url(handle: &Handle, path: &str) -> String {
    format!("{}/files?path={}", handle.base, escaped(path))
}

fn names_user(version: &str) -> bool {
    let mut parts = version.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    let found = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    found < NAMES_USER_BEFORE
}
