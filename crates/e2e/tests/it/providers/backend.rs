//! The backend of a provider as a library: made ready, released, run, taken back, limited, reaped.

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use tempfile::TempDir;
use warrant_protocol::{Enforcement, Evidence, Isolation, LimitKind, Limits, Outcome, SecretName};
use warrant_sandbox::remote::{Remote, Surroundings};
use warrant_sandbox::{
    Backend as _, Cancel, Command, EnvValue, EnvVar, Files, Invocation, Network, NetworkDecision,
    RunReport, Shell, Sink, Stdin, Stream, WorkspaceAccess,
};

use super::door::Door;
use super::proxy::{Kind, Proxy};
use super::site::{PROVIDERS, variables};

/// A workspace and a place for what a backend keeps.
struct Desk {
    folder: TempDir,
}

impl Desk {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("work")).unwrap();
        Self { folder }
    }

    fn work(&self) -> PathBuf {
        self.folder.path().join("work")
    }

    fn put(&self, name: &str, content: &str, mode: u32) {
        let path = self.work().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, content).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    }

    fn open(&self, provider: Isolation, (address, token): (&str, &str)) -> Remote {
        let around = Surroundings {
            environment: variables(provider, address, token).into_iter().collect(),
            config: BTreeMap::new(),
            pinned: BTreeMap::new(),
            home: "home-of-the-test".into(),
            scratch: self.folder.path().join("scratch"),
            random,
        };
        Remote::open(provider, around).unwrap()
    }

    fn script(&self, script: &str) -> Invocation {
        let plain = |name: &str, value: &str| EnvVar {
            name: name.into(),
            value: EnvValue::Plain(value.into()),
        };
        Invocation {
            command: Command::Shell { shell: Shell::Sh, script: script.into() },
            cwd: self.work(),
            env: vec![plain("PATH", "/usr/local/bin:/usr/bin:/bin")],
            stdin: Stdin::Empty,
            tty: None,
            files: Files {
                workspace: self.work(),
                access: WorkspaceAccess::Overlay,
                read_roots: Vec::new(),
                write_roots: Vec::new(),
                masks: vec![".env".into()],
                places: Vec::new(),
            },
            network: Network::Allow(Vec::new()),
            limits: Limits { wall_ms: Some(60_000), ..Limits::danger_unlimited() },
            image: None,
            neighbors: None,
        }
    }
}

fn random() -> std::io::Result<[u8; 16]> {
    use std::io::Read as _;
    let mut bytes = [0; 16];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Remembers what was said on standard output.
#[derive(Default)]
struct Heard(Mutex<Vec<u8>>);

impl Sink for Heard {
    fn output(&self, stream: Stream, bytes: &[u8]) -> std::io::Result<()> {
        if stream == Stream::Stdout {
            self.0.lock().unwrap().extend_from_slice(bytes);
        }
        Ok(())
    }

    fn network(&self, _: NetworkDecision) {}
}

impl Heard {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap()).into_owned()
    }
}

#[track_caller]
fn run(backend: &Remote, invocation: Invocation) -> (RunReport, String) {
    let heard = Heard::default();
    let plan = backend.prepare(invocation).unwrap();
    let report = backend.run(&plan, &heard, &Cancel::new().unwrap()).unwrap();
    (report, heard.text())
}

fn each(check: impl Fn(&Door, &Desk, &Remote)) {
    let door = Door::open();
    for provider in PROVIDERS {
        let desk = Desk::new();
        let backend = desk.open(provider, (&door.address, &door.token));
        check(&door, &desk, &backend);
        assert_eq!(door.sandboxes(), Vec::<String>::new(), "{provider}");
    }
}

/// Returns where a descriptor points.
fn path_of(fd: &OwnedFd) -> PathBuf {
    std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).unwrap()
}

#[test]
fn changes_come_back_as_an_upper_directory_of_every_provider() {
    each(|_, desk, backend| {
        desk.put("kept.txt", "kept", 0o644);
        desk.put("tool.sh", "x", 0o755);
        desk.put("gone/away", "x", 0o644);
        let script = "echo more >> kept.txt; chmod 644 tool.sh; rm -r gone; \
                      mkdir -p new/deep; echo x > new/deep/f; chmod 700 new/deep/f; \
                      ln -s ../kept.txt new/l";
        let (report, _) = run(backend, desk.script(script));
        assert_eq!(report.outcome, Outcome::Exited { code: 0 });
        let upper = path_of(&report.upper.unwrap());
        assert_eq!(std::fs::read_to_string(upper.join("kept.txt")).unwrap(), "keptmore\n");
        assert_eq!(std::fs::metadata(upper.join("tool.sh")).unwrap().mode() & 0o777, 0o644);
        let file = std::fs::metadata(upper.join("new/deep/f")).unwrap();
        assert_eq!((file.mode() & 0o777, file.len()), (0o700, 2));
        assert_eq!(std::fs::read_link(upper.join("new/l")).unwrap(), Path::new("../kept.txt"));
        let gone = std::fs::symlink_metadata(upper.join("gone")).unwrap();
        assert!(gone.file_type().is_char_device() && gone.rdev() == 0);
        assert_eq!(std::fs::read_to_string(desk.work().join("kept.txt")).unwrap(), "kept");
    });
}

