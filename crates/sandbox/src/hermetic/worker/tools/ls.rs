//! `ls`, for lists that are read by programs: one name a line unless asked otherwise.

use std::cmp::Ordering;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use bashkit::{Builtin, BuiltinContext, DirEntry, ExecResult, FileType, Metadata, Result};

use super::arguments::{self, Arguments, Known, flag, valued};
use super::dates::day_and_time;
use super::{absolute, reason};

const OPTIONS: [Known; 31] = [
    flag('a', "all"),
    flag('A', "almost-all"),
    flag('l', ""),
    flag('1', ""),
    flag('h', "human-readable"),
    flag('R', "recursive"),
    flag('t', ""),
    flag('S', ""),
    flag('r', "reverse"),
    flag('U', ""),
    flag('f', ""),
    flag('X', ""),
    flag('v', ""),
    flag('d', "directory"),
    flag('F', "classify"),
    flag('p', ""),
    flag('i', "inode"),
    flag('n', "numeric-uid-gid"),
    flag('g', ""),
    flag('o', ""),
    flag('G', "no-group"),
    flag('s', "size"),
    flag('k', "kibibytes"),
    flag('m', ""),
    flag('L', "dereference"),
    flag('H', "dereference-command-line"),
    flag('N', "literal"),
    flag('\0', "group-directories-first"),
    flag('\0', "full-time"),
    valued('\0', "sort"),
    valued('\0', "time-style"),
];

/// The owner every file is shown with.
const OWNER: &str = "agent";
const OWNER_ID: &str = "1000";

/// A file not touched for longer than this is listed with its year.
const HALF_A_YEAR: u64 = 15_778_476;

/// The command `ls`.
pub(super) struct Ls;

/// One entry of a list.
struct Item {
    name: String,
    path: PathBuf,
    metadata: Metadata,
    target: Option<PathBuf>,
}

#[async_trait]
impl Builtin for Ls {
    async fn execute(&self, ctx: BuiltinContext<'_>) -> Result<ExecResult> {
        // A list for a terminal is colored; there is none here.
        let args: Vec<String> =
            ctx.args.iter().filter(|arg| !arg.starts_with("--color")).cloned().collect();
        let args = match arguments::parse("ls", &args, &OPTIONS) {
            Ok(args) => args,
            Err(complaint) => return Ok(ExecResult::err(format!("{complaint}\n"), 2)),
        };
        let here = [".".to_owned()];
        let operands = if args.operands.is_empty() { &here[..] } else { &args.operands };
        let mut list =
            List { ctx: &ctx, args: &args, stdout: String::new(), stderr: String::new(), code: 0 };
        let (mut files, mut directories) = (Vec::new(), Vec::new());
        for operand in operands {
            match list.item(operand).await {
                Ok(item) if item.metadata.file_type == FileType::Directory && !args.has("d") => {
                    directories.push(item)
                }
                Ok(item) => files.push(item),
                Err(why) => {
                    list.stderr.push_str(&format!("ls: cannot access '{operand}': {why}\n"));
                    list.code = 2;
                }
            }
        }
        list.sort(&mut files);
        list.sort(&mut directories);
        list.print(&files);
        let titled = operands.len() > 1 || args.has("R");
        for directory in directories {
            list.directory(directory, titled).await;
        }
        let List { stdout, stderr, code, .. } = list;
        Ok(ExecResult {
            stdout: stdout.into(),
            stderr: stderr.into(),
            exit_code: code,
            ..Default::default()
        })
    }
}

struct List<'a> {
    ctx: &'a BuiltinContext<'a>,
    args: &'a Arguments,
    stdout: String,
    stderr: String,
    code: i32,
}

