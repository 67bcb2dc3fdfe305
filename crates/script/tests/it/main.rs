//! What scripts start and touch, seen from outside.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

mod effects;
mod hiding;
mod programs;
mod properties;
mod rewriting;
mod shells;
mod wrapping;
