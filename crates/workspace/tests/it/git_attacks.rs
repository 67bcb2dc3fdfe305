//! Git state that attacks the host: whatever a run leaves in its view of `.git`, nothing is lost,
//! nothing outside of the repository is touched, and nothing runs.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use warrant_workspace::{Changed, ExportError, GateClass};

use crate::export::Overlay;
use crate::git_import::{IDENTITY, assert_sound, git, meanwhile, repository, rev, state_of};

/// Writes into the layer of a run, as a hostile program does.
struct Layer {
    overlay: Overlay,
}

impl Layer {
    fn new() -> Self {
        Self { overlay: repository() }
    }

    /// After an ordinary commit inside.
    fn with_commit() -> Self {
        let overlay = repository();
        overlay.run(&format!("{IDENTITY}echo x > x; git add x; git commit -qm inside"));
        Self { overlay }
    }

    fn repo(&self) -> PathBuf {
        self.overlay.fixture.repo()
    }

    fn at(&self, path: &str) -> PathBuf {
        let path = self.overlay.fixture.path("upper").join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let _ = fs::remove_file(&path);
        path
    }

    fn write(&self, path: &str, content: impl AsRef<[u8]>) {
        fs::write(self.at(path), content).unwrap();
    }

    /// Nothing at all is taken over, files included, and the reason is said.
    #[track_caller]
    fn is_refused(&self, why: &str) {
        let before = state_of(&self.repo());
        let plan = self.overlay.plan(&[]);
        let refusal = plan.git.refusal.clone().unwrap_or_default();
        assert!(refusal.contains(why), "{refusal:?} does not say {why:?}");
        assert!(matches!(self.overlay.apply(plan), Err(ExportError::Git(_))));
        assert_eq!(state_of(&self.repo()), before);
        assert_sound(&self.repo());
    }

    /// A path is named and left out; everything else is taken over.
    #[track_caller]
    fn leaves_out(&self, path: &str, class: GateClass) {
        let plan = self.overlay.plan(&[]);
        assert_eq!(plan.git.refusal, None);
        let named =
            plan.gated.iter().any(|gate| gate.path.to_string() == path && gate.class == class);
        assert!(named, "{path} is not named: {:?}", plan.gated);
        self.overlay.apply(plan).unwrap();
        assert_sound(&self.repo());
    }
}

fn compressed(content: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(content).unwrap();
    encoder.finish().unwrap()
}

fn object(kind: &str, content: &[u8]) -> Vec<u8> {
    compressed(&[format!("{kind} {}\0", content.len()).as_bytes(), content].concat())
}

fn loose(oid: &str) -> String {
    format!(".git/objects/{}/{}", &oid[..2], &oid[2..])
}

