//! A trial that is remembered: believed for a short while, by its owner, under the very same
//! circumstances, and never when a fresh one is wanted.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use warrant_sandbox::{Backend as _, Namespace};

/// Returns what tells one writing of the file from the next.
fn writing(path: &Path) -> (u64, i64, i64) {
    let metadata = fs::metadata(path).unwrap();
    (metadata.ino(), metadata.mtime(), metadata.mtime_nsec())
}

/// Probes and returns whether a jail was tried for it.
#[track_caller]
fn tries(path: &Path) -> bool {
    let before = writing(path);
    let posture = Namespace::new().remembering(path.to_owned()).probe();
    assert!(posture.enforces("files.write"), "{posture:?}");
    before != writing(path)
}

#[test]
fn a_trial_is_remembered_for_its_owner_and_its_circumstances_only() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("trial");
    let first = Namespace::new().remembering(path.clone()).probe();
    assert!(first.enforces("files.write"), "{first:?}");
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    assert!(!tries(&path));
    let second = Namespace::new().remembering(path.clone()).probe();
    for (name, component) in first.components.iter() {
        let remembered = &second.components[name];
        assert_eq!(remembered.enforcement, component.enforcement, "{name}");
        let detail = remembered.detail.as_deref().unwrap_or_default();
        assert!(detail.ends_with("by a trial a few minutes ago"), "{name}: {detail}");
    }

    let kept = fs::read_to_string(&path).unwrap();
    let (at, circumstances) = kept.split_once('\n').unwrap();
    let at: u64 = at.parse().unwrap();
    let forgeries = [
        // Of another kernel, another binary, another moment, another user, or of nothing.
        kept.replace("linux ", "linux 1."),
        kept.replace("binary ", "binary 1"),
        format!("{}\n{circumstances}", at + 3_600_000),
        format!("{}\n{circumstances}", at.saturating_sub(3_600_000)),
        kept.replace("Uid:", "Uid:\t7"),
        String::new(),
        kept.replace("boot_id ", "boot_id 0"),
    ];
    for forgery in forgeries {
        assert_ne!(forgery, kept);
        fs::write(&path, &forgery).unwrap();
        assert!(tries(&path), "believed: {forgery}");
        assert!(!tries(&path));
    }
}

#[test]
fn a_memory_that_others_can_write_is_not_believed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("trial");
    Namespace::new().remembering(path.clone()).probe();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
    assert!(tries(&path));
    let elsewhere = directory.path().join("elsewhere");
    fs::rename(&path, &elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, &path).unwrap();
    assert!(tries(&path), "a link was followed");
    assert!(fs::symlink_metadata(&path).unwrap().is_file());
}

#[test]
fn whoever_wants_a_fresh_trial_gets_one() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("trial");
    let namespace = Namespace::new().remembering(path.clone());
    namespace.probe();
    let before = writing(&path);
    assert!(namespace.probe_afresh().enforces("files.write"));
    assert_ne!(writing(&path), before);
    // Without a memory nothing is written anywhere.
    let bare = directory.path().join("none");
    assert!(Namespace::new().remembering(bare.join("trial")).probe().enforces("files.write"));
    assert!(!bare.exists());
}

#[test]
fn a_trial_of_the_hermetic_tier_is_remembered_with_its_result() {
    use warrant_sandbox::hermetic::{Hermetic, Pool, WorkerProgram};
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("trial");
    let first = Hermetic::new(crate::hermetic::kit::pool()).remembering(path.clone()).probe();
    assert!(first.enforces("processes.namespace"), "{first:?}");
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    // A backend that can start no worker says the same only because it is remembered.
    let lame = || {
        let pool = Pool::new(WorkerProgram::at("/nonexistent"), 0);
        Hermetic::new(pool).remembering(path.clone())
    };
    assert_eq!(lame().probe(), first);
    let kept = fs::read_to_string(&path).unwrap();
    fs::write(&path, kept.replace("Uid:", "Uid:\t7")).unwrap();
    assert!(!lame().probe().enforces("processes.namespace"));
    fs::write(&path, kept).unwrap();
    assert!(!lame().probe_afresh().enforces("processes.namespace"));
    assert!(!path.exists(), "a trial that failed is forgotten");
}
