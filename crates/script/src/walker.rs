//! The walk over a parsed script: every program, builtin, effect and host in it.

use std::collections::BTreeSet;
use std::mem;

use crate::argument::Argument;
use crate::effects::{self, Effect, Place};
use crate::parser::Parser;
use crate::syntax::{Command, Compound, Piece, Redirect, Simple, Word};
use crate::wrappers::{self, Started};
use crate::{Dialect, MAX_BYTES, ParseError, hosts};

/// What a script would start and touch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Analysis {
    /// Every program, in the order of the text. Functions of the script are not programs, but
    /// what they start is here whether or not they are called.
    pub programs: Vec<Program>,
    /// Builtins of the shell that start nothing by themselves.
    pub builtins: BTreeSet<String>,
    /// Paths and patterns found, with what happens to them.
    pub effects: Vec<Effect>,
    /// Hosts that appear as URLs or remote addresses; hints, not a list of connections.
    pub hosts: BTreeSet<String>,
    /// Whether a nested script is given in full and still not understood.
    pub has_unread: bool,
}

/// One program a script would start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// Its name.
    pub name: Name,
    /// Its arguments; one that the shell makes is absent.
    pub arguments: Vec<Option<String>>,
    /// What starts it, outermost first: `sudo`, `sh -c`, `xargs`.
    pub via: Vec<String>,
}

/// The name of a program, as far as the text tells.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Name {
    /// Written in the text, as written: `rm`, `/bin/rm`, `./run`.
    Literal(String),
    /// Only the shell will know.
    Dynamic {
        /// The text it comes from.
        raw: String,
        /// Why it is not known.
        why: &'static str,
    },
}

impl Analysis {
    /// Returns the names that are known.
    #[must_use]
    pub fn names(&self) -> BTreeSet<&str> {
        let names = self.programs.iter().filter_map(|program| match &program.name {
            Name::Literal(name) => Some(name.as_str()),
            Name::Dynamic { .. } => None,
        });
        names.collect()
    }

    /// Returns whether something is started that cannot be named.
    #[must_use]
    pub fn is_dynamic(&self) -> bool {
        self.programs.iter().any(|program| matches!(program.name, Name::Dynamic { .. }))
    }

    /// Returns whether any shell is started by name.
    #[must_use]
    pub fn starts_shell(&self) -> bool {
        self.names().into_iter().any(is_shell)
    }
}

/// Returns whether a program of this name or path is a shell.
#[must_use]
pub fn is_shell(name: &str) -> bool {
    wrappers::is_any_shell(base_name(name))
}

/// Returns what `script` would start and touch.
///
/// # Errors
/// A [`ParseError`] when the text is not understood completely; then nothing may be assumed.
pub fn analyze(script: &str, dialect: Dialect) -> Result<Analysis, ParseError> {
    let mut parser = Parser::new(script, dialect)?;
    let commands = parser.program()?;
    let mut walker = Walker::new(dialect);
    walker.bodies = mem::take(&mut parser.bodies);
    walker.script_commands(&commands, &Input::Inherited);
    Ok(walker.analysis)
}

/// Returns where in `script` an unquoted `{` stands that may expand to several words.
///
/// # Errors
/// A [`ParseError`] when the text is not understood completely.
pub fn brace_positions(script: &str, dialect: Dialect) -> Result<Vec<usize>, ParseError> {
    let mut parser = Parser::new(script, dialect)?;
    parser.program()?;
    Ok(parser.braces)
}

/// Returns what a program with its arguments would start and touch.
#[must_use]
pub fn analyze_argv(argv: &[String]) -> Analysis {
    let mut walker = Walker::new(Dialect::Sh);
    let arguments: Vec<Argument> = argv.iter().map(|text| Argument::literal(text)).collect();
    walker.started(&arguments, &Input::Inherited, Shadow::Nothing);
    walker.analysis
}

/// What a command reads.
#[derive(Debug, Clone)]
enum Input {
    /// Whatever the script itself reads.
    Inherited,
    /// This text.
    Text(String),
    /// Something not known.
    Unknown,
}

/// Whether functions and builtins can stand in for a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shadow {
    Shell,
    Nothing,
}

const MAX_NESTED: usize = 8;

