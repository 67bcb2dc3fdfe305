//! Raw system calls: the thin layer in which almost all of the crate's `unsafe` lives.
//!
//! Nothing here allocates, locks or panics, so everything here may be called between `clone`
//! and `execve`.

use std::ffi::CStr;

use libc::{c_int, c_long, c_void};

use crate::syscall;

/// An error number of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Errno(pub i32);

impl From<Errno> for std::io::Error {
    fn from(errno: Errno) -> Self {
        Self::from_raw_os_error(errno.0)
    }
}

pub(crate) type Result<T> = std::result::Result<T, Errno>;

/// A descriptor number in a process that will never drop anything.
pub(crate) type Fd = c_int;

/// What the kernel returns for an error lies between this and zero.
const LEAST_ERRNO: isize = -4095;

/// Makes one system call. Without the C library's `errno`: that belongs to a thread, and processes
/// that share memory here would share it.
///
/// # Safety
/// As for the call itself: pointers among the arguments must be valid for what the kernel does.
pub(crate) unsafe fn call(number: c_long, args: [usize; 6]) -> Result<usize> {
    // SAFETY: the caller vouches for the arguments.
    let result = unsafe { syscall::raw(number as usize, args) };
    match result {
        LEAST_ERRNO..0 => Err(Errno(-result as i32)),
        _ => Ok(result as usize),
    }
}

/// Makes a system call whose arguments are numbers only.
pub(crate) fn number_call(number: c_long, args: [usize; 5]) -> Result<usize> {
    let [a, b, c, d, e] = args;
    // SAFETY: every call made this way takes numbers, not pointers; see the callers.
    unsafe { call(number, [a, b, c, d, e, 0]) }
}

/// The empty path, for calls that take a descriptor alone.
pub(crate) const EMPTY: &CStr = c"";

pub(crate) const OPEN_TREE_CLONE: usize = 1;
pub(crate) const OPEN_TREE_CLOEXEC: usize = libc::O_CLOEXEC as usize;
pub(crate) const AT_RECURSIVE: usize = 0x8000;
pub(crate) const AT_EMPTY_PATH: usize = 0x1000;
pub(crate) const AT_SYMLINK_NOFOLLOW: usize = 0x100;
pub(crate) const MOUNT_ATTR_RDONLY: u64 = 0x1;
pub(crate) const MOUNT_ATTR_NOSUID: u64 = 0x2;
pub(crate) const MOUNT_ATTR_NODEV: u64 = 0x4;
pub(crate) const MOUNT_ATTR_NOEXEC: u64 = 0x8;
pub(crate) const MOUNT_ATTR_IDMAP: u64 = 0x0010_0000;
const MOVE_MOUNT_F_EMPTY_PATH: usize = 0x4;
const MOVE_MOUNT_T_EMPTY_PATH: usize = 0x40;
const FSCONFIG_SET_FLAG: usize = 0;
const FSCONFIG_SET_STRING: usize = 1;
const FSCONFIG_CMD_CREATE: usize = 6;
const RESOLVE_NO_MAGICLINKS: u64 = 0x02;
const RESOLVE_NO_SYMLINKS: u64 = 0x04;
const RESOLVE_IN_ROOT: u64 = 0x10;

#[repr(C)]
pub(crate) struct MountAttr {
    pub(crate) set: u64,
    pub(crate) clear: u64,
    pub(crate) propagation: u64,
    pub(crate) userns_fd: u64,
}

#[repr(C)]
struct OpenHow {
    flags: u64,
    mode: u64,
    resolve: u64,
}

/// Returns a detached copy of the mount at `path`, below `dir`.
pub(crate) fn open_tree(dir: Fd, path: &CStr, flags: usize) -> Result<Fd> {
    // SAFETY: the path is a valid C string that outlives the call.
    let fd = unsafe {
        call(libc::SYS_open_tree, [dir as usize, path.as_ptr() as usize, flags, 0, 0, 0])
    }?;
    Ok(fd as Fd)
}

/// Changes the attributes of the mount behind `fd`, and of all below it if `flags` say so.
pub(crate) fn mount_setattr(fd: Fd, flags: usize, attr: &MountAttr) -> Result<()> {
    let args = [
        fd as usize,
        EMPTY.as_ptr() as usize,
        AT_EMPTY_PATH | flags,
        std::ptr::from_ref(attr) as usize,
        size_of::<MountAttr>(),
        0,
    ];
    // SAFETY: the structure has the kernel's layout and its size is passed along.
    unsafe { call(libc::SYS_mount_setattr, args) }.map(drop)
}

/// Attaches the detached mount `from` on top of the directory or file `to`.
pub(crate) fn move_mount(from: Fd, to: Fd) -> Result<()> {
    let empty = EMPTY.as_ptr() as usize;
    let flags = MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH;
    // SAFETY: both paths are the static empty string.
    unsafe { call(libc::SYS_move_mount, [from as usize, empty, to as usize, empty, flags, 0]) }
        .map(drop)
}

