//! What every run gets: the workspace at `/`, its command, environment, input and limits.

use std::fs;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use warrant_protocol::{Digest, LimitKind, Outcome};
use warrant_sandbox::hermetic::{Hermetic, Pool, WorkerProgram};
use warrant_sandbox::{Backend, Cancel, Command, Invocation, Shell, Stdin, WorkspaceAccess};

use super::kit::{Bench, Heard, pool, run};

#[test]
fn the_workspace_is_the_root_and_writes_land_in_it() {
    let bench = Bench::new();
    bench.put("src/a.txt", "alpha\n");
    bench.check("pwd; ls; cat /src/a.txt; echo beta > /src/b.txt; mkdir c", "/\nsrc\nalpha\n");
    assert_eq!(fs::read_to_string(bench.path("src/b.txt")).unwrap(), "beta\n");
    assert!(bench.path("c").is_dir());
}

#[test]
fn cwd_env_stdin_and_shell_are_honored() {
    let mut bench = Bench::new();
    bench.put("sub/here", "");
    bench.env("GREETING", "good day");
    bench.invocation.cwd = bench.path("sub");
    bench.invocation.stdin = Stdin::Bytes(b"one\ntwo\n".to_vec());
    bench.check(
        "pwd; ls; echo \"$GREETING\"; cat; echo $0",
        "/sub\nhere\ngood day\none\ntwo\nbash\n",
    );
    let command = Command::Shell { shell: Shell::Sh, script: "echo $0".into() };
    let ran = run(&Hermetic::new(pool()), Invocation { command, ..bench.invocation.clone() });
    assert_eq!(ran.stdout, "sh\n");
}

#[test]
fn nothing_of_the_hosts_environment_is_inherited() {
    let bench = Bench::new();
    let ran = bench.run("env; export -p; set");
    assert!(!ran.stdout.contains("CARGO"), "{}", ran.stdout);
    assert!(!ran.stdout.contains(bench.workspace().to_str().unwrap()), "{}", ran.stdout);
}

#[test]
fn an_open_stdin_does_not_keep_a_script_from_starting() {
    let mut bench = Bench::new();
    let (read, write) = std::io::pipe().unwrap();
    bench.invocation.stdin = Stdin::Descriptor(Arc::new(OwnedFd::from(read)));
    bench.put("f", "one\n");
    bench.check(
        "f() { echo in f; }; f; ls; cat f; grep -c one f; x=$(date +%s); echo x | wc -l",
        "in f\nf\none\n1\n1\n",
    );
    bench.invocation.limits.wall_ms = Some(1_500);
    let ran = bench.run("cat");
    assert_eq!(ran.report.outcome, Outcome::Limited { limit: LimitKind::Wall });
    assert!(ran.stderr.contains("standard input was still open"), "{}", ran.stderr);
    drop(write);
}

#[test]
fn a_loop_over_forty_thousand_lines_ends_in_time() {
    let bench = Bench::new();
    let lines: String = (1..=40_000).map(|n| format!("line {n} of the file\n")).collect();
    bench.put("f", &lines);
    let script = "while read -r a n rest; do sum=$((sum + n)); done < f; echo $sum";
    bench.check(script, "800020000\n");
}

#[test]
fn stdin_from_a_descriptor_arrives_whole() {
    let mut bench = Bench::new();
    let (read, write) = std::io::pipe().unwrap();
    let feeder = std::thread::spawn(move || {
        use std::io::Write;
        let mut write = write;
        for _ in 0..40 {
            write.write_all(&[b'x'; 10_000]).unwrap();
        }
    });
    bench.invocation.stdin = Stdin::Descriptor(Arc::new(OwnedFd::from(read)));
    bench.check("wc -c", "400000\n");
    feeder.join().unwrap();
}

#[test]
fn the_exit_code_is_the_scripts() {
    let bench = Bench::new();
    for code in [0, 1, 3, 124, 255] {
        let ran = bench.run(&format!("exit {code}"));
        assert_eq!(ran.report.outcome, Outcome::Exited { code });
    }
    let ran = bench.run("if then fi");
    assert_eq!(ran.report.outcome, Outcome::Exited { code: 2 }, "{}", ran.stderr);
}

