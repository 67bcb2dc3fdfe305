//! Sandboxes that live between calls, with real jails and a real store.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use warrant_govern::live::{Live, LiveError, TokenFile};
use warrant_govern::{Desk, PolicyFiles, write_policy};
use warrant_plane::doors::{
    AtEnd, ChunkStream, DoorName, End, EndsCommands, FileAnswer, FileCall, FileFault, Keeper as _,
    Life, Process, Reach, Sandbox, Start, Wakes, Wanted, Workshop, WorkshopError,
};
use warrant_plane::store::RunFilter;
use warrant_policy::preset::Preset;
use warrant_protocol::request::{ActorKind, ActorRef};
use warrant_protocol::{KeyRole, LimitKind, Outcome, RunState, TrustedKeys};
use warrant_sandbox::Namespace;

use crate::desk::asking_desk;

pub(crate) struct House {
    _home: TempDir,
    desk: Arc<Desk>,
    pub(crate) live: Live,
}

pub(crate) fn house() -> House {
    let home = tempfile::tempdir().unwrap();
    let desk = Arc::new(Desk::open(Some(&home.path().join("home"))).unwrap());
    let live = Live::open(Arc::clone(&desk), Arc::new(Namespace::new())).unwrap();
    House { _home: home, desk, live }
}

pub(crate) fn guest(name: &str) -> ActorRef {
    ActorRef { kind: ActorKind::Service, id: name.to_owned() }
}

fn wanted() -> Wanted {
    Wanted {
        door: DoorName::E2b,
        template: "base".into(),
        name: None,
        timeout_ms: Some(60_000),
        at_end: AtEnd::Ends,
        idle_ms: None,
        env: BTreeMap::new(),
        labels: BTreeMap::new(),
        reach: Reach::Nothing,
        memory_bytes: None,
        cpu_milli: None,
        disk_bytes: None,
        home: "/home/user".into(),
        user: "user".into(),
    }
}

pub(crate) fn shell(script: &str) -> Start {
    Start {
        argv: vec!["/bin/bash".into(), "-l".into(), "-c".into(), script.into()],
        env: BTreeMap::new(),
        cwd: None,
        timeout_ms: Some(30_000),
        stdin: false,
        terminal: None,
        tag: None,
        session: None,
        approved: None,
    }
}

