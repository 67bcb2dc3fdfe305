//! The real agent programs, unmodified, in governed sessions of a fleet: a scripted model on
//! loopback answers them through the egress proxy.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use super::house::{House, script};

/// The programs, as `cargo xtask install` puts them.
fn agents() -> PathBuf {
    let folder = crate::root().join("crates/e2e/clients/agents/node_modules");
    folder.canonicalize().unwrap_or_else(|_| panic!("run `cargo xtask install` first"))
}

/// A scripted model, reached at an address that no proxy exception names.
struct Model {
    child: Child,
}

impl Model {
    fn start(house: &House, address: &'static str, turns: &Value) -> Self {
        let turns_file = house.path(&format!("{address}.json"));
        fs::write(&turns_file, turns.to_string()).unwrap();
        let mut child = Command::new("node")
            .arg(crate::root().join("crates/e2e/clients/model-server/server.mjs"))
            .arg("--script")
            .arg(&turns_file)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let port: u16 = line.trim().rsplit(':').next().unwrap().parse().unwrap();
        // An allow entry without a port means the web's ports, so the model stands at one.
        let listener = TcpListener::bind((address, 80)).unwrap();
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let server = TcpStream::connect(("127.0.0.1", port)).unwrap();
                pass(&client, &server);
                pass(&server, &client);
            }
        });
        Self { child }
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn pass(from: &TcpStream, to: &TcpStream) {
    let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
    thread::spawn(move || {
        let mut buffer = [0; 16 * 1024];
        while let Ok(count) = from.read(&mut buffer) {
            if count == 0 || to.write_all(&buffer[..count]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(std::net::Shutdown::Write);
    });
}

/// A request for an agent in the namespace tier that may reach the model.
fn request(kind: &str, host: &str, vars: Value) -> Value {
    let mut request = script("go");
    let path = format!("{}:/usr/local/bin:/usr/bin:/bin", agents().join(".bin").display());
    let mut vars = vars;
    vars["PATH"] = json!(path);
    request["agentKind"] = json!(kind);
    request["isolation"] = json!("namespace");
    request["network"]["allowHosts"] = json!([host]);
    request["files"] = json!({"read": [agents()], "write": []});
    request["execution"] = json!({
        "kind": "agent",
        "agent": {"kind": kind},
        "prompt": "go",
        "timeoutMs": 120_000,
        "env": {"vars": vars},
    });
    request
}

fn ended(house: &House, request: &Value) -> (String, Value) {
    let run = house.submit(request);
    let bundle =
        house.wait_for_bundles(std::slice::from_ref(&run), Duration::from_secs(180)).remove(0);
    house.verify(&bundle);
    let log = crate::stdout(&house.warrant(&["log", &run]));
    assert_eq!(bundle["receipt"]["status"], "completed", "{log}\n{bundle}");
    (run, bundle)
}

fn has(list: &Value, wanted: &Value) -> bool {
    list.as_array().unwrap().contains(wanted)
}

#[test]
fn claude_code_edits_a_file_and_the_receipt_names_the_model() {
    let house = House::for_agents();
    let _plane = house.start_plane("127.0.0.1:0");
    let _runner = house.start_runner("one", &[]);
    let turns = json!([
        {"tool": "Write", "input": {"file_path": "agent.txt", "content": "hi from claude\n"}},
        {"text": "done"},
    ]);
    let _model = Model::start(&house, "127.77.0.1", &turns);
    let vars = json!({
        "ANTHROPIC_BASE_URL": "http://127.77.0.1",
        "ANTHROPIC_API_KEY": "x",
        "ANTHROPIC_MODEL": "claude-scripted-1",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    });
    let (run, bundle) = ended(&house, &request("claude-code", "127.77.0.1", vars));
    let diff = crate::stdout(&house.warrant(&["diff", &run]));
    assert!(diff.contains("+hi from claude"), "{diff}");
    let receipt = &bundle["receipt"];
    assert!(
        has(&receipt["networkAccessed"], &json!({"host": "127.77.0.1", "decision": "allowed"})),
        "{receipt}"
    );
    let called = json!({"provider": "anthropic", "model": "claude-scripted-1"});
    assert!(has(&receipt["modelsUsed"], &called), "{receipt}");
}

#[test]
fn codex_edits_a_file_and_the_receipt_names_the_model() {
    let house = House::for_agents();
    let codex = house.repo().join("codex-home");
    write_codex_home(&codex);
    let _plane = house.start_plane("127.0.0.1:0");
    let _runner = house.start_runner("one", &[]);
    let turns = json!([
        {"tool": "exec_command", "input": {"cmd": "echo hi from codex > agent.txt"}},
        {"text": "done"},
    ]);
    let _model = Model::start(&house, "127.77.0.2", &turns);
    let vars = json!({"OPENAI_API_KEY": "x", "CODEX_HOME": "codex-home"});
    let (run, bundle) = ended(&house, &request("codex", "127.77.0.2", vars));
    let diff = crate::stdout(&house.warrant(&["diff", &run]));
    assert!(diff.contains("+hi from codex"), "{diff}");
    let receipt = &bundle["receipt"];
    let called = json!({"provider": "openai", "model": "scripted"});
    assert!(has(&receipt["modelsUsed"], &called), "{receipt}");
}

/// The session is the boundary, so the agent's own is switched off; it travels with the workspace.
fn write_codex_home(folder: &Path) {
    fs::create_dir_all(folder).unwrap();
    let config = "model = \"scripted\"\nmodel_provider = \"x\"\n\
        sandbox_mode = \"danger-full-access\"\napproval_policy = \"never\"\n\
        [model_providers.x]\nname = \"x\"\nbase_url = \"http://127.77.0.2/v1\"\n\
        wire_api = \"responses\"\nenv_key = \"OPENAI_API_KEY\"\n";
    fs::write(folder.join("config.toml"), config).unwrap();
    let repo = folder.parent().unwrap();
    for arguments in [&["add", "-A"][..], &["commit", "-q", "-m", "two"][..]] {
        let done = Command::new("git")
            .current_dir(repo)
            .args(["-c", "user.name=t", "-c", "user.email=t@localhost"])
            .args(arguments)
            .output()
            .unwrap();
        assert!(done.status.success(), "{}", crate::stderr(&done));
    }
}
