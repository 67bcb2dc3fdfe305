//! Snapshots restored byte for byte, also after a crash at any point.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;

use warrant_workspace::{Changed, Journal, Recovered, TreeLimits, UndoError, quiet};

use crate::fixture::{Entry, Fixture, below, tree};

type Exact = BTreeMap<Vec<u8>, (Entry, u32, (i64, i64))>;

/// A tree with permissions and modification times, `.git` included.
fn exact(path: &Path) -> Exact {
    let mut entries = tree(path);
    for (name, entry) in tree(&path.join(".git")) {
        entries.insert([b".git/", name.as_slice()].concat(), entry);
    }
    entries
        .into_iter()
        .map(|(name, entry)| {
            let meta = fs::symlink_metadata(below(path, &name)).unwrap();
            (name, (entry, meta.mode(), (meta.mtime(), meta.mtime_nsec())))
        })
        .collect()
}

fn fixture() -> Fixture {
    let fixture = Fixture::with_repo();
    fixture.write("dir/deep/x.txt", "x\n");
    fixture.write("script.sh", "#!/bin/sh\n");
    let repo = fixture.repo();
    fs::set_permissions(repo.join("script.sh"), fs::Permissions::from_mode(0o750)).unwrap();
    fs::create_dir_all(repo.join("empty/inside")).unwrap();
    fs::set_permissions(repo.join("empty"), fs::Permissions::from_mode(0o711)).unwrap();
    symlink("dir/deep", repo.join("link")).unwrap();
    fs::write(below(&repo, b"odd\n\xff name"), [0, 1, 255]).unwrap();
    fixture
}

fn ruin(repo: &Path) {
    fs::write(repo.join("src.txt"), "ruined\n").unwrap();
    fs::remove_dir_all(repo.join("dir")).unwrap();
    fs::write(repo.join("dir"), "a file now").unwrap();
    fs::remove_dir_all(repo.join("empty")).unwrap();
    fs::remove_file(repo.join("link")).unwrap();
    fs::create_dir(repo.join("link")).unwrap();
    fs::write(repo.join("link/new"), "new").unwrap();
    fs::set_permissions(repo.join("script.sh"), fs::Permissions::from_mode(0o4777)).unwrap();
    fs::create_dir_all(repo.join(".git/hooks")).unwrap();
    fs::write(repo.join(".git/hooks/pre-commit"), "evil").unwrap();
    fs::remove_file(repo.join(".git/HEAD")).unwrap();
    fs::remove_file(below(repo, b"odd\n\xff name")).unwrap();
    let made = std::process::Command::new("mkfifo").arg(repo.join("pipe")).status().unwrap();
    assert!(made.success());
}

fn open(fixture: &Fixture) -> (Journal, Recovered) {
    Journal::open(&fixture.path("state"), &fixture.repo()).unwrap()
}

#[test]
fn restored_workspace_is_byte_exact() {
    let fixture = fixture();
    let before = exact(&fixture.repo());
    let (journal, _) = open(&fixture);
    let snapshot = journal.snapshot(&fixture.repo(), &TreeLimits::generous(), &quiet).unwrap();
    ruin(&fixture.repo());
    assert!(!snapshot.restore(&fixture.repo()).unwrap().paths.is_empty());
    assert!(fs::symlink_metadata(fixture.repo().join("pipe")).is_err());
    assert_eq!(exact(&fixture.repo()), before);
    assert!(journal.pending().unwrap().is_none());
    assert_eq!(fs::read_dir(fixture.path("state")).unwrap().count(), 1, "only the lock is left");
}

#[test]
fn kept_change_can_be_undone_later() {
    let fixture = fixture();
    let before = exact(&fixture.repo());
    let (journal, _) = open(&fixture);
    let snapshot = journal.snapshot(&fixture.repo(), &TreeLimits::generous(), &quiet).unwrap();
    fixture.write("src.txt", "kept\n");
    fixture.write("added/new.txt", "new\n");
    fs::remove_file(fixture.repo().join("dir/deep/x.txt")).unwrap();
    snapshot.keep(&fixture.repo(), "test").unwrap();
    drop(journal);
    let (journal, recovered) = open(&fixture);
    assert_eq!(recovered, Recovered::default());
    fixture.write("added/more.txt", "the person's\n");
    let undone = journal.undo(&fixture.repo(), Changed::Refuse).unwrap();
    assert_eq!(undone.left.len(), 1, "a directory with something new in it stays");
    assert!(fixture.repo().join("added/more.txt").exists());
    fs::remove_dir_all(fixture.repo().join("added")).unwrap();
    let content = |exact: Exact| -> Vec<_> {
        exact.into_iter().map(|(name, (entry, mode, _))| (name, entry, mode)).collect()
    };
    assert_eq!(content(exact(&fixture.repo())), content(before));
    assert!(matches!(journal.undo(&fixture.repo(), Changed::Refuse), Err(UndoError::Nothing)));
}

