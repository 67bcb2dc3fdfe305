//! Commands side by side: each reaches the others' servers at loopback, and nothing else by them.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use warrant_protocol::Outcome;
use warrant_sandbox::{Backend as _, Cancel, Invocation, Namespace, Neighborhood, Network};

use crate::bench::{Memory, run, shell, workspace};

/// A server that answers each connection with what it was told, backwards, once all was said.
const SERVER: &str = r"
import socket, sys
server = socket.socket(socket.AF_INET6 if ':' in sys.argv[1] else socket.AF_INET)
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
server.bind((sys.argv[1], int(sys.argv[2])))
server.listen()
print('listening', flush=True)
while True:
    peer, _ = server.accept()
    heard = b''
    while piece := peer.recv(65536): heard += piece
    peer.sendall(heard[::-1])
    peer.close()
";

/// A client that says so many bytes and prints whether they came back backwards.
const CLIENT: &str = r"
import os, socket, sys
said = os.urandom(int(sys.argv[3]))
peer = socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=20)
peer.settimeout(20)
peer.sendall(said)
peer.shutdown(socket.SHUT_WR)
heard = b''
while piece := peer.recv(65536): heard += piece
print('echoed' if heard == said[::-1] else 'lost')
";

/// One sandbox with its files, and the commands in it.
struct Street {
    workspace: tempfile::TempDir,
    neighbors: Neighborhood,
}

