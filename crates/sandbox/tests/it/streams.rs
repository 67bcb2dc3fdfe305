//! Streams: byte-exact, separate, with back-pressure; input that ends; terminals.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use warrant_protocol::{Digest, Outcome};
use warrant_sandbox::{Backend, Cancel, Namespace, NetworkDecision, Sink, Stdin, Stream, TtySize};

use crate::bench::{Memory, run, shell, workspace};

#[test]
fn streams_are_separate_and_hashed() {
    let workspace = workspace();
    let script = "printf 'a\\000b'; printf err >&2";
    let (report, memory) = run(&Namespace::new(), shell(workspace.path(), script));
    let report = report.unwrap();
    assert_eq!(memory.stdout(), "a\0b");
    assert_eq!(memory.stderr(), "err");
    assert_eq!(report.stdout.digest, Digest::of(b"a\0b"));
    assert_eq!(report.stderr.bytes, 3);
    assert!(!report.stdout.truncated);
}

#[test]
fn stdin_is_bytes_then_an_end() {
    let workspace = workspace();
    let mut invocation = shell(workspace.path(), "cat; echo end");
    let bytes = vec![b'x'; 300_000];
    invocation.stdin = Stdin::Bytes(bytes.clone());
    let (report, memory) = run(&Namespace::new(), invocation);
    assert_eq!(report.unwrap().outcome, Outcome::Exited { code: 0 });
    assert_eq!(memory.stdout().len(), bytes.len() + "end\n".len());
}

#[test]
fn stdin_from_a_descriptor_may_be_closed_at_any_time() {
    let workspace = workspace();
    let (reader, mut writer) = io::pipe().unwrap();
    let mut invocation = shell(workspace.path(), "cat");
    invocation.stdin = Stdin::Descriptor(Arc::new(reader.into()));
    writer.write_all(b"hello").unwrap();
    drop(writer);
    let (report, memory) = run(&Namespace::new(), invocation);
    assert_eq!(report.unwrap().outcome, Outcome::Exited { code: 0 });
    assert_eq!(memory.stdout(), "hello");
    // A program that does not read does not hang the run.
    let mut invocation = shell(workspace.path(), "exec <&-; echo deaf");
    invocation.stdin = Stdin::Bytes(vec![b'x'; 1 << 20]);
    let (report, memory) = run(&Namespace::new(), invocation);
    assert_eq!(report.unwrap().outcome, Outcome::Exited { code: 0 });
    assert_eq!(memory.stdout(), "deaf\n");
}

/// A sink that takes its time at first and counts.
#[derive(Default)]
struct Slow {
    seen: AtomicUsize,
}

impl Sink for Slow {
    fn output(&self, _: Stream, bytes: &[u8]) -> io::Result<()> {
        if self.seen.fetch_add(bytes.len(), Ordering::Relaxed) == 0 {
            std::thread::sleep(Duration::from_millis(300));
        }
        Ok(())
    }

    fn network(&self, _: NetworkDecision) {}
}

#[test]
fn a_slow_sink_slows_the_program_and_loses_nothing() {
    let workspace = workspace();
    let script = "head -c 5000000 /dev/zero; echo >&2 done";
    let backend = Namespace::new();
    let plan = backend.prepare(shell(workspace.path(), script)).unwrap();
    let slow = Slow::default();
    let report = backend.run(&plan, &slow, &Cancel::new().unwrap()).unwrap();
    assert_eq!(report.outcome, Outcome::Exited { code: 0 });
    assert_eq!(report.stdout.bytes, 5_000_000);
    assert_eq!(slow.seen.into_inner(), 5_000_005);
}

#[test]
fn cancel_ends_the_whole_tree() {
    let workspace = workspace();
    let backend = Namespace::new();
    let plan = backend.prepare(shell(workspace.path(), "setsid sleep 500 & sleep 500")).unwrap();
    let cancel = Cancel::new().unwrap();
    let asked = cancel.clone();
    let report = std::thread::scope(|scope| {
        let run = scope.spawn(|| backend.run(&plan, &Memory::default(), &cancel));
        asked.cancel();
        run.join().unwrap().unwrap()
    });
    assert_eq!(report.outcome, Outcome::Cancelled);
}

#[test]
fn a_terminal_has_its_size_and_understands_control_c() {
    let workspace = workspace();
    let (reader, mut keyboard) = io::pipe().unwrap();
    let script = "stty size; test -t 0 && test -t 1 && tty; read x; echo got $x; exec sleep 500";
    let mut invocation = shell(workspace.path(), script);
    invocation.tty = Some(TtySize { columns: 91, rows: 17 });
    invocation.stdin = Stdin::Descriptor(Arc::new(reader.into()));
    let backend = Namespace::new();
    let plan = backend.prepare(invocation).unwrap();
    let memory = Memory::default();
    let outcome = std::thread::scope(|scope| {
        let run = scope.spawn(|| backend.run(&plan, &memory, &Cancel::new().unwrap()));
        keyboard.write_all(b"line\n").unwrap();
        while !memory.stdout().contains("got line") && !run.is_finished() {
            std::thread::yield_now();
        }
        keyboard.write_all(b"\x03").unwrap();
        run.join().unwrap().unwrap().outcome
    });
    assert_eq!(outcome, Outcome::Signaled { signal: 2 }, "{}", memory.stdout());
    assert!(memory.stdout().contains("17 91"), "{}", memory.stdout());
    assert!(memory.stdout().contains("/dev/pts/0"), "{}", memory.stdout());
}

#[test]
fn a_terminal_follows_the_size_of_the_outer_one() {
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    use rustix::termios::{Winsize, tcsetwinsize};
    let outer = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&outer).unwrap();
    unlockpt(&outer).unwrap();
    let name = ptsname(&outer, Vec::new()).unwrap();
    let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NOCTTY | rustix::fs::OFlags::CLOEXEC;
    let inner = rustix::fs::open(&name, flags, rustix::fs::Mode::empty()).unwrap();
    let size =
        |rows, columns| Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(&outer, size(40, 120)).unwrap();
    let workspace = workspace();
    let script = "while [ \"$(stty size)\" != '40 120' ]; do sleep 0.05; done; echo followed";
    let mut invocation = shell(workspace.path(), script);
    invocation.tty = Some(TtySize { columns: 80, rows: 24 });
    invocation.stdin = Stdin::Descriptor(Arc::new(inner));
    let (report, memory) = run(&Namespace::new(), invocation);
    assert_eq!(report.unwrap().outcome, Outcome::Exited { code: 0 }, "{}", memory.stdout());
    assert!(memory.stdout().contains("followed"));
}
