//! The protocol from outside: every golden vector, tampering, and properties.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

mod forge;
mod objects;
mod primitives;
mod requests;
mod vectors;
mod verification;
