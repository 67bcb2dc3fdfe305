//! The accept loops of one run, on their own thread with their own runtime.

use std::io;
use std::net;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::BytesMut;
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::runtime::Runtime;
use tokio::sync::{Semaphore, oneshot};

use crate::decision::{Decision, Totals, Why};
use crate::gate::{AddressSpelling, Destination, Gate};
use crate::host::Host;
use crate::http::{self, Door, End};
use crate::ledger::{Ledger, LedgerBounds};
use crate::options::Options;
use crate::pipe::{fill, within};
use crate::rules::Rules;
use crate::socks;
use crate::stub::{self, Families, Meaning, Stub};
use crate::tunnel::{self, Front};

/// The sockets of one run, bound and listening already; in the namespace tier, inside the run's
/// own network namespace, so that the listener itself says who is speaking.
#[derive(Debug, Default)]
pub struct Listeners {
    /// Speaks HTTP (absolute form and CONNECT) and SOCKS5.
    pub explicit: Option<net::TcpListener>,
    /// Answers names over UDP.
    pub dns_udp: Option<net::UdpSocket>,
    /// Answers names over TCP.
    pub dns_tcp: Option<net::TcpListener>,
    /// Accept connections meant for any address, one listener per port (and family); the accepted
    /// socket's local address is where the program wanted to go.
    pub transparent: Vec<net::TcpListener>,
}

/// A running proxy. Dropping it stops it too, but its totals are lost.
#[derive(Debug)]
pub struct Proxy {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<Totals>>,
}

/// What all connections share.
struct Shared {
    gate: Gate,
    stub: Stub,
    slots: Arc<Semaphore>,
}

#[derive(Debug, Clone, Copy)]
enum Service {
    Explicit,
    Dns,
    Transparent,
}

/// Starts a proxy on its own thread.
///
/// Destinations are dialed from the network namespace of the calling thread. The reporter is
/// called on the proxy's thread and must not block for long.
///
/// # Errors
/// When a socket cannot be made asynchronous, or no thread can be started.
pub fn serve(
    listeners: Listeners,
    rules: Rules,
    options: Options,
    reporter: Arc<dyn Fn(Decision) + Send + Sync>,
) -> io::Result<Proxy> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    let ledger = Ledger::new(reporter, LedgerBounds::of(&options));
    let has_v6 = listeners.transparent.iter().any(|l| l.local_addr().is_ok_and(|a| a.is_ipv6()));
    let families = if has_v6 { Families::Both } else { Families::V4 };
    let shared = Arc::new(Shared {
        stub: Stub::new(options.max_names, families),
        slots: Arc::new(Semaphore::new(options.max_connections)),
        gate: Gate::new(rules, options, Arc::clone(&ledger)),
    });
    let (stop, stopped) = oneshot::channel();
    spawn_services(&runtime, &shared, listeners)?;
    let work = move || run(runtime, stopped, &ledger);
    let thread = std::thread::Builder::new().name("egress".to_owned()).spawn(work)?;
    Ok(Proxy { stop: Some(stop), thread: Some(thread) })
}

impl Proxy {
    /// Closes every connection, reports what was counted, and returns the bytes of all.
    #[must_use]
    pub fn shutdown(mut self) -> Totals {
        self.stop_and_join()
    }

    fn stop_and_join(&mut self) -> Totals {
        drop(self.stop.take());
        let totals = self.thread.take().and_then(|thread| thread.join().ok());
        totals.unwrap_or_default()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.stop_and_join();
    }
}

fn run(runtime: Runtime, stopped: oneshot::Receiver<()>, ledger: &Arc<Ledger>) -> Totals {
    // Both a message and a dropped sender mean stop.
    drop(runtime.block_on(stopped));
    // Ends every connection where it stands; their bytes are counted already.
    drop(runtime);
    ledger.flush();
    ledger.totals()
}

