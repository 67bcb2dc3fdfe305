//! Control groups: v2 where it has controllers, v1 where those are mounted, both on a hybrid host.
//!
//! A group of ours is a directory `warrant-<pid>-<start>-<n>`, named after the supervisor's pid
//! and start time. A supervisor that was killed leaves an empty directory behind; the next one to
//! start removes it, knowing by the name that its maker is gone.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use warrant_jail::Groups;
use warrant_protocol::{LimitKind, Limits};

/// Where groups can be made on this host.
#[derive(Debug, Clone, Default)]
pub(crate) struct Cgroups {
    /// A directory of the unified hierarchy whose children have these controllers.
    unified: Option<(PathBuf, Vec<String>)>,
    /// A directory of each old hierarchy, by controller.
    legacy: BTreeMap<String, PathBuf>,
}

/// Which kind of group limits something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Unified,
    Legacy,
}

/// What a group counts besides what it always does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Counts {
    /// Processes: for a tree whose user others have too. There is always a group, by which the
    /// whole tree is found and ended.
    Processes,
    /// Nothing more: the jail's own user is counted by the kernel.
    Nothing,
}

impl Kind {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Unified => "cgroup v2",
            Self::Legacy => "cgroup v1",
        }
    }
}

/// One run's groups; dropping it removes them.
#[derive(Debug, Default)]
pub(crate) struct Group {
    name: String,
    directories: Vec<PathBuf>,
    memory: Option<(Kind, PathBuf)>,
    pids: Option<(Kind, PathBuf)>,
    cpu: Option<(Kind, PathBuf)>,
    alarms: Vec<fs::File>,
}

const PREFIX: &str = "warrant-";
/// The controllers of old hierarchies that groups are made of.
const LEGACY: [&str; 3] = ["memory", "pids", "cpuacct"];
static NEXT: AtomicU64 = AtomicU64::new(0);

impl Cgroups {
    /// Looks where we are and where we may make groups, and removes what the dead left there.
    pub(crate) fn detect() -> Self {
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let mut found = Self::default();
        for (controllers, path) in own.lines().filter_map(parse_membership) {
            let mounted = if controllers.is_empty() {
                mount_of(&mounts, "cgroup2", None)
            } else {
                controllers.split(',').find_map(|name| mount_of(&mounts, "cgroup", Some(name)))
            };
            let Some(mounted) = mounted else { continue };
            let directory = mounted.join(path.trim_start_matches('/'));
            if controllers.is_empty() {
                found.unified = usable_unified(&directory, &mounted);
                continue;
            }
            let names = controllers.split(',').filter(|name| LEGACY.contains(name));
            let names: Vec<String> = names.map(str::to_owned).collect();
            if !names.is_empty() && is_writable(&directory) {
                found.legacy.extend(names.into_iter().map(|name| (name, directory.clone())));
            }
        }
        found.sweep();
        found
    }

    /// Returns what would limit with this controller.
    pub(crate) fn kind_of(&self, controller: &str) -> Option<Kind> {
        let legacy = if controller == "cpu" { "cpuacct" } else { controller };
        match &self.unified {
            Some((_, controllers)) if controllers.iter().any(|name| name == controller) => {
                Some(Kind::Unified)
            }
            // CPU time is counted in every group of the unified hierarchy.
            Some(_) if controller == "cpu" => Some(Kind::Unified),
            _ => self.legacy.contains_key(legacy).then_some(Kind::Legacy),
        }
    }

    /// Makes the groups that `limits` need. The tree that is to be held must be started in
    /// [`Group::handles`].
    pub(crate) fn create(&self, limits: &Limits, counts: Counts) -> io::Result<Group> {
        let mut group = Group::default();
        group.name = unique_name();
        if let Some(bytes) = limits.memory_bytes {
            group.memory = self.make(&mut group.directories, "memory", &group.name)?;
            group.limit_memory(bytes)?;
        }
        if counts == Counts::Processes {
            group.pids = self.make(&mut group.directories, "pids", &group.name)?;
            // The first process of the tree is ours but counted too.
            let most = limits.processes.map(|processes| processes.saturating_add(1));
            most.map_or(Ok(()), |most| group.limit_processes(most))?;
        }
        if limits.cpu_ms.is_some() {
            group.cpu = self.make(&mut group.directories, "cpu", &group.name)?;
        }
        Ok(group)
    }

