//! Gaps: found before the command runs, and decided row by row of the table.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use warrant_protocol::Limits;
use warrant_sandbox::lowering::{
    Approval, Asked, GapDecision, GapReason, Ground, Lowered, PolicyView, Root, Stopped,
    UnknownPaths, lower, needs, prepare_with_gaps,
};
use warrant_sandbox::{
    Command, EnvValue, EnvVar, Files, Invocation, Network, Shell, Stdin, WorkspaceAccess,
};
use warrant_script::Access;

const NOBODY: PolicyView<'static> = PolicyView { approval: None, has_approver: false };

fn invocation(script: &str) -> Invocation {
    Invocation {
        command: Command::Shell { shell: Shell::Sh, script: script.into() },
        cwd: "/ws/src".into(),
        env: vec![EnvVar { name: "HOME".into(), value: EnvValue::Plain("/home/me".into()) }],
        stdin: Stdin::Empty,
        tty: None,
        files: Files {
            workspace: "/ws".into(),
            access: WorkspaceAccess::Overlay,
            read_roots: vec!["/data".into()],
            write_roots: vec!["/out".into()],
            places: Vec::new(),
            masks: Vec::new(),
        },
        network: Network::Allow(vec!["good.example".into()]),
        limits: Limits::danger_unlimited(),
        image: None,
        neighbors: None,
    }
}

fn runtime() -> Vec<Root> {
    vec![
        Root { path: "/usr".into(), access: Access::Read },
        Root { path: "/tmp".into(), access: Access::ReadWrite },
        Root { path: "/dev".into(), access: Access::ReadWrite },
    ]
}

/// Prepares where every path is what it is spelled.
fn prepare(invocation: Invocation, view: PolicyView<'_>) -> Result<Lowered, Stopped> {
    let runtime = runtime();
    let real_path = |path: &Path| Some(path.to_path_buf());
    let ground =
        Ground { runtime: &runtime, real_path: &real_path, unknown_paths: UnknownPaths::Warn };
    prepare_with_gaps(invocation, &ground, view)
}

#[track_caller]
fn assert_denied(stopped: Result<Lowered, Stopped>, reason: GapReason) {
    let stopped = stopped.unwrap_err();
    assert!(matches!(stopped.asked, Asked::Nobody(_)), "{stopped:?}");
    assert_eq!(stopped.events.last().unwrap().gap.reason, reason);
}

/// Bob approves of what a script needs, all of it.
fn bob(script: &str) -> Approval {
    let real_path = |path: &Path| Some(path.to_path_buf());
    let runtime = runtime();
    let ground =
        Ground { runtime: &runtime, real_path: &real_path, unknown_paths: UnknownPaths::Warn };
    let roots = needs(&invocation(script), &ground).unwrap_or_default();
    Approval { by: "human:bob".into(), roots }
}

#[test]
fn what_was_given_makes_no_gap() {
    for script in [
        "cat x ../y /ws/z <in >out",
        "cat /data/x /usr/share/dict/words >/dev/null",
        "cp /data/x /out/y; rm -rf /tmp/z *.o",
        "frob /etc/passwd",
        "cat \"$f\"",
    ] {
        let lowered =
            prepare(invocation(script), NOBODY).unwrap_or_else(|s| panic!("{script}: {s:?}"));
        assert!(lowered.events.is_empty() && lowered.lowering.granted.is_empty());
    }
}

#[test]
fn cwd_inside_a_write_root_is_granted_writing_by_policy() {
    let mut inside = invocation("true");
    inside.cwd = "/out/x".into();
    let lowered = prepare(inside, NOBODY).unwrap();
    let root = Root { path: "/out/x".into(), access: Access::ReadWrite };
    assert_eq!(lowered.lowering.granted, [root]);
    let GapDecision::Grant(grant) = &lowered.events[0].decision else { panic!("no grant") };
    assert_eq!(grant.granted_by, "policy");
}

#[test]
fn cwd_inside_a_read_root_is_granted_reading_by_policy() {
    let mut inside = invocation("true");
    inside.cwd = "/data".into();
    let lowered = prepare(inside, NOBODY).unwrap();
    assert_eq!(lowered.lowering.granted, [Root { path: "/data".into(), access: Access::Read }]);
}

#[test]
fn cwd_elsewhere_is_denied_whoever_approves() {
    for cwd in ["/", "/wsx", "/ws/../etc", "/usr"] {
        let mut outside = invocation("true");
        outside.cwd = cwd.into();
        let bob = bob("cat /etc/passwd");
        let view = PolicyView { approval: Some(&bob), has_approver: true };
        assert_denied(prepare(outside, view), GapReason::CwdOutsideDeclaredRoots);
    }
}

