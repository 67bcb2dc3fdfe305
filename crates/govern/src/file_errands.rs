//! Reading and writing a file as programs in the sandbox, so that masks, gate, undo and receipt
//! are those of every other run.

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
    let file = path.as_str();
    let parent = file.rsplit_once('/').map(|(parent, _)| parent);
    let missing = parent.filter(|parent| !workspace.join(parent).is_dir());
    let target = format!("of={file}");
    let argv = match missing {
        None => vec!["dd", &target, "bs=65536", "status=none"],
        Some(parent) => vec!["sh", "-c", MAKE_AND_WRITE, "write_file", parent, &target],
    };
    let argv = argv.into_iter().map(str::to_owned).collect();
    let mut errand = Errand::new(Work::Argv(argv), Writes::Kept);
    errand.stdin = content;
    errand
}

/// Makes the directory and writes the file; both names are arguments, never part of the script.
const MAKE_AND_WRITE: &str = r#"mkdir -p -- "$1" && dd "$2" bs=65536 status=none"#;
