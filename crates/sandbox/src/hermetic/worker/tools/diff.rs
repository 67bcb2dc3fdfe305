//! `diff -r`; a comparison of two files is the interpreter's own `diff`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;

use async_trait::async_trait;
use bashkit::{
    Builtin, BuiltinContext, ExecResult, ExecutionPlan, FileSystem, FileType, Result, SubCommand,
};

use super::{absolute, reason};
use crate::hermetic::rooms::LIBRARY;

/// The command `diff`.
pub(super) struct Diff;

#[async_trait]
impl Builtin for Diff {
    async fn execute(&self, _ctx: BuiltinContext<'_>) -> Result<ExecResult> {
        Ok(ExecResult::err("diff: not planned\n", 2))
    }

    async fn execution_plan(&self, ctx: &BuiltinContext<'_>) -> Result<Option<ExecutionPlan>> {
        let is_recursive = |arg: &String| {
            arg == "--recursive"
                || (arg.starts_with('-') && !arg.starts_with("--") && arg.contains('r'))
        };
        if !ctx.args.iter().any(is_recursive) {
            let command = library("diff", ctx.args.to_vec(), ctx.stdin.cloned());
            return Ok(Some(ExecutionPlan::Batch { commands: vec![command] }));
        }
        let without_r = |arg: &String| match arg.as_str() {
            "--recursive" | "-r" => None,
            _ if is_recursive(arg) => Some(arg.replace('r', "")),
            _ => Some(arg.clone()),
        };
        let args: Vec<String> = ctx.args.iter().filter_map(without_r).collect();
        let (options, operands): (Vec<String>, Vec<String>) =
            args.into_iter().partition(|arg| arg.starts_with('-') && arg.len() > 1);
        let commands = match operands.as_slice() {
            [left, right] => {
                let comparison =
                    Comparison { fs: Arc::clone(&ctx.fs), options, line: ctx.args.to_vec() };
                let pair = Pair::new(ctx.cwd, left, right);
                let mut commands = comparison.of(pair).await;
                if !commands.is_empty() {
                    commands.push(plain("false", Vec::new()));
                }
                commands
            }
            _ => vec![
                plain("printf", vec!["diff: two operands are needed\n".into()]),
                plain("false", Vec::new()),
            ],
        };
        Ok(Some(ExecutionPlan::Batch { commands }))
    }
}

/// Returns a command that means the interpreter's own, not ours of the same name.
pub(super) fn library(
    name: &str,
    args: Vec<String>,
    stdin: Option<bashkit::StreamData>,
) -> SubCommand {
    SubCommand { name: format!("{LIBRARY}/{name}"), args, stdin, assignments: Vec::new() }
}

fn plain(name: &str, args: Vec<String>) -> SubCommand {
    SubCommand { name: name.to_owned(), args, stdin: None, assignments: Vec::new() }
}

/// Two entries to compare, as found and as shown.
struct Pair {
    left: PathBuf,
    right: PathBuf,
    shown_left: String,
    shown_right: String,
}

impl Pair {
    fn new(cwd: &Path, left: &str, right: &str) -> Self {
        Self {
            left: absolute(cwd, left),
            right: absolute(cwd, right),
            shown_left: left.trim_end_matches('/').to_owned(),
            shown_right: right.trim_end_matches('/').to_owned(),
        }
    }

    fn below(&self, name: &str) -> Self {
        Self {
            left: self.left.join(name),
            right: self.right.join(name),
            shown_left: format!("{}/{name}", self.shown_left),
            shown_right: format!("{}/{name}", self.shown_right),
        }
    }
}

struct Comparison {
    fs: Arc<dyn FileSystem>,
    options: Vec<String>,
    line: Vec<String>,
}

type Commands<'a> = Pin<Box<dyn Future<Output = Vec<SubCommand>> + Send + 'a>>;

impl Comparison {
    /// Returns the commands that print how two entries differ; none when they do not.
    fn of(&self, pair: Pair) -> Commands<'_> {
        Box::pin(async move {
            let kinds = (self.fs.stat(&pair.left).await, self.fs.stat(&pair.right).await);
            let (left, right) = match kinds {
                (Ok(left), Ok(right)) => (left.file_type, right.file_type),
                (Err(error), _) => {
                    return vec![say(&format!("diff: {}: {}\n", pair.shown_left, reason(&error)))];
                }
                (_, Err(error)) => {
                    return vec![say(&format!("diff: {}: {}\n", pair.shown_right, reason(&error)))];
                }
            };
            match (left, right) {
                (FileType::Directory, FileType::Directory) => self.of_directories(&pair).await,
                (FileType::File, FileType::File) => self.of_files(&pair).await,
                _ => vec![say(&format!(
                    "File {} is a {} while file {} is a {}\n",
                    pair.shown_left,
                    kind(left),
                    pair.shown_right,
                    kind(right)
                ))],
            }
        })
    }

    async fn of_directories(&self, pair: &Pair) -> Vec<SubCommand> {
        let names = |entries: Vec<bashkit::DirEntry>| -> BTreeSet<String> {
            entries.into_iter().map(|entry| entry.name).collect()
        };
        let left = names(self.fs.read_dir(&pair.left).await.unwrap_or_default());
        let right = names(self.fs.read_dir(&pair.right).await.unwrap_or_default());
        let mut commands = Vec::new();
        for name in left.union(&right) {
            if !right.contains(name) {
                commands.push(say(&format!("Only in {}: {name}\n", pair.shown_left)));
            } else if !left.contains(name) {
                commands.push(say(&format!("Only in {}: {name}\n", pair.shown_right)));
            } else {
                commands.extend(self.of(pair.below(name)).await);
            }
        }
        commands
    }

    async fn of_files(&self, pair: &Pair) -> Vec<SubCommand> {
        let left = self.fs.read_file(&pair.left).await;
        let right = self.fs.read_file(&pair.right).await;
        match (left, right) {
            (Ok(left), Ok(right)) if left == right => Vec::new(),
            _ => {
                let is_brief = |arg: &String| {
                    arg == "--brief" || (!arg.starts_with("--") && arg.contains('q'))
                };
                let mut args = self.options.clone();
                args.extend([pair.shown_left.clone(), pair.shown_right.clone()]);
                let options = self.line.iter().filter(|arg| arg.starts_with('-'));
                let options: String = options.map(|arg| format!("{arg} ")).collect();
                let title = format!("diff {options}{} {}\n", pair.shown_left, pair.shown_right);
                let mut commands = vec![library("diff", args, None)];
                if !self.options.iter().any(is_brief) {
                    commands.insert(0, say(&title));
                }
                commands
            }
        }
    }
}

fn kind(file_type: FileType) -> &'static str {
    match file_type {
        FileType::Directory => "directory",
        FileType::File => "regular file",
        FileType::Symlink => "symbolic link",
        FileType::Fifo => "fifo",
    }
}

fn say(text: &str) -> SubCommand {
    plain("printf", vec!["%s".into(), text.to_owned()])
}
