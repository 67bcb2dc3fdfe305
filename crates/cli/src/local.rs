//! This machine's own plane: home, policy and store in one process, opened by every command
//! that governs or reads runs.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use warrant_plane::judge::no_policy_hash;
use warrant_plane::{EmbeddedPlane, Home, HomeEnvironment};
use warrant_policy::preset::Preset;
use warrant_policy::snapshot::{PolicySnapshot, PolicyText};
use warrant_protocol::RunId;
use warrant_protocol::request::{ActorKind, ActorRef};

/// The plane of this machine with the policy in force.
pub(crate) struct Local {
    pub(crate) plane: EmbeddedPlane,
    /// Absent means that everything is denied.
    pub(crate) policy: Option<PolicySnapshot>,
}

/// The files of a policy.
pub(crate) struct PolicyFiles {
    pub(crate) document: String,
    pub(crate) rules: String,
    pub(crate) examples: String,
}

const POLICY_FILES: [&str; 3] = ["document.json", "rules.cedar", "tests.jsonl"];

impl Local {
    /// Opens the home, and sets it up with the default policy on first use.
    pub(crate) fn open(home: Option<&Path>) -> anyhow::Result<Self> {
        Self::open_with(home, Preset::Default)
    }

    /// Opens the home; on first use it starts with `preset`.
    pub(crate) fn open_with(home: Option<&Path>, preset: Preset) -> anyhow::Result<Self> {
        let environment = environment(home)?;
        let is_first_use = !environment.locate()?.join("home.json").exists();
        let home = Home::open(&environment)?;
        if is_first_use {
            write_policy(home.root(), &preset.into())?;
        }
        let policy = read_policy(home.root())?;
        let policy_hash = policy.as_ref().map_or_else(no_policy_hash, PolicySnapshot::hash);
        let plane = EmbeddedPlane::open(home, policy_hash)?;
        Ok(Self { plane, policy })
    }

    /// Returns the run a person named: its whole id, or the start of one that is unique.
    pub(crate) fn run_named(&self, text: &str) -> anyhow::Result<RunId> {
        let id = text.parse::<RunId>().with_context(|| format!("`{text}` names no run"))?;
        self.plane
            .store()
            .run(&id)
            .with_context(|| format!("there is no run {id} here; see warrant runs"))?;
        Ok(id)
    }
}

fn environment(home: Option<&Path>) -> anyhow::Result<HomeEnvironment> {
    let mut environment = HomeEnvironment::of_process();
    if let Some(home) = home {
        let absolute =
            std::path::absolute(home).with_context(|| format!("cannot use {}", home.display()))?;
        environment.warrant_home = Some(absolute.into_os_string());
    }
    Ok(environment)
}

/// Returns who is at the keyboard, as the operating system authenticated them.
pub(crate) fn principal() -> ActorRef {
    let uid = rustix::process::getuid().as_raw();
    let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let name = passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(uid)).then(|| name.to_owned())
    });
    ActorRef { kind: ActorKind::Human, id: name.unwrap_or_else(|| format!("uid-{uid}")) }
}

impl From<Preset> for PolicyFiles {
    fn from(preset: Preset) -> Self {
        let PolicyText { document, rules, examples } = preset.text();
        Self {
            document: document.to_owned(),
            rules: rules.to_owned(),
            examples: examples.to_owned(),
        }
    }
}

impl PolicyFiles {
    /// Returns the text that the policy room reads.
    pub(crate) fn text(&self) -> PolicyText<'_> {
        PolicyText { document: &self.document, rules: &self.rules, examples: &self.examples }
    }

    /// Reads a preset by name, or a folder.
    pub(crate) fn named(source: &str) -> anyhow::Result<Self> {
        if let Some(preset) = Preset::named(source) {
            return Ok(preset.into());
        }
        let folder = Path::new(source);
        if !folder.is_dir() {
            bail!(
                "`{source}` is no preset (default, strict, dev, ci) and no folder with {}",
                POLICY_FILES.join(", ")
            );
        }
        Self::read(folder)
    }

    /// Reads a folder; rules and examples may be missing.
    pub(crate) fn read(folder: &Path) -> anyhow::Result<Self> {
        let read = |name: &str| {
            let path = folder.join(name);
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
        };
        let optional = |name: &str, missing: &str| match fs::read_to_string(folder.join(name)) {
            Ok(text) => Ok(text),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(missing.to_owned()),
            Err(error) => Err(error).with_context(|| format!("cannot read {name}")),
        };
        Ok(Self {
            document: read("document.json")?,
            rules: optional("rules.cedar", warrant_policy::snapshot::DOCUMENT_ONLY)?,
            examples: optional("tests.jsonl", "")?,
        })
    }
}

/// Puts a policy in force. It was checked before; the old one is replaced in one step.
pub(crate) fn write_policy(home: &Path, files: &PolicyFiles) -> anyhow::Result<()> {
    let fresh = home.join("policy.new");
    let old = home.join("policy.old");
    let current = policy_folder(home);
    let written = (|| {
        let _ = fs::remove_dir_all(&fresh);
        fs::create_dir(&fresh)?;
        fs::write(fresh.join("document.json"), &files.document)?;
        fs::write(fresh.join("rules.cedar"), &files.rules)?;
        fs::write(fresh.join("tests.jsonl"), &files.examples)?;
        let _ = fs::remove_dir_all(&old);
        if current.exists() {
            fs::rename(&current, &old)?;
        }
        fs::rename(&fresh, &current)
    })();
    written.with_context(|| format!("cannot write the policy below {}", home.display()))
}

/// Returns the folder of the policy in force.
pub(crate) fn policy_folder(home: &Path) -> PathBuf {
    home.join("policy")
}

fn read_policy(home: &Path) -> anyhow::Result<Option<PolicySnapshot>> {
    let folder = policy_folder(home);
    if !folder.exists() {
        return Ok(None);
    }
    let files = PolicyFiles::read(&folder)?;
    let policy = PolicySnapshot::load(files.text()).with_context(|| {
        format!("the policy in {} is broken, so nothing runs", folder.display())
    })?;
    Ok(Some(policy))
}
