//! Real overlays: collected, exported through the gate, undone.

use std::fs::{self, File};
use std::os::fd::AsFd as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::PathBuf;
use std::process::Command;
use std::time::SystemTime;

use warrant_workspace::{
    ChangeKind, Changed, Collected, ExportError, ExportOptions, ExportPlan, GateClass, GateLists,
    GatePolicy, Journal, NotExported, TreeLimits, TreePath, UndoError, Verdict, apply_export,
    collect_overlay, plan_export,
};

use crate::fixture::{Entry, Fixture, files, tree};

/// A repository with an overlay over it, in which a script runs.
pub struct Overlay {
    pub fixture: Fixture,
}

impl Overlay {
    pub fn over(fixture: Fixture) -> Self {
        for name in ["upper", "work", "merged"] {
            fs::create_dir(fixture.path(name)).unwrap();
        }
        Self { fixture }
    }

    /// Runs a shell script inside the mounted overlay.
    pub fn run(&self, script: &str) -> &Self {
        let mount = "mount -t overlay overlay -o \
                     lowerdir=repo,upperdir=upper,workdir=work,userxattr merged && cd merged && eval \"$1\"";
        let output = Command::new("unshare")
            .args(["-m", "sh", "-e", "-c", mount, "sh", script])
            .current_dir(self.fixture.temp.path())
            .output()
            .unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "the overlay script failed: {stderr}");
        self
    }

    /// As [`Overlay::run`], with the overlay over the repository itself, so that paths are the same
    /// inside and outside.
    pub fn run_in_place(&self, script: &str) -> &Self {
        let mount = "mount -t overlay overlay -o \
                     lowerdir=repo,upperdir=upper,workdir=work,userxattr repo && cd repo && eval \"$1\"";
        let output = Command::new("unshare")
            .args(["-m", "sh", "-e", "-c", mount, "sh", script])
            .current_dir(self.fixture.temp.path())
            .output()
            .unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "the overlay script failed: {stderr}");
        self
    }

    fn directories(&self) -> (File, File) {
        let open = |name: &str| File::open(self.fixture.path(name)).unwrap();
        (open("repo"), open("upper"))
    }

    pub fn collect(&self) -> Collected {
        let (lower, upper) = self.directories();
        collect_overlay(lower.as_fd(), upper.as_fd(), &self.fixture.collect_options()).unwrap()
    }

    pub fn plan(&self, released: &[TreePath]) -> ExportPlan {
        self.plan_since(released, None)
    }

    pub fn plan_since(&self, released: &[TreePath], started_at: Option<SystemTime>) -> ExportPlan {
        let policy = GatePolicy::advised();
        let limits = TreeLimits::generous();
        self.plan_with(&ExportOptions {
            policy: &policy,
            released,
            started_at,
            limits,
            branch: "warrant/test",
        })
    }

    fn plan_with(&self, options: &ExportOptions<'_>) -> ExportPlan {
        let (lower, upper) = self.directories();
        plan_export(lower.as_fd(), upper.as_fd(), options).unwrap()
    }

    pub fn apply(&self, plan: ExportPlan) -> Result<(), ExportError> {
        let (lower, upper) = self.directories();
        apply_export(plan, lower.as_fd(), upper.as_fd(), &self.journal()).map(drop)
    }

    pub fn journal(&self) -> Journal {
        Journal::open(&self.state(), &self.fixture.repo()).unwrap().0
    }

    pub fn state(&self) -> PathBuf {
        self.fixture.path("state")
    }
}

pub fn path(text: &str) -> TreePath {
    TreePath::new(text).unwrap()
}

