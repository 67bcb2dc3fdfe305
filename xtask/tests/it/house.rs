//! The house has these arrows and no other; only `jail` has `unsafe`; `protocol` stays small.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::Value;

/// Each room and the rooms it may use. `e2e` and `xtask` do not ship.
const ARROWS: &[(&str, &[&str])] = &[
    ("protocol", &[]),
    ("script", &[]),
    ("jail", &[]),
    ("policy", &["protocol", "script"]),
    ("workspace", &["protocol"]),
    ("egress", &["protocol"]),
    ("sandbox", &["protocol", "egress", "jail", "script"]),
    ("plane", &["protocol", "policy"]),
    ("runner", &["protocol", "sandbox", "workspace"]),
    ("conformance", &["protocol", "sandbox"]),
    ("govern", &["protocol", "policy", "plane", "runner", "sandbox", "script", "workspace"]),
    (
        "cli",
        &[
            "protocol",
            "script",
            "jail",
            "policy",
            "workspace",
            "egress",
            "sandbox",
            "plane",
            "runner",
            "conformance",
            "govern",
        ],
    ),
];

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Shipped,
    Any,
}

fn packages() -> Vec<Value> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--no-deps", "--locked"])
        .current_dir(crate::root())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    metadata["packages"].as_array().unwrap().clone()
}

fn direct(package: &Value, kind: Kind) -> BTreeSet<String> {
    let dependencies = package["dependencies"].as_array().unwrap();
    dependencies
        .iter()
        .filter(|dependency| kind == Kind::Any || dependency["kind"] != "dev")
        .map(|dependency| dependency["name"].as_str().unwrap().to_owned())
        .collect()
}

fn stray_arrows(rooms: &BTreeMap<String, BTreeSet<String>>) -> Vec<String> {
    let allowed: BTreeMap<&str, &[&str]> = ARROWS.iter().copied().collect();
    let mut stray = Vec::new();
    for (room, uses) in rooms {
        match allowed.get(room.as_str()) {
            None => stray.push(format!("{room} is not a room of the house")),
            Some(may) => stray.extend(
                uses.iter()
                    .filter(|used| !may.contains(&used.as_str()))
                    .map(|used| format!("{room} -> {used}")),
            ),
        }
    }
    stray
}

#[test]
fn no_arrow_outside_the_house() {
    let mut rooms = BTreeMap::new();
    for package in packages() {
        let name = package["name"].as_str().unwrap().to_owned();
        let Some(room) = name.strip_prefix("warrant-") else {
            assert_eq!(name, "xtask", "packages are named warrant-<room>");
            continue;
        };
        let folder = package["manifest_path"].as_str().unwrap().to_owned();
        assert!(folder.ends_with(&format!("crates/{room}/Cargo.toml")), "{folder} holds {name}");
        if room == "e2e" {
            continue;
        }
        let uses = direct(&package, Kind::Shipped);
        let uses = uses.iter().filter_map(|used| used.strip_prefix("warrant-")).map(str::to_owned);
        rooms.insert(room.to_owned(), uses.collect());
    }
    assert_eq!(stray_arrows(&rooms), Vec::<String>::new());
}

#[test]
fn a_stray_arrow_is_seen() {
    let rooms = BTreeMap::from([
        ("plane".to_owned(), BTreeSet::from(["sandbox".to_owned(), "policy".to_owned()])),
        ("attic".to_owned(), BTreeSet::new()),
    ]);
    assert_eq!(stray_arrows(&rooms), ["attic is not a room of the house", "plane -> sandbox"]);
}

#[test]
fn protocol_has_at_most_ten_direct_dependencies_and_no_runtime() {
    let packages = packages();
    let protocol = packages.iter().find(|package| package["name"] == "warrant-protocol").unwrap();
    let uses = direct(protocol, Kind::Shipped);
    assert!(uses.len() <= 10, "{uses:?}");
    for banned in ["tokio", "rand", "getrandom", "tracing", "log", "chrono", "rustix", "libc"] {
        assert!(!uses.contains(banned), "protocol is pure and has no use for {banned}");
    }
}

#[test]
fn e2e_never_ships() {
    for package in packages() {
        assert!(!direct(&package, Kind::Shipped).contains("warrant-e2e"), "{}", package["name"]);
    }
}

#[test]
fn unsafe_lives_in_jail_alone() {
    for package in packages() {
        let manifest = package["manifest_path"].as_str().unwrap();
        let text = std::fs::read_to_string(manifest).unwrap();
        let shares_lints = text.contains("[lints]\nworkspace = true");
        let is_jail = package["name"] == "warrant-jail";
        assert_eq!(shares_lints, !is_jail, "{manifest}: only jail has lints of its own");
    }
    // No attribute, `allow`, `expect` or `warn`, undoes a `forbid`: the compiler refuses it.
    let workspace = std::fs::read_to_string(crate::root().join("Cargo.toml")).unwrap();
    let named = ["unsafe", "_code"].concat();
    let forbidden = format!("{named} = \"forbid\"");
    assert!(workspace.contains(&forbidden), "a weaker lint can be undone");
    for file in crate::files(".rs") {
        let shown = file.strip_prefix(crate::root()).unwrap().display().to_string();
        let text = std::fs::read_to_string(&file).unwrap();
        let is_ours = shown.starts_with("crates/jail/");
        assert!(is_ours || !text.contains(&named), "{shown} speaks of {named}");
    }
}

/// Returns the dependencies of a package, by the name code uses, that none of its files names.
fn unused(package: &Value) -> Vec<String> {
    let manifest = std::path::Path::new(package["manifest_path"].as_str().unwrap());
    let folder = manifest.parent().unwrap();
    let texts: Vec<String> = crate::files(".rs")
        .into_iter()
        .filter(|file| file.starts_with(folder))
        .map(|file| std::fs::read_to_string(file).unwrap())
        .collect();
    let is_named = |name: &str| {
        let is_part = |c: char| c.is_alphanumeric() || c == '_';
        texts.iter().any(|text| {
            text.match_indices(name).any(|(at, _)| {
                !text[..at].ends_with(is_part) && !text[at + name.len()..].starts_with(is_part)
            })
        })
    };
    let dependencies = package["dependencies"].as_array().unwrap();
    let names = dependencies.iter().map(|dependency| {
        let name = dependency["rename"].as_str().or(dependency["name"].as_str());
        name.unwrap().replace('-', "_")
    });
    names.filter(|name| !is_named(name)).collect()
}

#[test]
fn every_dependency_is_used() {
    let mut problems = Vec::new();
    for package in packages() {
        let name = package["name"].as_str().unwrap();
        problems.extend(unused(&package).into_iter().map(|unused| format!("{name}: {unused}")));
    }
    let workspace = std::fs::read_to_string(crate::root().join("Cargo.toml")).unwrap();
    let listed = workspace.split("[workspace.dependencies]\n").nth(1).unwrap();
    let listed = listed.split("\n[").next().unwrap().lines();
    let used: BTreeSet<String> = packages().iter().flat_map(|p| direct(p, Kind::Any)).collect();
    for name in listed.filter_map(|line| line.split_once(" = ")).map(|(name, _)| name) {
        if !name.starts_with('#') && !used.contains(name) {
            problems.push(format!("workspace: {name}"));
        }
    }
    assert!(problems.is_empty(), "nobody uses\n{}", problems.join("\n"));
}
