//! A plane on loopback, a client, and a runner that speaks by hand.

use std::sync::Arc;
use std::thread::JoinHandle;

use reqwest::Method;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use warrant_plane::home::{Home, fresh_key};
use warrant_plane::http::settings::Settings;
use warrant_plane::http::{PlaneService, ServeOptions, Shared, keep_house, router, serve};
use warrant_protocol::{
    Chain, ChainedEvent, Contract, Digest, Event, Receipt, RunnerId, Sealer, Signed, Signer,
    SigningKey, SteppedTime, fold,
};

/// A plane that serves until it is dropped.
pub(crate) struct Plane {
    pub(crate) dir: Arc<TempDir>,
    pub(crate) url: String,
    pub(crate) service: Shared,
    pub(crate) admin: String,
    pub(crate) enroll: String,
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Plane {
    fn drop(&mut self) {
        self.service.drain();
        self.stop.send_replace(true);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

pub(crate) fn policy() -> Value {
    json!({
        "version": "warrant.policy.v1",
        "runners": {"allowPools": ["default", "other"]},
        "agents": {"allow": ["claude-code", "codex", "pi", "mock", "command"]},
        "dataClasses": [],
        "network": {"defaultDeny": true, "allowHosts": ["example.com"]},
        "secrets": {"releasable": [
            {"name": "MOCK_SECRET", "scope": "e2e-test", "pools": ["default"]},
        ]},
        "budget": {"maxSpendUsd": 25, "maxDurationMin": 60},
        "consent": [{"when": "secret-release", "approvers": ["security", "group:leads"]}],
        "retention": {"receiptsDays": 365, "artifactsDays": 90},
    })
}

impl Plane {
    pub(crate) fn start() -> Self {
        Self::start_with(|_| {})
    }

    pub(crate) fn start_with(change: impl FnOnce(&mut Settings)) -> Self {
        let dir = Arc::new(tempfile::tempdir().unwrap());
        let mut settings = Settings::fresh().unwrap();
        change(&mut settings);
        Self::start_in(dir, settings)
    }

    pub(crate) fn start_tls(acceptor: TlsAcceptor) -> Self {
        let dir = Arc::new(tempfile::tempdir().unwrap());
        Self::serve_in(dir, Settings::fresh().unwrap(), Some(acceptor))
    }

    pub(crate) fn start_in(dir: Arc<TempDir>, settings: Settings) -> Self {
        Self::serve_in(dir, settings, None)
    }

    /// Starts a plane on clocks that the test moves; nothing sweeps but the test.
    pub(crate) fn start_on(time: &Arc<SteppedTime>) -> Self {
        Self::start_again_on(
            time,
            Arc::new(tempfile::tempdir().unwrap()),
            Settings::fresh().unwrap(),
        )
    }

    /// As [`Plane::start_on`], in a home that is there.
    pub(crate) fn start_again_on(
        time: &Arc<SteppedTime>,
        dir: Arc<TempDir>,
        settings: Settings,
    ) -> Self {
        Self::serve_on(dir, settings, (None, Some(Arc::clone(time))))
    }

    fn serve_in(dir: Arc<TempDir>, settings: Settings, tls: Option<TlsAcceptor>) -> Self {
        Self::serve_on(dir, settings, (tls, None))
    }

    fn serve_on(
        dir: Arc<TempDir>,
        settings: Settings,
        (tls, time): (Option<TlsAcceptor>, Option<Arc<SteppedTime>>),
    ) -> Self {
        let is_swept = time.is_none();
        let home = Home::open_at(dir.path().join("home"), None).unwrap();
        let folder = dir.path().join("home/policy");
        if !folder.exists() {
            std::fs::create_dir(&folder).unwrap();
            std::fs::write(folder.join("document.json"), policy().to_string()).unwrap();
        }
        let (admin, enroll) = (settings.admin_token.clone(), settings.enroll_token.clone());
        let service = Arc::new(match time {
            Some(time) => PlaneService::open_on(home, settings, time).unwrap(),
            None => PlaneService::open(home, settings).unwrap(),
        });
        let scheme = if tls.is_some() { "https" } else { "http" };
        let (stop, stopped) = watch::channel(false);
        let (tell, told) = std::sync::mpsc::channel();
        let shared = Arc::clone(&service);
        let thread = std::thread::spawn(move || {
            runtime().block_on(async {
                let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                tell.send(listener.local_addr().unwrap()).unwrap();
                if is_swept {
                    tokio::spawn(keep_house(Arc::clone(&shared)));
                }
                let admission = shared.admission();
                let options = ServeOptions { tls, admission, shutdown: stopped };
                serve(listener, router(shared), options).await.unwrap();
            });
        });
        let url = format!("{scheme}://{}", told.recv().unwrap());
        Self { dir, url, service, admin, enroll, stop, thread: Some(thread) }
    }

    pub(crate) fn client(&self) -> Client {
        Client::new(&self.url)
    }

    /// Makes a principal and returns its token.
    pub(crate) fn principal(&self, body: &Value) -> String {
        let (status, answer) =
            self.client().call("POST", "/v1/principals", Some(&self.admin), Some(body));
        assert_eq!(status, 200, "{answer}");
        answer["token"].as_str().unwrap().to_owned()
    }

    pub(crate) fn submit(&self, script: &str) -> String {
        let body = json!({"request": request(script, &[])});
        let (status, answer) =
            self.client().call("POST", "/v1/runs", Some(&self.admin), Some(&body));
        assert_eq!(status, 200, "{answer}");
        answer["runId"].as_str().unwrap().to_owned()
    }

    pub(crate) fn view(&self, run: &str) -> Value {
        let (status, view) =
            self.client().call("GET", &format!("/v1/runs/{run}"), Some(&self.admin), None);
        assert_eq!(status, 200, "{view}");
        view
    }
}

pub(crate) fn runtime() -> Runtime {
    // The clients of all tests speak plain HTTP, yet want a provider.
    let _ = rustls::crypto::ring::default_provider().install_default();
    // Few threads, so that work which holds one for long shows.
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().max_blocking_threads(48).build().unwrap()
}

/// A client with its own runtime.
pub(crate) struct Client {
    runtime: Runtime,
    client: reqwest::Client,
    url: String,
}

impl Client {
    pub(crate) fn new(url: &str) -> Self {
        let runtime = runtime();
        let client =
            reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).build().unwrap();
        Self { runtime, client, url: url.to_owned() }
    }

    pub(crate) fn call(
        &self,
        method: &str,
        path: &str,
        token: Option<&str>,
        body: Option<&Value>,
    ) -> (u16, Value) {
        let bytes = body.map(|body| body.to_string().into_bytes());
        let (status, answer) = self.bytes(method, path, token, bytes);
        let text = String::from_utf8_lossy(&answer).into_owned();
        (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
    }

    pub(crate) fn bytes(
        &self,
        method: &str,
        path: &str,
        token: Option<&str>,
        body: Option<Vec<u8>>,
    ) -> (u16, Vec<u8>) {
        let headers: Vec<(&str, String)> =
            token.iter().map(|token| ("authorization", format!("Bearer {token}"))).collect();
        self.send(method, path, &headers, body)
    }

    pub(crate) fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, String)],
        body: Option<Vec<u8>>,
    ) -> (u16, Vec<u8>) {
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        let mut request = self.client.request(method, format!("{}{path}", self.url));
        for (name, value) in headers {
            request = request.header(*name, value);
        }
        if let Some(body) = body {
            request = request.body(body);
        }
        self.runtime.block_on(async {
            let response = request.send().await.unwrap();
            (response.status().as_u16(), response.bytes().await.unwrap().to_vec())
        })
    }
}