fn mixed() -> Overlay {
    let fixture = Fixture::with_repo();
    fixture.write("dir/one.txt", "one\n");
    fixture.write("dir/two.txt", "two\n");
    fixture.write("kept/deep/x.txt", "x\n");
    fixture.commit();
    let overlay = Overlay::over(fixture);
    overlay.run(
        "rm README.md; rm -r dir; mkdir dir; echo three > dir/three.txt; echo changed > src.txt
         chmod +x src.txt; ln -s src.txt link; mkdir -p empty/dir; touch kept/deep/x.txt
         printf 'a\\0b' > new.bin; mv kept moved",
    );
    overlay
}

#[test]
fn overlay_is_collected_as_what_the_session_saw() {
    let overlay = mixed();
    let collected = overlay.collect();
    let seen: Vec<_> = collected
        .changes
        .iter()
        .map(|change| (change.path.to_string(), format!("{:?}", change.kind)))
        .collect();
    let expected = [
        ("README.md", "Deleted"),
        ("dir/one.txt", "Deleted"),
        ("dir/three.txt", "Added"),
        ("dir/two.txt", "Deleted"),
        ("link", "Added"),
        ("moved/deep/x.txt", "Renamed { from: \"kept/deep/x.txt\" }"),
        ("new.bin", "Added"),
        ("src.txt", "Modified"),
    ];
    assert_eq!(seen, expected.map(|(a, b)| (a.to_owned(), b.to_owned())));
    let diff = collected.diff.unwrap().to_vec().unwrap();
    let applied = overlay.fixture.applied("HEAD", &diff, "applied");
    overlay.run("cp -a . ../session; rm -rf ../session/.git");
    let mut expected = files(&overlay.fixture.path("session"));
    expected.retain(|_, entry| *entry != Entry::Directory);
    let applied: std::collections::BTreeMap<_, _> =
        applied.into_iter().filter(|(_, entry)| *entry != Entry::Directory).collect();
    assert_eq!(applied, expected);
}

#[test]
fn export_makes_the_workspace_what_the_session_saw_and_undo_takes_it_back() {
    let overlay = mixed();
    let before = tree(&overlay.fixture.repo());
    overlay.run("cp -a . ../session");
    overlay.apply(overlay.plan(&[])).unwrap();
    assert_eq!(tree(&overlay.fixture.repo()), tree(&overlay.fixture.path("session")));
    let undone = overlay.journal().undo(&overlay.fixture.repo(), Changed::Refuse).unwrap();
    assert!(undone.left.is_empty());
    assert_eq!(tree(&overlay.fixture.repo()), before);
    let again = overlay.journal().undo(&overlay.fixture.repo(), Changed::Refuse);
    assert!(matches!(again, Err(UndoError::Nothing)));
}

#[test]
fn a_tidied_journal_keeps_what_undo_needs_and_nothing_else() {
    let overlay = Overlay::over(Fixture::with_repo());
    let before = tree(&overlay.fixture.repo());
    overlay.run("echo agent > src.txt; echo new > new.txt");
    overlay.apply(overlay.plan(&[])).unwrap();
    let contents = || {
        let entries = fs::read_dir(overlay.state()).unwrap().map(|entry| entry.unwrap().path());
        let contents = entries.filter_map(|entry| fs::read_dir(entry.join("content")).ok());
        let texts = contents.flatten().map(|file| fs::read(file.unwrap().path()).unwrap());
        texts.collect::<Vec<_>>()
    };
    overlay.journal().tidy(100).unwrap();
    assert_eq!(contents(), [b"original\n".to_vec()], "what it made is in the workspace");
    overlay.journal().undo(&overlay.fixture.repo(), Changed::Refuse).unwrap();
    assert_eq!(tree(&overlay.fixture.repo()), before);
    overlay.journal().tidy(100).unwrap();
    assert!(contents().is_empty(), "nothing needs it any more");
    overlay.apply(overlay.plan(&[])).unwrap();
    overlay.journal().tidy(0).unwrap();
    let again = overlay.journal().undo(&overlay.fixture.repo(), Changed::Refuse);
    assert!(matches!(again, Err(UndoError::Nothing)));
}

