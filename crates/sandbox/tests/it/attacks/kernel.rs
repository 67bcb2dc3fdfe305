//! Attacks on the kernel's own walls and on what belongs to the host's other processes.

use std::fs;
use std::process::Command;

use warrant_protocol::{Isolation, Outcome};

use crate::attacks::scene::{Scene, Verdict, next_number};

crate::attacks::attacks!("kernel":
    new_user_namespace_is_refused Always,
    clone_flags_are_refused Always,
    clone3_is_refused Perhaps,
    mount_calls_are_refused Always,
    setns_is_refused Always,
    i386_calls_die Perhaps,
    x32_calls_die Perhaps,
    io_uring_is_refused Perhaps,
    ptrace_is_refused Always,
    nothing_of_the_supervisor_is_in_any_process Always,
    memory_of_the_supervisor_is_not_readable Always,
    environment_of_the_supervisor_is_not_readable Always,
    environment_secrets_do_not_leak_in Always,
    sysv_shared_memory_is_not_shared Always,
    session_keyring_is_not_shared Perhaps,
    netlink_packet_vsock_and_alg_sockets_are_refused Always,
    tiocsti_is_refused Perhaps,
    signals_do_not_reach_the_host Always,
    hostname_cannot_be_changed Always,
    capabilities_are_empty Always,
    bpf_and_perf_are_refused Always,
    limits_of_pid_1_cannot_be_changed_from_inside Perhaps,
    pid_1_cannot_be_signaled_traced_or_driven_from_inside Perhaps,
    calls_nobody_listed_do_not_exist Perhaps,
);

/// Perl that says BROKEN when a system call is not refused.
fn not_refused(call: &str) -> String {
    format!("my $r = syscall({call}); print \"BROKEN $r\\n\" if $r >= 0;")
}

fn new_user_namespace_is_refused(scene: &Scene) -> Verdict {
    scene.perl(&not_refused("272, 0x10000000")).by_own_word()
}

fn clone_flags_are_refused(scene: &Scene) -> Verdict {
    let program = "for my $f (0x10000000, 0x00020000, 0x20000000, 0x40000000, 0x08000000) {\n\
         my $r = syscall(56, $f | 17, 0, 0, 0, 0);\n\
         if (defined $r && $r == 0) { exit 0 } print \"BROKEN\\n\" if $r > 0; }";
    scene.perl(program).by_own_word()
}

fn clone3_is_refused(scene: &Scene) -> Verdict {
    let program = "my $a = pack('Q8', 0x10000000, 0, 0, 0, 17, 0, 0, 0);\n\
         my $r = syscall(435, $a, 64); if ($r == 0) { exit 0 } print \"BROKEN\\n\" if $r > 0;";
    scene.perl(program).by_own_word()
}

fn mount_calls_are_refused(scene: &Scene) -> Verdict {
    let program = "mkdir 'm'; my ($n, $m, $t, $d) = ('none', 'm', 'tmpfs', '/'); my $r = syscall(165, $n, $m, $t, 0, 0);\n\
         print \"BROKEN mount\\n\" if $r == 0; syscall(166, $m, 0) if $r == 0;\n\
         my $f = syscall(430, $t, 0); print \"BROKEN fsopen\\n\" if $f >= 0;\n\
         my $o = syscall(428, -100, $d, 1); print \"BROKEN open_tree\\n\" if $o >= 0;";
    scene.perl(program).by_own_word()
}

fn setns_is_refused(scene: &Scene) -> Verdict {
    let program = "open(my $n, '<', '/proc/self/ns/uts') or exit; my $r = syscall(308, fileno($n), 0);\n\
         print \"BROKEN\\n\" if $r == 0;";
    scene.perl(program).by_own_word()
}

