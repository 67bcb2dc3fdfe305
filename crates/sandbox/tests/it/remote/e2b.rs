//! A server that answers as E2B was seen to answer, over real processes.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::http::{Answer, Request, Server};
use super::machine::{Machine, Started, Word};
use super::trick::Trick;

pub(crate) const KEY: &str = "e2b_0000000000000000000000000000000000000000";

/// What the provider knows of one sandbox.
struct Sandbox {
    machine: Arc<Machine>,
    spec: Value,
}

/// The provider.
pub(crate) struct Provider {
    sandboxes: Mutex<BTreeMap<String, Sandbox>>,
    processes: Mutex<BTreeMap<u64, Started>>,
    trick: Mutex<Trick>,
    pub(crate) starts: Mutex<Vec<Value>>,
    pub(crate) creates: Mutex<Vec<Value>>,
    reads: AtomicUsize,
    made: AtomicUsize,
}

impl Provider {
    pub(crate) fn start(trick: Trick) -> (Arc<Self>, Server) {
        let provider = Arc::new(Self {
            sandboxes: Mutex::default(),
            processes: Mutex::default(),
            trick: Mutex::new(trick),
            starts: Mutex::default(),
            creates: Mutex::default(),
            reads: AtomicUsize::new(0),
            made: AtomicUsize::new(0),
        });
        let own = Arc::clone(&provider);
        let server = Server::start(move |request, answer| own.answer(request, answer));
        (provider, server)
    }

    /// Returns how many sandboxes exist.
    pub(crate) fn left(&self) -> usize {
        self.sandboxes.lock().unwrap().len()
    }

    pub(crate) fn play(&self, trick: Trick) {
        *self.trick.lock().unwrap() = trick;
    }

    /// Returns the lines of programs that are no steps of ours.
    pub(crate) fn programs(&self) -> Vec<String> {
        let starts = self.starts.lock().unwrap();
        let lines = starts.iter().map(|start| start["process"]["args"][1].as_str().unwrap());
        lines.filter(|line| line.starts_with("(cd ")).map(str::to_owned).collect()
    }

    fn answer(&self, request: &Request, answer: &mut Answer<'_>) {
        let trick = *self.trick.lock().unwrap();
        if request.headers.contains_key("e2b-sandbox-id") {
            return self.inside(request, answer, trick);
        }
        let known = request.headers.get("x-api-key").is_some_and(|key| key == KEY);
        if !known || trick == Trick::RevokedKey {
            return answer.json(401, &json!({"code": 401, "message": "unauthorized"}));
        }
        let path = request.path().to_owned();
        match (request.method.as_str(), path.as_str()) {
            ("POST", "/v2/sandboxes") => self.create(request, answer, trick),
            ("GET", "/v2/sandboxes") => {
                let wanted = request.query("metadata");
                let all = self.sandboxes.lock().unwrap();
                let rows: Vec<Value> = all
                    .iter()
                    .map(|(id, sandbox)| {
                        json!({"sandboxID": id, "metadata": sandbox.spec["metadata"]})
                    })
                    .filter(|row| {
                        wanted.as_ref().is_none_or(|wanted| {
                            let (name, value) = wanted.split_once('=').unwrap();
                            row["metadata"][name] == value
                        })
                    })
                    .collect();
                answer.json(200, &json!(rows));
            }
            ("GET", _) => self.info(path.rsplit('/').next().unwrap(), answer, trick),
            ("DELETE", _) => {
                let gone = self.sandboxes.lock().unwrap().remove(path.rsplit('/').next().unwrap());
                answer.empty(if gone.is_some() { 204 } else { 404 });
            }
            ("POST", path) if path.ends_with("/timeout") => answer.empty(204),
            _ => answer.json(404, &json!({"code": 404, "message": "no such route"})),
        }
    }

    fn create(&self, request: &Request, answer: &mut Answer<'_>, trick: Trick) {
        let spec = request.json();
        self.creates.lock().unwrap().push(spec.clone());
        let id = format!("i{:06}", self.made.fetch_add(1, Ordering::SeqCst));
        let made = || {
            let machine = Arc::new(Machine::new(trick == Trick::OpenEgress));
            let sandbox = Sandbox { machine, spec: spec.clone() };
            self.sandboxes.lock().unwrap().insert(id.clone(), sandbox);
        };
        let created = json!({
            "templateID": spec["templateID"], "sandboxID": id, "clientID": "c",
            "envdVersion": "0.6.13", "envdAccessToken": "token", "domain": null, "alias": "base",
        });
        match trick {
            Trick::CreateError => answer.json(500, &json!({"code": 500, "message": "oops"})),
            Trick::CreateHang => answer.hang(),
            Trick::CreateMadeAndCut => {
                made();
                answer.truncated(b"{\"sandboxID\":");
            }
            Trick::CreateMadeAndError => {
                made();
                answer.json(504, &json!({"code": 504, "message": "gateway timeout"}));
            }
            Trick::CreateMalformed => {
                made();
                answer.send(201, "application/json", b"<html>");
            }
            Trick::CreateStrangeId => {
                made();
                let mut strange = created;
                strange["sandboxID"] = json!("../../admin?x=");
                answer.json(201, &strange);
            }
            _ => {
                made();
                answer.json(201, &created);
            }
        }
    }