#[test]
fn a_path_outside_is_granted_by_the_approver_as_required() {
    let bob = bob("cat /etc/passwd >/srv/copy");
    let view = PolicyView { approval: Some(&bob), has_approver: true };
    let lowered = prepare(invocation("cat /etc/passwd >/srv/copy"), view).unwrap();
    assert_eq!(
        lowered.lowering.granted,
        [
            Root { path: "/srv/copy".into(), access: Access::ReadWrite },
            Root { path: "/etc/passwd".into(), access: Access::Read },
        ]
    );
    assert_eq!(lowered.invocation.files.read_roots, [Path::new("/data"), Path::new("/etc/passwd")]);
    assert_eq!(lowered.invocation.files.write_roots, [Path::new("/out"), Path::new("/srv/copy")]);
    for event in &lowered.events {
        let GapDecision::Grant(grant) = &event.decision else { panic!("no grant") };
        assert_eq!(grant.granted_by, "human:bob");
    }
}

#[test]
fn a_path_outside_without_approval_asks_or_is_denied() {
    for script in ["cat /etc/passwd", "rm -rf /data/x", "echo x >/usr/x", "cd /etc && cat passwd"] {
        assert_denied(prepare(invocation(script), NOBODY), GapReason::PathOutsideDeclaredRoots);
        let view = PolicyView { approval: None, has_approver: true };
        let stopped = prepare(invocation(script), view).unwrap_err();
        assert!(matches!(stopped.asked, Asked::Person { .. }), "{stopped:?}");
    }
}

#[test]
fn an_approval_of_another_path_or_of_less_does_not_count() {
    for (approved, wanted) in [
        ("cat /etc/passwd", "cat /etc/shadow"),
        ("cat /etc/passwd", "cat /etc"),
        ("cat /etc/ssh", "cat /etc/ssh/key"),
        ("cat /srv/copy", "echo x >/srv/copy"),
        ("cat ~/x", "cat ~/y"),
        ("true", "cat /etc/passwd"),
    ] {
        let bob = bob(approved);
        let view = PolicyView { approval: Some(&bob), has_approver: false };
        let stopped = prepare(invocation(wanted), view).unwrap_err();
        assert!(matches!(stopped.asked, Asked::Nobody(_)), "{approved}: {wanted}");
    }
}

#[test]
fn a_link_that_was_put_there_after_the_approval_is_not_followed() {
    let bob = bob("cat /etc/passwd");
    let view = PolicyView { approval: Some(&bob), has_approver: false };
    let real_path = |path: &Path| match path.to_str() {
        Some("/etc/passwd") => Some("/etc/shadow".into()),
        _ => Some(path.to_path_buf()),
    };
    let ground = Ground { runtime: &[], real_path: &real_path, unknown_paths: UnknownPaths::Warn };
    let stopped = prepare_with_gaps(invocation("cat /etc/passwd"), &ground, view);
    assert_denied(stopped, GapReason::PathOutsideDeclaredRoots);
    assert_eq!(needs(&invocation("cat /etc/passwd"), &ground), None, "nobody is asked about it");
}

#[test]
fn what_a_command_needs_is_told_with_its_access_where_an_approval_would_help() {
    let root = |path: &str, access| Root { path: path.into(), access };
    let both = [root("/srv/copy", Access::ReadWrite), root("/etc/passwd", Access::Read)];
    assert_eq!(bob("cat /etc/passwd >/srv/copy").roots, both);
    assert_eq!(bob("cat ~/x").roots, [root("/home/me/x", Access::Read)]);
    for script in ["true", "cat x", "cat ~bob/x", "cat /etc/passwd ~bob/x"] {
        assert_eq!(bob(script).roots, [], "{script}");
    }
}

#[test]
fn an_approved_home_path_is_rewritten_and_granted() {
    for (script, expected) in [
        ("cat $HOME/x", "cat /home/me/x"),
        ("cat ${HOME}/x", "cat /home/me/x"),
        ("cat ~/x", "cat /home/me/x"),
        ("cat \"$HOME\"/x", "cat /home/me/x"),
    ] {
        let bob = bob(script);
        let view = PolicyView { approval: Some(&bob), has_approver: true };
        let lowered = prepare(invocation(script), view).unwrap();
        let Command::Shell { script, .. } = &lowered.invocation.command else { panic!("argv") };
        assert_eq!(script, expected);
        let root = Root { path: "/home/me/x".into(), access: Access::Read };
        assert_eq!(lowered.lowering.granted, [root]);
        assert!(matches!(lowered.events[0].decision, GapDecision::Rewrite { .. }));
    }
}