/// A static i386 program of a few instructions: `write(1, "BROKEN", 6); exit(0)`.
fn i386_calls_die(scene: &Scene) -> Verdict {
    let program = r#"
my $code = "\xb8\x04\x00\x00\x00\xbb\x01\x00\x00\x00\xb9\x77\x80\x04\x08\xba\x07\x00\x00\x00\xcd\x80" .
           "\xb8\x01\x00\x00\x00\x31\xdb\xcd\x80";
$code .= "\x90" x (0x77 - 0x54 - length($code));
my $elf = "\x7fELF\x01\x01\x01" . ("\0" x 9) . pack('vvVVVVVvvvvvv', 2, 3, 1, 0x08048054, 52, 0, 0, 52, 32, 1, 40, 0, 0);
$elf .= pack('VVVVVVVV', 1, 0, 0x08048000, 0x08048000, 0x7e, 0x7e, 5, 0x1000);
open(my $f, '>', 'i386') or exit; binmode $f; print $f $elf . $code . "BROKEN\n"; close $f;
chmod 0755, 'i386'; system('./i386');
"#;
    scene.perl(program).by_own_word()
}

fn x32_calls_die(scene: &Scene) -> Verdict {
    scene.perl("my $r = syscall(0x40000000 + 39); print \"BROKEN $r\\n\" if $r > 0;").by_own_word()
}

fn io_uring_is_refused(scene: &Scene) -> Verdict {
    scene
        .perl("my $p = \"\\0\" x 120; my $r = syscall(425, 4, $p); print \"BROKEN\\n\" if $r >= 0;")
        .by_own_word()
}

fn ptrace_is_refused(scene: &Scene) -> Verdict {
    let program = "my $c = fork; if (!$c) { sleep 10; exit } my $r = syscall(101, 16, $c, 0, 0);\n\
         print \"BROKEN\\n\" if $r == 0; kill 9, $c;";
    scene.perl(program).by_own_word()
}

/// Reads every file of every process in `/proc`, and all memory that can be read, for a secret
/// that the supervisor has in its arguments, its environment and its memory.
fn nothing_of_the_supervisor_is_in_any_process(scene: &Scene) -> Verdict {
    const SCAN: &str = r#"
my ($x, $y) = @ARGV; my $secret = $x . $y; my $found = 0;
my @files = qw(cmdline environ comm stat status maps smaps auxv cgroup mountinfo limits sched wchan syscall stack io);
for my $process (getppid(), 1, 2, map { m{/proc/(\d+)$} ? $1 : () } glob('/proc/[0-9]*')) {
    next if $process == $$;
    for my $file (@files) {
        open(my $f, '<', "/proc/$process/$file") or next; binmode $f; local $/; my $text = <$f> // '';
        if (index($text, $secret) >= 0) { print "looked BROKEN $process $file\n"; exit }
        $found++ if $file eq 'cmdline';
    }
    print "BROKEN $process has descriptors\n" if $process == 1 && glob("/proc/1/fd/*");
    open(my $maps, '<', "/proc/$process/maps") or next; open(my $memory, '<', "/proc/$process/mem") or next;
    while (<$maps>) {
        my ($from, $to) = /^([0-9a-f]+)-([0-9a-f]+) r/ or next; ($from, $to) = (hex $from, hex $to);
        next if $to - $from > 1 << 28 || $from > 1 << 47;
        sysseek($memory, $from, 0); sysread($memory, my $bytes, $to - $from) or next;
        print "BROKEN $process memory\n" if index($bytes, $secret) >= 0;
    }
}
print "looked $found\n";
open(my $one, '<', '/proc/1/cmdline'); local $/; my $line = <$one> // ''; $line =~ tr/\0//d;
print "BROKEN pid 1 has arguments: $line\n" if length $line && $ENV{JAILED};
"#;
    fs::write(scene.workspace().join("scan.pl"), SCAN).unwrap();
    let secret = format!("planted{}", next_number());
    let (x, y) = secret.split_at(5);
    let tier = match scene.backend.isolation() {
        Isolation::Namespace => "namespace",
        _ => "leaky",
    };
    let script = format!("JAILED={} perl scan.pl {x} {y}", u8::from(tier == "namespace"));
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "supervisor::run_with_a_secret", &secret, "--ignored", "--nocapture"])
        .env("SUPERVISED_TIER", tier)
        .env("SUPERVISED_SECRET", &secret)
        .env("SUPERVISED_SCRIPT", script)
        .env("SUPERVISED_WORKSPACE", scene.workspace())
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(told.contains("looked "), "{told} {}", String::from_utf8_lossy(&output.stderr));
    Verdict::broken_if(told.contains("BROKEN"), told)
}

