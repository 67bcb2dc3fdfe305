//! OpenSandbox's lifecycle API.

use std::collections::BTreeMap;

use axum::body::Bytes;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use serde_json::{Map, Value, json};
use warrant_protocol::Timestamp;

use super::{
    ACCESS_HEADER, Desk, EGRESS_PORT, EXECD_PORT, Enter, Guest, HOME, USER, Visit, error, fault,
    invalid, network,
};
use crate::doors::reply::{self, boolean, text, texts, unknown_member, whole};
use crate::doors::{
    AtEnd, Changed, DoorName, EndsCommands, Hall, Life, Reach, Sandbox, Wanted, WorkshopError,
};

/// The version of the server whose behavior is served.
const VERSION: &str = "1.1.1";
/// The shortest life a client may ask for, in seconds, as the protocol has it.
const SHORTEST_S: u64 = 60;

/// More sandboxes than this are not told at once.
const MOST_LISTED: usize = 200;

/// Where clients keep variables for later commands, unless they say where.
const ENV_FILE: &str = "/tmp/.execd/envs";

/// More labels than this, or longer ones, a sandbox does not have.
const MOST_LABELS: usize = 256;
const MOST_LABEL_BYTES: usize = 64 * 1024;

pub(crate) async fn version() -> Response {
    reply::json(StatusCode::OK, &json!({ "version": VERSION }))
}

pub(crate) async fn health() -> Response {
    reply::json(StatusCode::OK, &json!({ "status": "healthy" }))
}

/// Telemetry of clients is taken by nobody.
pub(crate) async fn telemetry() -> Response {
    reply::empty(StatusCode::NO_CONTENT)
}

pub(crate) async fn create(State(desk): State<Desk>, Guest(guest): Guest, body: Bytes) -> Response {
    let read = reply::object(&body).and_then(|body| {
        let (reach, denied) = network::reach(&body)?;
        Ok((wanted(&body, reach)?, denied))
    });
    let (wanted, denied) = match read {
        Ok(read) => read,
        Err(message) => return invalid(&message),
    };
    match desk.hall.ask(move |workshop| workshop.create(&guest, wanted)).await {
        Ok(sandbox) => {
            network::remember(&desk, &sandbox.id, denied);
            answer(StatusCode::ACCEPTED, &sandbox)
        }
        Err(refusal) => error(&refusal),
    }
}

pub(crate) async fn list(
    State(hall): State<Hall>,
    Guest(guest): Guest,
    Query(query): Query<Vec<(String, String)>>,
) -> Response {
    let named = |name: &'static str| {
        query.iter().filter(move |(key, _)| key == name).map(|(_, value)| value.as_str())
    };
    let size = |name, default| named(name).next().map_or(Ok(default), str::parse::<usize>);
    let (Ok(page), Ok(page_size)) = (size("page", 1), size("pageSize", 20)) else {
        return invalid("page and pageSize must be whole numbers");
    };
    if page == 0 || !(1..=MOST_LISTED).contains(&page_size) {
        return invalid(&format!("page must be at least 1, pageSize 1 to {MOST_LISTED}"));
    }
    let known = ["page", "pageSize", "state", "metadata"];
    if let Some((name, _)) = query.iter().find(|(name, _)| !known.contains(&name.as_str())) {
        return invalid(&format!("{name} is not served here"));
    }
    let states: Vec<&str> = named("state").collect();
    let labels: Option<Vec<Label>> =
        named("metadata").flat_map(|text| text.split('&')).map(label).collect();
    let Some(labels) = labels else { return invalid("metadata must be pairs of name=value") };
    let all = hall.workshop.list(&guest, DoorName::Opensandbox);
    let fits = |sandbox: &&Sandbox| {
        let own = &sandbox.wanted.labels;
        labels.iter().all(|label| label.fits(own))
            && (states.is_empty() || states.contains(&state(sandbox)))
    };
    let fitting: Vec<&Sandbox> = all.iter().filter(fits).collect();
    let pages = fitting.len().div_ceil(page_size);
    let start = (page - 1).saturating_mul(page_size);
    let items: Vec<Value> =
        fitting.iter().skip(start).take(page_size).map(|sandbox| described(sandbox)).collect();
    let body = json!({
        "items": items,
        "pagination": {
            "page": page,
            "pageSize": page_size,
            "totalItems": fitting.len(),
            "totalPages": pages,
            "hasNextPage": page < pages,
        },
    });
    reply::json(StatusCode::OK, &body)
}

