//! One degraded field at a time denies, at every provider: with a receipt, and the command never
//! reaches the provider.

use serde_json::{Value, json};
use warrant_protocol::Isolation;

use super::door::Door;
use super::proxy::How::{Answers, Edits, Rewrites};
use super::proxy::Kind::{self, Reading, Rules, Step, Version};
use super::proxy::When::{Every, Later};
use super::proxy::{HONEST, How, Proxy, Trick};
use super::site::{Ran, Site};

/// What is degraded, and the component that is named for it.
type Field = (Kind, How, &'static str);

fn without(info: &mut Value, names: &[&str]) {
    if let Some(members) = info.as_object_mut() {
        names.iter().for_each(|name| drop(members.remove(*name)));
    }
}

const E2B: &[Field] = &[
    (Reading, Edits(|info| info["envdVersion"] = json!("0.1.0")), "provider_version"),
    (Reading, Edits(|info| without(info, &["envdVersion"])), "provider_version"),
    (Reading, Edits(|info| without(info, &["network", "allowInternetAccess"])), "egress_policy"),
    (Reading, Edits(|info| info["network"]["allowOut"] = json!(["evil.example"])), "egress_policy"),
    (Reading, Edits(|info| info["memoryMB"] = json!(1 << 20)), "limits.memory"),
    (Reading, Edits(|info| without(info, &["memoryMB"])), "limits.memory"),
    (
        Reading,
        Edits(|info| info["volumeMounts"] = json!([{ "name": "v", "path": "/v" }])),
        "mounts",
    ),
];

const DAYTONA: &[Field] = &[
    (Version, Edits(|config| config["version"] = json!("0.1.0")), "provider_version"),
    (Version, Edits(|config| without(config, &["version"])), "provider_version"),
    (Reading, Edits(|info| info["networkBlockAll"] = json!(false)), "egress_policy"),
    (Reading, Edits(|info| without(info, &["networkBlockAll"])), "egress_policy"),
    (Reading, Edits(|info| info["domainAllowList"] = json!("evil.example")), "egress_policy"),
    (Reading, Edits(|info| info["networkAllowList"] = json!("0.0.0.0/0")), "egress_policy"),
    (Reading, Edits(|info| info["memory"] = json!(4096)), "limits.memory"),
    (Reading, Edits(|info| info["memory"] = json!(0)), "limits.memory"),
    (
        Reading,
        Edits(|info| info["volumes"] = json!([{ "volumeId": "v", "mountPath": "/v" }])),
        "mounts",
    ),
];

const NO_SIDECAR: &str = r#"{"code":"BACKEND_CONNECTION_FAILED","message":"no egress"}"#;

const OPENSANDBOX: &[Field] = &[
    (Version, Edits(|told| told["version"] = json!("0.1.0")), "provider_version"),
    (Version, Answers(404, "{}"), "provider_version"),
    (Rules, Edits(|told| told["enforcementMode"] = json!("dns")), "egress_policy"),
    (Rules, Edits(|told| without(told, &["enforcementMode"])), "egress_policy"),
    (Rules, Edits(|told| without(told, &["policy"])), "egress_policy"),
    (Rules, Edits(|told| told["policy"]["defaultAction"] = json!("allow")), "egress_policy"),
    (Rules, Answers(502, NO_SIDECAR), "egress_policy"),
    (Rules, Answers(404, "{}"), "egress_policy"),
];

fn denies(provider: Isolation, fields: &[Field]) {
    let door = Door::open();
    let proxy = Proxy::before(&door.address);
    let site = Site::new(provider, &proxy.address, &door.token);
    let tricks = fields.iter().flat_map(|(kind, how, component)| {
        // From the beginning, and only after everything was found to be good.
        [Every(*kind), Later(*kind)].map(|when| (Trick { when, how: *how }, *component))
    });
    for (number, (trick, component)) in tricks.enumerate() {
        let word = format!("word-{number}-end");
        proxy.play(trick);
        let ran = site.script(&[], &format!("echo {word}"));
        proxy.play(HONEST);
        let what = format!("{provider}, {component}, {number}: {}", ran.stderr);
        assert_eq!(ran.code, Some(7), "{what}");
        assert!(ran.stderr.contains(component), "{what}");
        assert_eq!(site.receipt()["outcome"]["kind"], "posture-refused", "{what}");
        assert_eq!((ran.stdout.as_str(), door.started(&word)), ("", 0), "{what}");
        assert_eq!(door.sandboxes(), Vec::<String>::new(), "{what}");
    }
    // What nobody accepted by name denies as well.
    let arguments =
        ["sandbox", "exec", "--provider", provider.as_str(), "--", "echo", "word-x-end"];
    let ran = Ran::from(site.warrant(&arguments).output().unwrap());
    assert_eq!(ran.code, Some(7), "{provider}: {}", ran.stderr);
    assert!(ran.stderr.contains("image_digest"), "{provider}: {}", ran.stderr);
    assert_eq!(door.started("word-x-end"), 0);
    // And with nothing degraded it runs.
    assert_eq!(site.script(&[], "echo word-y-end").code, Some(0), "{provider}");
}

#[test]
fn each_degraded_field_of_e2b_denies() {
    denies(Isolation::E2b, E2B);
}

#[test]
fn each_degraded_field_of_daytona_denies() {
    denies(Isolation::Daytona, DAYTONA);
}

#[test]
fn each_degraded_field_of_opensandbox_denies() {
    denies(Isolation::Opensandbox, OPENSANDBOX);
}

/// A provider that tells rules and lets a denied destination answer is found out from inside.
#[test]
fn a_denied_destination_that_answers_denies_whatever_is_told() {
    let door = Door::open();
    let proxy = Proxy::before(&door.address);
    let site = Site::new(Isolation::Opensandbox, &proxy.address, &door.token);
    let opened = |bytes: &[u8]| {
        String::from_utf8_lossy(bytes).replace("egress denied", "egress open").into_bytes()
    };
    proxy.play(Trick { when: Every(Step), how: Rewrites(opened) });
    let ran = site.script(&[], "echo word-z-end");
    assert_eq!(ran.code, Some(7), "{}", ran.stderr);
    assert!(ran.stderr.contains("lacks network"), "{}", ran.stderr);
    let receipt = site.receipt();
    let told = &receipt["posture"]["components"];
    assert_eq!(told["egress_policy"]["enforcement"], "enforced");
    assert_eq!(told["network"]["enforcement"], "absent");
    assert_eq!(told["network"]["evidence"], "measured");
    assert_eq!(door.started("word-z-end"), 0);
    assert_eq!(door.sandboxes(), Vec::<String>::new());
}
