//! `diff`: normal and unified, of files and of directories.

mod lines;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::pin::Pin;
use std::time::UNIX_EPOCH;

use async_trait::async_trait;
use bashkit::{
    Builtin, BuiltinContext, ExecResult, FileType, Metadata, Result, StreamData, SubCommand,
};

use super::arguments::{self, Arguments, Known, flag, valued};
use super::dates::day_and_time;
use super::{absolute, reason};
use crate::hermetic::rooms::LIBRARY;
use lines::{Text, changes, normal, unified};

const OPTIONS: [Known; 17] = [
    flag('u', ""),
    valued('U', "unified"),
    flag('q', "brief"),
    flag('s', "report-identical-files"),
    flag('r', "recursive"),
    flag('N', "new-file"),
    flag('i', "ignore-case"),
    flag('w', "ignore-all-space"),
    flag('b', "ignore-space-change"),
    flag('Z', "ignore-trailing-space"),
    flag('B', "ignore-blank-lines"),
    flag('a', "text"),
    flag('d', "minimal"),
    flag('\0', "normal"),
    flag('\0', "strip-trailing-cr"),
    flag('\0', "no-dereference"),
    valued('L', "label"),
];

/// The command `diff`.
pub(super) struct Diff;

/// Returns a command that means the interpreter's own, not ours of the same name.
pub(super) fn library(name: &str, args: Vec<String>, stdin: Option<StreamData>) -> SubCommand {
    SubCommand { name: format!("{LIBRARY}/{name}"), args, stdin, assignments: Vec::new() }
}

#[async_trait]
impl Builtin for Diff {
    async fn execute(&self, ctx: BuiltinContext<'_>) -> Result<ExecResult> {
        let args: Vec<String> =
            ctx.args.iter().filter(|arg| !arg.starts_with("--color")).cloned().collect();
        let args = match arguments::parse("diff", &args, &OPTIONS) {
            Ok(args) => args,
            Err(complaint) => return Ok(ExecResult::err(format!("{complaint}\n"), 2)),
        };
        let [left, right] = args.operands.as_slice() else {
            let text = "diff: two operands are needed: diff [OPTION] FILE FILE\n";
            return Ok(ExecResult::err(text, 2));
        };
        let around = match args.value("U") {
            Some(count) => count.parse().ok(),
            None => Some(3),
        };
        let Some(around) = around else {
            return Ok(ExecResult::err("diff: invalid context length\n", 2));
        };
        let mut comparison = Comparison {
            ctx: &ctx,
            args: &args,
            around,
            stdout: Vec::new(),
            stderr: String::new(),
            code: 0,
        };
        let pair = comparison.pair(left, right).await;
        comparison.compare(pair).await;
        let Comparison { stdout, stderr, code, .. } = comparison;
        Ok(ExecResult {
            stdout: stdout.into(),
            stderr: stderr.into(),
            exit_code: code,
            ..Default::default()
        })
    }
}

/// Two entries to compare, as found and as shown.
struct Pair {
    left: Side,
    right: Side,
    is_below: bool,
}

struct Side {
    path: PathBuf,
    shown: String,
}

struct Comparison<'a> {
    ctx: &'a BuiltinContext<'a>,
    args: &'a Arguments,
    around: usize,
    stdout: Vec<u8>,
    stderr: String,
    code: i32,
}

type Step<'s> = Pin<Box<dyn Future<Output = ()> + Send + 's>>;

