//! What is run inside a sandbox: the program with exactly its environment, the steps of staging,
//! and a look around.
//!
//! Everything is one line for `sh`, which every provider takes; every word in it is quoted.

use std::time::Duration;

use super::adapter::{Adapter, NotStarted, Reached, Said, Start};
use super::wire::WireError;
use crate::{Command, EnvVar, Shell, Stream};

/// Where the workspace lies inside.
pub(crate) const WORKSPACE: &str = "/tmp/workspace";
/// Where the archives of staging lie for a moment.
pub(crate) const ARCHIVE_IN: &str = "/tmp/.warrant-in.tar";
pub(crate) const ARCHIVE_OUT: &str = "/tmp/.warrant-out.tar";
/// Where input lies for providers that cannot stream it.
pub(crate) const INPUT: &str = "/tmp/.warrant-stdin";

/// Returns a word that means itself to a shell.
pub(crate) fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// Returns the words that start a command.
pub(crate) fn words(command: &Command) -> Vec<String> {
    match command {
        Command::Argv { program, args } => std::iter::once(program).chain(args).cloned().collect(),
        Command::Shell { shell, script } => {
            let name = match shell {
                Shell::Sh => "sh",
                Shell::Bash => "bash",
            };
            vec![name.to_owned(), "-c".to_owned(), script.clone()]
        }
    }
}

/// Where a program's input comes from inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// Nowhere.
    Nothing,
    /// The file that was put there.
    File,
    /// The provider streams it.
    Streamed,
}

/// Returns the line that runs a command in a directory with these variables and no others.
///
/// Values do not appear in it: the provider sets them, and whatever else is set is taken away.
pub(crate) fn program_line(
    (command, env): (&Command, &[EnvVar]),
    directory: &str,
    source: Source,
) -> String {
    let names: Vec<&str> = env.iter().map(|variable| variable.name.as_str()).collect();
    let keep = quoted(&format!(" {} ", names.join(" ")));
    let words: Vec<String> = words(command).iter().map(|word| quoted(word)).collect();
    let input = match source {
        Source::Nothing => " </dev/null".to_owned(),
        Source::File => format!(" <{INPUT}"),
        Source::Streamed => String::new(),
    };
    let clean = scrub(&keep);
    format!("(cd {} && {clean} && exec {}{input})", quoted(directory), words.join(" "))
}

/// Returns a step that takes away every variable that is not kept.
fn scrub(keep: &str) -> String {
    format!(
        "for _w in $(env | sed -n 's/^\\([A-Za-z_][A-Za-z0-9_]*\\)=.*/\\1/p'); do \
         case {keep} in *\" $_w \"*) ;; *) unset \"$_w\" 2>/dev/null || : ;; esac; done; unset _w"
    )
}

/// Returns the step that unpacks what was sent, after its digest was looked at inside.
pub(crate) fn unpack_line(digest_hex: &str) -> String {
    format!(
        "mkdir -p {WORKSPACE} && \
         [ \"$(sha256sum < {ARCHIVE_IN})\" = '{digest_hex}  -' ] && \
         tar -xpf {ARCHIVE_IN} -C {WORKSPACE} && echo unpacked"
    )
}

/// Returns the step that packs the workspace and tells digest and size of the archive.
///
/// Who is not root there cannot pack what its owner may not read (a masked file, or whatever the
/// program left like that), so such things become readable to their owner first.
pub(crate) fn pack_line() -> String {
    format!(
        "[ \"$(id -u)\" = 0 ] || find {WORKSPACE} \\( -type d ! -perm -0500 -o \
         -type f ! -perm -0400 \\) -exec chmod u+rX {{}} \\; ; \
         tar -cf {ARCHIVE_OUT} -C {WORKSPACE} . && \
         sha256sum < {ARCHIVE_OUT} && wc -c < {ARCHIVE_OUT}"
    )
}