#[test]
fn a_home_path_in_a_shell_given_as_argv_is_rewritten_too() {
    let bob = bob("cat ~/x");
    let view = PolicyView { approval: Some(&bob), has_approver: true };
    let mut argv = invocation("");
    argv.command =
        Command::Argv { program: "sh".into(), args: vec!["-c".into(), "cat ~/x".into()] };
    let lowered = prepare(argv, view).unwrap();
    let Command::Argv { args, .. } = &lowered.invocation.command else { panic!("shell") };
    assert_eq!(args[1], "cat /home/me/x");
}

#[test]
fn other_dynamic_paths_are_denied() {
    let bob = bob("cat ~/x");
    let approved = PolicyView { approval: Some(&bob), has_approver: true };
    let asked = PolicyView { approval: None, has_approver: true };
    let reason = GapReason::ShellDynamicPathUnresolved;
    assert_denied(prepare(invocation("cat ~/x"), asked), reason);
    assert_denied(prepare(invocation("cat ~bob/x"), approved), reason);
    let mut homeless = invocation("cat ~/x");
    homeless.env.clear();
    assert_denied(prepare(homeless, approved), reason);
    let mut relative = invocation("cat ~/x");
    relative.env[0].value = EnvValue::Plain("ws".into());
    assert_denied(prepare(relative, approved), reason);
}

#[test]
fn unknown_paths_are_gaps_where_policy_says_so() {
    let real_path = |path: &Path| Some(path.to_path_buf());
    let runtime = runtime();
    let ground =
        Ground { runtime: &runtime, real_path: &real_path, unknown_paths: UnknownPaths::Gap };
    let gap = lower(&invocation("cat \"$f\""), &[], &ground).unwrap_err();
    assert_eq!(gap.reason, GapReason::ShellDynamicPathUnresolved);
}

#[test]
fn a_home_inside_the_workspace_is_no_gap() {
    let mut inside = invocation("cat ~/x >$HOME/y");
    inside.env[0].value = EnvValue::Plain("/ws/home".into());
    assert!(prepare(inside, NOBODY).unwrap().events.is_empty());
}

#[test]
fn a_link_out_of_the_workspace_is_outside() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().canonicalize().unwrap();
    fs::create_dir_all(root.join("ws/src")).unwrap();
    fs::create_dir(root.join("secret")).unwrap();
    symlink(root.join("secret"), root.join("ws/src/link")).unwrap();
    let mut linked = invocation("cat link/key");
    linked.files.workspace = root.join("ws");
    linked.cwd = root.join("ws/src");
    let real_path = |path: &Path| {
        let existing = path.ancestors().find(|part| part.exists())?;
        let rest = path.strip_prefix(existing).ok()?;
        Some(existing.canonicalize().ok()?.join(rest))
    };
    let ground = Ground { runtime: &[], real_path: &real_path, unknown_paths: UnknownPaths::Warn };
    let stopped = prepare_with_gaps(linked, &ground, NOBODY);
    assert_denied(stopped, GapReason::PathOutsideDeclaredRoots);
}

#[test]
fn gaps_are_bounded() {
    let root = |i| Root { path: format!("/etc/f{i}").into(), access: Access::Read };
    let bob = Approval { by: "human:bob".into(), roots: (0..40).map(root).collect() };
    let view = PolicyView { approval: Some(&bob), has_approver: true };
    let script: String = (0..40).map(|i| format!("cat /etc/f{i}\n")).collect();
    let stopped = prepare(invocation(&script), view).unwrap_err();
    assert!(matches!(stopped.asked, Asked::Nobody(_)));
    assert_eq!(stopped.events.len(), 17);
}

#[test]
fn the_report_reads_without_running_anything() {
    let lowered = prepare(invocation("frob /opt/x; curl https://evil.example/x"), NOBODY).unwrap();
    let report = lowered.lowering.to_value();
    assert_eq!(report["declaredRoots"][0]["path"], "/ws");
    assert_eq!(report["declaredRoots"][0]["access"], "readwrite");
    assert_eq!(report["effects"][0]["confidence"], "low");
    assert_eq!(
        report["warnings"],
        serde_json::json!([
            "frob may use /opt/x, which it was not given",
            "the command mentions evil.example, which it may not reach",
        ])
    );
}
