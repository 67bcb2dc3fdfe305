//! The house around the routes: TLS, identity tokens, retention, the description of the API.

use std::io::Write as _;
use std::process::Command;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use warrant_plane::http::settings::Settings;
use warrant_plane::http::{TlsFiles, tls};

use super::support::{HandRunner, Plane, request};

#[test]
fn the_description_names_every_route_and_needs_no_token() {
    let plane = Plane::start();
    let (status, document) = plane.client().call("GET", "/v1/openapi.json", None, None);
    assert_eq!((status, &document["openapi"]), (200, &json!("3.1.0")));
    let paths = document["paths"].as_object().unwrap();
    for path in ["/v1/runs", "/v1/claims", "/v1/runs/{id}/start", "/v1/blobs/{hash}"] {
        assert!(paths.contains_key(path), "{path}");
    }
    let text = document.to_string();
    for (at, _) in text.match_indices("#/components/schemas/") {
        let rest = &text[at + "#/components/schemas/".len()..];
        let name = rest.split('"').next().unwrap();
        assert!(document["components"]["schemas"].get(name).is_some(), "{name}");
    }
}

#[test]
fn identity_tokens_count_only_when_signed_by_a_pinned_key_and_for_us() {
    let key = warrant_plane::home::fresh_key().unwrap();
    let jwk = json!({
        "kty": "OKP", "crv": "Ed25519", "kid": "k1", "alg": "EdDSA", "use": "sig",
        "x": URL_SAFE_NO_PAD.encode(key.public().as_bytes()),
    });
    let idp = json!({"issuer": "https://idp", "audience": "warrant", "jwks": {"keys": [jwk]}});
    let plane = Plane::start_with(|settings| {
        settings.idp = serde_json::from_value(idp).unwrap();
    });
    let approver = plane.principal(&json!({"name": "desk", "role": "approver"}));
    let body = json!({"request": request("true", &["MOCK_SECRET"])});
    let (_, asked) = plane.client().call("POST", "/v1/runs", Some(&plane.admin), Some(&body));
    let path = format!("/v1/runs/{}/approve", asked["runId"].as_str().unwrap());
    let now = crate::support::now().unix_ms() / 1000;
    let token = |header: &Value, claims: &Value, signer: &warrant_protocol::SigningKey| {
        let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let signed = format!("{}.{}", part(header), part(claims));
        let signature = URL_SAFE_NO_PAD.encode(signer.sign(signed.as_bytes()));
        format!("{signed}.{signature}")
    };
    let approve = |token: String| {
        let body = json!({"idpToken": token});
        plane.client().call("POST", &path, Some(&approver), Some(&body))
    };
    let header = json!({"alg": "EdDSA", "kid": "k1"});
    let claims =
        json!({"iss": "https://idp", "aud": "warrant", "sub": "security", "exp": now + 300});
    let with = |name: &str, value: Value| {
        let mut claims = claims.clone();
        claims[name] = value;
        claims
    };
    let other = warrant_plane::home::fresh_key().unwrap();
    let wrong = [
        token(&header, &claims, &other),
        token(&json!({"alg": "EdDSA", "kid": "k2"}), &claims, &key),
        token(&json!({"alg": "HS256", "kid": "k1"}), &claims, &key),
        token(&json!({"alg": "none"}), &claims, &key),
        token(&header, &with("iss", json!("https://evil")), &key),
        token(&header, &with("aud", json!("other")), &key),
        token(&header, &with("exp", json!(now - 300)), &key),
        "nonsense".to_owned(),
    ];
    for token in wrong {
        let (status, answer) = approve(token);
        assert_eq!(status, 401, "{answer}");
    }
    let (status, answer) = approve(token(&header, &with("sub", json!("eve")), &key));
    assert_eq!(status, 403, "the policy does not name eve: {answer}");
    let (status, answer) = approve(token(&header, &claims, &key));
    assert_eq!((status, &answer["status"]), (200, &json!("created")), "{answer}");
}

