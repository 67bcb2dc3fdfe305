//! `warrant runner start`: a member of a fleet.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, bail};
use serde_json::json;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use warrant_plane::clock::SystemTimeSource;
use warrant_plane::process_identity::this_process;
use warrant_plane::random;
use warrant_protocol::wire::RunnerAbilities;
use warrant_protocol::{Isolation, PoolName, PublicKey};
use warrant_runner::MockProgram;
use warrant_runner::fleet::{DataLock, Drain, Fleet, Tally};
use warrant_runner::harness::MOCK_ARGUMENT;
use warrant_runner::remote::{
    BlobCache, EnrollOptions, Enrolled, Http, Outbox, PinnedBy, RemoteParts, RemotePlane,
    next_generation,
};
use warrant_sandbox::Backend;

use crate::args::{PlaneArguments, Runner, RunnerStart};
use crate::exit::{Exit, Misuse};
use crate::{logs, ui};

/// How many bytes of fetched blobs are kept.
const CACHE_BYTES: u64 = 1 << 30;

/// Runs one command.
pub(crate) fn run(plane: &PlaneArguments, command: Runner) -> anyhow::Result<Exit> {
    match command {
        Runner::Start(arguments) => start(plane, &arguments),
    }
}

fn start(plane: &PlaneArguments, arguments: &RunnerStart) -> anyhow::Result<Exit> {
    logs::begin(&arguments.logging, "info")?;
    let drain = Drain::default();
    drain_on_signals(&drain)?;
    let tally = work(plane, arguments, &drain)?;
    if arguments.json {
        ui::json(&json!({
            "ended": tally.ended,
            "fenced": tally.fenced,
            "waiting": tally.waiting,
        }));
    } else {
        ui::note(&format!(
            "warrant: drained · {} runs ended, {} given up, {} receipts wait for the plane",
            tally.ended, tally.fenced, tally.waiting
        ));
    }
    Ok(Exit::Success)
}

/// Works as the arguments say until the drain is over.
pub(crate) fn work(
    plane: &PlaneArguments,
    arguments: &RunnerStart,
    drain: &Drain,
) -> anyhow::Result<Tally> {
    let Some(address) = &plane.plane else {
        return Err(Misuse::of(anyhow::anyhow!("say which plane: --plane URL")));
    };
    let pool: PoolName = arguments
        .pool
        .parse()
        .map_err(|error| Misuse::of(anyhow::Error::new(error).context("--pool")))?;
    let backends = backends(&arguments.providers)?;
    let data = std::path::absolute(&arguments.data_dir).context("--data-dir")?;
    let _lock = DataLock::take(&data)?;
    let http =
        Http::new(address, plane.plane_ca.as_deref()).map_err(|error| Misuse::of(error.into()))?;
    let http = Arc::new(http);
    let enrolled = enroll(&http, &data, (&pool, arguments))?;
    let identity = enrolled.identity();
    let pinned = match enrolled.pinned_by() {
        PinnedBy::Operator => "as given",
        PinnedBy::FirstUse => "on first use",
        PinnedBy::Before => "earlier",
    };
    ui::note(&format!(
        "warrant: runner {} of pool {} at {} · plane key {} pinned {pinned}",
        identity.id,
        identity.pool,
        http.base(),
        enrolled.plane_key().id().as_str(),
    ));
    let abilities = RunnerAbilities {
        isolations: Some(backends.iter().map(|backend| backend.isolation()).collect()),
        agent_kinds: (!arguments.agents.is_empty()).then(|| arguments.agents.clone()),
        posture: None,
    };
    let outbox = Outbox::open_at(data.join("outbox"))?;
    let time = Arc::new(SystemTimeSource);
    let generation = Some(next_generation(&data, random::now()?).context("--data-dir")?);
    let process = this_process().inspect_err(|error| {
        tracing::warn!(%error, "a plane on this machine cannot see when this process ends");
    });
    let plane = RemotePlane::new(RemoteParts {
        http,
        enrolled,
        abilities,
        outbox,
        time,
        generation,
        process: process.ok(),
    });
    let cache = BlobCache::open(&data.join("cache"), CACHE_BYTES).context("no room for blobs")?;
    let program = std::env::current_exe().ok().and_then(|path| path.to_str().map(str::to_owned));
    let backends: Vec<&dyn Backend> = backends.iter().map(AsRef::as_ref).collect();
    let began = random::now()?;
    let fleet = Fleet {
        plane: &plane,
        backends: &backends,
        pins: &[],
        data: &data,
        cache: &cache,
        concurrency: usize::from(arguments.concurrency),
        poll: Duration::from_millis(arguments.poll),
        grace: Duration::from_millis(arguments.drain),
        environment: &environment(&arguments.inherit),
        mock: program.as_deref().map(|program| MockProgram { program, argument: MOCK_ARGUMENT }),
        clock: &|| random::now().unwrap_or(began),
    };
    Ok(fleet.work(drain)?)
}

