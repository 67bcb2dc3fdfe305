//! `tee`: a file that cannot be written is named, and the others are still written.

use async_trait::async_trait;
use bashkit::{Command, CommandContext, CommandStatus, Result};

use super::arguments::{self, Known, flag};
use super::{absolute, complain, reason};

const OPTIONS: [Known; 3] = [flag('a', "append"), flag('i', "ignore-interrupts"), flag('p', "")];

/// The command `tee`.
pub(super) struct Tee;

#[async_trait]
impl Command for Tee {
    async fn execute(&self, ctx: CommandContext<'_>) -> Result<CommandStatus> {
        let args = match arguments::parse("tee", ctx.args, &OPTIONS) {
            Ok(args) => args,
            Err(complaint) => {
                complain(&ctx.stderr, &complaint).await?;
                return Ok(CommandStatus::with_code(1));
            }
        };
        let (mut files, mut code) = (Vec::new(), 0);
        for operand in &args.operands {
            let path = absolute(ctx.cwd, operand);
            let opened = match args.has("a") {
                true => ctx.fs.append_file(&path, b"").await,
                false => ctx.fs.write_file(&path, b"").await,
            };
            match opened {
                Ok(()) => files.push((operand, path)),
                Err(error) => {
                    code = 1;
                    complain(&ctx.stderr, &format!("tee: {operand}: {}", reason(&error))).await?;
                }
            }
        }
        while let Some(chunk) = ctx.stdin.read_chunk().await? {
            ctx.stdout.write_all(&chunk).await?;
            for (operand, path) in &files {
                if let Err(error) = ctx.fs.append_file(path, &chunk).await {
                    code = 1;
                    complain(&ctx.stderr, &format!("tee: {operand}: {}", reason(&error))).await?;
                }
            }
        }
        Ok(CommandStatus::with_code(code))
    }
}
