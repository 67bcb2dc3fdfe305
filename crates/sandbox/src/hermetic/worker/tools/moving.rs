//! `mv`.

use std::path::Path;

use async_trait::async_trait;
use bashkit::{Builtin, BuiltinContext, ExecResult, FileType, Result};

use super::arguments::{self, Arguments, Known, flag, valued};
use super::{absolute, reason};

const OPTIONS: [Known; 8] = [
    flag('f', "force"),
    flag('n', "no-clobber"),
    flag('i', "interactive"),
    flag('u', "update"),
    flag('v', "verbose"),
    flag('T', "no-target-directory"),
    valued('t', "target-directory"),
    flag('\0', "strip-trailing-slashes"),
];

/// The command `mv`.
pub(super) struct Move;

#[async_trait]
impl Builtin for Move {
    async fn execute(&self, ctx: BuiltinContext<'_>) -> Result<ExecResult> {
        let failed = |text: String| Ok(ExecResult::err(format!("{text}\n"), 1));
        let args = match arguments::parse("mv", ctx.args, &OPTIONS) {
            Ok(args) => args,
            Err(complaint) => return failed(complaint),
        };
        let (target, sources) = match (args.value("t"), args.operands.split_last()) {
            (Some(target), _) => (target.to_owned(), args.operands.as_slice()),
            (None, Some((target, sources))) => (target.clone(), sources),
            (None, None) => return failed("mv: missing file operand".into()),
        };
        if sources.is_empty() {
            return failed(format!("mv: missing destination file operand after '{target}'"));
        }
        let into = ctx.fs.stat(&absolute(ctx.cwd, &target)).await;
        let is_directory = into.is_ok_and(|m| m.file_type == FileType::Directory) && !args.has("T");
        if !is_directory && (sources.len() > 1 || args.has("t")) {
            return failed(format!("mv: target '{target}': Not a directory"));
        }
        let (mut stdout, mut stderr) = (String::new(), String::new());
        for source in sources {
            let name = source.trim_end_matches('/').rsplit('/').next().unwrap_or(source);
            let to = match is_directory {
                true => format!("{}/{name}", target.trim_end_matches('/')),
                false => target.clone(),
            };
            match rename(&ctx, &args, source, &to).await {
                Ok(true) if args.has("v") => {
                    stdout.push_str(&format!("renamed '{source}' -> '{to}'\n"));
                }
                Ok(_) => {}
                Err(why) => stderr.push_str(&format!("mv: {why}\n")),
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

/// Renames one entry; returns whether it was to be renamed.
async fn rename(
    ctx: &BuiltinContext<'_>,
    args: &Arguments,
    source: &str,
    to: &str,
) -> std::result::Result<bool, String> {
    let (from, target) = (absolute(ctx.cwd, source), absolute(ctx.cwd, to));
    let found = ctx.fs.lstat(&from).await;
    let found = found.map_err(|error| format!("cannot stat '{source}': {}", reason(&error)))?;
    let is_directory = found.file_type == FileType::Directory;
    if from == target {
        return Err(format!("'{source}' and '{to}' are the same file"));
    }
    if is_directory && target.starts_with(&from) {
        return Err(format!("cannot move '{source}' to a subdirectory of itself, '{to}'"));
    }
    if let Ok(there) = ctx.fs.lstat(&target).await {
        let last = args
            .options
            .iter()
            .rev()
            .find(|(option, _)| matches!(option.as_str(), "n" | "f" | "i"));
        match last.map(|(option, _)| option.as_str()) {
            Some("n") => return Ok(false),
            Some("i") => {
                return Err(format!(
                    "-i asks before '{to}' is replaced, and nobody can be asked here"
                ));
            }
            _ if args.has("u") && there.modified >= found.modified => return Ok(false),
            _ => {}
        }
        make_way(ctx, &target, (is_directory, there.file_type == FileType::Directory), to).await?;
    }
    let moved = ctx.fs.rename(&from, &target).await;
    moved.map_err(|error| format!("cannot move '{source}' to '{to}': {}", reason(&error)))?;
    Ok(true)
}

/// Removes an empty directory that another is to replace.
async fn make_way(
    ctx: &BuiltinContext<'_>,
    target: &Path,
    (from_directory, to_directory): (bool, bool),
    to: &str,
) -> std::result::Result<(), String> {
    match (from_directory, to_directory) {
        (false, true) => Err(format!("cannot overwrite directory '{to}' with non-directory")),
        (true, false) => Err(format!("cannot overwrite non-directory '{to}' with directory")),
        (true, true) => {
            let entries = ctx.fs.read_dir(target).await.unwrap_or_default();
            if !entries.is_empty() {
                return Err(format!("cannot overwrite '{to}': Directory not empty"));
            }
            let removed = ctx.fs.remove(target, false).await;
            removed.map_err(|error| format!("cannot overwrite '{to}': {}", reason(&error)))
        }
        (false, false) => Ok(()),
    }
}
