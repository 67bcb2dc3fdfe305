//! What a tool call wants, for the tools of the agents we know. The list is the decision: a tool
//! that is not on it is refused.

use std::path::{Path, PathBuf};

use serde_json::Value;
use unicode_normalization::UnicodeNormalization as _;

use super::ToolCall;
use crate::mcp::is_tool;

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

/// Tools that change nothing but the agent's own notes, talk to the person, or have agents of the
/// agent's own do things, whose calls come back to this hook one by one.
const HARMLESS: [&str; 28] = [
    // Claude Code
    "AskUserQuestion",
    "BashOutput",
    "EnterPlanMode",
    "ExitPlanMode",
    "KillBash",
    "KillShell",
    "ReportFindings",
    "ScheduleWakeup",
    "StructuredOutput",
    "TaskCreate",
    "TaskGet",
    "TaskList",
    "TaskOutput",
    "TaskStop",
    "TaskUpdate",
    "TodoRead",
    "TodoWrite",
    "ToolSearch",
    // Codex
    "close_agent",
    "create_goal",
    "get_goal",
    "request_user_input",
    "resume_agent",
    "send_input",
    "spawn_agent",
    "update_goal",
    "update_plan",
    "wait_agent",
];

/// The names our own server's tools have in both agents.
const OURS: &str = "mcp__warrant__";

impl Intent {
    /// Returns what a call wants.
    #[must_use]
    pub fn of(call: &ToolCall) -> Self {
        if let Some(name) = call.unknown_member() {
            return refused(
                &call.tool,
                &format!("its argument `{name}` is not known; leave it out"),
            );
        }
        match call.tool.as_str() {
            "Bash" => match call.text("command") {
                Some(script) if !script.contains('\0') => Self::Script(script.to_owned()),
                _ => missing("command"),
            },
            "Write" | "Edit" | "MultiEdit" => call.paths("file_path", Self::Write),
            "NotebookEdit" => call.paths("notebook_path", Self::Write),
            "Read" => call.paths("file_path", Self::Read),
            "NotebookRead" => call.paths("notebook_path", Self::Read),
            "view_image" => call.paths("path", Self::Read),
            "Glob" | "LS" => searched(call),
            "Agent" | "Task" => delegated(call),
            "apply_patch" => patched(call),
            // Its search would look into masked files, and answers with their lines.
            "Grep" => refused("Grep", "search with grep or rg in a shell command instead"),
            "WebFetch" => {
                refused("WebFetch", "fetch it with a shell command, where policy allows the host")
            }
            // SECURITY: the agent itself runs the commands written into a skill (!`…`), with words
            // of the model in them, and calls no hook for them.
            "Skill" | "SlashCommand" => refused(
                &call.tool,
                "it may hold shell commands that no hook is asked about; read its file (such as \
                 .claude/skills/NAME/SKILL.md) and follow it with your other tools; the person can \
                 let it pass with `warrant hook install … --unjudged`",
            ),
            "Monitor" => refused("Monitor", "run the command in the background of a shell command"),
            "WebSearch" => refused("WebSearch", "it would send words to others; ask the person"),
            "SendMessage" => {
                refused("SendMessage", "it may reach an agent that is not governed; do it yourself")
            }
            "Workflow" => {
                refused("Workflow", "its script would run outside the boundary; use Agent instead")
            }
            name if HARMLESS.contains(&name) => Self::Harmless,
            name if name.strip_prefix(OURS).is_some_and(is_tool) => Self::Governed,
            name => refused(
                name,
                "it would run outside the boundary; the person can let it pass with \
                 `warrant hook install … --unjudged`",
            ),
        }
    }
}

/// The arguments of tools that reach files or programs.
const MEMBERS: [(&str, &[&str]); 12] = [
    (
        "Bash",
        &["command", "description", "timeout", "run_in_background", "dangerouslyDisableSandbox"],
    ),
    ("Write", &["file_path", "content"]),
    ("Edit", &["file_path", "old_string", "new_string", "replace_all"]),
    ("MultiEdit", &["file_path", "edits"]),
    ("NotebookEdit", &["notebook_path", "cell_id", "new_source", "cell_type", "edit_mode"]),
    ("Read", &["file_path", "offset", "limit", "pages", "allow_large"]),
    ("NotebookRead", &["notebook_path", "cell_id"]),
    ("view_image", &["path", "detail"]),
    ("Glob", &["pattern", "path"]),
    ("LS", &["path", "ignore"]),
    ("apply_patch", &["command", "input"]),
    ("Agent", &AGENT_MEMBERS),
];

