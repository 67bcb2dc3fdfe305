//! Where a run works: the workspace that lies on this machine, or a checkout of its own.
//!
//! A visiting run brings its workspace along as blobs. It is built in an empty directory that
//! belongs to the run alone, so the program may write there directly in every tier, and what
//! changed is the difference from the contract's commit, as on the reference's wire.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

use warrant_protocol::event::FailureClass;
use warrant_protocol::execution::MockAgent;
use warrant_protocol::port::Lease;
use warrant_protocol::request::WorkspaceMode;
use warrant_protocol::{ContractBody, Event, ExecutionSpec, Outcome, error_chain};
use warrant_sandbox::RunReport;
use warrant_workspace::{
    BlobSource, Checkout, GitDirectory, MaterializeOptions, TreeLimits, materialize,
};

use crate::capture;
use crate::halt::Halt;
use crate::journal::Journal;
use crate::pack::{self, Packed, Packing};
use crate::remote::StopSlot;
use crate::run::Surroundings;

/// What a run has whose workspace comes from the plane.
#[derive(Clone, Copy)]
pub struct Visit<'a> {
    /// Where the workspace is built: a directory that does not exist yet.
    pub checkout: &'a Path,
    /// Where its blobs come from.
    pub blobs: &'a dyn BlobSource,
    /// Why the run was cancelled, when it was.
    pub stop: &'a StopSlot,
    /// How the built-in agent is started here, if it is.
    pub mock: Option<MockProgram<'a>>,
    /// The most output that is kept where the contract is silent.
    pub most_output_bytes: u64,
}

/// The program of the built-in agent.
#[derive(Debug, Clone, Copy)]
pub struct MockProgram<'a> {
    /// Its absolute path.
    pub program: &'a str,
    /// The argument that makes it the agent.
    pub argument: &'a str,
}

impl Visit<'_> {
    pub(crate) fn mock_agent(&self) -> Option<MockAgent<'_>> {
        let mock = self.mock?;
        Some(MockAgent { interpreter: mock.program, script: mock.argument })
    }

    /// Returns the program file that must be readable inside, when it is one of ours.
    pub(crate) fn agent_program(&self, contract: &ContractBody) -> Option<&Path> {
        let execution = contract.execution_or_default();
        let is_mock =
            matches!(&execution, ExecutionSpec::Agent { agent, .. } if agent.kind == "mock");
        self.mock.filter(|_| is_mock).map(|mock| Path::new(mock.program))
    }
}

/// Whose the workspace is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ownership {
    /// Somebody works in it: the run gets a layer over it.
    Shared,
    /// Nobody else has it.
    OfThisRun,
}

/// Where one run works.
pub(crate) enum Site<'a> {
    /// In the workspace of this machine.
    Here(&'a Path),
    /// In a checkout of its own.
    Own(Box<Checkout>),
}

impl<'a> Site<'a> {
    /// Builds the workspace if it comes along, and records that.
    pub(crate) fn open(
        surroundings: &Surroundings<'a>,
        (visit, lease): (Option<&Visit<'_>>, &Lease),
        journal: &mut Journal<'_>,
    ) -> Result<Self, Halt> {
        let Some(visit) = visit else { return Ok(Self::Here(surroundings.workspace)) };
        let no_room = |_| failed("there is no room for the workspace".to_owned());
        let make = |path: &Path| DirBuilder::new().recursive(true).mode(0o700).create(path);
        make(visit.checkout).and_then(|()| make(surroundings.scratch)).map_err(no_room)?;
        let manifest = &lease.contract.body().workspace;
        let built = surroundings.told(|progress| {
            let options = MaterializeOptions {
                scratch: surroundings.scratch,
                limits: TreeLimits::generous(),
                git_directory: GitDirectory::Write,
                progress,
            };
            materialize(manifest, visit.blobs, visit.checkout, &options)
        });
        let checkout = built.map_err(|error| {
            failed(format!("the workspace could not be built: {}", error_chain(&error)))
        })?;
        let manifest_hash = lease.contract.manifest_hash();
        journal.record(&Event::WorkspaceMaterialized { manifest_hash })?;
        Ok(Self::Own(Box::new(checkout)))
    }

    pub(crate) fn path(&self) -> &Path {
        match self {
            Self::Here(path) => path,
            Self::Own(checkout) => checkout.path(),
        }
    }

    pub(crate) const fn ownership(&self) -> Ownership {
        match self {
            Self::Here(_) => Ownership::Shared,
            Self::Own(_) => Ownership::OfThisRun,
        }
    }

    /// Records what changed and keeps the diff.
    pub(crate) fn pack(
        &self,
        journal: &mut Journal<'_>,
        packing: &Packing<'_>,
        report: &RunReport,
    ) -> Result<Packed, Halt> {
        match (self, &report.upper) {
            (Self::Own(checkout), _) => pack::pack_checkout(journal, packing, checkout),
            (Self::Here(_), Some(upper)) => pack::pack_changes(journal, packing, upper),
            (Self::Here(_), None) => {
                let mode = packing.lease.contract.body().mode;
                let is_closed = mode == Some(WorkspaceMode::ReadOnly);
                if is_closed && report.posture.enforces("files.write") {
                    capture::record_nothing_changed(journal)?;
                } else {
                    let why =
                        "the program wrote into the workspace directly, and nothing compared it";
                    capture::record_no_capture(journal, why)?;
                }
                Ok(Packed::nothing())
            }
        }
    }
}

fn failed(message: String) -> Halt {
    Halt::new(Outcome::Failed, FailureClass::TransferFailed, message)
}
