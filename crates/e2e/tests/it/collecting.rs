//! Attacks on whoever collects the output: a program in the real tier leaves something behind, and
//! the real collector meets it.
//!
//! The table of these attacks is a part of `docs/attacks.md`. Beside the tier stands a collector as
//! one writes it without thinking (walk, open, read) over a program that nothing holds: there every
//! attack must succeed, or the test means nothing.

use std::fmt::Write as _;
use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command as Process;

use tempfile::TempDir;
use warrant_protocol::{Limits, Outcome};
use warrant_sandbox::{
    Backend, Cancel, Command, EnvValue, EnvVar, Files, Invocation, Namespace, Network,
    NetworkDecision, Shell, Sink, Stdin, Stream, WorkspaceAccess,
};
use warrant_workspace::{
    CollectError, CollectOptions, Collected, TreeLimits, WhyUnread, collect_overlay, never_stop,
    quiet,
};

/// One attack: what the program does, and whether the collector fell for it.
struct Attack {
    name: &'static str,
    /// A Python program; `outside` is a directory nobody inside may reach.
    program: &'static str,
    fell: fn(&Found) -> bool,
}

/// What the collector brought.
struct Found {
    collected: Result<Collected, CollectError>,
    diff: String,
}

impl Found {
    /// Returns the collected paths as people see them, one in a line.
    fn listing(&self) -> String {
        let collected = self.collected.as_ref().unwrap();
        let mut listing = String::new();
        for change in &collected.changes {
            writeln!(listing, "{}", change.path).unwrap();
        }
        listing
    }

    fn has_unread(&self, name: &str) -> bool {
        let collected = self.collected.as_ref().unwrap();
        collected.unread.iter().any(|unread| unread.path.to_string() == name)
    }

    fn has(&self, name: &str) -> bool {
        self.listing().lines().any(|line| line == name)
    }

    fn shows_secret(&self) -> bool {
        self.diff.contains("host secret")
    }
}

const ATTACKS: &[Attack] = &[
    Attack {
        name: "fifo does not stop the collector",
        program: "os.mkfifo('aa'); open('zz', 'w').write('after')",
        fell: |found| !(found.has("zz") && found.has_unread("aa")),
    },
    Attack {
        name: "socket does not stop the collector",
        program: "os.mknod('aa', 0o140600); open('zz', 'w').write('after')",
        fell: |found| !(found.has("zz") && found.has_unread("aa")),
    },
    Attack {
        name: "device is not left to be read",
        program: "open('zz', 'w').write('after')\ntry:\n    os.mknod('aa', 0o020666, os.makedev(1, 5))\nexcept OSError:\n    pass",
        fell: |found| !found.has("zz") || found.has("aa"),
    },
    Attack {
        name: "terabyte sparse file is not read",
        program: "open('zz', 'w').write('after'); os.truncate(os.open('aa', os.O_CREAT | os.O_RDWR), 1 << 40)",
        fell: |found| !(found.has("zz") && found.has_unread("aa")),
    },
    Attack {
        name: "very deep directories do not hide what else changed",
        program: "open('zz', 'w').write('after')\nfor i in range(3000):\n    os.mkdir('d'); os.chdir('d')\nopen('bottom', 'w').write('x')",
        fell: |found| {
            let is_told = found.collected.as_ref().is_ok_and(|collected| {
                collected.unread.iter().any(|unread| unread.why == WhyUnread::TooDeep)
            });
            !(found.has("zz") && is_told)
        },
    },
    Attack {
        name: "names with newlines and escapes forge no line",
        program: "open('a\\nforged', 'w').write('x'); open('b\\x1b[2Jc', 'w').write('x'); open(b'd\\xff', 'w').write('x')",
        fell: |found| {
            let listing = found.listing();
            listing.contains('\x1b') || listing.lines().count() != 3 || found.has("forged")
        },
    },
    Attack {
        name: "symlink to a host file is not followed",
        program: "os.symlink(outside + '/secret', 'aa')",
        fell: |found| found.shows_secret() || !found.has("aa"),
    },
    Attack {
        name: "symlink to a host directory is not entered",
        program: "os.symlink(outside, 'aa')",
        fell: |found| found.shows_secret() || !found.has("aa"),
    },
    Attack {
        name: "symlink swapped in by a survivor is not followed",
        program: "open('aa', 'w').write('mine')\n\
            if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        time.sleep(0.3)\n        os.remove('aa')\n        os.symlink(outside + '/secret', 'aa')\n        time.sleep(30)\n    os._exit(0)",
        fell: |found| found.shows_secret() || !found.diff.contains("mine"),
    },
    Attack {
        name: "file made unreadable does not stop the collector",
        program: "open('aa', 'w').write('mine'); os.chmod('aa', 0); open('zz', 'w').write('after')",
        fell: |found| !found.has("zz"),
    },
    Attack {
        name: "directory made unreadable does not stop the collector",
        program: "os.makedirs('aa/bb'); open('aa/bb/in', 'w').write('mine'); os.chmod('aa/bb', 0); os.chmod('aa', 0); open('zz', 'w').write('after')",
        fell: |found| !(found.has("zz") && found.has("aa/bb/in")),
    },
    Attack {
        name: "overlay attributes of the program hide no file",
        program: "for path in ('.', 'kept'):\n    for name in ('opaque', 'whiteout', 'redirect', 'metacopy'):\n        try:\n            os.setxattr(path, 'user.overlay.' + name, b'y')\n        except OSError:\n            pass\nopen('zz', 'w').write('after')",
        fell: |found| found.has("kept/below") || !found.has("zz"),
    },
    Attack {
        name: "archive entry that climbs is only bytes",
        program: "import tarfile, io\nwith tarfile.open('aa.tar', 'w') as t:\n    e = tarfile.TarInfo('../outside/planted'); e.size = 3; t.addfile(e, io.BytesIO(b'bad'))",
        fell: |found| !found.has("aa.tar"),
    },
];

