//! Pulling a run's diff: in place, as a branch, with conflicts shown, never over work.

use std::fs;
use std::time::{Duration, SystemTime};

use warrant_workspace::{
    BranchWish, Changed, GateClass, GatePolicy, Journal, MergePreview, PullError, PullOptions,
    Pulled, TreePath, Verdict, WhyBranch, pull,
};

use crate::fixture::{Fixture, git_in, tree};

struct Run {
    fixture: Fixture,
    base: String,
}

impl Run {
    fn new() -> Self {
        let fixture = Fixture::with_repo();
        fixture.write("lines.txt", "one\ntwo\nthree\n");
        fixture.commit();
        let base = head(&fixture);
        Self { fixture, base }
    }

    fn pull(&self, diff: &[u8], branch: BranchWish) -> Result<Pulled, PullError> {
        self.pull_released(diff, branch, &[])
    }

    fn pull_released(
        &self,
        mut diff: &[u8],
        branch: BranchWish,
        released: &[TreePath],
    ) -> Result<Pulled, PullError> {
        let options = PullOptions {
            scratch: &self.fixture.path("scratch"),
            run_id: "run_0f8fad5b-d9cb-469f-a165-70867728950e",
            base_ref: &self.base,
            branch,
            branch_prefix: "warrant/",
            at: SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000),
            policy: &GatePolicy::advised(),
            released,
        };
        pull(&self.fixture.repo(), &mut diff, &self.journal(), &options)
    }

    fn journal(&self) -> Journal {
        Journal::open(&self.fixture.path("state"), &self.fixture.repo()).unwrap().0
    }

    /// The diff that these files make of the base.
    fn diff(&self, files: &[(&str, &str)]) -> Vec<u8> {
        let clone = self.fixture.path("clone");
        let _ = fs::remove_dir_all(&clone);
        let repo = self.fixture.repo();
        git_in(
            self.fixture.temp.path(),
            &["clone", "-q", repo.to_str().unwrap(), clone.to_str().unwrap()],
        );
        git_in(&clone, &["checkout", "-q", "--detach", &self.base]);
        for (path, content) in files {
            let path = clone.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        git_in(&clone, &["add", "-A"]);
        git_in(&clone, &["diff", "--cached", "--binary", "HEAD"])
    }
}

fn head(fixture: &Fixture) -> String {
    String::from_utf8(fixture.git(&["rev-parse", "HEAD"])).unwrap().trim().to_owned()
}

fn path(text: &str) -> TreePath {
    TreePath::new(text).unwrap()
}

#[test]
fn clean_repository_is_changed_in_place_and_undone() {
    let run = Run::new();
    let before = tree(&run.fixture.repo());
    let diff = run.diff(&[("src.txt", "pulled\n"), ("new/deep/file.txt", "new\n")]);
    run.fixture.write("untracked.txt", "the person's\n");
    let pulled = run.pull(&diff, BranchWish::WhenNeeded).unwrap();
    assert!(matches!(pulled, Pulled::Applied { ref paths, .. } if paths.len() == 2), "{pulled:?}");
    assert_eq!(fs::read(run.fixture.repo().join("src.txt")).unwrap(), b"pulled\n");
    assert_eq!(fs::read(run.fixture.repo().join("new/deep/file.txt")).unwrap(), b"new\n");
    let status = String::from_utf8(run.fixture.git(&["status", "--porcelain"])).unwrap();
    assert_eq!(status, " M src.txt\n?? new/\n?? untracked.txt\n");
    run.journal().undo(&run.fixture.repo(), Changed::Refuse).unwrap();
    fs::remove_file(run.fixture.repo().join("untracked.txt")).unwrap();
    assert_eq!(tree(&run.fixture.repo()), before);
}

#[test]
fn empty_diff_does_nothing() {
    let run = Run::new();
    let pulled = run.pull(b"", BranchWish::Always).unwrap();
    assert!(matches!(pulled, Pulled::Empty { .. }));
    assert_eq!(run.fixture.git(&["branch", "--list", "warrant/*"]), b"");
}