/// Returns the look around: every line is a name and what was found.
///
/// The destination must be denied; whatever can open a connection here is tried, and only an
/// answer counts, for some providers let a denied connection look open.
pub(crate) fn look_line(canary: Option<&str>) -> String {
    let try_canary = match canary.and_then(|canary| canary.rsplit_once(':')) {
        None => "echo egress untried".to_owned(),
        Some((host, port)) => {
            let (host, port) = (quoted(host), quoted(port));
            format!(
                "h={host}; p={port}; \
                 if command -v python3 >/dev/null 2>&1; then \
                 python3 -c 'import socket,sys\n\
                 try:\n\
                 \x20s=socket.create_connection((sys.argv[1],int(sys.argv[2])),3)\n\
                 \x20s.settimeout(3)\n\
                 \x20s.sendall(b\"GET / HTTP/1.0\\r\\nHost: canary\\r\\n\\r\\n\")\n\
                 \x20print(\"egress \"+(\"open\" if s.recv(1) else \"denied\"))\n\
                 except Exception: print(\"egress denied\")' \"$h\" \"$p\"; \
                 elif command -v bash >/dev/null 2>&1; then \
                 bash -c '(exec 3<>/dev/tcp/$0/$1 && printf \"GET / HTTP/1.0\\r\\n\\r\\n\" >&3 && \
                 IFS= read -r -t 3 -n 1 x <&3 && [ -n \"$x\" ]) 2>/dev/null && echo egress open || \
                 echo egress denied' \"$h\" \"$p\"; \
                 elif command -v wget >/dev/null 2>&1; then \
                 wget -q -T 3 -O /dev/null \"http://$h:$p/\" 2>/dev/null && echo egress open || \
                 echo egress denied; \
                 else echo egress untried; fi"
            )
        }
    };
    format!(
        "echo uid $(id -u 2>/dev/null); \
         for f in /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes; do \
         [ -r $f ] && echo memory $(cat $f) && break; done; \
         sed -n 's/^MemTotal: *\\([0-9]*\\) kB/memtotal \\1/p' /proc/meminfo 2>/dev/null; \
         mkdir -p {WORKSPACE} && echo write held || echo write denied; \
         for t in tar sha256sum sed env; do command -v $t >/dev/null 2>&1 && echo tool $t; done; \
         {try_canary}; {}; echo looked",
        try_environment()
    )
}

/// A variable that nobody asked for.
const PLANTED: &str = "WARRANT_PLANTED";
/// What shells set by themselves, with nothing of the sandbox in it.
const OF_SHELLS: [&str; 5] = ["PATH", "PWD", "OLDPWD", "SHLVL", "_"];

/// Returns the step that plants a variable, takes all away that is not kept, as before the program,
/// and names what is left.
fn try_environment() -> String {
    let clean = scrub("' PATH '");
    format!(
        "({PLANTED}=1; export {PLANTED}; {clean}; \
         for _l in $(env | sed -n 's/^\\([A-Za-z_][A-Za-z0-9_]*\\)=.*/\\1/p'); do \
         echo variable $_l; done; echo variables tried)"
    )
}

/// What was found inside.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Look {
    /// Whether a denied destination answered; absent when nothing here could try.
    pub(crate) canary_answered: Option<bool>,
    /// The memory limit the kernel tells, in bytes.
    pub(crate) memory_bytes: Option<u64>,
    /// All memory of the machine, in bytes.
    pub(crate) machine_bytes: Option<u64>,
    /// Tools that staging needs and that are not there.
    pub(crate) missing: Vec<&'static str>,
    /// Whether the workspace can be written.
    pub(crate) is_writable: bool,
    /// Variables that could not be taken away; absent when nobody could look.
    pub(crate) environment: Option<Vec<String>>,
}

const TOOLS: [&str; 4] = ["tar", "sha256sum", "sed", "env"];

impl Look {
    /// Reads what the look around said; nothing unless it was said to the end.
    pub(crate) fn read(text: &str) -> Option<Self> {
        let lines: Vec<(&str, &str)> =
            text.lines().map(|line| line.split_once(' ').unwrap_or((line, ""))).collect();
        if lines.last() != Some(&("looked", "")) {
            return None;
        }
        let of = |name: &str| lines.iter().find(|(found, _)| *found == name).map(|(_, v)| *v);
        let has = |tool: &str| lines.contains(&("tool", tool));
        Some(Self {
            canary_answered: match of("egress") {
                Some("open") => Some(true),
                Some("denied") => Some(false),
                _ => None,
            },
            // A limit beyond any machine means that there is none.
            memory_bytes: of("memory").and_then(|v| v.parse().ok()).filter(|v| *v < 1 << 60),
            machine_bytes: of("memtotal").and_then(|v| v.parse::<u64>().ok()).map(|kb| kb * 1024),
            missing: TOOLS.into_iter().filter(|tool| !has(tool)).collect(),
            is_writable: of("write") == Some("held"),
            environment: (of("variables") == Some("tried")).then(|| left_variables(&lines)),
        })
    }
}

/// Returns the variables that were still there, but for those shells set by themselves.
fn left_variables(lines: &[(&str, &str)]) -> Vec<String> {
    let named = lines.iter().filter(|(name, _)| *name == "variable").map(|(_, value)| *value);
    named.filter(|name| !OF_SHELLS.contains(name)).map(str::to_owned).collect()
}