pub(crate) fn request(script: &str, secrets: &[&str]) -> Value {
    json!({
        "requestedBy": {"kind": "human", "id": "mallory"},
        "agentKind": "command",
        "prompt": script,
        "pool": "default",
        "secretNames": secrets,
        "workspace": {
            "version": "warrant.manifest.v1",
            "baseRef": "4b825dc642cb6eb9a060e54bf8d69288fbee4904",
            "bundleHash": Digest::of(b""),
            "untrackedFiles": [],
            "deniedPatterns": [],
            "deniedPaths": [],
        },
        "network": {"defaultDeny": true, "allowHosts": []},
        "budget": {},
        "disclosure": "redacted",
    })
}

/// A runner that says what a test wants it to say.
pub(crate) struct HandRunner {
    pub(crate) client: Client,
    pub(crate) key: SigningKey,
    pub(crate) id: RunnerId,
    pub(crate) token: String,
    pub(crate) pool: String,
}

/// A run it holds.
pub(crate) struct HeldRun {
    pub(crate) run: String,
    pub(crate) claim_token: String,
    pub(crate) contract: Contract,
    pub(crate) chain: Chain,
    pub(crate) answer: Value,
}

impl HandRunner {
    pub(crate) fn enroll(plane: &Plane, pool: &str) -> Self {
        let client = plane.client();
        let key = fresh_key().unwrap();
        let body =
            json!({"enrollToken": plane.enroll, "publicKeyPem": key.public().pem(), "pool": pool});
        let (status, answer) = client.call("POST", "/v1/runners/enroll", None, Some(&body));
        assert_eq!(status, 200, "{answer}");
        let id = answer["runnerId"].as_str().unwrap().parse().unwrap();
        let token = answer["runnerToken"].as_str().unwrap().to_owned();
        Self { client, key, id, token, pool: pool.to_owned() }
    }