struct Walker {
    analysis: Analysis,
    dialect: Dialect,
    bodies: Vec<Word>,
    functions: BTreeSet<String>,
    via: Vec<String>,
    place: Place,
    nested: usize,
    fuel: usize,
}

impl Walker {
    fn new(dialect: Dialect) -> Self {
        Self {
            analysis: Analysis::default(),
            dialect,
            bodies: Vec::new(),
            functions: BTreeSet::new(),
            via: Vec::new(),
            place: Place::Start,
            nested: 0,
            fuel: 4 * MAX_BYTES,
        }
    }

    /// Walks the commands of a whole script and notes its functions on the way.
    ///
    /// SECURITY: only a definition that surely ran before, and is never removed, hides a program
    /// of the same name; one in a branch, in the background or behind its use does not.
    fn script_commands(&mut self, commands: &[Command], input: &Input) {
        let keeps_functions = !commands.iter().any(mentions_unset);
        for command in commands {
            if let Command::Function { name, portable: true, .. } = command
                && keeps_functions
            {
                self.functions.insert(name.clone());
            }
            self.command(command, input);
        }
    }

    fn list(&mut self, commands: &[Command], input: &Input) {
        for command in commands {
            self.command(command, input);
        }
    }

    fn command(&mut self, command: &Command, input: &Input) {
        match command {
            Command::Simple(simple) => self.simple(simple, input),
            Command::Pipeline(commands) => {
                let place = self.place.clone();
                let mut input = input.clone();
                for command in commands {
                    self.command(command, &input);
                    self.place = place.clone();
                    input = self.output_of(command, &input);
                }
            }
            Command::Compound(compound) => self.compound(compound, input),
            Command::Subshell(compound) => {
                let place = self.place.clone();
                self.compound(compound, input);
                self.place = place;
            }
            Command::Function { body, .. } => {
                let place = self.place.clone();
                self.command(body, &Input::Unknown);
                self.place = place;
            }
        }
    }

    fn compound(&mut self, compound: &Compound, input: &Input) {
        for word in &compound.words {
            self.expansions(&word.pieces);
            self.evaluated_text(word);
        }
        for name in &compound.assigns {
            self.assigned(name);
        }
        let input = self.redirects(&compound.redirects, "", input);
        self.list(&compound.body, &input);
    }

    fn simple(&mut self, simple: &Simple, input: &Input) {
        for assignment in &simple.assignments {
            self.assigned(&assignment.name);
            for value in &assignment.values {
                self.expansions(&value.pieces);
                self.evaluated_text(value);
            }
        }
        for word in &simple.words {
            self.expansions(&word.pieces);
        }
        let arguments: Vec<Argument> = simple.words.iter().map(Argument::of).collect();
        let name = arguments.first().and_then(|first| first.text.clone()).unwrap_or_default();
        let input = self.redirects(&simple.redirects, base_name(&name), input);
        if !arguments.is_empty() {
            self.started(&arguments, &input, Shadow::Shell);
        }
    }

    /// Walks into substitutions inside a word.
    fn expansions(&mut self, pieces: &[Piece]) {
        for piece in pieces {
            match piece {
                Piece::Substitution(commands) => {
                    let place = self.place.clone();
                    self.list(commands, &Input::Unknown);
                    self.place = place;
                }
                Piece::Arithmetic(inner) => self.expansions(inner),
                Piece::Parameter(parameter) => {
                    self.expansions(&parameter.nested);
                    // `${x:=…}` sets, and a subscript or an indirection can evaluate text.
                    if parameter.nested.contains(&Piece::Opaque) {
                        self.dynamic(&parameter.name, "an expansion that evaluates text");
                    }
                }
                Piece::Literal { .. }
                | Piece::Glob(_)
                | Piece::Brace
                | Piece::Tilde(_)
                | Piece::Opaque => {}
            }
        }
    }

    /// SECURITY: arithmetic and tests evaluate subscripts, so `'a[$(rm x)]'` runs `rm`.
    fn evaluated_text(&mut self, word: &Word) {
        let holds_substitution = word.pieces.iter().any(
            |piece| matches!(piece, Piece::Literal { text, .. } if text.contains("$(") || text.contains('`')),
        );
        if holds_substitution {
            self.dynamic(&word.raw, "text the shell may evaluate");
        }
    }

