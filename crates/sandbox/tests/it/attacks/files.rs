//! Attacks on files: outside the workspace, through links and descriptors, on masked secrets, on
//! what gets executed later, and on the kernel's own files.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use warrant_sandbox::WorkspaceAccess;

use crate::attacks::scene::{Scene, Verdict};

crate::attacks::attacks!("files":
    write_outside_the_workspace Always,
    symlink_cannot_leave_workspace Always,
    hard_link_cannot_reach_outside Always,
    rename_cannot_reach_outside Always,
    proc_self_root_shows_no_host Always,
    proc_cwd_of_others_shows_no_host Always,
    inherited_descriptors_are_closed Always,
    masked_secret_is_not_readable Always,
    masked_secret_is_not_readable_by_hard_link Always,
    masked_secret_is_not_readable_in_other_case Always,
    masked_secret_behind_a_symlink_is_not_readable Always,
    masked_secret_is_not_readable_by_renaming_its_parent Always,
    masked_secret_appearing_after_start_is_not_readable Always,
    masked_secret_is_not_destroyed Always,
    home_credentials_are_not_readable Always,
    git_hooks_are_not_written_to_the_workspace Always,
    nested_git_hooks_are_not_written_to_the_workspace Always,
    bare_repository_is_not_planted Always,
    editor_tasks_and_envrc_are_not_written Always,
    set_user_id_file_is_not_left_behind Always,
    nothing_is_left_in_the_workspace_after_a_kill Always,
    proc_sys_is_not_writable Always,
    sysrq_is_not_writable Perhaps,
    core_pattern_is_not_writable Always,
    block_devices_are_not_there Perhaps,
    mknod_makes_no_device Always,
    open_by_handle_is_refused Always,
    cgroup_files_are_not_there Always,
    tmp_is_not_shared Always,
    dev_shm_is_not_shared Always,
    system_is_not_writable Always,
);

fn write_outside_the_workspace(scene: &Scene) -> Verdict {
    scene.play("echo x > $OUTSIDE/planted; mkdir -p $OUTSIDE && echo x > $OUTSIDE/planted");
    Verdict::broken_if(scene.outside().join("planted").exists(), "a file outside was written")
}

fn symlink_cannot_leave_workspace(scene: &Scene) -> Verdict {
    let played = scene.play("ln -s $OUTSIDE out; echo x > out/planted; cat out/secret");
    let planted = scene.outside().join("planted").exists();
    Verdict::broken_if(planted || played.said("host secret"), "a link led outside")
}

fn hard_link_cannot_reach_outside(scene: &Scene) -> Verdict {
    let played = scene.play("ln $OUTSIDE/secret here && cat here");
    Verdict::broken_if(played.said("host secret"), "a hard link led outside")
}

fn rename_cannot_reach_outside(scene: &Scene) -> Verdict {
    scene.play("mv $OUTSIDE/secret here; echo x > mine; mv mine $OUTSIDE/mine");
    let stolen = !scene.outside().join("secret").exists();
    let planted = scene.outside().join("mine").exists();
    Verdict::broken_if(stolen || planted, "a rename crossed the boundary")
}

fn proc_self_root_shows_no_host(scene: &Scene) -> Verdict {
    let played = scene.play(
        "cat /proc/self/root/$OUTSIDE/secret /proc/1/root/$OUTSIDE/secret /../..$OUTSIDE/secret",
    );
    Verdict::broken_if(played.said("host secret"), "the host's root is visible")
}

fn proc_cwd_of_others_shows_no_host(scene: &Scene) -> Verdict {
    let _other = OpenElsewhere::new(scene);
    let played = scene.play("for p in /proc/[0-9]*; do cat $p/cwd/secret; done 2>/dev/null");
    Verdict::broken_if(played.said("host secret"), "another process's directory is reachable")
}

/// A process of the host that stands outside the workspace.
struct OpenElsewhere(std::process::Child);

impl OpenElsewhere {
    fn new(scene: &Scene) -> Self {
        let mut sleep = std::process::Command::new("sleep");
        Self(sleep.arg("30").current_dir(scene.outside()).spawn().unwrap())
    }
}

