//! The suite on real backends, and on backends that leak and lie.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "tests"
)]

mod bent;
mod controls;
mod kit;
mod raw;
mod subjects;
