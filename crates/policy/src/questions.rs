//! What the rules are asked about a request.
//!
//! The pool, the program, and every host, secret and root by itself. Something wide is also asked
//! about as the narrow things in it that rules name: `*.example.com` as `a.example.com`, `/srv` as
//! `/srv/keys`, a script as the programs it starts. For those nobody needs to permit, but nobody
//! may object; a rule for an inner program never permits the shell around it.

use std::collections::BTreeSet;

use crate::facts::Facts;
use crate::paths;
use crate::rules::{Action, Detail, Question, Rules, Wanted};

/// Returns every question about a request, in a fixed order.
pub(crate) fn questions(rules: &Rules, facts: &Facts) -> Vec<Question> {
    let mut questions = vec![
        question(Action::Run, facts.pool.as_str(), Detail::None),
        question(Action::Exec, &facts.cmd.program, Detail::None),
    ];
    let inner: BTreeSet<&String> = facts
        .cmd
        .programs
        .iter()
        .flat_map(|name| rules.programs_called(name))
        .filter(|path| **path != facts.cmd.program)
        .collect();
    questions.extend(inner.into_iter().map(|path| part(Action::Exec, path, Detail::None)));
    let hosts = facts.network.hosts.iter().map(|host| (host.as_str(), 443));
    let egress = facts.network.egress.iter();
    let egress = egress.map(|rule| (rule.host.as_str(), rule.port.unwrap_or(443)));
    for (host, port) in hosts.chain(egress) {
        let detail = Detail::Connect { port: i64::from(port) };
        questions.push(question(Action::NetConnect, host, detail.clone()));
        if let Some(suffix) = host.strip_prefix('*') {
            let below =
                rules.named(Action::NetConnect, |name| name != host && name.ends_with(suffix));
            questions.extend(
                below.into_iter().map(|name| part(Action::NetConnect, name, detail.clone())),
            );
        }
    }
    let secrets: BTreeSet<&str> = facts.secrets.iter().map(|name| name.as_str()).collect();
    questions
        .extend(secrets.into_iter().map(|name| question(Action::SecretUse, name, Detail::None)));
    let reads = facts.files.read.iter().map(|root| (root, "read"));
    let writes = facts.files.write.iter().map(|root| (root, "write"));
    let gaps = facts.files.gaps.iter().map(|gap| (&gap.path, gap.access.as_str()));
    for (root, access) in reads.chain(writes).chain(gaps) {
        let detail = Detail::Grant { access };
        questions.push(question(Action::FsGrant, root, detail.clone()));
        let below =
            rules.named(Action::FsGrant, |name| name != root && paths::is_within(name, root));
        questions.extend(below.into_iter().map(|name| part(Action::FsGrant, name, detail.clone())));
    }
    questions
}

fn question(action: Action, resource: &str, detail: Detail) -> Question {
    Question { action, resource: resource.to_owned(), wanted: Wanted::Permission, detail }
}

fn part(action: Action, resource: &str, detail: Detail) -> Question {
    Question { action, resource: resource.to_owned(), wanted: Wanted::NoObjection, detail }
}
