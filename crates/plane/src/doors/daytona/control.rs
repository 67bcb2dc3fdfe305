//! Daytona's control API: create, describe, stop, start, extend, label, destroy.

mod lists;

use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use serde_json::{Map, Value, json};

pub(crate) use lists::{list, paginated};

use super::{DAEMON_VERSION, Guest, HOME, USER, Visit, error, invalid};
use crate::doors::reply::{self, boolean, text, texts, unknown_member, whole};
use crate::doors::{AtEnd, Changed, DoorName, EndsCommands, Hall, Life, Reach, Sandbox, Wanted};

/// Where older SDKs look for the toolbox.
const TOOLBOX_PORT: u16 = 2280;
const MINUTE_MS: u64 = 60_000;
const GIB: u64 = 1024 * 1024 * 1024;
/// After how many idle minutes Daytona stops a sandbox when nobody says.
const DEFAULT_AUTO_STOP_MIN: u64 = 15;

pub(crate) async fn config(headers: HeaderMap) -> Response {
    let body = json!({
        "version": DAEMON_VERSION,
        "proxyToolboxUrl": toolbox_base(&headers),
        "proxyTemplateUrl": "",
        "defaultSnapshot": "",
        "environment": "warrant",
        "maintananceMode": false,
        // Nothing of this is here; older SDKs for Python read no answer without it.
        "oidc": { "issuer": "", "clientId": "", "audience": "", "provider": "" },
        "linkedAccountsEnabled": false,
        "announcements": {},
        "dashboardUrl": "",
        "maxAutoArchiveInterval": 0,
        "analyticsApiUrl": null,
    });
    reply::json(StatusCode::OK, &body)
}

pub(crate) async fn create(
    State(hall): State<Hall>,
    Guest(guest): Guest,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let wish = reply::object(&body).and_then(|body| Ok((wanted(&body)?, deletes_after(&body)?)));
    let (wanted, deletes_after) = match wish {
        Ok(wish) => wish,
        Err(message) => return invalid(&message),
    };
    let created = hall.ask(move |workshop| {
        let sandbox = workshop.create(&guest, wanted)?;
        match deletes_after {
            None => Ok(sandbox),
            Some(_) => {
                let changed = workshop.set_paused_end(&guest, &sandbox.id, deletes_after)?;
                Ok(changed.sandbox)
            }
        }
    });
    match created.await {
        Ok(sandbox) => answer(&headers, &sandbox),
        Err(refusal) => error(&refusal),
    }
}

pub(crate) async fn describe(Visit((_, sandbox)): Visit, headers: HeaderMap) -> Response {
    answer(&headers, &sandbox)
}

pub(crate) async fn destroy(
    State(hall): State<Hall>,
    Visit((guest, sandbox)): Visit,
    headers: HeaderMap,
) -> Response {
    let mut body = described(&headers, &sandbox);
    if let Some(body) = body.as_object_mut() {
        body.insert("state".into(), json!("destroyed"));
        body.insert("desiredState".into(), json!("destroyed"));
    }
    match hall.ask(move |workshop| workshop.destroy(&guest, &sandbox.id)).await {
        Ok(run) => reply::with_receipt(reply::json(StatusCode::OK, &body), Some(&run)),
        Err(refusal) => error(&refusal),
    }
}

pub(crate) async fn toolbox_url(_: Visit, headers: HeaderMap) -> Response {
    reply::json(StatusCode::OK, &json!({ "url": toolbox_base(&headers) }))
}

/// Tells older SDKs where the toolbox is, which they ask for as one of the sandbox's ports.
pub(crate) async fn preview(
    Visit((_, sandbox)): Visit,
    headers: HeaderMap,
    Path((_, port)): Path<(String, u16)>,
) -> Response {
    if port != TOOLBOX_PORT {
        return invalid("no port of a sandbox can be reached from outside");
    }
    let url = format!("{}/{}", toolbox_base(&headers), sandbox.id);
    // What opens it is the token of the door, which is sent besides.
    let body = json!({ "sandboxId": sandbox.id, "url": url, "token": "" });
    reply::json(StatusCode::OK, &body)
}

/// Ends every command and keeps the files.
pub(crate) async fn stop(
    State(hall): State<Hall>,
    Visit((guest, sandbox)): Visit,
    headers: HeaderMap,
) -> Response {
    let ends = EndsCommands::Yes;
    match hall.ask(move |workshop| workshop.pause(&guest, &sandbox.id, ends)).await {
        Ok(changed) => changed_answer(&headers, &changed),
        Err(refusal) => error(&refusal),
    }
}