#[test]
fn uncommitted_work_is_not_overwritten() {
    let run = Run::new();
    let diff = run.diff(&[("src.txt", "pulled\n")]);
    run.fixture.write("lines.txt", "work in progress\n");
    let before = tree(&run.fixture.repo());
    let pulled = run.pull(&diff, BranchWish::WhenNeeded).unwrap();
    let Pulled::Branch { branch, commit, why, merge, .. } = pulled else { panic!("{pulled:?}") };
    assert_eq!((branch.as_str(), why), ("warrant/0f8fad5b-d9c", WhyBranch::Uncommitted));
    assert_eq!(merge, MergePreview::FastForward);
    assert_eq!(tree(&run.fixture.repo()), before);
    let message = run.fixture.git(&["log", "-1", "--format=%s %an <%ae>", &branch]);
    let message = String::from_utf8(message).unwrap();
    assert_eq!(
        message,
        "warrant run run_0f8fad5b-d9cb-469f-a165-70867728950e warrant <warrant@localhost>\n"
    );
    let parent = run.fixture.git(&["rev-parse", &format!("{commit}^")]);
    assert_eq!(String::from_utf8(parent).unwrap().trim(), run.base);
    let content = run.fixture.git(&["show", &format!("{branch}:src.txt")]);
    assert_eq!(content, b"pulled\n");
    run.fixture.git(&["fsck", "--strict"]);
}

#[test]
fn untracked_file_in_the_way_is_not_overwritten() {
    let run = Run::new();
    let diff = run.diff(&[("new.txt", "pulled\n")]);
    run.fixture.write("new.txt", "the person's\n");
    let pulled = run.pull(&diff, BranchWish::WhenNeeded).unwrap();
    let Pulled::Branch { why, .. } = pulled else { panic!("{pulled:?}") };
    assert_eq!(why, WhyBranch::InTheWay(path("new.txt")));
    assert_eq!(fs::read(run.fixture.repo().join("new.txt")).unwrap(), b"the person's\n");
}

#[test]
fn diverged_history_becomes_a_branch_and_conflicts_are_shown() {
    let run = Run::new();
    let diff = run.diff(&[("lines.txt", "one\nTWO\nthree\n"), ("other.txt", "x\n")]);
    run.fixture.write("lines.txt", "one\nzwei\nthree\n");
    run.fixture.commit();
    let before = (tree(&run.fixture.repo()), head(&run.fixture));
    let pulled = run.pull(&diff, BranchWish::WhenNeeded).unwrap();
    let Pulled::Branch { why, merge, .. } = pulled else { panic!("{pulled:?}") };
    assert_eq!(why, WhyBranch::Diverged);
    let MergePreview::Conflicts(conflicts) = merge else { panic!("{merge:?}") };
    assert_eq!(conflicts.len(), 1);
    assert_eq!(conflicts[0].path, path("lines.txt"));
    let text = String::from_utf8(conflicts[0].text.clone()).unwrap();
    assert!(text.contains("zwei\n=======\nTWO\n"), "{text}");
    assert_eq!((tree(&run.fixture.repo()), head(&run.fixture)), before, "nothing was merged");
}

#[test]
fn diverged_history_without_conflict_is_told_as_clean() {
    let run = Run::new();
    let diff = run.diff(&[("other.txt", "x\n")]);
    run.fixture.write("lines.txt", "changed\n");
    run.fixture.commit();
    let pulled = run.pull(&diff, BranchWish::WhenNeeded).unwrap();
    assert!(matches!(pulled, Pulled::Branch { merge: MergePreview::Clean, .. }), "{pulled:?}");
}

#[test]
fn branch_that_exists_is_never_moved() {
    let run = Run::new();
    run.fixture.git(&["branch", "warrant/0f8fad5b-d9c"]);
    let diff = run.diff(&[("src.txt", "pulled\n")]);
    for _ in 0..2 {
        let pulled = run.pull(&diff, BranchWish::Always).unwrap();
        let Pulled::Branch { branch, why, .. } = pulled else { panic!("{pulled:?}") };
        assert_eq!((branch.as_str(), why), ("warrant/0f8fad5b-d9c-2", WhyBranch::Wished));
    }
    let kept = run.fixture.git(&["rev-parse", "warrant/0f8fad5b-d9c"]);
    assert_eq!(String::from_utf8(kept).unwrap().trim(), run.base);
}

