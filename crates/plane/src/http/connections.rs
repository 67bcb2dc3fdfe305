//! Which connections there are: so many at once, so many of one address, so many requests of one
//! token.
//!
//! ```text
//! accept ─► idle ─► busy (a request is answered) ─► idle ─► … ─► gone
//! ```
//!
//! A connection is idle until the head of a request has arrived, and again after its answer. When
//! there is no space for a new one, the connection that has been idle for longest, of the address
//! that has the most of them, makes space. So idle connections never lock anybody out, and whoever
//! opens many loses their own first. Busy connections are never closed for others.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use hyper::HeaderMap;
use hyper::header::{AUTHORIZATION, COOKIE};
use tokio::sync::Notify;

/// Headers that carry a token.
const CREDENTIALS: [&str; 4] =
    ["x-api-key", "x-access-token", "open-sandbox-api-key", "x-daytona-preview-token"];

/// How many connections there may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ConnectionLimits {
    /// At once.
    pub(crate) total: usize,
    /// Of one address.
    pub(crate) per_address: usize,
    /// Requests under way with one token.
    pub(crate) per_token: usize,
}

/// Every connection, and how many requests each token has under way.
#[derive(Debug)]
pub(crate) struct Connections {
    limits: ConnectionLimits,
    table: Mutex<Table>,
    tokens: Mutex<HashMap<u64, usize>>,
    hasher: RandomState,
}

#[derive(Debug, Default)]
struct Table {
    next: u64,
    all: HashMap<u64, Entry>,
    by_address: HashMap<IpAddr, usize>,
}

#[derive(Debug)]
struct Entry {
    address: IpAddr,
    idle_since: Option<Instant>,
    close: Arc<Notify>,
}

/// Why a connection is not served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConnectionRefusal {
    /// Its address has as many as it may, and all are busy.
    Address {
        /// The limit.
        limit: usize,
    },
    /// There are as many as there may be, and all are busy.
    Total {
        /// The limit.
        limit: usize,
    },
}

/// One connection; it is not counted any more when this is dropped.
#[derive(Debug)]
pub(crate) struct Connection {
    connections: Arc<Connections>,
    id: u64,
    address: IpAddr,
    close: Arc<Notify>,
    /// The token that took the connection over for another protocol.
    upgraded_by: OnceLock<u64>,
}

/// A request under way: its connection is busy and its token counted until this is dropped.
#[derive(Debug)]
pub(crate) struct RequestUnderWay {
    connection: Arc<Connection>,
    token: Option<u64>,
    is_for_life: bool,
}

impl Connections {
    pub(crate) fn new(limits: ConnectionLimits) -> Self {
        let (table, tokens) = (Mutex::default(), Mutex::default());
        Self { limits, table, tokens, hasher: RandomState::new() }
    }

    /// Counts a new connection; an idle one may have to make space for it.
    pub(crate) fn open(
        self: &Arc<Self>,
        address: IpAddr,
    ) -> Result<Arc<Connection>, ConnectionRefusal> {
        let mut table = self.table();
        let own = table.by_address.get(&address).copied().unwrap_or(0);
        if own >= self.limits.per_address && !table.close_longest_idle(address) {
            return Err(ConnectionRefusal::Address { limit: self.limits.per_address });
        }
        if table.all.len() >= self.limits.total && !table.make_space() {
            return Err(ConnectionRefusal::Total { limit: self.limits.total });
        }
        let (id, close) = (table.next, Arc::new(Notify::new()));
        table.next += 1;
        let entry = Entry { address, idle_since: Some(Instant::now()), close: Arc::clone(&close) };
        table.all.insert(id, entry);
        *table.by_address.entry(address).or_default() += 1;
        drop(table);
        let (connections, upgraded_by) = (Arc::clone(self), OnceLock::new());
        Ok(Arc::new(Connection { connections, id, address, close, upgraded_by }))
    }

    /// Returns a name for whoever has the token of a request, good or not; without one for anyone.
    pub(crate) fn credential_name(&self, headers: &HeaderMap) -> String {
        match credential(headers) {
            Some(token) => format!("token:{:x}", self.hasher.hash_one(token)),
            None => "anyone".to_owned(),
        }
    }

    /// Returns how many there are.
    pub(crate) fn count(&self) -> usize {
        self.table().all.len()
    }