fn enroll(
    http: &Http,
    data: &Path,
    (pool, arguments): (&PoolName, &RunnerStart),
) -> anyhow::Result<Enrolled> {
    let plane_key = match &arguments.plane_key {
        Some(file) => {
            let pem = std::fs::read_to_string(file)
                .with_context(|| format!("cannot read {}", file.display()))?;
            let key = PublicKey::from_pem(&pem)
                .with_context(|| format!("{} is no public key", file.display()));
            Some(key.map_err(Misuse::of)?)
        }
        None => None,
    };
    let token = enroll_token(arguments)?;
    let options = EnrollOptions {
        data,
        pool,
        token: token.as_deref(),
        plane_key: plane_key.as_ref(),
        seed: random::bytes()?,
        patience: Duration::from_millis(arguments.enroll_wait),
        time: &SystemTimeSource,
    };
    Ok(Enrolled::open(http, &options)?)
}

/// Returns the token of the first start, from where it was put.
fn enroll_token(arguments: &RunnerStart) -> anyhow::Result<Option<String>> {
    let text = match (&arguments.enroll_token_file, &arguments.enroll_token) {
        (Some(file), _) => {
            let text = std::fs::read_to_string(file)
                .with_context(|| format!("--enroll-token-file: cannot read {}", file.display()));
            Some(text.map_err(Misuse::of)?)
        }
        (None, Some(token)) => {
            ui::note(
                "warning: --enroll-token can be read by other users in the list of processes and \
                 will be removed in the next release; use --enroll-token-file FILE or \
                 WARRANT_ENROLL_TOKEN",
            );
            Some(token.clone())
        }
        (None, None) => std::env::var("WARRANT_ENROLL_TOKEN").ok(),
    };
    Ok(text.map(|text| text.trim().to_owned()).filter(|text| !text.is_empty()))
}

/// Returns the tiers that hold here, or those that were named.
fn backends(names: &[String]) -> anyhow::Result<Vec<Arc<dyn Backend>>> {
    let all = warrant_govern::backends::local();
    if names.is_empty() {
        let holds = |backend: &Arc<dyn Backend>| {
            backend.isolation() != Isolation::Namespace
                || backend.probe().lacking(["files.read", "files.write", "network"]).is_empty()
        };
        return Ok(all.into_iter().filter(holds).collect());
    }
    let mut chosen = Vec::new();
    for name in names {
        let isolation: Isolation =
            name.parse().map_err(|unknown| Misuse::of(anyhow::Error::new(unknown)))?;
        match all.iter().find(|backend| backend.isolation() == isolation) {
            Some(backend) => chosen.push(Arc::clone(backend)),
            None => bail!("SANDBOX_PROVIDER_UNAVAILABLE: {isolation} is not available here"),
        }
    }
    Ok(chosen)
}

/// Returns what contracts may inherit: what the operator named, and nothing else.
fn environment(names: &[String]) -> BTreeMap<String, String> {
    let value = |name: &String| Some((name.clone(), std::env::var(name).ok()?));
    names.iter().filter_map(value).collect()
}

/// Begins the drain when the machine or a person says so.
pub(crate) fn drain_on_signals(drain: &Drain) -> anyhow::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM]).context("no signal handler")?;
    let drain = drain.clone();
    thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || {
            for _ in &mut signals {
                drain.begin();
            }
        })
        .context("no thread for signals")?;
    Ok(())
}
