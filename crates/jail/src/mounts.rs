//! The jail's root: a bounded scratch filesystem, a skeleton on it, and mounts on the skeleton.
//!
//! Layout of the scratch filesystem: `r` is the root's skeleton, `upper`, `work`, `lower` and
//! `hidden` belong to the overlay, `file` and `directory` are the veils laid over secrets, `shown`
//! is where host directories lie below overlays that nobody can write.
//! Only `r` and what is mounted on it can be reached after the pivot.

use std::ffi::{CStr, CString};
use std::os::fd::{AsRawFd, OwnedFd};

use crate::message::{At, Failure, Step};
use crate::spec::{Attributes, Entry, Hidden, HostPath, Mount, Scratch, Source, Spec, View};
use crate::sys::{self, Errno, Fd, MountAttr};

/// What a root is made of.
pub(crate) struct Wanted<'a> {
    scratch: &'a Scratch,
    entries: &'a [Entry],
    mounts: &'a [Mount],
}

impl<'a> Wanted<'a> {
    pub(crate) fn of_jail(spec: &'a Spec) -> Self {
        Self { scratch: &spec.scratch, entries: &spec.entries, mounts: &spec.mounts }
    }

    pub(crate) fn of_view(view: &'a View) -> Self {
        Self { scratch: &view.scratch, entries: &view.entries, mounts: &view.mounts }
    }
}

/// Options of the scratch filesystem as text, made before the clone.
pub(crate) struct ScratchOptions {
    bytes: Option<CString>,
    inodes: Option<CString>,
}

impl ScratchOptions {
    pub(crate) fn new(wanted: &Wanted<'_>) -> Self {
        let text = |value: u64| CString::new(value.to_string()).unwrap_or_default();
        // The skeleton itself takes inodes and pages that the program must not pay for.
        let hidden: usize = wanted.mounts.iter().map(|mount| hidden_count(&mount.source)).sum();
        let own_inodes = (wanted.entries.len() + hidden + 24) as u64;
        let own_bytes: u64 = wanted.entries.iter().map(page_bytes).sum::<u64>() + 64 * 4096;
        Self {
            bytes: wanted.scratch.bytes.map(|bytes| text(bytes.saturating_add(own_bytes))),
            inodes: wanted.scratch.inodes.map(|inodes| text(inodes.saturating_add(own_inodes))),
        }
    }
}

fn hidden_count(source: &Source) -> usize {
    match source {
        Source::Overlay { hidden, .. } => hidden.len(),
        _ => 0,
    }
}

fn page_bytes(entry: &Entry) -> u64 {
    match entry {
        Entry::File { content, .. } => (content.len() as u64).div_ceil(4096) * 4096,
        Entry::Directory { .. } | Entry::Symlink { .. } => 0,
    }
}

/// What building the root leaves open.
pub(crate) struct Root {
    /// The new root.
    pub(crate) root: Fd,
    /// The scratch filesystem, for the supervisor to look into.
    pub(crate) scratch: Fd,
    /// Whether every host directory that was to be shown through an overlay is.
    pub(crate) all_shown: bool,
}

/// Builds the root and leaves it attached, but not yet entered.
pub(crate) fn build(wanted: &Wanted<'_>, options: &ScratchOptions) -> Result<Root, Failure> {
    make_private()?;
    let scratch = make_scratch(wanted.scratch.image.as_ref(), options)?;
    for (name, mode) in [(c"r", 0o755), (c"directory", 0o000), (c"shown", 0o755)] {
        sys::mkdirat(scratch, name, mode).at(Step::Scratch)?;
    }
    let veil =
        sys::openat(scratch, c"file", libc::O_CREAT | libc::O_WRONLY, 0).at(Step::Scratch)?;
    sys::close(veil);
    if let Some(mode) = wanted.scratch.overlay_mode {
        for name in [c"upper", c"hidden"] {
            sys::mkdirat(scratch, name, mode).at(Step::Scratch)?;
        }
        for name in [c"work", c"lower"] {
            sys::mkdirat(scratch, name, 0o755).at(Step::Scratch)?;
        }
    }
    let skeleton = sys::openat(scratch, c"r", libc::O_PATH, 0).at(Step::Skeleton)?;
    create(wanted.entries, skeleton).at(Step::Skeleton)?;
    let flags = sys::OPEN_TREE_CLONE | sys::OPEN_TREE_CLOEXEC;
    let root = sys::open_tree(scratch, c"r", flags).at(Step::Scratch)?;
    sys::move_mount(root, skeleton).at(Step::Attach)?;
    let mut all_shown = true;
    for mount in wanted.mounts {
        all_shown &= attach(scratch, skeleton, root, mount)?;
    }
    let read_only =
        MountAttr { set: sys::MOUNT_ATTR_RDONLY, clear: 0, propagation: 0, userns_fd: 0 };
    sys::mount_setattr(root, 0, &read_only).at(Step::Restrict)?;
    // A mount's own descriptor is a path only; this one can be read.
    let flags = libc::O_RDONLY | libc::O_DIRECTORY;
    let scratch = sys::openat(scratch, c".", flags, 0).at(Step::Scratch)?;
    Ok(Root { root, scratch, all_shown })
}

