//! Words as a command line that a shell reads back as exactly those words.

/// Returns the words as one line for `sh`, `bash` or `zsh`.
#[must_use]
pub fn command_line<'a>(words: impl IntoIterator<Item = &'a str>) -> String {
    let quoted: Vec<String> = words.into_iter().map(quote).collect();
    quoted.join(" ")
}

/// Inside single quotes every character stands for itself, but the single quote.
fn quote(word: &str) -> String {
    // `=` is not plain: zsh expands a word that starts with it, and `a=b` first is an assignment.
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-./:,@%+".contains(&byte);
    if !word.is_empty() && word.bytes().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_shell_reads_back_exactly_the_words() {
        let words = [
            "",
            "plain",
            "two words",
            "it's",
            "'",
            "''",
            "\"",
            "$HOME",
            "`id`",
            "$(id)",
            "a\nb",
            "\\",
            "\\'",
            "*",
            "?",
            "~",
            "!",
            "#",
            ";",
            "&",
            "|",
            "<",
            ">",
            "(",
            ")",
            "{a,b}",
            "=ls",
            "A=b",
            "-n",
            "--",
            "ü→",
            "\t",
            "a\\\nb",
            "\u{1}",
            "[a]",
            "^",
            "%1",
        ];
        for shell in ["sh", "bash"] {
            let line = format!("printf '%s\\0' {}", command_line(words));
            let output = Command::new(shell).args(["-c", &line]).output().unwrap();
            let text = String::from_utf8(output.stdout).unwrap();
            let read: Vec<&str> = text.strip_suffix('\0').unwrap().split('\0').collect();
            assert_eq!(read, words, "{shell}");
        }
    }
}
