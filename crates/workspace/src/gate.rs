//! The gate on the way home: names of files that something executes later, by itself.
//!
//! An agent may write a program; that is its work. What it must not do unseen is write a file
//! that runs without anybody starting it: when a directory is entered, an editor opened, a commit
//! made, a package installed, a branch pushed. Build files (`Makefile`, `build.rs`) run only when
//! the person builds, which is what the change was asked for; they are named and not held.

use warrant_protocol::glob::matches_pattern;

use crate::TreePath;
use crate::path::is_git_name;

/// Why a file will execute later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum GateClass {
    /// A hook of a git directory.
    GitHook,
    /// What decides how git behaves: config, attributes, alternates, a `.git` file.
    GitConfig,
    /// Anything else inside a git directory: index, refs, objects.
    GitState,
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
    /// Runs when a shell starts.
    ShellStartup,
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
            GateClass::GitState => self.git_state,
            GateClass::HookRunner
            | GateClass::DirectoryEnvironment
            | GateClass::EditorTask
            | GateClass::AgentConfig
            | GateClass::ShellStartup => self.automatic,
            GateClass::Ci => self.ci,
            GateClass::PackageScript | GateClass::GitAttributes => self.packages,
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

/// Returns why a file of this name executes later, if it does.
///
/// Case does not count: the disk the file ends on may fold it.
#[must_use]
pub fn classify(path: &TreePath) -> Option<GateClass> {
    if path.git_part().is_some() {
        return Some(classify_git(path));
    }
    let folded = String::from_utf8_lossy(path.as_bytes()).to_lowercase();
    let segments: Vec<&str> = folded.split('/').collect();
    let (name, above) = segments.split_last()?;
    directory_class(above, name).or_else(|| name_class(name))
}

/// Judges a path inside a git directory.
fn classify_git(path: &TreePath) -> GateClass {
    let segments: Vec<Vec<u8>> =
        path.segments().map(|segment| segment.to_ascii_lowercase()).collect();
    let top = segments.iter().position(|segment| is_git_name(segment)).unwrap_or(0);
    let inside: Vec<&[u8]> = segments.iter().skip(top + 1).map(Vec::as_slice).collect();
    if top > 0 {
        return GateClass::NewRepository;
    }
    let is_config = |name: &&[u8]| {
        matches!(
            *name,
            b"config" | b"config.worktree" | b"attributes" | b"alternates" | b"commondir"
        ) || matches!(*name, b"gitdir" | b"grafts" | b"http-alternates")
    };
    match inside.as_slice() {
        [] => GateClass::GitConfig,
        segments if segments.contains(&b"hooks".as_slice()) => GateClass::GitHook,
        [.., last] if is_config(last) => GateClass::GitConfig,
        _ => GateClass::GitState,
    }
}

fn directory_class(above: &[&str], name: &str) -> Option<GateClass> {
    let within = |directory: &str| above.contains(&directory);
    let pair = |first: &str, second: &str| above.windows(2).any(|pair| pair == [first, second]);
    if within(".husky") || within(".githooks") || within(".lefthook") {
        return Some(GateClass::HookRunner);
    }
    let editors = [".vscode", ".idea", ".devcontainer", ".zed", ".fleet", ".vim", ".nvim"];
    if editors.iter().any(|directory| within(directory)) {
        return Some(GateClass::EditorTask);
    }
    if [".claude", ".cursor", ".codex", ".gemini", ".opencode"].iter().any(|name| within(name)) {
        return Some(GateClass::AgentConfig);
    }
    let ci = [".circleci", ".buildkite", ".gitlab", ".woodpecker", ".gitea", ".forgejo", ".ci"];
    if pair(".github", "workflows")
        || pair(".github", "actions")
        || ci.iter().any(|name| within(name))
    {
        return Some(GateClass::Ci);
    }
    if within(".cargo") && matches!(name, "config" | "config.toml") {
        return Some(GateClass::PackageScript);
    }
    None
}

