//! What people and their programs do with runs: ask, look, approve, refuse, cancel, take home.

use axum::body::Body;
use axum::extract::{Path, Query, Request, State};
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream;
use hyper::HeaderMap;
use serde::Deserialize;
use serde_json::{Value, json};
use warrant_protocol::state::WireStatus;
use warrant_protocol::story::summarize;
use warrant_protocol::wire::{
    ApproveRun, CancelRun, DisclosedWorkspace, DisclosureReport, PolicyDecisionView, PrincipalRole,
    RefuseRun, RunSummary, SubmitResult, SubmitRun,
};
use warrant_protocol::{
    ChainedEvent, Decision, Event, Isolation, RunId, RunRequest, RunState, Timestamp,
};

use super::budget::{Holder, Reservation};
use super::error::HttpError;
use super::lanes::{Lane, in_lane};
use super::registry::{Capability, Principal};
use super::service::{PlaneService, Shared, blocking};
use super::waiting::Wanted;
use super::{answer, body, idp, peer_of};
use crate::approvals::{ApproveError, Approved, Stopped};
use crate::archive::PIECE_BYTES;
use crate::leases::actor_of;
use crate::notary::Judgment;
use crate::reception::{APPROVAL_WAIT_MS, Reception, Submission};
use crate::request_context::keep_cause;
use crate::store::{ExportPosition, Listing, ListingFilter, RunRow, StoreError, SummaryRow};

type Answer = Result<Response, HttpError>;

/// How many times the size of its chain the view of a run takes while it is made.
const VIEW_COST: u64 = 3;

/// The same for a bundle, whose events are values before they are text.
const BUNDLE_COST: u64 = 7;

/// `POST /v1/runs`.
pub(super) async fn submit(State(service): State<Shared>, request: Request) -> Answer {
    let caller = service.admit((request.headers(), peer_of(&request)), Capability::RunsCreate)?;
    let idempotency_key = idempotency_key(request.headers(), &caller)?;
    let holder = Holder::Known(caller.id.clone());
    let content = body::json_body(request, body::LARGE, holder).await?;
    blocking(&service, move |service| {
        let value = content.parse()?;
        let SubmitRun { mut request, dry_run } = SubmitRun::from_value(&value)?;
        let priority = priority(&value, &caller)?;
        // SECURITY: who asks is whoever the token says.
        request.requested_by = caller.actor.clone();
        if dry_run {
            return service.dry_run(&request);
        }
        service.metrics.count("runs.requested");
        let submission = Submission {
            request,
            principal: caller.actor.clone(),
            idempotency_key,
            approval_wait_ms: APPROVAL_WAIT_MS,
        };
        service.receive(priority, submission)
    })
    .await
}

impl PlaneService {
    fn receive(&self, priority: i32, submission: Submission) -> Answer {
        self.check_offered(&submission.request)?;
        let now = self.plane.now();
        let (pool, agent_kind) =
            (submission.request.pool.clone(), submission.request.agent_kind.clone());
        let isolation = submission.request.isolation.unwrap_or(Isolation::Process);
        let mut posture = submission.request.required_posture.clone().unwrap_or_default();
        let reception = self.plane.submit_at(priority, submission, |request| {
            let judgment = self.judge(request, now);
            posture.extend(judgment.required_posture.iter().cloned());
            judgment
        })?;
        let wanted = Wanted {
            pool: pool.as_str(),
            isolation: isolation.as_str(),
            agent_kind: &agent_kind,
            posture: &posture,
        };
        let (run, status, judgment) = match reception {
            Reception::Queued { run } => {
                self.waiters.wake_one(&wanted);
                self.changes.tell(&run);
                (run, WireStatus::Created, None)
            }
            Reception::AwaitingApproval { run, judgment, .. } => {
                self.changes.tell(&run);
                (run, WireStatus::AwaitingApproval, Some(judgment))
            }
            Reception::Denied { run, judgment, .. } => {
                self.metrics.count("runs.denied");
                self.changes.tell(&run);
                return Err(HttpError::policy_denied(judgment.summary.reasons, Some(run)));
            }
            Reception::Repeated { run, request_hash } => {
                let row = self.plane.store().run(&run)?;
                if row.request_hash != request_hash {
                    return Err(HttpError::conflict(format!(
                        "Idempotency-Key was used for another request, which became {run}; send this one under a new key"
                    )));
                }
                let judgment = serde_json::from_str(&row.judgment).ok();
                if row.state == RunState::Denied {
                    let reasons = judgment.map(|j: Judgment| j.summary.reasons);
                    return Err(HttpError::policy_denied(reasons.unwrap_or_default(), Some(run)));
                }
                (run, row.state.wire(), judgment)
            }
        };
        let consent_requirements = judgment.as_ref().map(requirements).unwrap_or_default();
        let waits = matches!(status, WireStatus::Created | WireStatus::AwaitingApproval);
        let unserved = waits.then(|| self.unserved(&wanted)).flatten();
        Ok(answer::json(&SubmitResult { run_id: run, status, consent_requirements, unserved }))
    }

