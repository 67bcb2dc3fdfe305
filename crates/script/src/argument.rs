//! One argument of a command: what is known of it before the shell expands it.

use std::ops::Range;

use crate::syntax::{Piece, Word};

/// An argument as far as it is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Argument {
    /// The value, when nothing in it is expanded.
    pub(crate) text: Option<String>,
    /// The value with its globs, when nothing else is expanded.
    pub(crate) pattern: Option<String>,
    /// What follows the home directory, when it is that and literal text.
    pub(crate) home: Option<String>,
    /// Whether it may become none or several arguments.
    pub(crate) splits: bool,
    /// As written.
    pub(crate) raw: String,
    /// Where it stands in the script.
    pub(crate) span: Option<Range<usize>>,
}

impl Argument {
    /// Returns an argument whose value is known.
    pub(crate) fn literal(text: &str) -> Self {
        Self {
            text: Some(text.to_owned()),
            pattern: Some(text.to_owned()),
            home: None,
            splits: false,
            raw: text.to_owned(),
            span: None,
        }
    }

    /// Returns an argument of which nothing is known.
    pub(crate) fn unknown(raw: &str) -> Self {
        Self {
            text: None,
            pattern: None,
            home: None,
            splits: true,
            raw: raw.to_owned(),
            span: None,
        }
    }

    /// Returns what a word of a script is known to be.
    pub(crate) fn of(word: &Word) -> Self {
        Self {
            text: word.literal(),
            pattern: word.pattern(),
            home: word.below_home(),
            splits: word.pieces.iter().any(splits),
            raw: word.raw.clone(),
            span: word.span.clone(),
        }
    }

    /// Returns the argument with every occurrence of `placeholder` made unknown.
    pub(crate) fn replacing(&self, placeholder: &str) -> Self {
        let contains = self.text.as_deref().is_none_or(|text| text.contains(placeholder));
        if contains && !placeholder.is_empty() {
            Self { splits: false, ..Self::unknown(&self.raw) }
        } else {
            self.clone()
        }
    }
}

fn splits(piece: &Piece) -> bool {
    match piece {
        Piece::Glob(_) | Piece::Brace | Piece::Opaque | Piece::Substitution(_) => true,
        Piece::Parameter(parameter) => {
            !parameter.quoted || parameter.name == "@" || !parameter.plain
        }
        Piece::Literal { .. } | Piece::Tilde(_) | Piece::Arithmetic(_) => false,
    }
}
