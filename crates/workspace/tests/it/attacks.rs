//! Attacks by a requester or a session, each named after what it tries.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;

use warrant_protocol::manifest::UntrackedFile;
use warrant_workspace::{
    BlobSink as _, CaptureError, CollectOptions, DiscoverError, GitDirectory, History,
    LimitExceeded, MaterializeError, MaterializeOptions, SpecialKind, TreeLimits, WhyUnread,
    collect, materialize, quiet,
};

use crate::fixture::{Fixture, files, git_in};

/// A file that exists once something planted was executed.
fn canary(fixture: &Fixture) -> (std::path::PathBuf, String) {
    let path = fixture.path("canary");
    let script = fixture.path("evil.sh");
    fs::write(&script, format!("#!/bin/sh\ntouch {}\ncat\n", path.display())).unwrap();
    make_executable(&script);
    (path, script.to_str().unwrap().to_owned())
}

fn make_executable(path: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Plants everything in a repository that git may execute.
fn plant(repo: &Path, script: &str) {
    for (key, value) in [
        ("core.fsmonitor", script),
        ("core.hooksPath", ".git/hooks"),
        ("core.pager", script),
        ("core.sshCommand", script),
        ("core.editor", script),
        ("core.askPass", script),
        ("diff.external", script),
        ("diff.evil.textconv", script),
        ("diff.evil.command", script),
        ("filter.evil.clean", script),
        ("filter.evil.smudge", script),
        ("filter.evil.process", script),
        ("merge.evil.driver", script),
        ("credential.helper", script),
        ("gpg.program", script),
        ("alias.diff", &format!("!{script}")),
        ("uploadpack.packObjectsHook", script),
        ("core.alternateRefsCommand", script),
    ] {
        git_in(repo, &["config", key, value]);
    }
    fs::write(repo.join(".git/info/attributes"), "* filter=evil diff=evil merge=evil\n").unwrap();
    fs::create_dir_all(repo.join(".git/hooks")).unwrap();
    for hook in [
        "pre-commit",
        "post-checkout",
        "post-index-change",
        "reference-transaction",
        "fsmonitor-watchman",
    ] {
        let path = repo.join(".git/hooks").join(hook);
        fs::copy(script, &path).unwrap();
        make_executable(&path);
    }
}

#[test]
fn config_planted_by_a_session_does_not_execute_on_collect() {
    let fixture = Fixture::with_repo();
    let (canary, script) = canary(&fixture);
    let captured = fixture.capture(&[], History::Full).unwrap();
    let checkout = fixture.materialize(&captured.manifest, "checkout").unwrap();
    fs::write(checkout.path().join(".gitattributes"), "* filter=evil diff=evil\n").unwrap();
    fs::write(checkout.path().join("src.txt"), "changed\n").unwrap();
    plant(checkout.path(), &script);
    let _ = fs::remove_file(&canary);
    let collected = fixture.collect(&checkout);
    assert!(!canary.exists(), "something the session planted was executed");
    assert_eq!(collected.changes.len(), 2);
    git_in(checkout.path(), &["add", "-A"]);
    assert!(canary.exists(), "the trap works when git is used plainly");
}

#[test]
fn config_of_a_hostile_repository_does_not_execute_on_capture() {
    let fixture = Fixture::with_repo();
    let (canary, script) = canary(&fixture);
    fixture.write("sub/x.txt", "x\n");
    fixture.commit();
    plant(&fixture.repo(), &script);
    fixture.write("src.txt", "changed\n");
    fixture.write("new.md", "new\n");
    git_in(fixture.temp.path(), &["init", "-q", "repo/inner"]);
    git_in(&fixture.path("repo/inner"), &["config", "core.fsmonitor", &script]);
    let _ = fs::remove_file(&canary);
    for history in [History::Full, History::Commit] {
        let captured = fixture.capture(&["*.md"], history).unwrap();
        assert_eq!(captured.manifest.untracked_files.len(), 1);
    }
    assert!(!canary.exists(), "something of the repository was executed");
    let _ = crate::fixture::git_command(&fixture.repo(), &["status"]).output();
    assert!(canary.exists(), "the trap works when git is used plainly");
}

#[test]
fn worktree_config_cannot_point_capture_elsewhere() {
    let fixture = Fixture::with_repo();
    let outside = fixture.path("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("private.md"), "private\n").unwrap();
    fixture.git(&["config", "core.worktree", outside.to_str().unwrap()]);
    let captured = fixture.capture(&["*.md"], History::Full).unwrap();
    assert!(captured.manifest.untracked_files.is_empty());
    assert_eq!(captured.manifest.dirty_diff_hash, None);
}

#[test]
fn git_file_leading_to_another_repository_does_not_capture_it() {
    let private = Fixture::with_repo();
    let git_directory = private.repo().join(".git");
    for way in ["file", "link", "commondir"] {
        let fixture = Fixture::new();
        let dot_git = fixture.repo().join(".git");
        match way {
            "file" => {
                fs::write(&dot_git, format!("gitdir: {}\n", git_directory.display())).unwrap()
            }
            "link" => symlink(&git_directory, &dot_git).unwrap(),
            _ => {
                fs::create_dir(&dot_git).unwrap();
                fs::write(dot_git.join("HEAD"), "ref: refs/heads/main\n").unwrap();
                fs::write(dot_git.join("commondir"), git_directory.to_str().unwrap()).unwrap();
            }
        }
        let error = fixture.capture(&[], History::Full).unwrap_err();
        assert!(
            matches!(error, CaptureError::Discover(DiscoverError::Foreign(_))),
            "{way}: {error}"
        );
        assert_eq!(fs::read_dir(fixture.path("blobs")).unwrap().count(), 0);
    }
}

#[test]
fn untracked_symlink_does_not_read_outside_at_capture() {
    let fixture = Fixture::with_repo();
    let secret = fixture.path("secret.txt");
    fs::write(&secret, "OUTSIDE-SECRET\n").unwrap();
    symlink(&secret, fixture.repo().join("notes.md")).unwrap();
    symlink(fixture.temp.path(), fixture.repo().join("dir.md")).unwrap();
    let captured = fixture.capture(&["*.md"], History::Full).unwrap();
    for blob in fs::read_dir(fixture.path("blobs")).unwrap() {
        let bytes = fs::read(blob.unwrap().path()).unwrap();
        assert!(!bytes.windows(14).any(|window| window == b"OUTSIDE-SECRET"));
    }
    let checkout = fixture.materialize(&captured.manifest, "checkout").unwrap();
    assert_eq!(fs::read_link(checkout.path().join("notes.md")).unwrap(), secret);
}

/// Materializes the fixture with one more untracked file in the manifest.
fn with_untracked(fixture: &Fixture, path: &str) -> Result<(), MaterializeError> {
    let mut manifest = fixture.capture(&[], History::Full).unwrap().manifest;
    let stored = fixture.blobs.put(&mut b"evil\n".as_slice()).unwrap();
    let hash = stored.digest;
    manifest.untracked_files.push(UntrackedFile { path: path.parse().unwrap(), hash, bytes: 5 });
    let result = fixture.materialize(&manifest, "checkout").map(drop);
    fs::remove_dir_all(fixture.path("checkout")).unwrap();
    result
}

#[test]
fn manifest_path_naming_git_config_is_refused() {
    let fixture = Fixture::with_repo();
    for path in [
        ".git/config",
        ".git/hooks/post-checkout",
        ".GIT/config",
        ".git",
        "a/.git/config",
        ".git./config",
        ".git /config",
        "git~1/config",
        ".g\u{200c}it/config",
        "\u{feff}.git/x",
        ".git::$INDEX_ALLOCATION/config",
        ".git:x/config",
    ] {
        let error = with_untracked(&fixture, path).unwrap_err();
        assert!(
            matches!(error, MaterializeError::Path { why: "it names a git directory", .. }),
            "{path}: {error}"
        );
    }
}

#[test]
fn manifest_path_that_is_not_plain_is_refused() {
    let fixture = Fixture::with_repo();
    for path in [".", "./a", "a/./b", "dir/"] {
        let error = with_untracked(&fixture, path).unwrap_err();
        assert!(matches!(error, MaterializeError::Path { .. }), "{path}: {error}");
    }
    for path in ["../escape", "/etc/passwd", "a/../../b"] {
        assert!(path.parse::<warrant_protocol::RelPath>().is_err(), "{path}");
    }
}

#[test]
fn tracked_symlink_directory_does_not_lead_a_write_outside() {
    let fixture = Fixture::with_repo();
    let outside = fixture.path("outside");
    fs::create_dir(&outside).unwrap();
    symlink(&outside, fixture.repo().join("way")).unwrap();
    fixture.commit();
    let error = with_untracked(&fixture, "way/out.txt").unwrap_err();
    assert!(matches!(error, MaterializeError::Path { .. }), "{error}");
    let error = with_untracked(&fixture, "way").unwrap_err();
    assert!(matches!(error, MaterializeError::Path { .. }), "{error}");
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
}

#[test]
fn manifest_path_colliding_by_case_is_refused() {
    let fixture = Fixture::with_repo();
    fixture.write("Dir/x.txt", "x\n");
    fixture.commit();
    for path in ["readme.md", "dir/y.txt", "SRC.TXT"] {
        let error = with_untracked(&fixture, path).unwrap_err();
        assert!(
            matches!(
                error,
                MaterializeError::Path { why: "it collides with another name by case", .. }
            ),
            "{path}: {error}"
        );
    }
    with_untracked(&fixture, "Dir/y.txt").unwrap();
}

#[test]
fn dirty_diff_cannot_write_outside_or_into_git() {
    let fixture = Fixture::with_repo();
    symlink("/tmp", fixture.repo().join("way")).unwrap();
    fixture.commit();
    for path in [".git/config", "../escape", "way/out", ".GIT/hooks/x", "/abs", "git~1/config"] {
        let mut manifest = fixture.capture(&[], History::Full).unwrap().manifest;
        let diff = format!(
            "diff --git a/{path} b/{path}\nnew file mode 100644\n--- /dev/null\n+++ b/{path}\n\
             @@ -0,0 +1 @@\n+evil\n"
        );
        let stored = fixture.blobs.put(&mut diff.as_bytes()).unwrap();
        manifest.dirty_diff_hash = Some(stored.digest);
        let error = fixture.materialize(&manifest, "checkout").unwrap_err();
        assert!(
            matches!(error, MaterializeError::Dirty(_) | MaterializeError::Path { .. }),
            "{path}: {error}"
        );
        fs::remove_dir_all(fixture.path("checkout")).unwrap();
    }
}

#[test]
fn swapped_blobs_are_refused_on_arrival() {
    let fixture = Fixture::with_repo();
    fixture.write("src.txt", "changed\n");
    fixture.write("notes.md", "notes\n");
    let manifest = fixture.capture(&["*.md"], History::Full).unwrap().manifest;
    let blobs =
        [manifest.bundle_hash, manifest.dirty_diff_hash.unwrap(), manifest.untracked_files[0].hash];
    for digest in blobs {
        let path = fixture.blobs.path_of(&digest);
        let original = fs::read(&path).unwrap();
        let mut swapped = original.clone();
        *swapped.last_mut().unwrap() ^= 1;
        fs::write(&path, &swapped).unwrap();
        let error = fixture.materialize(&manifest, "checkout").unwrap_err();
        assert!(
            matches!(error, MaterializeError::Digest { wanted, .. } if wanted == digest),
            "{error}"
        );
        fs::write(&path, &original).unwrap();
        fs::remove_dir_all(fixture.path("checkout")).unwrap();
    }
    fixture.materialize(&manifest, "checkout").unwrap();
}

#[test]
fn tree_naming_git_directory_in_a_bundle_is_refused() {
    let fixture = Fixture::with_repo();
    let repo = fixture.repo();
    let blob = git_in(&repo, &["rev-parse", "HEAD:src.txt"]);
    let blob = String::from_utf8(blob).unwrap();
    for name in [".git", ".GIT", "git~1", ".g\u{200d}it", ".."] {
        let input = format!("100644 blob {}\tconfig\0", blob.trim());
        let inner = mktree(&repo, &input);
        let top = mktree(&repo, &format!("040000 tree {inner}\t{name}\0"));
        let commit = git_in(&repo, &["commit-tree", "-m", "evil", &top]);
        let commit = String::from_utf8(commit).unwrap().trim().to_owned();
        fixture.git(&["update-ref", "refs/heads/evil", &commit]);
        let bundle = fixture.path("evil.bundle");
        fixture.git(&["bundle", "create", "-q", bundle.to_str().unwrap(), "evil"]);
        let stored = fixture.blobs.put(&mut File::open(&bundle).unwrap()).unwrap();
        let mut manifest = fixture.capture(&[], History::Full).unwrap().manifest;
        manifest.base_ref = commit;
        manifest.bundle_hash = stored.digest;
        let error = fixture.materialize(&manifest, "checkout").unwrap_err();
        assert!(matches!(error, MaterializeError::Tree(_)), "{name}: {error}");
        fs::remove_dir_all(fixture.path("checkout")).unwrap();
    }
}

fn mktree(repo: &Path, input: &str) -> String {
    use std::io::Write as _;
    let mut command = crate::fixture::git_command(repo, &["mktree", "-z"]);
    let mut child = command
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[test]
fn special_files_are_reported_and_never_opened() {
    let fixture = Fixture::with_repo();
    let captured = fixture.capture(&[], History::Full).unwrap();
    let checkout = fixture.materialize(&captured.manifest, "checkout").unwrap();
    let path = checkout.path();
    let made = Command::new("mkfifo").arg(path.join("pipe")).status().unwrap();
    assert!(made.success());
    let made = Command::new("mknod").arg(path.join("dev")).args(["c", "1", "3"]).status().unwrap();
    assert!(made.success());
    let _listener = UnixListener::bind(path.join("socket")).unwrap();
    File::create(path.join("sparse")).unwrap().set_len(1 << 40).unwrap();
    git_in(path, &["init", "-q", "nested"]);
    fs::write(path.join("nested/file.txt"), "kept\n").unwrap();
    let collected = fixture.collect(&checkout);
    let unread: Vec<_> =
        collected.unread.iter().map(|unread| (unread.path.to_string(), unread.why)).collect();
    let expected = [
        ("dev", WhyUnread::Special(SpecialKind::Device)),
        ("nested/.git", WhyUnread::GitName),
        ("pipe", WhyUnread::Special(SpecialKind::Fifo)),
        ("socket", WhyUnread::Special(SpecialKind::Socket)),
        ("sparse", WhyUnread::TooLarge { bytes: 1 << 40 }),
    ];
    assert_eq!(unread, expected.map(|(path, why)| (path.to_owned(), why)));
    assert_eq!(collected.changes.len(), 1);
}

#[test]
fn very_deep_directories_and_many_entries_end_at_a_bound() {
    let fixture = Fixture::with_repo();
    let captured = fixture.capture(&[], History::Full).unwrap();
    let checkout = fixture.materialize(&captured.manifest, "checkout").unwrap();
    let deep: std::path::PathBuf = (0..200).map(|_| "d").collect();
    fs::create_dir_all(checkout.path().join(deep)).unwrap();
    fs::write(checkout.path().join("beside.txt"), "x").unwrap();
    let collected = collect(&checkout, &fixture.collect_options()).unwrap();
    let changed: Vec<_> = collected.changes.iter().map(|c| c.path.to_string()).collect();
    assert_eq!(changed, ["beside.txt"], "a deep directory must not hide the rest");
    assert_eq!(collected.unread.len(), 1);
    assert_eq!(collected.unread[0].why, WhyUnread::TooDeep);
    fs::remove_dir_all(checkout.path().join("d")).unwrap();
    for number in 0..50 {
        fs::write(checkout.path().join(format!("{number}.txt")), "x").unwrap();
    }
    let mut options: CollectOptions<'_> = fixture.collect_options();
    options.limits.entries = 40;
    let error = collect(&checkout, &options).unwrap_err();
    assert_eq!(error.to_string(), LimitExceeded::Entries(40).to_string());
    options.limits = TreeLimits { bytes: 40, ..TreeLimits::generous() };
    let error = collect(&checkout, &options).unwrap_err();
    assert_eq!(error.to_string(), LimitExceeded::Bytes(40).to_string());
}

#[test]
fn directory_swapped_for_a_link_does_not_lead_the_collector_outside() {
    let fixture = Fixture::with_repo();
    fixture.write("dir/x.txt", "x\n");
    fixture.commit();
    let captured = fixture.capture(&[], History::Full).unwrap();
    let checkout = fixture.materialize(&captured.manifest, "checkout").unwrap();
    let outside = fixture.path("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("x.txt"), "OUTSIDE\n").unwrap();
    fs::remove_dir_all(checkout.path().join("dir")).unwrap();
    symlink(&outside, checkout.path().join("dir")).unwrap();
    let collected = fixture.collect(&checkout);
    let diff = String::from_utf8(collected.diff.unwrap().to_vec().unwrap()).unwrap();
    assert!(!diff.contains("OUTSIDE"));
    let seen: Vec<_> = collected.changes.iter().map(|change| change.path.to_string()).collect();
    assert_eq!(seen, ["dir", "dir/x.txt"]);
}

#[test]
fn inflating_bomb_in_a_bundle_ends_at_a_bound() {
    let fixture = Fixture::with_repo();
    fixture.write("zeros.bin", vec![0; 20 << 20]);
    fixture.commit();
    let manifest = fixture.capture(&[], History::Full).unwrap().manifest;
    assert!(fs::metadata(fixture.blobs.path_of(&manifest.bundle_hash)).unwrap().len() < 1 << 20);
    fs::create_dir(fixture.path("checkout")).unwrap();
    let options = MaterializeOptions {
        scratch: &fixture.path("scratch"),
        limits: TreeLimits { bytes: 10 << 20, ..TreeLimits::generous() },
        git_directory: GitDirectory::Omit,
        progress: &quiet,
    };
    let error =
        materialize(&manifest, &fixture.blobs, &fixture.path("checkout"), &options).unwrap_err();
    assert!(error.to_string().contains("too much"), "{error}");
}

#[test]
fn modification_time_set_back_does_not_hide_a_change() {
    let fixture = Fixture::with_repo();
    let captured = fixture.capture(&[], History::Full).unwrap();
    let checkout = fixture.materialize(&captured.manifest, "checkout").unwrap();
    let path = checkout.path().join("src.txt");
    let times = fs::metadata(&path).unwrap();
    fs::write(&path, "ORIGINAL\n").unwrap();
    let file = File::options().write(true).open(&path).unwrap();
    file.set_modified(times.modified().unwrap()).unwrap();
    let collected = fixture.collect(&checkout);
    assert_eq!(collected.changes.len(), 1);
    assert!(fs::read(&path).unwrap().len() as u64 == times.len());
}

/// As an ordinary user: root reads what it likes.
#[test]
fn a_directory_closed_to_everyone_hides_nothing_else_and_deletes_nothing() {
    use std::os::unix::fs::PermissionsExt as _;
    let fixture = Fixture::new();
    fixture.git(&["init", "-q", "-b", "main"]);
    fixture.write("closed/kept.txt", "kept\n");
    fixture.write("listed/kept.txt", "kept\n");
    fixture.write("file.txt", "before\n");
    fixture.write("mute.txt", "before\n");
    fixture.commit();
    let captured = fixture.capture(&[], History::Full).unwrap();
    let checkout = fixture.materialize(&captured.manifest, "checkout").unwrap();
    let tree = checkout.path().to_path_buf();
    fs::write(tree.join("file.txt"), "after\n").unwrap();
    let mode = |path: &Path, bits| {
        fs::set_permissions(path, fs::Permissions::from_mode(bits)).unwrap();
    };
    mode(fixture.temp.path(), 0o755);
    mode(&fixture.path("scratch"), 0o777);
    for (name, bits) in [("closed", 0o000), ("listed", 0o444), ("mute.txt", 0o000)] {
        mode(&tree.join(name), bits);
    }
    let collected = std::thread::scope(|scope| {
        let collecting = scope.spawn(|| {
            if rustix::process::geteuid().is_root() {
                let nobody = 65_534;
                rustix::thread::set_thread_gid(rustix::fs::Gid::from_raw(nobody)).unwrap();
                rustix::thread::set_thread_uid(rustix::fs::Uid::from_raw(nobody)).unwrap();
            }
            fixture.collect(&checkout)
        });
        collecting.join().unwrap()
    });
    for (name, bits) in [("closed", 0o755), ("listed", 0o755)] {
        mode(&tree.join(name), bits);
    }
    let changed: Vec<_> = collected.changes.iter().map(|change| change.path.to_string()).collect();
    assert_eq!(changed, ["file.txt"]);
    let unread: Vec<_> =
        collected.unread.iter().map(|unread| (unread.path.to_string(), unread.why)).collect();
    let forbidden = |path: &str| (path.to_owned(), WhyUnread::Forbidden);
    assert_eq!(unread, [forbidden("closed"), forbidden("listed/kept.txt"), forbidden("mute.txt")]);
}

#[test]
fn holes_are_reported_and_not_read() {
    let fixture = Fixture::with_repo();
    let captured = fixture.capture(&[], History::Full).unwrap();
    let checkout = fixture.materialize(&captured.manifest, "checkout").unwrap();
    for number in 0..20 {
        let file = File::create(checkout.path().join(format!("sparse{number}"))).unwrap();
        file.set_len(2 << 30).unwrap();
    }
    fs::write(checkout.path().join("beside.txt"), "x").unwrap();
    let read = std::sync::atomic::AtomicUsize::new(0);
    let watch = |bytes: &[u8]| {
        read.fetch_add(bytes.len(), std::sync::atomic::Ordering::Relaxed);
    };
    let options = CollectOptions { watch: &watch, ..fixture.collect_options() };
    let collected = collect(&checkout, &options).unwrap();
    assert_eq!(collected.changes.len(), 1);
    let sparse = WhyUnread::Sparse { bytes: 2 << 30 };
    assert_eq!(collected.unread.iter().filter(|unread| unread.why == sparse).count(), 20);
    assert_eq!(read.into_inner(), 1, "holes were read");
}

#[test]
fn collecting_ends_when_it_is_told_to_and_says_what_is_missing() {
    let fixture = Fixture::with_repo();
    let captured = fixture.capture(&[], History::Full).unwrap();
    let checkout = fixture.materialize(&captured.manifest, "checkout").unwrap();
    for number in 0..40 {
        fs::write(checkout.path().join(format!("{number:02}.txt")), "x").unwrap();
    }
    let asked = std::sync::atomic::AtomicUsize::new(0);
    let stop = || asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed) > 30;
    let options = CollectOptions { stop: &stop, ..fixture.collect_options() };
    let collected = collect(&checkout, &options).unwrap();
    let kept = collected.changes.len();
    assert!((1..40).contains(&kept), "{kept} changes");
    let [unread] = collected.unread.as_slice() else { panic!("{:?}", collected.unread) };
    let WhyUnread::OutOfTime { left } = unread.why else { panic!("{unread:?}") };
    let all = files(checkout.path()).len();
    assert!(usize::try_from(left).unwrap() + kept < all, "{left} left, {kept} kept of {all}");
    assert!(collected.diff.is_some(), "what was read is kept");
}