#[track_caller]
pub(crate) fn end_of(process: &Process) -> End {
    let began = Instant::now();
    loop {
        if let Some(end) = process.end() {
            return end;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "the command does not end");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Puts a policy in force that forbids a program.
pub(crate) fn forbid(house: &House, program: &str) {
    forbid_when(house, &format!("context.cmd.programs.contains(\"{program}\")"));
}

/// Puts a policy in force that forbids commands of which this is true.
pub(crate) fn forbid_when(house: &House, condition: &str) {
    let mut files: PolicyFiles = Preset::Default.into();
    let rule = format!(
        "\n@id(\"forbidden\")\n@reason(\"not this\")\nforbid (principal, action == \
         Action::\"exec\", resource)\nwhen {{ {condition} }};\n"
    );
    files.rules.push_str(&rule);
    files.examples.clear();
    write_policy(house.desk.plane().home().root(), &files).unwrap();
}

impl House {
    /// Returns the keys that vouch for every receipt of the house.
    pub(crate) fn trusted(&self) -> TrustedKeys {
        let home = self.desk.plane().home();
        TrustedKeys::none()
            .and(KeyRole::Plane, home.plane_key().public().clone())
            .and(KeyRole::Runner, home.plane_key().public().clone())
            .and(KeyRole::Runner, home.runner_key().public().clone())
    }

    pub(crate) fn bundle(&self, run: &warrant_protocol::RunId) -> String {
        self.desk.plane().bundle(run).unwrap().to_string()
    }

    pub(crate) fn create(&self) -> Sandbox {
        self.live.create(&guest("one"), wanted()).unwrap()
    }

    #[track_caller]
    pub(crate) fn run(&self, sandbox: &Sandbox, script: &str) -> (Outcome, String) {
        let process = self.live.start(&guest("one"), &sandbox.id, shell(script)).unwrap();
        let end = end_of(&process);
        (end.outcome, process.text(Some(ChunkStream::Stdout)))
    }

    pub(crate) fn file(
        &self,
        sandbox: &Sandbox,
        call: FileCall,
    ) -> Result<FileAnswer, WorkshopError> {
        self.live.file(&guest("one"), &sandbox.id, call).map(|(answer, _)| answer)
    }

    pub(crate) fn directory(&self, sandbox: &Sandbox) -> std::path::PathBuf {
        self.desk.plane().home().data().join("live").join(&sandbox.id)
    }
}

#[test]
fn files_outlive_a_command_and_nothing_outlives_the_sandbox() {
    let house = house();
    let sandbox = house.create();
    let (outcome, _) = house.run(&sandbox, "echo kept > ~/file; echo shared > /tmp/file");
    assert_eq!(outcome, Outcome::Exited { code: 0 });
    assert_eq!(house.run(&sandbox, "cat ~/file /tmp/file").1, "kept\nshared\n");
    let background = house.live.start(&guest("one"), &sandbox.id, shell("sleep 60")).unwrap();
    assert!(house.directory(&sandbox).exists());
    let run = house.live.destroy(&guest("one"), &sandbox.id).unwrap();
    assert_eq!(end_of(&background).outcome, Outcome::Cancelled);
    assert!(!house.directory(&sandbox).exists());
    assert_eq!(house.desk.plane().store().run(&run).unwrap().state, RunState::Completed);
    assert!(matches!(
        house.live.destroy(&guest("one"), &sandbox.id),
        Err(WorkshopError::NoSandbox)
    ));
}

#[test]
fn commands_that_begin_at_once_cannot_pass_the_limit() {
    let house = house();
    let sandbox = house.create();
    let started = std::thread::scope(|scope| {
        let start = || house.live.start(&guest("one"), &sandbox.id, shell("sleep 60"));
        let all: Vec<_> = (0..48).map(|_| scope.spawn(start)).collect();
        all.into_iter().map(|each| each.join().unwrap()).filter(Result::is_ok).count()
    });
    assert_eq!(started, 32);
    house.live.destroy(&guest("one"), &sandbox.id).unwrap();
}

#[test]
fn whatever_is_permitted_while_a_sandbox_ends_has_its_receipt() {
    let house = house();
    for _ in 0..8 {
        let sandbox = house.create();
        std::thread::scope(|scope| {
            for _ in 0..6 {
                scope.spawn(|| {
                    while house.live.start(&guest("one"), &sandbox.id, shell("true")).is_ok() {}
                });
            }
            std::thread::sleep(Duration::from_millis(30));
            house.live.destroy(&guest("one"), &sandbox.id).unwrap();
        });
    }
    let filter = RunFilter { limit: Some(1000), ..RunFilter::default() };
    for run in house.desk.plane().store().list(&filter).unwrap().runs {
        assert!(house.desk.plane().bundle(&run.id).is_ok(), "{} {:?}", run.id, run.state);
    }
}

#[test]
fn output_of_many_commands_cannot_fill_the_memory() {
    let house = house();
    let sandbox = house.create();
    let script = "head -c 8000000 /dev/zero | tr '\\0' a";
    for _ in 0..6 {
        assert_eq!(house.run(&sandbox, script).1.len(), 8_000_000);
    }
    let all = house.live.processes(&guest("one"), &sandbox.id).unwrap();
    let kept: usize = all.iter().map(|process| process.kept_bytes()).sum();
    assert!(kept <= 32 * 1024 * 1024, "{kept}");
    let first = all.first().unwrap().text(None);
    assert_eq!(first, "[8000000 bytes of output before this are not kept]\n", "and it is told");
}

#[test]
fn watchers_that_never_read_cannot_fill_the_memory() {
    let house = house();
    let sandbox = house.create();
    let script = "head -c 16000000 /dev/zero | tr '\\0' a";
    let watched = (0..12).map(|_| {
        let process = house.live.start(&guest("one"), &sandbox.id, shell(script)).unwrap();
        let attended = process.attend();
        end_of(&process);
        attended
    });
    let watched: Vec<_> = watched.collect();
    // What the last one holds is counted once its seat is given back.
    wait_until("too much is kept", || {
        watched.iter().map(|process| process.kept_bytes()).sum::<usize>() <= 128 * 1024 * 1024
    });
    assert_eq!(watched[11].text(None).len(), 16_000_000, "the last one is whole");
    let told = "[16000000 bytes of output before this are not kept]\n";
    assert_eq!(watched[0].text(None), told, "and it is told");
}

#[test]
fn a_policy_put_in_force_meanwhile_judges_the_next_call_of_a_sandbox() {
    let house = house();
    let sandbox = house.create();
    let root = house.desk.plane().home().root().to_owned();
    let start = || house.live.start(&guest("one"), &sandbox.id, shell("touch ran"));
    end_of(&start().unwrap());
    write_policy(&root, &Preset::Strict.into()).unwrap();
    assert!(start().is_err(), "the stricter policy counts");
    std::fs::write(root.join("policy/document.json"), "{").unwrap();
    assert!(start().is_err(), "the stricter one stays in force");
    assert!(house.live.create(&guest("one"), wanted()).is_err());
    write_policy(&root, &Preset::Default.into()).unwrap();
    end_of(&start().unwrap());
    std::fs::write(root.join("policy/document.json"), "{").unwrap();
    house.live.destroy(&guest("one"), &sandbox.id).unwrap();
    assert!(!house.directory(&sandbox).exists(), "an end needs no policy");
}

#[test]
fn another_guest_cannot_see_or_use_a_sandbox() {
    let house = house();
    let sandbox = house.create();
    let other = guest("two");
    assert!(house.live.list(&other, DoorName::E2b).is_empty());
    assert!(matches!(house.live.find(&other, &sandbox.id), Err(WorkshopError::NoSandbox)));
    assert!(matches!(
        house.live.start(&other, &sandbox.id, shell("id")),
        Err(WorkshopError::NoSandbox)
    ));
    let read = FileCall::Read { path: "x".into() };
    assert!(matches!(house.live.file(&other, &sandbox.id, read), Err(WorkshopError::NoSandbox)));
    assert!(matches!(house.live.destroy(&other, &sandbox.id), Err(WorkshopError::NoSandbox)));
    assert!(house.live.owner(&sandbox.id, "guessed").is_none());
    assert_eq!(house.live.owner(&sandbox.id, &sandbox.access_token), Some(guest("one")));
    let second = house.live.create(&other, wanted()).unwrap();
    let named = |sandbox: &Sandbox| house.live.named_by(&sandbox.access_token);
    assert_eq!(named(&sandbox).as_ref(), Some(&sandbox.id));
    assert_eq!(named(&second).as_ref(), Some(&second.id));
    assert!(house.live.named_by("guessed").is_none() && house.live.named_by("").is_none());
    house.live.destroy(&other, &second.id).unwrap();
    assert!(named(&second).is_none(), "a token ends with its sandbox");
}

#[test]
fn a_path_of_this_machine_is_not_in_a_sandbox_and_nobody_is_asked_about_it() {
    let (home, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir_in("/var").unwrap());
    let told = outside.path().join("told");
    std::fs::write(&told, "told\n").unwrap();
    // Everybody else would be asked about it.
    let desk = Arc::new(asking_desk(home.path(), outside.path()));
    let live = Live::open(Arc::clone(&desk), Arc::new(Namespace::new())).unwrap();
    let house = House { _home: home, desk, live };
    let sandbox = house.create();
    for script in [format!("cat {}", told.display()), format!("echo x >> {}", told.display())] {
        let process = house.live.start(&guest("one"), &sandbox.id, shell(&script)).unwrap();
        assert_eq!(end_of(&process).outcome, Outcome::Exited { code: 1 }, "{script}");
        assert_eq!(process.text(Some(ChunkStream::Stdout)), "", "{script}");
        let bundle = house.desk.plane().bundle(&process.facts().run).unwrap().to_string();
        for never in ["gap.found", "grant.added", "approval.granted"] {
            assert!(!bundle.contains(never), "{script}: {never}");
        }
    }
    let read = FileCall::Read { path: told.to_str().unwrap().into() };
    assert!(house.file(&sandbox, read).is_err());
    assert_eq!(std::fs::read_to_string(&told).unwrap(), "told\n");
}

#[test]
fn what_policy_denies_never_runs_however_it_is_wrapped() {
    let house = house();
    let sandbox = house.create();
    // `sudo id`, in base64.
    let forms = [
        "touch ~/ran; sudo id",
        "echo c3VkbyBpZA== | base64 -d | sh",
        "sh -c \"echo 'c3VkbyBpZA==' | base64 -d | sh\"",
        "export A='b' && cd /tmp && (sudo id)",
    ];
    for form in forms {
        let refusal = house.live.start(&guest("one"), &sandbox.id, shell(form)).unwrap_err();
        let Some(run) = refusal.run() else { panic!("{form}: {refusal}") };
        assert!(
            matches!(refusal, WorkshopError::Denied { .. } | WorkshopError::Waiting { .. }),
            "{form}: {refusal}"
        );
        assert!(house.desk.plane().store().run(run).is_ok(), "{form} leaves evidence");
    }
    assert_eq!(house.run(&sandbox, "ls ~").1, "");
}

#[test]
fn link_planted_inside_cannot_lead_a_file_call_out() {
    let house = house();
    let sandbox = house.create();
    let script = "ln -s /etc/passwd ~/leak; ln -s / ~/root; mkfifo ~/pipe; ln -s ../../../.. ~/up";
    assert_eq!(house.run(&sandbox, script).0, Outcome::Exited { code: 0 });
    for path in ["leak", "root/etc/passwd", "pipe", "up/etc/passwd", "../../../etc/passwd"] {
        let read = house.file(&sandbox, FileCall::Read { path: path.into() });
        assert!(matches!(read, Err(WorkshopError::File { .. })), "{path}: {read:?}");
        let write = FileCall::Write { path: path.into(), content: "x".into(), mode: None };
        let written = house.file(&sandbox, write);
        assert!(matches!(written, Err(WorkshopError::File { .. })), "{path}: {written:?}");
    }
    let remove = FileCall::Remove { path: "root".into(), recursive: true };
    house.file(&sandbox, remove).unwrap();
    assert!(Path::new("/etc/passwd").exists());
}

#[test]
fn what_policy_masks_cannot_be_read_through_a_file_call() {
    let house = house();
    let sandbox = house.create();
    let content = "TOKEN=1".into();
    house.file(&sandbox, FileCall::Write { path: ".env".into(), content, mode: None }).unwrap();
    let read = house.file(&sandbox, FileCall::Read { path: ".env".into() });
    let Err(WorkshopError::File { fault, .. }) = read else { panic!("{read:?}") };
    assert_eq!(fault, FileFault::Forbidden);
    assert_eq!(house.run(&sandbox, "cat .env").1, "");
}

#[test]
fn an_expired_sandbox_leaves_nothing_and_its_receipt_says_why() {
    let house = house();
    let sandbox =
        house.live.create(&guest("one"), Wanted { timeout_ms: Some(400), ..wanted() }).unwrap();
    wait_until("it does not expire", || house.live.find(&guest("one"), &sandbox.id).is_err());
    wait_until("its files stay", || !house.directory(&sandbox).exists());
    house.live.close();
    let row = house.desk.plane().store().run(&sandbox.run).unwrap();
    assert_eq!(row.state, RunState::Failed);
}

#[test]
fn an_idle_sandbox_is_paused_and_takes_commands_again() {
    let house = house();
    let idle = Wanted { idle_ms: Some(300), ..wanted() };
    let sandbox = house.live.create(&guest("one"), idle).unwrap();
    wait_for(&house, &sandbox, Life::Paused);
    let refused = house.live.start(&guest("one"), &sandbox.id, shell("true"));
    assert!(matches!(refused, Err(WorkshopError::Paused)));
    house.live.set_idle(&guest("one"), &sandbox.id, None).unwrap();
    house.live.resume(&guest("one"), &sandbox.id).unwrap();
    assert_eq!(house.run(&sandbox, "echo back").1, "back\n");
    let running = house.live.start(&guest("one"), &sandbox.id, shell("sleep 60")).unwrap();
    let pause = house.live.pause(&guest("one"), &sandbox.id, EndsCommands::No);
    assert!(matches!(pause, Err(WorkshopError::Busy(_))));
    house.live.pause(&guest("one"), &sandbox.id, EndsCommands::Yes).unwrap();
    assert_eq!(end_of(&running).outcome, Outcome::Cancelled);
}

#[test]
fn a_command_that_was_killed_hinders_no_pause() {
    let house = house();
    let (sandbox, one) = (house.create(), guest("one"));
    for _ in 0..5 {
        let killed = house.live.start(&one, &sandbox.id, shell("sleep 60")).unwrap();
        killed.grip().kill();
        house.live.pause(&one, &sandbox.id, EndsCommands::No).unwrap();
        assert_eq!(end_of(&killed).outcome, Outcome::Cancelled);
        house.live.resume(&one, &sandbox.id).unwrap();
    }
}

#[test]
fn every_change_of_a_sandbox_has_a_receipt_of_its_own() {
    let house = house();
    let (sandbox, one) = (house.create(), guest("one"));
    let id = sandbox.id.as_str();
    let labels = BTreeMap::from([("tier".to_owned(), "kept-from-contracts".to_owned())]);
    let changes = [
        house.live.extend(&one, id, 90_000).unwrap(),
        house.live.set_idle(&one, id, Some(3_600_000)).unwrap(),
        house.live.set_paused_end(&one, id, None).unwrap(),
        house.live.set_labels(&one, id, labels).unwrap(),
        house.live.set_reach(&one, id, Reach::Nothing).unwrap(),
        house.live.pause(&one, id, EndsCommands::Yes).unwrap(),
        house.live.resume(&one, id).unwrap(),
    ];
    let words = ["extend", "idle", "end-paused", "label", "network", "pause", "resume"];
    let mut runs = vec![sandbox.run.clone()];
    for (changed, word) in changes.iter().zip(words) {
        assert!(!runs.contains(&changed.run), "{word}");
        runs.push(changed.run.clone());
        let bundle = house.bundle(&changed.run);
        assert!(bundle.contains(&format!("sandbox {word} {id}")), "{word}: {bundle}");
        assert!(!bundle.contains("kept-from-contracts"), "{word}");
        let row = house.desk.plane().store().run(&changed.run).unwrap();
        assert_eq!(row.state, RunState::Completed, "{word}");
    }
    let refused = house.live.extend(&one, id, 30 * 3_600_000);
    assert!(matches!(refused, Err(WorkshopError::Invalid(_))), "nothing was changed");
    assert_eq!(house.live.find(&one, id).unwrap().life, Life::Running);
}

#[test]
fn a_policy_that_forbids_it_lets_no_change_be_made_but_a_pause() {
    let house = house();
    let (sandbox, one) = (house.create(), guest("one"));
    forbid(&house, "sandbox");
    let id = sandbox.id.as_str();
    let denied = |made: Result<_, WorkshopError>| {
        assert!(matches!(made.map(|_| ()), Err(WorkshopError::Denied { .. })));
    };
    denied(house.live.extend(&one, id, 90_000));
    denied(house.live.set_idle(&one, id, Some(1)));
    denied(house.live.set_labels(&one, id, BTreeMap::from([("a".into(), "b".into())])));
    denied(house.live.set_reach(&one, id, Reach::Nothing));
    let now = house.live.find(&one, id).unwrap();
    assert_eq!((now.ends_at, now.wanted.labels.len()), (sandbox.ends_at, 0));
    let paused = house.live.pause(&one, id, EndsCommands::Yes).unwrap();
    assert!(house.bundle(&paused.run).contains("is not refused"));
    denied(house.live.resume(&one, id));
    assert_eq!(house.live.find(&one, id).unwrap().life, Life::Paused);
}

#[test]
fn what_a_sandbox_uses_is_measured_from_its_own_processes_and_files() {
    let house = house();
    let small = Wanted { disk_bytes: Some(256 << 20), memory_bytes: Some(512 << 20), ..wanted() };
    let sandbox = house.live.create(&guest("one"), small).unwrap();
    let one = guest("one");
    let newest = || *house.live.measures(&one, &sandbox.id).unwrap().last().unwrap();
    let idle = newest();
    assert_eq!((idle.memory_used, idle.memory_mapped), (0, 0), "nothing runs: {idle:?}");
    assert_eq!((idle.memory_total, idle.disk_total), (512 << 20, 256 << 20));
    let script = "head -c 9000000 /dev/zero > ~/file; echo ready; while true; do :; done";
    let busy = house.live.start(&one, &sandbox.id, shell(script)).unwrap();
    let began = Instant::now();
    let is_seen = |measure: &warrant_plane::doors::Measure| {
        measure.cpu_used_pct > 0.0 && measure.memory_used > 0 && measure.disk_used >= 9_000_000
    };
    while !is_seen(&newest()) {
        assert!(began.elapsed() < Duration::from_secs(25), "{:?}", newest());
        std::thread::sleep(Duration::from_millis(50));
    }
    let seen = newest();
    assert!(seen.cpu_used_pct <= 100.0 && seen.disk_used < 64 << 20, "{seen:?}");
    busy.grip().kill();
    end_of(&busy);
    while newest().memory_used > 0 {
        assert!(began.elapsed() < Duration::from_secs(60), "{:?}", newest());
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(house.live.measures(&guest("two"), &sandbox.id).is_err(), "for others it is not there");
}

#[test]
fn a_pause_ends_no_command_that_came_after_it() {
    let house = house();
    let (sandbox, one) = (house.create(), guest("one"));
    for _ in 0..3 {
        let start = || house.live.start(&one, &sandbox.id, shell("sleep 60")).unwrap();
        let before: Vec<_> = (0..28).map(|_| start()).collect();
        std::thread::scope(|scope| {
            scope.spawn(|| house.live.pause(&one, &sandbox.id, EndsCommands::Yes).unwrap());
            wait_for(&house, &sandbox, Life::Paused);
            house.live.resume(&one, &sandbox.id).unwrap();
            assert_eq!(house.run(&sandbox, "echo after").1, "after\n");
        });
        for ended in before {
            assert_eq!(end_of(&ended).outcome, Outcome::Cancelled);
        }
    }
}

/// Waits until something is so. Nothing that is tested depends on how long that takes.
#[track_caller]
fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Waits until a sandbox is in this state.
#[track_caller]
fn wait_for(house: &House, sandbox: &Sandbox, life: Life) {
    let is_so = || house.live.find(&guest("one"), &sandbox.id).unwrap().life == life;
    wait_until(&format!("it does not come to {life:?}"), is_so);
}

/// Gives the reaper time to look a few times; one that has none to look does no harm either.
fn let_the_reaper_look() {
    std::thread::sleep(Duration::from_secs(1));
}

/// A command that has begun when `begun` is there, and ends when it finds `go`.
fn waiting(begin: &str) -> Start {
    let script = format!("{begin}; touch begun; until [ -e go ]; do sleep 0.1; done; echo whole");
    Start { timeout_ms: Some(600_000), ..shell(&script) }
}

#[test]
fn a_sandbox_that_pauses_at_its_end_keeps_its_files_and_its_commands() {
    let house = house();
    let one = guest("one");
    let pauses = |ends, wakes| Wanted {
        timeout_ms: Some(600_000),
        at_end: AtEnd::Pauses(ends, wakes),
        ..wanted()
    };
    let home = |sandbox: &Sandbox| house.directory(sandbox).join("home");
    let wished = pauses(EndsCommands::No, Wakes::WhenResumed);
    let sandbox = house.live.create(&one, wished).unwrap();
    let running = house.live.start(&one, &sandbox.id, waiting("echo kept > file")).unwrap();
    wait_until("it does not begin", || home(&sandbox).join("begun").exists());
    house.live.extend(&one, &sandbox.id, 1).unwrap();
    let_the_reaper_look();
    assert_eq!(house.live.find(&one, &sandbox.id).unwrap().life, Life::Running);
    assert!(running.end().is_none(), "its command goes on");
    std::fs::write(home(&sandbox).join("go"), "").unwrap();
    assert_eq!(end_of(&running).outcome, Outcome::Exited { code: 0 });
    assert_eq!(running.text(Some(ChunkStream::Stdout)), "whole\n");
    wait_for(&house, &sandbox, Life::Paused);
    let refused = house.live.start(&one, &sandbox.id, shell("true"));
    assert!(matches!(refused, Err(WorkshopError::Paused)));
    let awake = house.live.resume(&one, &sandbox.id).unwrap();
    assert!(awake.sandbox.ends_at > warrant_plane::random::now().unwrap(), "it has its time again");
    assert_eq!(house.run(&sandbox, "cat file").1, "kept\n");

    let ending = pauses(EndsCommands::Yes, Wakes::ByCalls);
    let sandbox = house.live.create(&one, ending).unwrap();
    let running = house.live.start(&one, &sandbox.id, waiting("true")).unwrap();
    house.live.extend(&one, &sandbox.id, 1).unwrap();
    wait_for(&house, &sandbox, Life::Paused);
    assert_eq!(end_of(&running).outcome, Outcome::Cancelled);
    assert_eq!(house.run(&sandbox, "echo awake").1, "awake\n", "a call wakes it");
    house.live.extend(&one, &sandbox.id, 1).unwrap();
    wait_for(&house, &sandbox, Life::Paused);
    house.live.destroy(&one, &sandbox.id).unwrap();
    assert!(!house.directory(&sandbox).exists());
}

#[test]
fn a_stopped_sandbox_ends_after_the_time_that_was_set_for_it() {
    let house = house();
    let (left, kept) = (house.create(), house.create());
    let one = guest("one");
    house.live.set_paused_end(&one, &left.id, Some(600_000)).unwrap();
    for sandbox in [&left, &kept] {
        house.live.pause(&one, &sandbox.id, EndsCommands::Yes).unwrap();
    }
    let_the_reaper_look();
    house.live.resume(&one, &left.id).expect("its time is not over");
    house.live.set_paused_end(&one, &left.id, Some(1)).unwrap();
    let_the_reaper_look();
    assert!(house.live.find(&one, &left.id).is_ok(), "it was resumed in time");
    house.live.pause(&one, &left.id, EndsCommands::Yes).unwrap();
    wait_until("it is still there", || house.live.find(&one, &left.id).is_err());
    wait_until("its files stay", || !house.directory(&left).exists());
    assert!(house.live.find(&one, &kept.id).is_ok(), "nothing was set for this one");
}

#[test]
fn a_sandbox_cannot_outlive_what_policy_lets() {
    let house = house();
    let long = Wanted { timeout_ms: Some(30 * 3_600_000), ..wanted() };
    assert!(matches!(house.live.create(&guest("one"), long), Err(WorkshopError::Invalid(_))));
    let sandbox = house.create();
    let extended = house.live.extend(&guest("one"), &sandbox.id, 30 * 3_600_000);
    assert!(matches!(extended, Err(WorkshopError::Invalid(_))));
    let hosts = Wanted { reach: Reach::Hosts(vec!["example.org".into()]), ..wanted() };
    assert!(matches!(house.live.create(&guest("one"), hosts), Err(WorkshopError::Denied { .. })));
}

#[test]
fn files_beyond_the_limit_end_the_command() {
    let house = house();
    let small = Wanted { disk_bytes: Some(4 << 20), ..wanted() };
    let sandbox = house.live.create(&guest("one"), small).unwrap();
    let script = "head -c 32000000 /dev/zero > ~/big; sleep 20; echo survived";
    let (outcome, said) = house.run(&sandbox, script);
    assert_eq!(outcome, Outcome::Limited { limit: LimitKind::Disk });
    assert_eq!(said, "");
    let write = FileCall::Write { path: "more".into(), content: "x".into(), mode: None };
    let full = house.file(&sandbox, write);
    assert!(
        matches!(full, Err(WorkshopError::File { fault: FileFault::TooLarge, .. })),
        "{full:?}"
    );
}

#[test]
fn leftovers_of_an_earlier_process_are_removed() {
    let house = house();
    let root = house.desk.plane().home().data().join("live");
    assert!(matches!(
        Live::open(Arc::clone(&house.desk), Arc::new(Namespace::new())),
        Err(LiveError::Taken)
    ));
    let desk = Arc::clone(&house.desk);
    drop(house.live);
    std::fs::create_dir_all(root.join("sbxdead/home")).unwrap();
    std::fs::write(root.join("sbxdead/home/file"), "x").unwrap();
    let began = Instant::now();
    // The reaper of the first lets go within its next look.
    let live = loop {
        match Live::open(Arc::clone(&desk), Arc::new(Namespace::new())) {
            Ok(live) => break live,
            Err(LiveError::Taken) if began.elapsed() < Duration::from_secs(60) => {
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(error) => panic!("{error}"),
        }
    };
    assert!(!root.join("sbxdead").exists());
    live.close();
}

#[test]
fn a_revoked_token_opens_nothing() {
    let home = tempfile::tempdir().unwrap();
    let tokens = TokenFile::of(home.path());
    let token = tokens.issue("ci").unwrap();
    assert!(tokens.issue("ci").is_err() && tokens.issue("a/b").is_err());
    assert_eq!(tokens.admit(&token).unwrap().id, "door-ci");
    assert!(tokens.admit("e2b_0").is_none() && tokens.admit("").is_none());
    assert!(!std::fs::read_to_string(home.path().join("doors.json")).unwrap().contains(&token));
    assert!(tokens.revoke("ci").unwrap() && !tokens.revoke("ci").unwrap());
    assert!(tokens.admit(&token).is_none());
}

#[test]
fn a_token_revoked_while_its_file_is_remembered_opens_nothing() {
    let home = tempfile::tempdir().unwrap();
    let tokens = TokenFile::of(home.path());
    let (token, other) = (tokens.issue("ci").unwrap(), tokens.issue("ide").unwrap());
    let path = home.path().join("doors.json");
    let issued = std::fs::metadata(&path).unwrap().modified().unwrap();
    // A file is remembered once it has not changed for a while.
    while issued.elapsed().unwrap_or_default() < Duration::from_secs(3) {
        std::thread::sleep(Duration::from_millis(100));
        assert!(tokens.admit(&token).is_some());
    }
    // Another process revokes it.
    assert!(TokenFile::of(home.path()).revoke("ci").unwrap());
    assert!(tokens.admit(&token).is_none() && tokens.admit(&other).is_some());
    std::fs::remove_file(&path).unwrap();
    assert!(tokens.admit(&other).is_none());
}