    fn dry_run(&self, request: &RunRequest) -> Answer {
        self.check_offered(request)?;
        let judgment = self.judge(request, self.plane.now());
        let decision = judgment.summary.decision;
        if decision == Decision::Deny {
            return Err(HttpError::policy_denied(judgment.summary.reasons, None));
        }
        let names = requirements(&judgment);
        let reason = match decision {
            Decision::Ask => format!("consent required: {}", names.join("; ")),
            Decision::Allow | Decision::Deny => "policy allows this run".to_owned(),
        };
        let workspace = &request.workspace;
        let untracked = workspace.untracked_files.iter().map(|file| file.path.clone());
        let version = request.agent_version.clone().filter(|version| !version.is_empty());
        Ok(answer::json(&DisclosureReport {
            dry_run: true,
            agent: warrant_protocol::request::AgentSpec {
                kind: request.agent_kind.clone(),
                version,
            },
            pool: request.pool.clone(),
            workspace: DisclosedWorkspace {
                base_ref: workspace.base_ref.clone(),
                bundle_hash: workspace.bundle_hash,
                dirty_diff_hash: workspace.dirty_diff_hash,
                untracked_paths: untracked.collect(),
                denied_paths: workspace.denied_paths.clone(),
            },
            secrets: judgment.secrets,
            network: request.network.clone(),
            budget: request.budget.clone(),
            disclosure: request.disclosure,
            execution: request.execution_or_default(),
            isolation: request.isolation,
            continuation: request.continuation.clone(),
            policy_decision: PolicyDecisionView { decision, reason, consent_requirements: names },
        }))
    }
}

fn requirements(judgment: &Judgment) -> Vec<String> {
    judgment.requirements.iter().map(|wanted| wanted.name.clone()).collect()
}

/// The caller's own name for a submission, within the caller's own names.
fn idempotency_key(headers: &HeaderMap, caller: &Principal) -> Result<Option<String>, HttpError> {
    let Some(value) = headers.get("idempotency-key") else { return Ok(None) };
    let text = value.to_str().unwrap_or_default();
    if text.is_empty() || text.len() > 255 {
        return Err(HttpError::bad_request("Idempotency-Key has 1 to 255 visible characters"));
    }
    Ok(Some(format!("{}:{text}", caller.id)))
}

fn priority(value: &Value, caller: &Principal) -> Result<i32, HttpError> {
    let Some(priority) = value.get("priority") else { return Ok(0) };
    let priority = priority.as_i64().and_then(|number| i32::try_from(number).ok());
    let priority = priority.filter(|number| (-100..=100).contains(number));
    let priority = priority
        .ok_or_else(|| HttpError::bad_request("priority is a whole number from -100 to 100"))?;
    if priority > 0 && caller.role != PrincipalRole::Admin {
        return Err(HttpError::forbidden("only an admin may go before others"));
    }
    Ok(priority)
}

/// What a list may be narrowed by.
#[derive(Debug, Default, Deserialize)]
pub(super) struct ListQuery {
    state: Option<String>,
    status: Option<String>,
    pool: Option<String>,
    requester: Option<String>,
    agent: Option<String>,
    cursor: Option<String>,
    limit: Option<String>,
}

/// `GET /v1/runs`.
pub(super) async fn list(
    State(service): State<Shared>,
    query: Result<Query<ListQuery>, axum::extract::rejection::QueryRejection>,
    request: Request,
) -> Answer {
    let caller = service.admit((request.headers(), peer_of(&request)), Capability::RunsRead)?;
    let Query(query) = query
        .map_err(|error| keep_cause(&error, HttpError::bad_request("the query cannot be read")))?;
    let filter = filter_of(query)?;
    let page = in_lane(Lane::Reads, &service, move |service| {
        let Some(filter) = service.readable_filter(&caller, filter) else {
            return Ok(Listing { runs: Vec::new(), next: None });
        };
        let mut page = service.plane.store().page(&filter)?;
        page.runs.retain(|row| service.is_listed(&caller, row));
        Ok(page)
    });
    let page = page.await?;
    let runs: Vec<RunSummary> = page.runs.into_iter().filter_map(summary).collect();
    let mut body = json!({"runs": runs});
    if let (Some(next), Value::Object(members)) = (page.next, &mut body) {
        members.insert("next".to_owned(), next.to_string().into());
    }
    Ok(answer::json(&body))
}