/// One pair of a filter. Some clients encode its parts once more, others send them as they are.
struct Label<'a> {
    name: &'a str,
    value: &'a str,
}

fn label(pair: &str) -> Option<Label<'_>> {
    let (name, value) = pair.split_once('=')?;
    Some(Label { name, value })
}

impl Label<'_> {
    fn fits(&self, labels: &BTreeMap<String, String>) -> bool {
        let has = |name: &str, value: &str| labels.get(name).is_some_and(|own| own == value);
        has(self.name, self.value) || has(&reply::decoded(self.name), &reply::decoded(self.value))
    }
}

pub(crate) async fn describe(Visit((_, sandbox)): Visit) -> Response {
    answer(StatusCode::OK, &sandbox)
}

pub(crate) async fn destroy(
    State(hall): State<Hall>,
    Visit((guest, _)): Visit,
    Path(id): Path<String>,
) -> Response {
    match hall.ask(move |workshop| workshop.destroy(&guest, &id)).await {
        Ok(run) => reply::with_receipt(reply::empty(StatusCode::NO_CONTENT), Some(&run)),
        Err(refusal) => error(&refusal),
    }
}

/// Says where a sandbox's own endpoints are: behind this very port.
pub(crate) async fn endpoint(
    Visit((_, sandbox)): Visit,
    headers: HeaderMap,
    Path((id, port)): Path<(String, u16)>,
    Query(query): Query<Vec<(String, String)>>,
) -> Response {
    // Every address here is one behind this server, whether that is asked for or not. An address
    // that ends at a moment of its own (`expires`) there is none.
    if let Some((name, _)) = query.iter().find(|(name, _)| name != "use_server_proxy") {
        return invalid(&format!("{name} cannot be enforced here"));
    }
    if port != EXECD_PORT && port != EGRESS_PORT {
        return fault(
            StatusCode::NOT_FOUND,
            "ENDPOINT_NOT_FOUND",
            "no port of a sandbox is public",
        );
    }
    let host = reply::header(&headers, "host").unwrap_or("localhost");
    let body = json!({
        "endpoint": format!("{host}/v1/sandboxes/{id}/proxy/{port}"),
        "headers": { ACCESS_HEADER: sandbox.access_token },
    });
    reply::json(StatusCode::OK, &body)
}

pub(crate) async fn renew(
    State(hall): State<Hall>,
    Visit((guest, _)): Visit,
    Path(id): Path<String>,
    body: Bytes,
) -> Response {
    let until = reply::object(&body).and_then(|body| match unknown_member(&body, &["expiresAt"]) {
        Some(name) => Err(format!("{name} cannot be enforced here")),
        None => text(&body, "expiresAt"),
    });
    let until = match until {
        Ok(Some(text)) => moment(&text),
        Ok(None) => None,
        Err(message) => return invalid(&message),
    };
    let (Some(until), Ok(now)) = (until, crate::random::now()) else {
        return invalid("expiresAt must be a moment as RFC 3339 writes it");
    };
    let ms = until.unix_ms().saturating_sub(now.unix_ms());
    match hall.ask(move |workshop| workshop.extend(&guest, &id, ms)).await {
        Ok(Changed { sandbox, run }) => {
            let body = json!({ "expiresAt": sandbox.ends_at.to_string() });
            reply::with_receipt(reply::json(StatusCode::OK, &body), Some(&run))
        }
        Err(refusal) => error(&refusal),
    }
}

/// Reads a moment with any number of decimals and a zone of UTC.
fn moment(text: &str) -> Option<Timestamp> {
    let text = text.strip_suffix("+00:00").or_else(|| text.strip_suffix('Z'))?;
    let (whole, decimals) = text.split_once('.').unwrap_or((text, "0"));
    let decimals: String = decimals.chars().chain("000".chars()).take(3).collect();
    format!("{whole}.{decimals}Z").parse().ok()
}

/// Says that a change was made.
fn accepted(changed: &Changed) -> Response {
    reply::with_receipt(reply::empty(StatusCode::ACCEPTED), Some(&changed.run))
}

pub(crate) async fn pause(
    State(hall): State<Hall>,
    Visit((guest, _)): Visit,
    Path(id): Path<String>,
) -> Response {
    let paused = hall.ask(move |workshop| workshop.pause(&guest, &id, EndsCommands::No)).await;
    match paused {
        Ok(changed) => accepted(&changed),
        Err(refusal) => error(&refusal),
    }
}

