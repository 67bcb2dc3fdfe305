//! The network's part in a run: the egress proxy, asleep until someone inside connects.
//!
//! The listeners are watched by the supervisor's own loop; a run that never connects never starts
//! a proxy. Decisions come from the proxy's thread and are handed to the sink by the supervisor's.

mod witness;

use std::io;
use std::mem;
use std::net::{TcpListener, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use warrant_egress::{Decision, Listeners, Options, Proxy, Rules, Totals};
use warrant_jail::{Listener, ListenerKind};

use self::witness::Witnesses;
use crate::{Cancel, Network, NetworkDecision, Refusal, Sink};

/// The door between one run and the network.
pub(crate) struct Door {
    state: State,
    news: Arc<News>,
    witnesses: Witnesses,
}

enum State {
    Asleep(Box<Asleep>),
    Awake(Proxy),
    Closed,
}

struct Asleep {
    listeners: Listeners,
    rules: Rules,
    options: Options,
}

/// Decisions on their way to the sink.
struct News {
    waiting: Mutex<Vec<Decision>>,
    /// Readable from the first decision on.
    rung: Cancel,
}

/// Returns the rules an invocation asks for.
pub(crate) fn rules(network: &Network) -> Result<Rules, Refusal> {
    match network {
        Network::DangerEverything => Ok(Rules::danger_everything()),
        Network::Allow(entries) => Rules::parse(entries)
            .map_err(|error| Refusal { code: "SANDBOX_DENIED", message: error.to_string() }),
    }
}

impl Door {
    /// Returns a door that sleeps on `listeners`.
    pub(crate) fn new(listeners: Listeners, rules: Rules, options: Options) -> io::Result<Self> {
        let news = Arc::new(News { waiting: Mutex::new(Vec::new()), rung: Cancel::new()? });
        let asleep = Box::new(Asleep { listeners, rules, options });
        Ok(Self { state: State::Asleep(asleep), news, witnesses: Witnesses::default() })
    }

    /// Has what is tried beside the listeners told, too.
    pub(crate) fn watched_by(self, witnesses: Witnesses) -> Self {
        Self { witnesses, ..self }
    }

    /// Returns what to wait for beside [`Door::listeners`].
    pub(crate) fn witnesses(&self) -> Vec<BorrowedFd<'_>> {
        self.witnesses.sockets().collect()
    }

    /// Tells what the witnesses saw.
    pub(crate) fn tell_attempts(&mut self, sink: &dyn Sink) {
        self.witnesses.tell(sink);
    }

    /// Returns what to wait for: a first connection while asleep, news afterwards.
    pub(crate) fn listeners(&self) -> Vec<BorrowedFd<'_>> {
        match &self.state {
            State::Asleep(asleep) => {
                let Listeners { explicit, dns_udp, dns_tcp, transparent } = &asleep.listeners;
                let streams = explicit.iter().chain(dns_tcp).chain(transparent).map(AsFd::as_fd);
                streams.chain(dns_udp.iter().map(AsFd::as_fd)).collect()
            }
            State::Awake(_) => vec![self.news.rung.as_fd()],
            State::Closed => Vec::new(),
        }
    }

    /// Starts the proxy at the first connection; afterwards delivers its decisions.
    ///
    /// # Errors
    /// When the proxy cannot be started; the run cannot go on.
    pub(crate) fn wake(&mut self, sink: &dyn Sink) -> io::Result<()> {
        match mem::replace(&mut self.state, State::Closed) {
            State::Asleep(asleep) => {
                let Asleep { listeners, rules, options } = *asleep;
                let news = Arc::clone(&self.news);
                let reporter = Arc::new(move |decision| news.tell(decision));
                self.state =
                    State::Awake(warrant_egress::serve(listeners, rules, options, reporter)?);
            }
            awake => {
                self.state = awake;
                self.news.deliver(sink);
            }
        }
        Ok(())
    }

    /// Closes every connection, delivers what is left, and returns the bytes of all.
    pub(crate) fn close(mut self, sink: &dyn Sink) -> Totals {
        let totals = match mem::replace(&mut self.state, State::Closed) {
            State::Awake(proxy) => proxy.shutdown(),
            State::Asleep(_) | State::Closed => Totals::default(),
        };
        self.news.deliver(sink);
        self.witnesses.tell_rest(sink);
        totals
    }
}

impl News {
    fn tell(&self, decision: Decision) {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).push(decision);
        self.rung.cancel();
    }

    fn deliver(&self, sink: &dyn Sink) {
        self.rung.reset();
        let waiting = mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner));
        for decision in waiting {
            sink.network(told(decision));
        }
    }
}

/// Returns a decision as sinks are told of it.
pub(crate) fn told(decision: Decision) -> NetworkDecision {
    NetworkDecision {
        host: decision.host,
        port: decision.port,
        allowed: decision.allowed,
        why: decision.why.as_str().to_owned(),
        count: decision.count,
        bytes_out: decision.bytes_out,
        bytes_in: decision.bytes_in,
        at: decision.at,
        model: decision.model.map(|call| (call.provider.to_owned(), call.model)),
    }
}

/// Sorts what a jail handed out into what the proxy expects.
pub(crate) fn sort(
    specs: &[Listener],
    fds: Vec<OwnedFd>,
    proxy_port: u16,
) -> (Listeners, Witnesses) {
    let mut sorted = Listeners::default();
    let mut witnesses = Witnesses::default();
    for (spec, fd) in specs.iter().zip(fds) {
        if spec.kind == ListenerKind::Tcp {
            witnesses.leave(spec.address.port());
        }
        match (spec.kind, spec.address.port()) {
            (ListenerKind::TcpWitness | ListenerKind::UdpWitness, _) => witnesses.add(spec, fd),
            (ListenerKind::Udp, _) => sorted.dns_udp = Some(UdpSocket::from(fd)),
            (ListenerKind::Tcp, 53) => sorted.dns_tcp = Some(TcpListener::from(fd)),
            (ListenerKind::Tcp, port) if port == proxy_port => {
                sorted.explicit = Some(TcpListener::from(fd));
            }
            (ListenerKind::Tcp, _) => sorted.transparent.push(TcpListener::from(fd)),
        }
    }
    (sorted, witnesses)
}