fn filter_of(query: ListQuery) -> Result<ListingFilter, HttpError> {
    let number = |name: &str, text: Option<String>| match text {
        None => Ok(None),
        Some(text) => match text.parse::<u64>() {
            Ok(number) => Ok(Some(number)),
            Err(_) => Err(HttpError::bad_request(format!("{name} is a whole number"))),
        },
    };
    let mut states = Vec::new();
    if let Some(name) = query.state {
        let state = RunState::parse(&name)
            .ok_or_else(|| HttpError::bad_request("state names no state of a run"))?;
        states.push(state);
    }
    if let Some(name) = query.status {
        let all = RunState::ALL.into_iter().filter(|state| state.wire().as_str() == name);
        states.extend(all);
        if states.is_empty() {
            return Err(HttpError::bad_request("status names no status of a run"));
        }
    }
    let limit = number("limit", query.limit)?.unwrap_or(100);
    if !(1..=1000).contains(&limit) {
        return Err(HttpError::bad_request("limit is a whole number from 1 to 1000"));
    }
    Ok(ListingFilter {
        states,
        pool: query.pool,
        requested_by: query.requester,
        agent_kind: query.agent,
        readable_by: None,
        before: number("cursor", query.cursor)?,
        limit: u32::try_from(limit).unwrap_or(1000),
    })
}

fn summary(row: SummaryRow) -> Option<RunSummary> {
    let continuation = row.continuation.as_deref().and_then(|text| serde_json::from_str(text).ok());
    Some(RunSummary {
        run_id: row.id,
        status: row.state.wire(),
        agent_kind: row.agent_kind,
        pool: row.pool.parse().ok()?,
        prompt: row.prompt,
        requested_by: actor_of(&row.requested_by),
        created_at: row.created_at,
        updated_at: row.updated_at,
        consent_requirements: serde_json::from_str(&row.requirements).unwrap_or_default(),
        has_receipt: row.has_receipt,
        continuation,
        state: Some(row.state),
    })
}

/// `GET /v1/runs/:id`.
pub(super) async fn view(
    State(service): State<Shared>,
    Path(id): Path<String>,
    request: Request,
) -> Answer {
    let caller = service.admit((request.headers(), peer_of(&request)), Capability::RunsRead)?;
    let (text, space) = in_lane(Lane::Reads, &service, move |service| {
        let row = service.readable_run(&caller, &id)?;
        let space = service.chain_space(&row.id, &caller.id, VIEW_COST)?;
        let text = service.view_text(&row)?;
        service.answer_space(text, space)
    })
    .await?;
    Ok(answer::held(answer::json_text(text), space))
}

impl PlaneService {
    /// Returns the run a path names.
    pub(super) fn run_row(&self, id: &str) -> Result<RunRow, HttpError> {
        let missing = || HttpError::missing("run not found");
        let id: RunId = id.parse().map_err(|error| keep_cause(&error, missing()))?;
        match self.plane.store().run(&id) {
            Ok(row) => Ok(row),
            Err(StoreError::UnknownRun(_)) => Err(missing()),
            Err(error) => Err(error.into()),
        }
    }

    /// The view of a run as text: events are stored as text and stay it.
    fn view_text(&self, row: &RunRow) -> Result<String, HttpError> {
        let judgment: Option<Judgment> = serde_json::from_str(&row.judgment).ok();
        let last = row.event_count.saturating_sub(1);
        let last = self.plane.store().events_piece(&row.id, last, 1)?;
        let failure_message = last.last().and_then(|last| {
            let event: ChainedEvent = serde_json::from_str(&last.body).ok()?;
            match event.event() {
                Event::RunFailed { message, .. } => Some(message.clone()),
                Event::RunCancelled { .. } => {
                    Some(format!("cancelled by {}", summarize(&event).detail))
                }
                _ => None,
            }
        });
        let mut head = json!({
            "runId": row.id,
            "status": row.state.wire(),
            "createdAt": row.created_at,
            "updatedAt": row.updated_at,
            "consentRequirements": judgment.as_ref().map(requirements).unwrap_or_default(),
            "state": row.state,
        });
        if let Value::Object(members) = &mut head {
            if let Some(message) = failure_message {
                members.insert("failureMessage".to_owned(), message.into());
            }
            if row.state == RunState::AwaitingApproval {
                let given = self.plane.store().approvals(&row.id)?;
                let by: Vec<_> = given.into_iter().map(|given| given.approver).collect();
                members.insert("approvedBy".to_owned(), json!(by));
                members.insert("deadline".to_owned(), json!(row.deadline));
                members.insert("request".to_owned(), body::parse(row.request.as_bytes())?);
            }
        }
        let mut text = head.to_string();
        text.pop();
        text.push_str(",\"events\":[");
        let mut from = 0;
        loop {
            let piece = self.plane.store().events_piece(&row.id, from, PIECE_BYTES)?;
            let Some(last) = piece.last() else { break };
            for event in &piece {
                text.push_str(if event.seq == 0 { "" } else { "," });
                text.push_str(&event.body);
            }
            from = last.seq + 1;
        }
        text.push_str("]}");
        Ok(text)
    }

