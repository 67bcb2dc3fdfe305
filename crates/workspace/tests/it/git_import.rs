//! What a run did with git is on the host afterwards, exactly as if it had been done there.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

use warrant_workspace::{Changed, ExportError, ExportPlan, GateClass, UndoError, Verdict};

use crate::export::Overlay;
use crate::fixture::Fixture;

/// Everything that tells one repository from another, as git itself says it.
pub fn state_of(repo: &Path) -> String {
    let asked: [&[&str]; 11] = [
        &["for-each-ref"],
        &["rev-parse", "HEAD"],
        &["rev-parse", "--symbolic-full-name", "HEAD"],
        &["status", "--porcelain=v2", "--branch"],
        &["log", "--all", "--format=%H %P %T %s"],
        &["ls-files", "--stage"],
        &["reflog", "show", "--format=%H %gs", "HEAD"],
        &["stash", "list", "--format=%H %gs"],
        &["diff"],
        &["diff", "--cached"],
        &["worktree", "list"],
    ];
    let mut text = String::new();
    for arguments in asked {
        let output = git(repo, arguments);
        let (out, name) = (String::from_utf8_lossy(&output.stdout), repo.display().to_string());
        text.push_str(&format!("$ git {}\n{}", arguments.join(" "), out.replace(&name, "REPO")));
    }
    for name in ["MERGE_HEAD", "MERGE_MSG", "CHERRY_PICK_HEAD", "ORIG_HEAD", "REBASE_HEAD"] {
        let content = fs::read_to_string(repo.join(".git").join(name)).unwrap_or_default();
        text.push_str(&format!("{name}: {content}\n"));
    }
    text
}

pub fn git(repo: &Path, arguments: &[&str]) -> std::process::Output {
    let mut command = Command::new("git");
    identity(&mut command);
    command.args(arguments).current_dir(repo).output().unwrap()
}

fn identity(command: &mut Command) {
    for (key, value) in [
        ("GIT_CONFIG_GLOBAL", "/dev/null"),
        ("GIT_CONFIG_SYSTEM", "/dev/null"),
        ("GIT_AUTHOR_NAME", "a"),
        ("GIT_AUTHOR_EMAIL", "a@localhost"),
        ("GIT_AUTHOR_DATE", "@1700000000 +0000"),
        ("GIT_COMMITTER_NAME", "a"),
        ("GIT_COMMITTER_EMAIL", "a@localhost"),
        ("GIT_COMMITTER_DATE", "@1700000000 +0000"),
        ("GIT_EDITOR", "true"),
        ("LC_ALL", "C"),
    ] {
        command.env(key, value);
    }
}

/// Prefix of every script: who commits, and when, so that both sides make the same commits.
pub const IDENTITY: &str = "export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_SYSTEM=/dev/null \
     GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@localhost GIT_AUTHOR_DATE='@1700000000 +0000' \
     GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@localhost GIT_COMMITTER_DATE='@1700000000 +0000' \
     GIT_EDITOR=true LC_ALL=C\n";

#[track_caller]
pub fn assert_sound(repo: &Path) {
    let output = git(repo, &["fsck", "--strict", "--full"]);
    assert!(output.status.success(), "git fsck: {output:?}");
    assert!(!repo.join(".git/index.lock").exists() && !repo.join(".git/HEAD.lock").exists());
}

pub fn repository() -> Overlay {
    let fixture = Fixture::with_repo();
    fixture.write("dir/b.txt", "b\n");
    fixture.git(&["add", "-A"]);
    fixture.git(&["commit", "-qm", "two"]);
    fixture.git(&["branch", "other", "HEAD~1"]);
    fixture.git(&["tag", "start"]);
    Overlay::over(fixture)
}

