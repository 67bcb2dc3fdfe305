//! A sandbox that nobody can delete ends by itself, and one whose run goes on does not.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::Stdio;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use warrant_protocol::{Isolation, Timestamp};

use super::door::Door;
use super::proxy::How::{Instead, Swallows};
use super::proxy::Kind::Renew;
use super::proxy::When::{Afterwards, Every, First, Underway};
use super::proxy::{Proxy, Trick, When};
use super::site::{PROVIDERS, Ran, Site};

const REVOKED: &str = r#"{"code":401,"message":"unauthorized"}"#;
const ERROR: &str = r#"{"code":500,"message":"oops"}"#;
/// How much later than promised a door may be with its clean-up on a busy machine.
const SLACK: Duration = Duration::from_secs(60);

/// The shortest lease a provider can be asked for.
fn lease(provider: Isolation) -> Duration {
    Duration::from_secs(if provider == Isolation::E2b { 5 } else { 60 })
}

/// A provider of its own, what stands before it, and a client with the shortest lease.
struct Place {
    door: Door,
    proxy: Proxy,
    site: Site,
}

impl Place {
    fn new(provider: Isolation) -> Self {
        let door = Door::open();
        let proxy = Proxy::before(&door.address);
        let site = Site::new(provider, &proxy.address, &door.token)
            .with("WARRANT_PROVIDER_LEASE_S", &lease(provider).as_secs().to_string());
        Self { door, proxy, site }
    }

    fn is_empty_in_time(&self) -> bool {
        let until = Instant::now() + lease(self.site.provider()) + SLACK;
        while Instant::now() < until {
            if self.door.sandboxes().is_empty() {
                return true;
            }
            std::thread::sleep(Duration::from_millis(200));
        }
        false
    }
}

/// Runs checks at every provider at once, for most of the time is waiting.
fn at_once(checks: &[fn(&Place)]) {
    std::thread::scope(|scope| {
        for provider in PROVIDERS {
            for check in checks {
                scope.spawn(move || check(&Place::new(provider)));
            }
        }
    });
}

/// Says that what was left is named with its end, which is no later than the lease.
#[track_caller]
fn tells_its_end(ran: &Ran, provider: Isolation) {
    let told = ran.stderr.split("lives until ").nth(1);
    let told = told.unwrap_or_else(|| panic!("{provider}: {}", ran.stderr));
    let until: Timestamp = told.split(',').next().unwrap().parse().unwrap();
    let latest = SystemTime::now().duration_since(UNIX_EPOCH).unwrap() + lease(provider);
    assert!(u128::from(until.unix_ms()) <= latest.as_millis(), "{provider}: {until}");
}

fn revoked_before_the_start(place: &Place) {
    let Place { door, proxy, site } = place;
    let provider = site.provider();
    proxy.play(Trick { when: Afterwards, how: Instead(401, REVOKED) });
    let ran = site.script(&[], "echo word-of-the-revoked");
    assert_eq!(ran.code, Some(1), "{provider}: {}", ran.stderr);
    assert_eq!(site.receipt()["outcome"]["kind"], "failed", "{provider}");
    assert_eq!(door.started("word-of-the-revoked"), 0, "{provider}");
    tells_its_end(&ran, provider);
    assert!(place.is_empty_in_time(), "{provider}: {:?} lives on", door.sandboxes());
}

fn revoked_in_mid_run(place: &Place) {
    let Place { door, proxy, site } = place;
    let provider = site.provider();
    proxy.play(Trick { when: Underway, how: Instead(401, REVOKED) });
    let ran = site.script(&["--timeout", "300s"], "echo word-of-the-runner; sleep 280");
    assert_eq!(ran.code, Some(1), "{provider}: {}", ran.stderr);
    assert_eq!(ran.stdout, "word-of-the-runner\n", "{provider}");
    // Whichever is noticed first: that the lease is lost, or that its provider ended the sandbox.
    assert_eq!(site.receipt()["outcome"]["kind"], "unobserved", "{provider}: {}", ran.stderr);
    assert_eq!(door.started("word-of-the-runner"), 1, "{provider}");
    tells_its_end(&ran, provider);
    assert!(place.is_empty_in_time(), "{provider}: {:?} lives on", door.sandboxes());
}

#[test]
fn a_revoked_key_leaves_no_sandbox_beyond_its_lease() {
    at_once(&[revoked_before_the_start, revoked_in_mid_run]);
}

