//! A server that answers as Daytona was seen to answer, over real processes.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use super::http::{Answer, Request, Server, find};
use super::machine::{Machine, Word};

pub(crate) const KEY: &str = "dtn_key";

struct Sandbox {
    machine: Arc<Machine>,
    spec: Value,
    /// How often it was read before it started.
    reads: usize,
}

/// The provider.
pub(crate) struct Provider {
    sandboxes: Mutex<BTreeMap<String, Sandbox>>,
    /// Exit codes of commands by name.
    codes: Mutex<BTreeMap<String, Option<i32>>>,
    words: Mutex<BTreeMap<String, std::sync::mpsc::Receiver<Word>>>,
    pub(crate) commands: Mutex<Vec<String>>,
    pub(crate) creates: Mutex<Vec<Value>>,
    made: AtomicUsize,
    address: Mutex<String>,
}

impl Provider {
    pub(crate) fn start() -> (Arc<Self>, Server) {
        let provider = Arc::new(Self {
            sandboxes: Mutex::default(),
            codes: Mutex::default(),
            words: Mutex::default(),
            commands: Mutex::default(),
            creates: Mutex::default(),
            made: AtomicUsize::new(0),
            address: Mutex::default(),
        });
        let own = Arc::clone(&provider);
        let server = Server::start(move |request, answer| own.answer(request, answer));
        *provider.address.lock().unwrap() = server.url();
        (provider, server)
    }

    pub(crate) fn left(&self) -> usize {
        self.sandboxes.lock().unwrap().len()
    }

    /// Returns the commands that are no steps of ours.
    pub(crate) fn programs(&self) -> Vec<String> {
        let commands = self.commands.lock().unwrap();
        commands.iter().filter(|line| line.contains("(cd ")).cloned().collect()
    }

    fn answer(&self, request: &Request, answer: &mut Answer<'_>) {
        let bearer = format!("Bearer {KEY}");
        if request.headers.get("authorization") != Some(&bearer) {
            return answer.json(401, &json!({"statusCode": 401, "message": "Unauthorized"}));
        }
        let path = request.path().to_owned();
        if let Some(rest) = path.strip_prefix("/toolbox/") {
            let (id, rest) = rest.split_once('/').unwrap();
            return self.inside(id, &format!("/{rest}"), request, answer);
        }
        match (request.method.as_str(), path.strip_prefix("/api").unwrap()) {
            ("GET", "/config") => answer.json(200, &json!({"version": "v0.214.3"})),
            ("POST", "/sandbox") => {
                let spec = request.json();
                self.creates.lock().unwrap().push(spec.clone());
                let id = format!("sb-{}", self.made.fetch_add(1, Ordering::SeqCst));
                let machine = Arc::new(Machine::new(false));
                let sandbox = Sandbox { machine, spec, reads: 0 };
                let told = self.dto(&id, &sandbox);
                self.sandboxes.lock().unwrap().insert(id, sandbox);
                answer.json(200, &told);
            }
            ("GET", "/sandbox") => {
                let all = self.sandboxes.lock().unwrap();
                let items: Vec<Value> = all.iter().map(|(id, one)| self.dto(id, one)).collect();
                answer.json(200, &json!({"items": items, "nextCursor": null}));
            }
            ("GET", path) => {
                let id = path.rsplit('/').next().unwrap();
                let mut all = self.sandboxes.lock().unwrap();
                match all.get_mut(id) {
                    Some(sandbox) => {
                        sandbox.reads += 1;
                        answer.json(200, &self.dto(id, sandbox));
                    }
                    None => answer.json(404, &json!({"statusCode": 404, "message": "gone"})),
                }
            }
            ("POST", path) if path.contains("/autostop/") => answer.json(200, &json!({})),
            ("DELETE", path) => {
                let id = path.rsplit('/').next().unwrap();
                let gone = self.sandboxes.lock().unwrap().remove(id);
                answer.json(if gone.is_some() { 200 } else { 404 }, &json!({}));
            }
            _ => answer.json(404, &json!({"statusCode": 404})),
        }
    }

