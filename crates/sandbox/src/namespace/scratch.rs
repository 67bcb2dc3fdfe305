//! Where a run's scratch lives: in memory, or on disk where memory could not hold it.
//!
//! Memory is quicker and needs no rights. A disk limit that memory cannot hold gets an image on
//! disk, where the supervisor is privileged and the machine has what it takes; else it stays in
//! memory, where the memory limit strikes first.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::{Mode, OFlags, open};
use warrant_jail::{Identity, mount_image};
use warrant_protocol::Limits;

/// Programs that make the filesystem, where Debian and others have it.
const MAKERS: [&str; 3] = ["/usr/sbin/mkfs.ext4", "/sbin/mkfs.ext4", "/usr/bin/mkfs.ext4"];
/// A filesystem keeps some of its blocks for itself.
const OVERHEAD_BYTES: u64 = 8 << 20;
/// Without a limit on inodes: one for so many bytes.
const BYTES_PER_INODE: u64 = 16 << 10;

/// Returns whether memory could not hold what `limits` let a run write.
pub(crate) fn wants_disk(limits: &Limits) -> bool {
    let Some(disk) = limits.disk_bytes else { return false };
    let memory = limits.memory_bytes.unwrap_or(u64::MAX).min(total_memory() / 4);
    disk > memory
}

/// Returns a filesystem of the size `limits` ask for, on disk and owned by the program.
pub(crate) fn on_disk(limits: &Limits, identity: Identity) -> io::Result<OwnedFd> {
    let disk = limits.disk_bytes.unwrap_or(0);
    let inodes = limits.inodes.unwrap_or(disk / BYTES_PER_INODE).max(64);
    // Each inode takes its 256 bytes out of the same image.
    let bytes = disk + OVERHEAD_BYTES + inodes * 256 + disk / 128;
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let image = File::from(open(directory(), flags, Mode::RUSR | Mode::WUSR)?);
    image.set_len(bytes.next_multiple_of(4096))?;
    format(&image, inodes, identity)?;
    mount_image(&image)
}

fn directory() -> PathBuf {
    let disk = Path::new("/var/tmp");
    if disk.is_dir() { disk.to_owned() } else { std::env::temp_dir() }
}

fn format(image: &File, inodes: u64, identity: Identity) -> io::Result<()> {
    let maker = MAKERS.map(Path::new).into_iter().find(|path| path.exists());
    let maker = maker.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
    let owner = format!("root_owner={}:{}", identity.kernel_uid, identity.kernel_gid);
    let status = Command::new(maker)
        .args(["-q", "-F", "-m", "0", "-I", "256", "-O", "^has_journal,sparse_super2"])
        .args(["-E", &format!("lazy_itable_init=1,nodiscard,num_backup_sb=0,{owner}")])
        .args(["-N", &inodes.to_string(), "/dev/stdin"])
        .env_clear()
        .stdin(image.try_clone()?)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()?;
    if status.success() { Ok(()) } else { Err(io::Error::other("mkfs.ext4 failed")) }
}

fn total_memory() -> u64 {
    let info = rustix::system::sysinfo();
    info.totalram.saturating_mul(u64::from(info.mem_unit))
}
