//! Every refusal of the HTTP API, with its status and body, in one file.
//!
//! The text of something that broke inside never leaves: it is logged, and the caller is told
//! that it broke.

use axum::response::{IntoResponse, Response};
use hyper::StatusCode;
use warrant_protocol::claim::InvalidClaim;
use warrant_protocol::event::FailureClass;
use warrant_protocol::port::PlaneError;
use warrant_protocol::validate::Invalid;
use warrant_protocol::wire::ErrorBody;
use warrant_protocol::{RunId, error_chain};

use super::answer;
use super::budget::NoSpace;
use super::connections::ConnectionRefusal;
use super::json_scan::TooComplex;
use crate::approvals::ApproveError;
use crate::archive::ArchiveError;
use crate::embedded::EmbeddedError;
use crate::files;
use crate::reception::SubmitError;
use crate::request_context::note_cause;
use crate::secrets::SecretsError;
use crate::store::{DamagedBlob, StoreError};

/// A refusal: a status and its body.
#[derive(Debug)]
pub struct HttpError {
    status: StatusCode,
    body: Box<ErrorBody>,
    retry_after_s: Option<u32>,
}

impl HttpError {
    fn new(status: StatusCode, error: impl Into<String>) -> Self {
        Self { status, body: Box::new(ErrorBody::text(error)), retry_after_s: None }
    }

    fn coded(status: StatusCode, code: &str, error: impl Into<String>) -> Self {
        let mut refusal = Self::new(status, error);
        refusal.body.code = Some(code.to_owned());
        refusal
    }

