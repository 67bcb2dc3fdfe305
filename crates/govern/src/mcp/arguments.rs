//! Arguments of a tool call: JSON to typed values, or a sentence that names the member.
//!
//! A member nobody asked for is refused: a setting is never accepted and ignored.

use std::collections::BTreeMap;
use std::path::Path;
use std::str::FromStr;

use serde_json::{Map, Value};
use warrant_protocol::RelPath;

use crate::workbench::{Errand, Work, Writes};

/// What is wrong with a tool call, as a sentence for the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Misuse(pub(crate) String);

/// How much of each stream is given back, unless the call says otherwise.
const OUTPUT_BYTES: u64 = 32 * 1024;

/// How much can be asked for. Both streams come twice, as text and as facts, and clients over HTTP
/// refuse messages of more than a mebibyte.
pub(crate) const MOST_BYTES: u64 = 192 * 1024;

/// The members of one call. Each is taken once; what is left over is refused.
pub(crate) struct Arguments {
    members: Map<String, Value>,
}

/// A program to run, and how much of its output to give back.
#[derive(Debug)]
pub(crate) struct ExecArguments {
    pub(crate) errand: Errand,
    pub(crate) output_bytes: usize,
}

impl Arguments {
    pub(crate) const fn new(members: Map<String, Value>) -> Self {
        Self { members }
    }

    /// Refuses what nobody took.
    pub(crate) fn finish(self) -> Result<(), Misuse> {
        match self.members.keys().next() {
            None => Ok(()),
            Some(name) => Err(Misuse(format!("`{name}`: there is no such argument"))),
        }
    }

    /// Takes a text.
    pub(crate) fn text(&mut self, name: &str) -> Result<Option<String>, Misuse> {
        match self.taken(name) {
            None => Ok(None),
            Some(Value::String(text)) if text.contains('\0') => {
                Err(Misuse(format!("`{name}` contains a NUL character")))
            }
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(Misuse(format!("`{name}` must be a text"))),
        }
    }

    /// Takes a text that must be there.
    pub(crate) fn needed(&mut self, name: &str) -> Result<String, Misuse> {
        self.text(name)?.ok_or_else(|| Misuse(format!("`{name}` is missing")))
    }

    /// Takes a whole number between two bounds.
    pub(crate) fn number(
        &mut self,
        name: &str,
        (least, most): (u64, u64),
    ) -> Result<Option<u64>, Misuse> {
        let Some(value) = self.taken(name) else { return Ok(None) };
        let number = whole(&value).filter(|number| (least..=most).contains(number));
        number.map(Some).ok_or_else(|| {
            Misuse(format!("`{name}` must be a whole number from {least} to {most}"))
        })
    }

    /// Takes a yes or no; no when it is not there.
    pub(crate) fn flag(&mut self, name: &str) -> Result<bool, Misuse> {
        match self.taken(name) {
            None => Ok(false),
            Some(Value::Bool(flag)) => Ok(flag),
            Some(_) => Err(Misuse(format!("`{name}` must be true or false"))),
        }
    }

    /// Takes a list of texts.
    pub(crate) fn texts(&mut self, name: &str) -> Result<Option<Vec<String>>, Misuse> {
        let wrong = || Misuse(format!("`{name}` must be a list of texts"));
        let Some(value) = self.taken(name) else { return Ok(None) };
        let Value::Array(items) = value else { return Err(wrong()) };
        let text = |item: Value| match item {
            Value::String(text) if !text.contains('\0') => Ok(text),
            _ => Err(wrong()),
        };
        items.into_iter().map(text).collect::<Result<_, _>>().map(Some)
    }

    /// Takes a path below the workspace, written relative to it or as an absolute path.
    pub(crate) fn path(&mut self, name: &str, workspace: &Path) -> Result<Option<RelPath>, Misuse> {
        let Some(text) = self.text(name)? else { return Ok(None) };
        relative(&text, workspace).map_err(|()| {
            let workspace = workspace.display();
            Misuse(format!(
                "`{name}` must lie inside the workspace {workspace}, and `{text}` does not"
            ))
        })
    }

    /// Takes the arguments of a program to run.
    pub(crate) fn exec(&mut self, workspace: &Path) -> Result<ExecArguments, Misuse> {
        let work = match (self.text("command")?, self.texts("argv")?) {
            (Some(script), None) if !script.trim().is_empty() => Work::Script(script),
            (None, Some(argv)) if argv.first().is_some_and(|program| !program.is_empty()) => {
                Work::Argv(argv)
            }
            (Some(_), None) => return Err(Misuse("`command` is empty".to_owned())),
            (None, Some(_)) => return Err(Misuse("`argv` names no program".to_owned())),
            _ => {
                let sentence = "give either `command` (a shell script) or `argv` (a program and \
                                its arguments)";
                return Err(Misuse(sentence.to_owned()));
            }
        };
        let mut errand = Errand::new(work, Writes::Kept);
        errand.cwd = self.path("cwd", workspace)?;
        errand.timeout_ms = self.number("timeout_ms", (1, 24 * 3_600_000))?;
        errand.hosts = self.parsed("allow_hosts")?;
        errand.secrets = self.parsed("secrets")?;
        errand.env = self.variables("env")?;
        errand.stdin = self.text("stdin")?.unwrap_or_default().into_bytes();
        let output = self.number("max_output_bytes", (0, MOST_BYTES))?.unwrap_or(OUTPUT_BYTES);
        let output_bytes = usize::try_from(output).unwrap_or(usize::MAX);
        Ok(ExecArguments { errand, output_bytes })
    }

