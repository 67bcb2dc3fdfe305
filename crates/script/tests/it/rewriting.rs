//! Dynamic home paths become literals, and nothing else changes.

use std::process::Command;

use warrant_script::{Dialect, RewriteError, quote, rewrite_home};

#[track_caller]
fn check(script: &str, token: &str, expected: &str) {
    assert_eq!(rewrite_home(script, Dialect::Sh, token, "/home/me").as_deref(), Ok(expected));
}

#[test]
fn home_paths_are_rewritten_by_their_spans() {
    check("cat $HOME/x", "$HOME/x", "cat /home/me/x");
    check("cat ${HOME}/x >~/y", "~/y", "cat ${HOME}/x >/home/me/y");
    check("cat ~", "~", "cat /home/me");
    check("cat \"$HOME/a b\"", "\"$HOME/a b\"", "cat '/home/me/a b'");
    check("cat $HOME/x; rm $HOME/x", "$HOME/x", "cat /home/me/x; rm /home/me/x");
    check("cat 'é' $HOME/x '$HOME/x'", "$HOME/x", "cat 'é' /home/me/x '$HOME/x'");
}

#[test]
fn what_is_not_a_home_path_is_not_rewritten() {
    for (script, token) in [
        ("cat $X/x", "$X/x"),
        ("cat '$HOME/x'", "'$HOME/x'"),
        ("cat ~bob/x", "~bob/x"),
        ("sh -c 'cat $HOME/x'", "$HOME/x"),
        ("cat $HOMEx", "$HOME/x"),
    ] {
        let rewritten = rewrite_home(script, Dialect::Sh, token, "/home/me");
        assert_eq!(rewritten, Err(RewriteError::NotFound(token.to_owned())), "{script}");
    }
    let relative = rewrite_home("cat ~/x", Dialect::Sh, "~/x", "home");
    assert_eq!(relative, Err(RewriteError::Home));
}

#[test]
fn a_hostile_home_directory_stays_one_word() {
    let home = "/home/$(touch pwned)'; rm -rf x #";
    let rewritten = rewrite_home("printf %s $HOME/x", Dialect::Sh, "$HOME/x", home);
    assert_eq!(rewritten, Err(RewriteError::NotFound("$HOME/x".to_owned())));
    let rewritten = rewrite_home("cat $HOME/x", Dialect::Sh, "$HOME/x", home).unwrap();
    let shown = rewritten.replacen("cat", "printf %s", 1);
    let output = Command::new("sh").args(["-c", &shown]).output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), format!("{home}/x"));
}

#[test]
fn quoting_survives_a_real_shell() {
    for text in ["", "a b", "it's", "$(x)", "`x`", "a\nb", "\\", "*", "~", "é", "-n", "''"] {
        let script = format!("printf %s {}", quote(text));
        let output = Command::new("sh").args(["-c", &script]).output().unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap(), text);
    }
}
