//! Names objects by their own hash on a second thread, while the first inflates the next ones.

use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, mpsc};
use std::thread::{Scope, ScopedJoinHandle};

use super::{CACHE_BYTES, PackError};
use crate::object::{ObjectKind, Oid, object_name};

/// An object above this is named where it was inflated, so that few bytes are ever on the way.
pub(super) const SMALL_BYTES: u64 = 256 * 1024;
const BATCH_OBJECTS: usize = 256;
const BATCH_BYTES: usize = 1 << 20;

/// An object that was inflated.
struct Raw {
    index: usize,
    kind: ObjectKind,
    content: Vec<u8>,
}

/// An object with its name, and its content if there was room to keep it.
#[derive(Debug)]
pub(super) struct Named {
    pub(super) index: usize,
    pub(super) oid: Oid,
    pub(super) kind: ObjectKind,
    pub(super) bytes: u64,
    pub(super) content: Option<Arc<[u8]>>,
}

/// Hands objects to the second thread, which is started with the first full batch.
pub(super) struct Namer<'scope, 'env> {
    scope: &'scope Scope<'scope, 'env>,
    second: Option<Second<'scope>>,
    batch: Vec<Raw>,
    batch_bytes: usize,
}

struct Second<'scope> {
    sender: SyncSender<Vec<Raw>>,
    thread: ScopedJoinHandle<'scope, Vec<Named>>,
}

impl<'scope, 'env> Namer<'scope, 'env> {
    pub(super) const fn new(scope: &'scope Scope<'scope, 'env>) -> Self {
        Self { scope, second: None, batch: Vec::new(), batch_bytes: 0 }
    }

    pub(super) fn push(&mut self, index: usize, kind: ObjectKind, content: Vec<u8>) {
        self.batch_bytes += content.len();
        self.batch.push(Raw { index, kind, content });
        if self.batch.len() >= BATCH_OBJECTS || self.batch_bytes >= BATCH_BYTES {
            self.send();
        }
    }

    /// Waits for the names of everything that was handed over.
    pub(super) fn finish(mut self) -> Result<Vec<Named>, PackError> {
        if self.second.is_none() {
            return Ok(name_all(std::iter::once(self.batch)));
        }
        self.send();
        let Some(Second { sender, thread }) = self.second else { return Ok(Vec::new()) };
        drop(sender);
        thread.join().map_err(|_| PackError::Io(std::io::ErrorKind::Other.into()))
    }

    fn send(&mut self) {
        self.batch_bytes = 0;
        let batch = std::mem::take(&mut self.batch);
        let second = self.second.get_or_insert_with(|| {
            let (sender, receiver) = sync_channel(4);
            let thread = self.scope.spawn(move || name_all(receiver.into_iter()));
            Second { sender, thread }
        });
        // A thread that is gone is told by `finish`.
        let _: Result<(), mpsc::SendError<_>> = second.sender.send(batch);
    }
}

fn name_all(batches: impl Iterator<Item = Vec<Raw>>) -> Vec<Named> {
    let mut kept_bytes = 0;
    let mut all = Vec::new();
    for Raw { index, kind, content } in batches.flatten() {
        let (oid, bytes) = (object_name(kind, &content), content.len() as u64);
        let is_kept = kept_bytes + content.len() <= CACHE_BYTES;
        kept_bytes += if is_kept { content.len() } else { 0 };
        let content = is_kept.then(|| Arc::from(content));
        all.push(Named { index, oid, kind, bytes, content });
    }
    all
}
