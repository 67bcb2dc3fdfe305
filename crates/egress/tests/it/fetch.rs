//! The in-process client.

use std::collections::HashMap;
use std::net::TcpStream;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use warrant_egress::{
    Client, Decision, FetchError, Options, Redirects, Request, Resolver, Response, Rules, Why,
};

use crate::origin::{Conversation, Origin};

struct Setup {
    client: Client,
    seen: Arc<Mutex<Vec<Decision>>>,
}

fn setup(rules: &[String], names: &[(&str, &str)], roots: Vec<Vec<u8>>) -> Setup {
    let mut table = HashMap::new();
    for (name, address) in names {
        table.insert((*name).to_owned(), vec![address.parse().unwrap()]);
    }
    let mut options = Options::bounded();
    options.resolver = Resolver::Static(table);
    options.extra_roots = roots;
    let seen: Arc<Mutex<Vec<Decision>>> = Arc::default();
    let sink = Arc::clone(&seen);
    let reporter = Arc::new(move |decision| sink.lock().unwrap().push(decision));
    let client = Client::new(Rules::parse(rules).unwrap(), options, reporter).unwrap();
    Setup { client, seen }
}

impl Setup {
    fn get(&self, url: &str) -> Result<Response, FetchError> {
        self.client.fetch_blocking(request("GET", url))
    }

    fn told(&self) -> Vec<String> {
        let seen = self.seen.lock().unwrap();
        seen.iter().map(|d| format!("{}:{} {}", d.host, d.port, d.why.as_str())).collect()
    }
}

fn request(method: &str, url: &str) -> Request {
    Request {
        method: method.to_owned(),
        url: url.to_owned(),
        headers: Vec::new(),
        body: Vec::new(),
        max_body_bytes: 1000,
        timeout: Duration::from_secs(20),
        redirects: Redirects::Return,
    }
}

fn answering(reply: impl Fn(&str) -> String + Send + Sync + 'static) -> Origin {
    Origin::new(move |stream| {
        let mut conversation = Conversation(stream);
        let head = conversation.head();
        conversation.send(reply(&head).as_bytes());
    })
}

fn allow(name: &str, port: u16) -> Vec<String> {
    vec![format!("{name}:{port}"), format!("127.0.0.1:{port}")]
}

#[test]
fn an_allowed_page_is_fetched() {
    let origin = answering(|head| {
        assert!(head.starts_with("GET /x?y HTTP/1.1\r\nHost: a.test:"), "{head}");
        "HTTP/1.1 200 Fine\r\nX-A: 1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
            .to_owned()
    });
    let setup = setup(&allow("a.test", origin.port), &[("a.test", "127.0.0.1")], Vec::new());
    let response = setup.get(&format!("http://A.TEST:{}/x?y#z", origin.port)).unwrap();
    assert_eq!((response.status, response.reason.as_str()), (200, "Fine"));
    assert_eq!(response.body, b"abc");
    assert_eq!(response.header("x-a"), Some("1"));
    assert_eq!(setup.told(), [format!("a.test:{} allowed", origin.port)]);
    assert!(setup.client.finish().bytes_in > 10);
}

#[test]
fn the_client_is_bound_by_the_same_rules() {
    let origin = answering(|_| panic!("nobody may come here"));
    let rules = vec!["a.test:80".to_owned(), "b.test".to_owned()];
    let names = [("a.test", "127.0.0.1"), ("b.test", "169.254.169.254"), ("c.test", "1.1.1.1")];
    let setup = setup(&rules, &names, Vec::new());
    let why = |url: &str| match setup.get(url).unwrap_err() {
        FetchError::Refused { why, .. } => why,
        FetchError::Url(_) => Why::MalformedHost,
        other => panic!("{url}: {other}"),
    };
    assert_eq!(why("http://c.test/"), Why::NotListed);
    assert_eq!(why(&format!("http://a.test:{}/", origin.port)), Why::PortNotAllowed);
    assert_eq!(why("http://a.test/"), Why::PrivateAddress, "loopback");
    assert_eq!(why("http://b.test/"), Why::PrivateAddress, "metadata");
    assert_eq!(why("http://127.0.0.1/"), Why::NotListed);
    assert_eq!(why("http://[::ffff:127.0.0.1]/"), Why::NotListed);
    assert_eq!(why("http://0x7f000001/"), Why::MalformedHost);
    assert_eq!(why("http://a.test@c.test/"), Why::MalformedHost);
    let post = setup.client.fetch_blocking(request("POST", "http://a.test/")).unwrap_err();
    assert!(matches!(post, FetchError::Refused { why: Why::MethodNotAllowed, .. }), "{post}");
    assert_eq!(setup.told().len(), 9);
    assert_eq!(origin.count(), 0);
}

#[test]
fn a_method_named_by_the_rule_works() {
    let origin = answering(|head| {
        assert!(head.contains("Content-Length: 2\r\n"), "{head}");
        "HTTP/1.1 204 No Content\r\n\r\n".to_owned()
    });
    let rules =
        [format!("a.test:{}+method=POST", origin.port), format!("127.0.0.1:{}", origin.port)];
    let setup = setup(&rules, &[("a.test", "127.0.0.1")], Vec::new());
    let url = format!("http://a.test:{}/", origin.port);
    let request = Request { body: b"hi".to_vec(), ..request("POST", &url) };
    assert_eq!(setup.client.fetch_blocking(request).unwrap().status, 204);
}

