//! OpenSandbox: lifecycle API with a key, and two services inside each sandbox.
//!
//! Output arrives line by line without line ends, so what is heard is not byte-exact. Rules are
//! read back with how they are enforced: by names alone an address goes around them.

mod process;

use std::time::Duration;

use serde_json::{Value, json};
use warrant_protocol::Isolation;

use super::adapter::{
    Adapter, Egress, Fidelity, HOME_LABEL, Handle, LISTING, Manner, NotStarted, Observed, Page,
    Reached, Running, SESSION_LABEL, Spec, Start, Told,
};
use super::answer::{escaped, id, items, same_id, text, told};
use super::call::{Call, Content, Server, file_field};
use super::lower::{host_only, names_only};
use super::settings::Account;
use super::wire::{CREATING, READING, Wire, WireError};
use crate::{Network, Refusal};

/// The port of the service that runs programs.
const EXECD_PORT: &str = "44772";
/// The port of the service that enforces rules.
const EGRESS_PORT: &str = "18080";
/// No sandbox may be asked to live shorter.
const SHORTEST_TERM: Duration = Duration::from_secs(60);
/// What a sandbox gets when memory is not limited.
const USUAL_MEMORY: u64 = 2 << 30;
const MOST_LISTED: usize = 10_000;
const DEAD: [&str; 5] = ["failed", "terminated", "terminating", "error", "stopping"];

/// Speaks to an OpenSandbox server.
#[derive(Debug)]
pub(crate) struct OpenSandbox {
    account: Account,
    api: Server,
}

impl OpenSandbox {
    pub(crate) fn new(account: Account) -> Self {
        let headers = vec![("OPEN-SANDBOX-API-KEY".to_owned(), account.key.clone())];
        let api = Server { base: format!("{}/v1", account.api), headers };
        Self { account, api }
    }

    fn rules(network: &Network) -> Value {
        match network {
            Network::DangerEverything => json!({ "defaultAction": "allow", "egress": [] }),
            Network::Allow(hosts) => {
                let rule = |host: String| json!({ "action": "allow", "target": host });
                let egress: Vec<Value> = host_only(hosts).into_iter().map(rule).collect();
                json!({ "defaultAction": "deny", "egress": egress })
            }
        }
    }