/// Makes `root` the root and forgets the old one.
pub(crate) fn enter(root: Fd) -> Result<(), Failure> {
    let dot = c".".as_ptr() as usize;
    sys::number_call(libc::SYS_fchdir, [root as usize, 0, 0, 0, 0]).at(Step::Pivot)?;
    // SAFETY: both paths are the static string ".".
    unsafe { sys::call(libc::SYS_pivot_root, [dot, dot, 0, 0, 0, 0]) }.at(Step::Pivot)?;
    let detach = libc::MNT_DETACH as usize;
    // The old root lies on the new one now, and the scratch filesystem on the old root.
    for _ in 0..2 {
        // SAFETY: the path is the static string ".".
        unsafe { sys::call(libc::SYS_umount2, [dot, detach, 0, 0, 0, 0]) }.at(Step::Pivot)?;
    }
    // SAFETY: the path is a static string.
    unsafe { sys::call(libc::SYS_chdir, [c"/".as_ptr() as usize, 0, 0, 0, 0, 0]) }
        .at(Step::Pivot)?;
    verify_root(root).at(Step::Pivot)
}

/// Makes sure that nothing of the host is left: above and below the root there is only itself.
fn verify_root(root: Fd) -> sys::Result<()> {
    let expected = sys::identity(root)?;
    for path in [c"/", c"/..", c"."] {
        let found = sys::openat(libc::AT_FDCWD, path, libc::O_PATH, 0)?;
        let is_root = sys::identity(found)? == expected;
        sys::close(found);
        if !is_root {
            return Err(Errno(libc::EXDEV));
        }
    }
    Ok(())
}

fn make_private() -> Result<(), Failure> {
    let flags = (libc::MS_REC | libc::MS_PRIVATE) as usize;
    // SAFETY: the target is a static string, the other pointers may be null for this flag.
    unsafe { sys::call(libc::SYS_mount, [0, c"/".as_ptr() as usize, 0, flags, 0, 0]) }
        .at(Step::PrivateMounts)
        .map(drop)
}

/// Makes the scratch filesystem, stacked on the old root, where no path leads to it.
fn make_scratch(image: Option<&OwnedFd>, options: &ScratchOptions) -> Result<Fd, Failure> {
    let scratch = match image {
        Some(image) => image.as_raw_fd(),
        None => make_memory(options)?,
    };
    let old = sys::openat(libc::AT_FDCWD, c"/", libc::O_PATH, 0).at(Step::Scratch)?;
    sys::move_mount(scratch, old).at(Step::Scratch)?;
    sys::close(old);
    Ok(scratch)
}

fn make_memory(options: &ScratchOptions) -> Result<Fd, Failure> {
    let config = sys::fsopen(c"tmpfs").at(Step::Scratch)?;
    sys::fsconfig_string(config, c"mode", c"0755").at(Step::Scratch)?;
    if let Some(bytes) = &options.bytes {
        sys::fsconfig_string(config, c"size", bytes).at(Step::Scratch)?;
    }
    if let Some(inodes) = &options.inodes {
        sys::fsconfig_string(config, c"nr_inodes", inodes).at(Step::Scratch)?;
    }
    let attributes = sys::MOUNT_ATTR_NOSUID | sys::MOUNT_ATTR_NODEV;
    let scratch = sys::fsmount(config, attributes).at(Step::Scratch)?;
    sys::close(config);
    Ok(scratch)
}

