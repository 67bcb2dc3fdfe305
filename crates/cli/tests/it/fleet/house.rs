//! A house for fleet tests: a home with a policy, a repository whose blobs are at the plane,
//! processes that end with the test.

use std::cell::RefCell;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;
use warrant_protocol::bundle::Bundle;
use warrant_protocol::keys::{KeyRole, PublicKey, TrustedKeys};
use warrant_runner::remote::{Http, KeyedCall};
use warrant_workspace::{BlobDirectory, CaptureOptions, History, capture, quiet};

pub(crate) struct House {
    dir: TempDir,
    at: RefCell<Option<At>>,
}

/// The plane that runs now.
#[derive(Clone)]
struct At {
    url: String,
    key: String,
    admin: String,
    enroll: String,
    workspace: Value,
}

/// The plane that runs now, for another thread.
#[derive(Clone)]
pub(crate) struct PlaneAccess {
    pub(crate) url: String,
    pub(crate) admin: String,
    pub(crate) workspace: Value,
}

impl PlaneAccess {
    /// Returns a client.
    pub(crate) fn http(&self) -> Http {
        Http::new(&self.url, None).unwrap()
    }

    /// Submits a request under a key until the plane says which run it is.
    pub(crate) fn submit_by_key(&self, http: &Http, key: &str, request: &Value) -> String {
        let mut request = request.clone();
        request["workspace"] = self.workspace.clone();
        request.as_object_mut().unwrap().retain(|_, member| !member.is_null());
        let body = json!({"request": request});
        let call = KeyedCall { path: "/v1/runs", token: &self.admin, key, body: &body };
        let until = Instant::now() + Duration::from_secs(120);
        loop {
            match http.post_with_key(&call) {
                Ok(answer) => return answer["runId"].as_str().unwrap().to_owned(),
                Err(error) if Instant::now() > until => panic!("{key}: {error:?}"),
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    }
}

pub(crate) struct Running {
    child: Child,
    url: String,
}

impl Running {
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub(crate) fn address(&self) -> String {
        self.url.trim_start_matches("http://").to_owned()
    }

    /// Asks the process to end, and waits for it.
    pub(crate) fn drain(mut self) -> ExitStatus {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        self.child.wait().unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A request for a shell script in the process tier; the house fills the workspace in.
pub(crate) fn script(text: &str) -> Value {
    json!({
        "requestedBy": {"kind": "human", "id": "somebody"},
        "agentKind": "command",
        "prompt": text,
        "pool": "default",
        "secretNames": [],
        "network": {"defaultDeny": true, "allowHosts": []},
        "budget": {},
        "disclosure": "minimal-context",
        "execution": {"kind": "shell", "script": text},
        "isolation": "process",
    })
}

fn json_file(path: &str) -> Value {
    serde_json::from_slice(&fs::read(crate::root().join(path)).unwrap()).unwrap()
}

impl House {
    pub(crate) fn new() -> Self {
        let mut vectors = json_file("vectors/policy.json");
        Self::with_policy(vectors["defaultPolicy"].take())
    }

    /// A house whose policy also lets agents read the folder their programs are in.
    pub(crate) fn for_agents() -> Self {
        Self::with_policy(json_file("crates/policy/presets/default/document.json"))
    }

    /// A house whose home is put there by the caller.
    pub(crate) fn without_home() -> Self {
        Self { dir: tempfile::tempdir().unwrap(), at: RefCell::new(None) }
    }

    /// A house with these pools, in which the built-in agent needs the consent of `boss`.
    pub(crate) fn with_pools(pools: &[String]) -> Self {
        let mut document = json_file("vectors/policy.json")["defaultPolicy"].take();
        document["runners"]["allowPools"] = json!(pools);
        document["consent"] =
            json!([{"when": "agent-kind", "match": "mock", "approvers": ["boss"]}]);
        Self::with_policy(document)
    }

    fn with_policy(mut document: Value) -> Self {
        let house = Self::without_home();
        let policy = house.directory("policy");
        document["network"]["allowHosts"] = json!(["127.77.0.1", "127.77.0.2"]);
        fs::write(policy.join("document.json"), document.to_string()).unwrap();
        let set = house.local(&["policy", "set", policy.to_str().unwrap()]);
        assert!(set.status.success(), "{}", crate::stderr(&set));
        house
    }

    /// How many runs: `WARRANT_FLEET_RUNS`, else the small number of the test.
    pub(crate) fn count(&self, usual: usize) -> usize {
        let wanted = std::env::var("WARRANT_FLEET_RUNS").ok();
        wanted.and_then(|wanted| wanted.parse().ok()).unwrap_or(usual)
    }

    pub(crate) fn directory(&self, name: &str) -> PathBuf {
        let path = self.dir.path().join(name);
        fs::create_dir_all(&path).unwrap();
        path
    }

    pub(crate) fn home(&self) -> PathBuf {
        self.dir.path().join("home")
    }

    /// Runs a command on the home of the plane itself.
    pub(crate) fn local(&self, arguments: &[&str]) -> Output {
        crate::warrant().arg("--home").arg(self.home()).args(arguments).output().unwrap()
    }

    /// Runs a command against the plane, logged in.
    pub(crate) fn warrant(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// Runs a command against the plane, logged in, on a terminal; returns what the terminal got
    /// and the exit code.
    pub(crate) fn on_terminal(&self, arguments: &[&str]) -> (String, Option<i32>) {
        let command = self.command(arguments);
        let quoted: Vec<String> = std::iter::once(command.get_program())
            .chain(command.get_args())
            .map(|word| format!("'{}'", word.to_str().unwrap().replace('\'', r"'\''")))
            .collect();
        let done = Command::new("script")
            .args(["-qefc", &quoted.join(" "), "/dev/null"])
            .env("TERM", "xterm")
            .stdin(Stdio::null())
            .output()
            .unwrap();
        (String::from_utf8(done.stdout).unwrap(), done.status.code())
    }

    /// What another thread needs to ask the plane.
    pub(crate) fn access(&self) -> PlaneAccess {
        let at = self.at.borrow().clone().unwrap();
        PlaneAccess { url: at.url, admin: at.admin, workspace: at.workspace }
    }

    /// The token of the admin.
    pub(crate) fn admin(&self) -> String {
        self.at.borrow().clone().unwrap().admin
    }

    /// The token that lets runners in.
    pub(crate) fn enroll_token(&self) -> String {
        fs::read_to_string(self.at.borrow().clone().unwrap().enroll).unwrap()
    }

    /// Returns a command against the plane, logged in.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let at = self.at.borrow().clone().unwrap();
        let client = self.dir.path().join("client");
        if !client.join("login.json").exists() {
            let key = self.dir.path().join("plane.pub.pem");
            fs::write(&key, &at.key).unwrap();
            let login = crate::warrant()
                .arg("--home")
                .arg(&client)
                .args(["login", "--plane", &at.url, "--plane-key"])
                .arg(&key)
                .env("WARRANT_TOKEN", &at.admin)
                .output()
                .unwrap();
            assert!(login.status.success(), "{}", crate::stderr(&login));
        }
        let mut command = crate::warrant();
        command.arg("--home").arg(&client).args(arguments);
        command
    }

    pub(crate) fn start_plane(&self, listen: &str) -> Running {
        self.start_plane_by(crate::warrant(), listen)
    }

    /// Starts the plane by a command that ends with the binary.
    pub(crate) fn start_plane_by(&self, command: Command, listen: &str) -> Running {
        self.start_plane_of(command, listen, &[])
    }

    /// Starts the plane with further arguments.
    pub(crate) fn start_plane_with(&self, listen: &str, more: &[&str]) -> Running {
        self.start_plane_of(crate::warrant(), listen, more)
    }

    fn start_plane_of(&self, mut command: Command, listen: &str, more: &[&str]) -> Running {
        let mut child = command
            .arg("--home")
            .arg(self.home())
            .args(["plane", "start", "--json", "--listen", listen])
            .args(more)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(self.said("plane.said"))
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let said: Value = serde_json::from_str(&line).unwrap();
        let word = |name: &str| said[name].as_str().map(str::to_owned);
        let url = word("url").unwrap();
        let before = self.at.borrow_mut().take();
        let at = match before {
            Some(before) => At { url: url.clone(), ..before },
            None => {
                let read = |name: &str| fs::read_to_string(word(name).unwrap()).unwrap();
                let admin = read("adminTokenFile");
                At {
                    key: word("planePublicKeyPem").unwrap(),
                    workspace: self.upload(&url, &admin),
                    enroll: word("enrollTokenFile").unwrap(),
                    url: url.clone(),
                    admin,
                }
            }
        };
        *self.at.borrow_mut() = Some(at);
        Running { child, url }
    }

    pub(crate) fn runner_arguments(&self, name: &str) -> Vec<String> {
        let at = self.at.borrow().clone().unwrap();
        let data = self.dir.path().join(format!("runner-{name}"));
        ["runner", "start", "--plane", &at.url, "--concurrency", "2"]
            .into_iter()
            .chain(["--enroll-token-file", &at.enroll])
            .chain(["--data-dir", data.to_str().unwrap()])
            .map(str::to_owned)
            .collect()
    }

    pub(crate) fn start_runner(&self, name: &str, more: &[&str]) -> Running {
        self.start_runner_with(name, &self.runner_arguments(name), more)
    }

    /// Starts a runner that reaches the plane at another address.
    pub(crate) fn start_runner_at(&self, name: &str, url: &str) -> Running {
        let own = self.access().url;
        let arguments = self.runner_arguments(name).into_iter();
        let arguments: Vec<String> =
            arguments.map(|word| if word == own { url.to_owned() } else { word }).collect();
        self.start_runner_with(name, &arguments, &[])
    }

    fn start_runner_with(&self, name: &str, arguments: &[String], more: &[&str]) -> Running {
        let child = crate::warrant()
            .args(arguments)
            .args(["--provider", "process", "--provider", "namespace"])
            .args(more)
            .env("WARRANT_LOG", "warn")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(self.said(&format!("runner-{name}.said")))
            .spawn()
            .unwrap();
        Running { child, url: String::new() }
    }

    /// Opens the file that keeps what a process says, for whoever reads a failure.
    fn said(&self, name: &str) -> fs::File {
        let path = self.dir.path().join(name);
        fs::OpenOptions::new().create(true).append(true).open(path).unwrap()
    }

    /// Returns the last lines of every process of this house.
    fn last_words(&self) -> String {
        let tail = |name: &str| {
            let text = fs::read_to_string(self.dir.path().join(name)).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            let from = lines.len().saturating_sub(20);
            format!("--- {name}\n{}\n", lines[from..].join("\n"))
        };
        ["plane.said", "runner-one.said", "runner-two.said"].map(tail).concat()
    }

    /// Makes a small repository.
    pub(crate) fn repo(&self) -> PathBuf {
        let repo = self.directory("repo");
        if !repo.join(".git").exists() {
            fs::write(repo.join("README.md"), "# fleet\n").unwrap();
            let git = |arguments: &[&str]| {
                let done = Command::new("git")
                    .current_dir(&repo)
                    .args(["-c", "user.name=t", "-c", "user.email=t@localhost"])
                    .args(arguments)
                    .output()
                    .unwrap();
                assert!(done.status.success(), "{}", crate::stderr(&done));
            };
            git(&["init", "-q", "."]);
            git(&["add", "-A"]);
            git(&["commit", "-q", "-m", "one"]);
        }
        repo
    }

    /// Captures the repository and uploads its blobs.
    fn upload(&self, url: &str, token: &str) -> Value {
        let blobs = BlobDirectory::open(self.directory("blobs")).unwrap();
        let scratch = self.directory("scratch");
        let options = CaptureOptions {
            scratch: &scratch,
            allow_untracked: &[],
            deny_patterns: &[],
            history: History::Full,
            progress: &quiet,
        };
        let captured = capture(&self.repo(), &blobs, &options).unwrap();
        let http = Http::new(url, None).unwrap();
        for entry in fs::read_dir(self.directory("blobs")).unwrap() {
            http.put_blob(&entry.unwrap().path(), token).unwrap();
        }
        serde_json::to_value(captured.manifest).unwrap()
    }

    /// Submits a request and returns the run.
    pub(crate) fn submit(&self, request: &Value) -> String {
        self.try_submit(request).unwrap()
    }

    /// Submits a request until the plane has it, with one key, so that it is one run.
    pub(crate) fn submit_until_taken(&self, request: &Value) -> String {
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            match self.try_submit(request) {
                Ok(run) => return run,
                Err(error) if Instant::now() > until => panic!("{error}"),
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    }

    fn try_submit(&self, request: &Value) -> Result<String, String> {
        let at = self.at.borrow().clone().unwrap();
        let mut request = request.clone();
        request["workspace"] = at.workspace.clone();
        request.as_object_mut().unwrap().retain(|_, member| !member.is_null());
        let http = Http::new(&at.url, None).unwrap();
        let answer = http
            .post_as("/v1/runs", &at.admin, &json!({"request": request}))
            .map_err(|error| error.to_string())?;
        Ok(answer["runId"].as_str().unwrap().to_owned())
    }

    /// Waits until every run has a bundle.
    pub(crate) fn wait_for_bundles(&self, runs: &[String], most: Duration) -> Vec<Value> {
        let at = self.at.borrow().clone().unwrap();
        let http = Http::new(&at.url, None).unwrap();
        let until = Instant::now() + most;
        let mut bundles = Vec::new();
        for run in runs {
            loop {
                match http.get(&format!("/v1/runs/{run}/bundle"), Some(&at.admin)) {
                    Ok(bundle) => {
                        bundles.push(bundle);
                        break;
                    }
                    Err(error) if Instant::now() > until => {
                        let view = http.get(&format!("/v1/runs/{run}"), Some(&at.admin));
                        let place = bundles.len();
                        let words = self.last_words();
                        panic!("run {place}, {run}, has no bundle: {error}; {view:?}\n{words}");
                    }
                    Err(_) => std::thread::sleep(Duration::from_millis(50)),
                }
            }
        }
        bundles
    }

    pub(crate) fn wait(&self, most: Duration, is_so: impl Fn() -> bool) {
        let until = Instant::now() + most;
        while !is_so() {
            assert!(Instant::now() < until, "it did not happen\n{}", self.last_words());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Checks a bundle against the keys of this house.
    pub(crate) fn verify(&self, bundle: &Value) {
        let at = self.at.borrow().clone().unwrap();
        let plane = PublicKey::from_pem(&at.key).unwrap();
        let mut trusted = TrustedKeys::none().and(KeyRole::Plane, plane);
        for name in ["one", "two"] {
            let file = self.dir.path().join(format!("runner-{name}/runner.pub.pem"));
            if let Ok(pem) = fs::read_to_string(&file) {
                trusted = trusted.and(KeyRole::Runner, PublicKey::from_pem(&pem).unwrap());
            }
        }
        let evidence = Bundle::from_value(bundle.clone()).unwrap();
        if let Err(problems) = warrant_protocol::verify::verify(evidence, &trusted) {
            panic!("{problems:?}: {bundle}");
        }
    }

    /// Returns a file below the house.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        let path: &Path = self.dir.path();
        path.join(name)
    }
}
