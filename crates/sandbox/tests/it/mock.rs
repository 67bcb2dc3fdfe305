//! The mock tier: nothing touched, always the same, and wrong only on request.

use std::time::{Duration, SystemTime};

use warrant_protocol::{Digest, LimitKind, Outcome};
use warrant_sandbox::mock::{Faults, Mock};
use warrant_sandbox::{Backend, Cancel, Command, Invocation, NetworkDecision, Shell};

use crate::hermetic::kit::{Bench, Heard, pool, run};

#[track_caller]
fn mock(faults: Faults, script: &str) -> crate::hermetic::kit::Ran {
    let bench = Bench::new();
    let command = Command::Shell { shell: Shell::Bash, script: script.into() };
    run(&Mock::with_faults(pool(), faults), Invocation { command, ..bench.invocation })
}

#[test]
fn mock_says_hello_and_touches_nothing() {
    let bench = Bench::new();
    bench.put("file", "here");
    let command = Command::Argv { program: "echo".into(), args: vec!["Hello".into()] };
    let invocation = Invocation { command, ..bench.invocation.clone() };
    assert_eq!(run(&Mock::new(pool()), invocation).stdout, "Hello\n");
    let script = "ls / | grep -c file; echo x > /file; rm -rf /; mkdir -p /a/b";
    let command = Command::Shell { shell: Shell::Sh, script: script.into() };
    run(&Mock::new(pool()), Invocation { command, ..bench.invocation.clone() });
    assert_eq!(std::fs::read_to_string(bench.path("file")).unwrap(), "here");
    assert_eq!(std::fs::read_dir(bench.workspace()).unwrap().count(), 1);
}

#[test]
fn each_fault_misbehaves_as_it_says() {
    let none = Faults::none;
    assert!(matches!(
        mock(Faults { crash: true, ..none() }, "echo").report.outcome,
        Outcome::Signaled { signal: 6 }
    ));
    let ran = mock(Faults { swallow_output_after: Some(3), ..none() }, "echo 12345");
    assert_eq!(ran.stdout, "123");
    assert_eq!(ran.report.stdout.digest, Digest::of(b"12345\n"));
    let ran = mock(Faults { lying_digest: true, ..none() }, "echo 12345");
    assert_ne!(ran.report.stdout.digest, Digest::of(ran.stdout.as_bytes()));
    let ran = mock(Faults { lying_exit_code: Some(0), ..none() }, "exit 9");
    assert_eq!(ran.report.outcome, Outcome::Exited { code: 0 });
    let faults = Faults { leaked_env: vec![("LEAK".into(), "yes".into())], ..none() };
    assert_eq!(mock(faults, "echo $LEAK").stdout, "yes\n");
    let faults = Faults { absent: vec!["network".into()], ..none() };
    assert!(!mock(faults, ":").report.posture.enforces("network"));
    let faults = Faults { unknown: vec!["network".into()], ..none() };
    assert_eq!(mock(faults, ":").report.posture.lacking(["network"]), ["network"]);
    let decision = NetworkDecision {
        host: "leak.example".into(),
        port: 443,
        allowed: true,
        why: "leak".into(),
        count: 1,
        bytes_out: 0,
        bytes_in: 0,
        at: SystemTime::UNIX_EPOCH,
    };
    let faults = Faults { leaked_connection: Some(decision.clone()), ..none() };
    assert_eq!(mock(faults, ":").network, [decision]);
}

#[test]
fn a_hang_ends_at_the_deadline_and_a_broken_boundary_is_an_error() {
    let mut bench = Bench::new();
    bench.invocation.limits.wall_ms = Some(200);
    let backend = Mock::with_faults(pool(), Faults { hang: true, ..Faults::none() });
    let ran = run(&backend, bench.invocation.clone());
    assert_eq!(ran.report.outcome, Outcome::Limited { limit: LimitKind::Wall });
    assert!(ran.took < Duration::from_millis(1200));
    let backend = Mock::with_faults(pool(), Faults { broken_boundary: true, ..Faults::none() });
    let plan = backend.prepare(bench.invocation.clone()).unwrap();
    assert!(backend.run(&plan, &Heard::default(), &Cancel::new().unwrap()).is_err());
}
