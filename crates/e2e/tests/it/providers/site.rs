//! Where a client stands: a home, a workspace, and the variables a provider documents.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;
use warrant_govern::Desk;
use warrant_plane::store::RunFilter;
use warrant_protocol::preimage::Preimage;
use warrant_protocol::verify::verify_slice;
use warrant_protocol::{Isolation, KeyRole, TrustedKeys};

use super::door::binary;

/// The providers there are.
pub(crate) const PROVIDERS: [Isolation; 3] =
    [Isolation::E2b, Isolation::Daytona, Isolation::Opensandbox];

/// What no provider tells, and every run there has to accept by name.
pub(crate) const ACCEPT: [&str; 2] = ["--accept-evidence", "requested:image_digest"];

/// A home and a workspace.
pub(crate) struct Site {
    folder: TempDir,
    provider: Isolation,
    variables: Vec<(String, String)>,
}

impl Site {
    /// Returns a place from which a provider at `address` is used.
    pub(crate) fn new(provider: Isolation, address: &str, token: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("work")).unwrap();
        Self { folder, provider, variables: variables(provider, address, token) }
    }

    pub(crate) fn with(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    pub(crate) fn home(&self) -> PathBuf {
        self.folder.path().join("home")
    }

    pub(crate) fn work(&self) -> PathBuf {
        self.folder.path().join("work")
    }

    pub(crate) fn put(&self, name: &str, content: &str, mode: u32) {
        let path = self.work().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, content).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    }

    /// Returns the program with these arguments, in the workspace.
    pub(crate) fn warrant(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(binary());
        command
            .args(arguments)
            .env("WARRANT_HOME", self.home())
            .env("WARRANT_PROVIDER_TIMEOUT_S", "20")
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .current_dir(self.work())
            .stdin(Stdio::null());
        command
    }

    /// Returns the program on a terminal of its own, with these arguments as a shell reads them.
    pub(crate) fn on_terminal(&self, arguments: &str) -> Command {
        let line = format!("{} {arguments}", binary().display());
        let mut command = Command::new("script");
        command
            .args(["-qefc", &line, "/dev/null"])
            .env("WARRANT_HOME", self.home())
            .env("WARRANT_PROVIDER_TIMEOUT_S", "20")
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .current_dir(self.work());
        command
    }

    /// Returns the provider.
    pub(crate) const fn provider(&self) -> Isolation {
        self.provider
    }

    /// Returns the program that runs something at the provider.
    pub(crate) fn exec(&self, options: &[&str], argv: &[&str]) -> Command {
        let start = ["sandbox", "exec", "--provider", self.provider.as_str()];
        self.warrant(&[&start[..], &ACCEPT, options, &["--"], argv].concat())
    }

    /// Runs a script at the provider.
    pub(crate) fn script(&self, options: &[&str], script: &str) -> Ran {
        Ran::from(self.exec(options, &["sh", "-c", script]).output().unwrap())
    }

    /// Returns the receipt of the newest run, after its bundle was verified with this home's keys
    /// and its preimage was computed again.
    #[track_caller]
    pub(crate) fn receipt(&self) -> Value {
        newest_receipt(&self.home())
    }
}

/// Returns the receipt of the newest run of a home, verified.
#[track_caller]
pub(crate) fn newest_receipt(home: &Path) -> Value {
    let desk = Desk::open(Some(home)).unwrap();
    let plane = desk.plane();
    let trusted = TrustedKeys::none()
        .and(KeyRole::Plane, plane.home().plane_key().public().clone())
        .and(KeyRole::Runner, plane.home().runner_key().public().clone());
    let filter = RunFilter { limit: Some(1), ..RunFilter::default() };
    let run = plane.store().list(&filter).unwrap().runs.remove(0);
    let bundle = plane.bundle(&run.id).unwrap_or_else(|error| panic!("{}: {error}", run.id));
    verify_slice(bundle.to_string().as_bytes(), &trusted)
        .unwrap_or_else(|problems| panic!("{}: {problems:?}", run.id));
    let receipt: Value = serde_json::from_str(&bundle.to_string()).unwrap();
    let receipt = receipt["receipt"].clone();
    if let Some(preimage) = receipt.get("preimage") {
        let preimage: Preimage = serde_json::from_value(preimage.clone()).unwrap();
        assert_eq!(preimage.mismatches(), Vec::<&str>::new());
    }
    receipt
}

/// How a program ended.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

/// Returns the variables with which a provider's own SDK would be led to `address`.
pub(crate) fn variables(provider: Isolation, address: &str, token: &str) -> Vec<(String, String)> {
    let url = format!("http://{address}");
    let pairs = match provider {
        Isolation::E2b => {
            vec![
                ("E2B_API_URL", url.clone()),
                ("E2B_SANDBOX_URL", url),
                ("E2B_API_KEY", token.into()),
            ]
        }
        Isolation::Daytona => {
            vec![("DAYTONA_API_URL", format!("{url}/api")), ("DAYTONA_API_KEY", token.into())]
        }
        _ => vec![
            ("OPEN_SANDBOX_DOMAIN", address.to_owned()),
            ("OPEN_SANDBOX_API_KEY", token.into()),
        ],
    };
    pairs.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}