#[test]
fn direct_access_brings_changes_into_the_workspace() {
    each(|_, desk, backend| {
        desk.put("a/old", "old", 0o644);
        desk.put("a/.env", "SECRET=1", 0o600);
        desk.put("b", "b", 0o644);
        let mut invocation = desk.script("rm -rf a; rm b; mkdir b; echo x > b/x; ln -s x b/y");
        invocation.files.access = WorkspaceAccess::Direct;
        let (report, _) = run(backend, invocation);
        assert_eq!(report.outcome, Outcome::Exited { code: 0 });
        let at = |name: &str| desk.work().join(name);
        assert!(!at("a/old").exists());
        // A masked file was never sent, so its absence there means nothing here.
        assert_eq!(std::fs::read_to_string(at("a/.env")).unwrap(), "SECRET=1");
        assert_eq!(std::fs::read_to_string(at("b/y")).unwrap(), "x\n");
    });
}

#[test]
fn much_input_arrives_whole_and_ends() {
    each(|_, desk, backend| {
        let (read, mut write) = std::io::pipe().unwrap();
        let feeder = std::thread::spawn(move || {
            std::io::Write::write_all(&mut write, &vec![b'x'; 200_000]).unwrap();
        });
        let mut invocation = desk.script("wc -c");
        invocation.stdin = Stdin::Descriptor(Arc::new(OwnedFd::from(read)));
        let (_, said) = run(backend, invocation);
        feeder.join().unwrap();
        assert_eq!(said.trim(), "200000");
    });
}

#[test]
fn limits_are_kept_on_this_side() {
    each(|_, desk, backend| {
        let mut invocation = desk.script("while :; do echo 0123456789; done");
        invocation.limits.output_bytes = Some(10_000);
        let (report, said) = run(backend, invocation);
        assert_eq!(report.outcome, Outcome::Limited { limit: LimitKind::Output });
        assert_eq!((said.len(), report.stdout.truncated), (10_000, true));
        let mut invocation = desk.script("echo before; sleep 100");
        invocation.limits.wall_ms = Some(1_500);
        let (report, said) = run(backend, invocation);
        assert_eq!(report.outcome, Outcome::Limited { limit: LimitKind::Wall });
        assert_eq!(said, "before\n");
    });
}

#[test]
fn what_is_made_ready_is_released_or_used_once() {
    each(|door, desk, backend| {
        let cancel = Cancel::new().unwrap();
        let mut plan = backend.prepare(desk.script("echo hi")).unwrap();
        let posture = backend.ready(&mut plan, &cancel).unwrap();
        assert_eq!(door.sandboxes().len(), 1);
        let network = &posture.components["network"];
        assert_eq!(
            (network.enforcement, network.evidence),
            (Enforcement::Enforced, Evidence::Measured)
        );
        backend.release(&plan);
        assert_eq!(door.sandboxes().len(), 0);
        let mut plan = backend.prepare(desk.script("echo hi")).unwrap();
        backend.ready(&mut plan, &cancel).unwrap();
        assert_eq!(door.sandboxes().len(), 1);
        let heard = Heard::default();
        backend.run(&plan, &heard, &cancel).unwrap();
        assert_eq!((heard.text().as_str(), door.sandboxes().len()), ("hi\n", 0));
    });
}

#[test]
fn a_file_is_written_listed_and_read_without_a_program() {
    each(|_, _, backend| assert!(backend.round_trip(b"\0\xff\r\n--x").unwrap()));
}

#[test]
fn orphans_of_a_crash_are_reaped_by_label_and_the_living_are_left() {
    each(|door, desk, backend| {
        let cancel = Cancel::new().unwrap();
        let mut live = backend.prepare(desk.script(":")).unwrap();
        backend.ready(&mut live, &cancel).unwrap();
        // Whoever made this one died: nobody holds its record.
        let crashed = Desk::new();
        let dead = crashed.open(backend.isolation(), (&door.address, &door.token));
        let mut plan = dead.prepare(desk.script(":")).unwrap();
        dead.ready(&mut plan, &cancel).unwrap();
        std::mem::forget(dead);
        assert_eq!(door.sandboxes().len(), 2);
        let id = plan.artifact["sandbox"]["id"].as_str().unwrap().to_owned();
        assert_eq!(backend.reap().unwrap(), [id]);
        assert_eq!(door.sandboxes().len(), 1);
        backend.release(&live);
    });
}

#[test]
fn secrets_reach_the_program_and_nothing_else_of_the_provider() {
    let door = Door::open();
    for provider in PROVIDERS {
        let proxy = Proxy::before(&door.address);
        let desk = Desk::new();
        let backend = desk.open(provider, (&proxy.address, &door.token));
        let mut invocation = desk.script("printf %s \"$TOKEN\" | wc -c");
        let name: SecretName = "TOKEN".parse().unwrap();
        let value = "s3cr3t-value".to_owned();
        let value = EnvValue::Secret { name, value };
        invocation.env.push(EnvVar { name: "TOKEN".into(), value });
        let mut plan = backend.prepare(invocation).unwrap();
        backend.ready(&mut plan, &Cancel::new().unwrap()).unwrap();
        assert!(!plan.artifact.to_string().contains("s3cr3t"));
        let heard = Heard::default();
        backend.run(&plan, &heard, &Cancel::new().unwrap()).unwrap();
        assert_eq!(heard.text().trim(), "12", "{provider}");
        // Sessions of Daytona take no variables: there they travel as a file of their own.
        let expected = if provider == Isolation::Daytona { Kind::Upload } else { Kind::Start };
        assert_eq!(proxy.told("s3cr3t"), [expected], "{provider}");
    }
}
