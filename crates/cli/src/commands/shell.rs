//! `warrant shell`: a prompt for a person, where every line is one governed run in the workspace.
//!
//! It is a loop around `warrant sandbox exec`: the same judge, boundary, receipt and words.

use std::io::{self, BufRead as _, IsTerminal as _, Read as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use signal_hook::consts::SIGINT;
use signal_hook::low_level::pipe;
use warrant_govern::keep::{KEPT_CHANGES, open_journal};
use warrant_govern::{Desk, script_shell};
use warrant_protocol::RunId;
use warrant_workspace::{ChangeId, Changed, TreePath, UndoError};

use super::{exec, pulling, reading, verify};
use crate::args::{Exec, Log, Shell, Verify};
use crate::exit::{Exit, Misuse};
use crate::ui;

const HELP: &str = "\
every line is one governed run; a line may be any shell script
  cd DIR    go below the workspace      undo      put back what the last line changed
  diff      what the last line changed  receipt   what the last line did, verified
  policy    what is allowed here        exit      leave (or end of file)";

/// Reads lines until there are no more; the last line's exit code is ours.
pub(crate) fn run(home: Option<&Path>, arguments: &Shell) -> anyhow::Result<Exit> {
    let workspace = std::fs::canonicalize(&arguments.workspace)
        .with_context(|| format!("--workspace: nothing at {}", arguments.workspace.display()))
        .map_err(Misuse::of)?;
    std::env::set_current_dir(&workspace).context("the workspace cannot be entered")?;
    let mut session = Session {
        home,
        arguments,
        workspace,
        is_person: io::stdin().is_terminal(),
        last: None,
        kept: Vec::new(),
    };
    if session.is_person {
        ui::note(&format!(
            "governed session in {}; `help` says what there is",
            session.workspace.display()
        ));
    }
    let interrupt = if session.is_person { Some(Interrupt::listen()?) } else { None };
    let mut last = Exit::Success;
    loop {
        if let Some(interrupt) = &interrupt {
            // Those of earlier lines count for nothing.
            interrupt.forget();
        }
        session.prompt();
        let mut line = String::new();
        if let Some(interrupt) = &interrupt
            && interrupt.came_first().context("no line")?
        {
            ui::prompt("\n");
            continue;
        }
        let read = io::stdin().lock().read_line(&mut line).context("no line")?;
        if read == 0 {
            return Ok(last);
        }
        last = match session.line(line.trim()) {
            Ok(Some(exit)) => exit,
            Ok(None) => return Ok(last),
            Err(error) => {
                ui::error(&error);
                Exit::Failure
            }
        };
    }
}

/// The person's Ctrl-C at the prompt, which throws the line away; the terminal has forgotten what
/// was typed by then.
struct Interrupt(UnixStream);

impl Interrupt {
    fn listen() -> anyhow::Result<Self> {
        let (heard, bell) = UnixStream::pair().context("no descriptor for signals")?;
        heard.set_nonblocking(true).context("no descriptor for signals")?;
        pipe::register(SIGINT, bell).context("signals cannot be watched")?;
        Ok(Self(heard))
    }

    /// Waits for a line or for Ctrl-C, and returns whether it was that.
    fn came_first(&self) -> io::Result<bool> {
        let stdin = io::stdin();
        loop {
            let mut both =
                [PollFd::new(&self.0, PollFlags::IN), PollFd::new(&stdin, PollFlags::IN)];
            match poll(&mut both, None) {
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(errno.into()),
                Ok(_) => {}
            }
            let [heard, _] = &both;
            return Ok(!heard.revents().is_empty());
        }
    }

    fn forget(&self) {
        // An error means that nothing is left to be read.
        while (&self.0).read(&mut [0; 64]).is_ok_and(|read| read > 0) {}
    }
}

struct Session<'a> {
    home: Option<&'a Path>,
    arguments: &'a Shell,
    workspace: PathBuf,
    is_person: bool,
    /// The run of the last line that was one. Other processes of the same home run meanwhile.
    last: Option<RunId>,
    /// What lines of this session changed, as far as it is not undone.
    kept: Vec<ChangeId>,
}

