//! What a tool call wants, for the tools of the agents we know. The list is the decision: a tool
//! that is not on it is refused.

use std::path::PathBuf;

use super::ToolCall;

/// What a tool call wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Intent {
    /// To run a shell script.
    Script(String),
    /// To read these files or directories.
    Read(Vec<PathBuf>),
    /// To write these files.
    Write(Vec<PathBuf>),
    /// Nothing outside the agent itself.
    Harmless,
    /// A tool of our own MCP server, which governs it.
    Governed,
    /// Something that cannot be judged here.
    Refused(String),
}

/// Tools that change nothing but the agent's own notes, or talk to the person.
const HARMLESS: [&str; 22] = [
    "Agent",
    "AskUserQuestion",
    "BashOutput",
    "EnterPlanMode",
    "ExitPlanMode",
    "KillBash",
    "KillShell",
    "Skill",
    "SlashCommand",
    "StructuredOutput",
    "Task",
    "TaskCreate",
    "TaskGet",
    "TaskList",
    "TaskOutput",
    "TaskStop",
    "TaskUpdate",
    "TodoRead",
    "TodoWrite",
    "ToolSearch",
    "update_plan",
    "request_user_input",
];

/// The names our own server's tools have in both agents.
const OURS: &str = "mcp__warrant__";

impl Intent {
    /// Returns what a call wants.
    #[must_use]
    pub fn of(call: &ToolCall) -> Self {
        match call.tool.as_str() {
            "Bash" => match call.text("command") {
                Some(script) if !script.contains('\0') => Self::Script(script.to_owned()),
                _ => missing("command"),
            },
            "Write" | "Edit" | "MultiEdit" => call.paths(&["file_path"], Self::Write),
            "NotebookEdit" => call.paths(&["notebook_path"], Self::Write),
            "Read" => call.paths(&["file_path"], Self::Read),
            "NotebookRead" => call.paths(&["notebook_path"], Self::Read),
            "Glob" | "LS" => match call.text("path") {
                Some(path) => Self::Read(vec![call.cwd.join(path)]),
                None => Self::Read(vec![call.cwd.clone()]),
            },
            "apply_patch" => patched(call),
            // Its search would look into masked files, and answers with their lines.
            "Grep" => refused("Grep", "search with grep or rg in a shell command instead"),
            "WebFetch" => {
                refused("WebFetch", "fetch it with a shell command, where policy allows the host")
            }
            name if HARMLESS.contains(&name) => Self::Harmless,
            name if name.starts_with(OURS) => Self::Governed,
            name => refused(
                name,
                "it would run outside the boundary; the person can let it pass with \
                 `warrant hook install … --unjudged`",
            ),
        }
    }
}

impl ToolCall {
    fn text(&self, name: &str) -> Option<&str> {
        self.input.get(name).and_then(|value| value.as_str()).filter(|text| !text.is_empty())
    }

    fn paths(&self, names: &[&'static str], intent: fn(Vec<PathBuf>) -> Intent) -> Intent {
        let mut paths = Vec::new();
        for name in names {
            match self.text(name) {
                Some(path) => paths.push(self.cwd.join(path)),
                None => return missing(name),
            }
        }
        intent(paths)
    }
}

fn missing(name: &str) -> Intent {
    Intent::Refused(format!("Warrant refuses a call whose `{name}` is missing or no text"))
}

fn refused(tool: &str, advice: &str) -> Intent {
    let tool: String = tool.chars().filter(|c| !c.is_control()).take(80).collect();
    Intent::Refused(format!("Warrant does not let the tool {tool} run: {advice}"))
}

/// Reads the files a patch touches. A patch with a line that might name a file in a way we do not
/// know is refused.
fn patched(call: &ToolCall) -> Intent {
    let Some(patch) = call.text("command").or_else(|| call.text("input")) else {
        return missing("command");
    };
    let mut paths = Vec::new();
    for line in patch.lines() {
        let Some(header) = line.trim().strip_prefix("*** ") else { continue };
        let named = ["Add File: ", "Update File: ", "Delete File: ", "Move to: "]
            .iter()
            .find_map(|start| header.strip_prefix(start));
        match named {
            Some(path) => paths.push(call.cwd.join(path.trim())),
            None if ["Begin Patch", "End Patch", "End of File"].contains(&header.trim()) => {}
            None => return refused("apply_patch", "the patch has a header that is not known"),
        }
    }
    if paths.is_empty() {
        return refused("apply_patch", "the patch names no file");
    }
    Intent::Write(paths)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn call(tool: &str, input: Value) -> ToolCall {
        let input = input.as_object().unwrap().clone();
        ToolCall { tool: tool.to_owned(), input, cwd: PathBuf::from("/w") }
    }

    #[track_caller]
    fn check(tool: &str, input: Value, expected: Intent) {
        assert_eq!(Intent::of(&call(tool, input)), expected, "{tool}");
    }

    #[track_caller]
    fn refused(tool: &str, input: Value) {
        let intent = Intent::of(&call(tool, input));
        assert!(matches!(intent, Intent::Refused(_)), "{tool} {intent:?}");
    }

    #[test]
    fn known_tools_are_understood_and_the_rest_is_refused() {
        check("Bash", json!({"command": "ls"}), Intent::Script("ls".to_owned()));
        let path = |path: &str| vec![PathBuf::from(path)];
        check("Write", json!({"file_path": "/a"}), Intent::Write(path("/a")));
        check("Edit", json!({"file_path": "a"}), Intent::Write(path("/w/a")));
        check("NotebookEdit", json!({"notebook_path": "/n"}), Intent::Write(path("/n")));
        check("Read", json!({"file_path": "/a"}), Intent::Read(path("/a")));
        check("Glob", json!({"pattern": "*"}), Intent::Read(path("/w")));
        check("Glob", json!({"pattern": "*", "path": "/etc"}), Intent::Read(path("/etc")));
        check("TodoWrite", json!({}), Intent::Harmless);
        check("mcp__warrant__exec", json!({"command": "x"}), Intent::Governed);
        for tool in ["Grep", "WebFetch", "WebSearch", "mcp__other__exec", "bash", "Monitor", ""] {
            refused(tool, json!({"command": "ls", "path": "/w"}));
        }
        refused("Bash", json!({}));
        refused("Bash", json!({"command": ["ls"]}));
        refused("Write", json!({"content": "x"}));
    }

    #[test]
    fn a_patch_names_every_file_it_touches() {
        let patch = "*** Begin Patch\n*** Add File: a\n+x\n*** Update File: b/c\n*** Move to: /d\n\
                     @@\n-x\n+y\n*** Delete File: e\n*** End Patch";
        let paths = ["/w/a", "/w/b/c", "/d", "/w/e"].map(PathBuf::from).to_vec();
        check("apply_patch", json!({"command": patch}), Intent::Write(paths));
        refused("apply_patch", json!({"command": "*** Begin Patch\n*** End Patch"}));
        refused("apply_patch", json!({"command": "*** Add File: a\n*** Link File: b"}));
        refused("apply_patch", json!({}));
    }
}