    fn info(&self, id: &str, answer: &mut Answer<'_>, trick: Trick) {
        let reads = self.reads.fetch_add(1, Ordering::SeqCst);
        let all = self.sandboxes.lock().unwrap();
        let Some(sandbox) = all.get(id) else {
            return answer.json(404, &json!({"code": 404, "message": "no such sandbox"}));
        };
        let spec = &sandbox.spec;
        let mut info = json!({
            "templateID": spec["templateID"], "alias": "base", "sandboxID": id, "clientID": "c",
            "startedAt": "2026-01-01T00:00:00Z", "endAt": format!("2026-01-01T01:00:{reads:02}Z"),
            "envdVersion": "0.6.13", "cpuCount": 2, "memoryMB": 512, "diskSizeMB": 1024,
            "metadata": spec["metadata"], "state": "running",
            "allowInternetAccess": spec["allow_internet_access"], "network": spec["network"],
        });
        let is_later = reads > 0;
        match trick {
            Trick::UnknownVersion => info["envdVersion"] = json!("0.0.1"),
            Trick::NoVersion => drop(info.as_object_mut().unwrap().remove("envdVersion")),
            Trick::NoEgressTold => {
                info.as_object_mut().unwrap().remove("allowInternetAccess");
                info.as_object_mut().unwrap().remove("network");
            }
            Trick::OtherEgressTold => info["allowInternetAccess"] = json!(true),
            Trick::EgressOpenedLater if is_later => info["allowInternetAccess"] = json!(true),
            Trick::ImageSwappedLater if is_later => info["templateID"] = json!("other"),
            Trick::MemoryChangedLater if is_later => info["memoryMB"] = json!(4096),
            Trick::VersionChangedLater if is_later => info["envdVersion"] = json!("0.9.9"),
            Trick::TooMuchMemory => info["memoryMB"] = json!(1_000_000),
            Trick::ForeignMount => info["volumeMounts"] = json!([{"name": "v", "path": "/mnt"}]),
            Trick::OtherSandboxTold => info["sandboxID"] = json!("i999999"),
            Trick::OtherSessionTold => info["metadata"]["warrant-session"] = json!("another"),
            Trick::InfoError => return answer.json(500, &json!({"message": "oops"})),
            Trick::InfoMalformed => return answer.send(200, "application/json", b"{\"a\":"),
            Trick::InfoTruncated => return answer.truncated(b"{\"sandboxID\":\""),
            Trick::InfoFlaky if reads.is_multiple_of(2) => {
                return answer.json(503, &json!({"message": "try again"}));
            }
            Trick::KeyRevokedLater if is_later => {
                return answer.json(401, &json!({"message": "unauthorized"}));
            }
            _ => {}
        }
        answer.json(200, &info);
    }

    fn inside(&self, request: &Request, answer: &mut Answer<'_>, trick: Trick) {
        let id = &request.headers["e2b-sandbox-id"];
        let machine = {
            let all = self.sandboxes.lock().unwrap();
            all.get(id).map(|sandbox| Arc::clone(&sandbox.machine))
        };
        let Some(machine) = machine else {
            let gone = json!({"sandboxId": id, "message": "not running", "code": 502});
            return answer.json(502, &gone);
        };
        assert_eq!(request.headers["x-access-token"], "token");
        match (request.method.as_str(), request.path()) {
            (_, "/health") => answer.empty(204),
            ("POST", "/files") => {
                let file = machine.at(&request.query("path").unwrap());
                let mut content = request.form_file();
                if trick == Trick::DamagedUpload {
                    content[0] ^= 1;
                }
                std::fs::write(file, content).unwrap();
                answer.json(200, &json!([{"name": "f", "path": "/f", "type": "file"}]));
            }
            ("GET", "/files") => {
                let file = machine.at(&request.query("path").unwrap());
                match std::fs::read(file) {
                    Ok(mut content) => {
                        if trick == Trick::DamagedDownload {
                            let middle = content.len() / 2;
                            content[middle] ^= 1;
                        }
                        answer.send(200, "application/octet-stream", &content);
                    }
                    Err(_) => answer.json(404, &json!({"code": 404, "message": "no such file"})),
                }
            }
            ("POST", "/process.Process/SendInput") => {
                let input = request.json();
                let bytes = STANDARD.decode(input["input"]["stdin"].as_str().unwrap()).unwrap();
                let pid = input["process"]["pid"].as_u64().unwrap();
                self.processes.lock().unwrap().get_mut(&pid).unwrap().feed(&bytes);
                answer.json(200, &json!({}));
            }
            ("POST", "/process.Process/CloseStdin") => {
                let pid = request.json()["process"]["pid"].as_u64().unwrap();
                self.processes.lock().unwrap().get_mut(&pid).unwrap().stdin = None;
                answer.json(200, &json!({}));
            }
            ("POST", "/filesystem.Filesystem/ListDir") => {
                let folder = machine.at(request.json()["path"].as_str().unwrap());
                let names = std::fs::read_dir(folder).unwrap();
                let entries: Vec<Value> = names
                    .map(|name| json!({"name": name.unwrap().file_name().to_str().unwrap()}))
                    .collect();
                answer.json(200, &json!({"entries": entries}));
            }
            ("POST", "/process.Process/Start") => {
                self.run(&machine, request, answer, trick);
            }
            _ => answer.json(404, &json!({"code": "unimplemented"})),
        }
    }

