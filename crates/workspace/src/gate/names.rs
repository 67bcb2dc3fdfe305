//! Names of files that something executes later, by itself, or that steer an agent.

use super::GateClass;
use crate::TreePath;
use crate::path::is_git_name;

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
    directory_class(above, name).or_else(|| name_class(name)).or_else(|| agent_class(above, name))
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
    let agents = [
        ".claude",
        ".cursor",
        ".codex",
        ".gemini",
        ".opencode",
        ".windsurf",
        ".kiro",
        ".continue",
        ".roo",
        ".cline",
        ".junie",
        ".amazonq",
        ".augment",
        ".goose",
        ".aider",
    ];
    if agents.iter().any(|directory| within(directory)) {
        return Some(GateClass::AgentConfig);
    }
    if within(".hg") || within(".jj") || within(".svn") || within(".bzr") {
        return Some(GateClass::VersionControlConfig);
    }
    if within(".mise")
        || within(".direnv")
        || (within(".config") && (within("mise") || name.starts_with("mise")))
    {
        return Some(GateClass::DirectoryEnvironment);
    }
    let starts_as = |start: &&str| name.starts_with(start);
    let is_environment = pair(".venv", "bin") || pair("venv", "bin") || pair("env", "bin");
    if is_environment && ["python", "pip", "activate"].iter().any(starts_as) {
        return Some(GateClass::LocalProgram);
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
        ".envrc" | ".tool-versions" | ".autoenv" | ".autoenv.zsh" | ".env.fish" => {
            GateClass::DirectoryEnvironment
        }
        _ if (name.starts_with(".mise.") || name.starts_with("mise.")) && ends(".toml") => {
            GateClass::DirectoryEnvironment
        }
        ".gdbinit" | ".gdbearlyinit" | ".lldbinit" | ".radare2rc" => GateClass::DebuggerStartup,
        ".exrc" | ".vimrc" | ".nvimrc" | ".nvim.lua" | ".dir-locals.el" | ".lvimrc" => {
            GateClass::EditorTask
        }
        ".devcontainer.json" => GateClass::EditorTask,
        _ if ends(".code-workspace") || ends(".sublime-project") => GateClass::EditorTask,
        ".mcp.json" | "mcp.json" => GateClass::AgentConfig,
        ".pre-commit-config.yaml"
        | ".pre-commit-config.yml"
        | ".huskyrc"
        | ".huskyrc.json"
        | ".overcommit.yml" => GateClass::HookRunner,
        _ if is_lefthook(name) => GateClass::HookRunner,
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

/// `lefthook.yml` and its kin: with or without a dot, `-local`, in any of its formats.
fn is_lefthook(name: &str) -> bool {
    let name = name.strip_prefix('.').unwrap_or(name);
    let Some((stem, end)) = name.rsplit_once('.') else { return false };
    matches!(stem, "lefthook" | "lefthook-local")
        && matches!(end, "yml" | "yaml" | "toml" | "json" | "jsonc")
}

/// Files that an agent reads as instructions.
fn agent_class(above: &[&str], name: &str) -> Option<GateClass> {
    let in_github = above.last() == Some(&".github") || above.contains(&"instructions");
    let is_copilot = name == "copilot-instructions.md" || name.ends_with(".instructions.md");
    let is_named = matches!(
        name,
        "agents.md"
            | "agents.override.md"
            | "claude.md"
            | "claude.local.md"
            | "gemini.md"
            | "qwen.md"
            | "warp.md"
            | "conventions.md"
            | ".cursorrules"
            | ".windsurfrules"
            | ".clinerules"
            | ".roorules"
            | ".goosehints"
            | ".aider.conf.yml"
    );
    (is_named || (in_github && is_copilot)).then_some(GateClass::AgentInstructions)
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
            AgentConfig, AgentInstructions, BuildScript, Ci, DebuggerStartup, DirectoryEnvironment,
            EditorTask, GitAttributes, GitConfig, GitHook, GitState, HookRunner, LocalProgram,
            NewRepository, PackageScript, ShellStartup, VersionControlConfig,
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
            (".hg/hgrc", VersionControlConfig),
            (".jj/repo/config.toml", VersionControlConfig),
            (".gdbinit", DebuggerStartup),
            (".mise/config.toml", DirectoryEnvironment),
            (".config/mise/config.toml", DirectoryEnvironment),
            ("mise.local.toml", DirectoryEnvironment),
            ("lefthook-local.yml", HookRunner),
            (".lefthook.toml", HookRunner),
            (".windsurf/hooks.json", AgentConfig),
            (".kiro/settings/mcp.json", AgentConfig),
            (".continue/config.yaml", AgentConfig),
            ("AGENTS.md", AgentInstructions),
            ("web/CLAUDE.md", AgentInstructions),
            (".cursorrules", AgentInstructions),
            (".github/copilot-instructions.md", AgentInstructions),
            (".venv/bin/python", LocalProgram),
            ("tools/venv/bin/python3.12", LocalProgram),
        ] {
            check(path, Some(expected));
        }
        for path in [
            "src/main.rs",
            "README.md",
            "hooks/pre-commit",
            "vscode/tasks.json",
            "config",
            "bin/python",
        ] {
            check(path, None);
        }
    }
}
