//! `warrant policy` and `warrant init`.

use std::path::Path;

use anyhow::{Context as _, bail};
use serde_json::{Value, json};
use warrant_plane::random;
use warrant_plane::store::{PolicyRow, RunFilter};
use warrant_policy::decision::Decision;
use warrant_policy::facts::{Facts, ProgramFile, Surroundings};
use warrant_policy::inspect::{self, Changed};
use warrant_policy::preset::Preset;
use warrant_policy::snapshot::PolicySnapshot;
use warrant_protocol::execution::{ExecutionSpec, ShellName};
use warrant_protocol::{Isolation, RunRequest};

use crate::args::{Exec, Init, Policy};
use crate::commands::exec::request::Wish;
use crate::exit::{Exit, Misuse};
use crate::ui;
use warrant_govern::{
    Desk, PolicyFiles, PolicyFilesError, around_plain, find_program, policy_folder, write_policy,
};
use warrant_plane::policy_holder::PolicyFault;

/// `warrant init`.
pub(crate) fn init(home: Option<&Path>, arguments: &Init) -> anyhow::Result<Exit> {
    let name = arguments.preset.as_deref().unwrap_or("default");
    let Some(preset) = Preset::named(name) else {
        ui::note(&format!("--preset is {}, not `{name}`", Preset::NAMES));
        return Ok(Exit::Usage);
    };
    let desk = Desk::open_with(home, preset)?;
    let in_force = desk.policy().map(PolicySnapshot::hash);
    if arguments.preset.is_some() && in_force != Some(preset.load()?.hash()) {
        bail!("this home has a policy, which stays; change it with: warrant policy set {name}");
    }
    let home = desk.plane().home();
    let (plane, runner) = (home.plane_key().public().id(), home.runner_key().public().id());
    if arguments.json {
        ui::json(&json!({
            "home": home.root(),
            "planeKey": plane,
            "runnerKey": runner,
            "policyHash": desk.plane().policy_hash(),
        }));
    } else {
        ui::data(&format!(
            "home    {}\nplane   {plane}\nrunner  {runner}\npolicy  {}\n",
            home.root().display(),
            desk.plane().policy_hash()
        ));
    }
    Ok(Exit::Success)
}

/// `warrant policy`.
pub(crate) fn run(desk: &Desk, command: Policy) -> anyhow::Result<Exit> {
    match command {
        Policy::Show { json: as_json } => show(desk, as_json),
        Policy::Set { source, json: as_json } => set(desk, &source, as_json),
        Policy::Check { source, json: as_json } => check(desk, source.as_deref(), as_json),
        Policy::Test { source, json: as_json } => test(desk, source.as_deref(), as_json),
        Policy::Explain { json: as_json, argv } => explain(desk, &argv, as_json),
        Policy::Diff { source, json: as_json } => diff(desk, &source, as_json),
    }
}

/// Reads a policy that the person named.
fn named(source: &str) -> anyhow::Result<PolicyFiles> {
    PolicyFiles::named(source).map_err(|error| match error {
        unknown @ PolicyFilesError::Unknown(_) => Misuse::of(unknown.into()),
        other => other.into(),
    })
}

fn in_force(desk: &Desk) -> anyhow::Result<&PolicySnapshot> {
    let fault = desk.policy_fault().map(PolicyFault::detail);
    let why = fault.unwrap_or("no policy is in force, so everything is denied");
    let none = || format!("{why}; set one with: warrant policy set default");
    desk.policy().with_context(none)
}

fn show(desk: &Desk, as_json: bool) -> anyhow::Result<Exit> {
    let policy = in_force(desk)?;
    let fault = desk.policy_fault().map(PolicyFault::detail);
    let (document, rules) = (policy.document().raw(), policy.rules_text());
    if as_json {
        ui::json(&json!({
            "policyHash": policy.hash(), "document": document, "rules": rules, "fault": fault,
        }));
        return Ok(Exit::Success);
    }
    // The files say it as it was written; broken ones say what is not in force.
    let folder = policy_folder(desk.plane().home().root());
    let text = match PolicyFiles::read(&folder) {
        Ok(files) if fault.is_none() => files.document,
        _ => format!("{document:#}"),
    };
    ui::data(&format!("# policy {}\n{}\n{}\n", policy.hash(), text.trim_end(), rules.trim_end()));
    note_fault(desk);
    Ok(Exit::Success)
}

