//! The proxy from outside: real sockets, real servers, real network namespaces.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stderr,
    reason = "tests"
)]

mod attacks;
mod dns;
mod fetch;
mod http;
mod internet;
mod origin;
mod parsers;
mod pass;
mod transparent;
mod tunnel;