/// Leaves the journal as a crash at `status` would, with the workspace half way.
fn crash_at(fixture: &Fixture, status: &str) {
    let entry = fs::read_dir(fixture.path("state"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.is_dir())
        .unwrap();
    fs::write(entry.join("status"), status).unwrap();
}

#[test]
fn crash_while_restoring_is_finished_by_the_next_call() {
    let fixture = fixture();
    let before = exact(&fixture.repo());
    let (journal, _) = open(&fixture);
    let snapshot = journal.snapshot(&fixture.repo(), &TreeLimits::generous(), &quiet).unwrap();
    ruin(&fixture.repo());
    drop((snapshot, journal));
    crash_at(&fixture, "restoring");
    // Half of it was done, and a temporary file was left behind.
    fs::write(fixture.repo().join("src.txt"), "original\n").unwrap();
    fs::write(fixture.repo().join(".warrant-3.tmp"), "half").unwrap();
    let (_, recovered) = open(&fixture);
    assert_eq!(recovered.restored, 1);
    assert_eq!(exact(&fixture.repo()), before);
}

/// Restores the pending snapshot of the workspace in `WARRANT_TEST_RESTORE`, in a process of its own.
///
/// Without that variable there is nothing to do; the test below starts it.
#[test]
fn child_restores_until_it_is_killed() {
    use std::io::Write as _;
    let Some(top) = std::env::var_os("WARRANT_TEST_RESTORE") else { return };
    let top = Path::new(&top);
    let repo = top.join("repo");
    let (journal, _) = Journal::open(&top.join("state"), &repo).unwrap();
    let snapshot = journal.pending().unwrap().unwrap();
    std::io::stderr().write_all(b"ready\n").unwrap();
    snapshot.restore(&repo).unwrap();
}

#[test]
fn killed_process_leaves_the_workspace_old_or_new_never_half() {
    use std::io::BufRead as _;
    use std::process::{Command, Stdio};
    for delay_ms in [0, 2, 5, 10, 20, 40, 80] {
        let fixture = fixture();
        for number in 0..200 {
            fixture.write(&format!("many/{number}.txt"), format!("{number}\n"));
        }
        let before = exact(&fixture.repo());
        let (journal, _) = open(&fixture);
        drop(journal.snapshot(&fixture.repo(), &TreeLimits::generous(), &quiet).unwrap());
        drop(journal);
        ruin(&fixture.repo());
        fs::remove_file(fixture.repo().join("pipe")).unwrap();
        for number in 0..200 {
            fixture.write(&format!("many/{number}.txt"), "ruined\n");
        }
        let ruined = exact(&fixture.repo());
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["rollback::child_restores_until_it_is_killed", "--exact", "--nocapture"])
            .env("WARRANT_TEST_RESTORE", fixture.temp.path())
            .stderr(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = std::io::BufReader::new(child.stderr.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap() == "ready"));
        // Whenever the kill comes, what follows must hold; the delays only spread it.
        std::thread::sleep(std::time::Duration::from_millis(delay_ms));
        child.kill().unwrap();
        child.wait().unwrap();
        let (journal, _) = open(&fixture);
        let expected = if journal.pending().unwrap().is_some() { &ruined } else { &before };
        assert!(exact(&fixture.repo()) == *expected, "half a workspace after {delay_ms} ms");
    }
}

#[test]
fn crash_while_taking_a_snapshot_leaves_nothing() {
    let fixture = fixture();
    let state = fixture.path("state");
    fs::create_dir_all(state.join("00000001/content")).unwrap();
    fs::write(state.join("00000001/content/0"), "half").unwrap();
    let before = exact(&fixture.repo());
    let (_, recovered) = open(&fixture);
    assert_eq!(recovered.dropped, 1);
    assert!(!state.join("00000001").exists());
    assert_eq!(exact(&fixture.repo()), before);
}

