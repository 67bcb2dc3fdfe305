//! E2B's control API: create, list, describe, extend, pause, connect, network, destroy.

use std::collections::BTreeMap;

use axum::body::Bytes;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::Response;
use serde_json::{Map, Value, json};
use warrant_protocol::request::ActorRef;

use super::{ENVD_VERSION, HOME, USER, api_error, api_fault};
use crate::doors::page::{Order, Page};
use crate::doors::reply::{self, boolean, list as texts_of, text, texts, unknown_member, whole};
use crate::doors::{
    AtEnd, Changed, DoorName, EndsCommands, Hall, Life, Reach, Sandbox, Wakes, Wanted, Workshop,
    WorkshopError,
};

/// How long a sandbox lives when the client does not say, in seconds.
const DEFAULT_TIMEOUT_S: u64 = 300;
/// The one template there is.
const TEMPLATE: &str = "base";
/// More sandboxes than this are not told at once.
const MOST_LISTED: usize = 100;
/// Names what comes after a page.
const NEXT_HEADER: HeaderName = HeaderName::from_static("x-next-token");
/// How E2B writes "everything".
const ALL_TRAFFIC: [&str; 3] = ["0.0.0.0/0", "::/0", "*"];

/// Returns who calls, or the answer that the token is not good.
fn guest(hall: &Hall, headers: &HeaderMap) -> Result<ActorRef, Response> {
    let token = reply::header(headers, "x-api-key").or_else(|| reply::bearer(headers));
    token.and_then(|token| hall.admit(token)).ok_or_else(|| {
        api_fault(StatusCode::UNAUTHORIZED, "the API key is missing or not good here")
    })
}

extractor! {
    /// Who calls.
    Guest(ActorRef) by guest
}

pub(crate) async fn create(State(hall): State<Hall>, Guest(guest): Guest, body: Bytes) -> Response {
    let wanted = match reply::object(&body).and_then(|body| wanted(&body)) {
        Ok(wanted) => wanted,
        Err(message) => return api_fault(StatusCode::BAD_REQUEST, &message),
    };
    match hall.ask(move |workshop| workshop.create(&guest, wanted)).await {
        Ok(sandbox) => created(StatusCode::CREATED, &sandbox),
        Err(error) => api_error(&error),
    }
}

pub(crate) async fn list(
    State(hall): State<Hall>,
    Guest(guest): Guest,
    Query(query): Query<BTreeMap<String, String>>,
) -> Response {
    let filter = match Filter::read(&query) {
        Ok(filter) => filter,
        Err(message) => return api_fault(StatusCode::BAD_REQUEST, &message),
    };
    let mut all = hall.workshop.list(&guest, DoorName::E2b);
    all.retain(|sandbox| filter.fits(sandbox));
    // The newest come first.
    all.reverse();
    let page = Page { limit: filter.limit, after: filter.after.as_deref(), order: Order::Newest };
    let (rows, next) = page.of(&all);
    let rows: Vec<Value> = rows.into_iter().map(described).collect();
    let mut response = reply::json(StatusCode::OK, &Value::Array(rows));
    if let Some(next) = next.and_then(|next| HeaderValue::from_str(&next).ok()) {
        response.headers_mut().insert(NEXT_HEADER, next);
    }
    response
}

/// Which sandboxes a list is about.
struct Filter {
    metadata: Vec<(String, String)>,
    states: Vec<String>,
    limit: usize,
    after: Option<String>,
}

impl Filter {
    fn read(query: &BTreeMap<String, String>) -> Result<Self, String> {
        let known = ["metadata", "state", "limit", "nextToken"];
        if let Some(name) = query.keys().find(|name| !known.contains(&name.as_str())) {
            return Err(format!("{name} is not served here"));
        }
        let metadata = query.get("metadata").filter(|text| !text.is_empty());
        let metadata = metadata.map_or(Ok(Vec::new()), |text| metadata_filter(text))?;
        let states = query.get("state").filter(|text| !text.is_empty());
        let states: Vec<String> =
            states.map(|text| text.split(',').map(str::to_owned).collect()).unwrap_or_default();
        if states.iter().any(|state| !["running", "paused"].contains(&state.as_str())) {
            return Err("state must be running or paused".to_owned());
        }
        let limit = match query.get("limit").map(|text| text.parse::<usize>()) {
            None => MOST_LISTED,
            Some(Ok(limit)) if (1..=MOST_LISTED).contains(&limit) => limit,
            Some(_) => return Err(format!("limit must be 1 to {MOST_LISTED}")),
        };
        let after = query.get("nextToken").filter(|text| !text.is_empty()).cloned();
        Ok(Self { metadata, states, limit, after })
    }

