//! Tests of the backends from outside.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "tests"
)]

mod attacks;
mod bench;
mod claims;
mod crowd;
mod gate;
#[cfg(feature = "hermetic")]
mod hermetic;
mod limits;
mod lowering;
mod memory;
#[cfg(feature = "hermetic")]
mod mock;
mod namespace;
mod neighbors;
mod network;
mod places;
#[cfg(feature = "remote")]
mod remote;
mod sockets;
mod streams;
mod supervisor;
mod toolchains;
mod tools;
mod usage;