fn renewed(place: &Place) {
    let Place { door, proxy, site } = place;
    let provider = site.provider();
    // A first renewal that fails with all its repetitions is tried again within the lease.
    proxy.play(Trick { when: First(Renew, 4), how: Instead(500, ERROR) });
    let longer = lease(provider).as_secs() + 8;
    let script = format!("echo first; sleep {longer}; echo last");
    let ran = site.script(&["--timeout", "300s"], &script);
    assert_eq!(ran.code, Some(0), "{provider}: {}", ran.stderr);
    assert_eq!(ran.stdout, "first\nlast\n", "{provider}");
    assert_eq!(site.receipt()["outcome"]["kind"], "exited", "{provider}");
    assert_eq!(door.sandboxes(), Vec::<String>::new(), "{provider}");
}

#[test]
fn a_run_outlives_its_lease_while_its_key_is_good() {
    at_once(&[renewed]);
}

/// How long a run may take whose provider grants nothing more, on a busy machine.
fn long_enough(provider: Isolation) -> Duration {
    lease(provider) + 2 * SLACK
}

fn hanging(place: &Place, when: When) {
    let Place { door, proxy, site } = place;
    let provider = site.provider();
    proxy.play(Trick { when, how: Swallows });
    let began = Instant::now();
    let mut exec =
        site.exec(&["--timeout", "900s"], &["sh", "-c", "echo word-of-the-patient; sleep 880"]);
    let ran = Ran::from(exec.env("WARRANT_PROVIDER_TIMEOUT_S", "3").output().unwrap());
    assert!(began.elapsed() < long_enough(provider), "{provider}: {:?}", began.elapsed());
    assert_eq!(ran.code, Some(1), "{provider}: {}", ran.stderr);
    assert_eq!(ran.stdout, "word-of-the-patient\n", "{provider}");
    assert_eq!(site.receipt()["outcome"]["kind"], "unobserved", "{provider}: {}", ran.stderr);
    assert_eq!(door.started("word-of-the-patient"), 1, "{provider}");
    assert!(place.is_empty_in_time(), "{provider}: {:?} lives on", door.sandboxes());
}

#[test]
fn a_renewal_that_is_never_answered_ends_the_run_with_its_lease() {
    // One provider stands for all: the shortest lease of the others is a minute.
    std::thread::scope(|scope| {
        for when in [Every(Renew), Underway] {
            scope.spawn(move || hanging(&Place::new(Isolation::E2b), when));
        }
    });
}

/// Asks a door to delete a sandbox, as somebody else with a good key would.
fn delete(door: &Door, provider: Isolation, id: &str) {
    let (path, key) = match provider {
        Isolation::E2b => (format!("/sandboxes/{id}"), format!("X-API-KEY: {}", door.token)),
        Isolation::Daytona => {
            (format!("/api/sandbox/{id}"), format!("Authorization: Bearer {}", door.token))
        }
        _ => (format!("/v1/sandboxes/{id}"), format!("OPEN-SANDBOX-API-KEY: {}", door.token)),
    };
    let mut stream = TcpStream::connect(&door.address).unwrap();
    let head = format!("DELETE {path} HTTP/1.1\r\nHost: {}\r\n{key}\r\n", door.address);
    stream.write_all(format!("{head}Connection: close\r\n\r\n").as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 2"), "{provider}: {answer}");
}

fn deleted_in_mid_run(provider: Isolation) {
    let door = Door::open();
    let site = Site::new(provider, &door.address, &door.token);
    let mut running = site
        .exec(&["--timeout", "900s"], &["sh", "-c", "echo word-of-the-ended; sleep 880"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(running.stdout.take().unwrap());
    let mut word = String::new();
    said.read_line(&mut word).unwrap();
    assert_eq!(word, "word-of-the-ended\n", "{provider}");
    let sandboxes = door.sandboxes();
    let [id] = sandboxes.as_slice() else { panic!("{provider}: {sandboxes:?}") };
    delete(&door, provider, id);
    let ran = Ran::from(running.wait_with_output().unwrap());
    assert_eq!(ran.code, Some(1), "{provider}: {}", ran.stderr);
    assert_eq!(site.receipt()["outcome"]["kind"], "unobserved", "{provider}: {}", ran.stderr);
    assert_eq!(door.started("word-of-the-ended"), 1, "{provider}");
    assert_eq!(door.sandboxes(), Vec::<String>::new(), "{provider}");
}

#[test]
fn a_sandbox_that_somebody_else_deletes_in_mid_run_is_not_the_programs_end() {
    std::thread::scope(|scope| {
        for provider in PROVIDERS {
            scope.spawn(move || deleted_in_mid_run(provider));
        }
    });
}