    fn fits(&self, sandbox: &Sandbox) -> bool {
        let labels = &sandbox.wanted.labels;
        self.metadata.iter().all(|(name, value)| labels.get(name) == Some(value))
            && (self.states.is_empty() || self.states.iter().any(|name| name == state(sandbox)))
    }
}

pub(crate) async fn describe(
    State(hall): State<Hall>,
    Guest(guest): Guest,
    Path(id): Path<String>,
) -> Response {
    match hall.find(&guest, &id) {
        Ok(sandbox) => reply::with_receipt(
            reply::json(StatusCode::OK, &described(&sandbox)),
            Some(&sandbox.run),
        ),
        Err(error) => not_found(&id, &error),
    }
}

pub(crate) async fn destroy(
    State(hall): State<Hall>,
    Guest(guest): Guest,
    Path(id): Path<String>,
) -> Response {
    let name = id.clone();
    match on(&hall, (guest, id), |workshop, guest, id| workshop.destroy(guest, id)).await {
        Ok(run) => reply::with_receipt(reply::empty(StatusCode::NO_CONTENT), Some(&run)),
        Err(error) => not_found(&name, &error),
    }
}

pub(crate) async fn set_timeout(
    state: State<Hall>,
    guest: Guest,
    path: Path<String>,
    body: Bytes,
) -> Response {
    move_end(state, guest, path, (body, "timeout")).await
}

pub(crate) async fn refresh(
    state: State<Hall>,
    guest: Guest,
    path: Path<String>,
    body: Bytes,
) -> Response {
    move_end(state, guest, path, (body, "duration")).await
}

async fn move_end(
    State(hall): State<Hall>,
    Guest(guest): Guest,
    Path(id): Path<String>,
    (body, member): (Bytes, &'static str),
) -> Response {
    let seconds = reply::object(&body).and_then(|body| whole(&body, member));
    let seconds = match seconds {
        Ok(seconds) => seconds.unwrap_or(DEFAULT_TIMEOUT_S),
        Err(message) => return api_fault(StatusCode::BAD_REQUEST, &message),
    };
    let name = id.clone();
    let ms = seconds.saturating_mul(1000);
    match on(&hall, (guest, id), move |workshop, guest, id| workshop.extend(guest, id, ms)).await {
        Ok(changed) => done(&changed),
        Err(error) => not_found(&name, &error),
    }
}

/// Does something to a sandbox that this door leads into.
///
/// SECURITY: a sandbox of the HELM door is changed and ended by its own calls alone; what others
/// did would be no record of its session.
async fn on<T: Send + 'static>(
    hall: &Hall,
    (guest, id): (ActorRef, String),
    work: impl FnOnce(&dyn Workshop, &ActorRef, &str) -> Result<T, WorkshopError> + Send + 'static,
) -> Result<T, WorkshopError> {
    hall.find(&guest, &id)?;
    hall.ask(move |workshop| work(workshop, &guest, &id)).await
}

/// Says that a change was made.
fn done(changed: &Changed) -> Response {
    reply::with_receipt(reply::empty(StatusCode::NO_CONTENT), Some(&changed.run))
}

