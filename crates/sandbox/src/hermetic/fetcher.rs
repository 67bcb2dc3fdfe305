//! Fetches for a worker: one request at a time, decided and made by the egress client.
//!
//! The worker has no socket. What it wants from the network it asks for here; every decision,
//! also a refusal, is reported. When the run ends, so does a fetch that is still under way.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use warrant_egress::{Client, FetchError, Options, Redirects, Request, Response, Rules, Totals};

use super::frame::{Decoder, Encoder};
use crate::NetworkDecision;
use crate::door::told;

/// The longest body that is passed on to a worker.
pub(super) const MAX_BODY: usize = 32 << 20;

/// The longest time one request may take, whatever the script asks for.
const MAX_TIME: Duration = Duration::from_secs(600);

/// What the fetcher has to tell.
pub(super) enum News {
    /// A destination was decided.
    Decided(NetworkDecision),
    /// The answer to the worker's request, as a payload.
    Fetched(Vec<u8>),
}

/// The network of one run.
pub(crate) struct Fetcher {
    client: Client,
    requests: Option<UnboundedSender<Request>>,
    news: Receiver<News>,
    wake: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Fetcher {
    /// Starts a fetcher for these rules.
    pub(super) fn start(rules: Rules, options: Options) -> io::Result<Self> {
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (sender, news) = channel();
        let bell = Bell { sender, wake: Arc::clone(&wake) };
        let reporting = bell.clone();
        let reporter = move |decision| reporting.ring(News::Decided(told(decision)));
        let client = Client::new(rules, options, Arc::new(reporter)).map_err(io::Error::other)?;
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
        let (requests, incoming) = unbounded_channel();
        let fetching = client.clone();
        let body = move || runtime.block_on(serve(fetching, incoming, bell));
        let thread = std::thread::Builder::new().spawn(body)?;
        Ok(Self { client, requests: Some(requests), news, wake, thread: Some(thread) })
    }

    /// Takes a request of the worker.
    pub(super) fn ask(&self, payload: &[u8]) -> io::Result<()> {
        let request = decode(payload)?;
        let gone = || io::Error::other("the fetcher is gone");
        self.requests.as_ref().ok_or_else(gone)?.send(request).map_err(|_| gone())
    }

    /// Returns what there is to tell now.
    pub(super) fn news(&self) -> Vec<News> {
        let mut counter = [0; 8];
        // An empty counter means the news came before the bell.
        let _ = rustix::io::read(self.wake.as_fd(), &mut counter);
        self.news.try_iter().collect()
    }

    /// Ends what is under way and returns the last news and the bytes that passed.
    pub(super) fn finish(mut self) -> (Vec<News>, Totals) {
        self.stop();
        let totals = self.client.finish();
        (self.news.try_iter().collect(), totals)
    }

    fn stop(&mut self) {
        self.requests = None;
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has ended too.
            let _ = thread.join();
        }
    }
}

impl Drop for Fetcher {
    fn drop(&mut self) {
        self.stop();
    }
}

impl AsFd for Fetcher {
    /// Returns a descriptor that is readable when there is news.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

#[derive(Clone)]
struct Bell {
    sender: Sender<News>,
    wake: Arc<OwnedFd>,
}

impl Bell {
    fn ring(&self, news: News) {
        // Nobody to hear it means that the run is over.
        let _ = self.sender.send(news);
        let _ = rustix::io::write(self.wake.as_fd(), &1_u64.to_ne_bytes());
    }
}

async fn serve(client: Client, mut requests: UnboundedReceiver<Request>, bell: Bell) {
    while let Some(request) = requests.recv().await {
        tokio::select! {
            result = client.fetch(request) => bell.ring(News::Fetched(encode(result))),
            // A well-behaved worker asks one thing at a time; at the end of the run this closes.
            _ = requests.recv() => return,
        }
    }
}

fn decode(payload: &[u8]) -> io::Result<Request> {
    let mut decoder = Decoder::new(payload);
    let method = decoder.text()?;
    let url = decoder.text()?;
    let headers = decoder.list(|d| Ok((d.text()?, d.text()?)))?;
    let body = decoder.bytes()?.to_vec();
    let timeout = Duration::from_millis(decoder.number()?).min(MAX_TIME);
    // Redirects go back to the script, which asks again, and is decided again.
    let redirects = Redirects::Return;
    // The client frames the message itself.
    let is_framing = |name: &str| name.eq_ignore_ascii_case("content-length");
    let headers = headers.into_iter().filter(|(name, _)| !is_framing(name)).collect();
    Ok(Request { method, url, headers, body, max_body_bytes: MAX_BODY, timeout, redirects })
}

fn encode(result: Result<Response, FetchError>) -> Vec<u8> {
    let failure = |kind, text: String| Encoder::default().byte(kind).bytes(text.as_bytes());
    match result {
        Ok(response) => Encoder::default()
            .byte(0)
            .number(response.status.into())
            .list(&response.headers, |e, (name, value)| {
                e.bytes(name.as_bytes()).bytes(value.as_bytes())
            })
            .bytes(&response.body),
        Err(FetchError::TimedOut) => failure(1, String::new()),
        Err(error @ FetchError::TooLong(_)) => failure(2, error.to_string()),
        Err(error @ FetchError::Refused { .. }) => failure(3, error.to_string()),
        Err(error) => failure(4, error.to_string()),
    }
    .finish()
}
