//! The tools as a client sees them: names, words and schemas.

use std::sync::Arc;

use rmcp::model::{JsonObject, Tool, ToolAnnotations};
use serde_json::{Value, json};

/// A tool of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ToolName {
    Exec,
    ReadFile,
    WriteFile,
    ListFiles,
    Diff,
    Undo,
    RequestApproval,
    Receipt,
}

impl ToolName {
    pub(crate) const ALL: [Self; 8] = [
        Self::Exec,
        Self::ReadFile,
        Self::WriteFile,
        Self::ListFiles,
        Self::Diff,
        Self::Undo,
        Self::RequestApproval,
        Self::Receipt,
    ];

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Exec => "exec",
            Self::ReadFile => "read_file",
            Self::WriteFile => "write_file",
            Self::ListFiles => "list_files",
            Self::Diff => "diff",
            Self::Undo => "undo",
            Self::RequestApproval => "request_approval",
            Self::Receipt => "receipt",
        }
    }

    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|tool| tool.as_str() == name)
    }

    /// Returns the tool as a client lists it.
    pub(crate) fn definition(self) -> Tool {
        let is_reading =
            matches!(self, Self::ReadFile | Self::ListFiles | Self::Diff | Self::Receipt);
        let annotations =
            ToolAnnotations::new().read_only(is_reading).open_world(matches!(self, Self::Exec));
        Tool::new(self.as_str(), self.description(), Arc::new(self.schema()))
            .with_annotations(annotations)
    }

    const fn description(self) -> &'static str {
        match self {
            Self::Exec => {
                "Run a shell script (`command`) or a program (`argv`) in the workspace, inside a \
                 governed sandbox. Policy decides first; a denial says what is allowed and how to \
                 ask. There is no network unless `allow_hosts` names hosts that policy permits. \
                 What the program writes below the workspace is there for the next call, also when \
                 it exits with an error; `undo` takes it back. Nothing else of the machine changes, \
                 and no process outlives the call. Every call leaves a signed receipt."
            }
            Self::ReadFile => {
                "Read a file of the workspace, or a piece of it. Text comes as text, other bytes \
                 as base64. Files that hold secrets are masked and read as empty or not at all."
            }
            Self::WriteFile => {
                "Write a file of the workspace, with its missing directories; `undo` takes it back. \
                 Files that would run by themselves later (hooks, editor tasks, agent settings) are \
                 held back and named."
            }
            Self::ListFiles => {
                "List files of the workspace with their kind and size, sorted by path."
            }
            Self::Diff => {
                "Show what a run changed, as a unified diff. Without `run`: what the last run of \
                 this session changed."
            }
            Self::Undo => {
                "Put back the last change that a call of this session left in the workspace. \
                 Refuses when files changed since, unless `force`. Call it again to go back further."
            }
            Self::RequestApproval => {
                "Ask people to approve a program that policy lets run only with their word. Takes \
                 the arguments of `exec`. Once approved, call `exec` with exactly the same \
                 arguments; it runs once. With `wait_ms` the call waits for the answer."
            }
            Self::Receipt => {
                "Tell what a run did, from its verified receipt: what moved, why, who approved, \
                 what saw it, how to reproduce or revoke it. Without `run`: the last run of this \
                 session."
            }
        }
    }

    fn schema(self) -> JsonObject {
        let run = json!({"type": "string", "description": "a run, run_…"});
        let (properties, required) = match self {
            Self::Exec => (exec_properties(), json!([])),
            Self::RequestApproval => {
                let mut properties = exec_properties();
                if let Value::Object(members) = &mut properties {
                    members.remove("max_output_bytes");
                    let wait = number("how long to wait for the answer", (0, super::MOST_WAIT_MS));
                    members.insert("wait_ms".to_owned(), wait);
                }
                (properties, json!([]))
            }
            Self::ReadFile => (
                json!({
                    "path": path(),
                    "offset": number("the first byte to read", (0, u64::from(u32::MAX))),
                    "max_bytes": number("how many bytes to read", (1, super::MOST_BYTES)),
                }),
                json!(["path"]),
            ),
            Self::WriteFile => (
                json!({
                    "path": path(),
                    "content": {"type": "string", "description": "the whole new content"},
                }),
                json!(["path", "content"]),
            ),
            Self::ListFiles => (
                json!({
                    "path": {"type": "string", "description": "the directory; the workspace without it"},
                    "depth": number("how many levels deep", (1, 64)),
                }),
                json!([]),
            ),
            Self::Diff => (json!({"run": run}), json!([])),
            Self::Receipt => (json!({"run": run}), json!([])),
            Self::Undo => (
                json!({"force": {
                    "type": "boolean",
                    "description": "put it back even where files changed since",
                }}),
                json!([]),
            ),
        };
        let schema = json!({
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": false,
        });
        match schema {
            Value::Object(members) => members,
            _ => JsonObject::new(),
        }
    }
}

fn path() -> Value {
    json!({"type": "string", "description": "a file below the workspace"})
}

fn number(description: &str, (least, most): (u64, u64)) -> Value {
    json!({"type": "integer", "minimum": least, "maximum": most, "description": description})
}

fn exec_properties() -> Value {
    let texts = |description: &str| json!({"type": "array", "items": {"type": "string"}, "description": description});
    json!({
        "command": {"type": "string", "description": "a shell script; or give `argv`"},
        "argv": texts("a program and its arguments, without a shell; or give `command`"),
        "cwd": {"type": "string", "description": "where to start, below the workspace"},
        "timeout_ms": number("how long it may take", (1, 24 * 3_600_000)),
        "allow_hosts": texts("hosts it needs, `host`, `*.host`, either with `:port`"),
        "secrets": texts("names of secrets it needs in its environment"),
        "env": {
            "type": "object",
            "additionalProperties": {"type": "string"},
            "description": "variables of its environment",
        },
        "stdin": {"type": "string", "description": "what it reads on standard input"},
        "max_output_bytes": number("how much of each stream to return", (0, super::MOST_BYTES)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tool_is_found_by_its_name_and_takes_an_object() {
        for tool in ToolName::ALL {
            assert_eq!(ToolName::named(tool.as_str()), Some(tool));
            let schema = tool.definition().input_schema;
            assert_eq!(schema.get("type"), Some(&json!("object")));
            assert_eq!(schema.get("additionalProperties"), Some(&json!(false)));
        }
        assert_eq!(ToolName::named("shell"), None);
    }
}
