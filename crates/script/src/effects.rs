//! What programs do to the paths in their arguments, as far as their names tell.

use std::ops::Range;

use crate::argument::Argument;
use crate::syntax::Mode;
use crate::walker::base_name;

/// What happens to one path or pattern of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Effect {
    /// The token as written.
    pub token: String,
    /// What it names.
    pub target: Target,
    /// What happens to it.
    pub access: Access,
    /// The program that does it; empty for a redirection without a program.
    pub program: String,
    /// Why we think so.
    pub why: &'static str,
    /// How sure that is.
    pub confidence: Confidence,
    /// Where the token stands in the script; absent in nested scripts.
    pub span: Option<Range<usize>>,
}

/// What a token names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// A path, relative ones below the directory the command starts in.
    Path(String),
    /// A pattern the shell expands, relative ones as above.
    Pattern(String),
    /// A path below the home directory.
    Home {
        /// What follows it: empty, or from the slash on.
        rest: String,
    },
    /// Only the shell will know.
    Dynamic,
}

/// What happens to a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Access {
    /// It is read.
    Read,
    /// It is created, changed or removed.
    Write,
    /// Both, or nobody can tell.
    ReadWrite,
}

impl Access {
    /// Returns the name used in events and plans.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::ReadWrite => "readwrite",
        }
    }
}

/// How sure an effect is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Confidence {
    /// The program is not known; the token looks like a path.
    Low,
    /// The program is known, the token is a pattern.
    Medium,
    /// The syntax or the program says so.
    High,
}

impl Confidence {
    /// Returns the name used in events and plans.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
        }
    }
}

/// The directory relative paths are below.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    /// Where the command starts.
    Start,
    /// A directory the script entered.
    Directory(String),
    /// One only the shell knows.
    Unknown,
}

const BUILTINS: [&str; 54] = [
    ":",
    "[",
    "alias",
    "bg",
    "bind",
    "break",
    "builtin",
    "caller",
    "cd",
    "command",
    "compgen",
    "complete",
    "continue",
    "declare",
    "dirs",
    "disown",
    "echo",
    "enable",
    "eval",
    "exec",
    "exit",
    "export",
    "false",
    "fc",
    "fg",
    "getopts",
    "hash",
    "help",
    "jobs",
    "kill",
    "let",
    "local",
    "logout",
    "mapfile",
    "popd",
    "printf",
    "pushd",
    "pwd",
    "read",
    "readarray",
    "readonly",
    "return",
    "set",
    "shift",
    "shopt",
    "test",
    "times",
    "trap",
    "true",
    "type",
    "typeset",
    "ulimit",
    "umask",
    "unset",
];

/// Returns whether the shell runs a name itself. `.`, `source` and `wait` are listed apart.
pub(crate) fn is_builtin(name: &str) -> bool {
    BUILTINS.contains(&name) || matches!(name, "." | "source" | "wait" | "suspend")
}

/// How a program uses its operands.
enum Operands {
    /// Reads all of them.
    Read,
    /// Reads all but the first.
    ReadAfterFirst,
    /// Writes all of them.
    Write,
    /// Writes all but the first.
    WriteAfterFirst,
    /// Reads all but the last, writes the last.
    Copy,
    /// Moves all but the last to the last.
    Move,
    /// Names that are not paths.
    None,
    /// Nobody knows.
    Unknown,
}

