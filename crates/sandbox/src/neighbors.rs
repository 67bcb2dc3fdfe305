//! The commands of one living sandbox that run at the same time, each in a jail and a network of
//! its own: what listens on loopback in one is reached at the same port in the others.
//!
//! ```text
//! jail of a server            this process             jail of a client
//! 127.0.0.1:8000 ◄── socket of its network ── relay ◄── 127.0.0.1:8000, a door of ours
//! ```
//!
//! The networks stay apart: nothing is routed, and each keeps its own proxy, rules and witnesses.
//! Doors are opened for ports on which a program inside listens, never for those of a boundary,
//! and only on loopback addresses, so that no way to the outside leads through a neighbor.
//! Start at [`Neighborhood`].

mod relay;
mod servers;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use warrant_jail::{Family, Listener, ListenerKind, Usher, Wish};

use crate::{Cancel, tree};

use relay::{Ticket, Visit};
use servers::Tables;

pub(crate) use servers::Server;

/// How often the ports of commands that run side by side are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// More doors than this are not opened in one jail.
const MOST_DOORS: usize = 32;
/// More listeners than this a jail is not built with.
const MOST_LISTENERS: usize = 90;
/// More connections than this do not lead from one command to another at once.
const MOST_VISITS: usize = 128;

/// Commands that reach each other's servers. Clones are the same one.
#[derive(Clone, Default)]
pub struct Neighborhood {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    houses: Vec<House>,
    visits: Vec<Visit>,
    next_id: u64,
    /// Wakes the thread that watches, while there is one.
    bell: Option<Arc<Cancel>>,
}

/// One command's jail.
struct House {
    id: u64,
    /// Its pid 1, as this machine sees it.
    pid: i32,
    tables: Tables,
    usher: Arc<Mutex<Usher>>,
    /// Ports of the boundary, which are nobody's servers.
    taken: BTreeSet<u16>,
    doors: BTreeMap<Server, Door>,
}

/// A listener of ours in one jail that stands for a server in another.
struct Door {
    listener: Arc<TcpListener>,
    /// The house of the server.
    host: u64,
}

/// The doors a jail is built with: which servers they stand for, in the order of the listeners.
#[derive(Default)]
pub(crate) struct Expected {
    servers: Vec<(u64, Server)>,
}

/// A command that enters.
pub(crate) struct Arrival {
    /// Its pid 1, as this machine sees it.
    pub(crate) pid: i32,
    pub(crate) usher: Usher,
    pub(crate) taken: BTreeSet<u16>,
    /// What it was built with, and the listeners that came of it.
    pub(crate) doors: (Expected, Vec<OwnedFd>),
}

/// The stay of one command; it leaves when dropped, and its connections end.
pub(crate) struct Resident {
    shared: Arc<Shared>,
    id: u64,
}

impl fmt::Debug for Neighborhood {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Neighborhood({})", self.shared.lock().houses.len())
    }
}

/// What commands that run use together, as the kernel tells of their processes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Together {
    /// CPU time so far, in milliseconds.
    pub cpu_ms: u64,
    /// Memory that belongs to single processes, and shared memory as each maps it.
    pub memory_bytes: u64,
    /// Pages of files that they map, counted for each.
    pub mapped_bytes: u64,
}

impl Neighborhood {
    /// Returns what the commands that run now use together.
    #[must_use]
    pub fn together(&self) -> Together {
        let state = self.shared.lock();
        let used = state.houses.iter().map(|house| tree::usage(house.pid));
        used.fold(Together::default(), |all, one| Together {
            cpu_ms: all.cpu_ms + one.cpu_ms,
            memory_bytes: all.memory_bytes + one.memory_bytes,
            mapped_bytes: all.mapped_bytes + one.mapped_bytes,
        })
    }