impl List<'_> {
    fn is_long(&self) -> bool {
        ["l", "n", "g", "o", "full-time"].iter().any(|option| self.args.has(option))
    }

    /// Looks at an operand; a link to a directory is followed unless its own line is wanted.
    async fn item(&self, operand: &str) -> std::result::Result<Item, String> {
        if operand.is_empty() {
            return Err("No such file or directory".into());
        }
        let path = absolute(self.ctx.cwd, operand);
        let fs = &self.ctx.fs;
        let own = fs.lstat(&path).await.map_err(|error| reason(&error))?;
        let is_link = own.file_type == FileType::Symlink;
        let keeps_link = (self.is_long() || self.args.has("d") || self.args.has("F"))
            && !operand.ends_with('/')
            && !self.args.has("L")
            && !self.args.has("H");
        let metadata = match is_link && !keeps_link {
            true => fs.stat(&path).await.unwrap_or(own),
            false => own,
        };
        let target = match metadata.file_type {
            FileType::Symlink => fs.read_link(&path).await.ok(),
            _ => None,
        };
        Ok(Item { name: operand.to_owned(), path, metadata, target })
    }

    async fn directory(&mut self, directory: Item, titled: bool) {
        let mut pending = vec![directory];
        while let Some(Item { name, path, .. }) = pending.pop() {
            let entries = match self.ctx.fs.read_dir(&path).await {
                Ok(entries) => entries,
                Err(error) => {
                    self.stderr.push_str(&format!(
                        "ls: cannot open directory '{name}': {}\n",
                        reason(&error)
                    ));
                    self.code = 2;
                    continue;
                }
            };
            let mut items = self.visible(&path, entries).await;
            self.sort(&mut items);
            if titled {
                let gap = if self.stdout.is_empty() { "" } else { "\n" };
                self.stdout.push_str(&format!("{gap}{name}:\n"));
            }
            if self.is_long() || self.args.has("s") {
                let blocks: u64 = items.iter().map(|item| blocks(&item.metadata)).sum();
                self.stdout.push_str(&format!("total {blocks}\n"));
            }
            self.print(&items);
            if self.args.has("R") {
                let is_below = |item: &Item| {
                    item.metadata.file_type == FileType::Directory
                        && !matches!(item.name.as_str(), "." | "..")
                };
                let below = items.into_iter().filter(is_below).rev();
                let prefix = if name.ends_with('/') { name } else { format!("{name}/") };
                pending.extend(
                    below.map(|item| Item { name: format!("{prefix}{}", item.name), ..item }),
                );
            }
        }
    }

    async fn visible(&self, path: &Path, entries: Vec<DirEntry>) -> Vec<Item> {
        let all = self.args.has("a") || self.args.has("f");
        let mut items = Vec::new();
        if all {
            for (name, path) in [(".", path), ("..", path.parent().unwrap_or(path))] {
                if let Ok(metadata) = self.ctx.fs.stat(path).await {
                    items.push(Item {
                        name: name.into(),
                        path: path.to_owned(),
                        metadata,
                        target: None,
                    });
                }
            }
        }
        let shows_hidden = all || self.args.has("A");
        for entry in entries {
            if entry.name.starts_with('.') && !shows_hidden {
                continue;
            }
            let path = path.join(&entry.name);
            let is_link = entry.metadata.file_type == FileType::Symlink;
            let (metadata, target) = match is_link {
                true if self.args.has("L") => {
                    (self.ctx.fs.stat(&path).await.unwrap_or(entry.metadata), None)
                }
                true => (entry.metadata, self.ctx.fs.read_link(&path).await.ok()),
                false => (entry.metadata, None),
            };
            items.push(Item { name: entry.name, path, metadata, target });
        }
        items
    }

    fn sort(&self, items: &mut [Item]) {
        let order = self.args.options.iter().rev().find_map(|(option, value)| {
            let order = match (option.as_str(), value.as_str()) {
                ("t", _) | ("sort", "time") => "time",
                ("S", _) | ("sort", "size") => "size",
                ("X", _) | ("sort", "extension") => "extension",
                ("U" | "f", _) | ("sort", "none") => "none",
                ("v", _) | ("sort", "version") => "version",
                _ => return None,
            };
            Some(order)
        });
        let by_name = |a: &Item, b: &Item| a.name.cmp(&b.name);
        let by = |a: &Item, b: &Item| match order {
            Some("none") => Ordering::Equal,
            Some("time") => b.metadata.modified.cmp(&a.metadata.modified).then(by_name(a, b)),
            Some("size") => b.metadata.size.cmp(&a.metadata.size).then(by_name(a, b)),
            Some("extension") => extension(&a.name).cmp(extension(&b.name)).then(by_name(a, b)),
            Some("version") => version(&a.name).cmp(&version(&b.name)).then(by_name(a, b)),
            _ => by_name(a, b),
        };
        items.sort_by(by);
        if self.args.has("r") {
            items.reverse();
        }
        if self.args.has("group-directories-first") {
            items.sort_by_key(|item| item.metadata.file_type != FileType::Directory);
        }
    }

    fn print(&mut self, items: &[Item]) {
        let lines: Vec<Vec<String>> = items.iter().map(|item| self.columns(item)).collect();
        let count = lines.iter().map(Vec::len).max().unwrap_or(0);
        let width = |at: usize| {
            lines
                .iter()
                .filter_map(|line| line.get(at))
                .map(|cell| cell.chars().count())
                .max()
                .unwrap_or(0)
        };
        let widths: Vec<usize> = (0..count).map(width).collect();
        let is_list = self.args.has("m");
        let mut shown = Vec::new();
        for line in &lines {
            let last = line.len().saturating_sub(1);
            let cells = line.iter().zip(&widths).enumerate().map(|(at, (cell, width))| {
                let is_text = at == last
                    || cell.starts_with(|c: char| c.is_alphabetic() && c != '-')
                        && self.is_owner(cell);
                match (at == last, is_text) {
                    (true, _) => cell.clone(),
                    (false, true) => format!("{cell:<width$}"),
                    (false, false) => format!("{cell:>width$}"),
                }
            });
            shown.push(cells.collect::<Vec<_>>().join(" "));
        }
        if is_list && !self.is_long() {
            if !shown.is_empty() {
                self.stdout.push_str(&format!("{}\n", shown.join(", ")));
            }
            return;
        }
        for line in shown {
            self.stdout.push_str(&line);
            self.stdout.push('\n');
        }
    }

    fn is_owner(&self, cell: &str) -> bool {
        cell == OWNER
    }

    fn columns(&self, item: &Item) -> Vec<String> {
        let mut columns = Vec::new();
        if self.args.has("i") {
            columns.push(inode(&item.path).to_string());
        }
        if self.args.has("s") {
            columns.push(blocks(&item.metadata).to_string());
        }
        if self.is_long() {
            let owner = if self.args.has("n") { OWNER_ID } else { OWNER };
            columns.push(permissions(&item.metadata));
            columns.push(
                if item.metadata.file_type == FileType::Directory { "2" } else { "1" }.into(),
            );
            if !self.args.has("g") {
                columns.push(owner.into());
            }
            if !self.args.has("o") && !self.args.has("G") {
                columns.push(owner.into());
            }
            columns.push(self.size(item.metadata.size));
            columns.push(self.time(item.metadata.modified));
        }
        let link = match &item.target {
            Some(target) if self.is_long() => format!(" -> {}", target.to_string_lossy()),
            _ => self.mark(item).to_owned(),
        };
        columns.push(format!("{}{link}", item.name));
        columns
    }

    fn mark(&self, item: &Item) -> &'static str {
        let (classifies, slashes) = (self.args.has("F"), self.args.has("p"));
        match item.metadata.file_type {
            FileType::Directory if classifies || slashes => "/",
            FileType::Symlink if classifies => "@",
            FileType::Fifo if classifies => "|",
            FileType::File if classifies && item.metadata.mode & 0o111 != 0 => "*",
            _ => "",
        }
    }

    fn size(&self, bytes: u64) -> String {
        if !self.args.has("h") || bytes < 1024 {
            return bytes.to_string();
        }
        let (mut tenths, mut unit) = (bytes.saturating_mul(10).div_ceil(1024), 0);
        while tenths >= 10_240 && unit < 5 {
            tenths = tenths.div_ceil(1024);
            unit += 1;
        }
        let letter = "KMGTPE".chars().nth(unit).unwrap_or('?');
        if tenths < 100 {
            format!("{}.{}{letter}", tenths / 10, tenths % 10)
        } else {
            format!("{}{letter}", tenths.div_ceil(10))
        }
    }

    fn time(&self, time: SystemTime) -> String {
        let seconds = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        let moment = day_and_time(i64::try_from(seconds.as_secs()).unwrap_or(0));
        let (year, month, day) = (moment.year, moment.month, moment.day);
        let clock = format!("{:02}:{:02}", moment.hours, moment.minutes);
        let full = self.args.has("full-time") || self.args.value("time-style") == Some("full-iso");
        match self.args.value("time-style") {
            _ if full => format!(
                "{year}-{month:02}-{day:02} {clock}:{:02}.{:09} +0000",
                moment.seconds,
                seconds.subsec_nanos()
            ),
            Some("long-iso") => format!("{year}-{month:02}-{day:02} {clock}"),
            Some("iso") => format!("{month:02}-{day:02} {clock}"),
            _ => {
                let months = "JanFebMarAprMayJunJulAugSepOctNovDec";
                let at = usize::try_from(month - 1).unwrap_or(0) * 3;
                let name = months.get(at..at + 3).unwrap_or("???");
                let age = SystemTime::now().duration_since(time).unwrap_or_default();
                let tail = if age.as_secs() > HALF_A_YEAR { format!(" {year}") } else { clock };
                format!("{name} {day:>2} {tail}")
            }
        }
    }
}