    fn make(
        &self,
        directories: &mut Vec<PathBuf>,
        controller: &str,
        name: &str,
    ) -> io::Result<Option<(Kind, PathBuf)>> {
        let legacy = if controller == "cpu" { "cpuacct" } else { controller };
        let parent = match (self.kind_of(controller), &self.unified) {
            (Some(Kind::Unified), Some((parent, _))) => parent,
            (Some(Kind::Legacy), _) => match self.legacy.get(legacy) {
                Some(parent) => parent,
                None => return Ok(None),
            },
            _ => return Ok(None),
        };
        let directory = parent.join(name);
        if !directories.contains(&directory) {
            fs::create_dir(&directory)?;
            directories.push(directory.clone());
        }
        Ok(self.kind_of(controller).map(|kind| (kind, directory)))
    }

    /// Removes groups whose maker is gone.
    fn sweep(&self) {
        let unified = self.unified.iter().map(|(directory, _)| directory);
        for parent in unified.chain(self.legacy.values()) {
            let Ok(entries) = fs::read_dir(parent) else { continue };
            for entry in entries.flatten() {
                let name = entry.file_name();
                let Some(maker) = name.to_str().and_then(|name| name.strip_prefix(PREFIX)) else {
                    continue;
                };
                if !is_alive(maker) {
                    // Fails while anyone is in it, which is as it should be.
                    let _ = fs::remove_dir(entry.path());
                }
            }
        }
    }
}

impl Group {
    /// Sets the memory limit, if a group holds memory.
    pub(crate) fn limit_memory(&mut self, bytes: u64) -> io::Result<()> {
        match &self.memory {
            Some((Kind::Unified, directory)) => {
                fs::write(directory.join("memory.max"), bytes.to_string())?;
                let _ = fs::write(directory.join("memory.swap.max"), "0");
                let _ = fs::write(directory.join("memory.oom.group"), "1");
                self.alarms.push(fs::File::open(directory.join("memory.events"))?);
            }
            Some((Kind::Legacy, directory)) => {
                fs::write(directory.join("memory.limit_in_bytes"), bytes.to_string())?;
                let _ = fs::write(directory.join("memory.memsw.limit_in_bytes"), bytes.to_string());
            }
            None => {}
        }
        Ok(())
    }

    fn limit_processes(&mut self, processes: u64) -> io::Result<()> {
        let Some((_, directory)) = &self.pids else { return Ok(()) };
        fs::write(directory.join("pids.max"), processes.to_string())?;
        if let Ok(events) = fs::File::open(directory.join("pids.events")) {
            self.alarms.push(events);
        }
        Ok(())
    }

    /// Returns what the first process of a tree joins the groups with.
    pub(crate) fn handles(&self) -> io::Result<Groups> {
        let mut groups = Groups::default();
        for (kind, directory) in [&self.memory, &self.pids, &self.cpu].into_iter().flatten() {
            match kind {
                // One directory holds everything of this kind.
                Kind::Unified => groups.unified = Some(fs::File::open(directory)?.into()),
                Kind::Legacy => groups.legacy.push(open_to_join(directory)?),
            }
        }
        Ok(groups)
    }

    /// Returns what limits one kind, if a group does.
    pub(crate) fn kind_of(&self, limit: LimitKind) -> Option<Kind> {
        let part = match limit {
            LimitKind::Memory => &self.memory,
            LimitKind::Processes => &self.pids,
            LimitKind::Cpu => &self.cpu,
            _ => &None,
        };
        part.as_ref().map(|(kind, _)| *kind)
    }

