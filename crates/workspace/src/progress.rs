//! Progress of long work, told to whoever draws it.

/// A part of the work that may take longer than a second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    /// The commit, or its history, is packed.
    Bundling,
    /// Changed and untracked files are read.
    Reading,
    /// The bundle arrives and is hashed.
    Fetching,
    /// Objects of the bundle are unpacked.
    Unpacking,
    /// Files are written.
    Writing,
    /// Files are compared with what they were.
    Comparing,
}

/// How far one phase is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// The phase.
    pub phase: Phase,
    /// Files or bytes done in it, whichever `total` counts.
    pub done: u64,
    /// How many there are, when known.
    pub total: Option<u64>,
}

/// Takes steps as they happen; called often, so it must return at once.
pub type Progress<'a> = &'a (dyn Fn(Step) + Sync);

/// Tells nobody.
pub fn quiet(_: Step) {}

/// Asked between steps; true means: end as soon as you can.
pub type Stop<'a> = &'a (dyn Fn() -> bool + Sync);

/// Never asks to stop.
#[must_use]
pub fn never_stop() -> bool {
    false
}