const AGENT_MEMBERS: [&str; 13] = [
    "description",
    "prompt",
    "subagent_type",
    "model",
    "effort",
    "run_in_background",
    "isolation",
    "name",
    "cwd",
    "resume",
    "mode",
    "max_turns",
    "team_name",
];

impl ToolCall {
    /// Returns an argument of a known tool that is not known.
    // SECURITY: an argument may choose another file, shell or machine than the ones that are judged.
    fn unknown_member(&self) -> Option<String> {
        let tool = if self.tool == "Task" { "Agent" } else { &self.tool };
        let (_, known) = MEMBERS.iter().find(|(name, _)| *name == tool)?;
        let name = self.input.keys().find(|name| !known.contains(&name.as_str()))?;
        Some(name.chars().filter(|c| !c.is_control()).take(80).collect())
    }

    fn text(&self, name: &str) -> Option<&str> {
        self.input.get(name).and_then(|value| value.as_str()).filter(|text| !text.is_empty())
    }

    fn paths(&self, name: &str, intent: fn(Vec<PathBuf>) -> Intent) -> Intent {
        let Some(text) = self.text(name) else { return missing(name) };
        reached(&self.cwd, text).map_or_else(|| unclear(name), intent)
    }
}

/// Returns every path that an agent might open for a text, or nothing when nobody can say.
// SECURITY: Claude Code takes the white space around a path away, reads `~` as the person's home,
// and composes characters (NFC). What is judged must be what is opened.
fn reached(from: &Path, text: &str) -> Option<Vec<PathBuf>> {
    let is_blank = |c: char| c.is_whitespace() || c.is_control() || c == '\u{feff}';
    if text.starts_with('~') || text.starts_with(is_blank) || text.ends_with(is_blank) {
        return None;
    }
    let composed: String = text.nfc().collect();
    let mut paths = vec![from.join(text)];
    if composed != text {
        paths.push(from.join(composed));
    }
    Some(paths)
}

/// A search for names reaches where its directory lies, and where its pattern begins.
fn searched(call: &ToolCall) -> Intent {
    let mut paths = match call.input.get("path") {
        None | Some(Value::Null) => vec![call.cwd.clone()],
        Some(_) => match call.text("path").map(|path| reached(&call.cwd, path)) {
            Some(Some(paths)) => paths,
            Some(None) => return unclear("path"),
            None => return missing("path"),
        },
    };
    let pattern = match call.input.get("pattern") {
        None | Some(Value::Null) => return Intent::Read(paths),
        Some(Value::String(pattern)) => pattern,
        Some(_) => return missing("pattern"),
    };
    // A step up may hide behind any part of a pattern, such as `{a,..}`.
    if pattern.contains("..") {
        return refused("Glob", "its pattern may name nothing above its directory");
    }
    let fixed = pattern.split(['*', '?', '[', '{', '\\']).next().unwrap_or_default();
    if let Some(end) = fixed.rfind('/') {
        let start = fixed.get(..=end).unwrap_or_default();
        let starts: Option<Vec<_>> = paths.iter().map(|path| reached(path, start)).collect();
        let Some(starts) = starts else { return unclear("pattern") };
        paths.extend(starts.into_iter().flatten());
    }
    Intent::Read(paths)
}

/// An agent of the agent's own comes back to this hook with each of its calls, unless it works
/// somewhere else.
fn delegated(call: &ToolCall) -> Intent {
    match call.input.get("isolation") {
        None | Some(Value::Null) => Intent::Harmless,
        Some(Value::String(isolation)) if isolation == "worktree" => Intent::Harmless,
        Some(_) => refused(&call.tool, "it would work on another machine, outside the boundary"),
    }
}