    fn dto(&self, id: &str, sandbox: &Sandbox) -> Value {
        let spec = &sandbox.spec;
        json!({
            "id": id, "organizationId": "o", "name": id, "user": "daytona", "env": {},
            "labels": spec["labels"], "public": false, "kvm": false, "target": "us",
            "networkBlockAll": spec["networkBlockAll"] == true,
            "domainAllowList": spec["domainAllowList"],
            "cpu": 1, "gpu": 0, "memory": 1, "disk": 3, "snapshot": "daytonaio/sandbox:0.5.0",
            "sandboxClass": "container",
            "state": if sandbox.reads > 1 { "started" } else { "creating" },
            "toolboxProxyUrl": format!("{}/toolbox", self.address.lock().unwrap()),
        })
    }

    #[allow(clippy::too_many_arguments, reason = "one call of a fake server")]
    fn inside(&self, id: &str, path: &str, request: &Request, answer: &mut Answer<'_>) {
        let machine = Arc::clone(&self.sandboxes.lock().unwrap()[id].machine);
        match (request.method.as_str(), path) {
            ("POST", "/process/session") => answer.json(201, &json!({})),
            ("POST", path) if path.ends_with("/exec") => {
                let line = request.json()["command"].as_str().unwrap().to_owned();
                let mut commands = self.commands.lock().unwrap();
                let name = format!("c{}", commands.len());
                commands.push(line.clone());
                let started = machine.start(&line, &BTreeMap::new(), false);
                self.codes.lock().unwrap().insert(name.clone(), None);
                self.words.lock().unwrap().insert(name.clone(), started.words);
                answer.json(202, &json!({"cmdId": name, "output": null, "exitCode": null}));
            }
            ("GET", path) if path.ends_with("/logs") => {
                self.follow(path.rsplit('/').nth(1).unwrap(), answer);
            }
            ("GET", path) if path.starts_with("/process/session/") => {
                let name = path.rsplit('/').next().unwrap();
                match self.codes.lock().unwrap()[name] {
                    Some(code) => answer.json(200, &json!({"id": name, "exitCode": code})),
                    None => answer.json(200, &json!({"id": name, "command": "x"})),
                }
            }
            ("POST", "/files/bulk-upload") => {
                let (path, content) = upload(&request.body);
                std::fs::write(machine.at(&path), content).unwrap();
                answer.empty(200);
            }
            ("GET", "/files/download") => {
                let content = std::fs::read(machine.at(&request.query("path").unwrap())).unwrap();
                answer.send(200, "application/octet-stream", &content);
            }
            ("GET", "/files") => {
                let names = std::fs::read_dir(machine.tmp.path()).unwrap();
                let rows: Vec<Value> = names
                    .map(|name| json!({"name": name.unwrap().file_name().to_str().unwrap()}))
                    .collect();
                answer.json(200, &json!(rows));
            }
            _ => answer.json(404, &json!({"statusCode": 404})),
        }
    }

    /// The log as a WebSocket: every frame begins with the mark of its stream.
    fn follow(&self, name: &str, answer: &mut Answer<'_>) {
        let words = self.words.lock().unwrap().remove(name).unwrap();
        let stream = answer.raw();
        let head = "HTTP/1.1 101 X\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(&[0x89, 0]).unwrap();
        for word in words {
            let frame = match word {
                Word::Stdout(bytes) => [&[1, 1, 1][..], &bytes].concat(),
                Word::Stderr(bytes) => [&[2, 2, 2][..], &bytes].concat(),
                Word::End(code) => {
                    self.codes.lock().unwrap().insert(name.to_owned(), Some(code.unwrap_or(-1)));
                    break;
                }
            };
            let length = u16::try_from(frame.len()).unwrap().to_be_bytes();
            let _ = stream.write_all(&[&[0x82, 126], &length[..], &frame].concat());
        }
        let _ = stream.write_all(&[0x88, 2, 3, 232]);
        let _ = stream.shutdown(std::net::Shutdown::Both);
    }
}

/// Returns path and content of an upload of one file.
fn upload(body: &[u8]) -> (String, Vec<u8>) {
    let boundary = body.split(|byte| *byte == b'\r').next().unwrap();
    let part = |from: usize| {
        let start = from + find(&body[from..], b"\r\n\r\n").unwrap() + 4;
        let end = start + find(&body[start..], &[b"\r\n", boundary].concat()).unwrap();
        (body[start..end].to_vec(), end)
    };
    let (path, end) = part(0);
    let (content, _) = part(end);
    (String::from_utf8(path).unwrap(), content)
}
