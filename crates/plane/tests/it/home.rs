//! The home: set up once, by whoever comes first, closed to everyone else.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::PathBuf;
use std::time::Instant;

use warrant_plane::home::{Home, HomeEnvironment, HomeError, fresh_key};
use warrant_plane::sealed::MasterKey;

#[test]
fn the_environment_says_where_home_is() {
    let environment = |warrant: Option<&str>, xdg: Option<&str>, home: Option<&str>| {
        HomeEnvironment {
            warrant_home: warrant.map(Into::into),
            xdg_data_home: xdg.map(Into::into),
            home: home.map(Into::into),
            master_key: None,
        }
        .locate()
        .ok()
    };
    let path = |text: &str| Some(PathBuf::from(text));
    assert_eq!(environment(Some("/w"), Some("/x"), Some("/h")), path("/w"));
    assert_eq!(environment(None, Some("/x"), Some("/h")), path("/x/warrant"));
    assert_eq!(environment(None, None, Some("/h")), path("/h/.local/share/warrant"));
    assert_eq!(environment(None, Some("relative"), Some("/h")), path("/h/.local/share/warrant"));
    assert_eq!(environment(Some("relative"), None, Some("/h")), None);
    assert_eq!(environment(None, None, None), None);
}

#[test]
fn a_home_whose_store_was_removed_starts_with_an_empty_one() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("home");
    let first = Home::open_at(root.clone(), None).unwrap();
    fs::remove_dir_all(root.join("data")).unwrap();
    let again = Home::open_at(root.clone(), None).unwrap();
    assert_eq!(first.runner_id(), again.runner_id());
    for name in ["data/alive", "data/sessions", "data/blobs"] {
        assert_eq!(fs::metadata(root.join(name)).unwrap().mode() & 0o777, 0o700, "{name}");
    }
}

#[test]
fn first_use_sets_up_within_a_second_and_everything_is_private() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("home");
    let started = Instant::now();
    let home = Home::open_at(root.clone(), None).unwrap();
    assert!(started.elapsed().as_millis() < 1000);
    let mut pending = vec![root.clone()];
    let mut files = 0;
    while let Some(path) = pending.pop() {
        let mode = fs::metadata(&path).unwrap().mode() & 0o777;
        if path.is_dir() {
            assert_eq!(mode, 0o700, "{path:?}");
            pending.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else {
            assert_eq!(mode, 0o600, "{path:?}");
            files += 1;
        }
    }
    assert!(files >= 5);
    let again = Home::open_at(root, None).unwrap();
    assert_eq!(home.plane_key().public(), again.plane_key().public());
    assert_eq!(home.runner_id(), again.runner_id());
}

#[test]
fn two_first_users_agree_on_one_set_of_keys() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("home");
    let keys: Vec<String> = std::thread::scope(|scope| {
        let open =
            || Home::open_at(root.clone(), None).unwrap().plane_key().public().pem().to_owned();
        let threads: Vec<_> = (0..6).map(|_| scope.spawn(open)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(keys.iter().all(|key| *key == keys[0]));
}

#[test]
fn a_home_that_others_can_write_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("home");
    Home::open_at(root.clone(), None).unwrap();
    for victim in ["", "keys", "keys/plane.key.pem"] {
        let path = root.join(victim);
        let before = fs::metadata(&path).unwrap().permissions();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(
            matches!(Home::open_at(root.clone(), None), Err(HomeError::File { .. })),
            "{victim}"
        );
        fs::set_permissions(&path, before).unwrap();
    }
    assert!(Home::open_at(root, None).is_ok());
}

#[test]
fn with_a_master_key_no_private_key_lies_open() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("home");
    let master = || Some(MasterKey::from_text("correct horse").unwrap());
    let home = Home::open_at(root.clone(), master()).unwrap();
    for entry in fs::read_dir(root.join("keys")).unwrap() {
        let text = fs::read_to_string(entry.unwrap().path()).unwrap();
        assert!(!text.contains("PRIVATE KEY"));
    }
    let again = Home::open_at(root.clone(), master()).unwrap();
    assert_eq!(home.plane_key().public(), again.plane_key().public());
    let wrong = Some(MasterKey::from_text("wrong").unwrap());
    assert!(matches!(Home::open_at(root.clone(), wrong), Err(HomeError::Seal { .. })));
    assert!(matches!(Home::open_at(root, None), Err(HomeError::NoMasterKey(_))));
}

#[test]
fn an_approver_name_cannot_lead_out_of_its_directory() {
    let dir = tempfile::tempdir().unwrap();
    let home = Home::open_at(dir.path().join("home"), None).unwrap();
    let key = fresh_key().unwrap();
    for bad in ["", "..", "../plane", "a/b", ".hidden", "a b"] {
        assert!(
            matches!(home.add_approver(bad, key.public()), Err(HomeError::ApproverName)),
            "{bad}"
        );
    }
    home.add_approver("bob", key.public()).unwrap();
    home.add_approver("bob", key.public()).unwrap();
    let other = fresh_key().unwrap();
    assert!(matches!(home.add_approver("bob", other.public()), Err(HomeError::ApproverTaken(_))));
    assert_eq!(home.approver("bob").unwrap().as_ref(), Some(key.public()));
    assert_eq!(home.approver("carol").unwrap(), None);
}
