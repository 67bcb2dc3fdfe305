//! The minimum rate of transfers: a peer that keeps us waiting for too long is cut off.
//!
//! Only time spent waiting for the peer counts, never time the plane itself needs. A transfer
//! starts with the credit of one stall; waiting uses it up, bytes earn it back at the minimum rate,
//! and it never grows beyond that. So a longer stall always ends a transfer, and one that is slower
//! than the minimum rate ends as soon as its credit is gone.

use std::fmt;
use std::future::Future as _;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use super::connections::Connection;

/// How slow a transfer may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MinimumRate {
    /// The least that the peer has to send or take.
    pub(crate) bytes_per_second: u32,
    /// How long the peer may keep us waiting without sending or taking anything.
    pub(crate) stall: Duration,
}

/// The transfer is slower than the minimum rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TooSlow(MinimumRate);

impl fmt::Display for TooSlow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MinimumRate { bytes_per_second, stall } = self.0;
        write!(f, "slower than {bytes_per_second} bytes per second for {} s", stall.as_secs())
    }
}

impl std::error::Error for TooSlow {}

/// The credit of one transfer.
#[derive(Debug, Clone, Copy)]
struct Credit {
    rate: MinimumRate,
    left: Duration,
}

impl Credit {
    /// Counts what the peer sent or took after it was waited for.
    fn count(&mut self, bytes: usize, waited: Duration) {
        let earned = bytes as f64 / f64::from(self.rate.bytes_per_second.max(1));
        let left = self.left.saturating_sub(waited);
        self.left = (left + Duration::from_secs_f64(earned)).min(self.rate.stall);
    }
}

/// Keeps an eye on one transfer.
#[derive(Debug)]
pub(crate) struct Pace {
    credit: Credit,
    waiting: Option<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    since: Instant,
    timer: Pin<Box<Sleep>>,
}

impl Pace {
    pub(crate) const fn new(rate: MinimumRate) -> Self {
        Self { credit: Credit { rate, left: rate.stall }, waiting: None }
    }

    /// Counts bytes that the peer sent or took.
    pub(crate) fn progress(&mut self, bytes: usize) {
        let waited = self.waiting.take().map(|waiting| waiting.since.elapsed());
        self.credit.count(bytes, waited.unwrap_or_default());
    }

    /// Waits for the peer; ready when the credit is gone.
    pub(crate) fn poll_wait(&mut self, cx: &mut Context<'_>) -> Poll<TooSlow> {
        let Credit { left, rate } = self.credit;
        let waiting = self.waiting.get_or_insert_with(|| Waiting {
            since: Instant::now(),
            timer: Box::pin(tokio::time::sleep(left)),
        });
        waiting.timer.as_mut().poll(cx).map(|()| TooSlow(rate))
    }
}

/// The body of a request, which must arrive at the minimum rate.
pub(crate) struct PacedBody {
    inner: Incoming,
    pace: Pace,
}

impl PacedBody {
    pub(crate) const fn new(inner: Incoming, rate: MinimumRate) -> Self {
        Self { inner, pace: Pace::new(rate) }
    }
}

impl Body for PacedBody {
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = self.get_mut();
        match Pin::new(&mut this.inner).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => {
                this.pace.progress(frame.data_ref().map_or(0, Bytes::len));
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Err(error))) => Poll::Ready(Some(Err(error.into()))),
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Pending => this.pace.poll_wait(cx).map(|slow| Some(Err(slow.into()))),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// A connection whose peer must take what it is sent at the minimum rate. It counts as one
/// connection for as long as it lives, also after a change of protocol.
pub(crate) struct PacedStream<S> {
    inner: S,
    writing: Pace,
    connection: Arc<Connection>,
}

impl<S> PacedStream<S> {
    pub(crate) const fn new(inner: S, rate: MinimumRate, connection: Arc<Connection>) -> Self {
        Self { inner, writing: Pace::new(rate), connection }
    }

    fn paced(
        &mut self,
        written: Poll<io::Result<usize>>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        match written {
            Poll::Ready(Ok(count)) => {
                self.writing.progress(count);
                Poll::Ready(Ok(count))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => self.writing.poll_wait(cx).map(|slow| {
                let address = self.connection.address();
                tracing::info!(%address, "a response was cut off: its reader was {slow}");
                Err(io::Error::new(io::ErrorKind::TimedOut, slow))
            }),
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for PacedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for PacedStream<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.inner).poll_write(cx, bytes);
        this.paced(written, cx)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.inner).poll_write_vectored(cx, bytes);
        this.paced(written, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns after how many seconds a transfer ends that gets `bytes` each second.
    fn ends_after(bytes: usize) -> Option<u32> {
        let stall = Duration::from_secs(20);
        let rate = MinimumRate { bytes_per_second: 1000, stall };
        let mut credit = Credit { rate, left: stall };
        (0..1000).find(|_| {
            let is_over = credit.left <= Duration::from_secs(1);
            credit.count(bytes, Duration::from_secs(1));
            is_over
        })
    }

    #[test]
    fn a_transfer_below_the_minimum_rate_ends_and_one_at_it_goes_on() {
        assert_eq!(ends_after(1000), None);
        assert_eq!(ends_after(1_000_000), None);
        assert_eq!(ends_after(0), Some(19), "a stall ends after the grace");
        assert_eq!(ends_after(500), Some(38), "half the rate uses the credit up");
    }
}
