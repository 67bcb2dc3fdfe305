//! Daytona: control API and toolbox, both over JSON with the same key.
//!
//! Programs run in a session of the toolbox, whose log comes over a WebSocket with the two
//! streams apart. A session takes no variables, so they travel as a file that is read and removed
//! before the program starts; they are never part of a command.

mod demux;
mod process;
mod socket;

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use warrant_protocol::Isolation;

use super::adapter::{
    Adapter, Egress, Fidelity, HOME_LABEL, Handle, NotStarted, Observed, Orphan, Running,
    SESSION_LABEL, Spec, Start, Told,
};
use super::answer::{escaped, id, same_id, text};
use super::settings::Account;
use super::wire::{CREATING, Call, Content, READING, Wire, WireError};
use super::{host_only, names_only};
use crate::{Network, Refusal};

/// Stands for whatever image the server uses when none is named.
const SERVERS_CHOICE: &str = "default";
const GIB: u64 = 1 << 30;
const MOST_LISTED: usize = 10_000;
/// States out of which no sandbox comes back by itself.
const DEAD: [&str; 5] = ["error", "build_failed", "destroyed", "destroying", "archived"];

/// Speaks to Daytona.
#[derive(Debug)]
pub(crate) struct Daytona {
    account: Account,
}

impl Daytona {
    pub(crate) const fn new(account: Account) -> Self {
        Self { account }
    }

    fn headers(&self) -> Vec<(String, String)> {
        let mut headers = vec![
            ("Authorization".to_owned(), format!("Bearer {}", self.account.key)),
            ("X-Daytona-Source".to_owned(), "warrant".to_owned()),
        ];
        if let Some(organization) = self.account.variable("DAYTONA_ORGANIZATION_ID") {
            let name = "X-Daytona-Organization-ID".to_owned();
            headers.push((name, organization.to_owned()));
        }
        headers
    }

    #[expect(clippy::too_many_arguments, reason = "a call has these four parts")]
    fn api(&self, what: &'static str, method: Method, path: &str, content: Content) -> Call {
        let url = format!("{}{path}", self.account.api);
        Call { what, method, url, headers: self.headers(), content }
    }

    fn create_body(&self, spec: &Spec) -> Value {
        let minutes = spec.lifetime.as_secs().div_ceil(60).max(1);
        let mut body = json!({
            "env": {},
            "labels": spec.labels(),
            "public": false,
            "autoStopInterval": minutes,
            "ttlMinutes": minutes,
        });
        let Value::Object(members) = &mut body else { return body };
        let mut add = |name: &str, value: Value| drop(members.insert(name.to_owned(), value));
        if let Some(target) = self.account.variable("DAYTONA_TARGET") {
            add("target", json!(target));
        }
        if is_image(&spec.image) {
            let dockerfile = format!("FROM {}\n", spec.image);
            add("buildInfo", json!({ "dockerfileContent": dockerfile, "contextHashes": [] }));
            // Only what is built here takes limits; a snapshot has its own.
            if let Some(bytes) = spec.memory_bytes.filter(|bytes| *bytes >= GIB) {
                add("memory", json!(bytes / GIB));
            }
        } else if spec.image != SERVERS_CHOICE {
            add("snapshot", json!(spec.image));
        }
        match spec.hosts() {
            None => {}
            Some([]) => add("networkBlockAll", json!(true)),
            Some(hosts) => add("domainAllowList", json!(host_only(hosts).join(","))),
        }
        body
    }

    fn toolbox(&self, what: &'static str, url: &str, id: &str) -> Result<String, WireError> {
        let url = url.trim_end_matches('/');
        let is_secure = url.starts_with("https://");
        // SECURITY: the key travels there too, so it never leaves TLS because an answer says so.
        let is_good =
            is_secure || (url.starts_with("http://") && self.account.api.starts_with("http://"));
        if is_good && url.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Ok(format!("{url}/{id}"));
        }
        Err(WireError::Malformed { what, why: "the toolbox is at no usable address".to_owned() })
    }

    fn read(
        &self,
        wire: &Wire,
        handle: &Handle,
        what: &'static str,
    ) -> Result<(Value, Option<String>), WireError> {
        let path = format!("/sandbox/{}", handle.id);
        let reply = wire.repeat(&self.api(what, Method::GET, &path, Content::Nothing))?;
        let version = reply.header("x-daytona-api-version");
        let info = reply.json()?;
        same_id(what, &info, ("id", &handle.id))?;
        Ok((info, version))
    }

    fn egress(info: &Value, spec: &Spec) -> Told<Egress> {
        let Some(is_blocked) = info.get("networkBlockAll").and_then(Value::as_bool) else {
            return Told::Nothing;
        };
        let listed = |name: &str| {
            let text = info.get(name).and_then(Value::as_str).unwrap_or_default();
            let mut hosts: Vec<String> = text
                .split(',')
                .map(|host| host.trim().to_owned())
                .filter(|h| !h.is_empty())
                .collect();
            hosts.sort();
            hosts
        };
        let (domains, addresses) = (listed("domainAllowList"), listed("networkAllowList"));
        let matches = match spec.hosts() {
            None => true,
            Some([]) => is_blocked && domains.is_empty() && addresses.is_empty(),
            Some(hosts) => !is_blocked && domains == host_only(hosts) && addresses.is_empty(),
        };
        let rules = json!({
            "networkBlockAll": is_blocked,
            "domainAllowList": domains,
            "networkAllowList": addresses,
        });
        Told::Is(Egress { rules, matches, mechanism: None, weakness: None })
    }
}

