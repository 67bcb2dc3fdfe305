//! The whole way: asked for, looked at, staged, run, taken back, deleted.

use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::PathBuf;

use warrant_protocol::{Enforcement, Evidence, Isolation, LimitKind, Limits, Outcome, SecretName};
use warrant_sandbox::remote::{NotConfigured, Remote};
use warrant_sandbox::{Backend as _, Cancel, EnvValue, EnvVar, Network, Stdin, WorkspaceAccess};

use super::e2b::Provider;
use super::kit::Desk;
use super::trick::Trick;
use crate::bench::run;

/// Returns where a descriptor points.
fn path_of(fd: &std::os::fd::OwnedFd) -> PathBuf {
    use std::os::fd::AsRawFd as _;
    std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).unwrap()
}

#[test]
fn a_missing_key_is_told_before_anything_is_asked() {
    let desk = Desk::new();
    for (isolation, variable) in [
        (Isolation::E2b, "E2B_API_KEY"),
        (Isolation::Daytona, "DAYTONA_API_KEY"),
        (Isolation::Opensandbox, "OPEN_SANDBOX_API_KEY"),
    ] {
        let refused = Remote::open(isolation, desk.around(&[])).unwrap_err();
        assert_eq!(refused, NotConfigured::NoKey { isolation, variable });
        assert!(refused.to_string().contains(variable));
    }
    let bad = [("E2B_API_KEY", "k"), ("E2B_API_URL", "ftp://x")];
    let refused = Remote::open(Isolation::E2b, desk.around(&bad)).unwrap_err();
    assert!(matches!(refused, NotConfigured::BadAddress { variable: "E2B_API_URL", .. }));
}

#[test]
fn e2b_runs_a_program_and_brings_its_changes_back() {
    let (provider, server) = Provider::start(Trick::None);
    let desk = Desk::new();
    desk.put("kept.txt", "kept", 0o644);
    desk.put("gone/old.txt", "old", 0o644);
    desk.put("tool.sh", "#!/bin/sh\necho tool", 0o755);
    desk.put(".env", "SECRET=1", 0o600);
    std::os::unix::fs::symlink("kept.txt", desk.workspace().join("link")).unwrap();
    let script = "./tool.sh; cat link; echo \"[$GREETING][${IMAGE_VARIABLE-none}]\"; \
                  cat .env 2>/dev/null | wc -c; rm -r gone; echo more >> kept.txt; \
                  mkdir -p new/deep; echo n > new/deep/f; chmod 700 new/deep/f; \
                  ln -s ../kept.txt new/l; chmod -x tool.sh; echo err >&2; exit 3";
    let backend = desk.e2b(&server.url());
    let (report, heard) = run(&backend, desk.script(script));
    let report = report.unwrap();
    assert_eq!(report.outcome, Outcome::Exited { code: 3 });
    let said = heard.stdout();
    assert_eq!(said, "tool\nkept[it's \"fine\"][none]\n0\n");
    assert_eq!(heard.stderr(), "err\n");
    assert_eq!(report.stdout.digest, warrant_protocol::Digest::of(said.as_bytes()));
    let upper = path_of(report.upper.as_ref().unwrap());
    assert_eq!(std::fs::read_to_string(upper.join("kept.txt")).unwrap(), "keptmore\n");
    assert_eq!(std::fs::metadata(upper.join("tool.sh")).unwrap().mode() & 0o777, 0o644);
    let file = std::fs::metadata(upper.join("new/deep/f")).unwrap();
    assert_eq!((file.permissions().mode() & 0o777, file.len()), (0o700, 2));
    assert_eq!(std::fs::read_link(upper.join("new/l")).unwrap(), PathBuf::from("../kept.txt"));
    let gone = std::fs::symlink_metadata(upper.join("gone")).unwrap();
    assert!(gone.file_type().is_char_device() && gone.rdev() == 0);
    let mut names: Vec<_> =
        std::fs::read_dir(&upper).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["gone", "kept.txt", "new", "tool.sh"]);
    // The host's workspace is as it was, the sandbox is gone, and nothing ran twice.
    assert_eq!(std::fs::read_to_string(desk.workspace().join("kept.txt")).unwrap(), "kept");
    assert_eq!((provider.left(), provider.programs().len()), (0, 1));
    drop(backend);
    assert!(!upper.exists());
}

