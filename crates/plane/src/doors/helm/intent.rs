//! Reads what an adapter asks: one message, and in it one intent.
//!
//! SECURITY: whatever two readers could read differently is no intent: a second message, a member
//! that is there twice, one that nobody here knows. What is not judged must not look as if it was.

use std::collections::BTreeSet;

use serde_json::{Map, Value};
use warrant_protocol::{Digest, json};

use crate::doors::reply::{boolean, check_complexity, text, unknown_member};

/// The tool that the adapter offers, and that an allow calls.
pub(super) const TOOL: &str = "sandbox_exec";

/// The type of an intent about a tool of the client's own.
const TOOL_INTENT: &str = "tool_call_intent";

/// What an adapter wants to know.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Intent {
    pub(super) model: String,
    pub(super) wish: Wish,
}

/// What is to be done if it is allowed.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Wish {
    /// A command in a sandbox.
    Command(Command),
    /// A tool of the client's own, which runs where it is and not here.
    Tool {
        /// What it is called.
        tool: String,
        /// The whole intent.
        digest: Digest,
    },
}

/// A command that a later call executes.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Command {
    pub(super) sandbox: String,
    /// What runs if it is allowed.
    pub(super) argv: Vec<String>,
    /// Its words with blanks between them: under this line the adapter executes it.
    pub(super) line: String,
    /// Where it is to run, when that is said: the adapter tells it with the execution only.
    pub(super) cwd: Option<String>,
    /// The variables it is to have; their values are not kept.
    pub(super) variables: BTreeSet<String>,
}

/// Reads the body of a chat completion.
///
/// # Errors
/// A sentence for the client when it holds no intent, or more than one reader could agree on.
pub(super) fn read(body: &[u8]) -> Result<Intent, String> {
    let body = object(body).ok_or("the body is no JSON object, or has a member twice")?;
    if let Some(name) = unknown_member(&body, &["model", "messages", "tools", "stream"]) {
        return Err(format!("{name} is not served here"));
    }
    if boolean(&body, "stream")? == Some(true) {
        return Err("stream is not served here: a decision comes whole".to_owned());
    }
    let model = text(&body, "model")?.unwrap_or_else(|| "helm-governance".to_owned());
    let content = content(&body)?;
    let intent = object(content.as_bytes());
    let intent = intent.ok_or("content is no JSON of an intent, or has a member twice")?;
    let wish = match text(&intent, "type")?.as_deref() {
        Some("sandbox_exec_intent") => Wish::Command(command(&body, &intent)?),
        Some(TOOL_INTENT) => Wish::Tool {
            tool: text(&intent, "tool")?.unwrap_or_default(),
            digest: Digest::of(content.as_bytes()),
        },
        _ => return Err("type must be sandbox_exec_intent".to_owned()),
    };
    Ok(Intent { model, wish })
}

/// Returns whether a body that cannot be read tells of a tool of the client's own.
pub(super) fn is_about_tool(body: &[u8]) -> bool {
    body.windows(TOOL_INTENT.len()).any(|words| words == TOOL_INTENT.as_bytes())
}

/// Returns what the one message of the user says.
fn content(body: &Map<String, Value>) -> Result<&str, String> {
    let messages = body.get("messages").and_then(Value::as_array).map(Vec::as_slice);
    let message = match messages {
        Some([Value::Object(message)]) => message,
        Some([_, _, ..]) => return Err("messages must hold one intent and nothing else".to_owned()),
        _ => return Err("messages must be a list of one message".to_owned()),
    };
    if let Some(name) = unknown_member(message, &["role", "content"]) {
        return Err(format!("{name} of a message is not served here"));
    }
    if message.get("role").is_some_and(|role| role != "user") {
        return Err("role must be user".to_owned());
    }
    let content = message.get("content").and_then(Value::as_str);
    content.ok_or_else(|| "content must be a string".to_owned())
}

fn command(body: &Map<String, Value>, intent: &Map<String, Value>) -> Result<Command, String> {
    let known = ["type", "provider", "sandbox_id", "command", "env", "cwd"];
    if let Some(name) = unknown_member(intent, &known) {
        return Err(format!("{name} is not judged here"));
    }
    if text(intent, "provider")?.is_some_and(|provider| provider != "daytona") {
        return Err("provider must be daytona".to_owned());
    }
    if !offers_tool(body) {
        return Err(format!("tools must offer {TOOL}"));
    }
    let sandbox = text(intent, "sandbox_id")?.ok_or("sandbox_id is missing")?;
    let words = intent.get("command").and_then(Value::as_array).ok_or("command must be a list")?;
    let word = |value: &Value| value.as_str().map(str::to_owned);
    let argv: Option<Vec<String>> = words.iter().map(word).collect();
    let argv = argv.filter(|argv| !argv.is_empty()).ok_or("command must be a list of strings")?;
    let cwd = text(intent, "cwd")?.filter(|cwd| !cwd.is_empty());
    let line = argv.join(" ");
    let argv = match argv.as_slice() {
        [script] if script.trim().contains(char::is_whitespace) => as_script(script),
        _ => argv,
    };
    Ok(Command { sandbox, argv, line, cwd, variables: variables(intent)? })
}

/// Returns the command of a script: no program has blanks in its name, so one string with blanks
/// is a line for a shell.
fn as_script(script: &str) -> Vec<String> {
    vec!["bash".to_owned(), "-c".to_owned(), script.to_owned()]
}