fn permissions(metadata: &Metadata) -> String {
    let kind = match metadata.file_type {
        FileType::Directory => 'd',
        FileType::File => '-',
        FileType::Symlink => 'l',
        FileType::Fifo => 'p',
    };
    let bit = |at: u32, letter: char| if metadata.mode >> at & 1 == 1 { letter } else { '-' };
    let bits = (0..9).rev().zip("rwxrwxrwx".chars()).map(|(at, letter)| bit(at, letter));
    std::iter::once(kind).chain(bits).collect()
}

/// Blocks of 1024 bytes, as most filesystems give them out: four at a time.
fn blocks(metadata: &Metadata) -> u64 {
    match metadata.file_type {
        FileType::Directory => 4,
        FileType::File => metadata.size.div_ceil(4096) * 4,
        FileType::Symlink | FileType::Fifo => 0,
    }
}

/// Returns a number that is the same for the same path. Hard links are not told from copies.
fn inode(path: &Path) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in path.to_string_lossy().bytes() {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    hash >> 32
}

fn extension(name: &str) -> &str {
    name.rsplit_once('.').map_or("", |(_, extension)| extension)
}

/// Returns a name with its numbers apart, so that `a10` comes after `a9`.
fn version(name: &str) -> Vec<(String, u64)> {
    let mut parts = Vec::new();
    let (mut text, mut number) = (String::new(), None::<u64>);
    for c in name.chars() {
        match c.to_digit(10) {
            Some(digit) => {
                number =
                    Some(number.unwrap_or(0).saturating_mul(10).saturating_add(u64::from(digit)))
            }
            None => {
                if let Some(number) = number.take() {
                    parts.push((std::mem::take(&mut text), number));
                }
                text.push(c);
            }
        }
    }
    parts.push((text, number.unwrap_or(0)));
    parts
}