pub(crate) async fn resume(
    State(hall): State<Hall>,
    Visit((guest, _)): Visit,
    Path(id): Path<String>,
) -> Response {
    match hall.ask(move |workshop| workshop.resume(&guest, &id)).await {
        Ok(changed) => accepted(&changed),
        Err(refusal) => error(&refusal),
    }
}

pub(crate) async fn set_metadata(
    State(hall): State<Hall>,
    Visit((guest, sandbox)): Visit,
    Path(id): Path<String>,
    body: Bytes,
) -> Response {
    let changes = match reply::object(&body) {
        Ok(changes) => changes,
        Err(message) => return invalid(&message),
    };
    let mut labels = sandbox.wanted.labels;
    for (name, value) in changes {
        match value {
            Value::Null => drop(labels.remove(&name)),
            Value::String(value) => drop(labels.insert(name, value)),
            _ => return invalid(&format!("{name} must be a string or null")),
        }
    }
    if let Err(message) = check_labels(&labels) {
        return invalid(&message);
    }
    match hall.ask(move |workshop| workshop.set_labels(&guest, &id, labels)).await {
        Ok(Changed { sandbox, run }) => {
            reply::with_receipt(answer(StatusCode::OK, &sandbox), Some(&run))
        }
        Err(refusal) => error(&refusal),
    }
}

/// Tells what the sandbox uses now, as execd does; only that it tells of the sandbox.
pub(crate) async fn metrics(State(hall): State<Hall>, Enter((guest, sandbox)): Enter) -> Response {
    let measured = hall.ask(move |workshop| {
        let measures = workshop.measures(&guest, &sandbox.id)?;
        measures.last().copied().ok_or(WorkshopError::because("nothing was measured"))
    });
    let measure = match measured.await {
        Ok(measure) => measure,
        Err(refusal) => return error(&refusal),
    };
    let body = json!({
        "cpu_count": measure.cpus,
        "cpu_used_pct": measure.cpu_used_pct,
        "mem_total_mib": mib(measure.memory_total),
        "mem_used_mib": mib(measure.memory_used),
        "timestamp": measure.at.unix_ms(),
    });
    reply::json(StatusCode::OK, &body)
}

/// Returns bytes as this API counts them.
#[expect(clippy::cast_precision_loss, reason = "no machine has 2^53 bytes of memory")]
fn mib(bytes: u64) -> f64 {
    bytes as f64 / (1024.0 * 1024.0)
}

/// Reads a create body; what cannot be enforced is refused by name.
fn wanted(body: &Map<String, Value>, reach: Reach) -> Result<Wanted, String> {
    let known = [
        "image",
        "entrypoint",
        "timeout",
        "resourceLimits",
        "env",
        "metadata",
        "networkPolicy",
        "volumes",
        "secureAccess",
        "extensions",
    ];
    if let Some(name) = unknown_member(body, &known) {
        return Err(format!("{name} cannot be enforced here"));
    }
    let is_set = |name: &str| match body.get(name) {
        Some(Value::Array(items)) => !items.is_empty(),
        Some(Value::Object(members)) => !members.is_empty(),
        _ => false,
    };
    for name in ["volumes", "extensions"] {
        if is_set(name) {
            return Err(format!("{name} cannot be enforced here"));
        }
    }
    check_entrypoint(body)?;
    // Every endpoint asks for a token here, whether this is said or not.
    boolean(body, "secureAccess")?;
    let image = image(body)?;
    let (cpu_milli, memory_bytes) = resources(body)?;
    let labels = texts(body, "metadata")?;
    check_labels(&labels)?;
    let seconds = whole(body, "timeout")?;
    if seconds.is_some_and(|seconds| seconds < SHORTEST_S) {
        return Err(format!("timeout must be at least {SHORTEST_S} seconds"));
    }
    Ok(Wanted {
        door: DoorName::Opensandbox,
        template: image,
        name: None,
        timeout_ms: seconds.map(|seconds| seconds.saturating_mul(1000)),
        at_end: AtEnd::Ends,
        idle_ms: None,
        env: env(body)?,
        labels,
        reach,
        memory_bytes,
        cpu_milli,
        disk_bytes: None,
        home: HOME.to_owned(),
        user: USER.to_owned(),
    })
}

