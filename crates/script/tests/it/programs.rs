//! Every program a script would start is found.

use warrant_script::{Dialect, Name, analyze, analyze_argv};

/// `?` stands for something that cannot be named.
#[track_caller]
fn check(script: &str, expected: &[&str]) {
    let analysis = analyze(script, Dialect::Bash).unwrap_or_else(|e| panic!("{script}: {e}"));
    assert_eq!(names(&analysis.programs), expected, "{script}");
}

fn names(programs: &[warrant_script::Program]) -> Vec<&str> {
    let names = programs.iter().map(|program| match &program.name {
        Name::Literal(name) => name.as_str(),
        Name::Dynamic { .. } => "?",
    });
    names.collect()
}

#[test]
fn programs_are_found_through_lists_pipes_and_compounds() {
    check("ls", &["ls"]);
    check("a; b && c || d & e", &["a", "b", "c", "d", "e"]);
    check("a | b |& c", &["a", "b", "c"]);
    check("! a; time b", &["a", "b"]);
    check("if a; then b; elif c; then d; else e; fi", &["a", "b", "c", "d", "e"]);
    check("while a; do b; done; until c; do d; done", &["a", "b", "c", "d"]);
    check("for x in 1 2; do a \"$x\"; done", &["a"]);
    check("for ((i=0;i<3;i++)); do a; done", &["a"]);
    check("case $x in a|b) c ;; (*) d ;& e) f;; esac", &["c", "d", "f"]);
    check("{ a; b; } > out", &["a", "b"]);
    check("(a; (b))", &["a", "b"]);
    check("[[ $x == y && -f z ]] && a", &["a"]);
    check("((x > 1)) && a", &["a"]);
    check("a # b", &["a"]);
    check("a \\\n  b", &["a"]);
    check("i\\\nf a; then b; fi", &["a", "b"]);
    check("", &[]);
    check("x=1 y=2", &[]);
    check("x=1 a", &["a"]);
    check("a=(b $(c)) d", &["c", "d"]);
    check(">out a", &["a"]);
    check("echo hi; cd x; test -f y", &[]);
}

#[test]
fn programs_are_found_in_substitutions_and_documents() {
    check("echo $(a)", &["a"]);
    check("echo \"x $(a \"$(b)\") y\"", &["b", "a"]);
    check("echo `a`", &["a"]);
    check("echo \"`\\\"a\\\" b`\"", &["a"]);
    check("diff <(a) <(b)", &["a", "b", "diff"]);
    check("echo $(( $(a) + 1 ))", &["a"]);
    check("echo ${x:-$(a)}", &["a"]);
    check("cat <<E\n$(a)\nE\nb", &["a", "cat", "b"]);
    check("cat <<'E'\n$(a)\nE\nb", &["cat", "b"]);
    check("cat <<-E\n\tx\n\tE\nb", &["cat", "b"]);
    check("cat <<A <<B\n1\nA\n2\nB\nb", &["cat", "b"]);
    check("x=$(cat <<E\n(\nE\n) b", &["cat", "b"]);
}

#[test]
fn wrappers_are_followed_to_the_inner_program() {
    check("sudo -u root FOO=1 rm x", &["sudo", "rm"]);
    check("env -i A=1 B=2 rm x", &["env", "rm"]);
    check("env \"FOO\"=x rm y", &["env", "rm"]);
    check("nohup nice -n 5 timeout -k 1 10 rm x", &["nohup", "nice", "timeout", "rm"]);
    check("find . -name x -exec rm {} + -exec ls \\;", &["find", "rm", "ls"]);
    check("find . -exec {} \\;", &["find", "?"]);
    check("ls | xargs -0 -n 1 rm", &["ls", "xargs", "rm"]);
    check("ls | xargs -I% %", &["ls", "xargs", "?"]);
    check("command rm x; command -v rm", &["rm"]);
    check("exec rm x", &["rm"]);
    check("busybox rm x", &["busybox", "rm"]);
    check("stdbuf -oL rm x", &["stdbuf", "rm"]);
    check("sudo --frobnicate rm", &["sudo", "?"]);
    check("env -S 'rm x'", &["env", "?"]);
    check("docker run x", &["docker", "?"]);
}

#[test]
fn scripts_given_to_shells_are_read() {
    check("sh -c 'rm x; ls'", &["sh", "rm", "ls"]);
    check("bash -lc 'a && sh -c \"b\"'", &["bash", "a", "sh", "b"]);
    check("sh -o errexit -c 'a'", &["sh", "a"]);
    check("eval 'rm x'", &["rm"]);
    check("eval rm '$x'", &["rm"]);
    check("eval \"$x\"", &["?"]);
    check("sh <<E\nrm x\nE", &["sh", "rm"]);
    check("bash <<< 'rm x'", &["bash", "rm"]);
    check("echo rm x | sh", &["sh", "rm"]);
    check("echo 'cm0geA==' | base64 -d | sh", &["base64", "sh", "rm"]);
    check("cat <<E | sh -s\nrm x\nE", &["cat", "sh", "rm"]);
    check("curl x | sh", &["curl", "sh", "?"]);
    check("sh file.sh", &["sh", "?"]);
    check("sh -c \"$x\"", &["sh", "?"]);
    check("trap 'rm x' EXIT; trap - INT", &["rm"]);
    check(". ./lib.sh; source x", &["?", "?"]);
    check("sh -c '('", &["sh", "?"]);
}

#[test]
fn argv_is_followed_like_a_script() {
    let argv = |words: &[&str]| words.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>();
    let analysis = analyze_argv(&argv(&["sh", "-c", "echo hi | rm x"]));
    assert_eq!(names(&analysis.programs), ["sh", "rm"]);
    let analysis = analyze_argv(&argv(&["echo", "$(rm x)"]));
    assert_eq!(names(&analysis.programs), ["echo"]);
    let analysis = analyze_argv(&argv(&["env", "PATH=/tmp", "ls"]));
    assert_eq!(names(&analysis.programs), ["env", "?", "ls"]);
}

#[test]
fn functions_are_not_programs_but_what_they_start_is() {
    check("f() { rm x; }; f", &["rm"]);
    check("echo; f() { rm x; }; f; f", &["rm"]);
}
