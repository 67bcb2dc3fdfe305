//! The grammar: lists, pipelines, compound and simple commands.

use crate::ParseError;
use crate::lexer::{Pending, Until, is_blank, is_meta, is_name};
use crate::syntax::{Assignment, Command, Compound, Mode, Piece, Redirect, Simple, Word};
use crate::{Dialect, MAX_BYTES, MAX_COMMANDS, MAX_DEPTH};

/// What ends a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Closer {
    /// The end of the text.
    End,
    /// `)`.
    Paren,
    /// One of these reserved words.
    Words(&'static [&'static str]),
    /// `;;`, `;&`, `;;&` or `esac`.
    CaseItem,
}

/// A parser at a position of a text.
#[derive(Debug)]
pub(crate) struct Parser<'a> {
    pub(crate) text: &'a str,
    pub(crate) position: usize,
    pub(crate) dialect: Dialect,
    pub(crate) spans: bool,
    pub(crate) depth: usize,
    /// How many commands may still be read.
    pub(crate) fuel: usize,
    pub(crate) pending: Vec<Pending>,
    /// The bodies of here-documents, by their index in redirections.
    pub(crate) bodies: Vec<Word>,
    /// Where unquoted braces stand.
    pub(crate) braces: Vec<usize>,
}

const RESERVED: [&str; 14] = [
    "then", "else", "elif", "fi", "do", "done", "esac", "}", "in", "]]", "if", "while", "until",
    "case",
];

impl<'a> Parser<'a> {
    /// Returns a parser at the start of `text`.
    pub(crate) fn new(text: &'a str, dialect: Dialect) -> Result<Self, ParseError> {
        if text.len() > MAX_BYTES {
            return Err(ParseError::TooLarge { bytes: text.len() });
        }
        if let Some(at) = text.find('\0') {
            return Err(ParseError::Ambiguous { what: "a NUL byte", at });
        }
        Ok(Self {
            text,
            position: 0,
            dialect,
            spans: true,
            depth: 0,
            fuel: MAX_COMMANDS,
            pending: Vec::new(),
            bodies: Vec::new(),
            braces: Vec::new(),
        })
    }

    /// Returns a parser for a text found inside another one; spans mean nothing there.
    pub(crate) fn nested(text: &'a str, outer: &mut Parser<'_>) -> Result<Self, ParseError> {
        let mut parser = Self::new(text, outer.dialect)?;
        parser.spans = false;
        parser.depth = outer.depth;
        parser.fuel = outer.fuel;
        parser.bodies = std::mem::take(&mut outer.bodies);
        parser.enter()?;
        Ok(parser)
    }

    pub(crate) fn enter(&mut self) -> Result<(), ParseError> {
        self.depth += 1;
        if self.depth > MAX_DEPTH { Err(ParseError::TooDeep) } else { Ok(()) }
    }

    pub(crate) fn leave(&mut self) {
        self.depth -= 1;
    }

    fn burn(&mut self) -> Result<(), ParseError> {
        self.fuel = self.fuel.checked_sub(1).ok_or(ParseError::TooMany)?;
        Ok(())
    }

    /// Reads the whole text.
    pub(crate) fn program(&mut self) -> Result<Vec<Command>, ParseError> {
        let commands = self.list(Closer::End)?;
        if self.peek().is_some() {
            return Err(ParseError::Unexpected { at: self.position });
        }
        self.read_bodies()?;
        Ok(commands)
    }

    /// Reads commands up to what closes them, which is not taken.
    pub(crate) fn list(&mut self, closer: Closer) -> Result<Vec<Command>, ParseError> {
        self.enter()?;
        let mut commands = Vec::new();
        // What follows `&&` may not run: it is kept apart from what surely does.
        let mut was_joined = false;
        loop {
            self.skip_newlines()?;
            if self.closes(closer) {
                break;
            }
            self.burn()?;
            let mut command = self.pipeline()?;
            self.skip_blanks();
            if was_joined {
                command =
                    Command::Compound(Compound { body: vec![command], ..Compound::default() });
            }
            let is_joined = self.eat("&&") || self.eat("||");
            let in_background = !is_joined && !self.looking_at("&>") && self.looking_at("&");
            if in_background {
                command =
                    Command::Subshell(Compound { body: vec![command], ..Compound::default() });
            }
            commands.push(command);
            was_joined = is_joined;
            let is_separated = is_joined || self.separator(closer);
            if !is_separated && !matches!(self.peek(), Some(b'\n')) && !self.closes(closer) {
                return Err(ParseError::Unexpected { at: self.position });
            }
            if is_joined {
                self.skip_newlines()?;
                if self.closes(closer) {
                    return Err(self.missing("a command"));
                }
            }
        }
        self.leave();
        Ok(commands)
    }

