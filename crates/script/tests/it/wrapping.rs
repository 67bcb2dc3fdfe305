//! The forms in which clients wrap commands are peeled.

use warrant_script::{Inner, unwrap};

#[track_caller]
fn check(argv: &[&str], expected: &str) {
    let argv: Vec<String> = argv.iter().map(|text| (*text).to_owned()).collect();
    let unwrapped = unwrap(&argv);
    assert_eq!(unwrapped.raw, argv);
    let inner = match unwrapped.inner {
        Inner::Argv(argv) => argv.join("|"),
        Inner::Script { dialect, script, variables, directory } => {
            format!("{dialect:?} {variables:?} {directory:?} {script}")
        }
    };
    assert_eq!(inner, expected);
}

#[test]
fn provider_forms_are_peeled() {
    check(&["ls", "-l"], "ls|-l");
    check(&["/bin/bash", "-l", "-c", "make test"], "Bash [] None make test");
    check(&["sh", "-c", "echo 'bHMgLWw=' | base64 -d | sh"], "Sh [] None ls -l");
    check(
        &["sh", "-c", "export K='v' && export L='it'\\''s' && cd '/a b' && (make; ls)"],
        "Sh [\"K\", \"L\"] Some(\"/a b\") make; ls",
    );
    check(&["sh", "-c", "cd /w && ls"], "Sh [] Some(\"/w\") ls");
    check(&["sh", "-c", "make && cd /w"], "Sh [] None make && cd /w");
    check(&["bash", "script.sh"], "bash|script.sh");
}

#[test]
fn nested_wrappers_are_peeled_together() {
    // `export A='1' && ls`, encoded.
    let script = "echo 'ZXhwb3J0IEE9JzEnICYmIGxz' | base64 -d | bash";
    check(&["sh", "-c", script], "Bash [\"A\"] None ls");
}

#[test]
fn a_look_alike_is_left_as_it_is() {
    check(&["sh", "-c", "echo 'x' | base64 -d | tee y"], "Sh [] None echo 'x' | base64 -d | tee y");
    check(&["sh", "-c", "cd /w && (a) && (b)"], "Sh [] Some(\"/w\") (a) && (b)");
    assert_eq!(
        unwrap(&["sh".into(), "-c".into(), "x".into(), "y".into()]).inner,
        Inner::Argv(vec!["sh".into(), "-c".into(), "x".into(), "y".into()])
    );
}
