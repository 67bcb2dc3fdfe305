//! `realpath`, with `--relative-to`.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};

use async_trait::async_trait;
use bashkit::{Builtin, BuiltinContext, ExecResult, FileSystem, FileType, Result};

use super::arguments::{self, Arguments, Known, flag, valued};
use super::{absolute, reason};

const OPTIONS: [Known; 9] = [
    flag('e', "canonicalize-existing"),
    flag('m', "canonicalize-missing"),
    flag('L', "logical"),
    flag('P', "physical"),
    flag('q', "quiet"),
    flag('s', "no-symlinks"),
    flag('z', "zero"),
    valued('\0', "relative-to"),
    valued('\0', "relative-base"),
];

/// As many links as Linux follows.
const MAX_LINKS: usize = 40;

/// The command `realpath`.
pub(super) struct Realpath;

/// How much of a path must be there.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Existing {
    Everything,
    AllButTheLast,
    Nothing,
}

#[async_trait]
impl Builtin for Realpath {
    async fn execute(&self, ctx: BuiltinContext<'_>) -> Result<ExecResult> {
        let args = match arguments::parse("realpath", ctx.args, &OPTIONS) {
            Ok(args) if args.operands.is_empty() => {
                return Ok(ExecResult::err("realpath: missing operand\n", 1));
            }
            Ok(args) => args,
            Err(complaint) => return Ok(ExecResult::err(format!("{complaint}\n"), 1)),
        };
        let end = if args.has("z") { '\0' } else { '\n' };
        let (mut stdout, mut stderr, mut exit_code) = (String::new(), String::new(), 0);
        for operand in &args.operands {
            match shown(&ctx, &args, operand).await {
                Ok(path) => {
                    stdout.push_str(&path.to_string_lossy());
                    stdout.push(end);
                }
                Err(why) => {
                    exit_code = 1;
                    if !args.has("q") {
                        stderr.push_str(&format!("realpath: {why}\n"));
                    }
                }
            }
        }
        Ok(ExecResult {
            stdout: stdout.into(),
            stderr: stderr.into(),
            exit_code,
            ..Default::default()
        })
    }
}

async fn shown(
    ctx: &BuiltinContext<'_>,
    args: &Arguments,
    operand: &str,
) -> std::result::Result<PathBuf, String> {
    let path = resolve(ctx, args, operand).await?;
    let base = match args.value("relative-base") {
        Some(base) => Some(resolve(ctx, args, base).await?),
        None => None,
    };
    let to = match args.value("relative-to") {
        Some(to) => Some(resolve(ctx, args, to).await?),
        None => base.clone(),
    };
    let Some(to) = to else { return Ok(path) };
    let is_below = |base: &PathBuf| path.starts_with(base) && to.starts_with(base);
    if base.as_ref().is_some_and(|base| !is_below(base)) {
        return Ok(path);
    }
    Ok(relative(&path, &to))
}

async fn resolve(
    ctx: &BuiltinContext<'_>,
    args: &Arguments,
    path: &str,
) -> std::result::Result<PathBuf, String> {
    let failed = |why: &str| format!("{path}: {why}");
    if path.is_empty() {
        return Err("'': No such file or directory".into());
    }
    let existing = match (args.has("e"), args.has("m")) {
        (true, _) => Existing::Everything,
        (_, true) => Existing::Nothing,
        _ => Existing::AllButTheLast,
    };
    if args.has("s") {
        let plain = absolute(ctx.cwd, path);
        let found = ctx.fs.stat(&plain).await;
        return match found {
            Err(error) if existing == Existing::Everything => Err(failed(&reason(&error))),
            _ => Ok(plain),
        };
    }
    canonical(&*ctx.fs, &ctx.cwd.join(path), existing).await.map_err(|why| failed(&why))
}

/// Returns a path without links or dots.
async fn canonical(
    fs: &dyn FileSystem,
    path: &Path,
    existing: Existing,
) -> std::result::Result<PathBuf, String> {
    let mut pending: VecDeque<OsString> = names(path);
    let mut resolved = PathBuf::from("/");
    let mut links = 0;
    while let Some(name) = pending.pop_front() {
        if name == ".." {
            resolved.pop();
            continue;
        }
        let next = resolved.join(&name);
        match fs.lstat(&next).await {
            Ok(metadata) if metadata.file_type == FileType::Symlink => {
                links += 1;
                if links > MAX_LINKS {
                    return Err("Too many levels of symbolic links".into());
                }
                let target = fs.read_link(&next).await.map_err(|error| reason(&error))?;
                if target.is_absolute() {
                    resolved = PathBuf::from("/");
                }
                for name in names(&target).into_iter().rev() {
                    pending.push_front(name);
                }
            }
            Ok(metadata) => {
                let is_way = !pending.is_empty() && existing != Existing::Nothing;
                if is_way && metadata.file_type != FileType::Directory {
                    return Err("Not a directory".into());
                }
                resolved = next;
            }
            Err(error) => {
                let may_be_missing = match existing {
                    Existing::Everything => false,
                    Existing::AllButTheLast => pending.is_empty(),
                    Existing::Nothing => true,
                };
                if !may_be_missing {
                    return Err(reason(&error));
                }
                resolved = next;
            }
        }
    }
    Ok(resolved)
}

fn names(path: &Path) -> VecDeque<OsString> {
    let name = |component: Component<'_>| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some(OsString::from("..")),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    };
    path.components().filter_map(name).collect()
}

/// Returns the way from `to` to `path`.
fn relative(path: &Path, to: &Path) -> PathBuf {
    let shared = path.components().zip(to.components()).take_while(|(a, b)| a == b).count();
    let climbs = to.components().count() - shared;
    let mut way: PathBuf = std::iter::repeat_n("..", climbs).collect();
    way.extend(path.components().skip(shared));
    if way.as_os_str().is_empty() { PathBuf::from(".") } else { way }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_between_two_paths_is_the_shortest() {
        let check = |path: &str, to: &str, expected: &str| {
            assert_eq!(relative(path.as_ref(), to.as_ref()), Path::new(expected));
        };
        check("/a/b", "/a", "b");
        check("/a", "/a/b", "..");
        check("/a/b/c", "/a/x/y", "../../b/c");
        check("/a", "/a", ".");
        check("/a", "/", "a");
    }
}
