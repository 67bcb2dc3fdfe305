//! Where a file system puts short-lived files.
//!
//! ext4 puts what is made in a directory near it, and looks there at every inode that was freed in
//! the last seconds before it takes one. A busy runner makes and removes thousands of files a
//! second, so that a third of its time went into that search.

use std::fs::File;
use std::path::Path;

use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};

/// Has the directories in `directory` put far apart, where the file system knows how.
pub(crate) fn spread(directory: &Path) {
    let told = || -> std::io::Result<()> {
        let directory = File::open(directory)?;
        let flags = ioctl_getflags(&directory)?;
        Ok(ioctl_setflags(&directory, flags | IFlags::TOPDIR)?)
    };
    // It is a hint: without it everything works, only slower.
    let _ = told();
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn a_spread_directory_is_used_as_any_other() {
        let place = tempfile::tempdir().unwrap();
        spread(place.path());
        spread(&place.path().join("missing"));
        let inside = place.path().join("a/b");
        std::fs::create_dir_all(&inside).unwrap();
        std::fs::write(inside.join("c"), "text").unwrap();
        assert_eq!(std::fs::read_to_string(inside.join("c")).unwrap(), "text");
    }
}