    fn parsed<T: FromStr<Err: std::fmt::Display>>(&mut self, name: &str) -> Result<Vec<T>, Misuse> {
        let texts = self.texts(name)?.unwrap_or_default();
        let parse =
            |text: &String| text.parse::<T>().map_err(|error| Misuse(format!("`{name}`: {error}")));
        texts.iter().map(parse).collect()
    }

    fn variables(&mut self, name: &str) -> Result<BTreeMap<String, String>, Misuse> {
        let wrong = || Misuse(format!("`{name}` must be an object of texts"));
        let Some(value) = self.taken(name) else { return Ok(BTreeMap::new()) };
        let Value::Object(members) = value else { return Err(wrong()) };
        let variable = |(key, value): (String, Value)| match value {
            Value::String(text)
                if !text.contains('\0') && !key.is_empty() && !key.contains(['=', '\0']) =>
            {
                Ok((key, text))
            }
            _ => Err(wrong()),
        };
        members.into_iter().map(variable).collect()
    }

    /// A member that is null is a member that is not there.
    fn taken(&mut self, name: &str) -> Option<Value> {
        self.members.remove(name).filter(|value| !value.is_null())
    }
}

/// Returns a whole number, however it is written: to JSON `5.0` is one.
fn whole(value: &Value) -> Option<u64> {
    let is_whole = |number: &f64| number.fract() == 0.0 && (0.0..=9e15).contains(number);
    // The range above has exact whole numbers alone.
    value.as_u64().or_else(|| value.as_f64().filter(is_whole).map(|number| number as u64))
}

/// Returns a path relative to the workspace; nothing for the workspace itself.
pub(crate) fn relative(text: &str, workspace: &Path) -> Result<Option<RelPath>, ()> {
    let path = Path::new(text);
    let below =
        if path.is_absolute() { path.strip_prefix(workspace).map_err(|_| ())? } else { path };
    let parts: Vec<&str> = below
        .to_str()
        .ok_or(())?
        .split('/')
        .filter(|part| !part.is_empty() && *part != ".")
        .collect();
    if parts.is_empty() {
        return Ok(None);
    }
    parts.join("/").parse().map(Some).map_err(|_| ())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn arguments(value: &Value) -> Arguments {
        Arguments::new(value.as_object().unwrap().clone())
    }

    #[track_caller]
    fn refused(value: Value, expected: &str) {
        let mut arguments = arguments(&value);
        let told = arguments.exec(Path::new("/w")).map(|_| ()).and_then(|()| arguments.finish());
        let Err(Misuse(told)) = told else { panic!("{value} was taken") };
        assert!(told.contains(expected), "{told}");
    }

    #[test]
    fn every_mistake_names_its_argument() {
        refused(json!({}), "either `command`");
        refused(json!({"command": "a", "argv": ["a"]}), "either `command`");
        refused(json!({"command": " "}), "`command` is empty");
        refused(json!({"argv": []}), "`argv` names no program");
        refused(json!({"argv": [1]}), "`argv`");
        refused(json!({"command": 3}), "`command`");
        refused(json!({"command": "a\u{0}b"}), "`command`");
        refused(json!({"command": "a", "timeout_ms": 0}), "`timeout_ms`");
        refused(json!({"command": "a", "timeout_ms": -1}), "`timeout_ms`");
        refused(json!({"command": "a", "timeout_ms": 1.5}), "`timeout_ms`");
        refused(json!({"command": "a", "timeout_ms": "5"}), "`timeout_ms`");
        refused(json!({"command": "a", "cwd": "../x"}), "`cwd`");
        refused(json!({"command": "a", "cwd": "/etc"}), "`cwd`");
        refused(json!({"command": "a", "allow_hosts": ["a/b"]}), "`allow_hosts`");
        refused(json!({"command": "a", "allow_hosts": ["a:x"]}), "`allow_hosts`");
        refused(json!({"command": "a", "secrets": ["1"]}), "`secrets`");
        refused(json!({"command": "a", "env": {"A=B": "c"}}), "`env`");
        refused(json!({"command": "a", "max_output_bytes": 1e9}), "`max_output_bytes`");
        refused(json!({"command": "a", "network": "all"}), "`network`: there is no such argument");
    }

    #[test]
    fn a_whole_number_may_be_written_with_a_point() {
        let mut arguments = arguments(&json!({"command": "a", "timeout_ms": 5.0}));
        assert_eq!(arguments.exec(Path::new("/w")).unwrap().errand.timeout_ms, Some(5));
    }

    #[test]
    fn paths_stay_below_the_workspace() {
        let workspace = Path::new("/w/p");
        for (text, expected) in [
            ("a/b", Ok(Some("a/b"))),
            ("./a//b/.", Ok(Some("a/b"))),
            ("/w/p/a", Ok(Some("a"))),
            ("/w/p", Ok(None)),
            (".", Ok(None)),
            ("", Ok(None)),
            ("/w/pq", Err(())),
            ("/etc/passwd", Err(())),
            ("a/../../b", Err(())),
            ("/w/p/../x", Err(())),
        ] {
            let found = relative(text, workspace);
            let found = found.as_ref().map(|path| path.as_ref().map(RelPath::as_str));
            assert_eq!(found, expected.as_ref().copied(), "{text}");
        }
    }
}