fn operands_of(program: &str) -> Operands {
    match program {
        "cat" | "head" | "tail" | "less" | "more" | "wc" | "sort" | "uniq" | "cut" | "nl"
        | "tac" | "rev" | "od" | "xxd" | "hexdump" | "strings" | "stat" | "file" | "ls" | "du"
        | "diff" | "cmp" | "comm" | "join" | "paste" | "md5sum" | "sha1sum" | "sha256sum"
        | "sha512sum" | "b2sum" | "cksum" | "base64" | "readlink" | "realpath" | "tree"
        | "test" | "[" | "cd" | "pushd" | "source" | "." | "zcat" | "gunzip" | "fold"
        | "column" | "df" | "sh" | "bash" | "dash" | "python" | "python3" | "node" | "perl"
        | "ruby" => Operands::Read,
        "grep" | "egrep" | "fgrep" | "rg" | "awk" | "gawk" | "mawk" | "jq" | "sed" => {
            Operands::ReadAfterFirst
        }
        "rm" | "rmdir" | "mkdir" | "touch" | "tee" | "truncate" | "shred" | "unlink" | "mkfifo"
        | "mknod" | "gzip" | "bzip2" | "xz" => Operands::Write,
        "chmod" | "chown" | "chgrp" | "setfacl" | "chattr" => Operands::WriteAfterFirst,
        "cp" | "ln" | "install" | "rsync" | "scp" => Operands::Copy,
        "mv" => Operands::Move,
        "echo" | "printf" | "true" | "false" | "sleep" | "date" | "uname" | "whoami" | "id"
        | "hostname" | "seq" | "expr" | "basename" | "dirname" | "kill" | "exit" | "export"
        | "set" | "unset" | "trap" | "read" | "which" | "type" | "command" | "xargs" | "env"
        | "sudo" | "nohup" | "nice" | "timeout" | "time" | "eval" | "exec" | "declare"
        | "local" | "readonly" | "typeset" | "return" | "shift" | "umask" | "wait" | "tr"
        | "yes" | "pwd" => Operands::None,
        _ => Operands::Unknown,
    }
}

/// Returns the effects of one program's arguments.
pub(crate) fn of_program(program: &str, arguments: &[Argument], place: &Place) -> Vec<Effect> {
    let maker = Maker { program, place };
    let edits_in_place = program == "sed"
        && arguments.iter().any(|argument| {
            argument.raw.starts_with("-i") || argument.raw.starts_with("--in-place")
        });
    let mut effects = maker.options(arguments);
    if program == "find" {
        effects.extend(maker.search(arguments));
        return effects;
    }
    let operands = operands(program, arguments);
    let known = "an operand of a known program";
    match operands_of(program) {
        Operands::Read => effects.extend(maker.all(&operands, Access::Read, known)),
        Operands::ReadAfterFirst => {
            let has_script = arguments
                .iter()
                .any(|a| matches!(a.text.as_deref(), Some("-e" | "-f" | "--expression")));
            let paths = operands.get(usize::from(!has_script)..).unwrap_or_default();
            let access = if edits_in_place { Access::ReadWrite } else { Access::Read };
            effects.extend(maker.all(paths, access, known));
        }
        Operands::Write => effects.extend(maker.all(&operands, Access::Write, known)),
        Operands::WriteAfterFirst => {
            effects.extend(maker.all(operands.get(1..).unwrap_or_default(), Access::Write, known));
        }
        Operands::Copy | Operands::Move => {
            let moves = matches!(operands_of(program), Operands::Move);
            let source = if moves { Access::ReadWrite } else { Access::Read };
            if let Some((last, sources)) = operands.split_last() {
                effects.extend(maker.all(sources, source, "the source of a copy or move"));
                let target = std::slice::from_ref(last);
                effects.extend(maker.all(
                    target,
                    Access::Write,
                    "the destination of a copy or move",
                ));
            }
        }
        Operands::None => {}
        Operands::Unknown => {
            let paths: Vec<_> = operands.into_iter().filter(|a| looks_like_path(a)).collect();
            let why = "looks like a path; the program is not known";
            let found = maker.all(&paths, Access::ReadWrite, why);
            effects.extend(
                found.into_iter().map(|effect| Effect { confidence: Confidence::Low, ..effect }),
            );
        }
    }
    effects
}

/// Returns the effect of a redirection.
pub(crate) fn of_redirect(
    mode: Mode,
    target: &Argument,
    program: &str,
    place: &Place,
) -> Option<Effect> {
    let (access, why) = match mode {
        Mode::Read => (Access::Read, "redirected from"),
        Mode::Write => (Access::Write, "redirected to"),
        Mode::ReadWrite => (Access::ReadWrite, "redirected from and to"),
        Mode::Duplicate => {
            let is_descriptor = target
                .text
                .as_deref()
                .is_some_and(|text| text.trim_end_matches('-').bytes().all(|b| b.is_ascii_digit()));
            if is_descriptor {
                return None;
            }
            (Access::Write, "redirected to")
        }
    };
    let maker = Maker { program, place };
    Some(maker.effect(target, access, why))
}