    /// Nobody we know.
    pub(crate) fn unauthorized() -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "unauthorized")
    }

    /// Not the runner, or not any more.
    pub(crate) fn not_accepted(error: impl Into<String>) -> Self {
        Self::coded(StatusCode::UNAUTHORIZED, "unauthorized", error)
    }

    /// Somebody we know, who may not do this.
    pub(crate) fn lacks_role() -> Self {
        Self::new(StatusCode::FORBIDDEN, "forbidden: principal lacks the required role")
    }

    /// Somebody we know, who may not do this here.
    pub(crate) fn forbidden(error: impl Into<String>) -> Self {
        Self::coded(StatusCode::FORBIDDEN, "forbidden", error)
    }

    /// The request makes no sense.
    pub(crate) fn bad_request(error: impl Into<String>) -> Self {
        Self::coded(StatusCode::BAD_REQUEST, "bad_request", error)
    }

    /// The body is not JSON.
    pub(crate) fn not_json() -> Self {
        Self::new(StatusCode::BAD_REQUEST, "request body is not valid JSON")
    }

    /// The body took too long to arrive.
    pub(crate) fn slow_body(why: impl std::fmt::Display) -> Self {
        let text = format!("request body took too long: {why}");
        Self::new(StatusCode::REQUEST_TIMEOUT, text).retry_after(1)
    }

    /// The body is larger than this call takes.
    pub(crate) fn too_large(limit: u64) -> Self {
        let text = format!("body too large: this call takes at most {limit} bytes");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, text)
    }

    /// A large body says too late whose it is.
    pub(crate) fn token_too_late(member: &str, bytes: usize) -> Self {
        let text = format!(
            "body too large: beyond {bytes} bytes {member} must be its first member, \
             or a bearer token"
        );
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, text)
    }

    /// The connection is one too many.
    pub(crate) fn too_many_connections(refusal: ConnectionRefusal) -> Self {
        match refusal {
            ConnectionRefusal::Address { limit } => {
                let text = format!("this address has {limit} busy connections, which is the limit");
                Self::new(StatusCode::TOO_MANY_REQUESTS, text).retry_after(1)
            }
            ConnectionRefusal::Total { limit } => {
                let text = format!("the plane has {limit} busy connections, which is the limit");
                Self::new(StatusCode::SERVICE_UNAVAILABLE, text).retry_after(1)
            }
        }
    }

    /// The token has too many requests under way.
    pub(crate) fn too_many_requests_of_token(limit: usize) -> Self {
        let text = format!("this token has {limit} requests under way, which is the limit");
        Self::new(StatusCode::TOO_MANY_REQUESTS, text).retry_after(1)
    }

    /// Returns its status.
    #[must_use]
    pub const fn status(&self) -> StatusCode {
        self.status
    }

    /// Returns what the caller is told.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.body.error
    }

    const fn retry_after(mut self, seconds: u32) -> Self {
        self.retry_after_s = Some(seconds);
        self
    }

    /// Returns the whole answer as it is sent on a connection that is closed at once.
    pub(crate) fn as_text(&self) -> String {
        let body = serde_json::to_string(&self.body).unwrap_or_default();
        let retry = self.retry_after_s.map(|seconds| format!("retry-after: {seconds}\r\n"));
        format!(
            "HTTP/1.1 {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n{}connection: close\r\n\r\n{body}",
            self.status,
            body.len(),
            retry.unwrap_or_default(),
        )
    }

    /// There is none.
    pub(crate) fn missing(error: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, error)
    }

    /// There is no such run.
    pub(crate) fn unknown_run(run: &str) -> Self {
        Self::coded(StatusCode::NOT_FOUND, "not_found", format!("unknown run {run}"))
    }

    /// It stands in the way of what exists.
    pub(crate) fn conflict(error: impl Into<String>) -> Self {
        Self::coded(StatusCode::CONFLICT, "conflict", error)
    }

    /// The lease is over: stop, write nothing more.
    pub(crate) fn fenced(run: &RunId) -> Self {
        Self::coded(StatusCode::CONFLICT, "fenced", format!("the lease of {run} is over"))
    }

    /// Too many requests of one caller.
    pub(crate) fn rate_limited() -> Self {
        let mut refusal = Self::new(StatusCode::TOO_MANY_REQUESTS, "rate limit exceeded");
        refusal.retry_after_s = Some(1);
        refusal
    }

    /// Too many wrong tokens from one address; right ones are not held up.
    pub(crate) fn locked_out() -> Self {
        let text = "too many authentication failures; backing off";
        let mut refusal = Self::new(StatusCode::TOO_MANY_REQUESTS, text);
        refusal.retry_after_s = Some(60);
        refusal
    }

    /// Too much at once, or the plane is going down.
    pub(crate) fn busy() -> Self {
        let mut refusal = Self::new(StatusCode::SERVICE_UNAVAILABLE, "busy; try again");
        refusal.retry_after_s = Some(1);
        refusal
    }

    /// The policy said no; the receipt of `run` says so too.
    pub(crate) fn policy_denied(reasons: Vec<String>, run: Option<RunId>) -> Self {
        let text = format!("policy denied: {}", reasons.join("; "));
        let mut refusal = Self::coded(StatusCode::FORBIDDEN, "policy_denied", text);
        refusal.body.reasons = Some(reasons);
        refusal.body.run_id = run;
        refusal
    }

    /// The store cannot be written now; what exactly is logged.
    pub(crate) fn unwritable(cause: &dyn std::error::Error) -> Self {
        // The cause is logged the same way; only the answer differs.
        let _logged = Self::internal(cause);
        let text = "the store cannot be written now; see /v1/ready";
        let mut refusal = Self::coded(StatusCode::SERVICE_UNAVAILABLE, "store_unwritable", text);
        refusal.retry_after_s = Some(5);
        refusal
    }

    /// Something of ours broke; what exactly is logged.
    pub(crate) fn internal(cause: &dyn std::error::Error) -> Self {
        note_cause(&error_chain(cause));
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal server error")
    }

    /// Work of ours was cut short.
    pub(crate) fn interrupted(cause: &dyn std::error::Error) -> Self {
        note_cause(&format!("cut short inside: {}", error_chain(cause)));
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal server error")
    }
}

impl std::fmt::Display for HttpError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.status.as_u16(), self.body.error)
    }
}

impl std::error::Error for HttpError {}

impl IntoResponse for HttpError {
    fn into_response(self) -> Response {
        let mut response = answer::json(&*self.body);
        *response.status_mut() = self.status;
        if let Some(seconds) = self.retry_after_s {
            response.headers_mut().insert(hyper::header::RETRY_AFTER, seconds.into());
        }
        response
    }
}

impl From<NoSpace> for HttpError {
    fn from(refusal: NoSpace) -> Self {
        match refusal {
            NoSpace::Share { mib } => {
                let text = format!("requests of this caller fill the {mib} MiB that one may have");
                Self::new(StatusCode::TOO_MANY_REQUESTS, text).retry_after(1)
            }
            NoSpace::Busy => Self::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "busy: the memory for requests is in use; try again",
            )
            .retry_after(1),
        }
    }
}

impl From<TooComplex> for HttpError {
    fn from(refusal: TooComplex) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, format!("body too large: {refusal}"))
    }
}