    /// Takes the memory that work with the chain of a run needs: its size, so many times.
    pub(super) fn chain_space(
        &self,
        run: &RunId,
        holder: &str,
        times: u64,
    ) -> Result<Reservation, HttpError> {
        let bytes = self.plane.store().chain_bytes(run)?.saturating_mul(times);
        let mut space = self.admission.budget.reservation(Holder::Known(holder.to_owned()));
        space.try_grow(usize::try_from(bytes).unwrap_or(usize::MAX))?;
        Ok(space)
    }

    /// Keeps no more of that memory than an answer needs until it was sent.
    fn answer_space(
        &self,
        text: String,
        space: Reservation,
    ) -> Result<(String, Reservation), HttpError> {
        let mut kept = space.of_the_same_holder();
        drop(space);
        kept.try_grow(text.len())?;
        Ok((text, kept))
    }
}

/// `POST /v1/runs/:id/approve`.
pub(super) async fn approve(
    State(service): State<Shared>,
    Path(id): Path<String>,
    request: Request,
) -> Answer {
    let caller = service.admit((request.headers(), peer_of(&request)), Capability::RunsApprove)?;
    let value = body::json(request, body::MEDIUM, &caller.id).await?;
    let wish = ApproveRun::from_value(&value)?;
    blocking(&service, move |service| {
        let run = named(&id)?;
        let given = match (&wish.statement, &wish.idp_token) {
            (Some(statement), _) => service.plane.approve(&run, statement),
            (None, Some(token)) => {
                let actor = idp::actor_of_token(service.settings.idp.as_ref(), token)?;
                service.plane.approve_authenticated(&run, &actor)
            }
            (None, None) if service.settings.idp.as_ref().is_some_and(|idp| idp.required) => {
                return Err(HttpError::forbidden("approvals here need a token of the IdP"));
            }
            // SECURITY: who approves is whoever the token says, not the body.
            (None, None) => service.plane.approve_authenticated(&run, &caller.actor),
        };
        let approved = given.map_err(|error| not_waiting(&run, error))?;
        service.metrics.count("runs.approved");
        service.changes.tell(&run);
        Ok(answer::json(&match approved {
            Approved::Issued => {
                service.tell_queued(&run);
                json!({"runId": run, "status": WireStatus::Created})
            }
            Approved::Missing(missing) => {
                let status = WireStatus::AwaitingApproval;
                json!({"runId": run, "status": status, "missing": missing})
            }
        }))
    })
    .await
}

/// `POST /v1/runs/:id/deny`.
pub(super) async fn deny(
    State(service): State<Shared>,
    Path(id): Path<String>,
    request: Request,
) -> Answer {
    let caller = service.admit((request.headers(), peer_of(&request)), Capability::RunsApprove)?;
    let value = body::json(request, body::SMALL, &caller.id).await?;
    let wish = RefuseRun::from_value(&value)?;
    blocking(&service, move |service| {
        let run = named(&id)?;
        let reason = wish.reason.as_deref().unwrap_or("no reason given");
        let refused = service.plane.refuse(&run, &caller.actor, reason);
        refused.map_err(|error| not_waiting(&run, error))?;
        service.metrics.count("runs.refused");
        service.changes.tell(&run);
        Ok(answer::json(&json!({"runId": run, "status": WireStatus::Failed, "state": "denied"})))
    })
    .await
}

