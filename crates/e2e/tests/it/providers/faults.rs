//! A provider that fails in every way there is, at every provider: each ends in the right outcome
//! with a receipt, the program was started at most once, and no sandbox is left.

use serde_json::{Value, json};
use warrant_protocol::Isolation;

use super::door::Door;
use super::proxy::How::{
    Answers, Cuts, Damages, Drips, Edits, Hangs, Instead, Rewrites, Truncates, Twice,
};
use super::proxy::Kind::{Create, Download, Reading, Rules, Start, Upload};
use super::proxy::When::{Afterwards, Always, Every, Later, Saying};
use super::proxy::{HONEST, How, Proxy, Trick, When};
use super::site::{Ran, Site};
use super::streams::damaged;

/// One way to fail and what becomes of it: exit code, outcome, and how often the program was
/// started at the door.
struct Case {
    name: &'static str,
    trick: Trick,
    code: i32,
    outcome: &'static str,
    starts: usize,
}

const fn case(name: &'static str, when: When, how: How, end: (i32, &'static str, usize)) -> Case {
    let (code, outcome, starts) = end;
    Case { name, trick: Trick { when, how }, code, outcome, starts }
}

/// Nothing was built, so nothing was started.
const REFUSED: (i32, &str, usize) = (7, "posture-refused", 0);
/// It was built, and something broke before the start.
const BROKEN: (i32, &str, usize) = (1, "failed", 0);
/// It was started, and nobody saw its end.
const UNSEEN: (i32, &str, usize) = (1, "unobserved", 1);
const WELL: (i32, &str, usize) = (0, "exited", 1);

const NO_JSON: &str = "<html>bad gateway</html>";
const ERROR: &str = r#"{"code":500,"message":"oops"}"#;
const REVOKED: &str = r#"{"code":401,"message":"unauthorized"}"#;

const CASES: &[Case] = &[
    case("nothing goes wrong", Always, How::Honest, WELL),
    case("creating is refused by an error", Every(Create), Instead(500, ERROR), REFUSED),
    case("created and answered with an error", Every(Create), Answers(504, ERROR), REFUSED),
    case("created and never answered", Every(Create), Hangs, REFUSED),
    case("created and cut", Every(Create), Cuts, REFUSED),
    case("created and half answered", Every(Create), Truncates, REFUSED),
    case("created and answered without sense", Every(Create), Answers(201, NO_JSON), REFUSED),
    case("created under a name that leads elsewhere", Every(Create), Edits(other_path), REFUSED),
    case("reading back fails", Every(Reading), Answers(500, ERROR), REFUSED),
    case("reading back hangs", Every(Reading), Hangs, REFUSED),
    case("reading back is cut off", Every(Reading), Truncates, REFUSED),
    case("reading back makes no sense", Every(Reading), Answers(200, NO_JSON), REFUSED),
    case("reading back comes a byte at a time", Every(Reading), Drips, REFUSED),
    case("reading back speaks of another sandbox", Every(Reading), Edits(other_id), REFUSED),
    case("reading back speaks of another session", Every(Reading), Edits(other_session), REFUSED),
    case("it came back with another spec", Later(Reading), Edits(other_spec), REFUSED),
    case("its image was swapped", Later(Reading), Edits(other_image), REFUSED),
    case("its key was revoked meanwhile", Later(Reading), Instead(401, REVOKED), BROKEN),
    case("the workspace was damaged on its way", Every(Upload), Damages(damaged), BROKEN),
    case("starting is refused", Every(Start), Instead(403, REVOKED), BROKEN),
    case("started and answered with an error", Every(Start), Answers(502, ERROR), UNSEEN),
    case("started and never answered", Every(Start), Hangs, UNSEEN),
    case("started and cut", Every(Start), Cuts, UNSEEN),
    case("what it said is cut off", Saying, Truncates, UNSEEN),
    case("what it said makes no sense", Saying, Answers(200, NO_JSON), UNSEEN),
    case("every answer comes two times", Always, Twice, WELL),
    case("what came back was damaged", Every(Download), Rewrites(damaged), (1, "failed", 1)),
];

fn other_path(created: &mut Value) {
    for name in ["sandboxID", "id"] {
        if created.get(name).is_some() {
            created[name] = json!("../other?x=1");
        }
    }
}

fn other_id(info: &mut Value) {
    for name in ["sandboxID", "id"] {
        if info.get(name).is_some() {
            info[name] = json!("another");
        }
    }
}

fn other_session(info: &mut Value) {
    for name in ["metadata", "labels"] {
        if info.pointer(&format!("/{name}/warrant-session")).is_some() {
            info[name]["warrant-session"] = json!("another");
        }
    }
}

fn other_spec(info: &mut Value) {
    for name in ["cpuCount", "cpu"] {
        if info.get(name).is_some() {
            info[name] = json!(64);
        }
    }
    // Who tells nothing of processors is known by the image.
    if info.get("image").is_some() {
        info["image"]["uri"] = json!("of-another-spec");
    }
}

