//! Daytona's control API, lists: in pages, filtered by what was asked.

use std::collections::BTreeMap;

use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use serde_json::{Value, json};
use warrant_protocol::request::ActorRef;

use super::{described, name_of, state_of};
use crate::doors::daytona::{Guest, invalid, is_sdk_since};
use crate::doors::page::{Order, Page};
use crate::doors::{DoorName, Hall, Sandbox, reply};
use crate::request_context::keep_cause;

/// More sandboxes than this are not told at once.
const MOST_LISTED: usize = 200;
/// SDKs from this minor version on read this list in pages; those before read it whole.
const LISTS_IN_PAGES_SINCE: u32 = 180;

pub(crate) async fn list(
    State(hall): State<Hall>,
    Guest(guest): Guest,
    headers: HeaderMap,
    Query(query): Query<Vec<(String, String)>>,
) -> Response {
    let (filter, all) = match listed(&hall, &guest, (&query, "cursor")) {
        Ok(listed) => listed,
        Err(message) => return invalid(&message),
    };
    if !is_sdk_since(&headers, LISTS_IN_PAGES_SINCE) {
        let rows = all.iter().map(|sandbox| described(&headers, sandbox)).collect();
        return reply::json(StatusCode::OK, &Value::Array(rows));
    }
    let page = Page { limit: filter.limit, after: filter.place, order: filter.order };
    let (rows, next) = page.of(&all);
    let rows: Vec<Value> = rows.into_iter().map(|sandbox| described(&headers, sandbox)).collect();
    let body = json!({ "items": rows, "nextCursor": next, "total": all.len() });
    reply::json(StatusCode::OK, &body)
}

pub(crate) async fn paginated(
    State(hall): State<Hall>,
    Guest(guest): Guest,
    headers: HeaderMap,
    Query(query): Query<Vec<(String, String)>>,
) -> Response {
    let (filter, all) = match listed(&hall, &guest, (&query, "page")) {
        Ok(listed) => listed,
        Err(message) => return invalid(&message),
    };
    let Some(page) = filter.place.unwrap_or("1").parse().ok().filter(|page: &usize| *page > 0)
    else {
        return invalid("page must be a whole number of at least 1");
    };
    let rows = all.iter().skip((page - 1).saturating_mul(filter.limit)).take(filter.limit);
    let rows: Vec<Value> = rows.map(|sandbox| described(&headers, sandbox)).collect();
    let pages = all.len().div_ceil(filter.limit);
    let body = json!({ "items": rows, "total": all.len(), "page": page, "totalPages": pages });
    reply::json(StatusCode::OK, &body)
}

/// Which sandboxes a list is about, and from where on.
struct Filter<'a> {
    labels: BTreeMap<String, String>,
    id: Option<&'a str>,
    name: Option<&'a str>,
    states: Vec<&'a str>,
    limit: usize,
    place: Option<&'a str>,
    order: Order,
}

impl<'a> Filter<'a> {
    /// A filter that is not known would be ignored, so it is refused.
    fn read(query: &'a [(String, String)], place: &str) -> Result<Self, String> {
        let (labels, states) = (BTreeMap::new(), Vec::new());
        let (id, name, limit) = (None, None, MOST_LISTED);
        let order = Order::Newest;
        let mut filter = Self { labels, id, name, states, limit, place: None, order };
        for (key, value) in query.iter().filter(|(_, value)| !value.is_empty()) {
            match key.as_str() {
                "labels" => {
                    filter.labels = serde_json::from_str(value).map_err(|error| {
                        keep_cause(&error, "labels must be a JSON object of strings".to_owned())
                    })?;
                }
                "id" => filter.id = Some(value),
                "name" => filter.name = Some(value),
                "states" => filter.states.extend(value.split(',')),
                "limit" => {
                    let limit = value.parse().ok();
                    let limit = limit.filter(|limit| (1..=MOST_LISTED).contains(limit));
                    filter.limit =
                        limit.ok_or_else(|| format!("limit must be 1 to {MOST_LISTED}"))?;
                }
                "sort" if value == "createdAt" => {}
                "sort" => return Err(format!("sort must be createdAt, not {value}")),
                "order" if value == "desc" => filter.order = Order::Newest,
                "order" if value == "asc" => filter.order = Order::Oldest,
                "order" => return Err("order must be asc or desc".to_owned()),
                // There are none of these that could be included, and all is told of each.
                "includeErroredDeleted" | "includeWarm" | "verbose" => {}
                other if other == place => filter.place = Some(value),
                other => return Err(format!("{other} is not served here")),
            }
        }
        Ok(filter)
    }

    fn fits(&self, sandbox: &Sandbox) -> bool {
        let own = &sandbox.wanted.labels;
        self.labels.iter().all(|(name, value)| own.get(name) == Some(value))
            && self.id.is_none_or(|id| id == sandbox.id)
            && self.name.is_none_or(|name| name == name_of(sandbox))
            && (self.states.is_empty() || self.states.contains(&state_of(sandbox)))
    }
}

/// Returns what a query is about, in its order.
fn listed<'a>(
    hall: &Hall,
    guest: &ActorRef,
    (query, place): (&'a [(String, String)], &str),
) -> Result<(Filter<'a>, Vec<Sandbox>), String> {
    let filter = Filter::read(query, place)?;
    let mut all = hall.workshop.list(guest, DoorName::Daytona);
    all.retain(|sandbox| filter.fits(sandbox));
    if filter.order == Order::Newest {
        all.reverse();
    }
    Ok((filter, all))
}
