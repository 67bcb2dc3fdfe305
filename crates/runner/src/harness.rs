//! Agents: how each is started, and the one that is built in.
//!
//! Agents are programs of others, started unmodified inside a session; the contract's execution
//! says their arguments. The built-in agent is for trying things out: it writes a file, says
//! whether it has a secret, tries the network when it is told to, and fails when it is told to. What
//! it prints and how it asks are as the reference's agent does.

use std::fs::OpenOptions;
use std::io::{self, Read as _, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// The argument that makes the `warrant` program the built-in agent.
pub const MOCK_ARGUMENT: &str = "__mock-agent";

/// The host that the built-in agent tries when nobody names one.
const DEFAULT_PROBE_HOST: &str = "denied.example.com";
/// More of an answer is not read.
const MOST_ANSWER_BYTES: u64 = 64 * 1024;
/// How long it waits for an answer.
const PROBE_WAIT: Duration = Duration::from_secs(5);

/// What the built-in agent takes from its environment.
#[derive(Debug, Clone, Default)]
pub struct MockEnvironment {
    /// `MOCK_SECRET`.
    pub secret: Option<String>,
    /// `MOCK_PROBE_HOST`.
    pub probe_host: Option<String>,
    /// `HTTP_PROXY`.
    pub proxy: Option<String>,
}

impl MockEnvironment {
    /// Returns what the environment of this process says.
    #[must_use]
    pub fn of_process() -> Self {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        Self {
            secret: variable("MOCK_SECRET"),
            probe_host: variable("MOCK_PROBE_HOST"),
            proxy: variable("HTTP_PROXY"),
        }
    }
}

/// Where the built-in agent prints.
pub struct MockStreams<'a> {
    /// What it does.
    pub stdout: &'a mut dyn Write,
    /// Why it fails.
    pub stderr: &'a mut dyn Write,
}

/// Does what the built-in agent does in `directory`, and returns its exit code.
///
/// # Errors
/// What the system said when the file cannot be written or nothing can be printed.
pub fn mock_agent(
    directory: &Path,
    prompt: &str,
    environment: &MockEnvironment,
    streams: MockStreams<'_>,
) -> io::Result<u8> {
    let MockStreams { stdout, stderr } = streams;
    let has_secret = if environment.secret.is_some() { "present" } else { "absent" };
    let mut file =
        OpenOptions::new().create(true).append(true).open(directory.join("MOCK_AGENT.md"))?;
    file.write_all(format!("## task\n{prompt}\n\nsecret:{has_secret}\n").as_bytes())?;
    writeln!(stdout, "mock agent received task: {prompt}")?;
    if prompt.contains("network")
        && let Some(proxy) = &environment.proxy
    {
        let host = environment.probe_host.as_deref().unwrap_or(DEFAULT_PROBE_HOST);
        // Whether it is let through is for the proxy to record.
        match probe(host, proxy) {
            Ok(status) => writeln!(stdout, "network probe status: {status}")?,
            Err(_) => writeln!(stdout, "network probe failed to reach proxy")?,
        }
    }
    if prompt.contains("fail") {
        writeln!(stderr, "mock agent failing as instructed")?;
        return Ok(1);
    }
    writeln!(stdout, "mock agent done")?;
    Ok(0)
}

/// Asks for a page through the proxy, and returns the status of the answer.
fn probe(host: &str, proxy: &str) -> io::Result<u16> {
    let address = proxy.strip_prefix("http://").unwrap_or(proxy).trim_end_matches('/');
    // The proxy of a run may ask who comes; then its address carries the answer.
    let (credentials, address) = match address.rsplit_once('@') {
        Some((credentials, address)) => (Some(credentials), address),
        None => (None, address),
    };
    let proof = credentials.map_or_else(String::new, |credentials| {
        format!("Proxy-Authorization: Basic {}\r\n", STANDARD.encode(credentials))
    });
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PROBE_WAIT))?;
    stream.set_write_timeout(Some(PROBE_WAIT))?;
    let request = format!(
        "GET http://{host}/probe HTTP/1.1\r\nHost: {host}\r\n{proof}Connection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    stream.take(MOST_ANSWER_BYTES).read_to_end(&mut answer)?;
    status_of(&answer).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Returns the status of an HTTP answer.
fn status_of(answer: &[u8]) -> Option<u16> {
    let line = answer.split(|byte| *byte == b'\r').next()?;
    std::str::from_utf8(line).ok()?.split(' ').nth(1)?.parse().ok()
}
