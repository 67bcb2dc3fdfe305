//! Facts as Cedar's context. Built directly, never through text.

use std::collections::BTreeSet;

use cedar_policy::{Context, RestrictedExpression};
use warrant_protocol::request::{PathAccess, WorkspaceMode};

use crate::facts::{CommandFacts, Facts};
use crate::rules::{Detail, Question};
use crate::terms::Terms;

type Pair = (String, RestrictedExpression);

/// Returns what every question about these facts shares, or nothing when Cedar refuses it.
pub(crate) fn base(facts: &Facts, terms: &Terms) -> Option<Context> {
    let hosts = facts.network.hosts.iter().map(ToString::to_string);
    let egress = facts.network.egress.iter().map(|rule| rule.host.to_string());
    let hosts: BTreeSet<String> = hosts.chain(egress).collect();
    let pairs = [
        pair("cmd", command(&facts.cmd)?),
        pair("cwd", text(&facts.cwd)),
        pair("agent", text(&facts.agent_kind)),
        pair("pool", text(facts.pool.as_str())),
        pair("env", set(facts.env.names.iter().chain(&facts.env.inherit))),
        pair("hosts", set(&hosts)),
        pair("read", roots(facts, (&facts.files.read, PathAccess::Read))),
        pair("write", roots(facts, (&facts.files.write, PathAccess::Write))),
        pair("secrets", set(facts.secrets.iter().map(|name| name.as_str()))),
        pair("isolation", text(facts.isolation.as_str())),
        pair("mode", text(mode(facts))),
        pair("budget", budget(facts, terms)?),
        pair("history", history(facts)?),
        pair("data_classes", set(&facts.data_classes)),
        pair("now", long(facts.now_ms)),
    ];
    Context::from_pairs(pairs).ok()
}

/// Returns the roots of one access, and the paths that people are asked about for it: a rule about
/// what a run can reach speaks of both.
fn roots(facts: &Facts, (roots, access): (&[String], PathAccess)) -> RestrictedExpression {
    let gaps = facts.files.gaps.iter().filter(|gap| gap.access == access).map(|gap| &gap.path);
    set(roots.iter().chain(gaps))
}

/// Returns how the workspace is used, in the words of rules.
pub(crate) const fn mode(facts: &Facts) -> &'static str {
    match facts.files.mode {
        WorkspaceMode::ReadOnly => "read-only",
        WorkspaceMode::Overlay => "overlay",
        WorkspaceMode::Direct => "direct",
    }
}

/// Returns the context of one question, with an approval when there is one.
pub(crate) fn of_question(
    base: &Context,
    question: &Question,
    approval: Option<(u8, &BTreeSet<String>)>,
) -> Option<Context> {
    let mut extra = Vec::new();
    match question.detail {
        Detail::None => {}
        Detail::Connect { port } => {
            let host = pair("host", text(&question.resource));
            let port = pair("port", RestrictedExpression::new_long(port));
            extra.push(pair("connect", record(vec![host, port])?));
        }
        Detail::Grant { access } => {
            let path = pair("path", text(&question.resource));
            extra.push(pair("grant", record(vec![path, pair("access", text(access))])?));
        }
    }
    if let Some((level, by)) = approval {
        let level = pair("level", long(u64::from(level)));
        extra.push(pair("approval", record(vec![level, pair("by", set(by))])?));
    }
    if extra.is_empty() { Some(base.clone()) } else { base.clone().merge(extra).ok() }
}

fn command(cmd: &CommandFacts) -> Option<RestrictedExpression> {
    let mut pairs = vec![
        pair("program", text(&cmd.program)),
        pair("resolved", flag(cmd.resolved)),
        pair("argv0", text(&cmd.argv0)),
        pair("flags", set(&cmd.flags)),
        pair("args", set(&cmd.args)),
        pair("line", text(&cmd.line)),
        pair("nargs", long(u64::from(cmd.nargs))),
        pair("shell", flag(cmd.shell)),
        pair("programs", set(&cmd.programs)),
        pair("dynamic", flag(cmd.dynamic)),
        pair("parsed", flag(cmd.parsed)),
        pair("mentions", set(&cmd.mentions)),
    ];
    if let Some(digest) = cmd.program_digest {
        pairs.push(pair("program_digest", text(&digest.to_hex())));
    }
    if let Some(sub) = &cmd.sub {
        pairs.push(pair("sub", text(sub)));
    }
    for (name, argument) in ["a1", "a2", "a3"].into_iter().zip(&cmd.first) {
        pairs.push(pair(name, text(argument)));
    }
    record(pairs)
}

fn budget(facts: &Facts, terms: &Terms) -> Option<RestrictedExpression> {
    let unlimited = u64::MAX;
    record(vec![
        pair("wall_ms", long(terms.limits.wall_ms.unwrap_or(unlimited))),
        pair("cpu_ms", long(terms.limits.cpu_ms.unwrap_or(unlimited))),
        pair("mem_mib", long(terms.limits.memory_bytes.map_or(unlimited, |bytes| bytes >> 20))),
        pair("spent_cents", long(facts.history.spent_cents)),
    ])
}

fn history(facts: &Facts) -> Option<RestrictedExpression> {
    record(vec![
        pair("run_execs", long(u64::from(facts.history.run_execs))),
        pair("denies_10m", long(u64::from(facts.history.denies_10m))),
        pair("runs_10m", long(u64::from(facts.history.runs_10m))),
    ])
}

fn pair(name: &str, value: RestrictedExpression) -> Pair {
    (name.to_owned(), value)
}

fn text(text: &str) -> RestrictedExpression {
    RestrictedExpression::new_string(text.to_owned())
}

fn flag(flag: bool) -> RestrictedExpression {
    RestrictedExpression::new_bool(flag)
}

/// Numbers beyond Cedar's range stay at its end.
fn long(number: u64) -> RestrictedExpression {
    RestrictedExpression::new_long(i64::try_from(number).unwrap_or(i64::MAX))
}

fn set<S: AsRef<str>>(texts: impl IntoIterator<Item = S>) -> RestrictedExpression {
    RestrictedExpression::new_set(texts.into_iter().map(|item| text(item.as_ref())))
}

fn record(pairs: Vec<Pair>) -> Option<RestrictedExpression> {
    RestrictedExpression::new_record(pairs).ok()
}
