//! A server that answers as OpenSandbox was seen to answer, over real processes.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use super::http::{Answer, Request, Server, find};
use super::machine::{Machine, Word};

pub(crate) const KEY: &str = "osb_key";

struct Sandbox {
    machine: Arc<Machine>,
    spec: Value,
}

/// The provider.
pub(crate) struct Provider {
    sandboxes: Mutex<BTreeMap<String, Sandbox>>,
    pub(crate) commands: Mutex<Vec<String>>,
    made: AtomicUsize,
    address: Mutex<String>,
    /// How rules are said to be enforced; nothing means that nobody enforces them.
    pub(crate) enforcement: Mutex<Option<&'static str>>,
}

impl Provider {
    pub(crate) fn start() -> (Arc<Self>, Server) {
        let provider = Arc::new(Self {
            sandboxes: Mutex::default(),
            commands: Mutex::default(),
            made: AtomicUsize::new(0),
            address: Mutex::default(),
            enforcement: Mutex::new(Some("dns+nft")),
        });
        let own = Arc::clone(&provider);
        let server = Server::start(move |request, answer| own.answer(request, answer));
        *provider.address.lock().unwrap() = server.address.clone();
        (provider, server)
    }

    pub(crate) fn left(&self) -> usize {
        self.sandboxes.lock().unwrap().len()
    }

    /// Returns the commands that are no steps of ours.
    pub(crate) fn programs(&self) -> Vec<String> {
        let commands = self.commands.lock().unwrap();
        commands.iter().filter(|line| line.starts_with("(cd ")).cloned().collect()
    }

    fn answer(&self, request: &Request, answer: &mut Answer<'_>) {
        let path = request.path().to_owned();
        if path == "/version" {
            return answer.json(200, &json!({"version": "1.1.1"}));
        }
        if let Some(rest) = path.strip_prefix("/v1/sandboxes/")
            && let Some((id, rest)) = rest.split_once("/proxy/44772")
        {
            return self.inside(id, rest, request, answer);
        }
        if request.headers.get("open-sandbox-api-key").is_none_or(|key| key != KEY) {
            return answer.json(401, &json!({"code": "INVALID_API_KEY", "message": "no"}));
        }
        let below = path.strip_prefix("/v1/sandboxes").unwrap();
        match (request.method.as_str(), below) {
            ("POST", "") => {
                let id = format!("os-{}", self.made.fetch_add(1, Ordering::SeqCst));
                let machine = Arc::new(Machine::new(false));
                let sandbox = Sandbox { machine, spec: request.json() };
                let told = info(&id, &sandbox);
                self.sandboxes.lock().unwrap().insert(id, sandbox);
                answer.json(202, &told);
            }
            ("GET", "") => {
                let all = self.sandboxes.lock().unwrap();
                let items: Vec<Value> = all.iter().map(|(id, one)| info(id, one)).collect();
                answer.json(200, &json!({"items": items, "pagination": {"hasNextPage": false}}));
            }
            (method, below) => {
                let mut segments = below.trim_start_matches('/').split('/');
                let id = segments.next().unwrap().to_owned();
                let rest: Vec<&str> = segments.collect();
                self.one(method, &id, &rest, answer);
            }
        }
    }

    #[allow(clippy::too_many_arguments, reason = "one call of a fake server")]
    fn one(&self, method: &str, id: &str, rest: &[&str], answer: &mut Answer<'_>) {
        let mut all = self.sandboxes.lock().unwrap();
        let Some(sandbox) = all.get(id) else {
            return answer.json(404, &json!({"code": "DOCKER::SANDBOX_NOT_FOUND"}));
        };
        match (method, rest) {
            ("GET", []) => answer.json(200, &info(id, sandbox)),
            ("GET", ["endpoints", _]) => {
                let address = self.address.lock().unwrap();
                let endpoint = format!("{address}/v1/sandboxes/{id}/proxy/44772");
                answer.json(200, &json!({ "endpoint": endpoint }));
            }
            ("GET", ["networkpolicy"]) => match *self.enforcement.lock().unwrap() {
                Some(mode) => answer.json(
                    200,
                    &json!({"status": "ok", "mode": "enforcing", "enforcementMode": mode,
                            "policy": sandbox.spec["networkPolicy"]}),
                ),
                None => answer.json(502, &json!({"code": "BACKEND_CONNECTION_FAILED"})),
            },
            ("GET", ["diagnostics", "inspect"]) => {
                let memory = sandbox.spec["resourceLimits"]["memory"].as_str().unwrap();
                let text = format!("Image: x\nCPU: 1.0\nMemory: {memory}\nPids: 512\n");
                answer.send(200, "text/plain", text.as_bytes());
            }
            ("POST", ["renew-expiration"]) => answer.json(200, &json!({"expiresAt": "x"})),
            ("DELETE", []) => {
                all.remove(id);
                answer.empty(204);
            }
            _ => answer.json(404, &json!({"code": "NOT_FOUND"})),
        }
    }