pub(crate) async fn connect(
    State(hall): State<Hall>,
    Guest(guest): Guest,
    Path(id): Path<String>,
    body: Bytes,
) -> Response {
    let wish = reply::object(&body).and_then(|body| {
        let known = ["timeout", "memory", "autoPause"];
        match unknown_member(&body, &known) {
            Some(name) => Err(format!("{name} is not served here")),
            None => Ok((whole(&body, "timeout")?, boolean(&body, "autoPause")? == Some(true))),
        }
    });
    let (seconds, pauses) = match wish {
        Ok(wish) => wish,
        Err(message) => return api_fault(StatusCode::BAD_REQUEST, &message),
    };
    let name = id.clone();
    match hall.find(&guest, &id) {
        Ok(sandbox) if pauses && sandbox.wanted.at_end == AtEnd::Ends => {
            let text = "autoPause cannot be changed here: say it when creating";
            return api_fault(StatusCode::BAD_REQUEST, text);
        }
        Ok(_) => {}
        Err(error) => return not_found(&name, &error),
    }
    let joined = hall.ask(move |workshop| {
        let joined = workshop.resume(&guest, &id)?;
        let Some(ms) = seconds.map(|seconds| seconds.saturating_mul(1000)) else {
            return Ok(joined);
        };
        // Joining only ever moves the end away.
        let now = crate::random::now().map_err(WorkshopError::of_error)?;
        if now.plus_ms(ms) <= joined.sandbox.ends_at {
            return Ok(joined);
        }
        workshop.extend(&guest, &id, ms)
    });
    match joined.await {
        Ok(Changed { sandbox, run }) => {
            reply::with_receipt(created(StatusCode::OK, &sandbox), Some(&run))
        }
        Err(error) => not_found(&name, &error),
    }
}

pub(crate) async fn pause(
    State(hall): State<Hall>,
    Guest(guest): Guest,
    Path(id): Path<String>,
    body: Bytes,
) -> Response {
    // Without memory, commands may be ended; with it, none may run, since it cannot be kept.
    let keeps_memory = reply::object(&body).and_then(|body| boolean(&body, "memory"));
    let ends = match keeps_memory {
        Ok(Some(false)) => EndsCommands::Yes,
        Ok(_) => EndsCommands::No,
        Err(message) => return api_fault(StatusCode::BAD_REQUEST, &message),
    };
    let name = id.clone();
    match on(&hall, (guest, id), move |workshop, guest, id| workshop.pause(guest, id, ends)).await {
        Ok(changed) => done(&changed),
        Err(error) => not_found(&name, &error),
    }
}

pub(crate) async fn set_network(
    State(hall): State<Hall>,
    Guest(guest): Guest,
    Path(id): Path<String>,
    body: Bytes,
) -> Response {
    let wish = reply::object(&body).and_then(|mut body| {
        let internet = boolean(&body, "allow_internet_access")?;
        body.remove("allow_internet_access");
        reach(internet, Some(&body))
    });
    let reach = match wish {
        Ok(reach) => reach,
        Err(message) => return api_fault(StatusCode::BAD_REQUEST, &message),
    };
    let name = id.clone();
    let set = move |workshop: &dyn Workshop, guest: &ActorRef, id: &str| {
        workshop.set_reach(guest, id, reach)
    };
    match on(&hall, (guest, id), set).await {
        Ok(changed) => done(&changed),
        Err(error) => not_found(&name, &error),
    }
}

pub(crate) async fn unserved(Path((_, rest)): Path<(String, String)>) -> Response {
    api_fault(StatusCode::NOT_IMPLEMENTED, &format!("{rest} is not served here"))
}

pub(crate) async fn unserved_any() -> Response {
    api_fault(StatusCode::NOT_FOUND, "this call is not served here")
}

