//! Sessions of commands: what goes on from one to the next, and what a program inside can make of it.

use warrant_plane::doors::{
    ChunkStream, FileCall, Process, Sandbox, ShellSession, Start, Workshop as _, WorkshopError,
};

use crate::live::{House, end_of, forbid_when, guest, house, shell};

fn in_session(name: &str, script: &str) -> Start {
    let argv = vec!["bash".to_owned(), "-c".to_owned(), script.to_owned()];
    let session = Some(ShellSession { name: name.to_owned(), cwd: None });
    Start { argv, session, ..shell(script) }
}

fn start(
    house: &House,
    sandbox: &Sandbox,
    (name, script): (&str, &str),
) -> Result<std::sync::Arc<Process>, WorkshopError> {
    house.live.start(&guest("one"), &sandbox.id, in_session(name, script))
}

#[track_caller]
fn say(house: &House, sandbox: &Sandbox, (name, script): (&str, &str)) -> String {
    let process = start(house, sandbox, (name, script)).unwrap();
    end_of(&process);
    process.text(Some(ChunkStream::Stdout))
}

/// A line that leaves as its session's state what it likes, as any program it starts could.
fn forging(variable: &str) -> String {
    format!(
        "trap - EXIT; printf '/tmp\\0\\0A=1\\0%s\\0' '{variable}' > /run/warrant-shell/state; echo done"
    )
}

#[test]
fn the_state_of_a_session_cannot_be_forged_by_a_file_call() {
    let house = house();
    let sandbox = house.create();
    say(&house, &sandbox, ("s", "cd /tmp; export KEPT=1"));
    for path in ["/run/warrant-shell/state", "/run/warrant-shell/begin.sh", "../../shells/x/state"]
    {
        let content = b"/tmp\0\0LD_PRELOAD=/tmp/evil.so\0".as_slice().into();
        for call in [
            FileCall::Write { path: path.to_owned(), content, mode: None },
            FileCall::MakeDirectory { path: path.to_owned(), mode: None },
            FileCall::Move { from: "/tmp".to_owned(), to: path.to_owned() },
            FileCall::Remove { path: path.to_owned(), recursive: true },
            FileCall::Read { path: path.to_owned() },
        ] {
            let done = house.file(&sandbox, call.clone());
            assert!(matches!(done, Err(WorkshopError::File { .. })), "{call:?}: {done:?}");
        }
    }
    assert_eq!(say(&house, &sandbox, ("s", "pwd; echo $KEPT")), "/tmp\n1\n");
}

#[test]
fn a_command_sees_nothing_of_the_state_of_a_session_of_others() {
    let house = house();
    let sandbox = house.create();
    let going = start(&house, &sandbox, ("s", "echo mine > /run/warrant-shell/mine; sleep 60"));
    let going = going.unwrap();
    while !house.directory(&sandbox).join("shells").join(going.facts().run.as_str()).exists() {
        std::thread::yield_now();
    }
    assert_eq!(house.run(&sandbox, "ls /run/warrant-shell 2>&1 | grep -c state; true").1, "0\n");
    assert_eq!(say(&house, &sandbox, ("s", "ls /run/warrant-shell")), "before\nbegin.sh\n");
    going.grip().kill();
    end_of(&going);
    let left = std::fs::read_dir(house.directory(&sandbox).join("shells")).unwrap().count();
    assert_eq!(left, 0, "what a command had is gone with it");
}

#[test]
fn a_forged_path_makes_the_next_command_one_that_cannot_be_named() {
    let house = house();
    let sandbox = house.create();
    say(&house, &sandbox, ("honest", "cd /tmp; export KEPT=1"));
    assert_eq!(say(&house, &sandbox, ("s", &forging("PATH=/tmp/evil:/usr/bin"))), "done\n");
    assert_eq!(say(&house, &sandbox, ("s", "pwd; echo $PATH")), "/tmp\n/tmp/evil:/usr/bin\n");
    forbid_when(&house, "context.cmd.dynamic");
    let refused = start(&house, &sandbox, ("s", "ls"));
    assert!(matches!(refused, Err(WorkshopError::Denied { .. })), "{refused:?}");
    assert_eq!(say(&house, &sandbox, ("honest", "pwd; echo $KEPT")), "/tmp\n1\n");
}

#[test]
fn a_forged_state_cannot_turn_an_allowed_word_into_another_program() {
    let house = house();
    let sandbox = house.create();
    for variable in ["BASH_FUNC_pwd%%=() { echo forged; }", "LD_PRELOAD=/tmp/evil.so", "PS4=$(id)"]
    {
        assert_eq!(say(&house, &sandbox, ("s", &forging(variable))), "done\n");
        let name = variable.split(['=', '%']).next().unwrap();
        let script = format!("set -x; cd /; pwd; env | grep -c ^{name}; true");
        assert_eq!(say(&house, &sandbox, ("s", &script)), "/\n0\n", "{variable}");
    }
    // A link to a file of this machine is not followed, whatever it holds.
    let line = "trap - EXIT; ln -sf /proc/self/environ /run/warrant-shell/state; echo done";
    assert_eq!(say(&house, &sandbox, ("s", line)), "done\n");
    let line =
        "trap - EXIT; rm -f /run/warrant-shell/state; mkfifo /run/warrant-shell/state; echo done";
    assert_eq!(say(&house, &sandbox, ("s", line)), "done\n");
    assert_eq!(say(&house, &sandbox, ("s", "pwd")), "/\n", "it is where it was");
}

#[test]
fn a_session_that_ended_leaves_nothing_to_the_next_of_its_name() {
    let house = house();
    let sandbox = house.create();
    say(&house, &sandbox, ("s", "cd /tmp; export KEPT=1"));
    house.live.end_session(&guest("two"), &sandbox.id, "s");
    assert_eq!(
        say(&house, &sandbox, ("s", "pwd; echo $KEPT")),
        "/tmp\n1\n",
        "not another's to end"
    );
    house.live.end_session(&guest("one"), &sandbox.id, "s");
    assert_eq!(say(&house, &sandbox, ("s", "pwd; echo $KEPT")), "/home/user\n\n");
}
