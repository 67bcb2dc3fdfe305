//! What an OpenSandbox sandbox may reach: rules in the protocol's words, deny by default.
//!
//! Everything that no rule allows is denied, so a rule that denies takes allowed hosts away. One
//! that could only be kept beside a wider allowed host is refused: nothing here makes exceptions.

use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Map, Value, json};
use warrant_protocol::request::ActorRef;

use super::{Enter, error, invalid};
use crate::doors::reply::{self, text, unknown_member};
use crate::doors::{Hall, Reach, Sandbox};

/// Tells what is enforced, by what.
pub(crate) async fn policy(Enter((_, sandbox)): Enter) -> Response {
    policy_of(&sandbox)
}

fn policy_of(sandbox: &Sandbox) -> Response {
    let rule = |host: &String| json!({ "action": "allow", "target": host });
    let rules: Vec<Value> = sandbox.hosts.iter().map(rule).collect();
    let mode = if rules.is_empty() { "deny_all" } else { "enforcing" };
    let body = json!({
        "status": "ok",
        "mode": mode,
        "enforcementMode": "network namespace and proxy",
        "policy": { "defaultAction": "deny", "egress": rules },
    });
    reply::json(StatusCode::OK, &body)
}

/// Puts a whole policy in the place of the one there is.
pub(crate) async fn replace(
    State(hall): State<Hall>,
    Enter(visit): Enter,
    body: Bytes,
) -> Response {
    match reply::object(&body).and_then(|policy| of_policy(&policy)) {
        Ok(reach) => change(&hall, visit, reach).await,
        Err(message) => invalid(&message),
    }
}

/// Changes single rules: what is allowed is added to what is reached, what is denied is taken away.
pub(crate) async fn add_rules(
    State(hall): State<Hall>,
    Enter(visit): Enter,
    body: Bytes,
) -> Response {
    let Ok(given) = serde_json::from_slice::<Vec<Value>>(&body) else {
        return invalid("the body must be a list of rules");
    };
    let hosts = rules(&given).and_then(|rules| merged(&visit.1.hosts, &rules));
    match hosts {
        Ok(hosts) => change(&hall, visit, reach_of(hosts)).await,
        Err(message) => invalid(&message),
    }
}

/// Takes the rules for targets away: what no rule allows is not reached.
pub(crate) async fn remove_rules(
    State(hall): State<Hall>,
    Enter(visit): Enter,
    body: Bytes,
) -> Response {
    let Ok(targets) = serde_json::from_slice::<Vec<String>>(&body) else {
        return invalid("the body must be a list of targets");
    };
    let mut hosts = visit.1.hosts.clone();
    hosts.retain(|host| !targets.iter().any(|target| plain(target) == plain(host)));
    change(&hall, visit, reach_of(hosts)).await
}

async fn change(hall: &Hall, (guest, sandbox): (ActorRef, Sandbox), reach: Reach) -> Response {
    let changed = hall.ask(move |workshop| workshop.set_reach(&guest, &sandbox.id, reach)).await;
    match changed {
        Ok(sandbox) => policy_of(&sandbox),
        Err(refusal) => error(&refusal),
    }
}

/// Reads what a create body says of the network; nothing said means what policy lists.
pub(crate) fn reach(body: &Map<String, Value>) -> Result<Reach, String> {
    match body.get("networkPolicy") {
        None | Some(Value::Null) => Ok(Reach::AsPolicy),
        Some(Value::Object(policy)) => of_policy(policy),
        Some(_) => Err("networkPolicy must be an object".to_owned()),
    }
}

fn of_policy(policy: &Map<String, Value>) -> Result<Reach, String> {
    if let Some(name) = unknown_member(policy, &["defaultAction", "egress"]) {
        return Err(format!("networkPolicy.{name} cannot be enforced here"));
    }
    match text(policy, "defaultAction")?.as_deref() {
        None | Some("deny") => {}
        Some(other) => {
            return Err(format!(
                "networkPolicy.defaultAction `{other}` is not granted here: deny, and allow hosts \
                 by name"
            ));
        }
    }
    let given = match policy.get("egress") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(rules)) => rules.clone(),
        Some(_) => return Err("networkPolicy.egress must be a list of rules".to_owned()),
    };
    merged(&[], &rules(&given)?).map(reach_of)
}

fn reach_of(hosts: Vec<String>) -> Reach {
    if hosts.is_empty() { Reach::Nothing } else { Reach::Hosts(hosts) }
}

/// One rule.
#[derive(Debug, PartialEq, Eq)]
struct Rule {
    target: String,
    is_allowed: bool,
}

/// Reads rules. Of several for one target the first counts, as the protocol has it.
fn rules(given: &[Value]) -> Result<Vec<Rule>, String> {
    let mut read: Vec<Rule> = Vec::new();
    for value in given {
        let rule = value.as_object().ok_or("a rule must be an object")?;
        // SECURITY: a rule that says more than this, a port perhaps, would be kept too widely.
        if let Some(name) = unknown_member(rule, &["action", "target"]) {
            return Err(format!("a rule's {name} cannot be enforced here"));
        }
        let target = text(rule, "target")?.map(|target| plain(&target));
        let target =
            target.filter(|target| !target.is_empty()).ok_or("a rule has no target".to_owned())?;
        let is_allowed = match text(rule, "action")?.as_deref() {
            Some("allow") => true,
            Some("deny") => false,
            _ => return Err("a rule's action must be allow or deny".to_owned()),
        };
        if read.iter().all(|rule| rule.target != target) {
            read.push(Rule { target, is_allowed });
        }
    }
    Ok(read)
}

