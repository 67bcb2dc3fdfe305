//! The plane over HTTP: real sockets, a real client, real keys.

mod admission;
mod attacks;
mod facts;
mod fleet;
mod fuzz;
mod house;
mod leases;
mod lies;
mod page;
mod people;
mod readers;
pub(crate) mod support;
mod table;
mod transcript;
mod unserved;
