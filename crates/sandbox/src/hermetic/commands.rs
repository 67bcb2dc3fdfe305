//! The commands a script has, and what to say about one it has not.

/// What only the shell itself can do: these have no file in `/bin`.
const SHELL: &[&str] = &[
    ".",
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
    "compopt",
    "continue",
    "declare",
    "dirs",
    "disown",
    "enable",
    "eval",
    "exec",
    "exit",
    "export",
    "fc",
    "fg",
    "getopts",
    "hash",
    "help",
    "history",
    "jobs",
    "let",
    "local",
    "mapfile",
    "popd",
    "pushd",
    "read",
    "readarray",
    "readonly",
    "return",
    "set",
    "shift",
    "shopt",
    "source",
    "times",
    "trap",
    "type",
    "typeset",
    "ulimit",
    "umask",
    "unalias",
    "unset",
    "wait",
];

/// What a script expects to find as programs.
const PROGRAMS: &[&str] = &[
    "arch",
    "awk",
    "b2sum",
    "base32",
    "base64",
    "basename",
    "basenc",
    "bash",
    "bc",
    "bunzip2",
    "bzcat",
    "bzip2",
    "cat",
    "chgrp",
    "chmod",
    "chown",
    "cksum",
    "clear",
    "cmp",
    "column",
    "comm",
    "cp",
    "cut",
    "date",
    "dd",
    "df",
    "diff",
    "dirname",
    "du",
    "echo",
    "egrep",
    "env",
    "envsubst",
    "expand",
    "expr",
    "factor",
    "false",
    "fgrep",
    "file",
    "find",
    "flock",
    "fmt",
    "fold",
    "free",
    "getconf",
    "grep",
    "gunzip",
    "gawk",
    "groups",
    "gzip",
    "head",
    "hexdump",
    "hostid",
    "hostname",
    "iconv",
    "id",
    "install",
    "join",
    "jq",
    "kill",
    "less",
    "link",
    "ln",
    "locale",
    "logname",
    "ls",
    "make",
    "mawk",
    "md5sum",
    "mkdir",
    "mkfifo",
    "mktemp",
    "mv",
    "nawk",
    "nice",
    "nl",
    "nohup",
    "nproc",
    "numfmt",
    "od",
    "openssl",
    "paste",
    "patch",
    "pr",
    "printenv",
    "printf",
    "ps",
    "pwd",
    "readlink",
    "realpath",
    "rev",
    "rg",
    "rm",
    "rmdir",
    "sed",
    "seq",
    "sh",
    "sha1sum",
    "sha224sum",
    "sha256sum",
    "sha384sum",
    "sha512sum",
    "shasum",
    "shuf",
    "sleep",
    "sort",
    "split",
    "stat",
    "strings",
    "sum",
    "sync",
    "tac",
    "tail",
    "tar",
    "tee",
    "test",
    "timeout",
    "touch",
    "tr",
    "tree",
    "true",
    "truncate",
    "tsort",
    "tty",
    "uname",
    "unexpand",
    "uniq",
    "unlink",
    "unzip",
    "users",
    "uptime",
    "uuidgen",
    "wc",
    "which",
    "who",
    "whoami",
    "xargs",
    "xxd",
    "yes",
    "yq",
    "zcat",
    "zip",
];

/// Commands of our own, which stand in front of the interpreter's of the same name.
pub(super) const OWN: &[&str] = &[
    "bc", "cat", "chmod", "diff", "head", "join", "ls", "mv", "realpath", "rm", "seq", "sleep",
    "tail", "tee", "timeout", "yes", "zcat",
];

/// What exists only where some host may be reached.
const NETWORK: &[&str] = &["curl", "wget"];

/// The commands of one run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Commands {
    network: bool,
}

impl Commands {
    /// Returns the commands of a run that may or may not reach the network.
    pub(super) fn new(network: bool) -> Self {
        Self { network }
    }

    /// Returns whether there is a command of this name.
    pub(super) fn has(&self, name: &str) -> bool {
        SHELL.contains(&name) || self.programs().any(|program| program == name)
    }

    /// Returns the commands that have a file in `/bin`.
    pub(super) fn programs(&self) -> impl Iterator<Item = &'static str> {
        let network = if self.network { NETWORK } else { &[] };
        PROGRAMS.iter().chain(network).copied()
    }

    /// Returns the available names nearest to one that is not, nearest first.
    pub(super) fn near(&self, name: &str) -> Vec<&'static str> {
        let all = self.programs().chain(SHELL.iter().copied());
        let mut near: Vec<(usize, &str)> = all
            .map(|known| (distance(name, known), known))
            .filter(|(distance, known)| *distance <= 1 + known.len().min(name.len()) / 3)
            .collect();
        near.sort_unstable();
        near.into_iter().take(5).map(|(_, known)| known).collect()
    }
}

/// Returns how many letters must be put in, taken out or replaced to turn one name into another.
fn distance(left: &str, right: &str) -> usize {
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (i, a) in left.bytes().enumerate() {
        let mut diagonal = i;
        let mut last = i + 1;
        for (slot, b) in row.iter_mut().skip(1).zip(right.bytes()) {
            let replaced = diagonal + usize::from(a != b);
            diagonal = *slot;
            last = replaced.min(diagonal + 1).min(last + 1);
            *slot = last;
        }
        if let Some(first) = row.first_mut() {
            *first = i + 1;
        }
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_names_come_nearest_first() {
        let commands = Commands::new(false);
        assert_eq!(commands.near("gerp").first(), Some(&"grep"));
        assert_eq!(commands.near("sha256").first(), Some(&"sha256sum"));
        assert!(commands.near("kubernetes").is_empty());
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("", "abc"), 3);
    }

    #[test]
    fn curl_exists_only_with_a_network() {
        assert!(!Commands::new(false).has("curl"));
        assert!(!Commands::new(false).has("wget"));
        assert!(Commands::new(true).has("curl"));
    }

    #[test]
    fn every_listed_command_is_one_the_interpreter_has() {
        let known = bashkit::Bash::new().builtin_names();
        let listed = SHELL.iter().chain(PROGRAMS).chain(NETWORK);
        let is_known = |name: &&&str| known.iter().any(|k| k == **name) || OWN.contains(*name);
        let missing: Vec<_> = listed.filter(|name| !is_known(name)).collect();
        assert_eq!(missing, Vec::<&&str>::new());
        let left_out = [
            "assert", "busybox", "csv", "dotenv", "glob", "http", "json", "log", "man", "parallel",
            "pgrep", "pkill", "retry", "semver", "sudo", "template", "tomlq", "verify", "watch",
        ];
        let unlisted: Vec<_> = known.iter().filter(|name| !Commands::new(true).has(name)).collect();
        assert_eq!(unlisted, left_out, "what nobody expects is left out by name");
    }
}
