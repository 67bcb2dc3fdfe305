//! Principals, tokens that let runners in, and runners, for whoever manages them.

use axum::extract::{Path, Request, State};
use axum::response::Response;
use serde_json::{Value, json};
use warrant_protocol::request::ActorKind;
use warrant_protocol::wire::{
    EnrollTokenResult, IssueEnrollToken, IssuePrincipal, PrincipalSummary, PrincipalToken,
    RunnerSummary,
};
use warrant_protocol::{Digest, PoolName, PrincipalId, RunnerId};

use super::budget::Holder;
use super::error::HttpError;
use super::registry::{Capability, groups_of, role_of};
use super::service::{Shared, blocking};
use super::settings::fresh_token;
use super::{answer, body, peer_of};
use crate::random;
use crate::request_context::keep_cause;
use crate::store::{EnrollTokenRow, FalseClaimRow, PrincipalRow};

/// How long a token that lets a runner in can be used.
const ENROLL_TOKEN_MS: u64 = 3_600_000;

/// How many false claims one answer lists.
const MOST_FALSE_CLAIMS: u32 = 1000;

type Answer = Result<Response, HttpError>;

/// `GET /v1/principals`.
pub(super) async fn list(State(service): State<Shared>, request: Request) -> Answer {
    service.admit((request.headers(), peer_of(&request)), Capability::PrincipalsManage)?;
    let rows = blocking(&service, |service| Ok(service.plane.store().principals()?)).await?;
    let principals: Vec<PrincipalSummary> = rows.iter().filter_map(summary).collect();
    Ok(answer::json(&json!({"principals": principals})))
}

fn summary(row: &PrincipalRow) -> Option<PrincipalSummary> {
    Some(PrincipalSummary {
        name: row.name.clone(),
        role: role_of(row)?,
        created_at: row.created_at,
        revoked: row.revoked_at.is_some(),
        groups: groups_of(row),
    })
}

/// `POST /v1/principals`.
pub(super) async fn issue(State(service): State<Shared>, request: Request) -> Answer {
    let caller =
        service.admit((request.headers(), peer_of(&request)), Capability::PrincipalsManage)?;
    let value = body::json(request, body::SMALL, &caller.id).await?;
    let wish = IssuePrincipal::from_value(&value)?;
    let issued = blocking(&service, move |service| {
        let token = fresh_token()?;
        let principal_id = PrincipalId::from_random(random::bytes()?);
        let kind = match wish.kind.unwrap_or(ActorKind::Human) {
            ActorKind::Human => "human",
            ActorKind::Service => "service",
        };
        let row = PrincipalRow {
            id: principal_id.to_string(),
            name: wish.name.clone(),
            role: wish.role.as_str().to_owned(),
            kind: kind.to_owned(),
            groups: json!(wish.groups).to_string(),
            token_hash: Digest::of(token.as_bytes()),
            created_at: service.plane.now(),
            revoked_at: None,
        };
        if !service.plane.store().add_principal(row)? {
            let text = format!("principal \"{}\" already exists", wish.name);
            return Err(HttpError::conflict(text));
        }
        service.metrics.count("principals.issued");
        service.reload_registry()?;
        Ok(PrincipalToken { principal_id, name: wish.name, role: wish.role, token })
    });
    Ok(answer::json(&issued.await?))
}

/// `POST /v1/principals/:name/rotate`: another token; the old one is no good from now on.
pub(super) async fn rotate(
    State(service): State<Shared>,
    Path(name): Path<String>,
    request: Request,
) -> Answer {
    service.admit((request.headers(), peer_of(&request)), Capability::PrincipalsManage)?;
    let rotated = blocking(&service, move |service| {
        let token = fresh_token()?;
        let hash = Digest::of(token.as_bytes());
        if !service.plane.store().set_principal_token(&name, hash)? {
            return Err(HttpError::missing(format!("there is no principal \"{name}\"")));
        }
        service.metrics.count("principals.rotated");
        service.reload_registry()?;
        Ok(json!({"name": name, "token": token}))
    });
    Ok(answer::json(&rotated.await?))
}

