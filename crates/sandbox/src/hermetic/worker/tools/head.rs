//! `head`, which reads an endless device for as long as it is asked to.

use async_trait::async_trait;
use bashkit::{Command, CommandContext, CommandOutput, CommandStatus, Error, Result};

use super::arguments::{self, Known, flag, size, valued};
use super::source::Source;
use super::{complain, reason};

const OPTIONS: [Known; 6] = [
    valued('n', "lines"),
    valued('c', "bytes"),
    flag('q', "quiet"),
    flag('\0', "silent"),
    flag('v', "verbose"),
    flag('z', "zero-terminated"),
];

/// The command `head`.
pub(super) struct Head;

/// How much of the input is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    FirstBytes(u64),
    FirstLines(u64),
    AllButLastBytes(u64),
    AllButLastLines(u64),
}

#[async_trait]
impl Command for Head {
    async fn execute(&self, ctx: CommandContext<'_>) -> Result<CommandStatus> {
        let parsed = arguments::parse("head", &modern(ctx.args), &OPTIONS)
            .and_then(|parsed| part(&parsed.options).map(|part| (parsed, part)));
        let (args, part) = match parsed {
            Ok(parsed) => parsed,
            Err(complaint) => {
                complain(&ctx.stderr, &complaint).await?;
                return Ok(CommandStatus::with_code(1));
            }
        };
        let end = if args.has("z") { 0 } else { b'\n' };
        let standard = ["-".to_owned()];
        let operands = if args.operands.is_empty() { &standard[..] } else { &args.operands };
        let is_quiet = args.has("q") || args.has("silent");
        let titled = args.has("v") || (operands.len() > 1 && !is_quiet);
        let (mut code, mut gap) = (0, "");
        for operand in operands {
            let shown = if operand == "-" { "standard input" } else { operand };
            let mut source = match Source::open(&ctx, operand).await {
                Ok(source) => source,
                Err(error) => {
                    let why = match reason(&error) {
                        why if why == "Is a directory" => format!("error reading '{shown}': {why}"),
                        why => format!("cannot open '{shown}' for reading: {why}"),
                    };
                    complain(&ctx.stderr, &format!("head: {why}")).await?;
                    code = 1;
                    continue;
                }
            };
            if titled {
                ctx.stdout.write_all(format!("{gap}==> {shown} <==\n").as_bytes()).await?;
                gap = "\n";
            }
            copy(&mut source, &ctx.stdout, part, end).await?;
        }
        Ok(CommandStatus::with_code(code))
    }
}

/// Spells `-5` as `-n5`, which is how it is read.
fn modern(args: &[String]) -> Vec<String> {
    let old = |arg: &String| {
        let digits = arg.strip_prefix('-')?;
        let is_count = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        is_count.then(|| format!("-n{digits}"))
    };
    let mut is_value = false;
    let spell = |arg: &String| {
        // What follows `-n` or `-c` is their value, also when it looks like a count.
        let was_value = std::mem::replace(&mut is_value, matches!(arg.as_str(), "-n" | "-c"));
        if was_value { arg.clone() } else { old(arg).unwrap_or_else(|| arg.clone()) }
    };
    args.iter().map(spell).collect()
}

fn part(options: &[(String, String)]) -> std::result::Result<Part, String> {
    let mut part = Part::FirstLines(10);
    for (option, value) in options {
        let is_lines = match option.as_str() {
            "n" => true,
            "c" => false,
            _ => continue,
        };
        let (count, from_end) = match value.strip_prefix('-') {
            Some(count) => (count, true),
            None => (value.strip_prefix('+').unwrap_or(value), false),
        };
        let unit = if is_lines { "lines" } else { "bytes" };
        let count =
            size(count).ok_or_else(|| format!("head: invalid number of {unit}: '{value}'"))?;
        part = match (is_lines, from_end) {
            (true, false) => Part::FirstLines(count),
            (true, true) => Part::AllButLastLines(count),
            (false, false) => Part::FirstBytes(count),
            (false, true) => Part::AllButLastBytes(count),
        };
    }
    Ok(part)
}

async fn copy(source: &mut Source, out: &CommandOutput, part: Part, end: u8) -> Result<()> {
    let mut left = match part {
        Part::FirstBytes(count) | Part::FirstLines(count) => count,
        Part::AllButLastBytes(count) => return copy_all_but(source, out, count, None).await,
        Part::AllButLastLines(count) => return copy_all_but(source, out, count, Some(end)).await,
    };
    while left > 0 {
        let bytes = source.next().await?;
        if bytes.is_empty() {
            break;
        }
        let taken = match part {
            Part::FirstLines(_) => {
                let mut ends = bytes.iter().enumerate().filter(|(_, byte)| **byte == end);
                let wanted = usize::try_from(left - 1).unwrap_or(usize::MAX);
                let lines = bytes.iter().filter(|byte| **byte == end).count() as u64;
                left = left.saturating_sub(lines);
                ends.nth(wanted).map_or(bytes.len(), |(at, _)| at + 1)
            }
            _ => {
                let taken = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
                left -= taken as u64;
                taken
            }
        };
        out.write_all(bytes.get(..taken).unwrap_or(&bytes)).await?;
    }
    Ok(())
}

/// Copies all but the last `count` bytes, or lines that end with `end`.
async fn copy_all_but(
    source: &mut Source,
    out: &CommandOutput,
    count: u64,
    end: Option<u8>,
) -> Result<()> {
    if source.is_endless() {
        return Err(Error::Io(std::io::Error::other("the device has no end to count from")));
    }
    let mut bytes = Vec::new();
    loop {
        match source.next().await? {
            chunk if chunk.is_empty() => break,
            chunk => bytes.extend(chunk),
        }
    }
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    let kept = match end {
        None => bytes.len().saturating_sub(count),
        Some(_) if count == 0 => bytes.len(),
        Some(end) => {
            let body = bytes.len() - usize::from(bytes.last() == Some(&end));
            let body = bytes.get(..body).unwrap_or_default();
            let mut ends = body.iter().enumerate().rev().filter(|(_, byte)| **byte == end);
            ends.nth(count - 1).map_or(0, |(at, _)| at + 1)
        }
    };
    out.write_all(bytes.get(..kept).unwrap_or_default()).await
}
