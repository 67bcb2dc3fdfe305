//! `warrant plane start`: this home's plane, served to clients and runners.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use serde_json::json;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tokio::net::TcpListener;
use tokio::sync::watch;
use warrant_govern::Desk;
use warrant_govern::mcp::http::Door;
use warrant_plane::doors::in_front_of;
use warrant_plane::http::settings::Settings;
use warrant_plane::http::{PlaneService, Shared, TlsFiles, keep_house, router, serve, tls};
use warrant_plane::{Home, HomeEnvironment};

use crate::args::{Plane, PlaneStart};
use crate::exit::{Exit, Misuse};
use crate::ui;

/// How many threads may wait for the disk at once.
const DISK_THREADS: usize = 32;

/// How long work may take that nobody waits for any more.
const GIVE_UP: Duration = Duration::from_secs(2);

/// Runs one command.
pub(crate) fn run(home: Option<&Path>, command: &Plane) -> anyhow::Result<Exit> {
    match command {
        Plane::Start(arguments) => start(home, arguments),
    }
}

fn start(home: Option<&Path>, arguments: &PlaneStart) -> anyhow::Result<Exit> {
    log_to_stderr(&arguments.log).map_err(Misuse::of)?;
    let opened = open(home)?;
    let address = address(arguments, opened.service.settings()).map_err(Misuse::of)?;
    let acceptor = match (&arguments.tls_cert, &arguments.tls_key) {
        (Some(certificate), Some(key)) => {
            let client_authority = arguments.client_ca.as_deref();
            Some(tls(&TlsFiles { certificate, key, client_authority })?)
        }
        _ => None,
    };
    let doors = arguments.doors.then(|| super::doors::open(home, door_hosts(arguments, address)));
    let doors = doors.transpose()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(DISK_THREADS)
        .build()
        .context("no runtime")?;
    let served = runtime.block_on(async {
        let listener = TcpListener::bind(address)
            .await
            .with_context(|| format!("cannot listen on {address}"))?;
        let bound = listener.local_addr()?;
        let scheme = if acceptor.is_some() { "https" } else { "http" };
        // Whoever reads our first words may tell us to stop at once.
        let shutdown = stop_on_signals(&opened.service)?;
        announce(&opened, &format!("{scheme}://{bound}"), arguments.json);
        let housekeeping = tokio::spawn(keep_house(Arc::clone(&opened.service)));
        let routes = router(Arc::clone(&opened.service));
        let routes = match &doors {
            Some(doors) => {
                tokio::spawn(hang_up(Arc::clone(&doors.mcp), shutdown.clone()));
                doors.mcp.in_front_of(in_front_of(routes, &doors.hall))
            }
            None => routes,
        };
        serve(listener, routes, acceptor, shutdown).await.context("the plane cannot serve")?;
        housekeeping.abort();
        Ok(Exit::Success)
    });
    // Whatever still waits for a reader that stopped reading is not waited for.
    runtime.shutdown_timeout(GIVE_UP);
    // Every sandbox that still lives ends with its receipt.
    drop(doors);
    served
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
    /// Whether the settings, and with them the tokens, were made just now.
    pub(crate) is_new: bool,
}

/// Opens this home's plane, and sets it up on first use.
pub(crate) fn open(home: Option<&Path>) -> anyhow::Result<Opened> {
    // The desk sets up home and policy on first use.
    drop(Desk::open(home)?);
    let mut environment = HomeEnvironment::of_process();
    if let Some(home) = home {
        environment.warrant_home = Some(std::path::absolute(home)?.into_os_string());
    }
    let home = Home::open(&environment)?;
    let (settings, is_new) = Settings::open(home.root())?;
    let service = Arc::new(PlaneService::open(home, settings)?);
    Ok(Opened { service, is_new })
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

fn announce(opened: &Opened, url: &str, is_json: bool) {
    let home = opened.service.plane().home();
    let key = home.plane_key().public();
    let settings = opened.service.settings();
    if is_json {
        let mut line = json!({
            "url": url,
            "home": home.root(),
            "planeKeyId": key.id(),
            "planePublicKeyPem": key.pem(),
        });
        if opened.is_new
            && let Some(members) = line.as_object_mut()
        {
            members.insert("adminToken".to_owned(), settings.admin_token.clone().into());
            members.insert("enrollToken".to_owned(), settings.enroll_token.clone().into());
        }
        ui::json(&line);
        return;
    }
    ui::note(&format!("plane {} at {url}", key.id()));
    if opened.is_new {
        ui::note(&format!("admin token:  {}", settings.admin_token));
        ui::note(&format!("enroll token: {}", settings.enroll_token));
        ui::note("shown once; both are in config.json of the home, readable by you alone");
    }
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

fn log_to_stderr(level: &str) -> anyhow::Result<()> {
    let filter = tracing_subscriber::EnvFilter::builder()
        .parse(level)
        .with_context(|| format!("`{level}` is no level of logging"))?;
    let subscriber = tracing_subscriber::fmt()
        .json()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .finish();
    // A second subscriber in one process keeps the first.
    let _ = tracing::subscriber::set_global_default(subscriber);
    Ok(())
}
