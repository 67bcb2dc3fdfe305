//! What may be reached: the allow list, its grammar, and its canonical form.
//!
//! One entry is `[!]target[:port][+option]…`.
//!
//! - `target` is `host`, `*.host` (one or more labels before it, not `host` itself), an address,
//!   or a range of addresses (`10.0.0.0/8`). An IPv6 address or range that has a port is in brackets.
//! - `port` is a number or `*`. Without one, an allow entry means 80 and 443, a deny entry every port.
//! - `!` denies, and beats every allow entry.
//! - An address or range that is not public is reachable only when listed, as itself, or as what an
//!   allowed name resolves to.
//! - `+no-sni` tolerates TLS without a server name, `+ech` tolerates an encrypted ClientHello,
//!   `+raw` lets any bytes through in a tunnel, unread (`git.example:22+raw`), and `+method=POST`
//!   lets the in-process client use a method beyond GET and HEAD.
//!
//! The empty list means nothing.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::net::IpAddr;

use serde_json::{Value, json};
use thiserror::Error;
use warrant_protocol::authority::split_port;

use crate::address::{self, Range};
use crate::decision::Why;
use crate::host::{Host, HostName, InvalidHost, parse_port};

/// The ports an allow entry without a port means.
pub const DEFAULT_PORTS: [u16; 2] = [80, 443];

/// What may be reached. There is no default; the empty list means nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rules {
    scope: Scope,
    names: HashMap<HostName, Vec<Entry>>,
    ranges: Vec<(Range, Entry)>,
    allow: BTreeSet<String>,
    deny: BTreeSet<String>,
}

/// Why an entry is not a rule.
#[derive(Debug, Clone, Error, PartialEq, Eq)]
pub enum RuleError {
    /// The host or port is malformed.
    #[error("network rule `{entry}` names no host")]
    Host {
        /// The entry as given.
        entry: String,
        /// What is wrong with it.
        source: InvalidHost,
    },
    /// A range that is malformed or has bits set beyond its prefix.
    #[error("network rule `{0}` is not a range of addresses")]
    Range(String),
    /// A range so wide that it lists everything.
    #[error("network rule `{0}` is wider than /8 (IPv4) or /7 (IPv6)")]
    TooWide(String),
    /// A `*` anywhere but in front of a host of two labels or more.
    #[error("network rule `{0}` has a wildcard elsewhere than as `*.host.tld`")]
    Wildcard(String),
    /// An option nobody knows, or one on a deny entry.
    #[error("network rule `{0}` has an unknown option")]
    Option(String),
    /// More entries than a run may have.
    #[error("more than {MAX_ENTRIES} network rules")]
    TooMany,
}

/// How many entries one list may have.
const MAX_ENTRIES: usize = 10_000;

