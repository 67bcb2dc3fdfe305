//! Where a path really lies, seen from a workspace.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
use warrant_protocol::glob::Masks;
use warrant_sandbox::veiled;
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

/// What policy veils in a workspace, as programs in the sandbox find it.
#[derive(Debug)]
pub struct Veils {
    masks: Masks,
    /// What is there now, under every name it has.
    found: Vec<PathBuf>,
}

impl Veils {
    /// Looks through a workspace, as the sandbox does before every run.
    ///
    /// # Errors
    /// The system's error when a part of it could not be looked at; no program would start there.
    pub fn find(workspace: &Path, masks: &[String]) -> io::Result<Self> {
        Ok(Self { masks: Masks::new(masks), found: veiled(workspace, masks)? })
    }

    fn cover(&self, below: &Path) -> bool {
        self.masks.veil(&below.to_string_lossy())
            || self.found.iter().any(|veiled| below.starts_with(veiled))
    }
}

/// Returns where an absolute path lies; links are followed as the agent's own file tool would.
///
/// Nothing is held between this look and the agent's: a program that swaps a link in between can
/// change the answer. Shell commands have no such gap.
#[must_use]
pub fn place_of(path: &Path, workspace: &Path, veils: &Veils, gate: &GatePolicy) -> Place {
    let Some(real) = real_path(path) else { return Place::Outside };
    let Ok(below) = real.strip_prefix(workspace) else { return Place::Outside };
    let Some(text) = below.to_str() else { return Place::Outside };
    if text.is_empty() {
        return Place::Inside;
    }
    let Ok(tree_path) = TreePath::new(text) else { return Place::Outside };
    // SECURITY: a link whose own name is masked speaks of a secret wherever it leads.
    if veils.cover(below) || path.strip_prefix(workspace).is_ok_and(|below| veils.cover(below)) {
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
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(_) => return None,
        }
        match existing.components().next_back()? {
            Component::Normal(name) => rest.push(name.to_owned()),
            _ => return None,
        }
        existing.pop();
    }
    // SECURITY: links of the kernel's own (`/proc/self/cwd`) lead somewhere else in the agent than
    // they do here.
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    openat2(CWD, &existing, flags, Mode::empty(), ResolveFlags::NO_MAGICLINKS).ok()?;
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
        let masks = [".env", "*.{pem,p12}", "secret/*", ".ssh", "/top.key", "private/", "[Kk]eys"];
        let masks = masks.map(str::to_owned);
        fs::write(workspace.join("real"), "x").unwrap();
        fs::write(workspace.join("a.pem"), "x").unwrap();
        fs::hard_link(workspace.join("a.pem"), workspace.join("plain")).unwrap();
        symlink("real", workspace.join(".env")).unwrap();
        fs::create_dir(workspace.join("vault")).unwrap();
        symlink("vault", workspace.join("keys")).unwrap();
        let veils = Veils::find(&workspace, &masks).unwrap();
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
            ("work/src/a.P12", Place::Masked),
            ("work/plain", Place::Masked),
            ("work/real", Place::Masked),
            ("work/keys/new", Place::Masked),
            ("work/vault/new", Place::Masked),
            ("work/near/../keys/new", Place::Masked),
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
            assert_eq!(place_of(&root.join(path), &workspace, &veils, &gate), expected, "{path}");
        }
        // The same file in this process, and who knows which in another.
        let by_kernel = PathBuf::from(format!("/proc/self/root{}", workspace.display()));
        symlink(&by_kernel, workspace.join("kernel")).unwrap();
        for path in [by_kernel.join("file"), workspace.join("kernel/file")] {
            assert_eq!(place_of(&path, &workspace, &veils, &gate), Place::Outside, "{path:?}");
        }
        assert_eq!(place_of(Path::new("file"), &workspace, &veils, &gate), Place::Outside);
    }
}
