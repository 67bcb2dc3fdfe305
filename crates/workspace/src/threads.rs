//! Work on files, on all processors where that is worth the threads.

use std::thread;

/// So few files are done sooner than threads are started for them.
pub(crate) const FEW_FILES: usize = 64;

/// More threads than this only wait for the disk.
const MOST_THREADS: usize = 8;

/// Does `work` on a thread for each processor and returns what became of each.
pub(crate) fn on_all_processors<T: Send>(
    work: impl Fn() -> T + Copy + Send,
) -> Vec<thread::Result<T>> {
    let workers = thread::available_parallelism().map_or(1, |count| count.get().min(MOST_THREADS));
    thread::scope(|scope| {
        let handles: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        handles.into_iter().map(thread::ScopedJoinHandle::join).collect()
    })
}
