//! `chmod`, with `-R`.

use std::path::{Path, PathBuf};

use async_trait::async_trait;
use bashkit::{Builtin, BuiltinContext, ExecResult, FileType, Result};

use super::{absolute, reason};

/// The command `chmod`.
pub(super) struct Chmod;

/// What a line of `chmod` says.
#[derive(Default)]
struct Line {
    recursive: bool,
    quiet: bool,
    verbose: bool,
    reference: Option<String>,
    operands: Vec<String>,
}

#[async_trait]
impl Builtin for Chmod {
    async fn execute(&self, ctx: BuiltinContext<'_>) -> Result<ExecResult> {
        let failed = |text: String| Ok(ExecResult::err(format!("chmod: {text}\n"), 1));
        let line = match parse(ctx.args) {
            Ok(line) => line,
            Err(complaint) => return failed(complaint),
        };
        let (change, operands) = match (&line.reference, line.operands.split_first()) {
            (Some(path), _) => match ctx.fs.stat(&absolute(ctx.cwd, path)).await {
                Ok(metadata) => (format!("{:o}", metadata.mode & 0o7777), &line.operands[..]),
                Err(error) => {
                    return failed(format!(
                        "failed to get attributes of '{path}': {}",
                        reason(&error)
                    ));
                }
            },
            (None, Some((change, operands))) => (change.clone(), operands),
            (None, None) => return failed("missing operand".into()),
        };
        if operands.is_empty() {
            return failed(format!("missing operand after '{change}'"));
        }
        if changed(&change, 0, FileType::File).is_none() {
            return failed(format!("invalid mode: '{change}'"));
        }
        let (mut stdout, mut stderr) = (String::new(), String::new());
        for operand in operands {
            let mut pending = vec![(absolute(ctx.cwd, operand), operand.clone())];
            while let Some((path, shown)) = pending.pop() {
                match set(&ctx, &path, &change).await {
                    Ok(mode) if line.verbose => {
                        stdout.push_str(&format!("mode of '{shown}' changed to {mode:04o}\n"))
                    }
                    Ok(_) => {}
                    Err(why) => stderr.push_str(&format!("chmod: {}\n", why.replace("{}", &shown))),
                }
                if line.recursive {
                    pending.extend(below(&ctx, &path, &shown).await);
                }
            }
        }
        let exit_code = i32::from(!stderr.is_empty());
        let stderr = if line.quiet { String::new() } else { stderr };
        Ok(ExecResult {
            stdout: stdout.into(),
            stderr: stderr.into(),
            exit_code,
            ..Default::default()
        })
    }
}

fn parse(args: &[String]) -> std::result::Result<Line, String> {
    let mut line = Line::default();
    let mut rest = args.iter();
    while let Some(arg) = rest.next() {
        match arg.as_str() {
            "--" => line.operands.extend(rest.by_ref().cloned()),
            "--recursive" => line.recursive = true,
            "--quiet" | "--silent" => line.quiet = true,
            "--verbose" | "--changes" => line.verbose = true,
            "--preserve-root" | "--no-preserve-root" => {}
            _ if arg.starts_with("--reference=") => {
                line.reference = arg.strip_prefix("--reference=").map(str::to_owned);
            }
            _ if arg.starts_with("--") => return Err(format!("unrecognized option '{arg}'")),
            _ => {
                // `-x` takes a permission away; `-R` is an option.
                let letters = arg.strip_prefix('-').unwrap_or_default();
                let is_options = !letters.is_empty() && letters.chars().all(|c| "Rcfv".contains(c));
                if !is_options {
                    line.operands.push(arg.clone());
                    continue;
                }
                line.recursive |= letters.contains('R');
                line.quiet |= letters.contains('f');
                line.verbose |= letters.contains(['v', 'c']);
            }
        }
    }
    Ok(line)
}

