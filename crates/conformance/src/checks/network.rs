//! The network: with nothing allowed, nothing arrives.

use std::io;
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};

use warrant_sandbox::{Command, Shell};

use super::Check;
use crate::lab::{Broken, Finding, Lab, Passed, ensure};
use crate::tier::Level;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "network.deny-all",
        level: Level::L2,
        name: "with nothing allowed, no connection and no packet reaches the host",
        run: deny_all,
    },
    Check {
        id: "network.sockets-by-name",
        level: Level::L3,
        name: "no socket of the host is reached by path or abstract name",
        run: sockets_by_name,
    },
];

fn deny_all(lab: &Lab<'_>) -> Finding {
    let tcp = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let udp = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    let (tcp_port, udp_port) = (tcp.local_addr()?.port(), udp.local_addr()?.port());
    // The listeners must be able to hear, or silence would prove nothing.
    drop(TcpStream::connect((Ipv4Addr::LOCALHOST, tcp_port))?);
    drop(tcp.accept()?);
    tcp.set_nonblocking(true)?;
    udp.set_nonblocking(true)?;
    let script = format!(
        "(exec 3<>/dev/tcp/127.0.0.1/{tcp_port} && echo knock >&3)\n\
         (echo knock > /dev/udp/127.0.0.1/{udp_port})\n\
         for tool in 'curl -s -m 1' 'wget -q -T 1 -t 1 -O -'; do\n\
         $tool http://127.0.0.1:{tcp_port}/ ; $tool http://localhost:{tcp_port}/\n\
         done\n\
         exit 0"
    );
    let command = Command::Shell { shell: Shell::Bash, script };
    let mut invocation = lab.invocation(command);
    invocation.limits.wall_ms = Some(8_000);
    lab.run_invocation(invocation)?;
    let is_claimed = lab.open()?.probe().enforces("network");
    let claim = if is_claimed { "claims" } else { "does not claim" };
    let arrived = |what: &str| format!("{what} arrived from inside; the posture {claim} network");
    ensure(is_silent(tcp.accept())?, || arrived("a connection"))?;
    let mut buffer = [0; 16];
    ensure(is_silent(udp.recv_from(&mut buffer))?, || arrived("a packet"))?;
    Ok(Passed::Held)
}

fn sockets_by_name(lab: &Lab<'_>) -> Finding {
    if !lab.starts_programs() {
        return Ok(Passed::Moot("no program is started that could open a socket".to_owned()));
    }
    let name =
        format!("warrant-conformance-{}-{:?}", std::process::id(), std::thread::current().id());
    let by_name = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name)?)?;
    let path = lab.outside().join("socket");
    let by_path = UnixListener::bind(&path)?;
    by_name.set_nonblocking(true)?;
    by_path.set_nonblocking(true)?;
    // Whichever of these interpreters is there knocks at both.
    let python = "import socket,sys\nfor a in (sys.argv[1], '\\0'+sys.argv[2]):\n\
                  \x20try: socket.socket(socket.AF_UNIX).connect(a)\n except Exception: pass\n";
    let perl = "use Socket; for my $a ($ARGV[0], \"\\0\".$ARGV[1]) { \
                socket(my $s, PF_UNIX, SOCK_STREAM, 0); connect($s, pack('S a*', AF_UNIX, $a)); }";
    lab.put("knock.py", python)?;
    lab.put("knock.pl", perl)?;
    let path = path.display();
    let script = format!(
        "python3 knock.py '{path}' '{name}' && echo knocked; \
         perl knock.pl '{path}' '{name}' && echo knocked; exit 0"
    );
    let ran = lab.run(&script)?;
    let claims = lab.open()?.probe();
    for (listener, what) in [(by_name, "an abstract name"), (by_path, "a path")] {
        ensure(is_silent(listener.accept())?, || {
            let claim = if claims.enforces("ipc") { "claims" } else { "does not claim" };
            format!("a socket of the host was reached by {what}; the posture {claim} ipc")
        })?;
    }
    ensure(ran.text().contains("knocked"), || {
        "neither python3 nor perl is there inside to try it with".to_owned()
    })?;
    Ok(Passed::Held)
}

/// Returns whether nothing came.
fn is_silent<T>(heard: io::Result<T>) -> Result<bool, Broken> {
    match heard {
        Ok(_) => Ok(false),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(true),
        Err(error) => Err(error.into()),
    }
}