#[test]
fn argv_of_an_available_command_runs_and_any_other_is_refused_with_near_names() {
    let bench = Bench::new();
    let argv = |program: &str, args: &[&str]| Invocation {
        command: Command::Argv {
            program: program.into(),
            args: args.iter().map(ToString::to_string).collect(),
        },
        ..bench.invocation.clone()
    };
    let backend = Hermetic::new(pool());
    assert_eq!(run(&backend, argv("echo", &["it's", "$HOME", "a  b"])).stdout, "it's $HOME a  b\n");
    assert_eq!(run(&backend, argv("/usr/bin/printf", &["%s", "x"])).stdout, "x");
    assert_eq!(run(&backend, argv("sh", &["-c", "echo $1", "sh", "two"])).stdout, "two\n");
    let refusal = backend.prepare(argv("gerp", &[])).unwrap_err();
    assert_eq!(refusal.code, "SANDBOX_DENIED");
    assert!(refusal.message.contains("grep"), "{refusal}");
    let refusal = backend.prepare(argv("node", &["x.js"])).unwrap_err();
    assert!(refusal.message.contains("starts no programs"), "{refusal}");
    for outside in ["./x", "/opt/tool", "curl", "ssh", "python3", ""] {
        assert!(backend.prepare(argv(outside, &[])).is_err(), "{outside}");
    }
}

#[test]
fn a_missing_command_says_so_and_lists_near_names() {
    let bench = Bench::new();
    let ran = bench.run("gerp x");
    assert_eq!(ran.report.outcome, Outcome::Exited { code: 127 });
    assert!(ran.stderr.contains("gerp: command not found"), "{}", ran.stderr);
    assert!(ran.stderr.contains("grep"), "{}", ran.stderr);
}

#[test]
fn what_cannot_be_given_is_refused_before_anything_runs() {
    let bench = Bench::new();
    let backend = Hermetic::new(pool());
    let mut outside = bench.invocation.clone();
    outside.cwd = "/".into();
    assert!(backend.prepare(outside).is_err());
    let mut roots = bench.invocation.clone();
    roots.files.write_roots = vec!["/var".into()];
    assert!(backend.prepare(roots).is_err());
    let mut roots = bench.invocation.clone();
    roots.files.read_roots = vec!["/usr".into()];
    assert!(backend.prepare(roots).is_err());
}

#[test]
fn a_read_only_workspace_takes_no_change() {
    let mut bench = Bench::new();
    bench.put("a", "old");
    bench.invocation.files.access = WorkspaceAccess::ReadOnly;
    let ran =
        bench.run("echo new > a; rm a; mkdir d; mv a b; ln -s a l; chmod 700 a; touch n; cat a");
    assert_eq!(ran.stdout, "old");
    assert_eq!(fs::read_to_string(bench.path("a")).unwrap(), "old");
    assert_eq!(fs::read_dir(bench.workspace()).unwrap().count(), 1);
}

#[test]
fn the_deadline_is_its_own_outcome_with_124_on_the_wire() {
    let mut bench = Bench::new();
    bench.invocation.limits.wall_ms = Some(2000);
    let ran = bench.run("echo before; sleep 100; echo after");
    assert_eq!(ran.report.outcome, Outcome::Limited { limit: LimitKind::Wall });
    assert_eq!(ran.report.outcome.wire_exit_code(), Some(124));
    assert_eq!(ran.stdout, "before\n");
    assert!(ran.took < Duration::from_millis(3000), "{:?}", ran.took);
}

#[test]
fn output_beyond_the_limit_is_cut_exactly_and_its_digest_is_of_what_passed() {
    let mut bench = Bench::new();
    bench.invocation.limits.output_bytes = Some(1000);
    let ran = bench.run("yes");
    assert_eq!(ran.report.outcome, Outcome::Limited { limit: LimitKind::Output });
    assert_eq!(ran.stdout.len(), 1000);
    assert_eq!(ran.report.stdout.digest, Digest::of(ran.stdout.as_bytes()));
    assert!(ran.report.stdout.truncated);
    assert_eq!(ran.report.stderr.digest, Digest::of(b""));
}