/// Whether a name is one of an image, not of a snapshot.
fn is_image(name: &str) -> bool {
    name.contains(['/', ':', '@'])
}

impl Adapter for Daytona {
    fn isolation(&self) -> Isolation {
        Isolation::Daytona
    }

    fn endpoint(&self) -> &str {
        &self.account.api
    }

    fn default_image(&self) -> Option<&str> {
        Some(self.account.config.image.as_deref().unwrap_or(SERVERS_CHOICE))
    }

    fn takes_input(&self) -> bool {
        false
    }

    fn fidelity(&self) -> Fidelity {
        Fidelity::Bytes
    }

    fn lower_network(&self, network: &Network) -> Result<Value, Refusal> {
        match network {
            Network::DangerEverything => Ok(json!({ "allow": "everything" })),
            Network::Allow(hosts) if hosts.is_empty() => Ok(json!({ "networkBlockAll": true })),
            Network::Allow(hosts) => {
                names_only(hosts)?;
                Ok(json!({ "domainAllowList": host_only(hosts) }))
            }
        }
    }

    fn version(&self, wire: &Wire) -> Result<Told<String>, WireError> {
        let call = self.api("asking for the version", Method::GET, "/config", Content::Nothing);
        let reply = wire.repeat(&call)?;
        let told = reply.json()?.get("version").and_then(Value::as_str).map(str::to_owned);
        let told = told.or_else(|| reply.header("x-daytona-api-version"));
        Ok(told.map_or(Told::Nothing, Told::Is))
    }

    fn create(&self, wire: &Wire, spec: &Spec) -> Result<Handle, WireError> {
        let what = CREATING;
        let content = Content::Json(self.create_body(spec));
        let created = wire.call(&self.api(what, Method::POST, "/sandbox", content))?.json()?;
        let id = id(what, &created, "id")?;
        Ok(Handle { id, base: String::new(), headers: self.headers() })
    }

    fn is_ready(&self, wire: &Wire, handle: &mut Handle) -> Result<bool, WireError> {
        let what = "waiting for the sandbox";
        let (info, _) = self.read(wire, handle, what)?;
        let state = info.get("state").and_then(Value::as_str).unwrap_or_default();
        if DEAD.contains(&state) {
            return Err(WireError::Malformed { what, why: format!("its state is {state}") });
        }
        if state != "started" {
            return Ok(false);
        }
        handle.base = match info.get("toolboxProxyUrl").and_then(Value::as_str) {
            Some(url) => self.toolbox(what, url, &handle.id)?,
            None => {
                let path = format!("/sandbox/{}/toolbox-proxy-url", handle.id);
                let call = self.api(what, Method::GET, &path, Content::Nothing);
                let url = text(what, &wire.repeat(&call)?.json()?, "url")?;
                self.toolbox(what, &url, &handle.id)?
            }
        };
        Ok(true)
    }

    fn observe(&self, wire: &Wire, handle: &Handle, spec: &Spec) -> Result<Observed, WireError> {
        let (info, header) = self.read(wire, handle, READING)?;
        let version = match header {
            Some(version) => Told::Is(version),
            None => self.version(wire)?,
        };
        let told = |value: Option<&Value>| match value.and_then(Value::as_str) {
            Some(text) => Told::Is(text.to_owned()),
            None => Told::Nothing,
        };
        let number = |name: &str, unit: u64| match info.get(name).and_then(Value::as_u64) {
            // Nobody has nothing: it means that nothing is told.
            Some(0) => Told::Nothing,
            Some(count) => Told::Is(count.saturating_mul(unit)),
            None => Told::Nothing,
        };
        let image = info.pointer("/buildInfo/snapshotRef").or_else(|| info.get("snapshot"));
        let label = format!("/labels/{SESSION_LABEL}");
        Ok(Observed {
            version,
            version_source: "X-Daytona-Api-Version or GET /config".to_owned(),
            image: told(image),
            image_digest: Told::Nothing,
            egress: Self::egress(&info, spec),
            mounts: match info.get("volumes") {
                Some(volumes) if !volumes.is_null() => Told::Is(volumes.clone()),
                // The member is left out when there is none.
                _ => Told::Is(json!([])),
            },
            memory_bytes: number("memory", GIB),
            asks_memory: is_image(&spec.image),
            disk_bytes: number("disk", GIB),
            cpu_milli: number("cpu", 1000),
            class: told(info.get("sandboxClass").or_else(|| info.get("class"))),
            session: told(info.pointer(&label)),
            source: "GET /sandbox/{id}".to_owned(),
        })
    }