    /// Where a service of a sandbox answers and what it wants to see, as the server tells.
    fn find(&self, wire: &Wire, id: &str, service: &str) -> Result<Server, WireError> {
        let what = "finding the sandbox";
        let path = format!("/sandboxes/{id}/endpoints/{service}");
        let told = wire.repeat(&self.api.get(what, &path))?.json()?;
        let endpoint = text(what, &told, "endpoint")?;
        let endpoint = endpoint.trim_end_matches('/');
        let scheme = self.account.api.split("://").next().unwrap_or("http");
        let base = if endpoint.starts_with("http://") || endpoint.starts_with("https://") {
            endpoint.to_owned()
        } else {
            format!("{scheme}://{endpoint}")
        };
        if !base.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(WireError::Malformed { what, why: "no usable address".to_owned() });
        }
        let mut headers: Vec<(String, String)> =
            match told.get("headers").and_then(Value::as_object) {
                Some(headers) => headers
                    .iter()
                    .filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned())))
                    .collect(),
                None => Vec::new(),
            };
        // SECURITY: the key goes to the server it was given for, and nowhere else.
        if base.starts_with(&format!("{}/", self.account.api)) {
            headers.extend(self.api.headers.iter().cloned());
        }
        Ok(Server { base, headers })
    }

    /// Returns the rules as the server tells them, or as the service that enforces them does where
    /// the server has no such route.
    fn told_rules(&self, wire: &Wire, id: &str) -> Result<Value, WireError> {
        let path = format!("/sandboxes/{id}/networkpolicy");
        match wire.repeat(&self.api.get(READING, &path)) {
            Err(WireError::Refused { status: 404 | 405 | 501, .. }) => {
                let egress = self.find(wire, id, EGRESS_PORT)?;
                wire.repeat(&egress.get(READING, "/policy"))?.json()
            }
            other => other?.json(),
        }
    }

    fn egress(&self, wire: &Wire, id: &str, spec: &Spec) -> Result<Told<Egress>, WireError> {
        let told = match self.told_rules(wire, id) {
            Ok(told) => told,
            // Nobody enforces rules in this sandbox.
            Err(WireError::Refused { status: 502, .. }) => {
                let rules = json!({ "defaultAction": "allow" });
                let weakness = Some("nothing enforces rules in this sandbox".to_owned());
                let matches = spec.network == Network::DangerEverything;
                return Ok(Told::Is(Egress { rules, matches, mechanism: None, weakness }));
            }
            Err(WireError::Refused { status: 404 | 405 | 501, .. }) => return Ok(Told::Nothing),
            Err(other) => return Err(other),
        };
        let Some(policy) = told.get("policy") else { return Ok(Told::Nothing) };
        let mechanism = told.get("enforcementMode").and_then(Value::as_str).map(str::to_owned);
        let weakness = match mechanism.as_deref() {
            _ if spec.network == Network::DangerEverything => None,
            Some("dns") => Some("enforced by names alone: an address goes around it".to_owned()),
            Some(_) => None,
            None => Some("how the rules are enforced is not told".to_owned()),
        };
        let matches = is_same(policy, &Self::rules(&spec.network));
        let rules = json!({ "policy": policy, "mode": told.get("mode") });
        Ok(Told::Is(Egress { rules, matches, mechanism, weakness }))
    }

    /// Asks the server for its version; older ones have no such route.
    fn version(&self, wire: &Wire) -> Result<Told<String>, WireError> {
        let open = Server { base: self.account.api.clone(), headers: Vec::new() };
        match wire.repeat(&open.get("asking for the version", "/version")) {
            Ok(reply) => Ok(told(reply.json()?.get("version"))),
            Err(error) if error.is_missing() => Ok(Told::Nothing),
            Err(error) => Err(error),
        }
    }

    /// Reads the memory limit out of the text that the server shows to people.
    fn told_memory(&self, wire: &Wire, id: &str) -> Told<u64> {
        let path = format!("/sandboxes/{id}/diagnostics/inspect");
        let Ok(reply) = wire.call(&self.api.get("reading the limits back", &path)) else {
            return Told::Nothing;
        };
        let text = String::from_utf8_lossy(&reply.body).into_owned();
        let lines = text.lines().filter(|line| line.to_lowercase().contains("memory"));
        lines.filter_map(bytes_in).next().map_or(Told::Nothing, Told::Is)
    }
}

/// Returns the first amount of memory a line names.
fn bytes_in(line: &str) -> Option<u64> {
    let start = line.find(|c: char| c.is_ascii_digit())?;
    let rest = line.get(start..)?;
    let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
    let number: f64 = rest.get(..end)?.parse().ok()?;
    let unit = rest.get(end..)?.trim_start().to_lowercase();
    let factor = match unit {
        unit if unit.starts_with("gi") || unit.starts_with("gb") => 1 << 30,
        unit if unit.starts_with("mi") || unit.starts_with("mb") => 1 << 20,
        unit if unit.starts_with("ki") || unit.starts_with("kb") => 1 << 10,
        _ => 1,
    };
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a float cast saturates, and sizes are positive"
    )]
    let bytes = (number * factor as f64) as u64;
    (bytes > 0).then_some(bytes)
}

/// Whether two rule sets say the same, in whatever order.
fn is_same(told: &Value, wanted: &Value) -> bool {
    let rules = |policy: &Value| {
        let list = policy.get("egress").and_then(Value::as_array).cloned().unwrap_or_default();
        let pair = |rule: &Value| {
            let of = |name: &str| rule.get(name).and_then(Value::as_str).unwrap_or("?").to_owned();
            (of("action"), of("target"))
        };
        let mut pairs: Vec<_> = list.iter().map(pair).collect();
        pairs.sort();
        pairs
    };
    told.get("defaultAction") == wanted.get("defaultAction") && rules(told) == rules(wanted)
}