#[test]
fn undo_refuses_when_the_files_changed_since() {
    let overlay = Overlay::over(Fixture::with_repo());
    overlay.run("echo agent > src.txt; echo new > new.txt");
    overlay.apply(overlay.plan(&[])).unwrap();
    overlay.fixture.write("src.txt", "person\n");
    let journal = overlay.journal();
    let error = journal.undo(&overlay.fixture.repo(), Changed::Refuse).unwrap_err();
    assert!(
        matches!(error, UndoError::Changed { ref paths, .. } if *paths == [path("src.txt")]),
        "{error}"
    );
    assert!(overlay.fixture.repo().join("new.txt").exists(), "nothing was undone");
    journal.undo(&overlay.fixture.repo(), Changed::Overwrite).unwrap();
    assert_eq!(fs::read(overlay.fixture.repo().join("src.txt")).unwrap(), b"original\n");
    assert!(!overlay.fixture.repo().join("new.txt").exists());
}

#[test]
fn the_policys_lists_decide_at_the_gate_but_never_let_git_files_out() {
    let overlay = Overlay::over(Fixture::with_repo());
    overlay.run(
        "printf '#!/bin/sh\\n' > .git/hooks/pre-commit; echo evil > .envrc; echo x > deploy.SH
         mkdir sub; echo [x] > sub/a.desktop; echo {} > package.json; echo ok > fine.txt",
    );
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let policy = GatePolicy::with_lists(GateLists {
        flag: names(&[".envrc", ".git/hooks/*", "package.json"]),
        hold: names(&["*.desktop", "package.json"]),
        refuse: names(&["*.sh"]),
    });
    let limits = TreeLimits::generous();
    let released = [path("sub/a.desktop"), path("deploy.SH")];
    let options = |released| ExportOptions {
        policy: &policy,
        released,
        started_at: None,
        limits,
        branch: "warrant/test",
    };
    let plan = overlay.plan_with(&options(&[]));
    let verdict = |plan: &ExportPlan, name: &str| {
        let found = plan.gated.iter().find(|gated| gated.path == path(name));
        found.map(|gated| (gated.class, gated.verdict))
    };
    let expected = [
        (".envrc", Some((GateClass::DirectoryEnvironment, Verdict::Flag))),
        (".git/hooks/pre-commit", Some((GateClass::GitHook, Verdict::Refuse))),
        ("sub/a.desktop", Some((GateClass::Listed, Verdict::Hold))),
        ("package.json", Some((GateClass::PackageScript, Verdict::Hold))),
        // Case does not count: the disk it ends on may fold it.
        ("deploy.SH", Some((GateClass::Listed, Verdict::Refuse))),
        ("fine.txt", None),
    ];
    for (name, expected) in expected {
        assert_eq!(verdict(&plan, name), expected, "{name}");
    }
    // A person releases what is held, and cannot release what is refused.
    let plan = overlay.plan_with(&options(&released));
    assert_eq!(verdict(&plan, "sub/a.desktop"), Some((GateClass::Listed, Verdict::Flag)));
    assert_eq!(verdict(&plan, "deploy.SH"), Some((GateClass::Listed, Verdict::Refuse)));
    overlay.apply(plan).unwrap();
    let repo = overlay.fixture.repo();
    assert!(repo.join(".envrc").exists() && repo.join("sub/a.desktop").exists());
    assert!(!repo.join("deploy.SH").exists() && !repo.join("package.json").exists());
    assert!(!repo.join(".git/hooks/pre-commit").exists());
}

