//! The pages a newcomer needs exist, the CI script calls the README's command, files stay readable.

#[test]
fn the_pages_are_there() {
    for page in [
        "README.md",
        "ARCHITECTURE.md",
        "STYLE.md",
        "SPEC.md",
        "LIMITATIONS.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "CHANGELOG.md",
        "LICENSE",
    ] {
        let text = std::fs::read_to_string(crate::root().join(page)).unwrap_or_default();
        assert!(text.len() > 200, "{page} is missing or empty");
    }
}

#[test]
fn ci_runs_the_test_command_of_the_readme_and_nothing_else() {
    let script = std::fs::read_to_string(crate::root().join(".ci/run")).unwrap();
    let commands: Vec<&str> = script
        .lines()
        .filter(|line| {
            !line.starts_with('#') && !line.starts_with("set ") && !line.starts_with("cd ")
        })
        .collect();
    assert_eq!(commands, ["exec cargo xtask test"]);
    let readme = std::fs::read_to_string(crate::root().join("README.md")).unwrap();
    assert!(readme.contains("cargo xtask test"));
    assert!(readme.lines().count() <= 100, "the README is one page");
}

#[test]
fn every_file_says_what_it_owns_and_stays_below_800_lines() {
    for file in crate::files(".rs") {
        let text = std::fs::read_to_string(&file).unwrap();
        let is_shipped = !file.components().any(|part| part.as_os_str() == "tests");
        assert!(!is_shipped || text.lines().count() <= 800, "{} is too long", file.display());
        assert!(text.starts_with("//!"), "{} does not say what it owns", file.display());
    }
}