    #[allow(clippy::too_many_arguments, reason = "one call of a fake server")]
    fn inside(&self, id: &str, path: &str, request: &Request, answer: &mut Answer<'_>) {
        let machine = Arc::clone(&self.sandboxes.lock().unwrap()[id].machine);
        match (request.method.as_str(), path) {
            ("GET", "/ping") => answer.empty(200),
            ("POST", "/command") => self.run(&machine, &request.json(), answer),
            ("POST", "/files/upload") => {
                let (path, content) = upload(&request.body);
                std::fs::write(machine.at(&path), content).unwrap();
                answer.empty(200);
            }
            ("GET", "/files/download") => {
                let content = std::fs::read(machine.at(&request.query("path").unwrap())).unwrap();
                answer.send(200, "application/octet-stream", &content);
            }
            ("GET", "/directories/list") => {
                let names = std::fs::read_dir(machine.tmp.path()).unwrap();
                let rows: Vec<Value> = names
                    .map(|name| {
                        let name = name.unwrap().file_name();
                        json!({"path": format!("/tmp/{}", name.to_str().unwrap()), "type": "file"})
                    })
                    .collect();
                answer.json(200, &json!(rows));
            }
            _ => answer.json(404, &json!({"code": "NOT_FOUND"})),
        }
    }

    fn run(&self, machine: &Machine, start: &Value, answer: &mut Answer<'_>) {
        let line = start["command"].as_str().unwrap();
        self.commands.lock().unwrap().push(line.to_owned());
        let env: BTreeMap<String, String> = serde_json::from_value(start["envs"].clone()).unwrap();
        let started = machine.start(line, &env, false);
        answer.begin("text/event-stream");
        let event = |value: Value| format!("{value}\n\n").into_bytes();
        answer.piece(&event(json!({"type": "init", "text": "c1", "timestamp": 1})));
        answer.piece(&event(json!({"type": "ping"})));
        let mut lines = [Vec::new(), Vec::new()];
        for word in started.words {
            let (index, name, bytes) = match word {
                Word::Stdout(bytes) => (0, "stdout", bytes),
                Word::Stderr(bytes) => (1, "stderr", bytes),
                Word::End(code) => {
                    for (rest, name) in lines.iter().zip(["stdout", "stderr"]) {
                        if !rest.is_empty() {
                            let text = String::from_utf8_lossy(rest);
                            answer.piece(&event(json!({"type": name, "text": text})));
                        }
                    }
                    answer.piece(&event(end(code)));
                    break;
                }
            };
            lines[index].extend(bytes);
            while let Some(at) = lines[index].iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = lines[index].drain(..=at).collect();
                let text = String::from_utf8_lossy(&line[..at]).into_owned();
                if !answer.piece(&event(json!({"type": name, "text": text}))) {
                    return;
                }
            }
        }
        answer.end();
    }
}

fn end(code: Option<i32>) -> Value {
    match code {
        Some(0) => json!({"type": "execution_complete", "execution_time": 3}),
        Some(code) => json!({"type": "error", "error": {
            "ename": "CommandExecError", "evalue": code.to_string(),
            "traceback": [format!("exit status {code}")]}}),
        None => json!({"type": "error", "error": {
            "ename": "CommandExecError", "evalue": "-1", "traceback": ["signal: killed"]}}),
    }
}

fn info(id: &str, sandbox: &Sandbox) -> Value {
    json!({
        "id": id, "status": {"state": "Running"}, "metadata": sandbox.spec["metadata"],
        "image": sandbox.spec["image"], "entrypoint": sandbox.spec["entrypoint"],
        "expiresAt": "2026-01-01T00:00:00Z", "createdAt": "2026-01-01T00:00:00Z",
    })
}

/// Returns path and content of an upload of one file.
fn upload(body: &[u8]) -> (String, Vec<u8>) {
    let boundary = body.split(|byte| *byte == b'\r').next().unwrap();
    let part = |from: usize| {
        let start = from + find(&body[from..], b"\r\n\r\n").unwrap() + 4;
        let end = start + find(&body[start..], &[b"\r\n", boundary].concat()).unwrap();
        (body[start..end].to_vec(), end)
    };
    let (metadata, end) = part(0);
    let (content, _) = part(end);
    let metadata: Value = serde_json::from_slice(&metadata).unwrap();
    (metadata["path"].as_str().unwrap().to_owned(), content)
}
