//! Hosts that can be seen in a text: URLs and `user@host:` addresses. Hints only.

/// Returns the hosts of the URLs and remote addresses in `text`, in lower case.
#[must_use]
pub fn hosts_of(text: &str) -> Vec<String> {
    let text = text.trim_matches(['"', '\'']);
    let mut hosts = Vec::new();
    for (index, _) in text.match_indices("://") {
        let rest = text.get(index + 3..).unwrap_or_default();
        let authority = rest.split(['/', '?', '#', ' ', '"', '\'']).next().unwrap_or_default();
        let host = authority.rsplit('@').next().unwrap_or_default();
        push_host(&mut hosts, host);
    }
    if hosts.is_empty()
        && let Some((user, rest)) = text.split_once('@')
        && let Some((host, _)) = rest.split_once(':')
        && !user.is_empty()
        && !user.contains(['/', ' ', ':'])
    {
        push_host(&mut hosts, host);
    }
    hosts
}

fn push_host(hosts: &mut Vec<String>, host: &str) {
    let bare = match host.strip_prefix('[') {
        Some(address) => address.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    let is_host = !bare.is_empty()
        && bare.chars().all(|c| c.is_alphanumeric() || matches!(c, '.' | '-' | '_' | ':'));
    if is_host {
        hosts.push(bare.trim_end_matches('.').to_lowercase());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: &[&str]) {
        assert_eq!(hosts_of(text), expected, "{text}");
    }

    #[test]
    fn hosts_are_read_from_urls_and_remote_addresses() {
        check("https://Example.com/x", &["example.com"]);
        check("--url=http://user:pw@h.example:8080/?q", &["h.example"]);
        check("git@github.com:o/r.git", &["github.com"]);
        check("https://[::1]:80/", &["::1"]);
        check("http://a http://b", &["a", "b"]);
        check("a/b@c:d", &[]);
        check("plain", &[]);
    }
}
