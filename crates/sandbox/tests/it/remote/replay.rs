//! Plays a recorded conversation: every call is compared with the recorded one, in order.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};

use warrant_protocol::{Isolation, Limits};
use warrant_sandbox::remote::{NotConfigured, Remote, Surroundings};
use warrant_sandbox::{
    Backend as _, Cancel, Command, Files, Invocation, Network, Shell, Stdin, WorkspaceAccess,
};

/// One call (`METHOD path?query`, cut where it becomes arbitrary), the status and the body.
pub(crate) type Turn = (&'static str, u16, &'static str);

/// What is left of a conversation, and the calls that were not part of it.
#[derive(Default)]
struct Conversation {
    /// The next turn is the last one.
    left: Vec<Turn>,
    strange: Vec<String>,
}

/// A server that plays a conversation.
pub(crate) struct Replay {
    address: String,
    conversation: Arc<Mutex<Conversation>>,
}

impl Replay {
    /// Plays these turns; `ADDRESS` in an answer is the server's own.
    pub(crate) fn start(turns: &[Turn]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let left = turns.iter().rev().copied().collect();
        let conversation = Arc::new(Mutex::new(Conversation { left, ..Conversation::default() }));
        let replay = Self { address: address.clone(), conversation: Arc::clone(&conversation) };
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (conversation, address) = (Arc::clone(&conversation), address.clone());
                std::thread::spawn(move || serve(stream, &conversation, &address));
            }
        });
        replay
    }

    /// The conversation went as it was recorded, to its end.
    #[track_caller]
    pub(crate) fn check(&self) {
        let conversation = self.conversation.lock().unwrap();
        assert_eq!(conversation.strange, Vec::<String>::new());
        assert_eq!(conversation.left, Vec::<Turn>::new());
    }

    /// Has a sandbox made ready at this server; returns why that was refused.
    #[track_caller]
    pub(crate) fn refusal(&self, isolation: Isolation) -> String {
        let scratch = tempfile::tempdir().unwrap();
        let url = format!("http://{}", self.address);
        let api = format!("{url}/api");
        let variables = [
            ("E2B_API_KEY", "key"),
            ("E2B_API_URL", &url),
            ("E2B_SANDBOX_URL", &url),
            ("DAYTONA_API_KEY", "key"),
            ("DAYTONA_API_URL", &api),
            ("OPEN_SANDBOX_API_KEY", "key"),
            ("OPEN_SANDBOX_DOMAIN", &self.address),
        ];
        let backend = Remote::open(isolation, around(scratch.path(), &variables)).unwrap();
        let mut plan = backend.prepare(invocation()).unwrap();
        let refused = backend.ready(&mut plan, &Cancel::new().unwrap()).unwrap_err();
        assert_eq!(refused.code, "SANDBOX_PROVIDER_UNAVAILABLE");
        refused.message
    }
}

fn serve(mut stream: TcpStream, conversation: &Mutex<Conversation>, address: &str) {
    while let Some(call) = read(&mut stream) {
        let mut conversation = conversation.lock().unwrap();
        let (status, body) = match conversation.left.last().copied() {
            Some((wanted, status, body)) if call.starts_with(wanted) => {
                conversation.left.pop();
                (status, body.replace("ADDRESS", address))
            }
            _ => {
                conversation.strange.push(call);
                (404, "{}".to_owned())
            }
        };
        let head = format!("HTTP/1.1 {status} X\r\ncontent-length: {}\r\n\r\n", body.len());
        let _ = stream.write_all(format!("{head}{body}").as_bytes());
    }
}

/// Reads a call; returns its first line without the protocol.
fn read(stream: &mut TcpStream) -> Option<String> {
    let mut reader = BufReader::new(stream);
    let mut first = String::new();
    reader.read_line(&mut first).ok().filter(|count| *count > 0)?;
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        if name.eq_ignore_ascii_case("content-length") {
            length = value.trim().parse().ok()?;
        }
    }
    reader.read_exact(&mut vec![0; length]).ok()?;
    Some(first.trim_end().trim_end_matches(" HTTP/1.1").to_owned())
}

/// Returns surroundings with these variables and no others.
fn around(scratch: &Path, variables: &[(&str, &str)]) -> Surroundings {
    Surroundings {
        environment: variables.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect(),
        config: BTreeMap::new(),
        pinned: BTreeMap::new(),
        home: "home-of-the-test".into(),
        scratch: scratch.to_owned(),
        random: || Ok([7; 16]),
    }
}

/// Opens a provider with these variables.
pub(crate) fn open(
    isolation: Isolation,
    variables: &[(&str, &str)],
) -> Result<Remote, NotConfigured> {
    Remote::open(isolation, around(Path::new("/nonexistent"), variables))
}

pub(crate) fn invocation() -> Invocation {
    Invocation {
        command: Command::Shell { shell: Shell::Sh, script: ":".into() },
        cwd: "/workspace".into(),
        env: Vec::new(),
        stdin: Stdin::Empty,
        tty: None,
        files: Files {
            workspace: "/workspace".into(),
            access: WorkspaceAccess::Overlay,
            read_roots: Vec::new(),
            write_roots: Vec::new(),
            masks: Vec::new(),
            places: Vec::new(),
        },
        network: Network::Allow(Vec::new()),
        limits: Limits { wall_ms: Some(20_000), ..Limits::danger_unlimited() },
        image: None,
        neighbors: None,
    }
}