/// Opens a configuration of a filesystem that is not there yet.
pub(crate) fn fsopen(kind: &CStr) -> Result<Fd> {
    // SAFETY: the name is a valid C string.
    let fd = unsafe { call(libc::SYS_fsopen, [kind.as_ptr() as usize, 1, 0, 0, 0, 0]) }?;
    Ok(fd as Fd)
}

/// Sets one option of a filesystem to be.
pub(crate) fn fsconfig_string(fd: Fd, key: &CStr, value: &CStr) -> Result<()> {
    let args =
        [fd as usize, FSCONFIG_SET_STRING, key.as_ptr() as usize, value.as_ptr() as usize, 0, 0];
    // SAFETY: key and value are valid C strings.
    unsafe { call(libc::SYS_fsconfig, args) }.map(drop)
}

/// Sets one flag of a filesystem to be.
pub(crate) fn fsconfig_flag(fd: Fd, key: &CStr) -> Result<()> {
    let args = [fd as usize, FSCONFIG_SET_FLAG, key.as_ptr() as usize, 0, 0, 0];
    // SAFETY: the key is a valid C string.
    unsafe { call(libc::SYS_fsconfig, args) }.map(drop)
}

/// Creates the configured filesystem and returns it as a detached mount.
pub(crate) fn fsmount(fd: Fd, attributes: u64) -> Result<Fd> {
    number_call(libc::SYS_fsconfig, [fd as usize, FSCONFIG_CMD_CREATE, 0, 0, 0])?;
    let mount = number_call(libc::SYS_fsmount, [fd as usize, 1, attributes as usize, 0, 0])?;
    Ok(mount as Fd)
}

/// Opens `path` as if `root` were `/`, through no link at all.
pub(crate) fn open_in_root(root: Fd, path: &CStr, flags: c_int) -> Result<Fd> {
    let how = OpenHow {
        flags: (flags | libc::O_CLOEXEC) as u64,
        mode: 0,
        resolve: RESOLVE_IN_ROOT | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS,
    };
    let args = [
        root as usize,
        path.as_ptr() as usize,
        std::ptr::from_ref(&how) as usize,
        size_of::<OpenHow>(),
        0,
        0,
    ];
    // SAFETY: the path is a C string and the structure has the kernel's layout and size.
    Ok(unsafe { call(libc::SYS_openat2, args) }? as Fd)
}

/// Opens `path` below `dir`.
pub(crate) fn openat(dir: Fd, path: &CStr, flags: c_int, mode: u32) -> Result<Fd> {
    let flags = (flags | libc::O_CLOEXEC) as usize;
    let args = [dir as usize, path.as_ptr() as usize, flags, mode as usize, 0, 0];
    // SAFETY: the path is a valid C string.
    Ok(unsafe { call(libc::SYS_openat, args) }? as Fd)
}