#[test]
fn direct_access_brings_changes_into_the_workspace() {
    let (_provider, server) = Provider::start(Trick::None);
    let desk = Desk::new();
    desk.put("a/old", "old", 0o644);
    desk.put("a/.env", "SECRET=1", 0o600);
    desk.put("b", "b", 0o644);
    let mut invocation = desk.script("rm -rf a; rm b; mkdir b; echo x > b/x; ln -s x b/y");
    invocation.files.access = WorkspaceAccess::Direct;
    let (report, _) = run(&desk.e2b(&server.url()), invocation);
    assert_eq!(report.unwrap().outcome, Outcome::Exited { code: 0 });
    let at = |name: &str| desk.workspace().join(name);
    assert!(!at("a/old").exists());
    // A masked file was never sent, so its absence there means nothing here.
    assert_eq!(std::fs::read_to_string(at("a/.env")).unwrap(), "SECRET=1");
    assert_eq!(std::fs::read_to_string(at("b/y")).unwrap(), "x\n");
}

#[test]
fn secrets_reach_the_program_and_nothing_else_of_the_provider() {
    let (provider, server) = Provider::start(Trick::None);
    let desk = Desk::new();
    let backend = desk.e2b(&server.url());
    let mut invocation = desk.script("printf %s \"$TOKEN\" | sha256sum");
    let name: SecretName = "TOKEN".parse().unwrap();
    let value = "s3cr3t-value".to_owned();
    invocation.env.push(EnvVar { name: "TOKEN".into(), value: EnvValue::Secret { name, value } });
    let mut plan = backend.prepare(invocation).unwrap();
    backend.ready(&mut plan, &Cancel::new().unwrap()).unwrap();
    assert!(!plan.artifact.to_string().contains("s3cr3t"));
    let memory = crate::bench::Memory::default();
    let report = backend.run(&plan, &memory, &Cancel::new().unwrap()).unwrap();
    assert_eq!(report.outcome, Outcome::Exited { code: 0 });
    let created = format!("{:?}", provider.creates.lock().unwrap());
    assert!(!created.contains("s3cr3t"));
    let starts = provider.starts.lock().unwrap();
    for start in starts.iter() {
        assert!(!start["process"]["args"].to_string().contains("s3cr3t"));
    }
    let with: Vec<_> = starts.iter().filter(|start| start.to_string().contains("s3cr3t")).collect();
    assert_eq!(with.len(), 1);
}

#[test]
fn input_is_streamed_and_ends() {
    let (_provider, server) = Provider::start(Trick::None);
    let desk = Desk::new();
    let backend = desk.e2b(&server.url());
    let mut invocation = desk.script("cat; echo end");
    invocation.stdin = Stdin::Bytes(b"one\ntwo".to_vec());
    let (_, heard) = run(&backend, invocation);
    assert_eq!(heard.stdout(), "one\ntwoend\n");
    let (read, mut write) = std::io::pipe().unwrap();
    let feeder = std::thread::spawn(move || {
        std::io::Write::write_all(&mut write, &vec![b'x'; 200_000]).unwrap();
    });
    let mut invocation = desk.script("wc -c");
    let fd = std::os::fd::OwnedFd::from(read);
    invocation.stdin = Stdin::Descriptor(std::sync::Arc::new(fd));
    let (_, heard) = run(&backend, invocation);
    feeder.join().unwrap();
    assert_eq!(heard.stdout().trim(), "200000");
}

#[test]
fn limits_are_kept_on_this_side_and_the_sandbox_is_gone() {
    let (provider, server) = Provider::start(Trick::None);
    let desk = Desk::new();
    let backend = desk.e2b(&server.url());
    let mut invocation = desk.script("echo before; sleep 100");
    invocation.limits.wall_ms = Some(700);
    let (report, heard) = run(&backend, invocation);
    let report = report.unwrap();
    assert_eq!(report.outcome, Outcome::Limited { limit: LimitKind::Wall });
    assert_eq!(heard.stdout(), "before\n");
    let mut invocation = desk.script("yes");
    invocation.limits =
        Limits { output_bytes: Some(10_000), wall_ms: Some(20_000), ..invocation.limits };
    let (report, heard) = run(&backend, invocation);
    let report = report.unwrap();
    assert_eq!(report.outcome, Outcome::Limited { limit: LimitKind::Output });
    assert_eq!((heard.stdout().len(), report.stdout.truncated), (10_000, true));
    assert_eq!(provider.left(), 0);
}