#[test]
fn planted_files_that_execute_later_are_held_or_refused() {
    let overlay = Overlay::over(Fixture::with_repo());
    overlay.run(
        "printf '#!/bin/sh\\n' > .git/hooks/pre-commit; git config --file .git/config core.fsmonitor x
         mkdir -p vendor/lib; git init -q vendor/lib/nested; git init -q --bare planted
         echo evil > .envrc; mkdir .vscode; echo {} > .vscode/tasks.json
         mkdir -p .github/workflows; echo on: > .github/workflows/x.yml
         echo {} > package.json; echo all: > Makefile; ln -s vendor .idea; echo ok > fine.txt",
    );
    let plan = overlay.plan(&[]);
    let verdict = |name: &str| {
        plan.gated
            .iter()
            .find(|gated| gated.path == path(name))
            .map(|gated| (gated.class, gated.verdict))
    };
    assert_eq!(verdict(".git/hooks/pre-commit"), Some((GateClass::GitHook, Verdict::Refuse)));
    assert_eq!(verdict(".git/config"), Some((GateClass::GitConfig, Verdict::Refuse)));
    assert_eq!(
        verdict("vendor/lib/nested/.git/config"),
        Some((GateClass::NewRepository, Verdict::Refuse))
    );
    assert_eq!(verdict("planted/config"), Some((GateClass::NewRepository, Verdict::Refuse)));
    assert_eq!(verdict(".envrc"), Some((GateClass::DirectoryEnvironment, Verdict::Hold)));
    assert_eq!(verdict(".vscode/tasks.json"), Some((GateClass::EditorTask, Verdict::Hold)));
    assert_eq!(verdict(".idea"), Some((GateClass::EditorTask, Verdict::Hold)));
    assert_eq!(verdict(".github/workflows/x.yml"), Some((GateClass::Ci, Verdict::Hold)));
    assert_eq!(verdict("package.json"), Some((GateClass::PackageScript, Verdict::Flag)));
    assert_eq!(verdict("Makefile"), Some((GateClass::BuildScript, Verdict::Flag)));
    let config = fs::read(overlay.fixture.repo().join(".git/config")).unwrap();
    overlay.apply(plan).unwrap();
    let repo = overlay.fixture.repo();
    assert_eq!(fs::read(repo.join(".git/config")).unwrap(), config);
    for absent in [
        ".git/hooks/pre-commit",
        "vendor/lib/nested/.git",
        "planted/config",
        "planted/HEAD",
        ".envrc",
        ".vscode/tasks.json",
        ".idea",
        ".github/workflows/x.yml",
    ] {
        assert!(fs::symlink_metadata(repo.join(absent)).is_err(), "{absent} was exported");
    }
    for present in ["fine.txt", "package.json", "Makefile"] {
        assert!(repo.join(present).exists(), "{present} was not exported");
    }
    overlay.apply(overlay.plan(&[path(".envrc")])).unwrap();
    assert!(repo.join(".envrc").exists(), "what the person released is exported");
}

#[test]
fn link_that_leaves_the_workspace_is_held_where_it_lands() {
    let fixture = Fixture::with_repo();
    fs::create_dir_all(fixture.repo().join("a/b")).unwrap();
    fs::write(fixture.repo().join("a/b/target.txt"), "x").unwrap();
    symlink("../b/target.txt", fixture.repo().join("a/b/inner")).unwrap();
    let overlay = Overlay::over(fixture);
    // Moved to the top, the same text leads out.
    overlay.run(
        "ln -s ../../../.ssh out; ln -s /root/.ssh/id_ed25519 key; ln -s a/b ok; mv a/b/inner moved
         ln -s /usr/bin/python3 python",
    );
    let plan = overlay.plan(&[]);
    let verdict = |name: &str| {
        let gated = plan.gated.iter().find(|gated| gated.path == path(name));
        gated.map(|gated| (gated.class, gated.verdict))
    };
    for outward in ["out", "key", "moved"] {
        assert_eq!(verdict(outward), Some((GateClass::OutwardLink, Verdict::Hold)), "{outward}");
    }
    assert_eq!(verdict("ok"), None);
    assert_eq!(verdict("python"), Some((GateClass::SystemLink, Verdict::Flag)));
    overlay.apply(plan).unwrap();
    for outward in ["out", "key", "moved"] {
        let left = fs::symlink_metadata(overlay.fixture.repo().join(outward));
        assert!(left.is_err(), "{outward} was exported");
    }
    assert!(fs::symlink_metadata(overlay.fixture.repo().join("ok")).is_ok());
}