/// `POST /v1/runs/:id/cancel`.
pub(super) async fn cancel(
    State(service): State<Shared>,
    Path(id): Path<String>,
    request: Request,
) -> Answer {
    let caller = service.admit((request.headers(), peer_of(&request)), Capability::RunsCancel)?;
    let value = body::json(request, body::SMALL, &caller.id).await?;
    CancelRun::from_value(&value)?;
    blocking(&service, move |service| {
        let run = named(&id)?;
        let row = service.plane.store().run(&run)?;
        if !service.may_read_run(&caller, &row)? {
            return Err(HttpError::unknown_run(&id));
        }
        let is_own = row.requested_by == caller.actor.label();
        if !is_own && caller.role != PrincipalRole::Admin {
            return Err(HttpError::forbidden("only its requester or an admin cancels a run"));
        }
        let stopped = service.plane.stop(&run, &caller.actor).map_err(|error| match error {
            ApproveError::Store(StoreError::Conflict { state, .. }) => HttpError::bad_request(
                format!("run {run} is {state}; only runs that have not ended can be cancelled"),
            ),
            error => error.into(),
        })?;
        service.metrics.count("runs.cancelled");
        service.changes.tell(&run);
        Ok(answer::json(&match stopped {
            Stopped::Ended => json!({"runId": run, "status": WireStatus::Cancelled}),
            Stopped::Asked => {
                json!({"runId": run, "status": WireStatus::Running, "state": "stopping"})
            }
        }))
    })
    .await
}

fn named(id: &str) -> Result<RunId, HttpError> {
    id.parse().map_err(|error| keep_cause(&error, HttpError::unknown_run(id)))
}

fn not_waiting(run: &RunId, error: ApproveError) -> HttpError {
    match error {
        ApproveError::Store(StoreError::Conflict { .. }) => {
            HttpError::conflict(format!("run {run} is not awaiting approval"))
        }
        error => error.into(),
    }
}

/// `GET /v1/runs/:id/bundle`.
pub(super) async fn bundle(
    State(service): State<Shared>,
    Path(id): Path<String>,
    request: Request,
) -> Answer {
    let caller = service.admit((request.headers(), peer_of(&request)), Capability::RunsRead)?;
    let (text, space) = in_lane(Lane::Reads, &service, move |service| {
        let run: RunId = id
            .parse()
            .map_err(|error| keep_cause(&error, HttpError::missing("bundle not available")))?;
        if !service.may_read_named(&caller, &run) {
            return Err(HttpError::missing("bundle not available"));
        }
        let space = service.chain_space(&run, &caller.id, BUNDLE_COST)?;
        let text = service.plane.bundle(&run)?.to_string();
        service.answer_space(text, space)
    })
    .await?;
    Ok(answer::held(answer::json_text(text), space))
}

/// What an export may be narrowed by.
#[derive(Debug, Default, Deserialize)]
pub(super) struct ExportQuery {
    since: Option<String>,
}

/// `GET /v1/export`.
pub(super) async fn export(
    State(service): State<Shared>,
    query: Result<Query<ExportQuery>, axum::extract::rejection::QueryRejection>,
    request: Request,
) -> Answer {
    service.admit((request.headers(), peer_of(&request)), Capability::ExportRead)?;
    let Query(query) = query
        .map_err(|error| keep_cause(&error, HttpError::bad_request("the query cannot be read")))?;
    let since = match query.since {
        None => Timestamp::from_unix_ms(0).map_err(|error| HttpError::internal(&error))?,
        Some(text) => moment(&text)
            .ok_or_else(|| HttpError::bad_request("since is no time like 2026-01-31T12:00:00Z"))?,
    };
    let lines = stream::try_unfold(Some(ExportPosition::since(since)), move |position| {
        let service = std::sync::Arc::clone(&service);
        async move {
            let Some(after) = position else { return Ok(None) };
            let piece = in_lane(Lane::Reads, &service, move |service| {
                let mut piece = Vec::with_capacity(PIECE_BYTES + PIECE_BYTES / 8);
                let store = service.plane.store();
                let next = store.export_piece(after, &mut piece, PIECE_BYTES)?;
                Ok((Bytes::from(piece), next))
            });
            // What failed was logged; the reader sees that the answer broke off.
            piece
                .await
                .map(Some)
                .map_err(|error| keep_cause(&error, std::io::Error::other("the export broke off")))
        }
    });
    Ok(answer::typed("application/x-ndjson", Body::from_stream(lines)))
}

/// Reads a time as the wire writes it, or with fewer digits of a second.
fn moment(text: &str) -> Option<Timestamp> {
    let whole = || {
        let (date, rest) = text.strip_suffix('Z')?.split_once('T')?;
        let with_ms = if rest.contains('.') { rest.to_owned() } else { format!("{rest}.000") };
        Some(format!("{date}T{with_ms}Z"))
    };
    text.parse().ok().or_else(|| whole()?.parse().ok())
}
