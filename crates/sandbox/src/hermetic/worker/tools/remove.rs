//! `rm`: what could not be removed is named, also with `-f`.

use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;

use async_trait::async_trait;
use bashkit::{Builtin, BuiltinContext, ExecResult, FileSystem, FileType, Result};

use super::arguments::{self, Known, flag};
use super::{absolute, reason};

const OPTIONS: [Known; 9] = [
    flag('f', "force"),
    flag('r', "recursive"),
    flag('R', ""),
    flag('d', "dir"),
    flag('v', "verbose"),
    flag('i', "interactive"),
    flag('I', ""),
    flag('\0', "preserve-root"),
    flag('\0', "one-file-system"),
];

/// The command `rm`.
pub(super) struct Remove;

/// An entry that stayed, as it is shown, and why.
struct Kept {
    shown: String,
    why: String,
}

#[async_trait]
impl Builtin for Remove {
    async fn execute(&self, ctx: BuiltinContext<'_>) -> Result<ExecResult> {
        let args = match arguments::parse("rm", ctx.args, &OPTIONS) {
            Ok(args) => args,
            Err(complaint) => return Ok(ExecResult::err(format!("{complaint}\n"), 1)),
        };
        let forced = args.has("f");
        if (args.has("i") || args.has("I")) && !forced {
            let text = "rm: -i asks a person, and nobody can be asked here; leave it out\n";
            return Ok(ExecResult::err(text, 1));
        }
        if args.operands.is_empty() && !forced {
            return Ok(ExecResult::err("rm: missing operand\n", 1));
        }
        let (mut stdout, mut stderr) = (String::new(), String::new());
        for operand in &args.operands {
            match remove(&ctx, operand, &args).await {
                Ok(()) if args.has("v") => stdout.push_str(&format!("removed '{operand}'\n")),
                Ok(()) => {}
                Err(kept) => {
                    for Kept { shown, why } in kept {
                        stderr.push_str(&format!("rm: cannot remove '{shown}': {why}\n"));
                    }
                }
            }
        }
        let exit_code = i32::from(!stderr.is_empty());
        Ok(ExecResult {
            stdout: stdout.into(),
            stderr: stderr.into(),
            exit_code,
            ..Default::default()
        })
    }
}

async fn remove(
    ctx: &BuiltinContext<'_>,
    operand: &str,
    args: &arguments::Arguments,
) -> std::result::Result<(), Vec<Kept>> {
    let kept = |why: &str| vec![Kept { shown: operand.to_owned(), why: why.to_owned() }];
    let path = absolute(ctx.cwd, operand);
    let last = operand.trim_end_matches('/').rsplit('/').next().unwrap_or(operand);
    let recursive = args.has("r") || args.has("R");
    if operand.is_empty() {
        return if args.has("f") { Ok(()) } else { Err(kept("No such file or directory")) };
    }
    if recursive && (matches!(last, "." | "..") || path == Path::new("/")) {
        return Err(kept("refusing to remove '.', '..' or '/'"));
    }
    let metadata = match ctx.fs.lstat(&path).await {
        Ok(metadata) => metadata,
        Err(_) if args.has("f") => return Ok(()),
        Err(error) => return Err(kept(&reason(&error))),
    };
    let is_directory = metadata.file_type == FileType::Directory;
    if is_directory && !recursive {
        if !args.has("d") {
            return Err(kept("Is a directory"));
        }
        if ctx.fs.read_dir(&path).await.is_ok_and(|entries| !entries.is_empty()) {
            return Err(kept("Directory not empty"));
        }
    }
    match ctx.fs.remove(&path, is_directory).await {
        Ok(()) => Ok(()),
        Err(error) if !is_directory => Err(kept(&reason(&error))),
        // Something below had to stay: everything else goes, and what stayed is named.
        Err(_) => match remove_each(Arc::clone(&ctx.fs), path, operand.to_owned()).await {
            stayed if stayed.is_empty() => Ok(()),
            stayed => Err(stayed),
        },
    }
}

type Removal = Pin<Box<dyn Future<Output = Vec<Kept>> + Send>>;

/// Removes a directory entry by entry; returns what stayed. Where nothing below could go, the
/// directory alone is named.
fn remove_each(fs: Arc<dyn FileSystem>, path: std::path::PathBuf, shown: String) -> Removal {
    Box::pin(async move {
        let entries = fs.read_dir(&path).await.unwrap_or_default();
        let count = entries.len();
        let (mut stayed, mut whole) = (Vec::new(), 0);
        for entry in entries {
            let (below, name) = (path.join(&entry.name), format!("{shown}/{}", entry.name));
            let kept = if entry.metadata.file_type == FileType::Directory {
                remove_each(Arc::clone(&fs), below, name.clone()).await
            } else {
                let removed = fs.remove(&below, false).await.err();
                removed
                    .map(|error| Kept { shown: name.clone(), why: reason(&error) })
                    .into_iter()
                    .collect()
            };
            whole += usize::from(kept.iter().any(|kept| kept.shown == name));
            stayed.extend(kept);
        }
        match stayed.first() {
            Some(first) if whole == count => {
                vec![Kept { shown, why: first.why.clone() }]
            }
            Some(_) => stayed,
            None => match fs.remove(&path, false).await {
                Ok(()) => Vec::new(),
                Err(error) => vec![Kept { shown, why: reason(&error) }],
            },
        }
    })
}
