//! For each member of a request that could loosen policy: it is judged. Named after the bypass.

use serde_json::{Value, json};
use warrant_policy::facts::{ProgramFile, Surroundings};
use warrant_policy::{Facts, Preset};
use warrant_protocol::{Isolation, RunRequest};

use crate::vectors::surroundings;
use crate::{assert_allowed, document, facts, reasons, script};

/// The request must be denied for exactly this reason, and allowed without the change.
#[track_caller]
fn check(controls: Value, patch: Value, expected: &str) {
    let policy =
        document(if controls.is_null() { json!({}) } else { json!({"controls": controls}) });
    assert_allowed(&policy, &facts(json!({})));
    assert_eq!(reasons(&policy, &facts(patch)), [expected]);
}

fn limits(members: Value) -> Value {
    json!({"limits": {"default": {}, "ceiling": members}})
}

#[test]
fn network_default_deny_off_is_judged() {
    let patch = json!({"network": {"defaultDeny": false}});
    check(json!(null), patch, "request turns off the default denial of the network");
}

#[test]
fn egress_proxy_off_is_judged() {
    let patch = json!({"env": {"egressProxy": false}});
    check(json!(null), patch, "request turns off the egress proxy");
}

#[test]
fn proxy_variables_are_judged() {
    for name in ["NO_PROXY", "https_proxy"] {
        let expected =
            format!("environment variable \"{name}\" would lead around the egress proxy");
        check(json!(null), json!({"env": {"names": [name]}}), &expected);
    }
}

#[test]
fn inherited_environment_is_judged() {
    let patch = json!({"env": {"inherit": ["AWS_SECRET_ACCESS_KEY"]}});
    let expected =
        "environment variable \"AWS_SECRET_ACCESS_KEY\" may not be inherited from the runner";
    check(json!(null), patch.clone(), expected);
    check(json!({"environment": {"inherit": ["LANG"]}}), patch, expected);
    let policy = document(json!({"controls": {"environment": {"inherit": ["LANG"]}}}));
    assert_allowed(&policy, &facts(json!({"env": {"inherit": ["LANG"]}})));
}

#[test]
fn variables_that_choose_what_a_word_means_are_judged() {
    let ci = Preset::Ci.load().unwrap();
    let unnamed = "the command starts something that cannot be named";
    let asked = |vars: Value, command: &str| {
        let execution =
            json!({"kind": "argv", "command": command, "args": ["test"], "env": {"vars": vars}});
        request(json!({"agentKind": "command", "execution": execution}))
    };
    let program = || Some(ProgramFile { path: "/usr/bin/wc".to_owned(), digest: None });
    let around = || Surroundings { program: program(), ..surroundings() };
    for name in [
        "PATH",
        "LD_LIBRARY_PATH",
        "LD_PRELOAD",
        "NODE_OPTIONS",
        "PYTHONSTARTUP",
        "PERL5OPT",
        "RUBYOPT",
        "GIT_SSH_COMMAND",
        "GIT_CONFIG_COUNT",
        "BASH_ENV",
        "BASH_FUNC_wc%%",
        "npm_config_script_shell",
    ] {
        let facts = Facts::of(&asked(json!({name: "x"}), "wc"), around());
        let told = reasons(&ci, &facts);
        assert!(told.iter().any(|reason| reason.contains(unnamed)), "{name}: {told:?}");
        let settled_env = [name.to_owned()].into();
        let settled = Surroundings { settled_env, ..around() };
        assert_allowed(&ci, &Facts::of(&asked(json!({name: "x"}), "wc"), settled));
    }
    assert_allowed(&ci, &Facts::of(&asked(json!({"LANG": "C", "CI": "1"}), "wc"), around()));
    let elsewhere = Facts::of(&asked(json!({"PATH": "/tmp"}), "wc"), around());
    assert!(!elsewhere.cmd.resolved && elsewhere.cmd.program == "wc");
    let named = Facts::of(&asked(json!({"PATH": "/tmp"}), "/usr/bin/wc"), around());
    assert!(named.cmd.resolved);
}

