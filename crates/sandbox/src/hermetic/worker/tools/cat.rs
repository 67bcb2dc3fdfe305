//! `cat`, which reads an endless device for as long as somebody reads from it.

use async_trait::async_trait;
use bashkit::{Command, CommandContext, CommandStatus, Result};

use super::arguments::{self, Arguments, Known, flag};
use super::complain;
use super::source::Source;

const OPTIONS: [Known; 10] = [
    flag('A', "show-all"),
    flag('b', "number-nonblank"),
    flag('e', ""),
    flag('E', "show-ends"),
    flag('n', "number"),
    flag('s', "squeeze-blank"),
    flag('t', ""),
    flag('T', "show-tabs"),
    flag('u', ""),
    flag('v', "show-nonprinting"),
];

/// The command `cat`.
pub(super) struct Cat;

/// How lines are shown, and where in the lines the output stands.
struct Shown {
    numbers: bool,
    only_full: bool,
    squeezes: bool,
    ends: bool,
    tabs: bool,
    marks: bool,
    line: u64,
    is_start: bool,
    blanks: u32,
}

impl Shown {
    fn new(args: &Arguments) -> Self {
        let any = |options: &[&str]| options.iter().any(|option| args.has(option));
        Self {
            numbers: any(&["n", "b"]),
            only_full: args.has("b"),
            squeezes: args.has("s"),
            ends: any(&["E", "e", "A"]),
            tabs: any(&["T", "t", "A"]),
            marks: any(&["v", "e", "t", "A"]),
            line: 0,
            is_start: true,
            blanks: 0,
        }
    }

    fn is_plain(&self) -> bool {
        !(self.numbers || self.squeezes || self.ends || self.tabs || self.marks)
    }

    fn apply(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut shown = Vec::with_capacity(bytes.len() * 2);
        for byte in bytes {
            if self.is_start {
                let is_blank = *byte == b'\n';
                self.blanks = if is_blank { self.blanks + 1 } else { 0 };
                if self.squeezes && self.blanks > 1 {
                    continue;
                }
                if self.numbers && !(self.only_full && is_blank) {
                    self.line += 1;
                    shown.extend(format!("{:>6}\t", self.line).bytes());
                }
            }
            self.is_start = *byte == b'\n';
            match byte {
                b'\n' if self.ends => shown.extend(b"$\n"),
                b'\t' if self.tabs => shown.extend(b"^I"),
                b'\n' | b'\t' => shown.push(*byte),
                byte if self.marks => mark(*byte, &mut shown),
                byte => shown.push(*byte),
            }
        }
        shown
    }
}

fn mark(byte: u8, shown: &mut Vec<u8>) {
    let plain = match byte {
        128.. => {
            shown.extend(b"M-");
            byte - 128
        }
        _ => byte,
    };
    match plain {
        127 => shown.extend(b"^?"),
        0..=31 => shown.extend([b'^', plain + 64]),
        _ => shown.push(plain),
    }
}

#[async_trait]
impl Command for Cat {
    async fn execute(&self, ctx: CommandContext<'_>) -> Result<CommandStatus> {
        let args = match arguments::parse("cat", ctx.args, &OPTIONS) {
            Ok(args) => args,
            Err(complaint) => {
                complain(&ctx.stderr, &complaint).await?;
                return Ok(CommandStatus::with_code(1));
            }
        };
        let mut shown = Shown::new(&args);
        let standard = ["-".to_owned()];
        let operands = if args.operands.is_empty() { &standard[..] } else { &args.operands };
        let mut code = 0;
        for operand in operands {
            let mut source = match Source::open(&ctx, operand).await {
                Ok(source) => source,
                Err(error) => {
                    complain(&ctx.stderr, &format!("cat: {operand}: {}", super::reason(&error)))
                        .await?;
                    code = 1;
                    continue;
                }
            };
            loop {
                let bytes = source.next().await?;
                if bytes.is_empty() {
                    break;
                }
                match shown.is_plain() {
                    true => ctx.stdout.write_all(&bytes).await?,
                    false => ctx.stdout.write_all(&shown.apply(&bytes)).await?,
                }
            }
        }
        Ok(CommandStatus::with_code(code))
    }
}