#[test]
fn files_that_execute_later_are_kept_out_of_a_pull() {
    let run = Run::new();
    let diff =
        run.diff(&[(".envrc", "evil\n"), (".vscode/tasks.json", "{}\n"), ("ok.txt", "ok\n")]);
    let pulled = run.pull(&diff, BranchWish::WhenNeeded).unwrap();
    let Pulled::Applied { paths, gated } = pulled else { panic!("{pulled:?}") };
    assert_eq!(paths, [path("ok.txt")]);
    assert_eq!(gated.len(), 2);
    assert!(!run.fixture.repo().join(".envrc").exists());
    fs::remove_file(run.fixture.repo().join("ok.txt")).unwrap();
    let pulled = run.pull_released(&diff, BranchWish::Always, &[path(".envrc")]).unwrap();
    let Pulled::Branch { branch, .. } = pulled else { panic!("{pulled:?}") };
    let names = run.fixture.git(&["ls-tree", "-r", "--name-only", &branch]);
    let names = String::from_utf8(names).unwrap();
    assert!(names.contains(".envrc") && !names.contains(".vscode"), "{names}");
}

#[test]
fn link_that_leaves_the_repository_is_kept_out_of_a_pull() {
    let run = Run::new();
    let diff = "diff --git a/out b/out\nnew file mode 120000\n--- /dev/null\n+++ b/out\n\
                @@ -0,0 +1 @@\n+../.ssh/config\n\\ No newline at end of file\n\
                diff --git a/in b/in\nnew file mode 120000\n--- /dev/null\n+++ b/in\n\
                @@ -0,0 +1 @@\n+lines.txt\n\\ No newline at end of file\n";
    let pulled = run.pull(diff.as_bytes(), BranchWish::WhenNeeded).unwrap();
    let Pulled::Applied { paths, gated } = pulled else { panic!("{pulled:?}") };
    assert_eq!(paths, [path("in")]);
    assert_eq!(gated.len(), 1);
    assert_eq!((gated[0].class, gated[0].verdict), (GateClass::OutwardLink, Verdict::Hold));
    assert!(fs::symlink_metadata(run.fixture.repo().join("out")).is_err());
}

#[test]
fn hostile_diff_cannot_leave_the_repository() {
    let run = Run::new();
    for path in [".git/hooks/post-checkout", "../escape", "/abs", ".GIT/config"] {
        let diff = format!(
            "diff --git a/{path} b/{path}\nnew file mode 100755\n--- /dev/null\n+++ b/{path}\n\
             @@ -0,0 +1 @@\n+evil\n"
        );
        let error = run.pull(diff.as_bytes(), BranchWish::WhenNeeded).unwrap_err();
        assert!(matches!(error, PullError::Diff(_) | PullError::Path(_)), "{path}: {error}");
    }
}

#[test]
fn repository_config_does_not_execute_on_pull() {
    let run = Run::new();
    let canary = run.fixture.path("canary");
    let script = run.fixture.path("evil.sh");
    fs::write(&script, format!("#!/bin/sh\ntouch {}\ncat\n", canary.display())).unwrap();
    std::process::Command::new("chmod").args(["+x"]).arg(&script).status().unwrap();
    let script = script.to_str().unwrap();
    let diff = run.diff(&[("lines.txt", "one\nTWO\nthree\n")]);
    for key in
        ["core.fsmonitor", "filter.e.clean", "filter.e.smudge", "merge.e.driver", "diff.e.textconv"]
    {
        run.fixture.git(&["config", key, script]);
    }
    fs::write(run.fixture.repo().join(".git/info/attributes"), "* filter=e merge=e diff=e\n")
        .unwrap();
    fs::create_dir_all(run.fixture.repo().join(".git/hooks")).unwrap();
    for hook in ["reference-transaction", "post-index-change", "post-checkout"] {
        fs::copy(script, run.fixture.repo().join(".git/hooks").join(hook)).unwrap();
    }
    let _ = fs::remove_file(&canary);
    run.pull(&diff, BranchWish::Always).unwrap();
    run.pull(&diff, BranchWish::WhenNeeded).unwrap();
    assert!(!canary.exists(), "something of the repository was executed");
    let _ = crate::fixture::git_command(&run.fixture.repo(), &["status"]).output();
    assert!(canary.exists(), "the trap works when git is used plainly");
}

#[test]
fn unknown_base_is_refused() {
    let mut run = Run::new();
    let diff = run.diff(&[("src.txt", "pulled\n")]);
    run.base = "0123456789012345678901234567890123456789".into();
    let error = run.pull(&diff, BranchWish::WhenNeeded).unwrap_err();
    assert!(matches!(error, PullError::UnknownBase(_)), "{error}");
}

