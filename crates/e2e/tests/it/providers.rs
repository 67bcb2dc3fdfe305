//! The clients of remote providers against our own doors, which the official SDKs judge: a plane
//! with open doors as one process, `warrant sandbox exec --provider …` as another, and between
//! them a proxy that misbehaves in one way at a time.

mod accept;
mod backend;
mod conform;
mod degraded;
mod door;
mod exec;
mod faults;
mod governed;
mod http;
mod leases;
mod liars;
mod proxy;
mod site;
mod streams;
mod switch;
