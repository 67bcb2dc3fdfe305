//! Daytona: control API and toolbox, both over JSON with the same key.
//!
//! Programs run in a session of the toolbox, whose log comes over a WebSocket with the two
//! streams apart. A session takes no variables, so they travel as a file that is read and removed
//! before the program starts; they are never part of a command.

mod demux;
mod process;
mod socket;

use std::time::Duration;

use serde_json::{Value, json};
use warrant_protocol::Isolation;

use super::adapter::{
    Adapter, Egress, Fidelity, HOME_LABEL, Handle, LISTING, Manner, NotStarted, Observed, Page,
    Reached, Running, SESSION_LABEL, Spec, Start, Told,
};
use super::answer::{escaped, id, items, same_id, text, told, told_amount, told_mounts};
use super::call::{Call, Content, Server, file_field};
use super::lower::{host_only, names_only};
use super::settings::Account;
use super::wire::{CREATING, READING, Wire, WireError};
use crate::{Network, Refusal};

/// Stands for whatever image the server uses when none is named.
const SERVERS_CHOICE: &str = "default";
const GIB: u64 = 1 << 30;
const MOST_LISTED: usize = 10_000;
/// What moving the end of a sandbox is for, in calls.
const EXTENDING: &str = "extending the sandbox";
/// States out of which no sandbox comes back by itself.
const DEAD: [&str; 5] = ["error", "build_failed", "destroyed", "destroying", "archived"];

/// Speaks to Daytona.
#[derive(Debug)]
pub(crate) struct Daytona {
    account: Account,
    api: Server,
}

impl Daytona {
    pub(crate) fn new(account: Account) -> Self {
        let mut headers = vec![
            ("Authorization".to_owned(), format!("Bearer {}", account.key)),
            ("X-Daytona-Source".to_owned(), "warrant".to_owned()),
        ];
        if let Some(organization) = account.variable("DAYTONA_ORGANIZATION_ID") {
            let name = "X-Daytona-Organization-ID".to_owned();
            headers.push((name, organization.to_owned()));
        }
        let api = Server { base: account.api.clone(), headers };
        Self { account, api }
    }

    fn create_body(&self, spec: &Spec) -> Value {
        let minutes = minutes(spec.term);
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
        let reply = wire.repeat(&self.api.get(what, &path))?;
        let version = reply.header("x-daytona-api-version");
        let info = reply.json()?;
        same_id(what, &info, ("id", &handle.id))?;
        Ok((info, version))
    }

    /// Has a sandbox deleted when it is stopped, which it is when nothing happens in it: where no
    /// end of its life is told, that is how it ends by itself.
    fn end_with_stop(&self, wire: &Wire, handle: &Handle) -> Result<(), WireError> {
        let path = format!("/sandbox/{}/autodelete/0", handle.id);
        match wire.repeat(&self.api.post(EXTENDING, &path, Content::Nothing)) {
            // A server that has neither still stops it, and the reaper finds it by its label.
            Err(WireError::Refused { status: 400 | 404 | 405 | 501, .. }) => Ok(()),
            other => other.map(drop),
        }
    }

    /// Asks for the version where no answer carries it.
    fn version(&self, wire: &Wire) -> Result<Told<String>, WireError> {
        let config = wire.repeat(&self.api.get("asking for the version", "/config"))?.json()?;
        Ok(told(config.get("version")))
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
        Told::Is(Egress::plain(rules, matches))
    }
}

/// Returns a time in whole minutes, which is what this provider counts in.
fn minutes(time: Duration) -> u64 {
    time.as_secs().div_ceil(60).max(1)
}

/// Whether a name is one of an image, not of a snapshot.
fn is_image(name: &str) -> bool {
    name.contains(['/', ':', '@'])
}

impl Adapter for Daytona {
    fn manner(&self) -> Manner {
        Manner {
            isolation: Isolation::Daytona,
            image: SERVERS_CHOICE,
            takes_input: false,
            fidelity: Fidelity::Bytes,
            listed: ("id", "labels"),
        }
    }

