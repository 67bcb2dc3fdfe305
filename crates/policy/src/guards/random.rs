//! Random rules and facts: wherever an answer is known without Cedar, Cedar gives the same one,
//! and a policy from its record decides as the one that was loaded.

use std::collections::BTreeSet;

use serde_json::json;
use warrant_protocol::PolicyDocument;
use warrant_protocol::request::WorkspaceMode;

use crate::context;
use crate::decision::decide;
use crate::facts::{Approval, Facts};
use crate::questions::questions;
use crate::rules::Action;
use crate::snapshot::{PolicySnapshot, PolicyText};
use crate::terms::Terms;

const POLICIES: usize = 400;
const FACTS_EACH: usize = 6;
const WORDS: [&str; 4] = ["a", "b", "sudo", "-x"];

/// A small generator of numbers; the same seed gives the same policies for ever.
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % bound as u64).unwrap()
    }

    fn of<'a>(&mut self, all: &[&'a str]) -> &'a str {
        all[self.below(all.len())]
    }

    fn is(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    fn words(&mut self) -> BTreeSet<String> {
        WORDS.into_iter().filter(|_| self.is(40)).map(str::to_owned).collect()
    }
}

/// A condition that looks at one thing.
fn simple(chance: &mut Chance) -> String {
    let word = chance.of(&WORDS);
    let other = chance.of(&WORDS);
    let mode = chance.of(&["direct", "overlay", "read-only"]);
    let set = chance.of(&["programs", "flags", "args", "mentions"]);
    let flag = chance.of(&["shell", "dynamic", "parsed", "resolved"]);
    let number = chance.of(&["history.denies_10m", "history.runs_10m", "cmd.nargs"]);
    let count = chance.below(4);
    match chance.below(19) {
        0 => format!("context.mode == \"{mode}\""),
        1 => format!("\"{mode}\" == context.mode"),
        2 => format!("context.mode != \"{mode}\""),
        3 => format!("[\"{mode}\", \"direct\"].contains(context.mode)"),
        4 => format!("context.cmd.{flag}"),
        5 => format!("context.cmd.{set}.contains(\"{word}\")"),
        6 => format!("context.cmd.{set}.containsAny([\"{word}\", \"{other}\"])"),
        7 => format!("context.cmd.{set}.containsAll([\"{word}\", \"{other}\"])"),
        8 => format!("context.{number} {} {count}", chance.of(&["<", "<=", ">", "=="])),
        9 => format!("context.cmd.line like \"{word}*\""),
        10 => format!("context.cmd.argv0 == \"{word}\""),
        11 => format!("(context.cmd has sub && context.cmd.sub == \"{word}\")"),
        12 => format!("(context has approval && context.approval.level >= {})", count.max(1)),
        13 => format!(
            "context.{} == \"{}\"",
            chance.of(&["pool", "agent"]),
            chance.of(&["default", "command"])
        ),
        14 => format!("context.isolation == \"{}\"", chance.of(&["namespace", "process"])),
        15..18 => format!("context.{number} >= {count}"),
        // Too large a number is an error while Cedar evaluates, and an error is a denial.
        _ => format!("context.history.runs_10m * 9223372036854775807 >= {count}"),
    }
}

fn condition(chance: &mut Chance, depth: usize) -> String {
    if depth == 0 || chance.is(35) {
        return simple(chance);
    }
    let (one, two) = (condition(chance, depth - 1), condition(chance, depth - 1));
    match chance.below(6) {
        0 => format!("!({one})"),
        1 => format!("(({one}) || ({two}))"),
        2 => format!("(if {one} then {two} else {})", simple(chance)),
        _ => format!("(({one}) && ({two}))"),
    }
}

fn rule(chance: &mut Chance, number: usize) -> String {
    let effect = if chance.is(55) { "permit" } else { "forbid" };
    let principal =
        if chance.is(10) { "principal == Principal::\"service:agent\"" } else { "principal" };
    let (action, resource) = match chance.below(5) {
        0 | 1 => ("action".to_owned(), "resource".to_owned()),
        2 => ("action in [Action::\"run\", Action::\"exec\"]".to_owned(), "resource".to_owned()),
        3 => ("action == Action::\"run\"".to_owned(), "resource == Pool::\"default\"".to_owned()),
        _ => {
            let action = Action::ALL[chance.below(Action::ALL.len())];
            (format!("action == Action::\"{action}\""), "resource".to_owned())
        }
    };
    let mut text =
        format!("@id(\"r{number}\") @reason(\"r\") {effect} ({principal}, {action}, {resource})");
    let clauses = if effect == "forbid" { 1 + chance.below(2) } else { chance.below(3) };
    for _ in 0..clauses {
        let kind = if chance.is(75) { "when" } else { "unless" };
        text.push_str(&format!(" {kind} {{ {} }}", condition(chance, 3)));
    }
    text + ";\n"
}

/// Rules with a permit without conditions in them, for only besides one is an answer known.
fn rules(chance: &mut Chance) -> String {
    let mut text = String::new();
    if chance.is(90) {
        text.push_str("@id(\"plain\") @reason(\"r\") permit (principal, action, resource);\n");
    }
    for number in 0..chance.below(5) {
        text.push_str(&rule(chance, number));
    }
    text
}