fn spawn_services(runtime: &Runtime, shared: &Arc<Shared>, listeners: Listeners) -> io::Result<()> {
    let _guard = runtime.enter();
    let Listeners { explicit, dns_udp, dns_tcp, transparent } = listeners;
    let explicit = explicit.into_iter().map(|listener| (listener, Service::Explicit));
    let dns_tcp = dns_tcp.into_iter().map(|listener| (listener, Service::Dns));
    let transparent = transparent.into_iter().map(|listener| (listener, Service::Transparent));
    for (listener, service) in explicit.chain(dns_tcp).chain(transparent) {
        listener.set_nonblocking(true)?;
        let listener = TcpListener::from_std(listener)?;
        runtime.spawn(accept_all(Arc::clone(shared), listener, service));
    }
    if let Some(socket) = dns_udp {
        socket.set_nonblocking(true)?;
        let socket = UdpSocket::from_std(socket)?;
        let shared = Arc::clone(shared);
        runtime.spawn(async move { stub::serve_udp(&shared.gate, &shared.stub, &socket).await });
    }
    Ok(())
}

/// Accepts for ever. Beyond the bound of connections each listener holds one more that waits for a
/// place, and accepts nothing else.
async fn accept_all(shared: Arc<Shared>, listener: TcpListener, service: Service) {
    loop {
        let Ok((mut client, _)) = listener.accept().await else {
            // Out of descriptors, most likely: wait for connections to end.
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        // The semaphore is never closed; if it were, nothing would be served any more.
        let Ok(slot) = Arc::clone(&shared.slots).acquire_owned().await else { return };
        let shared = Arc::clone(&shared);
        tokio::spawn(async move {
            drop(client.set_nodelay(true));
            let limit = shared.gate.options.total_timeout;
            let serving = shared.serve(&mut client, service);
            // How a single connection ends interests only its client; decisions are recorded inside.
            drop(within(limit, serving).await);
            drop(slot);
        });
    }
}

impl Shared {
    async fn serve(&self, client: &mut TcpStream, service: Service) -> io::Result<()> {
        match service {
            Service::Explicit => self.serve_explicit(client).await,
            Service::Dns => stub::serve_tcp(&self.gate, &self.stub, client).await,
            Service::Transparent => self.serve_transparent(client).await,
        }
    }

    async fn serve_explicit(&self, client: &mut TcpStream) -> io::Result<()> {
        let gate = &self.gate;
        let mut buffer = BytesMut::new();
        within(gate.options.idle_timeout, fill(client, &mut buffer)).await?;
        let tunnel = match buffer.first() {
            None => return Ok(()),
            Some(&socks::VERSION) => {
                let asked = socks::negotiate(gate, client, &mut buffer).await;
                asked.map(|destination| (Front::Socks, destination))
            }
            Some(_) => match http::serve(gate, client, &mut buffer, (Door::Proxy, None)).await? {
                End::Connect(destination) => Some((Front::Connect, destination)),
                End::Closed => None,
            },
        };
        match tunnel {
            Some(tunnel) => tunnel::run(gate, client, buffer, tunnel).await,
            None => Ok(()),
        }
    }

    async fn serve_transparent(&self, client: &mut TcpStream) -> io::Result<()> {
        let asked = client.local_addr()?;
        // SECURITY: an IPv6 socket shows an IPv4 destination in disguise; undo that before deciding.
        let address = asked.ip().to_canonical();
        let asked = net::SocketAddr::new(address, asked.port());
        let (host, known) = match self.stub.names.meaning(address) {
            Meaning::Name(name) => (Host::Name(name), true),
            Meaning::Unknown => (Host::Address(address), false),
            Meaning::Literal => (Host::Address(address), true),
        };
        let spelling = AddressSpelling::Bracketed;
        let destination =
            Destination { host, port: asked.port(), asked_address: Some(asked), spelling };
        if !known {
            drop(self.gate.record(&destination, Why::UnknownAddress));
            return client.set_zero_linger();
        }
        tunnel::run(&self.gate, client, BytesMut::new(), (Front::Transparent, destination)).await
    }
}
