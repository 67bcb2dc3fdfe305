//! Programs that start other programs: how to find the inner one in their arguments.
//!
//! An option that is not known to a wrapper's entry makes the inner program unknown.

use crate::Dialect;
use crate::argument::Argument;
use crate::lexer::is_name;

/// What a program starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Started {
    /// Another program with these arguments, the name first.
    Argv(Vec<Argument>),
    /// A script given as text.
    Script {
        /// The text.
        text: String,
        /// The shell that reads it, or the one that reads the outer script.
        dialect: Option<Dialect>,
    },
    /// A script from its standard input.
    Input(Dialect),
    /// Something that cannot be told from the text.
    Unknown(&'static str),
    /// A variable is set that changes which programs run.
    Variable(String),
}

struct Prefix {
    name: &'static str,
    /// Options that take the next argument.
    values: &'static [&'static str],
    /// Options that stand alone.
    flags: &'static [&'static str],
    /// Arguments between the options and the program.
    operands: usize,
    /// Whether `NAME=value` may come before the program.
    assigns: bool,
}

const fn prefix(
    name: &'static str,
    values: &'static [&'static str],
    flags: &'static [&'static str],
) -> Prefix {
    Prefix { name, values, flags, operands: 0, assigns: false }
}

const PREFIXES: [Prefix; 13] = [
    Prefix {
        assigns: true,
        ..prefix(
            "sudo",
            &["-u", "-g", "-h", "-p", "-C", "-r", "-t", "-T", "-U", "--user", "--group", "--host"],
            &[
                "-A",
                "-b",
                "-E",
                "-H",
                "-k",
                "-n",
                "-P",
                "-S",
                "--preserve-env",
                "--non-interactive",
            ],
        )
    },
    prefix("doas", &["-u", "-C"], &["-n", "-L"]),
    Prefix {
        assigns: true,
        ..prefix(
            "env",
            &["-u", "--unset", "-C", "--chdir"],
            &["-", "-i", "--ignore-environment", "-0", "--null", "-v", "--debug"],
        )
    },
    prefix("nohup", &[], &[]),
    prefix("setsid", &[], &["-c", "-f", "-w", "--ctty", "--fork", "--wait"]),
    prefix("nice", &["-n", "--adjustment"], &[]),
    prefix("ionice", &["-c", "-n", "--class", "--classdata"], &["-t", "--ignore"]),
    Prefix {
        operands: 1,
        ..prefix(
            "timeout",
            &["-s", "-k", "--signal", "--kill-after"],
            &["-v", "--verbose", "--preserve-status", "--foreground"],
        )
    },
    prefix("time", &["-f", "-o", "--format", "--output"], &["-p", "-v", "-a", "-q"]),
    prefix("stdbuf", &["-i", "-o", "-e", "--input", "--output", "--error"], &[]),
    prefix("command", &[], &["-p"]),
    prefix("builtin", &[], &[]),
    prefix("exec", &["-a"], &["-c", "-l"]),
];

/// Programs that start what their arguments say, in ways not followed here.
const OPAQUE: [&str; 44] = [
    "ansible",
    "at",
    "batch",
    "bwrap",
    "chroot",
    "chpst",
    "chrt",
    "crontab",
    "dbus-run-session",
    "docker",
    "entr",
    "expect",
    "fakeroot",
    "firejail",
    "flock",
    "gdb",
    "kubectl",
    "linux32",
    "linux64",
    "ltrace",
    "nsenter",
    "parallel",
    "podman",
    "prlimit",
    "proot",
    "rsh",
    "run-parts",
    "runuser",
    "screen",
    "script",
    "setarch",
    "setpriv",
    "softlimit",
    "ssh",
    "start-stop-daemon",
    "strace",
    "su",
    "systemd-run",
    "taskset",
    "tmux",
    "unshare",
    "watch",
    "xvfb-run",
    "zsh",
];

/// Shells whose grammar is not read here.
const FOREIGN_SHELLS: [&str; 7] = ["csh", "fish", "ksh", "mksh", "tcsh", "yash", "zsh"];

/// Returns the shell a program is, if it is one whose grammar is read here.
pub(crate) fn dialect_of(name: &str) -> Option<Dialect> {
    match name {
        "sh" | "dash" | "ash" => Some(Dialect::Sh),
        "bash" | "rbash" => Some(Dialect::Bash),
        _ => None,
    }
}

