//! Unix sockets among programs inside work: in the workspace, in `/tmp`, by abstract names, with
//! descriptors passed along; as root and as an ordinary user.

use std::fs;

use warrant_protocol::Outcome;
use warrant_sandbox::{Backend, Namespace};

use crate::attacks::scene::{Scene, Verdict, hold};
use crate::bench::{run, shell, workspace};

const TALK: &str = r#"
import os, socket, multiprocessing

def talk(address, kind):
    server = socket.socket(socket.AF_UNIX, kind); server.bind(address)
    if kind == socket.SOCK_DGRAM:
        client = socket.socket(socket.AF_UNIX, kind); client.sendto(b'hello', address)
        assert server.recv(16) == b'hello'; return
    server.listen()
    pid = os.fork()
    if pid == 0:
        client = socket.socket(socket.AF_UNIX, kind); client.connect(address)
        r, w = os.pipe(); os.write(w, b'through a pipe')
        socket.send_fds(client, [b'x'], [r]); os._exit(0)
    connection, _ = server.accept()
    _, (fd,), _, _ = socket.recv_fds(connection, 1, 1)
    assert os.read(fd, 64) == b'through a pipe'
    uid = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    assert len(uid) == 12
    os.waitpid(pid, 0)

here = os.getcwd()
for directory in (here, '/tmp', '/dev/shm'):
    for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET, socket.SOCK_DGRAM):
        talk(os.path.join(directory, 's%d' % kind), kind)
for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
    talk('\0name%d' % kind, kind)
if __name__ == '__main__':
    with multiprocessing.Manager() as manager:
        shared = manager.dict(); shared['a'] = 1; assert shared['a'] == 1
    print('talked')
"#;

fn sockets_work(scene: &Scene) -> Verdict {
    fs::write(scene.workspace().join("talk.py"), TALK).unwrap();
    let played = scene.play("/usr/bin/python3 talk.py");
    let told = format!("{}{}", played.memory.stdout(), played.memory.stderr());
    assert!(played.said("talked"), "{told}");
    Verdict::Held
}

#[test]
fn unix_sockets_among_programs_inside_work() {
    let path = concat!(module_path!(), "::unix_sockets_among_programs_inside_work");
    hold(path, sockets_work);
}

#[test]
fn a_plan_says_which_unix_sockets_there_are() {
    let (workspace, granted) = (workspace(), workspace());
    let backend = Namespace::new();
    let mut invocation = shell(workspace.path(), "true");
    let sockets = |invocation| backend.prepare(invocation).unwrap().artifact["unixSockets"].clone();
    assert_eq!(sockets(invocation.clone()), "inside");
    invocation.files.read_roots.push(granted.path().to_owned());
    assert_eq!(sockets(invocation.clone()), "inside");
    invocation.files.write_roots.push(granted.path().to_owned());
    assert_eq!(sockets(invocation), "pairs-only");
}

#[test]
fn a_socket_is_no_root() {
    let (workspace, granted) = (workspace(), workspace());
    let path = granted.path().join("s");
    let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let mut invocation = shell(workspace.path(), "true");
    invocation.files.read_roots.push(path);
    let refusal = Namespace::new().prepare(invocation).unwrap_err();
    assert!(refusal.message.contains("is a socket"), "{}", refusal.message);
}

#[test]
fn pairs_work_where_a_directory_of_the_host_is_written() {
    let (workspace, granted) = (workspace(), workspace());
    let script = "/usr/bin/python3 -c 'import socket; a, b = socket.socketpair(); a.send(b\"x\"); \
                  print(b.recv(1)); \ntry: socket.socket(socket.AF_UNIX)\nexcept OSError: print(\"refused\")'";
    let mut invocation = shell(workspace.path(), script);
    invocation.files.write_roots.push(granted.path().to_owned());
    let (report, memory) = run(&Namespace::new(), invocation);
    assert_eq!(report.unwrap().outcome, Outcome::Exited { code: 0 }, "{}", memory.stderr());
    assert_eq!(memory.stdout(), "b'x'\nrefused\n");
}