/// Reads a create body; what cannot be enforced is refused by name.
fn wanted(body: &Map<String, Value>) -> Result<Wanted, String> {
    let known = [
        "templateID",
        "timeout",
        "metadata",
        "envVars",
        "allow_internet_access",
        "network",
        "secure",
        "autoPause",
        "autoPauseMemory",
        "autoResume",
    ];
    // What is empty asks for nothing.
    let mut asked = body.clone();
    asked.retain(|_, value| match value {
        Value::Array(items) => !items.is_empty(),
        Value::Object(members) => !members.is_empty(),
        _ => true,
    });
    if let Some(name) = unknown_member(&asked, &known) {
        return Err(format!("{name} cannot be enforced here"));
    }
    let template = text(body, "templateID")?.unwrap_or_else(|| TEMPLATE.to_owned());
    if template != TEMPLATE {
        return Err(format!("template '{template}' not found: only '{TEMPLATE}' is served here"));
    }
    let network = match body.get("network") {
        None | Some(Value::Null) => None,
        Some(Value::Object(network)) => Some(network),
        Some(_) => return Err("network must be an object".to_owned()),
    };
    let seconds = whole(body, "timeout")?.unwrap_or(DEFAULT_TIMEOUT_S);
    Ok(Wanted {
        door: DoorName::E2b,
        template,
        name: None,
        timeout_ms: Some(seconds.saturating_mul(1000)),
        at_end: at_end(body)?,
        idle_ms: None,
        env: texts(body, "envVars")?,
        labels: texts(body, "metadata")?,
        reach: reach(boolean(body, "allow_internet_access")?, network)?,
        memory_bytes: None,
        cpu_milli: None,
        disk_bytes: None,
        home: HOME.to_owned(),
        user: USER.to_owned(),
    })
}

fn lifecycle(at_end: AtEnd) -> Value {
    let pauses = at_end != AtEnd::Ends;
    let wakes = matches!(at_end, AtEnd::Pauses(_, Wakes::ByCalls));
    json!({ "onTimeout": if pauses { "pause" } else { "kill" }, "autoResume": wakes })
}

/// Reads what becomes of a sandbox at its timeout. Memory is not saved: with it, a pause waits for
/// the commands that run, and without it they are ended.
fn at_end(body: &Map<String, Value>) -> Result<AtEnd, String> {
    let resumes = match body.get("autoResume") {
        None | Some(Value::Null) => None,
        Some(Value::Object(resume)) => boolean(resume, "enabled")?,
        Some(_) => return Err("autoResume must be an object".to_owned()),
    };
    if boolean(body, "autoPause")? != Some(true) {
        return match resumes {
            Some(true) => Err("autoResume needs autoPause".to_owned()),
            _ => Ok(AtEnd::Ends),
        };
    }
    let ends = match boolean(body, "autoPauseMemory")? {
        Some(false) => EndsCommands::Yes,
        _ => EndsCommands::No,
    };
    let wakes = if resumes == Some(true) { Wakes::ByCalls } else { Wakes::WhenResumed };
    Ok(AtEnd::Pauses(ends, wakes))
}

/// Reads network settings. `allow_internet_access: true` is E2B's own default and asks for no
/// more than policy lists; what is reached is told in the description.
fn reach(internet: Option<bool>, network: Option<&Map<String, Value>>) -> Result<Reach, String> {
    let none = Map::new();
    let network = network.unwrap_or(&none);
    let known = ["allowOut", "denyOut", "allowPublicTraffic"];
    if let Some(name) = unknown_member(network, &known) {
        return Err(format!("network.{name} cannot be enforced here"));
    }
    if boolean(network, "allowPublicTraffic")? == Some(true) {
        return Err("network.allowPublicTraffic cannot be had here: no port is public".to_owned());
    }
    let allowed = texts_of(network, "allowOut")?.unwrap_or_default();
    let denied = texts_of(network, "denyOut")?.unwrap_or_default();
    let denies_all = denied.iter().any(|entry| ALL_TRAFFIC.contains(&entry.as_str()));
    if let (false, Some(entry)) = (denies_all, denied.first()) {
        return Err(format!(
            "network.denyOut `{entry}` cannot be enforced by itself: deny 0.0.0.0/0 and allow by name"
        ));
    }
    if allowed.iter().any(|entry| ALL_TRAFFIC.contains(&entry.as_str())) {
        return Err("network.allowOut of everything is not granted here: name hosts".to_owned());
    }
    Ok(match (allowed.is_empty(), denies_all || internet == Some(false)) {
        (false, _) => Reach::Hosts(allowed),
        (true, true) => Reach::Nothing,
        (true, false) => Reach::AsPolicy,
    })
}

/// Reads `k=v&k=v` whose parts were encoded, and which was encoded as a whole once more.
fn metadata_filter(text: &str) -> Result<Vec<(String, String)>, String> {
    let text = reply::decoded(text);
    let pair = |pair: &str| {
        let (name, value) = pair.split_once('=').ok_or("metadata must be pairs of name=value")?;
        Ok((reply::decoded(name), reply::decoded(value)))
    };
    text.split('&').map(pair).collect()
}

