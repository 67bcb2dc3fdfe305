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
        model: None,
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

/// Everything a script could see change from run to run or from machine to machine.
const RESTLESS: &str = r#"
date; date +%s%N; echo $RANDOM $RANDOM $SECONDS $EPOCHSECONDS $EPOCHREALTIME
echo $$ $BASHPID $PPID $UID $! $HOSTNAME $HOME $PWD $PATH $SHELL $USER $OSTYPE $MACHTYPE
(echo $BASHPID); sleep 0 & echo $!; wait
hostname; whoami; id; uname -a; nproc; tty; hostid; arch; logname; uptime; free
f=$(mktemp); echo $f; mktemp -d; mktemp -u XXXXXX; ls -la / /tmp /dev; stat / /tmp
echo x > /made; stat /made; ls -l --time-style=full-iso /made; find / -printf '%p %T@ %i %s\n'
seq 20 | shuf; shuf -i 1-100 -n 5; seq 9 | sort -R; shuf -e a b c d
head -c 16 /dev/urandom | od -An -tx1; head -c 8 /dev/random | base64; uuidgen
cat /proc/sys/kernel/random/uuid /proc/uptime /proc/version /etc/hostname /etc/passwd
declare -A m; for k in a b c d e f g h i j; do m[$k]=1; done; echo ${!m[@]}; declare -p m
awk 'BEGIN { srand(); print rand(), rand(), systime(); for (i = 0; i < 20; i++) a["k" i]; for (k in a) print k }'
awk 'BEGIN { print rand(), rand() }'
jq -n '{b:1,a:2,c:3} | keys_unsorted, now, ("x"|input_filename)' ; jq -n 'now'
env; set; declare -p; export -p; shopt; alias; trap -p; ulimit -a; df; du -a /; ps; jobs; times
time true; date -r /made; touch /t; [ /t -nt /made ] && echo newer; openssl rand -hex 8
tar cf - /made | sha256sum; gzip -c /made | sha256sum; printf '%(%F %T)T\n' -1
"#;

#[test]
fn chance_that_cannot_be_fixed_is_refused() {
    let bench = Bench::new();
    let command = Command::Shell { shell: Shell::Sh, script: "echo $SRANDOM".into() };
    let refused = Mock::new(pool()).prepare(Invocation { command, ..bench.invocation });
    assert_eq!(refused.unwrap_err().code, "SANDBOX_DENIED");
    assert_eq!(mock(Faults::none(), "shuf; uuidgen; echo $?").stdout, "127\n");
}

#[test]
fn mock_output_is_the_same_on_every_machine() {
    let ran = mock(
        Faults::none(),
        "date -u +%F; echo $RANDOM $RANDOM; mktemp; od -An -tx1 -N4 /dev/urandom",
    );
    assert_eq!(ran.stdout, "2020-01-01\n16838 5758\n/tmp/tmp.0000000000\n 3c 5e 81 b4\n");
}

#[test]
fn mock_output_is_byte_identical_across_runs() {
    let first = mock(Faults::none(), RESTLESS);
    for _ in 0..4 {
        let again = mock(Faults::none(), RESTLESS);
        for (line, other) in first.stdout.lines().zip(again.stdout.lines()) {
            assert_eq!(line, other);
        }
        assert_eq!(first.stdout, again.stdout);
        assert_eq!(first.stderr, again.stderr);
        assert_eq!(first.report.stdout, again.report.stdout);
    }
}
