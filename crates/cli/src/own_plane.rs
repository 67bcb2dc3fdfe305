//! The plane that this very home serves, reached over the Unix socket in the home.
//!
//! A TCP port belongs to whoever binds it. So a command that means the plane of its own home sends
//! no token to a port: while the plane serves, the command uses the socket; while it does not, the
//! command says so.

use std::fs;
use std::net::IpAddr;
use std::path::Path;

use anyhow::Context as _;
use warrant_plane::http::settings::Settings;
use warrant_plane::serving::{PlaneSocket, last_address};
use warrant_protocol::PublicKey;
use warrant_runner::remote::Http;

use crate::exit::Misuse;

/// What a home knows of its own plane, which serves now.
pub(crate) struct OwnPlane {
    /// The token of its admin.
    pub(crate) token: String,
    /// The plane's key.
    pub(crate) key: Option<PublicKey>,
    /// The way to it.
    pub(crate) socket: PlaneSocket,
}

impl OwnPlane {
    /// Returns the plane of `home` when `url` means that one; none when `url` means another.
    ///
    /// # Errors
    /// When it is the one of this home and does not serve.
    pub(crate) fn find(home: &Path, url: &str) -> anyhow::Result<Option<Self>> {
        let served = last_address(home).context("the home cannot be read")?;
        if !served.is_some_and(|served| is_same_plane(&served, url)) {
            return Ok(None);
        }
        let found = PlaneSocket::find(home)
            .with_context(|| format!("the plane of {} cannot be used", home.display()))?;
        let Some(socket) = found else {
            return Err(Misuse::of(anyhow::anyhow!(
                "{url} was the plane of {home}, which does not serve now, so no token is sent \
                 there: start it with `warrant --home {home} plane start`, or name another home \
                 with --home if another plane is meant",
                home = home.display()
            )));
        };
        let settings = Settings::find(home)?.context("the home has no config.json")?;
        let pem = fs::read_to_string(home.join("keys/plane.pub.pem")).ok();
        let key = pem.and_then(|pem| PublicKey::from_pem(&pem).ok());
        Ok(Some(Self { token: settings.admin_token, key, socket }))
    }

    /// Returns a client of it that uses the socket; valid while `self` is held.
    pub(crate) fn http(&self, url: &str) -> anyhow::Result<Http> {
        // The socket carries no TLS, which would protect nothing there.
        let plain = url.replacen("https://", "http://", 1);
        Http::over_socket(&plain, &self.socket.path()).map_err(|error| Misuse::of(error.into()))
    }
}

/// Whether two addresses mean one plane of this machine.
fn is_same_plane(served: &str, meant: &str) -> bool {
    let (served, meant) = (served.trim_end_matches('/'), meant.trim_end_matches('/'));
    if served == meant {
        return true;
    }
    let (Some(served), Some(meant)) = (UrlAuthority::of(served), UrlAuthority::of(meant)) else {
        return false;
    };
    let is_everywhere = served.host.parse().is_ok_and(|ip: IpAddr| ip.is_unspecified());
    served.port == meant.port && meant.is_loopback() && (served.is_loopback() || is_everywhere)
}

/// Host and port of an address.
struct UrlAuthority<'a> {
    host: &'a str,
    port: &'a str,
}

impl<'a> UrlAuthority<'a> {
    fn of(url: &'a str) -> Option<Self> {
        let (_, rest) = url.split_once("://")?;
        let (host, port) = rest.rsplit_once(':')?;
        Some(Self { host: host.trim_start_matches('[').trim_end_matches(']'), port })
    }

    fn is_loopback(&self) -> bool {
        self.host == "localhost" || self.host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback())
    }
}

#[cfg(test)]
mod tests {
    use super::is_same_plane;

    #[track_caller]
    fn check(served: &str, meant: &str, expected: bool) {
        assert_eq!(is_same_plane(served, meant), expected, "{served} {meant}");
    }

    #[test]
    fn every_local_spelling_of_the_address_means_the_plane_of_this_home() {
        check("http://127.0.0.1:7172", "http://127.0.0.1:7172/", true);
        check("http://127.0.0.1:7172", "http://localhost:7172", true);
        check("https://0.0.0.0:7172", "https://127.0.0.1:7172", true);
        check("http://127.0.0.1:7172", "http://[::1]:7172", true);
        check("http://127.0.0.1:7172", "http://127.0.0.1:7173", false);
        check("http://127.0.0.1:7172", "http://plane.example:7172", false);
        check("http://10.0.0.1:7172", "http://127.0.0.1:7172", false);
    }
}
