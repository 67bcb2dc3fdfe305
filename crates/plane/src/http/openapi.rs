//! The description of the API, OpenAPI 3.1, made from the list that also makes the routes.

use axum::response::Response;
use serde_json::{Map, Value, json};

use self::schemas::reference;
use super::answer;
use super::routes::{Access, OPERATIONS, Operation, Takes};

mod answers;
mod evidence;
mod schemas;

/// `GET /v1/openapi.json`.
pub(super) async fn document() -> Response {
    answer::json(&describe())
}

fn describe() -> Value {
    let mut paths = Map::new();
    for operation in OPERATIONS {
        let path = paths.entry(operation.path).or_insert_with(|| json!({}));
        if let Some(methods) = path.as_object_mut() {
            methods.insert(operation.method.to_owned(), describe_one(operation));
        }
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Warrant plane",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Requests, approvals, leases, evidence. Every refusal is an ErrorBody.",
        },
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": all_schemas(),
        },
    })
}

fn all_schemas() -> Map<String, Value> {
    let parts = [schemas::requests(), evidence::objects(), answers::objects()];
    let members = parts.into_iter().filter_map(|part| match part {
        Value::Object(members) => Some(members),
        _ => None,
    });
    members.flatten().collect()
}

/// A status that any call may be refused with.
struct Refusal {
    status: &'static str,
    description: &'static str,
    retry: Retry,
}

/// Whether the same call may succeed later.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Retry {
    /// After the time that `Retry-After` says.
    After,
    /// Not as it is.
    Never,
}

const fn refusal(status: &'static str, retry: Retry, description: &'static str) -> Refusal {
    Refusal { status, description, retry }
}

const REFUSALS: [Refusal; 9] = [
    refusal("400", Retry::Never, "The request makes no sense; the error names the member"),
    refusal("401", Retry::Never, "The token is missing, wrong or over"),
    refusal("403", Retry::Never, "The caller may not do this, or policy says no"),
    refusal("404", Retry::Never, "There is none"),
    refusal("408", Retry::After, "The body came slower than the minimum rate"),
    refusal("409", Retry::Never, "It stands in the way of what exists"),
    refusal(
        "413",
        Retry::Never,
        "The body or chain exceeds a limit in bytes, values, depth or events; the error names the limit",
    ),
    refusal(
        "429",
        Retry::After,
        "The caller has reached a limit: requests per second, requests under way, connections, memory or wrong tokens; the error names it",
    ),
    refusal("503", Retry::After, "The plane is at a limit or going down"),
];

impl Refusal {
    fn describe(&self) -> Value {
        let mut described = json!({
            "description": self.description,
            "content": {"application/json": {"schema": reference("ErrorBody")}},
        });
        if let (Retry::After, Some(members)) = (self.retry, described.as_object_mut()) {
            let seconds = json!({"type": "integer", "minimum": 1});
            let header = json!({"description": "Seconds to wait", "schema": seconds});
            members.insert("headers".to_owned(), json!({"Retry-After": header}));
        }
        described
    }
}

fn describe_one(operation: &Operation) -> Value {
    let mut responses: Map<String, Value> =
        REFUSALS.iter().map(|refusal| (refusal.status.to_owned(), refusal.describe())).collect();
    for (status, what) in [("414", "The address is too long"), ("431", "The head is too large")] {
        responses.insert(status.to_owned(), json!({ "description": what }));
    }
    responses.extend(answers::of(operation));
    let mut described = json!({
        "summary": operation.summary,
        "responses": responses,
        "parameters": parameters(operation),
    });
    let Some(members) = described.as_object_mut() else { return described };
    if matches!(operation.access, Access::Principal | Access::Bearer) {
        members.insert("security".to_owned(), json!([{"token": []}]));
    }
    let json_body = |name: &str, required: bool| {
        json!({
            "required": required,
            "content": {"application/json": {"schema": reference(name)}},
        })
    };
    let body = match operation.body {
        Takes::Nothing => None,
        Takes::Bytes => Some(json!({
            "required": true,
            "content": {"application/octet-stream": {"schema": {"type": "string"}}},
        })),
        Takes::Json(name) => Some(json_body(name, true)),
        Takes::OptionalJson(name) => Some(json_body(name, false)),
    };
    if let Some(body) = body {
        members.insert("requestBody".to_owned(), body);
    }
    described
}

fn parameters(operation: &Operation) -> Vec<Value> {
    let mut all: Vec<Value> = operation
        .path
        .split('/')
        .filter_map(|segment| segment.strip_prefix('{')?.strip_suffix('}'))
        .map(|name| {
            json!({"name": name, "in": "path", "required": true, "schema": {"type": "string"}})
        })
        .collect();
    let queries: &[(&str, Value)] = match (operation.method, operation.path) {
        ("get", "/v1/runs") => &[
            ("state", json!({"type": "string"})),
            ("status", json!({"type": "string"})),
            ("pool", json!({"type": "string"})),
            ("requester", json!({"type": "string"})),
            ("agent", json!({"type": "string"})),
            ("cursor", json!({"type": "string"})),
            ("limit", json!({"type": "integer", "minimum": 1, "maximum": 1000})),
        ],
        ("get", "/v1/export") => &[("since", json!({"type": "string", "format": "date-time"}))],
        _ => &[],
    };
    all.extend(queries.iter().map(
        |(name, schema)| json!({"name": name, "in": "query", "required": false, "schema": schema}),
    ));
    if (operation.method, operation.path) == ("post", "/v1/runs") {
        let schema = json!({"type": "string", "minLength": 1, "maxLength": 255});
        let named = json!({
            "name": "Idempotency-Key", "in": "header", "required": false, "schema": schema,
        });
        all.push(named);
    }
    all
}
