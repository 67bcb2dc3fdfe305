//! Reading and writing a file as programs in the sandbox, so that masks, gate, undo and receipt
//! are those of every other run.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use warrant_protocol::RelPath;

use crate::workbench::{Errand, Work, Writes};

/// Returns the step that prints `count` bytes of a file from `offset` on.
#[must_use]
pub fn read_errand(path: &RelPath, offset: u64, count: u64) -> Errand {
    let argv = [
        "dd".to_owned(),
        format!("if={path}"),
        "bs=65536".to_owned(),
        "iflag=skip_bytes,count_bytes,fullblock".to_owned(),
        format!("skip={offset}"),
        format!("count={count}"),
        "status=none".to_owned(),
    ];
    Errand::new(Work::Argv(argv.to_vec()), Writes::Refused)
}

/// Returns the step that writes a file with its missing directories. The permissions of a file
/// that is there are kept.
#[must_use]
pub fn write_errand(workspace: &Path, path: &RelPath, content: Vec<u8>) -> Errand {
    let mode = match fs::symlink_metadata(workspace.join(path.as_str())) {
        Ok(metadata) if metadata.is_file() => metadata.mode() & 0o777,
        _ => 0o644,
    };
    let argv = ["install", "-D", "-m", &format!("{mode:o}"), "--", "/dev/stdin", path.as_str()];
    let mut errand = Errand::new(Work::Argv(argv.map(str::to_owned).to_vec()), Writes::Kept);
    errand.stdin = content;
    errand
}