/// Why a step of ours inside did not give its result.
#[derive(Debug)]
pub(crate) enum StepFailed {
    /// The wire failed.
    Wire(WireError),
    /// It ran and failed, and said this.
    Exited(u8, String),
    /// Nobody saw how it ended.
    Unobserved,
}

/// How long a step of ours may take.
const STEP_TIME: Duration = Duration::from_secs(60);
const MOST_STEP_OUTPUT: usize = 64 << 10;

/// Runs a step of ours and returns what it said on standard output.
pub(crate) fn step(
    adapter: &dyn Adapter,
    at: Reached<'_>,
    line: &str,
) -> Result<String, StepFailed> {
    let start =
        Start { line: line.to_owned(), env: Vec::new(), timeout: STEP_TIME, has_input: false };
    let started = adapter.start(at, &start);
    let mut running = started.map_err(|error| match error {
        NotStarted::Refused(error) => StepFailed::Wire(error),
        NotStarted::Ambiguous => StepFailed::Unobserved,
    })?;
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let until = std::time::Instant::now() + STEP_TIME;
    while std::time::Instant::now() < until {
        match running.next(at.wire, Duration::from_millis(200)) {
            Said::Output(stream, bytes) => {
                let kept = if stream == Stream::Stdout { &mut out } else { &mut err };
                if kept.len() < MOST_STEP_OUTPUT {
                    kept.extend_from_slice(&bytes);
                }
            }
            Said::Exited(0) => return Ok(String::from_utf8_lossy(&out).into_owned()),
            Said::Exited(code) => {
                let said = String::from_utf8_lossy(&err).chars().take(200).collect();
                return Err(StepFailed::Exited(code, said));
            }
            Said::Started | Said::Nothing => {}
            Said::Refused(code) => return Err(StepFailed::Exited(126, code)),
            Said::Signaled(_) | Said::Lost => return Err(StepFailed::Unobserved),
        }
    }
    Err(StepFailed::Unobserved)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::EnvValue;

    #[test]
    fn a_line_keeps_words_and_only_the_named_variables() {
        let command = Command::Argv {
            program: "sh".into(),
            args: vec!["-c".into(), "echo \"$A|${B-none}|it's\"; pwd; cat".into()],
        };
        let variable = |name: &str| EnvVar {
            name: name.into(),
            value: EnvValue::Plain("never in the line".into()),
        };
        let env = [variable("PATH"), variable("A")];
        let line = program_line((&command, &env), "/usr", Source::Nothing);
        assert!(!line.contains("never"));
        let output = std::process::Command::new("sh")
            .args(["-c", &line])
            .env("A", "one two")
            .env("B", "leaks")
            .output()
            .unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap(), "one two|none|it's\n/usr\n");
    }

    #[test]
    fn a_look_around_is_read_only_when_it_is_whole() {
        let output =
            std::process::Command::new("sh").args(["-c", &look_line(None)]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let look = Look::read(&text).unwrap();
        assert_eq!((look.missing.len(), look.canary_answered), (0, None));
        assert!(look.is_writable && look.machine_bytes.is_some());
        assert_eq!(look.environment, Some(Vec::new()), "every variable can be taken away here");
        let left = text.replace("variables tried", "variable WARRANT_PLANTED\nvariables tried");
        let left = Look::read(&left).unwrap().environment;
        assert_eq!(left, Some(vec!["WARRANT_PLANTED".to_owned()]));
        let silent = Look::read(&text.replace("variables tried\n", "")).unwrap();
        assert_eq!(silent.environment, None, "nobody looked");
        assert_eq!(Look::read(text.trim_end().trim_end_matches("looked")), None);
    }

    #[test]
    fn a_canary_that_answers_is_seen() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            std::io::Write::write_all(&mut stream, b"HTTP/1.0 200 OK\r\n\r\n").unwrap();
        });
        let line = look_line(Some(&address));
        let output = std::process::Command::new("sh").args(["-c", &line]).output().unwrap();
        let look = Look::read(&String::from_utf8(output.stdout).unwrap()).unwrap();
        assert_eq!(look.canary_answered, Some(true));
        server.join().unwrap();
        // Nobody listens there any more.
        let output = std::process::Command::new("sh").args(["-c", &line]).output().unwrap();
        let look = Look::read(&String::from_utf8(output.stdout).unwrap()).unwrap();
        assert_eq!(look.canary_answered, Some(false));
    }
}
