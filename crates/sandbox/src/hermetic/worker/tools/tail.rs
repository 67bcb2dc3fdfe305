//! `tail`, with `-f`.

use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;
use bashkit::{Command, CommandContext, CommandStatus, Result};

use super::arguments::{self, Arguments, Known, flag, size, valued};
use super::{absolute, complain, reason};

const OPTIONS: [Known; 11] = [
    valued('n', "lines"),
    valued('c', "bytes"),
    valued('s', "sleep-interval"),
    valued('\0', "pid"),
    flag('f', "follow"),
    flag('F', ""),
    flag('\0', "retry"),
    flag('q', "quiet"),
    flag('v', "verbose"),
    flag('z', "zero-terminated"),
    flag('\0', "silent"),
];

/// How often a followed file is looked at.
const LOOKS_EVERY: Duration = Duration::from_millis(100);

/// The command `tail`.
pub(super) struct Tail;

/// Where the wanted part starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Start {
    LastBytes(usize),
    LastLines(usize),
    FromByte(usize),
    FromLine(usize),
}

#[async_trait]
impl Command for Tail {
    async fn execute(&self, ctx: CommandContext<'_>) -> Result<CommandStatus> {
        let parsed = arguments::parse("tail", &modern(ctx.args), &OPTIONS)
            .and_then(|parsed| start(&parsed).map(|start| (parsed, start)));
        let (args, start) = match parsed {
            Ok(parsed) => parsed,
            Err(complaint) => {
                complain(&ctx.stderr, &complaint).await?;
                return Ok(CommandStatus::with_code(1));
            }
        };
        let (code, mut followed) = print(&ctx, &args, start).await?;
        if args.has("f") || args.has("F") {
            follow(&ctx, &mut followed).await?;
        }
        Ok(CommandStatus::with_code(code))
    }
}

/// A file that is followed, and how much of it was shown.
struct Followed {
    shown: String,
    path: PathBuf,
    bytes: usize,
    titled: bool,
}

async fn print(
    ctx: &CommandContext<'_>,
    args: &Arguments,
    start: Start,
) -> Result<(i32, Vec<Followed>)> {
    let end = if args.has("z") { 0 } else { b'\n' };
    let standard = ["-".to_owned()];
    let operands = if args.operands.is_empty() { &standard[..] } else { &args.operands };
    let is_quiet = args.has("q") || args.has("silent");
    let titled = args.has("v") || (operands.len() > 1 && !is_quiet);
    let (mut code, mut gap, mut followed) = (0, "", Vec::new());
    for operand in operands {
        let path = absolute(ctx.cwd, operand);
        let is_standard = operand == "-" || path.to_str() == Some("/dev/stdin");
        let shown = if is_standard { "standard input" } else { operand };
        let bytes = match is_standard {
            true => read_standard(ctx).await?,
            false => match ctx.fs.read_file(&path).await {
                Ok(bytes) => bytes,
                Err(error) => {
                    let why = match reason(&error) {
                        why if why == "Is a directory" => format!("error reading '{shown}': {why}"),
                        why => format!("cannot open '{shown}' for reading: {why}"),
                    };
                    complain(&ctx.stderr, &format!("tail: {why}")).await?;
                    code = 1;
                    continue;
                }
            },
        };
        if titled {
            ctx.stdout.write_all(format!("{gap}==> {shown} <==\n").as_bytes()).await?;
            gap = "\n";
        }
        ctx.stdout.write_all(bytes.get(from(&bytes, start, end)..).unwrap_or_default()).await?;
        if !is_standard {
            followed.push(Followed { shown: shown.to_owned(), path, bytes: bytes.len(), titled });
        }
    }
    Ok((code, followed))
}

async fn read_standard(ctx: &CommandContext<'_>) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    while let Some(chunk) = ctx.stdin.read_chunk().await? {
        bytes.extend(chunk);
    }
    Ok(bytes)
}

/// Shows what is added to the files, until the run or the reader ends.
async fn follow(ctx: &CommandContext<'_>, followed: &mut [Followed]) -> Result<()> {
    while !followed.is_empty() {
        tokio::time::sleep(LOOKS_EVERY).await;
        for file in followed.iter_mut() {
            let Ok(bytes) = ctx.fs.read_file(&file.path).await else { continue };
            if bytes.len() < file.bytes {
                complain(&ctx.stderr, &format!("tail: {}: file truncated", file.shown)).await?;
                file.bytes = 0;
            }
            let added = bytes.get(file.bytes..).unwrap_or_default();
            if added.is_empty() {
                continue;
            }
            if file.titled {
                ctx.stdout.write_all(format!("\n==> {} <==\n", file.shown).as_bytes()).await?;
            }
            ctx.stdout.write_all(added).await?;
            file.bytes = bytes.len();
        }
    }
    Ok(())
}

/// Spells `-5` and `+5` as `-n5` and `-n+5`, which is how they are read.
fn modern(args: &[String]) -> Vec<String> {
    let is_count = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let old = |arg: &str| match (arg.strip_prefix('-'), arg.strip_prefix('+')) {
        (Some(digits), _) if is_count(digits) => Some(format!("-n{digits}")),
        (_, Some(digits)) if is_count(digits) => Some(format!("-n+{digits}")),
        _ => None,
    };
    let mut is_value = false;
    let spell = |arg: &String| {
        let was_value = std::mem::replace(&mut is_value, matches!(arg.as_str(), "-n" | "-c"));
        if was_value { arg.clone() } else { old(arg).unwrap_or_else(|| arg.clone()) }
    };
    args.iter().map(spell).collect()
}

fn start(args: &Arguments) -> std::result::Result<Start, String> {
    let mut start = Start::LastLines(10);
    for (option, value) in &args.options {
        let is_lines = match option.as_str() {
            "n" => true,
            "c" => false,
            _ => continue,
        };
        let (count, from_start) = match value.strip_prefix('+') {
            Some(count) => (count, true),
            None => (value.strip_prefix('-').unwrap_or(value), false),
        };
        let unit = if is_lines { "lines" } else { "bytes" };
        let count =
            size(count).ok_or_else(|| format!("tail: invalid number of {unit}: '{value}'"))?;
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        start = match (is_lines, from_start) {
            (true, false) => Start::LastLines(count),
            (true, true) => Start::FromLine(count),
            (false, false) => Start::LastBytes(count),
            (false, true) => Start::FromByte(count),
        };
    }
    Ok(start)
}

/// Returns the byte at which the wanted part starts.
fn from(bytes: &[u8], start: Start, end: u8) -> usize {
    let all = bytes.len();
    match start {
        Start::LastBytes(count) => all.saturating_sub(count),
        Start::FromByte(count) => count.saturating_sub(1).min(all),
        Start::LastLines(0) => all,
        Start::LastLines(count) => {
            let body = all - usize::from(bytes.last() == Some(&end));
            let body = bytes.get(..body).unwrap_or_default();
            let mut ends = body.iter().enumerate().rev().filter(|(_, byte)| **byte == end);
            ends.nth(count - 1).map_or(0, |(at, _)| at + 1)
        }
        Start::FromLine(0 | 1) => 0,
        Start::FromLine(count) => {
            let mut ends = bytes.iter().enumerate().filter(|(_, byte)| **byte == end);
            ends.nth(count - 2).map_or(all, |(at, _)| at + 1)
        }
    }
}