fn name_class(name: &str) -> Option<GateClass> {
    let ends = |end: &str| name.ends_with(end);
    Some(match name {
        ".envrc" | ".mise.toml" | "mise.toml" | ".tool-versions" | ".autoenv" | ".autoenv.zsh" => {
            GateClass::DirectoryEnvironment
        }
        ".exrc" | ".vimrc" | ".nvimrc" | ".nvim.lua" | ".dir-locals.el" | ".lvimrc" => {
            GateClass::EditorTask
        }
        ".devcontainer.json" => GateClass::EditorTask,
        _ if ends(".code-workspace") || ends(".sublime-project") => GateClass::EditorTask,
        ".mcp.json" | "mcp.json" => GateClass::AgentConfig,
        ".pre-commit-config.yaml"
        | ".pre-commit-config.yml"
        | "lefthook.yml"
        | "lefthook.yaml"
        | ".lefthook.yml"
        | ".huskyrc"
        | ".huskyrc.json"
        | ".overcommit.yml" => GateClass::HookRunner,
        ".bashrc" | ".bash_profile" | ".bash_login" | ".bash_logout" | ".bash_aliases"
        | ".profile" | ".zshrc" | ".zshenv" | ".zprofile" | ".zlogin" | ".zlogout" | ".kshrc"
        | ".cshrc" | ".tcshrc" | ".login" | ".logout" | ".inputrc" | ".xprofile" | ".xinitrc"
        | "config.fish" => GateClass::ShellStartup,
        ".gitlab-ci.yml"
        | ".gitlab-ci.yaml"
        | "jenkinsfile"
        | "azure-pipelines.yml"
        | "azure-pipelines.yaml"
        | ".travis.yml"
        | ".drone.yml"
        | "bitbucket-pipelines.yml"
        | ".woodpecker.yml"
        | ".woodpecker.yaml"
        | "appveyor.yml"
        | ".appveyor.yml"
        | ".cirrus.yml"
        | "cloudbuild.yaml"
        | ".semaphore" => GateClass::Ci,
        "package.json"
        | ".npmrc"
        | ".yarnrc"
        | ".yarnrc.yml"
        | ".pnp.cjs"
        | ".pnp.loader.mjs"
        | ".pnpmfile.cjs"
        | "pnpm-workspace.yaml"
        | "setup.py"
        | "setup.cfg"
        | "conftest.py"
        | "sitecustomize.py"
        | "usercustomize.py"
        | "composer.json"
        | "gemfile"
        | ".bundle"
        | "pip.conf"
        | "extconf.rb"
        | "binding.gyp"
        | "deno.json"
        | "bunfig.toml" => GateClass::PackageScript,
        _ if ends(".pth") || ends(".gemspec") => GateClass::PackageScript,
        "makefile" | "gnumakefile" | "justfile" | "rakefile" | "build.rs" | "build.gradle"
        | "build.gradle.kts" | "settings.gradle" | "cmakelists.txt" | "dockerfile"
        | "meson.build" | "taskfile.yml" | "gulpfile.js" | "gruntfile.js" | "pyproject.toml" => {
            GateClass::BuildScript
        }
        ".gitattributes" | ".gitmodules" => GateClass::GitAttributes,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(path: &str, expected: Option<GateClass>) {
        assert_eq!(classify(&TreePath::new(path).unwrap()), expected, "{path}");
    }

    #[test]
    fn names_that_execute_later_are_known_at_any_depth() {
        use GateClass::{
            AgentConfig, BuildScript, Ci, DirectoryEnvironment, EditorTask, GitAttributes,
            GitConfig, GitHook, GitState, HookRunner, NewRepository, PackageScript, ShellStartup,
        };
        for (path, expected) in [
            (".git/hooks/pre-commit", GitHook),
            (".git/modules/sub/hooks/post-checkout", GitHook),
            (".GIT/config", GitConfig),
            (".git/info/attributes", GitConfig),
            (".git/objects/info/alternates", GitConfig),
            (".git", GitConfig),
            (".git/index", GitState),
            ("vendor/lib/.git/config", NewRepository),
            ("a/b/.envrc", DirectoryEnvironment),
            (".ENVRC", DirectoryEnvironment),
            (".vscode/tasks.json", EditorTask),
            ("web/.idea/runConfigurations/x.xml", EditorTask),
            (".github/workflows/ci.yml", Ci),
            ("Jenkinsfile", Ci),
            ("web/package.json", PackageScript),
            (".bashrc", ShellStartup),
            (".husky/pre-commit", HookRunner),
            (".claude/settings.json", AgentConfig),
            ("Makefile", BuildScript),
            ("x/.gitattributes", GitAttributes),
        ] {
            check(path, Some(expected));
        }
        for path in ["src/main.rs", "README.md", "hooks/pre-commit", "vscode/tasks.json", "config"]
        {
            check(path, None);
        }
    }
}
