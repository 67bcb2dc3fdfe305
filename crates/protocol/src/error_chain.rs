//! An error with its causes as one line: what people read, and what logs keep.

use std::error::Error;

/// Returns an error and everything below it, on one line: `what failed: why: why that`. A cause
/// that the text ends with already is not repeated.
#[must_use]
pub fn error_chain(error: &dyn Error) -> String {
    let mut text = one_line(error);
    let mut cause = error.source();
    while let Some(next) = cause {
        let next_text = one_line(next);
        if !text.ends_with(&next_text) {
            text.push_str(": ");
            text.push_str(&next_text);
        }
        cause = next.source();
    }
    text
}

fn one_line(error: &dyn Error) -> String {
    error.to_string().replace(['\n', '\r'], " ")
}

#[cfg(test)]
mod tests {
    use std::fmt;

    use super::*;

    #[derive(Debug)]
    struct Layer(&'static str, Option<Box<Layer>>);

    impl fmt::Display for Layer {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }
    }

    impl Error for Layer {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            self.1.as_deref().map(|cause| cause as &(dyn Error + 'static))
        }
    }

    #[track_caller]
    fn check(layers: &[&'static str], expected: &str) {
        let stack = layers.iter().rev().fold(None, |below, text| {
            let layer = Layer(text, below);
            Some(Box::new(layer))
        });
        assert_eq!(error_chain(&*stack.unwrap()), expected);
    }

    #[test]
    fn every_cause_is_told_once_on_one_line() {
        check(&["alone"], "alone");
        check(&["cannot write", "disk is full"], "cannot write: disk is full");
        check(&["a", "b", "c"], "a: b: c");
        check(&["cannot write: disk is full", "disk is full"], "cannot write: disk is full");
        check(&["first\nline", "second"], "first line: second");
    }
}
