//! Spells out what people write to `curl` in short, which the interpreter would overlook.

/// Options whose value is the next word, or the rest of their own.
const WITH_VALUE: &str = "AdeFHmoTuwX";

/// Returns the arguments with clusters such as `-fsSLo` taken apart.
pub(super) fn spell_out(args: Vec<String>) -> Vec<String> {
    let mut spelled = Vec::with_capacity(args.len());
    let mut is_value = false;
    for arg in args {
        let is_cluster = !is_value && arg.starts_with('-') && !arg.starts_with("--");
        if !is_cluster || arg.chars().count() <= 2 {
            is_value = !is_value && takes_value(&arg);
            spelled.push(arg);
            continue;
        }
        is_value = false;
        for (at, letter) in arg.char_indices().skip(1) {
            spelled.push(format!("-{letter}"));
            if WITH_VALUE.contains(letter) {
                let rest = arg.get(at + letter.len_utf8()..).unwrap_or_default();
                if rest.is_empty() {
                    is_value = true;
                } else {
                    spelled.push(rest.to_owned());
                }
                break;
            }
        }
    }
    spelled
}

fn takes_value(arg: &str) -> bool {
    let mut letters = arg.chars();
    matches!(
        (letters.next(), letters.next(), letters.next()),
        (Some('-'), Some(letter), None) if WITH_VALUE.contains(letter)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(given: &str, expected: &str) {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(spell_out(words(given)), words(expected));
    }

    #[test]
    fn clusters_are_taken_apart_and_values_left_alone() {
        check("-fsSL http://x", "-f -s -S -L http://x");
        check("-sXPOST http://x", "-s -X POST http://x");
        check("-so out http://x", "-s -o out http://x");
        check("-H -abc http://x", "-H -abc http://x");
        check("-d -sL --silent", "-d -sL --silent");
        check("-sd -x -v", "-s -d -x -v");
    }
}
