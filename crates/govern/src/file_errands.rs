//! Reading and writing a file as programs in the sandbox, so that masks, gate, undo and receipt
//! are those of every other run.

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
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

/// Returns the step that prints the first bytes of a file as base64, for a way that carries text
/// only.
pub(crate) fn read_as_text_errand(path: &RelPath, count: u64) -> Errand {
    let argv = ["sh", "-c", READ_AS_TEXT, "read_file", path.as_str(), &count.to_string()];
    let argv = argv.into_iter().map(str::to_owned).collect();
    Errand::new(Work::Argv(argv), Writes::Refused)
}

/// Returns the bytes that [`read_as_text_errand`] printed.
pub(crate) fn text_to_bytes(text: &[u8]) -> Option<Vec<u8>> {
    let text: Vec<u8> = text.iter().copied().filter(|byte| !byte.is_ascii_whitespace()).collect();
    STANDARD.decode(text).ok()
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

/// Prints a file; one that cannot be opened is an error of its own, before anything is printed.
const READ_AS_TEXT: &str = r#"exec 3< "$1" && head -c "$2" <&3 | base64"#;

/// Makes the directory and writes the file; both names are arguments, never part of the script.
const MAKE_AND_WRITE: &str = r#"mkdir -p -- "$1" && dd "$2" bs=65536 status=none"#;
