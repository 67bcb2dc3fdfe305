//! Secrets planted in every channel of a run, then looked for in every byte that was stored or shown.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use warrant_protocol::Outcome;
use warrant_sandbox::NetworkDecision;

use crate::redact::{base64_of, encodings};
use crate::support::{House, TestBackend, now, request};

const VALUE: &str = "Tr0ub4dor/3+zq~\"x\"";

fn files_below(root: &Path) -> Vec<PathBuf> {
    let mut pending = vec![root.to_owned()];
    let mut files = Vec::new();
    while let Some(path) = pending.pop() {
        if path.is_dir() {
            pending.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else {
            files.push(path);
        }
    }
    files
}

#[track_caller]
fn check_clean(what: &str, bytes: &[u8], forms: &[Vec<u8>]) {
    for form in forms {
        let found = bytes.windows(form.len()).any(|window| window == form.as_slice());
        assert!(!found, "{what} contains {}", String::from_utf8_lossy(form));
    }
}

/// Every encoding; of base64 without the characters it shares with its neighbors.
fn forms() -> Vec<Vec<u8>> {
    let base64 = base64_of(VALUE);
    let mut forms = encodings(VALUE);
    for form in forms.iter_mut().filter(|form| base64.contains(form)) {
        form.drain(..4);
        form.truncate(form.len() - 4);
    }
    forms
}

#[test]
fn no_secret_is_stored_or_shown_in_any_encoding() {
    let house = House::new();
    house.plane.secrets().set(&"TOKEN".parse().unwrap(), VALUE, now()).unwrap();
    let mut backend = TestBackend::new();
    backend.network = vec![NetworkDecision {
        host: format!("{}.evil.example", hex(VALUE)),
        port: 443,
        allowed: false,
        why: "not-listed".into(),
        count: 1,
        bytes_out: 0,
        bytes_in: 0,
        at: SystemTime::now(),
        model: None,
    }];
    let upper = tempfile::tempdir().unwrap();
    fs::write(upper.path().join(format!("{}.txt", hex(VALUE))), "harmless\n").unwrap();
    let content: Vec<u8> = encodings(VALUE).into_iter().filter(|form| !form.contains(&0)).fold(
        Vec::new(),
        |mut all, form| {
            all.extend(form);
            all.push(b'\n');
            all
        },
    );
    fs::write(upper.path().join("notes.txt"), &content).unwrap();
    backend.upper = Some(upper.path().to_owned());
    let script = "printf %s \"$TOKEN\"; printf %s \"$TOKEN\" | base64 -w0; \
                  printf %s \"$TOKEN\" | od -An -v -tx1 | tr -d ' \\n'; \
                  printf %s \"$TOKEN\" >&2; printf %s \"$TOKEN\" | rev; exit 3";
    let mut wanted = request(script);
    wanted.secret_names = vec!["TOKEN".parse().unwrap()];
    let ended = house.run(wanted, &backend);
    assert_eq!(ended.outcome, Outcome::Exited { code: 3 });
    assert_eq!(ended.receipt.body().secrets_released.len(), 1);
    let events = house.events(&ended.run);
    assert!(events.contains(&"file.changed".to_owned()), "{events:?}");
    let shown = house.shown.bytes.lock().unwrap().clone();
    assert!(String::from_utf8_lossy(&shown).contains("[REDACTED:TOKEN]"));
    let forms = forms();
    check_clean("what was shown", &shown, &forms);
    check_clean(
        "the bundle",
        house.plane.bundle(&ended.run).unwrap().to_string().as_bytes(),
        &forms,
    );
    for file in files_below(house.dir.path()) {
        check_clean(&file.display().to_string(), &fs::read(&file).unwrap(), &forms);
    }
}

#[test]
fn a_binary_file_cannot_smuggle_a_secret_through_the_diff() {
    let house = House::new();
    house.plane.secrets().set(&"TOKEN".parse().unwrap(), VALUE, now()).unwrap();
    let mut backend = TestBackend::new();
    let upper = tempfile::tempdir().unwrap();
    let mut content = vec![0, 1, 2, 0xff];
    content.extend_from_slice(VALUE.as_bytes());
    fs::write(upper.path().join("blob.bin"), &content).unwrap();
    backend.upper = Some(upper.path().to_owned());
    let mut wanted = request("true");
    wanted.secret_names = vec!["TOKEN".parse().unwrap()];
    let ended = house.run(wanted, &backend);
    assert!(ended.message.contains("withheld"), "{}", ended.message);
    assert_eq!(ended.receipt.body().workspace_out.diff_hash, None);
}

#[test]
fn a_binary_file_that_held_a_secret_cannot_smuggle_it_through_the_diffs_way_back() {
    for is_deleted in [true, false] {
        let house = House::new();
        house.plane.secrets().set(&"TOKEN".parse().unwrap(), VALUE, now()).unwrap();
        let before = [b"\0\x01\x02", VALUE.as_bytes(), b"\0"].concat();
        fs::write(house.workspace.path().join("blob.bin"), before).unwrap();
        let upper = tempfile::tempdir().unwrap();
        let after = upper.path().join("blob.bin");
        if is_deleted {
            let device = rustix::fs::makedev(0, 0);
            let kind = rustix::fs::FileType::CharacterDevice;
            let none = rustix::fs::Mode::empty();
            rustix::fs::mknodat(rustix::fs::CWD, &after, kind, none, device).unwrap();
        } else {
            fs::write(after, b"\0\x01harmless\0").unwrap();
        }
        let mut backend = TestBackend::new();
        backend.upper = Some(upper.path().to_owned());
        let mut wanted = request("true");
        wanted.secret_names = vec!["TOKEN".parse().unwrap()];
        let ended = house.run(wanted, &backend);
        assert!(ended.message.contains("withheld"), "{}", ended.message);
        assert_eq!(ended.receipt.body().workspace_out.diff_hash, None);
    }
}

#[test]
fn a_diff_without_secrets_is_kept_byte_for_byte() {
    let house = House::new();
    let mut backend = TestBackend::new();
    let upper = tempfile::tempdir().unwrap();
    fs::write(upper.path().join("latin1.txt"), b"caf\xe9\n").unwrap();
    backend.upper = Some(upper.path().to_owned());
    let ended = house.run(request("true"), &backend);
    let digest = ended.receipt.body().workspace_out.diff_hash.unwrap();
    let mut diff = Vec::new();
    let mut reader = house.plane.store().blob(&digest).unwrap().unwrap();
    std::io::Read::read_to_end(&mut reader, &mut diff).unwrap();
    assert!(diff.windows(6).any(|window| window == b"+caf\xe9\n"));
    let sessions = fs::read_dir(house.plane.home().sessions()).unwrap();
    assert_eq!(sessions.count(), 0, "no scratch stays");
}

fn hex(text: &str) -> String {
    text.bytes().map(|byte| format!("{byte:02x}")).collect()
}
