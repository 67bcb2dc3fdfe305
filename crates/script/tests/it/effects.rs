//! Paths and what happens to them.

use warrant_script::{Dialect, Target, analyze};

/// Each row: `token access program confidence -> target`.
#[track_caller]
fn check(script: &str, expected: &[&str]) {
    let analysis = analyze(script, Dialect::Bash).unwrap_or_else(|e| panic!("{script}: {e}"));
    let rows: Vec<String> = analysis
        .effects
        .iter()
        .map(|effect| {
            let target = match &effect.target {
                Target::Path(path) => path.clone(),
                Target::Pattern(pattern) => format!("pattern {pattern}"),
                Target::Home { rest } => format!("home{rest}"),
                Target::Dynamic => "dynamic".to_owned(),
            };
            let (access, confidence) = (effect.access.as_str(), effect.confidence.as_str());
            format!("{} {access} {} {confidence} -> {target}", effect.token, effect.program)
        })
        .collect();
    assert_eq!(rows, expected, "{script}");
}

#[test]
fn redirections_name_their_files() {
    check(
        "a <in >out 2>>err",
        &["in read a high -> in", "out write a high -> out", "err write a high -> err"],
    );
    check("a 2>&1 <&- >&2", &[]);
    check("a &>log", &["log write a high -> log"]);
    check("a >\"$f\"", &["\"$f\" write a medium -> dynamic"]);
    check("a >$HOME/x", &["$HOME/x write a high -> home/x"]);
    check("(a) >x", &["x write  high -> x"]);
}

#[test]
fn known_programs_say_what_they_do_to_their_operands() {
    check(
        "cat -n /etc/passwd x",
        &["/etc/passwd read cat high -> /etc/passwd", "x read cat high -> x"],
    );
    check("cp -r a b c", &["a read cp high -> a", "b read cp high -> b", "c write cp high -> c"]);
    check("mv a b", &["a readwrite mv high -> a", "b write mv high -> b"]);
    check("rm -rf *.o", &["*.o write rm medium -> pattern *.o"]);
    check("grep -n foo src/x", &["src/x read grep high -> src/x"]);
    check("grep -e foo src/x", &["src/x read grep high -> src/x"]);
    check("sed -i s/a/b/ f", &["f readwrite sed high -> f"]);
    check("chmod +x f", &["f write chmod high -> f"]);
    check("echo x | tee /tmp/y", &["/tmp/y write tee high -> /tmp/y"]);
    check("dd if=a of=b", &["a read dd high -> a", "b write dd high -> b"]);
    check("curl -o out https://h/x", &["out write curl high -> out"]);
    check("find /src -delete", &["/src readwrite find high -> /src"]);
    check("echo /etc/passwd", &[]);
    check("sudo cat x", &["x read cat high -> x"]);
    check("head -n 5 x", &["x read head high -> x"]);
}

#[test]
fn unknown_programs_are_a_guess() {
    check(
        "frob /data ./x y --out=/z",
        &[
            "/z readwrite frob low -> /z",
            "/data readwrite frob low -> /data",
            "./x readwrite frob low -> ./x",
        ],
    );
}

#[test]
fn dynamic_paths_are_told_apart() {
    check(
        "cat ~/x ${HOME}/y \"$HOME\" ~bob/z $X/w",
        &[
            "~/x read cat high -> home/x",
            "${HOME}/y read cat high -> home/y",
            "\"$HOME\" read cat high -> home",
            "~bob/z read cat medium -> dynamic",
            "$X/w read cat medium -> dynamic",
        ],
    );
}

#[test]
fn paths_follow_the_directory_the_script_enters() {
    check(
        "cd /etc && cat passwd",
        &["/etc read cd high -> /etc", "passwd read cat high -> /etc/passwd"],
    );
    check("(cd /etc); cat x", &["/etc read cd high -> /etc", "x read cat high -> x"]);
    check("cd $x; cat y", &["$x read cd medium -> dynamic", "y read cat medium -> dynamic"]);
}

#[test]
fn hosts_are_hints() {
    let script = "curl -s https://Example.com/a | sh; git clone git@github.com:o/r.git";
    let analysis = analyze(script, Dialect::Sh).unwrap();
    let hosts: Vec<&str> = analysis.hosts.iter().map(String::as_str).collect();
    assert_eq!(hosts, ["example.com", "github.com"]);
}
