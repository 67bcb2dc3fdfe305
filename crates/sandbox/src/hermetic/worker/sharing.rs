//! Input that several commands of a script would share.
//!
//! The interpreter gives every command of a group, but `read`, all that is left of the group's
//! input, and takes nothing away. Where a command surely reads after another has taken
//! everything, bash would give it nothing and the interpreter everything once more; such a
//! script is refused before it starts. Alternatives count once, a loop's body twice.

use bashkit::parser::{Command, CompoundCommand, Parser, SimpleCommand, Word, WordPart};

use super::readers::{gives_input, literal, parts};

/// Commands that read standard input to its end when they have no operand.
const WITHOUT_OPERANDS: &[&str] =
    &["cat", "md5sum", "nl", "rev", "sha256sum", "sort", "tac", "uniq", "wc"];

/// Commands that always do.
const ALWAYS: &[&str] = &["mapfile", "readarray", "tee", "tr", "xargs"];

/// Returns the line of the first command that would read what another has taken; `has_input` says
/// whether the script itself has any.
pub(super) fn shared_input(script: &str, has_input: bool) -> Option<usize> {
    let commands = Parser::new(script).parse().ok()?.commands;
    let own = if has_input { Taking::default().list(&commands) } else { None };
    own.or_else(|| within(&commands))
}

/// Looks into everything that has an input of its own.
fn within(commands: &[Command]) -> Option<usize> {
    commands.iter().find_map(|command| match command {
        Command::Compound(compound, redirects) => {
            let own = gives_input(redirects).then(|| Taking::default().compound(compound));
            own.flatten().or_else(|| parts(compound).into_iter().find_map(within))
        }
        Command::Pipeline(pipeline) => {
            let fed = pipeline.commands.iter().skip(1).find_map(|command| match command {
                Command::Compound(compound, redirects) if !gives_input(redirects) => {
                    Taking::default().compound(compound)
                }
                _ => None,
            });
            fed.or_else(|| within(&pipeline.commands))
        }
        Command::List(list) => within(std::slice::from_ref(&list.first)).or_else(|| {
            list.rest.iter().find_map(|(_, command)| within(std::slice::from_ref(command)))
        }),
        Command::Function(function) => within(std::slice::from_ref(&function.body)),
        Command::Simple(_) => None,
    })
}

/// Whether everything has been taken so far.
#[derive(Debug, Clone, Copy, Default)]
struct Taking {
    all: bool,
}

/// How much a command reads.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reads {
    Nothing,
    Line,
    All,
}

impl Taking {
    fn list(&mut self, commands: &[Command]) -> Option<usize> {
        commands.iter().find_map(|command| self.command(command))
    }

    fn command(&mut self, command: &Command) -> Option<usize> {
        match command {
            Command::Simple(simple) => self.simple(simple),
            Command::Pipeline(pipeline) => self.command(pipeline.commands.first()?),
            Command::List(list) => self
                .command(&list.first)
                .or_else(|| list.rest.iter().find_map(|(_, command)| self.command(command))),
            Command::Compound(_, redirects) if gives_input(redirects) => None,
            Command::Compound(compound, _) => self.compound(compound),
            Command::Function(_) => None,
        }
    }

    fn compound(&mut self, compound: &CompoundCommand) -> Option<usize> {
        match compound {
            CompoundCommand::If(branch) => {
                let found = self.list(&branch.condition);
                let others = branch.elif_branches.iter().map(|(_, body)| body.as_slice());
                let others = others.chain(branch.else_branch.as_deref());
                found.or_else(|| {
                    self.one_of(std::iter::once(branch.then_branch.as_slice()).chain(others))
                })
            }
            CompoundCommand::Case(case) => {
                self.one_of(case.cases.iter().map(|item| item.commands.as_slice()))
            }
            CompoundCommand::While(_)
            | CompoundCommand::Until(_)
            | CompoundCommand::For(_)
            | CompoundCommand::ArithmeticFor(_) => {
                let lists = parts(compound);
                let once = lists.iter().find_map(|list| self.list(list));
                // A body that can leave the loop may run once.
                let leaves = lists.iter().any(|list| {
                    format!("{list:?}").contains("\"break\"")
                        || format!("{list:?}").contains("\"exit\"")
                        || format!("{list:?}").contains("\"return\"")
                });
                once.or_else(|| {
                    if leaves { None } else { lists.iter().find_map(|list| self.list(list)) }
                })
            }
            _ => parts(compound).into_iter().find_map(|list| self.list(list)),
        }
    }