/// Returns where relative paths are after a program ran.
pub(crate) fn place_after(program: &str, arguments: &[Argument], place: &Place) -> Place {
    match program {
        "cd" | "pushd" => {
            let target =
                arguments.iter().find(|a| a.text.as_deref().is_none_or(|t| !t.starts_with('-')));
            match target.and_then(|argument| argument.text.as_deref()) {
                Some(path) => below(place, path).map_or(Place::Unknown, Place::Directory),
                None => Place::Unknown,
            }
        }
        "popd" => Place::Unknown,
        _ => place.clone(),
    }
}

/// Returns `path` seen from where the command starts.
fn below(place: &Place, path: &str) -> Option<String> {
    match place {
        _ if path.starts_with('/') => Some(path.to_owned()),
        Place::Start => Some(path.to_owned()),
        Place::Directory(directory) => Some(format!("{}/{path}", directory.trim_end_matches('/'))),
        Place::Unknown => None,
    }
}

/// Returns the arguments that are not options.
fn operands<'a>(program: &str, arguments: &'a [Argument]) -> Vec<&'a Argument> {
    let with_value: &[&str] = match program {
        "head" | "tail" => &["-n", "-c"],
        "cut" => &["-d", "-f", "-c", "-b"],
        "sort" => &["-k", "-t", "-S", "-T"],
        "grep" | "egrep" | "fgrep" | "rg" => &["-e", "-f", "-m", "-A", "-B", "-C"],
        "sed" | "awk" | "gawk" | "mawk" => &["-e", "-f", "-F", "-v"],
        "jq" => &["-L"],
        "mkdir" | "install" => &["-m", "-o", "-g"],
        "touch" => &["-d", "-t"],
        "truncate" => &["-s"],
        "curl" => &["-o", "-H", "-d", "-X", "-u", "-A", "-T", "-F", "-b", "-c", "-K", "-e", "-x"],
        "wget" => &["-O", "-P", "-o", "-U"],
        "sh" | "bash" | "dash" => &["-c", "-o"],
        "python" | "python3" => &["-c", "-m"],
        "node" | "perl" | "ruby" => &["-e", "-p"],
        _ => &[],
    };
    let mut found = Vec::new();
    let mut only_operands = false;
    let mut iter = arguments.iter();
    while let Some(argument) = iter.next() {
        let text = argument.text.as_deref().unwrap_or_default();
        if only_operands || text == "-" || !text.starts_with('-') {
            let is_test = matches!(program, "[" | "test");
            if text != "-" && (!is_test || looks_like_path(argument)) {
                found.push(argument);
            }
        } else if text == "--" {
            only_operands = true;
        } else if with_value.contains(&text) {
            iter.next();
        }
    }
    found
}

fn looks_like_path(argument: &Argument) -> bool {
    if argument.home.is_some() {
        return true;
    }
    let text = argument.pattern.as_deref().unwrap_or(&argument.raw);
    let is_url = text.contains("://");
    !is_url && (text.contains('/') || text.starts_with('.') || text.starts_with('~'))
}

struct Maker<'a> {
    program: &'a str,
    place: &'a Place,
}

