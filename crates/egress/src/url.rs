//! Addresses of the web, as far as the in-process client needs them.

use crate::host::{Host, InvalidHost, parse_authority};

/// The two schemes that are spoken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scheme {
    Http,
    Https,
}

/// A parsed URL, without its fragment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Url {
    pub(crate) scheme: Scheme,
    pub(crate) host: Host,
    pub(crate) port: u16,
    /// Path and query, starting with a slash.
    pub(crate) path: String,
}

impl Url {
    /// Parses an absolute URL; user information and unusual spellings of the host are refused.
    pub(crate) fn parse(text: &str) -> Result<Self, InvalidHost> {
        let is_plain = text.bytes().all(|b| (0x21..0x7f).contains(&b));
        let (scheme, rest) = text.split_once("://").ok_or(InvalidHost::Empty)?;
        let scheme = match scheme.to_ascii_lowercase().as_str() {
            "http" => Scheme::Http,
            "https" => Scheme::Https,
            _ => return Err(InvalidHost::Character),
        };
        if !is_plain {
            return Err(InvalidHost::Character);
        }
        let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
        let (host, port) = parse_authority(authority)?;
        let path = path.split('#').next().unwrap_or_default();
        let slash = if path.starts_with('/') { "" } else { "/" };
        let port = port.unwrap_or_else(|| scheme.default_port());
        Ok(Self { scheme, host, port, path: format!("{slash}{path}") })
    }

    /// Resolves what a `Location` header says against this URL.
    pub(crate) fn join(&self, location: &str) -> Result<Self, InvalidHost> {
        if location.contains("://") && !location.starts_with(['/', '?', '#']) {
            return Self::parse(location);
        }
        if let Some(rest) = location.strip_prefix("//") {
            return Self::parse(&format!("{}://{rest}", self.scheme.as_str()));
        }
        let path = self.path.split('?').next().unwrap_or("/");
        let folder = path.rfind('/').and_then(|at| path.get(..=at)).unwrap_or("/");
        let path = match location.chars().next() {
            Some('/') => location.to_owned(),
            Some('?') => format!("{path}{location}"),
            Some('#') | None => self.path.clone(),
            Some(_) => format!("{folder}{location}"),
        };
        Self::parse(&format!("{}://{}:{}{path}", self.scheme.as_str(), self.host, self.port))
    }

    /// Returns the value of the `Host` header.
    pub(crate) fn authority(&self) -> String {
        if self.port == self.scheme.default_port() {
            self.host.to_string()
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

impl Scheme {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }

    const fn default_port(self) -> u16 {
        match self {
            Self::Http => 80,
            Self::Https => 443,
        }
    }
}

impl std::fmt::Display for Url {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}://{}{}", self.scheme.as_str(), self.authority(), self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(base: &str, location: &str, expected: &str) {
        let found = Url::parse(base).unwrap().join(location).unwrap().to_string();
        assert_eq!(found, expected, "{base} {location}");
    }

    #[test]
    fn locations_are_resolved() {
        check("http://a.b/c/d?e", "https://x.y:8443/z#f", "https://x.y:8443/z");
        check("https://a.b/c/d?e", "//x.y", "https://x.y/");
        check("http://a.b/c/d?e", "/f", "http://a.b/f");
        check("http://a.b/c/d?e", "f", "http://a.b/c/f");
        check("http://a.b:81/c/d?e", "?f", "http://a.b:81/c/d?f");
        check("http://a.b", "", "http://a.b/");
        check("http://a.b/", "/r?to=http://x.y", "http://a.b/r?to=http://x.y");
    }

    #[test]
    fn odd_urls_are_refused() {
        for text in [
            "a.b",
            "ftp://a.b/",
            "http://",
            "http://u@a.b/",
            "http://u:p@a.b/",
            "http://a.b\\@c.d/",
            "http://a b/",
            "http://a.b/\r\nX: y",
            "http://0x7f.1/",
            "http://a.b:99999/",
            "http:///x",
            "http://a%2eb/",
            "http://[::1/",
            "file:///etc/passwd",
        ] {
            assert!(Url::parse(text).is_err(), "{text}");
        }
    }
}