#[test]
fn a_cancelled_run_leaves_no_sandbox() {
    let (provider, server) = Provider::start(Trick::None);
    let desk = Desk::new();
    let backend = desk.e2b(&server.url());
    let plan = backend.prepare(desk.script("sleep 100")).unwrap();
    let cancel = Cancel::new().unwrap();
    let report = std::thread::scope(|scope| {
        let memory = crate::bench::Memory::default();
        let running = scope.spawn({
            let (backend, plan, cancel) = (&backend, &plan, cancel.clone());
            move || backend.run(plan, &memory, &cancel).unwrap()
        });
        while provider.programs().is_empty() {
            std::thread::yield_now();
        }
        cancel.cancel();
        running.join().unwrap()
    });
    assert_eq!(report.outcome, Outcome::Cancelled);
    assert_eq!(provider.left(), 0);
}

#[test]
fn what_is_made_ready_is_released_or_used_once() {
    let (provider, server) = Provider::start(Trick::None);
    let desk = Desk::new();
    let backend = desk.e2b(&server.url());
    let cancel = Cancel::new().unwrap();
    let mut plan = backend.prepare(desk.script("echo hi")).unwrap();
    let posture = backend.ready(&mut plan, &cancel).unwrap();
    assert_eq!(provider.left(), 1);
    let network = &posture.components["network"];
    assert_eq!(
        (network.enforcement, network.evidence),
        (Enforcement::Enforced, Evidence::Measured)
    );
    assert_eq!(posture.components["image_digest"].evidence, Evidence::Requested);
    assert_eq!(posture.provider_version, "0.6.13");
    backend.release(&plan);
    assert_eq!(provider.left(), 0);
    let mut plan = backend.prepare(desk.script("echo hi")).unwrap();
    backend.ready(&mut plan, &cancel).unwrap();
    let memory = crate::bench::Memory::default();
    backend.run(&plan, &memory, &cancel).unwrap();
    assert_eq!((provider.left(), provider.creates.lock().unwrap().len()), (0, 2));
}

#[test]
fn orphans_of_a_crash_are_reaped_by_label_and_the_living_are_left() {
    let (provider, server) = Provider::start(Trick::None);
    let desk = Desk::new();
    let backend = desk.e2b(&server.url());
    let cancel = Cancel::new().unwrap();
    let mut live = backend.prepare(desk.script(":")).unwrap();
    backend.ready(&mut live, &cancel).unwrap();
    // Whoever made this one died: the record stays and nobody holds it.
    let crashed = Desk::new();
    let dead = crashed.e2b(&server.url());
    let mut plan = dead.prepare(desk.script(":")).unwrap();
    dead.ready(&mut plan, &cancel).unwrap();
    std::mem::forget(dead);
    assert_eq!(provider.left(), 2);
    let id = plan.artifact["sandbox"]["id"].as_str().unwrap().to_owned();
    assert_eq!(backend.reap().unwrap(), [id]);
    assert_eq!(provider.left(), 1);
    backend.release(&live);
    assert_eq!(provider.left(), 0);
}

#[test]
fn a_file_is_written_listed_and_read_without_a_program() {
    let (provider, server) = Provider::start(Trick::None);
    let desk = Desk::new();
    assert!(desk.e2b(&server.url()).round_trip(b"\0\xff\r\n--x").unwrap());
    assert_eq!((provider.left(), provider.starts.lock().unwrap().len()), (0, 0));
}

#[test]
fn rules_a_provider_cannot_express_are_refused() {
    let (_provider, server) = Provider::start(Trick::None);
    let desk = Desk::new();
    let backend = desk.e2b(&server.url());
    let refused = |change: &dyn Fn(&mut warrant_sandbox::Invocation)| {
        let mut invocation = desk.script(":");
        change(&mut invocation);
        assert_eq!(backend.prepare(invocation).unwrap_err().code, "SANDBOX_DENIED");
    };
    refused(&|i| i.network = Network::Allow(vec!["db.example:5432".into()]));
    refused(&|i| i.files.access = WorkspaceAccess::ReadOnly);
    refused(&|i| i.files.read_roots = vec!["/etc".into()]);
    refused(&|i| i.cwd = "/elsewhere".into());
    refused(&|i| i.tty = Some(warrant_sandbox::TtySize { columns: 80, rows: 24 }));
}
