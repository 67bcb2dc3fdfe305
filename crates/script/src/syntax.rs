//! The syntax tree of a script: only what finding programs and paths needs.
//!
//! Lists joined by `;`, `&`, `&&`, `||` and newlines are one flat sequence, because every
//! command of them may run.

use std::ops::Range;

/// One command of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Command {
    /// Words, assignments and redirections.
    Simple(Simple),
    /// Two or more commands joined by `|`.
    Pipeline(Vec<Command>),
    /// `if`, `while`, `for`, `case`, `{ }`, `[[ ]]` and the like.
    Compound(Compound),
    /// `( … )`.
    Subshell(Compound),
    /// `name() …`.
    Function {
        /// The name as written.
        name: String,
        /// Whether the spelling means the same in every shell.
        portable: bool,
        /// The body.
        body: Box<Command>,
    },
}

/// A command made of other commands.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Compound {
    /// Every list inside, in order.
    pub(crate) body: Vec<Command>,
    /// Words that are expanded but start nothing themselves.
    pub(crate) words: Vec<Word>,
    /// Names the construct assigns (`for NAME`).
    pub(crate) assigns: Vec<String>,
    /// Redirections behind it.
    pub(crate) redirects: Vec<Redirect>,
}

/// A simple command.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Simple {
    /// Assignments before the name, and array assignments anywhere.
    pub(crate) assignments: Vec<Assignment>,
    /// The name and its arguments.
    pub(crate) words: Vec<Word>,
    /// Redirections.
    pub(crate) redirects: Vec<Redirect>,
}

/// `name=value`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Assignment {
    /// The variable.
    pub(crate) name: String,
    /// The whole word, or the words of an array.
    pub(crate) values: Vec<Word>,
}

/// One redirection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Redirect {
    /// From or to a file.
    File {
        /// What it does to the file.
        mode: Mode,
        /// The descriptor, when one was written.
        fd: Option<u32>,
        /// The file.
        target: Word,
    },
    /// `<<WORD`: the index of its body.
    Here(usize),
    /// `<<<word`.
    HereString(Word),
}

/// What a redirection does to its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// `<`.
    Read,
    /// `>`, `>>`, `>|`, `&>`.
    Write,
    /// `<>`.
    ReadWrite,
    /// `<&`, `>&`: a descriptor, or a file in some shells.
    Duplicate,
}

/// A word as written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Word {
    /// Where it stands in the script; absent below backquotes.
    pub(crate) span: Option<Range<usize>>,
    /// The text as written.
    pub(crate) raw: String,
    /// What it is made of.
    pub(crate) pieces: Vec<Piece>,
}

/// A part of a word.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Piece {
    /// Text that means itself.
    Literal {
        /// The text without its quotes.
        text: String,
        /// Whether any of it was quoted.
        quoted: bool,
    },
    /// An unquoted `*`, `?` or `[`.
    Glob(char),
    /// An unquoted `{` that may expand to several words.
    Brace,
    /// `~` or `~user`.
    Tilde(String),
    /// A parameter.
    Parameter(Parameter),
    /// `$(…)`, backquotes, `<(…)`.
    Substitution(Vec<Command>),
    /// `$((…))`: what is expanded inside.
    Arithmetic(Vec<Piece>),
    /// Quoting whose meaning differs between shells (`$'…'`).
    Opaque,
}

/// `$name` or `${name…}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Parameter {
    /// The name.
    pub(crate) name: String,
    /// Whether nothing but the name is there.
    pub(crate) plain: bool,
    /// Whether double quotes hold the value together.
    pub(crate) quoted: bool,
    /// What the operator's word expands.
    pub(crate) nested: Vec<Piece>,
}

impl Word {
    /// Returns the text when nothing in the word is expanded.
    pub(crate) fn literal(&self) -> Option<String> {
        let mut text = String::new();
        for piece in &self.pieces {
            let Piece::Literal { text: part, .. } = piece else { return None };
            text.push_str(part);
        }
        Some(text)
    }

    /// Returns the text with globs as written, when only globs and braces are expanded.
    pub(crate) fn pattern(&self) -> Option<String> {
        let mut text = String::new();
        for piece in &self.pieces {
            match piece {
                Piece::Literal { text: part, .. } => text.push_str(part),
                Piece::Glob(glob) => text.push(*glob),
                Piece::Brace => text.push('{'),
                Piece::Tilde(_)
                | Piece::Parameter(_)
                | Piece::Substitution(_)
                | Piece::Arithmetic(_)
                | Piece::Opaque => return None,
            }
        }
        Some(text)
    }

    /// Returns what follows the home directory, when the word is that and literal text:
    /// `~`, `$HOME`, `${HOME}`, each alone or with `/rest`.
    pub(crate) fn below_home(&self) -> Option<String> {
        // Double quotes leave an empty piece in front, before which no tilde expands.
        let pieces = match self.pieces.as_slice() {
            [Piece::Literal { text, quoted: true }, rest @ ..]
                if text.is_empty() && !matches!(rest.first(), Some(Piece::Tilde(_))) =>
            {
                rest
            }
            pieces => pieces,
        };
        let (first, rest) = pieces.split_first()?;
        let is_home = match first {
            Piece::Tilde(user) => user.is_empty(),
            Piece::Parameter(parameter) => parameter.plain && parameter.name == "HOME",
            _ => false,
        };
        let rest = Self { span: None, raw: String::new(), pieces: rest.to_vec() }.literal()?;
        (is_home && (rest.is_empty() || rest.starts_with('/'))).then_some(rest)
    }
}