async fn set(
    ctx: &BuiltinContext<'_>,
    path: &Path,
    change: &str,
) -> std::result::Result<u32, String> {
    let metadata = ctx.fs.stat(path).await;
    let metadata = metadata.map_err(|error| format!("cannot access '{{}}': {}", reason(&error)))?;
    let mode = changed(change, metadata.mode & 0o7777, metadata.file_type).unwrap_or(metadata.mode);
    let done = ctx.fs.chmod(path, mode).await;
    done.map_err(|error| format!("changing permissions of '{{}}': {}", reason(&error)))?;
    Ok(mode)
}

async fn below(ctx: &BuiltinContext<'_>, path: &Path, shown: &str) -> Vec<(PathBuf, String)> {
    let is_directory = ctx.fs.lstat(path).await.is_ok_and(|m| m.file_type == FileType::Directory);
    if !is_directory {
        return Vec::new();
    }
    let entries = ctx.fs.read_dir(path).await.unwrap_or_default();
    // Links found on the way are left alone, as GNU does.
    let entries = entries.into_iter().filter(|e| e.metadata.file_type != FileType::Symlink);
    let entry = |e: bashkit::DirEntry| (path.join(&e.name), format!("{shown}/{}", e.name));
    entries.map(entry).collect()
}

/// Returns a mode after a change such as `755` or `u+x,go-w`; `None` when it is no change.
fn changed(change: &str, mode: u32, file_type: FileType) -> Option<u32> {
    if !change.is_empty() && change.bytes().all(|byte| (b'0'..=b'7').contains(&byte)) {
        return u32::from_str_radix(change, 8).ok().filter(|mode| *mode <= 0o7777);
    }
    change.split(',').try_fold(mode, |mode, clause| clause_applied(clause, mode, file_type))
}

fn clause_applied(clause: &str, mut mode: u32, file_type: FileType) -> Option<u32> {
    let at = clause.find(['+', '-', '='])?;
    let (who, mut actions) = clause.split_at_checked(at)?;
    let mut classes = 0;
    for letter in who.chars() {
        classes |= match letter {
            'u' => 0o4700,
            'g' => 0o2070,
            'o' => 0o1007,
            'a' => 0o7777,
            _ => return None,
        };
    }
    // Nobody named means everybody, less the mask every worker has.
    let (classes, mask) = if classes == 0 { (0o7777, 0o022) } else { (classes, 0) };
    while let Some(operator) = actions.chars().next() {
        let rest = actions.get(1..)?;
        let end = rest.find(['+', '-', '=']).unwrap_or(rest.len());
        let (permissions, following) = rest.split_at_checked(end)?;
        let has_x = mode & 0o111 != 0 || file_type == FileType::Directory;
        let mut bits = 0;
        for letter in permissions.chars() {
            bits |= match letter {
                'r' => 0o444,
                'w' => 0o222,
                'x' => 0o111,
                'X' if has_x => 0o111,
                'X' => 0,
                's' => 0o6000,
                't' => 0o1000,
                'u' => (mode >> 6 & 7) * 0o111,
                'g' => (mode >> 3 & 7) * 0o111,
                'o' => (mode & 7) * 0o111,
                _ => return None,
            };
        }
        let bits = bits & classes & !mask;
        mode = match operator {
            '+' => mode | bits,
            '-' => mode & !bits,
            '=' => mode & !(classes & 0o777) | bits,
            _ => return None,
        };
        actions = following;
    }
    Some(mode)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbolic_modes_change_what_they_name() {
        let check = |change: &str, mode: u32, expected: Option<u32>| {
            assert_eq!(changed(change, mode, FileType::File), expected, "{change} on {mode:o}");
        };
        check("755", 0o644, Some(0o755));
        check("u+x", 0o644, Some(0o744));
        check("+x", 0o644, Some(0o755));
        check("go-rwx", 0o755, Some(0o700));
        check("u=rw,go=r", 0o777, Some(0o644));
        check("a+X", 0o644, Some(0o644));
        check("a+X", 0o744, Some(0o755));
        check("g=u", 0o740, Some(0o770));
        check("-w", 0o666, Some(0o466));
        check("u+q", 0o644, None);
        check("9", 0o644, None);
    }
}
