//! A proxy between a client and a door that misbehaves in one way at a time.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;

use super::http::{Answer, Request, read_head};

/// What a call is for, whoever's call it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Asks for a sandbox.
    Create,
    /// Asks what a sandbox is.
    Reading,
    /// Asks which rules are applied, where that is another question.
    Rules,
    /// Asks for the version, where that is another question.
    Version,
    /// Writes a file.
    Upload,
    /// Reads a file.
    Download,
    /// Starts the program, not a step of ours.
    Start,
    /// Starts a step of ours.
    Step,
    /// Listens to the program, where that is another question.
    Listen,
    /// Asks how a program ended, where that is another question.
    Status,
    /// Asks for a longer life.
    Renew,
    /// Anything else.
    Other,
}

/// When it misbehaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum When {
    /// At every call of this kind.
    Every(Kind),
    /// At calls of this kind after the workspace was staged.
    Later(Kind),
    /// At every call after the workspace was staged.
    Afterwards,
    /// At the first so many calls of this kind.
    First(Kind, usize),
    /// At every call after the program was started, save those that tell what it says.
    Underway,
    /// At the answer that carries what the program says and how it ended.
    Saying,
    /// At every call.
    Always,
}

/// How it misbehaves. The door gets the call unless it says otherwise.
#[derive(Clone, Copy)]
pub(crate) enum How {
    /// As it should.
    Honest,
    /// The door never gets the call; the answer is this.
    Instead(u16, &'static str),
    /// The answer is this, whatever the door did.
    Answers(u16, &'static str),
    /// No answer ever comes.
    Hangs,
    /// The door never gets the call, and no answer ever comes.
    Swallows,
    /// Half of the answer comes.
    Truncates,
    /// The answer comes a byte at a time.
    Drips,
    /// The connection is cut as soon as the door begins to answer.
    Cuts,
    /// The whole answer comes two times.
    Twice,
    /// The door gets the call two times.
    Repeats,
    /// The JSON of the answer is changed.
    Edits(fn(&mut Value)),
    /// The bytes of the answer are changed.
    Rewrites(fn(&[u8]) -> Vec<u8>),
    /// The bytes of the call are changed.
    Damages(fn(&[u8]) -> Vec<u8>),
}

/// One way to misbehave.
#[derive(Clone, Copy)]
pub(crate) struct Trick {
    pub(crate) when: When,
    pub(crate) how: How,
}

pub(crate) const HONEST: Trick = Trick { when: When::Always, how: How::Honest };

struct Shared {
    door: String,
    trick: Mutex<Trick>,
    is_staged: AtomicBool,
    /// Whether what is listened to is the program.
    is_started: AtomicBool,
    is_closed: AtomicBool,
    /// Every call there was.
    calls: Mutex<Vec<(Kind, Request)>>,
}

/// The proxy.
pub(crate) struct Proxy {
    /// `host:port`.
    pub(crate) address: String,
    shared: Arc<Shared>,
}

impl Proxy {
    pub(crate) fn before(door: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let shared = Arc::new(Shared {
            door: door.to_owned(),
            trick: Mutex::new(HONEST),
            is_staged: AtomicBool::new(false),
            is_started: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
            calls: Mutex::default(),
        });
        let own = Arc::clone(&shared);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if own.is_closed.load(Ordering::SeqCst) {
                    return;
                }
                let own = Arc::clone(&own);
                std::thread::spawn(move || own.serve(client));
            }
        });
        Self { address, shared }
    }

    /// From now on misbehaves this way; what was seen before is forgotten.
    pub(crate) fn play(&self, trick: Trick) {
        *self.shared.trick.lock().unwrap() = trick;
        self.shared.is_staged.store(false, Ordering::SeqCst);
        self.shared.is_started.store(false, Ordering::SeqCst);
        self.shared.calls.lock().unwrap().clear();
    }

    /// Returns what the calls were for in which these words were told.
    pub(crate) fn told(&self, words: &str) -> Vec<Kind> {
        let calls = self.shared.calls.lock().unwrap();
        let telling =
            calls.iter().filter(|(_, call)| call.says(words) || call.target.contains(words));
        telling.map(|(kind, _)| *kind).collect()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.is_closed.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(&self.address);
    }
}

