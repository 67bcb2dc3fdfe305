//! What this machine lacks for the strongest local tier, and the exact remedy.

use std::fs;
use std::path::Path;

use crate::cgroup::Cgroups;
use crate::{Backend, Namespace};

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// What was looked at.
    pub what: String,
    /// How it is.
    pub state: State,
    /// What to do about it, word for word, if anything.
    pub remedy: Option<String>,
}

/// How a thing is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// As it should be, with what was found.
    Good(String),
    /// Works with less, and how much less.
    Weak(String),
    /// Does not work, and why.
    Missing(String),
}

/// Looks at this machine.
#[must_use]
pub fn doctor() -> Vec<Finding> {
    let cgroups = Cgroups::detect();
    let mut findings = vec![kernel(), user_namespaces(), landlock(), overlay()];
    findings.extend(["memory", "pids"].map(|controller| cgroup(&cgroups, controller)));
    findings.push(whole());
    findings
}

fn finding(what: &str, state: State, remedy: Option<&str>) -> Finding {
    Finding { what: what.to_owned(), state, remedy: remedy.map(str::to_owned) }
}

fn kernel() -> Finding {
    let uname = rustix::system::uname();
    let release = uname.release().to_string_lossy().into_owned();
    let mut numbers = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if version >= (6, 6) {
        return finding("kernel", State::Good(release), None);
    }
    if version >= (5, 14) {
        let less = format!("{release}: an overlay on memory needs 6.6 to keep directory renames");
        return finding("kernel", State::Weak(less), Some("install kernel 6.6 or newer"));
    }
    let why = format!("{release}: clone3, mount_setattr and per-namespace limits need 5.14");
    finding("kernel", State::Missing(why), Some("install kernel 6.6 or newer"))
}

fn sysctl(name: &str) -> Option<String> {
    fs::read_to_string(format!("/proc/sys/{name}")).ok().map(|text| text.trim().to_owned())
}

fn user_namespaces() -> Finding {
    const WHAT: &str = "user namespaces";
    let is_root = rustix::process::geteuid().is_root();
    if sysctl("user/max_user_namespaces").as_deref() == Some("0") {
        let remedy = "sudo sysctl -w user.max_user_namespaces=15000";
        return finding(WHAT, State::Missing("none may be made".into()), Some(remedy));
    }
    if !is_root && sysctl("kernel/unprivileged_userns_clone").as_deref() == Some("0") {
        let remedy = "sudo sysctl -w kernel.unprivileged_userns_clone=1";
        return finding(WHAT, State::Missing("only root may make them".into()), Some(remedy));
    }
    let restricted = sysctl("kernel/apparmor_restrict_unprivileged_userns");
    if !is_root && restricted.as_deref() == Some("1") {
        let remedy = "give the warrant binary an AppArmor profile: write \
            `abi <abi/4.0>, include <tunables/global> profile warrant /usr/local/bin/warrant \
            flags=(unconfined) { userns, }` to /etc/apparmor.d/warrant and run \
            `sudo apparmor_parser -r /etc/apparmor.d/warrant`; or, for every program, \
            `sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0`";
        let why = "AppArmor takes away their capabilities".to_owned();
        return finding(WHAT, State::Missing(why), Some(remedy));
    }
    finding(WHAT, State::Good("allowed".into()), None)
}

fn landlock() -> Finding {
    match warrant_jail::landlock_abi() {
        Some(abi) if abi >= 6 => finding("landlock", State::Good(format!("abi {abi}")), None),
        Some(abi) => {
            let less = format!("abi {abi}: signals and abstract sockets are scoped from abi 6 on");
            finding("landlock", State::Weak(less), Some("install kernel 6.12 or newer"))
        }
        None => {
            let less = "not in this kernel; mounts are the only wall around files".to_owned();
            let remedy = "boot with `lsm=landlock,...` in the kernel command line";
            finding("landlock", State::Weak(less), Some(remedy))
        }
    }
}

fn overlay() -> Finding {
    let known = fs::read_to_string("/proc/filesystems").unwrap_or_default();
    let is_known = known.lines().any(|line| line.trim_start_matches("nodev").trim() == "overlay");
    let has_module = || Path::new("/sys/module/overlay").exists();
    if is_known || has_module() {
        finding("overlayfs", State::Good("in this kernel".into()), None)
    } else {
        finding(
            "overlayfs",
            State::Missing("not loaded".into()),
            Some(
                "sudo modprobe overlay && echo overlay | sudo tee /etc/modules-load.d/overlay.conf",
            ),
        )
    }
}

fn cgroup(cgroups: &Cgroups, controller: &str) -> Finding {
    let what = format!("cgroup {controller}");
    match cgroups.kind_of(controller) {
        Some(kind) => finding(&what, State::Good(kind.as_str().into()), None),
        None => {
            let less = "no group can be made; rlimits and looking at the tree stand in".to_owned();
            let remedy = "start a user session with delegation: `systemd-run --user --scope -p \
                Delegate=yes warrant ...`, or run the runner as a service with `Delegate=yes`";
            finding(&what, State::Weak(less), Some(remedy))
        }
    }
}

/// Whether all of it together works, found by doing it.
fn whole() -> Finding {
    const WHAT: &str = "namespace tier";
    let posture = Namespace::new().probe();
    if posture.enforces("files.write") {
        return finding(WHAT, State::Good("a jail was built and a program ran in it".into()), None);
    }
    let detail = posture.components.get("files.write").and_then(|found| found.detail.clone());
    let why = detail.unwrap_or_else(|| "unknown".to_owned());
    finding(WHAT, State::Missing(why), Some("see the findings above; `process` is what remains"))
}