/// Returns whether a program is any shell.
pub(crate) fn is_any_shell(name: &str) -> bool {
    dialect_of(name).is_some() || FOREIGN_SHELLS.contains(&name)
}

/// Returns whether setting a variable changes which programs run.
pub(crate) fn is_sensitive(name: &str) -> bool {
    let named =
        ["PATH", "ENV", "BASH_ENV", "PROMPT_COMMAND", "PS4", "SHELLOPTS", "BASHOPTS", "IFS"];
    named.contains(&name) || name.starts_with("LD_") || name.starts_with("BASH_FUNC")
}

/// Variables that name a program which others start, or hold options with which they run something.
const CHOOSING: [&str; 44] = [
    "_JAVA_OPTIONS",
    "BROWSER",
    "CARGO_BUILD_RUSTC",
    "CARGO_BUILD_RUSTC_WRAPPER",
    "COMSPEC",
    "DOTNET_STARTUP_HOOKS",
    "EDITOR",
    "GCONV_PATH",
    "GIT_ASKPASS",
    "GIT_CONFIG",
    "GIT_CONFIG_COUNT",
    "GIT_CONFIG_GLOBAL",
    "GIT_CONFIG_PARAMETERS",
    "GIT_CONFIG_SYSTEM",
    "GIT_EDITOR",
    "GIT_EXEC_PATH",
    "GIT_EXTERNAL_DIFF",
    "GIT_PAGER",
    "GIT_PROXY_COMMAND",
    "GIT_SEQUENCE_EDITOR",
    "GIT_SSH",
    "GIT_SSH_COMMAND",
    "GIT_TEMPLATE_DIR",
    "JAVA_TOOL_OPTIONS",
    "JDK_JAVA_OPTIONS",
    "LESSCLOSE",
    "LESSOPEN",
    "LUA_INIT",
    "MAKEFLAGS",
    "MANPAGER",
    "NODE_OPTIONS",
    "PAGER",
    "PERL5DB",
    "PERL5OPT",
    "PYTHONHOME",
    "PYTHONSTARTUP",
    "RUBYOPT",
    "RUSTC",
    "RUSTC_WORKSPACE_WRAPPER",
    "RUSTC_WRAPPER",
    "SHELL",
    "SSH_ASKPASS",
    "VISUAL",
    "ZDOTDIR",
];

/// Returns whether a variable of this name, set for a program, chooses what other words mean: where
/// programs are looked for, what is loaded into them, what they start by themselves.
///
/// Where interpreters look for modules (`PYTHONPATH`, `NODE_PATH`) is not among them: what an
/// interpreter runs nobody knows from its words anyway.
#[must_use]
pub fn chooses_programs(name: &str) -> bool {
    is_sensitive(name) || CHOOSING.contains(&name) || name.starts_with("npm_config_")
}

/// Returns everything a program starts because of its arguments.
pub(crate) fn started_by(name: &str, arguments: &[Argument]) -> Vec<Started> {
    if let Some(dialect) = dialect_of(name) {
        return vec![shell(dialect, arguments)];
    }
    if let Some(prefix) = PREFIXES.iter().find(|prefix| prefix.name == name) {
        return prefixed(prefix, arguments);
    }
    match name {
        "xargs" => xargs(arguments),
        "find" => find(arguments),
        "busybox" | "toybox" if !arguments.is_empty() => match option_of(arguments.first()) {
            Some(_) => vec![Started::Unknown("a multi-call program with options")],
            None => vec![Started::Argv(arguments.to_vec())],
        },
        "eval" => vec![eval(arguments)],
        "trap" => trap(arguments),
        "." | "source" => vec![Started::Unknown("a sourced file")],
        "alias" if !arguments.is_empty() => vec![Started::Unknown("an alias")],
        "hash" | "enable" | "complete" | "compgen" | "bind" | "mapfile" | "readarray" | "jobs"
        | "fc"
            if arguments.iter().any(|argument| option_of(Some(argument)).is_some()) =>
        {
            vec![Started::Unknown("a builtin that can name programs")]
        }
        _ if OPAQUE.contains(&name) || is_any_shell(name) || name.starts_with("ld-linux") => {
            vec![Started::Unknown("a program that starts what its arguments say")]
        }
        _ => Vec::new(),
    }
}