/// Reads variables. Clients keep further ones in the file that one of them names.
fn env(body: &Map<String, Value>) -> Result<BTreeMap<String, String>, String> {
    let mut env = texts(body, "env")?;
    env.entry("EXECD_ENVS".to_owned()).or_insert_with(|| ENV_FILE.to_owned());
    Ok(env)
}

/// Labels are kept as long as the sandbox lives, and changes add to them: they have an end.
fn check_labels(labels: &BTreeMap<String, String>) -> Result<(), String> {
    let bytes: usize = labels.iter().map(|(name, value)| name.len() + value.len()).sum();
    match labels.len() > MOST_LABELS || bytes > MOST_LABEL_BYTES {
        true => Err(format!(
            "metadata has at most {MOST_LABELS} entries of {MOST_LABEL_BYTES} bytes together"
        )),
        false => Ok(()),
    }
}

/// Only an entrypoint that does nothing can be kept: no program runs between calls.
fn check_entrypoint(body: &Map<String, Value>) -> Result<(), String> {
    let words = reply::list(body, "entrypoint")?.unwrap_or_default();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        [] | ["tail", "-f", "/dev/null"] | ["sleep", "infinity"] => Ok(()),
        _ => Err("entrypoint cannot be run here: start it as a background command".to_owned()),
    }
}

fn image(body: &Map<String, Value>) -> Result<String, String> {
    let Some(image) = body.get("image").and_then(Value::as_object) else {
        return Err("image.uri is missing".to_owned());
    };
    if let Some(name) = unknown_member(image, &["uri"]) {
        return Err(format!("image.{name} cannot be used here"));
    }
    let uri = text(image, "uri")?.filter(|uri| !uri.is_empty());
    let uri = uri.ok_or_else(|| "image.uri is missing".to_owned())?;
    if uri.contains('@') || uri.starts_with("sha256:") {
        return Err("image.uri: a digest cannot be kept here, there are no images".to_owned());
    }
    Ok(uri)
}

/// Reads `{"cpu":"500m","memory":"256Mi"}`.
fn resources(body: &Map<String, Value>) -> Result<(Option<u64>, Option<u64>), String> {
    let limits = texts(body, "resourceLimits")?;
    let mut read = (None, None);
    for (name, value) in &limits {
        let bad = || format!("resourceLimits.{name} `{value}` cannot be read");
        match name.as_str() {
            "cpu" => {
                let milli = match value.strip_suffix('m') {
                    Some(milli) => milli.parse::<u64>().ok(),
                    None => value
                        .parse::<f64>()
                        .ok()
                        .filter(|count| count.is_finite())
                        .map(|count| (count * 1000.0) as u64),
                };
                read.0 = Some(milli.filter(|milli| *milli > 0).ok_or_else(bad)?);
            }
            "memory" => read.1 = Some(quantity(value).ok_or_else(bad)?),
            _ => return Err(format!("resourceLimits.{name} cannot be enforced here")),
        }
    }
    Ok(read)
}

fn quantity(text: &str) -> Option<u64> {
    let units = [
        ("Ki", 1 << 10),
        ("Mi", 1 << 20),
        ("Gi", 1 << 30),
        ("k", 1000),
        ("K", 1000),
        ("M", 1_000_000),
        ("G", 1_000_000_000),
    ];
    let with_unit =
        units.iter().find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, *factor)));
    let (digits, factor) = with_unit.unwrap_or((text, 1));
    digits.parse::<u64>().ok()?.checked_mul(factor).filter(|bytes| *bytes > 0)
}

fn answer(status: StatusCode, sandbox: &Sandbox) -> Response {
    reply::with_receipt(reply::json(status, &described(sandbox)), Some(&sandbox.run))
}

const fn state(sandbox: &Sandbox) -> &'static str {
    match sandbox.life {
        Life::Running => "Running",
        Life::Paused => "Paused",
    }
}

fn described(sandbox: &Sandbox) -> Value {
    let labels: &BTreeMap<String, String> = &sandbox.wanted.labels;
    json!({
        "id": sandbox.id,
        "image": { "uri": sandbox.wanted.template },
        "status": {
            "state": state(sandbox),
            "reason": "",
            "message": "",
            "lastTransitionAt": sandbox.created_at.to_string(),
        },
        "metadata": labels,
        "entrypoint": ["tail", "-f", "/dev/null"],
        "createdAt": sandbox.created_at.to_string(),
        "expiresAt": sandbox.ends_at.to_string(),
    })
}
