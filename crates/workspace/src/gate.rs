//! The gate on the way home: names of files that something executes later, by itself.
//!
//! An agent may write a program; that is its work. What it must not do unseen is write a file
//! that runs without anybody starting it: when a directory is entered, an editor opened, a commit
//! made, a package installed, a branch pushed. Build files (`Makefile`, `build.rs`) run only when
//! the person builds, which is what the change was asked for; they are named and not held.

mod links;
mod names;

use warrant_protocol::glob::matches_pattern;

use crate::TreePath;

pub(crate) use links::link_class;
pub use names::classify;

/// Why a file will execute later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum GateClass {
    /// A hook of a git directory.
    GitHook,
    /// What decides how git behaves: config, attributes, alternates, a `.git` file.
    GitConfig,
    /// Anything else inside a git directory: index, refs, objects.
    GitState,
    /// A reference that is never taken over: a replacement, a link, a name that is none.
    GitRef,
    /// A repository that was not there: nested, or bare.
    NewRepository,
    /// A hook runner's or package's commit hooks: `.husky`, `.pre-commit-config.yaml`.
    HookRunner,
    /// Runs when a directory is entered: `.envrc`.
    DirectoryEnvironment,
    /// Runs when an editor or development container opens the folder.
    EditorTask,
    /// Runs when an agent or its tools start here.
    AgentConfig,
    /// Steers an agent that reads it: `AGENTS.md`, `CLAUDE.md`, `.cursorrules`.
    AgentInstructions,
    /// Runs when a shell starts.
    ShellStartup,
    /// Runs when a debugger starts: `.gdbinit`.
    DebuggerStartup,
    /// What decides how another version control system behaves: `.hg/hgrc`, `.jj/repo/config.toml`.
    VersionControlConfig,
    /// A program that tools start instead of the installed one: `.venv/bin/python`.
    LocalProgram,
    /// A link that leads out of the workspace.
    OutwardLink,
    /// A link to a program or library of the system.
    SystemLink,
    /// Runs on somebody's machine when a branch is pushed.
    Ci,
    /// May run when packages are installed or loaded.
    PackageScript,
    /// Runs when the person builds.
    BuildScript,
    /// Chooses filters and drivers that are configured elsewhere: `.gitattributes`, `.gitmodules`.
    GitAttributes,
    /// A name that the policy lists, whatever runs it.
    Listed,
}

impl GateClass {
    /// Returns the name used in records.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::GitHook => "git-hook",
            Self::GitConfig => "git-config",
            Self::GitState => "git-state",
            Self::GitRef => "git-ref",
            Self::NewRepository => "new-repository",
            Self::HookRunner => "hook-runner",
            Self::DirectoryEnvironment => "directory-environment",
            Self::EditorTask => "editor-task",
            Self::AgentConfig => "agent-config",
            Self::AgentInstructions => "agent-instructions",
            Self::ShellStartup => "shell-startup",
            Self::DebuggerStartup => "debugger-startup",
            Self::VersionControlConfig => "version-control-config",
            Self::LocalProgram => "local-program",
            Self::OutwardLink => "outward-link",
            Self::SystemLink => "system-link",
            Self::Ci => "ci",
            Self::PackageScript => "package-script",
            Self::BuildScript => "build-script",
            Self::GitAttributes => "git-attributes",
            Self::Listed => "listed",
        }
    }
}

impl GateClass {
    /// Returns why such a path is not written back, for people: "it …".
    #[must_use]
    pub const fn reason(self) -> &'static str {
        match self {
            Self::GitHook => "would run on your machine at the next git command",
            Self::GitConfig => "decides what git runs on your machine",
            Self::GitState => "is git state that is not taken over",
            Self::GitRef => "is not a reference that is taken over",
            Self::NewRepository => "is a new repository, whose config could run programs here",
            Self::HookRunner => "runs at the next commit",
            Self::DirectoryEnvironment => "runs when the directory is entered",
            Self::EditorTask => "may run when an editor opens the folder",
            Self::AgentConfig => "may run when an agent starts here",
            Self::AgentInstructions => "steers the agents that read it",
            Self::ShellStartup => "runs when a shell starts",
            Self::DebuggerStartup => "runs when a debugger starts",
            Self::VersionControlConfig => "decides what version control runs here",
            Self::LocalProgram => "is started by tools instead of the installed program",
            Self::OutwardLink => "is a link that leads out of the workspace",
            Self::SystemLink => "is a link to a file of the system",
            Self::Ci => "runs on a build machine once it is pushed",
            Self::PackageScript => "may run when packages are installed",
            Self::BuildScript => "runs when the project is built",
            Self::GitAttributes => "chooses filters that git runs",
            Self::Listed => "is on a list of the policy",
        }
    }
}

