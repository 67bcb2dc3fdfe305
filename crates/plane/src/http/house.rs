//! The plane about itself: health, readiness, metrics, policy, secrets.

use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::response::Response;
use hyper::StatusCode;
use hyper::header::{HeaderValue, LOCATION};
use serde_json::{Value, json};
use warrant_policy::snapshot::{DOCUMENT_ONLY, PolicyText};
use warrant_protocol::wire::{PolicyUpload, PrincipalRole, SetSecret};
use warrant_protocol::{SecretName, error_chain};

use super::budget::Holder;
use super::error::HttpError;
use super::lanes::{Lane, in_lane};
use super::metrics::Gauge;
use super::registry::Capability;
use super::service::{PlaneService, Shared, blocking};
use super::store_watch::READY_AGE;
use super::{answer, body, peer_of};
use crate::policy_holder::{self, PolicyInForce, ReplaceError};
use crate::store::PolicyRow;

type Answer = Result<Response, HttpError>;

/// `GET /`.
pub(super) async fn root() -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::FOUND;
    response.headers_mut().insert(LOCATION, HeaderValue::from_static("/ui/"));
    response
}

/// `GET /v1/health`.
pub(super) async fn health() -> Response {
    answer::json(&json!({"ok": true, "service": "warrant-plane"}))
}

/// `GET /v1/ready`: whether the store answers and can be written, and nobody is going down.
pub(super) async fn ready(State(service): State<Shared>) -> Response {
    let is_draining = *service.draining.borrow();
    let looked = in_lane(Lane::Leases, &service, |service| {
        service.plane.store().policy()?;
        Ok(service.check_store(READY_AGE))
    });
    let looked = looked.await;
    let is_ready = matches!(looked, Ok(None)) && !is_draining;
    // What exactly is wrong with the policy names paths, so admins alone read it, at /v1/policy.
    let policy = blocking(&service, |service| Ok(policy_word(&service.policy_in_force()))).await;
    let mut said = json!({"ready": is_ready, "policy": policy.unwrap_or("unknown")});
    if let (Ok(Some(problem)), Some(members)) = (looked, said.as_object_mut()) {
        members.insert("store".to_owned(), problem.to_json());
    }
    let mut response = answer::json(&said);
    if !is_ready {
        *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    }
    response
}

/// `GET /v1/plane-keys`: the plane's key, and how it took over from earlier ones. All of it is
/// public, and signed where it matters.
pub(super) async fn plane_keys(State(service): State<Shared>) -> Answer {
    let keys = blocking(&service, |service| {
        service.plane.plane_keys().map_err(|error| HttpError::internal(&error))
    });
    Ok(answer::json(&keys.await?))
}

/// `GET /v1/metrics`.
pub(super) async fn metrics(State(service): State<Shared>, request: Request) -> Answer {
    service.admit((request.headers(), peer_of(&request)), Capability::PolicyRead)?;
    Ok(answer::json(&json!({"metrics": service.metrics.all()})))
}

/// `GET /metrics`, as Prometheus reads it.
pub(super) async fn prometheus(State(service): State<Shared>, request: Request) -> Answer {
    service.admit((request.headers(), peer_of(&request)), Capability::PolicyRead)?;
    let text = in_lane(Lane::Reads, &service, |service| {
        let queued = service.plane.store().queued_by_pool()?;
        let leased = service.plane.store().leased_remotely()?.len() as u64;
        let is_broken = service.policy_in_force().fault.is_some();
        let gauges = [
            Gauge {
                name: "policy_broken",
                help: "Whether the files of the policy are broken and an older one is in force.",
                values: vec![(None, u64::from(is_broken))],
            },
            Gauge {
                name: "runs_queued",
                help: "Runs that wait for a runner.",
                values: queued
                    .into_iter()
                    .map(|(pool, count)| (Some(("pool", pool)), count))
                    .collect(),
            },
            Gauge {
                name: "store_writable",
                help: "1 while the store can be written, else 0.",
                values: vec![(None, u64::from(service.store_problem().is_none()))],
            },
            Gauge {
                name: "runs_leased",
                help: "Runs that runners hold.",
                values: vec![(None, leased)],
            },
            Gauge {
                name: "claims_waiting",
                help: "Runners that wait for work.",
                values: vec![(None, service.waiters.count() as u64)],
            },
            Gauge {
                name: "connections",
                help: "Connections that are open.",
                values: vec![(None, service.admission.connections.count() as u64)],
            },
            Gauge {
                name: "runners",
                help: "Runners that are enrolled.",
                values: vec![(None, service.registry.runners().len() as u64)],
            },
        ];
        Ok(service.metrics.prometheus(&gauges))
    });
    Ok(answer::typed("text/plain; version=0.0.4", Body::from(text.await?)))
}

/// `GET /v1/policy`.
pub(super) async fn policy(State(service): State<Shared>, request: Request) -> Answer {
    let caller = service.admit((request.headers(), peer_of(&request)), Capability::PolicyRead)?;
    let in_force = blocking(&service, |service| Ok(service.policy_in_force())).await?;
    let Some(policy) = in_force.policy else {
        return Err(HttpError::missing("no policy is in force, so nothing runs"));
    };
    let mut body = json!({
        "policy": policy.document().raw(),
        "policyHash": policy.hash(),
        "rules": policy.rules_text(),
    });
    // SECURITY: what is wrong with the files names paths of this machine.
    if let (Some(fault), PrincipalRole::Admin, Value::Object(members)) =
        (&in_force.fault, caller.role, &mut body)
    {
        let fault = json!({"message": fault.detail(), "since": fault.since()});
        members.insert("fault".to_owned(), fault);
    }
    Ok(answer::json(&body))
}