#[test]
fn set_uid_file_loses_its_bit_and_devices_stay_outside() {
    let overlay = Overlay::over(Fixture::with_repo());
    overlay.run("cp /bin/true tool; chmod 6755 tool; mkfifo pipe; mknod dev c 1 3");
    let plan = overlay.plan(&[]);
    assert_eq!(plan.stripped, [path("tool")]);
    let kinds: Vec<_> = plan
        .not_exported
        .iter()
        .map(|not| match not {
            NotExported::Special { path, .. }
            | NotExported::TooLarge { path, .. }
            | NotExported::Closed { path }
            | NotExported::TooDeep { path } => path.to_string(),
        })
        .collect();
    assert_eq!(kinds, ["dev", "pipe"]);
    overlay.apply(plan).unwrap();
    let mode = fs::metadata(overlay.fixture.repo().join("tool")).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o755);
    assert!(fs::symlink_metadata(overlay.fixture.repo().join("pipe")).is_err());
    assert!(fs::symlink_metadata(overlay.fixture.repo().join("dev")).is_err());
}

#[test]
fn export_never_overwrites_what_the_person_changed_meanwhile() {
    let overlay = Overlay::over(Fixture::with_repo());
    let started_at = SystemTime::now();
    overlay.run("echo agent > src.txt; echo new > new.txt");
    let plan = overlay.plan(&[]);
    overlay.fixture.write("src.txt", "person\n");
    let error = overlay.apply(plan).unwrap_err();
    assert!(matches!(error, ExportError::Conflict(ref at) if *at == path("src.txt")), "{error}");
    assert!(!overlay.fixture.repo().join("new.txt").exists(), "nothing was exported");
    let plan = overlay.plan_since(&[], Some(started_at));
    assert_eq!(plan.conflicts, [path("src.txt")]);
    overlay.apply(plan).unwrap();
    assert_eq!(fs::read(overlay.fixture.repo().join("src.txt")).unwrap(), b"person\n");
    assert!(overlay.fixture.repo().join("new.txt").exists());
}

#[test]
fn directory_with_new_work_in_it_is_not_replaced_by_a_file() {
    let fixture = Fixture::with_repo();
    fixture.write("dir/x.txt", "x\n");
    let overlay = Overlay::over(fixture);
    overlay.run("rm -r dir; echo file > dir; echo new > new.txt");
    let plan = overlay.plan(&[]);
    overlay.fixture.write("dir/work.txt", "the person's\n");
    let before = tree(&overlay.fixture.repo());
    assert!(overlay.apply(plan).is_err());
    assert_eq!(tree(&overlay.fixture.repo()), before, "nothing was changed");
    let (_, recovered) = Journal::open(&overlay.state(), &overlay.fixture.repo()).unwrap();
    assert_eq!(recovered, warrant_workspace::Recovered::default(), "nothing is left unfinished");
}

#[test]
fn symlink_cannot_carry_an_export_outside() {
    let fixture = Fixture::with_repo();
    let outside = fixture.path("outside");
    fs::create_dir(&outside).unwrap();
    fixture.write("dir/x.txt", "x\n");
    let overlay = Overlay::over(fixture);
    overlay.run("echo evil > dir/x.txt");
    let plan = overlay.plan(&[]);
    fs::remove_dir_all(overlay.fixture.repo().join("dir")).unwrap();
    symlink(&outside, overlay.fixture.repo().join("dir")).unwrap();
    assert!(overlay.apply(plan).is_err());
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
    // Also when the link is there from the start, the overlay's directory replaces it.
    let collected = overlay.collect();
    assert!(collected.changes.iter().all(|change| change.kind != ChangeKind::Modified));
}
