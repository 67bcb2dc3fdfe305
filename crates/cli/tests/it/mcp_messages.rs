//! Messages to `warrant mcp` that no client should send: each is answered, or ends the conversation.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout};

use serde_json::{Value, json};

use crate::machine::Machine;

struct Conversation {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Conversation {
    fn begin(machine: &Machine) -> Self {
        let mut child = machine.serve_mcp();
        let stdin = child.stdin.take().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let mut conversation = Self { child, stdin, stdout };
        let client = json!({"protocolVersion": "2025-06-18", "capabilities": {},
            "clientInfo": {"name": "test", "version": "1"}});
        let begin = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": client});
        conversation.answer(&begin);
        let begun = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        writeln!(conversation.stdin, "{begun}").unwrap();
        conversation
    }

    fn answer(&mut self, message: &Value) -> Value {
        writeln!(self.stdin, "{message}").unwrap();
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        let answer: Value = serde_json::from_str(&line).unwrap_or_else(|_| panic!("{line}"));
        assert_eq!(answer["id"], message["id"], "{answer}");
        answer
    }
}

#[test]
fn a_message_that_is_too_large_is_answered_and_one_without_an_end_ends_the_conversation() {
    let machine = Machine::new();
    let mut conversation = Conversation::begin(&machine);
    let large = "x".repeat(17 * 1024 * 1024);
    let call = json!({"name": "write_file", "arguments": {"path": "a", "content": large}});
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call});
    let answer = conversation.answer(&call);
    assert_eq!(answer["error"]["code"], -32602, "{answer}");
    assert!(answer["error"]["message"].as_str().unwrap().contains("is larger than"), "{answer}");

    let other = json!({"jsonrpc": "1.0", "id": 2, "method": "ping"});
    let answer = conversation.answer(&other);
    assert_eq!(answer["error"]["code"], -32600, "{answer}");
    let ping = json!({"jsonrpc": "2.0", "id": "three", "method": "ping"});
    assert_eq!(conversation.answer(&ping)["result"], json!({}), "it goes on");

    let endless = vec![b'x'; 1024 * 1024];
    // The server may be gone before it has heard everything.
    for _ in 0..65 {
        if conversation.stdin.write_all(&endless).is_err() {
            break;
        }
    }
    assert!(conversation.child.wait().unwrap().success(), "nobody waits for ever");
}

#[test]
fn calls_that_wait_for_people_keep_no_other_call_waiting() {
    let machine = Machine::new();
    let mut conversation = Conversation::begin(&machine);
    let call = |id: u32, tool: &str, arguments: Value| {
        let params = json!({"name": tool, "arguments": arguments});
        json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params})
    };
    for id in 1..=12 {
        let arguments =
            json!({"command": "sudo id", "env": {"N": id.to_string()}, "wait_ms": 600_000});
        writeln!(conversation.stdin, "{}", call(id, "request_approval", arguments)).unwrap();
    }
    let answer = conversation.answer(&call(13, "exec", json!({"command": "echo done"})));
    assert_eq!(answer["result"]["structuredContent"]["stdout"], "done\n", "{answer}");
    drop(conversation.stdin);
    assert!(conversation.child.wait().unwrap().success(), "nobody waits for a client that is gone");
}