    /// Goes through alternatives, of which one runs.
    fn one_of<'a>(&mut self, lists: impl Iterator<Item = &'a [Command]>) -> Option<usize> {
        let before = *self;
        for list in lists {
            let mut taking = before;
            if let Some(line) = taking.list(list) {
                return Some(line);
            }
            self.all |= taking.all;
        }
        None
    }

    fn simple(&mut self, simple: &SimpleCommand) -> Option<usize> {
        for word in &simple.args {
            for part in &word.parts {
                if let WordPart::CommandSubstitution(commands) = part
                    && let Some(line) = self.list(commands)
                {
                    return Some(line);
                }
            }
        }
        let reads = reads(simple);
        if self.all && reads != Reads::Nothing {
            return Some(simple.span.start.line);
        }
        self.all |= reads == Reads::All;
        None
    }
}

fn reads(simple: &SimpleCommand) -> Reads {
    let Some(name) = literal(&simple.name) else { return Reads::Nothing };
    if gives_input(&simple.redirects) {
        return Reads::Nothing;
    }
    let is_operand =
        |word: &&Word| literal(word).is_none_or(|text| !text.starts_with('-') || text == "-");
    let operands = simple.args.iter().filter(is_operand).count();
    let is_read_from_elsewhere =
        simple.args.iter().any(|word| literal(word).is_some_and(|text| text.starts_with("-u")));
    match name.as_str() {
        "read" if is_read_from_elsewhere => Reads::Nothing,
        "read" => Reads::Line,
        name if ALWAYS.contains(&name) => Reads::All,
        name if WITHOUT_OPERANDS.contains(&name) && operands == 0 => Reads::All,
        "head" if simple.args.is_empty() => Reads::All,
        "head" | "tail"
            if simple.args.iter().all(|word| {
                literal(word)
                    .is_some_and(|text| text.starts_with('-') || text.parse::<i64>().is_ok())
            }) =>
        {
            Reads::All
        }
        _ => Reads::Nothing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_reader_is_found() {
        for (script, line) in [
            ("{ cat; cat; } < f", 1),
            ("echo a\n{ head -n 1\ncat; } < f", 3),
            ("printf x | { cat; wc -l; }", 1),
            ("while read x; do cat; done < f", 1),
            ("for x in a b; do cat; done < f", 1),
            ("{ cat; cat <&0; } < f", 1),
            ("f() { cat | while read x; do tr a b; done; }", 1),
        ] {
            assert_eq!(shared_input(script, false), Some(line), "{script}");
        }
        assert_eq!(shared_input("cat; cat", true), Some(1));
    }

    #[test]
    fn one_reader_is_left_alone() {
        for script in [
            "cat; cat",
            "{ read x; read y; cat; } < f",
            "{ cat; cat g; sort < h; } < f",
            "while read x; do echo $x | cat; grep $x g; done < f",
            "if true; then cat; else sort; fi < f",
            "case $x in a) cat;; b) wc -l;; esac < f",
            "while true; do cat; break; done < f",
            "cat f | sort | uniq | wc -l",
            "{ cat; } < f; { cat; } < f",
            "{ cat; cat <&3; } < f 3< g",
        ] {
            assert_eq!(shared_input(script, false), None, "{script}");
        }
    }
}
