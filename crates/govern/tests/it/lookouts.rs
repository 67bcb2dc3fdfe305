//! Directories of living sandboxes that are watched, with real jails and a real store.

use std::sync::Arc;
use std::time::{Duration, Instant};

use warrant_plane::doors::{
    Change, EntryKind, FileAnswer, FileCall, FileFault, Lookout, Over, Sandbox, Workshop as _,
    WorkshopError,
};
use warrant_protocol::Outcome;

use crate::live::{House, forbid, guest, house};

fn watch(path: &str) -> FileCall {
    FileCall::Watch { path: path.to_owned(), recursive: false, entries: false }
}

fn write(path: &str, content: &'static str) -> FileCall {
    FileCall::Write { path: path.to_owned(), content: content.into(), mode: None }
}

fn make(path: &str) -> FileCall {
    FileCall::MakeDirectory { path: path.to_owned(), mode: None }
}

#[track_caller]
fn opened(house: &House, sandbox: &Sandbox, call: FileCall) -> Arc<Lookout> {
    match house.file(sandbox, call) {
        Ok(FileAnswer::Lookout(lookout)) => lookout,
        other => panic!("{other:?}"),
    }
}

fn told(lookout: &Lookout) -> Vec<(String, Change)> {
    let taken = lookout.take().unwrap();
    taken.into_iter().map(|sighting| (sighting.name, sighting.change)).collect()
}

fn seen(name: &str, change: Change) -> (String, Change) {
    (name.to_owned(), change)
}

#[test]
fn a_watched_directory_tells_what_calls_and_commands_do_in_it() {
    let house = house();
    let sandbox = house.create();
    house.file(&sandbox, make("dir/below")).unwrap();
    let lookout = opened(&house, &sandbox, watch("dir"));
    house.file(&sandbox, write("dir/file", "first")).unwrap();
    // A new file gets its permissions whatever the umask of the plane is.
    let new = [Change::Created, Change::Marked, Change::Written].map(|change| seen("file", change));
    assert_eq!(told(&lookout), new);
    house.file(&sandbox, write("dir/file", "second")).unwrap();
    assert!(told(&lookout).contains(&seen("file", Change::Written)));
    let script = "echo third >> dir/file && mv dir/file dir/other && rm dir/other && touch file";
    assert_eq!(house.run(&sandbox, script).0, Outcome::Exited { code: 0 });
    let expected = [
        seen("file", Change::Written),
        seen("file", Change::Renamed),
        seen("other", Change::Created),
        seen("other", Change::Removed),
    ];
    assert_eq!(told(&lookout), expected);
    house.file(&sandbox, write("dir/below/file", "x")).unwrap();
    assert_eq!(told(&lookout), []);
    assert_eq!(house.live.lookouts(&guest("one"), &sandbox.id).unwrap().len(), 1);
    lookout.end();
    assert_eq!(lookout.take(), Err(Over::Ended));
    assert!(house.live.lookouts(&guest("one"), &sandbox.id).unwrap().is_empty());
    let other = house.live.lookouts(&guest("two"), &sandbox.id);
    assert!(matches!(other, Err(WorkshopError::NoSandbox)));
}

#[test]
fn directories_that_come_and_go_below_are_watched_as_well() {
    let house = house();
    let sandbox = house.create();
    house.file(&sandbox, make("dir/old")).unwrap();
    let wish = FileCall::Watch { path: "dir".into(), recursive: true, entries: true };
    let lookout = opened(&house, &sandbox, wish);
    house.file(&sandbox, write("dir/old/file", "x")).unwrap();
    assert_eq!(told(&lookout).first(), Some(&seen("old/file", Change::Created)));
    // All at once, so that there is something in the new directories before they are watched.
    let script = "mkdir -p dir/a/b/c && echo x > dir/a/b/c/file";
    assert_eq!(house.run(&sandbox, script).0, Outcome::Exited { code: 0 });
    let taken = lookout.take().unwrap();
    let of = |name: &str, change: Change| {
        taken.iter().filter(|sighting| sighting.name == name && sighting.change == change).count()
    };
    for name in ["a", "a/b", "a/b/c", "a/b/c/file"] {
        assert_eq!(of(name, Change::Created), 1, "{name}: {taken:?}");
    }
    let written =
        taken.iter().find(|s| s.name == "a/b/c/file" && s.change == Change::Written).unwrap();
    let entry = written.entry.as_ref().unwrap();
    assert_eq!((entry.kind, entry.size), (EntryKind::File, 2));
    assert_eq!(entry.path, "/home/user/dir/a/b/c/file");
    // What was moved out is no longer below it; what was moved in is.
    assert_eq!(
        house.run(&sandbox, "mv dir/a away && mv away/b dir/b").0,
        Outcome::Exited { code: 0 }
    );
    told(&lookout);
    assert_eq!(
        house.run(&sandbox, "echo x > away/x; echo x > dir/b/c/y").0,
        Outcome::Exited { code: 0 }
    );
    let names: Vec<String> = told(&lookout).into_iter().map(|(name, _)| name).collect();
    assert!(!names.is_empty() && names.iter().all(|name| name == "b/c/y"), "{names:?}");
}

