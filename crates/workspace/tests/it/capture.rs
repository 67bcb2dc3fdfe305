//! Capture against the reference's vector, and the kinds of repositories there are.

use std::fs;

use serde_json::Value;
use warrant_protocol::Digest;
use warrant_workspace::{
    BranchWish, CaptureError, DiscoverError, GatePolicy, History, Journal, PullOptions, Pulled,
    pull,
};

use crate::fixture::{Fixture, files, git_command, git_in, tree};

fn vector() -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../vectors/capture.json");
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

fn dirty_fixture() -> Fixture {
    let fixture = Fixture::with_repo();
    fixture.write("src.txt", "modified\n");
    fixture.write("notes.md", "untracked notes\n");
    fixture.write(".env", "SECRET=1\n");
    fixture.write("skip.bin", "skip");
    fixture
}

#[test]
fn capture_reproduces_the_reference_vector() {
    let fixture = dirty_fixture();
    let vector = vector();
    let content = fs::read(fixture.repo().join("notes.md")).unwrap();
    let wanted = vector["manifest"]["untrackedFiles"][0]["hash"].as_str().unwrap();
    assert_eq!(Digest::of(&content).to_hex(), wanted, "the fixture is the vector's");
    let captured = fixture.capture(&["*.md"], History::Full).unwrap();
    let mut manifest = serde_json::to_value(&captured.manifest).unwrap();
    let diff = captured.manifest.dirty_diff_hash.unwrap();
    let diff = fs::read_to_string(fixture.blobs.path_of(&diff)).unwrap();
    assert_eq!(diff, vector["dirtyDiff"].as_str().unwrap());
    // The bundle's bytes are those of the git that packed it; everything else is the reference's.
    if git_in(&fixture.repo(), &["--version"])
        .starts_with(vector["gitVersion"].as_str().unwrap().as_bytes())
    {
        assert_eq!(
            captured.manifest.hash().unwrap().to_hex(),
            vector["manifestHash"].as_str().unwrap()
        );
    }
    manifest["bundleHash"] = vector["manifest"]["bundleHash"].clone();
    assert_eq!(manifest, vector["manifest"]);
    assert_eq!(captured.tracked_denied.len(), 1);
    assert!(captured.warnings.iter().any(|warning| warning.contains("tracked.pem")));
}

#[test]
fn reference_bundle_materializes_here() {
    use base64::Engine as _;
    let vector = vector();
    let fixture = dirty_fixture();
    let bundle = base64::engine::general_purpose::STANDARD
        .decode(vector["bundleBase64"].as_str().unwrap())
        .unwrap();
    let diff = vector["dirtyDiff"].as_str().unwrap().as_bytes();
    for blob in [bundle.as_slice(), diff, b"untracked notes\n"] {
        warrant_workspace::BlobSink::put(&fixture.blobs, &mut &*blob).unwrap();
    }
    let manifest = serde_json::from_value(vector["manifest"].clone()).unwrap();
    let checkout = fixture.materialize(&manifest, "checkout").unwrap();
    let mut expected = files(&fixture.repo());
    expected.remove(b".env".as_slice());
    expected.remove(b"skip.bin".as_slice());
    assert_eq!(tree(checkout.path()), expected);
}

#[test]
fn bundle_of_ours_clones_with_stock_git() {
    let fixture = Fixture::with_repo();
    fixture.write("deep/er/file.txt", "second\n");
    fixture.commit();
    let captured = fixture.capture(&[], History::Full).unwrap();
    let bundle = fixture.blobs.path_of(&captured.manifest.bundle_hash);
    let clone = fixture.path("clone");
    git_in(
        fixture.temp.path(),
        &["clone", "-q", bundle.to_str().unwrap(), clone.to_str().unwrap()],
    );
    assert_eq!(tree(&clone), tree(&fixture.repo()));
    assert_eq!(git_in(&clone, &["rev-list", "--count", "HEAD"]), b"2\n");
    git_in(&clone, &["fsck", "--strict"]);
}