    fn forget_token(&self, token: u64) {
        let mut tokens = self.tokens();
        if let Some(count) = tokens.get_mut(&token) {
            *count -= 1;
            if *count == 0 {
                tokens.remove(&token);
            }
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tokens(&self) -> MutexGuard<'_, HashMap<u64, usize>> {
        self.tokens.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    /// Closes the connection of an address that is idle for longest; false when all are busy.
    fn close_longest_idle(&mut self, address: IpAddr) -> bool {
        let idle = self.all.iter().filter(|(_, entry)| entry.address == address);
        let idle = idle.filter_map(|(id, entry)| Some((entry.idle_since?, *id)));
        let Some((_, id)) = idle.min() else { return false };
        if let Some(entry) = self.remove(id) {
            entry.close.notify_one();
        }
        true
    }

    /// Closes the longest idle connection of the address with the most idle ones.
    fn make_space(&mut self) -> bool {
        let mut idle: HashMap<IpAddr, usize> = HashMap::new();
        for entry in self.all.values().filter(|entry| entry.idle_since.is_some()) {
            *idle.entry(entry.address).or_default() += 1;
        }
        let most = idle.into_iter().max_by_key(|(_, count)| *count);
        most.is_some_and(|(address, _)| self.close_longest_idle(address))
    }

    fn remove(&mut self, id: u64) -> Option<Entry> {
        let entry = self.all.remove(&id)?;
        if let Some(count) = self.by_address.get_mut(&entry.address) {
            *count -= 1;
            if *count == 0 {
                self.by_address.remove(&entry.address);
            }
        }
        Some(entry)
    }
}

impl Connection {
    /// Returns where it comes from.
    pub(crate) const fn address(&self) -> IpAddr {
        self.address
    }

    /// Waits until this connection has to make space for another.
    pub(crate) async fn closed(&self) {
        self.close.notified().await;
    }

    /// Counts a request; the refusal is the limit of requests that its token has reached.
    pub(crate) fn begin_request(
        self: &Arc<Self>,
        headers: &HeaderMap,
    ) -> Result<RequestUnderWay, usize> {
        let connections = &self.connections;
        let token = credential(headers).map(|token| connections.hasher.hash_one(token));
        if let Some(token) = token {
            let mut tokens = connections.tokens();
            let count = tokens.entry(token).or_default();
            if *count >= connections.limits.per_token {
                return Err(connections.limits.per_token);
            }
            *count += 1;
        }
        self.set_idle_since(None);
        Ok(RequestUnderWay { connection: Arc::clone(self), token, is_for_life: false })
    }

    fn set_idle_since(&self, idle_since: Option<Instant>) {
        if let Some(entry) = self.connections.table().all.get_mut(&self.id) {
            entry.idle_since = idle_since;
        }
    }
}

impl RequestUnderWay {
    /// Keeps the connection busy and its token counted until the connection ends: it is used for
    /// another protocol now.
    pub(crate) fn keep_for_life(mut self) {
        self.is_for_life = true;
        if let Some(token) = self.token.take() {
            // A connection changes its protocol once.
            let _ = self.connection.upgraded_by.set(token);
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if let Some(token) = self.upgraded_by.get() {
            self.connections.forget_token(*token);
        }
        // One that had to make space is gone already.
        self.connections.table().remove(self.id);
    }
}

impl Drop for RequestUnderWay {
    fn drop(&mut self) {
        if !self.is_for_life {
            self.connection.set_idle_since(Some(Instant::now()));
        }
        if let Some(token) = self.token {
            self.connection.connections.forget_token(token);
        }
    }
}

/// Returns what a request authenticates itself with, whatever it is and whether or not it is good.
fn credential(headers: &HeaderMap) -> Option<&[u8]> {
    let named = CREDENTIALS.iter().find_map(|name| headers.get(*name));
    let value = headers.get(AUTHORIZATION).or(named).or_else(|| headers.get(COOKIE))?;
    Some(value.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: ConnectionLimits = ConnectionLimits { total: 4, per_address: 3, per_token: 2 };

    fn address(last: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, last])
    }

    fn with_token(token: &str) -> HeaderMap {
        HeaderMap::from_iter([(AUTHORIZATION, token.parse().unwrap())])
    }

    async fn is_closed(connection: &Connection) -> bool {
        let soon = std::time::Duration::from_millis(1);
        tokio::time::timeout(soon, connection.closed()).await.is_ok()
    }

    #[tokio::test]
    async fn idle_connections_make_space_and_busy_ones_stay() {
        let connections = Arc::new(Connections::new(LIMITS));
        let many: Vec<_> = (0..3).map(|_| connections.open(address(1)).unwrap()).collect();
        let other = connections.open(address(2)).unwrap();
        let newest = connections.open(address(3)).unwrap();
        assert!(is_closed(&many[0]).await, "the longest idle of the address with the most");
        assert!(!is_closed(&other).await && !is_closed(&newest).await);
        let busy: Vec<_> = [&many[1], &many[2], &other, &newest]
            .map(|connection| connection.begin_request(&HeaderMap::new()).unwrap())
            .into();
        let refused = connections.open(address(4)).map(drop);
        assert_eq!(refused, Err(ConnectionRefusal::Total { limit: 4 }));
        drop(busy);
        assert!(connections.open(address(4)).is_ok());
    }

    #[tokio::test]
    async fn one_address_has_only_its_share() {
        let connections = Arc::new(Connections::new(LIMITS));
        let own: Vec<_> = (0..3).map(|_| connections.open(address(1)).unwrap()).collect();
        let busy: Vec<_> =
            own.iter().map(|one| one.begin_request(&HeaderMap::new()).unwrap()).collect();
        let refused = connections.open(address(1)).map(drop);
        assert_eq!(refused, Err(ConnectionRefusal::Address { limit: 3 }));
        assert!(connections.open(address(2)).is_ok(), "others still come in");
        drop((busy, own));
        assert!(connections.open(address(1)).is_ok(), "what ended is not counted");
    }

    #[test]
    fn one_token_has_only_so_many_requests_under_way() {
        let connections = Arc::new(Connections::new(LIMITS));
        let connection = connections.open(address(1)).unwrap();
        let first = connection.begin_request(&with_token("Bearer a")).unwrap();
        let _second = connection.begin_request(&with_token("Bearer a")).unwrap();
        assert_eq!(connection.begin_request(&with_token("Bearer a")).map(drop), Err(2));
        assert!(connection.begin_request(&with_token("Bearer b")).is_ok());
        drop(first);
        assert!(connection.begin_request(&with_token("Bearer a")).is_ok());
    }
}