/// Tells the owner of the home that its policy's files are broken, if they are.
pub(crate) fn note_fault(desk: &Desk) {
    let Some(fault) = desk.policy_fault() else { return };
    let consequence = match desk.policy() {
        Some(policy) => format!("the last good policy {} stays in force", policy.hash()),
        None => "everything is denied".to_owned(),
    };
    ui::note(&format!("warrant: {}; {consequence}", ui::printable(fault.detail())));
    ui::note("  see warrant policy check; put another in force with: warrant policy set default");
}

fn set(desk: &Desk, source: &str, as_json: bool) -> anyhow::Result<Exit> {
    let files = named(source)?;
    let policy =
        PolicySnapshot::load(files.text()).context("refused; the policy in force stays")?;
    let content =
        json!({"document": files.document, "rules": files.rules, "examples": files.examples});
    desk.plane().store().set_policy(PolicyRow {
        hash: policy.hash(),
        body: content.to_string(),
        set_by: warrant_govern::principal().label(),
        created_at: random::now()?,
    })?;
    write_policy(desk.plane().home().root(), &files)?;
    if as_json {
        ui::json(&json!({"policyHash": policy.hash(), "inForce": true}));
    } else {
        ui::note(&format!("policy {} is in force", policy.hash()));
    }
    Ok(Exit::Success)
}

/// Reads a policy that the person named, else the one of this home, in force or broken.
fn named_or_own(desk: &Desk, source: Option<&str>) -> anyhow::Result<PolicyFiles> {
    match source {
        Some(source) => named(source),
        None => Ok(PolicyFiles::read(&policy_folder(desk.plane().home().root()))?),
    }
}

fn check(desk: &Desk, source: Option<&str>, as_json: bool) -> anyhow::Result<Exit> {
    let files = named_or_own(desk, source)?;
    match inspect::check(files.text()) {
        Ok(checked) if as_json => ui::json(&json!({
            "valid": true, "policyHash": checked.hash, "rules": checked.rules, "examples": checked.examples,
        })),
        Ok(checked) => ui::data(&format!(
            "valid: {} rules, {} examples pass, hash {}\n",
            checked.rules, checked.examples, checked.hash
        )),
        Err(problem) if as_json => {
            ui::json(
                &json!({"valid": false, "problem": format!("{:#}", anyhow::Error::from(problem))}),
            );
            return Ok(Exit::Failure);
        }
        Err(problem) => return Err(problem.into()),
    }
    Ok(Exit::Success)
}

fn test(desk: &Desk, source: Option<&str>, as_json: bool) -> anyhow::Result<Exit> {
    let files = named_or_own(desk, source)?;
    match inspect::check(files.text()) {
        Ok(checked) if as_json => {
            ui::json(&json!({"passed": checked.examples, "failed": 0, "policyHash": checked.hash}));
        }
        Ok(checked) => ui::data(&format!("{} passed, 0 failed\n", checked.examples)),
        Err(problem) if as_json => {
            let problem = format!("{:#}", anyhow::Error::from(problem));
            ui::json(&json!({"passed": null, "failed": null, "problem": problem}));
            return Ok(Exit::Failure);
        }
        Err(problem) => return Err(problem.into()),
    }
    Ok(Exit::Success)
}