#[test]
fn session_git_finds_a_clean_checkout() {
    let fixture = dirty_fixture();
    for (history, name) in [(History::Full, "full"), (History::Commit, "commit")] {
        let captured = fixture.capture(&["*.md"], history).unwrap();
        let checkout = fixture.materialize(&captured.manifest, name).unwrap();
        let status = git_in(checkout.path(), &["status", "--porcelain"]);
        let status = String::from_utf8(status).unwrap();
        assert_eq!(status, " M src.txt\n?? notes.md\n");
        git_in(checkout.path(), &["log", "--oneline"]);
    }
}

#[test]
fn tracked_secret_stays_at_home_with_the_commit_alone() {
    let fixture = Fixture::with_repo();
    fixture.write("other.pem", "SECOND-KEY\n");
    fixture.commit();
    fixture.write("tracked.pem", "CHANGED-KEY\n");
    fixture.write("src.txt", "changed\n");
    let captured = fixture.capture(&["**"], History::Commit).unwrap();
    let denied: Vec<_> = captured.manifest.denied_paths.iter().map(|path| path.as_str()).collect();
    assert_eq!(denied, ["other.pem", "tracked.pem"]);
    assert!(captured.warnings.iter().any(|warning| warning.contains("history may")));
    let checkout = fixture.materialize(&captured.manifest, "checkout").unwrap();
    assert!(!checkout.path().join("tracked.pem").exists());
    assert_eq!(fs::read(checkout.path().join("src.txt")).unwrap(), b"changed\n");
    for blob in fs::read_dir(fixture.path("blobs")).unwrap() {
        let bytes = fs::read(blob.unwrap().path()).unwrap();
        assert!(!bytes.windows(4).any(|window| window == b"-KEY"), "a key travelled");
    }
    let objects = git_in(checkout.path(), &["cat-file", "--batch-all-objects", "--batch"]);
    assert!(!objects.windows(4).any(|window| window == b"-KEY"), "a key is in the objects");
    assert!(
        fixture
            .collect(&checkout)
            .changes
            .iter()
            .all(|change| change.path.as_bytes() == b"src.txt")
    );
}