    /// Returns the limit that the kernel has for one kind now, if a group has one.
    pub(crate) fn limit_of(&self, limit: LimitKind) -> Option<u64> {
        let (part, unified, legacy) = match limit {
            LimitKind::Memory => (&self.memory, "memory.max", "memory.limit_in_bytes"),
            LimitKind::Processes => (&self.pids, "pids.max", "pids.max"),
            _ => return None,
        };
        let (kind, directory) = part.as_ref()?;
        number(&directory.join(match kind {
            Kind::Unified => unified,
            Kind::Legacy => legacy,
        }))
    }

    /// Ends everyone who is in the group that counts processes; returns whether there is such a
    /// group and nobody is in it any more.
    ///
    /// A program of the same user can leave the group before.
    pub(crate) fn end_everyone(&self) -> bool {
        const MOST_LOOKS: usize = 500;
        let Some((_, directory)) = &self.pids else { return false };
        let members = directory.join("cgroup.procs");
        for _ in 0..MOST_LOOKS {
            match fs::read_to_string(&members) {
                Err(_) => return false,
                Ok(left) if left.trim().is_empty() => return true,
                Ok(left) => left.lines().for_each(|pid| end_member(&members, pid)),
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        false
    }

    /// Returns whether someone was killed because memory ran out.
    pub(crate) fn memory_struck(&self) -> bool {
        let counter = match &self.memory {
            Some((Kind::Unified, directory)) => directory.join("memory.events"),
            Some((Kind::Legacy, directory)) => directory.join("memory.oom_control"),
            None => return false,
        };
        field(&counter, "oom_kill").is_some_and(|count| count > 0)
    }

    /// Returns whether an attempt that ended with `errno` ended for want of memory.
    pub(crate) fn starved(&self, errno: warrant_jail::Errno) -> bool {
        let refused = errno.0 == rustix::io::Errno::NOMEM.raw_os_error();
        self.memory.is_some() && (refused || self.memory_struck())
    }

    /// Returns whether a new process was refused.
    pub(crate) fn processes_struck(&self) -> bool {
        let Some((_, directory)) = &self.pids else { return false };
        field(&directory.join("pids.events"), "max").is_some_and(|count| count > 0)
    }

    /// Returns the CPU time used so far, in microseconds.
    pub(crate) fn cpu_us(&self) -> Option<u64> {
        match self.cpu.as_ref()? {
            (Kind::Unified, directory) => field(&directory.join("cpu.stat"), "usage_usec"),
            (Kind::Legacy, directory) => {
                number(&directory.join("cpuacct.usage")).map(|nsec| nsec / 1000)
            }
        }
    }

    /// Returns the most memory used at once.
    pub(crate) fn peak_memory_bytes(&self) -> Option<u64> {
        match self.memory.as_ref()? {
            (Kind::Unified, directory) => number(&directory.join("memory.peak")),
            (Kind::Legacy, directory) => number(&directory.join("memory.max_usage_in_bytes")),
        }
    }

    /// Returns descriptors that signal when a limit may have struck.
    pub(crate) fn alarms(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.alarms.iter().map(AsFd::as_fd)
    }

    /// Reads the alarms, so that only news rings again.
    pub(crate) fn hush(&self) {
        for alarm in &self.alarms {
            let _ = rustix::io::pread(alarm, &mut [0; 256], 0);
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if self.pids.is_some() {
            // Whoever got away from their keeper is still in here.
            self.end_everyone();
        }
        for directory in &self.directories {
            // The last process may still be on its way out for a moment.
            for _ in 0..200 {
                match fs::remove_dir(directory) {
                    Err(error) if error.raw_os_error() == Some(16) => {
                        std::thread::sleep(std::time::Duration::from_millis(1));
                    }
                    _ => break,
                }
            }
        }
    }
}

/// Ends one member of a group; the descriptor makes sure that its number is not another's by now.
fn end_member(members: &Path, pid: &str) {
    use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
    let Some(process) = pid.parse().ok().and_then(Pid::from_raw) else { return };
    let Ok(handle) = pidfd_open(process, PidfdFlags::empty()) else { return };
    let left = fs::read_to_string(members).unwrap_or_default();
    if left.lines().any(|member| member == pid) {
        // Whoever is gone already needs no signal.
        let _ = pidfd_send_signal(handle, Signal::KILL);
    }
}

/// Splits a line of `/proc/self/cgroup` into controllers and path.
fn parse_membership(line: &str) -> Option<(&str, &str)> {
    let mut parts = line.splitn(3, ':').skip(1);
    let controllers = parts.next()?;
    if controllers.starts_with("name=") {
        return None;
    }
    Some((controllers, parts.next()?))
}

/// Returns where a hierarchy is mounted, if its root is.
fn mount_of(mounts: &str, kind: &str, controller: Option<&str>) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let mut left = left.split(' ').skip(3);
        let (root, mounted) = (left.next()?, left.next()?);
        let mut right = right.split(' ');
        let found = right.next()?;
        let options = right.nth(1)?;
        let has_controller =
            controller.is_none_or(|name| options.split(',').any(|option| option == name));
        (root == "/" && found == kind && has_controller).then(|| PathBuf::from(mounted))
    })
}