impl From<Invalid> for HttpError {
    fn from(invalid: Invalid) -> Self {
        let mut refusal = Self::new(StatusCode::BAD_REQUEST, invalid.to_string());
        refusal.body.issues = Some(invalid.issues);
        refusal
    }
}

impl From<InvalidClaim> for HttpError {
    fn from(invalid: InvalidClaim) -> Self {
        if invalid.is_unauthorized() {
            Self::not_accepted(invalid.to_string())
        } else {
            Self::bad_request(invalid.to_string())
        }
    }
}

impl From<StoreError> for HttpError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::UnknownRun(run) => Self::unknown_run(&run),
            StoreError::Conflict { .. }
            | StoreError::Fork { .. }
            | StoreError::ApprovalsChanged(_) => Self::conflict(error.to_string()),
            StoreError::File(cause) => cause.into(),
            other if other.is_of_writing() => Self::unwritable(&other),
            other => Self::internal(&other),
        }
    }
}

impl From<EmbeddedError> for HttpError {
    fn from(error: EmbeddedError) -> Self {
        match error {
            EmbeddedError::Store(error) => error.into(),
            other if other.is_of_writing() => Self::unwritable(&other),
            other => Self::internal(&other),
        }
    }
}

impl From<std::io::Error> for HttpError {
    fn from(error: std::io::Error) -> Self {
        if let Some(damaged) = error.get_ref().and_then(|cause| cause.downcast_ref::<DamagedBlob>())
        {
            let text = damaged.to_string();
            return Self::coded(StatusCode::INTERNAL_SERVER_ERROR, "blob_damaged", text);
        }
        if files::is_of_writing(&error) {
            return Self::unwritable(&error);
        }
        Self::internal(&error)
    }
}

impl From<SubmitError> for HttpError {
    fn from(error: SubmitError) -> Self {
        match error {
            SubmitError::Store(error) => error.into(),
            // The policy was replaced between the judgment and the record; asking again helps.
            SubmitError::OtherPolicy { .. } => Self::busy(),
            other => Self::internal(&other),
        }
    }
}

impl From<ArchiveError> for HttpError {
    fn from(error: ArchiveError) -> Self {
        match error {
            ArchiveError::NotEnded(_) | ArchiveError::Store(StoreError::UnknownRun(_)) => {
                Self::missing("bundle not available")
            }
            other => Self::internal(&other),
        }
    }
}

impl From<SecretsError> for HttpError {
    fn from(error: SecretsError) -> Self {
        match error {
            SecretsError::Value { .. } => Self::bad_request(error.to_string()),
            SecretsError::Missing { .. } => Self::missing(error.to_string()),
            other => Self::internal(&other),
        }
    }
}

impl From<ApproveError> for HttpError {
    fn from(error: ApproveError) -> Self {
        match error {
            ApproveError::Store(error) | ApproveError::Plane(EmbeddedError::Store(error)) => {
                error.into()
            }
            ApproveError::Expired(_) | ApproveError::PolicyChanged(_) => {
                Self::conflict(error.to_string())
            }
            ApproveError::NotAnApprover { .. }
            | ApproveError::OwnRequest(_)
            | ApproveError::NoKey(_) => Self::forbidden(error.to_string()),
            ApproveError::Statement { .. } => Self::bad_request(error.to_string()),
            ApproveError::Home(crate::home::HomeError::ApproverName) => {
                Self::bad_request("the approver's name cannot be one")
            }
            other => Self::internal(&other),
        }
    }
}

impl From<PlaneError> for HttpError {
    fn from(error: PlaneError) -> Self {
        match error {
            PlaneError::Fenced(run) => Self::fenced(&run),
            PlaneError::Refused { failure, message } => {
                let status = match failure {
                    FailureClass::PolicyDenied | FailureClass::SecretReleaseDenied => {
                        StatusCode::FORBIDDEN
                    }
                    FailureClass::BudgetExceeded => StatusCode::PAYLOAD_TOO_LARGE,
                    _ => StatusCode::BAD_REQUEST,
                };
                let code = match status {
                    StatusCode::FORBIDDEN => "forbidden",
                    StatusCode::PAYLOAD_TOO_LARGE => "too_large",
                    _ => "bad_request",
                };
                let mut refusal = Self::coded(status, code, message);
                refusal.body.failure = Some(failure);
                refusal
            }
            PlaneError::Failed(cause) => Self::internal(&*cause),
        }
    }
}