#[test]
fn run_that_started_from_uncommitted_work_is_pulled_onto_the_very_files() {
    let mut run = Run::new();
    run.fixture.write("lines.txt", "one\nmine\nthree\n");
    // The run saw the uncommitted file, so its diff is made from that and not from the commit.
    let diff = diff_of(
        &run.fixture,
        &[("lines.txt", "one\nmine\nthree\n"), ("src.txt", "original\n")],
        &[("lines.txt", "one\nmine\nTHREE\n"), ("moved.txt", "original\n"), ("a/b.txt", "new\n")],
    );
    let pulled = run.pull(&diff, BranchWish::WhenNeeded).unwrap();
    assert!(matches!(pulled, Pulled::Applied { .. }), "{pulled:?}");
    let read = |name: &str| fs::read_to_string(run.fixture.repo().join(name)).unwrap();
    assert_eq!(read("lines.txt"), "one\nmine\nTHREE\n");
    assert_eq!(read("moved.txt"), "original\n");
    assert!(!run.fixture.repo().join("src.txt").exists());
    run.journal().undo(&run.fixture.repo(), Changed::Refuse).unwrap();
    assert_eq!(read("lines.txt"), "one\nmine\nthree\n");
    run.fixture.write("lines.txt", "one\nmine again\nthree\n");
    let before = tree(&run.fixture.repo());
    let error = run.pull(&diff, BranchWish::WhenNeeded).unwrap_err();
    assert!(matches!(error, PullError::Stale(_) | PullError::InTheWay(_)), "{error}");
    assert_eq!(tree(&run.fixture.repo()), before, "work was overwritten");
    run.base = "none".into();
    let error = run.pull(&diff, BranchWish::WhenNeeded).unwrap_err();
    assert!(matches!(error, PullError::Stale(_) | PullError::InTheWay(_)), "{error}");
}

#[test]
fn folder_without_git_is_pulled_into_and_never_over_work() {
    let mut run = Run::new();
    fs::remove_dir_all(run.fixture.repo().join(".git")).unwrap();
    run.base = "none".into();
    let diff = diff_of(
        &run.fixture,
        &[("src.txt", "original\n")],
        &[("src.txt", "changed\n"), ("new.txt", "new\n"), (".envrc", "evil\n")],
    );
    run.fixture.write("new.txt", "the person's\n");
    let error = run.pull(&diff, BranchWish::WhenNeeded).unwrap_err();
    assert!(matches!(error, PullError::InTheWay(_)), "{error}");
    assert_eq!(fs::read(run.fixture.repo().join("new.txt")).unwrap(), b"the person's\n");
    fs::remove_file(run.fixture.repo().join("new.txt")).unwrap();
    let pulled = run.pull(&diff, BranchWish::WhenNeeded).unwrap();
    let Pulled::Applied { paths, gated } = pulled else { panic!("{pulled:?}") };
    assert_eq!(paths, [path("new.txt"), path("src.txt")]);
    assert_eq!(gated.len(), 1, "the gate stands here too");
    let hostile = b"diff --git a/.git/config b/.git/config\nnew file mode 100644\n--- /dev/null\n\
                    +++ b/.git/config\n@@ -0,0 +1 @@\n+evil\n";
    let error = run.pull(hostile, BranchWish::WhenNeeded).unwrap_err();
    assert!(matches!(error, PullError::Diff(_) | PullError::Path(_)), "{error}");
}

/// The diff between two sets of files, as the collector writes it.
fn diff_of(fixture: &Fixture, before: &[(&str, &str)], after: &[(&str, &str)]) -> Vec<u8> {
    let top = fixture.path("made");
    let _ = fs::remove_dir_all(&top);
    fs::create_dir(&top).unwrap();
    git_in(&top, &["init", "-q"]);
    for (files, message) in [(before, "before"), (after, "after")] {
        git_in(&top, &["rm", "-rfq", "--ignore-unmatch", "."]);
        for (path, content) in files {
            let path = top.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        git_in(&top, &["add", "-A", "-f"]);
        git_in(&top, &["commit", "-q", "-m", message]);
    }
    git_in(&top, &["diff", "--binary", "--full-index", "-M100%", "HEAD^", "HEAD"])
}