fn create(entries: &[Entry], root: Fd) -> sys::Result<()> {
    for entry in entries {
        match entry {
            Entry::Directory { path, mode } => sys::mkdirat(root, path, *mode)?,
            Entry::Symlink { path, target } => sys::symlinkat(target, root, path)?,
            Entry::File { path, content } => {
                let flags = libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY | libc::O_NOFOLLOW;
                let file = sys::openat(root, path, flags, 0o644)?;
                sys::write_all(file, content)?;
                sys::close(file);
            }
        }
    }
    Ok(())
}

/// Attaches one mount; returns whether it is what was asked for, and not what takes its place.
fn attach(scratch: Fd, skeleton: Fd, root: Fd, mount: &Mount) -> Result<bool, Failure> {
    let (tree, is_shown) = match &mount.source {
        Source::Shown(below) => show(scratch, open_source(scratch, skeleton, below)?)?,
        source => (open_source(scratch, skeleton, source)?, true),
    };
    restrict(tree, &mount.source, mount.attributes).at(Step::Restrict)?;
    let target = sys::open_in_root(root, &mount.target, libc::O_PATH).at(Step::Attach)?;
    sys::move_mount(tree, target).at(Step::Attach)?;
    sys::close(target);
    sys::close(tree);
    Ok(is_shown)
}

/// Mounts an overlay that nobody can write over `layer`; returns the layer itself, and that it is
/// no overlay, where the kernel makes none of it.
///
/// SECURITY: a socket of the host is found by its inode, and a named pipe by its own; through an
/// overlay both have others, so that no byte, descriptor or credential leaves by them.
fn show(scratch: Fd, layer: Fd) -> Result<(Fd, bool), Failure> {
    let read_only = MountAttr {
        set: sys::MOUNT_ATTR_RDONLY | sys::MOUNT_ATTR_NOSUID,
        clear: 0,
        propagation: libc::MS_PRIVATE,
        userns_fd: 0,
    };
    sys::mount_setattr(layer, sys::AT_RECURSIVE, &read_only).at(Step::Restrict)?;
    let below = sys::openat(scratch, c"shown", libc::O_PATH, 0).at(Step::OverlayMount)?;
    sys::move_mount(layer, below).at(Step::OverlayMount)?;
    sys::close(below);
    sys::close(layer);
    // A second layer, an empty directory, because one alone would have to be written above.
    match overlay(scratch, c"shown:directory", None) {
        Ok(tree) => Ok((tree, true)),
        Err(_) => {
            let flags = sys::OPEN_TREE_CLONE | sys::OPEN_TREE_CLOEXEC | sys::AT_RECURSIVE;
            let tree = sys::open_tree(scratch, c"shown", flags).at(Step::CloneMount)?;
            Ok((tree, false))
        }
    }
}

fn open_source(scratch: Fd, skeleton: Fd, source: &Source) -> Result<Fd, Failure> {
    let own = |directory: Fd, name: &CStr| {
        sys::open_tree(directory, name, sys::OPEN_TREE_CLONE | sys::OPEN_TREE_CLOEXEC)
            .at(Step::CloneMount)
    };
    match source {
        Source::Host(host) => clone_host(host),
        Source::Detached(fd) => Ok(fd.as_raw_fd()),
        Source::Shown(below) => open_source(scratch, skeleton, below),
        Source::Skeleton(path) => own(skeleton, path),
        Source::VeiledFile => own(scratch, c"file"),
        Source::VeiledDirectory => own(scratch, c"directory"),
        Source::Overlay { lower, hidden } => {
            let layer = open_source(scratch, skeleton, lower)?;
            make_overlay(scratch, layer, hidden)
        }
        Source::Proc => make_simple(c"proc", &[]).at(Step::ProcMount),
        Source::Terminals => make_simple(c"devpts", &[(c"ptmxmode", c"0666"), (c"mode", c"0620")])
            .at(Step::TerminalMount),
    }
}