#[test]
fn retention_removes_old_runs_and_unnamed_blobs_and_nothing_that_is_being_uploaded() {
    let plane = Plane::start();
    let admin = Some(plane.admin.as_str());
    let store = |bytes: &[u8]| {
        let (_, answer) = plane.client().bytes("POST", "/v1/blobs", admin, Some(bytes.to_vec()));
        let answer: Value = serde_json::from_slice(&answer).unwrap();
        answer["hash"].as_str().unwrap().to_owned()
    };
    let large = vec![7; 100_000];
    let (unnamed, unnamed_large, bundle) = (store(b"unnamed"), store(&large), store(b"bundle"));
    let mut wish = request("true", &[]);
    wish["workspace"]["bundleHash"] = json!(bundle);
    let (status, live) =
        plane.client().call("POST", "/v1/runs", admin, Some(&json!({"request": wish})));
    assert_eq!(status, 200, "{live}");
    let runner = HandRunner::enroll(&plane, "default");
    let ended = plane.submit("echo old");
    let first = runner.claim(0).unwrap();
    let mut second = runner.claim(0).unwrap();
    assert_eq!((&live["runId"], &second.run), (&json!(first.run), &ended));
    runner.start(&mut second);
    assert_eq!(runner.finish(&mut second).0, 200);
    let now = crate::support::now();
    let exists = |hash: &str| {
        plane.client().bytes("GET", &format!("/v1/blobs/{hash}"), admin, None).0 == 200
    };
    let swept = plane.service.sweep_retention(now.plus_ms(3_600_000)).unwrap();
    assert_eq!((swept.runs, swept.blobs), (0, 0), "nothing goes within the grace");
    let day = 24 * 3_600_000;
    let swept = plane.service.sweep_retention(now.plus_ms(day + 60_000)).unwrap();
    assert_eq!((swept.runs, swept.blobs), (0, 2));
    assert!(!exists(&unnamed) && !exists(&unnamed_large) && exists(&bundle));
    assert_eq!(store(&large), unnamed_large, "it can be stored again");
    assert!(exists(&unnamed_large));
    let swept = plane.service.sweep_retention(now.plus_ms(400 * day)).unwrap();
    assert_eq!(swept.runs, 1, "the ended run goes, the live one stays");
    let path = format!("/v1/runs/{ended}");
    assert_eq!(plane.client().call("GET", &path, admin, None).0, 404);
    assert_eq!(plane.view(&first.run)["status"], "claimed");
    assert!(exists(&bundle));
}

#[test]
fn artifacts_go_before_the_evidence_that_names_them() {
    let plane = Plane::start();
    let admin = Some(plane.admin.as_str());
    let store = |bytes: &[u8]| {
        let (_, answer) = plane.client().bytes("POST", "/v1/blobs", admin, Some(bytes.to_vec()));
        let answer: Value = serde_json::from_slice(&answer).unwrap();
        answer["hash"].as_str().unwrap().to_owned()
    };
    let exists = |hash: &str| {
        plane.client().bytes("GET", &format!("/v1/blobs/{hash}"), admin, None).0 == 200
    };
    let (old, live) = (store(b"of the ended run"), store(b"of the live run"));
    let submit = |bundle: &str| {
        let mut wish = request("true", &[]);
        wish["workspace"]["bundleHash"] = json!(bundle);
        let wish = json!({ "request": wish });
        let (status, answer) = plane.client().call("POST", "/v1/runs", admin, Some(&wish));
        assert_eq!(status, 200, "{answer}");
    };
    let runner = HandRunner::enroll(&plane, "default");
    submit(&old);
    let mut held = runner.claim(0).unwrap();
    runner.start(&mut held);
    assert_eq!(runner.finish(&mut held).0, 200);
    submit(&live);
    let _live = runner.claim(0).unwrap();
    let (now, day) = (crate::support::now(), 24 * 3_600_000);
    let swept = plane.service.sweep_retention(now.plus_ms(89 * day)).unwrap();
    assert_eq!((swept.runs, swept.blobs), (0, 0), "artifacts are kept for 90 days");
    assert!(exists(&old) && exists(&live));
    let swept = plane.service.sweep_retention(now.plus_ms(91 * day)).unwrap();
    assert_eq!((swept.runs, swept.blobs), (0, 1));
    assert!(!exists(&old) && exists(&live), "a run under way keeps what it needs");
    let path = format!("/v1/runs/{}/bundle", held.run);
    assert_eq!(plane.client().call("GET", &path, admin, None).0, 200, "the evidence stays");
}

