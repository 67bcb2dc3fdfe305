//! The table of calls against the numbers of both architectures, one of which no test runs on.
//!
//! `numbers.tsv` holds what the kernel's headers say. The table is read as text, because a build
//! knows the names of its own architecture only.

use std::collections::{BTreeMap, BTreeSet};

use libc::c_long;

use super::table::{ALLOWED, ALLOWED_HERE, PRIVILEGED, STARTING_AND_SPEAKING};

const NUMBERS: &str = include_str!("numbers.tsv");
const TABLE: &str = include_str!("table.rs");

/// Which architectures an entry of the table is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Entry {
    Both,
    X86Only,
}

/// Returns the numbers of one architecture by name.
fn numbers(column: usize) -> BTreeMap<&'static str, c_long> {
    let rows = NUMBERS.lines().filter(|line| !line.starts_with('#'));
    let row = |line: &'static str| {
        let mut cells = line.split('\t');
        let name = cells.next().unwrap();
        Some((name, cells.nth(column).unwrap().parse().ok()?))
    };
    rows.filter_map(row).collect()
}

/// Returns the named entries of one list of the table, in its order.
fn entries(list: &str) -> Vec<(&'static str, Entry)> {
    let start = TABLE.find(&format!("const {list}: &[c_long] = &[")).unwrap();
    let (before, text) = TABLE.split_at(start);
    let of_list = before.trim_end().ends_with("#[cfg(target_arch = \"x86_64\")]\npub(super)");
    let text = text.split("];").next().unwrap();
    let mut entries = Vec::new();
    let mut is_conditional = false;
    for line in text.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix("libc::SYS_") {
            let entry = if of_list || is_conditional { Entry::X86Only } else { Entry::Both };
            entries.push((name.trim_end_matches(','), entry));
        }
        is_conditional = line.starts_with("#[cfg(target_arch = \"x86_64\")]");
    }
    entries
}

const LISTS: [&str; 3] = ["ALLOWED", "PRIVILEGED", "STARTING_AND_SPEAKING"];

#[test]
fn every_call_of_the_table_exists_on_each_architecture_that_it_is_for() {
    let (x86, arm) = (numbers(0), numbers(1));
    for (name, entry) in LISTS.into_iter().flat_map(entries) {
        assert!(x86.contains_key(name), "{name} is no call of x86_64");
        let is_on_arm = entry == Entry::Both;
        assert_eq!(arm.contains_key(name), is_on_arm, "{name} on aarch64");
    }
    let of_x86 = entries("ALLOWED_HERE");
    assert!(of_x86.iter().all(|(_, entry)| *entry == Entry::X86Only) && !of_x86.is_empty());
    // What both have but the C library names on one of them only stands as a number.
    let arm_line = TABLE.split("#[cfg(target_arch = \"aarch64\")]").nth(1).unwrap();
    let listed = arm_line.split("&[").nth(2).unwrap().split(']').next().unwrap();
    let listed: BTreeSet<c_long> = listed.split(", ").map(|text| text.parse().unwrap()).collect();
    let names = ["renameat", "sync_file_range", "getrlimit", "setrlimit"];
    assert_eq!(listed, names.map(|name| arm[name]).into_iter().collect());
}

#[test]
fn no_call_is_allowed_and_refused_on_either_architecture() {
    for column in [0, 1] {
        let numbers = numbers(column);
        let of = |list: &str| -> BTreeSet<c_long> {
            entries(list).iter().filter_map(|(name, _)| numbers.get(name).copied()).collect()
        };
        let both: Vec<_> = of("ALLOWED").intersection(&of("PRIVILEGED")).copied().collect();
        assert_eq!(both, Vec::<c_long>::new());
        for name in
            ["mount", "bpf", "ptrace", "userfaultfd", "perf_event_open", "keyctl", "kexec_load"]
        {
            assert!(!of("ALLOWED").contains(&numbers[name]), "{name}");
        }
        // Never on a list: they answer as if the kernel did not have them.
        for name in ["io_uring_setup", "memfd_secret", "clone3", "fsopen", "open_by_handle_at"] {
            assert!(!of("ALLOWED").contains(&numbers[name]), "{name}");
        }
    }
}

/// The numbers of this build are those of the list, so that the list can be believed for the other.
#[test]
fn the_numbers_of_this_architecture_are_those_of_the_list() {
    let column = usize::from(cfg!(target_arch = "aarch64"));
    let numbers = numbers(column);
    let here = |(_, entry): &(&str, Entry)| column == 0 || *entry == Entry::Both;
    for (list, built) in [
        ("ALLOWED", ALLOWED),
        ("PRIVILEGED", PRIVILEGED),
        ("STARTING_AND_SPEAKING", STARTING_AND_SPEAKING),
    ] {
        let named: BTreeSet<c_long> = entries(list)
            .iter()
            .filter(|entry| here(entry))
            .map(|(name, _)| numbers[name])
            .collect();
        let built: BTreeSet<c_long> = built.iter().copied().collect();
        let unnamed: Vec<_> = built.difference(&named).collect();
        // Calls that are newer than the C library stand as numbers of our own.
        assert!(unnamed.iter().all(|number| **number >= 424), "{list}: {unnamed:?}");
        assert!(named.is_subset(&built), "{list}");
    }
    if column == 0 {
        let named: Vec<c_long> =
            entries("ALLOWED_HERE").iter().map(|(name, _)| numbers[name]).collect();
        assert_eq!(named, ALLOWED_HERE);
    }
    for (name, number) in [("open_tree_attr", 467), ("fchmodat2", 452)] {
        assert_eq!(self::numbers(0).get(name), Some(&number), "{name}");
        assert_eq!(self::numbers(1).get(name), Some(&number), "{name}");
    }
}
