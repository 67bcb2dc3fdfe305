//! Tests of the runner from outside, with the real plane, the real store and real processes.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

mod crash;
mod leaks;
mod leases;
mod loopback;
mod observed;
mod redact;
mod remote;
mod support;
mod tiers;
mod walk;