#[test]
fn settings_that_mean_nothing_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("config.json");
    let (made, is_new) = Settings::open(dir.path()).unwrap();
    assert!(is_new && Settings::find(dir.path()).unwrap() == Some(made));
    let good: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let read = |changed: &Value| {
        std::fs::write(&file, changed.to_string()).unwrap();
        Settings::open(dir.path()).map(drop).map_err(|error| error.to_string())
    };
    for (name, value, why) in [
        ("limts", json!({}), "limts"),
        ("limits", json!({"requestsPerSeconds": 1}), "requestsPerSeconds"),
        ("limits", json!({"requestBurst": 0}), "limits.requestBurst"),
        ("limits", json!({"authFailuresPerMinute": 0}), "limits.authFailuresPerMinute"),
        ("compat", json!({"openBlobs": true}), "openBlobs"),
    ] {
        let mut changed = good.clone();
        changed[name] = value;
        let error = read(&changed).unwrap_err();
        assert!(error.contains(why), "{error}");
    }
    let mut changed = good;
    changed["limits"] = json!({"requestsPerSecond": 5, "authFailuresPerMinute": 7});
    assert_eq!(read(&changed), Ok(()));
}

#[test]
fn tls_serves_and_a_client_without_a_certificate_is_turned_away() {
    let dir = tempfile::tempdir().unwrap();
    let openssl = |arguments: &str| {
        let done = Command::new("openssl")
            .args(arguments.split_whitespace())
            .current_dir(dir.path())
            .output()
            .unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    };
    let mut extension = std::fs::File::create(dir.path().join("ext")).unwrap();
    write!(extension, "subjectAltName=IP:127.0.0.1").unwrap();
    let fresh = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2";
    openssl(&format!("req -x509 {fresh} -keyout ca.key -out ca.pem -subj /CN=ca"));
    for name in ["server", "client"] {
        openssl(&format!("req {fresh} -keyout {name}.key -out {name}.csr -subj /CN={name}"));
        openssl(&format!(
            "x509 -req -in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 \
             -extfile ext -out {name}.pem"
        ));
    }
    let at = |name: &str| dir.path().join(name);
    let missing = TlsFiles {
        certificate: &at("nothing.pem"),
        key: &at("server.key"),
        client_authority: None,
    };
    assert!(tls(&missing).is_err());
    let read = |name: &str| std::fs::read(at(name)).unwrap();
    let authority = reqwest::Certificate::from_pem(&read("ca.pem")).unwrap();
    let identity = [read("client.key"), read("client.pem")].concat();
    for is_mutual in [false, true] {
        let client_authority = at("ca.pem");
        let acceptor = tls(&TlsFiles {
            certificate: &at("server.pem"),
            key: &at("server.key"),
            client_authority: is_mutual.then_some(client_authority.as_path()),
        })
        .unwrap();
        let plane = Plane::start_tls(acceptor);
        let get = |identity: Option<&[u8]>| {
            let mut builder = reqwest::Client::builder().tls_certs_only([authority.clone()]);
            if let Some(identity) = identity {
                builder = builder.identity(reqwest::Identity::from_pem(identity).unwrap());
            }
            super::support::runtime().block_on(async {
                let client = builder.build().unwrap();
                let sent = client.get(format!("{}/v1/health", plane.url)).send().await;
                sent.map(|response| response.status().as_u16()).map_err(drop)
            })
        };
        assert_eq!(get(Some(&identity)), Ok(200));
        assert_eq!(get(None), if is_mutual { Err(()) } else { Ok(200) });
    }
}
