//! Ways of hiding a program from a reader; each must be found, unnamed or refused.

use warrant_script::{Dialect, Name, ParseError, analyze};

/// The script must name `rm`, or say that something cannot be named, or be refused.
#[track_caller]
fn check(script: &str) {
    for dialect in [Dialect::Sh, Dialect::Bash] {
        let Ok(analysis) = analyze(script, dialect) else { continue };
        let is_seen = analysis.is_dynamic()
            || analysis.names().iter().any(|name| matches!(*name, "rm" | "/bin/rm"));
        assert!(is_seen, "{script:?} in {dialect:?}: {:?}", analysis.programs);
    }
}

#[test]
fn quoting_cannot_hide_a_program() {
    for script in [
        "r''m x",
        "\"rm\" x",
        "'rm' x",
        "r\\m x",
        "\\rm x",
        "r\\\nm x",
        "$'rm' x",
        "$'\\x72m' x",
        "$\"rm\" x",
        "/bin/rm x",
        "/b??/rm x",
        "{rm,-rf,x}",
        "${x:-rm} x",
        "$x",
        "`echo rm` x",
        "$(echo rm) x",
        "r$y\"m\" x",
        "${!x}",
        "\"$@\"",
        "$1",
        "~/rm",
        "rm\\\n x",
    ] {
        check(script);
    }
}

#[test]
fn reserved_words_and_redirections_cannot_hide_a_program() {
    for script in [
        "! rm x",
        ">a rm x",
        "2>&1 rm x",
        "a=1 rm x",
        "a+=1 rm x",
        "a[0]=1 rm x",
        "a[1 + 2]=1 rm x",
        "true & rm x",
        "true\nrm x",
        "true;rm x",
        "true|rm x",
        "true&&rm x",
        "((rm x); true)",
        "((true);rm x)",
        "$((true);rm x)",
        "[[ a && $(rm x) ]]",
        "time rm x",
        "time -p rm x",
        "{ rm x\n}",
        "(rm x)",
        "function f { rm x; }",
        "f() (rm x)",
        "coproc rm x",
        "case a in a) rm x; esac",
        "if rm x; then :; fi",
        "select i in a; do rm x; done",
        "{fd}>f rm x",
        "true # \\\nrm x",
        "echo a#b; rm x",
        "true ;; rm x",
    ] {
        check(script);
    }
}

#[test]
fn what_only_bash_reads_so_is_judged_for_both_readings() {
    let refused = analyze("true &>f rm x", Dialect::Sh);
    assert!(matches!(refused, Err(ParseError::Ambiguous { .. })), "{refused:?}");
    assert!(analyze("true &>f rm x", Dialect::Bash).is_ok_and(|a| a.programs.is_empty()));
    // Arithmetic to one shell, two subshells to another.
    assert!(analyze("echo $[ ; rm x ; ]", Dialect::Sh).is_err());
    let analysis = analyze("(( rm x ))", Dialect::Sh).unwrap();
    assert!(analysis.names().contains("rm"));
}

#[test]
fn a_function_definition_cannot_hide_a_program() {
    for script in [
        "if false; then rm() { :; }; fi; rm x",
        "false && rm() { :; }; rm x",
        "rm() { :; } & rm x",
        "rm x; rm() { :; }",
        "rm() { :; }; unset -f rm; rm x",
        "rm() { :; }; command rm x",
        "rm() { :; }; env rm x",
        "rm() { :; }; sh -c 'rm x'",
        "(rm() { :; }); rm x",
        "rm() { :; } | cat; rm x",
        "alias ls=rm\nls x",
    ] {
        check(script);
    }
}

#[test]
fn here_documents_cannot_hide_a_program() {
    for script in [
        "cat <<E\nx\nE\nrm x",
        "cat <<E\nfoo \\\nE\n'\nE\nrm x\n: '",
        "cat <<E\n\\\nE\nrm x\nE",
        "cat <<'E\nF'\nx\nE\nF\nrm x",
        "cat <<E\n$(\nE\n) rm x",
        "x=$(cat <<E)\nrm x\nE",
        "cat <<E $(true\nrm x)\nE",
        "cat <<$E\nrm x\n$E\nrm y",
        "cat << \\E\n$(true)\nE\nrm x",
        "sh <<E\nrm x\nE",
        "cat <<E\n`rm x`\nE",
        "cat <<E;rm x\nE",
    ] {
        check(script);
    }
}

#[test]
fn variables_and_evaluated_text_cannot_hide_a_program() {
    for script in [
        "PATH=/tmp ls",
        "export PATH=/tmp; ls",
        "LD_PRELOAD=./x ls",
        "env PATH=/tmp ls",
        "for PATH in /tmp; do ls; done",
        "read PATH; ls",
        "printf -v PATH /tmp; ls",
        "x='a[$(rm x)]'; ((x))",
        "[[ 'a[$(rm x)]' -eq 0 ]]",
        "let 'a[$(rm x)]=1'",
        "test -v 'a[$(rm x)]'",
        "declare -i y='a[$(rm x)]'",
        "unset 'a[`rm x`]'",
        "eval \"r\"m x",
        "trap 'rm x' 0",
        "hash -p /bin/rm ls; ls x",
        "enable -f ./x y",
        "mapfile -C 'rm x' a",
        "${x@P}",
        ": ${x@P}",
        "sh -c 'rm x'",
        "xargs rm <f",
        "env $x rm",
        "env A=$x ls",
        "find . -exec rm {} +",
        "find $x",
        "find * -name a",
        "sudo -s",
        "ld-linux.so.2 /bin/rm",
    ] {
        check(script);
    }
}

#[test]
fn bounds_are_errors_and_not_crashes() {
    let deep = "$(".repeat(5_000) + &")".repeat(5_000);
    assert_eq!(analyze(&deep, Dialect::Sh), Err(ParseError::TooDeep));
    let quotes = "\"$(".repeat(5_000);
    assert_eq!(analyze(&quotes, Dialect::Bash), Err(ParseError::TooDeep));
    let braces = "{ ".repeat(5_000);
    assert_eq!(analyze(&braces, Dialect::Sh), Err(ParseError::TooDeep));
    let ticks = "`\\`\\\\\\`".repeat(2_000);
    assert!(analyze(&ticks, Dialect::Sh).is_err());
    let many = "a;".repeat(20_001);
    assert_eq!(analyze(&many, Dialect::Sh), Err(ParseError::TooMany));
    let long = "a".repeat(warrant_script::MAX_BYTES + 1);
    assert!(matches!(analyze(&long, Dialect::Sh), Err(ParseError::TooLarge { .. })));
    assert!(matches!(analyze("a\0b", Dialect::Sh), Err(ParseError::Ambiguous { .. })));
}

#[test]
fn nested_shells_end_in_an_unnamed_program() {
    let mut script = "rm x".to_owned();
    for _ in 0..9 {
        script = format!("eval {}", warrant_script::quote(&script));
    }
    let analysis = analyze(&script, Dialect::Sh).unwrap();
    assert!(analysis.is_dynamic(), "{:?}", analysis.programs);
}

#[test]
fn a_dynamic_name_says_why() {
    let analysis = analyze("$x y", Dialect::Sh).unwrap();
    let Name::Dynamic { raw, why } = &analysis.programs[0].name else { panic!("named") };
    assert_eq!((raw.as_str(), *why), ("$x", "a name only the shell knows"));
}