impl Drop for OpenElsewhere {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn inherited_descriptors_are_closed(scene: &Scene) -> Verdict {
    let secret = fs::File::open(scene.outside().join("secret")).unwrap();
    // Without close-on-exec, as a careless host program would leave it.
    let _careless = rustix::io::dup(&secret).unwrap();
    let played = scene.play("for f in /proc/$$/fd/*; do test -f $f && cat $f; done 2>/dev/null");
    Verdict::broken_if(played.said("host secret"), "a descriptor was inherited")
}

/// Plays with secrets in the workspace and these masks.
fn masked(scene: &Scene, script: &str) -> crate::attacks::scene::Played {
    let mut invocation = scene.script(script);
    invocation.files.masks = vec![".env".to_owned(), "*.pem".to_owned()];
    scene.play_invocation(invocation)
}

fn masked_secret_is_not_readable(scene: &Scene) -> Verdict {
    fs::create_dir_all(scene.workspace().join("a/b/c/d/e/f/g")).unwrap();
    fs::write(scene.workspace().join(".env"), "top secret").unwrap();
    fs::write(scene.workspace().join("a/b/c/d/e/f/g/key.pem"), "deep secret").unwrap();
    let played = masked(
        scene,
        "cat .env a/b/c/d/e/f/g/key.pem; chmod 644 .env; cat .env; test -e .env && echo exists",
    );
    Verdict::broken_if(played.said(" secret"), "a masked secret was read")
}

fn masked_secret_is_not_readable_by_hard_link(scene: &Scene) -> Verdict {
    fs::write(scene.workspace().join(".env"), "top secret").unwrap();
    fs::create_dir(scene.workspace().join("x")).unwrap();
    fs::hard_link(scene.workspace().join(".env"), scene.workspace().join("x/alias")).unwrap();
    let played = masked(scene, "cat x/alias; ln .env mine && cat mine");
    Verdict::broken_if(played.said("top secret"), "a hard link showed the secret")
}

fn masked_secret_is_not_readable_in_other_case(scene: &Scene) -> Verdict {
    fs::write(scene.workspace().join(".Env"), "top secret").unwrap();
    fs::write(scene.workspace().join("KEY.PEM"), "top secret").unwrap();
    let played = masked(scene, "cat .Env KEY.PEM");
    Verdict::broken_if(played.said("top secret"), "another case showed the secret")
}

fn masked_secret_behind_a_symlink_is_not_readable(scene: &Scene) -> Verdict {
    fs::write(scene.workspace().join("prod.txt"), "top secret").unwrap();
    symlink("prod.txt", scene.workspace().join(".env")).unwrap();
    let played = masked(scene, "cat .env prod.txt");
    Verdict::broken_if(played.said("top secret"), "the link's target was read")
}

fn masked_secret_is_not_readable_by_renaming_its_parent(scene: &Scene) -> Verdict {
    fs::create_dir_all(scene.workspace().join("conf/deep")).unwrap();
    fs::write(scene.workspace().join("conf/deep/.env"), "top secret").unwrap();
    let script = "mv conf/deep conf/other; cat conf/other/.env conf/deep/.env; mv conf moved; \
                  cat moved/deep/.env moved/other/.env; cp -r conf copy; cat copy/deep/.env";
    let played = masked(scene, script);
    Verdict::broken_if(played.said("top secret"), "a renamed parent showed the secret")
}

fn masked_secret_appearing_after_start_is_not_readable(scene: &Scene) -> Verdict {
    fs::create_dir(scene.workspace().join("sub")).unwrap();
    // The program says when it runs, by a file on the one side both can see: its output.
    let script = "echo started; i=0; while [ $i -lt 20 ]; do cat .env sub/.env; sleep 0.05; i=$((i+1)); done 2>/dev/null";
    let workspace = scene.workspace();
    let writer = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(300));
        fs::write(workspace.join(".env"), "late secret").unwrap();
        fs::write(workspace.join("sub/.env"), "late secret").unwrap();
    });
    let played = masked(scene, script);
    writer.join().unwrap();
    Verdict::broken_if(played.said("late secret"), "a secret that came later was read")
}

fn masked_secret_is_not_destroyed(scene: &Scene) -> Verdict {
    let secret = scene.workspace().join("conf/.env");
    fs::create_dir(scene.workspace().join("conf")).unwrap();
    fs::write(&secret, "top secret").unwrap();
    let mut invocation =
        scene.script("rm -rf conf; echo > conf/.env; mv conf/.env x; rm -f conf/.env");
    invocation.files.masks = vec![".env".to_owned()];
    invocation.files.access = WorkspaceAccess::Direct;
    scene.play_invocation(invocation);
    let content = fs::read_to_string(&secret).unwrap_or_default();
    Verdict::broken_if(content != "top secret", "the secret is gone")
}

