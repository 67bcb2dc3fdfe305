//! What the tests share: a workspace, a backend and an invocation.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use warrant_protocol::{Isolation, Limits};
use warrant_sandbox::remote::{Remote, Surroundings};
use warrant_sandbox::{
    Command, EnvValue, EnvVar, Files, Invocation, Network, Shell, Stdin, WorkspaceAccess,
};

/// A workspace, a scratch directory and a canary that answers everyone who reaches it.
pub(crate) struct Desk {
    pub(crate) temp: tempfile::TempDir,
    canary: String,
}

impl Desk {
    pub(crate) fn new() -> Self {
        let temp = tempfile::tempdir().unwrap();
        std::fs::create_dir(temp.path().join("workspace")).unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let canary = listener.local_addr().unwrap().to_string();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let _ = std::io::Write::write_all(&mut &stream, b"HTTP/1.0 200 OK\r\n\r\n");
            }
        });
        Self { temp, canary }
    }

    pub(crate) fn workspace(&self) -> PathBuf {
        self.temp.path().join("workspace")
    }

    pub(crate) fn put(&self, name: &str, content: &str, mode: u32) {
        let path = self.workspace().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, content).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    }

    pub(crate) fn around(&self, variables: &[(&str, &str)]) -> Surroundings {
        let mut environment: BTreeMap<String, String> =
            variables.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        environment.insert("WARRANT_EGRESS_CANARY".into(), self.canary.clone());
        environment.insert("WARRANT_PROVIDER_TIMEOUT_S".into(), "2".into());
        Surroundings {
            environment,
            config: BTreeMap::new(),
            home: "home-of-the-test".into(),
            scratch: self.scratch(),
            random,
        }
    }

    pub(crate) fn scratch(&self) -> PathBuf {
        self.temp.path().join("scratch")
    }

    pub(crate) fn e2b(&self, url: &str) -> Remote {
        let variables =
            [("E2B_API_KEY", super::e2b::KEY), ("E2B_API_URL", url), ("E2B_SANDBOX_URL", url)];
        Remote::open(Isolation::E2b, self.around(&variables)).unwrap()
    }

    pub(crate) fn script(&self, script: &str) -> Invocation {
        invocation(&self.workspace(), script)
    }
}

fn random() -> std::io::Result<[u8; 16]> {
    use std::io::Read as _;
    let mut bytes = [0; 16];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn invocation(workspace: &Path, script: &str) -> Invocation {
    let plain = |name: &str, value: &str| EnvVar {
        name: name.into(),
        value: EnvValue::Plain(value.into()),
    };
    Invocation {
        command: Command::Shell { shell: Shell::Sh, script: script.into() },
        cwd: workspace.to_owned(),
        env: vec![
            plain("PATH", "/usr/local/bin:/usr/bin:/bin"),
            plain("GREETING", "it's \"fine\""),
        ],
        stdin: Stdin::Empty,
        tty: None,
        files: Files {
            workspace: workspace.to_owned(),
            access: WorkspaceAccess::Overlay,
            read_roots: Vec::new(),
            write_roots: Vec::new(),
            masks: vec![".env".into()],
            places: Vec::new(),
        },
        network: Network::Allow(Vec::new()),
        limits: Limits { wall_ms: Some(20_000), ..Limits::danger_unlimited() },
        image: None,
    }
}