fn option_of(argument: Option<&Argument>) -> Option<&str> {
    let text = argument?.text.as_deref()?;
    text.starts_with('-').then_some(text)
}

/// Walks over a wrapper's options; returns what is left, or nothing when an option is unknown.
fn skip_options<'a>(prefix: &Prefix, mut rest: &'a [Argument]) -> Option<&'a [Argument]> {
    while let Some((first, others)) = rest.split_first() {
        let Some(text) = first.text.as_deref() else { return (!first.splits).then_some(rest) };
        if text == "--" {
            return Some(others);
        }
        if !text.starts_with('-') || (text == "-" && !prefix.flags.contains(&"-")) {
            return Some(rest);
        }
        let takes_next = takes_next(prefix, text)?;
        rest = if takes_next { others.get(1..)? } else { others };
    }
    Some(rest)
}

/// Returns whether an option takes the next argument; nothing when it is not known.
fn takes_next(prefix: &Prefix, option: &str) -> Option<bool> {
    if prefix.flags.contains(&option) {
        return Some(false);
    }
    if let Some(long) = option.strip_prefix("--") {
        let (name, value) = long.split_once('=').map_or((long, None), |(n, v)| (n, Some(v)));
        let is_known =
            |list: &[&str]| list.iter().any(|known| known.strip_prefix("--") == Some(name));
        return match value {
            Some(_) if is_known(prefix.values) || is_known(prefix.flags) => Some(false),
            None if is_known(prefix.values) => Some(true),
            _ => None,
        };
    }
    let letters = option.strip_prefix('-')?;
    let is_number = prefix.name == "nice" && letters.bytes().all(|b| b.is_ascii_digit());
    if is_number {
        return Some(false);
    }
    for (index, letter) in letters.char_indices() {
        let short = format!("-{letter}");
        if prefix.values.contains(&short.as_str()) {
            return Some(index + letter.len_utf8() == letters.len());
        }
        if !prefix.flags.contains(&short.as_str()) {
            return None;
        }
    }
    Some(false)
}

fn prefixed(prefix: &Prefix, arguments: &[Argument]) -> Vec<Started> {
    let asks_where = matches!(option_of(arguments.first()), Some("-v" | "-V"));
    if prefix.name == "command" && asks_where {
        return Vec::new();
    }
    let unknown = vec![Started::Unknown("a wrapper with options that are not known")];
    let Some(mut rest) = skip_options(prefix, arguments) else { return unknown };
    let mut started = Vec::new();
    while let Some((first, others)) = rest.split_first() {
        let assigned = assigned_variable(first).filter(|_| prefix.assigns);
        let Some(name) = assigned else { break };
        if is_sensitive(&name) || !is_name(&name) {
            started.push(Started::Variable(name));
        }
        if first.splits {
            started.push(Started::Unknown("a wrapper with arguments that are not known"));
        }
        rest = others;
    }
    let skipped = rest.get(..prefix.operands.min(rest.len())).unwrap_or_default();
    if skipped.iter().any(|argument| argument.splits) {
        return unknown;
    }
    rest = rest.get(prefix.operands..).unwrap_or_default();
    if !rest.is_empty() {
        started.push(Started::Argv(rest.to_vec()));
    }
    started
}

/// Returns the variable of `NAME=value`; the wrappers take anything with `=` in it for that.
pub(crate) fn assigned_variable(argument: &Argument) -> Option<String> {
    let text = argument.text.as_deref().unwrap_or(&argument.raw);
    text.split_once('=').map(|(name, _)| name.to_owned())
}

