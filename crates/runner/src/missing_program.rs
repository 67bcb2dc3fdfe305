//! Why a program was not found inside: where it is on this machine, and what to do about it.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use warrant_protocol::Isolation;

use crate::fit::DEFAULT_PATH;

/// Where people and installers put programs below a home directory.
const BELOW_HOME: [&str; 7] = [
    ".local/bin",
    ".cargo/bin",
    ".npm-global/bin",
    ".bun/bin",
    ".volta/bin",
    ".claude/local",
    "bin",
];

/// Says that a program was not found, where it is, and what to do.
pub(crate) fn explain(program: &str, isolation: Isolation) -> String {
    let (path, home) = (env::var_os("PATH"), env::var_os("HOME"));
    let mut searched: Vec<PathBuf> =
        path.iter().flat_map(env::split_paths).filter(|path| path.is_absolute()).collect();
    if let Some(home) = home.map(PathBuf::from).filter(|home| home.is_absolute()) {
        searched.extend(BELOW_HOME.iter().map(|name| home.join(name)));
        searched.extend(node_versions(&home));
    }
    explain_in(program, isolation, &searched)
}

/// Returns the directories of programs that a version manager of Node has.
fn node_versions(home: &Path) -> Vec<PathBuf> {
    let versions = fs::read_dir(home.join(".nvm/versions/node"));
    versions.into_iter().flatten().flatten().map(|version| version.path().join("bin")).collect()
}

fn explain_in(program: &str, isolation: Isolation, searched: &[PathBuf]) -> String {
    if program.contains('/') {
        return format!(
            "exit code 127: `{program}` was not found, or is no program, inside the {isolation} tier"
        );
    }
    let missing = format!("exit code 127: `{program}` was not found in {DEFAULT_PATH}");
    let found =
        searched.iter().map(|directory| directory.join(program)).find(|file| file.is_file());
    match (found, isolation) {
        (None, _) => format!(
            "{missing}, nor elsewhere on the machine of the runner; install it there in \
             /usr/local/bin"
        ),
        (Some(file), Isolation::Process) => format!(
            "{missing}. It is at {file} on the machine of the runner; make it visible with \
             `ln -s {file} /usr/local/bin/{program}`",
            file = file.display()
        ),
        (Some(file), _) => format!(
            "{missing}. It is at {} on the machine of the runner, which runs in the {isolation} tier \
             do not see; install it there below /usr/local (a link would lead to what is not visible)",
            file.display()
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_outside_the_fixed_path_is_named_with_its_place_and_the_remedy() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("claude");
        fs::write(&file, "#!/bin/sh\n").unwrap();
        let searched = [PathBuf::from("/nowhere"), directory.path().to_owned()];
        let message = explain_in("claude", Isolation::Namespace, &searched);
        let place = file.display().to_string();
        assert!(message.contains(&place) && message.contains("/usr/local"), "{message}");
        let message = explain_in("claude", Isolation::Process, &searched);
        assert!(message.contains(&format!("ln -s {place} /usr/local/bin/claude")), "{message}");
        let message = explain_in("codex", Isolation::Process, &searched);
        assert!(message.contains("`codex`") && message.contains("install it there"), "{message}");
        let message = explain_in("./tool", Isolation::Process, &searched);
        assert!(message.contains("`./tool`"), "{message}");
    }
}
