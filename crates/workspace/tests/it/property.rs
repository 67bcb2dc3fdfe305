//! Random nasty trees through the whole way: captured, materialized, changed, collected, pulled.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::time::{Duration, SystemTime};

use proptest::collection::vec;
use proptest::prelude::*;
use warrant_workspace::{
    BranchWish, GatePolicy, History, Journal, PullOptions, Pulled, TreePath, pull,
};

use crate::fixture::{Entry, Fixture, below, files, git_in};

type Model = BTreeMap<Vec<u8>, Entry>;

#[derive(Debug, Clone)]
enum Edit {
    Delete,
    Rewrite(Entry),
    Toggle,
    Rename(Vec<u8>),
    Add(Vec<u8>, Entry),
}

fn segment() -> impl Strategy<Value = Vec<u8>> {
    let nasty = prop::sample::select(vec![
        b"plain.txt".to_vec(),
        b"with space".to_vec(),
        b"-leading-dash".to_vec(),
        b"--help".to_vec(),
        b"new\nline".to_vec(),
        b"tab\there".to_vec(),
        b"quote\"s'".to_vec(),
        b"back\\slash".to_vec(),
        b"\xff\xfe bytes".to_vec(),
        b"caf\xc3\xa9".to_vec(),
        "emoji \u{1f980}".as_bytes().to_vec(),
        b"c:drive".to_vec(),
        b"trailing. ".to_vec(),
        b".hidden".to_vec(),
        b".gitx".to_vec(),
        b"a => b".to_vec(),
        b"{brace,s}".to_vec(),
        b"*glob?[x]".to_vec(),
        b"$(shell)`".to_vec(),
        b"\x1b[31mred".to_vec(),
    ]);
    let random = vec(prop_oneof![3 => b'a'..=b'z', 1 => 1_u8..=255], 1..12).prop_map(|bytes| {
        bytes.into_iter().map(|byte| if byte == b'/' { b'_' } else { byte }).collect()
    });
    prop_oneof![3 => nasty, 2 => random]
}

fn path() -> impl Strategy<Value = Vec<u8>> {
    vec(segment(), 1..4).prop_map(|segments| segments.join(&b'/'))
}

fn entry() -> impl Strategy<Value = Entry> {
    let content = prop_oneof![
        Just(Vec::new()),
        vec(any::<u8>(), 0..300),
        vec("[a-z ]{0,20}\n", 0..30).prop_map(|lines| lines.concat().into_bytes()),
        vec("[a-z ]{0,20}", 1..5).prop_map(|lines| lines.join("\r\n").into_bytes()),
    ];
    let target = vec(1_u8..=255, 1..40);
    prop_oneof![
        5 => (any::<bool>(), content).prop_map(|(executable, content)| Entry::File { executable, content }),
        1 => target.prop_map(Entry::Link),
    ]
}

fn edits() -> impl Strategy<Value = Vec<(prop::sample::Index, Edit)>> {
    let edit = prop_oneof![
        Just(Edit::Delete),
        entry().prop_map(Edit::Rewrite),
        Just(Edit::Toggle),
        path().prop_map(Edit::Rename),
        (path(), entry()).prop_map(|(path, entry)| Edit::Add(path, entry)),
    ];
    vec((any::<prop::sample::Index>(), edit), 0..8)
}

/// Adds a file unless its name is one that cannot be beside the others.
fn insert(model: &mut Model, path: Vec<u8>, entry: Entry) {
    let fold = |path: &[u8]| String::from_utf8_lossy(path).to_lowercase();
    let is_plain = TreePath::new(path.clone()).is_ok_and(|path| path.git_part().is_none());
    let parts = |path: &[u8]| -> BTreeSet<Vec<u8>> {
        let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
        ends.map(|end| path[..end].to_vec()).collect()
    };
    let collides = model.keys().any(|other| {
        let both: BTreeSet<Vec<u8>> = parts(other)
            .into_iter()
            .chain(parts(&path))
            .chain([other.clone(), path.clone()])
            .collect();
        let folded: BTreeSet<String> = both.iter().map(|part| fold(part)).collect();
        folded.len() != both.len() || parts(other).contains(&path) || parts(&path).contains(other)
    });
    let has_own_collision = {
        let own = parts(&path);
        own.iter().map(|part| fold(part)).collect::<BTreeSet<_>>().len() != own.len()
    };
    if is_plain && !collides && !has_own_collision {
        model.insert(path, entry);
    }
}