/// A place for one attack: a workspace with one file, and an outside.
struct Place(TempDir);

impl Place {
    fn new() -> Self {
        let directory = tempfile::Builder::new().prefix("collect").tempdir().unwrap();
        for name in ["workspace", "workspace/kept", "outside", "scratch"] {
            fs::create_dir(directory.path().join(name)).unwrap();
        }
        fs::write(directory.path().join("workspace/kept/below"), "below").unwrap();
        fs::write(directory.path().join("outside/secret"), "host secret").unwrap();
        Self(directory)
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Returns the attack as a program that needs no file of its own.
    fn script(&self, attack: &Attack) -> String {
        let outside = self.at("outside");
        format!("import os, time\noutside = {:?}\n{}", outside.to_str().unwrap(), attack.program)
    }
}

struct Silent;

impl Sink for Silent {
    fn output(&self, _: Stream, _: &[u8]) -> std::io::Result<()> {
        Ok(())
    }

    fn network(&self, _: NetworkDecision) {}
}

fn invocation(workspace: &Path, script: String) -> Invocation {
    let script_variable = EnvVar { name: "SCRIPT".into(), value: EnvValue::Plain(script) };
    let shell = "exec /usr/bin/python3 -c \"$SCRIPT\"".to_owned();
    Invocation {
        command: Command::Shell { shell: Shell::Sh, script: shell },
        cwd: workspace.to_owned(),
        env: vec![script_variable],
        stdin: Stdin::Empty,
        tty: None,
        files: Files {
            workspace: workspace.to_owned(),
            access: WorkspaceAccess::Overlay,
            read_roots: Vec::new(),
            write_roots: Vec::new(),
            places: Vec::new(),
            masks: Vec::new(),
        },
        network: Network::Allow(Vec::new()),
        limits: Limits { wall_ms: Some(30_000), ..Limits::danger_unlimited() },
        image: None,
        neighbors: None,
    }
}

/// Lets the attack play in the namespace tier and collects; returns whether the collector fell.
fn falls_in_the_tier(attack: &Attack) -> bool {
    let place = Place::new();
    let backend = Namespace::new();
    let plan = backend.prepare(invocation(&place.at("workspace"), place.script(attack))).unwrap();
    let report = backend.run(&plan, &Silent, &Cancel::new().unwrap()).unwrap();
    assert_eq!(report.outcome, Outcome::Exited { code: 0 }, "{}", attack.name);
    let lower = fs::File::open(place.at("workspace")).unwrap();
    let scratch = place.at("scratch");
    let options = CollectOptions {
        scratch: &scratch,
        limits: TreeLimits::generous(),
        progress: &quiet,
        stop: &never_stop,
        watch: &|_| {},
    };
    let mut collected = collect_overlay(lower.as_fd(), report.upper.unwrap().as_fd(), &options);
    let diff = collected.as_mut().ok().and_then(|collected| collected.diff.take());
    let diff = diff.map(|diff| String::from_utf8_lossy(&diff.to_vec().unwrap()).into_owned());
    let found = Found { collected, diff: diff.unwrap_or_default() };
    let planted = place.at("outside/planted").exists();
    let touched = fs::read_to_string(place.at("workspace/kept/below")).unwrap() != "below";
    (attack.fell)(&found) || planted || touched
}

/// A collector that trusts what it finds, in a few lines of Python as anyone writes them.
const NAIVE: &str = "import os, sys, tarfile, subprocess\n\
    names = []\n\
    def take(path):\n    for name in sorted(os.listdir(path)):\n        p = os.path.join(path, name)\n        names.append(p)\n\
    \x20       if os.path.isdir(p): take(p)\n        else:\n            data = open(p, 'rb').read()\n\
    \x20           if b'host secret' in data: sys.exit(3)\n            if p.endswith('.tar'): subprocess.run(['tar', '-xPf', p], check=True)\n\
    take('.')\n\
    if any(n in '\\n'.join(names).split('\\n') for n in ['forged']): sys.exit(4)\n\
    if os.path.exists('../outside/planted'): sys.exit(5)\n\
    if not any('below' in n for n in names): sys.exit(6)\n";

/// Lets the attack play with nothing around it and collects without thinking.
fn falls_where_nothing_holds(attack: &Attack) -> bool {
    let place = Place::new();
    let python = |seconds: &str, program: &str| {
        let mut command = Process::new("timeout");
        command.args(["--signal=KILL", seconds, "/usr/bin/python3", "-c", program]);
        command.current_dir(place.at("workspace")).stdin(std::process::Stdio::null());
        command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
        command
    };
    assert!(python("60", &place.script(attack)).status().unwrap().success(), "{}", attack.name);
    if attack.name.contains("survivor") {
        // The naive one looks first and reads once the survivor has done its work.
        let began = std::time::Instant::now();
        while !place.at("workspace/aa").is_symlink() {
            assert!(began.elapsed() < std::time::Duration::from_secs(60), "{}", attack.name);
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
    !python("5", NAIVE).status().unwrap().success()
}

/// Attacks the naive collector withstands here too: they are about what only an overlay has, or
/// about rights that root does not need.
const NOT_NAIVE: [&str; 3] = [
    "file made unreadable does not stop the collector",
    "directory made unreadable does not stop the collector",
    "overlay attributes of the program hide no file",
];

#[test]
fn nothing_a_program_leaves_behind_harms_the_collector() {
    for attack in ATTACKS {
        assert!(!falls_in_the_tier(attack), "{}", attack.name);
    }
    if rustix::process::geteuid().is_root() {
        as_ordinary_user();
    }
}

/// Runs the test above again as a user nobody knows.
fn as_ordinary_user() {
    const ORDINARY: u32 = 23_457;
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let copy = directory.path().join("it");
    // By another process: a descriptor of ours open for writing would forbid the execution.
    let copied = Process::new("cp").arg(std::env::current_exe().unwrap()).arg(&copy).status();
    assert!(copied.unwrap().success());
    let name = "collecting::nothing_a_program_leaves_behind_harms_the_collector";
    let output = Process::new(&copy)
        .args(["--exact", "--nocapture", name])
        .uid(ORDINARY)
        .gid(ORDINARY)
        .env_clear()
        .env("PATH", "/usr/local/bin:/usr/bin:/bin")
        .current_dir("/")
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    let more = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && told.contains("1 passed"), "{told} {more}");
}

const HEADING: &str = "## Collecting the output\n";

/// Set `WARRANT_WRITE_ATTACKS` to write the table.
#[test]
fn the_table_of_collecting_is_true() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let mut rows = String::new();
    for attack in ATTACKS {
        let naive = match (falls_where_nothing_holds(attack), NOT_NAIVE.contains(&attack.name)) {
            (true, false) => "succeeds",
            (_, true) => "does not apply",
            (false, false) => panic!("{} does not even fool the naive collector", attack.name),
        };
        writeln!(rows, "| collecting | {} | held | {naive} |", attack.name).unwrap();
    }
    let table = format!(
        "{HEADING}\nWritten by `crates/e2e/tests/it/collecting.rs`; do not edit.\n\
         The program runs in the namespace tier, as root and as an ordinary user; the collector is the product's own.\n\
         Beside it: nothing around the program, and a collector that walks, opens and reads.\n\n\
         | group | attack | held by the collector | naive collector |\n|---|---|---|---|\n{rows}"
    );
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/attacks.md");
    let written = fs::read_to_string(&path).unwrap();
    let (before, section) = written.split_once(HEADING).unwrap_or((written.as_str(), ""));
    if std::env::var_os("WARRANT_WRITE_ATTACKS").is_some() {
        fs::write(&path, format!("{}\n{table}", before.trim_end_matches('\n').to_owned() + "\n"))
            .unwrap();
        return;
    }
    assert_eq!(
        format!("{HEADING}{section}"),
        table,
        "run with WARRANT_WRITE_ATTACKS=1 to write it anew"
    );
}