fn unclear(name: &str) -> Intent {
    Intent::Refused(format!(
        "Warrant refuses a call whose `{name}` starts with `~` or has blanks around it: write the \
         path in full"
    ))
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
        let Some(header) = line.trim_start().strip_prefix("*** ") else { continue };
        let named = ["Add File: ", "Update File: ", "Delete File: ", "Move to: "]
            .iter()
            .find_map(|start| header.strip_prefix(start));
        match named {
            // Codex takes the blanks for a part of the name, others may not.
            Some(path) => match reached(&call.cwd, path) {
                Some(reached) => paths.extend(reached),
                None => return unclear("command"),
            },
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
    use serde_json::json;

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
        let unknown =
            ["mcp__other__exec", "bash", "exec_command", "shell", "CronCreate", "LSP", ""];
        let unknown = unknown.into_iter().chain(["mcp__warrant__x__exec", "mcp__warrant__"]);
        let known = ["Grep", "WebFetch", "WebSearch", "Monitor", "SendMessage", "Workflow"];
        for tool in unknown.chain(known) {
            refused(tool, json!({"command": "ls", "path": "/w"}));
        }
        check("Agent", json!({"prompt": "x"}), Intent::Harmless);
        check("Task", json!({"prompt": "x", "isolation": "worktree"}), Intent::Harmless);
        refused("Agent", json!({"prompt": "x", "isolation": "remote"}));
        refused("Bash", json!({}));
        refused("Bash", json!({"command": ["ls"]}));
        refused("Write", json!({"content": "x"}));
    }

    #[test]
    fn an_argument_that_is_not_known_cannot_choose_another_file_or_shell() {
        for (tool, input) in [
            ("Bash", json!({"command": "ls", "shellExecutable": "/w/sh"})),
            ("Bash", json!({"command": "ls", "_simulatedSedEdit": {"filePath": "/etc/x"}})),
            ("Read", json!({"file_path": "/w/a", "path": "/etc/passwd"})),
            ("Agent", json!({"prompt": "x", "machine": "there"})),
            ("Task", json!({"prompt": "x", "machine": "there"})),
        ] {
            refused(tool, input);
        }
        let all =
            json!({"command": "ls", "timeout": 1, "run_in_background": true, "description": "x"});
        check("Bash", all, Intent::Script("ls".to_owned()));
    }

    #[test]
    fn a_skill_cannot_run_commands_that_no_hook_sees() {
        for tool in ["Skill", "SlashCommand"] {
            refused(tool, json!({"skill": "deploy", "args": "; id", "command": "/deploy ; id"}));
        }
    }

    #[test]
    fn a_path_that_the_agent_reads_otherwise_is_not_judged_as_it_is_written() {
        for path in ["~", "~/.ssh/id", " /etc/passwd", "/etc/passwd\n", "\u{feff}/etc/passwd"] {
            refused("Read", json!({"file_path": path}));
            refused("Write", json!({"file_path": path, "content": "x"}));
            refused("NotebookEdit", json!({"notebook_path": path}));
            refused("Glob", json!({"pattern": "*", "path": path}));
        }
        let both = ["/w/e\u{301}/x", "/w/\u{e9}/x"].map(PathBuf::from).to_vec();
        check("Read", json!({"file_path": "e\u{301}/x"}), Intent::Read(both));
        for header in ["Add File:  a", "Update File: a ", "Move to: \tb", "Delete File: ~/a"] {
            let patch = format!("*** Begin Patch\n*** Update File: a\n*** {header}\n*** End Patch");
            refused("apply_patch", json!({"command": patch}));
        }
    }

    #[test]
    fn a_search_reaches_where_its_pattern_begins() {
        let found = |pattern: &str, path: &str| {
            let input = json!({"pattern": pattern, "path": path});
            match Intent::of(&call("Glob", input)) {
                Intent::Read(paths) => {
                    paths.into_iter().map(|path| path.display().to_string()).collect()
                }
                _ => vec!["refused".to_owned()],
            }
        };
        assert_eq!(found("*", "a"), ["/w/a"]);
        assert_eq!(found("src/**/*.rs", "a"), ["/w/a", "/w/a/src/"]);
        assert_eq!(found("/etc/*", "a"), ["/w/a", "/etc/"]);
        assert_eq!(found("/*", "a"), ["/w/a", "/"]);
        for pattern in ["../*", "{a,..}/*", "a/../../*", "~/*", " /etc/*"] {
            assert_eq!(found(pattern, "a"), ["refused"], "{pattern}");
        }
        refused("Glob", json!({"pattern": ["/etc/*"]}));
        refused("Glob", json!({"pattern": "*", "path": 1}));
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
