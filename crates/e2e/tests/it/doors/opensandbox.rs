//! Attacks on the OpenSandbox door by someone who holds a token of it, with requests no SDK sends.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use serde_json::{Value, json};
use warrant_govern::live::TokenFile;
use warrant_plane::doors::{AtEnd, DoorName, Reach, Sandbox, Wanted, Workshop as _};
use warrant_protocol::request::{ActorKind, ActorRef};

use super::House;

/// One request of an attacker.
struct Request<'a> {
    method: &'a str,
    path: String,
    headers: Vec<(&'a str, String)>,
    body: Vec<u8>,
}

impl House {
    /// Sends one request and returns the status and what was said.
    fn ask(&self, request: &Request<'_>) -> (u16, String) {
        let mut stream = TcpStream::connect(self.address).unwrap();
        let mut head = format!(
            "{} {} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n",
            request.method,
            request.path,
            request.body.len()
        );
        for (name, value) in &request.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        stream.write_all(format!("{head}\r\n").as_bytes()).unwrap();
        // A refusal may come before all was sent.
        let _ = stream.write_all(&request.body);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok());
        (status.unwrap_or_else(|| panic!("no status: {answer}")), answer)
    }

    fn make(&self, token: usize, door: DoorName) -> Sandbox {
        let guest =
            ActorRef { kind: ActorKind::Service, id: format!("door-{}", ["one", "two"][token]) };
        let wanted = Wanted {
            door,
            template: "x".to_owned(),
            name: None,
            timeout_ms: None,
            at_end: AtEnd::Ends,
            idle_ms: None,
            env: [("EXECD_ENVS".to_owned(), "/tmp/envs".to_owned())].into(),
            labels: [].into(),
            reach: Reach::Nothing,
            memory_bytes: None,
            cpu_milli: None,
            disk_bytes: None,
            home: "/workspace".to_owned(),
            user: "sandbox".to_owned(),
        };
        self.live.create(&guest, wanted).unwrap()
    }

    /// A call on a sandbox's execd by its own token.
    #[track_caller]
    fn check_execd(
        &self,
        (sandbox, access): (&Sandbox, &Sandbox),
        (method, path, body): (&str, &str, &Value),
        expected: (u16, &str),
    ) {
        let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        let request = Request {
            method,
            path: format!("/v1/sandboxes/{}/proxy/44772{path}", sandbox.id),
            headers: vec![("x-execd-access-token", access.access_token.clone())],
            body,
        };
        let (status, said) = self.ask(&request);
        assert_eq!(status, expected.0, "{method} {path}: {said}");
        assert!(said.contains(expected.1), "{method} {path}: {said}");
    }

    #[track_caller]
    fn check_lifecycle(
        &self,
        token: usize,
        (method, path, body): (&str, String, &Value),
        expected: (u16, &str),
    ) {
        let request = Request {
            method,
            path,
            headers: vec![("open-sandbox-api-key", self.tokens[token].clone())],
            body: if body.is_null() { Vec::new() } else { body.to_string().into_bytes() },
        };
        let (status, said) = self.ask(&request);
        assert_eq!(status, expected.0, "{method} {}: {said}", request.path);
        assert!(said.contains(expected.1), "{method} {}: {said}", request.path);
    }
}

#[test]
fn a_sandboxs_own_token_opens_nothing_once_its_makers_is_revoked() {
    let house = House::open();
    let sandbox = house.make(0, DoorName::Opensandbox);
    let own = (&sandbox, &sandbox);
    house.check_execd(own, ("GET", "/ping", &Value::Null), (200, ""));
    let tokens = TokenFile::of(house.desk.plane().home().root());
    assert!(tokens.revoke("one").unwrap());
    house.check_execd(own, ("GET", "/ping", &Value::Null), (404, "SANDBOX_NOT_FOUND"));
    // Another token of the same name is another token.
    tokens.issue("one").unwrap();
    house.check_execd(own, ("GET", "/ping", &Value::Null), (404, "SANDBOX_NOT_FOUND"));
    let command = json!({ "command": "true" });
    house.check_execd(own, ("POST", "/command", &command), (404, "SANDBOX_NOT_FOUND"));
    // The E2B door's data plane is opened the same way.
    let request = Request {
        method: "GET",
        path: "/health".to_owned(),
        headers: vec![
            ("e2b-sandbox-id", sandbox.id.clone()),
            ("x-access-token", sandbox.access_token.clone()),
        ],
        body: Vec::new(),
    };
    assert_eq!(house.ask(&request).0, 502);
}