#[test]
fn link_planted_inside_cannot_lead_a_watch_out() {
    let house = house();
    let sandbox = house.create();
    let outside = tempfile::tempdir().unwrap();
    let target = outside.path().display();
    let script = format!("mkdir dir; ln -s {target} dir/link; ln -s / root; mkfifo pipe");
    assert_eq!(house.run(&sandbox, &script).0, Outcome::Exited { code: 0 });
    for path in ["dir/link", "root/etc", "root", "pipe", "/etc", "../../..", "dir/link/below"] {
        let refused = house.file(&sandbox, watch(path));
        assert!(matches!(refused, Err(WorkshopError::File { .. })), "{path}: {refused:?}");
    }
    let wish = FileCall::Watch { path: "dir".into(), recursive: true, entries: true };
    let lookout = opened(&house, &sandbox, wish);
    // A link that takes the place of a directory is not followed either.
    let script = format!("mkdir dir/new && rmdir dir/new && ln -s {target} dir/new");
    assert_eq!(house.run(&sandbox, &script).0, Outcome::Exited { code: 0 });
    told(&lookout);
    std::fs::write(outside.path().join("secret"), "x").unwrap();
    assert_eq!(told(&lookout), []);
}

#[test]
fn a_watch_is_judged_as_a_listing_and_has_its_receipt() {
    let house = house();
    let sandbox = house.create();
    let missing = house.file(&sandbox, watch("nothing"));
    let Err(WorkshopError::File { fault, run, .. }) = missing else { panic!("{missing:?}") };
    assert_eq!(fault, FileFault::Missing);
    assert!(house.bundle(&run).contains("ls"));
    house.file(&sandbox, write("file", "x")).unwrap();
    let no_directory = house.file(&sandbox, watch("file"));
    let Err(WorkshopError::File { fault, .. }) = no_directory else { panic!("{no_directory:?}") };
    assert_eq!(fault, FileFault::NotDirectory);
    forbid(&house, "ls");
    let denied = house.file(&sandbox, watch("."));
    assert!(matches!(denied, Err(WorkshopError::Denied { .. })), "{denied:?}");
}

#[test]
fn watches_are_bounded_and_end_with_their_sandbox() {
    let house = house();
    let sandbox = house.create();
    let all: Vec<_> = (0..16).map(|_| opened(&house, &sandbox, watch("."))).collect();
    let more = house.file(&sandbox, watch("."));
    assert!(matches!(more, Err(WorkshopError::Busy(_))), "{more:?}");
    all.first().unwrap().end();
    opened(&house, &sandbox, watch("."));
    house.live.destroy(&guest("one"), &sandbox.id).unwrap();
    assert!(all.iter().all(|lookout| lookout.take() == Err(Over::Ended)));
    // Their places are free again for others, of which each may have so many.
    drop(all);
    for _ in 0..3 {
        let sandbox = house.create();
        for _ in 0..16 {
            opened(&house, &sandbox, watch("."));
        }
        house.live.destroy(&guest("one"), &sandbox.id).unwrap();
    }
}

#[test]
fn a_tree_that_is_too_large_to_be_watched_is_refused_and_told_when_it_grows() {
    let house = house();
    let sandbox = house.create();
    house.file(&sandbox, make("dir")).unwrap();
    let wish = || FileCall::Watch { path: "dir".into(), recursive: true, entries: false };
    let lookout = opened(&house, &sandbox, wish());
    let script = "cd dir && mkdir $(seq 1100)";
    assert_eq!(house.run(&sandbox, script).0, Outcome::Exited { code: 0 });
    let began = Instant::now();
    while !lookout.is_over() {
        assert!(began.elapsed() < Duration::from_secs(30), "nobody is told");
        lookout.look();
    }
    assert!(matches!(lookout.take(), Err(Over::Missed(_))));
    let refused = house.file(&sandbox, wish());
    let Err(WorkshopError::File { fault, .. }) = refused else { panic!("{refused:?}") };
    assert_eq!(fault, FileFault::TooLarge);
}