fn shell(dialect: Dialect, arguments: &[Argument]) -> Started {
    let mut reads_text = false;
    let mut reads_input = false;
    let mut rest = arguments;
    while let Some((first, others)) = rest.split_first() {
        let Some(text) = first.text.as_deref() else {
            return Started::Unknown("a shell with arguments that are not known");
        };
        if text == "--" || text == "-" {
            rest = others;
            break;
        }
        if let Some(long) = text.strip_prefix("--") {
            let known =
                ["login", "norc", "noprofile", "posix", "noediting", "restricted", "verbose"];
            if !known.contains(&long) {
                return Started::Unknown("a shell with options that are not known");
            }
            rest = others;
            continue;
        }
        if !text.starts_with(['-', '+']) {
            break;
        }
        reads_text |= text.starts_with('-') && text.contains('c');
        reads_input |= text.starts_with('-') && text.contains('s');
        rest =
            if text.ends_with(['o', 'O']) { others.get(1..).unwrap_or_default() } else { others };
    }
    match rest.first() {
        Some(script) if reads_text => match &script.text {
            Some(text) => Started::Script { text: text.clone(), dialect: Some(dialect) },
            None => Started::Unknown("a shell with a script that is not known"),
        },
        None if reads_text => Started::Unknown("a shell without its script"),
        Some(_) if !reads_input => Started::Unknown("a shell with a script file"),
        _ => Started::Input(dialect),
    }
}

fn eval(arguments: &[Argument]) -> Started {
    let skip = usize::from(option_of(arguments.first()) == Some("--"));
    let texts: Option<Vec<&str>> =
        arguments.iter().skip(skip).map(|argument| argument.text.as_deref()).collect();
    match texts {
        Some(texts) => Started::Script { text: texts.join(" "), dialect: None },
        None => Started::Unknown("evaluated text that is not known"),
    }
}

fn trap(arguments: &[Argument]) -> Vec<Started> {
    let rest = match option_of(arguments.first()) {
        Some("--") => arguments.get(1..).unwrap_or_default(),
        Some(_) => return Vec::new(),
        None => arguments,
    };
    match rest.first().map(|argument| argument.text.clone()) {
        None => Vec::new(),
        Some(Some(text)) if text.is_empty() || rest.len() < 2 => Vec::new(),
        Some(Some(text)) => vec![Started::Script { text, dialect: None }],
        Some(None) => vec![Started::Unknown("a trap that is not known")],
    }
}

fn xargs(arguments: &[Argument]) -> Vec<Started> {
    let options = prefix(
        "xargs",
        &[
            "-a",
            "-d",
            "-E",
            "-I",
            "-L",
            "-n",
            "-P",
            "-s",
            "--arg-file",
            "--delimiter",
            "--max-args",
            "--max-procs",
            "--max-lines",
            "--replace",
            "--max-chars",
        ],
        &["-0", "-r", "-t", "-p", "-x", "--null", "--no-run-if-empty", "--verbose"],
    );
    let Some(rest) = skip_options(&options, arguments) else {
        return vec![Started::Unknown("a wrapper with options that are not known")];
    };
    if rest.is_empty() {
        return Vec::new();
    }
    let taken = arguments.get(..arguments.len() - rest.len()).unwrap_or_default();
    let mut argv: Vec<Argument> = rest.to_vec();
    match placeholder(taken) {
        Some(placeholder) => {
            argv = argv.iter().map(|argument| argument.replacing(&placeholder)).collect();
        }
        None => argv.push(Argument::unknown("arguments from the input")),
    }
    vec![Started::Argv(argv)]
}

/// Returns what `xargs -I` replaces.
fn placeholder(options: &[Argument]) -> Option<String> {
    let mut options = options.iter().filter_map(|argument| argument.text.as_deref());
    while let Some(option) = options.next() {
        if let Some(value) = option.strip_prefix("--replace=") {
            return Some(value.to_owned());
        }
        let Some(value) = option.strip_prefix("-I") else { continue };
        return if value.is_empty() {
            options.next().map(str::to_owned)
        } else {
            Some(value.to_owned())
        };
    }
    None
}

fn find(arguments: &[Argument]) -> Vec<Started> {
    let mut started = Vec::new();
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let Some(text) = argument.text.as_deref() else {
            let is_tame = argument
                .pattern
                .as_deref()
                .is_some_and(|pattern| !pattern.starts_with(['*', '?', '[', '{', '-']));
            if argument.splits && !is_tame {
                started.push(Started::Unknown("a search with arguments that are not known"));
            }
            continue;
        };
        if !matches!(text, "-exec" | "-execdir" | "-ok" | "-okdir") {
            continue;
        }
        let mut argv = Vec::new();
        for argument in rest.by_ref() {
            if matches!(argument.text.as_deref(), Some(";" | "+")) {
                break;
            }
            argv.push(argument.replacing("{}"));
        }
        started.push(Started::Argv(argv));
    }
    started
}