fn memory_of_the_supervisor_is_not_readable(scene: &Scene) -> Verdict {
    // A value only this process's memory holds.
    let secret = format!("supervisor-{}-memory", std::process::id());
    let keep = std::hint::black_box(secret.clone().into_bytes());
    let pid = std::process::id();
    let address = keep.as_ptr() as usize;
    let length = keep.len();
    let program = format!(
        "for my $p (1, {pid}, getppid()) {{ if (open(my $m, '<', \"/proc/$p/mem\")) {{\n\
         seek($m, {address}, 0); read($m, my $b, {length}); print \"READ $b\\n\"; }}\n\
         my $b = \"\\0\" x {length}; my $l = pack('PQ', $b, {length}); my $r = pack('QQ', {address}, {length});\n\
         syscall(310, $p, $l, 1, $r, 1, 0); print \"READ $b\\n\"; }}"
    );
    let played = scene.perl(&program);
    Verdict::broken_if(played.said(&secret), "the supervisor's memory was read")
}

fn environment_of_the_supervisor_is_not_readable(scene: &Scene) -> Verdict {
    let pid = std::process::id();
    let script =
        format!("for p in 1 {pid} $PPID; do tr '\\000' '\\n' < /proc/$p/environ; done 2>/dev/null");
    let played = scene.play(&script);
    // Every environment we could have has a PATH of its own; the program's has the default one.
    let own = std::env::var("PATH").unwrap_or_default();
    let shown = played.memory.stdout();
    let is_shown = shown.lines().any(|line| line == format!("PATH={own}"));
    Verdict::broken_if(is_shown, "the supervisor's environment was read")
}

fn environment_secrets_do_not_leak_in(scene: &Scene) -> Verdict {
    let played = scene.play("env");
    let inherited: Vec<String> = std::env::vars()
        .filter(|(name, _)| {
            !["PATH", "HOME", "LANG", "PWD", "OUTSIDE", "SHLVL", "_", "OLDPWD"]
                .contains(&name.as_str())
        })
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    let stdout = played.memory.stdout();
    let leaked = inherited.iter().find(|line| stdout.lines().any(|shown| shown == line.as_str()));
    Verdict::broken_if(leaked.is_some(), format!("{leaked:?} was inherited"))
}

fn sysv_shared_memory_is_not_shared(scene: &Scene) -> Verdict {
    // Made on the host by a process that ends; the segment stays until it is removed.
    let key = 0x4000_0000 + next_number();
    let make =
        format!("my $i = shmget({key}, 4096, 01666); shmwrite($i, 'host secret', 0, 11); print $i");
    let made = Command::new("perl").args(["-e", &make]).output().unwrap();
    let played = scene.perl(&format!(
        "my $i = shmget({key}, 4096, 0666); if (defined $i) {{ shmread($i, my $b, 0, 11); print $b }}"
    ));
    let id = String::from_utf8_lossy(&made.stdout).into_owned();
    let remove = format!("shmctl({id}, 0, 0)");
    Command::new("perl").args(["-e", &remove]).status().unwrap();
    Verdict::broken_if(played.said("host secret"), "shared memory of the host was read")
}