fn explain(desk: &Desk, argv: &[String], as_json: bool) -> anyhow::Result<Exit> {
    let policy = in_force(desk)?;
    let wish = Wish::read(&Exec::plain(argv), desk, Isolation::Namespace)?;
    let around = wish.ask.around(random::now()?.unix_ms());
    let around = desk.plane().surroundings(policy, &wish.ask.request, around)?;
    let facts = Facts::of(&wish.ask.request, around);
    let explanation = inspect::explain(policy, &facts);
    let rules = |rules: &[warrant_policy::rules::Rule]| -> Vec<String> {
        rules.iter().map(|rule| format!("{}: {}", rule.id, rule.reason)).collect()
    };
    if as_json {
        let questions: Vec<Value> = explanation
            .questions
            .iter()
            .map(|q| {
                json!({
                    "action": q.action, "resource": q.resource, "allowed": q.allowed,
                    "rules": rules(&q.rules), "wouldSatisfy": q.would_satisfy,
                })
            })
            .collect();
        ui::json(&json!({
            "decision": word(&explanation.decision),
            "reason": explanation.decision.reason(),
            "consents": explanation.consents,
            "questions": questions,
        }));
        return Ok(Exit::Success);
    }
    ui::data(&format!("{}: {}\n", word(&explanation.decision), explanation.decision.reason()));
    for question in &explanation.questions {
        let answer = if question.allowed { "yes" } else { "no" };
        ui::data(&format!(
            "  {} {}: {answer}\n",
            question.action,
            ui::printable(&question.resource)
        ));
        rules(&question.rules).iter().for_each(|rule| ui::data(&format!("      {rule}\n")));
        if let Some(level) = question.would_satisfy {
            ui::data(&format!("      an approval at level {level} would allow it\n"));
        }
    }
    Ok(Exit::Success)
}

fn diff(desk: &Desk, source: &str, as_json: bool) -> anyhow::Result<Exit> {
    let old = in_force(desk)?;
    let files = named(source)?;
    let new = PolicySnapshot::load(files.text())?;
    let page =
        desk.plane().store().list(&RunFilter { state: None, before: None, limit: Some(1000) })?;
    let mut recorded = Vec::new();
    for row in &page.runs {
        let request: RunRequest =
            serde_json::from_str(&row.request).context("a stored request does not read back")?;
        let around = Surroundings {
            program: program_of(&request),
            ..around_plain(&request, row.created_at.unix_ms())
        };
        let around = desk.plane().surroundings(old, &request, around)?;
        let facts = Facts::of(&request, around);
        recorded.push((row.id.as_str().to_owned(), facts));
    }
    let changed = inspect::diff(old, &new, recorded.iter().map(|(id, facts)| (id.as_str(), facts)));
    let rows: Vec<Value> = changed
        .iter()
        .map(|c| json!({"runId": c.id, "old": word(&c.old), "new": word(&c.new), "reason": difference(c)}))
        .collect();
    if as_json {
        ui::json(&json!({"compared": recorded.len(), "changed": rows}));
    } else {
        ui::data(&format!(
            "{} of {} recorded requests would be decided differently\n",
            rows.len(),
            recorded.len()
        ));
        for c in &changed {
            ui::data(&format!(
                "  {}  {} -> {}: {}\n",
                c.id,
                word(&c.old),
                word(&c.new),
                difference(c)
            ));
        }
    }
    Ok(Exit::Success)
}

/// Returns what is different about a decision.
fn difference(changed: &Changed) -> String {
    match (&changed.old, &changed.new) {
        (Decision::Allow { .. }, Decision::Allow { .. }) => {
            "with other limits, masks or demands on the boundary".to_owned()
        }
        (_, new) => new.reason(),
    }
}

/// Looks the program of a recorded request up again, as it was when the request was judged.
fn program_of(request: &RunRequest) -> Option<ProgramFile> {
    match request.execution.as_ref()? {
        ExecutionSpec::Argv { command, .. } => find_program(command),
        ExecutionSpec::Shell { shell, .. } => find_program(shell.unwrap_or(ShellName::Sh).as_str()),
        ExecutionSpec::Agent { .. } => None,
    }
}

const fn word(decision: &Decision) -> &'static str {
    match decision {
        Decision::Allow { .. } => "allow",
        Decision::Ask(_) => "ask",
        Decision::Deny { .. } => "deny",
    }
}
