//! Attacks through the proxy, in an internet of our own. Each test is named after its attack.

use std::io::Read;
use std::time::Duration;

use crate::internet::{PUBLIC, assert_reachable, internet, options};
use crate::origin::World;
use crate::tunnel::client_hello;

fn get(host: &str) -> String {
    format!("GET http://{host}/ HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")
}

/// An allowed name that resolves to an address nobody listed reaches nothing, by any door.
#[track_caller]
fn refuses_what_resolves_to(name: &str, address: &str) {
    let internet = internet();
    internet.on_host(|| {
        assert_reachable(address);
        let world = internet.proxy(&[name], Vec::new());
        let reply = world.say(get(name).as_bytes());
        assert!(reply.starts_with("HTTP/1.1 403"), "{reply}");
        assert!(reply.contains("Warrant-Why: private-address"), "{reply}");
        let reply = world.tunnel(&format!("{name}:443")).err().unwrap();
        assert!(reply.starts_with("HTTP/1.1 403"), "{reply}");
        let told = world.told();
        assert_eq!(
            told,
            [format!("{name}:80 private-address 1"), format!("{name}:443 private-address 1")]
        );
        let (_, totals) = world.close();
        assert_eq!(totals.bytes_out, 0);
    });
    assert!(!internet.was_reached(address), "{address} was reached");
}

#[test]
fn an_allowed_name_is_reached() {
    let internet = internet();
    internet.on_host(|| {
        let world = internet.proxy(&["public.test", "six.test"], Vec::new());
        for name in ["public.test", "six.test"] {
            let reply = world.say(get(name).as_bytes());
            assert!(reply.starts_with("HTTP/1.1 200"), "{name}: {reply}");
        }
    });
    assert!(internet.was_reached(PUBLIC));
    assert!(internet.was_reached("2606:4700::1111"));
}

#[test]
fn allowed_name_resolving_to_private_is_refused() {
    refuses_what_resolves_to("private.test", "10.0.0.5");
}

#[test]
fn allowed_name_resolving_to_metadata_is_refused() {
    refuses_what_resolves_to("metadata.test", "169.254.169.254");
}

#[test]
fn allowed_name_resolving_to_carrier_space_is_refused() {
    refuses_what_resolves_to("carrier.test", "100.64.0.5");
}

#[test]
fn allowed_name_resolving_to_nat64_is_refused() {
    refuses_what_resolves_to("nat64.test", "64:ff9b::a9fe:a9fe");
    refuses_what_resolves_to("nat64-local.test", "64:ff9b:1::a9fe:a9fe");
}

#[test]
fn allowed_name_resolving_to_6to4_is_refused() {
    refuses_what_resolves_to("sixtofour.test", "2002:a9fe:a9fe::1");
}

#[test]
fn allowed_name_resolving_to_teredo_is_refused() {
    refuses_what_resolves_to("teredo.test", "2001:0:a9fe:a9fe::1");
}

#[test]
fn allowed_name_resolving_to_isatap_is_refused() {
    refuses_what_resolves_to("isatap.test", "2606:4700::5efe:a9fe:a9fe");
}

#[test]
fn allowed_name_resolving_to_site_local_is_refused() {
    refuses_what_resolves_to("sitelocal.test", "fec0::5");
}

#[test]
fn allowed_name_resolving_to_unique_local_is_refused() {
    refuses_what_resolves_to("unique.test", "fd00:ec2::254");
}

/// Answers that no server can stand behind: the refusal alone is looked at.
#[test]
fn allowed_name_resolving_to_loopback_or_mapped_is_refused() {
    let internet = internet();
    internet.on_host(|| {
        for name in
            ["loopback.test", "loopback6.test", "zero.test", "mapped.test", "compatible.test"]
        {
            let world = internet.proxy(&[name], Vec::new());
            let reply = world.say(get(name).as_bytes());
            assert!(reply.contains("Warrant-Why: private-address"), "{name}: {reply}");
        }
    });
}

#[test]
fn an_answer_that_mixes_public_and_private_is_refused_whole() {
    let internet = internet();
    internet.on_host(|| {
        let world = internet.proxy(&["mixed.test"], Vec::new());
        let reply = world.say(get("mixed.test").as_bytes());
        assert!(reply.contains("Warrant-Why: private-address"), "{reply}");
    });
    assert!(!internet.was_reached("10.0.0.5"));
}

#[test]
fn allowed_name_resolving_to_the_machine_itself_is_refused() {
    let internet = internet();
    internet.on_host(|| {
        // Public in form, but an interface of the host; a service listens there.
        let service = std::net::TcpListener::bind("93.184.216.99:80").unwrap();
        service.set_nonblocking(true).unwrap();
        let world = internet.proxy(&["own.test"], Vec::new());
        let reply = world.say(get("own.test").as_bytes());
        assert!(reply.contains("Warrant-Why: private-address"), "{reply}");
        assert!(service.accept().is_err(), "the machine's own service was reached");
    });
}

