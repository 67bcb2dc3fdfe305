//! The protocol from outside: every golden vector, tampering, and properties.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

mod forge;
mod lies;
mod objects;
mod primitives;
mod properties;
mod requests;
mod rest;
mod samples;
mod vectors;
mod verification;
