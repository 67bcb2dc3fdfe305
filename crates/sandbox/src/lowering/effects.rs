//! The effects of a command against what was given.

use std::path::Path;

use warrant_script::{
    Access, Analysis, Confidence, Dialect, Effect, Target, analyze, analyze_argv,
};

use super::paths::{Reach, fixed_part, fold};
use super::{Gap, GapReason, Ground, UnknownPaths};
use crate::{Command, Invocation, Network, Shell};

/// Returns the effects and warnings of a command, or the first gap among them.
pub(super) fn check(
    invocation: &Invocation,
    reach: &Reach<'_>,
    ground: &Ground<'_>,
) -> Result<(Vec<Effect>, Vec<String>), Gap> {
    let mut warnings = Vec::new();
    let analysis = match analysis(&invocation.command) {
        Ok(analysis) => analysis,
        Err(error) => {
            warnings.push(format!("the script was not understood: {error}"));
            return Ok((Vec::new(), warnings));
        }
    };
    for effect in &analysis.effects {
        let checker = Checker { invocation, reach, unknown: ground.unknown_paths };
        warnings.extend(checker.check(effect)?);
    }
    if let Network::Allow(allowed) = &invocation.network {
        for host in &analysis.hosts {
            let is_listed = allowed.iter().any(|entry| entry.split(':').next() == Some(host));
            let is_below = allowed
                .iter()
                .any(|entry| entry.strip_prefix('*').is_some_and(|suffix| host.ends_with(suffix)));
            if !is_listed && !is_below {
                warnings.push(format!("the command mentions {host}, which it may not reach"));
            }
        }
    }
    warnings.sort();
    warnings.dedup();
    Ok((analysis.effects, warnings))
}

/// Returns what a command is thought to do; nothing of a script that was not understood.
pub(super) fn of(command: &Command) -> Vec<Effect> {
    analysis(command).map(|analysis| analysis.effects).unwrap_or_default()
}

fn analysis(command: &Command) -> Result<Analysis, warrant_script::ParseError> {
    match command {
        Command::Argv { program, args } => {
            let argv: Vec<String> =
                std::iter::once(program.clone()).chain(args.iter().cloned()).collect();
            Ok(analyze_argv(&argv))
        }
        Command::Shell { shell, script } => analyze(script, dialect_of(*shell)),
    }
}

pub(super) fn dialect_of(shell: Shell) -> Dialect {
    match shell {
        Shell::Sh => Dialect::Sh,
        Shell::Bash => Dialect::Bash,
    }
}

struct Checker<'a> {
    invocation: &'a Invocation,
    reach: &'a Reach<'a>,
    unknown: UnknownPaths,
}

impl Checker<'_> {
    /// Returns a warning, nothing, or the gap an effect makes.
    fn check(&self, effect: &Effect) -> Result<Option<String>, Gap> {
        match &effect.target {
            Target::Path(path) => self.path(effect, path),
            Target::Pattern(pattern) => self.path(effect, fixed_part(pattern)),
            Target::Home { rest } => self.home(effect, rest),
            Target::Dynamic => self.dynamic(effect),
        }
    }

    fn path(&self, effect: &Effect, path: &str) -> Result<Option<String>, Gap> {
        let absolute = fold(&self.invocation.cwd.join(path));
        if self.reach.allows(&absolute, effect.access) {
            return Ok(None);
        }
        let shown = absolute.display().to_string();
        if effect.confidence == Confidence::Low {
            let program = &effect.program;
            return Ok(Some(format!("{program} may use {shown}, which it was not given")));
        }
        Err(gap(GapReason::PathOutsideDeclaredRoots, shown, effect.access))
    }

    fn home(&self, effect: &Effect, rest: &str) -> Result<Option<String>, Gap> {
        if let Some(home) = home_of(self.invocation) {
            let absolute = fold(Path::new(&format!("{}{rest}", home.trim_end_matches('/'))));
            if self.reach.allows(&absolute, effect.access) {
                return Ok(None);
            }
        }
        Err(gap(GapReason::ShellDynamicPathUnresolved, effect.token.clone(), effect.access))
    }

    fn dynamic(&self, effect: &Effect) -> Result<Option<String>, Gap> {
        // Another user's home is never inside, whatever its path.
        let is_home = effect.token.starts_with('~');
        if is_home || self.unknown == UnknownPaths::Gap {
            return Err(gap(
                GapReason::ShellDynamicPathUnresolved,
                effect.token.clone(),
                effect.access,
            ));
        }
        let Effect { token, program, .. } = effect;
        Ok(Some(format!("{program} uses {token}, which only the shell will know")))
    }
}

/// Returns the home directory the command itself would see.
pub(super) fn home_of(invocation: &Invocation) -> Option<&str> {
    let home = invocation.env.iter().rev().find(|variable| variable.name == "HOME")?;
    let home = home.value.reveal();
    home.starts_with('/').then_some(home)
}

fn gap(reason: GapReason, path: String, access: Access) -> Gap {
    let verb = match access {
        Access::Read => "read",
        Access::Write => "write",
        Access::ReadWrite => "read and write",
    };
    let message = match reason {
        GapReason::CwdOutsideDeclaredRoots => format!("the command would start in {path}"),
        GapReason::PathOutsideDeclaredRoots => {
            format!("the command would {verb} {path}, which it was not given")
        }
        GapReason::ShellDynamicPathUnresolved => {
            format!("the command would {verb} {path}, which only the shell knows")
        }
    };
    Gap { reason, path, required: Some(access), message }
}
