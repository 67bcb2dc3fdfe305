//! Every promise of SPEC.md names tests, and every test it names exists.

use std::collections::BTreeSet;

/// One line of SPEC.md: `- **W-07** sentence — `test_a`, `test_b``.
struct Promise {
    number: String,
    tests: Vec<String>,
}

fn promises(text: &str) -> Vec<Promise> {
    text.lines()
        .filter_map(|line| line.strip_prefix("- **"))
        .map(|line| {
            let (number, rest) = line.split_once("**").expect("a number in bold");
            let (_, tests) = rest.rsplit_once(" — ").unwrap_or((rest, ""));
            let tests = tests.split('`').skip(1).step_by(2).map(str::to_owned).collect();
            Promise { number: number.to_owned(), tests }
        })
        .collect()
}

fn test_names() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for file in crate::files(".rs") {
        let text = std::fs::read_to_string(file).unwrap();
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        for (index, line) in lines.iter().enumerate() {
            let line = line.strip_prefix("async ").unwrap_or(line);
            let Some(rest) = line.strip_prefix("fn ") else { continue };
            let before = &lines[index.saturating_sub(4)..index];
            let is_test =
                before.iter().rev().take_while(|l| l.starts_with("#[") || l.starts_with("//"));
            // An attack is a function over a scene; the suite makes a test of the same name from it.
            let is_attack = rest.contains("scene: &Scene");
            if is_attack || is_test.clone().any(|l| l.contains("test")) {
                names.insert(rest.split(['(', '<']).next().unwrap().to_owned());
            }
        }
    }
    names
}

#[test]
fn every_promise_has_a_number_of_its_own_and_tests_that_exist() {
    let text = std::fs::read_to_string(crate::root().join("SPEC.md")).unwrap();
    let promises = promises(&text);
    assert!(promises.len() >= 10, "SPEC.md lost its promises: {}", promises.len());
    let tests = test_names();
    let mut seen = BTreeSet::new();
    let mut problems = Vec::new();
    for promise in promises {
        if !seen.insert(promise.number.clone()) {
            problems.push(format!("{} is used twice", promise.number));
        }
        if promise.tests.is_empty() {
            problems.push(format!("{} names no test", promise.number));
        }
        for test in promise.tests.iter().filter(|test| !tests.contains(*test)) {
            problems.push(format!("{} names `{test}`, which is no test", promise.number));
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn a_promise_without_a_test_is_seen() {
    let promises = promises("- **A-1** Holds — `x`, `y`\n- **A-2** Nothing\nprose");
    assert_eq!(promises.len(), 2);
    assert_eq!(promises[0].tests, ["x", "y"]);
    assert!(promises[1].tests.is_empty());
}
