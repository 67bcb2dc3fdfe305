//! What an OpenSandbox sandbox may reach: rules in the protocol's words, deny by default.
//!
//! Everything that no rule allows is denied, so a rule that denies takes allowed hosts away; it is
//! remembered to be told again, and decides nothing. One that could only be kept beside a wider
//! allowed host is refused: nothing here makes exceptions.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, PoisonError};

use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Map, Value, json};
use warrant_protocol::authority::split_port;
use warrant_protocol::request::ActorRef;

use super::{Desk, Enter, error, invalid};
use crate::doors::reply::{self, text, unknown_member};
use crate::doors::{Changed, Reach, Sandbox};

/// More rules than this are not taken at once, nor remembered.
const MOST_RULES: usize = 1000;
/// No name of a host with its port is longer.
const LONGEST_TARGET: usize = 300;

/// What was denied by name, by sandbox.
#[derive(Default)]
pub(crate) struct Denied(Mutex<HashMap<String, BTreeSet<String>>>);

impl Denied {
    fn of(&self, id: &str) -> BTreeSet<String> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(id).cloned().unwrap_or_default()
    }

    fn set(&self, desk: &Desk, id: &str, denied: BTreeSet<String>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // What is remembered of sandboxes that are gone goes with them.
        all.retain(|of, _| desk.hall.workshop.is_alive(of));
        match denied.is_empty() {
            true => drop(all.remove(id)),
            false => drop(all.insert(id.to_owned(), denied)),
        }
    }
}

/// Tells what is enforced, by what.
pub(crate) async fn policy(State(desk): State<Desk>, Enter((_, sandbox)): Enter) -> Response {
    policy_of(&desk, &sandbox)
}

fn policy_of(desk: &Desk, sandbox: &Sandbox) -> Response {
    let rule = |action: &str, host: &String| json!({ "action": action, "target": host });
    let denied = desk.denied.of(&sandbox.id);
    let allowed = sandbox.hosts.iter().map(|host| rule("allow", host));
    let rules: Vec<Value> = allowed.chain(denied.iter().map(|host| rule("deny", host))).collect();
    let mode = if sandbox.hosts.is_empty() { "deny_all" } else { "enforcing" };
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
    State(desk): State<Desk>,
    Enter(visit): Enter,
    body: Bytes,
) -> Response {
    match reply::object(&body).and_then(|policy| of_policy(&policy)) {
        Ok((reach, denied)) => change(&desk, visit, (reach, denied)).await,
        Err(message) => invalid(&message),
    }
}

/// Changes single rules: what is allowed is added to what is reached, what is denied is taken away.
pub(crate) async fn add_rules(
    State(desk): State<Desk>,
    Enter(visit): Enter,
    body: Bytes,
) -> Response {
    if let Err(message) = reply::check_complexity(&body) {
        return invalid(&message);
    }
    let Ok(given) = serde_json::from_slice::<Vec<Value>>(&body) else {
        return invalid("the body must be a list of rules");
    };
    let mut denied = desk.denied.of(&visit.1.id);
    let hosts = rules(&given).and_then(|rules| {
        denied.retain(|target| rules.iter().all(|rule| rule.target != *target));
        denied.extend(denied_by(&rules));
        merged(&visit.1.hosts, &rules)
    });
    match hosts {
        Ok(_) if denied.len() > MOST_RULES => invalid("there are too many rules"),
        Ok(hosts) => change(&desk, visit, (reach_of(hosts), denied)).await,
        Err(message) => invalid(&message),
    }
}

/// Takes the rules for targets away: what no rule allows is not reached.
pub(crate) async fn remove_rules(
    State(desk): State<Desk>,
    Enter(visit): Enter,
    body: Bytes,
) -> Response {
    if let Err(message) = reply::check_complexity(&body) {
        return invalid(&message);
    }
    let Ok(targets) = serde_json::from_slice::<Vec<String>>(&body) else {
        return invalid("the body must be a list of targets");
    };
    let targets: BTreeSet<String> = targets.iter().map(|target| plain(target)).collect();
    let mut hosts = visit.1.hosts.clone();
    hosts.retain(|host| !targets.contains(&plain(host)));
    let denied = desk.denied.of(&visit.1.id).difference(&targets).cloned().collect();
    change(&desk, visit, (reach_of(hosts), denied)).await
}

async fn change(
    desk: &Desk,
    (guest, sandbox): (ActorRef, Sandbox),
    (reach, denied): (Reach, BTreeSet<String>),
) -> Response {
    let id = sandbox.id;
    let changed = desk.hall.ask(move |workshop| workshop.set_reach(&guest, &id, reach)).await;
    match changed {
        Ok(Changed { sandbox, run }) => {
            desk.denied.set(desk, &sandbox.id, denied);
            reply::with_receipt(policy_of(desk, &sandbox), Some(&run))
        }
        Err(refusal) => error(&refusal),
    }
}

/// Remembers what a sandbox was created with.
pub(crate) fn remember(desk: &Desk, id: &str, denied: BTreeSet<String>) {
    desk.denied.set(desk, id, denied);
}

/// Reads what a create body says of the network, and what it denies by name; nothing said means
/// what policy lists.
pub(crate) fn reach(body: &Map<String, Value>) -> Result<(Reach, BTreeSet<String>), String> {
    match body.get("networkPolicy") {
        None | Some(Value::Null) => Ok((Reach::AsPolicy, BTreeSet::new())),
        Some(Value::Object(policy)) => of_policy(policy),
        Some(_) => Err("networkPolicy must be an object".to_owned()),
    }
}

fn of_policy(policy: &Map<String, Value>) -> Result<(Reach, BTreeSet<String>), String> {
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
    let rules = rules(&given)?;
    Ok((reach_of(merged(&[], &rules)?), denied_by(&rules).collect()))
}

fn denied_by(rules: &[Rule]) -> impl Iterator<Item = String> {
    rules.iter().filter(|rule| !rule.is_allowed).map(|rule| rule.target.clone())
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
    if given.len() > MOST_RULES {
        return Err(format!("there are at most {MOST_RULES} rules"));
    }
    let mut read: Vec<Rule> = Vec::new();
    for value in given {
        let rule = value.as_object().ok_or("a rule must be an object")?;
        // SECURITY: a rule that says more than this, a port perhaps, would be kept too widely.
        if let Some(name) = unknown_member(rule, &["action", "target"]) {
            return Err(format!("a rule's {name} cannot be enforced here"));
        }
        let target = text(rule, "target")?.map(|target| plain(&target));
        let target = target
            .filter(|target| (1..=LONGEST_TARGET).contains(&target.len()))
            .ok_or("a rule has no target, or one that is too long")?;
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
    split_port(target).0
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
        let long = deny(&"a".repeat(301));
        let many: Vec<Value> = (0..1001).map(|number| deny(&format!("{number}.org"))).collect();
        let odd = [json!([port]), json!([{ "action": "allow" }]), json!(["a.org"]), json!([long])];
        for given in odd.into_iter().chain([json!(many)]) {
            check(&[], &given, None);
        }
        let policy = |text: &str| {
            of_policy(serde_json::from_str::<Value>(text).unwrap().as_object().unwrap())
        };
        assert!(policy(r#"{"defaultAction":"allow"}"#).is_err());
        assert!(policy(r#"{"defaultAction":"Allow"}"#).is_err());
        assert!(policy(r#"{"egress":"all"}"#).is_err());
        assert_eq!(policy("{}"), Ok((Reach::Nothing, BTreeSet::new())));
    }
}
