//! What makes the mock tier say the same on every machine: its files, its clock, its chance.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use bashkit::hooks::ToolEvent;
use bashkit::{
    Builtin, BuiltinContext, DirEntry, ExecResult, FileSystem, FileSystemExt, FsLimits, InMemoryFs,
    Metadata, Result, vfs_join,
};

/// The one moment there is: 2020-01-01T00:00:00Z.
pub(super) const EPOCH: i64 = 1_577_836_800;

/// What is said before every script, so that chance starts at the same place.
pub(super) const PRELUDE: &str = "RANDOM=1 OPTERR=1";

/// Commands whose chance cannot be fixed, and which therefore do not exist.
pub(super) const WITHOUT: [&str; 3] = ["openssl", "shuf", "uuidgen"];

/// How many bytes one reading of a random device yields.
const RANDOM_BYTES: usize = 8192;

/// An empty filesystem in memory that knows one moment only.
pub(super) struct FixedFs(InMemoryFs);

impl FixedFs {
    /// Returns the filesystem as every script finds it.
    pub(super) fn new() -> Arc<Self> {
        // What lies in memory is bounded by the memory limit of the run.
        Arc::new(Self(InMemoryFs::with_limits(FsLimits::unlimited())))
    }
}

fn moment() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(EPOCH.unsigned_abs())
}

fn fixed(metadata: Metadata) -> Metadata {
    Metadata { modified: moment(), created: moment(), ..metadata }
}

fn is_random(path: &Path) -> bool {
    matches!(path.to_str(), Some("/dev/random" | "/dev/urandom"))
}

#[async_trait]
impl FileSystemExt for FixedFs {
    fn usage(&self) -> bashkit::FsUsage {
        self.0.usage()
    }

    fn limits(&self) -> FsLimits {
        self.0.limits()
    }

    async fn mkfifo(&self, path: &Path, mode: u32) -> Result<()> {
        self.0.mkfifo(path, mode).await
    }
}

#[async_trait]
impl FileSystem for FixedFs {
    async fn read_file(&self, path: &Path) -> Result<Vec<u8>> {
        if !is_random(path) {
            return self.0.read_file(path).await;
        }
        let mut state = 1_u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state.to_be_bytes()[0]
        };
        Ok((0..RANDOM_BYTES).map(|_| next()).collect())
    }

    async fn write_file(&self, path: &Path, content: &[u8]) -> Result<()> {
        self.0.write_file(path, content).await
    }

    async fn append_file(&self, path: &Path, content: &[u8]) -> Result<()> {
        self.0.append_file(path, content).await
    }

    async fn mkdir(&self, path: &Path, recursive: bool) -> Result<()> {
        self.0.mkdir(path, recursive).await
    }

    async fn remove(&self, path: &Path, recursive: bool) -> Result<()> {
        self.0.remove(path, recursive).await
    }

    async fn stat(&self, path: &Path) -> Result<Metadata> {
        self.0.stat(path).await.map(fixed)
    }

    async fn read_dir(&self, path: &Path) -> Result<Vec<DirEntry>> {
        let mut entries = self.0.read_dir(path).await?;
        entries.sort_unstable_by(|left, right| left.name.cmp(&right.name));
        let entry = |e: DirEntry| DirEntry { name: e.name, metadata: fixed(e.metadata) };
        Ok(entries.into_iter().map(entry).collect())
    }

    async fn exists(&self, path: &Path) -> Result<bool> {
        self.0.exists(path).await
    }

    async fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.0.rename(from, to).await
    }

    async fn copy(&self, from: &Path, to: &Path) -> Result<()> {
        self.0.copy(from, to).await
    }

    async fn symlink(&self, target: &Path, link: &Path) -> Result<()> {
        self.0.symlink(target, link).await
    }

    async fn read_link(&self, path: &Path) -> Result<PathBuf> {
        self.0.read_link(path).await
    }

    async fn chmod(&self, path: &Path, mode: u32) -> Result<()> {
        self.0.chmod(path, mode).await
    }

    async fn set_modified_time(&self, _path: &Path, _time: SystemTime) -> Result<()> {
        Ok(())
    }
}

/// A `mktemp` whose names are counted.
#[derive(Default)]
pub(super) struct Mktemp(AtomicU64);

#[async_trait]
impl Builtin for Mktemp {
    async fn execute(&self, ctx: BuiltinContext<'_>) -> Result<ExecResult> {
        let has = |wanted: &str| ctx.args.iter().any(|arg| arg == wanted);
        let mut directory = None;
        let mut template = None;
        let mut args = ctx.args.iter();
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "-p" => directory = args.next(),
                arg_text if arg_text.starts_with('-') => {}
                _ => template = Some(arg),
            }
        }
        let number = self.0.fetch_add(1, Ordering::Relaxed);
        let name = match template {
            Some(template) => {
                let stem = template.trim_end_matches('X');
                let width = template.len() - stem.len();
                format!("{stem}{number:0width$}")
            }
            None => format!("/tmp/tmp.{number:010}"),
        };
        let name = match directory {
            Some(directory) => format!("{directory}/{}", name.rsplit('/').next().unwrap_or(&name)),
            None => name,
        };
        let path = vfs_join(ctx.cwd, Path::new(&name));
        let made = match (has("-u"), has("-d")) {
            (true, _) => Ok(()),
            (false, true) => ctx.fs.mkdir(&path, false).await,
            (false, false) => ctx.fs.write_file(&path, b"").await,
        };
        Ok(match made {
            Ok(()) => ExecResult::ok(format!("{name}\n")),
            Err(_) => ExecResult::err(format!("mktemp: cannot make '{name}'\n"), 1),
        })
    }
}

/// Fixes what commands would take from the clock or from chance by their arguments.
pub(super) fn tame(mut tool: ToolEvent) -> ToolEvent {
    match tool.name.as_str() {
        "jq" => {
            if let Some(filter) = jq_filter(&mut tool.args) {
                *filter = format!("def now: {EPOCH}; {filter}");
            }
        }
        // Any order is as good as another; the given one is the same every time.
        "sort" => {
            let is_random = |arg: &str| arg == "-R" || arg == "--random-sort";
            tool.args.retain(|arg| !is_random(arg));
        }
        _ => {}
    }
    tool
}

fn jq_filter(args: &mut [String]) -> Option<&mut String> {
    let mut values = 0;
    args.iter_mut().find(|arg| {
        if values > 0 {
            values -= 1;
            return false;
        }
        values = match arg.as_str() {
            "--arg" | "--argjson" | "--slurpfile" | "--rawfile" => 2,
            "--indent" | "-L" => 1,
            _ => 0,
        };
        !arg.starts_with('-')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_of_jq_is_fixed_in_its_filter_only() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let tool = ToolEvent { name: "jq".into(), args: words("-r --arg now x now file") };
        let expected = ["-r", "--arg", "now", "x", "def now: 1577836800; now", "file"];
        assert_eq!(tame(tool).args, expected);
    }
}
