//! Closes descriptors whose closing takes the kernel long, beside whoever waits for a run.
//!
//! With the last reference to a mount namespace goes everything that is mounted in it; its processes
//! are gone by then, and nobody waits for the mounts.

use std::os::fd::OwnedFd;
use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};

/// Closes a descriptor soon; at once where there is no thread for it.
pub(crate) fn close_later(descriptor: OwnedFd) {
    static CLOSER: OnceLock<Option<Sender<OwnedFd>>> = OnceLock::new();
    let start = || {
        let (sender, closing) = channel::<OwnedFd>();
        let body = move || closing.into_iter().for_each(drop);
        std::thread::Builder::new().name("closer".to_owned()).spawn(body).ok()?;
        Some(sender)
    };
    if let Some(closer) = CLOSER.get_or_init(start) {
        // What cannot be handed over comes back with the error, and is closed here.
        drop(closer.send(descriptor));
    }
}
