//! The one canonical spelling of a host, used for policy, dialing, SNI and the record.
//!
//! A name is lower case, IDNA-encoded, LDH only, without a trailing dot; an address is what the
//! strict parsers of the standard library accept. Everything else, and above all every other
//! spelling of an address (octal, hexadecimal, one number, too few parts), is refused.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use thiserror::Error;

/// A host as text on the wire can name it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Host {
    /// A name, to be resolved only after it was allowed.
    Name(HostName),
    /// An address, spelled in the one accepted way.
    Address(IpAddr),
}

/// A canonical host name.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostName(String);

/// Why a text names no host here.
#[derive(Debug, Clone, Copy, Error, PartialEq, Eq)]
pub enum InvalidHost {
    /// Nothing there.
    #[error("the host is empty")]
    Empty,
    /// Longer than a name can be.
    #[error("the host is longer than 253 characters")]
    TooLong,
    /// A label that is empty, too long, or starts or ends with a hyphen.
    #[error("the host has a bad label")]
    Label,
    /// A character that no host name has.
    #[error("the host has a character outside letters, digits, hyphen and dot")]
    Character,
    /// A number where a name should be: an address in disguise.
    #[error("the host spells an address in an unusual way")]
    AddressSpelling,
    /// Not a valid international name.
    #[error("the host is not a valid international name")]
    Idna,
    /// A port that is not a number from 1 to 65535.
    #[error("the port is not a number from 1 to 65535")]
    Port,
}

impl HostName {
    /// Parses a name as it stands on the wire: ASCII only, any case, one trailing dot allowed.
    ///
    /// # Errors
    /// When the text is not a host name, or spells an address.
    pub fn from_wire(text: &str) -> Result<Self, InvalidHost> {
        let text = text.strip_suffix('.').unwrap_or(text);
        if text.is_empty() {
            return Err(InvalidHost::Empty);
        }
        if text.len() > 253 {
            return Err(InvalidHost::TooLong);
        }
        let lower = text.to_ascii_lowercase();
        for label in lower.split('.') {
            check_label(label)?;
        }
        if ends_in_number(&lower) {
            return Err(InvalidHost::AddressSpelling);
        }
        if lower.split('.').any(|label| label.starts_with("xn--")) {
            // SECURITY: a punycode label that does not survive a round trip names two hosts.
            let ascii = idna::domain_to_ascii_cow(lower.as_bytes(), idna::AsciiDenyList::STD3);
            if !ascii.is_ok_and(|ascii| ascii == lower) {
                return Err(InvalidHost::Idna);
            }
        }
        Ok(Self(lower))
    }

    /// Parses a name a person wrote, which may be international.
    ///
    /// # Errors
    /// When the text is not a host name, or spells an address.
    pub fn from_human(text: &str) -> Result<Self, InvalidHost> {
        if text.is_ascii() {
            return Self::from_wire(text);
        }
        let ascii = idna::domain_to_ascii_cow(text.as_bytes(), idna::AsciiDenyList::STD3);
        Self::from_wire(&ascii.map_err(|_| InvalidHost::Idna)?)
    }

    /// Returns the canonical text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the names above this one, nearest first, down to two labels.
    pub(crate) fn parents(&self) -> impl Iterator<Item = Self> {
        let mut rest = self.0.as_str();
        std::iter::from_fn(move || {
            rest = rest.split_once('.')?.1;
            rest.contains('.').then(|| Self(rest.to_owned()))
        })
    }
}

impl Host {
    /// Parses a host as it stands on the wire; IPv6 addresses are in brackets.
    ///
    /// # Errors
    /// When the text is neither a host name nor an address in its usual spelling.
    pub fn from_wire(text: &str) -> Result<Self, InvalidHost> {
        if let Some(inner) = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')) {
            let address: Ipv6Addr = inner.parse().map_err(|_| InvalidHost::AddressSpelling)?;
            return Ok(Self::Address(address.into()));
        }
        if let Ok(address) = text.parse::<Ipv4Addr>() {
            return Ok(Self::Address(address.into()));
        }
        HostName::from_wire(text).map(Self::Name)
    }
}

/// Splits `host[:port]` as it stands in a request target or `Host` header.
///
/// # Errors
/// When the host or the port is not in its usual spelling; user information is never accepted.
pub fn parse_authority(text: &str) -> Result<(Host, Option<u16>), InvalidHost> {
    let (host, port) = match text.rfind(':') {
        Some(colon) if !text.ends_with(']') => {
            let (host, port) = text.split_at(colon);
            (host, Some(parse_port(port.trim_start_matches(':'))?))
        }
        _ => (text, None),
    };
    Ok((Host::from_wire(host)?, port))
}

