//! Whole-stack tests: rooms that meet only here, and clients nobody here wrote.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

mod collecting;
mod doors;
mod leases;
mod providers;