    fn separator(&mut self, closer: Closer) -> bool {
        let ends_item = self.looking_at(";;") || self.looking_at(";&");
        if ends_item && closer == Closer::CaseItem {
            return false;
        }
        !ends_item && (self.eat(";") || (!self.looking_at("&&") && self.eat("&")))
    }

    fn closes(&mut self, closer: Closer) -> bool {
        if self.peek().is_none() {
            return true;
        }
        match closer {
            Closer::End => false,
            Closer::Paren => self.peek() == Some(b')'),
            Closer::Words(words) => {
                self.bare_word().is_some_and(|word| words.contains(&word.as_str()))
            }
            Closer::CaseItem => {
                self.looking_at(";;")
                    || self.looking_at(";&")
                    || self.bare_word().is_some_and(|word| word == "esac")
            }
        }
    }

    /// Skips blanks and a comment.
    pub(crate) fn skip_blanks(&mut self) {
        while self.peek().is_some_and(is_blank) {
            self.position += 1;
        }
        if self.peek() == Some(b'#') {
            let rest = self.text.get(self.position..).unwrap_or_default();
            self.position += rest.find('\n').unwrap_or(rest.len());
        }
    }

    /// Skips blanks, comments and newlines, reading here-documents on the way.
    pub(crate) fn skip_newlines(&mut self) -> Result<(), ParseError> {
        loop {
            self.skip_blanks();
            if self.peek() != Some(b'\n') {
                return Ok(());
            }
            self.position += 1;
            self.read_bodies()?;
        }
    }

    /// Returns the unquoted word at the position, if it is nothing but that.
    fn bare_word(&mut self) -> Option<String> {
        let start = self.position;
        let mut word = String::new();
        while let Some(byte) = self.peek() {
            if is_meta(byte) {
                break;
            }
            if !byte.is_ascii_graphic() || b"'\"\\$`*?~".contains(&byte) || word.len() > 16 {
                self.position = start;
                return None;
            }
            word.push(char::from(byte));
            self.position += 1;
        }
        self.position = start;
        (!word.is_empty()).then_some(word)
    }

    fn eat_word(&mut self, wanted: &'static str) -> bool {
        let found = self.bare_word().is_some_and(|word| word == wanted);
        found && self.eat(wanted)
    }

    fn expect_word(&mut self, wanted: &'static str) -> Result<(), ParseError> {
        self.skip_newlines()?;
        if self.eat_word(wanted) { Ok(()) } else { Err(self.missing(wanted)) }
    }

    fn pipeline(&mut self) -> Result<Command, ParseError> {
        let mut timed = false;
        loop {
            self.skip_blanks();
            if self.eat_word("!") {
                continue;
            }
            // In `sh` it is a program and one of the known wrappers.
            if self.dialect == Dialect::Bash && !timed && self.eat_word("time") {
                timed = true;
                self.skip_blanks();
                self.eat_word("-p");
                continue;
            }
            break;
        }
        let at_end = self.peek().is_none_or(|b| matches!(b, b'\n' | b';' | b')' | b'&'));
        if timed && at_end {
            return Ok(Command::Compound(Compound::default()));
        }
        let first = self.command()?;
        let mut commands = vec![first];
        loop {
            self.skip_blanks();
            let is_pipe = !self.looking_at("||") && (self.eat("|&") || self.eat("|"));
            if !is_pipe {
                break;
            }
            self.skip_newlines()?;
            self.burn()?;
            commands.push(self.command()?);
        }
        match commands.len() {
            1 => commands.pop().ok_or(ParseError::Unexpected { at: self.position }),
            _ => Ok(Command::Pipeline(commands)),
        }
    }