#[test]
fn a_private_range_is_reached_only_when_listed() {
    let internet = internet();
    internet.on_host(|| {
        let world = internet.proxy(&["listed.test:22+raw", "[fd00:ec2::/32]:22"], Vec::new());
        let tunnel = world.tunnel("listed.test:22").ok().unwrap();
        assert_eq!(tunnel.end(), "SSH-2.0-x\r\n");
        let world = internet.proxy(&["listed.test:22+raw", "[fd00:ec3::/32]:22"], Vec::new());
        assert!(world.tunnel("listed.test:22").is_err());
    });
}

#[test]
fn rebinding_is_refused() {
    let internet = internet();
    internet.on_host(|| {
        let world = internet.proxy(&["rebind.test"], Vec::new());
        let reply = world.say(get("rebind.test").as_bytes());
        assert!(reply.starts_with("HTTP/1.1 200"), "{reply}");
        assert_eq!(internet.was_asked("rebind.test"), 1, "looked up once for one connection");
        drop(world);
        let world = internet.proxy(&["rebind.test"], Vec::new());
        let reply = world.say(get("rebind.test").as_bytes());
        assert!(reply.contains("Warrant-Why: private-address"), "{reply}");
    });
    assert!(!internet.was_reached("169.254.169.254"));
}

#[test]
fn denied_name_reaches_and_resolves_nothing() {
    let internet = internet();
    internet.on_host(|| {
        let world = internet.proxy(&["public.test", "!denied.public.test"], Vec::new());
        for name in ["denied.public.test", "other.test", "public.test.evil.test", "xpublic.test"] {
            let reply = world.say(get(name).as_bytes());
            assert!(reply.starts_with("HTTP/1.1 403"), "{name}: {reply}");
            assert_eq!(internet.was_asked(name), 0, "{name} was looked up");
        }
    });
}

#[test]
fn ip_literals_in_every_spelling_are_refused() {
    let internet = internet();
    internet.on_host(|| {
        assert_reachable("169.254.169.254");
        let world = internet.proxy(&["public.test"], Vec::new());
        for host in [
            "169.254.169.254",
            "169.254.43518",
            "169.16689662",
            "2852039166",
            "0xa9fea9fe",
            "0xa9.0xfe.0xa9.0xfe",
            "0251.0376.0251.0376",
            "0251.254.169.254",
            "169.254.169.254.",
            "[::ffff:169.254.169.254]",
            "[::ffff:a9fe:a9fe]",
            "[::169.254.169.254]",
            "[64:ff9b::169.254.169.254]",
            "[2002:a9fe:a9fe::1]",
            "[fec0::5]",
            "[fe80::1%25eth0]",
            "127.0.0.1",
            "localhost",
            "[::1]",
            "[::]",
            "0",
            "0.0.0.0",
            "127.1",
            "１６９.254.169.254",
            "%31%36%39.254.169.254",
            "①⑥⑨.254.169.254",
            PUBLIC,
        ] {
            let reply = world.say(get(host).as_bytes());
            assert!(reply.starts_with("HTTP/1.1 40"), "{host}: {reply}");
            let reply = world.tunnel(&format!("{host}:80")).err().unwrap_or_default();
            assert!(reply.starts_with("HTTP/1.1 40"), "{host}: {reply}");
        }
        let (seen, totals) = world.close();
        assert_eq!(totals.bytes_out, 0);
        assert!(seen.iter().all(|decision| !decision.allowed));
        assert!(seen.iter().all(|decision| decision.host.is_ascii()));
    });
    assert!(!internet.was_reached("169.254.169.254"));
}

#[test]
fn user_info_fragments_percent_and_nul_are_refused() {
    let internet = internet();
    internet.on_host(|| {
        let world = internet.proxy(&["public.test"], Vec::new());
        for target in [
            "http://public.test@other.test/",
            "http://public.test:80@other.test/",
            "http://other.test#@public.test/",
            "http://other.test#.public.test/",
            "http://public.test#@other.test/",
            "http://other.test\\.public.test/",
            "http://other.test\\@public.test/",
            "http://other.test%00.public.test/",
            "http://other.test%2e.public.test/",
            "http://other.test%23.public.test/",
            "http://other.test\0.public.test/",
            "http://other.test\t.public.test/",
            "http://other.test\x0b.public.test/",
            "http://public.test:80:80/",
            "http://public.test:/",
            "http://public.test:0x50/",
            "http://:80/",
            "http:///public.test/",
            "http:/public.test/",
            "http:public.test",
            "https://public.test/",
            "ftp://public.test/",
            "gopher://public.test/",
            "file:///etc/passwd",
            "//public.test/",
        ] {
            let reply = world.say(
                format!("GET {target} HTTP/1.1\r\nHost: public.test\r\nConnection: close\r\n\r\n")
                    .as_bytes(),
            );
            assert!(reply.starts_with("HTTP/1.1 40"), "{target:?}: {reply}");
        }
        for authority in [
            "public.test@other.test:443",
            "other.test\0.public.test:443",
            "public.test:443:443",
            "public.test:",
            "@public.test:443",
            "public.test/x:443",
            "public.test#:443",
        ] {
            let reply = world.tunnel(authority).err().unwrap_or_default();
            assert!(reply.starts_with("HTTP/1.1 40"), "{authority:?}: {reply}");
        }
        let (seen, totals) = world.close();
        assert_eq!(totals.bytes_out, 0);
        assert!(seen.iter().all(|decision| !decision.allowed), "{seen:?}");
    });
}

