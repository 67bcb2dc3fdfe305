//! `sleep` and `timeout`, bounded by the run's own time limit and nothing else.

use std::time::Duration;

use async_trait::async_trait;
use bashkit::{Builtin, BuiltinContext, ExecResult, ExecutionPlan, Result, SubCommand};

/// The command `sleep`.
pub(super) struct Sleep;

/// The command `timeout`.
pub(super) struct Timeout;

/// Longer than any run; the interpreter's clock does not take more.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

#[async_trait]
impl Builtin for Sleep {
    async fn execute(&self, ctx: BuiltinContext<'_>) -> Result<ExecResult> {
        let mut total = Duration::ZERO;
        for arg in ctx.args.iter().filter(|arg| *arg != "--") {
            match duration(arg) {
                Some(time) => total = total.saturating_add(time).min(LONGEST),
                None => {
                    let text = format!("sleep: invalid time interval '{arg}'\n");
                    return Ok(ExecResult::err(text, 1));
                }
            }
        }
        if ctx.args.is_empty() {
            return Ok(ExecResult::err("sleep: missing operand\n", 1));
        }
        tokio::time::sleep(total).await;
        Ok(ExecResult::ok(""))
    }
}

#[async_trait]
impl Builtin for Timeout {
    async fn execute(&self, ctx: BuiltinContext<'_>) -> Result<ExecResult> {
        // Reached only when there is no plan.
        let complaint = plan(ctx.args).err().unwrap_or_else(|| "missing operand".into());
        Ok(ExecResult::err(format!("timeout: {complaint}\n"), 125))
    }

    async fn execution_plan(&self, ctx: &BuiltinContext<'_>) -> Result<Option<ExecutionPlan>> {
        let Ok(Planned { limit, preserve_status, command }) = plan(ctx.args) else {
            return Ok(None);
        };
        let Some((name, args)) = command.split_first() else { return Ok(None) };
        let command = SubCommand {
            name: name.clone(),
            args: args.to_vec(),
            stdin: ctx.stdin.cloned(),
            assignments: Vec::new(),
        };
        // GNU's 0 means no limit.
        let duration = if limit.is_zero() { LONGEST } else { limit };
        Ok(Some(ExecutionPlan::Timeout { duration, preserve_status, command }))
    }
}

/// What a line of `timeout` says.
struct Planned {
    limit: Duration,
    preserve_status: bool,
    command: Vec<String>,
}

fn plan(args: &[String]) -> std::result::Result<Planned, String> {
    let mut rest = args.iter();
    let mut preserve_status = false;
    let limit = loop {
        let arg = rest.next().ok_or("missing operand")?;
        match arg.as_str() {
            "--preserve-status" => preserve_status = true,
            "--foreground" | "-v" | "--verbose" | "--" => {}
            "-s" | "--signal" | "-k" | "--kill-after" => {
                let value =
                    rest.next().ok_or_else(|| format!("option '{arg}' requires an argument"))?;
                preserve_status |=
                    arg.contains('s') && matches!(value.as_str(), "9" | "KILL" | "SIGKILL");
            }
            // Everything a script runs here ends at once, whatever the signal.
            _ if ["--signal=", "--kill-after=", "-k", "-s"].iter().any(|o| arg.starts_with(o)) => {
                preserve_status |= arg.ends_with("KILL") || arg.ends_with('9') && arg.contains('s');
            }
            _ if arg.starts_with('-') && arg.len() > 1 => {
                return Err(format!("unrecognized option '{arg}'"));
            }
            _ => break duration(arg).ok_or_else(|| format!("invalid time interval '{arg}'"))?,
        }
    };
    let command: Vec<String> = rest.cloned().collect();
    if command.is_empty() {
        return Err("missing operand".into());
    }
    Ok(Planned { limit: limit.min(LONGEST), preserve_status, command })
}

/// Returns a time as GNU's commands take it: `1.5`, `2m`, `infinity`.
fn duration(text: &str) -> Option<Duration> {
    let (number, unit) = match text.chars().last()? {
        's' => (text.strip_suffix('s')?, 1.0),
        'm' => (text.strip_suffix('m')?, 60.0),
        'h' => (text.strip_suffix('h')?, 3600.0),
        'd' => (text.strip_suffix('d')?, 86400.0),
        _ => (text, 1.0),
    };
    if matches!(number, "inf" | "infinity") {
        return Some(LONGEST);
    }
    if !number.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
        return None;
    }
    let seconds = number.parse::<f64>().ok()? * unit;
    Some(Duration::try_from_secs_f64(seconds).unwrap_or(LONGEST).min(LONGEST))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units_and_no_cap() {
        assert_eq!(duration("1.5"), Some(Duration::from_millis(1500)));
        assert_eq!(duration("2m"), Some(Duration::from_secs(120)));
        assert_eq!(duration("10d"), Some(Duration::from_secs(864_000)));
        assert_eq!(duration("infinity"), Some(LONGEST));
        assert_eq!(duration("-1"), None);
        assert_eq!(duration("x"), None);
    }
}