/// Makes a directory below `dir`; one that is there already is fine.
pub(crate) fn mkdirat(dir: Fd, path: &CStr, mode: u32) -> Result<()> {
    let args = [dir as usize, path.as_ptr() as usize, mode as usize, 0, 0, 0];
    // SAFETY: the path is a valid C string.
    match unsafe { call(libc::SYS_mkdirat, args) } {
        Ok(_) | Err(Errno(libc::EEXIST)) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// Makes a symbolic link below `dir`.
pub(crate) fn symlinkat(target: &CStr, dir: Fd, path: &CStr) -> Result<()> {
    let args = [target.as_ptr() as usize, dir as usize, path.as_ptr() as usize, 0, 0, 0];
    // SAFETY: both are valid C strings.
    unsafe { call(libc::SYS_symlinkat, args) }.map(drop)
}

/// Makes a whiteout (character device 0:0) below `dir`.
pub(crate) fn whiteout(dir: Fd, path: &CStr) -> Result<()> {
    let args = [dir as usize, path.as_ptr() as usize, libc::S_IFCHR as usize, 0, 0, 0];
    // SAFETY: the path is a valid C string.
    unsafe { call(libc::SYS_mknodat, args) }.map(drop)
}

/// Writes all of `bytes`.
pub(crate) fn write_all(fd: Fd, mut bytes: &[u8]) -> Result<()> {
    while !bytes.is_empty() {
        // SAFETY: pointer and length come from one slice.
        let written = unsafe {
            call(libc::SYS_write, [fd as usize, bytes.as_ptr() as usize, bytes.len(), 0, 0, 0])
        };
        match written {
            Ok(0) => return Err(Errno(libc::EIO)),
            Ok(count) => bytes = bytes.get(count..).unwrap_or_default(),
            Err(Errno(libc::EINTR)) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Reads once into `buffer`.
pub(crate) fn read(fd: Fd, buffer: &mut [u8]) -> Result<usize> {
    loop {
        let args = [fd as usize, buffer.as_mut_ptr() as usize, buffer.len(), 0, 0, 0];
        // SAFETY: pointer and length come from one exclusive slice.
        match unsafe { call(libc::SYS_read, args) } {
            Err(Errno(libc::EINTR)) => {}
            result => return result,
        }
    }
}

/// Closes one descriptor.
pub(crate) fn close(fd: Fd) {
    let _ = number_call(libc::SYS_close, [fd as usize, 0, 0, 0, 0]);
}

/// Closes the descriptors from `first` to `last`, both included.
pub(crate) fn close_range(first: u32, last: u32) -> Result<()> {
    if first > last {
        return Ok(());
    }
    number_call(libc::SYS_close_range, [first as usize, last as usize, 0, 0, 0]).map(drop)
}

/// Duplicates `from` onto the number `to`, without close-on-exec, also if they are the same.
pub(crate) fn place(from: Fd, to: Fd) -> Result<()> {
    if from == to {
        return number_call(libc::SYS_fcntl, [from as usize, libc::F_SETFD as usize, 0, 0, 0])
            .map(drop);
    }
    number_call(libc::SYS_dup3, [from as usize, to as usize, 0, 0, 0]).map(drop)
}

/// Duplicates `from` onto another number, to be closed when the process executes.
pub(crate) fn place_until_exec(from: Fd, to: Fd) -> Result<()> {
    let args = [from as usize, to as usize, libc::O_CLOEXEC as usize, 0, 0];
    number_call(libc::SYS_dup3, args).map(drop)
}

/// Duplicates `fd` to some number that is at least `least`.
pub(crate) fn duplicate_above(fd: Fd, least: Fd) -> Result<Fd> {
    let command = libc::F_DUPFD_CLOEXEC as usize;
    Ok(number_call(libc::SYS_fcntl, [fd as usize, command, least as usize, 0, 0])? as Fd)
}

/// Returns device and inode of an open file.
pub(crate) fn identity(fd: Fd) -> Result<(u64, u64)> {
    // SAFETY: an all-zero `stat` is a valid value.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the structure is valid for writing; `fstat` is async-signal-safe.
    if unsafe { libc::fstat(fd, &raw mut stat) } == -1 {
        // SAFETY: errno belongs to this thread.
        return Err(Errno(unsafe { *libc::__errno_location() }));
    }
    Ok((stat.st_dev, stat.st_ino))
}

/// Calls `prctl` with numbers.
pub(crate) fn prctl(option: c_int, a: usize, b: usize) -> Result<()> {
    number_call(libc::SYS_prctl, [option as usize, a, b, 0, 0]).map(drop)
}

/// Ends the process at once.
pub(crate) fn exit(code: c_int) -> ! {
    // SAFETY: `_exit` runs no handlers and is async-signal-safe.
    unsafe { libc::_exit(code) }
}

/// Sends one message with descriptors attached.
pub(crate) fn send(socket: Fd, bytes: &[u8], fds: &[Fd]) -> Result<()> {
    #[repr(C, align(8))]
    struct Control([u8; 512]);
    let mut control = Control([0; 512]);
    let mut iov = libc::iovec { iov_base: bytes.as_ptr() as *mut c_void, iov_len: bytes.len() };
    // SAFETY: an all-zero `msghdr` is a valid value.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut iov;
    message.msg_iovlen = 1;
    if !fds.is_empty() {
        let payload = size_of_val(fds) as u32;
        // SAFETY: these only compute sizes.
        let (space, length) = unsafe { (libc::CMSG_SPACE(payload), libc::CMSG_LEN(payload)) };
        if space as usize > control.0.len() {
            return Err(Errno(libc::EINVAL));
        }
        message.msg_control = control.0.as_mut_ptr().cast();
        message.msg_controllen = space as _;
        // SAFETY: the control buffer is aligned and large enough for one header and the payload.
        unsafe {
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = length as _;
            std::ptr::copy_nonoverlapping(
                fds.as_ptr().cast::<u8>(),
                libc::CMSG_DATA(header),
                payload as usize,
            );
        }
    }
    let flags = libc::MSG_NOSIGNAL as usize;
    // SAFETY: the message points to buffers that outlive the call.
    unsafe {
        call(libc::SYS_sendmsg, [socket as usize, &raw const message as usize, flags, 0, 0, 0])
    }
    .map(drop)
}

/// Receives one message; `take` is shown level, kind and content of whatever came attached to it.
pub(crate) fn receive(
    socket: Fd,
    bytes: &mut [u8],
    flags: c_int,
    mut take: impl FnMut(c_int, c_int, &[u8]),
) -> Result<usize> {
    #[repr(C, align(8))]
    struct Control([u8; 512]);
    let mut control = Control([0; 512]);
    let mut iov = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: an all-zero `msghdr` is a valid value.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut iov;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = control.0.len() as _;
    let args = [socket as usize, &raw mut message as usize, flags as usize, 0, 0, 0];
    // SAFETY: the header points to live buffers of the stated sizes.
    let length = unsafe { call(libc::SYS_recvmsg, args) }?;
    // SAFETY: the kernel filled the control buffer; the walk and the content it shows stay inside
    // it by the lengths that the kernel wrote there.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(&raw const message);
        while !header.is_null() {
            let size = ((*header).cmsg_len as usize).saturating_sub(libc::CMSG_LEN(0) as usize);
            let content = std::slice::from_raw_parts(libc::CMSG_DATA(header), size);
            take((*header).cmsg_level, (*header).cmsg_type, content);
            header = libc::CMSG_NXTHDR(&raw const message, header);
        }
    }
    Ok(length)
}