    /// Returns which servers a new command should find from its first moment on, beside the
    /// listeners of its boundary.
    pub(crate) fn expected(&self, boundary: &[Listener]) -> Expected {
        let state = self.shared.lock();
        let taken = tcp_ports(boundary);
        let most = MOST_DOORS.min(MOST_LISTENERS.saturating_sub(boundary.len()));
        let servers = state.servers().into_iter().map(|(server, host)| (host, server));
        let free = servers.filter(|(_, server)| !taken.contains(&server.port));
        Expected { servers: free.take(most).collect() }
    }

    /// Takes a command in that has been built.
    ///
    /// # Errors
    /// When there is no thread to watch over it.
    pub(crate) fn enter(&self, arrival: Arrival) -> io::Result<Resident> {
        let Arrival { pid, usher, taken, doors: (expected, listeners) } = arrival;
        let mut state = self.shared.lock();
        let id = state.next_id;
        state.next_id += 1;
        let mut doors = BTreeMap::new();
        for ((host, server), listener) in expected.servers.into_iter().zip(listeners) {
            doors.insert(server, Door::new(listener, host)?);
        }
        let usher = Arc::new(Mutex::new(usher));
        state.houses.push(House { id, pid, tables: Tables::of(pid), usher, taken, doors });
        let resident = Resident { shared: Arc::clone(&self.shared), id };
        match &state.bell {
            Some(bell) => bell.cancel(),
            None if state.houses.len() > 1 => {
                let bell = Arc::new(Cancel::new()?);
                let (weak, heard) = (Arc::downgrade(&self.shared), Arc::clone(&bell));
                let work = move || watch(&weak, &heard);
                std::thread::Builder::new().name("neighbors".to_owned()).spawn(work)?;
                state.bell = Some(bell);
            }
            None => {}
        }
        drop(state);
        Ok(resident)
    }
}

impl Drop for Resident {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.houses.retain(|house| house.id != self.id);
        for house in &mut state.houses {
            house.doors.retain(|_, door| door.host != self.id);
        }
        state.visits.retain(|visit| !visit.ends_with(self.id));
    }
}

impl Expected {
    /// Returns what a jail has to listen on for them.
    pub(crate) fn listeners(&self) -> impl Iterator<Item = Listener> + '_ {
        self.servers.iter().map(|(_, Server { family, port })| Listener {
            kind: ListenerKind::Tcp,
            address: SocketAddr::new(loopback(*family), *port),
        })
    }
}

/// Returns the ports on which a boundary listens.
pub(crate) fn tcp_ports(boundary: &[Listener]) -> BTreeSet<u16> {
    let tcp = boundary.iter().filter(|listener| listener.kind == ListenerKind::Tcp);
    tcp.map(|listener| listener.address.port()).collect()
}

const fn loopback(family: Family) -> IpAddr {
    match family {
        Family::V4 => IpAddr::V4(Ipv4Addr::LOCALHOST),
        Family::V6 => IpAddr::V6(Ipv6Addr::LOCALHOST),
    }
}

impl Door {
    fn new(listener: OwnedFd, host: u64) -> io::Result<Self> {
        let listener = TcpListener::from(listener);
        listener.set_nonblocking(true)?;
        Ok(Self { listener: Arc::new(listener), host })
    }
}