/// Returns the nearest directory, from our own upwards, whose children would have controllers, or
/// our own if none has.
fn usable_unified(own: &Path, mounted: &Path) -> Option<(PathBuf, Vec<String>)> {
    let ancestors = own.ancestors().take_while(|path| path.starts_with(mounted));
    let mut fallback = None;
    for directory in ancestors {
        if !is_writable(directory) {
            continue;
        }
        let enabled = fs::read_to_string(directory.join("cgroup.subtree_control"));
        let enabled = enabled.unwrap_or_default();
        let controllers: Vec<String> = enabled.split_whitespace().map(str::to_owned).collect();
        if controllers.iter().any(|name| name == "memory" || name == "pids") {
            return Some((directory.to_owned(), controllers));
        }
        fallback.get_or_insert_with(|| (directory.to_owned(), Vec::new()));
    }
    fallback
}

fn is_writable(directory: &Path) -> bool {
    use rustix::fs::{Access, access};
    access(directory, Access::WRITE_OK | Access::EXEC_OK).is_ok()
        && access(directory.join("cgroup.procs"), Access::WRITE_OK).is_ok()
}

fn open_to_join(directory: &Path) -> io::Result<OwnedFd> {
    Ok(fs::File::options().write(true).open(directory.join("tasks"))?.into())
}

fn unique_name() -> String {
    let pid = std::process::id();
    let start = start_time(pid).unwrap_or(0);
    format!("{PREFIX}{pid}-{start}-{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Returns whether the maker of a group with this name is still the process it was.
fn is_alive(name: &str) -> bool {
    let mut parts = name.split('-').map(str::parse::<u64>);
    let (Some(Ok(pid)), Some(Ok(start))) = (parts.next(), parts.next()) else { return true };
    u32::try_from(pid).ok().and_then(start_time) == Some(start)
}

fn start_time(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(19)?.parse().ok()
}

fn number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn field(path: &Path, name: &str) -> Option<u64> {
    let text = fs::read_to_string(path).ok()?;
    text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dead_maker_is_told_from_a_living_one() {
        let pid = std::process::id();
        let start = start_time(pid).unwrap();
        assert!(is_alive(&format!("{pid}-{start}-0")));
        assert!(!is_alive(&format!("{pid}-{}-0", start + 1)));
        assert!(!is_alive("4194304-1-0"));
        assert!(is_alive("not ours"));
    }

    #[test]
    fn memberships_and_mounts_are_read() {
        assert_eq!(parse_membership("4:memory:/a/b"), Some(("memory", "/a/b")));
        assert_eq!(parse_membership("0::/x:y"), Some(("", "/x:y")));
        assert_eq!(parse_membership("9:name=systemd:/"), None);
        let mounts = "30 1 0:26 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                      31 1 0:27 /x /mnt rw - cgroup2 cgroup2 rw\n\
                      32 1 0:27 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        let found = |kind, controller| mount_of(mounts, kind, controller);
        assert_eq!(found("cgroup", Some("memory")), Some("/sys/fs/cgroup/memory".into()));
        assert_eq!(found("cgroup", Some("pids")), None);
        assert_eq!(found("cgroup2", None), Some("/sys/fs/cgroup".into()));
    }
}