#[test]
fn a_sandbox_of_helm_cannot_be_entered_by_its_own_token() {
    let house = House::open();
    let sandbox = house.make(0, DoorName::Helm);
    let command = json!({ "command": "true" });
    let own = (&sandbox, &sandbox);
    house.check_execd(own, ("POST", "/command", &command), (404, "SANDBOX_NOT_FOUND"));
    house.check_execd(
        own,
        ("GET", "/files/info?path=/tmp", &Value::Null),
        (404, "SANDBOX_NOT_FOUND"),
    );
}

#[test]
fn one_sandboxs_token_or_command_says_nothing_about_another() {
    let house = House::open();
    let (mine, other) =
        (house.make(0, DoorName::Opensandbox), house.make(1, DoorName::Opensandbox));
    let second = house.make(0, DoorName::Opensandbox);
    let nothing = &Value::Null;
    for path in ["/ping", "/files/download?path=/tmp/x", "/directories/list?path=/tmp"] {
        house.check_execd((&other, &mine), ("GET", path, nothing), (404, "SANDBOX_NOT_FOUND"));
    }
    for call in [("GET", ""), ("DELETE", ""), ("POST", "/pause"), ("GET", "/endpoints/44772")] {
        let path = format!("/v1/sandboxes/{}{}", other.id, call.1);
        house.check_lifecycle(0, (call.0, path, nothing), (404, "SANDBOX_NOT_FOUND"));
    }
    // A command of another sandbox, even one of the same token, is none of this one.
    let guest = ActorRef { kind: ActorKind::Service, id: "door-one".to_owned() };
    let start = warrant_plane::doors::Start {
        argv: vec!["sleep".to_owned(), "60".to_owned()],
        env: [].into(),
        cwd: None,
        timeout_ms: None,
        stdin: false,
        terminal: None,
        tag: None,
        session: None,
        approved: None,
    };
    let process = house.live.start(&guest, &second.id, start).unwrap();
    let run = process.facts().run.as_str();
    for (method, path) in [
        ("GET", format!("/command/status/{run}")),
        ("GET", format!("/command/{run}/logs")),
        ("DELETE", format!("/command?id={run}")),
    ] {
        let expected = (404, "COMMAND_NOT_FOUND");
        house.check_execd((&mine, &mine), (method, &path, nothing), expected);
    }
    assert!(process.end().is_none(), "nobody ended it");
}

#[test]
fn one_request_cannot_ask_for_thousands_of_file_calls() {
    let house = House::open();
    let sandbox = house.make(0, DoorName::Opensandbox);
    let own = (&sandbox, &sandbox);
    let names = |value: Value| -> Value {
        (0..1001).map(|number| (format!("/tmp/{number}"), value.clone())).collect()
    };
    let expected = (400, "at most 1000 names");
    house.check_execd(own, ("POST", "/directories", &names(json!({}))), expected);
    house.check_execd(
        own,
        ("POST", "/files/permissions", &names(json!({ "mode": 644 }))),
        expected,
    );
    house.check_execd(
        own,
        ("POST", "/files/replace", &names(json!({ "old": "a", "new": "b" }))),
        expected,
    );
    let moves = vec![json!({ "src": "/tmp/a", "dest": "/tmp/b" }); 1001];
    house.check_execd(own, ("POST", "/files/mv", &json!(moves)), expected);
    let query = format!("/files?{}", "path=x&".repeat(1001));
    house.check_execd(own, ("DELETE", query.trim_end_matches('&'), &Value::Null), expected);
    let pair = "--b\r\ncontent-disposition: form-data; name=\"metadata\"\r\n\r\n{\"path\":\"/tmp/x\"}\r\n\
                --b\r\ncontent-disposition: form-data; name=\"file\"\r\n\r\n\r\n";
    let (status, said) = house.upload(&sandbox, &format!("{}--b--\r\n", pair.repeat(1001)));
    assert_eq!(status, 400, "{said}");
    assert!(said.contains(expected.1), "{said}");
    let made = house.home.path().join("home/data/live").join(&sandbox.id).join("tmp");
    assert_eq!(std::fs::read_dir(made).unwrap().count(), 0, "nothing of it was done");
}