#[test]
fn a_secret_in_the_environment_that_was_not_asked_for_is_judged() {
    let patch = json!({"env": {"secrets": ["TOKEN"]}});
    let expected = "environment carries secret \"TOKEN\", which the request does not ask for";
    check(json!(null), patch.clone(), expected);
    // In the process tier the runner leaves the variable out, as the reference does.
    let mut patch = patch;
    patch["isolation"] = json!("process");
    assert_allowed(&document(json!({})), &facts(patch));
}

#[test]
fn execution_kind_against_agent_kind_is_judged() {
    let policy = document(json!({}));
    for (agent, execution, started) in [
        ("mock", json!({"kind": "shell", "script": "id"}), "command"),
        ("mock", json!({"kind": "argv", "command": "id", "args": []}), "command"),
        ("mock", json!({"kind": "agent", "agent": {"kind": "codex"}, "prompt": "x"}), "codex"),
        ("command", json!({"kind": "agent", "agent": {"kind": "codex"}, "prompt": "x"}), "codex"),
    ] {
        let request = request(json!({"agentKind": agent, "execution": execution}));
        let facts = Facts::of(&request, surroundings());
        let expected = format!("execution starts \"{started}\" but agent kind is \"{agent}\"");
        assert_eq!(reasons(&policy, &facts), [expected]);
    }
}

#[test]
fn timeout_beyond_the_budget_is_judged() {
    let expected = "requested timeout 3600001ms exceeds the budget of 60m";
    check(json!(null), json!({"timeoutMs": 3_600_001}), expected);
    let expected = "requested timeout 120000ms exceeds the budget of 1m";
    check(json!(null), json!({"timeoutMs": 120_000, "maxDurationMin": 1}), expected);
    let expected = "requested wall limit 3600001ms exceeds the budget of 60m";
    check(json!(null), json!({"limits": {"wallMs": 3_600_001}}), expected);
}

#[test]
fn a_budget_that_is_not_a_number_is_judged() {
    let policy = document(json!({}));
    let mut facts = facts(json!({}));
    facts.max_spend_usd = Some(f64::NAN);
    assert_eq!(reasons(&policy, &facts).len(), 1);
}

#[test]
fn isolation_is_judged() {
    let controls = json!({"isolation": {"tiers": {"namespace": {}}}});
    check(controls, json!({"isolation": "process"}), "isolation \"process\" is not allowed");
}

#[test]
fn image_is_judged() {
    check(json!(null), json!({"image": "evil:latest"}), "image \"evil:latest\" is not allowed");
    let policy = document(json!({"controls": {"images": {"allow": ["good@sha256:00"]}}}));
    assert_allowed(&policy, &facts(json!({"image": "good@sha256:00"})));
    assert_eq!(
        reasons(&policy, &facts(json!({"image": "good"}))),
        ["image \"good\" is not allowed"]
    );
}

#[test]
fn accepted_evidence_is_judged() {
    let patch = json!({"acceptedEvidence": {"network": "requested"}});
    let expected =
        "evidence \"requested\" is not enough for \"network\": policy wants \"measured\"";
    check(json!(null), patch.clone(), expected);
    let expected =
        "evidence \"requested\" is not enough for \"network\": policy wants \"reported\"";
    check(json!({"evidence": {"network": "reported"}}), patch, expected);
}

#[test]
fn limits_beyond_the_ceiling_are_judged() {
    let names = [
        ("cpuMs", "cpu"),
        ("memoryBytes", "memory"),
        ("processes", "processes"),
        ("openFiles", "open-files"),
        ("fileBytes", "file-size"),
        ("diskBytes", "disk"),
        ("inodes", "inodes"),
        ("outputBytes", "output"),
    ];
    for (member, name) in names {
        let expected = format!("requested {name} limit 11 exceeds policy ceiling 10");
        check(limits(json!({member: 10})), json!({"limits": {member: 11}}), &expected);
    }
    let expected = "requested wall limit 11 exceeds policy ceiling 10";
    check(limits(json!({"wallMs": 10})), json!({"limits": {"wallMs": 11}}), expected);
    check(limits(json!({"wallMs": 10})), json!({"timeoutMs": 11}), expected);
    let expected = "requested output limit 11 exceeds policy ceiling 10";
    check(limits(json!({"outputBytes": 10})), json!({"logMaxBytes": 11}), expected);
}