    fn assigned(&mut self, name: &str) {
        if wrappers::is_sensitive(name) {
            self.dynamic(name, "a variable that changes which programs run");
        }
    }

    fn dynamic(&mut self, raw: &str, why: &'static str) {
        let name = Name::Dynamic { raw: raw.to_owned(), why };
        let via = self.via.clone();
        self.analysis.programs.push(Program { name, arguments: Vec::new(), via });
    }

    fn redirects(&mut self, redirects: &[Redirect], program: &str, input: &Input) -> Input {
        let mut input = input.clone();
        for redirect in redirects {
            match redirect {
                Redirect::File { mode, target, fd } => {
                    self.expansions(&target.pieces);
                    let argument = Argument::of(target);
                    let effect = effects::of_redirect(*mode, &argument, program, &self.place);
                    self.analysis.effects.extend(effect);
                    if matches!(mode, crate::syntax::Mode::Read | crate::syntax::Mode::ReadWrite)
                        && fd.unwrap_or(0) == 0
                    {
                        input = Input::Unknown;
                    }
                }
                Redirect::Here(index) => {
                    let body = self.bodies.get(*index).cloned().unwrap_or_default();
                    self.expansions(&body.pieces);
                    input = body.literal().map_or(Input::Unknown, Input::Text);
                }
                Redirect::HereString(word) => {
                    self.expansions(&word.pieces);
                    input = word.literal().map_or(Input::Unknown, Input::Text);
                }
            }
        }
        input
    }

    /// Returns what a command of a pipe writes, where that is plain.
    fn output_of(&self, command: &Command, input: &Input) -> Input {
        let Command::Simple(simple) = command else { return Input::Unknown };
        let words: Option<Vec<String>> = simple.words.iter().map(Word::literal).collect();
        let Some(words) = words else { return Input::Unknown };
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let is_plain = |text: &&str| !text.contains('\\') && !text.starts_with('-');
        match words.as_slice() {
            ["echo", rest @ ..] if rest.iter().all(is_plain) => Input::Text(rest.join(" ")),
            ["printf", "%s" | "%s\\n", text] => Input::Text((*text).to_owned()),
            ["cat"] | ["cat", "-"] => match simple.redirects.as_slice() {
                [] => input.clone(),
                [Redirect::Here(index)] => {
                    let body = self.bodies.get(*index).and_then(Word::literal);
                    body.map_or(Input::Unknown, Input::Text)
                }
                _ => Input::Unknown,
            },
            ["base64", "-d" | "--decode" | "-D"] if simple.redirects.is_empty() => match input {
                Input::Text(text) => {
                    crate::unwrap::decode(text).map_or(Input::Unknown, Input::Text)
                }
                Input::Inherited | Input::Unknown => Input::Unknown,
            },
            _ => Input::Unknown,
        }
    }

    /// Takes one command: its name first, then its arguments.
    fn started(&mut self, argv: &[Argument], input: &Input, shadow: Shadow) {
        let Some((first, arguments)) = argv.split_first() else { return };
        let name = match &first.text {
            Some(name) if !first.splits && !name.is_empty() => name.clone(),
            _ => {
                self.dynamic(&first.raw, "a name only the shell knows");
                return;
            }
        };
        self.analysis.hosts.extend(arguments.iter().flat_map(|a| hosts::hosts_of(&a.raw)));
        let base = base_name(&name).to_owned();
        let is_builtin = shadow == Shadow::Shell && effects::is_builtin(&name);
        let is_function = shadow == Shadow::Shell && self.functions.contains(&name);
        if is_builtin {
            self.analysis.builtins.insert(name.clone());
            self.builtin(&name, arguments);
        } else if !is_function {
            let texts = arguments.iter().map(|argument| argument.text.clone()).collect();
            let via = self.via.clone();
            let name = Name::Literal(name.clone());
            self.analysis.programs.push(Program { name, arguments: texts, via });
        }
        if is_function {
            return;
        }
        let effects = effects::of_program(&base, arguments, &self.place);
        self.analysis.effects.extend(effects);
        self.place = effects::place_after(&base, arguments, &self.place);
        for started in wrappers::started_by(&base, arguments) {
            self.follow(&base, started, input);
        }
    }

