//! Whatever the text, there is an answer.

use proptest::prelude::*;
use warrant_script::{Dialect, analyze, hosts_of, rewrite_home, unwrap};

fn shellish() -> impl Strategy<Value = String> {
    let parts = prop::sample::select(vec![
        "a",
        "rm",
        " ",
        "\n",
        ";",
        "&",
        "|",
        "(",
        ")",
        "{",
        "}",
        "$",
        "`",
        "'",
        "\"",
        "\\",
        "<",
        ">",
        "<<",
        "E",
        "$(",
        "((",
        "))",
        "${",
        "=",
        "if",
        "then",
        "fi",
        "do",
        "done",
        "case",
        "esac",
        "in",
        "for",
        "[[",
        "]]",
        "~",
        "*",
        "#",
        "é",
        "sh -c ",
        "eval ",
        "xargs ",
        "env ",
        "find ",
        "$HOME/x",
        "function ",
        "!",
        "time ",
        "\t",
        "-",
        "0",
        "<<-",
        "<<<",
        "&>",
        "2>",
    ]);
    prop::collection::vec(parts, 0..40).prop_map(|parts| parts.concat())
}

proptest! {
    #[test]
    fn no_text_panics(text in ".{0,200}", script in shellish()) {
        for dialect in [Dialect::Sh, Dialect::Bash] {
            for text in [&text, &script] {
                let _ = analyze(text, dialect);
                let _ = rewrite_home(text, dialect, "$HOME/x", "/home/me");
            }
        }
        let _ = hosts_of(&text);
        let _ = unwrap(&["sh".to_owned(), "-c".to_owned(), script]);
    }

    #[test]
    fn spans_point_at_their_tokens(script in shellish()) {
        if let Ok(analysis) = analyze(&script, Dialect::Bash) {
            for effect in analysis.effects {
                if let Some(span) = effect.span {
                    let found = &script[span];
                    prop_assert!(found.ends_with(&effect.token), "{found} {}", effect.token);
                }
            }
        }
    }
}