#[test]
fn a_redirect_to_another_host_is_decided_anew() {
    let origin = answering(|head| {
        let path = head.split(' ').nth(1).unwrap();
        let to = match path {
            "/metadata" => "http://169.254.169.254/latest",
            "/denied" => "http://evil.test/",
            "/loop" => "/loop",
            _ => return "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok".to_owned(),
        };
        format!("HTTP/1.1 302 Found\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n")
    });
    let setup = setup(
        &allow("a.test", origin.port),
        &[("a.test", "127.0.0.1"), ("evil.test", "127.0.0.1")],
        Vec::new(),
    );
    let base = format!("http://a.test:{}", origin.port);
    assert_eq!(setup.get(&format!("{base}/metadata")).unwrap().status, 302, "returned by default");
    let follow = |path: &str| {
        let request =
            Request { redirects: Redirects::Follow(3), ..request("GET", &format!("{base}{path}")) };
        setup.client.fetch_blocking(request)
    };
    assert!(matches!(follow("/metadata"), Err(FetchError::Refused { why: Why::NotListed, .. })));
    assert!(matches!(follow("/denied"), Err(FetchError::Refused { why: Why::NotListed, .. })));
    assert!(matches!(follow("/loop"), Err(FetchError::TooManyRedirects)));
    assert_eq!(follow("/fine").unwrap().body, b"ok");
}

#[test]
fn a_redirect_takes_no_credentials_elsewhere() {
    let heads: Arc<Mutex<Vec<String>>> = Arc::default();
    let seen = Arc::clone(&heads);
    let other = answering(move |head| {
        seen.lock().unwrap().push(head.to_owned());
        "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n".to_owned()
    });
    let to = other.port;
    let origin = answering(move |head| {
        assert!(head.contains("Authorization: Bearer x"));
        format!("HTTP/1.1 307 Go\r\nLocation: http://b.test:{to}/\r\nContent-Length: 0\r\n\r\n")
    });
    let rules = [allow("a.test", origin.port), allow("b.test", other.port)].concat();
    let setup = setup(&rules, &[("a.test", "127.0.0.1"), ("b.test", "127.0.0.1")], Vec::new());
    let mut request = request("GET", &format!("http://a.test:{}/", origin.port));
    request.redirects = Redirects::Follow(1);
    request.headers = vec![
        ("Authorization".into(), "Bearer x".into()),
        ("X-Api-Key".into(), "x".into()),
        ("Accept".into(), "a/b".into()),
    ];
    setup.client.fetch_blocking(request).unwrap();
    let heads = heads.lock().unwrap();
    assert!(
        heads[0].contains("Accept: a/b")
            && !heads[0].contains("Bearer")
            && !heads[0].contains("Key")
    );
}

#[test]
fn a_long_body_and_an_odd_header_are_refused() {
    let origin = answering(|_| format!("HTTP/1.1 200 OK\r\n\r\n{}", "x".repeat(5000)));
    let setup = setup(&allow("a.test", origin.port), &[("a.test", "127.0.0.1")], Vec::new());
    let url = format!("http://a.test:{}/", origin.port);
    assert!(matches!(setup.get(&url), Err(FetchError::TooLong(1000))));
    for (name, value) in [
        ("Host", "b.test"),
        ("X", "a\r\nHost: b.test"),
        ("Transfer-Encoding", "chunked"),
        ("a b", "c"),
        ("Content-Length", "0"),
    ] {
        let request =
            Request { headers: vec![(name.into(), value.into())], ..request("GET", &url) };
        let error = setup.client.fetch_blocking(request).unwrap_err();
        assert!(matches!(error, FetchError::Header(_)), "{name}");
    }
}

/// A TLS server for one name, and its certificate.
pub(crate) fn tls_server(name: &str) -> (Arc<rustls::ServerConfig>, Vec<u8>) {
    let key = rcgen::generate_simple_self_signed(vec![name.to_owned()]).unwrap();
    let certificate = key.cert.der().clone();
    let secret = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.signing_key.serialize_der()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.clone()], secret)
        .unwrap();
    (Arc::new(config), certificate.to_vec())
}

/// Answers one request over TLS.
pub(crate) fn answer_tls(config: &Arc<rustls::ServerConfig>, mut stream: TcpStream, reply: &[u8]) {
    use std::io::{Read, Write};
    let mut session = rustls::ServerConnection::new(Arc::clone(config)).unwrap();
    let mut tls = rustls::Stream::new(&mut session, &mut stream);
    let mut head = [0; 1024];
    // A client that does not trust us hangs up here.
    if tls.read(&mut head).is_ok_and(|count| count > 0) {
        drop(tls.write_all(reply));
        session.send_close_notify();
        drop(session.write_tls(&mut stream));
    }
}

#[test]
fn https_trusts_only_the_right_certificate() {
    let (config, root) = tls_server("a.test");
    let origin = Origin::new(move |stream| {
        answer_tls(&config, stream, b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    });
    let rules = [allow("a.test", origin.port), allow("b.test", origin.port)].concat();
    let names = [("a.test", "127.0.0.1"), ("b.test", "127.0.0.1")];
    let trusting = setup(&rules, &names, vec![root]);
    let url = format!("https://a.test:{}/", origin.port);
    assert_eq!(trusting.get(&url).unwrap().body, b"ok");
    let wrong = trusting.get(&format!("https://b.test:{}/", origin.port)).unwrap_err();
    assert!(matches!(wrong, FetchError::Tls { .. }), "{wrong}");
    let strict = setup(&rules, &names, Vec::new());
    assert!(matches!(strict.get(&url), Err(FetchError::Tls { .. })));
}
