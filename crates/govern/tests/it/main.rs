//! Outside tests of the governed path: ask, permit, perform, over a real home.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

mod desk;
mod governed;
mod live;
mod lookouts;
mod operations;
mod passed;
mod sessions;
