//! E2B's metrics: what was measured of one sandbox, the newest of several, and envd's own.

use std::collections::BTreeMap;

use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Map, Value, json};

use super::control::{Guest, not_found};
use super::{Visit, api_error, api_fault};
use crate::doors::reply;
use crate::doors::{Hall, Measure, WorkshopError};
use crate::request_context::keep_cause;

/// More sandboxes than this are not asked about at once.
const MOST_ASKED: usize = 100;

type Pairs = Query<BTreeMap<String, String>>;

/// Tells what was measured between two moments, in seconds since 1970.
pub(crate) async fn of_one(
    State(hall): State<Hall>,
    Guest(guest): Guest,
    Path(id): Path<String>,
    Query(query): Pairs,
) -> Response {
    let between = match between(&query) {
        Ok(between) => between,
        Err(message) => return api_fault(StatusCode::BAD_REQUEST, &message),
    };
    let name = id.clone();
    // Sandboxes of HELM sessions are not for this door.
    if let Err(error) = hall.find(&guest, &id) {
        return not_found(&name, &error);
    }
    match hall.ask(move |workshop| workshop.measures(&guest, &id)).await {
        Ok(measures) => {
            let is_asked = |measure: &&Measure| between.contains(&(measure.at.unix_ms() / 1000));
            let told = measures.iter().filter(is_asked).map(told).collect();
            reply::json(StatusCode::OK, &Value::Array(told))
        }
        Err(error) => not_found(&name, &error),
    }
}

fn between(query: &BTreeMap<String, String>) -> Result<std::ops::RangeInclusive<u64>, String> {
    if let Some(name) = query.keys().find(|name| !["start", "end"].contains(&name.as_str())) {
        return Err(format!("{name} is not served here"));
    }
    let moment = |name: &str, default: u64| match query.get(name).filter(|text| !text.is_empty()) {
        None => Ok(default),
        Some(text) => text.parse().map_err(|error| {
            keep_cause(&error, format!("{name} must be whole seconds since 1970"))
        }),
    };
    Ok(moment("start", 0)?..=moment("end", u64::MAX)?)
}

/// Tells the newest measure of each of several sandboxes; those that are not there are left out.
pub(crate) async fn of_many(
    State(hall): State<Hall>,
    Guest(guest): Guest,
    Query(query): Query<Vec<(String, String)>>,
) -> Response {
    if let Some((name, _)) = query.iter().find(|(name, _)| name != "sandbox_ids") {
        return api_fault(StatusCode::BAD_REQUEST, &format!("{name} is not served here"));
    }
    let ids = query.iter().flat_map(|(_, list)| list.split(',')).filter(|id| !id.is_empty());
    let ids: Vec<String> = ids.map(str::to_owned).collect();
    if ids.is_empty() || ids.len() > MOST_ASKED {
        let text = format!("sandbox_ids must name 1 to {MOST_ASKED} sandboxes");
        return api_fault(StatusCode::BAD_REQUEST, &text);
    }
    let own: Vec<String> = ids.into_iter().filter(|id| hall.find(&guest, id).is_ok()).collect();
    let found = hall.ask(move |workshop| {
        let mut found = Map::new();
        for id in own {
            match workshop.measures(&guest, &id) {
                Ok(measures) => found.extend(measures.last().map(|last| (id, told(last)))),
                Err(WorkshopError::NoSandbox) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    });
    match found.await {
        Ok(found) => reply::json(StatusCode::OK, &json!({ "sandboxes": found })),
        Err(error) => api_error(&error),
    }
}

fn told(measure: &Measure) -> Value {
    json!({
        "timestamp": measure.at.to_string(),
        "timestampUnix": measure.at.unix_ms() / 1000,
        "cpuCount": super::control::cpu_count(),
        "cpuUsedPct": measure.cpu_used_pct,
        "memUsed": measure.memory_used,
        "memTotal": measure.memory_total,
        "memCache": measure.memory_mapped,
        "diskUsed": measure.disk_used,
        "diskTotal": measure.disk_total,
    })
}

/// Tells the newest measure as envd does.
pub(crate) async fn of_envd(visit: Visit) -> Response {
    const MIB: u64 = 1024 * 1024;
    let Visit { hall, guest, id } = visit;
    let measures = hall.ask(move |workshop| workshop.measures(&guest, &id)).await;
    let measure = match measures.map(|measures| measures.last().copied()) {
        Ok(Some(measure)) => measure,
        Ok(None) => return api_error(&WorkshopError::because("nothing was measured")),
        Err(error) => return api_error(&error),
    };
    let body = json!({
        "ts": measure.at.unix_ms() / 1000,
        "cpu_count": super::control::cpu_count(),
        "cpu_used_pct": measure.cpu_used_pct,
        "mem_total": measure.memory_total,
        "mem_total_mib": measure.memory_total / MIB,
        "mem_used": measure.memory_used,
        "mem_used_mib": measure.memory_used / MIB,
        "mem_cache": measure.memory_mapped,
        "disk_used": measure.disk_used,
        "disk_total": measure.disk_total,
    });
    reply::json(StatusCode::OK, &body)
}
