//! Commands of our own, where the interpreter's are wrong, capped or missing.
//!
//! Each does what GNU's does for the options it takes, and refuses every other option by name:
//! an option that is accepted and ignored is a wrong answer. Start at [`registry`].

mod arguments;
mod bc;
mod cat;
mod chmod;
mod dates;
mod diff;
mod head;
mod join;
mod ls;
mod missing;
mod moving;
mod realpath;
mod remove;
mod seq;
mod source;
mod tail;
mod tee;
mod timing;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bashkit::{BuiltinRegistry, CommandOutput, Error, normalize_path, vfs_join};

pub(super) use dates::spell_out_date;
pub(super) use missing::MissingCommands;
pub(in crate::hermetic) use source::random_bytes;

/// Which files the commands see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Seen {
    /// A workspace, and the clock and chance of the machine.
    Workspace,
    /// Files in memory, and neither clock nor chance.
    Memory,
}

/// Returns our own commands; each takes the place of the interpreter's of the same name.
pub(super) fn registry(seen: Seen) -> BuiltinRegistry {
    let registry = BuiltinRegistry::new();
    registry.insert("bc", Arc::new(bc::Bc));
    registry.insert("chmod", Arc::new(chmod::Chmod));
    registry.insert("diff", Arc::new(diff::Diff));
    registry.insert("ls", Arc::new(ls::Ls));
    registry.insert("mv", Arc::new(moving::Move));
    registry.insert("realpath", Arc::new(realpath::Realpath));
    registry.insert("rm", Arc::new(remove::Remove));
    registry.insert("sleep", Arc::new(timing::Sleep));
    registry.insert("timeout", Arc::new(timing::Timeout));
    registry.insert("zcat", Arc::new(missing::Zcat));
    registry.insert_command("seq", seq::Seq);
    registry.insert_command("tail", tail::Tail);
    registry.insert_command("tee", tee::Tee);
    registry.insert_command("yes", seq::Yes);
    if seen == Seen::Workspace {
        registry.insert("join", Arc::new(join::Join));
        registry.insert_command("cat", cat::Cat);
        registry.insert_command("head", head::Head);
    }
    registry
}

/// Returns a path as the filesystem names it.
fn absolute(cwd: &Path, path: &str) -> PathBuf {
    normalize_path(&vfs_join(cwd, Path::new(path)))
}

/// Returns what went wrong as GNU's commands put it.
fn reason(error: &Error) -> String {
    let Error::Io(cause) = error else { return error.to_string() };
    let text = cause.to_string();
    if let Some((plain, _)) = text.split_once(" (os error ") {
        return plain.to_owned();
    }
    match cause.kind() {
        io::ErrorKind::NotFound => "No such file or directory".into(),
        io::ErrorKind::PermissionDenied => "Permission denied".into(),
        io::ErrorKind::IsADirectory => "Is a directory".into(),
        io::ErrorKind::NotADirectory => "Not a directory".into(),
        io::ErrorKind::AlreadyExists => "File exists".into(),
        _ => text,
    }
}

/// Writes a line to a command's standard error.
async fn complain(stderr: &CommandOutput, text: &str) -> bashkit::Result<()> {
    stderr.write_all(format!("{text}\n").as_bytes()).await
}
