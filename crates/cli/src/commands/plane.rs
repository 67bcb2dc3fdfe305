//! `warrant plane start`: this home's plane, served to clients and runners.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use serde_json::{Value, json};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tokio::net::TcpListener;
use tokio::sync::watch;
use warrant_govern::mcp::http::Door;
use warrant_govern::{Desk, environment};
use warrant_plane::Home;
use warrant_plane::doors::in_front_of;
use warrant_plane::http::settings::{Settings, TokenFiles};
use warrant_plane::http::{
    BLOCKING_THREADS, PlaneService, ServeOptions, Shared, TlsFiles, keep_house, observed, router,
    serve, serve_local, tls,
};
use warrant_plane::serving::{OfferedSocket, write_address};
use warrant_policy::preset::Preset;
use warrant_policy::snapshot::PolicySnapshot;

use super::doors;
use crate::args::{Plane, PlaneStart};
use crate::exit::{Exit, Misuse};
use crate::{logs, ui};

/// How long work may take that nobody waits for any more.
const GIVE_UP: Duration = Duration::from_secs(2);

/// Runs one command.
pub(crate) fn run(home: Option<&Path>, command: &Plane) -> anyhow::Result<Exit> {
    match command {
        Plane::Start(arguments) => start(home, arguments),
    }
}

fn start(home: Option<&Path>, arguments: &PlaneStart) -> anyhow::Result<Exit> {
    logs::begin(&arguments.logging, "info")?;
    let preset = arguments.preset.as_deref().map(preset_named).transpose()?;
    if let Some(preset) = preset {
        set_up(home, preset)?;
    }
    let opened = open(home, |settings| {
        limit(settings, arguments);
        // SECURITY: said anew at every start, so that a home is never left open by an old one.
        settings.compat.open_blob_reads |= preset == Some(Preset::Reference);
    })?;
    let address = address(arguments, opened.service.settings()).map_err(Misuse::of)?;
    let tls = match (&arguments.tls_cert, &arguments.tls_key) {
        (Some(certificate), Some(key)) => {
            let client_authority = arguments.client_ca.as_deref();
            Some(TlsFiles { certificate, key, client_authority })
        }
        _ => None,
    };
    let reachable =
        || doors::Reachable { hosts: door_hosts(arguments, address), address: address.ip() };
    let doors = arguments.doors.then(|| doors::open(home, reachable()));
    let doors = doors.transpose()?;
    // Whoever reads our first words may tell us to stop at once.
    let shutdown = stop_on_signals(&opened.service)?;
    let serving =
        Serving { service: &opened.service, doors: doors.as_ref(), address, tls, shutdown };
    serving.until_told(|url| announce(&opened, url, arguments.json))?;
    // Every sandbox that still lives ends with its receipt.
    drop(doors);
    Ok(Exit::Success)
}

fn preset_named(name: &str) -> anyhow::Result<Preset> {
    Preset::named(name)
        .ok_or_else(|| Misuse::of(anyhow::anyhow!("--preset is {}, not `{name}`", Preset::NAMES)))
}

/// Sets up a new home with a preset. A home that has a policy keeps it.
fn set_up(home: Option<&Path>, preset: Preset) -> anyhow::Result<()> {
    let desk = Desk::open_with(home, preset)?;
    let in_force = desk.policy().map(PolicySnapshot::hash);
    if in_force != Some(preset.load()?.hash()) {
        let name = preset.as_str();
        ui::note(&format!(
            "this home has a policy of its own, which stays; `warrant policy set {name}` replaces it"
        ));
    }
    Ok(())
}

/// Puts the limits of the arguments before those of the settings.
fn limit(settings: &mut Settings, arguments: &PlaneStart) {
    let wanted = (arguments.requests_per_second, arguments.request_burst, arguments.auth_failures);
    if let (None, None, None) = wanted {
        return;
    }
    let limits = settings.limits.get_or_insert_default();
    let (per_second, burst, failures) = wanted;
    limits.requests_per_second = per_second.unwrap_or(limits.requests_per_second);
    limits.request_burst = burst.unwrap_or(limits.request_burst);
    limits.auth_failures_per_minute = failures.unwrap_or(limits.auth_failures_per_minute);
}

/// A plane about to be served.
pub(crate) struct Serving<'a> {
    pub(crate) service: &'a Shared,
    pub(crate) doors: Option<&'a doors::Opened>,
    pub(crate) address: SocketAddr,
    pub(crate) tls: Option<TlsFiles<'a>>,
    /// Turns true when it is to end.
    pub(crate) shutdown: watch::Receiver<bool>,
}