impl Session<'_> {
    fn prompt(&self) {
        if !self.is_person {
            return;
        }
        let here = std::env::current_dir().unwrap_or_else(|_| self.workspace.clone());
        let name = here.file_name().map(|name| name.to_string_lossy().into_owned());
        ui::prompt(&format!("warrant {}> ", ui::printable(&name.unwrap_or_default())));
    }

    /// Carries out one line; nothing means the end.
    fn line(&mut self, line: &str) -> anyhow::Result<Option<Exit>> {
        let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        Ok(Some(match (word, rest.trim()) {
            ("", _) => Exit::Success,
            ("exit", "") => return Ok(None),
            ("help", "") => {
                ui::note(HELP);
                Exit::Success
            }
            ("cd", directory) if !directory.contains([';', '&', '|', '$', '`', '\'', '"']) => {
                self.change_directory(directory)?
            }
            ("undo", "") => self.undo()?,
            ("diff", "") => {
                let log = Log { run: self.last_run()?, json: self.arguments.json, raw: false };
                reading::diff(Desk::open(self.home)?.plane().records(), &log)?
            }
            ("receipt", "") => {
                let run = self.last_run()?;
                let (trust, more_trust) = (Vec::new(), Vec::new());
                let json = self.arguments.json;
                let verify = Verify { subject: run.into(), trust, more_trust, json };
                verify::receipt(self.home, &|| Ok(None), &verify)?
            }
            ("policy", "") => {
                let show = crate::args::Policy::Show { json: self.arguments.json };
                super::policy::run(&Desk::open(self.home)?, show)?
            }
            _ => self.run(line),
        }))
    }

    fn run(&mut self, line: &str) -> Exit {
        let (exit, trace) = exec::run_in_session(self.home, &self.exec(line));
        self.last = trace.run;
        self.kept.extend(trace.change);
        exit
    }

    /// Takes back what the last line of this session changed that changed something.
    fn undo(&mut self) -> anyhow::Result<Exit> {
        let desk = Desk::open(self.home)?;
        let (journal, _) = open_journal(&desk, &self.workspace)?;
        let names = |paths: &[TreePath]| -> String {
            let names: Vec<String> =
                paths.iter().map(|path| ui::printable(&path.to_string())).collect();
            names.join(", ")
        };
        match journal.undo_of(&self.workspace, &self.kept, Changed::Refuse) {
            Ok((change, undone)) => {
                // It is undone, whether or not its record gets smaller.
                let _ = journal.tidy(KEPT_CHANGES);
                self.kept.retain(|kept| *kept != change);
                Ok(pulling::tell_undone(&undone, self.arguments.json))
            }
            Err(UndoError::Nothing) => bail!("no line of this session left a change to undo"),
            Err(UndoError::Changed { paths, .. }) => bail!(
                "these files changed since, and undo would lose that (warrant undo --force does \
                 it): {}",
                names(&paths)
            ),
            Err(UndoError::Theirs { paths, .. }) => bail!(
                "these files were changed since by others; warrant undo takes that back first: {}",
                names(&paths)
            ),
            Err(error) => Err(error.into()),
        }
    }

    fn exec(&self, line: &str) -> Exec {
        let argv = [script_shell().as_str(), "-c", line].map(str::to_owned);
        let has_terminal = self.is_person && io::stdout().is_terminal() && !self.arguments.json;
        Exec {
            provider: self.arguments.provider.clone(),
            allow_hosts: self.arguments.allow_hosts.clone(),
            mode: "workspace-rollback".to_owned(),
            on_failure: "keep".to_owned(),
            workspace: Some(self.workspace.clone()),
            tty: has_terminal,
            reads_nothing: !self.is_person,
            dry_run: false,
            json: self.arguments.json,
            ..Exec::plain(&argv)
        }
    }

    fn change_directory(&self, directory: &str) -> anyhow::Result<Exit> {
        let wanted =
            if directory.is_empty() { self.workspace.as_path() } else { Path::new(directory) };
        let real = std::fs::canonicalize(wanted)
            .with_context(|| format!("no directory {}", wanted.display()))?;
        if !real.starts_with(&self.workspace) {
            bail!("{} lies outside the workspace", real.display());
        }
        std::env::set_current_dir(&real)
            .with_context(|| format!("{} cannot be entered", real.display()))?;
        Ok(Exit::Success)
    }

    fn last_run(&self) -> anyhow::Result<String> {
        let last = self.last.as_ref();
        Ok(last.context("the last line of this session left no run")?.to_string())
    }
}