/// Returns the name of a new object of the layer that HEAD's commit leads to.
fn inside(layer: &Layer, spec: &str) -> String {
    let repo = layer.overlay.fixture.path("upper");
    let alternate = layer.repo().join(".git/objects");
    let output = std::process::Command::new("git")
        .args(["--git-dir", repo.join(".git").to_str().unwrap(), "rev-parse", spec])
        .env("GIT_OBJECT_DIRECTORY", repo.join(".git/objects"))
        .env("GIT_ALTERNATE_OBJECT_DIRECTORIES", alternate)
        .current_dir(layer.repo())
        .output()
        .unwrap();
    let main = fs::read_to_string(repo.join(".git/refs/heads/main")).unwrap();
    if !output.status.success() {
        return main.trim().to_owned();
    }
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[test]
fn object_that_lies_about_its_hash_is_refused() {
    let layer = Layer::with_commit();
    let commit = fs::read_to_string(layer.overlay.fixture.path("upper/.git/refs/heads/main"));
    let commit = commit.unwrap().trim().to_owned();
    // Another content under the name of the commit.
    let tree = rev(&layer.repo(), "HEAD^{tree}");
    let person = "a <a@b> 1 +0000";
    let other = format!("tree {tree}\nauthor {person}\ncommitter {person}\n\nevil\n");
    layer.write(&loose(&commit), object("commit", other.as_bytes()));
    layer.is_refused("does not have the content its name says");
}

#[test]
fn object_that_is_missing_cut_or_of_another_kind_is_refused() {
    let missing = "1234567890123456789012345678901234567890";
    let layer = Layer::with_commit();
    layer.write(".git/refs/heads/main", format!("{missing}\n"));
    layer.is_refused("neither in the repository nor in what the run wrote");
    let layer = Layer::with_commit();
    let blob = rev(&layer.repo(), "HEAD:src.txt");
    layer.write(".git/refs/heads/main", format!("{blob}\n"));
    layer.is_refused("not the kind of object");
    let layer = Layer::with_commit();
    let commit = inside(&layer, "refs/heads/main");
    layer.write(&loose(&commit), b"x");
    layer.is_refused("is refused");
}

#[test]
fn object_that_inflates_to_more_than_it_says_is_refused() {
    let layer = Layer::with_commit();
    let commit = inside(&layer, "refs/heads/main");
    let bomb = [b"commit 10\0".as_slice(), &vec![b'x'; 8 << 20]].concat();
    layer.write(&loose(&commit), compressed(&bomb));
    layer.is_refused("longer than its header says");
    let layer = Layer::with_commit();
    let huge = compressed(format!("commit {}\0x", u64::MAX).as_bytes());
    layer.write(&loose(&commit), huge);
    layer.is_refused("more objects than are read");
}

#[test]
fn tree_that_names_a_git_directory_is_refused() {
    let layer = Layer::new();
    let blob = rev(&layer.repo(), "HEAD:src.txt");
    let raw: Vec<u8> =
        (0..40).step_by(2).map(|at| u8::from_str_radix(&blob[at..at + 2], 16).unwrap()).collect();
    for name in [".git", ".GIT", "..", "git~1"] {
        let tree = [b"40000 ".as_slice(), name.as_bytes(), b"\0", &raw].concat();
        let (tree, tree_oid) = (object("tree", &tree), oid_of("tree", &tree));
        let person = "a <a@b> 1 +0000";
        let commit = format!("tree {tree_oid}\nauthor {person}\ncommitter {person}\n\nevil\n");
        let commit_oid = oid_of("commit", commit.as_bytes());
        layer.write(&loose(&tree_oid), tree);
        layer.write(&loose(&commit_oid), object("commit", commit.as_bytes()));
        layer.write(".git/refs/heads/main", format!("{commit_oid}\n"));
        layer.is_refused("may not be written");
    }
}

fn oid_of(kind: &str, content: &[u8]) -> String {
    use sha1::Digest as _;
    let mut hash = sha1::Sha1::new();
    hash.update(format!("{kind} {}\0", content.len()));
    hash.update(content);
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn ref_that_leaves_refs_is_left_out() {
    let layer = Layer::with_commit();
    let commit = inside(&layer, "refs/heads/main");
    let outside = layer.overlay.fixture.path("x");
    layer.write(
        ".git/packed-refs",
        format!(
            "{commit} refs/../../x\n{commit} refs/heads/../../config\n{commit} refs/heads/ok\n"
        ),
    );
    layer.leaves_out(".git/packed-refs", GateClass::GitRef);
    assert!(!outside.exists());
    assert_eq!(rev(&layer.repo(), "ok"), commit);
}

#[test]
fn symlinked_ref_is_left_out() {
    let layer = Layer::with_commit();
    let secret = layer.overlay.fixture.path("secret");
    fs::write(&secret, "secret\n").unwrap();
    symlink(&secret, layer.at(".git/refs/heads/evil")).unwrap();
    symlink("../../config", layer.at(".git/refs/heads/other")).unwrap();
    let other = rev(&layer.repo(), "other");
    layer.leaves_out(".git/refs/heads/evil", GateClass::GitRef);
    assert_eq!(rev(&layer.repo(), "other"), other);
    assert!(fs::symlink_metadata(layer.repo().join(".git/refs/heads/evil")).is_err());
    assert_eq!(fs::read_to_string(&secret).unwrap(), "secret\n");
}

#[test]
fn ref_that_is_a_file_and_a_directory_is_left_out() {
    let layer = Layer::with_commit();
    let commit = inside(&layer, "refs/heads/main");
    layer.write(
        ".git/packed-refs",
        format!(
            "{commit} refs/heads/other/below\n{commit} refs/heads/a\n{commit} refs/heads/a/b\n"
        ),
    );
    layer.leaves_out(".git/refs/heads/other/below", GateClass::GitRef);
    assert!(git(&layer.repo(), &["rev-parse", "other"]).status.success());
}

#[test]
fn replace_ref_is_left_out() {
    let layer = Layer::with_commit();
    let commit = inside(&layer, "refs/heads/main");
    let old = rev(&layer.repo(), "HEAD");
    layer.write(&format!(".git/refs/replace/{old}"), format!("{commit}\n"));
    layer.leaves_out(&format!(".git/refs/replace/{old}"), GateClass::GitRef);
    assert!(!layer.repo().join(".git/refs/replace").exists());
}

#[test]
fn head_that_names_a_path_is_refused() {
    for target in ["../../etc/passwd", "/etc/passwd", "config", "refs/../config", "refs/tags/start"]
    {
        let layer = Layer::with_commit();
        layer.write(".git/HEAD", format!("ref: {target}\n"));
        layer.is_refused("HEAD names");
    }
    let layer = Layer::with_commit();
    symlink("/etc/passwd", layer.at(".git/HEAD")).unwrap();
    layer.is_refused("HEAD is not a file");
}

#[test]
fn index_with_git_entries_or_climbing_paths_is_made_anew() {
    for name in [".git/config", "../escape!!", "a/../../escp"] {
        let layer = Layer::with_commit();
        let index = fs::read(layer.overlay.fixture.path("upper/.git/index")).unwrap();
        // An entry of the same length, with the checksum made right again.
        let at = index.windows(11).position(|window| window == b"tracked.pem").unwrap();
        let mut forged = index[..index.len() - 20].to_vec();
        let name: Vec<u8> = name.bytes().chain(std::iter::repeat(b'x')).take(11).collect();
        forged[at..at + 11].copy_from_slice(&name);
        let sum = {
            use sha1::Digest as _;
            sha1::Sha1::digest(&forged)
        };
        forged.extend_from_slice(&sum);
        layer.write(".git/index", &forged);
        let config = fs::read(layer.repo().join(".git/config")).unwrap();
        let plan = layer.overlay.plan(&[]);
        assert!(
            plan.git.notes.iter().any(|note| note.contains("made anew")),
            "{:?}",
            plan.git.notes
        );
        layer.overlay.apply(plan).unwrap();
        assert_eq!(git(&layer.repo(), &["status", "--porcelain"]).stdout, b"");
        assert_eq!(fs::read(layer.repo().join(".git/config")).unwrap(), config);
        assert_sound(&layer.repo());
    }
}

#[test]
fn index_that_hides_a_change_is_not_believed() {
    let layer = Layer { overlay: repository() };
    // The cached tree, the remembered times and the hiding bits all say that nothing changed.
    layer.overlay.run(&format!(
        "{IDENTITY}git update-index --assume-unchanged src.txt; git update-index --skip-worktree README.md; \
         echo evil > src.txt; echo evil > README.md"
    ));
    layer.overlay.apply(layer.overlay.plan(&[])).unwrap();
    let status = String::from_utf8(git(&layer.repo(), &["status", "--porcelain"]).stdout).unwrap();
    assert_eq!(status, " M README.md\n M src.txt\n");
}

#[test]
fn alternates_are_left_out_and_their_objects_are_not_there() {
    let layer = Layer::with_commit();
    // The commit lies in a store that only the alternates of the run lead to.
    let upper = layer.overlay.fixture.path("upper/.git/objects");
    let elsewhere = layer.overlay.fixture.path("elsewhere");
    fs::rename(&upper, &elsewhere).unwrap();
    layer.write(".git/objects/info/alternates", elsewhere.display().to_string());
    layer.is_refused("neither in the repository nor in what the run wrote");
}

#[test]
fn pack_bomb_is_refused_within_its_bound() {
    let layer = Layer::new();
    // One small blob, then deltas that each copy the one before many times over.
    let mut pack = b"PACK\0\0\0\x02".to_vec();
    let count = 40_u32;
    pack.extend_from_slice(&count.to_be_bytes());
    let base = vec![b'x'; 65_536];
    push_entry(&mut pack, 3, &[], &base);
    let mut size = base.len();
    let mut at = 12;
    for _ in 1..count {
        let next = (size * 64).min(400 << 20);
        let mut delta = varint(size);
        delta.extend(varint(next));
        let mut left = next;
        while left > 0 {
            let piece = left.min(65_536).min(size);
            delta.push(0b1011_0000 | 0b1000_0000);
            delta.extend_from_slice(&[(piece & 0xff) as u8, (piece >> 8) as u8]);
            if piece == 65_536 {
                delta.truncate(delta.len() - 3);
                delta.push(0b1000_0000);
            }
            left -= piece;
        }
        let offset = pack.len() - at;
        at = pack.len();
        push_entry(&mut pack, 6, &back(offset), &delta);
        size = next;
    }
    use sha1::Digest as _;
    let sum = sha1::Sha1::digest(&pack);
    pack.extend_from_slice(&sum);
    assert!(pack.len() < 1 << 20, "{} bytes are no bomb", pack.len());
    layer.write(".git/objects/pack/pack-1234567890123456789012345678901234567890.pack", &pack);
    layer.write(".git/refs/heads/main", "1234567890123456789012345678901234567890\n");
    layer.is_refused("holds too much");
}

fn push_entry(pack: &mut Vec<u8>, kind: u8, link: &[u8], content: &[u8]) {
    let bytes = content.len();
    let mut rest = bytes >> 4;
    let mut byte = kind << 4 | (bytes & 15) as u8;
    while rest > 0 {
        pack.push(byte | 0x80);
        byte = (rest & 0x7f) as u8;
        rest >>= 7;
    }
    pack.push(byte);
    pack.extend_from_slice(link);
    pack.extend_from_slice(&compressed(content));
}

fn varint(mut value: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value > 0x7f {
        bytes.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

fn back(mut offset: usize) -> Vec<u8> {
    let mut bytes = vec![(offset & 0x7f) as u8];
    offset >>= 7;
    while offset > 0 {
        offset -= 1;
        bytes.insert(0, (offset & 0x7f) as u8 | 0x80);
        offset >>= 7;
    }
    bytes
}

#[test]
fn pack_whose_checksum_is_wrong_is_refused() {
    let overlay = repository();
    overlay.run(&format!("{IDENTITY}echo x > x; git add x; git commit -qm x; git repack -adq"));
    let layer = Layer { overlay };
    let packs = layer.overlay.fixture.path("upper/.git/objects/pack");
    let pack = fs::read_dir(packs).unwrap().map(|entry| entry.unwrap().path());
    let pack =
        pack.into_iter().find(|path| path.extension().is_some_and(|end| end == "pack")).unwrap();
    let mut bytes = fs::read(&pack).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::remove_file(&pack).unwrap();
    fs::write(&pack, bytes).unwrap();
    layer.is_refused("checksum");
}

#[test]
fn rebase_step_that_would_run_on_the_host_is_left_out() {
    let layer = Layer::new();
    let marker = layer.overlay.fixture.path("executed");
    layer.overlay.run(&format!(
        "{IDENTITY}git rebase -q --exec false HEAD~1 || true; \
         echo 'exec touch {}' > .git/rebase-merge/git-rebase-todo",
        marker.display()
    ));
    layer.leaves_out(".git/rebase-merge/git-rebase-todo", GateClass::GitState);
    assert!(!layer.repo().join(".git/rebase-merge").exists());
    git(&layer.repo(), &["rebase", "--continue"]);
    assert!(!marker.exists());
}

#[test]
fn crash_in_the_middle_loses_nothing_and_leaves_no_lock() {
    let layer = Layer::with_commit();
    let commit = inside(&layer, "refs/heads/main");
    let repo = layer.repo();
    let before = state_of(&repo);
    layer.overlay.apply(layer.overlay.plan(&[])).unwrap();
    let after = state_of(&repo);
    // As a crash leaves it: the change is recorded and only partly made, git's locks are held.
    let entry = fs::read_dir(layer.overlay.state()).unwrap().map(|entry| entry.unwrap().path());
    let entry = entry.into_iter().find(|path| path.is_dir()).unwrap();
    fs::write(entry.join("status"), "applying").unwrap();
    let token = "warrant 1 crash";
    let lock = repo.join(".git/refs/heads/main.lock");
    fs::write(&lock, token).unwrap();
    let theirs = repo.join(".git/index.lock");
    fs::write(&theirs, "of another git").unwrap();
    let locks = serde_json::json!({"token": token, "paths": [".git/refs/heads/main.lock", ".git/index.lock"]});
    fs::write(entry.join("locks.json"), locks.to_string()).unwrap();
    let start = rev(&repo, "start");
    fs::write(repo.join(".git/refs/heads/main"), format!("{start}\n")).unwrap();
    fs::remove_file(repo.join("x")).unwrap();
    drop(layer.overlay.journal());
    assert!(!lock.exists());
    assert_eq!(fs::read_to_string(&theirs).unwrap(), "of another git");
    fs::remove_file(&theirs).unwrap();
    assert_eq!(state_of(&repo), after);
    assert_eq!(rev(&repo, "main"), commit);
    assert_sound(&repo);
    layer.overlay.journal().undo(&repo, Changed::Refuse).unwrap();
    assert_eq!(state_of(&repo), before);
}

#[test]
fn lock_of_another_git_is_respected() {
    let layer = Layer::with_commit();
    let repo = layer.repo();
    let before = rev(&repo, "main");
    fs::write(repo.join(".git/index.lock"), "").unwrap();
    let refused = layer.overlay.apply(layer.overlay.plan(&[]));
    assert!(matches!(refused, Err(ExportError::Locked(_))), "{refused:?}");
    assert!(repo.join(".git/index.lock").exists());
    assert_eq!(rev(&repo, "main"), before);
    assert!(!repo.join("x").exists(), "files and commits go together");
    for lock in ["HEAD.lock", "refs/heads/main.lock"] {
        assert!(!repo.join(".git").join(lock).exists(), "{lock}");
    }
}

#[test]
fn branch_deleted_by_the_person_meanwhile_does_not_lose_the_work() {
    let overlay = repository();
    let inside =
        "git checkout -q other; echo x > x; git add x; git commit -qm inside; git checkout -q main";
    let plan = meanwhile(&overlay, inside, "git branch -q -D other");
    overlay.apply(plan).unwrap();
    let repo: PathBuf = overlay.fixture.repo();
    let subject = git(Path::new(&repo), &["log", "-1", "--format=%s", "other"]).stdout;
    assert_eq!(String::from_utf8(subject).unwrap(), "inside\n");
    assert_sound(&repo);
}
