//! Watches a TLS handshake until its server name can no longer change.
//!
//! ```text
//! hello ─ server answers ─┬─ anything but a retry: settled
//!                         └─ HelloRetryRequest ─ second hello, checked like the first: settled
//! ```
//!
//! SECURITY: a server may ask for a second ClientHello, and some decide by the name in that one.
//! Until the server has spoken, only what cannot be a ClientHello is passed on from the client.

use std::io;

use bytes::{Buf, BytesMut};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::decision::Why;
use crate::hello::{self, Hello, Peek};
use crate::ledger::Tally;
use crate::pipe::fill;

const CHANGE_CIPHER_SPEC: u8 = 20;
const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;
const APPLICATION_DATA: u8 = 23;
const SERVER_HELLO: u8 = 2;
const RECORD_HEADER: usize = 5;
/// The longest record any version of TLS has, with its header.
const MAX_RECORD: usize = RECORD_HEADER + 16 * 1024 + 2048;
/// The random of a ServerHello that is a HelloRetryRequest (RFC 8446, 4.1.3).
const RETRY: [u8; 32] = [
    0xcf, 0x21, 0xad, 0x74, 0xe5, 0x9a, 0x61, 0x11, 0xbe, 0x1d, 0x8c, 0x02, 0x1e, 0x65, 0xb8, 0x91,
    0xc2, 0xa2, 0x11, 0x16, 0x7a, 0xbb, 0x8c, 0x5e, 0x07, 0x9e, 0x09, 0xe2, 0xc8, 0xa8, 0x33, 0x9c,
];

/// Both ends of a tunnel whose handshake has begun.
pub(crate) struct Handshake<'h> {
    pub(crate) client: &'h mut TcpStream,
    pub(crate) upstream: &'h mut TcpStream,
    pub(crate) tally: &'h Tally,
    /// What was read from the client and not passed on; starts with the checked hello.
    pub(crate) from_client: BytesMut,
    /// What was read from the server and not passed on.
    pub(crate) from_upstream: BytesMut,
}

/// Why a handshake did not settle.
pub(crate) enum Unsettled {
    /// It must not go on.
    Refused(Why),
    /// The connection broke.
    Broken(io::Error),
}

impl From<io::Error> for Unsettled {
    fn from(error: io::Error) -> Self {
        Self::Broken(error)
    }
}

/// What the server's first message is.
#[derive(Debug, PartialEq, Eq)]
enum Answer {
    More,
    Retry,
    Other,
}

impl Handshake<'_> {
    /// Passes the handshake on until the name is settled; what is read but not passed on stays here.
    pub(crate) async fn settle(
        &mut self,
        hello: &Hello,
        check: impl Fn(&Hello) -> Result<(), Why>,
    ) -> Result<(), Unsettled> {
        self.send(hello.length).await?;
        loop {
            self.pass_early_records().await?;
            let is_full = self.from_client.len() >= MAX_RECORD;
            tokio::select! {
                count = fill(self.upstream, &mut self.from_upstream) => {
                    let count = count?;
                    self.tally.add_in(count as u64);
                    match first_answer(&self.from_upstream) {
                        _ if count == 0 => return Ok(()),
                        Answer::More => {}
                        Answer::Retry => break,
                        Answer::Other => return Ok(()),
                    }
                }
                count = fill(self.client, &mut self.from_client), if !is_full => {
                    if count? == 0 {
                        return Ok(());
                    }
                }
            }
        }
        self.client.write_all(&self.from_upstream).await?;
        self.from_upstream.clear();
        self.check_second_hello(check).await
    }

    async fn check_second_hello(
        &mut self,
        check: impl Fn(&Hello) -> Result<(), Why>,
    ) -> Result<(), Unsettled> {
        loop {
            self.pass_early_records().await?;
            if self.from_client.first() == Some(&HANDSHAKE) {
                match hello::peek(&self.from_client) {
                    Peek::Hello(hello) => return check(&hello).map_err(Unsettled::Refused),
                    Peek::More if self.from_client.len() < 2 * MAX_RECORD => {}
                    Peek::More | Peek::NotTls | Peek::Malformed => {
                        return Err(Unsettled::Refused(Why::UnreadableTunnel));
                    }
                }
            }
            if fill(self.client, &mut self.from_client).await? == 0 {
                return Ok(());
            }
        }
    }

    /// Passes on whole records that are no handshake: early data, and what precedes a second hello.
    async fn pass_early_records(&mut self) -> Result<(), Unsettled> {
        while let [kind, major, _, high, low, ..] = *self.from_client {
            let length = RECORD_HEADER + usize::from(u16::from_be_bytes([high, low]));
            match kind {
                CHANGE_CIPHER_SPEC | ALERT | APPLICATION_DATA if major == 3 => {}
                HANDSHAKE if major == 3 => return Ok(()),
                _ => return Err(Unsettled::Refused(Why::UnreadableTunnel)),
            }
            if length > MAX_RECORD {
                return Err(Unsettled::Refused(Why::UnreadableTunnel));
            }
            if self.from_client.len() < length {
                return Ok(());
            }
            self.send(length).await?;
        }
        Ok(())
    }

    async fn send(&mut self, count: usize) -> io::Result<()> {
        let count = count.min(self.from_client.len());
        let bytes = self.from_client.get(..count).unwrap_or_default();
        self.upstream.write_all(bytes).await?;
        self.tally.add_out(count as u64);
        self.from_client.advance(count);
        Ok(())
    }
}

fn first_answer(bytes: &[u8]) -> Answer {
    let mut message = Vec::new();
    let mut rest = bytes;
    loop {
        if let [kind, _, _, _, _, _, tail @ ..] = message.as_slice() {
            match tail.get(..RETRY.len()) {
                _ if *kind != SERVER_HELLO => return Answer::Other,
                Some(random) if random == RETRY => return Answer::Retry,
                Some(_) => return Answer::Other,
                None => {}
            }
        }
        let [kind, _, _, high, low, tail @ ..] = rest else { return Answer::More };
        let length = usize::from(u16::from_be_bytes([*high, *low]));
        let (fragment, tail) = tail.split_at_checked(length).unwrap_or((tail, &[]));
        match *kind {
            HANDSHAKE => message.extend_from_slice(fragment),
            // A warning may come first.
            ALERT => {}
            _ => return Answer::Other,
        }
        rest = tail;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server_hello(random: [u8; 32]) -> Vec<u8> {
        [&[22, 3, 3, 0, 42, SERVER_HELLO, 0, 0, 38, 3, 3][..], &random, &[0; 4]].concat()
    }

    #[test]
    fn a_retry_is_told_from_an_answer_however_it_is_cut() {
        assert_eq!(first_answer(&server_hello(RETRY)), Answer::Retry);
        assert_eq!(first_answer(&server_hello([7; 32])), Answer::Other);
        let message = server_hello(RETRY).split_off(5);
        let records: Vec<u8> = message.iter().flat_map(|b| [22, 3, 3, 0, 1, *b]).collect();
        assert_eq!(first_answer(&records), Answer::Retry);
        assert_eq!(first_answer(&records[..100]), Answer::More);
        let warned = [&[21, 3, 3, 0, 2, 1, 112][..], &server_hello(RETRY)].concat();
        assert_eq!(first_answer(&warned), Answer::Retry);
        assert_eq!(first_answer(b"HTTP/1.1 400 Bad Request"), Answer::Other);
    }
}
