//! Agents: how each is started, and the one that is built in.
//!
//! Agents are programs of others, started unmodified inside a session; the contract's execution
//! says their arguments. The built-in agent is for trying things out: it writes a file, says
//! whether it has a secret, tries the network when it is told to, and fails when it is told to.

use std::fs::OpenOptions;
use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

/// The argument that makes the `warrant` program the built-in agent.
pub const MOCK_ARGUMENT: &str = "__mock-agent";

/// The host that the built-in agent tries when nobody names one.
const DEFAULT_PROBE_HOST: &str = "denied.example.com";
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

/// Does what the built-in agent does in `directory`, and returns its exit code.
///
/// # Errors
/// What the system said when the file cannot be written.
pub fn mock_agent(directory: &Path, prompt: &str, environment: &MockEnvironment) -> io::Result<u8> {
    let has_secret = if environment.secret.is_some() { "present" } else { "absent" };
    let mut file =
        OpenOptions::new().create(true).append(true).open(directory.join("MOCK_AGENT.md"))?;
    file.write_all(format!("## task\n{prompt}\n\nsecret:{has_secret}\n").as_bytes())?;
    if prompt.contains("network") {
        let host = environment.probe_host.as_deref().unwrap_or(DEFAULT_PROBE_HOST);
        // Whether it is let through is for the proxy to record.
        let _ = probe(host, environment.proxy.as_deref());
    }
    Ok(u8::from(prompt.contains("fail")))
}

/// Asks for a page through the proxy.
fn probe(host: &str, proxy: Option<&str>) -> io::Result<()> {
    let proxy = proxy.ok_or(io::ErrorKind::NotFound)?;
    let address = proxy.strip_prefix("http://").unwrap_or(proxy).trim_end_matches('/');
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PROBE_WAIT))?;
    stream.set_write_timeout(Some(PROBE_WAIT))?;
    let request =
        format!("GET http://{host}/ HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut answer = [0; 512];
    stream.read(&mut answer).map(drop)
}
