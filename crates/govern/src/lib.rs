//! The governed path as a library: plane and runner joined in one process.
//!
//! Start at [`Desk`]: it opens the home with its policy and store. An [`Ask`] says what is wished
//! for and where; [`Desk::permit`] has it judged and leaves evidence, [`Desk::perform`] runs what
//! was permitted to its receipt, [`Desk::attempt`] does both. [`keep`] decides what becomes of the
//! run's writes, [`live`] keeps sandboxes between calls. The command line, the doors and embedders
//! all walk this path.

pub mod archive;
mod ask;
pub mod backends;
mod continuation;
mod desk;
mod file_errands;
mod gaps;
pub mod governed;
pub mod hook;
pub mod keep;
pub mod keyring;
pub mod live;
pub mod mcp;
pub mod output;
pub mod provider_port;
pub mod providers;
pub mod record;
mod underway;
mod veil;
mod workbench;
mod worktree;

pub use ask::{Ask, around_plain, find_program, plain_request};
pub use continuation::{Continuation, ContinueError, TakenUp};
pub use desk::{
    Attempt, Desk, DeskError, Hands, Permit, environment, principal, principal_of, variables,
};
pub use file_errands::{read_errand, write_errand};
pub use governed::GovernedSandbox;
pub use warrant_plane::policy_files::{PolicyFiles, PolicyFilesError, policy_folder, write_policy};
pub use workbench::{
    Away, Errand, Step, Work, Workbench, WorkbenchError, WorkbenchOptions, Writes, agent_principal,
    script_shell,
};
pub use worktree::WithGit;