/// A command that runs beside the others until it is stopped.
struct Beside {
    cancel: Arc<Cancel>,
    memory: Arc<Memory>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Street {
    fn new() -> Self {
        let workspace = workspace();
        for (name, content) in [("server.py", SERVER), ("client.py", CLIENT)] {
            std::fs::write(workspace.path().join(name), content).unwrap();
        }
        Self { workspace, neighbors: Neighborhood::default() }
    }

    fn command(&self, script: &str) -> Invocation {
        let neighbors = Some(self.neighbors.clone());
        Invocation { neighbors, ..shell(self.path(), script) }
    }

    fn path(&self) -> &Path {
        self.workspace.path()
    }

    /// Runs a command to its end and returns what it printed.
    #[track_caller]
    fn run(&self, script: &str) -> (Outcome, String) {
        let (report, memory) = run(&Namespace::new(), self.command(script));
        (report.unwrap().outcome, memory.stdout())
    }

    /// Starts a command and waits until it has printed something.
    #[track_caller]
    fn start(&self, invocation: Invocation) -> Beside {
        let (cancel, memory) = (Arc::new(Cancel::new().unwrap()), Arc::new(Memory::default()));
        let (stop, seen) = (Arc::clone(&cancel), Arc::clone(&memory));
        let work = move || {
            let backend = Namespace::new();
            let plan = backend.prepare(invocation).unwrap();
            backend.run(&plan, &*seen, &stop).unwrap();
        };
        let beside = Beside { cancel, memory, thread: Some(std::thread::spawn(work)) };
        let began = Instant::now();
        while beside.memory.stdout().is_empty() {
            assert!(began.elapsed() < Duration::from_secs(30), "the command says nothing");
            std::thread::sleep(Duration::from_millis(5));
        }
        beside
    }

    fn serve(&self, address: &str, port: u16) -> Beside {
        self.start(self.command(&format!("exec python3 server.py {address} {port}")))
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        self.cancel.cancel();
        let _ = self.thread.take().unwrap().join();
    }
}

#[test]
fn a_server_of_one_command_is_reached_by_the_next_from_its_first_moment_on() {
    let street = Street::new();
    let _server = street.serve("127.0.0.1", 8000);
    for name in ["127.0.0.1", "localhost"] {
        let (outcome, said) = street.run(&format!("python3 client.py {name} 8000 3000000"));
        assert_eq!((outcome, said.as_str()), (Outcome::Exited { code: 0 }, "echoed\n"), "{name}");
    }
    // As on one machine, its port is taken.
    let taken = street.run("python3 server.py 127.0.0.1 8000 2>&1");
    assert!(taken.1.contains("Address already in use"), "{taken:?}");
}

#[test]
fn a_server_that_begins_later_is_reached_by_a_command_that_waits_for_it() {
    let street = Street::new();
    let waiting =
        "echo waiting; until python3 client.py ::1 8001 9 2>/dev/null; do sleep 0.1; done";
    let client = street.start(street.command(waiting));
    let _server = street.serve("::", 8001);
    let began = Instant::now();
    while !client.memory.stdout().contains("echoed") {
        assert!(began.elapsed() < Duration::from_secs(30), "{}", client.memory.stdout());
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_server_that_ended_is_reached_no_more_and_its_connections_end() {
    let street = Street::new();
    let server = street.serve("127.0.0.1", 8002);
    let talking = "import socket\n\
        peer = socket.create_connection(('127.0.0.1', 8002))\n\
        print('connected', flush=True)\n\
        # A connection that nobody accepted yet is reset.\n\
        try: print('ended' if peer.recv(1) == b'' else 'told', flush=True)\n\
        except ConnectionResetError: print('ended', flush=True)\n\
        try: socket.create_connection(('127.0.0.1', 8002)).recv(1)\n\
        except OSError: print('refused', flush=True)\n\
        print('over', flush=True)\n";
    std::fs::write(street.path().join("talk.py"), talking).unwrap();
    let client = street.start(street.command("exec python3 talk.py"));
    drop(server);
    let began = Instant::now();
    while !client.memory.stdout().contains("over") {
        assert!(began.elapsed() < Duration::from_secs(30), "{}", client.memory.stdout());
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(client.memory.stdout().contains("ended\n"), "{}", client.memory.stdout());
    let (_, said) = street.run("python3 client.py 127.0.0.1 8002 1 2>&1");
    assert!(said.contains("refused"), "{said}");
}

#[test]
fn a_server_of_another_sandbox_is_not_reached() {
    let (street, other) = (Street::new(), Street::new());
    let _server = street.serve("0.0.0.0", 8003);
    let _beside = other.start(other.command("echo here; sleep 60"));
    let (outcome, said) = other.run("python3 client.py 127.0.0.1 8003 1 2>&1");
    assert_eq!(outcome, Outcome::Exited { code: 1 }, "{said}");
    assert!(said.contains("refused"), "{said}");
    // Nor one of this machine.
    let host = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = host.local_addr().unwrap().port();
    let (_, said) = other.run(&format!("python3 client.py 127.0.0.1 {port} 1 2>&1"));
    assert!(said.contains("refused"), "{said}");
}

/// What one command may reach is no way out for another.
#[test]
fn the_proxy_of_a_neighbor_cannot_be_used() {
    let street = Street::new();
    let mut privileged = street.command("echo here; sleep 60");
    privileged.network = Network::Allow(vec!["allowed.test:80".to_owned()]);
    let privileged = street.start(privileged);
    let asking = "import socket\n\
        peer = socket.create_connection(('127.0.0.1', 3128))\n\
        peer.sendall(b'CONNECT allowed.test:80 HTTP/1.1\\r\\nHost: allowed.test:80\\r\\n\\r\\n')\n\
        print(peer.recv(100).split(b'\\r\\n')[0].decode())\n";
    std::fs::write(street.path().join("ask.py"), asking).unwrap();
    let (report, memory) = run(&Namespace::new(), street.command("python3 ask.py"));
    assert_eq!(report.unwrap().outcome, Outcome::Exited { code: 0 });
    assert!(memory.stdout().contains("403"), "{}", memory.stdout());
    let own: Vec<bool> = memory.decisions.lock().unwrap().iter().map(|d| d.allowed).collect();
    assert_eq!(own, [false]);
    assert_eq!(privileged.memory.decisions.lock().unwrap().len(), 0);
}

#[test]
fn a_flood_of_listening_ports_opens_few_doors_and_keeps_nobody_from_working() {
    let street = Street::new();
    let flooding = "import socket\n\
        servers = []\n\
        for port in range(9000, 9400):\n\
        \x20   server = socket.socket(); server.bind(('127.0.0.1', port)); server.listen()\n\
        \x20   servers.append(server)\n\
        print('listening', flush=True)\n\
        import time; time.sleep(60)\n";
    std::fs::write(street.path().join("flood.py"), flooding).unwrap();
    let _flood = street.start(street.command("exec python3 flood.py"));
    let listening = "sleep 0.3; grep -c ' 0A ' /proc/net/tcp";
    let (outcome, said) = street.run(listening);
    assert_eq!(outcome, Outcome::Exited { code: 0 });
    let doors: usize = said.trim().parse().unwrap();
    assert!((32..64).contains(&doors), "32 and those of the boundary, not {doors}");
}