/// A shut door stops listening at once, even while the thread that watches still holds its
/// listener: it would look like a server of the program's own to the next command.
impl Drop for Door {
    fn drop(&mut self) {
        let _ = rustix::net::shutdown(&*self.listener, rustix::net::Shutdown::Both);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A door somebody may stand at.
struct Watched {
    guest: u64,
    host: u64,
    server: Server,
    listener: Arc<TcpListener>,
}

/// Opens and shuts doors and lets visitors in, as long as there is more than one command.
fn watch(shared: &Weak<Shared>, bell: &Cancel) {
    loop {
        let Some(all) = shared.upgrade() else { return };
        bell.reset();
        let doors = {
            let mut state = all.lock();
            if state.houses.len() < 2 {
                state.bell = None;
                return;
            }
            state.look();
            state.doors()
        };
        drop(all);
        let mut fds = vec![PollFd::new(bell, PollFlags::IN)];
        fds.extend(
            doors.iter().map(|door| PollFd::from_borrowed_fd(door.listener.as_fd(), PollFlags::IN)),
        );
        let wait = Timespec::try_from(LOOK_EVERY).ok();
        let _ = poll(&mut fds, wait.as_ref());
        let ready: Vec<bool> = fds.iter().skip(1).map(|fd| !fd.revents().is_empty()).collect();
        let Some(all) = shared.upgrade() else { return };
        for (door, _) in doors.iter().zip(ready).filter(|(_, is_ready)| *is_ready) {
            all.lock().let_in(door);
        }
    }
}

impl State {
    /// Returns every server that is there now, with the first house that has it.
    fn servers(&self) -> BTreeMap<Server, u64> {
        let mut servers = BTreeMap::new();
        for house in &self.houses {
            for server in house.servers() {
                servers.entry(server).or_insert(house.id);
            }
        }
        servers
    }

    /// Opens doors for servers that are there now, and shuts those of servers that are not.
    fn look(&mut self) {
        self.visits.retain(Visit::is_going_on);
        let servers = self.servers();
        for house in &mut self.houses {
            let id = house.id;
            house.doors.retain(|server, door| servers.get(server) == Some(&door.host));
            for (server, host) in servers.iter().filter(|(_, host)| **host != id) {
                if house.doors.len() >= MOST_DOORS {
                    break;
                }
                if !house.taken.contains(&server.port) && !house.doors.contains_key(server) {
                    house.open(*server, *host);
                }
            }
        }
    }

    fn doors(&self) -> Vec<Watched> {
        let doors = |house: &House| {
            let guest = house.id;
            let watched = |(server, door): (&Server, &Door)| Watched {
                guest,
                host: door.host,
                server: *server,
                listener: Arc::clone(&door.listener),
            };
            house.doors.iter().map(watched).collect::<Vec<_>>()
        };
        self.houses.iter().flat_map(doors).collect()
    }

    /// Leads who stands at a door to the server behind it. Whoever cannot be led is turned away,
    /// as by a server that is gone.
    fn let_in(&mut self, door: &Watched) {
        let Ok((near, _)) = door.listener.accept() else { return };
        self.visits.retain(Visit::is_going_on);
        let host = self.houses.iter().find(|house| house.id == door.host);
        let ticket = if self.visits.len() < MOST_VISITS { Ticket::take() } else { None };
        let (Some(host), Some(ticket)) = (host, ticket) else { return };
        let asked = lock_usher(&host.usher).ask(Wish::Stream(door.server.family));
        let Ok(far) = asked else { return };
        let address = SocketAddr::new(loopback(door.server.family), door.server.port);
        let ends = ((door.guest, near), (door.host, far.into()));
        let visit = Visit::begin(ends, address, ticket);
        self.visits.extend(visit);
    }
}

impl House {
    /// Returns what a program of this jail listens on.
    fn servers(&self) -> BTreeSet<Server> {
        let mut servers = self.tables.servers();
        servers.retain(|server| {
            !self.taken.contains(&server.port) && !self.doors.contains_key(server)
        });
        servers
    }

    /// Opens a door; a port that is taken has none.
    fn open(&mut self, server: Server, host: u64) {
        let asked = lock_usher(&self.usher).ask(Wish::Listener(server.family, server.port));
        if let Some(door) = asked.ok().and_then(|listener| Door::new(listener, host).ok()) {
            self.doors.insert(server, door);
        }
    }
}

fn lock_usher(usher: &Mutex<Usher>) -> MutexGuard<'_, Usher> {
    usher.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shut_door_stops_listening_while_somebody_still_watches_it() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let door = Door::new(listener.into(), 0).unwrap();
        let watched = Arc::clone(&door.listener);
        assert!(std::net::TcpStream::connect(address).is_ok());
        drop(door);
        let refused = std::net::TcpStream::connect(address).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        drop(watched);
    }
}