#[test]
fn case_and_trailing_dot_do_not_dodge_a_deny_rule() {
    let internet = internet();
    internet.on_host(|| {
        let world =
            internet.proxy(&["*.public.test", "public.test", "!bad.public.test"], Vec::new());
        for host in ["bad.public.test", "BAD.public.test", "bad.PUBLIC.test.", "Bad.Public.Test."] {
            let reply = world.say(get(host).as_bytes());
            assert!(reply.contains("Warrant-Why: denied"), "{host}: {reply}");
        }
        assert!(world.say(get("bad.public.test..").as_bytes()).starts_with("HTTP/1.1 403"));
        // The same spellings of an allowed name are that name, and nothing else reaches the server.
        let reply = world.say(get("PUBLIC.test.").as_bytes());
        assert!(reply.contains("Host: public.test\r\n"), "{reply}");
        assert_eq!(world.told()[0], "bad.public.test:80 denied 1");
    });
}

#[test]
fn punycode_does_not_name_a_second_host() {
    let internet = internet();
    internet.on_host(|| {
        let world = internet.proxy(&["bücher.test", "public.test"], Vec::new());
        for host in [
            "xn--a.test",
            "xn--public-.test",
            "xn--public.test",
            "bücher.test",
            "ｐublic.test",
            "public。test",
        ] {
            let reply = world.say(get(host).as_bytes());
            assert!(reply.starts_with("HTTP/1.1 40"), "{host}: {reply}");
        }
        // Allowed, though nobody has that name here.
        let reply = world.say(get("xn--bcher-kva.test").as_bytes());
        assert!(reply.starts_with("HTTP/1.1 502"), "{reply}");
    });
}

#[test]
fn connect_to_an_allowed_host_cannot_speak_tls_to_another() {
    let internet = internet();
    internet.on_host(|| {
        let world = internet.proxy(&["public.test"], Vec::new());
        let mut tunnel = world.tunnel("public.test:443").ok().unwrap();
        tunnel.send(&client_hello(Some("other.test")));
        assert_eq!(tunnel.end(), "");
        let mut tunnel = world.tunnel("public.test:443").ok().unwrap();
        tunnel.send(&client_hello(Some("public.test")));
        let mut first = [0; 3];
        tunnel.0.read_exact(&mut first).unwrap();
        assert_eq!(first[..2], [22, 3], "a ServerHello comes back");
        assert_eq!(world.told(), ["public.test:443 sni-mismatch 1", "public.test:443 allowed 1"]);
    });
}

#[test]
fn a_run_without_rules_reaches_nothing() {
    let internet = internet();
    internet.on_host(|| {
        let world = internet.proxy(&[], Vec::new());
        for host in ["public.test", PUBLIC, "metadata.test", "localhost"] {
            assert!(world.say(get(host).as_bytes()).starts_with("HTTP/1.1 403"));
        }
        assert_eq!(world.close().1.bytes_out, 0);
    });
}

#[test]
fn everything_public_still_means_nothing_private() {
    let internet = internet();
    internet.on_host(|| {
        let world = World::start(warrant_egress::Rules::danger_everything(), options(), Vec::new());
        assert!(world.say(get("public.test").as_bytes()).starts_with("HTTP/1.1 200"));
        for host in [
            "metadata.test",
            "169.254.169.254",
            "10.0.0.5",
            "nat64.test",
            "own.test",
            "93.184.216.99",
            "[fec0::5]",
        ] {
            let reply = world.say(get(host).as_bytes());
            assert!(reply.starts_with("HTTP/1.1 403"), "{host}: {reply}");
        }
    });
}

#[test]
fn a_dead_name_server_does_not_hang_the_proxy() {
    let internet = internet();
    internet.on_host(|| {
        let mut options = options();
        options.resolver =
            warrant_egress::Resolver::Nameserver("93.184.216.99:5353".parse().unwrap());
        options.connect_timeout = Duration::from_millis(500);
        let rules = warrant_egress::Rules::parse(&["public.test".to_owned()]).unwrap();
        let world = World::start(rules, options, Vec::new());
        assert!(world.say(get("public.test").as_bytes()).starts_with("HTTP/1.1 502"));
    });
}