#[test]
fn read_and_write_roots_are_judged() {
    let controls = json!({"files": {
        "readRoots": ["/srv"], "writeRoots": ["/srv/out"], "modes": ["overlay"], "masks": [],
    }});
    for (path, access) in
        [("/etc", "read"), ("/srv2", "read"), ("/srv/../etc", "read"), ("srv", "read")]
    {
        let expected = format!("reading below \"{path}\" is not allowed");
        check(controls.clone(), json!({"files": {access: [path]}}), &expected);
    }
    let expected = "writing below \"/srv\" is not allowed";
    check(controls, json!({"files": {"write": ["/srv"]}}), expected);
    check(
        json!(null),
        json!({"files": {"read": ["/usr"]}}),
        "reading below \"/usr\" is not allowed",
    );
}

#[test]
fn workspace_mode_is_judged() {
    let patch = json!({"files": {"mode": "direct"}});
    check(json!(null), patch, "workspace mode \"direct\" is not allowed");
}

#[test]
fn removed_masks_are_judged() {
    let controls = json!({"files": {
        "readRoots": [], "writeRoots": [], "modes": ["overlay"], "masks": [".env", "*.pem"],
    }});
    let patch = json!({"files": {"masks": [".env", "mine"]}});
    check(controls, patch, "mask \"*.pem\" is missing from the request");
}

#[test]
fn destinations_with_ports_are_judged() {
    let patch =
        |host: &str, port: u16| json!({"network": {"egress": [{"host": host, "port": port}]}});
    let expected = "destination \"github.com:22\" is not in the policy allowlist";
    check(json!(null), patch("github.com", 22), expected);
    let destinations = json!({"network": {"destinations": [{"host": "github.com", "port": 22}]}});
    let expected = "destination \"github.com:2222\" is not in the policy allowlist";
    check(destinations.clone(), patch("github.com", 2222), expected);
    let expected = "destination \"github.com\" is not in the policy allowlist";
    check(destinations.clone(), json!({"network": {"egress": [{"host": "github.com"}]}}), expected);
    assert_allowed(&document(json!({"controls": destinations})), &facts(patch("github.com", 22)));
}

#[test]
fn a_wildcard_cannot_widen_the_allowlist() {
    let network =
        json!({"network": {"defaultDeny": true, "allowHosts": ["a.example.com", "*.good.com"]}});
    let policy = document(network);
    let hosts = |host: &str| facts(json!({"network": {"hosts": [host]}}));
    for host in ["*.example.com", "*", "*.com", "good.com", "evilgood.com", "a.good.com.evil"] {
        let expected = format!("network host \"{host}\" is not in the policy allowlist");
        assert_eq!(reasons(&policy, &hosts(host)), [expected]);
    }
    for host in ["a.example.com", "x.good.com", "*.good.com", "*.x.good.com"] {
        assert_allowed(&policy, &hosts(host));
    }
}

#[test]
fn disclosure_is_judged() {
    let controls = json!({"disclosure": {"allow": ["none"]}});
    check(controls, json!({"disclosure": "full"}), "disclosure \"full\" is not allowed");
}

#[test]
fn data_classes_are_judged() {
    let classes = json!([{"dataClass": "internal", "allowPools": ["elsewhere"]}]);
    let policy = document(json!({"dataClasses": classes}));
    let unknown = reasons(&policy, &facts(json!({"dataClasses": ["secret"]})));
    assert_eq!(unknown, ["data class \"secret\" is not known to policy"]);
    let elsewhere = reasons(&policy, &facts(json!({"dataClasses": ["internal"]})));
    assert_eq!(elsewhere, ["data class \"internal\" may not go to pool \"default\""]);
}

