//! Tests of the plane from outside: the real store, real files, real locks.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::too_many_arguments,
    reason = "tests"
)]

mod approvals;
mod backup;
mod home;
mod http;
mod integrity;
mod journal;
mod migrations;
mod model;
mod rotation;
mod secrets;
mod states;
mod store;
mod support;