impl Maker<'_> {
    fn all(&self, arguments: &[&Argument], access: Access, why: &'static str) -> Vec<Effect> {
        arguments.iter().map(|argument| self.effect(argument, access, why)).collect()
    }

    fn effect(&self, argument: &Argument, access: Access, why: &'static str) -> Effect {
        let target = match (&argument.text, &argument.pattern, &argument.home) {
            (Some(path), _, _) => below(self.place, path).map_or(Target::Dynamic, Target::Path),
            (None, Some(path), _) => {
                below(self.place, path).map_or(Target::Dynamic, Target::Pattern)
            }
            (None, None, Some(rest)) => Target::Home { rest: rest.clone() },
            (None, None, None) => Target::Dynamic,
        };
        let confidence = match target {
            Target::Path(_) | Target::Home { .. } => Confidence::High,
            Target::Pattern(_) | Target::Dynamic => Confidence::Medium,
        };
        Effect {
            token: argument.raw.clone(),
            target,
            access,
            program: base_name(self.program).to_owned(),
            why,
            confidence,
            span: argument.span.clone(),
        }
    }

    /// Returns the effects of options that name files: `-o FILE`, `--output=FILE`, `of=FILE`.
    fn options(&self, arguments: &[Argument]) -> Vec<Effect> {
        let rows: &[(&str, Access)] = match self.program {
            "curl" => &[
                ("-o", Access::Write),
                ("--output", Access::Write),
                ("-T", Access::Read),
                ("-K", Access::Read),
            ],
            "wget" => &[("-O", Access::Write), ("-P", Access::Write), ("-o", Access::Write)],
            "sort" => &[("-o", Access::Write), ("-T", Access::Write)],
            "tar" => &[("-f", Access::ReadWrite), ("-C", Access::ReadWrite), ("-T", Access::Read)],
            "git" => &[
                ("-C", Access::ReadWrite),
                ("--git-dir", Access::ReadWrite),
                ("--work-tree", Access::ReadWrite),
            ],
            "make" => &[("-C", Access::ReadWrite), ("-f", Access::Read)],
            "cp" | "mv" | "install" | "ln" => {
                &[("-t", Access::Write), ("--target-directory", Access::Write)]
            }
            "unzip" => &[("-d", Access::Write)],
            "cc" | "gcc" | "clang" | "rustc" | "ld" => &[("-o", Access::Write)],
            "grep" | "sed" | "awk" => &[("-f", Access::Read)],
            _ => &[],
        };
        let mut effects = Vec::new();
        for (index, argument) in arguments.iter().enumerate() {
            let text = argument.text.as_deref().unwrap_or(&argument.raw);
            if let Some((_, access)) = rows.iter().find(|(option, _)| *option == text)
                && let Some(value) = arguments.get(index + 1)
            {
                effects.push(self.effect(value, *access, "the value of a known option"));
                continue;
            }
            let Some((name, value)) = text.split_once('=') else { continue };
            let row = rows.iter().find(|(option, _)| *option == name).map(|(_, access)| *access);
            let access = match (self.program, name) {
                ("dd", "if") => Some(Access::Read),
                ("dd", "of") => Some(Access::Write),
                _ => row,
            };
            let is_unknown_path = name.starts_with('-') && value.starts_with(['/', '~']);
            let value = match &argument.text {
                Some(_) => Argument { raw: value.to_owned(), ..Argument::literal(value) },
                None => Argument { raw: value.to_owned(), ..Argument::unknown(value) },
            };
            match access {
                Some(access) => {
                    effects.push(self.effect(&value, access, "the value of a known option"))
                }
                None if is_unknown_path => {
                    let effect = self.effect(
                        &value,
                        Access::ReadWrite,
                        "an option's value that looks like a path",
                    );
                    effects.push(Effect { confidence: Confidence::Low, ..effect });
                }
                None => {}
            }
        }
        effects
    }

    /// Returns the effects of `find`: its roots, and what its actions do there.
    fn search(&self, arguments: &[Argument]) -> Vec<Effect> {
        let is_expression = |argument: &&Argument| {
            argument.text.as_deref().is_some_and(|text| text.starts_with(['-', '(', '!']))
        };
        let roots: Vec<&Argument> = arguments.iter().take_while(|a| !is_expression(a)).collect();
        let removes = arguments.iter().any(|argument| {
            matches!(
                argument.text.as_deref(),
                Some("-delete" | "-exec" | "-execdir" | "-ok" | "-okdir")
            )
        });
        let access = if removes { Access::ReadWrite } else { Access::Read };
        let mut effects = self.all(&roots, access, "the root of a search");
        for (index, argument) in arguments.iter().enumerate() {
            let writes = matches!(
                argument.text.as_deref(),
                Some("-fprint" | "-fprint0" | "-fprintf" | "-fls")
            );
            if let Some(value) = arguments.get(index + 1)
                && writes
            {
                effects.push(self.effect(value, Access::Write, "the value of a known option"));
            }
        }
        effects
    }
}