    fn start(
        &self,
        wire: &Wire,
        handle: &Handle,
        start: &Start,
    ) -> Result<Box<dyn Running>, NotStarted> {
        let line = match process::variables_file(&start.env) {
            None => start.line.clone(),
            Some(content) => {
                let file = process::VARIABLES;
                self.put(wire, handle, (file, content.as_bytes())).map_err(NotStarted::Refused)?;
                format!("(. {file}; rm -f {file}; {})", start.line)
            }
        };
        Ok(Box::new(process::start(wire, handle, &line)?))
    }

    fn put(&self, wire: &Wire, handle: &Handle, file: (&str, &[u8])) -> Result<(), WireError> {
        let (path, bytes) = file;
        let name = path.rsplit('/').next().map(str::to_owned);
        let fields = vec![
            ("files[0].path".to_owned(), None, "text/plain", path.as_bytes().to_vec()),
            ("files[0].file".to_owned(), name, "application/octet-stream", bytes.to_vec()),
        ];
        let call = Call {
            what: "writing a file",
            method: Method::POST,
            url: format!("{}/files/bulk-upload", handle.base),
            headers: handle.headers.clone(),
            content: Content::Form(fields),
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
            url: format!("{}/files/download?path={}", handle.base, escaped(path)),
            headers: handle.headers.clone(),
            content: Content::Nothing,
        };
        Ok(wire.repeat_large(&call, most)?.body)
    }

    fn list(&self, wire: &Wire, handle: &Handle, path: &str) -> Result<Vec<String>, WireError> {
        let what = "listing a directory";
        let call = Call {
            what,
            method: Method::GET,
            url: format!("{}/files?path={}", handle.base, escaped(path)),
            headers: handle.headers.clone(),
            content: Content::Nothing,
        };
        let listed = wire.repeat(&call)?.json()?;
        let entries = listed.as_array().cloned().unwrap_or_default();
        entries.iter().take(MOST_LISTED).map(|entry| text(what, entry, "name")).collect()
    }

    fn extend(&self, wire: &Wire, handle: &Handle, lifetime: Duration) -> Result<(), WireError> {
        let minutes = lifetime.as_secs().div_ceil(60).max(1);
        let path = format!("/sandbox/{}/autostop/{minutes}", handle.id);
        let call = self.api("extending the sandbox", Method::POST, &path, Content::Nothing);
        wire.repeat(&call).map(drop)
    }

    fn delete(&self, wire: &Wire, id: &str) -> Result<(), WireError> {
        let path = format!("/sandbox/{id}");
        let call = self.api("deleting the sandbox", Method::DELETE, &path, Content::Nothing);
        match wire.repeat(&call) {
            Err(error) if error.is_missing() => Ok(()),
            other => other.map(drop),
        }
    }

    fn orphans(&self, wire: &Wire, home: &str) -> Result<Vec<Orphan>, WireError> {
        let what = "listing sandboxes";
        let labels = escaped(&json!({ HOME_LABEL: home }).to_string());
        let mut orphans = Vec::new();
        let mut next: Option<String> = None;
        loop {
            let more = next.as_ref().map(|cursor| format!("&cursor={}", escaped(cursor)));
            let path = format!("/sandbox?labels={labels}{}", more.unwrap_or_default());
            let listed =
                wire.repeat(&self.api(what, Method::GET, &path, Content::Nothing))?.json()?;
            // Older servers answer with the list itself.
            let items = listed.get("items").unwrap_or(&listed);
            let page = items.as_array().cloned().unwrap_or_default();
            for sandbox in &page {
                let labels = sandbox.get("labels");
                let label = |name: &str| labels.and_then(|l| l.get(name)).and_then(Value::as_str);
                let state = sandbox.get("state").and_then(Value::as_str).unwrap_or_default();
                let is_going = matches!(state, "destroyed" | "destroying");
                // SECURITY: what the filter let through by mistake is not ours to delete.
                if label(HOME_LABEL) == Some(home) && !is_going {
                    let session = label(SESSION_LABEL).map(str::to_owned);
                    orphans.push(Orphan { id: id(what, sandbox, "id")?, session });
                }
            }
            next = listed.get("nextCursor").and_then(Value::as_str).map(str::to_owned);
            if next.is_none() || page.is_empty() || orphans.len() > MOST_LISTED {
                return Ok(orphans);
            }
        }
    }
}
