//! Which functions a governed exec calls: the list that puts them beside each other in the binary.
//!
//! A breakpoint stands at every function. The first call of each is noted, and its breakpoint
//! taken away, so that a run takes a second and not an hour. The list is read by the build script
//! of `cli`; a name that a later build does not have is passed over there, so an old list is
//! slower and never wrong.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use nix::sys::ptrace::{self, Event, Options};
use nix::sys::signal::{self, Signal};
use nix::sys::wait::{self, WaitPidFlag, WaitStatus};
use nix::unistd::Pid;

/// Where the list is kept.
const LIST: &str = "crates/cli/link.order";
/// `int3`.
const BREAKPOINT: u8 = 0xcc;
/// What is run. The shell waits to be traced before it becomes the binary.
const TRACED: &str = r#"kill -STOP $$; exec "$@""#;
/// How often the binary runs before it is watched: the first run sets up, the second learns the
/// policy, and neither is what people wait for every day.
const WARM: usize = 3;

fn main() -> ExitCode {
    let binaries: Vec<String> = std::env::args().skip(1).collect();
    if binaries.is_empty() {
        eprintln!("usage, from the root of the repository: warrant-order BINARY…");
        return ExitCode::from(2);
    }
    match write(&binaries) {
        Ok(said) => {
            println!("{said}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("warrant-order: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Writes the list anew from release binaries that were linked at a fixed address.
///
/// Features are unified per selection of packages, and names follow features: give one binary for
/// each way of building that should be fast.
///
/// # Errors
///
/// A binary that does not run, or has no symbols; what the kernel said.
fn write(binaries: &[String]) -> Result<String, String> {
    let mut names = Vec::new();
    let mut seen = BTreeSet::new();
    for binary in binaries {
        let functions = functions_of(binary)?;
        for at in calls(binary, &functions)? {
            let here = functions.get(&at).into_iter().flatten();
            names.extend(here.filter(|name| seen.insert((*name).clone())).cloned());
        }
    }
    if names.is_empty() {
        return Err("no call was seen: is the binary linked at a fixed address?".to_owned());
    }
    fs::write(LIST, names.join("\n") + "\n").map_err(|error| format!("{LIST}: {error}"))?;
    Ok(format!("{LIST}: {} names", names.len()))
}

/// Address of each function, with all its names.
fn functions_of(binary: &str) -> Result<BTreeMap<u64, Vec<String>>, String> {
    let said = Command::new("nm")
        .args(["--defined-only", "--print-size", binary])
        .output()
        .map_err(|error| format!("nm: {error}"))?;
    let mut functions: BTreeMap<u64, Vec<String>> = BTreeMap::new();
    for line in String::from_utf8_lossy(&said.stdout).lines() {
        let mut words = line.split_whitespace();
        if let (Some(at), Some(_size), Some("t" | "T" | "w" | "W"), Some(name)) =
            (words.next(), words.next(), words.next(), words.next())
            && let Ok(at) = u64::from_str_radix(at, 16)
        {
            functions.entry(at).or_default().push(name.to_owned());
        }
    }
    Ok(functions)
}

/// The functions called by a governed `true`, in the order of their first call.
fn calls(binary: &str, functions: &BTreeMap<u64, Vec<String>>) -> Result<Vec<u64>, String> {
    let binary = fs::canonicalize(binary).map_err(|error| format!("{binary}: {error}"))?;
    let home = std::env::temp_dir().join(format!("warrant-order-{}", std::process::id()));
    fs::create_dir_all(&home).map_err(|error| error.to_string())?;
    let watched = (0..WARM)
        .try_for_each(|_| run_once(&binary, &home))
        .and_then(|()| watch(&binary, &home, functions).map_err(|error| error.to_string()));
    fs::remove_dir_all(&home).map_err(|error| error.to_string())?;
    watched
}

fn run_once(binary: &Path, home: &Path) -> Result<(), String> {
    let ended = governed(Command::new(binary), home)
        .status()
        .map_err(|error| format!("{}: {error}", binary.display()))?;
    if ended.success() { Ok(()) } else { Err(format!("{} ended with {ended}", binary.display())) }
}

fn governed(mut command: Command, home: &Path) -> Command {
    command
        .args(["sandbox", "exec", "--", "true"])
        .current_dir(home)
        .env("WARRANT_HOME", home.join("home"))
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command
}

fn watch(
    binary: &Path,
    home: &Path,
    functions: &BTreeMap<u64, Vec<String>>,
) -> io::Result<Vec<u64>> {
    let mut shell = Command::new("sh");
    shell.args(["-c", TRACED, "sh"]).arg(binary);
    let child = governed(shell, home).spawn()?;
    let root = Pid::from_raw(i32::try_from(child.id()).map_err(io::Error::other)?);
    wait::waitpid(root, Some(WaitPidFlag::WUNTRACED))?;
    let family = Options::PTRACE_O_TRACECLONE
        | Options::PTRACE_O_TRACEFORK
        | Options::PTRACE_O_TRACEVFORK
        | Options::PTRACE_O_TRACEEXEC
        | Options::PTRACE_O_EXITKILL;
    ptrace::seize(root, family)?;
    signal::kill(root, Signal::SIGCONT)?;
    let mut watch = Watch { root, functions, bytes: BTreeMap::new(), called: Vec::new() };
    loop {
        match wait::waitpid(None::<Pid>, Some(WaitPidFlag::__WALL)) {
            Ok(status) => watch.answer(status)?,
            Err(nix::Error::ECHILD) => return Ok(watch.called),
            Err(error) => return Err(error.into()),
        }
    }
}

/// One watched run.
struct Watch<'a> {
    root: Pid,
    functions: &'a BTreeMap<u64, Vec<String>>,
    /// What stood where the breakpoints stand.
    bytes: BTreeMap<u64, u8>,
    called: Vec<u64>,
}

impl Watch<'_> {
    fn answer(&mut self, status: WaitStatus) -> io::Result<()> {
        match status {
            WaitStatus::PtraceEvent(pid, _, event) if event == Event::PTRACE_EVENT_EXEC as i32 => {
                if pid == self.root && self.bytes.is_empty() {
                    self.plant(pid)?;
                    ptrace::cont(pid, None)?;
                } else {
                    ptrace::detach(pid, None)?;
                }
            }
            WaitStatus::PtraceEvent(pid, ..) => ptrace::cont(pid, None)?,
            WaitStatus::Stopped(pid, Signal::SIGTRAP) => self.called(pid)?,
            WaitStatus::Stopped(pid, signal) => ptrace::cont(pid, signal)?,
            _ => {}
        }
        Ok(())
    }

    fn plant(&mut self, pid: Pid) -> io::Result<()> {
        let memory = memory_of(pid)?;
        for &at in self.functions.keys() {
            let mut byte = [0];
            if memory.read_exact_at(&mut byte, at).is_ok() {
                memory.write_all_at(&[BREAKPOINT], at)?;
                let [byte] = byte;
                self.bytes.insert(at, byte);
            }
        }
        Ok(())
    }

    /// A process that has a copy of the memory has a copy of the breakpoints, and is answered too.
    fn called(&mut self, pid: Pid) -> io::Result<()> {
        let mut registers = ptrace::getregs(pid)?;
        let at = registers.rip.wrapping_sub(1);
        if let Some(&byte) = self.bytes.get(&at) {
            memory_of(pid)?.write_all_at(&[byte], at)?;
            registers.rip = at;
            ptrace::setregs(pid, registers)?;
            if !self.called.contains(&at) {
                self.called.push(at);
            }
        }
        ptrace::cont(pid, None)?;
        Ok(())
    }
}

fn memory_of(pid: Pid) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(format!("/proc/{pid}/mem"))
}