    #[allow(clippy::too_many_arguments, reason = "one exec of a fake server")]
    fn run(&self, machine: &Machine, request: &Request, answer: &mut Answer<'_>, trick: Trick) {
        let message: Value = serde_json::from_slice(&request.body[5..]).unwrap();
        self.starts.lock().unwrap().push(message.clone());
        let line = message["process"]["args"][1].as_str().unwrap();
        let is_program = line.starts_with("(cd ");
        let trick = if is_program { trick } else { Trick::None };
        match trick {
            Trick::StartError => return answer.json(500, &json!({"code": "internal"})),
            Trick::StartDenied => {
                answer.begin("application/connect+json");
                let error = json!({"error": {"code": "permission_denied", "message": "DENY"}});
                answer.piece(&envelope(2, &error));
                return answer.end();
            }
            Trick::StartHang => return answer.hang(),
            _ => {}
        }
        let env: BTreeMap<String, String> =
            serde_json::from_value(message["process"]["envs"].clone()).unwrap();
        let mut started = machine.start(line, &env, message["stdin"] == true);
        let pid = u64::from(started.pid);
        answer.begin("application/connect+json");
        answer.piece(&envelope(0, &json!({"event": {"start": {"pid": pid}}})));
        if trick == Trick::StartCut {
            return answer.cut();
        }
        let words = std::mem::replace(&mut started.words, std::sync::mpsc::channel().1);
        self.processes.lock().unwrap().insert(pid, started);
        for word in words {
            let event = match word {
                Word::Stdout(_) if trick == Trick::SwallowedOutput => continue,
                Word::Stderr(bytes) if trick == Trick::MergedStreams => {
                    json!({"data": {"stdout": STANDARD.encode(bytes)}})
                }
                Word::Stdout(bytes) => json!({"data": {"stdout": STANDARD.encode(bytes)}}),
                Word::Stderr(bytes) => json!({"data": {"stderr": STANDARD.encode(bytes)}}),
                Word::End(code) => {
                    if trick == Trick::NoEnd {
                        answer.piece(&envelope(2, &json!({})));
                        return answer.end();
                    }
                    end_event(if trick == Trick::LyingExitCode { Some(0) } else { code })
                }
            };
            let is_end = event.get("end").is_some();
            let piece = envelope(0, &json!({"event": event}));
            if trick == Trick::SlowLoris && !is_end {
                for byte in &piece {
                    answer.piece(&[*byte]);
                }
            } else if !answer.piece(&piece) {
                return;
            }
            if is_end && trick == Trick::EndTwice {
                let other = json!({"end": {"exitCode": 9, "exited": true}});
                answer.piece(&envelope(0, &json!({"event": other})));
            }
        }
        answer.piece(&envelope(2, &json!({})));
        answer.end();
    }
}

fn end_event(code: Option<i32>) -> Value {
    match code {
        Some(0) => json!({"end": {"exited": true, "status": "exit status 0"}}),
        Some(code) => {
            let status = format!("exit status {code}");
            json!({"end": {"exitCode": code, "exited": true, "status": status, "error": status}})
        }
        None => json!({"end": {"exitCode": -1, "status": "signal: killed"}}),
    }
}

fn envelope(flags: u8, message: &Value) -> Vec<u8> {
    let body = message.to_string().into_bytes();
    let length = u32::try_from(body.len()).unwrap().to_be_bytes();
    [&[flags][..], &length, &body].concat()
}
