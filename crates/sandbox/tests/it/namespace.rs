//! The namespace tier does its ordinary work: exit codes, streams, overlay.

use warrant_protocol::Outcome;
use warrant_sandbox::{Backend, EnvValue, EnvVar, Invocation, Namespace, Network, State};

use crate::bench::{run, shell, workspace};

#[track_caller]
fn check(script: &str, expected: Outcome) {
    let workspace = workspace();
    let (report, memory) = run(&Namespace::new(), shell(workspace.path(), script));
    let report = report.unwrap();
    assert_eq!(report.outcome, expected, "{script}: {} {}", memory.stdout(), memory.stderr());
}

#[test]
fn exit_codes_and_signals_are_faithful() {
    check("exit 0", Outcome::Exited { code: 0 });
    check("exit 1", Outcome::Exited { code: 1 });
    check("exit 7", Outcome::Exited { code: 7 });
    check("/nonexistent/program", Outcome::Exited { code: 127 });
    check("/etc/hosts", Outcome::Exited { code: 126 });
    check("exit 137", Outcome::Exited { code: 137 });
    check("kill -SEGV $$", Outcome::Signaled { signal: 11 });
    check("kill -KILL $$", Outcome::Signaled { signal: 9 });
}

#[test]
fn overlay_keeps_the_workspace_untouched() {
    let workspace = workspace();
    std::fs::write(workspace.path().join("kept"), "before").unwrap();
    let script = "cat kept; echo after > kept; echo new > fresh; cat kept; rm kept";
    let (report, memory) = run(&Namespace::new(), shell(workspace.path(), script));
    let report = report.unwrap();
    assert_eq!(report.outcome, Outcome::Exited { code: 0 });
    assert_eq!(memory.stdout(), "beforeafter\n");
    assert_eq!(std::fs::read_to_string(workspace.path().join("kept")).unwrap(), "before");
    assert!(!workspace.path().join("fresh").exists());
    assert!(report.upper.is_some());
}

#[test]
fn nothing_of_the_host_is_above_or_below_the_root() {
    let workspace = workspace();
    let script = "ls /..; ls -a /proc/self/root/..; cat /proc/self/mountinfo";
    let (_, memory) = run(&Namespace::new(), shell(workspace.path(), script));
    assert!(!memory.stdout().contains("/sys/fs/cgroup"), "{}", memory.stdout());
    assert!(!memory.stdout().contains("home"), "{}", memory.stdout());
}

#[test]
fn probe_finds_every_wall_by_building_them() {
    let posture = Namespace::new().probe();
    let demanded = [
        "files.read",
        "files.write",
        "files.masks",
        "network",
        "processes.namespace",
        "processes.kill",
        "syscalls",
        "privileges",
        "ipc",
        "environment",
        "limits.wall",
        "limits.output",
    ];
    assert_eq!(posture.lacking(demanded), Vec::<&str>::new(), "{posture:#?}");
}

#[test]
fn doctor_tells_what_was_found_and_what_to_do() {
    let findings = warrant_sandbox::doctor();
    let whole = findings.iter().find(|finding| finding.what == "namespace tier").unwrap();
    assert!(matches!(whole.state, State::Good(_)), "{findings:#?}");
    for finding in &findings {
        let is_good = matches!(finding.state, State::Good(_));
        assert_eq!(finding.remedy.is_none(), is_good, "{finding:?}");
    }
}

#[test]
fn a_plan_is_readable_and_holds_no_secret_value() {
    let workspace = workspace();
    std::fs::write(workspace.path().join(".env"), "x").unwrap();
    let mut invocation = shell(workspace.path(), "true");
    invocation.files.masks = vec![".env".into()];
    invocation.env.push(EnvVar {
        name: "TOKEN".into(),
        value: EnvValue::Secret { name: "TOKEN".parse().unwrap(), value: "hunter2".into() },
    });
    let plan = Namespace::new().prepare(invocation).unwrap();
    let text = plan.artifact.to_string();
    assert!(!text.contains("hunter2"));
    assert!(text.contains("\"secret\":\"TOKEN\""), "{text}");
    assert!(text.contains("/.env\""), "{text}");
    assert!(text.contains("\"kind\":\"overlay\""), "{text}");
}

#[track_caller]
fn check_refused(change: impl FnOnce(&mut Invocation), expected: &str) {
    let workspace = workspace();
    let mut invocation = shell(workspace.path(), "true");
    change(&mut invocation);
    let refusal = Namespace::new().prepare(invocation).unwrap_err();
    assert!(refusal.message.contains(expected), "{refusal}");
}

#[test]
fn what_cannot_be_given_is_refused_by_name() {
    check_refused(|i| i.files.workspace = "/".into(), "workspace / would replace");
    check_refused(|i| i.files.read_roots = vec!["/proc/1".into()], "read root /proc/1");
    check_refused(|i| i.files.write_roots = vec!["/nonexistent".into()], "write root /nonexistent");
    check_refused(|i| i.cwd = "/root".into(), "working directory /root");
    check_refused(|i| i.network = Network::Allow(vec!["a b".into()]), "network rule");
}

#[test]
fn what_is_tried_on_ports_where_nobody_listens_is_told() {
    let workspace = workspace();
    let script = r#"python3 - <<'END'
import socket
def tcp(family, host, port):
    s = socket.socket(family)
    s.settimeout(3)
    try:
        s.connect((host, port)); print('connected', host, port)
    except OSError as e:
        print(type(e).__name__, host, port)
tcp(socket.AF_INET, '93.184.216.34', 8081)
tcp(socket.AF_INET, '93.184.216.34', 8081)
tcp(socket.AF_INET6, '2606:4700::1111', 22)
tcp(socket.AF_INET, '127.0.0.1', 9)
socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('93.184.216.34', 443))
END"#;
    let (report, memory) = run(&Namespace::new(), shell(workspace.path(), script));
    assert_eq!(report.unwrap().outcome, Outcome::Exited { code: 0 }, "{}", memory.stderr());
    assert!(!memory.stdout().contains("connected"), "{}", memory.stdout());
    let decisions = memory.decisions.lock().unwrap();
    let told = |host: &str, port, why: &str| {
        let all = decisions.iter().filter(|d| d.host == host && d.port == port && d.why == why);
        all.map(|d| if d.allowed { 1000 } else { d.count }).sum::<u64>()
    };
    assert_eq!(told("93.184.216.34", 8081, "port-not-allowed"), 2, "{decisions:?}");
    assert_eq!(told("93.184.216.34", 443, "unsupported"), 1, "{decisions:?}");
    assert!(decisions.iter().all(|d| d.host != "127.0.0.1"), "{decisions:?}");
    if std::path::Path::new("/proc/net/if_inet6").exists() {
        assert_eq!(told("2606:4700::1111", 22, "port-not-allowed"), 1, "{decisions:?}");
    }
}