    fn account(&self) -> &Account {
        &self.account
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

    fn create(&self, wire: &Wire, spec: &Spec) -> Result<Handle, WireError> {
        let what = CREATING;
        let content = Content::Json(self.create_body(spec));
        let created = wire.call(&self.api.post(what, "/sandbox", content))?.json()?;
        let id = id(what, &created, "id")?;
        // Where its toolbox is, is told when it is ready.
        let inside = Server { base: String::new(), headers: self.api.headers.clone() };
        Ok(Handle { id, inside })
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
        if info.get("autoDestroyAt").and_then(Value::as_str).is_none() {
            self.end_with_stop(wire, handle)?;
        }
        handle.inside.base = match info.get("toolboxProxyUrl").and_then(Value::as_str) {
            Some(url) => self.toolbox(what, url, &handle.id)?,
            None => {
                let path = format!("/sandbox/{}/toolbox-proxy-url", handle.id);
                let told = wire.repeat(&self.api.get(what, &path))?.json()?;
                let url = text(what, &told, "url")?;
                self.toolbox(what, &url, &handle.id)?
            }
        };
        Ok(true)
    }

    fn observe(&self, at: Reached<'_>, spec: &Spec) -> Result<Observed, WireError> {
        let (info, header) = self.read(at.wire, at.handle, READING)?;
        let version = match header {
            Some(version) => Told::Is(version),
            None => self.version(at.wire)?,
        };
        let image = info.pointer("/buildInfo/snapshotRef").or_else(|| info.get("snapshot"));
        Ok(Observed {
            version,
            version_source: "X-Daytona-Api-Version or GET /config".to_owned(),
            image: told(image),
            image_digest: Told::Nothing,
            egress: Self::egress(&info, spec),
            mounts: told_mounts(info.get("volumes")),
            memory_bytes: told_amount(info.get("memory"), GIB),
            asks_memory: is_image(&spec.image),
            disk_bytes: told_amount(info.get("disk"), GIB),
            cpu_milli: told_amount(info.get("cpu"), 1000),
            class: told(info.get("sandboxClass").or_else(|| info.get("class"))),
            session: told(info.pointer(&format!("/labels/{SESSION_LABEL}"))),
            source: "GET /sandbox/{id}".to_owned(),
        })
    }

    fn start(&self, at: Reached<'_>, start: &Start) -> Result<Box<dyn Running>, NotStarted> {
        let line = match process::variables_file(&start.env) {
            None => start.line.clone(),
            Some(content) => {
                let file = process::VARIABLES;
                self.put(at, file, content.as_bytes()).map_err(NotStarted::Refused)?;
                format!("(. {file}; rm -f {file}; {})", start.line)
            }
        };
        Ok(Box::new(process::start(at, &line)?))
    }

    fn writing(&self, handle: &Handle, path: &str, bytes: &[u8]) -> Call {
        let fields = vec![
            ("files[0].path".to_owned(), None, "text/plain", path.as_bytes().to_vec()),
            file_field("files[0].file", path, bytes),
        ];
        handle.inside.post("writing a file", "/files/bulk-upload", Content::Form(fields))
    }

    fn reading(&self, handle: &Handle, path: &str) -> Call {
        handle.inside.get("reading a file", &format!("/files/download?path={}", escaped(path)))
    }

    fn deleting(&self, id: &str) -> Call {
        self.api.delete("deleting the sandbox", &format!("/sandbox/{id}"))
    }

    fn term(&self, wanted: Duration) -> Duration {
        Duration::from_secs(60 * minutes(wanted))
    }

    fn extending(&self, handle: &Handle, term: Duration) -> Result<Call, WireError> {
        let path = format!("/sandbox/{}/ttl/{}", handle.id, minutes(term));
        Ok(self.api.post(EXTENDING, &path, Content::Nothing))
    }

    /// Moves the end of its life, and tells that it is in use, so that neither clock strikes.
    fn extend(&self, at: Reached<'_>, term: Duration) -> Result<(), WireError> {
        let Reached { wire, handle } = at;
        match wire.repeat(&self.extending(handle, term)?) {
            // Older servers have no such clock. Whether the sandbox exists is told below.
            Err(WireError::Refused { status: 404 | 405, .. }) => {}
            other => drop(other?),
        }
        let path = format!("/sandbox/{}/last-activity", handle.id);
        match wire.repeat(&self.api.post(EXTENDING, &path, Content::Nothing)) {
            // There, every call to the toolbox is activity.
            Err(WireError::Refused { status: 404 | 405, .. }) => {
                wire.repeat(&handle.inside.get(EXTENDING, "/version")).map(drop)
            }
            other => other.map(drop),
        }
    }

    fn list(&self, at: Reached<'_>, path: &str) -> Result<Vec<String>, WireError> {
        let what = "listing a directory";
        let call = at.handle.inside.get(what, &format!("/files?path={}", escaped(path)));
        let entries = items(Some(&at.wire.repeat(&call)?.json()?));
        entries.iter().take(MOST_LISTED).map(|entry| text(what, entry, "name")).collect()
    }

    fn page(&self, wire: &Wire, home: &str, next: Option<&str>) -> Result<Page, WireError> {
        let labels = escaped(&json!({ HOME_LABEL: home }).to_string());
        let more = next.map(|cursor| format!("&cursor={}", escaped(cursor)));
        let path = format!("/sandbox?labels={labels}{}", more.unwrap_or_default());
        let listed = wire.repeat(&self.api.get(LISTING, &path))?.json()?;
        // Older servers answer with the list itself.
        let mut sandboxes = items(Some(listed.get("items").unwrap_or(&listed)));
        let is_going = |sandbox: &Value| {
            let state = sandbox.get("state").and_then(Value::as_str).unwrap_or_default();
            matches!(state, "destroyed" | "destroying")
        };
        sandboxes.retain(|sandbox| !is_going(sandbox));
        let next = listed.get("nextCursor").and_then(Value::as_str).map(str::to_owned);
        Ok(Page { sandboxes, next })
    }
}