/// Runs a script inside and, in a copy, outside; both repositories must be the same afterwards.
#[track_caller]
fn check_same_as_outside(prepare: &str, script: &str) -> Overlay {
    let overlay = repository();
    let repo = overlay.fixture.repo();
    sh(&repo, prepare);
    // git remembers inodes; a copy without them is as good.
    let plain = overlay.fixture.path("plain");
    let copied = Command::new("cp").arg("-a").args([&repo, &plain]).status().unwrap();
    assert!(copied.success());
    sh(&plain, script);
    overlay.run(&format!("{IDENTITY}{script}"));
    let plan = overlay.plan(&[]);
    assert_eq!(plan.git.refusal, None, "{script}");
    overlay.apply(plan).unwrap();
    assert_eq!(state_of(&repo), state_of(&plain), "{script}");
    assert_sound(&repo);
    overlay
}

#[track_caller]
fn sh(directory: &Path, script: &str) {
    let script = format!("{IDENTITY}{script}");
    let output = Command::new("sh").args(["-e", "-c", &script]).current_dir(directory).output();
    let output = output.unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{script}: {told}");
}

#[test]
fn everyday_git_inside_is_there_outside() {
    let edit = "echo more >> src.txt; echo new > new.txt";
    for script in [
        "git status",
        &format!("{edit}; git add -A"),
        &format!("{edit}; git add -A; git commit -qm three"),
        &format!("{edit}; git commit -qam three; git commit -q --amend -m better"),
        &format!("git checkout -q -b feature/x; {edit}; git add -A; git commit -qm three"),
        &format!("{edit}; git add -N new.txt"),
        "git rm -q src.txt; git mv dir/b.txt c.txt",
        "git checkout -q other; git tag -a v1 -m v1; git tag light",
        "git checkout -q --detach HEAD~1",
        "git branch -D other; git tag -d start",
        &format!("{edit}; git stash -q -u; git stash list"),
        &format!("{edit}; git stash -q -u; git stash pop -q"),
        "git reset -q --hard HEAD~1",
        "git reset -q --soft HEAD~1",
        "git switch -q other; echo x > x; git add x; git commit -qm x; git merge -q -m m main",
        "git notes add -m note; git -c gc.reflogExpire=never gc -q",
        "git pack-refs --all; git branch -D other; git branch third",
        "git symbolic-ref refs/remotes/origin/HEAD refs/remotes/origin/main; git update-ref refs/remotes/origin/main HEAD",
    ] {
        check_same_as_outside("true", script);
    }
}

#[test]
fn unfinished_merge_rebase_and_cherry_pick_go_on_outside() {
    let diverge = "git checkout -q -b side; echo side > src.txt; git commit -qam side; \
                   git checkout -q main; echo main > src.txt; git commit -qam main";
    for (script, go_on) in [
        ("git merge side || true", "git commit -qam merged"),
        ("git cherry-pick side || true", "git cherry-pick --continue"),
        ("git rebase side || true", "git rebase --continue"),
        ("git revert --no-edit HEAD~1 || true", "true"),
        ("git merge --squash side || true", "git commit -qm squashed"),
    ] {
        let overlay = check_same_as_outside(diverge, script);
        for name in ["repo", "plain"] {
            let repo = overlay.fixture.path(name);
            sh(&repo, &format!("echo solved > src.txt; git add src.txt; {go_on}"));
        }
        let (repo, plain) = (overlay.fixture.repo(), overlay.fixture.path("plain"));
        assert_eq!(state_of(&repo), state_of(&plain), "{script}, then {go_on}");
        assert_sound(&repo);
    }
}

#[test]
fn unfinished_work_of_the_person_goes_on_inside() {
    let diverge = "git checkout -q -b side; echo side > src.txt; git commit -qam side; \
                   git checkout -q main; echo main > src.txt; git commit -qam main";
    for (begun, script) in [
        ("git merge side || true", "git commit -qam merged"),
        ("git merge side || true", "git merge --abort"),
        ("git rebase side || true", "git rebase --continue"),
        ("git rebase side || true", "git rebase --abort"),
        ("echo x >> src.txt; git stash -q", "git stash pop -q"),
        ("echo x >> src.txt; git stash -q; echo y >> src.txt; git stash -q", "git stash drop -q"),
        ("git gc -q", "echo z > z; git add z; git commit -qm z"),
    ] {
        let solve = "echo solved > src.txt; git add src.txt";
        let solve =
            if script.contains("abort") || script.contains("stash") { "true" } else { solve };
        check_same_as_outside(&format!("{diverge}; {begun}"), &format!("{solve}; {script}"));
    }
}