/// Returns a detached copy of a host mount.
fn clone_host(host: &HostPath) -> Result<Fd, Failure> {
    let flags = sys::OPEN_TREE_CLONE
        | sys::OPEN_TREE_CLOEXEC
        | sys::AT_RECURSIVE
        | sys::AT_SYMLINK_NOFOLLOW;
    let tree = sys::open_tree(libc::AT_FDCWD, &host.path, flags).at(Step::CloneMount)?;
    if let Some(expected) = host.identity {
        // SECURITY: a directory swapped for a link between look and mount.
        if sys::identity(tree).at(Step::ChangedPath)? != expected {
            return Err(Failure { step: Step::ChangedPath, errno: Errno(libc::ESTALE) });
        }
    }
    Ok(tree)
}

fn make_simple(kind: &CStr, options: &[(&CStr, &CStr)]) -> sys::Result<Fd> {
    let config = sys::fsopen(kind)?;
    for (key, value) in options {
        sys::fsconfig_string(config, key, value)?;
    }
    let mount = sys::fsmount(config, sys::MOUNT_ATTR_NOSUID | sys::MOUNT_ATTR_NOEXEC)?;
    sys::close(config);
    Ok(mount)
}

/// Mounts the upper layer over `layer`, with names hidden by a layer of whiteouts between them.
fn make_overlay(scratch: Fd, layer: Fd, hidden: &[Hidden]) -> Result<Fd, Failure> {
    let private = MountAttr {
        set: sys::MOUNT_ATTR_RDONLY,
        clear: 0,
        propagation: libc::MS_PRIVATE,
        userns_fd: 0,
    };
    sys::mount_setattr(layer, sys::AT_RECURSIVE, &private).at(Step::Restrict)?;
    let below = sys::openat(scratch, c"lower", libc::O_PATH, 0).at(Step::OverlayMount)?;
    sys::move_mount(layer, below).at(Step::OverlayMount)?;
    sys::close(below);
    if !hidden.is_empty() {
        let middle = sys::openat(scratch, c"hidden", libc::O_PATH, 0).at(Step::OverlayMount)?;
        for name in hidden {
            match name {
                Hidden::Directory { path, mode } => sys::mkdirat(middle, path, *mode),
                Hidden::Name(path) => sys::whiteout(middle, path),
            }
            .at(Step::OverlayMount)?;
        }
        sys::close(middle);
    }
    let lower = if hidden.is_empty() { c"lower" } else { c"hidden:lower" };
    overlay(scratch, lower, Some(UpperLayer { upper: c"upper", work: c"work" }))
        .at(Step::OverlayMount)
}

/// Where an overlay keeps what is written to it.
struct UpperLayer<'a> {
    upper: &'a CStr,
    work: &'a CStr,
}

fn overlay(scratch: Fd, lower: &CStr, written: Option<UpperLayer<'_>>) -> sys::Result<Fd> {
    // Relative names: the scratch filesystem has no path, only a descriptor.
    sys::number_call(libc::SYS_fchdir, [scratch as usize, 0, 0, 0, 0])?;
    let config = sys::fsopen(c"overlay")?;
    sys::fsconfig_string(config, c"lowerdir", lower)?;
    if let Some(UpperLayer { upper, work }) = written {
        sys::fsconfig_string(config, c"upperdir", upper)?;
        sys::fsconfig_string(config, c"workdir", work)?;
    }
    sys::fsconfig_flag(config, c"userxattr")?;
    let mount = sys::fsmount(config, sys::MOUNT_ATTR_NOSUID | sys::MOUNT_ATTR_NODEV);
    sys::close(config);
    mount
}

fn restrict(tree: Fd, source: &Source, attributes: Attributes) -> sys::Result<()> {
    let mut set = sys::MOUNT_ATTR_NOSUID;
    for (allowed, attribute) in [
        (attributes.writable, sys::MOUNT_ATTR_RDONLY),
        (attributes.executable, sys::MOUNT_ATTR_NOEXEC),
        (attributes.devices, sys::MOUNT_ATTR_NODEV),
    ] {
        if !allowed {
            set |= attribute;
        }
    }
    let propagation = libc::MS_PRIVATE;
    let recursive = match source {
        Source::Host(_) | Source::Detached(_) | Source::Shown(_) => sys::AT_RECURSIVE,
        _ => 0,
    };
    sys::mount_setattr(tree, recursive, &MountAttr { set, clear: 0, propagation, userns_fd: 0 })
}