/// Says of a policy whether it is the one of the files.
fn policy_word(in_force: &PolicyInForce) -> &'static str {
    match (&in_force.policy, &in_force.fault) {
        (Some(_), Some(_)) => "broken: the last good one is in force",
        (None, Some(_)) => "broken: everything is denied",
        (Some(_), None) => "in force",
        (None, None) => "none: everything is denied",
    }
}

/// `GET /v1/policy/history`.
pub(super) async fn policy_history(State(service): State<Shared>, request: Request) -> Answer {
    service.admit((request.headers(), peer_of(&request)), Capability::PolicyRead)?;
    let rows =
        in_lane(Lane::Reads, &service, |service| Ok(service.plane.store().policy_history()?))
            .await?;
    let entry = |row: &PolicyRow| {
        let body: Value = serde_json::from_str(&row.body).unwrap_or(Value::Null);
        json!({
            "policyHash": row.hash,
            "setBy": row.set_by,
            "createdAt": row.created_at,
            "policy": body.get("document"),
            "rules": body.get("rules"),
        })
    };
    let all: Vec<Value> = rows.iter().map(entry).collect();
    Ok(answer::json(&json!({"policies": all})))
}

/// `PUT /v1/policy`.
pub(super) async fn set_policy(State(service): State<Shared>, request: Request) -> Answer {
    let caller =
        service.admit((request.headers(), peer_of(&request)), Capability::PrincipalsManage)?;
    let holder = Holder::Known(caller.id.clone());
    let content = body::json_body(request, body::POLICY, holder).await?;
    let hash = blocking(&service, move |service| {
        let upload = PolicyUpload::from_value(&content.parse()?)?;
        let document = upload.document.to_string();
        let rules = upload.rules.as_deref().unwrap_or(DOCUMENT_ONLY);
        let examples = upload.examples.as_deref().unwrap_or_default();
        let text = PolicyText { document: &document, rules, examples };
        service.enforce(text, &caller.actor.label())
    });
    Ok(answer::json(&json!({"policyHash": hash.await?})))
}

impl PlaneService {
    /// Puts a policy in force and records it.
    pub(super) fn enforce(
        &self,
        text: PolicyText<'_>,
        set_by: &str,
    ) -> Result<warrant_protocol::Digest, HttpError> {
        let policy = self.policy_holder.replace(text).map_err(|error| match error {
            ReplaceError::Invalid(error) => {
                HttpError::bad_request(format!("the policy is refused: {}", error_chain(&error)))
            }
            ReplaceError::Files(error) => HttpError::internal(&error),
        })?;
        let hash = policy.hash();
        policy_holder::record(self.plane.store(), &policy, set_by)
            .map_err(|error| HttpError::internal(&*error))?;
        self.policy();
        tracing::info!(policy.hash = %hash, "policy {hash} is in force, set by {set_by}");
        Ok(hash)
    }
}

/// `GET /v1/secrets`: names, never values.
pub(super) async fn secrets(State(service): State<Shared>, request: Request) -> Answer {
    service.admit((request.headers(), peer_of(&request)), Capability::PrincipalsManage)?;
    let all = blocking(&service, |service| Ok(service.plane.secrets().list()?)).await?;
    let entry = |secret: &crate::secrets::SecretEntry| json!({"name": secret.name, "updatedAt": secret.updated_at});
    let all: Vec<Value> = all.iter().map(entry).collect();
    Ok(answer::json(&json!({"secrets": all})))
}

/// `PUT /v1/secrets/:name`.
pub(super) async fn set_secret(
    State(service): State<Shared>,
    Path(name): Path<String>,
    request: Request,
) -> Answer {
    let caller =
        service.admit((request.headers(), peer_of(&request)), Capability::PrincipalsManage)?;
    let name = secret_name(&name)?;
    let value = body::json(request, body::MEDIUM, &caller.id).await?;
    let wish = SetSecret::from_value(&value)?;
    blocking(&service, move |service| {
        service.plane.secrets().set(&name, &wish.value, service.plane.now())?;
        Ok(answer::json(&json!({"name": name})))
    })
    .await
}

/// `DELETE /v1/secrets/:name`.
pub(super) async fn remove_secret(
    State(service): State<Shared>,
    Path(name): Path<String>,
    request: Request,
) -> Answer {
    service.admit((request.headers(), peer_of(&request)), Capability::PrincipalsManage)?;
    let name = secret_name(&name)?;
    blocking(&service, move |service| {
        service.plane.secrets().remove(&name)?;
        Ok(answer::json(&json!({"name": name, "removed": true})))
    })
    .await
}

fn secret_name(name: &str) -> Result<SecretName, HttpError> {
    name.parse().map_err(|error: warrant_protocol::InvalidName| {
        HttpError::bad_request(format!("the secret's name: {error}"))
    })
}
