//! The workspace room, from outside: real git, real files, real overlays.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stderr,
    missing_docs,
    unreachable_pub,
    reason = "tests"
)]

mod attacks;
mod capture;
mod continuation;
mod export;
mod fixture;
mod git_attacks;
mod git_import;
mod property;
mod pull;
mod rollback;
mod round_trip;
