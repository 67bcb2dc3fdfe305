//! The command forms in which clients and providers wrap what was meant.

use base64::Engine as _;

use crate::wrappers::dialect_of;
use crate::{Dialect, walker};

/// A command as it arrived and as it was meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unwrapped {
    /// As it arrived.
    pub raw: Vec<String>,
    /// As it was meant.
    pub inner: Inner,
}

/// What a wrapper holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Inner {
    /// A program and its arguments: there was no wrapper.
    Argv(Vec<String>),
    /// A script.
    Script {
        /// The shell that reads it.
        dialect: Dialect,
        /// Its text.
        script: String,
        /// The variables the wrapper sets first, without their values.
        variables: Vec<String>,
        /// The directory the wrapper enters first.
        directory: Option<String>,
    },
}

const MAX_LAYERS: usize = 8;

/// Returns what `argv` was meant to run.
///
/// Known forms: `sh -c X` and `bash -l -c X`; `echo '<base64>' | base64 -d | sh`;
/// `export K='v' && … && cd D && (X)`; each also inside another. Both forms are to be judged
/// and recorded: this function only saves a reader the peeling.
#[must_use]
pub fn unwrap(argv: &[String]) -> Unwrapped {
    let raw = argv.to_vec();
    let Some((dialect, script)) = shell_script(argv) else {
        return Unwrapped { inner: Inner::Argv(raw.clone()), raw };
    };
    let mut layer = Layer { dialect, script, variables: Vec::new(), directory: None };
    for _ in 0..MAX_LAYERS {
        let Some(next) = layer.peeled() else { break };
        layer = next;
    }
    let Layer { dialect, script, variables, directory } = layer;
    Unwrapped { raw, inner: Inner::Script { dialect, script, variables, directory } }
}

struct Layer {
    dialect: Dialect,
    script: String,
    variables: Vec<String>,
    directory: Option<String>,
}

impl Layer {
    /// Returns what is below the outermost wrapper of this layer, if there is one.
    fn peeled(&self) -> Option<Self> {
        self.without_base64().or_else(|| self.without_exports())
    }

    fn without_base64(&self) -> Option<Self> {
        let text = self.script.trim();
        let rest = text.strip_prefix("echo ")?.trim_start();
        let (payload, rest) = match rest.chars().next()? {
            quote @ ('\'' | '"') => rest.get(1..)?.split_once(quote)?,
            _ => rest.split_once(' ')?,
        };
        let stages: Vec<&str> = rest.trim().strip_prefix('|')?.split('|').map(str::trim).collect();
        let [decode_stage, shell] = stages.as_slice() else { return None };
        if !matches!(*decode_stage, "base64 -d" | "base64 --decode" | "base64 -D") {
            return None;
        }
        let dialect = dialect_of(walker::base_name(shell))?;
        let script = decode(payload)?;
        Some(Self {
            dialect,
            script,
            variables: self.variables.clone(),
            directory: self.directory.clone(),
        })
    }

    fn without_exports(&self) -> Option<Self> {
        let mut rest = self.script.trim();
        let mut variables = self.variables.clone();
        let mut directory = self.directory.clone();
        while let Some(after) = rest.strip_prefix("export ") {
            let (name, after) = after.split_once('=')?;
            if !crate::lexer::is_name(name) {
                return None;
            }
            variables.push(name.to_owned());
            rest = after_quoted(after)?.1.trim_start();
            rest = rest.strip_prefix("&&").or_else(|| rest.strip_prefix(';'))?.trim_start();
        }
        if let Some(after) = rest.strip_prefix("cd ") {
            let (path, after) = after_quoted(after.trim_start())?;
            directory = Some(path);
            rest = after.trim_start().strip_prefix("&&")?.trim_start();
        }
        let has_prefix = variables.len() > self.variables.len() || directory != self.directory;
        if !has_prefix {
            return None;
        }
        let script = match rest.strip_prefix('(').and_then(|inner| inner.strip_suffix(')')) {
            Some(inner) if walker::analyze(inner, self.dialect).is_ok() => inner,
            _ => rest,
        };
        Some(Self { dialect: self.dialect, script: script.trim().to_owned(), variables, directory })
    }
}

/// Returns a leading word, unquoted, and what follows it.
fn after_quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut rest = text;
    loop {
        if let Some(after) = rest.strip_prefix('\'') {
            let (part, after) = after.split_once('\'')?;
            value.push_str(part);
            rest = after;
        } else if let Some(after) = rest.strip_prefix("\\'") {
            value.push('\'');
            rest = after;
        } else {
            let next = rest.chars().next();
            let ends = next.is_none_or(|c| c.is_whitespace() || matches!(c, '&' | ';' | ')'));
            if ends {
                return Some((value, rest));
            }
            let next = next.filter(|c| c.is_ascii_alphanumeric() || "/._-:=,@+".contains(*c))?;
            value.push(next);
            rest = rest.get(next.len_utf8()..)?;
        }
    }
}

/// Returns the script of `sh [-l] -c X`, with any directory before the shell's name.
fn shell_script(argv: &[String]) -> Option<(Dialect, String)> {
    let (shell, rest) = argv.split_first()?;
    let dialect = dialect_of(walker::base_name(shell))?;
    let rest: Vec<&str> = rest.iter().map(String::as_str).collect();
    match rest.as_slice() {
        ["-c" | "-lc" | "-ec", script] | ["-l", "-c", script] | ["--login", "-c", script] => {
            Some((dialect, (*script).to_owned()))
        }
        _ => None,
    }
}

/// Returns base64 decoded to text.
pub(crate) fn decode(text: &str) -> Option<String> {
    let compact: String = text.split_whitespace().collect();
    let bytes = base64::engine::general_purpose::STANDARD.decode(compact).ok()?;
    String::from_utf8(bytes).ok()
}