#[test]
fn a_script_is_judged_by_what_it_starts_not_by_its_first_word() {
    let policy = Preset::Default.load().unwrap();
    for text in ["echo hi; sudo id", "x=`sudo id`", "sh -c 'sudo id'", "echo sudo id | sh"] {
        let decision = warrant_policy::decide(&policy, &script(text));
        assert!(matches!(decision, warrant_policy::Decision::Ask(_)), "{text}: {decision:?}");
    }
}

#[test]
fn a_script_nobody_can_read_does_not_pass_as_an_argument() {
    let policy = Preset::Default.load().unwrap();
    for words in [["bash", "-c", "if true; then"], ["sh", "-ec", "a | | b"]] {
        let args = words[1..].iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
        let facts = warrant_policy::CommandFacts::of_argv(words[0], &args, None);
        assert!(facts.shell && !facts.parsed, "{words:?}");
    }
    for text in ["bash -c 'if true; then'", "eval 'a | | b'", "timeout 5 sh -c '('"] {
        let decision = warrant_policy::decide(&policy, &script(text));
        assert!(matches!(decision, warrant_policy::Decision::Deny { .. }), "{text}: {decision:?}");
    }
}

#[test]
fn a_script_nobody_can_read_may_run_where_nothing_can_be_started() {
    let policy = Preset::Default.load().unwrap();
    for text in ["if true; then", "a | | b", "bash -c 'if true; then'"] {
        let mut facts = script(text);
        for (isolation, may_run) in [
            (Isolation::Hermetic, true),
            (Isolation::Mock, true),
            (Isolation::Namespace, false),
            (Isolation::Process, false),
        ] {
            facts.isolation = isolation;
            let decision = warrant_policy::decide(&policy, &facts);
            let names_rule = format!("{decision:?}").contains("base-unread-script");
            assert_eq!(names_rule, !may_run, "{text} in {isolation:?}: {decision:?}");
        }
    }
}

#[test]
fn a_shell_under_another_name_is_still_a_shell() {
    let file = ProgramFile { path: "/usr/bin/dash".into(), digest: None };
    let args = ["-c".to_owned(), "id".to_owned()];
    let facts = warrant_policy::CommandFacts::of_argv("./ls", &args, Some(&file));
    assert!(facts.shell && facts.dynamic);
}

#[test]
fn every_reason_is_told_at_once() {
    let policy = document(json!({}));
    let patch = json!({
        "agentKind": "x", "pool": "y", "network": {"defaultDeny": false}, "image": "i",
        "env": {"egressProxy": false}, "timeoutMs": 99_999_999, "files": {"mode": "direct"},
    });
    assert_eq!(reasons(&policy, &facts(patch)).len(), 8);
}

#[test]
fn the_requester_comes_from_the_surroundings_and_not_from_the_request() {
    let facts = Facts::of(
        &request(json!({"requestedBy": {"kind": "human", "id": "mallory"}})),
        surroundings(),
    );
    assert_eq!(facts.requester, "human:alice");
}

fn request(members: Value) -> RunRequest {
    let zero = "0".repeat(64);
    let mut value = json!({
        "requestedBy": {"kind": "human", "id": "alice"},
        "agentKind": "command", "prompt": "true", "pool": "default", "secretNames": [],
        "workspace": {
            "version": "warrant.manifest.v1", "baseRef": "main", "bundleHash": zero,
            "untrackedFiles": [], "deniedPatterns": [], "deniedPaths": [],
        },
        "network": {"defaultDeny": true, "allowHosts": []}, "budget": {}, "disclosure": "none",
    });
    for (name, member) in members.as_object().unwrap() {
        value[name] = member.clone();
    }
    serde_json::from_value(value).unwrap()
}