pub(crate) async fn start(
    State(hall): State<Hall>,
    Visit((guest, sandbox)): Visit,
    headers: HeaderMap,
) -> Response {
    match hall.ask(move |workshop| workshop.resume(&guest, &sandbox.id)).await {
        Ok(changed) => changed_answer(&headers, &changed),
        Err(refusal) => error(&refusal),
    }
}

pub(crate) async fn set_idle(
    State(hall): State<Hall>,
    Visit((guest, sandbox)): Visit,
    headers: HeaderMap,
    Path((_, minutes)): Path<(String, u64)>,
) -> Response {
    let ms = (minutes > 0).then(|| minutes.saturating_mul(MINUTE_MS));
    match hall.ask(move |workshop| workshop.set_idle(&guest, &sandbox.id, ms)).await {
        Ok(changed) => changed_answer(&headers, &changed),
        Err(refusal) => error(&refusal),
    }
}

/// Ends a sandbox that was stopped for so long; negative means with its time.
pub(crate) async fn set_paused_end(
    State(hall): State<Hall>,
    Visit((guest, sandbox)): Visit,
    headers: HeaderMap,
    Path((_, minutes)): Path<(String, i64)>,
) -> Response {
    let ms = minutes_or_never(minutes);
    match hall.ask(move |workshop| workshop.set_paused_end(&guest, &sandbox.id, ms)).await {
        Ok(changed) => changed_answer(&headers, &changed),
        Err(refusal) => error(&refusal),
    }
}

/// Returns after how long a stopped sandbox is to end, in milliseconds.
fn deletes_after(body: &Map<String, Value>) -> Result<Option<u64>, String> {
    match body.get("autoDeleteInterval") {
        None | Some(Value::Null) => Ok(None),
        Some(value) => match value.as_i64() {
            Some(minutes) => Ok(minutes_or_never(minutes)),
            None => Err("autoDeleteInterval must be a whole number".to_owned()),
        },
    }
}

fn minutes_or_never(minutes: i64) -> Option<u64> {
    u64::try_from(minutes).ok().map(|minutes| minutes.saturating_mul(MINUTE_MS))
}

pub(crate) async fn set_ttl(
    State(hall): State<Hall>,
    Visit((guest, sandbox)): Visit,
    headers: HeaderMap,
    Path((_, minutes)): Path<(String, u64)>,
) -> Response {
    let ms = minutes.saturating_mul(MINUTE_MS);
    match hall.ask(move |workshop| workshop.extend(&guest, &sandbox.id, ms)).await {
        Ok(changed) => changed_answer(&headers, &changed),
        Err(refusal) => error(&refusal),
    }
}

pub(crate) async fn set_labels(
    State(hall): State<Hall>,
    Visit((guest, sandbox)): Visit,
    body: Bytes,
) -> Response {
    let labels = match reply::object(&body).and_then(|body| texts(&body, "labels")) {
        Ok(labels) => labels,
        Err(message) => return invalid(&message),
    };
    let answer = json!({ "labels": labels });
    match hall.ask(move |workshop| workshop.set_labels(&guest, &sandbox.id, labels)).await {
        Ok(changed) => {
            reply::with_receipt(reply::json(StatusCode::OK, &answer), Some(&changed.run))
        }
        Err(refusal) => error(&refusal),
    }
}

pub(crate) async fn touch(State(hall): State<Hall>, Visit((guest, sandbox)): Visit) -> Response {
    match hall.workshop.processes(&guest, &sandbox.id) {
        Ok(_) => reply::empty(StatusCode::NO_CONTENT),
        Err(refusal) => error(&refusal),
    }
}

pub(crate) async fn home_directory(_: Visit) -> Response {
    reply::json(StatusCode::OK, &json!({ "dir": HOME }))
}

pub(crate) async fn version(_: Visit) -> Response {
    reply::json(StatusCode::OK, &json!({ "version": DAEMON_VERSION }))
}

