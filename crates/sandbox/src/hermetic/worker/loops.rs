//! `while read … done < file`, written so that it takes time in proportion to the file.
//!
//! The interpreter copies all that is left of a loop's input for every command of the loop. A
//! descriptor that `exec` opened it reads line by line. So a loop that is surely the only reader
//! of its file is written with such a descriptor, and its last line without an end, which such
//! a descriptor would take for a whole one, is read by itself.

use bashkit::parser::{
    Command, CompoundCommand, ListOperator, Parser, Redirect, RedirectKind, Script, WhileCommand,
};

use super::readers::{harmless_functions, literal, may_read, parts};
use crate::hermetic::rooms::{LAST_LINE, WHOLE_LINES};

/// Returns a script whose loops over files read them line by line, where that is the same.
pub(super) fn read_by_line(script: &str) -> String {
    if !script.contains("while") || !script.contains("read") || !script.contains('<') {
        return script.to_owned();
    }
    let Ok(Script { commands, .. }) = Parser::new(script).parse() else { return script.to_owned() };
    let functions = harmless_functions(&commands);
    let mut loops = Vec::new();
    find(&commands, &functions, &mut loops);
    let mut edits: Vec<Edit> = loops
        .into_iter()
        .enumerate()
        .filter_map(|(index, found)| edit(script, &found, index))
        .collect();
    edits.sort_by_key(|edit| std::cmp::Reverse(edit.start));
    let mut written = script.to_owned();
    let mut before = usize::MAX;
    for edit in edits {
        // A loop inside another that was written anew stays as it is.
        if edit.end > before {
            continue;
        }
        before = edit.start;
        written.replace_range(edit.start..edit.end, &edit.text);
    }
    written
}

/// A loop that may be written anew.
struct Found {
    start: usize,
    end: usize,
    /// Whether the condition takes a last line without an end itself: `read x || [ -n "$x" ]`.
    takes_last: bool,
}

struct Edit {
    start: usize,
    end: usize,
    text: String,
}

fn find(commands: &[Command], functions: &[String], found: &mut Vec<Found>) {
    for command in commands {
        match command {
            Command::Compound(compound, redirects) => {
                if let (CompoundCommand::While(repeat), [redirect]) =
                    (compound, redirects.as_slice())
                {
                    found.extend(candidate(repeat, redirect, functions));
                }
                for part in parts(compound) {
                    find(part, functions, found);
                }
            }
            Command::List(list) => {
                find(std::slice::from_ref(&list.first), functions, found);
                for (_, command) in &list.rest {
                    find(std::slice::from_ref(command), functions, found);
                }
            }
            Command::Pipeline(pipeline) => find(&pipeline.commands, functions, found),
            Command::Function(function) => {
                find(std::slice::from_ref(&function.body), functions, found);
            }
            Command::Simple(_) => {}
        }
    }
}

fn candidate(repeat: &WhileCommand, redirect: &Redirect, functions: &[String]) -> Option<Found> {
    let is_plain_input = redirect.kind == RedirectKind::Input
        && redirect.fd.is_none_or(|fd| fd == 0)
        && redirect.fd_var.is_none();
    let [condition] = repeat.condition.as_slice() else { return None };
    let takes_last = match condition {
        Command::Simple(_) => false,
        Command::List(list) => match list.rest.as_slice() {
            [(ListOperator::Or, other)] if !may_read(std::slice::from_ref(other), functions) => {
                true
            }
            _ => return None,
        },
        _ => return None,
    };
    let first = match condition {
        Command::List(list) => &list.first,
        other => other,
    };
    let Command::Simple(read) = first else { return None };
    let is_read =
        literal(&read.name).is_some_and(|name| name == "read") && read.redirects.is_empty();
    let is_plain = read.args.iter().all(|arg| {
        literal(arg).is_some_and(|text| {
            text == "-r" || text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        })
    });
    let body_reads = may_read(&repeat.body, functions);
    (is_plain_input && is_read && is_plain && !body_reads).then_some(Found {
        start: repeat.span.start.offset,
        end: repeat.span.end.offset,
        takes_last,
    })
}

