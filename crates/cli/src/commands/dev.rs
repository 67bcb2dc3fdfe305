//! `warrant dev`: plane, runner and page in one process, for a laptop.
//!
//! The runner is an ordinary member of the fleet that enrolls by itself and speaks with the plane
//! over loopback, so what is tried here is what a fleet does.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::mpsc;
use std::thread;

use anyhow::{Context as _, bail};
use serde_json::json;
use tokio::sync::watch;
use warrant_runner::fleet::{Drain, Tally};

use super::plane::{self, Opened, Serving};
use super::{doors, runner};
use crate::args::{Dev, PlaneArguments, RunnerStart};
use crate::exit::{Exit, Misuse};
use crate::{logs, ui};

/// How long the runner waits for the plane beside it.
const ENROLL_WAIT_MS: u64 = 10_000;

/// Works until told to stop.
pub(crate) fn run(home: Option<&Path>, arguments: &Dev) -> anyhow::Result<Exit> {
    logs::begin(&arguments.logging, "warn")?;
    let opened = plane::open(home, |_| {})?;
    let address = address(arguments, opened.service.settings().port).map_err(Misuse::of)?;
    let reachable = || doors::Reachable { hosts: Vec::new(), address: address.ip() };
    let doors = arguments.doors.then(|| doors::open(home, reachable())).transpose()?;
    let drain = Drain::default();
    runner::drain_on_signals(&drain)?;
    let (stop, shutdown) = watch::channel(false);
    let serving =
        Serving { service: &opened.service, doors: doors.as_ref(), address, tls: None, shutdown };
    let tally = thread::scope(|scope| {
        let (tell, told) = mpsc::channel();
        let plane = scope.spawn(|| {
            let served = serving.until_told(move |url| {
                // Whoever hears it waits for it below.
                let _ = tell.send(url.to_owned());
            });
            drain.begin();
            served
        });
        let worked = match told.recv() {
            Ok(url) => work(&opened, &url, (arguments, &drain)).map(Some),
            // It never came up, and says why below.
            Err(_) => Ok(None),
        };
        // The runner has ended, so nobody of ours needs the plane any more.
        opened.service.drain();
        stop.send_replace(true);
        match plane.join() {
            Ok(served) => served?,
            Err(_) => bail!("the plane broke"),
        }
        worked
    })?;
    // Every sandbox that still lives ends with its receipt.
    drop(doors);
    tell_end(tally, arguments.json);
    Ok(Exit::Success)
}

/// Returns where to listen: here, and nowhere that others can reach.
fn address(arguments: &Dev, port: u16) -> anyhow::Result<SocketAddr> {
    let default = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port);
    let address = arguments.listen.unwrap_or(default);
    if !address.ip().is_loopback() {
        bail!("--listen {address} can be reached by others; for them there is warrant plane start");
    }
    Ok(address)
}

fn work(opened: &Opened, url: &str, (arguments, drain): (&Dev, &Drain)) -> anyhow::Result<Tally> {
    let home = opened.service.plane().home();
    let settings = opened.service.settings();
    let ticket = opened.service.ticket(&settings.admin_token).context("no log-in for the page")?;
    announce(opened, (url, &ticket), arguments);
    let data_dir = home.root().join("dev-runner");
    let runner = RunnerStart {
        pool: arguments.pool.clone(),
        enroll_token: None,
        enroll_token_file: Some(opened.token_files.enroll.clone()),
        concurrency: arguments.concurrency,
        plane_key: Some(home.root().join("keys/plane.pub.pem")),
        providers: Vec::new(),
        agents: Vec::new(),
        inherit: Vec::new(),
        drain: arguments.drain,
        poll: 1_000,
        enroll_wait: ENROLL_WAIT_MS,
        json: arguments.json,
        data_dir: data_dir.clone(),
        logging: arguments.logging.clone(),
    };
    let plane = PlaneArguments { plane: Some(url.to_owned()), plane_ca: None };
    runner::work(&plane, &runner, drain).with_context(|| {
        format!("the runner cannot work; without {} it enrolls anew", data_dir.display())
    })
}

fn announce(opened: &Opened, (url, ticket): (&str, &str), arguments: &Dev) {
    let key = opened.service.plane().home().plane_key().public();
    // SECURITY: what follows # stays in the browser, so no log of anybody has the ticket.
    let page = format!("{url}/ui/#ticket={ticket}");
    if arguments.json {
        let mut line = opened.described(url);
        if let Some(members) = line.as_object_mut() {
            members.insert("page".to_owned(), page.into());
            members.insert("pool".to_owned(), arguments.pool.clone().into());
        }
        ui::json(&line);
        return;
    }
    ui::note(&format!("warrant: plane {} at {url}", key.id()));
    ui::note(&format!("page, logs you in once:  {page}"));
    ui::note(&format!("run something:           warrant run --plane {url} 'echo hello'"));
    ui::note(&format!("token for more runners:  in {}", opened.token_files.enroll.display()));
    ui::note("Ctrl-C drains and ends");
}

fn tell_end(tally: Option<Tally>, as_json: bool) {
    let Some(tally) = tally else { return };
    if as_json {
        ui::json(&json!({
            "ended": tally.ended,
            "fenced": tally.fenced,
            "waiting": tally.waiting,
        }));
    } else {
        ui::note(&format!("warrant: drained · {} runs ended", tally.ended));
    }
}