impl Serving<'_> {
    /// Serves on this thread until told to stop; `ready` gets the address, once clients can come.
    pub(crate) fn until_told(self, ready: impl FnOnce(&str)) -> anyhow::Result<()> {
        let Self { service, doors, address, tls: files, shutdown } = self;
        let scheme = if files.is_some() { "https" } else { "http" };
        let acceptor = files.as_ref().map(tls).transpose()?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(BLOCKING_THREADS)
            .build()
            .context("no runtime")?;
        let served = runtime.block_on(async {
            let listener = TcpListener::bind(address)
                .await
                .with_context(|| format!("cannot listen on {address}"))?;
            let url = format!("{scheme}://{}", listener.local_addr()?);
            let home = service.plane().home().root();
            let local = offer_socket(home, &url);
            ready(&url);
            let housekeeping = tokio::spawn(keep_house(Arc::clone(service)));
            let routes = router(Arc::clone(service));
            let routes = match doors {
                Some(doors) => {
                    tokio::spawn(hang_up(Arc::clone(&doors.mcp), shutdown.clone()));
                    let all = doors.mcp.in_front_of(in_front_of(routes, &doors.hall));
                    observed(all, Arc::clone(service))
                }
                None => routes,
            };
            let (close, closing) = watch::channel(false);
            let mut socket = None;
            let mut serving_local = None;
            if let Some((offered, listener)) = local {
                socket = Some(offered);
                let admission = service.admission();
                let options = ServeOptions { tls: None, admission, shutdown: closing.clone() };
                let serving = serve_local(listener, routes.clone(), options);
                serving_local = Some(tokio::spawn(serving));
            }
            // The socket is gone before the port is free for others.
            tokio::spawn(close_after(shutdown, move || {
                drop(socket);
                close.send_replace(true);
            }));
            let admission = service.admission();
            let options = ServeOptions { tls: acceptor, admission, shutdown: closing };
            serve(listener, routes, options).await.context("the plane cannot serve")?;
            if let Some(serving_local) = serving_local
                && tokio::time::timeout(GIVE_UP, serving_local).await.is_err()
            {
                tracing::warn!("local requests were cut off at the end");
            }
            housekeeping.abort();
            Ok(())
        });
        // Whatever still waits for a reader that stopped reading is not waited for.
        runtime.shutdown_timeout(GIVE_UP);
        served
    }
}

/// Offers the socket of the home and notes the address. Where that cannot be, commands on the same
/// home need a token, as others do.
fn offer_socket(
    home: &Path,
    url: &str,
) -> Option<(OfferedSocket, std::os::unix::net::UnixListener)> {
    let offered =
        OfferedSocket::offer(home).and_then(|offered| write_address(home, url).map(|()| offered));
    offered
        .inspect_err(|error| tracing::warn!(%error, "the home holds no socket for local commands"))
        .ok()
}

/// Runs `close` once `shutdown` turns true or nobody can turn it any more.
async fn close_after(mut shutdown: watch::Receiver<bool>, close: impl FnOnce()) {
    let _ = shutdown.wait_for(|is_over| *is_over).await;
    close();
}

/// Returns the names under which clients may reach the doors, besides those of loopback.
fn door_hosts(arguments: &PlaneStart, address: SocketAddr) -> Vec<String> {
    let own = (!address.ip().is_unspecified()).then(|| address.ip().to_string());
    arguments.door_host.iter().cloned().chain(own).collect()
}

/// Ends conversations when the plane is told to stop, because they do not end by themselves.
async fn hang_up(door: Arc<Door>, mut shutdown: watch::Receiver<bool>) {
    // An error means that nobody can tell us to stop any more.
    if shutdown.wait_for(|is_over| *is_over).await.is_ok() {
        door.hang_up();
    }
}

/// A plane that is ready to serve.
pub(crate) struct Opened {
    pub(crate) service: Shared,
    /// Where its tokens are.
    pub(crate) token_files: TokenFiles,
}

/// Opens this home's plane, and sets it up on first use. `change` has the last word on the
/// settings; what it changes is not kept.
pub(crate) fn open(
    home: Option<&Path>,
    change: impl FnOnce(&mut Settings),
) -> anyhow::Result<Opened> {
    let environment = environment(home)?;
    if !environment.locate()?.join("home.json").exists() {
        // The desk sets up home and policy on first use.
        drop(Desk::open(home)?);
    }
    let home = Home::open(&environment)?;
    let (mut settings, _) = Settings::open(home.root())?;
    let token_files = settings.write_token_files(home.root())?;
    change(&mut settings);
    let service = Arc::new(PlaneService::open(home, settings)?);
    Ok(Opened { service, token_files })
}

fn address(arguments: &PlaneStart, settings: &Settings) -> anyhow::Result<SocketAddr> {
    let address = match arguments.listen {
        Some(address) => address,
        None => {
            let host: IpAddr =
                settings.host.parse().context("`host` of config.json is no address")?;
            SocketAddr::new(host, settings.port)
        }
    };
    let is_open = !address.ip().is_loopback() && arguments.tls_cert.is_none();
    // SECURITY: tokens and released secrets would travel readable by everyone on the way.
    if is_open && !arguments.insecure_plaintext {
        bail!(
            "{address} can be reached by others: give --tls-cert and --tls-key, or --insecure-plaintext behind a proxy that does TLS"
        );
    }
    Ok(address)
}

impl Opened {
    /// Returns what programs are told of a plane that serves now.
    // SECURITY: what is printed here ends in logs; tokens are named by their files.
    pub(super) fn described(&self, url: &str) -> Value {
        let home = self.service.plane().home();
        let key = home.plane_key().public();
        json!({
            "url": url,
            "home": home.root(),
            "planeKeyId": key.id(),
            "planePublicKeyPem": key.pem(),
            "adminTokenFile": self.token_files.admin,
            "enrollTokenFile": self.token_files.enroll,
        })
    }
}

fn announce(opened: &Opened, url: &str, is_json: bool) {
    let key = opened.service.plane().home().plane_key().public();
    if is_json {
        ui::json(&opened.described(url));
        return;
    }
    ui::note(&format!("plane {} at {url}", key.id()));
    ui::note(&format!("admin token:  in {}", opened.token_files.admin.display()));
    ui::note(&format!("enroll token: in {}", opened.token_files.enroll.display()));
}

/// Returns what turns true when this process is told to stop.
fn stop_on_signals(service: &Shared) -> anyhow::Result<watch::Receiver<bool>> {
    let (stop, stopped) = watch::channel(false);
    let mut signals = Signals::new([SIGINT, SIGTERM]).context("signals cannot be watched")?;
    let service = Arc::clone(service);
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || {
            if signals.forever().next().is_some() {
                service.drain();
                stop.send_replace(true);
            }
        })
        .context("no thread for signals")?;
    Ok(stopped)
}
