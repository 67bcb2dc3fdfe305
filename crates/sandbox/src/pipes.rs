//! The ends of a program's standard streams, inside and outside, and errors of the first steps.

use std::io;
use std::os::fd::OwnedFd;

use rustix::pipe::{PipeFlags, pipe_with};
use warrant_jail::{LaunchError, Stdio};

use crate::streams::Input;
use crate::{BoundaryError, Invocation, Refusal};

/// Both sides of the streams.
pub(crate) struct Pipes {
    pub(crate) inside: Stdio,
    /// Our side; with a terminal it comes out of the jail later.
    pub(crate) outside: Option<OutsidePipes>,
}

/// Our side of three pipes.
pub(crate) struct OutsidePipes {
    stdin: OwnedFd,
    stdout: OwnedFd,
    stderr: OwnedFd,
}

impl Pipes {
    pub(crate) fn new(invocation: &Invocation) -> io::Result<Self> {
        if let Some(size) = invocation.tty {
            let inside = Stdio::Terminal { columns: size.columns, rows: size.rows };
            return Ok(Self { inside, outside: None });
        }
        let (stdin, outside_stdin) = pipe_with(PipeFlags::CLOEXEC)?;
        let (outside_stdout, stdout) = pipe_with(PipeFlags::CLOEXEC)?;
        let (outside_stderr, stderr) = pipe_with(PipeFlags::CLOEXEC)?;
        let outside =
            OutsidePipes { stdin: outside_stdin, stdout: outside_stdout, stderr: outside_stderr };
        Ok(Self { inside: Stdio::Pipes { stdin, stdout, stderr }, outside: Some(outside) })
    }
}

/// Our side of the streams, ready to be watched.
pub(crate) struct Outside {
    pub(crate) input: Input,
    pub(crate) stdout: Option<OwnedFd>,
    pub(crate) stderr: Option<OwnedFd>,
}

impl Outside {
    /// Returns the pipes, or the terminal that came out of the jail.
    pub(crate) fn new(
        pipes: Option<OutsidePipes>,
        terminal: Option<OwnedFd>,
        invocation: &Invocation,
    ) -> Result<Self, BoundaryError> {
        let stdin = &invocation.stdin;
        match (pipes, terminal) {
            (Some(pipes), _) => {
                let input = Input::pipe(stdin, pipes.stdin).map_err(at("making pipes"))?;
                Ok(Self { input, stdout: Some(pipes.stdout), stderr: Some(pipes.stderr) })
            }
            (None, Some(outer)) => {
                let sharing = at("sharing the terminal");
                let copy = outer.try_clone().map_err(&sharing)?;
                let input = Input::terminal(stdin, copy).map_err(&sharing)?;
                Ok(Self { input, stdout: Some(outer), stderr: None })
            }
            (None, None) => {
                Err(at("sharing the terminal")(io::Error::from(io::ErrorKind::NotFound)))
            }
        }
    }
}

/// Names the step a system error belongs to.
pub(crate) fn at(step: &'static str) -> impl Fn(io::Error) -> BoundaryError {
    move |cause| BoundaryError { step, cause }
}

/// A plan that was refused when it was lowered again.
pub(crate) fn refused(refusal: Refusal) -> BoundaryError {
    BoundaryError { step: "lowering the invocation again", cause: io::Error::other(refusal) }
}

/// A launch that failed.
pub(crate) fn boundary(error: LaunchError) -> BoundaryError {
    BoundaryError { step: error.step.as_str(), cause: error.errno.into() }
}