/// `POST /v1/principals/:name/revoke`: their token is no good from now on.
pub(super) async fn revoke(
    State(service): State<Shared>,
    Path(name): Path<String>,
    request: Request,
) -> Answer {
    let caller =
        service.admit((request.headers(), peer_of(&request)), Capability::PrincipalsManage)?;
    if caller.name == name {
        return Err(HttpError::bad_request("nobody revokes themselves"));
    }
    let revoked = blocking(&service, move |service| {
        if !service.plane.store().revoke_principal(&name, service.plane.now())? {
            return Err(HttpError::missing(format!("there is no principal \"{name}\"")));
        }
        service.metrics.count("principals.revoked");
        service.reload_registry()?;
        Ok(json!({"name": name, "revoked": true}))
    });
    Ok(answer::json(&revoked.await?))
}

/// `POST /v1/enroll-tokens`.
pub(super) async fn issue_enroll_token(State(service): State<Shared>, request: Request) -> Answer {
    let caller =
        service.admit((request.headers(), peer_of(&request)), Capability::PrincipalsManage)?;
    let holder = Holder::Known(caller.id.clone());
    let content = body::json_body(request, body::SMALL, holder).await?;
    // The reference sends no body at all.
    let wish = match content.is_empty() {
        true => IssueEnrollToken::default(),
        false => IssueEnrollToken::from_value(&content.parse()?)?,
    };
    let issued = blocking(&service, move |service| {
        let token = fresh_token()?;
        let now = service.plane.now();
        let expires_at = now.plus_ms(ENROLL_TOKEN_MS);
        service.plane.store().add_enroll_token(EnrollTokenRow {
            token_hash: Digest::of(token.as_bytes()),
            pool: wish.pool.as_ref().map(PoolName::to_string),
            created_at: now,
            expires_at,
        })?;
        Ok(EnrollTokenResult { token, expires_at, pool: wish.pool })
    });
    Ok(answer::json(&issued.await?))
}

/// `GET /v1/runners`.
pub(super) async fn runners(State(service): State<Shared>, request: Request) -> Answer {
    service.admit((request.headers(), peer_of(&request)), Capability::RunnersRead)?;
    let all = service.registry.runners();
    let running = service.plane.running_time();
    let summaries: Vec<RunnerSummary> = all
        .iter()
        .filter_map(|runner| {
            Some(RunnerSummary {
                runner_id: runner.id.clone(),
                pool: runner.pool.parse().ok()?,
                key_id: runner.key.id().clone(),
                enrolled_at: runner.enrolled_at,
                revoked: runner.is_revoked,
                last_seen_at: runner.last_seen(),
                unreachable: !runner.is_revoked && runner.is_unreachable(running),
            })
        })
        .collect();
    Ok(answer::json(&json!({"runners": summaries})))
}

/// `GET /v1/false-claims`: what runners said that the plane refuted, newest first.
pub(super) async fn false_claims(State(service): State<Shared>, request: Request) -> Answer {
    service.admit((request.headers(), peer_of(&request)), Capability::ExportRead)?;
    let rows =
        blocking(&service, |service| Ok(service.plane.store().false_claims(MOST_FALSE_CLAIMS)?));
    let entry = |row: FalseClaimRow| {
        json!({
            "runnerId": row.runner,
            "runId": row.run,
            "epoch": row.epoch,
            "field": row.field,
            "detail": row.detail,
            "at": row.at,
        })
    };
    let all: Vec<Value> = rows.await?.into_iter().map(entry).collect();
    Ok(answer::json(&json!({"falseClaims": all})))
}

/// `POST /v1/runners/:id/revoke`: it gets no more work, and what it holds is taken from it.
pub(super) async fn revoke_runner(
    State(service): State<Shared>,
    Path(id): Path<String>,
    request: Request,
) -> Answer {
    service.admit((request.headers(), peer_of(&request)), Capability::PrincipalsManage)?;
    let revoked = blocking(&service, move |service| {
        let missing = || HttpError::missing("runner not found");
        let id: RunnerId = id.parse().map_err(|error| keep_cause(&error, missing()))?;
        if !service.plane.store().revoke_runner(id.as_str(), service.plane.now())? {
            return Err(missing());
        }
        service.metrics.count("runners.revoked");
        service.reload_registry()?;
        service.sweep()?;
        Ok(json!({"runnerId": id, "revoked": true}))
    });
    Ok(answer::json(&revoked.await?))
}
