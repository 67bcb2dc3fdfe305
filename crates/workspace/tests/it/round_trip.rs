//! Captured, materialized, changed, collected: byte for byte what it was.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};

use warrant_workspace::{ChangeKind, History};

use crate::fixture::{Fixture, below, files};

#[test]
fn changes_are_named_and_the_diff_applies_with_stock_git() {
    let fixture = Fixture::with_repo();
    fixture.write("moved.txt", "a file that moves\nwith lines\n");
    fixture.write("tool.sh", "#!/bin/sh\n");
    fixture.write("gone.txt", "gone\n");
    symlink("src.txt", fixture.repo().join("link")).unwrap();
    fixture.commit();
    let captured = fixture.capture(&[], History::Full).unwrap();
    let checkout = fixture.materialize(&captured.manifest, "checkout").unwrap();
    let path = checkout.path().to_path_buf();
    assert!(fixture.collect(&checkout).changes.is_empty());
    fs::write(path.join("src.txt"), "changed\n").unwrap();
    fs::write(path.join("new.bin"), [0, 159, 146, 150, 0, 1]).unwrap();
    fs::create_dir(path.join("dir")).unwrap();
    fs::rename(path.join("moved.txt"), path.join("dir/moved.txt")).unwrap();
    fs::set_permissions(path.join("tool.sh"), fs::Permissions::from_mode(0o755)).unwrap();
    fs::remove_file(path.join("gone.txt")).unwrap();
    fs::remove_file(path.join("link")).unwrap();
    fs::write(path.join("link"), "no link any more").unwrap();
    fs::write(below(&path, b"odd \"name\"\n\xff"), "odd").unwrap();
    symlink("/etc/passwd", path.join("outside")).unwrap();
    let collected = fixture.collect(&checkout);
    let seen: Vec<(String, String)> = collected
        .changes
        .iter()
        .map(|change| (change.path.to_string(), format!("{:?}", change.kind)))
        .collect();
    let expected = [
        ("dir/moved.txt", "Renamed { from: \"moved.txt\" }"),
        ("gone.txt", "Deleted"),
        ("link", "Retyped"),
        ("new.bin", "Added"),
        ("\"odd \\\"name\\\"\\n\\377\"", "Added"),
        ("outside", "Added"),
        ("src.txt", "Modified"),
        ("tool.sh", "ModeChanged"),
    ];
    let expected: Vec<_> = expected.map(|(a, b)| (a.to_owned(), b.to_owned())).into();
    assert_eq!(seen, expected);
    assert!(collected.unread.is_empty());
    let diff = collected.diff.unwrap();
    let applied = fixture.applied(&captured.manifest.base_ref, &diff.to_vec().unwrap(), "applied");
    let mut expected = files(&path);
    expected.retain(|_, entry| *entry != crate::fixture::Entry::Directory);
    let mut applied = applied;
    applied.retain(|_, entry| *entry != crate::fixture::Entry::Directory);
    assert_eq!(applied, expected);
    let deleted = collected.changes.iter().find(|change| change.kind == ChangeKind::Deleted);
    assert_eq!(deleted.unwrap().digest, warrant_protocol::Digest::DELETED);
}

#[test]
fn large_files_travel_as_streamed_literals() {
    let fixture = Fixture::with_repo();
    let large = |seed: u8| -> Vec<u8> {
        let mut state = u32::from(seed);
        (0..9 << 20)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 24) as u8
            })
            .collect()
    };
    fixture.write("large.bin", large(1));
    fixture.write("removed.bin", large(2));
    fixture.commit();
    let captured = fixture.capture(&[], History::Full).unwrap();
    let checkout = fixture.materialize(&captured.manifest, "checkout").unwrap();
    fs::write(checkout.path().join("large.bin"), large(3)).unwrap();
    fs::write(checkout.path().join("added one.bin"), large(4)).unwrap();
    fs::remove_file(checkout.path().join("removed.bin")).unwrap();
    fs::write(checkout.path().join("src.txt"), "small\n").unwrap();
    let collected = fixture.collect(&checkout);
    let diff = collected.diff.unwrap().to_vec().unwrap();
    let applied = fixture.applied(&captured.manifest.base_ref, &diff, "applied");
    assert!(applied == files(checkout.path()), "trees differ");
}

/// Moves one large file in and out, in a process of its own, and prints the most memory it took.
///
/// Without the variable there is nothing to do; the test below starts it.
#[test]
fn child_moves_a_large_file() {
    use std::io::Write as _;
    let Some(megabytes) = std::env::var("WARRANT_TEST_LARGE_MB").ok() else { return };
    let fixture = Fixture::with_repo();
    let mut file = fs::File::create(fixture.repo().join("large.bin")).unwrap();
    let mut state = 7_u64;
    let mut block = vec![0_u8; 1 << 20];
    for number in 0..megabytes.parse::<u32>().unwrap() {
        // Mostly what compresses well, so that the test is about memory and not about zlib.
        for chunk in block.chunks_exact_mut(8).filter(|_| number % 16 == 0) {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            chunk.copy_from_slice(&state.to_le_bytes());
        }
        file.write_all(&block).unwrap();
    }
    drop((file, block));
    let captured = fixture.capture(&["*.bin"], History::Full).unwrap();
    let checkout = fixture.materialize(&captured.manifest, "checkout").unwrap();
    let collected = fixture.collect(&checkout);
    assert_eq!(collected.changes.len(), 1);
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    let kilobytes = peak.split_whitespace().nth(1).unwrap();
    std::io::stderr().write_all(format!("\npeak {kilobytes}\n").as_bytes()).unwrap();
}

#[test]
fn large_file_moves_with_bounded_memory() {
    // The benchmark moves one of 1 GB the same way.
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["round_trip::child_moves_a_large_file", "--exact", "--nocapture"])
        .env("WARRANT_TEST_LARGE_MB", "96")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{text}");
    let peak = text.lines().find_map(|line| line.strip_prefix("peak ")).unwrap();
    assert!(peak.parse::<u64>().unwrap() < 64 * 1024, "{peak} kB for a file of 96 MB");
}
