//! Hosts with ports: the one reader of `host[:port]`, and the target of a CONNECT request, taken
//! apart the way the reference does.
//!
//! Whether the host is any good is decided by the egress rules; this only splits.

/// Splits `host`, `host:port`, `[address]` or `[address]:port`. Text with several colons and no
/// brackets is an IPv6 address without a port.
#[must_use]
pub fn split_port(text: &str) -> (&str, Option<&str>) {
    if let Some(inner) = text.strip_prefix('[') {
        return match inner.split_once(']') {
            Some((address, "")) => (address, None),
            Some((address, tail)) => match tail.strip_prefix(':') {
                Some(port) => (address, Some(port)),
                None => (text, None),
            },
            None => (text, None),
        };
    }
    match text.split_once(':') {
        Some((_, tail)) if tail.contains(':') => (text, None),
        Some((host, port)) => (host, Some(port)),
        None => (text, None),
    }
}

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

#[cfg(test)]
mod tests {
    use crate::request::EgressRule;

    #[track_caller]
    fn check(text: &str, expected: Option<(&str, Option<u16>)>) {
        let rule = text.parse::<EgressRule>().ok();
        let got = rule.as_ref().map(|rule| (rule.host.as_str(), rule.port));
        assert_eq!(got, expected, "{text}");
        if let Some(rule) = rule {
            assert_eq!(rule.to_string().parse::<EgressRule>().ok(), Some(rule), "{text}");
        }
    }

    #[test]
    fn destinations_have_one_reader() {
        check("Example.com", Some(("example.com", None)));
        check("*.example.com:8443", Some(("*.example.com", Some(8443))));
        check("2001:db8::1", Some(("2001:db8::1", None)));
        check("2001:DB8:0::1", Some(("2001:db8::1", None)));
        check("[2001:db8::1]", Some(("2001:db8::1", None)));
        check("[2001:db8::1]:443", Some(("2001:db8::1", Some(443))));
        check("10.0.0.1:22", Some(("10.0.0.1", Some(22))));
        for bad in ["", ":443", "a:x", "a:0", "a:70000", "a:b:c", "[::1", "[::1]x", "a/b", "x@y"] {
            check(bad, None);
        }
    }
}
