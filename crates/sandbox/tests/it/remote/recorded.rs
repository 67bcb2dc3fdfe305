//! Edge answers of the real servers, played back.

use warrant_protocol::Isolation;

use super::replay::{Replay, Turn};

#[track_caller]
fn check(isolation: Isolation, turns: &[Turn], wanted: &str) {
    let replay = Replay::start(turns);
    let refusal = replay.refusal(isolation);
    assert!(refusal.contains(wanted), "{refusal}");
    replay.check();
}

#[test]
fn refusals_are_told_in_the_providers_own_words_and_nothing_more_is_asked() {
    check(
        Isolation::E2b,
        &[("POST /v2/sandboxes", 401, r#"{"code":401,"message":"Invalid API key"}"#)],
        "401: Invalid API key",
    );
    check(
        Isolation::Opensandbox,
        &[(
            "POST /v1/sandboxes",
            422,
            r#"{"detail":[{"type":"missing","loc":["body","resourceLimits"],"msg":"Field required"}]}"#,
        )],
        "Field required",
    );
    check(
        Isolation::Opensandbox,
        &[(
            "POST /v1/sandboxes",
            401,
            r#"{"code":"INVALID_API_KEY","message":"Authentication credentials are invalid"}"#,
        )],
        "credentials are invalid",
    );
    check(
        Isolation::Daytona,
        &[(
            "POST /api/sandbox",
            403,
            r#"{"statusCode":403,"message":"Total CPU limit exceeded","code":"FORBIDDEN","path":"/api/sandbox"}"#,
        )],
        "403: Total CPU limit exceeded",
    );
}

#[test]
fn an_older_e2b_server_is_asked_the_older_way() {
    const UNKNOWN: &str = r#"{"code":404,"message":"no matching operation was found"}"#;
    check(
        Isolation::E2b,
        &[
            ("POST /v2/sandboxes", 404, UNKNOWN),
            ("POST /sandboxes", 429, r#"{"code":429,"message":"too many"}"#),
        ],
        "429: too many",
    );
}

/// A sandbox that does not answer yet is waited for; one that is lost afterwards is deleted.
#[test]
fn a_sandbox_that_is_not_running_yet_is_waited_for() {
    const CREATED: &str = r#"{"templateID":"base","sandboxID":"i1","clientID":"c",
        "envdVersion":"0.6.13","envdAccessToken":"t","domain":null}"#;
    const NOT_YET: &str = r#"{"sandboxId":"i1","message":"The sandbox was not found","code":502}"#;
    const GONE: &str = r#"{"code":404,"message":"sandbox \"i1\" doesn't exist"}"#;
    check(
        Isolation::E2b,
        &[
            ("POST /v2/sandboxes", 201, CREATED),
            ("GET /health", 502, NOT_YET),
            ("GET /health", 502, NOT_YET),
            ("GET /health", 204, ""),
            ("GET /sandboxes/i1", 404, GONE),
            ("DELETE /sandboxes/i1", 204, ""),
        ],
        "doesn't exist",
    );
}

#[test]
fn a_toolbox_that_is_not_told_is_asked_for_and_a_busy_sandbox_is_deleted_later() {
    const CREATING: &str = r#"{"id":"s1","state":"creating","labels":{}}"#;
    const STARTED: &str = r#"{"id":"s1","state":"started","labels":{}}"#;
    const BUSY: &str = r#"{"statusCode":409,"message":"Sandbox state change in progress"}"#;
    check(
        Isolation::Daytona,
        &[
            ("POST /api/sandbox", 200, CREATING),
            ("GET /api/sandbox/s1", 200, CREATING),
            ("GET /api/sandbox/s1", 200, STARTED),
            // No end of its life is told, so it is to be deleted when it is stopped.
            ("POST /api/sandbox/s1/autodelete/0", 200, STARTED),
            ("GET /api/sandbox/s1/toolbox-proxy-url", 200, r#"{"url":"ftp://ADDRESS"}"#),
            ("DELETE /api/sandbox/s1", 409, BUSY),
            ("DELETE /api/sandbox/s1", 409, BUSY),
            ("DELETE /api/sandbox/s1", 200, STARTED),
        ],
        "the toolbox is at no usable address",
    );
}

#[test]
fn a_sandbox_that_died_is_not_waited_for() {
    check(
        Isolation::Daytona,
        &[
            ("POST /api/sandbox", 200, r#"{"id":"s1","state":"creating"}"#),
            ("GET /api/sandbox/s1", 200, r#"{"id":"s1","state":"build_failed"}"#),
            ("DELETE /api/sandbox/s1", 404, r#"{"statusCode":404,"message":"not found"}"#),
        ],
        "its state is build_failed",
    );
    check(
        Isolation::Opensandbox,
        &[
            ("POST /v1/sandboxes", 202, r#"{"id":"o1","status":{"state":"Pending"}}"#),
            ("GET /v1/sandboxes/o1", 200, r#"{"id":"o1","status":{"state":"Failed"}}"#),
            ("DELETE /v1/sandboxes/o1", 204, ""),
        ],
        "its state is failed",
    );
}

/// The address a sandbox says it has may not be reachable from here; the server's own is. An
/// address is told without its protocol.
#[test]
fn a_sandbox_that_cannot_be_reached_itself_is_reached_through_the_server() {
    const RUNNING: &str = r#"{"id":"o1","status":{"state":"Running"}}"#;
    const ELSEWHERE: &str = r#"{"endpoint":"127.0.0.1:1/proxy/44772"}"#;
    const HERE: &str = r#"{"endpoint":"ADDRESS/v1/sandboxes/o1/proxy/44772"}"#;
    check(
        Isolation::Opensandbox,
        &[
            ("POST /v1/sandboxes", 202, RUNNING),
            ("GET /v1/sandboxes/o1", 200, RUNNING),
            ("GET /v1/sandboxes/o1/endpoints/44772", 200, ELSEWHERE),
            ("GET /v1/sandboxes/o1/endpoints/44772?use_server_proxy=true", 200, HERE),
            ("GET /v1/sandboxes/o1/proxy/44772/ping", 200, ""),
            ("GET /v1/sandboxes/o1", 410, r#"{"code":"SANDBOX_EXPIRED","message":"expired"}"#),
            ("DELETE /v1/sandboxes/o1", 404, r#"{"code":"DOCKER::SANDBOX_NOT_FOUND"}"#),
        ],
        "410: expired",
    );
}

/// What may have been made is looked for by its label; what carries another home's is left alone.
#[test]
fn what_an_unclear_answer_made_is_found_by_its_label() {
    const LISTED: &str = r#"[
        {"sandboxID":"i8","metadata":{"warrant-home":"another",
            "warrant-session":"07070707070707070707070707070707"}},
        {"sandboxID":"i9","metadata":{"warrant-home":"home-of-the-test",
            "warrant-session":"07070707070707070707070707070707"}}]"#;
    check(
        Isolation::E2b,
        &[
            ("POST /v2/sandboxes", 504, "<html>gateway timeout</html>"),
            ("GET /v2/sandboxes?metadata=warrant-home%3Dhome-of-the-test", 200, LISTED),
            ("DELETE /sandboxes/i9", 204, ""),
        ],
        "504",
    );
}