#[test]
fn crash_before_a_decision_leaves_the_snapshot_pending() {
    let fixture = fixture();
    let before = exact(&fixture.repo());
    let (journal, _) = open(&fixture);
    drop(journal.snapshot(&fixture.repo(), &TreeLimits::generous(), &quiet).unwrap());
    drop(journal);
    ruin(&fixture.repo());
    let (journal, _) = open(&fixture);
    journal.pending().unwrap().unwrap().restore(&fixture.repo()).unwrap();
    assert_eq!(exact(&fixture.repo()), before);
}

#[test]
fn crash_while_exporting_is_finished_and_can_still_be_undone() {
    use crate::export::Overlay;
    for half in ["none", "some", "all"] {
        let overlay = Overlay::over(fixture());
        let repo = overlay.fixture.repo();
        let before = tree(&repo);
        overlay.run("rm -r dir; echo file > dir; echo new > new.txt; rm src.txt; mkdir src.txt");
        overlay.run("cp -a . ../session");
        overlay.apply(overlay.plan(&[])).unwrap();
        if half != "all" {
            overlay.journal().undo(&repo, Changed::Refuse).unwrap();
        }
        if half == "some" {
            fs::remove_file(repo.join("src.txt")).unwrap();
            fs::write(repo.join(".warrant-0.tmp"), "half").unwrap();
        }
        crash_at(&overlay.fixture, "applying");
        let (journal, recovered) = open(&overlay.fixture);
        assert_eq!(recovered.finished, 1, "{half}");
        let _ = fs::remove_file(repo.join(".warrant-0.tmp"));
        assert_eq!(tree(&repo), tree(&overlay.fixture.path("session")), "{half}");
        drop(journal);
        crash_at(&overlay.fixture, "undoing");
        let (_, recovered) = open(&overlay.fixture);
        assert_eq!(recovered.undone, 1, "{half}");
        assert_eq!(tree(&repo), before, "{half}");
    }
}

/// A file system that shares blocks between copies, on a file; unmounted when dropped.
struct Btrfs {
    top: tempfile::TempDir,
}

impl Btrfs {
    fn mount() -> Self {
        let top = tempfile::tempdir().unwrap();
        let image = top.path().join("image");
        fs::File::create(&image).unwrap().set_len(256 << 20).unwrap();
        fs::create_dir(top.path().join("at")).unwrap();
        run("mkfs.btrfs", &["-q".as_ref(), image.as_ref()]);
        let at = top.path().join("at");
        run("mount", &["-o".as_ref(), "loop".as_ref(), image.as_ref(), at.as_ref()]);
        Self { top }
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.top.path().join("at").join(name)
    }

    fn free(&self) -> u64 {
        run("sync", &["-f".as_ref(), self.path(".").as_ref()]);
        let stat = rustix::fs::statvfs(self.path(".")).unwrap();
        stat.f_bavail * stat.f_frsize
    }
}

impl Drop for Btrfs {
    fn drop(&mut self) {
        // Another test may be starting a program that still holds a copy of the mount.
        run("umount", &["-l".as_ref(), self.top.path().join("at").as_ref()]);
    }
}

#[track_caller]
fn run(program: &str, args: &[&std::ffi::OsStr]) {
    let output = std::process::Command::new(program).args(args).output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}; run cargo xtask test"));
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn snapshot_shares_blocks_where_the_file_system_can() {
    let disk = Btrfs::mount();
    let workspace = disk.path("work");
    fs::create_dir(&workspace).unwrap();
    let content: Vec<u8> =
        (0..48_u32 << 20).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    fs::write(workspace.join("large.bin"), &content).unwrap();
    let before = fs::metadata(workspace.join("large.bin")).unwrap().modified().unwrap();
    let free = disk.free();
    let (journal, _) = Journal::open(&disk.path("state"), &workspace).unwrap();
    let snapshot = journal.snapshot(&workspace, &TreeLimits::generous(), &quiet).unwrap();
    let taken = free.saturating_sub(disk.free());
    assert!(taken < 16 << 20, "the snapshot of a file of 48 MB took {taken} bytes");
    fs::write(workspace.join("large.bin"), "ruined").unwrap();
    snapshot.restore(&workspace).unwrap();
    assert!(fs::read(workspace.join("large.bin")).unwrap() == content, "not byte-exact");
    let after = fs::metadata(workspace.join("large.bin")).unwrap().modified().unwrap();
    assert_eq!(after, before);
}
