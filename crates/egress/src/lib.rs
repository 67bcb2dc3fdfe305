//! The allow-list forward proxy: every destination decided by name, dialed by a checked address, reported.
//!
//! [`serve`] runs one proxy per run on listeners handed in by a backend; [`Client`] is the same
//! gate for code that runs in this process. The crate knows no runs, contracts or policies: only
//! [`Rules`] in, [`Decision`]s out. It never buffers without bound and never resolves a denied name.
//!
//! Start at [`rules`] for what an entry means, at `gate` for how one destination is decided,
//! resolved, checked and dialed, and at `proxy` for the accept loops.

mod address;
mod body;
mod decision;
mod dns;
mod fetch;
mod gate;
mod head;
mod hello;
mod host;
mod http;
mod ledger;
mod model;
mod options;
mod pass;
mod pipe;
mod proxy;
mod resolve;
pub mod rules;
mod settle;
mod socks;
mod stub;
mod tls;
mod tunnel;
mod url;

pub use decision::{Decision, Totals, Why};
pub use fetch::{Client, FetchError, Redirects, Request, Response};
pub use host::{Host, HostName, InvalidHost};
pub use model::ModelCall;
pub use options::{Options, Resolver};
pub use pass::Pass;
pub use proxy::{Listeners, Proxy, serve};
pub use rules::{RuleError, Rules};

/// Parsers of hostile bytes, open to the fuzzing tests and to nobody else.
#[doc(hidden)]
pub mod parsers {
    pub use crate::body::{Chunks, Piece};
    pub use crate::dns::{Query, answers, parse_query};
    pub use crate::head::{RequestHead, ResponseHead, parse_request, parse_response};
    pub use crate::hello::{Hello, Peek, peek};
    pub use crate::host::parse_authority;
    pub use crate::socks::{parse_greeting, parse_password, parse_request as parse_socks_request};
}
