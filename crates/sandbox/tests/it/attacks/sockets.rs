//! Attacks by Unix sockets and named pipes: no byte, descriptor or credential leaves by one.

use std::fs;
use std::io::{IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::Path;
use std::process::Command;

use rustix::fs::{OFlags, open};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use warrant_protocol::Isolation;

use crate::attacks::scene::{Played, Scene, Verdict, next_number};

crate::attacks::attacks!("sockets":
    unix_streams_of_the_host_are_out_of_reach Always,
    unix_datagrams_do_not_reach_the_host Always,
    pairs_of_datagram_sockets_do_not_reach_the_host Always,
    descriptors_do_not_leave_by_unix_sockets Always,
    abstract_sockets_of_the_host_are_out_of_reach Always,
    sockets_in_a_directory_that_is_written_directly_are_out_of_reach Always,
    sockets_appearing_after_start_are_out_of_reach Always,
    named_pipes_of_the_host_are_out_of_reach Always,
);

/// Perl that has sockets and knows where the host's are.
const HEAD: &str = "use Socket; my $d = $ENV{OUTSIDE}; $SIG{PIPE} = 'IGNORE';\n";

/// Lets a program play to whom the directory outside is granted for reading.
fn granted(scene: &Scene, program: &str) -> Played {
    fs::write(scene.workspace().join("attack.pl"), format!("{HEAD}{program}")).unwrap();
    let mut invocation = scene.script("perl attack.pl");
    if scene.backend.isolation() == Isolation::Namespace {
        invocation.files.read_roots.push(scene.outside());
    }
    scene.play_invocation(invocation)
}

/// Anyone may write to it, as to the sockets of many services.
fn open_to_all(path: &Path) {
    fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
}

fn listener(path: &Path) -> UnixListener {
    let listener = UnixListener::bind(path).unwrap();
    listener.set_nonblocking(true).unwrap();
    open_to_all(path);
    listener
}

fn datagrams(path: &Path) -> UnixDatagram {
    let socket = UnixDatagram::bind(path).unwrap();
    socket.set_nonblocking(true).unwrap();
    open_to_all(path);
    socket
}

fn unix_streams_of_the_host_are_out_of_reach(scene: &Scene) -> Verdict {
    let here = listener(&scene.outside().join("s"));
    let there = listener(&scene.workspace().join("s"));
    granted(
        scene,
        "for my $p (\"$d/s\", 's', \"/proc/self/root$d/s\") { socket(my $s, AF_UNIX, SOCK_STREAM, 0) or next;\n\
         connect($s, pack_sockaddr_un($p)) and syswrite($s, 'out'); }",
    );
    Verdict::broken_if(here.accept().is_ok() || there.accept().is_ok(), "a connection arrived")
}

fn unix_datagrams_do_not_reach_the_host(scene: &Scene) -> Verdict {
    let here = datagrams(&scene.outside().join("d"));
    let there = datagrams(&scene.workspace().join("d"));
    granted(
        scene,
        "socket(my $s, AF_UNIX, SOCK_DGRAM, 0) or exit; send($s, 'out', 0, pack_sockaddr_un(\"$d/d\"));\n\
         send($s, 'out', 0, pack_sockaddr_un('d'));",
    );
    let arrived = [here, there].map(|socket| socket.recv(&mut [0; 8]).is_ok());
    Verdict::broken_if(arrived.contains(&true), "a datagram arrived")
}

fn pairs_of_datagram_sockets_do_not_reach_the_host(scene: &Scene) -> Verdict {
    let here = datagrams(&scene.outside().join("d"));
    granted(
        scene,
        "socketpair(my $s, my $t, AF_UNIX, SOCK_DGRAM, 0) or exit;\n\
         send($s, 'out', 0, pack_sockaddr_un(\"$d/d\"));\n\
         connect($t, pack_sockaddr_un(\"$d/d\")) and syswrite($t, 'out');",
    );
    Verdict::broken_if(here.recv(&mut [0; 8]).is_ok(), "a datagram arrived")
}

/// `sendmsg` with a descriptor of a file, from every kind of socket there is.
const SEND_DESCRIPTOR: &str = r#"
sub pass { my ($s, $name) = @_; my $byte = 'x'; my $io = pack('PQ', $byte, 1);
  open(my $f, '<', '/proc/self/status'); my $rights = pack('QiiiI', 20, 1, 1, fileno($f), 0);
  my $header = pack('PL x4 PQ PQ i x4', $name, length $name, $io, 1, $rights, 24, 0);
  syscall(46, fileno($s), $header, 0); }
my $name = pack_sockaddr_un("$d/d");
if (socketpair(my $s, my $t, AF_UNIX, SOCK_DGRAM, 0)) { pass($s, $name); }
if (socket(my $s, AF_UNIX, SOCK_DGRAM, 0)) { pass($s, $name); }
"#;

fn descriptors_do_not_leave_by_unix_sockets(scene: &Scene) -> Verdict {
    let here = datagrams(&scene.outside().join("d"));
    granted(scene, SEND_DESCRIPTOR);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0; 1];
    let taken =
        recvmsg(&here, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::DONTWAIT);
    let is_descriptor =
        |message: RecvAncillaryMessage<'_>| matches!(message, RecvAncillaryMessage::ScmRights(_));
    let arrived = taken.is_ok() && control.drain().any(is_descriptor);
    Verdict::broken_if(arrived, "a descriptor arrived")
}