impl Comparison<'_> {
    /// Returns the operands; a directory beside a file stands for the file of that name in it.
    async fn pair(&self, left: &str, right: &str) -> Pair {
        let side = |shown: &str| Side {
            path: absolute(self.ctx.cwd, shown),
            shown: if shown.len() > 1 { shown.trim_end_matches('/') } else { shown }.to_owned(),
        };
        let (mut left, mut right) = (side(left), side(right));
        let is_directory = async |side: &Side| {
            let found = self.ctx.fs.stat(&side.path).await;
            side.shown != "-" && found.is_ok_and(|m| m.file_type == FileType::Directory)
        };
        let inside = |directory: &Side, file: &Side| {
            let name = file.shown.rsplit('/').next().unwrap_or_default().to_owned();
            Side { path: directory.path.join(&name), shown: format!("{}/{name}", directory.shown) }
        };
        match (is_directory(&left).await, is_directory(&right).await) {
            (true, false) => left = inside(&left, &right),
            (false, true) => right = inside(&right, &left),
            _ => {}
        }
        Pair { left, right, is_below: false }
    }

    fn fail(&mut self, side: &Side, why: &str) {
        self.stderr.push_str(&format!("diff: {}: {why}\n", side.shown));
        self.code = 2;
    }

    fn differ(&mut self, text: &str) {
        self.stdout.extend(text.bytes());
        self.code = self.code.max(1);
    }

    fn compare(&mut self, pair: Pair) -> Step<'_> {
        Box::pin(async move {
            let left = self.found(&pair.left).await;
            let right = self.found(&pair.right).await;
            match (left, right) {
                (Err(why), _) => self.fail(&pair.left, &why),
                (_, Err(why)) => self.fail(&pair.right, &why),
                (Ok(None), Ok(None)) => {}
                (Ok(left), Ok(right)) => match (kind(left.as_ref()), kind(right.as_ref())) {
                    (Some(FileType::Directory), Some(FileType::Directory)) => {
                        if !pair.is_below || self.args.has("r") {
                            self.compare_directories(&pair).await;
                        } else {
                            let text = format!(
                                "Common subdirectories: {} and {}\n",
                                pair.left.shown, pair.right.shown
                            );
                            self.stdout.extend(text.bytes());
                        }
                    }
                    (Some(a), Some(b)) if a != b => {
                        let text = format!(
                            "File {} is a {} while file {} is a {}\n",
                            pair.left.shown,
                            kind_name(a),
                            pair.right.shown,
                            kind_name(b)
                        );
                        self.differ(&text);
                    }
                    _ => self.compare_files(&pair, (left, right)).await,
                },
            }
        })
    }

    /// Looks at a side; with `-N` one that is missing counts as empty.
    async fn found(&self, side: &Side) -> std::result::Result<Option<Metadata>, String> {
        if side.shown == "-" {
            return Ok(None);
        }
        match self.ctx.fs.stat(&side.path).await {
            Ok(metadata) => Ok(Some(metadata)),
            Err(_) if self.args.has("N") => Ok(None),
            Err(error) => Err(reason(&error)),
        }
    }

    async fn compare_directories(&mut self, pair: &Pair) {
        let fs = &self.ctx.fs;
        let names = async |path: &PathBuf| -> BTreeSet<String> {
            let entries = fs.read_dir(path).await.unwrap_or_default();
            entries.into_iter().map(|entry| entry.name).collect()
        };
        let (left, right) = (names(&pair.left.path).await, names(&pair.right.path).await);
        for name in left.union(&right) {
            let is_alone = !self.args.has("N");
            if is_alone && !right.contains(name) {
                self.differ(&format!("Only in {}: {name}\n", pair.left.shown));
            } else if is_alone && !left.contains(name) {
                self.differ(&format!("Only in {}: {name}\n", pair.right.shown));
            } else {
                let below = |side: &Side| Side {
                    path: side.path.join(name),
                    shown: format!("{}/{name}", side.shown),
                };
                let pair =
                    Pair { left: below(&pair.left), right: below(&pair.right), is_below: true };
                self.compare(pair).await;
            }
        }
    }

    async fn bytes(&self, side: &Side) -> std::result::Result<Vec<u8>, String> {
        if side.shown == "-" || side.path.to_str() == Some("/dev/stdin") {
            return Ok(self.ctx.stdin.map(|stdin| stdin.as_bytes().to_vec()).unwrap_or_default());
        }
        match self.ctx.fs.read_file(&side.path).await {
            Ok(bytes) => Ok(bytes),
            Err(_) if self.args.has("N") => Ok(Vec::new()),
            Err(error) => Err(reason(&error)),
        }
    }

    async fn compare_files(&mut self, pair: &Pair, found: (Option<Metadata>, Option<Metadata>)) {
        let (left, right) = match (self.bytes(&pair.left).await, self.bytes(&pair.right).await) {
            (Ok(left), Ok(right)) => (left, right),
            (Err(why), _) => return self.fail(&pair.left, &why),
            (_, Err(why)) => return self.fail(&pair.right, &why),
        };
        let (a, b) = (&pair.left.shown, &pair.right.shown);
        let is_binary = (left.contains(&0) || right.contains(&0)) && !self.args.has("a");
        let (old, new) = (Text::new(&left), Text::new(&right));
        let changes = match left == right {
            true => Vec::new(),
            false if is_binary => {
                return self.differ(&format!("Binary files {a} and {b} differ\n"));
            }
            false => self.changes(&old, &new),
        };
        if changes.is_empty() {
            if self.args.has("s") {
                self.stdout.extend(format!("Files {a} and {b} are identical\n").bytes());
            }
            return;
        }
        if self.args.has("q") {
            return self.differ(&format!("Files {a} and {b} differ\n"));
        }
        if pair.is_below {
            let options = self.ctx.args.iter().filter(|arg| arg.starts_with('-') && arg.len() > 1);
            let options: String = options.map(|arg| format!("{arg} ")).collect();
            self.stdout.extend(format!("diff {options}{a} {b}\n").bytes());
        }
        self.code = self.code.max(1);
        if !self.args.has("u") && !self.args.has("U") {
            return self.stdout.extend(normal(&old, &new, &changes));
        }
        let mut labels = self.args.options.iter().filter(|(option, _)| option == "L");
        for (mark, side, metadata) in
            [("---", &pair.left, &found.0), ("+++", &pair.right, &found.1)]
        {
            let title = match labels.next() {
                Some((_, label)) => label.clone(),
                None => format!("{}\t{}", side.shown, stamp(metadata.as_ref())),
            };
            self.stdout.extend(format!("{mark} {title}\n").bytes());
        }
        self.stdout.extend(unified(&old, &new, &changes, self.around));
    }

    /// Returns the changes, with what is to be ignored left out of the comparison.
    fn changes(&self, old: &Text, new: &Text) -> Vec<lines::Change> {
        let found = changes(&self.plain(old), &self.plain(new));
        if !self.args.has("B") {
            return found;
        }
        let is_blank = |text: &Text, (start, count): (usize, usize)| {
            let lines = text.lines.get(start..start + count).unwrap_or_default();
            lines.iter().all(|line| line.iter().all(u8::is_ascii_whitespace))
        };
        found.into_iter().filter(|c| !(is_blank(old, c.left) && is_blank(new, c.right))).collect()
    }

    /// Returns the lines as they are compared.
    fn plain(&self, text: &Text) -> Vec<Vec<u8>> {
        let last = text.lines.len();
        let ignores_space = ["w", "b", "Z", "strip-trailing-cr"].iter().any(|o| self.args.has(o));
        let plain = |(at, line): (usize, &Vec<u8>)| {
            let mut line = line.clone();
            if self.args.has("i") {
                line.make_ascii_lowercase();
            }
            if self.args.has("w") {
                line.retain(|byte| !byte.is_ascii_whitespace());
            }
            if self.args.has("b") {
                let words: Vec<&[u8]> =
                    line.split(u8::is_ascii_whitespace).filter(|w| !w.is_empty()).collect();
                let leads = line.first().is_some_and(u8::is_ascii_whitespace);
                let joined = words.join(&b' ');
                line = if leads { [b" ".to_vec(), joined].concat() } else { joined };
            }
            if self.args.has("Z") || self.args.has("strip-trailing-cr") {
                line.truncate(line.trim_ascii_end().len());
            }
            // A last line without its end differs from one with it.
            if text.is_open && at + 1 == last && !ignores_space {
                line.extend(b"\n\\");
            }
            line
        };
        text.lines.iter().enumerate().map(plain).collect()
    }
}

fn kind(metadata: Option<&Metadata>) -> Option<FileType> {
    metadata.map(|metadata| metadata.file_type)
}

fn kind_name(file_type: FileType) -> &'static str {
    match file_type {
        FileType::Directory => "directory",
        FileType::File => "regular file",
        FileType::Symlink => "symbolic link",
        FileType::Fifo => "fifo",
    }
}

/// Returns when a file changed, as a unified diff shows it.
fn stamp(metadata: Option<&Metadata>) -> String {
    let since = metadata.map(|m| m.modified.duration_since(UNIX_EPOCH).unwrap_or_default());
    let since = since.unwrap_or_default();
    let moment = day_and_time(i64::try_from(since.as_secs()).unwrap_or(0));
    format!(
        "{:04}-{:02}-{:02} {:02}:{:02}:{:02}.{:09} +0000",
        moment.year,
        moment.month,
        moment.day,
        moment.hours,
        moment.minutes,
        moment.seconds,
        since.subsec_nanos()
    )
}