impl House {
    fn upload(&self, sandbox: &Sandbox, form: &str) -> (u16, String) {
        self.ask(&Request {
            method: "POST",
            path: format!("/v1/sandboxes/{}/proxy/44772/files/upload", sandbox.id),
            headers: vec![
                ("x-execd-access-token", sandbox.access_token.clone()),
                ("content-type", "multipart/form-data; boundary=b".to_owned()),
            ],
            body: form.as_bytes().to_vec(),
        })
    }
}

#[test]
fn an_odd_form_writes_nothing() {
    let house = House::open();
    let sandbox = house.make(0, DoorName::Opensandbox);
    let part = |name: &str, content: &str| {
        format!("--b\r\ncontent-disposition: form-data; name=\"{name}\"\r\n\r\n{content}\r\n")
    };
    let good = part("metadata", "{\"path\":\"/tmp/x\"}");
    let long = format!("{{\"path\":\"/tmp/x\",\"owner\":\"{}\"}}", " ".repeat(70_000));
    let odd = [
        String::new(),
        good.clone(),
        part("file", "x"),
        format!("{}{good}", part("file", "x")),
        format!("{good}{good}{}", part("file", "x")),
        format!("{good}{}{}", part("file", "x"), part("file", "y")),
        format!("{good}{}{good}", part("file", "x")),
        format!("{}{}", part("metadata", "{}"), part("file", "x")),
        format!("{}{}", part("metadata", "{\"path\":\"/tmp/x\",\"mode\":4755}"), part("file", "x")),
        format!("{}{}", part("metadata", "{\"path\":\"/tmp/x\",\"mode\":988}"), part("file", "x")),
        format!("{}{}", part("metadata", "{\"path\":\"/tmp/x\",\"mode\":-1}"), part("file", "x")),
        format!(
            "{}{}",
            part("metadata", "{\"path\":\"/tmp/x\",\"link\":\"/\"}"),
            part("file", "x")
        ),
        format!("{}{}", part("metadata", &long), part("file", "x")),
    ];
    for form in odd {
        let (status, said) = house.upload(&sandbox, &format!("{form}--b--\r\n"));
        assert_eq!(status, 400, "{form}: {said}");
    }
    // A form that breaks off is none.
    assert_eq!(house.upload(&sandbox, &format!("{good}{}", part("file", "x"))).0, 400);
    for path in ["/etc/passwd", "../../etc/x", "/workspace/../../x", "/proc/self/mem", "/tmp/../x"]
    {
        let form = format!(
            "{}{}--b--\r\n",
            part("metadata", &json!({ "path": path }).to_string()),
            part("file", "x")
        );
        let (status, said) = house.upload(&sandbox, &form);
        assert_eq!(status, 404, "{path}: {said}");
    }
    let made = house.home.path().join("home/data/live").join(&sandbox.id);
    for name in ["tmp", "home"] {
        assert_eq!(std::fs::read_dir(made.join(name)).unwrap().count(), 0, "{name}");
    }
}

#[test]
fn a_huge_body_is_read_into_no_tree() {
    let house = House::open();
    let sandbox = house.make(0, DoorName::Opensandbox);
    let huge: Value = vec![json!([]); 2_000_000].into();
    house.check_lifecycle(0, ("POST", "/v1/sandboxes".to_owned(), &huge), (413, "INVALID_REQUEST"));
    house.check_execd((&sandbox, &sandbox), ("POST", "/files/mv", &huge), (413, "INVALID_REQUEST"));
}

#[test]
fn variables_kept_in_a_file_cannot_make_a_command_another() {
    let house = House::open();
    let sandbox = house.make(0, DoorName::Opensandbox);
    let own = (&sandbox, &sandbox);
    let file = house.home.path().join("home/data/live").join(&sandbox.id).join("tmp/envs");
    let command = json!({ "command": "echo $A" });
    for evil in
        ["BASH_ENV=/tmp/x", "BASH_FUNC_ls%%='() { id; }'", "LD_PRELOAD=/tmp/x", "PS4='$(id)'"]
    {
        std::fs::write(&file, evil).unwrap();
        house.check_execd(own, ("POST", "/command", &command), (400, "nobody judged"));
    }
    std::fs::remove_file(&file).unwrap();
    std::os::unix::fs::symlink("/etc/environment", &file).unwrap();
    house.check_execd(own, ("POST", "/command", &command), (400, "cannot be used"));
    std::fs::remove_file(&file).unwrap();
    std::fs::write(&file, "A='fine'").unwrap();
    house.check_execd(own, ("POST", "/command", &command), (200, "fine"));
}