impl Adapter for OpenSandbox {
    fn manner(&self) -> Manner {
        Manner {
            isolation: Isolation::Opensandbox,
            image: "ubuntu",
            takes_input: false,
            fidelity: Fidelity::Lines,
            listed: ("id", "metadata"),
        }
    }

    fn account(&self) -> &Account {
        &self.account
    }

    fn lower_network(&self, network: &Network) -> Result<Value, Refusal> {
        if let Network::Allow(hosts) = network {
            names_only(hosts)?;
        }
        Ok(Self::rules(network))
    }

    fn create(&self, wire: &Wire, spec: &Spec) -> Result<Handle, WireError> {
        let what = CREATING;
        let memory = spec.memory_bytes.unwrap_or(USUAL_MEMORY) >> 20;
        let mut body = json!({
            "image": { "uri": spec.image },
            "entrypoint": ["tail", "-f", "/dev/null"],
            "timeout": spec.term.as_secs(),
            "resourceLimits": { "cpu": "1000m", "memory": format!("{}Mi", memory.max(1)) },
            "env": {},
            "metadata": spec.labels(),
        });
        if let (false, Value::Object(members)) =
            (spec.network == Network::DangerEverything, &mut body)
        {
            members.insert("networkPolicy".to_owned(), Self::rules(&spec.network));
        }
        let call = self.api.post(what, "/sandboxes", Content::Json(body));
        let created = wire.call(&call)?.json()?;
        // Where its services are, is told when it is ready.
        Ok(Handle { id: id(what, &created, "id")?, inside: Server::default() })
    }

    fn is_ready(&self, wire: &Wire, handle: &mut Handle) -> Result<bool, WireError> {
        let what = "waiting for the sandbox";
        let path = format!("/sandboxes/{}", handle.id);
        let info = wire.repeat(&self.api.get(what, &path))?.json()?;
        same_id(what, &info, ("id", &handle.id))?;
        let state = info.pointer("/status/state").and_then(Value::as_str).unwrap_or_default();
        let state = state.to_lowercase();
        if DEAD.contains(&state.as_str()) {
            return Err(WireError::Malformed { what, why: format!("its state is {state}") });
        }
        if state != "running" {
            return Ok(false);
        }
        // Its own address first; where that cannot be reached, through the server.
        for query in ["", "?use_server_proxy=true"] {
            handle.inside = self.find(wire, &handle.id, &format!("{EXECD_PORT}{query}"))?;
            match wire.call(&handle.inside.get(what, "/ping")) {
                Ok(_) => return Ok(true),
                Err(WireError::Cancelled { what }) => return Err(WireError::Cancelled { what }),
                Err(_) => {}
            }
        }
        Ok(false)
    }

    fn observe(&self, at: Reached<'_>, spec: &Spec) -> Result<Observed, WireError> {
        let Reached { wire, handle } = at;
        let info = wire.repeat(&self.api.get(READING, &format!("/sandboxes/{}", handle.id)))?;
        let info = info.json()?;
        same_id(READING, &info, ("id", &handle.id))?;
        Ok(Observed {
            version: self.version(wire)?,
            version_source: "GET /version".to_owned(),
            // What is told is the first tag of whatever runs, not what was asked for.
            image: told(info.pointer("/image/uri")),
            image_digest: Told::Nothing,
            egress: self.egress(wire, &handle.id, spec)?,
            mounts: Told::Nothing,
            memory_bytes: self.told_memory(wire, &handle.id),
            asks_memory: true,
            disk_bytes: Told::Nothing,
            cpu_milli: Told::Nothing,
            class: Told::Nothing,
            session: told(info.pointer(&format!("/metadata/{SESSION_LABEL}"))),
            source: "GET /v1/sandboxes/{id}".to_owned(),
        })
    }

    fn start(&self, at: Reached<'_>, start: &Start) -> Result<Box<dyn Running>, NotStarted> {
        Ok(Box::new(process::start(at, start)?))
    }