/// What an allow entry grants beyond the connection itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Tolerance {
    pub(crate) no_sni: bool,
    pub(crate) ech: bool,
    pub(crate) raw: bool,
    pub(crate) methods: BTreeSet<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scope {
    Listed,
    Public,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    effect: Effect,
    reach: Reach,
    ports: Ports,
    tolerance: Tolerance,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Effect {
    Allow,
    Deny,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reach {
    Exact,
    Below,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ports {
    Default,
    One(u16),
    Every,
}

enum Target {
    Name(HostName, Reach),
    Range(Range),
}

impl Rules {
    /// Parses an allow list; the module says what an entry is.
    ///
    /// # Errors
    /// Names the first entry that is not a rule.
    pub fn parse(entries: &[String]) -> Result<Self, RuleError> {
        if entries.len() > MAX_ENTRIES {
            return Err(RuleError::TooMany);
        }
        let mut rules = Self::empty(Scope::Listed);
        for text in entries {
            let (target, entry) = parse_entry(text)?;
            let canonical = format!("{target}{entry}");
            match entry.effect {
                Effect::Allow => drop(rules.allow.insert(canonical)),
                Effect::Deny => drop(rules.deny.insert(canonical)),
            }
            match target {
                Target::Name(name, _) => rules.names.entry(name).or_default().push(entry),
                Target::Range(range) => rules.ranges.push((range, entry)),
            }
        }
        Ok(rules)
    }

    /// Returns rules that let every public destination through, on every port, and nothing private.
    #[must_use]
    pub fn danger_everything() -> Self {
        Self::empty(Scope::Public)
    }

    /// Returns what is applied as a canonical JSON value: same rules, same value.
    #[must_use]
    pub fn canonical_json(&self) -> Value {
        let scope = match self.scope {
            Scope::Listed => "listed",
            Scope::Public => "public",
        };
        json!({ "scope": scope, "allow": self.allow, "deny": self.deny })
    }

    /// Returns whether nothing at all can be reached.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        self.scope == Scope::Listed && self.allow.is_empty()
    }

    /// Returns the ports some entry lets through, on which a transparent listener makes sense.
    #[must_use]
    pub fn ports(&self) -> BTreeSet<u16> {
        let entries = self.names.values().flatten().chain(self.ranges.iter().map(|(_, e)| e));
        let mut ports = BTreeSet::new();
        for entry in entries.filter(|entry| entry.effect == Effect::Allow) {
            match entry.ports {
                Ports::One(port) => drop(ports.insert(port)),
                Ports::Default | Ports::Every => ports.extend(DEFAULT_PORTS),
            }
        }
        if self.scope == Scope::Public {
            ports.extend(DEFAULT_PORTS);
        }
        ports
    }

    /// Decides a destination. What a name resolves to is decided apart, by [`Self::permits`].
    pub(crate) fn decide(&self, host: &Host, port: u16) -> Result<Tolerance, Why> {
        match host {
            Host::Name(name) => self.decide_name(name, port),
            Host::Address(address) => self.decide_address(*address, port),
        }
    }

    /// Returns whether a name may be looked up at all: some port of it is allowed.
    pub(crate) fn knows(&self, name: &HostName) -> bool {
        let mut is_allowed = self.scope == Scope::Public;
        for entry in self.entries_of(name) {
            match (entry.effect, entry.ports) {
                (Effect::Deny, Ports::Every) => return false,
                (Effect::Deny, _) => {}
                (Effect::Allow, _) => is_allowed = true,
            }
        }
        is_allowed
    }

    /// Returns whether a resolved address may be dialed for a name that is allowed.
    pub(crate) fn permits(&self, address: IpAddr, port: u16) -> Result<(), Why> {
        let mut is_listed = false;
        for (range, entry) in &self.ranges {
            if range.contains(address) && entry.covers(port) {
                match entry.effect {
                    Effect::Deny => return Err(Why::Denied),
                    Effect::Allow => is_listed = true,
                }
            }
        }
        if is_listed || (address::is_public(address) && !address::is_own(address)) {
            Ok(())
        } else {
            Err(Why::PrivateAddress)
        }
    }

    fn decide_name(&self, name: &HostName, port: u16) -> Result<Tolerance, Why> {
        let (granted, is_known) = granted(self.entries_of(name), port)?;
        match (granted, self.scope) {
            (Some(tolerance), _) => Ok(tolerance),
            (None, Scope::Public) => Ok(Tolerance::everything()),
            (None, Scope::Listed) if is_known => Err(Why::PortNotAllowed),
            (None, Scope::Listed) => Err(Why::NotListed),
        }
    }

    fn decide_address(&self, address: IpAddr, port: u16) -> Result<Tolerance, Why> {
        let ranges = self.ranges.iter().filter(|(range, _)| range.contains(address));
        let (granted, is_known) = granted(ranges.map(|(_, entry)| entry), port)?;
        match (granted, self.scope) {
            (Some(tolerance), _) => Ok(tolerance),
            (None, Scope::Public) if address::is_public(address) => Ok(Tolerance::everything()),
            (None, Scope::Public) => Err(Why::PrivateAddress),
            (None, Scope::Listed) if is_known => Err(Why::PortNotAllowed),
            (None, Scope::Listed) => Err(Why::NotListed),
        }
    }

    fn entries_of(&self, name: &HostName) -> impl Iterator<Item = &Entry> {
        let exact = self.names.get(name).into_iter().flatten();
        let exact = exact.filter(|entry| entry.reach == Reach::Exact);
        let parents = name.parents().filter_map(|parent| self.names.get(&parent)).flatten();
        exact.chain(parents.filter(|entry| entry.reach == Reach::Below))
    }

    fn empty(scope: Scope) -> Self {
        Self {
            scope,
            names: HashMap::new(),
            ranges: Vec::new(),
            allow: BTreeSet::new(),
            deny: BTreeSet::new(),
        }
    }
}

impl Entry {
    fn covers(&self, port: u16) -> bool {
        match self.ports {
            Ports::Default => DEFAULT_PORTS.contains(&port),
            Ports::One(one) => one == port,
            Ports::Every => true,
        }
    }
}

impl Tolerance {
    /// What the scope of everything public grants: it names no host whose SNI could be wrong.
    fn everything() -> Self {
        Self { no_sni: true, ech: true, raw: true, methods: BTreeSet::from(["*".to_owned()]) }
    }

    fn add_to(&self, sum: &mut Option<Self>) {
        let sum = sum.get_or_insert_default();
        sum.no_sni |= self.no_sni;
        sum.ech |= self.ech;
        sum.raw |= self.raw;
        sum.methods.extend(self.methods.iter().cloned());
    }
}

/// Returns what the entries that cover a port grant together, and whether any allows another port
/// alone. One that denies it goes before all of them.
fn granted<'a>(
    entries: impl Iterator<Item = &'a Entry>,
    port: u16,
) -> Result<(Option<Tolerance>, bool), Why> {
    let (mut granted, mut is_known) = (None, false);
    for entry in entries {
        match (entry.effect, entry.covers(port)) {
            (Effect::Deny, true) => return Err(Why::Denied),
            (Effect::Deny, false) => {}
            (Effect::Allow, true) => entry.tolerance.add_to(&mut granted),
            (Effect::Allow, false) => is_known = true,
        }
    }
    Ok((granted, is_known))
}

fn parse_entry(text: &str) -> Result<(Target, Entry), RuleError> {
    let whole = text.trim();
    let (effect, rest) = match whole.strip_prefix('!') {
        Some(rest) => (Effect::Deny, rest),
        None => (Effect::Allow, whole),
    };
    let mut parts = rest.split('+');
    let place = parts.next().unwrap_or_default();
    let mut tolerance = Tolerance::default();
    for option in parts {
        let known = effect == Effect::Allow && tolerance.grant(option);
        if !known {
            return Err(RuleError::Option(whole.to_owned()));
        }
    }
    let (target, port) = split_port(place);
    let target = parse_target(whole, target)?;
    let ports = match (port, effect) {
        (Some("*"), _) | (None, Effect::Deny) => Ports::Every,
        (None, Effect::Allow) => Ports::Default,
        (Some(port), _) => {
            Ports::One(parse_port(port).map_err(|source| host_error(whole, source))?)
        }
    };
    let reach = match &target {
        Target::Name(_, reach) => *reach,
        Target::Range(_) => Reach::Exact,
    };
    Ok((target, Entry { effect, reach, ports, tolerance }))
}

impl Tolerance {
    fn grant(&mut self, option: &str) -> bool {
        match option {
            "no-sni" => self.no_sni = true,
            "ech" => self.ech = true,
            "raw" => self.raw = true,
            _ => match option.strip_prefix("method=") {
                Some(method) if is_method(method) => drop(self.methods.insert(method.to_owned())),
                _ => return false,
            },
        }
        true
    }
}

fn is_method(text: &str) -> bool {
    (1..=16).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_uppercase())
}

