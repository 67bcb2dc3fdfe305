//! Words: quotes, expansions, substitutions and here-documents.
//!
//! One pass, no backtracking, depth bounded. Where two shells read the same text differently
//! and neither reading contains the other, the answer is an error.

use std::mem;

use crate::parser::{Closer, Parser};
use crate::syntax::{Command, Parameter, Piece, Word};
use crate::{Dialect, ParseError};

/// A here-document whose body has not been reached yet.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) index: usize,
    pub(crate) delimiter: String,
    pub(crate) strip_tabs: bool,
    pub(crate) expand: bool,
}

/// What ends a run of pieces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Until {
    /// A blank or an operator.
    Blank,
    /// The closing double quote.
    Quote,
    /// The `}` of a parameter, outside double quotes.
    Brace,
    /// The `}` of a parameter inside double quotes.
    QuotedBrace,
    /// The `))` of an expansion or a command.
    Arithmetic,
    /// The `]` of a legacy arithmetic expansion or a subscript.
    Bracket,
    /// The end of the text (here-documents).
    End,
}

pub(crate) fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t')
}

pub(crate) fn is_meta(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b';' | b'&' | b'|' | b'<' | b'>' | b'(' | b')')
}

pub(crate) fn is_name(text: &str) -> bool {
    let starts_well = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    starts_well && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

impl<'a> Parser<'a> {
    /// Returns the byte at `offset` behind the position, as written.
    pub(crate) fn raw_at(&self, offset: usize) -> Option<u8> {
        self.text.as_bytes().get(self.position + offset).copied()
    }

    /// Removes line continuations at the position.
    pub(crate) fn join_lines(&mut self) {
        while self.raw_at(0) == Some(b'\\') && self.raw_at(1) == Some(b'\n') {
            self.position += 2;
        }
    }

    /// Returns the next byte with line continuations removed.
    pub(crate) fn peek(&mut self) -> Option<u8> {
        self.join_lines();
        self.raw_at(0)
    }

    /// Returns whether the text goes on with `wanted`, line continuations removed, and where
    /// it would end.
    fn matched(&self, wanted: &str) -> Option<usize> {
        let bytes = self.text.as_bytes();
        let mut at = self.position;
        for byte in wanted.bytes() {
            while bytes.get(at) == Some(&b'\\') && bytes.get(at + 1) == Some(&b'\n') {
                at += 2;
            }
            if bytes.get(at) != Some(&byte) {
                return None;
            }
            at += 1;
        }
        Some(at)
    }

    /// Returns whether the text goes on with `wanted`.
    pub(crate) fn looking_at(&self, wanted: &str) -> bool {
        self.matched(wanted).is_some()
    }

    /// Takes `wanted` if the text goes on with it.
    pub(crate) fn eat(&mut self, wanted: &str) -> bool {
        let end = self.matched(wanted);
        if let Some(end) = end {
            self.position = end;
        }
        end.is_some()
    }

    /// Takes one character as written.
    pub(crate) fn bump(&mut self) -> Option<char> {
        let next = self.text.get(self.position..)?.chars().next()?;
        self.position += next.len_utf8();
        Some(next)
    }

    /// Takes `needed` or fails.
    pub(crate) fn expect(&mut self, needed: &'static str) -> Result<(), ParseError> {
        if self.eat(needed) { Ok(()) } else { Err(self.missing(needed)) }
    }

    pub(crate) fn missing(&self, needed: &'static str) -> ParseError {
        ParseError::Missing { needed, at: self.position }
    }

    pub(crate) fn ambiguous(&self, what: &'static str) -> ParseError {
        ParseError::Ambiguous { what, at: self.position }
    }

    /// Reads a word; there must be one.
    pub(crate) fn word(&mut self) -> Result<Word, ParseError> {
        self.join_lines();
        let start = self.position;
        let pieces = self.pieces(Until::Blank)?;
        if self.position == start {
            return Err(self.missing("a word"));
        }
        let raw = self.text.get(start..self.position).unwrap_or_default().to_owned();
        let span = self.spans.then_some(start..self.position);
        Ok(Word { span, raw, pieces })
    }

    /// Reads pieces up to what ends them, which is not taken.
    pub(crate) fn pieces(&mut self, until: Until) -> Result<Vec<Piece>, ParseError> {
        self.enter()?;
        let mut pieces = Vec::new();
        let mut parens = 0_usize;
        let start = self.position;
        loop {
            let Some(byte) = self.peek() else {
                if matches!(until, Until::Blank | Until::End) {
                    break;
                }
                return Err(self.missing("the end of a quote or an expansion"));
            };
            if self.ends(until, byte, parens) {
                break;
            }
            if matches!(until, Until::Arithmetic | Until::Bracket) {
                parens = match byte {
                    b'(' => parens + 1,
                    b')' if parens == 0 => return Err(self.ambiguous("`$((` closed by one `)`")),
                    b')' => parens - 1,
                    _ => parens,
                };
            }
            let at_start = self.position == start;
            self.piece(until, at_start, &mut pieces)?;
        }
        self.leave();
        Ok(pieces)
    }

    fn ends(&mut self, until: Until, byte: u8, parens: usize) -> bool {
        match until {
            Until::Blank => is_meta(byte) && !self.at_process_substitution(),
            Until::Quote => byte == b'"',
            Until::Brace | Until::QuotedBrace => byte == b'}',
            Until::Arithmetic => parens == 0 && self.looking_at("))"),
            Until::Bracket => byte == b']',
            Until::End => false,
        }
    }

    fn at_process_substitution(&self) -> bool {
        self.looking_at("<(") || self.looking_at(">(")
    }

    /// Reads one piece.
    fn piece(
        &mut self,
        until: Until,
        at_start: bool,
        pieces: &mut Vec<Piece>,
    ) -> Result<(), ParseError> {
        let quoted = matches!(until, Until::Quote | Until::QuotedBrace | Until::End);
        let byte = self.peek().unwrap_or_default();
        match byte {
            b'\'' if matches!(until, Until::QuotedBrace | Until::Arithmetic | Until::Bracket) => {
                return Err(self.ambiguous("a single quote in an expansion"));
            }
            b'\'' if !quoted => self.single_quoted(pieces)?,
            b'"' if until != Until::End => {
                self.position += 1;
                let inner = self.pieces(Until::Quote)?;
                self.expect("\"")?;
                push_literal(pieces, "", true);
                pieces.extend(inner);
            }
            b'\\' => self.escaped(until, pieces),
            b'$' => self.dollar(quoted, pieces)?,
            b'`' => {
                pieces.push(self.backquoted(matches!(until, Until::Quote | Until::QuotedBrace))?)
            }
            b'<' | b'>' if until == Until::Blank => {
                self.position += 2;
                pieces.push(Piece::Substitution(self.substitution()?));
            }
            b'~' if until == Until::Blank && (at_start || after_equals(pieces)) => {
                pieces.push(Piece::Tilde(self.tilde_user()));
            }
            b'*' | b'?' | b'[' if until == Until::Blank => {
                self.position += 1;
                pieces.push(Piece::Glob(char::from(byte)));
            }
            b'{' if until == Until::Blank
                && !self.looking_at("{}")
                && !self.lone_brace(at_start) =>
            {
                if self.spans {
                    self.braces.push(self.position);
                }
                self.position += 1;
                pieces.push(Piece::Brace);
            }
            _ => {
                if let Some(next) = self.bump() {
                    push_literal(pieces, next.encode_utf8(&mut [0; 4]), quoted);
                }
            }
        }
        Ok(())
    }

    fn lone_brace(&self, at_start: bool) -> bool {
        at_start && self.raw_at(1).is_none_or(is_meta)
    }

    fn single_quoted(&mut self, pieces: &mut Vec<Piece>) -> Result<(), ParseError> {
        self.position += 1;
        let rest = self.text.get(self.position..).unwrap_or_default();
        let Some(length) = rest.find('\'') else { return Err(self.missing("'")) };
        push_literal(pieces, rest.get(..length).unwrap_or_default(), true);
        self.position += length + 1;
        Ok(())
    }

    fn escaped(&mut self, until: Until, pieces: &mut Vec<Piece>) {
        self.position += 1;
        let in_quotes = matches!(until, Until::Quote | Until::QuotedBrace);
        let special: &[char] = match until {
            Until::End => &['$', '`', '\\'],
            Until::QuotedBrace => &['$', '`', '"', '\\', '}'],
            _ => &['$', '`', '"', '\\'],
        };
        let next = self.bump();
        let keeps =
            (in_quotes || until == Until::End) && next.is_none_or(|c| !special.contains(&c));
        if keeps {
            push_literal(pieces, "\\", true);
        }
        if let Some(next) = next {
            push_literal(pieces, next.encode_utf8(&mut [0; 4]), true);
        }
    }

    fn tilde_user(&mut self) -> String {
        self.position += 1;
        let mut user = String::new();
        while let Some(byte) = self.peek() {
            if !(byte.is_ascii_alphanumeric() || b"._-+".contains(&byte)) {
                break;
            }
            user.push(char::from(byte));
            self.position += 1;
        }
        user
    }

    fn dollar(&mut self, quoted: bool, pieces: &mut Vec<Piece>) -> Result<(), ParseError> {
        if self.eat("$((") {
            let inner = self.pieces(Until::Arithmetic)?;
            self.expect("))")?;
            pieces.push(Piece::Arithmetic(inner));
        } else if self.eat("$(") {
            pieces.push(Piece::Substitution(self.substitution()?));
        } else if self.dialect == Dialect::Sh && self.looking_at("$[") {
            return Err(self.ambiguous("`$[`"));
        } else if self.eat("$[") {
            let inner = self.pieces(Until::Bracket)?;
            self.expect("]")?;
            pieces.push(Piece::Arithmetic(inner));
            pieces.push(Piece::Opaque);
        } else if self.eat("${") {
            pieces.push(self.braced(quoted)?);
        } else if !quoted && self.eat("$'") {
            self.ansi_quoted()?;
            pieces.push(Piece::Opaque);
        } else if !quoted && self.eat("$\"") {
            let inner = self.pieces(Until::Quote)?;
            self.expect("\"")?;
            pieces.extend(inner);
            pieces.push(Piece::Opaque);
        } else {
            self.position += 1;
            let name = self.parameter_name();
            if name.is_empty() {
                push_literal(pieces, "$", quoted);
            } else {
                let nested = Vec::new();
                pieces.push(Piece::Parameter(Parameter { name, plain: true, quoted, nested }));
            }
        }
        Ok(())
    }

    fn ansi_quoted(&mut self) -> Result<(), ParseError> {
        loop {
            match self.bump() {
                Some('\\') => {
                    self.bump();
                }
                Some('\'') => return Ok(()),
                Some(_) => {}
                None => return Err(self.missing("'")),
            }
        }
    }

    /// Reads the name of a parameter: a variable, a digit or a special character.
    fn parameter_name(&mut self) -> String {
        let mut name = String::new();
        match self.peek() {
            Some(byte) if byte.is_ascii_alphabetic() || byte == b'_' => {
                while let Some(byte) = self.peek() {
                    if !(byte.is_ascii_alphanumeric() || byte == b'_') {
                        break;
                    }
                    name.push(char::from(byte));
                    self.position += 1;
                }
            }
            Some(byte) if byte.is_ascii_digit() || b"@*#?-$!".contains(&byte) => {
                name.push(char::from(byte));
                self.position += 1;
            }
            _ => {}
        }
        name
    }

    /// Reads `${…}` behind its brace.
    fn braced(&mut self, quoted: bool) -> Result<Piece, ParseError> {
        let start = self.position;
        let until = if quoted { Until::QuotedBrace } else { Until::Brace };
        let name = self.parameter_name();
        let plain = is_name(&name) && self.peek() == Some(b'}');
        let mut nested = self.pieces(until)?;
        self.expect("}")?;
        // `${!name}` and `${name@P}` run or name something only the shell knows.
        let written = self.text.get(start..self.position).unwrap_or_default();
        if written.starts_with('!') || written.contains('@') {
            nested.push(Piece::Opaque);
        }
        Ok(Piece::Parameter(Parameter { name, plain, quoted, nested }))
    }

    /// Reads the commands of `$(` or `<(` up to and with the `)`.
    fn substitution(&mut self) -> Result<Vec<Command>, ParseError> {
        let start = self.position;
        let outer = mem::take(&mut self.pending);
        let commands = self.list(Closer::Paren)?;
        self.expect(")")?;
        let spans_lines = self.text.get(start..self.position).unwrap_or_default().contains('\n');
        // SECURITY: shells differ in whose body the next line is.
        if !self.pending.is_empty() || (spans_lines && !outer.is_empty()) {
            return Err(self.ambiguous("a here-document across a substitution"));
        }
        self.pending = outer;
        Ok(commands)
    }

    /// Reads backquotes; the text inside loses one level of backslashes before it is parsed.
    fn backquoted(&mut self, in_quotes: bool) -> Result<Piece, ParseError> {
        self.position += 1;
        let mut inner = String::new();
        loop {
            match self.bump() {
                Some('`') => break,
                Some('\\') => match self.bump() {
                    Some(next @ ('`' | '\\' | '$')) => inner.push(next),
                    Some('"') if in_quotes => inner.push('"'),
                    Some(next) => inner.extend(['\\', next]),
                    None => return Err(self.missing("`")),
                },
                Some(next) => inner.push(next),
                None => return Err(self.missing("`")),
            }
        }
        let mut nested = Parser::nested(&inner, self)?;
        let commands = nested.program();
        self.fuel = nested.fuel;
        self.bodies = mem::take(&mut nested.bodies);
        Ok(Piece::Substitution(commands?))
    }

    /// Reads the bodies of the here-documents announced on the line that just ended.
    pub(crate) fn read_bodies(&mut self) -> Result<(), ParseError> {
        for pending in mem::take(&mut self.pending) {
            let start = self.position;
            let body = self.read_body(&pending)?;
            let pieces = if pending.expand {
                let mut nested = Parser::nested(&body, self)?;
                let pieces = nested.pieces(Until::End);
                self.fuel = nested.fuel;
                self.bodies = mem::take(&mut nested.bodies);
                pieces?
            } else {
                vec![Piece::Literal { text: body.clone(), quoted: true }]
            };
            let word = Word { span: self.spans.then_some(start..self.position), raw: body, pieces };
            if let Some(slot) = self.bodies.get_mut(pending.index) {
                *slot = word;
            }
        }
        Ok(())
    }

    /// Takes the lines of one here-document and the line that ends it.
    fn read_body(&mut self, pending: &Pending) -> Result<String, ParseError> {
        let mut body = String::new();
        let mut joined = String::new();
        while self.position < self.text.len() {
            let rest = self.text.get(self.position..).unwrap_or_default();
            let line = rest.split_inclusive('\n').next().unwrap_or_default();
            self.position += line.len();
            let shown = if pending.strip_tabs { line.trim_start_matches('\t') } else { line };
            let was_joined = !joined.is_empty();
            joined.push_str(shown);
            if pending.expand && continues(shown) {
                body.push_str(shown);
                continue;
            }
            let logical = mem::take(&mut joined).replace("\\\n", "");
            if logical.strip_suffix('\n').unwrap_or(&logical) == pending.delimiter {
                // SECURITY: some shells end the document here and some do not.
                if was_joined {
                    return Err(self.ambiguous("a here-document's end on a continued line"));
                }
                break;
            }
            body.push_str(shown);
        }
        Ok(body)
    }
}

/// Returns whether a backslash joins this line to the next one.
fn continues(line: &str) -> bool {
    let text = line.strip_suffix('\n').unwrap_or_default();
    let backslashes = text.len() - text.trim_end_matches('\\').len();
    backslashes % 2 == 1
}

fn after_equals(pieces: &[Piece]) -> bool {
    matches!(pieces.last(), Some(Piece::Literal { text, quoted: false }) if text.ends_with(['=', ':']))
}

/// Adds literal text, joining it with what is already there.
fn push_literal(pieces: &mut Vec<Piece>, text: &str, quoted: bool) {
    if let Some(Piece::Literal { text: last, quoted: was }) = pieces.last_mut()
        && *was == quoted
    {
        last.push_str(text);
        return;
    }
    pieces.push(Piece::Literal { text: text.to_owned(), quoted });
}