#[test]
fn cpu_memory_file_size_disk_and_inode_limits_each_strike_by_name() {
    let cases: [(LimitKind, u64, &str); 5] = [
        (LimitKind::Cpu, 300, "while :; do :; done"),
        (LimitKind::Memory, 100 << 20, "x=aaaaaaaaaaaaaaaa; while :; do x=$x$x; done"),
        (LimitKind::FileSize, 1000, "while :; do echo 0123456789 >> f; done"),
        (LimitKind::Disk, 5000, "i=0; while :; do i=$((i+1)); echo 0123456789 > f$i; done"),
        (LimitKind::Inodes, 20, "i=0; while :; do i=$((i+1)); mkdir d$i; done"),
    ];
    for (limit, value, script) in cases {
        let mut bench = Bench::new();
        match limit {
            LimitKind::Cpu => bench.invocation.limits.cpu_ms = Some(value),
            LimitKind::Memory => bench.invocation.limits.memory_bytes = Some(value),
            LimitKind::FileSize => bench.invocation.limits.file_bytes = Some(value),
            LimitKind::Disk => bench.invocation.limits.disk_bytes = Some(value),
            _ => bench.invocation.limits.inodes = Some(value),
        }
        let ran = bench.run(script);
        assert_eq!(ran.report.outcome, Outcome::Limited { limit }, "{}", ran.stderr);
        let biggest = fs::read_dir(bench.workspace()).unwrap();
        let biggest = biggest.map(|e| e.unwrap().metadata().unwrap().len()).max();
        assert!(biggest.unwrap_or(0) <= 4096, "{biggest:?}");
    }
}

#[test]
fn a_cancelled_run_ends_at_once_and_leaves_no_process() {
    let bench = Bench::new();
    let backend = Hermetic::new(pool());
    let command = Command::Shell { shell: Shell::Sh, script: "while :; do :; done".into() };
    let plan = backend.prepare(Invocation { command, ..bench.invocation.clone() }).unwrap();
    let cancel = Cancel::new().unwrap();
    cancel.cancel();
    let report = backend.run(&plan, &Heard::default(), &cancel).unwrap();
    assert_eq!(report.outcome, Outcome::Cancelled);
}

#[test]
fn a_warm_worker_serves_a_run_and_the_pool_is_refilled() {
    let bench = Bench::new();
    let program = WorkerProgram::at(env!("CARGO_BIN_EXE_warrant-sandbox-worker"));
    let backend = Hermetic::warm(Pool::new(program, 2));
    backend.refill().unwrap();
    assert_eq!(backend.ready(), 2);
    let command = Command::Shell { shell: Shell::Sh, script: "echo warm".into() };
    let plan = backend.prepare(Invocation { command, ..bench.invocation.clone() }).unwrap();
    let heard = Heard::default();
    backend.run(&plan, &heard, &Cancel::new().unwrap()).unwrap();
    assert_eq!(heard.stdout(), b"warm\n");
    backend.refill().unwrap();
    assert_eq!(backend.ready(), 2);
}

#[test]
fn the_plan_tells_names_of_variables_but_no_secret_value() {
    use warrant_sandbox::{EnvValue, EnvVar};
    let mut bench = Bench::new();
    let value = EnvValue::Secret { name: "TOKEN".parse().unwrap(), value: "hunter2-value".into() };
    bench.invocation.env.push(EnvVar { name: "TOKEN".into(), value });
    let plan = Hermetic::new(pool()).prepare(bench.invocation.clone()).unwrap();
    let text = format!("{plan:?}");
    assert!(text.contains("TOKEN"));
    assert!(!text.contains("hunter2-value"), "{text}");
}

#[test]
fn a_limit_beyond_what_the_kernel_can_count_is_no_limit_that_strikes_at_once() {
    let mut bench = Bench::new();
    bench.invocation.limits.cpu_ms = Some(1 << 60);
    bench.check("i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; echo $i", "20000\n");
}
