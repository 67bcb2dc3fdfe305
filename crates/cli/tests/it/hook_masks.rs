//! Masks as programs in the sandbox meet them, and as the hook reads them for an agent's own file
//! tools: the same, pattern by pattern and path by path.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;

use serde_json::{Value, json};

use crate::hook::verdict;
use crate::machine::Machine;
use crate::{stderr, stdout};

const MASKS: [&str; 16] = [
    ".env",
    "*.{pem,P12}",
    "[Kk]eys-[0-9]",
    "conf/{a,b}.yml",
    "Vault/",
    "/top.key",
    "./dot.key",
    "deep/**",
    "id_[!x]*",
    "\\*star",
    "!bang",
    "#hash#",
    "@(one|two).txt",
    "nest/**/x",
    "alias.{c,d}",
    "weiß",
];

const FILES: [&str; 36] = [
    "plain.txt",
    "a.PEM",
    "sub/b.p12",
    "sub/c.pem.txt",
    "keys-1",
    "sub/KEYS-9",
    "keys-x",
    "conf/A.yml",
    "conf/c.yml",
    "sub/conf/a.yml",
    "vault/x/y",
    "sub/VAULT/z",
    "vaults/x",
    "top.key",
    "sub/top.key",
    "dot.key",
    "sub/dot.key",
    "deep/er/x",
    "sub/deep/x",
    "id_a",
    "id_xa",
    "*star",
    "star",
    "!bang",
    "bang",
    "#hash#",
    "hash",
    "one.txt",
    "three.txt",
    "nest/x",
    "nest/a/b/x",
    "nest/a/b/y",
    "alias.d",
    "alias.e",
    "sub/WEIß",
    "{a,b}",
];

#[test]
fn the_hook_and_the_sandbox_read_masks_alike() {
    let machine = Machine::new();
    assert!(machine.run(&["init"]).status.success());
    let document = machine.home().join("policy/document.json");
    let mut policy: Value = serde_json::from_slice(&fs::read(&document).unwrap()).unwrap();
    policy["controls"]["files"]["masks"] = json!(MASKS);
    fs::write(&document, policy.to_string()).unwrap();
    for file in FILES {
        let path = machine.work(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "content\n").unwrap();
    }
    // Other names of a masked file, and what a masked name leads to.
    fs::hard_link(machine.work("a.PEM"), machine.work("hard")).unwrap();
    symlink("../a.PEM", machine.work("sub/soft")).unwrap();
    symlink("nest/a/b/y", machine.work("keys-7")).unwrap();
    let others = ["hard", "sub/soft", "keys-7", "a.txt"];
    let paths: BTreeSet<&str> = FILES.into_iter().chain(others).collect();

    let shown = machine.exec(&["--", "find", "-L", ".", "-type", "f", "-size", "+0c"]);
    // Directories that are veiled cannot be looked into, which is an error to it.
    assert_eq!(shown.status.code(), Some(1), "{}", stderr(&shown));
    let shown = stdout(&shown);
    let shown: BTreeSet<&str> = shown.lines().filter_map(|line| line.strip_prefix("./")).collect();
    let is_allowed = |path: &&str| {
        let input = json!({"file_path": machine.work(path)});
        let answer = verdict(&machine, "claude-code", "Read", input);
        answer["hookSpecificOutput"]["permissionDecision"] == "allow"
    };
    let allowed: BTreeSet<&str> = paths.iter().copied().filter(is_allowed).collect();
    let in_sandbox: BTreeSet<&str> =
        paths.iter().copied().filter(|it| shown.contains(it)).collect();
    assert_eq!(allowed, in_sandbox, "what the hook allows, and what a program sees");
    let open = [
        "plain.txt",
        "a.txt",
        "sub/c.pem.txt",
        "keys-x",
        "conf/c.yml",
        "sub/conf/a.yml",
        "vaults/x",
        "sub/top.key",
        "sub/dot.key",
        "sub/deep/x",
        "id_xa",
        "star",
        "bang",
        "hash",
        "three.txt",
        "alias.e",
        "{a,b}",
    ];
    assert_eq!(allowed, BTreeSet::from(open));
}