fn session_keyring_is_not_shared(scene: &Scene) -> Verdict {
    // add_key of a user key to the session keyring, then a search for it from inside.
    let name = format!("warrant-attack-{}-{}", std::process::id(), next_number());
    let add = format!(
        "my ($t, $n, $v) = ('user', '{name}', 'host secret'); print syscall(248, $t, $n, $v, 11, -3)"
    );
    Command::new("perl").args(["-e", &add]).output().unwrap();
    let program = format!(
        "my ($t, $n) = ('user', '{name}'); my $k = syscall(250, 10, -3, $t, $n, 0); print \"BROKEN\\n\" if $k > 0;\n\
         $k = syscall(249, $t, $n, 0, 0); print \"BROKEN\\n\" if $k > 0;"
    );
    scene.perl(&program).by_own_word()
}

fn netlink_packet_vsock_and_alg_sockets_are_refused(scene: &Scene) -> Verdict {
    let program = "for my $s ([16, 3, 12], [16, 3, 16], [17, 3, 768], [40, 1, 0], [38, 5, 0], [2, 1, 262], [2, 2, 136], [2, 3, 1], [29, 3, 1], [31, 3, 1]) {\n\
         my $r = syscall(41, @$s); print \"BROKEN @$s\\n\" if $r >= 0; }";
    scene.perl(program).by_own_word()
}

fn tiocsti_is_refused(scene: &Scene) -> Verdict {
    use warrant_sandbox::TtySize;
    let program = "my $c = 'x'; open(my $t, '+<', '/dev/tty') or exit;\n\
         my $r = ioctl($t, 0x5412, $c); print \"BROKEN\\n\" if $r;";
    fs::write(scene.workspace().join("attack.pl"), program).unwrap();
    let mut invocation = scene.script("perl attack.pl");
    if scene.backend.isolation() != Isolation::Process {
        invocation.tty = Some(TtySize { columns: 80, rows: 24 });
    }
    scene.play_invocation(invocation).by_own_word()
}

