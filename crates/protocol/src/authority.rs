//! The target of a CONNECT request, taken apart the way the reference does.
//!
//! Whether the host is any good is decided by the egress rules; this only splits.

/// A host and a port as a CONNECT request names them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Authority {
    /// The host as written, without brackets.
    pub host: String,
    /// The port; 443 where none, or none that is a number, is given.
    pub port: u16,
}

/// Splits the target of a CONNECT request. The last colon separates; brackets hold IPv6.
#[must_use]
pub fn split_authority(text: &str) -> Authority {
    let text = text.trim();
    if let Some((host, rest)) = text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        let port = rest.strip_prefix(':').and_then(port).unwrap_or(443);
        return Authority { host: host.to_owned(), port };
    }
    match text.rsplit_once(':') {
        Some((host, rest)) => Authority { host: host.to_owned(), port: port(rest).unwrap_or(443) },
        None => Authority { host: text.to_owned(), port: 443 },
    }
}

fn port(text: &str) -> Option<u16> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if is_number { text.parse().ok().filter(|port| *port != 0) } else { None }
}