fn abstract_sockets_of_the_host_are_out_of_reach(scene: &Scene) -> Verdict {
    use std::os::linux::net::SocketAddrExt;
    let name = format!("warrant-attack-{}", next_number());
    let address = std::os::unix::net::SocketAddr::from_abstract_name(&name).unwrap();
    let here = UnixDatagram::bind_addr(&address).unwrap();
    here.set_nonblocking(true).unwrap();
    granted(
        scene,
        &format!(
            "my $a = pack('S', AF_UNIX) . \"\\0{name}\";\n\
             if (socketpair(my $s, my $t, AF_UNIX, SOCK_DGRAM, 0)) {{ send($s, 'out', 0, $a); }}\n\
             if (socket(my $s, AF_UNIX, SOCK_DGRAM, 0)) {{ send($s, 'out', 0, $a); }}"
        ),
    );
    Verdict::broken_if(here.recv(&mut [0; 8]).is_ok(), "a datagram arrived")
}

/// Where the host's own directory is written there is no overlay between, so there are no sockets
/// that could be connected by name.
fn sockets_in_a_directory_that_is_written_directly_are_out_of_reach(scene: &Scene) -> Verdict {
    let stream = listener(&scene.outside().join("s"));
    let datagram = datagrams(&scene.outside().join("d"));
    let program = format!(
        "{HEAD}if (socket(my $s, AF_UNIX, SOCK_STREAM, 0)) {{ connect($s, pack_sockaddr_un(\"$d/s\")); }}\n\
         if (socketpair(my $s, my $t, AF_UNIX, SOCK_DGRAM, 0)) {{ send($s, 'out', 0, pack_sockaddr_un(\"$d/d\")); }}"
    );
    fs::write(scene.workspace().join("attack.pl"), program).unwrap();
    let mut invocation = scene.script("perl attack.pl");
    if scene.backend.isolation() == Isolation::Namespace {
        invocation.files.write_roots.push(scene.outside());
    }
    scene.play_invocation(invocation);
    let arrived = stream.accept().is_ok() || datagram.recv(&mut [0; 8]).is_ok();
    Verdict::broken_if(arrived, "something arrived")
}

fn sockets_appearing_after_start_are_out_of_reach(scene: &Scene) -> Verdict {
    let (outside, ready) = (scene.outside(), scene.outside().join("ready"));
    let binding = std::thread::spawn(move || {
        let socket = datagrams(&outside.join("late"));
        fs::write(ready, "").unwrap();
        socket
    });
    granted(
        scene,
        "for (1..500) { last if -e \"$d/ready\"; select(undef, undef, undef, 0.01) }\n\
         for my $k (0, 1) { my ($s, $t); ($k ? socketpair($s, $t, AF_UNIX, SOCK_DGRAM, 0) : socket($s, AF_UNIX, SOCK_DGRAM, 0))\n\
         and send($s, 'out', 0, pack_sockaddr_un(\"$d/late\")); }",
    );
    let socket = binding.join().unwrap();
    Verdict::broken_if(socket.recv(&mut [0; 8]).is_ok(), "a datagram arrived")
}

fn named_pipes_of_the_host_are_out_of_reach(scene: &Scene) -> Verdict {
    let path = scene.outside().join("pipe");
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    open_to_all(&path);
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let mut reader = fs::File::from(open(&path, flags, rustix::fs::Mode::empty()).unwrap());
    granted(
        scene,
        "use Fcntl; for my $f (O_WRONLY, O_RDWR) { if (sysopen(my $p, \"$d/pipe\", $f | O_NONBLOCK)) { syswrite($p, 'out') } }",
    );
    let mut bytes = [0; 8];
    Verdict::broken_if(reader.read(&mut bytes).is_ok_and(|count| count > 0), "bytes arrived")
}
