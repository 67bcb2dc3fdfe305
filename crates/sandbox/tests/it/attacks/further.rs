//! Attacks by what programs share without thinking of it: watches, locks, names, priorities, limits
//! and the marks that files carry.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{FlockOperation, flock};
use warrant_protocol::{Isolation, Limits};

use crate::attacks::scene::{Played, Scene, Verdict, next_number};

crate::attacks::attacks!("further":
    userfaultfd_is_refused Perhaps,
    chroot_and_new_mount_calls_are_refused Always,
    watches_do_not_see_what_the_host_opens Always,
    locks_of_the_host_are_not_seen Always,
    abstract_sockets_of_a_sibling_run_are_out_of_reach Always,
    limits_cannot_be_raised_from_inside Always,
    descriptors_are_bounded Always,
    file_capabilities_are_not_set Always,
    priority_above_the_hosts_is_refused Always,
    nobody_exempts_itself_from_the_memory_killer Perhaps,
);

/// Lets a program play to whom the directory outside is granted for reading.
fn granted(scene: &Scene, program: &str) -> Played {
    fs::write(scene.workspace().join("attack.pl"), program).unwrap();
    let mut invocation = scene.script("perl attack.pl");
    if scene.backend.isolation() == Isolation::Namespace {
        invocation.files.read_roots.push(scene.outside());
    }
    scene.play_invocation(invocation)
}

fn userfaultfd_is_refused(scene: &Scene) -> Verdict {
    let program =
        "for my $f (0, 1) { my $r = syscall(323, $f); print \"BROKEN $f\\n\" if $r >= 0; }";
    scene.perl(program).by_own_word()
}

fn chroot_and_new_mount_calls_are_refused(scene: &Scene) -> Verdict {
    let program = "my ($d, $e) = ('.', ''); mkdir 'm';\n\
         for my $c ([161, $d], [433, -100, $d, 0], [442, -100, $d, 0, \"\\0\" x 32, 32], [467, -100, $d, 1, \"\\0\" x 32, 32]) {\n\
         my $r = syscall($c->[0], @$c[1 .. $#$c]); print \"BROKEN $c->[0]\\n\" if $r >= 0; }";
    scene.perl(program).by_own_word()
}

/// Watches the directory of all programs while the host opens one of them again and again.
fn watches_do_not_see_what_the_host_opens(scene: &Scene) -> Verdict {
    let program = "my $i = syscall(294, 0x800); exit if $i < 0; my $d = \"/usr/bin\\0\";\n\
         exit if syscall(254, $i, $d, 0x20) < 0; open(my $f, '<&=', $i); my $b = '';\n\
         for (1 .. 100) { select(undef, undef, undef, 0.01); my $n = sysread($f, $b, 4096);\n\
         if (defined $n && $n > 0) { print \"BROKEN\\n\"; last } }";
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Acquire) {
                fs::File::open("/usr/bin/perl").unwrap();
                std::thread::sleep(std::time::Duration::from_millis(2));
            }
        });
        let verdict = scene.perl(program).by_own_word();
        stop.store(true, Ordering::Release);
        verdict
    })
}

/// A lock that the host holds tells a program inside nothing, and none from inside hinders the host.
fn locks_of_the_host_are_not_seen(scene: &Scene) -> Verdict {
    let path = scene.outside().join("secret");
    let held = fs::File::open(&path).unwrap();
    flock(&held, FlockOperation::LockExclusive).unwrap();
    let played = granted(
        scene,
        "open(my $f, '<', \"$ENV{OUTSIDE}/secret\") or die; print \"BROKEN\\n\" unless flock($f, 2 | 4);",
    );
    played.by_own_word()
}

/// One run listens on a name that another one knows.
fn abstract_sockets_of_a_sibling_run_are_out_of_reach(scene: &Scene) -> Verdict {
    let name = format!("warrant-sibling-{}", next_number());
    let listen = format!(
        "perl -MSocket -e 'socket(my $s, AF_UNIX, SOCK_STREAM, 0) or exit; \
         bind($s, pack(q(S a*), AF_UNIX, qq(\\0{name}))) or exit; listen($s, 5); sleep 3'"
    );
    let connect = format!(
        "perl -MSocket -e 'for (1 .. 100) {{ select(undef, undef, undef, 0.02); \
         socket(my $s, AF_UNIX, SOCK_STREAM, 0) or next; \
         if (connect($s, pack(q(S a*), AF_UNIX, qq(\\0{name})))) {{ print q(BROKEN); last }} }}'"
    );
    let sibling = Scene::new(scene.backend);
    std::thread::scope(|scope| {
        let listening = scope.spawn(|| sibling.play(&listen));
        let verdict = scene.play(&connect).by_own_word();
        listening.join().unwrap();
        verdict
    })
}

fn limits_cannot_be_raised_from_inside(scene: &Scene) -> Verdict {
    // Processes, open files and the size of files.
    let program = "for my $l (6, 7, 1) { my $v = pack('QQ', 500000, 500000);\n\
         my $r = syscall(302, 0, $l, $v, 0); print \"BROKEN $l\\n\" if $r == 0; }";
    fs::write(scene.workspace().join("attack.pl"), program).unwrap();
    let mut invocation = scene.script("perl attack.pl");
    invocation.limits = Limits {
        wall_ms: Some(20_000),
        processes: Some(16),
        open_files: Some(64),
        file_bytes: Some(100_000),
        ..Limits::danger_unlimited()
    };
    scene.play_invocation(invocation).by_own_word()
}

/// Timers, event descriptors and queues of events cost the kernel memory, and all are descriptors.
fn descriptors_are_bounded(scene: &Scene) -> Verdict {
    let program = "my $n = 0; for (1 .. 200) { for my $c ([283, 1, 0], [290, 0, 0], [291, 0]) {\n\
         my $r = syscall($c->[0], @$c[1 .. $#$c]); $n++ if $r >= 0; } } print \"BROKEN $n\\n\" if $n > 64;";
    fs::write(scene.workspace().join("attack.pl"), program).unwrap();
    let mut invocation = scene.script("perl attack.pl");
    let limits = Limits { wall_ms: Some(20_000), ..Limits::danger_unlimited() };
    invocation.limits = Limits { open_files: Some(64), ..limits };
    scene.play_invocation(invocation).by_own_word()
}

/// A file that gives its user a capability: `cap_dac_override`, effective.
fn file_capabilities_are_not_set(scene: &Scene) -> Verdict {
    let program = "open(my $f, '>', 'marked'); close $f; my ($p, $n) = (\"marked\\0\", \"security.capability\\0\");\n\
         my $v = pack('LLLLL', 0x02000001, 2, 0, 0, 0); my $r = syscall(188, $p, $n, $v, 20, 0);\n\
         print \"BROKEN\\n\" if $r == 0;";
    scene.perl(program).by_own_word()
}

fn priority_above_the_hosts_is_refused(scene: &Scene) -> Verdict {
    let program = "my $r = syscall(141, 0, 0, -10); print \"BROKEN nice\\n\" if $r == 0;\n\
         my $p = pack('i', 1); $r = syscall(144, 0, 1, $p); print \"BROKEN real time\\n\" if $r == 0;";
    scene.perl(program).by_own_word()
}

fn nobody_exempts_itself_from_the_memory_killer(scene: &Scene) -> Verdict {
    let script = "(echo -1000 > /proc/self/oom_score_adj) 2>/dev/null && echo BROKEN";
    scene.play(script).by_own_word()
}