fn facts(chance: &mut Chance) -> Facts {
    let line = json!({"name": "x", "facts": {}, "expect": "allow"}).to_string();
    let (_, example) = crate::examples::read(&line).unwrap().remove(0);
    let mut facts = example.facts().unwrap();
    facts.files.mode =
        [WorkspaceMode::Direct, WorkspaceMode::Overlay, WorkspaceMode::ReadOnly][chance.below(3)];
    (facts.cmd.shell, facts.cmd.dynamic) = (chance.is(50), chance.is(50));
    (facts.cmd.parsed, facts.cmd.resolved) = (chance.is(50), chance.is(50));
    (facts.cmd.programs, facts.cmd.flags) = (chance.words(), chance.words());
    (facts.cmd.args, facts.cmd.mentions) = (chance.words(), chance.words());
    facts.cmd.argv0 = chance.of(&WORDS).to_owned();
    facts.cmd.line = format!("{} {}", chance.of(&WORDS), chance.of(&WORDS));
    facts.cmd.sub = chance.is(50).then(|| chance.of(&WORDS).to_owned());
    facts.cmd.nargs = u32::try_from(chance.below(5)).unwrap();
    facts.history.denies_10m = u32::try_from(chance.below(5)).unwrap();
    facts.history.runs_10m = u32::try_from(chance.below(5)).unwrap();
    facts.secrets = if chance.is(30) { vec!["TOKEN".parse().unwrap()] } else { Vec::new() };
    if chance.is(30) {
        let level = u8::try_from(1 + chance.below(3)).unwrap();
        facts.approvals =
            vec![Approval { level, by: "human:bob".to_owned(), groups: BTreeSet::new() }];
    }
    facts
}

fn document() -> String {
    let mut document = PolicyDocument::reference();
    let rule =
        |level: u8| json!({"level": level, "approvers": ["*"], "quorum": 1, "expiresMin": 5});
    document["controls"] = json!({
        "files": {
            "readRoots": ["/"], "writeRoots": ["/"], "masks": [],
            "modes": ["read-only", "overlay", "direct"],
        },
        "approvals": [rule(1), rule(2), rule(3)],
    });
    document.to_string()
}

/// What was seen of the answers, so that nothing is shown by not happening.
#[derive(Debug, Default)]
struct Seen {
    refused: usize,
    known: usize,
    known_beside_others: usize,
    asked: usize,
    failing: usize,
}

/// Compares every known answer with Cedar's.
fn compare(policy: &PolicySnapshot, facts: &Facts, seen: &mut Seen, text: &str) {
    let terms = Terms::of(policy.document().body(), policy.controls(), facts);
    let base = context::base(facts, &terms).unwrap();
    let by = BTreeSet::from(["human:bob".to_owned()]);
    for question in questions(policy.rules(), facts) {
        let known = policy.rules().certain(&question, facts);
        for level in 0..=3 {
            let approval = (level > 0).then_some((level, &by));
            let context = context::of_question(&base, &question, approval).unwrap();
            let answer = policy.rules().answer(&facts.requester, &question, context);
            seen.failing += usize::from(!answer.failed.is_empty());
            let Some(rule) = &known else {
                seen.asked += 1;
                continue;
            };
            seen.known += 1;
            seen.known_beside_others += usize::from(policy.rules().weight(&question) > 1);
            let told = || format!("{question:?} {facts:#?} {answer:?}\n{text}");
            assert!(answer.allowed && answer.failed.is_empty(), "{}", told());
            assert!(answer.rules.contains(rule), "{}", told());
            if policy.rules().forbids(&question) {
                assert_eq!(answer.rules, std::slice::from_ref(rule), "{}", told());
            }
        }
    }
}

#[test]
fn whatever_the_rules_what_is_known_without_cedar_is_what_cedar_says() {
    let document = document();
    let chance = &mut Chance(0x9e37_79b9_7f4a_7c15);
    let mut seen = Seen::default();
    for _ in 0..POLICIES {
        let rules = rules(chance);
        let text = PolicyText { document: &document, rules: &rules, examples: "" };
        // The validator refuses what can never apply; that is no matter here.
        let Ok(policy) = PolicySnapshot::load(text) else {
            seen.refused += 1;
            continue;
        };
        let record = policy.record(text, "test").unwrap();
        let recalled = PolicySnapshot::recall(text, "test", &record).unwrap();
        for _ in 0..FACTS_EACH {
            let facts = facts(chance);
            compare(&policy, &facts, &mut seen, &rules);
            assert_eq!(decide(&policy, &facts), decide(&recalled, &facts), "{facts:#?}\n{rules}");
        }
    }
    assert!(seen.refused * 4 < POLICIES, "{seen:?}");
    assert!(seen.known_beside_others > 1000 && seen.known > 5000, "{seen:?}");
    assert!(seen.asked > 5000 && seen.failing > 500, "{seen:?}");
}