    fn command(&mut self) -> Result<Command, ParseError> {
        self.enter()?;
        let command = self.command_inner()?;
        self.leave();
        Ok(command)
    }

    fn command_inner(&mut self) -> Result<Command, ParseError> {
        self.skip_blanks();
        let bash = self.dialect == Dialect::Bash;
        if bash && self.eat("((") {
            let words = vec![self.arithmetic()?];
            return self.compound(Compound { words, ..Compound::default() });
        }
        if self.eat("(") {
            let body = self.list(Closer::Paren)?;
            self.expect(")")?;
            let redirects = self.redirects()?;
            return Ok(Command::Subshell(Compound { body, redirects, ..Compound::default() }));
        }
        let word = self.bare_word().unwrap_or_default();
        match word.as_str() {
            "{" => {
                self.eat("{");
                let body = self.block("}")?;
                self.compound(Compound { body, ..Compound::default() })
            }
            "if" => self.if_command(),
            "while" | "until" => self.loop_command(),
            "for" | "select" => self.for_command(),
            "case" => self.case_command(),
            "[[" if bash => self.test_command(),
            "function" if bash => self.function_command(),
            "function" => Err(self.ambiguous("`function`")),
            "coproc" => Err(self.ambiguous("`coproc`")),
            reserved if RESERVED.contains(&reserved) => {
                Err(ParseError::Unexpected { at: self.position })
            }
            _ => self.simple(),
        }
    }

    fn compound(&mut self, mut compound: Compound) -> Result<Command, ParseError> {
        compound.redirects = self.redirects()?;
        Ok(Command::Compound(compound))
    }

