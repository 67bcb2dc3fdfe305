//! Where a path really lies, seen from a workspace.

use std::ffi::OsString;
use std::fs;
use std::path::{Component, Path, PathBuf};

use warrant_protocol::glob::matches_pattern;
use warrant_sandbox::is_veiled;
use warrant_workspace::{GatePolicy, TreePath, Verdict, classify};

/// Where a path lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Below the workspace, and nothing speaks against it.
    Inside,
    /// Below the workspace, but it executes later by itself.
    Later,
    /// Below the workspace, but policy masks it.
    Masked,
    /// Not below the workspace, or nobody can say.
    Outside,
}

/// Returns where an absolute path lies; links are followed as the agent's own file tool would.
///
/// Nothing is held between this look and the agent's: a program that swaps a link in between can
/// change the answer. Shell commands have no such gap.
#[must_use]
pub fn place_of(path: &Path, workspace: &Path, masks: &[String], gate: &GatePolicy) -> Place {
    let Some(real) = real_path(path) else { return Place::Outside };
    let Ok(below) = real.strip_prefix(workspace) else { return Place::Outside };
    let Some(text) = below.to_str() else { return Place::Outside };
    if text.is_empty() {
        return Place::Inside;
    }
    let Ok(tree_path) = TreePath::new(text) else { return Place::Outside };
    // SECURITY: a mask veils whatever lies in a directory that it names.
    let is_inside_mask = below
        .ancestors()
        .filter_map(Path::to_str)
        .any(|above| !above.is_empty() && is_masked(above, masks));
    if is_inside_mask || is_veiled(text, masks) || is_masked(&name_of(path), masks) {
        return Place::Masked;
    }
    match gate.judge(&tree_path, classify(&tree_path)) {
        Some((_, Verdict::Hold | Verdict::Refuse)) => Place::Later,
        Some((_, Verdict::Flag)) | None => Place::Inside,
    }
}

/// Returns whether an absolute path lies in a directory, by whatever links.
///
/// The agent's own tools reach our keys and policy no more than programs do.
#[must_use]
pub fn is_below(path: &Path, directory: &Path) -> bool {
    let Ok(directory) = fs::canonicalize(directory) else { return false };
    real_path(path).is_some_and(|real| real.starts_with(&directory))
}

fn name_of(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

/// A pattern with a slash speaks of the path, one without of the name; case does not count.
fn is_masked(path: &str, masks: &[String]) -> bool {
    let path = path.to_lowercase();
    let name = path.rsplit('/').next().unwrap_or(&path);
    masks.iter().any(|mask| {
        let mask = mask.to_lowercase();
        let subject = if mask.contains('/') { path.as_str() } else { name };
        // Whatever is too complex to tell counts as masked.
        matches_pattern(subject, &mask).unwrap_or(true)
    })
}

/// Resolves what exists of a path and keeps the rest, which must name nothing but children.
fn real_path(path: &Path) -> Option<PathBuf> {
    if !path.is_absolute() {
        return None;
    }
    let mut existing = path.to_owned();
    let mut rest: Vec<OsString> = Vec::new();
    loop {
        match fs::symlink_metadata(&existing) {
            Ok(_) => break,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(_) => return None,
        }
        match existing.components().next_back()? {
            Component::Normal(name) => rest.push(name.to_owned()),
            _ => return None,
        }
        existing.pop();
    }
    // A link to nothing exists, but does not resolve: nobody can say where a write would end.
    let mut real = fs::canonicalize(&existing).ok()?;
    rest.iter().rev().for_each(|name| real.push(name));
    Some(real)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn links_and_dots_cannot_leave_the_workspace() {
        let directory = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(directory.path()).unwrap();
        let workspace = root.join("work");
        fs::create_dir_all(workspace.join("src")).unwrap();
        fs::create_dir(root.join("other")).unwrap();
        fs::write(root.join("other/file"), "x").unwrap();
        fs::write(workspace.join("file"), "x").unwrap();
        symlink(root.join("other"), workspace.join("away")).unwrap();
        symlink(root.join("other/file"), workspace.join("leak")).unwrap();
        symlink(root.join("nowhere"), workspace.join("dangling")).unwrap();
        symlink("src", workspace.join("near")).unwrap();
        let gate = GatePolicy::advised();
        let masks =
            [".env", "*.pem", "secret/*", ".ssh", "/top.key", "private/"].map(str::to_owned);
        for (path, expected) in [
            ("work/file", Place::Inside),
            ("work/new/deep/file", Place::Inside),
            ("work/near/file", Place::Inside),
            ("work", Place::Inside),
            ("work/src/../file", Place::Inside),
            ("other/file", Place::Outside),
            ("work/away/file", Place::Outside),
            ("work/away/new", Place::Outside),
            ("work/leak", Place::Outside),
            ("work/dangling", Place::Outside),
            ("work/../other/file", Place::Outside),
            ("work/new/../../other/file", Place::Outside),
            ("workshop/file", Place::Outside),
            ("work/.env", Place::Masked),
            ("work/src/.ENV", Place::Masked),
            ("work/src/a.pem", Place::Masked),
            ("work/secret/x", Place::Masked),
            ("work/.ssh/id", Place::Masked),
            ("work/src/.ssh/deep/id", Place::Masked),
            ("work/top.key", Place::Masked),
            ("work/src/private/x", Place::Masked),
            ("work/.git/hooks/pre-commit", Place::Later),
            ("work/.claude/settings.json", Place::Later),
            ("work/.mcp.json", Place::Later),
            ("work/package.json", Place::Inside),
        ] {
            assert_eq!(place_of(&root.join(path), &workspace, &masks, &gate), expected, "{path}");
        }
        assert_eq!(place_of(Path::new("file"), &workspace, &masks, &gate), Place::Outside);
    }
}
