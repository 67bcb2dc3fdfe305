//! Which commands of a script may read its standard input, from the interpreter's own parse.
//!
//! What is not known to leave it alone counts as reading it.

use bashkit::parser::{
    AssignmentValue, Command, CompoundCommand, Parser, Redirect, RedirectKind, SimpleCommand, Word,
    WordPart,
};

/// Commands that never read standard input.
const NEVER: &[&str] = &[
    ":", "[", "alias", "basename", "break", "cd", "chmod", "chown", "continue", "cp", "date",
    "declare", "df", "dirname", "dirs", "du", "echo", "exit", "export", "expr", "false", "file",
    "find", "getopts", "hash", "hostname", "id", "kill", "let", "ln", "local", "ls", "mkdir",
    "mktemp", "mv", "nproc", "popd", "printenv", "printf", "pushd", "pwd", "readlink", "readonly",
    "realpath", "return", "rm", "rmdir", "seq", "set", "shift", "shopt", "sleep", "stat", "test",
    "times", "touch", "trap", "tree", "true", "truncate", "type", "typeset", "ulimit", "umask",
    "unalias", "uname", "unset", "wait", "which", "whoami",
];

/// Commands that read their operands, and standard input only without any.
const OPERANDS: &[&str] =
    &["cat", "cksum", "md5sum", "nl", "rev", "sha1sum", "sha256sum", "sort", "tac", "wc"];

/// The same, behind a first operand that is a pattern or a program.
const OPERANDS_BEHIND_ONE: &[&str] = &["awk", "egrep", "fgrep", "grep", "jq", "sed"];

/// Returns whether a script may read its standard input; one that is not understood may.
pub(super) fn script_may_read(script: &str) -> bool {
    match Parser::new(script).parse() {
        Ok(script) => may_read(&script.commands, &harmless_functions(&script.commands)),
        Err(_) => true,
    }
}

/// Returns whether any of the commands may read what they inherit as standard input; `functions`
/// are the names whose bodies are known not to.
pub(super) fn may_read(commands: &[Command], functions: &[String]) -> bool {
    commands.iter().any(|command| command_may_read(command, functions))
}

/// Returns the functions a script defines, in a script whose functions all leave the input alone.
pub(super) fn harmless_functions(commands: &[Command]) -> Vec<String> {
    let mut bodies = Vec::new();
    collect_functions(commands, &mut bodies);
    let names: Vec<String> = bodies.iter().map(|(name, _)| name.clone()).collect();
    let reads = bodies.iter().any(|(_, body)| command_may_read(body, &names));
    if reads { Vec::new() } else { names }
}

fn collect_functions(commands: &[Command], found: &mut Vec<(String, Command)>) {
    for command in commands {
        match command {
            Command::Function(function) => {
                found.push((function.name.clone(), (*function.body).clone()));
                collect_functions(std::slice::from_ref(&function.body), found);
            }
            Command::List(list) => {
                collect_functions(std::slice::from_ref(&list.first), found);
                for (_, command) in &list.rest {
                    collect_functions(std::slice::from_ref(command), found);
                }
            }
            Command::Pipeline(pipeline) => collect_functions(&pipeline.commands, found),
            Command::Compound(compound, _) => {
                for part in parts(compound) {
                    collect_functions(part, found);
                }
            }
            Command::Simple(_) => {}
        }
    }
}

/// Returns every list of commands a construct is made of.
pub(super) fn parts(compound: &CompoundCommand) -> Vec<&[Command]> {
    match compound {
        CompoundCommand::If(branch) => {
            let mut parts: Vec<&[Command]> = vec![&branch.condition, &branch.then_branch];
            for (condition, body) in &branch.elif_branches {
                parts.extend([condition.as_slice(), body.as_slice()]);
            }
            parts.extend(branch.else_branch.as_deref());
            parts
        }
        CompoundCommand::For(repeat) => vec![&repeat.body],
        CompoundCommand::ArithmeticFor(repeat) => vec![&repeat.body],
        CompoundCommand::While(repeat) => vec![&repeat.condition, &repeat.body],
        CompoundCommand::Until(repeat) => vec![&repeat.condition, &repeat.body],
        CompoundCommand::Case(case) => {
            case.cases.iter().map(|item| item.commands.as_slice()).collect()
        }
        CompoundCommand::Subshell(body) | CompoundCommand::BraceGroup(body) => vec![body],
        CompoundCommand::Time(time) => {
            time.command.iter().map(|c| std::slice::from_ref(&**c)).collect()
        }
        CompoundCommand::Select(_)
        | CompoundCommand::Coproc(_)
        | CompoundCommand::Arithmetic(_)
        | CompoundCommand::Conditional(_) => Vec::new(),
    }
}

