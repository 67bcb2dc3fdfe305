//! What a process did to the files below a directory, read from the log of `strace`.
//!
//! The log is asked for with paths of descriptors and every text in hexadecimal, so a line is
//! `PID SECONDS.MICROS call(7<\x2f…>, "\x01…", 32, 0) = 32`. A call that another thread interrupts is
//! in two lines, `<unfinished ...>` and `<... call resumed>`.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// The calls that change files or make them durable.
pub(super) const CALLS: &str = "open,openat,creat,write,pwrite64,writev,pwritev,pwritev2,ftruncate,\
    truncate,fallocate,rename,renameat,renameat2,unlink,unlinkat,mkdir,mkdirat,rmdir,link,linkat,\
    symlink,symlinkat,fsync,fdatasync,sync_file_range,copy_file_range,sendfile,splice";

/// One step, in the order in which it ended; a sync also shows when it began.
#[derive(Debug, Clone)]
pub(super) struct TraceStep {
    /// Microseconds since 1970.
    pub(super) at_us: u64,
    pub(super) change: FileChange,
}

/// What was done to a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum FileChange {
    /// A file was opened and is there if it was not.
    Opened { path: PathBuf, is_truncated: bool },
    /// Bytes were written; at the end where no place is given.
    Written { path: PathBuf, offset: Option<u64>, bytes: Vec<u8> },
    /// A file was made this long.
    Resized { path: PathBuf, length: u64 },
    /// A name was given to what had another.
    Renamed { from: PathBuf, to: PathBuf },
    /// A second name was given.
    Linked { from: PathBuf, to: PathBuf },
    /// A name is gone.
    Removed { path: PathBuf },
    /// A directory was made.
    DirectoryMade { path: PathBuf },
    /// A sync of a file or directory began.
    SyncBegan { thread: u32, path: PathBuf },
    /// It ended.
    SyncEnded { thread: u32, path: PathBuf },
}

/// Reads the steps below `root`.
pub(super) fn read_trace(log: &str, root: &Path) -> Vec<TraceStep> {
    let mut unfinished: HashMap<u32, String> = HashMap::new();
    let mut steps = Vec::new();
    for line in log.lines() {
        let mut words = line.splitn(3, ' ');
        let thread = words.next().unwrap().parse().unwrap();
        let rest = line.split_once(' ').unwrap().1.trim_start();
        let (time, text) = rest.split_once(' ').unwrap();
        let at_us = time.replace('.', "").parse().unwrap();
        if text.starts_with("+++") || text.starts_with("---") {
            continue;
        }
        if let Some(begun) = text.strip_suffix(" <unfinished ...>") {
            let is_sync = begun.starts_with("fsync(") || begun.starts_with("fdatasync(");
            if is_sync && let Some(path) = descriptor(begun).filter(|path| path.starts_with(root)) {
                steps.push(TraceStep { at_us, change: FileChange::SyncBegan { thread, path } });
            }
            unfinished.insert(thread, begun.to_owned());
            continue;
        }
        let whole = match text.strip_prefix("<... ").and_then(|text| text.split_once(" resumed>")) {
            Some((_, rest)) => {
                format!("{}{rest}", unfinished.remove(&thread).unwrap_or_default())
            }
            None => text.to_owned(),
        };
        let is_interrupted = text.starts_with("<... ");
        for change in changes_of(&whole, thread, is_interrupted) {
            if is_below(&change, root) {
                steps.push(TraceStep { at_us, change });
            }
        }
    }
    steps
}

fn is_below(change: &FileChange, root: &Path) -> bool {
    let path = match change {
        FileChange::Opened { path, .. }
        | FileChange::Written { path, .. }
        | FileChange::Resized { path, .. }
        | FileChange::Renamed { to: path, .. }
        | FileChange::Linked { to: path, .. }
        | FileChange::Removed { path }
        | FileChange::DirectoryMade { path }
        | FileChange::SyncBegan { path, .. }
        | FileChange::SyncEnded { path, .. } => path,
    };
    path.starts_with(root)
}