#[test]
fn edit_of_the_same_size_in_the_same_second_is_captured() {
    use std::time::SystemTime;
    let fixture = Fixture::with_repo();
    fixture.write("src.txt", "ORIGINAL\n");
    let second = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    let edited = second();
    while second() == edited {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let captured = fixture.capture(&[], History::Full).unwrap();
    assert!(captured.manifest.dirty_diff_hash.is_some());
}

#[test]
fn history_stays_at_home_with_the_commit_alone() {
    let fixture = Fixture::with_repo();
    fixture.write("src.txt", "OLD-VERSION\n");
    fixture.commit();
    fixture.write("src.txt", "new\n");
    fixture.commit();
    let captured = fixture.capture(&[], History::Commit).unwrap();
    let checkout = fixture.materialize(&captured.manifest, "checkout").unwrap();
    assert_eq!(git_in(checkout.path(), &["rev-list", "--count", "HEAD"]), b"1\n");
    let objects = git_in(checkout.path(), &["cat-file", "--batch-all-objects", "--batch"]);
    assert!(!objects.windows(11).any(|window| window == b"OLD-VERSION"));
}

#[track_caller]
fn check_refused(fixture: &Fixture, is_expected: impl Fn(&CaptureError) -> bool) {
    let error = fixture.capture(&[], History::Full).unwrap_err();
    assert!(is_expected(&error), "{error}");
}

#[test]
fn repositories_that_cannot_travel_are_refused_with_a_reason() {
    let unborn = Fixture::new();
    check_refused(&unborn, |error| {
        matches!(error, CaptureError::Discover(DiscoverError::NotGit(_)))
    });
    unborn.git(&["init", "-q"]);
    check_refused(&unborn, |error| {
        matches!(error, CaptureError::Discover(DiscoverError::Unborn(_)))
    });
    let bare = Fixture::new();
    bare.git(&["init", "-q", "--bare"]);
    check_refused(&bare, |error| matches!(error, CaptureError::Discover(DiscoverError::Bare(_))));
    let sha256 = Fixture::new();
    sha256.git(&["init", "-q", "--object-format=sha256"]);
    sha256.write("a", "a");
    sha256.commit();
    check_refused(&sha256, |error| {
        matches!(error, CaptureError::Discover(DiscoverError::ObjectFormat(_)))
    });
    let merging = Fixture::with_repo();
    merging.git(&["checkout", "-q", "-b", "other"]);
    merging.write("src.txt", "theirs\n");
    merging.commit();
    merging.git(&["checkout", "-q", "main"]);
    merging.write("src.txt", "ours\n");
    merging.commit();
    assert!(
        !git_command(&merging.repo(), &["merge", "-q", "other"]).output().unwrap().status.success()
    );
    check_refused(&merging, |error| matches!(error, CaptureError::Unmerged(_)));
}

#[test]
fn shallow_clone_travels_as_its_commit() {
    let fixture = Fixture::with_repo();
    fixture.write("src.txt", "second\n");
    fixture.commit();
    let origin = fixture.path("origin");
    fs::rename(fixture.repo(), &origin).unwrap();
    let url = format!("file://{}", origin.display());
    git_in(fixture.temp.path(), &["clone", "-q", "--depth=1", &url, "repo"]);
    check_refused(&fixture, |error| matches!(error, CaptureError::Shallow));
    let captured = fixture.capture(&[], History::Commit).unwrap();
    let checkout = fixture.materialize(&captured.manifest, "checkout").unwrap();
    assert_eq!(fs::read(checkout.path().join("src.txt")).unwrap(), b"second\n");
}

#[test]
fn linked_detached_and_sparse_worktrees_are_captured() {
    let fixture = Fixture::with_repo();
    fixture.write("kept/a.txt", "a\n");
    fixture.write("left/b.txt", "b\n");
    fixture.commit();
    let main = fixture.path("main");
    fs::rename(fixture.repo(), &main).unwrap();
    git_in(&main, &["worktree", "add", "-q", "--detach", "../repo"]);
    git_in(&fixture.repo(), &["sparse-checkout", "set", "kept"]);
    fixture.write("kept/a.txt", "changed\n");
    let captured = fixture.capture(&[], History::Full).unwrap();
    let checkout = fixture.materialize(&captured.manifest, "checkout").unwrap();
    assert_eq!(fs::read(checkout.path().join("kept/a.txt")).unwrap(), b"changed\n");
    assert_eq!(fs::read(checkout.path().join("left/b.txt")).unwrap(), b"b\n");
}

#[test]
fn submodule_travels_as_an_empty_directory() {
    let fixture = Fixture::with_repo();
    let inner = fixture.path("inner");
    fs::create_dir(&inner).unwrap();
    git_in(&inner, &["init", "-q"]);
    fs::write(inner.join("x"), "x").unwrap();
    git_in(&inner, &["add", "-A"]);
    git_in(&inner, &["commit", "-q", "-m", "inner"]);
    let url = inner.to_str().unwrap();
    fixture.git(&["-c", "protocol.file.allow=always", "submodule", "--quiet", "add", url, "sub"]);
    fixture.commit();
    let captured = fixture.capture(&[], History::Full).unwrap();
    assert!(captured.warnings.iter().any(|warning| warning.contains("submodules")));
    let checkout = fixture.materialize(&captured.manifest, "checkout").unwrap();
    assert_eq!(fs::read_dir(checkout.path().join("sub")).unwrap().count(), 0);
    assert!(fixture.collect(&checkout).changes.is_empty());
}

#[test]
fn changed_file_behind_a_filter_stays_at_home() {
    let fixture = Fixture::with_repo();
    fixture.write(".gitattributes", "*.crypt filter=git-crypt\nbig.bin filter=lfs\n");
    fixture.write("a.crypt", "encrypted\n");
    fixture.write("big.bin", "version https://git-lfs.github.com/spec/v1\n");
    fixture.commit();
    fixture.write("a.crypt", "CLEAR-TEXT\n");
    fixture.write("src.txt", "changed\n");
    let captured = fixture.capture(&[], History::Full).unwrap();
    let denied: Vec<_> = captured.manifest.denied_paths.iter().map(|path| path.as_str()).collect();
    assert_eq!(denied, ["a.crypt"]);
    let diff =
        fs::read(fixture.blobs.path_of(&captured.manifest.dirty_diff_hash.unwrap())).unwrap();
    let diff = String::from_utf8(diff).unwrap();
    assert!(diff.contains("src.txt") && !diff.contains("CLEAR-TEXT"));
}

#[test]
fn folder_without_git_travels_by_its_allow_list() {
    use warrant_workspace::{CaptureOptions, capture_folder, quiet};
    let fixture = Fixture::new();
    fixture.write("a.txt", "a\n");
    fixture.write("sub/b.md", "b\n");
    fixture.write("sub/.env", "SECRET\n");
    std::os::unix::fs::symlink("/etc/passwd", fixture.repo().join("link.md")).unwrap();
    let options = CaptureOptions {
        scratch: &fixture.path("scratch"),
        allow_untracked: &["*.md".into(), ".env".into()],
        deny_patterns: &[".env".into()],
        history: History::Full,
        progress: &quiet,
    };
    let captured = capture_folder(&fixture.repo(), &fixture.blobs, &options).unwrap();
    let checkout = fixture.materialize(&captured.manifest, "checkout").unwrap();
    let names: Vec<_> = files(checkout.path()).into_keys().collect();
    assert_eq!(names, [b"link.md".to_vec(), b"sub/b.md".to_vec()]);
    assert_eq!(captured.manifest.denied_paths.len(), 1);
}

#[test]
fn files_without_history_clone_with_stock_git_and_are_pulled_home() {
    let fixture = Fixture::with_repo();
    fixture.git(&["rm", "-q", "tracked.pem"]);
    fixture.write("deep/er/file.txt", "second\n");
    fixture.commit();
    fixture.write("src.txt", "changed\n");
    let captured = fixture.capture(&[], History::Snapshot).unwrap();
    let base = &captured.manifest.base_ref;
    assert_ne!(base.as_bytes(), fixture.git(&["rev-parse", "HEAD"]).trim_ascii());
    let bundle = fixture.blobs.path_of(&captured.manifest.bundle_hash);
    let clone = fixture.path("clone");
    git_in(
        fixture.temp.path(),
        &["clone", "-q", bundle.to_str().unwrap(), clone.to_str().unwrap()],
    );
    git_in(&clone, &["checkout", "-q", base]);
    git_in(&clone, &["fsck", "--strict"]);
    assert_eq!(git_in(&clone, &["rev-list", "--count", "HEAD"]), b"1\n");
    let objects = git_in(&clone, &["cat-file", "--batch-all-objects", "--batch"]);
    assert!(!objects.windows(11).any(|bytes| bytes == b"TRACKED-KEY"), "history travelled");
    let checkout = fixture.materialize(&captured.manifest, "checkout").unwrap();
    assert_eq!(tree(checkout.path()), tree(&fixture.repo()));
    fs::write(checkout.path().join("deep/er/file.txt"), "from the run\n").unwrap();
    let diff = fixture.collect(&checkout).diff.unwrap().to_vec().unwrap();
    let (journal, _) = Journal::open(&fixture.path("state"), &fixture.repo()).unwrap();
    let options = PullOptions {
        scratch: &fixture.path("scratch"),
        run_id: "run_0f8fad5b-d9cb-469f-a165-70867728950e",
        base_ref: base,
        branch: BranchWish::WhenNeeded,
        branch_prefix: "warrant/",
        at: std::time::SystemTime::UNIX_EPOCH,
        policy: &GatePolicy::advised(),
        released: &[],
    };
    let pulled = pull(&fixture.repo(), &mut diff.as_slice(), &journal, &options).unwrap();
    let Pulled::Branch { branch, .. } = pulled else { panic!("{pulled:?}") };
    assert_eq!(fixture.git(&["show", &format!("{branch}:deep/er/file.txt")]), b"from the run\n");
    let parent = fixture.git(&["rev-parse", &format!("{branch}^")]);
    assert_eq!(parent, fixture.git(&["rev-parse", "HEAD"]), "it stands on the person's commit");
}

#[test]
fn tracked_secret_is_not_even_named_without_history() {
    let fixture = Fixture::with_repo();
    let captured = fixture.capture(&[], History::Snapshot).unwrap();
    assert_eq!(captured.tracked_denied.len(), 1);
    let checkout = fixture.materialize(&captured.manifest, "checkout").unwrap();
    assert!(!checkout.path().join("tracked.pem").exists());
    let listed = git_in(checkout.path(), &["ls-tree", "-r", "--name-only", "HEAD"]);
    assert_eq!(listed, b"README.md\nsrc.txt\n");
    git_in(checkout.path(), &["fsck", "--strict"]);
}

#[test]
fn changes_are_captured_whatever_the_index_looks_like() {
    let prepare: [(&str, &[&[&str]]); 6] = [
        ("version 4", &[&["update-index", "--index-version", "4"]]),
        ("version 2", &[&["update-index", "--index-version", "2"]]),
        ("shared", &[&["update-index", "--split-index"]]),
        ("hidden", &[&["update-index", "--skip-worktree", "README.md"]]),
        ("promised", &[&["add", "-N", "promised.txt"]]),
        ("staged", &[&["add", "staged.txt"], &["mv", "README.md", "MOVED.md"]]),
    ];
    for (name, commands) in prepare {
        let fixture = Fixture::with_repo();
        for number in 0..50 {
            fixture.write(&format!("dir-{}/file {number}.txt", number % 7), format!("{number}\n"));
        }
        fixture.commit();
        fixture.write("staged.txt", "staged\n");
        fixture.write("promised.txt", "promised\n");
        commands.iter().for_each(|command| drop(fixture.git(command)));
        fixture.write("dir-3/file 10.txt", "changed\n");
        fs::remove_file(fixture.repo().join("dir-4/file 11.txt")).unwrap();
        let captured = fixture.capture(&[], History::Full).unwrap();
        let expected = fixture.git(&["diff", "--binary", "HEAD"]);
        let digest = captured.manifest.dirty_diff_hash.expect(name);
        let found = fs::read(fixture.blobs.path_of(&digest)).unwrap();
        assert_eq!(String::from_utf8(found), String::from_utf8(expected), "{name}");
    }
}

#[test]
fn directory_moved_behind_a_link_is_not_taken_for_unchanged() {
    let fixture = Fixture::with_repo();
    fixture.write("dir/file.txt", "inside\n");
    fixture.commit();
    fixture.git(&["status"]);
    fs::rename(fixture.repo().join("dir"), fixture.path("elsewhere")).unwrap();
    std::os::unix::fs::symlink(fixture.path("elsewhere"), fixture.repo().join("dir")).unwrap();
    let captured = fixture.capture(&[], History::Full).unwrap();
    let checkout = fixture.materialize(&captured.manifest, "checkout").unwrap();
    assert!(!checkout.path().join("dir/file.txt").exists(), "it was read through the link");
}

#[test]
fn the_commit_is_read_from_loose_and_packed_refs_and_linked_worktrees() {
    let fixture = Fixture::with_repo();
    let head = String::from_utf8(fixture.git(&["rev-parse", "HEAD"])).unwrap();
    let head = Some(head.trim().to_owned());
    assert_eq!(warrant_workspace::head_commit(&fixture.repo()), head, "loose");
    fixture.git(&["pack-refs", "--all"]);
    assert_eq!(warrant_workspace::head_commit(&fixture.repo()), head, "packed");
    let linked = fixture.path("linked");
    fixture.git(&["worktree", "add", "-q", linked.to_str().unwrap(), "-b", "side"]);
    assert_eq!(warrant_workspace::head_commit(&linked), head, "linked");
    fixture.git(&["checkout", "-q", "--detach"]);
    assert_eq!(warrant_workspace::head_commit(&fixture.repo()), head, "detached");
    assert_eq!(warrant_workspace::head_commit(fixture.temp.path()), None);
}