fn home_credentials_are_not_readable(scene: &Scene) -> Verdict {
    let home = scene.outside().join("home");
    fs::create_dir_all(home.join(".ssh")).unwrap();
    fs::write(home.join(".ssh/id_ed25519"), "home secret").unwrap();
    fs::write(home.join(".netrc"), "home secret").unwrap();
    let mut invocation = scene.script(
        "cat ~/.ssh/id_ed25519 ~/.netrc /root/.ssh/* /home/*/.ssh/*; echo x > ~/ok; cat ~/ok",
    );
    invocation.env.push(warrant_sandbox::EnvVar {
        name: "HOME".into(),
        value: warrant_sandbox::EnvValue::Plain(home.to_str().unwrap().into()),
    });
    let played = scene.play_invocation(invocation);
    Verdict::broken_if(played.said("home secret"), "credentials of the home were read")
}

/// Writes into a repository's own files, which git executes or obeys later.
const PLANT: &str = "plant() { mkdir -p $1/.git/hooks; echo evil > $1/.git/hooks/post-checkout; \
    chmod +x $1/.git/hooks/post-checkout; echo evil >> $1/.git/config; \
    echo evil > $1/.git/config.worktree; mkdir -p $1/.git/info; echo evil > $1/.git/info/attributes; }; ";

fn contains_evil(directory: &std::path::Path) -> bool {
    let Ok(entries) = fs::read_dir(directory) else { return false };
    entries.flatten().any(|entry| {
        let path = entry.path();
        if path.is_dir() {
            contains_evil(&path)
        } else {
            fs::read_to_string(&path)
                .is_ok_and(|text| text.contains("evil") && !path.ends_with("attack.pl"))
        }
    })
}

fn git_hooks_are_not_written_to_the_workspace(scene: &Scene) -> Verdict {
    fs::create_dir(scene.workspace().join(".git")).unwrap();
    fs::write(scene.workspace().join(".git/config"), "[core]\n").unwrap();
    scene.play(&format!("{PLANT} plant ."));
    Verdict::broken_if(contains_evil(&scene.workspace()), "git's own files were written")
}

fn nested_git_hooks_are_not_written_to_the_workspace(scene: &Scene) -> Verdict {
    fs::create_dir_all(scene.workspace().join("a/b/c/.git")).unwrap();
    scene.play(&format!("{PLANT} plant a/b/c; plant new/deep/er"));
    Verdict::broken_if(contains_evil(&scene.workspace()), "nested git files were written")
}

fn bare_repository_is_not_planted(scene: &Scene) -> Verdict {
    scene.play("mkdir -p lib/objects lib/refs; echo 'ref: refs/heads/main' > lib/HEAD; echo evil > lib/config");
    Verdict::broken_if(contains_evil(&scene.workspace()), "a bare repository was planted")
}

fn editor_tasks_and_envrc_are_not_written(scene: &Scene) -> Verdict {
    scene.play("mkdir -p .vscode; echo evil > .vscode/tasks.json; echo evil > .envrc; echo evil > package.json; echo evil > .bashrc");
    Verdict::broken_if(contains_evil(&scene.workspace()), "files that run later were written")
}

fn set_user_id_file_is_not_left_behind(scene: &Scene) -> Verdict {
    let mut invocation = scene.script("cp /bin/sh suid; chmod 4755 suid; chmod u+s suid; perl -e 'chmod 04755, q(suid); open F, q(>x); chmod 06755, *F'");
    invocation.files.access = WorkspaceAccess::Direct;
    scene.play_invocation(invocation);
    let is_set = |name: &str| {
        let path = scene.workspace().join(name);
        fs::metadata(path).is_ok_and(|found| found.permissions().mode() & 0o6000 != 0)
    };
    Verdict::broken_if(is_set("suid") || is_set("x"), "a set-user-id file was left behind")
}

fn nothing_is_left_in_the_workspace_after_a_kill(scene: &Scene) -> Verdict {
    let mut invocation = scene.script("echo placeholder > left; sleep 100");
    invocation.limits.wall_ms = Some(300);
    invocation.files.masks = vec![".env".to_owned(), "secrets".to_owned()];
    scene.play_invocation(invocation);
    let left = fs::read_dir(scene.workspace()).unwrap().count();
    Verdict::broken_if(left != 0, "files were left in the workspace")
}