/// Returns what a call did; nothing when it failed or changed no file.
fn changes_of(text: &str, thread: u32, is_interrupted: bool) -> Vec<FileChange> {
    let Some((call, rest)) = text.split_once('(') else { return Vec::new() };
    let Some((arguments, result)) = rest.rsplit_once(") = ") else { return Vec::new() };
    if result.starts_with(['-', '?']) {
        return Vec::new();
    }
    let path = || descriptor(text);
    let names = || named_paths(arguments);
    let numbers = || arguments.rsplit(", ").map_while(|word| word.trim().parse::<u64>().ok());
    let change = match call {
        "open" | "openat" | "creat" => result_path(result)
            .filter(|_| arguments.contains("O_CREAT") || arguments.contains("O_TRUNC"))
            .map(|path| FileChange::Opened { path, is_truncated: arguments.contains("O_TRUNC") }),
        "pwrite64" => path().map(|path| {
            let offset = numbers().next();
            FileChange::Written { path, offset, bytes: quoted(arguments).concat() }
        }),
        "write" | "writev" => path().map(|path| FileChange::Written {
            path,
            offset: None,
            bytes: quoted(arguments).concat(),
        }),
        "ftruncate" => path()
            .map(|path| FileChange::Resized { path, length: numbers().next().unwrap_or_default() }),
        "rename" | "renameat" | "renameat2" | "link" | "linkat" => {
            let [from, to] = names().try_into().unwrap_or_else(|_| panic!("{text}"));
            Some(match call.starts_with("rename") {
                true => FileChange::Renamed { from, to },
                false => FileChange::Linked { from, to },
            })
        }
        "unlink" | "unlinkat" | "rmdir" => names().pop().map(|path| FileChange::Removed { path }),
        "mkdir" | "mkdirat" => names().pop().map(|path| FileChange::DirectoryMade { path }),
        "fsync" | "fdatasync" => {
            let Some(path) = path() else { return Vec::new() };
            let began = FileChange::SyncBegan { thread, path: path.clone() };
            let ended = FileChange::SyncEnded { thread, path };
            return if is_interrupted { vec![ended] } else { vec![began, ended] };
        }
        other => path().map(|path| panic!("{other} of {} is not understood", path.display())),
    };
    change.into_iter().collect()
}

/// Returns the path of the first descriptor, `7<\x2f…>`.
fn descriptor(text: &str) -> Option<PathBuf> {
    let (_, rest) = text.split_once('(')?;
    let digits =
        rest.find('<').filter(|end| rest[..*end].bytes().all(|byte| byte.is_ascii_digit()))?;
    path_in(&rest[digits..])
}

fn result_path(result: &str) -> Option<PathBuf> {
    path_in(&result[result.find('<')?..])
}

/// Reads `<\x2f…>`.
fn path_in(text: &str) -> Option<PathBuf> {
    let (hex, _) = text.strip_prefix('<')?.split_once('>')?;
    hex.starts_with("\\x2f").then(|| to_path(&unhex(hex)))
}

/// Returns the paths that a call names, each below the directory that stands before it.
fn named_paths(arguments: &str) -> Vec<PathBuf> {
    let mut base = PathBuf::new();
    let mut found = Vec::new();
    for word in arguments.split(", ") {
        if let Some(at) = word.find('<') {
            base = path_in(&word[at..]).unwrap_or_default();
        } else if let Some(text) = word.strip_prefix('"') {
            found.push(base.join(to_path(&unhex(text.trim_end_matches('"')))));
        }
    }
    found
}

/// Returns every text of a call.
fn quoted(arguments: &str) -> Vec<Vec<u8>> {
    let texts = arguments.split('"').skip(1).step_by(2);
    assert!(!arguments.contains("\"..."), "a text of the log was cut");
    texts.map(unhex).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    text.split("\\x").skip(1).map(|pair| u8::from_str_radix(&pair[..2], 16).unwrap()).collect()
}

fn to_path(bytes: &[u8]) -> PathBuf {
    // A file without a name any more, shown like this, belongs to nobody.
    let text = String::from_utf8_lossy(bytes);
    PathBuf::from(text.strip_suffix(" (deleted)").unwrap_or(&text))
}

#[test]
fn a_log_is_read_also_where_calls_interrupt_each_other() {
    let path = "\\x2f\\x68\\x2f\\x61";
    let log = format!(
        "7 1.000001 pwrite64(3<{path}>, \"\\x01\\x02\", 2, 4096) = 2\n\
         8  1.000002 fdatasync(3<{path}> <unfinished ...>\n\
         7 1.000003 write(3<{path}>, \"\\x05\", 1) = 1\n\
         8 1.000004 <... fdatasync resumed>) = 0\n\
         7 1.000005 renameat(AT_FDCWD<\\x2f>, \"\\x68\\x2f\\x61\", AT_FDCWD<\\x2f>, \"{path}\\x62\") = 0\n\
         7 1.000006 unlink(\"\\x2f\\x65\") = 0\n\
         7 1.000007 ftruncate(3<{path}>, 512) = 0\n\
         7 1.000008 unlink(\"{path}\") = -1 ENOENT (No such file or directory)\n\
         7 1.000009 +++ exited with 0 +++\n"
    );
    let (a, ab) = (PathBuf::from("/h/a"), PathBuf::from("/h/ab"));
    let steps = read_trace(&log, Path::new("/h"));
    let expected = vec![
        FileChange::Written { path: a.clone(), offset: Some(4096), bytes: vec![1, 2] },
        FileChange::SyncBegan { thread: 8, path: a.clone() },
        FileChange::Written { path: a.clone(), offset: None, bytes: vec![5] },
        FileChange::SyncEnded { thread: 8, path: a.clone() },
        FileChange::Renamed { from: a.clone(), to: ab },
        FileChange::Resized { path: a, length: 512 },
    ];
    assert_eq!(steps.iter().map(|step| step.change.clone()).collect::<Vec<_>>(), expected);
    assert_eq!(steps[0].at_us, 1_000_001);
}