/// Reads a create body; what cannot be enforced is refused by name.
fn wanted(body: &Map<String, Value>) -> Result<Wanted, String> {
    let known = [
        "name",
        "user",
        "env",
        "labels",
        "public",
        "cpu",
        "gpu",
        "memory",
        "disk",
        "kvm",
        "spot",
        "autoStopInterval",
        "autoArchiveInterval",
        "autoDeleteInterval",
        "ttlMinutes",
        "volumes",
        "networkBlockAll",
        "networkAllowList",
        "domainAllowList",
        "secrets",
    ];
    if let Some(name) = unknown_member(body, &known) {
        return Err(format!("{name} cannot be enforced here"));
    }
    for name in ["public", "kvm", "spot"] {
        if boolean(body, name)? == Some(true) {
            return Err(format!("{name} cannot be had here"));
        }
    }
    for name in ["gpu", "autoArchiveInterval"] {
        if whole(body, name)?.unwrap_or(0) > 0 {
            return Err(format!("{name} cannot be enforced here"));
        }
    }
    for name in ["volumes", "secrets"] {
        let is_set = body.get(name).and_then(Value::as_array).is_some_and(|all| !all.is_empty());
        if is_set {
            return Err(format!("{name} cannot be enforced here"));
        }
    }
    match text(body, "user")?.as_deref() {
        None | Some(USER) => {}
        Some(other) => return Err(format!("there is no user `{other}` here, only `{USER}`")),
    }
    let idle = whole(body, "autoStopInterval")?.unwrap_or(DEFAULT_AUTO_STOP_MIN);
    let ttl = whole(body, "ttlMinutes")?.filter(|minutes| *minutes > 0);
    let gib = |name: &str| amount(body, (name, GIB));
    Ok(Wanted {
        door: DoorName::Daytona,
        template: "default".to_owned(),
        name: text(body, "name")?,
        timeout_ms: ttl.map(|minutes| minutes.saturating_mul(MINUTE_MS)),
        at_end: AtEnd::Ends,
        idle_ms: (idle > 0).then(|| idle.saturating_mul(MINUTE_MS)),
        env: texts(body, "env")?,
        labels: texts(body, "labels")?,
        reach: reach(body)?,
        memory_bytes: gib("memory")?,
        cpu_milli: amount(body, ("cpu", 1000))?,
        disk_bytes: gib("disk")?,
        home: HOME.to_owned(),
        user: USER.to_owned(),
    })
}

pub(crate) async fn set_network(
    State(hall): State<Hall>,
    Visit((guest, sandbox)): Visit,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let known = ["networkBlockAll", "networkAllowList", "domainAllowList"];
    let wish = reply::object(&body).and_then(|body| match unknown_member(&body, &known) {
        Some(name) => Err(format!("{name} cannot be enforced here")),
        None => changed_reach(&body, &sandbox.hosts),
    });
    let reach = match wish {
        Ok(reach) => reach,
        Err(message) => return invalid(&message),
    };
    match hall.ask(move |workshop| workshop.set_reach(&guest, &sandbox.id, reach)).await {
        Ok(changed) => changed_answer(&headers, &changed),
        Err(refusal) => error(&refusal),
    }
}

fn reach(body: &Map<String, Value>) -> Result<Reach, String> {
    if boolean(body, "networkBlockAll")? == Some(true) {
        return Ok(Reach::Nothing);
    }
    let mut hosts = Vec::new();
    for name in ["networkAllowList", "domainAllowList"] {
        let listed = text(body, name)?.unwrap_or_default();
        let listed = listed.split(',').map(str::trim).filter(|host| !host.is_empty());
        hosts.extend(listed.map(str::to_owned));
    }
    Ok(if hosts.is_empty() { Reach::AsPolicy } else { Reach::Hosts(hosts) })
}

/// Returns a sandbox that was changed, and names the receipt of the change.
fn changed_answer(headers: &HeaderMap, changed: &Changed) -> Response {
    reply::with_receipt(answer(headers, &changed.sandbox), Some(&changed.run))
}

/// Returns what a sandbox is to reach that reaches these hosts now.
///
/// SECURITY: a change that says nothing of them must not open what was closed.
fn changed_reach(body: &Map<String, Value>, now: &[String]) -> Result<Reach, String> {
    let is_said = |name: &str| body.get(name).is_some_and(|value| !value.is_null());
    if !["networkBlockAll", "networkAllowList", "domainAllowList"].into_iter().any(is_said) {
        return Err("nothing is said of the network".to_owned());
    }
    match reach(body)? {
        Reach::AsPolicy if !is_said("networkBlockAll") && now.is_empty() => Ok(Reach::Nothing),
        reach => Ok(reach),
    }
}

/// Reads how much of something there is to be, which cannot be nothing.
fn amount(body: &Map<String, Value>, (name, unit): (&str, u64)) -> Result<Option<u64>, String> {
    match whole(body, name)? {
        Some(0) => Err(format!("{name} must be at least 1")),
        count => Ok(count.map(|count| count.saturating_mul(unit))),
    }
}

fn answer(headers: &HeaderMap, sandbox: &Sandbox) -> Response {
    let response = reply::json(StatusCode::OK, &described(headers, sandbox));
    reply::with_receipt(response, Some(&sandbox.run))
}