    /// Claims as a runner of ours.
    pub(crate) fn claim(&self, wait_ms: u64) -> Option<HeldRun> {
        self.claim_with(&json!({"leases": true, "waitMs": wait_ms}))
    }

    pub(crate) fn claim_with(&self, more: &Value) -> Option<HeldRun> {
        let mut body = json!({"runnerToken": self.token, "pool": self.pool});
        for (name, value) in more.as_object().unwrap() {
            body[name] = value.clone();
        }
        let (status, answer) = self.client.call("POST", "/v1/claims", None, Some(&body));
        assert_eq!(status, 200, "{answer}");
        if answer.get("empty").is_some() {
            return None;
        }
        let contract = Contract::from_value(answer["contract"].clone()).unwrap();
        let mut chain = Chain::new(contract.hash());
        for event in answer["events"].as_array().unwrap() {
            chain.push(ChainedEvent::from_value(event.clone()).unwrap()).unwrap();
        }
        Some(HeldRun {
            run: answer["runId"].as_str().unwrap().to_owned(),
            claim_token: answer["claimToken"].as_str().unwrap().to_owned(),
            contract,
            chain,
            answer,
        })
    }

    pub(crate) fn post(&self, held: &HeldRun, verb: &str, more: &Value) -> (u16, Value) {
        let mut body = json!({"claimToken": held.claim_token});
        for (name, value) in more.as_object().unwrap() {
            body[name] = value.clone();
        }
        self.client.call("POST", &format!("/v1/runs/{}/{verb}", held.run), None, Some(&body))
    }

    /// Starts a run of ours and takes the plane's events over.
    pub(crate) fn start(&self, held: &mut HeldRun) -> Value {
        let (status, answer) = self.post(held, "start", &json!({}));
        assert_eq!(status, 200, "{answer}");
        for event in answer["events"].as_array().unwrap() {
            held.chain.push(ChainedEvent::from_value(event.clone()).unwrap()).unwrap();
        }
        answer
    }

    /// Ends the chain and returns the last events and a signed receipt that follows from it.
    pub(crate) fn end(&self, held: &mut HeldRun, last: &Event) -> (Vec<Value>, Receipt) {
        let from = held.chain.events().len();
        held.chain.append(crate::support::now(), last).unwrap();
        (self.told_since(held, from), self.receipt(held))
    }

    pub(crate) fn told_since(&self, held: &HeldRun, from: usize) -> Vec<Value> {
        held.chain.events()[from..].iter().map(ChainedEvent::to_value).collect()
    }

    pub(crate) fn receipt(&self, held: &HeldRun) -> Receipt {
        let sealer =
            Sealer::Runner { runner_id: self.id.clone(), key_id: self.key.public().id().clone() };
        let body = fold(&held.contract, &held.chain, &sealer).unwrap();
        Signed::seal(&body, Signer::Runner, &self.key).unwrap()
    }

    /// Runs a claimed run to its end.
    pub(crate) fn finish(&self, held: &mut HeldRun) -> (u16, Value) {
        let (events, receipt) = self.end(held, &Event::RunCompleted {});
        self.post(held, "complete", &json!({"events": events, "receipt": receipt.to_value()}))
    }
}