impl Shared {
    fn serve(&self, mut client: TcpStream) {
        let Some(mut request) = Request::read(&mut client) else { return };
        let kind = kind(&request);
        let how = self.how(kind);
        self.calls.lock().unwrap().push((kind, request.clone()));
        match kind {
            Kind::Upload => self.is_staged.store(true, Ordering::SeqCst),
            Kind::Start => self.is_started.store(true, Ordering::SeqCst),
            _ => {}
        }
        match how {
            How::Instead(status, body) => return send(&mut client, &Answer::new(status, body)),
            How::Swallows => {
                let _ = client.read(&mut [0]);
                return;
            }
            How::Damages(damage) => request.body = damage(&request.body),
            How::Repeats => {
                let first = Answer::read(&mut self.ask(&request));
                self.await_command(&request, first);
            }
            _ => {}
        }
        let door = self.ask(&request);
        if request.is_upgrade() {
            return listen(client, door, how);
        }
        answer(client, door, how);
    }

    /// Waits for the end of a program that was started where starting does not: otherwise the
    /// second one may be done before the first has begun, and nobody could see both.
    fn await_command(&self, start: &Request, started: Option<Answer>) {
        let Some(session) = start.path().strip_suffix("/exec") else { return };
        let told: Value = serde_json::from_slice(&started.unwrap().body).unwrap();
        let status = start.get(&format!("{session}/command/{}", told["cmdId"].as_str().unwrap()));
        for _ in 0..600 {
            let answer = Answer::read(&mut self.ask(&status)).unwrap();
            let told: Value = serde_json::from_slice(&answer.body).unwrap();
            if told["exitCode"].is_number() {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        panic!("the first program never ended");
    }

    fn how(&self, kind: Kind) -> How {
        let trick = *self.trick.lock().unwrap();
        let is_staged = self.is_staged.load(Ordering::SeqCst);
        let is_started = self.is_started.load(Ordering::SeqCst) || kind == Kind::Start;
        let applies = match trick.when {
            When::Always => true,
            When::Every(wanted) => kind == wanted,
            When::Later(wanted) => is_staged && kind == wanted,
            When::Afterwards => is_staged,
            When::First(wanted, most) => kind == wanted && self.seen(kind) < most,
            When::Underway => {
                let is_telling = matches!(kind, Kind::Start | Kind::Listen | Kind::Status);
                self.is_started.load(Ordering::SeqCst) && !is_telling
            }
            When::Saying => is_started && matches!(kind, Kind::Start | Kind::Listen | Kind::Status),
        };
        if applies { trick.how } else { How::Honest }
    }

    /// Returns how many calls of a kind there were.
    fn seen(&self, kind: Kind) -> usize {
        let calls = self.calls.lock().unwrap();
        calls.iter().filter(|(seen, _)| *seen == kind).count()
    }

    fn ask(&self, request: &Request) -> TcpStream {
        let mut door = TcpStream::connect(&self.door).unwrap();
        door.write_all(&request.to_bytes()).unwrap();
        door
    }
}

/// Passes an answer on, or does to it what the trick says.
fn answer(mut client: TcpStream, mut door: TcpStream, how: How) {
    match how {
        How::Hangs => {
            // The door is done with it; the client gives up some time.
            let _ = Answer::read(&mut door);
            let _ = client.read(&mut [0]);
        }
        How::Cuts => {
            let _ = door.read(&mut [0]);
            let _ = client.shutdown(Shutdown::Both);
        }
        How::Honest | How::Damages(_) | How::Repeats | How::Instead(..) | How::Swallows => {
            pass(client, door)
        }
        How::Answers(status, body) => {
            let _ = Answer::read(&mut door);
            send(&mut client, &Answer::new(status, body));
        }
        How::Truncates => {
            let Some(answer) = Answer::read(&mut door) else { return };
            let bytes = answer.to_bytes();
            let _ = client.write_all(&bytes[..bytes.len() - answer.body.len().div_ceil(2)]);
        }
        How::Drips => {
            let Some(answer) = Answer::read(&mut door) else { return };
            for byte in answer.to_bytes() {
                std::thread::sleep(Duration::from_millis(100));
                if client.write_all(&[byte]).is_err() {
                    return;
                }
            }
        }
        How::Twice => {
            let Some(answer) = Answer::read(&mut door) else { return };
            // Nothing says that the connection ends, so the second copy is there to be read.
            let bytes = answer.to_open_bytes();
            let _ = client.write_all(&[bytes.as_slice(), &bytes].concat());
            let _ = client.read(&mut [0]);
        }
        How::Edits(edit) => {
            let Some(mut answer) = Answer::read(&mut door) else { return };
            if let Ok(mut value) = serde_json::from_slice(&answer.body) {
                edit(&mut value);
                answer.body = value.to_string().into_bytes();
            }
            send(&mut client, &answer);
        }
        How::Rewrites(rewrite) => {
            let Some(mut answer) = Answer::read(&mut door) else { return };
            answer.body = rewrite(&answer.body);
            send(&mut client, &answer);
        }
    }
}

fn send(client: &mut TcpStream, answer: &Answer) {
    let _ = client.write_all(&answer.to_bytes());
    let _ = client.shutdown(Shutdown::Write);
    // Whoever closes with unread bytes takes back what it wrote.
    let _ = client.read(&mut [0]);
}

/// Passes an answer on as it comes.
fn pass(mut client: TcpStream, mut door: TcpStream) {
    let Ok(Some((head, rest))) = read_head(&mut door) else { return };
    let lines = head.iter().filter(|line| !line.to_lowercase().starts_with("connection:"));
    let lines: Vec<&str> = lines.map(String::as_str).collect();
    let head = format!("{}\r\nConnection: close\r\n\r\n", lines.join("\r\n"));
    if client.write_all(&[head.as_bytes(), &rest].concat()).is_ok() {
        copy(&mut door, &mut client);
    }
    let _ = client.shutdown(Shutdown::Write);
    let _ = client.read(&mut [0]);
}

/// Passes on what is said after a change of protocol, both ways.
fn listen(mut client: TcpStream, mut door: TcpStream, how: How) {
    match how {
        How::Hangs => {
            let _ = client.read(&mut [0]);
            return;
        }
        How::Cuts | How::Truncates | How::Answers(..) => {
            // The change of protocol comes, and nothing after it.
            if let Ok(Some((head, _))) = read_head(&mut door) {
                let _ = client.write_all(format!("{}\r\n\r\n", head.join("\r\n")).as_bytes());
            }
            let _ = client.shutdown(Shutdown::Both);
            return;
        }
        _ => {}
    }
    let (mut back, mut forth) = (client.try_clone().unwrap(), door.try_clone().unwrap());
    let up = std::thread::spawn(move || copy(&mut back, &mut forth));
    copy(&mut door, &mut client);
    let _ = client.shutdown(Shutdown::Both);
    let _ = door.shutdown(Shutdown::Both);
    let _ = up.join();
}

fn copy(from: &mut TcpStream, to: &mut TcpStream) {
    let mut piece = [0; 16 << 10];
    while let Ok(count @ 1..) = from.read(&mut piece) {
        if to.write_all(&piece[..count]).is_err() {
            return;
        }
    }
}

/// What every program's line begins with, and no step of ours has.
const PROGRAM: &str = "(cd '/tmp/workspace";

/// Returns what a call is for.
fn kind(request: &Request) -> Kind {
    let path = request.path();
    let is_get = request.method == "GET";
    let is_post = request.method == "POST";
    let starts = is_post
        && (path == "/process.Process/Start"
            || path.ends_with("/proxy/44772/command")
            || (path.contains("/process/session/") && path.ends_with("/exec")));
    if starts {
        return if request.says(PROGRAM) { Kind::Start } else { Kind::Step };
    }
    let creates = ["/v2/sandboxes", "/sandboxes", "/api/sandbox", "/v1/sandboxes"];
    if is_post && creates.contains(&path) {
        return Kind::Create;
    }
    let renews = ["/timeout", "/renew-expiration"].iter().any(|end| path.ends_with(end));
    if is_post && (renews || path.contains("/ttl/")) {
        return Kind::Renew;
    }
    if path.ends_with("/networkpolicy") || path.ends_with("/18080/policy") {
        return Kind::Rules;
    }
    if path == "/version" || path == "/api/config" {
        return Kind::Version;
    }
    if path.contains("/process/session/") && is_get {
        return if path.ends_with("/logs") { Kind::Listen } else { Kind::Status };
    }
    if path.ends_with("/files/download") || (path == "/files" && is_get) {
        return Kind::Download;
    }
    let uploads = ["/files/upload", "/files/bulk-upload"].iter().any(|end| path.ends_with(end));
    if is_post && (uploads || path == "/files") {
        return Kind::Upload;
    }
    let folders = ["/sandboxes/", "/api/sandbox/", "/v1/sandboxes/"];
    let below = folders.iter().find_map(|folder| path.strip_prefix(folder));
    match below {
        Some(id) if is_get && !id.contains('/') => Kind::Reading,
        _ => Kind::Other,
    }
}