/// Returns the hosts that are reached once rules are added.
///
/// SECURITY: `deny bad.example.org` beside `allow *.example.org` cannot be enforced, and letting it
/// pass would open what the client closed.
fn merged(hosts: &[String], rules: &[Rule]) -> Result<Vec<String>, String> {
    let mut hosts = hosts.to_vec();
    for rule in rules {
        hosts.retain(|host| match rule.is_allowed {
            true => plain(host) != rule.target,
            false => !is_within(host, &rule.target),
        });
    }
    hosts.extend(rules.iter().filter(|rule| rule.is_allowed).map(|rule| rule.target.clone()));
    for denied in rules.iter().filter(|rule| !rule.is_allowed).map(|rule| &rule.target) {
        let overlaps = |host: &&String| is_within(host, denied) || is_within(denied, host);
        if let Some(host) = hosts.iter().find(overlaps) {
            return Err(format!("`{denied}` cannot be denied while `{host}` is allowed"));
        }
    }
    Ok(hosts)
}

/// Returns a target as it is compared: names have no case and no dot at their end.
fn plain(target: &str) -> String {
    let lower = target.trim().to_lowercase();
    lower.strip_suffix('.').unwrap_or(&lower).to_owned()
}

/// Returns whether every name that `inner` stands for is one that `outer` stands for; ports are
/// left aside.
fn is_within(inner: &str, outer: &str) -> bool {
    let (inner, outer) = (plain(inner), plain(outer));
    let (inner, outer) = (name_of(&inner), name_of(&outer));
    match outer.strip_prefix("*.") {
        _ if inner == outer => true,
        None => outer == "*",
        Some(parent) => inner.strip_suffix(parent).is_some_and(|front| front.ends_with('.')),
    }
}

/// Returns a target without its port.
fn name_of(target: &str) -> &str {
    match target.rsplit_once(':') {
        Some((name, _)) if !name.contains(':') => name,
        _ => target,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(hosts: &[&str], given: &Value, expected: Option<&[&str]>) {
        let hosts: Vec<String> = hosts.iter().map(ToString::to_string).collect();
        let got = rules(given.as_array().unwrap()).and_then(|rules| merged(&hosts, &rules));
        let expected: Option<Vec<String>> =
            expected.map(|all| all.iter().map(ToString::to_string).collect());
        assert_eq!(got.as_ref().ok(), expected.as_ref(), "{given} {got:?}");
    }

    fn allow(target: &str) -> Value {
        json!({ "action": "allow", "target": target })
    }

    fn deny(target: &str) -> Value {
        json!({ "action": "deny", "target": target })
    }

    #[test]
    fn rules_are_merged_by_target_and_the_first_counts() {
        check(&["a.org"], &json!([allow("B.org.")]), Some(&["a.org", "b.org"]));
        check(&["a.org", "b.org"], &json!([deny("A.ORG")]), Some(&["b.org"]));
        check(&["a.org:443", "b.org"], &json!([deny("a.org")]), Some(&["b.org"]));
        check(&["x.a.org", "b.org"], &json!([deny("*.a.org")]), Some(&["b.org"]));
        check(&[], &json!([deny("a.org"), allow("a.org")]), Some(&[]));
        check(&[], &json!([allow("a.org"), deny("a.org")]), Some(&["a.org"]));
        check(&["a.org"], &json!([deny("*")]), Some(&[]));
    }

    #[test]
    fn a_denied_host_is_not_reached_by_a_wider_allowed_one() {
        check(&["*.a.org"], &json!([deny("bad.a.org")]), None);
        check(&[], &json!([deny("bad.a.org"), allow("*.a.org")]), None);
        check(&[], &json!([allow("good.a.org"), deny("*.a.org")]), None);
        check(&["*.a.org"], &json!([deny("*.b.a.org")]), None);
        check(&["*.a.org"], &json!([deny("nota.org")]), Some(&["*.a.org"]));
    }

    #[test]
    fn a_rule_that_says_more_is_refused() {
        let port = json!({ "action": "allow", "target": "a.org", "port": 443 });
        for given in [json!([port]), json!([{ "action": "allow" }]), json!(["a.org"])] {
            check(&[], &given, None);
        }
        let policy = |text: &str| {
            of_policy(serde_json::from_str::<Value>(text).unwrap().as_object().unwrap())
        };
        assert!(policy(r#"{"defaultAction":"allow"}"#).is_err());
        assert!(policy(r#"{"defaultAction":"Allow"}"#).is_err());
        assert!(policy(r#"{"egress":"all"}"#).is_err());
        assert_eq!(policy("{}"), Ok(Reach::Nothing));
    }
}