#[test]
fn every_reference_is_named_with_its_old_and_new_value() {
    let overlay = repository();
    let repo = overlay.fixture.repo();
    let before = rev(&repo, "HEAD");
    overlay.run(&format!("{IDENTITY}echo x > x; git add x; git checkout -q -b new; git commit -qm x; git branch -D other"));
    let plan = overlay.plan(&[]);
    let told: Vec<(String, String, String)> = plan
        .git
        .refs
        .iter()
        .map(|update| {
            let text = |value: &Option<warrant_workspace::RefValue>| {
                value.as_ref().map_or_else(|| "-".to_owned(), ToString::to_string)
            };
            (update.name.clone(), text(&update.old), text(&update.new))
        })
        .collect();
    let other = rev(&repo, "other");
    overlay.apply(plan).unwrap();
    let after = rev(&repo, "new");
    assert_ne!(before, after);
    assert_eq!(
        told,
        [
            ("refs/heads/new".to_owned(), "-".to_owned(), after),
            ("refs/heads/other".to_owned(), other, "-".to_owned()),
            ("HEAD".to_owned(), "refs/heads/main".to_owned(), "refs/heads/new".to_owned()),
        ]
    );
}

pub fn rev(repo: &Path, name: &str) -> String {
    let output = git(repo, &["rev-parse", name]);
    assert!(output.status.success(), "{name}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[test]
fn undo_takes_commits_back_and_leaves_their_objects() {
    let overlay = repository();
    let repo = overlay.fixture.repo();
    sh(&repo, "echo staged > staged; git add staged");
    let before = state_of(&repo);
    overlay.run(&format!(
        "{IDENTITY}echo x > x; git add x; git commit -qm x; git checkout -q -b new; git tag t; git stash list"
    ));
    overlay.apply(overlay.plan(&[])).unwrap();
    let commit = rev(&repo, "new");
    // Git refreshes its index whenever somebody asks.
    sh(&repo, "touch src.txt; git status");
    overlay.journal().undo(&repo, Changed::Refuse).unwrap();
    assert_eq!(state_of(&repo), before);
    assert!(git(&repo, &["cat-file", "-e", &commit]).status.success());
    assert_sound(&repo);
}

#[test]
fn undo_does_not_take_back_what_the_person_committed_since() {
    let overlay = repository();
    let repo = overlay.fixture.repo();
    overlay.run(&format!("{IDENTITY}echo x > x; git add x; git commit -qm x"));
    overlay.apply(overlay.plan(&[])).unwrap();
    sh(&repo, "echo y > y; git add y; git commit -qm y");
    let state = state_of(&repo);
    let refused = overlay.journal().undo(&repo, Changed::Refuse);
    assert!(matches!(refused, Err(UndoError::Changed { .. })), "{refused:?}");
    assert_eq!(state_of(&repo), state);
}

/// Runs a script inside while the person does something outside, and plans with both known.
pub fn meanwhile(overlay: &Overlay, inside: &str, outside: &str) -> ExportPlan {
    let started_at = SystemTime::now();
    // The clock of the file system lags a little behind.
    std::thread::sleep(Duration::from_millis(30));
    overlay.run(&format!("{IDENTITY}{inside}"));
    sh(&overlay.fixture.repo(), outside);
    git(&overlay.fixture.repo(), &["status"]);
    overlay.plan_since(&[], Some(started_at))
}

#[test]
fn concurrent_commit_of_the_person_keeps_both() {
    let overlay = repository();
    let repo = overlay.fixture.repo();
    let plan = meanwhile(
        &overlay,
        "echo x > x; git add x; git commit -qm inside; git branch extra",
        "echo y > y; git add y; git commit -qm outside",
    );
    assert_eq!(plan.git.refusal, None);
    let detours: Vec<_> = plan.git.detours.iter().map(|one| one.branch.clone()).collect();
    assert_eq!(detours, ["warrant/test"]);
    overlay.apply(plan).unwrap();
    let subject = |name: &str| {
        String::from_utf8(git(&repo, &["log", "-1", "--format=%s", name]).stdout).unwrap()
    };
    assert_eq!(subject("main"), "outside\n");
    assert_eq!(subject("warrant/test"), "inside\n");
    assert_eq!(subject("extra"), "inside\n");
    assert!(repo.join("y").exists() && !repo.join("x").exists());
    let status = git(&repo, &["status", "--porcelain"]).stdout;
    assert_eq!(String::from_utf8(status).unwrap(), "", "the person's files are as they were");
    assert_sound(&repo);
}

#[test]
fn concurrent_checkout_staging_and_stash_of_the_person_keep_both() {
    for (branch, outside) in
        [("main", "git checkout -q other"), ("warrant/test", "echo y > y; git add y")]
    {
        let overlay = repository();
        let repo = overlay.fixture.repo();
        let plan = meanwhile(&overlay, "echo x > x; git add x; git commit -qm inside", outside);
        overlay.apply(plan).unwrap();
        let subject = git(&repo, &["log", "-1", "--format=%s", branch]).stdout;
        assert_eq!(String::from_utf8(subject).unwrap(), "inside\n", "{outside}");
        git(&repo, &["branch", "-D", "warrant/test"]);
        if branch == "main" {
            git(&repo, &["update-ref", "refs/heads/main", "start"]);
        }
        let plain = repository().fixture;
        sh(&plain.repo(), outside);
        let files = |repo: &Path| String::from_utf8(git(repo, &["status", "-b", "-s"]).stdout);
        assert_eq!(files(&repo), files(&plain.repo()), "{outside}");
        assert_eq!(rev(&repo, "HEAD"), rev(&plain.repo(), "HEAD"), "{outside}");
    }
    let overlay = repository();
    let repo = overlay.fixture.repo();
    let plan =
        meanwhile(&overlay, "echo x >> src.txt; git stash -q", "echo y >> README.md; git stash -q");
    overlay.apply(plan).unwrap();
    let stashed = git(&repo, &["show", "--format=", "warrant/test", "--", "src.txt"]).stdout;
    assert!(String::from_utf8_lossy(&stashed).contains("+x"));
    let kept = git(&repo, &["stash", "show", "-p"]).stdout;
    assert!(String::from_utf8_lossy(&kept).contains("+y"));
    assert_sound(&repo);
}

#[test]
fn refreshing_the_index_meanwhile_is_no_conflict() {
    let overlay = repository();
    let repo = overlay.fixture.repo();
    let inside = "echo x > x; git add x; git commit -qm inside";
    let plan = meanwhile(&overlay, inside, "touch src.txt; git status");
    assert_eq!(plan.git.detours, []);
    overlay.apply(plan).unwrap();
    assert!(repo.join("x").exists());
    assert_eq!(String::from_utf8(git(&repo, &["status", "--porcelain"]).stdout).unwrap(), "");
}

#[test]
fn hooks_config_and_attributes_stay_out_and_are_named_with_a_true_reason() {
    let overlay = repository();
    let repo = overlay.fixture.repo();
    let config = fs::read(repo.join(".git/config")).unwrap();
    overlay.run(&format!(
        "{IDENTITY}echo x > x; git add x; git commit -qm x; \
         printf '#!/bin/sh\\ntouch /tmp/x' > .git/hooks/post-checkout; chmod +x .git/hooks/post-checkout; \
         git config core.fsmonitor 'touch x'; mkdir -p .git/info; \
         echo '* filter=evil' > .git/info/attributes; echo /etc > .git/objects/info/alternates"
    ));
    let plan = overlay.plan(&[]);
    let named: Vec<(String, GateClass, Verdict)> =
        plan.gated.iter().map(|gate| (gate.path.to_string(), gate.class, gate.verdict)).collect();
    let refused = |path: &str, class| (path.to_owned(), class, Verdict::Refuse);
    assert_eq!(
        named,
        [
            refused(".git/config", GateClass::GitConfig),
            refused(".git/hooks/post-checkout", GateClass::GitHook),
            refused(".git/info/attributes", GateClass::GitConfig),
            refused(".git/objects/info/alternates", GateClass::GitConfig),
        ]
    );
    overlay.apply(plan).unwrap();
    assert_eq!(fs::read(repo.join(".git/config")).unwrap(), config);
    for path in ["hooks/post-checkout", "info/attributes", "objects/info/alternates"] {
        assert!(!repo.join(".git").join(path).exists(), "{path}");
    }
    assert_eq!(String::from_utf8(git(&repo, &["log", "-1", "--format=%s"]).stdout).unwrap(), "x\n");
}

#[test]
fn repository_of_another_format_is_refused_by_name() {
    let fixture = Fixture::new();
    fixture.git(&["init", "-q", "-b", "main", "--object-format=sha256"]);
    fixture.write("a", "a\n");
    fixture.commit();
    let overlay = Overlay::over(fixture);
    overlay.run(&format!("{IDENTITY}echo b > b; git add b; git commit -qm b"));
    let plan = overlay.plan(&[]);
    let why = plan.git.refusal.clone().unwrap();
    assert!(why.contains("sha256"), "{why}");
    let refused = overlay.apply(plan);
    assert!(matches!(refused, Err(ExportError::Git(_))), "{refused:?}");
    assert!(!overlay.fixture.repo().join("b").exists(), "files and commits go together");
}

/// A repository with a submodule, over which the overlay is mounted at its own path.
fn with_submodule() -> Overlay {
    let overlay = repository();
    let (repo, inner) = (overlay.fixture.repo(), overlay.fixture.path("inner"));
    sh(
        overlay.fixture.temp.path(),
        "git init -q -b main inner; cd inner; echo i > i; git add i; git commit -qm inner",
    );
    let add = format!(
        "git -c protocol.file.allow=always submodule --quiet add {} libs/sub; git commit -qm sub",
        inner.display()
    );
    sh(&repo, &add);
    overlay
}

#[test]
fn commit_in_a_submodule_is_there_outside() {
    let overlay = with_submodule();
    let repo = overlay.fixture.repo();
    overlay.run_in_place(&format!(
        "{IDENTITY}cd libs/sub; echo x > x; git add x; git checkout -q -b topic; git commit -qm deep; \
         cd ../..; git add libs/sub; git commit -qm bump"
    ));
    let plan = overlay.plan(&[]);
    let named: Vec<_> =
        plan.git.refs.iter().map(|one| (one.repository.clone(), one.name.clone())).collect();
    let module = Some(".git/modules/libs/sub".to_owned());
    assert!(named.contains(&(module, "refs/heads/topic".to_owned())), "{named:?}");
    overlay.apply(plan).unwrap();
    let subject =
        |at: &Path| String::from_utf8(git(at, &["log", "-1", "--format=%s"]).stdout).unwrap();
    assert_eq!(subject(&repo), "bump\n");
    assert_eq!(subject(&repo.join("libs/sub")), "deep\n");
    assert_eq!(git(&repo, &["status", "--porcelain"]).stdout, b"");
    assert_sound(&repo);
    assert_sound(&repo.join("libs/sub"));
}

#[test]
fn submodule_worktree_and_repository_made_inside_are_there_outside_with_a_config_of_ours() {
    let overlay = repository();
    let (repo, inner) = (overlay.fixture.repo(), overlay.fixture.path("inner"));
    sh(
        overlay.fixture.temp.path(),
        "git init -q -b main inner; cd inner; echo i > i; git add i; git commit -qm inner",
    );
    overlay.run_in_place(&format!(
        "{IDENTITY}git -c protocol.file.allow=always submodule --quiet add {} sub; git commit -qm sub; \
         git -C sub config core.fsmonitor 'touch /tmp/executed'; \
         git worktree add -q tree; cd tree; echo t > t; git add t; git commit -qm tree",
        inner.display()
    ));
    overlay.apply(overlay.plan(&[])).unwrap();
    let subject = |at: &str| {
        String::from_utf8(git(&repo.join(at), &["log", "-1", "--format=%s"]).stdout).unwrap()
    };
    assert_eq!(
        (subject("."), subject("sub"), subject("tree")),
        ("sub\n".into(), "inner\n".into(), "tree\n".into())
    );
    let config = fs::read_to_string(repo.join(".git/modules/sub/config")).unwrap();
    assert!(!config.contains("fsmonitor"), "{config}");
    for at in ["sub", "tree"] {
        assert_eq!(git(&repo.join(at), &["status", "--porcelain"]).stdout, b"", "{at}");
        assert_sound(&repo);
    }
    let list = String::from_utf8(git(&repo, &["worktree", "list"]).stdout).unwrap();
    assert_eq!(list.lines().count(), 2, "{list}");

    let fresh = Overlay::over(Fixture::new());
    fresh.run_in_place(&format!(
        "{IDENTITY}git init -q -b main; git config core.pager evil; echo a > a; git add a; git commit -qm a"
    ));
    fresh.apply(fresh.plan(&[])).unwrap();
    let repo = fresh.fixture.repo();
    assert_eq!(String::from_utf8(git(&repo, &["log", "--format=%s"]).stdout).unwrap(), "a\n");
    assert!(!fs::read_to_string(repo.join(".git/config")).unwrap().contains("evil"));
    assert!(!repo.join(".git/hooks").exists());
    assert_sound(&repo);
}

/// Keeps what was committed inside as a bundle, as a run whose changes wait for a person does.
fn bundle_of(overlay: &Overlay) -> (fs::File, Vec<warrant_workspace::RefUpdate>) {
    use std::os::fd::AsFd as _;
    let open = |name: &str| fs::File::open(overlay.fixture.path(name)).unwrap();
    let (lower, upper) = (open("repo"), open("upper"));
    let options = warrant_workspace::GitBundleOptions {
        scratch: &overlay.fixture.path("scratch"),
        limits: warrant_workspace::TreeLimits::generous(),
        watch: &|_| {},
    };
    let bundle = warrant_workspace::write_git_bundle(lower.as_fd(), upper.as_fd(), &options);
    (bundle.unwrap().expect("a bundle"), overlay.plan(&[]).git.refs)
}

/// Pulls the diff and the commits of what was done inside.
fn pull_of(overlay: &Overlay, base: &str) -> warrant_workspace::Pulled {
    let kept = bundle_of(overlay);
    pull_kept(overlay, base, kept, overlay.collect())
}

fn pull_kept(
    overlay: &Overlay,
    base: &str,
    (bundle, updates): (fs::File, Vec<warrant_workspace::RefUpdate>),
    collected: warrant_workspace::Collected,
) -> warrant_workspace::Pulled {
    let mut diff = Vec::new();
    if let Some(collected) = collected.diff {
        std::io::Read::read_to_end(&mut collected.reader().unwrap(), &mut diff).unwrap();
    }
    let options = warrant_workspace::PullOptions {
        scratch: &overlay.fixture.path("scratch"),
        run_id: "run_0123456789abcdef",
        base_ref: base,
        branch: warrant_workspace::BranchWish::WhenNeeded,
        branch_prefix: "warrant/",
        at: SystemTime::UNIX_EPOCH,
        policy: &warrant_workspace::GatePolicy::advised(),
        released: &[],
    };
    let commits = Some(warrant_workspace::PullCommits { bundle: &bundle, updates: &updates });
    let work = warrant_workspace::PullWork { options, commits };
    let repo = overlay.fixture.repo();
    warrant_workspace::pull_with_commits(&repo, &mut diff.as_slice(), &overlay.journal(), &work)
        .unwrap()
}

#[test]
fn pull_brings_the_commits_of_an_isolated_run_and_undo_takes_them_back() {
    let overlay = repository();
    let repo = overlay.fixture.repo();
    let (before, base) = (state_of(&repo), rev(&repo, "HEAD"));
    overlay.run(&format!(
        "{IDENTITY}echo x > x; git add x; git commit -qm one; git checkout -q -b new; \
         echo y >> src.txt; git commit -qam two; git tag t; echo open >> README.md"
    ));
    let pulled = pull_of(&overlay, &base);
    assert!(matches!(pulled, warrant_workspace::Pulled::Applied { .. }), "{pulled:?}");
    let text = |arguments: &[&str]| String::from_utf8(git(&repo, arguments).stdout).unwrap();
    assert_eq!(text(&["log", "-2", "--format=%s"]), "two\none\n");
    assert_eq!(text(&["symbolic-ref", "HEAD"]), "refs/heads/new\n");
    assert_eq!(text(&["log", "-1", "--format=%s", "main"]), "one\n");
    assert_eq!(text(&["status", "--porcelain"]), " M README.md\n");
    assert_eq!(rev(&repo, "t"), rev(&repo, "new"));
    assert_sound(&repo);
    overlay.journal().undo(&repo, Changed::Refuse).unwrap();
    assert_eq!(state_of(&repo), before);
}

#[test]
fn pull_puts_commits_on_a_branch_where_the_person_went_on() {
    let overlay = repository();
    let repo = overlay.fixture.repo();
    let base = rev(&repo, "HEAD");
    overlay.run(&format!(
        "{IDENTITY}echo x > x; git add x; git commit -qm inside; echo open >> README.md"
    ));
    sh(&repo, "echo y > y; git add y; git commit -qm outside");
    let pulled = pull_of(&overlay, &base);
    let warrant_workspace::Pulled::Branch { branch, .. } = pulled else { panic!("{pulled:?}") };
    let text = |arguments: &[&str]| String::from_utf8(git(&repo, arguments).stdout).unwrap();
    assert_eq!(text(&["log", "-1", "--format=%s", "main"]), "outside\n");
    assert_eq!(text(&["log", "--format=%s", &format!("{base}..{branch}~1")]), "inside\n");
    assert_eq!(text(&["diff", "--name-only", &format!("{branch}~1"), &branch]), "README.md\n");
    assert_eq!(text(&["status", "--porcelain"]), "");
    assert_sound(&repo);
}

#[test]
fn commits_made_on_a_runner_are_pulled_onto_the_branch_here() {
    let overlay = repository();
    let (fixture, repo) = (&overlay.fixture, overlay.fixture.repo());
    let base = rev(&repo, "HEAD");
    let captured = fixture.capture(&[], warrant_workspace::History::Full).unwrap();
    let checkout = fixture.materialize(&captured.manifest, "checkout").unwrap();
    sh(
        checkout.path(),
        "echo x > x; git add x; git commit -qm there; git branch topic; \
         git config core.pager evil; echo open >> README.md",
    );
    let options = warrant_workspace::GitBundleOptions {
        scratch: &fixture.path("scratch"),
        limits: warrant_workspace::TreeLimits::generous(),
        watch: &|_| {},
    };
    let kept = warrant_workspace::write_checkout_bundle(&checkout, &options).unwrap();
    let kept = kept.expect("commits");
    let names: Vec<&str> = kept.refs.iter().map(|update| update.name.as_str()).collect();
    assert_eq!(names, ["refs/heads/topic", "HEAD"]);
    let collected = fixture.collect(&checkout);
    let pulled = pull_kept(&overlay, &base, (kept.bundle, kept.refs), collected);
    assert!(matches!(pulled, warrant_workspace::Pulled::Applied { .. }), "{pulled:?}");
    let text = |arguments: &[&str]| String::from_utf8(git(&repo, arguments).stdout).unwrap();
    assert_eq!(text(&["log", "-1", "--format=%s", "main"]), "there\n");
    assert_eq!(text(&["symbolic-ref", "HEAD"]), "refs/heads/main\n");
    assert_eq!(rev(&repo, "topic"), rev(&repo, "main"));
    assert_eq!(text(&["status", "--porcelain"]), " M README.md\n");
    assert_sound(&repo);

    let untouched = fixture.materialize(&captured.manifest, "untouched").unwrap();
    assert!(warrant_workspace::write_checkout_bundle(&untouched, &options).unwrap().is_none());
}