fn proc_sys_is_not_writable(scene: &Scene) -> Verdict {
    let before = fs::read_to_string("/proc/sys/kernel/domainname").unwrap();
    let played = scene.play("for f in /proc/sys/kernel/domainname /proc/sys/vm/drop_caches /proc/sys/kernel/sysrq; do test -w $f && cat $f > /tmp/v 2>/dev/null; done; (echo attacked > /proc/sys/kernel/domainname) 2>/dev/null && echo BROKEN");
    if rustix::process::geteuid().is_root() {
        fs::write("/proc/sys/kernel/domainname", before.trim()).unwrap();
    }
    // The file of another namespace can be written without harm; ours must not be.
    played.by_own_word()
}

fn core_pattern_is_not_writable(scene: &Scene) -> Verdict {
    let played = scene.play("p=$(cat /proc/sys/kernel/core_pattern); (echo \"$p\" > /proc/sys/kernel/core_pattern) 2>/dev/null && echo BROKEN");
    match played.by_own_word() {
        // Without root nobody could; only the namespace tier must hold it for root too.
        verdict if rustix::process::geteuid().is_root() => verdict,
        _ => Verdict::broken_if(played.said("BROKEN"), "core_pattern was written"),
    }
}

fn sysrq_is_not_writable(scene: &Scene) -> Verdict {
    scene.play("test -w /proc/sysrq-trigger && (exec 3>/proc/sysrq-trigger) 2>/dev/null && echo BROKEN").by_own_word()
}

fn block_devices_are_not_there(scene: &Scene) -> Verdict {
    scene.play("for d in /dev/[sv]d[a-z] /dev/nvme*n1 /dev/mem /dev/kmsg /dev/fuse /dev/kvm /dev/net/tun; do test -e $d && echo BROKEN $d; done").by_own_word()
}

fn mknod_makes_no_device(scene: &Scene) -> Verdict {
    scene
        .play("mknod disk b 8 0 && echo BROKEN; mknod /tmp/null c 1 3 && echo BROKEN")
        .by_own_word()
}

fn open_by_handle_is_refused(scene: &Scene) -> Verdict {
    // name_to_handle_at of a file we may see, then open_by_handle_at of it.
    scene
        .perl(
            "open(my $d, '<', '.'); my $h = pack('Ii', 120, 0) . (\"\\0\" x 128); my $m = pack('i', 0); my $p = '/usr';\n\
             my $r = syscall(303, -100, $p, $h, $m, 0);\n\
             my $f = syscall(304, fileno($d), $h, 0);\n\
             open(my $u, '<', '/usr'); $f = syscall(304, fileno($u), $h, 0) if $f < 0;\n\
             print \"BROKEN\\n\" if $f >= 0;",
        )
        .by_own_word()
}

fn cgroup_files_are_not_there(scene: &Scene) -> Verdict {
    scene.play("ls -d /sys/fs/cgroup/* >/dev/null 2>&1 && echo BROKEN; grep -q cgroup /proc/mounts && echo BROKEN").by_own_word()
}

fn tmp_is_not_shared(scene: &Scene) -> Verdict {
    let name = format!("/tmp/shared-{}-{:?}", std::process::id(), std::thread::current().id());
    fs::write(&name, "host secret").unwrap();
    let played = scene.play(&format!("cat '{name}'; echo x > '{name}.planted'"));
    let planted = fs::remove_file(format!("{name}.planted")).is_ok();
    fs::remove_file(&name).unwrap();
    Verdict::broken_if(planted || played.said("host secret"), "/tmp is shared")
}

fn dev_shm_is_not_shared(scene: &Scene) -> Verdict {
    let name = format!("/dev/shm/shared-{}-{:?}", std::process::id(), std::thread::current().id());
    let is_there = fs::write(&name, "host secret").is_ok();
    let played = scene.play(&format!("cat '{name}'; echo x > '{name}.planted'"));
    let planted = fs::remove_file(format!("{name}.planted")).is_ok();
    if is_there {
        fs::remove_file(&name).unwrap();
    }
    Verdict::broken_if(planted || played.said("host secret"), "/dev/shm is shared")
}

fn system_is_not_writable(scene: &Scene) -> Verdict {
    let played = scene.play("for d in / /usr /usr/bin /etc /usr/lib; do (: > $d/planted-by-attack) 2>/dev/null && { rm -f $d/planted-by-attack; echo BROKEN $d; }; done");
    if rustix::process::geteuid().is_root() {
        played.by_own_word()
    } else {
        Verdict::broken_if(played.said("BROKEN"), "the system was written")
    }
}
