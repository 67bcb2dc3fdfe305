//! What a person sees of a run at a provider, and what a crash leaves.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use warrant_protocol::Isolation;

use super::door::Door;
use super::site::{PROVIDERS, Ran, Site};

fn each(check: impl Fn(&Door, &Site, Isolation)) {
    let door = Door::open();
    for provider in PROVIDERS {
        let site = Site::new(provider, &door.address, &door.token);
        check(&door, &site, provider);
        assert_eq!(door.sandboxes(), Vec::<String>::new(), "{provider}");
    }
}

#[test]
fn streams_codes_variables_directory_and_input_pass_through_every_provider() {
    each(|_, site, provider| {
        let script = "echo out; echo err >&2; pwd; echo \"[$A][${WARRANT_HOME-none}]\"; exit 3";
        let ran = site.script(&["--env", "A=it's \"fine\""], script);
        assert_eq!(ran.code, Some(3), "{provider}: {}", ran.stderr);
        assert_eq!(ran.stdout, "out\n/tmp/workspace\n[it's \"fine\"][none]\n", "{provider}");
        assert!(ran.stderr.starts_with(&format!("err\nwarrant: {provider}")), "{}", ran.stderr);
        let receipt = site.receipt();
        assert_eq!(receipt["outcome"]["kind"], "exited", "{provider}");
        assert_eq!(receipt["outcome"]["code"], 3, "{provider}");
        assert_eq!(receipt["evidenceAccepted"]["image_digest"], "requested", "{provider}");
        let mut child = site
            .exec(&[], &["sh", "-c", "cat; echo end"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(b"one\ntwo\n").unwrap();
        let ran = Ran::from(child.wait_with_output().unwrap());
        assert_eq!(ran.stdout, "one\ntwo\nend\n", "{provider}: {}", ran.stderr);
        let missing = site.exec(&[], &["no-such-program-here"]).output().unwrap();
        assert_eq!(missing.status.code(), Some(127), "{provider}");
    });
}

#[test]
fn files_go_in_and_out_with_modes_links_and_deletions() {
    each(|_, site, provider| {
        site.put("kept.txt", "kept\n", 0o644);
        site.put("tool.sh", "#!/bin/sh\necho tool\n", 0o755);
        site.put("gone/away.txt", "away\n", 0o644);
        site.put(".env", "SECRET=1\n", 0o600);
        std::os::unix::fs::symlink("kept.txt", site.work().join("link")).unwrap();
        let script = "./tool.sh; readlink link; stat -c %a tool.sh; cat .env 2>/dev/null; \
                      rm -r gone; echo more >> kept.txt; chmod 644 tool.sh; \
                      mkdir -p new/deep; echo x > new/deep/f; chmod 700 new/deep/f; \
                      ln -s ../kept.txt new/l";
        let ran = site.script(&[], script);
        assert_eq!(ran.code, Some(0), "{provider}: {}", ran.stderr);
        assert_eq!(ran.stdout, "tool\nkept.txt\n755\n", "{provider}");
        let receipt = site.receipt();
        let run = receipt["runId"].as_str().unwrap();
        let diff = Ran::from(site.warrant(&["diff", run]).output().unwrap()).stdout;
        for wanted in [
            "deleted file mode 100644",
            "--- a/gone/away.txt",
            "+more",
            "old mode 100755\nnew mode 100644",
            "new file mode 100755\n",
            "+++ b/new/deep/f",
            "new file mode 120000",
            "+../kept.txt",
        ] {
            assert!(diff.contains(wanted), "{provider}: {wanted} is not in\n{diff}");
        }
        assert!(!diff.contains(".env"), "{provider}: {diff}");
        // The host's own files are as they were.
        assert_eq!(std::fs::read_to_string(site.work().join("kept.txt")).unwrap(), "kept\n");
    });
}

#[test]
fn a_program_whose_time_is_up_ends_at_every_provider() {
    each(|door, site, provider| {
        let word = format!("time-is-up-at-{provider}");
        let script = format!("echo before; : {word}; sleep 100");
        let ran = site.script(&["--timeout", "2s"], &script);
        assert_eq!(ran.code, Some(124), "{provider}: {}", ran.stderr);
        assert_eq!(ran.stdout, "before\n", "{provider}");
        assert_eq!(site.receipt()["outcome"]["limit"], "wall", "{provider}");
        assert_eq!(door.started(&word), 1, "{provider}: it was started again");
    });
}

/// Starts a program that says one word and sleeps, and returns once the word has come.
fn sleeper(site: &Site) -> Child {
    let mut child = site
        .exec(&[], &["sh", "-c", "echo first; sleep 100"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut word = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut word).unwrap();
    assert_eq!(word, "first\n");
    // It came while the program still runs.
    assert_eq!(child.try_wait().unwrap(), None);
    child
}

#[test]
fn interrupting_a_run_deletes_its_sandbox() {
    each(|door, site, provider| {
        let mut child = sleeper(site);
        assert_eq!(door.sandboxes().len(), 1, "{provider}");
        kill_process(Pid::from_child(&child), Signal::INT).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(130), "{provider}");
        assert_eq!(site.receipt()["outcome"]["kind"], "cancelled", "{provider}");
    });
}

#[test]
fn what_a_killed_run_left_is_found_by_its_label_and_deleted() {
    each(|door, site, provider| {
        let mut child = sleeper(site);
        let left = door.sandboxes();
        assert_eq!(left.len(), 1, "{provider}");
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(door.sandboxes(), left, "{provider}: nobody was there to delete it");
        let reap = ["sandbox", "reap", "--provider", provider.as_str(), "--json"];
        let reaped = Ran::from(site.warrant(&reap).output().unwrap());
        assert_eq!(reaped.code, Some(0), "{provider}: {}", reaped.stderr);
        let reaped: Value = serde_json::from_str(&reaped.stdout).unwrap();
        assert_eq!(reaped[0]["reaped"], serde_json::json!(left), "{provider}");
        // Another home's sandbox carries another label and is left alone.
        let other = Site::new(provider, &door.address, &door.token);
        let mut child = sleeper(&other);
        let reaped = Ran::from(site.warrant(&reap).output().unwrap());
        assert!(reaped.stdout.contains("[]"), "{provider}: {}", reaped.stdout);
        kill_process(Pid::from_child(&child), Signal::INT).unwrap();
        child.wait().unwrap();
    });
}

#[test]
fn every_component_says_how_much_of_it_is_known() {
    each(|_, site, provider| {
        let probe = ["sandbox", "probe", "--provider", provider.as_str(), "--json"];
        let probed = Ran::from(site.warrant(&probe).output().unwrap());
        let posture: Value = serde_json::from_str(&probed.stdout).unwrap();
        let told = |name: &str| {
            let component = &posture["components"][name];
            let text = |member: &str| component[member].as_str().unwrap().to_owned();
            assert!(!text("source").is_empty(), "{provider}: {name}");
            (text("enforcement"), text("evidence"))
        };
        let is = |enforcement: &str, evidence: &str| (enforcement.to_owned(), evidence.to_owned());
        let mounts = match provider {
            Isolation::Opensandbox => "requested",
            _ => "reported",
        };
        for (name, expected) in [
            ("provider_version", is("enforced", "reported")),
            ("image_digest", is("enforced", "requested")),
            ("egress_policy", is("enforced", "reported")),
            ("network", is("enforced", "measured")),
            ("mounts", is("enforced", mounts)),
            // Nothing was sent in a trial, and it has no limit on output.
            ("files.read", is("enforced", "reported")),
            ("limits.wall", is("enforced", "measured")),
            ("limits.output", is("enforced", "reported")),
            ("environment", is("enforced", "measured")),
            ("processes.kill", is("enforced", "reported")),
            ("privileges", is("unknown", "unavailable")),
            ("syscalls", is("unknown", "unavailable")),
        ] {
            assert_eq!(told(name), expected, "{provider}: {name}");
        }
    });
}

#[test]
fn the_guarded_values_of_a_run_are_nowhere_but_in_its_start() {
    each(|door, site, provider| {
        let value = format!("never-told-{provider}");
        let ran = site.script(&["--env", &format!("PRIVATE={value}")], "printf %s \"$PRIVATE\"");
        assert_eq!(ran.stdout.trim_end(), value, "{provider}: {}", ran.stderr);
        assert_eq!(door.started(&value), 0, "{provider}: the value is part of a command");
    });
}