fn signals_do_not_reach_the_host(scene: &Scene) -> Verdict {
    let mut victim = Command::new("sleep").arg("60").spawn().unwrap();
    scene.play(&format!("kill -KILL {}; kill -KILL -{}", victim.id(), victim.id()));
    let mut killed = false;
    for _ in 0..20 {
        killed |= victim.try_wait().unwrap().is_some();
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let _ = victim.kill();
    victim.wait().unwrap();
    Verdict::broken_if(killed, "a process of the host was killed")
}

fn hostname_cannot_be_changed(scene: &Scene) -> Verdict {
    let before = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let name = before.trim();
    let program = format!("my $n = '{name}'; {}", not_refused(&format!("170, $n, {}", name.len())));
    let played = scene.perl(&program);
    let after = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    Verdict::broken_if(played.said("BROKEN") || before != after, "the hostname could be set")
}

fn capabilities_are_empty(scene: &Scene) -> Verdict {
    let played = scene.play("grep Cap /proc/self/status; grep NoNewPrivs /proc/self/status");
    let stdout = played.memory.stdout();
    let all_empty = stdout
        .lines()
        .filter(|line| line.starts_with("Cap"))
        .all(|line| line.ends_with("0000000000000000"));
    Verdict::broken_if(!all_empty || !stdout.contains("NoNewPrivs:\t1"), stdout)
}

fn bpf_and_perf_are_refused(scene: &Scene) -> Verdict {
    let program = "my $a = pack('IIII', 2, 4, 4, 1) . (\"\\0\" x 112); my $r = syscall(321, 0, $a, 128);\n\
         print \"BROKEN bpf\\n\" if $r >= 0;\n\
         my $p = pack('IIQQQQQ', 1, 112, 0, 0, 0, 0, 1) . (\"\\0\" x 64); $r = syscall(298, $p, 0, -1, -1, 0);\n\
         print \"BROKEN perf\\n\" if $r >= 0;";
    scene.perl(program).by_own_word()
}

/// A limit of pid 1 lowered from inside looked as if the run had met its own limit on processes.
fn limits_of_pid_1_cannot_be_changed_from_inside(scene: &Scene) -> Verdict {
    if scene.backend.isolation() != Isolation::Namespace {
        // There pid 1 is the machine's.
        return Verdict::Broken("pid 1 is not of this run".to_owned());
    }
    // RLIMIT_NPROC, RLIMIT_CPU, RLIMIT_NOFILE and RLIMIT_AS, of pid 1 and of our own parent.
    let program = "for my $p (1, getppid()) { for my $l (6, 0, 7, 9) { my $v = pack('QQ', 0, 0);\n\
         my $r = syscall(302, $p, $l, $v, 0); print \"BROKEN $p $l\\n\" if $r == 0; } }\n\
         select(undef, undef, undef, 0.3); print \"went on\\n\";";
    fs::write(scene.workspace().join("attack.pl"), program).unwrap();
    // A shell of its own between, so that its parent is not the whole run.
    let mut invocation = scene.script("sh -c 'perl attack.pl; true'; true");
    invocation.limits.processes = Some(16);
    let played = scene.play_invocation(invocation);
    let forged = played.report.outcome != Outcome::Exited { code: 0 } || !played.said("went on");
    Verdict::broken_if(forged || played.said("BROKEN"), format!("{:?}", played.report.outcome))
}

fn pid_1_cannot_be_signaled_traced_or_driven_from_inside(scene: &Scene) -> Verdict {
    if scene.backend.isolation() != Isolation::Namespace {
        // There pid 1 is the machine's.
        return Verdict::Broken("pid 1 is not of this run".to_owned());
    }
    let program = "for my $s (1, 2, 9, 15, 17, 19, 20) { kill $s, 1 }\n\
         print \"BROKEN ptrace\\n\" if syscall(101, 16, 1, 0, 0) == 0;\n\
         my $f = syscall(434, 1, 0); print \"BROKEN pidfd\\n\" if $f >= 0 && syscall(424, $f, 9, 0, 0) == 0;\n\
         print \"BROKEN getfd\\n\" if syscall(438, $f, 0, 0) >= 0;\n\
         for my $n ('oom_score_adj', 'comm', 'mem', 'coredump_filter', 'timerslack_ns', 'attr/current', 'clear_refs') {\n\
         print \"BROKEN $n\\n\" if open(my $o, '>', \"/proc/1/$n\"); }\n\
         for my $n ('/proc/sys/kernel/core_pattern', '/proc/sys/kernel/core_uses_pid', '/proc/sys/vm/overcommit_memory', '/proc/sysrq-trigger') {\n\
         print \"BROKEN $n\\n\" if open(my $o, '>', $n); }\n\
         for my $n ('fd', 'map_files', 'task/1/fd', 'ns') { opendir(my $o, \"/proc/1/$n\") and print \"BROKEN $n\\n\"; }\n\
         for my $n ('exe', 'cwd', 'root') { print \"BROKEN $n\\n\" if defined readlink \"/proc/1/$n\"; }\n\
         select(undef, undef, undef, 0.2); print \"went on\\n\";";
    let played = scene.perl(program);
    let ended = played.report.outcome != Outcome::Exited { code: 0 } || !played.said("went on");
    Verdict::broken_if(ended || played.said("BROKEN"), played.memory.stdout())
}

/// What a list of refusals let through: secret memory, questions about mounts, attributes of
/// files by a new call, futexes of a new kind, and calls no kernel has yet.
fn calls_nobody_listed_do_not_exist(scene: &Scene) -> Verdict {
    let program = "for my $n (447, 457, 458, 468, 469, 216, 454, 470, 1000) { my $b = \"\\0\" x 256;\n\
         $! = 0; my $r = syscall($n, $b, $b, 0, 0, 0, 0); print \"BROKEN $n $!\\n\" unless $r == -1 && $!{ENOSYS}; }";
    scene.perl(program).by_own_word()
}
