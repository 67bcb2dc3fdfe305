//! `join`: a file that cannot be read is named; the rest is the interpreter's own.

use async_trait::async_trait;
use bashkit::{Builtin, BuiltinContext, ExecResult, ExecutionPlan, Result};

use super::diff::library;
use super::{absolute, reason};

/// The command `join`.
pub(super) struct Join;

#[async_trait]
impl Builtin for Join {
    async fn execute(&self, ctx: BuiltinContext<'_>) -> Result<ExecResult> {
        // Reached only when there is no plan: an operand cannot be read.
        for operand in operands(ctx.args) {
            if let Err(error) = ctx.fs.read_file(&absolute(ctx.cwd, operand)).await {
                return Ok(ExecResult::err(format!("join: {operand}: {}\n", reason(&error)), 1));
            }
        }
        Ok(ExecResult::err("join: missing operand\n", 1))
    }

    async fn execution_plan(&self, ctx: &BuiltinContext<'_>) -> Result<Option<ExecutionPlan>> {
        for operand in operands(ctx.args) {
            if ctx.fs.read_file(&absolute(ctx.cwd, operand)).await.is_err() {
                return Ok(None);
            }
        }
        let command = library("join", ctx.args.to_vec(), ctx.stdin.cloned());
        Ok(Some(ExecutionPlan::Batch { commands: vec![command] }))
    }
}

/// Returns the two files, which come last.
fn operands(args: &[String]) -> impl Iterator<Item = &String> {
    let first = args.len().saturating_sub(2);
    args.iter().skip(first).filter(|arg| *arg != "-" && !arg.starts_with("/dev/"))
}
