//! A directory made ready outside any jail, for a process that is jailed already.
//!
//! A short-lived child in its own user and mount namespaces builds a root as a jail would, takes
//! a detached copy of one directory in it, with everything mounted below, and hands it out. Such
//! a copy has no way up: `..` at its top is itself.

use libc::c_int;

use crate::child::{OwnMaps, take_identity};
use crate::message::{At, Failure, Message, Step, Word};
use crate::mounts::{self, Root, ScratchOptions, Wanted};
use crate::spec::View;
use crate::sys::{self, Fd};

/// The namespaces of the child.
pub(crate) const NAMESPACES: c_int = libc::CLONE_NEWUSER | libc::CLONE_NEWNS;

/// What the child needs; made before the clone.
pub(crate) struct Plan<'a> {
    pub(crate) view: &'a View,
    pub(crate) control: Fd,
    pub(crate) scratch: ScratchOptions,
    /// The identity maps, when the child writes them itself.
    pub(crate) own_maps: Option<OwnMaps>,
}

/// Runs the child to its end.
pub(crate) fn run(plan: &Plan<'_>) {
    if let Err(failure) = make(plan) {
        let (step, errno) = (failure.step as i32, failure.errno.0);
        let _ = Message::new(Word::Failed, step, errno).send(plan.control, &[]);
    }
}

fn make(plan: &Plan<'_>) -> Result<(), Failure> {
    // SAFETY: the mask is this process's own.
    unsafe { libc::umask(0) };
    take_identity(plan.view.identity, plan.own_maps.as_ref(), plan.control)?;
    sys::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as usize, 0).at(Step::Lifeline)?;
    sys::prctl(libc::PR_SET_DUMPABLE, 0, 0).at(Step::Lifeline)?;
    let wanted = Wanted::of_view(plan.view);
    let Root { root, scratch, .. } = mounts::build(&wanted, &plan.scratch)?;
    let shown = sys::open_in_root(root, &plan.view.shown, libc::O_PATH).at(Step::CloneMount)?;
    let flags =
        sys::OPEN_TREE_CLONE | sys::OPEN_TREE_CLOEXEC | sys::AT_RECURSIVE | sys::AT_EMPTY_PATH;
    let tree = sys::open_tree(shown, sys::EMPTY, flags).at(Step::CloneMount)?;
    Message::new(Word::Built, 0, 0).send(plan.control, &[scratch, tree]).at(Step::Handshake)
}
