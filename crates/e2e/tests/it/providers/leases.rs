//! A sandbox that nobody can delete ends by itself, and one whose run goes on does not.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use warrant_protocol::{Isolation, Timestamp};

use super::door::Door;
use super::proxy::How::Instead;
use super::proxy::Kind::Renew;
use super::proxy::When::{Afterwards, First, Underway};
use super::proxy::{Proxy, Trick};
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
    let outcome = site.receipt()["outcome"]["kind"].clone();
    assert!(outcome == "unobserved" || outcome == "failed", "{provider}: {outcome}");
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
