//! How long one decision takes, over bundles of 100 and 1 000 rules.
//!
//! Each sample is one whole `decide`: the document, the context, every question to the rules.
//! Figures are of one core, after a warm-up; the clock's own cost is in them.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a benchmark"
)]

use std::fmt::Write as _;
use std::hint::black_box;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use warrant_policy::{Decision, Facts, PolicySnapshot, PolicyText, Preset, decide, examples};

const SAMPLES: usize = 20_000;

fn main() {
    let plain = facts(json!({
        "name": "bench", "argv": ["git", "push", "origin", "main"], "program": "/usr/bin/tool7",
        "expect": "allow",
    }));
    let wide = facts(json!({
        "name": "bench", "script": "git fetch && make -j4 | tee out.log", "program": "/usr/bin/dash",
        "facts": {"network": {"hosts": ["host3.example"]}, "secrets": ["SECRET_3"]},
        "expect": "allow",
    }));
    println!("{:<44} {:>9} {:>9} {:>9}", "decision", "p50", "p99", "max");
    for rules in [13, 100, 1_000] {
        let policy = bundle(rules);
        report(&format!("{rules} rules, a program"), &policy, &plain);
        report(&format!("{rules} rules, a script, a host, a secret"), &policy, &wide);
    }
    let policy = Preset::Default.load().unwrap();
    let sudo = facts(json!({"name": "bench", "argv": ["sudo", "id"], "expect": "ask"}));
    report("the default policy, an ask at level 2", &policy, &sudo);
    let started = Instant::now();
    black_box(bundle(1_000));
    println!("loading 1000 rules with validation: {:?}", started.elapsed());
    let script =
        "cd src && for f in *.c; do cc -O2 -c \"$f\" || exit 1; done; ar rcs lib.a *.o | tee log";
    let times = sample(|| {
        warrant_policy::CommandFacts::of_script(
            script,
            warrant_protocol::execution::ShellName::Sh,
            None,
        )
    });
    print_row("facts of a script of nine commands", &times);
}

fn facts(example: Value) -> Facts {
    let (_, example) = examples::read(&example.to_string()).unwrap().remove(0);
    example.facts().unwrap()
}

/// Returns the default policy with rules added until there are `count`.
fn bundle(count: usize) -> PolicySnapshot {
    let base = Preset::Default.text();
    let mut document: Value = serde_json::from_str(base.document).unwrap();
    let hosts: Vec<String> = (0..20).map(|i| format!("host{i}.example")).collect();
    document["network"]["allowHosts"] = json!(hosts);
    let secrets: Vec<Value> = (0..20)
        .map(|i| json!({"name": format!("SECRET_{i}"), "scope": "x", "pools": ["default"]}))
        .collect();
    document["secrets"]["releasable"] = json!(secrets);
    let mut rules = base.rules.to_owned();
    let present = rules.matches("@id(").count();
    for index in present..count {
        let head = format!("@id(\"rule-{index}\") @reason(\"rule {index}\")\n");
        let body = match index % 4 {
            0 => format!(
                "forbid (principal, action == Action::\"exec\", resource == Program::\"/usr/bin/tool{index}\") \
                 when {{ context.cmd.args.contains(\"--force\") && context.cmd has sub && context.cmd.sub == \"push\" }};"
            ),
            1 => format!(
                "forbid (principal, action == Action::\"net_connect\", resource == Host::\"host{}.example\") \
                 when {{ context.cmd.dynamic && context.history.denies_10m > {index} }};",
                index % 20
            ),
            2 => format!(
                "forbid (principal, action == Action::\"secret_use\", resource == Secret::\"SECRET_{}\") \
                 when {{ context.cmd.programs.contains(\"curl{index}\") }};",
                index
            ),
            _ => format!(
                "permit (principal, action == Action::\"exec\", resource == Program::\"/usr/bin/tool{}\") \
                 when {{ context.cmd.line like \"*x{index}*\" }};",
                index % 200
            ),
        };
        writeln!(rules, "{head}{body}").unwrap();
    }
    let document = document.to_string();
    PolicySnapshot::load(PolicyText { document: &document, rules: &rules, examples: "" }).unwrap()
}

fn report(name: &str, policy: &PolicySnapshot, facts: &Facts) {
    let decision = decide(policy, facts);
    assert!(!matches!(decision, Decision::Deny { .. }), "{}", decision.reason());
    print_row(name, &sample(|| decide(policy, facts)));
}

fn sample<T>(mut run: impl FnMut() -> T) -> Vec<Duration> {
    for _ in 0..SAMPLES / 10 {
        black_box(run());
    }
    let mut times: Vec<Duration> = (0..SAMPLES)
        .map(|_| {
            let started = Instant::now();
            black_box(run());
            started.elapsed()
        })
        .collect();
    times.sort_unstable();
    times
}

fn print_row(name: &str, times: &[Duration]) {
    let at = |part: f64| times[((times.len() - 1) as f64 * part) as usize];
    println!("{name:<44} {:>9.1?} {:>9.1?} {:>9.1?}", at(0.50), at(0.99), at(1.0));
}
