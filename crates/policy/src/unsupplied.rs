//! Facts that rules can name and that nobody supplies.
//!
//! A rule that reads one would never apply, and its author would believe that it does. So such a
//! rule does not load.

use serde_json::Value;

/// The facts that the schema has for policies of earlier versions, and that no caller knows.
pub(crate) const UNSUPPLIED: [&[&str]; 2] = [&["history", "run_execs"], &["budget", "spent_cents"]];

/// Returns the first such fact that a rule reads, given in Cedar's JSON form.
pub(crate) fn read_by(policy: &Value) -> Option<String> {
    let mut found = None;
    visit(policy, &mut |path, is_test| {
        let is_read = |fact: &&&[&str]| match path.first() {
            // An attribute of something that is not the plain context: judged by its name.
            Some(&"*") => path.last() == fact.last(),
            _ if is_test => path == **fact,
            // Whoever reads a whole record reads what is in it.
            _ => fact.starts_with(path),
        };
        if found.is_none() {
            found =
                UNSUPPLIED.iter().find(is_read).map(|fact| format!("context.{}", fact.join(".")));
        }
    });
    found
}

/// Tells every attribute that is read or tested for, as its path below the context.
fn visit(value: &Value, tell: &mut impl FnMut(&[&str], bool)) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| visit(item, tell)),
        Value::Object(members) => {
            for (name, inner) in members {
                match (name.as_str(), inner.get("left"), inner.get("attr")) {
                    ("." | "has", Some(left), Some(Value::String(attr))) => match path_of(left) {
                        Some(mut path) => {
                            path.push(attr);
                            tell(&path, name == "has");
                        }
                        None => {
                            tell(&["*", attr], false);
                            visit(left, tell);
                        }
                    },
                    ("Var", _, _) if inner == "context" => tell(&[], false),
                    _ => visit(inner, tell),
                }
            }
        }
        _ => {}
    }
}

/// Returns the path of an expression that is the context or an attribute below it.
fn path_of(value: &Value) -> Option<Vec<&str>> {
    if value.get("Var").is_some_and(|name| name == "context") {
        return Some(Vec::new());
    }
    let access = value.get(".")?;
    let mut path = path_of(access.get("left")?)?;
    path.push(access.get("attr")?.as_str()?);
    Some(path)
}