/// Returns how many processors commands have: nothing here asks for fewer than there are.
pub(crate) fn cpu_count() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

fn created(status: StatusCode, sandbox: &Sandbox) -> Response {
    let body = json!({
        "templateID": sandbox.wanted.template,
        "sandboxID": sandbox.id,
        "clientID": "warrant",
        "alias": sandbox.wanted.template,
        "envdVersion": ENVD_VERSION,
        "envdAccessToken": sandbox.access_token,
        "trafficAccessToken": null,
        "domain": null,
    });
    reply::with_receipt(reply::json(status, &body), Some(&sandbox.run))
}

fn described(sandbox: &Sandbox) -> Value {
    json!({
        "templateID": sandbox.wanted.template,
        "alias": sandbox.wanted.template,
        "sandboxID": sandbox.id,
        "clientID": "warrant",
        "startedAt": sandbox.created_at.to_string(),
        "endAt": sandbox.ends_at.to_string(),
        "envdVersion": ENVD_VERSION,
        "cpuCount": cpu_count(),
        "memoryMB": sandbox.memory_bytes.unwrap_or(0) / (1024 * 1024),
        "diskSizeMB": sandbox.disk_bytes.unwrap_or(0) / (1024 * 1024),
        "metadata": sandbox.wanted.labels,
        "state": state(sandbox),
        // The whole internet is never reached from here; the hosts that are, are listed.
        "allowInternetAccess": false,
        "network": {
            "allowOut": sandbox.hosts,
            "denyOut": ["0.0.0.0/0"],
            "allowPublicTraffic": false,
        },
        "lifecycle": lifecycle(sandbox.wanted.at_end),
        "volumeMounts": [],
    })
}

const fn state(sandbox: &Sandbox) -> &'static str {
    match sandbox.life {
        Life::Running => "running",
        Life::Paused => "paused",
    }
}

pub(crate) fn not_found(id: &str, error: &WorkshopError) -> Response {
    match error {
        WorkshopError::NoSandbox => {
            api_fault(StatusCode::NOT_FOUND, &format!("sandbox \"{id}\" doesn't exist"))
        }
        other => api_error(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_setting_hides_no_other_one() {
        let create = |body: Value| wanted(body.as_object().unwrap()).map(|_| ());
        assert_eq!(create(json!({ "templateID": "base", "mcp": {}, "volumeMounts": [] })), Ok(()));
        let hidden = create(json!({ "mcp": {}, "volumeMounts": [{ "name": "disk" }] }));
        assert_eq!(hidden.unwrap_err(), "volumeMounts cannot be enforced here");
    }

    #[track_caller]
    fn check(body: Value, expected: Result<AtEnd, &str>) {
        let Value::Object(body) = body else { panic!("{body} is no object") };
        assert_eq!(at_end(&body), expected.map_err(str::to_owned));
    }

    #[test]
    fn what_becomes_of_a_sandbox_at_its_timeout_is_read_or_refused() {
        let pauses = |ends, wakes| Ok(AtEnd::Pauses(ends, wakes));
        check(json!({}), Ok(AtEnd::Ends));
        check(json!({ "autoPause": false, "autoResume": { "enabled": false } }), Ok(AtEnd::Ends));
        check(json!({ "autoPause": true }), pauses(EndsCommands::No, Wakes::WhenResumed));
        let woken = json!({ "autoPause": true, "autoResume": { "enabled": true } });
        check(woken, pauses(EndsCommands::No, Wakes::ByCalls));
        let files = json!({ "autoPause": true, "autoPauseMemory": false });
        check(files, pauses(EndsCommands::Yes, Wakes::WhenResumed));
        check(json!({ "autoResume": { "enabled": true } }), Err("autoResume needs autoPause"));
        check(json!({ "autoResume": true }), Err("autoResume must be an object"));
        check(json!({ "autoPause": "yes" }), Err("autoPause must be true or false"));
    }
}