/// Returns the loop as it is to be written.
fn edit(script: &str, found: &Found, index: usize) -> Option<Edit> {
    let whole = script.get(found.start..)?;
    let condition_start = whole.strip_prefix("while").map(|_| found.start + 5)?;
    // The parser's span ends behind the token after `done`.
    let done = found.start + script.get(found.start..found.end)?.rfind("done")? + 4;
    let behind = script.get(done..)?;
    let arrow = behind.trim_start_matches([' ', '\t']);
    let target = arrow.strip_prefix('<').filter(|rest| !rest.starts_with(['<', '(', '&', '>']))?;
    let target = target.trim_start_matches([' ', '\t']);
    let file = target.get(..word_length(target)?)?;
    let end = script.len() - target.len() + file.len();
    let condition = script.get(condition_start..done)?;
    let condition = condition.get(..condition.find([';', '\n'])?)?;
    let read_at = token(condition, "read")?;
    let rest = script.get(condition_start + condition.len()..done)?;
    let (before, after) = condition.split_at_checked(read_at + 4)?;
    let name = format!("__input_{index}");
    let (source, last) = if found.takes_last {
        (file.to_owned(), String::new())
    } else {
        let last = format!(" || {{ {} < {file}/{LAST_LINE}; false; }}", condition.trim());
        (format!("{file}/{WHOLE_LINES}"), last)
    };
    let text = format!(
        "if exec {{{name}}}<{file} && exec {{{name}}}<&- && exec {{{name}}}<{source}; then \
         while{before} -u \"${name}\"{after}{last}{rest}; {name}_status=$?; exec {{{name}}}<&-; \
         (exit \"${name}_status\"); else false; fi"
    );
    Some(Edit { start: found.start, end, text })
}

/// Returns how long a word is that names a file without running anything.
fn word_length(text: &str) -> Option<usize> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "/._-+,:@%$\"{}~".contains(c);
    let length = text.find(|c| !is_part(c)).unwrap_or(text.len());
    let behind = text.get(length..)?.chars().next();
    let ends = behind.is_none_or(|c| c.is_whitespace() || ";&|)".contains(c));
    let word = text.get(..length)?;
    let is_closed = word.matches('"').count() % 2 == 0
        && word.matches('{').count() == word.matches('}').count();
    // `${x:-y}` and `{a,b}` do more than name a file.
    let is_plain = !word.contains(":-") && !word.contains(',') && !word.starts_with('{');
    (length > 0 && ends && is_closed && is_plain).then_some(length)
}

/// Returns where a word stands by itself.
fn token(text: &str, word: &str) -> Option<usize> {
    let is_blank = |c: Option<char>| c.is_none_or(char::is_whitespace);
    text.match_indices(word).map(|(at, _)| at).find(|at| {
        let before = text.get(..*at).and_then(|before| before.chars().next_back());
        let after = text.get(at + word.len()..).and_then(|after| after.chars().next());
        is_blank(before) && is_blank(after)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_that_shares_its_input_stays_as_it_is() {
        for script in [
            "while read x; do cat; done < f",
            "while read x; do ssh host; done < f",
            "while read -d '' x; do echo $x; done < f",
            "while read x; do echo $x; done < <(ls)",
            "while read x; do echo $x; done <<< a",
            "while read x; do echo $x; done < $(ls)",
            "while read x; do read y; done < f",
            "f() { cat; }; while read x; do f; done < f",
        ] {
            assert_eq!(read_by_line(script), script);
        }
    }

    #[test]
    fn a_loop_that_reads_alone_reads_by_line() {
        for script in [
            "while read x; do echo $x; done < f",
            "while IFS= read -r x; do n=$((n+1)); done < \"$dir/f\"; echo $n",
            "f() { echo $1; }; while read a b; do f $a | wc -c; done <f && echo done",
            "while read -r x || [ -n \"$x\" ]; do echo $x; done < f",
        ] {
            assert!(read_by_line(script).contains("-u \"$__input_0\""), "{script}");
        }
    }
}