    fn writing(&self, handle: &Handle, path: &str, bytes: &[u8]) -> Call {
        // Permissions are octal digits, written as a decimal number.
        let metadata = json!({ "path": path, "mode": 600 }).to_string().into_bytes();
        let fields = vec![
            ("metadata".to_owned(), Some("metadata".to_owned()), "application/json", metadata),
            file_field("file", path, bytes),
        ];
        handle.inside.post("writing a file", "/files/upload", Content::Form(fields))
    }

    fn reading(&self, handle: &Handle, path: &str) -> Call {
        handle.inside.get("reading a file", &format!("/files/download?path={}", escaped(path)))
    }

    fn deleting(&self, id: &str) -> Call {
        self.api.delete("deleting the sandbox", &format!("/sandboxes/{id}"))
    }

    fn term(&self, wanted: Duration) -> Duration {
        wanted.max(SHORTEST_TERM)
    }

    fn extending(&self, handle: &Handle, term: Duration) -> Result<Call, WireError> {
        let path = format!("/sandboxes/{}/renew-expiration", handle.id);
        let until = std::time::SystemTime::now() + term;
        let since = until.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let unix_ms = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
        let what = "extending the sandbox";
        let until = warrant_protocol::Timestamp::from_unix_ms(unix_ms)
            .map_err(|error| WireError::Malformed { what, why: error.to_string() })?;
        let content = Content::Json(json!({ "expiresAt": until.to_string() }));
        Ok(self.api.post(what, &path, content))
    }

    fn list(&self, at: Reached<'_>, path: &str) -> Result<Vec<String>, WireError> {
        let what = "listing a directory";
        let path = format!("/directories/list?path={}&depth=1", escaped(path));
        let listed = at.wire.repeat(&at.handle.inside.get(what, &path))?.json()?;
        let found = ["items", "entries", "files"].iter().find_map(|name| listed.get(*name));
        let entries = items(Some(found.unwrap_or(&listed)));
        let name = |entry: &Value| {
            let path = text(what, entry, "path")?;
            Ok(path.rsplit('/').next().unwrap_or_default().to_owned())
        };
        entries.iter().take(MOST_LISTED).map(name).collect()
    }

    fn page(&self, wire: &Wire, home: &str, next: Option<&str>) -> Result<Page, WireError> {
        let label = escaped(&format!("{HOME_LABEL}={home}"));
        let page: u32 = next.and_then(|next| next.parse().ok()).unwrap_or(1);
        let path = format!("/sandboxes?metadata={label}&page={page}&pageSize=100");
        let listed = wire.repeat(&self.api.get(LISTING, &path))?.json()?;
        let more = listed.pointer("/pagination/hasNextPage").and_then(Value::as_bool);
        let next = (more == Some(true)).then(|| (page + 1).to_string());
        Ok(Page { sandboxes: items(listed.get("items")), next })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_of_memory_are_read_out_of_text() {
        assert_eq!(bytes_in("Memory limit: 256.0 MiB"), Some(256 << 20));
        assert_eq!(bytes_in("memory: 2Gi"), Some(2 << 30));
        assert_eq!(bytes_in("Memory (bytes): 268435456"), Some(256 << 20));
        assert_eq!(bytes_in("Memory: unlimited"), None);
        assert_eq!(bytes_in("Memory: 0"), None);
    }

    #[test]
    fn rules_are_the_same_in_any_order() {
        let wanted = OpenSandbox::rules(&Network::Allow(vec!["b".into(), "a".into()]));
        let told = json!({"defaultAction": "deny", "egress": [
            {"action": "allow", "target": "b"}, {"action": "allow", "target": "a"}]});
        assert!(is_same(&told, &wanted));
        let open = json!({"defaultAction": "allow", "egress": told["egress"]});
        assert!(!is_same(&open, &wanted));
        let more = json!({"defaultAction": "deny", "egress": [{"action": "allow", "target": "*"}]});
        assert!(!is_same(&more, &wanted));
    }
}
