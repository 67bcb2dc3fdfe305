//! Gives a checkout its own `.git`, so that the session can use git; we never read it again.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::Path;

use sha1::{Digest as _, Sha1};

use super::Written;
use super::dirty::install_pack;
use crate::TreePath;
use crate::bundle::BundleHeader;
use crate::git::write_git_directory;
use crate::object::Oid;
use crate::pack::Pack;
use crate::raw::BaseFile;

/// Writes the `.git` of a checkout: the bundle's objects, a detached HEAD and an index of the base.
#[derive(Clone, Copy)]
pub(super) struct Writer<'a> {
    pub(super) target: &'a Path,
    pub(super) pack: &'a Pack,
    pub(super) header: &'a BundleHeader,
    pub(super) base_ref: Oid,
}

impl Writer<'_> {
    /// Writes everything but the index, which needs the files.
    pub(super) fn begin(&self) -> io::Result<()> {
        let directory = self.target.join(".git");
        let head = format!("{}\n", self.base_ref.to_hex());
        fs::create_dir(&directory)?;
        // The session's git is its own business: it may use the attributes of the workspace.
        write_git_directory(&directory, &head)?;
        install_pack(self.pack, &directory.join("objects/pack"))?;
        if !self.header.prerequisites.is_empty() {
            fs::write(directory.join("shallow"), head)?;
        }
        Ok(())
    }

    /// Writes the index.
    pub(super) fn finish(&self, index: &Index<'_>) -> io::Result<()> {
        fs::write(self.target.join(".git/index"), index.to_bytes())
    }
}

/// What goes into the index of a checkout.
pub(super) struct Index<'a> {
    pub(super) base: &'a HashMap<TreePath, BaseFile>,
    /// Files that stayed at home; git is told not to look for them.
    pub(super) held_back: &'a HashMap<TreePath, BaseFile>,
    pub(super) written: &'a HashMap<TreePath, Written>,
}

impl Index<'_> {
    /// Returns an index file (version 3) of the base, with the stat of every file that is as in it.
    fn to_bytes(&self) -> Vec<u8> {
        const EXTENDED: u16 = 0x4000;
        const SKIP_WORKTREE: u16 = 0x4000;
        let mut rows: Vec<_> = self.base.iter().chain(self.held_back).collect();
        rows.sort_unstable_by(|a, b| a.0.cmp(b.0));
        let mut bytes = Vec::with_capacity(32 + rows.len() * 128);
        bytes.extend_from_slice(b"DIRC\0\0\0\x03");
        bytes.extend_from_slice(&u32::try_from(rows.len()).unwrap_or(u32::MAX).to_be_bytes());
        for (path, file) in rows {
            let start = bytes.len();
            for word in self.stat_words(path, file) {
                bytes.extend_from_slice(&word.to_be_bytes());
            }
            bytes.extend_from_slice(file.oid.as_bytes());
            let length = u16::try_from(path.as_bytes().len()).unwrap_or(u16::MAX).min(0xfff);
            if self.held_back.contains_key(path) {
                bytes.extend_from_slice(&(length | EXTENDED).to_be_bytes());
                bytes.extend_from_slice(&SKIP_WORKTREE.to_be_bytes());
            } else {
                bytes.extend_from_slice(&length.to_be_bytes());
            }
            bytes.extend_from_slice(path.as_bytes());
            let padding = 8 - (bytes.len() - start) % 8;
            bytes.extend(std::iter::repeat_n(0, padding));
        }
        let sum: [u8; 20] = Sha1::digest(&bytes).into();
        bytes.extend_from_slice(&sum);
        bytes
    }

    fn stat_words(&self, path: &TreePath, file: &BaseFile) -> [u32; 10] {
        let mode = file.mode.bits();
        match self.written.get(path).filter(|written| written.file == *file) {
            None => [0, 0, 0, 0, 0, 0, mode, 0, 0, 0],
            Some(Written { facts, .. }) => [
                low(facts.ctime.0.cast_unsigned()),
                facts.ctime.1,
                low(facts.mtime.0.cast_unsigned()),
                facts.mtime.1,
                low(facts.device),
                low(facts.inode),
                mode,
                facts.uid,
                facts.gid,
                low(facts.bytes),
            ],
        }
    }
}

/// Returns the low 32 bits, which is all the index keeps.
const fn low(value: u64) -> u32 {
    (value & 0xffff_ffff) as u32
}