fn other_image(info: &mut Value) {
    for name in ["templateID", "snapshot"] {
        if info.get(name).is_some() {
            info[name] = json!("another");
        }
    }
    if info.get("image").is_some() {
        info["image"]["uri"] = json!("another");
    }
}

fn opened(info: &mut Value) {
    if info.get("allowInternetAccess").is_some() {
        info["allowInternetAccess"] = json!(true);
        info["network"] = json!({ "allowOut": ["0.0.0.0/0"], "denyOut": [] });
    }
    if info.get("networkBlockAll").is_some() {
        info["networkBlockAll"] = json!(false);
    }
    if info.get("policy").is_some() {
        info["policy"] = json!({ "defaultAction": "allow", "egress": [] });
    }
}

/// Plays every case before one door.
fn fails_well(provider: Isolation) {
    let door = Door::open();
    let proxy = Proxy::before(&door.address);
    let site = Site::new(provider, &proxy.address, &door.token);
    // Where rules are another question they are opened there.
    let rules = if provider == Isolation::Opensandbox { Rules } else { Reading };
    let egress = [case("its egress was opened", Later(rules), Edits(opened), REFUSED)];
    for (number, case) in CASES.iter().chain(&egress).enumerate() {
        let (name, word) = (case.name, format!("word-{number}-end"));
        proxy.play(case.trick);
        let mut exec = site.exec(&["--timeout", "30s"], &["sh", "-c", &format!("echo {word}")]);
        // Only where an answer never comes is waiting for it cut short.
        if matches!(case.trick.how, Hangs | Drips) {
            exec.env("WARRANT_PROVIDER_TIMEOUT_S", "3");
        }
        let ran = Ran::from(exec.output().unwrap());
        proxy.play(HONEST);
        assert_eq!(ran.code, Some(case.code), "{provider}, {name}: {}", ran.stderr);
        let receipt = site.receipt();
        assert_eq!(receipt["outcome"]["kind"], case.outcome, "{provider}, {name}: {}", ran.stderr);
        assert_eq!(door.started(&word), case.starts, "{provider}, {name}");
        assert_eq!(door.sandboxes(), Vec::<String>::new(), "{provider}, {name}");
        let said = if case.outcome == "exited" { format!("{word}\n") } else { String::new() };
        // What was said before somebody listened no more may have come.
        assert!(ran.stdout == said || case.starts == 1, "{provider}, {name}: {}", ran.stdout);
    }
    gone_key(&door, &proxy, &site);
}

/// A key that is good for nothing any more cannot delete either: what is left is known, and gone
/// as soon as there is a good key again.
fn gone_key(door: &Door, proxy: &Proxy, site: &Site) {
    proxy.play(Trick { when: Afterwards, how: Instead(401, REVOKED) });
    let ran = site.script(&[], "echo word-key-end");
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    assert_eq!(site.receipt()["outcome"]["kind"], "failed");
    assert_eq!(door.started("word-key-end"), 0);
    let left = door.sandboxes();
    let [id] = left.as_slice() else { panic!("{left:?}") };
    let provider = site.provider();
    for wanted in [
        format!("sandbox {id} at {provider} could not be deleted"),
        "and lives until 20".to_owned(),
        format!("warrant sandbox reap --provider {provider}"),
    ] {
        assert!(ran.stderr.contains(&wanted), "{wanted}: {}", ran.stderr);
    }
    let run = site.receipt()["runId"].as_str().unwrap().to_owned();
    let bundle = Ran::from(site.warrant(&["bundle", &run]).output().unwrap()).stdout;
    assert!(bundle.contains(&format!("sandbox {id} at {provider}")), "the chain does not say it");
    let reap = ["sandbox", "reap", "--provider", provider.as_str(), "--json"];
    let refused = Ran::from(site.warrant(&reap).output().unwrap());
    assert_eq!(refused.code, Some(1), "a revoked key reaps nothing: {}", refused.stdout);
    assert_eq!(door.sandboxes(), left);
    proxy.play(HONEST);
    let reaped = Ran::from(site.warrant(&reap).output().unwrap());
    assert_eq!(reaped.code, Some(0), "{}", reaped.stderr);
    let reaped: Value = serde_json::from_str(&reaped.stdout).unwrap();
    assert_eq!(reaped[0]["reaped"], json!(left));
    assert_eq!(door.sandboxes(), Vec::<String>::new());
}

#[test]
fn e2b_fails_in_every_way_and_nothing_runs_twice() {
    fails_well(Isolation::E2b);
}

#[test]
fn daytona_fails_in_every_way_and_nothing_runs_twice() {
    fails_well(Isolation::Daytona);
}

#[test]
fn opensandbox_fails_in_every_way_and_nothing_runs_twice() {
    fails_well(Isolation::Opensandbox);
}