    fn builtin(&mut self, name: &str, arguments: &[Argument]) {
        let evaluates = ["let", "test", "[", "declare", "typeset", "local", "readonly", "export"]
            .contains(&name)
            || ["printf", "read", "unset", "wait", "getopts"].contains(&name);
        if !evaluates {
            return;
        }
        let substitutes = |argument: &&Argument| {
            let text = argument.text.as_deref().unwrap_or_default();
            text.contains("$(") || text.contains('`')
        };
        if let Some(argument) = arguments.iter().find(substitutes)
            && !matches!(name, "printf" if !argument.raw.contains('['))
        {
            self.dynamic(&argument.raw, "text the shell may evaluate");
        }
        for argument in arguments {
            let text = argument.text.as_deref().unwrap_or(&argument.raw);
            let variable = text.split('=').next().unwrap_or_default().trim_end_matches('+');
            if !matches!(name, "test" | "[" | "unset") {
                self.assigned(variable);
            }
        }
    }

    fn follow(&mut self, name: &str, started: Started, input: &Input) {
        self.nested += 1;
        if self.nested > MAX_NESTED {
            self.dynamic(name, "programs nested too deeply");
            self.nested -= 1;
            return;
        }
        let is_script = matches!(started, Started::Script { .. } | Started::Input(_));
        self.via.push(if is_script && name != "eval" {
            format!("{name} -c")
        } else {
            name.to_owned()
        });
        match started {
            Started::Argv(argv) => {
                let shadow = if matches!(name, "builtin" | "command") {
                    Shadow::Shell
                } else {
                    Shadow::Nothing
                };
                let functions = mem::take(&mut self.functions);
                self.started(&argv, input, shadow);
                self.functions = functions;
            }
            Started::Script { text, dialect } => self.script(&text, dialect, input),
            Started::Input(dialect) => match input {
                Input::Text(text) => self.script(&text.clone(), Some(dialect), &Input::Unknown),
                Input::Inherited | Input::Unknown => {
                    self.dynamic(name, "a shell that reads its input")
                }
            },
            Started::Unknown(why) => self.dynamic(name, why),
            Started::Variable(variable) => {
                self.dynamic(&variable, "a variable that changes which programs run");
            }
        }
        self.via.pop();
        self.nested -= 1;
    }

    fn script(&mut self, text: &str, dialect: Option<Dialect>, input: &Input) {
        let Some(fuel) = self.fuel.checked_sub(text.len()) else {
            self.analysis.has_unread = true;
            self.dynamic("", "more nested text than is read");
            return;
        };
        self.fuel = fuel;
        let parsed = Parser::new(text, dialect.unwrap_or(self.dialect)).and_then(|mut parser| {
            parser.spans = false;
            let commands = parser.program()?;
            Ok((commands, parser.bodies))
        });
        let Ok((commands, bodies)) = parsed else {
            self.analysis.has_unread = true;
            self.dynamic(text, "a nested script that is not understood");
            return;
        };
        let outer_dialect = self.dialect;
        self.dialect = dialect.unwrap_or(outer_dialect);
        let outer_bodies = mem::replace(&mut self.bodies, bodies);
        // A nested shell knows none of the functions; evaluated text does.
        let outer_functions = self.functions.clone();
        if dialect.is_some() {
            self.functions.clear();
        }
        let place = self.place.clone();
        self.script_commands(&commands, input);
        if dialect.is_some() {
            self.place = place;
        }
        self.functions = outer_functions;
        self.bodies = outer_bodies;
        self.dialect = outer_dialect;
    }
}

fn mentions_unset(command: &Command) -> bool {
    match command {
        Command::Simple(simple) => {
            let literals = simple.words.iter().map(Word::literal);
            literals.flatten().any(|text| text.contains("unset"))
        }
        Command::Pipeline(commands) => commands.iter().any(mentions_unset),
        Command::Compound(compound) | Command::Subshell(compound) => {
            compound.body.iter().any(mentions_unset)
        }
        Command::Function { body, .. } => mentions_unset(body),
    }
}

/// Returns the last segment of a path.
pub(crate) fn base_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}