fn command_may_read(command: &Command, functions: &[String]) -> bool {
    match command {
        Command::Simple(simple) => simple_may_read(simple, functions),
        // Only the first of a pipeline inherits its input.
        Command::Pipeline(pipeline) => {
            let words = pipeline.commands.iter().skip(1).any(|command| {
                matches!(command, Command::Simple(simple) if words_may_read(simple, functions))
            });
            words || pipeline.commands.first().is_some_and(|c| command_may_read(c, functions))
        }
        Command::List(list) => {
            command_may_read(&list.first, functions)
                || list.rest.iter().any(|(_, command)| command_may_read(command, functions))
        }
        Command::Compound(_, redirects) if gives_input(redirects) => false,
        Command::Compound(compound, _) => {
            let reads_by_itself = match compound {
                CompoundCommand::Select(_) | CompoundCommand::Coproc(_) => true,
                CompoundCommand::Arithmetic(text) => text.contains("$(") || text.contains('`'),
                CompoundCommand::Conditional(words) => {
                    words.iter().any(|word| word_may_read(word, functions))
                }
                CompoundCommand::For(repeat) => {
                    repeat.words.iter().flatten().any(|word| word_may_read(word, functions))
                }
                CompoundCommand::Case(case) => word_may_read(&case.word, functions),
                _ => false,
            };
            reads_by_itself || parts(compound).into_iter().any(|part| may_read(part, functions))
        }
        // A function reads when it is called.
        Command::Function(_) => false,
    }
}

fn simple_may_read(simple: &SimpleCommand, functions: &[String]) -> bool {
    if words_may_read(simple, functions) {
        return true;
    }
    let Some(name) = literal(&simple.name) else { return true };
    if gives_input(&simple.redirects) || name.is_empty() {
        return false;
    }
    let is_dash =
        |word: &Word| literal(word).is_some_and(|text| text == "-" || text == "/dev/stdin");
    if simple.args.iter().any(is_dash) {
        return true;
    }
    // An operand that is made by the shell may turn out empty, which is no operand.
    let operands = simple.args.iter().filter_map(literal).filter(|text| !text.starts_with('-'));
    let operands = operands.filter(|text| !text.is_empty()).count();
    match name.as_str() {
        name if NEVER.contains(&name) || functions.iter().any(|known| known == name) => false,
        name if OPERANDS.contains(&name) => operands < 1,
        name if OPERANDS_BEHIND_ONE.contains(&name) => operands < 2,
        _ => true,
    }
}

fn words_may_read(simple: &SimpleCommand, functions: &[String]) -> bool {
    let assigned = simple.assignments.iter().flat_map(|assignment| match &assignment.value {
        AssignmentValue::Scalar(word) => std::slice::from_ref(word),
        AssignmentValue::Array(words) => words.as_slice(),
    });
    let words = assigned.chain(&simple.args).chain([&simple.name]);
    words.into_iter().any(|word| word_may_read(word, functions))
}

fn word_may_read(word: &Word, functions: &[String]) -> bool {
    word.parts.iter().any(|part| match part {
        WordPart::Literal(_)
        | WordPart::Variable(_)
        | WordPart::Length(_)
        | WordPart::ArrayLength(_) => false,
        WordPart::CommandSubstitution(commands) => may_read(commands, functions),
        WordPart::ArithmeticExpansion(text) => text.contains("$(") || text.contains('`'),
        WordPart::ParameterExpansion { operand, .. } => {
            operand.contains("$(") || operand.contains('`')
        }
        WordPart::ArrayAccess { index, .. } => index.contains("$("),
        WordPart::Substring { .. } => false,
        _ => true,
    })
}

/// Returns whether redirections give a command an input of its own.
pub(super) fn gives_input(redirects: &[Redirect]) -> bool {
    redirects.iter().any(|redirect| {
        let is_input = matches!(
            redirect.kind,
            RedirectKind::Input
                | RedirectKind::HereDoc
                | RedirectKind::HereDocStrip
                | RedirectKind::HereString
        );
        // `<&3` is another input, `<&0` the same.
        let is_other = redirect.kind == RedirectKind::DupInput
            && literal(&redirect.target).is_none_or(|target| target != "0");
        (is_input || is_other) && redirect.fd.is_none_or(|fd| fd == 0) && redirect.fd_var.is_none()
    })
}

/// Returns a word that is plain text.
pub(super) fn literal(word: &Word) -> Option<String> {
    let mut text = String::new();
    for part in &word.parts {
        let WordPart::Literal(literal) = part else { return None };
        text.push_str(literal);
    }
    Some(text)
}