fn parse_target(whole: &str, target: &str) -> Result<Target, RuleError> {
    if let Ok(address) = target.parse::<IpAddr>() {
        return Ok(Target::Range(Range::single(address)));
    }
    if let Some((first, prefix)) = target.split_once('/') {
        let range = first.parse().ok().zip(prefix.parse().ok());
        let range = range.and_then(|(first, prefix)| Range::new(first, prefix));
        let range = range.ok_or_else(|| RuleError::Range(whole.to_owned()))?;
        let least = if range.first().is_ipv4() { 8 } else { 7 };
        if range.prefix() < least {
            return Err(RuleError::TooWide(whole.to_owned()));
        }
        return Ok(Target::Range(range));
    }
    let (name, reach) = match target.strip_prefix("*.") {
        Some(name) => (name, Reach::Below),
        None => (target, Reach::Exact),
    };
    let is_bare_suffix = reach == Reach::Below && !name.trim_end_matches('.').contains('.');
    if name.contains('*') || is_bare_suffix {
        return Err(RuleError::Wildcard(whole.to_owned()));
    }
    let name = HostName::from_human(name).map_err(|source| host_error(whole, source))?;
    Ok(Target::Name(name, reach))
}

fn host_error(entry: &str, source: InvalidHost) -> RuleError {
    RuleError::Host { entry: entry.to_owned(), source }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name, Reach::Exact) => write!(f, "{name}"),
            Self::Name(name, Reach::Below) => write!(f, "*.{name}"),
            Self::Range(range) => {
                let first = range.first();
                let slash =
                    if range.is_single() { String::new() } else { format!("/{}", range.prefix()) };
                if first.is_ipv6() {
                    write!(f, "[{first}{slash}]")
                } else {
                    write!(f, "{first}{slash}")
                }
            }
        }
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.ports, self.effect) {
            (Ports::Default, _) | (Ports::Every, Effect::Deny) => {}
            (Ports::Every, Effect::Allow) => f.write_str(":*")?,
            (Ports::One(port), _) => write!(f, ":{port}")?,
        }
        let Tolerance { no_sni, ech, raw, methods } = &self.tolerance;
        for (granted, name) in [(no_sni, "no-sni"), (ech, "ech"), (raw, "raw")] {
            if *granted {
                write!(f, "+{name}")?;
            }
        }
        methods.iter().try_for_each(|method| write!(f, "+method={method}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(entries: &[&str]) -> Rules {
        let entries: Vec<String> = entries.iter().map(|entry| (*entry).to_owned()).collect();
        Rules::parse(&entries).unwrap()
    }

    #[track_caller]
    fn check(entries: &[&str], host: &str, port: u16, expected: Result<(), Why>) {
        let host = Host::from_wire(host).unwrap();
        let found = rules(entries).decide(&host, port).map(drop);
        assert_eq!(found, expected, "{entries:?} {host}:{port}");
    }

    #[test]
    fn an_empty_list_means_nothing() {
        check(&[], "example.com", 443, Err(Why::NotListed));
        check(&[], "1.1.1.1", 443, Err(Why::NotListed));
        assert!(rules(&[]).is_nothing());
        assert!(rules(&[]).ports().is_empty());
    }

    #[test]
    fn hosts_wildcards_and_ports() {
        check(&["example.com"], "EXAMPLE.com.", 443, Ok(()));
        check(&["example.com"], "example.com", 80, Ok(()));
        check(&["example.com"], "example.com", 22, Err(Why::PortNotAllowed));
        check(&["example.com"], "a.example.com", 443, Err(Why::NotListed));
        check(&["example.com"], "notexample.com", 443, Err(Why::NotListed));
        check(&["*.example.com"], "a.b.example.com", 443, Ok(()));
        check(&["*.example.com"], "example.com", 443, Err(Why::NotListed));
        check(&["*.example.com"], "xexample.com", 443, Err(Why::NotListed));
        check(&["example.com:8443"], "example.com", 8443, Ok(()));
        check(&["example.com:8443"], "example.com", 443, Err(Why::PortNotAllowed));
        check(&["example.com:*"], "example.com", 1, Ok(()));
    }

    #[test]
    fn deny_beats_allow() {
        check(&["*.a.com", "!b.a.com"], "b.a.com", 443, Err(Why::Denied));
        check(&["!b.a.com", "*.a.com"], "c.a.com", 443, Ok(()));
        check(&["b.a.com", "!*.a.com"], "b.a.com", 443, Err(Why::Denied));
        check(&["a.com", "!a.com:80"], "a.com", 80, Err(Why::Denied));
        check(&["a.com", "!a.com:80"], "a.com", 443, Ok(()));
        check(&["10.0.0.0/8", "!10.1.0.0/16"], "10.1.2.3", 80, Err(Why::Denied));
    }

    #[test]
    fn addresses_only_as_listed() {
        check(&["1.2.3.4"], "1.2.3.4", 443, Ok(()));
        check(&["example.com"], "1.2.3.4", 443, Err(Why::NotListed));
        check(&["[2606::1]:8443"], "[2606::1]", 8443, Ok(()));
        check(&["2606::1"], "[2606::1]", 443, Ok(()));
        let rules = rules(&["a.com", "10.0.0.0/8", "!10.9.0.0/16"]);
        assert_eq!(rules.permits("10.1.1.1".parse().unwrap(), 443), Ok(()));
        assert_eq!(rules.permits("10.9.1.1".parse().unwrap(), 443), Err(Why::Denied));
        assert_eq!(rules.permits("10.1.1.1".parse().unwrap(), 22), Err(Why::PrivateAddress));
        assert_eq!(rules.permits("192.168.1.1".parse().unwrap(), 443), Err(Why::PrivateAddress));
    }

    #[test]
    fn everything_means_everything_public() {
        let rules = Rules::danger_everything();
        let decide = |host: &str| rules.decide(&Host::from_wire(host).unwrap(), 22).map(drop);
        assert_eq!(decide("example.com"), Ok(()));
        assert_eq!(decide("1.1.1.1"), Ok(()));
        assert_eq!(decide("169.254.169.254"), Err(Why::PrivateAddress));
        assert_eq!(rules.permits("127.0.0.1".parse().unwrap(), 80), Err(Why::PrivateAddress));
    }

    #[test]
    fn bad_entries_are_named() {
        let parse = |entry: &str| Rules::parse(&[entry.to_owned()]).unwrap_err();
        for entry in ["*", "*.com", "a.*.com", "*a.com"] {
            assert_eq!(parse(entry), RuleError::Wildcard(entry.into()));
        }
        for entry in ["10.0.0.1/8", "10.0.0.0/33", "a.com/8", "http://a.com"] {
            assert!(
                matches!(parse(entry), RuleError::Range(_) | RuleError::Host { .. }),
                "{entry}"
            );
        }
        assert_eq!(parse("0.0.0.0/0"), RuleError::TooWide("0.0.0.0/0".into()));
        for entry in ["", "exa mple", "a@b", "a.com:0", "127.1", "[a.com", "!"] {
            assert!(matches!(parse(entry), RuleError::Host { .. }), "{entry}");
        }
        for entry in ["a.com+what", "!a.com+raw", "a.com+method=get", "a.com+"] {
            assert_eq!(parse(entry), RuleError::Option(entry.into()));
        }
    }

    #[test]
    fn the_canonical_form_does_not_depend_on_order_or_spelling() {
        let one =
            rules(&["B.com", "a.com:22+raw+no-sni", "!C.com.", "[2606:0::1]:81", "10.0.0.0/8"]);
        let two = rules(&[
            "10.0.0.0/8",
            "[2606::1]:81",
            "!c.com",
            "a.com:22+no-sni+raw",
            "b.com",
            "b.com",
        ]);
        assert_eq!(one.canonical_json(), two.canonical_json());
        let expected = json!({
            "scope": "listed",
            "allow": ["10.0.0.0/8", "[2606::1]:81", "a.com:22+no-sni+raw", "b.com"],
            "deny": ["c.com"],
        });
        assert_eq!(one.canonical_json(), expected);
        assert_eq!(one.ports(), BTreeSet::from([22, 80, 81, 443]));
    }
}
