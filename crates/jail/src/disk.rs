//! A scratch filesystem on disk, for a privileged supervisor: an image in a file without a name,
//! behind a loop device that goes away with the last user of the filesystem.
//!
//! The kernel keeps the bounds, because the filesystem is no larger. Nothing has to be cleaned up,
//! whoever is killed: the file has no name, the device clears itself, the mount has no place.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::child::ioctl;
use crate::sys::{self, Errno};

/// `struct loop_config` of the kernel: a descriptor, a block size, the old status, reserved words.
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    info: LoopInfo,
    reserved: [u64; 8],
}

/// `struct loop_info64` of the kernel.
#[repr(C)]
struct LoopInfo {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

const LOOP_CTL_GET_FREE: libc::Ioctl = 0x4c82;
const LOOP_CONFIGURE: libc::Ioctl = 0x4c0a;
const AUTOCLEAR: u32 = 4;
/// Another process may take the device between asking for a free one and using it.
const MOST_TRIES: usize = 64;

/// Mounts the filesystem in `image` (ext4) without a place, to be given to a jail.
///
/// # Errors
/// The system's error: not privileged, no loop devices, or no such filesystem in the image.
pub fn mount_image(image: &File) -> io::Result<OwnedFd> {
    let (device, path) = attach(image)?;
    let config = sys::fsopen(c"ext4")?;
    // SAFETY: the kernel just returned it and nobody else has it.
    let config = unsafe { OwnedFd::from_raw_fd(config) };
    sys::fsconfig_string(config.as_raw_fd(), c"source", &path)?;
    // Nobody reads this after a crash of the machine, so nothing needs to be ordered for it.
    sys::fsconfig_flag(config.as_raw_fd(), c"nobarrier")?;
    let attributes = sys::MOUNT_ATTR_NOSUID | sys::MOUNT_ATTR_NODEV;
    let mount = sys::fsmount(config.as_raw_fd(), attributes)?;
    drop(device);
    // SAFETY: as above.
    Ok(unsafe { OwnedFd::from_raw_fd(mount) })
}

/// Puts a free loop device in front of the image; it clears itself when nobody uses it.
fn attach(image: &File) -> io::Result<(File, std::ffi::CString)> {
    let control = File::open("/dev/loop-control")?;
    for _ in 0..MOST_TRIES {
        let number = ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE, 0)?;
        let path = format!("/dev/loop{number}");
        let device = File::options().read(true).write(true).open(&path)?;
        // SAFETY: an all-zero configuration is a valid value.
        let mut config: LoopConfig = unsafe { std::mem::zeroed() };
        config.fd = image.as_raw_fd() as u32;
        config.info.flags = AUTOCLEAR;
        match ioctl(device.as_raw_fd(), LOOP_CONFIGURE, &raw const config as usize) {
            Ok(_) => return Ok((device, std::ffi::CString::new(path)?)),
            Err(Errno(libc::EBUSY)) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Err(Errno(libc::EBUSY).into())
}