/// Parses a port in its one spelling: no sign, no leading zero, not zero.
pub(crate) fn parse_port(text: &str) -> Result<u16, InvalidHost> {
    let is_plain = text.bytes().all(|b| b.is_ascii_digit()) && !text.starts_with('0');
    if !is_plain {
        return Err(InvalidHost::Port);
    }
    text.parse().map_err(|_| InvalidHost::Port)
}

/// Returns text that came from inside in a form fit for the record: LDH, bounded.
pub(crate) fn sanitize(text: &[u8]) -> String {
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || b"-.:[]".contains(&b);
    text.iter()
        .take(253)
        .map(|b| if is_plain(*b) { char::from(b.to_ascii_lowercase()) } else { '?' })
        .collect()
}

fn check_label(label: &str) -> Result<(), InvalidHost> {
    if !label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-') {
        return Err(InvalidHost::Character);
    }
    if label.is_empty() || label.len() > 63 || label.starts_with('-') || label.ends_with('-') {
        return Err(InvalidHost::Label);
    }
    Ok(())
}

/// Libraries read a name whose last label is a number as an address, each in its own way.
fn ends_in_number(name: &str) -> bool {
    let last = name.rsplit('.').next().unwrap_or(name);
    let is_decimal = last.bytes().all(|b| b.is_ascii_digit());
    let hex = last.strip_prefix("0x");
    is_decimal || hex.is_some_and(|hex| hex.bytes().all(|b| b.is_ascii_hexdigit()))
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => name.fmt(f),
            Self::Address(IpAddr::V4(address)) => address.fmt(f),
            Self::Address(IpAddr::V6(address)) => write!(f, "[{address}]"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Result<&str, InvalidHost>) {
        let found = Host::from_wire(text).map(|host| host.to_string());
        assert_eq!(found, expected.map(str::to_owned), "{text:?}");
    }

    #[test]
    fn one_spelling_per_host() {
        check("Example.COM", Ok("example.com"));
        check("example.com.", Ok("example.com"));
        check("1.2.3.4", Ok("1.2.3.4"));
        check("[2001:DB8::0001]", Ok("[2001:db8::1]"));
        check("xn--bcher-kva.example", Ok("xn--bcher-kva.example"));
        assert_eq!(
            HostName::from_human("Bücher.example").unwrap().as_str(),
            "xn--bcher-kva.example"
        );
        check("3com.example", Ok("3com.example"));
    }

    #[test]
    fn unusual_spellings_are_refused() {
        for text in
            ["0x7f.1", "0177.0.0.1", "2130706433", "0x7f000001", "127.1", "1.2.3.4.", "1.2.3.256"]
        {
            check(text, Err(InvalidHost::AddressSpelling));
        }
        check("[::ffff:1.2.3.4%eth0]", Err(InvalidHost::AddressSpelling));
        check("a..b", Err(InvalidHost::Label));
        check("a.b..", Err(InvalidHost::Label));
        check("-a.b", Err(InvalidHost::Label));
        check("", Err(InvalidHost::Empty));
        check(".", Err(InvalidHost::Empty));
        check("xn--a.example", Err(InvalidHost::Idna));
        for text in ["a b", "a\0b", "a%2eb", "a_b", "a@b", "a/b", "a\\b", "bücher.example", "[::1"]
        {
            check(text, Err(InvalidHost::Character));
        }
        assert!(Host::from_wire(&"a.".repeat(127)).is_ok());
        check(&"a.".repeat(128), Err(InvalidHost::TooLong));
    }

    #[test]
    fn authorities_have_no_user_and_a_plain_port() {
        let parse = |text: &str| parse_authority(text).map(|(host, port)| (host.to_string(), port));
        assert_eq!(parse("a.b:81"), Ok(("a.b".into(), Some(81))));
        assert_eq!(parse("[2001:db8::1]:8443"), Ok(("[2001:db8::1]".into(), Some(8443))));
        assert_eq!(parse("[2001:db8::1]"), Ok(("[2001:db8::1]".into(), None)));
        for text in ["a.b:", "a.b:0", "a.b:080", "a.b:+80", "a.b:65536", "a.b:80:80x"] {
            assert_eq!(parse(text), Err(InvalidHost::Port), "{text}");
        }
        for text in ["2001:db8::1", "user@a.b:80", "user:pw@a.b", "a.b:80@c.d"] {
            assert!(parse(text).is_err(), "{text}");
        }
        assert_eq!(sanitize(b"A\r\nb:80"), "a??b:80");
    }
}