/// What policy says of one class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// It is exported, and named to the person.
    Flag,
    /// It stays outside until the person releases it by name.
    Hold,
    /// It is never exported.
    Refuse,
}

/// Names of which policy says by itself what becomes of them, as globs: one with a slash against
/// the whole path, one without against the file name. Case does not count.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GateLists {
    /// Exported, and named to the person.
    pub flag: Vec<String>,
    /// Kept outside until the person releases them.
    pub hold: Vec<String>,
    /// Never exported.
    pub refuse: Vec<String>,
}

/// What policy says of every class; there is no default.
#[derive(Debug, Clone)]
pub struct GatePolicy {
    /// Hooks and config of git directories, and new repositories.
    pub git: Verdict,
    /// Other content of git directories.
    pub git_state: Verdict,
    /// Whatever runs by itself on this machine: directory, editor, agent, shell, commit hooks.
    pub automatic: Verdict,
    /// Whatever runs on somebody's machine later: CI.
    pub ci: Verdict,
    /// Package manifests and attributes, which may bring something that runs.
    pub packages: Verdict,
    /// Build files.
    pub builds: Verdict,
    /// Names with a verdict of their own, which counts instead of their class's.
    pub lists: GateLists,
}

impl GatePolicy {
    /// Returns what we advise: git's own files never, what runs by itself only when released.
    #[must_use]
    pub const fn advised() -> Self {
        Self {
            lists: GateLists { flag: Vec::new(), hold: Vec::new(), refuse: Vec::new() },
            git: Verdict::Refuse,
            git_state: Verdict::Refuse,
            automatic: Verdict::Hold,
            ci: Verdict::Hold,
            packages: Verdict::Flag,
            builds: Verdict::Flag,
        }
    }

    /// Returns the advised policy with names that have a verdict of their own.
    #[must_use]
    pub fn with_lists(lists: GateLists) -> Self {
        Self { lists, ..Self::advised() }
    }

    /// Returns what this policy says of a path whose class is known, if it says anything.
    ///
    /// Of several lists the strictest counts. Git's own files are never let out by a list: what
    /// lies in them would run on the host.
    #[must_use]
    pub fn judge(&self, path: &TreePath, class: Option<GateClass>) -> Option<(GateClass, Verdict)> {
        let by_class = class.map(|class| (class, self.verdict(class)));
        let is_git = matches!(
            class,
            Some(
                GateClass::GitHook
                    | GateClass::GitConfig
                    | GateClass::GitState
                    | GateClass::GitRef
                    | GateClass::NewRepository
            )
        );
        match (self.lists.verdict(path), by_class) {
            (Some(listed), Some((class, verdict))) if is_git => Some((class, listed.max(verdict))),
            (Some(listed), _) => Some((class.unwrap_or(GateClass::Listed), listed)),
            (None, by_class) => by_class,
        }
    }

    /// Returns what this policy says of a class.
    #[must_use]
    pub const fn verdict(&self, class: GateClass) -> Verdict {
        match class {
            GateClass::GitHook | GateClass::GitConfig | GateClass::NewRepository => self.git,
            GateClass::GitState | GateClass::GitRef => self.git_state,
            GateClass::HookRunner
            | GateClass::DirectoryEnvironment
            | GateClass::EditorTask
            | GateClass::AgentConfig
            | GateClass::ShellStartup
            | GateClass::DebuggerStartup
            | GateClass::VersionControlConfig
            | GateClass::OutwardLink => self.automatic,
            GateClass::Ci => self.ci,
            GateClass::PackageScript
            | GateClass::GitAttributes
            | GateClass::AgentInstructions
            | GateClass::LocalProgram
            | GateClass::SystemLink => self.packages,
            GateClass::BuildScript => self.builds,
            // Its list decides; without one nobody says that it may go.
            GateClass::Listed => Verdict::Hold,
        }
    }
}

impl GateLists {
    /// Returns the strictest verdict of the lists that name a path.
    fn verdict(&self, path: &TreePath) -> Option<Verdict> {
        let folded = String::from_utf8_lossy(path.as_bytes()).to_lowercase();
        // A pattern too complex to be tried keeps things in, and lets nothing out.
        let names = |list: &[String], in_doubt: bool| {
            list.iter()
                .any(|glob| matches_pattern(&folded, &glob.to_lowercase()).unwrap_or(in_doubt))
        };
        if names(&self.refuse, true) {
            Some(Verdict::Refuse)
        } else if names(&self.hold, true) {
            Some(Verdict::Hold)
        } else if names(&self.flag, false) {
            Some(Verdict::Flag)
        } else {
            None
        }
    }
}