fn edited(model: &Model, edits: &[(prop::sample::Index, Edit)]) -> Model {
    let mut model = model.clone();
    for (index, edit) in edits {
        let chosen = (!model.is_empty())
            .then(|| index.get(&model.keys().cloned().collect::<Vec<_>>()).clone());
        match (edit, chosen) {
            (Edit::Add(path, entry), _) => insert(&mut model, path.clone(), entry.clone()),
            (_, None) => {}
            (Edit::Delete, Some(chosen)) => drop(model.remove(&chosen)),
            (Edit::Rewrite(entry), Some(chosen)) => drop(model.insert(chosen, entry.clone())),
            (Edit::Toggle, Some(chosen)) => {
                if let Some(Entry::File { executable, .. }) = model.get_mut(&chosen) {
                    *executable = !*executable;
                }
            }
            (Edit::Rename(path), Some(chosen)) => {
                let entry = model.remove(&chosen).unwrap();
                let count = model.len();
                insert(&mut model, path.clone(), entry.clone());
                if model.len() == count {
                    insert(&mut model, chosen, entry);
                }
            }
        }
    }
    model
}

/// Makes a directory hold exactly the model, touching only what differs.
fn sync(directory: &Path, model: &Model) {
    let now = files(directory);
    for name in now.keys().filter(|name| now.get(*name) != model.get(*name)) {
        fs::remove_file(below(directory, name)).unwrap();
        let mut parent = below(directory, name).parent().unwrap().to_path_buf();
        while parent != directory && fs::remove_dir(&parent).is_ok() {
            parent = parent.parent().unwrap().to_path_buf();
        }
    }
    for (name, entry) in model.iter().filter(|(name, entry)| now.get(*name) != Some(entry)) {
        let path = below(directory, name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        match entry {
            Entry::File { executable, content } => {
                fs::write(&path, content).unwrap();
                let mode = if *executable { 0o755 } else { 0o644 };
                fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            }
            Entry::Link(target) => symlink(std::ffi::OsStr::from_bytes(target), &path).unwrap(),
            Entry::Directory => panic!("models have no directories"),
        }
    }
    assert_eq!(&files(directory), model);
}

fn check(
    base: Vec<(Vec<u8>, Entry)>,
    dirty: &[(prop::sample::Index, Edit)],
    session: &[(prop::sample::Index, Edit)],
    history: History,
) {
    let fixture = Fixture::new();
    let mut model = Model::new();
    for (path, entry) in base {
        insert(&mut model, path, entry);
    }
    fixture.git(&["init", "-q", "-b", "main"]);
    sync(&fixture.repo(), &model);
    fixture.commit();
    let model = edited(&model, dirty);
    sync(&fixture.repo(), &model);
    let captured = fixture.capture(&["**"], history).unwrap();
    assert!(captured.warnings.is_empty(), "{:?}", captured.warnings);
    let checkout = fixture.materialize(&captured.manifest, "checkout").unwrap();
    assert_eq!(files(checkout.path()), model, "materialized");
    let model = edited(&model, session);
    sync(checkout.path(), &model);
    let collected = fixture.collect(&checkout);
    assert!(collected.unread.is_empty());
    let diff = collected.diff.map(|diff| diff.to_vec().unwrap()).unwrap_or_default();
    let mut applied = fixture.applied(&captured.manifest.base_ref, &diff, "applied");
    applied.retain(|_, entry| *entry != Entry::Directory);
    assert_eq!(applied, model, "applied by stock git");
    pulled(&fixture, &captured.manifest.base_ref, &diff, &model);
}

/// Pulls into a clean clone, which is changed in place, and into the dirty repository.
fn pulled(fixture: &Fixture, base_ref: &str, diff: &[u8], model: &Model) {
    git_in(fixture.temp.path(), &["clone", "-q", "repo", "home"]);
    let home = fixture.path("home");
    let (journal, _) = Journal::open(&fixture.path("state"), &home).unwrap();
    let options = PullOptions {
        scratch: &fixture.path("scratch"),
        run_id: "run_x",
        base_ref,
        branch: BranchWish::WhenNeeded,
        branch_prefix: "warrant/",
        at: SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000),
        policy: &GatePolicy::advised(),
        released: &[],
    };
    let result = pull(&home, &mut &*diff, &journal, &options).unwrap();
    assert_eq!(matches!(result, Pulled::Empty { .. }), diff.is_empty());
    assert!(!matches!(result, Pulled::Branch { .. }), "{result:?}");
    assert_eq!(&files(&home), model, "pulled in place");
    let options = PullOptions { branch: BranchWish::Always, ..options };
    let result = pull(&fixture.repo(), &mut &*diff, &journal, &options).unwrap();
    if let Pulled::Branch { branch, .. } = result {
        git_in(fixture.temp.path(), &["clone", "-q", "-b", &branch, "repo", "branched"]);
        assert_eq!(&files(&fixture.path("branched")), model, "pulled as a branch");
    }
}

/// Few by default, because every case starts two dozen processes; `PROPTEST_CASES` asks for more.
fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(12)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), max_shrink_iters: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_tree_comes_back_byte_for_byte(
        base in vec((path(), entry()), 0..12),
        dirty in edits(),
        session in edits(),
        is_full in any::<bool>(),
    ) {
        check(base, &dirty, &session, if is_full { History::Full } else { History::Commit });
    }
}