/// Returns whether the tools, if any are told, have the one that an allow calls.
fn offers_tool(body: &Map<String, Value>) -> bool {
    let is_it = |tool: &Value| tool.pointer("/function/name").is_some_and(|name| name == TOOL);
    match body.get("tools") {
        None | Some(Value::Null) => true,
        Some(tools) => tools.as_array().is_some_and(|tools| tools.iter().any(is_it)),
    }
}

/// Returns the names of the variables; what they hold is not even looked at.
fn variables(intent: &Map<String, Value>) -> Result<BTreeSet<String>, String> {
    match intent.get("env") {
        None | Some(Value::Null) => Ok(BTreeSet::new()),
        Some(Value::Object(members)) => Ok(members.keys().cloned().collect()),
        Some(_) => Err("env must be an object of strings".to_owned()),
    }
}

fn object(bytes: &[u8]) -> Option<Map<String, Value>> {
    check_complexity(bytes).ok()?;
    match json::parse(bytes) {
        Ok(Value::Object(map)) => Some(map),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn intent(members: &str) -> String {
        format!(r#"{{"type":"sandbox_exec_intent","sandbox_id":"s",{members}}}"#)
    }

    fn body(content: &str) -> Value {
        json!({ "model": "m", "messages": [{ "role": "user", "content": content }] })
    }

    fn asked(content: &str) -> Result<Wish, String> {
        read(body(content).to_string().as_bytes()).map(|intent| intent.wish)
    }

    #[track_caller]
    fn refused(body: &Value, why: &str) {
        let message = read(body.to_string().as_bytes()).unwrap_err();
        assert!(message.contains(why), "{message}");
    }

    #[test]
    fn a_command_is_read_with_the_names_of_its_variables() {
        let content = intent(r#""provider":"daytona","command":["a","b c"],"env":{"X":"y"}"#);
        let command = Command {
            sandbox: "s".to_owned(),
            argv: vec!["a".to_owned(), "b c".to_owned()],
            line: "a b c".to_owned(),
            cwd: None,
            variables: ["X".to_owned()].into(),
        };
        assert_eq!(asked(&content), Ok(Wish::Command(command)));
    }

    #[test]
    fn one_string_with_blanks_is_a_script_and_anything_else_is_argv() {
        let argv = |command: &str| match asked(&intent(&format!(r#""command":{command}"#))) {
            Ok(Wish::Command(command)) => (command.argv, command.line),
            other => panic!("{other:?}"),
        };
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        let line = "ls | wc -l".to_owned();
        assert_eq!(argv(r#"["ls | wc -l"]"#), (words(&["bash", "-c", "ls | wc -l"]), line));
        assert_eq!(argv(r#"["ls"]"#), (words(&["ls"]), "ls".to_owned()));
        assert_eq!(argv(r#"["a","; b"]"#), (words(&["a", "; b"]), "a ; b".to_owned()));
    }

    #[test]
    fn a_tool_of_the_client_is_told_from_a_command() {
        let content = r#"{"type":"tool_call_intent","tool":"mail","arguments":{"to":"x"}}"#;
        let digest = Digest::of(content.as_bytes());
        assert_eq!(asked(content), Ok(Wish::Tool { tool: "mail".to_owned(), digest }));
    }

    #[test]
    fn a_member_that_is_there_twice_is_no_intent() {
        assert!(asked(&intent(r#""command":["ls"],"command":["rm"]"#)).is_err());
        assert!(asked(&intent(r#""command":["ls"],"sandbox_id":"t""#)).is_err());
        let twice = body(&intent(r#""command":["ls"]"#)).to_string();
        let twice = twice.replace(r#""model":"m""#, r#""messages":[],"model":"m""#);
        assert!(read(twice.as_bytes()).is_err());
    }

    #[test]
    fn a_second_message_is_not_passed_over() {
        let mut two = body(&intent(r#""command":["ls"]"#));
        let first = two.pointer("/messages/0").unwrap().clone();
        two.pointer_mut("/messages").unwrap().as_array_mut().unwrap().push(first);
        refused(&two, "one intent");
        refused(&json!({ "messages": [] }), "one message");
        refused(&json!({}), "one message");
    }

    #[test]
    fn only_a_user_asks_and_nothing_is_smuggled_beside() {
        let plain = body(&intent(r#""command":["ls"]"#));
        let with = |path: &str, name: &str, value: Value| {
            let mut body = plain.clone();
            let object = body.pointer_mut(path).unwrap().as_object_mut().unwrap();
            object.insert(name.to_owned(), value);
            body
        };
        refused(&with("/messages/0", "role", json!("assistant")), "role");
        refused(&with("/messages/0", "role", json!("tool")), "role");
        refused(&with("/messages/0", "tool_calls", json!([{}])), "tool_calls");
        refused(&with("/messages/0", "content", json!([{ "type": "text" }])), "content");
        refused(&with("", "stream", json!(true)), "stream");
        refused(&with("", "tool_choice", json!("none")), "tool_choice");
        refused(&with("", "tools", json!([{ "function": { "name": "other" } }])), TOOL);
        let served = with("", "stream", json!(false));
        assert!(read(served.to_string().as_bytes()).is_ok());
    }

    #[test]
    fn what_is_not_judged_is_refused() {
        for members in [
            r#""command":["ls"],"user":"root""#,
            r#""command":["ls"],"cwd":1"#,
            r#""command":["ls"],"provider":"e2b""#,
            r#""command":"ls""#,
            r#""command":[]"#,
            r#""command":["ls",1]"#,
            r#""command":["ls"],"env":["X"]"#,
        ] {
            assert!(asked(&intent(members)).is_err(), "{members}");
        }
    }
}
