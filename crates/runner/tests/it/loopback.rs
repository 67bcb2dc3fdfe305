//! A plane of the reference on loopback: it answers as the recorded one did, and records what it
//! was asked.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use warrant_protocol::{Digest, PublicKey};

/// One request that arrived.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) token: Option<String>,
    pub(crate) body: Vec<u8>,
}

impl Asked {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

/// What the plane answers; a test may replace it.
type Answer = dyn Fn(&Asked) -> Option<(u16, Value)> + Send + Sync;

pub(crate) struct Loopback {
    pub(crate) address: SocketAddr,
    asked: Arc<Mutex<Vec<Asked>>>,
    is_away: Arc<AtomicBool>,
}

/// The recorded conversation.
pub(crate) fn transcript() -> Vec<Value> {
    let path = format!("{}/../../vectors/http-transcript.json", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// The key of the recorded plane.
pub(crate) fn recorded_plane_key() -> PublicKey {
    let bundle = transcript().into_iter().find(|entry| entry["label"] == "bundle").unwrap();
    let pem = &bundle["response"]["body"]["json"]["keys"]["planePublicKeyPem"];
    PublicKey::from_pem(pem.as_str().unwrap()).unwrap()
}

/// The recorded answers to claims that brought a run, in order.
pub(crate) fn recorded_claims() -> Vec<Value> {
    let answer = |entry: &Value| entry["response"]["body"]["json"].clone();
    let is_claim = |entry: &&Value| entry["request"]["path"] == "/v1/claims";
    let all = transcript();
    let claims = all.iter().filter(is_claim).map(answer);
    claims.filter(|answer| answer.get("empty").is_none()).collect()
}

fn bytes_of(body: &Value) -> Vec<u8> {
    match (body.get("text"), body.get("base64")) {
        (Some(text), _) => text.as_str().unwrap().as_bytes().to_vec(),
        (_, Some(encoded)) => STANDARD.decode(encoded.as_str().unwrap()).unwrap(),
        _ => Vec::new(),
    }
}

/// The blobs that were uploaded in the recorded conversation.
fn recorded_blobs() -> HashMap<String, Vec<u8>> {
    let is_upload = |entry: &&Value| {
        entry["request"]["path"] == "/v1/blobs" && entry["request"]["method"] == "POST"
    };
    let all = transcript();
    let uploads = all.iter().filter(is_upload).map(|entry| bytes_of(&entry["request"]["body"]));
    uploads.map(|bytes| (Digest::of(&bytes).to_hex(), bytes)).collect()
}

impl Loopback {
    /// Starts a plane that hands out these claims, one after the other, and then nothing.
    pub(crate) fn with_claims(claims: Vec<Value>) -> Self {
        Self::with(claims, |_| None)
    }

    /// As [`Loopback::with_claims`], where `answer` may answer first.
    pub(crate) fn with(
        claims: Vec<Value>,
        answer: impl Fn(&Asked) -> Option<(u16, Value)> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let is_away = Arc::new(AtomicBool::new(false));
        let claims =
            Arc::new(Mutex::new(claims.into_iter().collect::<std::collections::VecDeque<_>>()));
        let blobs = Arc::new(Mutex::new(recorded_blobs()));
        let answer: Arc<Answer> = Arc::new(answer);
        let (list, away) = (Arc::clone(&asked), Arc::clone(&is_away));
        thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(stream) = stream else { return };
                let (list, claims, blobs) =
                    (Arc::clone(&list), Arc::clone(&claims), Arc::clone(&blobs));
                let (answer, away) = (Arc::clone(&answer), Arc::clone(&away));
                thread::spawn(move || {
                    converse(stream, |asked| {
                        if away.load(Ordering::SeqCst) {
                            return None;
                        }
                        list.lock().unwrap().push(asked.clone());
                        if let Some((status, body)) = answer(asked) {
                            return Some((status, body.to_string().into_bytes()));
                        }
                        Some(usual(asked, &claims, &blobs))
                    });
                });
            }
        });
        Self { address, asked, is_away }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }

    /// Closes every connection without an answer from now on, or no longer.
    pub(crate) fn set_away(&self, is_away: bool) {
        self.is_away.store(is_away, Ordering::SeqCst);
    }
}

fn usual(
    asked: &Asked,
    claims: &Mutex<std::collections::VecDeque<Value>>,
    blobs: &Mutex<HashMap<String, Vec<u8>>>,
) -> (u16, Vec<u8>) {
    let said = |value: Value| (200, value.to_string().into_bytes());
    let segments: Vec<&str> = asked.path.trim_start_matches('/').split('/').collect();
    match (asked.method.as_str(), segments.as_slice()) {
        ("POST", ["v1", "runners", "enroll"]) => said(json!({
            "runnerId": "rnr_64ba6052-15b5-49e0-a88f-0a46eb921585",
            "runnerToken": "VWQajty7goplkFIyI0Em1FKD-tJMbmgFGJ-nsIBzKeY",
        })),
        ("POST", ["v1", "claims"]) => {
            said(claims.lock().unwrap().pop_front().unwrap_or_else(|| json!({"empty": true})))
        }
        ("GET", ["v1", "blobs", hash]) => match blobs.lock().unwrap().get(*hash) {
            Some(bytes) => (200, bytes.clone()),
            None => (404, json!({"error": "blob not found"}).to_string().into_bytes()),
        },
        ("POST", ["v1", "blobs"]) => {
            let hash = Digest::of(&asked.body).to_hex();
            blobs.lock().unwrap().insert(hash.clone(), asked.body.clone());
            said(json!({"hash": hash}))
        }
        ("POST", ["v1", "runs", _, "events"]) => said(json!({"ok": true})),
        ("POST", ["v1", "runs", _, "complete"]) => {
            said(json!({"receipt": asked.json()["receipt"]}))
        }
        _ => (404, json!({"error": "no route"}).to_string().into_bytes()),
    }
}

/// Serves one connection until it is closed or nobody answers.
fn converse(stream: TcpStream, answer: impl Fn(&Asked) -> Option<(u16, Vec<u8>)>) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut writer = stream;
    loop {
        let Some(asked) = read_request(&mut reader) else { return };
        let Some((status, body)) = answer(&asked) else { return };
        let value: Value = serde_json::from_slice(&body).unwrap_or_default();
        let location = value.get("location").and_then(Value::as_str);
        let location = location.map(|url| format!("location: {url}\r\n")).unwrap_or_default();
        let head =
            format!("HTTP/1.1 {status} x\r\n{location}content-length: {}\r\n\r\n", body.len());
        let sent = writer.write_all(head.as_bytes()).and_then(|()| writer.write_all(&body));
        if sent.is_err() {
            return;
        }
    }
}

fn read_request(reader: &mut BufReader<TcpStream>) -> Option<Asked> {
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|count| *count > 0)?;
    let mut words = line.split_whitespace();
    let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
    let (mut length, mut token) = (0, None);
    loop {
        let mut header = String::new();
        reader.read_line(&mut header).ok()?;
        let Some((name, value)) = header.trim_end().split_once(':') else { break };
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.trim().parse().ok()?,
            "authorization" => token = value.trim().strip_prefix("Bearer ").map(str::to_owned),
            _ => {}
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some(Asked { method, path, token, body })
}
