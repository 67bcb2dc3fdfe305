//! What is said about a command that is not there, and `zcat`, which is another one.

use std::sync::Arc;

use async_trait::async_trait;
use bashkit::{
    Builtin, BuiltinContext, CommandResolver, ExecResult, ExecutionPlan, Result, SubCommand,
};

use crate::hermetic::commands::Commands;

/// Answers every command that nothing else answers.
pub(in crate::hermetic::worker) struct MissingCommands {
    /// The commands there are.
    pub commands: Commands,
    /// `$0`, which starts every complaint.
    pub arg0: String,
}

struct Missing {
    complaint: String,
}

impl CommandResolver for MissingCommands {
    fn resolve(&self, name: &str) -> Option<Arc<dyn Builtin>> {
        let near = self.commands.near(name);
        let hint = match near.first() {
            Some(near) => format!(" The nearest name there is: {near}."),
            None => String::new(),
        };
        let complaint = format!(
            "{}: {name}: command not found: the hermetic tier interprets scripts and starts no \
             programs.{hint} To run {name}, use a tier that does: \
             `warrant sandbox exec --provider namespace`, or `warrant run --isolation namespace`\n",
            self.arg0
        );
        Some(Arc::new(Missing { complaint }))
    }
}

#[async_trait]
impl Builtin for Missing {
    async fn execute(&self, _ctx: BuiltinContext<'_>) -> Result<ExecResult> {
        Ok(ExecResult::err(self.complaint.clone(), 127))
    }
}

/// The command `zcat`: `gzip -dc`.
pub(super) struct Zcat;

#[async_trait]
impl Builtin for Zcat {
    async fn execute(&self, _ctx: BuiltinContext<'_>) -> Result<ExecResult> {
        Ok(ExecResult::err("zcat: not planned\n", 1))
    }

    async fn execution_plan(&self, ctx: &BuiltinContext<'_>) -> Result<Option<ExecutionPlan>> {
        let args = std::iter::once("-dc".to_owned()).chain(ctx.args.iter().cloned()).collect();
        let stdin = ctx.stdin.cloned();
        let command = SubCommand { name: "gzip".into(), args, stdin, assignments: Vec::new() };
        Ok(Some(ExecutionPlan::Batch { commands: vec![command] }))
    }
}