    /// Reads a list and the reserved word that ends it.
    fn block(&mut self, end: &'static str) -> Result<Vec<Command>, ParseError> {
        let ends: &'static [&'static str] = match end {
            "}" => &["}"],
            "then" => &["then"],
            "do" => &["do"],
            _ => &["done"],
        };
        let body = self.list(Closer::Words(ends))?;
        self.expect_word(end)?;
        Ok(body)
    }

    fn if_command(&mut self) -> Result<Command, ParseError> {
        self.eat("if");
        let mut body = self.block("then")?;
        loop {
            body.extend(self.list(Closer::Words(&["elif", "else", "fi"]))?);
            if self.eat_word("elif") {
                body.extend(self.block("then")?);
            } else if self.eat_word("else") {
                body.extend(self.list(Closer::Words(&["fi"]))?);
                self.expect_word("fi")?;
                break;
            } else {
                self.expect_word("fi")?;
                break;
            }
        }
        self.compound(Compound { body, ..Compound::default() })
    }

    fn loop_command(&mut self) -> Result<Command, ParseError> {
        if !self.eat_word("while") {
            self.eat_word("until");
        }
        let mut body = self.block("do")?;
        body.extend(self.block("done")?);
        self.compound(Compound { body, ..Compound::default() })
    }

    fn for_command(&mut self) -> Result<Command, ParseError> {
        if !self.eat_word("for") {
            self.eat_word("select");
        }
        self.skip_blanks();
        let mut compound = Compound::default();
        if self.eat("((") {
            compound.words.push(self.arithmetic()?);
            self.skip_blanks();
            self.eat(";");
        } else {
            let name = self.word()?.literal().filter(|name| is_name(name));
            compound.assigns.push(name.ok_or_else(|| self.missing("a name"))?);
            self.skip_newlines()?;
            if self.eat_word("in") {
                self.skip_blanks();
                while self.peek().is_some_and(|b| !matches!(b, b'\n' | b';')) {
                    compound.words.push(self.word()?);
                    self.skip_blanks();
                }
            }
            self.skip_blanks();
            self.eat(";");
        }
        self.skip_newlines()?;
        if self.dialect == Dialect::Bash && self.eat_word("{") {
            compound.body = self.block("}")?;
        } else {
            self.expect_word("do")?;
            compound.body = self.block("done")?;
        }
        self.compound(compound)
    }

    fn case_command(&mut self) -> Result<Command, ParseError> {
        self.eat("case");
        self.skip_blanks();
        let mut compound = Compound { words: vec![self.word()?], ..Compound::default() };
        self.expect_word("in")?;
        loop {
            self.skip_newlines()?;
            if self.eat_word("esac") {
                break;
            }
            self.burn()?;
            self.eat("(");
            loop {
                self.skip_blanks();
                compound.words.push(self.word()?);
                self.skip_blanks();
                if !self.eat("|") {
                    break;
                }
            }
            self.expect(")")?;
            compound.body.extend(self.list(Closer::CaseItem)?);
            let ended = self.eat(";;&") || self.eat(";;") || self.eat(";&");
            self.skip_newlines()?;
            if !ended {
                self.expect_word("esac")?;
                break;
            }
        }
        self.compound(compound)
    }

    fn test_command(&mut self) -> Result<Command, ParseError> {
        self.eat("[[");
        let mut compound = Compound::default();
        loop {
            while self.peek().is_some_and(|byte| is_blank(byte) || byte == b'\n') {
                self.position += 1;
            }
            if self.eat_word("]]") {
                break;
            }
            match self.peek() {
                Some(b'#') => return Err(self.ambiguous("`#` in a test")),
                None => return Err(self.missing("]]")),
                Some(b'(' | b')' | b'&' | b'|' | b'<' | b'>') => self.position += 1,
                Some(_) => compound.words.push(self.word()?),
            }
        }
        self.compound(compound)
    }

    fn function_command(&mut self) -> Result<Command, ParseError> {
        self.eat("function");
        self.skip_blanks();
        let name = self.word()?.literal().ok_or_else(|| self.missing("a name"))?;
        self.skip_blanks();
        if self.eat("(") {
            self.skip_blanks();
            self.expect(")")?;
        }
        self.skip_newlines()?;
        let body = Box::new(self.command()?);
        Ok(Command::Function { name, portable: false, body })
    }

    /// Reads an arithmetic command behind its `((`.
    fn arithmetic(&mut self) -> Result<Word, ParseError> {
        let start = self.position;
        let pieces = self.pieces(Until::Arithmetic)?;
        let raw = self.text.get(start..self.position).unwrap_or_default().to_owned();
        self.expect("))")?;
        Ok(Word { span: None, raw, pieces })
    }

    fn simple(&mut self) -> Result<Command, ParseError> {
        let start = self.position;
        let mut simple = Simple::default();
        loop {
            self.skip_blanks();
            if let Some(redirect) = self.redirect()? {
                simple.redirects.push(redirect);
                continue;
            }
            let at_substitution = self.looking_at("<(") || self.looking_at(">(");
            match self.peek() {
                Some(b'(') if self.is_function(&simple) => return self.function(simple),
                Some(b'(') => return Err(ParseError::Unexpected { at: self.position }),
                Some(byte) if !is_meta(byte) || at_substitution => self.simple_word(&mut simple)?,
                _ => break,
            }
        }
        if self.position == start {
            return Err(ParseError::Unexpected { at: start });
        }
        Ok(Command::Simple(simple))
    }

    fn is_function(&self, simple: &Simple) -> bool {
        simple.words.len() == 1 && simple.assignments.is_empty() && simple.redirects.is_empty()
    }

    fn function(&mut self, simple: Simple) -> Result<Command, ParseError> {
        self.expect("(")?;
        self.skip_blanks();
        self.expect(")")?;
        self.skip_newlines()?;
        let name = simple.words.first().and_then(Word::literal);
        let name = name.ok_or_else(|| self.missing("a name"))?;
        let body = Box::new(self.command()?);
        Ok(Command::Function { name, portable: true, body })
    }

    fn simple_word(&mut self, simple: &mut Simple) -> Result<(), ParseError> {
        let word = self.word()?;
        let Some(name) = assigned_name(&word) else {
            simple.words.push(word);
            return Ok(());
        };
        if self.dialect == Dialect::Sh && !word.raw.starts_with(&format!("{name}=")) {
            return Err(self.ambiguous("an assignment only some shells know"));
        }
        let is_array = self.peek() == Some(b'(') && word.raw.ends_with('=');
        let mut values = vec![word.clone()];
        if is_array {
            values = self.array()?;
        }
        if simple.words.is_empty() || is_array {
            simple.assignments.push(Assignment { name, values });
        } else {
            simple.words.push(word);
        }
        Ok(())
    }

    fn array(&mut self) -> Result<Vec<Word>, ParseError> {
        self.expect("(")?;
        let mut values = Vec::new();
        loop {
            self.skip_newlines()?;
            if self.eat(")") {
                return Ok(values);
            }
            values.push(self.word()?);
        }
    }

    fn redirects(&mut self) -> Result<Vec<Redirect>, ParseError> {
        let mut redirects = Vec::new();
        loop {
            self.skip_blanks();
            match self.redirect()? {
                Some(redirect) => redirects.push(redirect),
                None => return Ok(redirects),
            }
        }
    }

    /// Reads one redirection, if there is one.
    fn redirect(&mut self) -> Result<Option<Redirect>, ParseError> {
        let start = self.position;
        let mut digits = String::new();
        while let Some(byte) = self.peek().filter(u8::is_ascii_digit) {
            digits.push(char::from(byte));
            self.position += 1;
        }
        let fd = digits.parse().ok();
        let both = digits.is_empty() && self.looking_at("&>");
        if both && self.dialect == Dialect::Sh {
            return Err(self.ambiguous("`&>`, which `sh` reads as `&` and `>`"));
        }
        let is_plain = matches!(self.peek(), Some(b'<' | b'>'))
            && (!digits.is_empty() || !(self.looking_at("<(") || self.looking_at(">(")));
        if !both && !is_plain {
            self.position = start;
            return Ok(None);
        }
        if self.eat("<<<") {
            self.skip_blanks();
            return Ok(Some(Redirect::HereString(self.word()?)));
        }
        if self.eat("<<-") {
            return self.here_document(StripTabs::Yes).map(Some);
        }
        if self.eat("<<") {
            return self.here_document(StripTabs::No).map(Some);
        }
        let modes = [
            ("&>>", Mode::Write),
            ("&>", Mode::Write),
            ("<>", Mode::ReadWrite),
            ("<&", Mode::Duplicate),
            (">&", Mode::Duplicate),
            (">>", Mode::Write),
            (">|", Mode::Write),
            ("<", Mode::Read),
            (">", Mode::Write),
        ];
        let found = modes.into_iter().find(|(operator, _)| self.eat(operator));
        let Some((_, mode)) = found else { return Err(ParseError::Unexpected { at: start }) };
        self.skip_blanks();
        Ok(Some(Redirect::File { mode, fd, target: self.word()? }))
    }

    fn here_document(&mut self, strip: StripTabs) -> Result<Redirect, ParseError> {
        self.skip_blanks();
        let word = self.word()?;
        // The delimiter is never expanded; only whether any of it is quoted matters.
        let delimiter = word.pattern().filter(|delimiter| !delimiter.contains('\n'));
        let Some(delimiter) = delimiter else {
            return Err(self.ambiguous("the delimiter of a here-document"));
        };
        let is_quoted =
            word.pieces.iter().any(|piece| matches!(piece, Piece::Literal { quoted: true, .. }));
        let index = self.bodies.len();
        self.bodies.push(Word::default());
        let strip_tabs = strip == StripTabs::Yes;
        self.pending.push(Pending { index, delimiter, strip_tabs, expand: !is_quoted });
        Ok(Redirect::Here(index))
    }
}

#[derive(PartialEq, Eq)]
enum StripTabs {
    Yes,
    No,
}

/// Returns the variable a word assigns, if it is an assignment.
pub(crate) fn assigned_name(word: &Word) -> Option<String> {
    let Some(Piece::Literal { text, quoted: false }) = word.pieces.first() else { return None };
    let name_length = text.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    let (name, rest) = text.split_at(name_length.unwrap_or(text.len()));
    let is_scalar = rest.starts_with('=') || rest.starts_with("+=");
    let is_element = rest.is_empty()
        && matches!(word.pieces.get(1), Some(Piece::Glob('[')))
        && word.raw.contains("]=");
    (is_name(name) && (is_scalar || is_element)).then(|| name.to_owned())
}