const fn state_of(sandbox: &Sandbox) -> &'static str {
    match sandbox.life {
        Life::Running => "started",
        Life::Paused => "stopped",
    }
}

fn name_of(sandbox: &Sandbox) -> &str {
    sandbox.wanted.name.as_ref().unwrap_or(&sandbox.id)
}

fn described(headers: &HeaderMap, sandbox: &Sandbox) -> Value {
    let wanted = &sandbox.wanted;
    let state = state_of(sandbox);
    let gib = |bytes: Option<u64>| bytes.unwrap_or(0).div_ceil(GIB);
    let deletes_after =
        sandbox.paused_end_ms.map_or(-1, |ms| i64::try_from(ms / MINUTE_MS).unwrap_or(i64::MAX));
    let (addresses, names): (Vec<&str>, Vec<&str>) =
        sandbox.hosts.iter().map(String::as_str).partition(|host| is_address(host));
    json!({
        "id": sandbox.id,
        "organizationId": "warrant",
        "name": name_of(sandbox),
        "snapshot": wanted.template,
        "user": USER,
        // Values of variables are never told again.
        "env": {},
        "labels": wanted.labels,
        "public": false,
        "networkBlockAll": sandbox.hosts.is_empty(),
        "networkAllowList": addresses.join(","),
        "domainAllowList": names.join(","),
        "target": "local",
        "cpu": wanted.cpu_milli.map_or(1, |milli| milli.div_ceil(1000)),
        "gpu": 0,
        "memory": gib(sandbox.memory_bytes),
        "disk": gib(sandbox.disk_bytes),
        "state": state,
        "desiredState": state,
        "errorReason": null,
        "recoverable": false,
        "backupState": "None",
        "backupCreatedAt": null,
        "autoStopInterval": wanted.idle_ms.unwrap_or(0) / MINUTE_MS,
        "autoPauseInterval": 0,
        "autoArchiveInterval": 0,
        "autoDeleteInterval": deletes_after,
        "autoDestroyAt": sandbox.ends_at.to_string(),
        "volumes": [],
        "kvm": false,
        "sandboxClass": "container",
        "createdAt": sandbox.created_at.to_string(),
        "updatedAt": sandbox.used_at.to_string(),
        "lastActivityAt": sandbox.used_at.to_string(),
        "daemonVersion": DAEMON_VERSION,
        "toolboxProxyUrl": toolbox_base(headers),
        "receipt": sandbox.run.as_str(),
    })
}

/// Whether a host is an address or a range of them, which Daytona lists apart from names.
fn is_address(host: &str) -> bool {
    let address = host.split('/').next().unwrap_or(host);
    address.parse::<std::net::IpAddr>().is_ok()
}

/// Returns where this very client reaches the toolboxes: on the host it called.
fn toolbox_base(headers: &HeaderMap) -> String {
    let scheme = reply::header(headers, "x-forwarded-proto").filter(|scheme| *scheme == "https");
    let host = reply::header(headers, "host").unwrap_or("localhost");
    format!("{}://{host}/toolbox", scheme.unwrap_or("http"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn a_change_of_the_network_opens_nothing_that_it_does_not_name() {
        let (closed, open): (&[String], &[String]) = (&[], &["a.example".to_owned()]);
        let read = |body: &Value, now: &[String]| changed_reach(body.as_object().unwrap(), now);
        for nothing in [json!({}), json!({ "networkBlockAll": null, "domainAllowList": null })] {
            assert!(read(&nothing, closed).is_err());
            assert!(read(&nothing, open).is_err());
        }
        let emptied = json!({ "networkAllowList": "", "domainAllowList": " , " });
        assert_eq!(read(&emptied, closed), Ok(Reach::Nothing));
        assert_eq!(read(&emptied, open), Ok(Reach::AsPolicy));
        assert_eq!(read(&json!({ "networkBlockAll": false }), closed), Ok(Reach::AsPolicy));
        let listed = json!({ "domainAllowList": "a.example, b.example" });
        let hosts = Reach::Hosts(vec!["a.example".to_owned(), "b.example".to_owned()]);
        assert_eq!(read(&listed, closed), Ok(hosts));
        let both = json!({ "networkBlockAll": true, "domainAllowList": "a.example" });
        assert_eq!(read(&both, open), Ok(Reach::Nothing), "what closes goes before");
    }

    #[test]
    fn a_sandbox_without_any_of_a_resource_is_refused() {
        for name in ["cpu", "memory", "disk"] {
            let read = |count: u64| wanted(json!({ name: count }).as_object().unwrap());
            assert!(read(0).is_err_and(|message| message.contains(name)));
            assert!(read(1).is_ok(), "{name}");
        }
    }
}
