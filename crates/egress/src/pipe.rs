//! Moves bytes: bounded reads with a deadline, and both directions of a tunnel at once.
//!
//! A tunnel starts with a small buffer. Once it carries real amounts, bytes move inside the kernel
//! (`splice`) and never enter this process.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::BytesMut;
use rustix::net::Shutdown;
use rustix::pipe::{PipeFlags, SpliceFlags};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::ledger::Tally;

/// How much room one read of a body gets.
pub(crate) const ROOM: usize = 16 * 1024;
/// How much room one read of a head gets; an idle connection keeps no more than this.
const HEAD_ROOM: usize = 4 * 1024;
/// Bytes a direction moves through a buffer before it is worth a kernel pipe.
const SMALL: u64 = 1024 * 1024;
/// How much one splice moves at most; also the size asked for the kernel pipe.
const SPLICE: usize = 256 * 1024;

/// Waits for something at most this long.
pub(crate) async fn within<T>(
    limit: Duration,
    work: impl Future<Output = io::Result<T>>,
) -> io::Result<T> {
    match tokio::time::timeout(limit, work).await {
        Ok(result) => result,
        Err(_) => Err(io::ErrorKind::TimedOut.into()),
    }
}

/// Reads some bytes behind those already in the buffer; 0 at the end of the stream.
pub(crate) async fn fill(
    stream: &mut (impl AsyncRead + Unpin),
    buffer: &mut BytesMut,
) -> io::Result<usize> {
    buffer.reserve(HEAD_ROOM);
    stream.read_buf(buffer).await
}

/// Reads some bytes of a body, which may be many.
pub(crate) async fn fill_more(
    stream: &mut (impl AsyncRead + Unpin),
    buffer: &mut BytesMut,
) -> io::Result<usize> {
    buffer.reserve(ROOM);
    stream.read_buf(buffer).await
}

/// A pair of streams whose bytes are passed on both ways until both are closed.
pub(crate) struct Tunnel<'t> {
    pub(crate) client: &'t mut TcpStream,
    pub(crate) upstream: &'t mut TcpStream,
    pub(crate) tally: &'t Tally,
    pub(crate) idle: Duration,
}

impl Tunnel<'_> {
    /// Passes on what was read already, then everything else.
    pub(crate) async fn run(self, from_client: &[u8], from_upstream: &[u8]) -> io::Result<()> {
        let Self { client, upstream, tally, idle } = self;
        within(idle, upstream.write_all(from_client)).await?;
        tally.add_out(from_client.len() as u64);
        within(idle, client.write_all(from_upstream)).await?;
        let last = Clock::start();
        let (client, upstream) = (&*client, &*upstream);
        let out = pass(client, upstream, |count| {
            tally.add_out(count);
            last.touch();
        });
        let back = pass(upstream, client, |count| {
            tally.add_in(count);
            last.touch();
        });
        tokio::select! {
            ended = async { tokio::try_join!(out, back) } => ended.map(drop),
            () = last.idle_for(idle) => Err(io::ErrorKind::TimedOut.into()),
        }
    }
}

/// Remembers when the last byte moved.
struct Clock {
    start: Instant,
    last_ms: AtomicU64,
}

impl Clock {
    fn start() -> Self {
        Self { start: Instant::now(), last_ms: AtomicU64::new(0) }
    }

    fn touch(&self) {
        let now = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last_ms.store(now, Ordering::Relaxed);
    }

    /// Returns once nothing moved for this long.
    async fn idle_for(&self, limit: Duration) {
        loop {
            let last = Duration::from_millis(self.last_ms.load(Ordering::Relaxed));
            let until = self.start + last + limit;
            if until <= Instant::now() {
                return;
            }
            tokio::time::sleep_until(until).await;
        }
    }
}

/// Passes one direction on, then closes it.
async fn pass(from: &TcpStream, to: &TcpStream, count: impl Fn(u64)) -> io::Result<()> {
    let is_ended = pass_small(from, to, &count).await?;
    if !is_ended {
        match kernel_pipe() {
            Ok(pipe) => pass_spliced(from, to, &pipe, &count).await?,
            Err(_) => while !pass_small(from, to, &count).await? {},
        }
    }
    // The other side may be gone already.
    let _ = rustix::net::shutdown(to, Shutdown::Write);
    Ok(())
}

/// Passes bytes on through a buffer; tells whether the stream ended.
///
/// The buffer exists only while there are bytes: a silent tunnel costs nothing.
async fn pass_small(from: &TcpStream, to: &TcpStream, count: &impl Fn(u64)) -> io::Result<bool> {
    let mut moved = 0;
    while moved < SMALL {
        from.readable().await?;
        let mut buffer = Vec::with_capacity(ROOM);
        match from.try_read_buf(&mut buffer) {
            Ok(0) => return Ok(true),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(error) => return Err(error),
        }
        let mut rest = buffer.as_slice();
        while !rest.is_empty() {
            to.writable().await?;
            match to.try_write(rest) {
                Ok(written) => rest = rest.get(written..).unwrap_or_default(),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        moved += buffer.len() as u64;
        count(buffer.len() as u64);
        // Two fast sides must not keep the other connections waiting.
        tokio::task::consume_budget().await;
    }
    Ok(false)
}

fn kernel_pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let pipe = rustix::pipe::pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC)?;
    // A larger pipe is only faster; an ordinary user may have used up their share.
    let _ = rustix::pipe::fcntl_setpipe_size(&pipe.1, SPLICE);
    Ok(pipe)
}

/// The pipe is empty before each read and drained after it, so that waiting is always for a socket.
async fn pass_spliced(
    from: &TcpStream,
    to: &TcpStream,
    (pipe_out, pipe_in): &(OwnedFd, OwnedFd),
    count: &impl Fn(u64),
) -> io::Result<()> {
    let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
    loop {
        let take = || Ok(rustix::pipe::splice(from, None, pipe_in, None, SPLICE, flags)?);
        let mut left = from.async_io(Interest::READABLE, take).await?;
        if left == 0 {
            return Ok(());
        }
        count(left as u64);
        tokio::task::consume_budget().await;
        while left > 0 {
            let give = || Ok(rustix::pipe::splice(pipe_out, None, to, None, left, flags)?);
            left -= to.async_io(Interest::WRITABLE, give).await?.min(left);
        }
    }
}
