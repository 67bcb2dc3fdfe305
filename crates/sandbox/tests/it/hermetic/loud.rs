//! What the interpreter cannot do as bash does, it says, and fails.

use warrant_protocol::Outcome;
use warrant_sandbox::{Stdin, WorkspaceAccess};

use super::kit::Bench;

/// Runs a script that must fail with this code and say this on stderr.
#[track_caller]
fn check(bench: &Bench, script: &str, code: u8, complaint: &str) {
    let ran = bench.run(script);
    assert_eq!(ran.report.outcome, Outcome::Exited { code }, "{script}: {}", ran.stderr);
    assert!(ran.stderr.contains(complaint), "{script} said {:?}", ran.stderr);
}

#[test]
fn a_repository_that_stays_is_named() {
    let bench = Bench::new();
    bench.put(".git/config", "[core]\n");
    bench.put(".git/refs/heads/main", "x\n");
    bench.put("sub/.git/config", "[core]\n");
    bench.put("sub/file", "x\n");
    check(&bench, "rm -rf .git", 1, "rm: cannot remove '.git': Operation not permitted");
    check(&bench, "rm -rf sub", 1, "rm: cannot remove 'sub/.git': Operation not permitted");
    assert!(bench.path(".git/config").exists() && !bench.path("sub/file").exists());
}

#[test]
fn a_brace_that_would_be_cut_is_refused() {
    let bench = Bench::new();
    let limit = "at most 100000 words";
    check(&bench, "echo before; for i in {1..100001}; do :; done", 1, limit);
    check(&bench, "echo {1..400}{1..400} | wc -w", 1, limit);
    check(&bench, "eval 'echo {1..200000}' | wc -w; exit ${PIPESTATUS[0]}", 1, "eval");
}

#[test]
fn a_limit_of_the_interpreter_is_named() {
    let bench = Bench::new();
    let recursion = "f() { f; }; f; echo never";
    check(&bench, recursion, 1, "maximum function depth exceeded (16)");
    check(&bench, "printf '%20000d' 1", 1, "exceeds limit 10000");
    let awk = "awk 'BEGIN { for (i = 0; i < 3000000; i++) print i }' > f";
    check(&bench, awk, 2, "output limit exceeded (max 10MB)");
}

#[test]
fn a_script_whose_commands_share_an_input_is_refused() {
    let mut bench = Bench::new();
    bench.put("f", "a\nb\nc\n");
    let complaint = "line 2: this command reads an input that another one has read to its end";
    check(&bench, "echo never\n{ head -n 1; cat; } < f", 1, complaint);
    check(&bench, "\nprintf 'a\\nb\\n' | { cat; cat; }", 1, complaint);
    check(&bench, "\nwhile read x; do cat; done < f", 1, complaint);
    bench.check("{ read x; cat; } < f; { cat; } < f | wc -l", "b\nc\n3\n");
    bench.invocation.stdin = Stdin::Bytes(b"once\n".to_vec());
    check(&bench, "cat\ncat", 1, complaint);
}

#[test]
fn an_option_that_is_not_known_is_refused() {
    let bench = Bench::new();
    bench.put("a", "x\n");
    for command in ["rm --odd a", "ls --odd", "mv --odd a b", "head --odd a", "tail --odd a"] {
        let ran = bench.run(command);
        assert!(!ran.report.outcome.is_success(), "{command}");
        assert!(ran.stderr.contains("unrecognized option '--odd'"), "{command}: {}", ran.stderr);
    }
}

#[test]
fn a_missing_command_tells_of_the_tier_and_of_the_one_that_has_it() {
    let bench = Bench::new();
    for name in ["git", "python3", "npm", "cargo"] {
        let ran = bench.run(&format!("{name} --version"));
        assert_eq!(ran.report.outcome, Outcome::Exited { code: 127 }, "{name}");
        let expected = format!("bash: {name}: command not found: the hermetic tier interprets");
        assert!(ran.stderr.starts_with(&expected), "{}", ran.stderr);
        assert!(ran.stderr.contains("--isolation namespace"), "{}", ran.stderr);
        assert_eq!(ran.stderr.lines().count(), 1, "{}", ran.stderr);
    }
    check(&bench, "gerp x f", 127, "The nearest name there is: grep");
    bench.check("command -v git || echo none", "none\n");
    bench.check("git status 2> /dev/null || echo failed", "failed\n");
}

#[test]
fn a_directory_can_be_renamed_in_an_overlay() {
    let mut bench = Bench::new();
    bench.put("dir/sub/file", "content\n");
    bench.invocation.files.access = WorkspaceAccess::Overlay;
    bench.check(
        "mv dir new; cat new/sub/file; ls -d dir 2>/dev/null || echo gone",
        "content\ngone\n",
    );
    assert!(bench.path("dir/sub/file").exists());
}

#[test]
fn a_file_in_memory_can_be_as_large_as_the_run() {
    let bench = Bench::new();
    bench.check("head -c 20000000 /dev/zero > /tmp/x; wc -c < /tmp/x", "20000000\n");
}
